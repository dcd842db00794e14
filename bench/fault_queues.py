"""The scenarios of faults.py that are about queues."""

from __future__ import annotations

import statistics
import time
from typing import Any

import psycopg
from calls import Figures, add, cpu, pinned, register, turn


def left_in_queue(conn: psycopg.Connection[Any]) -> int:
    row = conn.execute("select count(*) from live_jobs where queue_name = 'q'").fetchone()
    assert row
    return row[0]


def pinned_queue(conn: psycopg.Connection[Any]) -> Figures:
    """A serial queue of 500 jobs that are older than 40,000 others, under an old snapshot, after 150,000 jobs
    have ended; claims of five."""
    worker = register(conn)
    with pinned(conn):
        add(conn, 150_000)
        while turn(conn, worker, 1000)[0]:
            conn.execute("select heartbeat(%s)", [worker])
        add(conn, 500, "'identifier', 'lane', 'queue_name', 'q'")
        add(conn, 40_000)
        began, claims = time.monotonic(), 0
        while time.monotonic() < began + 8 and claims < 1000:
            turn(conn, worker, 5)
            claims += 1
            if claims % 50 == 0 and not left_in_queue(conn):
                break
        took = time.monotonic() - began
        left = left_in_queue(conn)
    return {
        "jobs of the queue that ended": 500 - left,
        "claims that took": claims,
        "seconds that took": took,
    }


def pinned_limits(conn: psycopg.Connection[Any]) -> Figures:
    """Limited queues under an old snapshot, before and after many of their jobs have ended; CPU us a job:
    claim and finish, from a backlog; and add, claim and finish, one at a time, where no other job waits."""
    worker = register(conn)
    figures: Figures = {}

    def drained(jobs: int, batch: int) -> float:
        began, done = cpu(conn), 0
        while done < jobs:
            done += turn(conn, worker, batch)[0]
        return (cpu(conn) - began) / done * 1e6

    def single(name: str) -> float:
        began = cpu(conn)
        for _ in range(300):
            conn.execute("select id from add_job('t', queue_name => %s)", [name])
            while not turn(conn, worker, 1)[0]:
                pass
        return (cpu(conn) - began) / 300 * 1e6

    conn.execute("select set_queue('ten', 10)")
    with pinned(conn):
        for name, what, batch, jobs in (("ten", "limit 10", 10, 16_000), ("one", "serial", 1, 5_000)):
            figures[f"{what}, one at a time, at first"] = single(name)
            add(conn, jobs + 1_000, f"'identifier', 't', 'queue_name', '{name}'")
            figures[f"{what}, the first 500"] = drained(500, batch)
            drained(jobs, batch)
            figures[f"{what}, 500 after {jobs:,}"] = drained(500, batch)
            figures[f"{what}, one at a time, after {jobs:,}"] = single(name)
    return figures


def unlimited_queues(conn: psycopg.Connection[Any]) -> Figures:
    """200,000 jobs in 100 queues without a limit, and as many without a queue."""
    worker = register(conn)
    conn.execute("select count(set_queue('e' || n, null)) from generate_series(0, 99) n")
    turn(conn, worker, 1)
    for _ in range(10):
        add(conn, 20_000, "'identifier', 't', 'queue_name', 'e' || n %% 100")
    conn.execute("analyze live_jobs")
    first = turn(conn, worker, 1)[1]
    one = statistics.median(turn(conn, worker, 1)[1] for _ in range(20))
    queued = statistics.median(sum(turn(conn, worker, 100)[1:]) for _ in range(100))
    conn.execute("truncate live_jobs, finished_jobs, promotion_requests")
    for _ in range(10):
        add(conn, 20_000)
    conn.execute("analyze live_jobs")
    plain = statistics.median(sum(turn(conn, worker, 100)[1:]) for _ in range(100))
    return {
        "the first claim of one, ms": first,
        "later claims of one, median ms": one,
        "claim and finish 100, median ms": queued,
        "the same without a queue, median ms": plain,
    }


def queue_burst(conn: psycopg.Connection[Any]) -> Figures:
    """50,000 jobs, each in a queue of its own: claims of urgent jobs meanwhile, and what a job costs."""
    worker = register(conn)
    for start in range(0, 50_000, 10_000):
        add(conn, 10_000, f"'identifier', 't', 'queue_name', 'n' || (n + {start})")
    other = register(conn)
    began = cpu(conn)
    conn.execute("select add_job('plain', priority => -5) from generate_series(1, 50)")
    plain = [turn(conn, other, 1)[1] for _ in range(50)]
    done = 0
    while done < 50_000:
        done += turn(conn, worker, 100)[0]
    return {
        "claims of another, urgent job meanwhile, median ms": statistics.median(plain),
        "a job from its add's commit to its end, CPU us": (cpu(conn) - began) / 50_000 * 1e6,
    }


def serial_queues(conn: psycopg.Connection[Any]) -> Figures:
    """Jobs in serial queues: all in one; 10,000 over 1,000; 100 slots; CPU us a job, claim and finish."""
    worker = register(conn)

    def drained(count: int, batch: int) -> float:
        began, done = cpu(conn), 0
        while done < count:
            done += turn(conn, worker, batch)[0]
        spent = (cpu(conn) - began) / count * 1e6
        conn.execute("vacuum live_jobs")
        return spent

    add(conn, 2_000, "'identifier', 't', 'queue_name', 'one'")
    one = drained(2_000, 10)
    add(conn, 10_000, "'identifier', 't', 'queue_name', 'q' || n %% 1000")
    many = drained(10_000, 100)
    conn.execute("select set_queue('hundred', 100)")
    add(conn, 20_000, "'identifier', 't', 'queue_name', 'hundred'")
    hundred = drained(20_000, 100)
    add(conn, 20_000)
    return {
        "one serial queue": one,
        "1,000 serial queues, batches of 100": many,
        "a queue of 100 slots, batches of 100": hundred,
        "no queue, batches of 100": drained(20_000, 100),
    }


def large_queue(conn: psycopg.Connection[Any]) -> Figures:
    """An end in a queue of 5,000 slots that are all taken, and in a serial queue; CPU us."""
    worker = register(conn)

    def ends(name: str, count: int) -> float:
        row = conn.execute(
            """select array_agg(id), array_agg(run)
               from (select id, run from live_jobs where queue_name = %s and state = 'running' limit %s) j""",
            [name, count],
        ).fetchone()
        assert row
        began = cpu(conn)
        for job, run in zip(*row, strict=True):
            conn.execute("select finish_jobs(array[%s::bigint], array[%s::bigint])", [job, run])
        return (cpu(conn) - began) / len(row[0]) * 1e6

    conn.execute("select set_queue('large', 5000)")
    add(conn, 20_000, "'identifier', 't', 'queue_name', 'large'")
    for _ in range(10):
        conn.execute("select count(*) from claim_jobs(%s, 1000)", [worker])
    large = ends("large", 300)
    conn.execute("truncate live_jobs, promotion_requests")
    add(conn, 600, "'identifier', 't', 'queue_name', 'n' || n %% 300")
    for _ in range(5):
        conn.execute("select count(*) from claim_jobs(%s, 1000)", [worker])
    serial = statistics.mean(ends(f"n{n}", 1) for n in range(300))
    return {"an end among 5,000": large, "an end in a serial queue, with a follower": serial}
