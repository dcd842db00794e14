"""What waiting costs those that do not wait: queues, sequences, pauses and a far future, beside plain jobs.

    python bench/lanes.py [flat] [throughput]        on the database of DATABASE_URL, in a schema of its own

`flat`: backend CPU per job of claim + finish (50 at a time) beside more and more jobs that cannot run. The first row is the control; each is
measured several times in turn with it, and the median of the ratios counts. `throughput`: jobs/s and CPU per job of sequences against plain jobs.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from pyworker._db.migrations import migrate

SCHEMA = "pyworker_bench"
HERTZ = os.sysconf("SC_CLK_TCK")
DSN = os.environ.get("DATABASE_URL", "")
FN = f"{SCHEMA}."


def cpu_of(pid: int) -> float:
    """Seconds that a backend on this machine has used."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / HERTZ


@contextmanager
def fresh() -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(DSN, autocommit=True) as conn:
        conn.execute(f"drop schema if exists {SCHEMA} cascade")
        migrate(conn, SCHEMA)
        conn.execute("set synchronous_commit = off")
        yield conn


def add(conn: psycopg.Connection[Any], count: int, spec: Callable[[int], dict[str, Any]]) -> None:
    for start in range(0, count, 1000):
        specs = [spec(n) for n in range(start, min(start + 1000, count))]
        conn.execute(f"select count(*) from {FN}add_jobs(%s::jsonb)", [json.dumps(specs)])


def drain(
    conn: psycopg.Connection[Any], worker: int, batch: int, limit: int | None = None
) -> tuple[int, float, float]:
    """Claims and finishes, both in one round trip; returns jobs, seconds, CPU seconds of the backend."""
    pid = conn.info.backend_pid
    done, began, cpu = 0, time.perf_counter(), cpu_of(pid)
    ids: list[int] = []
    runs: list[int] = []
    while True:
        with conn.pipeline():
            if ids:
                conn.execute(f"select {FN}finish_jobs(%s::bigint[], %s::bigint[])", [ids, runs])
            cursor = None
            if limit is None or done < limit:
                cursor = conn.execute(f"select id, run from {FN}claim_jobs(%s, %s)", [worker, batch])
        rows = cursor.fetchall() if cursor else []
        done += len(rows)
        ids, runs = [row[0] for row in rows], [row[1] for row in rows]
        if not rows:
            return done, time.perf_counter() - began, cpu_of(pid) - cpu


PLAIN = lambda n: {"identifier": "t"}  # noqa: E731
PARKED = """
    insert into {s}.live_jobs (state, parked, queue_name, updated_at, priority, max_attempts, run_at, created_at, task_identifier, delivery, payload)
    select 'pending', 'queue', {queue}, now(), {priority}, 25, now(), now(), 't', 'at_least_once', '{{}}' from generate_series(1, {n}) i"""
FUTURE = """
    insert into {s}.live_jobs (state, due_at, updated_at, priority, max_attempts, run_at, created_at, task_identifier, delivery, payload)
    select 'scheduled', now() + interval '1 day', now(), -1, 25, now() + interval '1 day', now(), 't', 'at_least_once', '{{}}'
    from generate_series(1, {n})"""
SEQUENCED = """
    insert into {s}.live_jobs (state, parked, sequence_key, continue_on_cancelled, continue_on_discarded, updated_at, priority, max_attempts, run_at,
                               created_at, task_identifier, delivery, payload)
    select 'pending', 'sequence', 'busy', false, false, now(), -1, 25, now(), now(), 't', 'at_least_once', '{{}}' from generate_series(1, {n})"""


