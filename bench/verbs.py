"""What single calls of the SQL functions cost, one by one, in batches or beside a backlog, for one or two
versions of the SQL.

    python bench/verbs.py [turns] [add] [claim] [fail] [release] [unique] [sweep]
                          [--sql OTHER/sql] [--rounds N] [--backlog N]

It starts a PostgreSQL of its own, or uses DATABASE_URL, and installs this checkout's sql/ as one schema
and that of --sql as another. The two versions take turns. Each figure is CPU time of the backend, or
elapsed time where the server's processes cannot be read: the 20th percentile, and the median.

Client and server run on one CPU. On two, each call would also pay for waking the other one.
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
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psycopg

from pyworker._dev.postgres import find_bindir, temporary_server

HERE = Path(__file__).resolve().parents[1] / "sql"
Figures = Iterator[tuple[str, float]]
Claimed = tuple[float, list[int], list[int]]  # microseconds, ids, runs
TURNS = 25  # of each kind, before the other version's turn
WORK = "select id, run from work(%s, %s::bigint[], %s::bigint[], null, null, 10, '{t}') where kind = 'job'"
LANES: dict[str, dict[str, Any]] = {
    "plain job": {},
    "serial queue": {"queue_name": "q"},
    "sequence": {"sequence_policy": {"key": "s"}},
}


def pin(pid: int) -> None:
    """To one CPU, where that is possible and allowed; programs that it starts are there, too."""
    with suppress(AttributeError, OSError):
        os.sched_setaffinity(pid, {max(os.sched_getaffinity(0))})


class Version:
    """One version of the SQL functions, in a schema of its own."""

    def __init__(self, url: str, schema: str, sql: Path) -> None:
        psql = Path(find_bindir()) / "psql"
        install = ["-Xq", "-v", f"schema={schema}", "-f", sql / "install.sql", url]
        command = [psql if psql.exists() else "psql", *install]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        self.schema = schema
        self.conn, self.client = (
            psycopg.connect(
                url,
                autocommit=True,
                prepare_threshold=0,
                options=f"-c synchronous_commit=off -c search_path={schema},public",
            )
            for _ in range(2)
        )
        pin(self.conn.info.backend_pid)
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

    def add(self, many: int, **more: Any) -> None:
        """As another session does."""
        for start in range(0, many, 20_000):
            specs = json.dumps([{"identifier": "t", **more}] * min(20_000, many - start))
            self.client.execute("select count(*) from add_jobs(%s::jsonb)", [specs])

    def claim(self, many: int, worker: int | None = None) -> Claimed:
        return self._claimed("select id, run from claim_jobs(%s, %s)", worker or self.worker, many)

    def work(self, ids: list[int], runs: list[int]) -> Claimed:
        return self._claimed(WORK, self.worker, ids, runs)

    def _claimed(self, sql: str, *args: Any) -> Claimed:
        took, rows = self.timed(sql, *args)
        return took, [row[0] for row in rows], [row[1] for row in rows]

    def vacuum(self) -> None:
        tables = "select relname from pg_class where relkind = 'r' and relnamespace = %s::regnamespace"
        for (table,) in self.client.execute(tables, [self.schema]).fetchall():
            self.client.execute(f"vacuum {table}")

    def empty(self) -> None:
        self.conn.execute("truncate live_jobs, finished_jobs, errors, unique_keys")


def turns(version: Version) -> Figures:
    """One worker that has room for ten jobs, and finds one or none."""
    for _ in range(TURNS):
        yield "work, nothing to do", version.work([], [])[0]
    for lane, more in LANES.items():
        version.vacuum()
        ids: list[int] = []
        runs: list[int] = []
        for number in range(TURNS + 1):
            version.add(1, **more)
            took, ids, runs = version.work(ids, runs)
            assert len(ids) == 1
            if number:
                yield f"work, reports one and claims one, {lane}", took
        version.work(ids, runs)
        for _ in range(TURNS):
            version.add(1, **more)
            _, ids, runs = version.work([], [])
            took, none, _ = version.work(ids, runs)
            assert (len(ids), len(none)) == (1, 0)
            yield f"work, reports one and claims none, {lane}", took
        for _ in range(TURNS):
            version.add(1, **more)
            took, ids, runs = version.claim(1)
            yield f"claim_jobs of one, {lane}", took
            yield f"finish_jobs of one, {lane}", version.timed("select finish_jobs(%s, %s)", ids, runs)[0]


def add(version: Version) -> Figures:
    for _ in range(200):
        yield "add_job of one", version.timed("select add_job('t', '{\"n\": 1}'::json)")[0]
    specs = json.dumps([{"identifier": "t", "payload": {"n": 1}}] * 1000)
    for _ in range(5):
        took, _ = version.timed("select count(*) from add_jobs(%s::jsonb)", specs)
        yield "add_jobs of 1,000, per job", took / 1000


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


def release(version: Version) -> Figures:
    version.add(1000)
    for batch, turns in ((100, 10), (1, 50)):
        for _ in range(turns):
            _, ids, runs = version.claim(batch)
            took, _ = version.timed("select release_jobs(%s, %s)", ids, runs)
            yield f"release_jobs of {batch}, per job", took / batch


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
    parser.add_argument(
        "scenarios", nargs="*", help="turns, add, claim, fail, release, unique, sweep; all if none"
    )
    parser.add_argument("--sql", type=Path, help="the sql/ of another checkout, to compare with")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--backlog", type=int, default=200_000, help="available jobs beside a sweep")
    options = parser.parse_args()
    scenarios: dict[str, Callable[[Version], Figures]] = {
        "turns": turns,
        "add": add,
        "claim": claim,
        "fail": fail,
        "release": release,
        "unique": unique,
        "sweep": lambda version: sweep(version, options.backlog),
    }
    pin(0)
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
        print(
            f"{'microseconds of a backend: 20th percentile, median':52}", *(f"{name:>17}" for name in schemas)
        )
        for what, figures in taken.items():
            values = [sorted(figures[schema]) for schema in schemas]
            shown = (f"{each[len(each) // 5]:8.1f} {statistics.median(each):8.1f}" for each in values)
            print(f"{what:52}", *shown)


if __name__ == "__main__":
    main()
