"""How a case is measured: each function does one kind of work on a site and returns what it cost."""

from __future__ import annotations

import os
import socketserver
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import psycopg
from contenders import OURS, PAYLOAD
from measure import family, memory
from stage import Site, percentiles, pgbench, rates

Fill = Callable[[Site, int], None]  # adds so many jobs


def drain(
    site: Site,
    jobs: int,
    workers: int = 1,
    fill: Fill = Site.fill,
    pinned: bool = False,
    beside: str = "",
    statistics: bool = True,
    quick: bool = False,
) -> dict[str, float]:
    """One COMMIT shows all jobs to workers that have run a few, with the statistics that autovacuum would
    make sooner or later. quick: with the settings for latency."""
    if beside:
        site.conn.execute(beside.encode())
        site.conn.execute("vacuum analyze")
        site.raise_floor()
    site.workers(workers, quick)
    with ExitStack() as stack:
        if pinned:
            pin = stack.enter_context(psycopg.connect(site.dsn))
            pin.execute("set transaction isolation level repeatable read")
            pin.execute("select txid_current_snapshot()")
        site.conn.execute("begin")
        fill(site, jobs)
        if statistics:
            site.conn.execute("analyze")
        with site.measured(jobs) as found:
            site.conn.execute("commit")
            site.wait_drained()
    if site.trail.stat().st_size:
        found["first_fifth"], found["last_fifth"] = rates(site.trail)
    return found


def ask(
    site: Site,
    jobs: int,
    verb: str,
    *arguments: Any,
    warm: tuple[Any, ...] | None = None,
    connections: int = 1,
    beside: str = "",
) -> dict[str, float]:
    """The contender's own client, which has connected before, adds the jobs by one of its verbs. warm: the
    verb's arguments for the jobs before those that are measured."""
    if beside:
        site.conn.execute(beside.encode())
        site.conn.execute("vacuum analyze")
    program = site.start()
    program.ask("connect", connections)
    program.ask(verb, min(jobs, 200), *(arguments if warm is None else warm))
    with site.measured(jobs) as found:
        program.ask(verb, jobs, *arguments)
    return found


EXAMPLE = """'{"n": 1, "to": "ada@example.org"}'"""
# How any SQL client adds a job. River has no function for it: its own client inserts, and notifies.
STATEMENTS = {
    "pyworker": "select pyworker.add_job('{task}', {payload}::json)",
    "graphile-worker": "select graphile_worker.add_job('{task}', {payload}::json)",
    "pg-boss": """
        with added as (
            insert into pgboss.job (name, data) values ('{task}', {payload}::jsonb) returning name)
        select pg_notify('pgboss_' || left(encode(sha224('pgboss'), 'hex'), 24), name) from added""",
    "table, 100": "insert into jobs (task, payload) values ('{task}', {payload}::json)",
    "pgqueuer": """
        insert into pgqueuer (priority, entrypoint, payload, status)
        values (0, '{task}', convert_to({payload}::text, 'UTF8'), 'queued')""",
    "river": """
        with added as (
            insert into river_job (kind, args, max_attempts) values ('{task}', {payload}::jsonb, 25)
            returning id)
        select pg_notify('public.river_insert', '{{"queue": "default"}}') from added""",
}


def sql_adds(
    site: Site, jobs: int, connections: int, worker: bool = False, notify: bool = True
) -> dict[str, float]:
    """The same client for all: pgbench, one statement and commit per job."""
    if worker:
        site.workers()
    script = site.stage.out / "pgbench.sql"
    statement = STATEMENTS[site.contender.name].format(task="noop", payload=EXAMPLE)
    script.write_text(" ".join(statement.split()) + ";\n")
    each = jobs // connections
    how = f"-n -M prepared -c {connections} -j {min(connections, 2)} -t {each} -f".split()
    environment = {**os.environ, "PGOPTIONS": "" if notify else "-c pyworker.notify=off"}
    with site.measured(each * connections) as found:
        before = _children_cpu()
        subprocess.run([pgbench(), *how, script, site.dsn], check=True, capture_output=True, env=environment)
        found["client_s"] = _children_cpu() - before
    return found


def _children_cpu() -> float:
    """CPU seconds of the programs that this one has run."""
    times = os.times()
    return times.children_user + times.children_system


