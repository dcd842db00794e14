"""Situations that once were slow, measured again: each scenario is one, and prints what it costs now.

    python bench/faults.py [SCENARIO …] [--sql PATH] [--rounds 3]

It starts its own PostgreSQL (that of PYWORKER_PG_BIN, of the wheel, or of the system). With --sql the
directory sql/ of another checkout is measured beside this one's, in turn, in the same run. Figures are
medians over the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

from pyworker._db import migrations
from pyworker._dev.postgres import temporary_server

HERE = Path(__file__).resolve().parent.parent / "sql"
Figures = dict[str, float]


def seconds(conn: psycopg.Connection[Any], statement: str, parameters: Any = None) -> float:
    began = time.perf_counter()
    conn.execute(statement, parameters).fetchall()  # type: ignore[arg-type]
    return time.perf_counter() - began


def cpu(conn: psycopg.Connection[Any]) -> float:
    """Seconds that a backend has run, to the nanosecond."""
    return int(Path(f"/proc/{conn.info.backend_pid}/schedstat").read_text().split()[0]) / 1e9


def add(conn: psycopg.Connection[Any], count: int, members: str = "'identifier', 't'") -> None:
    specs = f"select jsonb_agg(jsonb_build_object({members})) from generate_series(0, %s) n"
    conn.execute(f"select count(*) from add_jobs(({specs}))", [count - 1])  # type: ignore[arg-type]


def register(conn: psycopg.Connection[Any]) -> Any:
    row = conn.execute("select register_worker()").fetchone()
    assert row
    return row[0]


def drain(conn: psycopg.Connection[Any], worker: Any, batch: int) -> tuple[int, float]:
    """Claims and finishes all jobs: how many, and CPU seconds of finish_jobs."""
    done, spent = 0, 0.0
    while True:
        row = conn.execute(
            "select array_agg(id), array_agg(run) from claim_jobs(%s, %s)", [worker, batch]
        ).fetchone()
        if not row or not row[0]:
            return done, spent
        began = cpu(conn)
        conn.execute("select finish_jobs(%s, %s)", row)
        spent += cpu(conn) - began
        done += len(row[0])


def halted_sequences(conn: psycopg.Connection[Any]) -> Figures:
    """maintain() beside 20,000 sequences, each halted by a job whose retention is over, with one job waiting
    behind it."""
    add(conn, 40_000, "'identifier', 't', 'sequence_policy', jsonb_build_object('key', (n / 2)::text)")
    heads = "array(select min(id) from live_jobs group by sequence_key)"
    conn.execute(f"select count(*) from permanently_fail_jobs({heads})")  # type: ignore[arg-type]
    conn.execute("update live_jobs set expires_at = now() - interval '1 hour' where state = 'discarded'")
    conn.execute("delete from promotion_requests")
    conn.execute("vacuum analyze live_jobs, sequence_halts")
    calls = [seconds(conn, "select maintain()") * 1000 for _ in range(30)]
    return {
        "maintain(), the dearest of 30 calls, ms": max(calls),
        "maintain(), the 30th call, ms": calls[-1],
        "maintain(), all 30 calls, ms": sum(calls),
    }


def unsummarised_history(conn: psycopg.Connection[Any]) -> Figures:
    """150,000 jobs that have just ended, before vacuum has run: what a look-up by id costs, and an end."""
    conn.execute("alter table finished_jobs_default set (autovacuum_enabled = off)")
    conn.execute("select maintain()")
    worker = register(conn)
    add(conn, 150_000)
    done, spent = drain(conn, worker, 100)
    row = conn.execute("select min(id) + 50000 from finished_jobs").fetchone()
    assert row
    ids = [row[0] + n for n in range(100)]
    return {
        "get_job, ms": seconds(conn, "select (get_job(i)).state from unnest(%s::bigint[]) i", [ids]) * 10,
        "retry_jobs of 100, ms": seconds(conn, "select count(*) from retry_jobs(%s)", [ids]) * 1000,
        "delete_job, ms": seconds(conn, "select (delete_job(%s)).state", [row[0] + 200]) * 1000,
        "finish_jobs of 100, CPU us a job": spent / done * 1e6,
    }


def slow_query(conn: psycopg.Connection[Any]) -> Figures:
    """finish_jobs while maintain() makes days of history and runs a schedule's query that takes 3 s."""
    conn.execute("create role asker")
    query = "select pg_sleep(3)::text as job_key"
    conn.execute("select add_schedule('slow', '* * * * *', 't', query => %s, query_role => 'asker')", [query])
    conn.execute("update schedule_entries set next_at = now() - interval '1 second'")
    conn.execute("select count(*) from define_task('t', retention => '20 days')")
    worker = register(conn)
    add(conn, 2_000)
    with psycopg.connect(conn.info.dsn, autocommit=True, options="-c search_path=pyworker") as other:
        maintaining = threading.Thread(target=lambda: other.execute("select maintain()"))
        maintaining.start()
        worst, ended = 0.0, 0
        while maintaining.is_alive():
            row = conn.execute(
                "select array_agg(id), array_agg(run) from claim_jobs(%s, 1)", [worker]
            ).fetchone()
            if row and row[0]:
                worst = max(worst, seconds(conn, "select finish_jobs(%s, %s)", row))
                ended += 1
            time.sleep(0.02)
        maintaining.join()
    conn.execute("select remove_schedule('slow')")
    conn.execute("drop owned by asker; drop role asker")
    return {"finish_jobs beside maintain(), the longest, ms": worst * 1000}


