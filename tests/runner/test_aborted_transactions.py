"""A handler that catches the error of a statement and goes on: PostgreSQL would answer its COMMIT with
ROLLBACK, without an error."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg_pool import ConnectionPool

from pyworker import TransactionAborted
from pyworker._db.connect import connect
from pyworker._db.connection import AsyncConnection, Connection

KINDS = ["in_its_transaction", "in_its_transaction_async", "in_a_step", "in_a_step_async"]


@pytest.mark.parametrize("inside", ["nothing", "what it has written", "a savepoint that hides it"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_job_whose_transaction_a_statement_has_aborted_has_failed_with_that_reason(
    queue: Any, kind: str, inside: str
) -> None:
    queue.start(modules="aborted").until_ready()
    job = queue.add(kind, inside)
    queue.until_state("retryable", job)
    error = queue.job(job).last_error
    assert "TransactionAborted: nothing was committed" in error
    assert 'relation "no_such_table" does not exist' in error.splitlines()[-1]
    assert queue.seen(job) == []
    assert queue.rows("select * from pyworker.get_steps(%s)", job) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_statement_that_fails_in_a_savepoint_leaves_the_rest_of_the_transaction(
    queue: Any, kind: str
) -> None:
    queue.start(modules="aborted").until_ready()
    job = queue.add(kind, "a savepoint")
    queue.until_state("completed", job)
    assert [row.told for row in queue.seen(job)] == ["done"]


def test_run_task_raises_it_in_a_test_of_the_handler(db: Any, dsn: str) -> None:
    from pyworker.testing import Queue
    from tests.support.tasks import aborted

    for task in (aborted.in_its_transaction, aborted.in_its_transaction_async, aborted.in_a_step):
        with pytest.raises(TransactionAborted, match='relation "no_such_table" does not exist'):
            Queue(dsn).run_task(task, "nothing")


def swallow(conn: psycopg.Connection[Any]) -> None:
    with pytest.raises(psycopg.errors.UndefinedTable):
        conn.execute("select * from no_such_table")


def by_block(conn: psycopg.Connection[Any]) -> None:
    with conn.transaction():
        swallow(conn)


def by_inner_block(conn: psycopg.Connection[Any]) -> None:
    with conn.transaction():
        with conn.transaction():
            swallow(conn)


def by_commit(conn: psycopg.Connection[Any]) -> None:
    conn.execute("begin")
    swallow(conn)
    conn.commit()


def by_end_of_connection(conn: psycopg.Connection[Any]) -> None:
    with conn:
        conn.execute("begin")
        swallow(conn)


@pytest.mark.parametrize("commits", [by_block, by_inner_block, by_commit, by_end_of_connection])
def test_a_commit_that_would_be_answered_rollback_is_an_error(
    dsn: str, commits: Callable[[psycopg.Connection[Any]], None]
) -> None:
    conn = connect(dsn)
    try:
        with pytest.raises(TransactionAborted, match='relation "no_such_table" does not exist'):
            commits(conn)
        assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        assert conn.execute("select 1").fetchone() == (1,)
    finally:
        conn.close()


def test_a_pool_of_such_connections_refuses_it_as_well(dsn: str) -> None:
    with ConnectionPool[psycopg.Connection[Any]](dsn, connection_class=Connection, min_size=1) as pool:
        with pytest.raises(TransactionAborted), pool.connection() as conn:
            swallow(conn)
        with pool.connection() as conn:
            assert conn.execute("select 1").fetchone() == (1,)


async def swallow_async(conn: psycopg.AsyncConnection[Any]) -> None:
    with pytest.raises(psycopg.errors.UndefinedTable):
        await conn.execute("select * from no_such_table")


def test_an_asynchronous_commit_that_would_be_answered_rollback_is_an_error(dsn: str) -> None:
    async def attempt() -> None:
        conn = await AsyncConnection.connect(dsn)
        async with conn:
            with pytest.raises(TransactionAborted):
                async with conn.transaction():
                    await swallow_async(conn)
            await swallow_async(conn)
            with pytest.raises(TransactionAborted):
                await conn.commit()
            assert await (await conn.execute("select 1")).fetchone() == (1,)

    asyncio.run(attempt())


def test_what_is_rolled_back_on_purpose_is_no_error(dsn: str) -> None:
    conn = connect(dsn)
    try:
        with conn.transaction(force_rollback=True):
            swallow(conn)
        with conn.transaction():
            swallow(conn)
            raise psycopg.Rollback
        conn.execute("begin")
        swallow(conn)
        conn.rollback()
    finally:
        conn.close()
