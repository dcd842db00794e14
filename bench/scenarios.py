"""What is measured: each scenario yields cases, which run.py measures in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from contenders import CONTENDERS, FLOOR, FUNCTIONS, OURS, PEERS
from stage import Site, pgbench
from steady import steady
from workloads import (
    QUEUE,
    SEQUENCE,
    ask,
    drain,
    fill_lanes,
    fill_mixed,
    fill_queue,
    fill_with,
    idle,
    latency,
    resident,
    sql_adds,
    talk,
)

Measure = Callable[[Site], dict[str, float]]
Case = tuple[str, str, Measure]  # group, contender, how; contenders of one group are compared


def few(jobs: int, name: str) -> int:
    """A slow contender gets fewer jobs."""
    return max(int(jobs * CONTENDERS[name].share), 500)


def add(jobs: int) -> Iterator[Case]:
    for name in ("pyworker", *PEERS, "table, 100"):
        for count, connections in ((jobs // 20, 1), (jobs // 10, 32)):
            group = f"own client, {connections} connections"
            yield group, name, partial(ask, jobs=count, verb="add", connections=connections)
    if not pgbench():
        return
    for count, connections in ((jobs // 20, 1), (jobs // 5, 32)):
        for name in ("pyworker", "graphile-worker", "table, 100"):
            group = f"SQL, {connections} connections"
            yield group, name, partial(sql_adds, jobs=count, connections=connections)
    for notify in (True, False):
        group = f"SQL, 32 connections, with a worker, notifications {'on' if notify else 'off'}"
        measure = partial(sql_adds, jobs=jobs // 5, connections=32, worker=True, notify=notify)
        yield group, "pyworker", measure


def bulk(jobs: int) -> Iterator[Case]:
    for name in ("pyworker", *PEERS, "table, 100"):
        yield "1,000 a call", name, partial(ask, jobs=few(jobs // 2, name), verb="bulk")


def drains(jobs: int) -> Iterator[Case]:
    for workers, group in ((1, "one process"), (2, "two processes")):
        for name in (*OURS, *PEERS, *FLOOR, *FUNCTIONS):
            yield group, name, partial(drain, jobs=few(jobs, name), workers=workers)
    for name in ("pyworker", "graphile-worker", "pg-boss", "river", "pgqueuer"):
        measure = partial(drain, jobs=few(jobs, name), statistics=False)
        yield "one process, without statistics", name, measure


def latencies(jobs: int) -> Iterator[Case]:
    count = max(50, min(jobs // 400, 1000))
    for group, times, gap_ms in (
        ("20 jobs/s", 1, 50),
        ("up to 200 jobs/s", 4, 5),
        ("up to 1,000 jobs/s", 20, 1),
    ):
        for name in ("pyworker", *PEERS):
            yield group, name, partial(latency, jobs=times * count, gap_ms=gap_ms)
    for rate in (100, 300):
        for name in ("pyworker", "graphile-worker", "river"):
            measure = partial(steady, rate=rate, seconds=min(20, jobs / 5000))
            yield f"steadily {rate} jobs/s, 5 ms each", name, measure


def pins(jobs: int) -> Iterator[Case]:
    """Peers get a tenth: under a pinned xmin each further job costs them more."""
    small = ("pyworker", "graphile-worker", "pg-boss", "pgqueuer")
    for name, count in (("pyworker", jobs * 5), *((name, jobs // 2) for name in small)):
        for pinned in (False, True):
            group = f"{count:,} jobs, {'pinned' if pinned else 'unpinned'}"
            yield group, name, partial(drain, jobs=count, pinned=pinned)


# {batches} times a thousand jobs. River's have the best priority already.
FUTURE = {
    "pyworker": """
        select count(*) from generate_series(1, {batches}) batch, lateral pyworker.add_jobs((
            select jsonb_agg(jsonb_build_object(
                'identifier', 'noop', 'payload', batch + i, 'priority', -1,
                'run_at', now() + interval '1 day'))
            from generate_series(1, 1000) i))""",
    "graphile-worker": """
        select count(*) from generate_series(1, {batches}) batch, lateral graphile_worker.add_jobs(array(
            select row('noop', json_build_object('n', batch), null, now() + interval '1 day', null, null,
                       -1, null)::graphile_worker.job_spec
            from generate_series(1, 1000)))""",
    "river": """
        insert into river_job (kind, args, max_attempts, state, scheduled_at)
        select 'noop', '{{}}', 25, 'scheduled', now() + interval '1 day'
        from generate_series(1, {batches} * 1000)""",
    "pg-boss": """
        insert into pgboss.job (name, data, priority, start_after)
        select 'noop', '{{}}', 1, now() + interval '1 day' from generate_series(1, {batches} * 1000)""",
    "pgqueuer": """
        insert into pgqueuer (priority, entrypoint, payload, status, execute_after)
        select 1, 'noop', convert_to('{{}}', 'UTF8'), 'queued', now() + interval '1 day'
        from generate_series(1, {batches} * 1000)""",
    "table, 100": """
        insert into jobs (task, payload, priority, run_at)
        select 'noop', '{{}}', -1, now() + interval '1 day' from generate_series(1, {batches} * 1000)""",
}


def futures(jobs: int) -> Iterator[Case]:
    batches = jobs * 5 // 1000
    for name, statement in FUTURE.items():
        yield "alone", name, partial(drain, jobs=jobs)
        beside = statement.format(batches=batches)
        yield f"beside {batches * 1000:,} future jobs", name, partial(drain, jobs=jobs, beside=beside)


# A hundred thousand jobs, each with a key of its own.
KEYED = {
    "pyworker": """
        select count(*) from generate_series(0, 99) batch, lateral pyworker.add_jobs((
            select jsonb_agg(jsonb_build_object(
                'identifier', 'noop', 'payload', i, 'job_key', 'k' || batch * 1000 + i))
            from generate_series(0, 999) i))""",
    "graphile-worker": """
        select count(*) from generate_series(0, 99) batch, lateral graphile_worker.add_jobs(array(
            select row('noop', to_json(i), null, null, null, 'k' || batch * 1000 + i, null, null)
                ::graphile_worker.job_spec
            from generate_series(0, 999) i))""",
}


def keyed(jobs: int) -> Iterator[Case]:
    count = jobs // 10

    def add_keyed(keys: int, arrays: bool = False, beside: str = "") -> Measure:
        return lambda site: ask(site, count, "add_keyed", keys, arrays, beside=beside)

    for name, statement in KEYED.items():
        yield "plain add", name, partial(ask, jobs=count, verb="add")
        yield "new keys", name, add_keyed(1_000_000_000)
        yield "10 keys, replaced", name, add_keyed(10)
        yield "100,000 keys, replaced", name, add_keyed(100_000, beside=statement)
        yield "arrays of up to 1,000 elements", name, add_keyed(max(1, count // 1000), arrays=True)


def unique(jobs: int) -> Iterator[Case]:
    count = jobs // 10
    for name in ("pyworker", "pg-boss", "river"):
        yield "plain add", name, partial(ask, jobs=count, verb="add")
        yield "fresh", name, lambda site: ask(site, count, "add_unique", count, warm=(1,))
        yield "duplicates", name, lambda site: ask(site, count, "add_unique", 10)


SERIAL = """
    select count(*) from graphile_worker.add_jobs(array(
        select row('noop', json_build_object('n', i), 'q', null, null, null, null, null)
            ::graphile_worker.job_spec
        from generate_series(1, %(jobs)s) i))"""


def sequences(jobs: int) -> Iterator[Case]:
    many, one = jobs // 2, jobs // 20
    short, long = fill_lanes(SEQUENCE, many // 10), fill_lanes(SEQUENCE, 1)
    yield f"{many:,} plain jobs", "pyworker", partial(drain, jobs=many)
    yield f"{many // 10:,} sequences of 10", "pyworker", partial(drain, jobs=many, fill=short)
    yield f"1 sequence of {one:,}", "pyworker", partial(drain, jobs=one, fill=long)
    # Graphile Worker's local queue, which is for throughput, runs 24 jobs of such a queue at once. Without it
    # the worker looks for the next job before the end of the last one has freed the queue, and then polls.
    for name, count, fill in (
        ("pyworker", one, fill_lanes(QUEUE, 1)),
        ("graphile-worker", 20, fill_queue(SERIAL)),
    ):
        yield "1 serial queue", name, partial(drain, jobs=count, fill=fill, quick=True)


LARGE = "(select string_agg(md5(i::text || part), '') from generate_series(1, 31250) part)"


def large(jobs: int) -> Iterator[Case]:
    fill = fill_with(f"json_build_object('n', {LARGE})")
    for name in (*OURS, "graphile-worker", "pg-boss", "table, 100"):
        yield "1 MB", name, partial(drain, jobs=max(jobs // 1000, 20), fill=fill)


def mixed(jobs: int) -> Iterator[Case]:
    for name in ("pyworker", "graphile-worker"):
        yield "mixed", name, partial(drain, jobs=jobs // 10, fill=fill_mixed)


def resident_sizes(jobs: int) -> Iterator[Case]:
    for name in ("pyworker", "graphile-worker", "pg-boss"):
        yield "resident, MB", name, partial(resident, jobs=jobs // 2)


def talks(jobs: int) -> Iterator[Case]:
    for name in ("pyworker", "pyworker, uvloop"):
        yield "a line each way over TCP", name, partial(talk, jobs=jobs // 10)


WAITING = """
    select count(*) from generate_series(1, {batches}) batch, lateral pyworker.add_jobs((
        select jsonb_agg(jsonb_build_object('identifier', 'noop', 'payload', batch + i))
        from generate_series(1, 1000) i))"""


def growth(jobs: int) -> Iterator[Case]:
    sizes = (jobs // 10, jobs, jobs * 5)
    for size in sizes:
        yield f"drain of {size:,} jobs", "pyworker", partial(drain, jobs=size)
    for size in sizes:
        beside = WAITING.format(batches=size // 1000)
        measure = partial(ask, jobs=jobs // 20, verb="add", beside=beside)
        yield f"an add beside {size:,} that wait", "pyworker", measure
    for queues in (10, 100, 1000, 10_000):
        measure = partial(drain, jobs=jobs // 5, fill=fill_lanes(QUEUE, queues))
        yield f"{queues:,} serial queues", "pyworker", measure
    for workers in (1, 2, 4, 8):
        yield f"drain by {workers} workers", "pyworker", partial(drain, jobs=jobs, workers=workers)
    for workers in (1, 8, 32):
        yield f"{workers} idle workers", "pyworker", partial(idle, count=workers)


ALWAYS_BUSY = ("pyworker", "graphile-worker", "river", "pg-boss", "pgqueuer")


def sustained(jobs: int) -> Iterator[Case]:
    """24 handlers at once, so that 2,000 jobs a second of 5 ms each do not fill them."""
    seconds = min(120, max(10, jobs // 1000))
    for rate in (500, 1000, 2000):
        for name in ALWAYS_BUSY:
            yield f"{rate:,} jobs/s", name, partial(steady, rate=rate, seconds=seconds, concurrency=24)
    measure = partial(steady, rate=1000, seconds=seconds, concurrency=24)
    for name in ALWAYS_BUSY:
        yield "1,000 jobs/s, pinned", name, partial(measure, pinned=True)
    batches = jobs * 10 // 1000
    for name in ALWAYS_BUSY:
        beside = FUTURE[name].format(batches=batches)
        yield f"1,000 jobs/s beside {batches * 1000:,} future jobs", name, partial(measure, beside=beside)


SCENARIOS: dict[str, tuple[str, Callable[[int], Iterator[Case]]]] = {
    "A": ("Adding, one call and commit per job", add),
    "B": ("Adding 1,000 a call", bulk),
    "C": ("Drain", drains),
    "D": (
        "Latency, from the call to the handler's start: on an idle system, and in a stream of jobs",
        latencies,
    ),
    "E": ("Drain under a pinned xmin (a REPEATABLE READ snapshot held by another session)", pins),
    "F": ("Drain beside future jobs of better priority", futures),
    "G": ("Adding with a job key", keyed),
    "H": ("Unique jobs", unique),
    "I": ("Sequences and serial queues", sequences),
    "J": ("Drain of large payloads", large),
    "K": (
        "Drain of a mixture: successes, failures with retry, and (pyworker) sync handlers and snoozes",
        mixed,
    ),
    "L": ("Memory over 11 drains", resident_sizes),
    "M": ("Drain of async handlers that talk to a server", talks),
    "N": ("How cost grows", growth),
    "S": ("A sustained rate of single adds by SQL, handlers of 5 ms", sustained),
}


def cases(letter: str, jobs: int, only: set[str]) -> list[Case]:
    found = SCENARIOS[letter][1](jobs)
    return [case for case in found if not only or case[1].split(",")[0] in only]
