"""What jobs that wait cost the others: queues, sequences, pauses and future jobs, beside plain jobs.

    python bench/lanes.py [flat] [throughput]    on the database of DATABASE_URL, in a schema of its own

`flat`: a backend's CPU per job of claim and finish, 50 jobs at a time, beside jobs that cannot run. The
first row is the control; a ratio is that of the medians. `throughput`: jobs/s and CPU per job of
sequences and queues, against plain jobs.
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
Members = Callable[[int], dict[str, Any]]  # what the job of a number has besides its identifier


def cpu_of(pid: int) -> float:
    """CPU seconds that a backend on this machine has used."""
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


def add(conn: psycopg.Connection[Any], count: int, members: Members) -> None:
    for start in range(0, count, 1000):
        numbers = range(start, min(start + 1000, count))
        specs = [{"identifier": "t", **members(number)} for number in numbers]
        conn.execute(f"select count(*) from {SCHEMA}.add_jobs(%s::jsonb)", [json.dumps(specs)])


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
                conn.execute(f"select {SCHEMA}.finish_jobs(%s::bigint[], %s::bigint[])", [ids, runs])
            cursor = None
            if limit is None or done < limit:
                cursor = conn.execute(f"select id, run from {SCHEMA}.claim_jobs(%s, %s)", [worker, batch])
        rows = cursor.fetchall() if cursor else []
        done += len(rows)
        ids, runs = [row[0] for row in rows], [row[1] for row in rows]
        if not rows:
            return done, time.perf_counter() - began, cpu_of(pid) - cpu


# What cannot run is inserted into the table: a million calls of add_job would take too long.
COLUMNS = "updated_at, max_attempts, created_at, task_identifier, delivery, payload, run_at, priority, state"
VALUES = "now(), 25, now(), 't', 'at_least_once', '{}'"
PARKED = f"""
    insert into {SCHEMA}.live_jobs ({COLUMNS}, parked, queue_name)
    select {VALUES}, now(), -1, 'available', 'queue', %s from generate_series(1, %s)"""
PARKED_EACH = f"""
    insert into {SCHEMA}.live_jobs ({COLUMNS}, parked, queue_name)
    select {VALUES}, now(), -1, 'available', 'queue', 'q' || n from generate_series(1, %s) n"""
PAUSED_QUEUES = f"""
    insert into {SCHEMA}.queues (queue_name, concurrency, paused, updated_at)
    select 'q' || n, 1, true, now() from generate_series(1, %s) n"""
FUTURE = f"""
    insert into {SCHEMA}.live_jobs ({COLUMNS}, due_at)
    select {VALUES}, now() + interval '1 day', -1, 'scheduled', now() + interval '1 day'
    from generate_series(1, %s)"""
SEQUENCED = f"""
    insert into {SCHEMA}.live_jobs (
        {COLUMNS}, parked, sequence_key, continue_on_cancelled, continue_on_discarded)
    select {VALUES}, now(), -1, 'pending', 'sequence', 'busy', false, false from generate_series(1, %s)"""
MILLION = 1_000_000


def run_one(conn: psycopg.Connection[Any], member: str) -> None:
    """A job that holds the queue or the sequence 'busy': it runs, and never ends."""
    conn.execute(f"select {SCHEMA}.add_job('other', {member})")
    worker = conn.execute(f"select {SCHEMA}.register_worker()").fetchone()
    conn.execute(f"select count(*) from {SCHEMA}.claim_jobs(%s, 1)", worker)


def insert_beside(conn: psycopg.Connection[Any], what: str) -> None:
    """Insert the jobs that cannot run."""
    if "paused queues" in what:
        queues = int(what.split()[0])
        conn.execute(PAUSED_QUEUES, [queues])
        conn.execute(PARKED_EACH, [queues])
    elif "parked" in what:
        run_one(conn, "queue_name => 'busy'")
        conn.execute(PARKED, ["busy", MILLION])
    elif "paused" in what:
        conn.execute(f"select {SCHEMA}.pause_queue('busy')")
        conn.execute(PARKED, ["busy", MILLION])
    elif "future" in what:
        conn.execute(FUTURE, [MILLION])
    elif "sequence" in what:
        run_one(conn, """sequence_policy => '{"key": "busy"}'""")
        conn.execute(SEQUENCED, [MILLION])
    conn.execute(f"vacuum analyze {SCHEMA}.live_jobs")


FLAT = [
    "nothing",
    "10 paused queues",
    "50000 paused queues",
    "1000000 parked",
    "1000000 paused",
    "1000000 future",
    "1000000 in a sequence",
]


def plain(_: int) -> dict[str, Any]:
    return {}


def flat(rounds: int = 5, jobs: int = 10_000) -> None:
    base = 0.0
    for what in FLAT:
        with fresh() as conn:
            insert_beside(conn, what)
            worker = conn.execute(f"select {SCHEMA}.register_worker()").fetchone()
            assert worker
            costs: list[float] = []
            for _ in range(rounds + 1):
                add(conn, jobs, plain)
                done, _, cpu = drain(conn, worker[0], 50, limit=jobs)
                conn.execute(f"vacuum {SCHEMA}.live_jobs")
                costs.append(cpu / done * 1e6)
            cost = statistics.median(costs[1:])  # the first round warms the caches
            base = base or cost
            print(f"{what:22} {cost:6.1f} us CPU a job   {cost / base:.2f} x")
            if what == "1000000 paused":
                began = time.perf_counter()
                conn.execute(f"select {SCHEMA}.resume_queue('busy')")
                first = conn.execute(f"select id from {SCHEMA}.claim_jobs(%s, 1)", worker).fetchone()
                took = 1000 * (time.perf_counter() - began)
                print(f"{'':22} resumed, first job claimed: {first is not None}, {took:.1f} ms")


KINDS: dict[str, tuple[int, Members]] = {
    "plain": (50_000, plain),
    "10,000 sequences x 10": (100_000, lambda number: {"sequence_policy": {"key": f"s{number % 10_000}"}}),
    "plain, one at a time": (5_000, plain),
    "1 sequence x 10,000": (10_000, lambda number: {"sequence_policy": {}}),
    "queue without limit": (50_000, lambda number: {"queue_name": "free"}),
    "queue of 10": (20_000, lambda number: {"queue_name": "ten"}),
    "10,000 serial queues": (50_000, lambda number: {"queue_name": f"q{number % 10_000}"}),
}


def throughput() -> None:
    for what, (count, spec) in KINDS.items():
        with fresh() as conn:
            conn.execute(f"select {SCHEMA}.set_queue('free'), {SCHEMA}.set_queue('ten', 10)")
            worker = conn.execute(f"select {SCHEMA}.register_worker()").fetchone()
            assert worker
            began = cpu_of(conn.info.backend_pid)
            add(conn, count, spec)
            added = (cpu_of(conn.info.backend_pid) - began) / count * 1e6
            done, seconds, cpu = drain(conn, worker[0], 1 if "one at a time" in what else 100)
            print(
                f"{what:22} {done:7} jobs {done / seconds:8.0f}/s "
                f"{cpu / done * 1e6:7.1f} us CPU a job; adding {added:5.1f} us"
            )


if __name__ == "__main__":
    wanted = sys.argv[1:] or ["flat", "throughput"]
    if "throughput" in wanted:
        throughput()
    if "flat" in wanted:
        flat()
