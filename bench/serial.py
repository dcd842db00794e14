"""What jobs that run one after another cost a real worker, in two or more versions of pyworker.

    python bench/serial.py OLDER [NEWER …] [--rounds N] [--jobs N] [--only SCENARIO …]

OLDER and NEWER are checkouts, each with its package in a .venv of its own; without NEWER, this one. All
run on one private server, and take turns: in each round each drains each scenario, in a new database,
with `pyworker run`. The worker has started and run some jobs before; one COMMIT then shows it all jobs.

The figures are microseconds of CPU per job: the worker's processes and the server's, without the
session that watches. A ratio is the median of the ratios within each round, to the first version.
`--only latency`: milliseconds from the add of a job to its claim, while the worker is idle.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

sys.path.insert(0, str(Path(__file__).parents[1]))

from measure import cpu, postmaster_of
from stage import SETTINGS

from pyworker._dev.postgres import Server, temporary_server

TASKS = """
import pyworker
@pyworker.task
async def noop(payload): pass
"""
WARM = 200  # jobs before those that are measured
PATIENCE = 300.0  # seconds for a drain


class Scenario(NamedTuple):
    part: float  # of --jobs
    concurrency: int
    spec: str  # members of the i-th job, in SQL
    options: tuple[str, ...] = ()  # of `pyworker run`


SCENARIOS = {
    "one serial queue": Scenario(1, 10, "'queue_name', 'q'"),
    "one sequence": Scenario(1, 10, """'sequence_policy', '{"key": "s"}'::jsonb"""),
    "ten serial queues": Scenario(2, 10, "'queue_name', 'q' || i %% 10"),
    "plain, one at a time": Scenario(2, 1, "'priority', 0"),
    "plain, batches": Scenario(10, 10, "'priority', 0"),
}


class Cost(NamedTuple):
    worker: float
    server: float
    wal: float  # bytes
    rate: float  # jobs a second

    @property
    def total(self) -> float:
        return self.worker + self.server


class Version:
    def __init__(self, checkout: Path, server: Server, number: int) -> None:
        self.name, self.server, self.template = str(checkout), server, f"version_{number}"
        self.command = [checkout / ".venv/bin/python", "-m", "pyworker"]
        self.database("create", self.template)
        environment = {**os.environ, "DATABASE_URL": server.url(self.template)}
        migrate = [*self.command, "migrate"]
        subprocess.run(migrate, check=True, stdout=subprocess.DEVNULL, env=environment, cwd=checkout)

    def database(self, verb: str, name: str, more: str = "") -> None:
        with psycopg.connect(self.server.url(), autocommit=True) as conn:
            conn.execute(f"{verb} database {name} {more}")  # type: ignore[arg-type]

    def configure(self, settings: str) -> None:
        with psycopg.connect(self.server.url(self.template), autocommit=True) as conn:
            conn.execute(f"select pyworker.configure({settings})")  # type: ignore[arg-type]

    @contextmanager
    def running(self, directory: Path, scenario: Scenario) -> Iterator[tuple[psycopg.Connection[Any], int]]:
        """A new database and a worker on it."""
        self.database("drop", "if exists serial", "with (force)")
        self.database("create", "serial", f"template {self.template}")
        dsn = self.server.url("serial")
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute("checkpoint")
            conn.execute("set search_path = pyworker, public")
            options = ["--dsn", dsn, "--concurrency", str(scenario.concurrency), *scenario.options]
            worker = subprocess.Popen(
                [*self.command, "run", "serial_tasks", *options],
                env={**os.environ, "PYTHONPATH": str(directory)},
                cwd=directory,  # else -m would import the package that is here
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                yield conn, worker.pid
            finally:
                os.killpg(worker.pid, signal.SIGTERM)
                worker.wait()

    def drain(self, directory: Path, scenario: Scenario, jobs: int) -> Cost:
        with self.running(directory, scenario) as (conn, worker):
            postmaster = postmaster_of(conn)

            def read() -> tuple[float, float, int]:
                (wal,) = conn.execute("select pg_current_wal_insert_lsn() - '0/0'").fetchone()  # type: ignore[misc]
                return cpu(worker), cpu(postmaster, without=conn.info.backend_pid), int(wal)

            add(conn, scenario.spec, WARM)
            drained(conn)
            with conn.transaction():
                add(conn, scenario.spec, jobs)
                conn.execute("analyze live_jobs")
                began, before = time.perf_counter(), read()
            drained(conn)
            taken, after = time.perf_counter() - began, read()
            used = [new - old for new, old in zip(after, before, strict=True)]
            return Cost(used[0] / jobs * 1e6, used[1] / jobs * 1e6, used[2] / jobs, jobs / taken)

    def latency(self, directory: Path, jobs: int) -> tuple[float, float]:
        """The median and the 99th percentile."""
        scenario = SCENARIOS["plain, one at a time"]
        with self.running(directory, scenario) as (conn, _):
            add(conn, scenario.spec, WARM)
            drained(conn)
            for _ in range(jobs):
                add(conn, scenario.spec, 1)
                drained(conn)
            found = conn.execute(
                "select percentile_cont(array[0.5, 0.99]) within group "
                "(order by extract(epoch from h.locked_at - h.created_at)::float8 * 1000) from ("
                "select * from history order by id desc limit %s) h",
                [jobs],
            )
            ((half, most),) = found.fetchone()  # type: ignore[misc]
            return half, most


def add(conn: psycopg.Connection[Any], spec: str, jobs: int) -> None:
    build = f"jsonb_build_object('identifier', 'noop', 'payload', jsonb_build_object('n', i), {spec})"
    specs = f"select jsonb_agg({build}) from generate_series(%s::int, %s) i"
    for first in range(1, jobs + 1, 1000):
        numbers = [first, min(first + 999, jobs)]
        conn.execute(f"select count(*) from add_jobs(({specs}))", numbers)  # type: ignore[arg-type]


def drained(conn: psycopg.Connection[Any]) -> None:
    deadline = time.monotonic() + PATIENCE
    while conn.execute("select from live_jobs limit 1").fetchone() is not None:
        if time.monotonic() > deadline:
            sys.exit(f"jobs are left after {PATIENCE:.0f} s")
        time.sleep(0.05)  # here, not in the server: an open snapshot would keep what has ended


def report(name: str, costs: dict[str, list[Cost]]) -> None:
    first, *_ = costs.values()
    for version, found in costs.items():
        worker, server, wal, rate = (
            statistics.median(getattr(cost, field) for cost in found) for field in Cost._fields
        )
        ratios = [new.total / old.total for new, old in zip(found, first, strict=True)]
        spread = f"({min(ratios):.2f} to {max(ratios):.2f})"
        print(
            f"{name:22} {worker:6.1f} + {server:6.1f} = {worker + server:6.1f} us"
            f"   {statistics.median(ratios):.3f} x {spread:16} {wal:6.0f} B WAL {rate:6.0f}/s   {version}",
            flush=True,
        )


def report_latency(found: dict[str, list[tuple[float, float]]]) -> None:
    first, *_ = found.values()
    for version, times in found.items():
        half, most = (statistics.median(column) for column in zip(*times, strict=True))
        ratio = statistics.median(new[0] / old[0] for new, old in zip(times, first, strict=True))
        print(f"latency: p50 {half:.2f} ms, {ratio:.3f} x, p99 {most:.2f} ms   {version}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("versions", nargs="+", type=Path, metavar="CHECKOUT")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2500)
    parser.add_argument(
        "--only", nargs="+", choices=[*SCENARIOS, "latency"], default=list(SCENARIOS), metavar="SCENARIO"
    )
    parser.add_argument("--json", type=Path, help="a file for each round's figures")
    options = parser.parse_args()
    checkouts = [path.resolve() for path in options.versions]
    if len(checkouts) == 1:
        checkouts.append(Path(__file__).parents[1])
    rounds: dict[str, dict[str, list[Cost]]] = {}
    with tempfile.TemporaryDirectory() as directory, temporary_server(settings=SETTINGS) as server:
        (Path(directory) / "serial_tasks.py").write_text(TASKS)
        versions = [Version(path, server, number) for number, path in enumerate(checkouts)]
        print(f"PostgreSQL {server.version}, {options.rounds} rounds", flush=True)
        for name in options.only:
            if name == "latency":
                times: dict[str, list[tuple[float, float]]] = {v.name: [] for v in versions}
                for turn in range(options.rounds):
                    for version in versions if turn % 2 else versions[::-1]:
                        times[version.name].append(version.latency(Path(directory), 100))
                report_latency(times)
                continue
            scenario, costs = SCENARIOS[name], rounds.setdefault(name, {v.name: [] for v in versions})
            for turn in range(options.rounds):
                for version in versions if turn % 2 else versions[::-1]:
                    jobs = int(options.jobs * scenario.part)
                    costs[version.name].append(version.drain(Path(directory), scenario, jobs))
            report(name, costs)
    if options.json:
        options.json.write_text(json.dumps(rounds))


if __name__ == "__main__":
    main()