def latency(site: Site, jobs: int, gap_ms: float) -> dict[str, float]:
    """The time from just before the call that adds a job until its handler starts, and what a job costs that
    comes by itself."""
    worker, client = site.start(), site.start()
    worker.ask("work", site.contender.concurrency, True)
    client.ask("connect", 1)
    client.ask("latency", 20, gap_ms)  # warm
    await_lines(site, 20)
    site.trail.write_text("")
    with site.measured(jobs) as found:
        client.ask("latency", jobs, gap_ms)
        await_lines(site, jobs)
    return found | percentiles(site.trail)


def await_lines(site: Site, jobs: int) -> None:
    deadline = time.monotonic() + 60
    while len(site.trail.read_text().splitlines()) < jobs:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{site.contender.name}: {jobs} jobs were added, not all of them began")
        time.sleep(0.05)


def fill_with(payload: str) -> Fill:
    """As always, but with this payload."""

    def fill(site: Site, jobs: int) -> None:
        statement = site.contender.fill.replace(PAYLOAD, payload)
        for start in range(0, jobs, 10):
            site.conn.execute(statement.encode(), {"jobs": min(10, jobs - start), "task": "noop"})

    return fill


# Members of the i-th job's specification.
SEQUENCE = "'sequence_policy', jsonb_build_object('key', 's' || i %% %s)"
QUEUE = "'queue_name', 'q' || i %% %s"


def fill_lanes(member: str, lanes: int) -> Fill:
    """Jobs of so many sequences or queues, in turn."""
    spec = f"jsonb_build_object('identifier', 'noop', 'payload', {PAYLOAD}, {member})"
    numbers = "generate_series(%s::int, %s) i"
    statement = f"select count(*) from pyworker.add_jobs((select jsonb_agg({spec}) from {numbers}))"

    def fill(site: Site, jobs: int) -> None:
        for start in range(0, jobs, 1000):
            site.conn.execute(statement.encode(), [lanes, start + 1, min(start + 1000, jobs)])

    return fill


def fill_queue(statement: str) -> Fill:
    """One statement adds so many jobs to one queue."""

    def fill(site: Site, jobs: int) -> None:
        site.conn.execute(statement.encode(), {"jobs": jobs})

    return fill


def fill_mixed(site: Site, jobs: int) -> None:
    """Of ours half are plain, a quarter have a sync handler, an eighth fail once, an eighth snooze once."""
    ours = dict(noop=jobs // 2, noop_sync=jobs // 4, fail=jobs // 8)
    ours["snooze"] = jobs - sum(ours.values())
    others = dict(noop=jobs - jobs // 8, fail=jobs // 8)
    for task, count in (ours if site.contender.name in OURS else others).items():
        site.fill(count, task)


class Echo(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        self.wfile.write(self.rfile.readline())


def talk(site: Site, jobs: int) -> dict[str, float]:
    """Each handler connects to a server on this machine, sends a line and reads one."""
    socketserver.ThreadingTCPServer.request_queue_size = 128
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        os.environ["BENCH_PORT"] = str(server.server_address[1])  # programs inherit it
        found = drain(site, jobs, fill=lambda site, count: site.fill(count, "talk"))
        server.shutdown()
    return found


def resident(site: Site, jobs: int, times: int = 10) -> dict[str, Any]:
    """Memory of the worker's processes after each drain of so many jobs."""
    site.workers()
    program = site.programs[0].process.pid
    # Our program starts the worker; the program of another contender is the worker.
    pids = family(program)[1:] or [program]
    series: list[list[float]] = []
    for _ in range(times + 1):
        site.conn.execute("begin")
        site.fill(jobs)
        site.conn.execute("commit")
        site.wait_drained()
        series.append([memory(pid) for pid in pids])
    growth = max(after / before - 1 for before, after in zip(series[0], series[-1], strict=True))
    return {
        "parent": series[-1][0],
        "child": series[-1][-1],
        "growth": growth,
        "series": series,
        "n": jobs * (times + 1),
    }


def idle(site: Site, count: int, seconds: float = 10.0) -> dict[str, float]:
    """What idle workers cost: CPU of their processes and of the server."""
    site.workers(count)
    before = site.read()
    time.sleep(seconds)
    used = site.read() - before
    return {"idle": (used.client + used.server) * 1000 / seconds / count, "n": count}
