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
from calls import Figures, add, drain, pinned, register, seconds, turn
from fault_queues import (
    large_queue,
    pinned_limits,
    pinned_queue,
    queue_burst,
    serial_queues,
    unlimited_queues,
)

from pyworker._db import migrations
from pyworker._dev.postgres import temporary_server

HERE = Path(__file__).resolve().parent.parent / "sql"


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


SCENARIOS: dict[str, Callable[[psycopg.Connection[Any]], Figures]] = {
    "halted-sequences": halted_sequences,
    "unsummarised-history": unsummarised_history,
    "slow-query": slow_query,
    "pinned-trickle": pinned_trickle,
    "pinned-queue": pinned_queue,
    "pinned-limits": pinned_limits,
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
