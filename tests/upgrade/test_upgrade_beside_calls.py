"""An upgrade to a later version, step by step beside the calls of other sessions."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pyworker._db.migrations import newest
from tests.support import DEADLINE
from tests.support.sessions import Session
from tests.upgrade.later import GATE, NAME, VERSION, Later, make

# What waits while the upgrade holds the tables, and goes on with the code that it began with.
CALLS = [
    "select from pyworker.add_job('plain')",
    'select from pyworker.add_jobs(\'[{{"identifier": "plain"}}]\')',
    "select kind from pyworker.work({worker}, '{{{job}}}', '{{{run}}}', null, null, 5)",
    "select kind from pyworker.beat({worker})",
    "select from pyworker.heartbeat({worker})",
    "select from pyworker.set_queue('mail', 3)",
    "select from pyworker.jobs",
    "select from pyworker.metrics()",
]
VERSIONS = "select max(version) from pyworker.migrations"


@pytest.fixture
def later(tmp_path: Path) -> Later:
    return make(tmp_path)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


def until_it_asks_for_tables(conn: psycopg.Connection[Any]) -> None:
    until(
        conn,
        "select true from pg_locks l join pg_database d on d.oid = l.database "
        "where d.datname = current_database() and l.mode = 'AccessExclusiveLock' and not l.granted",
    )


def until_it_is_at_the_gate(conn: psycopg.Connection[Any]) -> None:
    until(
        conn,
        "select true from pg_locks l join pg_database d on d.oid = l.database "
        "where d.datname = current_database() and l.locktype = 'advisory' and l.objid = 86 and not l.granted",
    )


def until(conn: psycopg.Connection[Any], statement: str) -> None:
    for _ in range(int(DEADLINE * 100)):
        if conn.execute(statement).fetchone():  # type: ignore[arg-type]
            return
        conn.execute("select pg_sleep(0.01)")
    raise AssertionError(f"never: {statement}")


def test_calls_that_are_under_way_end_in_the_old_code_as_if_there_were_no_upgrade(
    fresh: psycopg.Connection[Any], fresh_dsn: str, later: Later, pool: ThreadPoolExecutor
) -> None:
    later.edit(f"migrations/{NAME}.sql", lambda text: text + GATE)
    ((worker,),) = fresh.execute("select (pyworker.open_worker() ->> 'worker')::bigint").fetchall()
    fresh.execute("select from pyworker.add_job('first')")
    ((job, run),) = fresh.execute(
        "select id, run from pyworker.work(%s, '{}', '{}', null, null, 1) where kind = 'job'", [worker]
    ).fetchall()
    with ExitStack() as stack:
        gate = stack.enter_context(psycopg.connect(fresh_dsn, autocommit=True))
        gate.execute("select pg_advisory_lock(86)")
        upgrade = pool.submit(later.by_command, fresh_dsn)
        until_it_is_at_the_gate(gate)
        begun: list[Future[Any]] = []
        for call in CALLS:
            session = stack.enter_context(closing(Session(fresh_dsn, timedelta(0))))
            future = session.start(call.format(worker=worker, job=job, run=run))
            session.await_blocked(future)
            begun.append(future)
        gate.execute("select pg_advisory_unlock(86)")
        assert upgrade.result().returncode == 0
        answers = [future.result(DEADLINE) for future in begun]
    assert answers[2][-1] == ("turn",)  # before it the job, if the add beside it was the first to end
    assert answers[3] == [("alive",)]
    assert fresh.execute(VERSIONS).fetchone() == (VERSION,)
    assert fresh.execute("select state from pyworker.history where id = %s", [job]).fetchone() == (
        "completed",
    )


def test_a_transaction_that_goes_on_to_another_table_gets_into_no_deadlock_with_an_upgrade(
    fresh: psycopg.Connection[Any], fresh_dsn: str, later: Later, pool: ThreadPoolExecutor
) -> None:
    with psycopg.connect(fresh_dsn) as user:
        user.execute("select from pyworker.add_job('plain')")
        upgrade = pool.submit(later.by_command, fresh_dsn)
        until_it_asks_for_tables(fresh)
        user.execute("select from pyworker.register_worker()")  # the migration changes this table first
        user.commit()
        assert (upgrade.result().returncode, upgrade.result().stderr) == (0, "")
    assert fresh.execute("select count(*) from pyworker.jobs").fetchone() == (1,)


@pytest.mark.slow
def test_an_upgrade_behind_a_long_transaction_gives_up_and_changes_nothing_and_others_work_on(
    fresh: psycopg.Connection[Any], fresh_dsn: str, later: Later, pool: ThreadPoolExecutor
) -> None:
    with psycopg.connect(fresh_dsn) as reader:
        reader.execute("select from pyworker.jobs")
        upgrade = pool.submit(later.by_command, fresh_dsn)
        until_it_asks_for_tables(fresh)
        fresh.execute("select from pyworker.add_job('plain')")
        done = upgrade.result()
    assert done.returncode == 1
    assert done.stderr.startswith("pyworker: canceling statement due to lock timeout")
    assert "try again" in done.stderr
    assert fresh.execute(VERSIONS).fetchone() == (newest(),)
    assert later.by_command(fresh_dsn).returncode == 0
