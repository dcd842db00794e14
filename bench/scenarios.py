"""What is measured: each scenario gives cases, (group, contender, how to measure it), which run() takes in turn."""

from __future__ import annotations

import os
import socketserver
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import psycopg
from contenders import CONTENDERS, PAYLOAD, PEERS
from measure import family, memory
from stage import Site, percentiles, pgbench, rates

Measure = Callable[[Site], dict[str, float]]
Case = tuple[str, str, Measure]  # within a group contenders are compared
OURS = ("pyworker", "pyworker, deleted")
FLOOR = ("table, 100", "table, 500", "table, two steps")
FUNCTIONS = ("functions, 100", "functions, 500", "functions, 500, deleted")


# -- how ---------------------------------------------------------------------------------------------------------------


def drain(
    site: Site, n: int, workers: int = 1, fill: Callable[[Site, int], None] | None = None,
    pinned: bool = False, beside: str = "", statistics: bool = True,
) -> dict[str, float]:  # fmt: skip
    """n jobs become visible by one COMMIT to workers that are warm, with the statistics that autovacuum would make sooner or later."""
    if beside:
        site.conn.execute(beside.encode())
        site.conn.execute("vacuum analyze")
        site.rise()
    site.workers(workers)
    with ExitStack() as stack:
        if pinned:
            pin = stack.enter_context(psycopg.connect(site.dsn))
            pin.execute("set transaction isolation level repeatable read")
            pin.execute("select txid_current_snapshot()")
        site.conn.execute("begin")
        (fill or Site.fill)(site, n)
        if statistics:
            site.conn.execute("analyze")
        with site.measured(n) as found:
            site.conn.execute("commit")
            site.wait_drained()
    if site.trail.stat().st_size:
        found["first_fifth"], found["last_fifth"] = rates(site.trail)
    return found


def ask(
    site: Site, n: int, verb: str, *arguments: Any,
    warm: tuple[Any, ...] | None = None, connections: int = 1, beside: str = "",
) -> dict[str, float]:  # fmt: skip
    """n jobs added by the contender's own client, which has connected before."""
    if beside:
        site.conn.execute(beside.encode())
        site.conn.execute("vacuum analyze")
    program = site.start()
    program.ask("connect", connections)
    program.ask(verb, min(n, 200), *(arguments if warm is None else warm))
    with site.measured(n) as found:
        program.ask(verb, n, *arguments)
    return found


STATEMENTS = {
    "pyworker": """select pyworker.add_job('noop', '{"n": 1, "to": "ada@example.org"}'::json)""",
    "graphile-worker": """select graphile_worker.add_job('noop', '{"n": 1, "to": "ada@example.org"}'::json)""",
    "table, 100": """insert into jobs (task, payload) values ('noop', '{"n": 1, "to": "ada@example.org"}'::json)""",
}


def sql_adds(
    site: Site, n: int, connections: int, worker: bool = False, notify: bool = True
) -> dict[str, float]:
    """The same client for all: pgbench, one statement and commit per job."""
    if worker:
        site.workers()
    script = site.stage.out / "pgbench.sql"
    script.write_text(STATEMENTS[site.contender.name] + ";\n")
    options = "" if notify else "-c pyworker.notify=off"
    argv = [
        pgbench(),
        "-n",
        "-M",
        "prepared",
        "-c",
        connections,
        "-j",
        min(connections, 2),
        "-t",
        n // connections,
        "-f",
        script,
        site.dsn,
    ]
    n = n // connections * connections
    with site.measured(n) as found:
        before = os.times()
        subprocess.run(
            list(map(str, argv)), check=True, capture_output=True, env={**os.environ, "PGOPTIONS": options}
        )
        after = os.times()
        found["client_s"] = (
            after.children_user + after.children_system - before.children_user - before.children_system
        )
    return found


def latency(site: Site, n: int, gap_ms: float) -> dict[str, float]:
    """From just before the call that adds a job to the start of its handler; and what a job costs that comes by itself."""
    worker, client = site.start(), site.start()
    worker.ask("work", site.contender.concurrency, True)
    client.ask("connect", 1)
    client.ask("latency", 20, gap_ms)  # warm
    _await_lines(site, 20)
    site.trail.write_text("")
    with site.measured(n) as found:
        client.ask("latency", n, gap_ms)
        _await_lines(site, n)
    return found | percentiles(site.trail)


