"""Behind PgBouncer in transaction mode: producers and workers."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

import pyworker
from tests.support.pooler import pooler

pytestmark = pytest.mark.skipif(not shutil.which("pgbouncer"), reason="there is no pgbouncer here")


@pytest.fixture
def pooled(queue: Any, tmp_path: Path) -> Iterator[str]:
    with pooler(queue, tmp_path) as dsn:
        yield dsn


def test_producers_of_all_kinds_share_the_poolers_connections(queue: Any, pooled: str) -> None:
    connections = [psycopg.connect(pooled) for _ in range(6)]  # three for each that the pooler has
    for turn in range(12):  # psycopg would prepare its statement by the fifth
        for conn in connections:
            conn.prepare_threshold = None
            pyworker.add_job(conn, "note", {"turn": turn}, job_key=f"k{turn}", queue_name="q")
            conn.commit()
    for conn in connections:
        conn.execute(
            "select pyworker.add_job('note', unique_policy => %s)", [Jsonb({"on_conflict": "ignore"})]
        )
        conn.commit()
        conn.close()
    assert queue.value("select count(*) from pyworker.jobs") == 13


def test_a_worker_behind_a_pooler_says_so_and_works(queue: Any, pooled: str) -> None:
    worker = queue.start(
        "--concurrency", "4", "--poll-interval", "0.2", "--no-tracebacks", DATABASE_URL=pooled
    )
    worker.until_log("transaction pooler")
    jobs = [
        queue.add("in_turn", {"customer": n % 2}, sequence_policy=Jsonb({"by_args": ["customer"]}))
        for n in range(8)
    ]
    jobs += [queue.add("note", queue_name="q") for _ in range(3)]
    jobs += [
        queue.add("deliver"),
        queue.add("mail_once_async"),
        queue.add("write", {}),
        queue.add("write_async", {}),
    ]
    queue.until_state("completed", *jobs)
    cancelled_runs = queue.add("sleep_async")
    queue.until("select count(*) = 1 from public.seen where job_id = %s", cancelled_runs)
    queue.rows(
        "select pyworker.cancel_job(%s)", cancelled_runs
    )  # heard of when it asks, not by a notification
    queue.until_state("cancelled", cancelled_runs)
    assert queue.value("select count(*) from pyworker.workers where locked") == 0
    assert worker.stop() == 0
    assert "Traceback" not in worker.log


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_worker_behind_a_pooler_refuses_another_level_than_it_needs_and_changes_none(
    queue: Any, tmp_path: Path, level: str
) -> None:
    """Its SET would reach other clients of the pooler, and not all of its own transactions."""
    database, default = queue.conn.info.dbname, "default_transaction_isolation"
    queue.rows(f"alter database {database} set {default} = '{level}'")
    try:
        with pooler(queue, tmp_path) as pooled:
            worker = queue.start(DATABASE_URL=pooled)
            assert worker.wait() == 1
            assert f"transactions begin at {level}: a worker needs read committed" in worker.log
            assert "Traceback" not in worker.log
            with psycopg.connect(pooled, autocommit=True) as other:
                assert other.execute(f"show {default}").fetchone() == (level,)
    finally:
        queue.rows(f"alter database {database} reset {default}")


def test_a_dead_worker_behind_a_pooler_is_noticed_by_its_lease(queue: Any, pooled: str) -> None:
    """Its session lock would have outlived it."""
    queue.close_gate(1)
    doomed = queue.start(DATABASE_URL=pooled)
    job_id = queue.add("note", {"gate": 1})
    queue.until_waiting(1)
    with queue.ends_of(doomed.children()):
        doomed.signal(signal.SIGKILL)
    queue.rows(
        "update pyworker.workers set expires_at = pyworker.clock() - interval '1 second'"
    )  # so long ago was its last beat
    queue.start(DATABASE_URL=pooled)
    queue.until("select count(*) = 2 from public.seen where job_id = %s", job_id)
    queue.open_gate(1)
    queue.until_state("completed", job_id)