def turn(conn: psycopg.Connection[Any], worker: Any, batch: int) -> tuple[int, float, float]:
    """Claims and finishes: how many jobs, and milliseconds of the claim and of the end."""
    began = time.perf_counter()
    row = conn.execute(
        "select array_agg(id), array_agg(run) from claim_jobs(%s, %s)", [worker, batch]
    ).fetchone()
    claimed = time.perf_counter()
    if row and row[0]:
        conn.execute("select finish_jobs(%s, %s)", row)
    return len(row[0] or []) if row else 0, (claimed - began) * 1000, (time.perf_counter() - claimed) * 1000


def pinned(conn: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    """A session whose old snapshot holds vacuum back."""
    old = psycopg.connect(conn.info.dsn)
    old.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    old.execute("select count(*) from pg_class")
    return old


def pinned_trickle(conn: psycopg.Connection[Any]) -> Figures:
    """One job at a time under an old snapshot, after 300,000 jobs have ended."""
    worker = register(conn)

    def single() -> float:
        conn.execute("select id from add_job('noop')")
        return turn(conn, worker, 10)[1]

    before = [single() for _ in range(100)]
    with pinned(conn):
        for _ in range(30):
            add(conn, 10_000)
        while turn(conn, worker, 500)[0]:
            conn.execute("select heartbeat(%s)", [worker])
        after = [single() for _ in range(300)]
        empty = [turn(conn, worker, 10)[1] for _ in range(300)]
    return {
        "claim of one, no old snapshot, median ms": statistics.median(before),
        "claim of one, median ms": statistics.median(after),
        "claim of one, mean ms": statistics.mean(after),
        "claim of none, mean ms": statistics.mean(empty),
    }


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


def pinned_limit(conn: psycopg.Connection[Any]) -> Figures:
    """16,000 jobs of a queue with a limit of 10, ten at a time, under an old snapshot."""
    worker = register(conn)
    conn.execute("select set_queue('q', 10)")
    add(conn, 16_000, "'identifier', 't', 'queue_name', 'q'")
    began, spent = cpu(conn), list[float]()
    with pinned(conn):
        while turn(conn, worker, 10)[0]:
            conn.execute("select heartbeat(%s)", [worker])
            began, before = cpu(conn), began
            spent.append((began - before) * 100)  # ten jobs
    return {
        "CPU of one of the first 500, ms": statistics.mean(spent[:50]),
        "CPU of one of the last 500, ms": statistics.mean(spent[-50:]),
    }


def pinned_promotions(conn: psycopg.Connection[Any]) -> Figures:
    """Empty claims under an old snapshot, after 20,000 requests and 20,000 scheduled jobs."""
    worker = register(conn)
    with pinned(conn):
        conn.execute("select set_queue('q*', 100000)")
        conn.execute(
            "select count(add_job('t', queue_name => 'q' || n %% 50)) from generate_series(1, 20000) n", []
        )
        while turn(conn, worker, 2000)[0]:
            pass
        requests = statistics.mean(turn(conn, worker, 1)[1] for _ in range(200))
        conn.execute(
            "select count(add_job('t', run_at => now() + interval '1 s')) from generate_series(1, 20000) n"
        )
        time.sleep(1.2)
        while turn(conn, worker, 2000)[0]:
            pass
        both = statistics.mean(turn(conn, worker, 1)[1] for _ in range(200))
    return {"after 20,000 requests, mean ms": requests, "after 20,000 due jobs as well, mean ms": both}


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
            # Written as a number: runs were integers once, and bigints would not do there.
            conn.execute(f"select finish_jobs(array[{job}], array[{run}])")
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


SCENARIOS: dict[str, Callable[[psycopg.Connection[Any]], Figures]] = {
    "halted-sequences": halted_sequences,
    "unsummarised-history": unsummarised_history,
    "slow-query": slow_query,
    "pinned-trickle": pinned_trickle,
    "pinned-queue": pinned_queue,
    "pinned-limit": pinned_limit,
    "pinned-promotions": pinned_promotions,
    "unlimited-queues": unlimited_queues,
    "queue-burst": queue_burst,
    "serial-queues": serial_queues,
    "large-queue": large_queue,
}


def measure(url: str, name: str, source: Path) -> Figures:
    """One scenario with the SQL of one checkout, in a database of its own."""
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("drop database if exists faults with (force)")
        conn.execute("create database faults")
    theirs = psycopg.conninfo.make_conninfo(url, dbname="faults")
    migrations.directory = lambda _: source  # type: ignore[attr-defined]
    with psycopg.connect(theirs, autocommit=True, options="-c search_path=pyworker") as conn:
        migrations.migrate(conn)
        return SCENARIOS[name](conn)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help="all of them, if none is named")
    parser.add_argument(
        "--sql", type=Path, help="the directory sql/ of another checkout, measured beside this one's"
    )
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if unknown := set(options.scenarios) - SCENARIOS.keys():
        parser.error(f"there is no scenario {min(unknown)}; there are {', '.join(SCENARIOS)}")
    sources = {"here": HERE} if options.sql is None else {"there": options.sql.resolve(), "here": HERE}
    with temporary_server(settings={"shared_buffers": "256MB"}) as server:
        sys.stdout.write(f"PostgreSQL {server.version}, medians of {options.rounds}\n")
        for name in options.scenarios or SCENARIOS:
            found: dict[str, list[Figures]] = {source: [] for source in sources}
            for _ in range(options.rounds):
                for source, path in sources.items():
                    found[source].append(measure(server.url(), name, path))
            doc = (SCENARIOS[name].__doc__ or "").strip()
            sys.stdout.write(
                f"\n{name}: {doc}\n{'':50}" + "".join(f"{source:>12}" for source in sources) + "\n"
            )
            for figure in found["here"][0]:
                medians = [statistics.median(run[figure] for run in found[source]) for source in sources]
                sys.stdout.write(f"  {figure:48}" + "".join(f"{median:12.2f}" for median in medians) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
