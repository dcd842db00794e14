"""What single calls of the SQL functions cost, in batches or beside a backlog, for one or two versions of
the SQL.

    python bench/verbs.py [claim] [fail] [unique] [sweep] [--sql OTHER/sql] [--rounds N] [--backlog N]

It starts a PostgreSQL of its own, or uses DATABASE_URL, and installs this checkout's sql/ as one schema
and that of --sql as another. The two versions take turns. Each figure is the median CPU time of the
backend, or of elapsed time where the server's processes cannot be read.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg

from pyworker._dev.postgres import find_bindir, temporary_server

HERE = Path(__file__).resolve().parents[1] / "sql"
Figures = Iterator[tuple[str, float]]


class Version:
    """One version of the SQL functions, in a schema of its own."""

    def __init__(self, url: str, schema: str, sql: Path) -> None:
        psql = Path(find_bindir()) / "psql"
        install = ["-Xq", "-v", f"schema={schema}", "-f", sql / "install.sql", url]
        command = [psql if psql.exists() else "psql", *install]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        self.schema = schema
        self.conn = psycopg.connect(url, autocommit=True, options="-c synchronous_commit=off")
        self.conn.execute(f"set search_path = {schema}, public")
        self.worker = self.value("select register_worker()")

    def value(self, sql: str, *args: Any) -> Any:
        return self.conn.execute(sql, args).fetchone()[0]  # type: ignore[index,arg-type]

    def timed(self, sql: str, *args: Any) -> tuple[float, list[Any]]:
        """Microseconds that a call takes, and its rows."""
        began = self.clock()
        rows = self.conn.execute(sql, args).fetchall()  # type: ignore[arg-type]
        return (self.clock() - began) * 1e6, rows

    def clock(self) -> float:
        """Seconds that the backend has been on a CPU."""
        try:
            return int(Path(f"/proc/{self.conn.info.backend_pid}/schedstat").read_text().split()[0]) / 1e9
        except OSError:
            return time.perf_counter()

    def add(self, many: int, task: str = "t") -> None:
        for start in range(0, many, 20_000):
            specs = json.dumps([{"identifier": task}] * min(20_000, many - start))
            self.value("select count(*) from add_jobs(%s::jsonb)", specs)

    def claim(self, many: int, worker: int | None = None) -> tuple[float, list[int], list[int]]:
        took, rows = self.timed("select id, run from claim_jobs(%s, %s)", worker or self.worker, many)
        return took, [row[0] for row in rows], [row[1] for row in rows]

    def empty(self) -> None:
        self.conn.execute("truncate live_jobs, finished_jobs, errors, unique_keys")


def claim(version: Version) -> Figures:
    version.add(2000)
    for batch, turns in ((100, 15), (1, 200)):
        for _ in range(turns):
            took, ids, runs = version.claim(batch)
            yield f"claim_jobs of {batch}, per job", took / batch
            took, _ = version.timed("select finish_jobs(%s, %s)", ids, runs)
            yield f"finish_jobs of {batch}, per job", took / batch


def fail(version: Version) -> Figures:
    for attempts, end in ((25, "retryable"), (1, "discarded")):
        version.add(1000)
        version.conn.execute("update live_jobs set max_attempts = %s where state = 'available'", [attempts])
        for _ in range(10):
            _, ids, runs = version.claim(100)
            failures = [
                {"id": job_id, "run": run, "error": "it did not work"}
                for job_id, run in zip(ids, runs, strict=True)
            ]
            took, _ = version.timed("select fail_jobs(%s::jsonb)", json.dumps(failures))
            yield f"fail_jobs of 100, {end}, per job", took / 100


def unique(version: Version) -> Figures:
    policies = {
        "River's": {"by_args": True},
        "Open Job Spec's": {"keys": ["type", "args"], "on_conflict": "ignore"},
    }
    for name, policy in policies.items():
        for number in range(200):
            payload = json.dumps({"n": number, "of": name})
            took, _ = version.timed(
                "select add_job('t', %s::json, unique_policy => %s)", payload, json.dumps(policy)
            )
            yield f"add_job, unique in {name} terms", took


def sweep(version: Version, backlog: int) -> Figures:
    version.add(backlog)
    version.conn.execute("analyze live_jobs")
    other = version.value("select register_worker()")
    version.claim(1)
    for _ in range(3):
        took, _ = version.timed("select reconcile(%s, '{}', '{}')", version.worker)
        yield "reconcile of a worker that holds one job", took
        version.claim(1)
    yield (
        "unregister_worker of one that holds nothing",
        version.timed("select unregister_worker(%s)", other)[0],
    )
    for _ in range(5):
        yield "sweep_workers after a clean end", version.timed("select sweep_workers()")[0]
    dying = version.value("select register_worker()")
    version.claim(10, dying)
    yield "report_crash of one that holds ten jobs", version.timed("select report_crash(%s)", dying)[0]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scenarios", nargs="*", help="claim, fail, unique, sweep; all if none is named")
    parser.add_argument("--sql", type=Path, help="the sql/ of another checkout, to compare with")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--backlog", type=int, default=200_000, help="available jobs beside a sweep")
    options = parser.parse_args()
    scenarios: dict[str, Callable[[Version], Figures]] = {
        "claim": claim,
        "fail": fail,
        "unique": unique,
        "sweep": lambda version: sweep(version, options.backlog),
    }
    with ExitStack() as stack:
        url = os.environ.get("DATABASE_URL") or stack.enter_context(temporary_server()).url()
        versions = [Version(url, "bench_other", options.sql)] if options.sql else []
        versions.append(Version(url, "bench_this", HERE))
        taken: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for name in options.scenarios or scenarios:
            for turn in range(options.rounds):
                for version in versions if turn % 2 else versions[::-1]:
                    for what, microseconds in scenarios[name](version):
                        taken[what][version.schema].append(microseconds)
                    version.empty()
                    version.value("select count(register_worker())")
                    version.worker = version.value("select register_worker()")
        schemas = [version.schema for version in versions]
        print(f"{'microseconds of a backend, median':52}" + "".join(f"{schema:>14}" for schema in schemas))
        for what, figures in taken.items():
            medians = [statistics.median(figures[schema]) for schema in schemas]
            print(f"{what:52}" + "".join(f"{median:14.1f}" for median in medians))


if __name__ == "__main__":
    main()
