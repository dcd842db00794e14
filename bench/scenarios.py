"""What is measured: each scenario gives cases, (group, contender, how to measure it), which run() takes in turn."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import psycopg
from contenders import CONTENDERS, PEERS
from measure import family, memory
from stage import Site, percentiles, pgbench, rates

Measure = Callable[[Site], dict[str, float]]
Case = tuple[str, str, Measure]  # within a group contenders are compared
OURS = ("pyworker", "pyworker, deleted")
FLOOR = ("table, 100", "table, 500")
FUNCTIONS = ("functions, 100", "functions, 500", "functions, 500, deleted")


# -- how ---------------------------------------------------------------------------------------------------------------


def drain(
    site: Site, n: int, workers: int = 1, fill: Callable[[Site, int], None] | None = None,
    pinned: bool = False, beside: str = "",
) -> dict[str, float]:  # fmt: skip
    """n jobs become visible by one COMMIT to workers that are warm."""
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
        with site.measured(n) as found:
            site.conn.execute("commit")
            site.wait_drained()
    if site.trail.stat().st_size:
        found["first_fifth"], found["last_fifth"] = rates(site.trail)
    return found


def ask(site: Site, n: int, verb: str, *arguments: Any, connections: int = 1) -> dict[str, float]:
    """n jobs added by the contender's own client, which has connected before."""
    program = site.start()
    program.ask("connect", connections)
    program.ask(verb, min(n, 200), *arguments)  # warm
    with site.measured(n) as found:
        program.ask(verb, n, *arguments)
    return found


STATEMENTS = {
    "pyworker": """select pyworker.add_job('noop', '{"n": 1, "to": "ada@example.org"}'::json)""",
    "graphile-worker": """select graphile_worker.add_job('noop', '{"n": 1, "to": "ada@example.org"}'::json)""",
    "table, 100": """insert into jobs (task, payload) values ('noop', '{"n": 1, "to": "ada@example.org"}'::json)""",
}


def sql_adds(site: Site, n: int, connections: int, worker: bool = False, notify: bool = True) -> dict[str, float]:
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
        subprocess.run(list(map(str, argv)), check=True, capture_output=True, env={**os.environ, "PGOPTIONS": options})
        after = os.times()
        found["client_s"] = after.children_user + after.children_system - before.children_user - before.children_system
    return found


def latency(site: Site, n: int, gap_ms: float) -> dict[str, float]:
    """From just before the call that adds a job to the start of its handler, on an idle system."""
    worker, client = site.start(), site.start()
    worker.ask("work", site.contender.concurrency, True)
    client.ask("connect", 1)
    client.ask("latency", 20, gap_ms)  # warm
    _await_lines(site, 20)
    site.trail.write_text("")
    client.ask("latency", n, gap_ms)
    _await_lines(site, n)
    return percentiles(site.trail)


def _await_lines(site: Site, n: int) -> None:
    deadline = time.monotonic() + 60
    while len(site.trail.read_text().splitlines()) < n:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{site.contender.name}: {n} jobs were added, not all of them began")
        time.sleep(0.05)


# -- what --------------------------------------------------------------------------------------------------------------


def add(jobs: int) -> Iterator[Case]:
    for name in ("pyworker", *PEERS, "table, 100"):
        for n, connections in ((jobs // 20, 1), (jobs // 10, 32)):
            yield f"own client, {connections} connections", name, partial(ask, n=n, verb="add", connections=connections)
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
        yield "1,000 a call", name, partial(ask, n=jobs // 2, verb="bulk")


def drains(jobs: int) -> Iterator[Case]:
    for workers, group in ((1, "one process"), (2, "two processes")):
        for name in (*OURS, *PEERS, *FLOOR, *FUNCTIONS):
            yield group, name, partial(drain, n=jobs, workers=workers)


def latencies(jobs: int) -> Iterator[Case]:
    for name in ("pyworker", *PEERS):
        yield "20 jobs/s", name, partial(latency, n=max(50, min(jobs // 400, 1000)), gap_ms=50)


SCENARIOS: dict[str, tuple[str, Callable[[int], Iterator[Case]]]] = {
    "A": ("add_job: one call and commit per job", add),
    "B": ("add_jobs: 1,000 a call", bulk),
    "C": ("Drain", drains),
    "D": ("Latency of an idle system: from the call to the handler's start, ms", latencies),
}


def cases(letter: str, jobs: int, only: set[str]) -> list[Case]:
    known = set(CONTENDERS)
    return [
        case for case in SCENARIOS[letter][1](jobs) if case[1] in known and (not only or case[1].split(",")[0] in only)
    ]


_ = (family, memory)