def _await_lines(site: Site, n: int) -> None:
    deadline = time.monotonic() + 60
    while len(site.trail.read_text().splitlines()) < n:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{site.contender.name}: {n} jobs were added, not all of them began")
        time.sleep(0.05)


def fill_with(payload: str) -> Callable[[Site, int], None]:
    """As always, with another payload."""

    def fill(site: Site, n: int) -> None:
        statement = site.contender.fill.replace(PAYLOAD, payload)
        for start in range(0, n, 10):
            site.conn.execute(statement.encode(), {"n": min(10, n - start), "task": "noop"})

    return fill


SEQUENCE, QUEUE = (
    "'sequence_policy', jsonb_build_object('key', 's' || i %% %s)",
    "'queue_name', 'q' || i %% %s",
)


def fill_lanes(kind: str, count: int) -> Callable[[Site, int], None]:
    """Over so many sequences or queues, in turn."""

    def fill(site: Site, n: int) -> None:
        for start in range(0, n, 1000):
            site.conn.execute(
                f"""select count(*) from pyworker.add_jobs((select jsonb_agg(jsonb_build_object('identifier', 'noop', 'payload', {PAYLOAD},
                    {kind})) from generate_series(%s::int, %s) i))""",
                [count, start + 1, min(start + 1000, n)],
            )

    return fill


