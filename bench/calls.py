"""What the scenarios of faults.py call."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import psycopg

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