def beside(conn: psycopg.Connection[Any], what: str) -> None:
    """Fill in what cannot run, as a million add_jobs would have."""

    def fill(statement: str, n: int, queue: str = "'busy'", priority: int = -1) -> None:
        conn.execute(statement.format(s=SCHEMA, n=n, queue=queue, priority=priority))

    if "names" in what:
        count = int(what.split()[0])
        conn.execute(f"insert into {FN}queues (queue_name, concurrency, paused, updated_at) "
                     f"select 'q' || i, 1, true, now() from generate_series(1, {count}) i")  # fmt: skip
        fill(PARKED, count, "'q' || i")
    elif "parked" in what:
        conn.execute(f"select {FN}add_job('other', queue_name => 'busy')")
        holder = conn.execute(f"select {FN}register_worker()").fetchone()
        conn.execute(f"select count(*) from {FN}claim_jobs(%s, 1)", holder)
        fill(PARKED, 1_000_000)
    elif "paused" in what:
        conn.execute(f"select {FN}pause_queue('busy')")
        fill(PARKED, 1_000_000)
    elif "future" in what:
        fill(FUTURE, 1_000_000)
    elif "sequence" in what:
        conn.execute(f"""select {FN}add_job('other', sequence_policy => '{{"key": "busy"}}')""")
        holder = conn.execute(f"select {FN}register_worker()").fetchone()
        conn.execute(f"select count(*) from {FN}claim_jobs(%s, 1)", holder)
        fill(SEQUENCED, 1_000_000)
    conn.execute(f"vacuum analyze {FN}live_jobs")


FLAT = [
    "nothing",
    "10 names",
    "50000 names",
    "1000000 parked",
    "1000000 paused",
    "1000000 future",
    "1000000 in a sequence",
]


def flat(rounds: int = 5, jobs: int = 10_000) -> None:
    base: list[float] = []
    for what in FLAT:
        with fresh() as conn:
            beside(conn, what)
            worker = conn.execute(f"select {FN}register_worker()").fetchone()
            assert worker
            costs: list[float] = []
            for _ in range(rounds + 1):
                add(conn, jobs, PLAIN)
                done, _, cpu = drain(conn, worker[0], 50, limit=jobs)
                conn.execute(f"vacuum {FN}live_jobs")
                costs.append(cpu / done * 1e6)
            costs = costs[1:]
            base = base or costs
            print(
                f"{what:22} {statistics.median(costs):6.1f} us CPU a job   {statistics.median(costs) / statistics.median(base):.2f} x"
            )
            if "paused" in what:
                began = time.perf_counter()
                conn.execute(f"select {FN}resume_queue('busy')")
                first = conn.execute(f"select id from {FN}claim_jobs(%s, 1)", worker).fetchone()
                print(
                    f"{'':22} resumed, first job claimed: {first is not None}, {1000 * (time.perf_counter() - began):.1f} ms"
                )


KINDS: dict[str, tuple[int, Callable[[int], dict[str, Any]]]] = {
    "plain": (50_000, PLAIN),
    "10,000 sequences x 10": (
        100_000,
        lambda n: {"identifier": "t", "sequence_policy": {"key": f"s{n % 10_000}"}},
    ),
    "plain, one at a time": (5_000, PLAIN),
    "1 sequence x 10,000": (10_000, lambda n: {"identifier": "t", "sequence_policy": {}}),
    "queue without limit": (50_000, lambda n: {"identifier": "t", "queue_name": "free"}),
    "queue of 10": (20_000, lambda n: {"identifier": "t", "queue_name": "ten"}),
    "10,000 serial queues": (50_000, lambda n: {"identifier": "t", "queue_name": f"q{n % 10_000}"}),
}


def throughput() -> None:
    for what, (count, spec) in KINDS.items():
        with fresh() as conn:
            conn.execute(f"select {FN}set_queue('free'), {FN}set_queue('ten', 10)")
            worker = conn.execute(f"select {FN}register_worker()").fetchone()
            assert worker
            began = cpu_of(conn.info.backend_pid)
            add(conn, count, spec)
            added = (cpu_of(conn.info.backend_pid) - began) / count * 1e6
            done, seconds, cpu = drain(conn, worker[0], 1 if "one at a time" in what else 100)
            print(
                f"{what:22} {done:7} jobs {done / seconds:8.0f}/s {cpu / done * 1e6:7.1f} us CPU a job; adding {added:5.1f} us"
            )


if __name__ == "__main__":
    wanted = sys.argv[1:] or ["flat", "throughput"]
    if "throughput" in wanted:
        throughput()
    if "flat" in wanted:
        flat()