def fill_mixed(site: Site, n: int) -> None:
    ours = dict(noop=n // 2, noop_sync=n // 4, fail=n // 8, snooze=n - n // 2 - n // 4 - n // 8)
    others = dict(noop=n - n // 8, fail=n // 8)
    for task, count in (ours if site.contender.name in OURS else others).items():
        site.fill(count, task)


class Echo(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        self.wfile.write(self.rfile.readline())


def talk(site: Site, n: int) -> dict[str, float]:
    """Each handler connects to a server on this machine, sends a line and reads one."""
    socketserver.ThreadingTCPServer.request_queue_size = 128
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        os.environ["BENCH_PORT"] = str(server.server_address[1])  # programs inherit it
        found = drain(site, n, fill=lambda site, n: site.fill(n, "talk"))
        server.shutdown()
    return found


def resident(site: Site, n: int, times: int = 10) -> dict[str, Any]:
    """Memory of the processes, after each n jobs."""
    site.workers()
    program = site.programs[0].process.pid
    pids = family(program)[1:] or [
        program
    ]  # ours is started by its program, the others' programs are the workers
    series: list[list[float]] = []
    for _ in range(times + 1):
        site.conn.execute("begin")
        site.fill(n)
        site.conn.execute("commit")
        site.wait_drained()
        series.append([memory(pid) for pid in pids])
    growth = max(series[-1][i] / series[0][i] - 1 for i in range(len(pids)))
    return {
        "parent": series[-1][0],
        "child": series[-1][-1],
        "growth": growth,
        "series": series,
        "n": n * (times + 1),
    }


def idle(site: Site, count: int, seconds: float = 10.0) -> dict[str, float]:
    """What workers cost who have nothing to do: CPU of their processes and of the server."""
    site.workers(count)
    before = site.read()
    time.sleep(seconds)
    used = site.read() - before
    return {"idle": (used.client + used.server) * 1000 / seconds / count, "n": count}


# -- what --------------------------------------------------------------------------------------------------------------


def few(n: int, name: str) -> int:
    """The slow ones get fewer jobs."""
    return max(int(n * CONTENDERS[name].share), 500)


def add(jobs: int) -> Iterator[Case]:
    for name in ("pyworker", *PEERS, "table, 100"):
        for n, connections in ((jobs // 20, 1), (jobs // 10, 32)):
            yield (
                f"own client, {connections} connections",
                name,
                partial(ask, n=n, verb="add", connections=connections),
            )
    if not pgbench():
        return
    for n, connections in ((jobs // 20, 1), (jobs // 5, 32)):
        for name in STATEMENTS:
            yield f"SQL, {connections} connections", name, partial(sql_adds, n=n, connections=connections)
    for notify in (True, False):
        group = f"SQL, 32 connections, worker at it, notifications {'on' if notify else 'off'}"
        yield group, "pyworker", partial(sql_adds, n=jobs // 5, connections=32, worker=True, notify=notify)


def bulk(jobs: int) -> Iterator[Case]:
    for name in ("pyworker", *PEERS, "table, 100"):
        yield "1,000 a call", name, partial(ask, n=few(jobs // 2, name), verb="bulk")


def drains(jobs: int) -> Iterator[Case]:
    for workers, group in ((1, "one process"), (2, "two processes")):
        for name in (*OURS, *PEERS, *FLOOR, *FUNCTIONS):
            yield group, name, partial(drain, n=few(jobs, name), workers=workers)
    for name in ("pyworker", "graphile-worker", "pg-boss", "river", "pgqueuer"):
        yield "one process, without statistics", name, partial(drain, n=few(jobs, name), statistics=False)


def latencies(jobs: int) -> Iterator[Case]:
    n = max(50, min(jobs // 400, 1000))
    for group, times, gap_ms in (
        ("20 jobs/s", 1, 50),
        ("up to 200 jobs/s", 4, 5),
        ("up to 1,000 jobs/s", 20, 1),
    ):
        for name in ("pyworker", *PEERS):
            yield group, name, partial(latency, n=times * n, gap_ms=gap_ms)


def pins(jobs: int) -> Iterator[Case]:
    """Peers get a tenth: under a pinned xmin each further job costs them more."""
    for name, n in (
        ("pyworker", jobs * 5),
        *((name, jobs // 2) for name in ("pyworker", "graphile-worker", "pg-boss", "pgqueuer")),
    ):
        for pinned in (False, True):
            yield (
                f"{n:,} jobs, {'pinned' if pinned else 'unpinned'}",
                name,
                partial(drain, n=n, pinned=pinned),
            )


FUTURE = {
    "pyworker": """select count(*) from generate_series(1, {n} / 1000) k, lateral pyworker.add_jobs((select jsonb_agg(
        jsonb_build_object('identifier', 'noop', 'payload', k + i, 'priority', -1, 'run_at', now() + interval '1 day')) from generate_series(1, 1000) i))""",
    "graphile-worker": """select count(*) from generate_series(1, {n} / 1000) k, lateral graphile_worker.add_jobs(array(
        select row('noop', json_build_object('n', k), null, now() + interval '1 day', null, null, -1, null)::graphile_worker.job_spec from generate_series(1, 1000)))""",
    "table, 100": "insert into jobs (task, payload, priority, run_at) select 'noop', '{{}}', -1, now() + interval '1 day' from generate_series(1, {n})",
}


def futures(jobs: int) -> Iterator[Case]:
    n = jobs * 5 // 1000 * 1000
    for name, statement in FUTURE.items():
        yield "alone", name, partial(drain, n=jobs)
        yield f"beside {n:,} future jobs", name, partial(drain, n=jobs, beside=statement.format(n=n))


KEYED = {
    "pyworker": """select count(*) from generate_series(0, 99) k, lateral pyworker.add_jobs((select jsonb_agg(
        jsonb_build_object('identifier', 'noop', 'payload', i, 'job_key', 'k' || k * 1000 + i)) from generate_series(0, 999) i))""",
    "graphile-worker": """select count(*) from generate_series(0, 99) k, lateral graphile_worker.add_jobs(array(
        select row('noop', to_json(i), null, null, null, 'k' || k * 1000 + i, null, null)::graphile_worker.job_spec from generate_series(0, 999) i))""",
}


def keyed(jobs: int) -> Iterator[Case]:
    n = jobs // 10
    for name, statement in KEYED.items():
        yield "plain add", name, partial(ask, n=n, verb="add")
        yield "new keys", name, lambda site: ask(site, n, "add_keyed", 1_000_000_000, False)
        yield "10 keys, replaced", name, lambda site: ask(site, n, "add_keyed", 10, False)
        yield (
            "100,000 keys, replaced",
            name,
            lambda site, fill=statement: ask(site, n, "add_keyed", 100_000, False, beside=fill),
        )
        yield (
            "arrays of up to 1,000 elements",
            name,
            lambda site: ask(site, n, "add_keyed", max(1, n // 1000), True),
        )


def unique(jobs: int) -> Iterator[Case]:
    n = jobs // 10
    for name in ("pyworker", "pg-boss", "river"):
        yield "plain add", name, partial(ask, n=n, verb="add")
        yield "fresh", name, lambda site: ask(site, n, "add_unique", n, warm=(1,))
        yield "duplicates", name, lambda site: ask(site, n, "add_unique", 10)


def sequences(jobs: int) -> Iterator[Case]:
    many, one = jobs // 2, jobs // 20
    yield f"{many:,} plain jobs", "pyworker", partial(drain, n=many)
    yield (
        f"{many // 10:,} sequences of 10",
        "pyworker",
        partial(drain, n=many, fill=fill_lanes(SEQUENCE, many // 10)),
    )
    yield f"1 sequence of {one:,}", "pyworker", partial(drain, n=one, fill=fill_lanes(SEQUENCE, 1))


def large(jobs: int) -> Iterator[Case]:
    megabyte = (
        "json_build_object('n', (select string_agg(md5(i::text || k), '') from generate_series(1, 31250) k))"
    )
    for name in (*OURS, "graphile-worker", "pg-boss", "table, 100"):
        yield "1 MB", name, partial(drain, n=max(jobs // 1000, 20), fill=fill_with(megabyte))


def mixed(jobs: int) -> Iterator[Case]:
    for name in ("pyworker", "graphile-worker"):
        yield "mixed", name, partial(drain, n=jobs // 10, fill=fill_mixed)


def resident_sizes(jobs: int) -> Iterator[Case]:
    for name in ("pyworker", "graphile-worker", "pg-boss"):
        yield "resident, MB", name, partial(resident, n=jobs // 2)


def talks(jobs: int) -> Iterator[Case]:
    for name in ("pyworker", "pyworker, uvloop"):
        yield "a line each way over TCP", name, partial(talk, n=jobs // 10)


WAITING = """select count(*) from generate_series(1, {n} / 1000) k, lateral pyworker.add_jobs((select jsonb_agg(
    jsonb_build_object('identifier', 'noop', 'payload', k + i)) from generate_series(1, 1000) i))"""


def growth(jobs: int) -> Iterator[Case]:
    for n in (jobs // 10, jobs, jobs * 5):
        yield f"drain of {n:,} jobs", "pyworker", partial(drain, n=n)
    for n in (jobs // 10, jobs, jobs * 5):
        yield (
            f"an add beside {n:,} that wait", "pyworker",
            partial(ask, n=jobs // 20, verb="add", beside=WAITING.format(n=n)),
        )  # fmt: skip
    for count in (10, 100, 1000, 10_000):
        yield (
            f"{count:,} serial queues",
            "pyworker",
            partial(drain, n=jobs // 5, fill=fill_lanes(QUEUE, count)),
        )
    for count in (1, 2, 4, 8):
        yield f"drain by {count} workers", "pyworker", partial(drain, n=jobs, workers=count)
    for count in (1, 8, 32):
        yield f"{count} idle workers", "pyworker", partial(idle, count=count)


SCENARIOS: dict[str, tuple[str, Callable[[int], Iterator[Case]]]] = {
    "A": ("Adding, one call and commit per job", add),
    "B": ("Adding 1,000 a call", bulk),
    "C": ("Drain", drains),
    "D": (
        "Latency, from the call to the handler's start: of an idle system, and of one that is kept awake",
        latencies,
    ),
    "E": ("Drain under a pinned xmin (a REPEATABLE READ snapshot held by another session)", pins),
    "F": ("Drain beside jobs of the far future and better priority", futures),
    "G": ("Adding with a job key", keyed),
    "H": ("Unique jobs", unique),
    "I": ("Sequences", sequences),
    "J": ("Drain of large payloads", large),
    "K": (
        "Drain of a mixture: successes, failures with retry, and (pyworker) sync handlers and snoozes",
        mixed,
    ),
    "L": ("Memory over 11 drains", resident_sizes),
    "M": ("Drain of async handlers that speak to a server", talks),
    "N": ("How cost grows", growth),
}


def cases(letter: str, jobs: int, only: set[str]) -> list[Case]:
    found = SCENARIOS[letter][1](jobs)
    return [case for case in found if not only or case[1].split(",")[0] in only]
