"""wait_for_job on the connections of each library, outside a transaction and within one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import asyncpg
import psycopg
import pytest

import pyworker
from tests.support import DEADLINE
from tests.support.connections import ASYNC, SYNC, parts

pytestmark = pytest.mark.slow


def ended_later(queue: Any, job: int) -> threading.Thread:
    """Ends the job once a caller has looked at it."""
    looked = (
        "select exists (select from pg_stat_activity where query ~* 'await_job|^rollback$|^commit$'"
        " and pid <> pg_backend_pid() and state_change > %s)"
    )
    begun = queue.value("select clock_timestamp()")

    def run() -> None:
        queue.until(looked, begun)
        queue.rows("select pyworker.cancel_job(%s)", job)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def read(conn: Any) -> Any:
    return pyworker.get_job(conn, 2**60)


@pytest.mark.parametrize("within", [False, True], ids=["outside", "within a transaction"])
@pytest.mark.parametrize("kind", SYNC)
def test_it_sees_the_end_on_every_connection(queue: Any, dsn: str, kind: str, within: bool) -> None:
    job = queue.add("no_such_task")
    with SYNC[kind](dsn) as (conn, _, rollback):
        if within:
            read(conn)
        thread = ended_later(queue, job)
        assert pyworker.wait_for_job(conn, job, DEADLINE).state == "cancelled"
        thread.join()
        assert queue.rows("select from pyworker.waiters") == [] or not within
        rollback()
        assert pyworker.add_job(conn, "t").state == "available"  # the connection works on
        rollback()
    assert queue.value("select count(*) from pyworker.jobs") == 0


@pytest.mark.parametrize("within", [False, True], ids=["outside", "within a transaction"])
@pytest.mark.parametrize("kind", ASYNC)
def test_it_sees_the_end_on_every_asynchronous_connection(
    queue: Any, dsn: str, kind: str, within: bool
) -> None:
    job = queue.add("no_such_task")

    async def run() -> None:
        async with ASYNC[kind](dsn) as (conn, _, rollback):
            if within:
                await read(conn)
            thread = ended_later(queue, job)
            assert (await pyworker.wait_for_job(conn, job, DEADLINE)).state == "cancelled"
            thread.join()
            await rollback()
            assert (await pyworker.add_job(conn, "t")).state == "available"
            await rollback()

    asyncio.run(run())
    assert queue.value("select count(*) from pyworker.jobs") == 0


def test_asyncpg_need_not_be_in_a_transaction(queue: Any, dsn: str) -> None:
    job = queue.add("no_such_task")

    async def run() -> None:
        given = parts(dsn)
        where = {"host": given["host"], "port": int(given["port"]), "user": given["user"]}
        conn = await asyncpg.connect(**where, database=given["dbname"])
        thread = ended_later(queue, job)
        assert (await pyworker.wait_for_job(conn, job, DEADLINE)).state == "cancelled"
        thread.join()
        await conn.close()
        with pytest.raises(pyworker.WrongState, match="conn is closed"):
            await pyworker.wait_for_job(conn, job)

    asyncio.run(run())


WITHIN = {kind: SYNC[kind] for kind in SYNC if "cursor of" not in kind}


def refused(queue: Any, dsn: str, kind: str, prepare: Callable[[Any], Any], words: str) -> None:
    job = queue.add("no_such_task")
    with SYNC[kind](dsn) as (conn, _, rollback):
        prepare(conn)
        with pytest.raises(pyworker.WrongState, match=words):
            pyworker.wait_for_job(conn, job, DEADLINE)
        rollback()


@pytest.fixture
def repeatable(queue: Any) -> Iterator[None]:
    """New sessions begin their transactions at REPEATABLE READ."""
    name = queue.value("select quote_ident(current_database())")
    queue.rows(f"alter database {name} set default_transaction_isolation = 'repeatable read'")
    yield
    queue.rows(f"alter database {name} reset default_transaction_isolation")


@pytest.mark.parametrize("kind", WITHIN)
def test_a_transaction_that_would_not_see_the_end_is_refused(
    queue: Any, dsn: str, kind: str, repeatable: None
) -> None:
    words = "conn is in a transaction at repeatable read, which does not see what others commit: commit or"
    refused(queue, dsn, kind, read, words)


@pytest.mark.parametrize(
    "kind", ["psycopg", "psycopg2", "Django connection", "SQLAlchemy session over psycopg"]
)
def test_outside_a_transaction_each_look_has_its_own(
    queue: Any, dsn: str, kind: str, repeatable: None
) -> None:
    job = queue.add("no_such_task")
    with SYNC[kind](dsn) as (conn, _, _):
        thread = ended_later(queue, job)
        assert pyworker.wait_for_job(conn, job, DEADLINE).state == "cancelled"
        thread.join()


@pytest.mark.parametrize(
    "kind", ["psycopg", "psycopg2", "Django connection", "SQLAlchemy connection over psycopg"]
)
def test_a_failed_transaction_is_refused(queue: Any, dsn: str, kind: str) -> None:
    def fail(conn: Any) -> None:
        with pytest.raises(pyworker.NotFound):
            pyworker.retry_job(conn, 2**60)

    refused(queue, dsn, kind, fail, "the transaction of conn has failed: roll back before you wait")


@pytest.mark.parametrize("kind", ASYNC)
def test_asynchronous_transactions_are_refused_likewise(
    queue: Any, dsn: str, kind: str, repeatable: None
) -> None:
    job = queue.add("no_such_task")

    async def run() -> None:
        async with ASYNC[kind](dsn) as (conn, _, rollback):
            await read(conn)
            with pytest.raises(pyworker.WrongState, match="conn is in a transaction at repeatable read"):
                await pyworker.wait_for_job(conn, job, DEADLINE)
            await rollback()
            with pytest.raises(pyworker.NotFound):
                await pyworker.retry_job(conn, 2**60)
            with pytest.raises(pyworker.WrongState, match="the transaction of conn has failed: roll back"):
                await pyworker.wait_for_job(conn, job, DEADLINE)
            await rollback()

    asyncio.run(run())


@pytest.mark.parametrize("how", ["added", "changed", "after a savepoint"])
def test_a_job_of_the_callers_own_open_transaction_is_refused(queue: Any, dsn: str, how: str) -> None:
    """No worker sees it, so it would wait until its timeout."""
    other = queue.add("no_such_task", run_at="2100-01-01")
    with psycopg.connect(dsn) as conn:
        if how == "added":
            job = pyworker.add_job(conn, "t").id
        elif how == "changed":
            job = pyworker.retry_job(conn, other).id
        else:
            conn.execute("create temporary table first ()")
            with conn.transaction():
                job = pyworker.add_job(conn, "t").id
        words = (
            f"await_job: job {job} was added or changed in this transaction: commit before you wait for it"
        )
        with pytest.raises(pyworker.WrongState, match=words):
            pyworker.wait_for_job(conn, job)
        conn.rollback()


def test_what_others_have_committed_since_may_be_waited_for_within_a_transaction(
    queue: Any, dsn: str
) -> None:
    with psycopg.connect(dsn) as conn:
        pyworker.add_job(conn, "t")  # this transaction has an id, smaller than the next one
        job = queue.add("no_such_task")
        with pytest.raises(pyworker.JobTimeout):
            pyworker.wait_for_job(conn, job, 0.1)
        conn.rollback()


def test_a_session_keeps_its_objects_loaded_and_gives_its_connection_back(queue: Any, dsn: str) -> None:
    import sqlalchemy
    import sqlalchemy.orm

    queue.rows("create table if not exists public.thing (id bigserial primary key, name text)")
    base = sqlalchemy.orm.declarative_base()

    class Thing(base):  # type: ignore[misc, valid-type]
        __tablename__ = "thing"
        id = sqlalchemy.Column(sqlalchemy.BigInteger, primary_key=True)
        name = sqlalchemy.Column(sqlalchemy.Text)

    engine = sqlalchemy.create_engine(
        "postgresql+psycopg://", connect_args=parts(dsn), pool_size=1, max_overflow=0
    )
    with sqlalchemy.orm.Session(engine, expire_on_commit=False) as session:
        thing = Thing(name="a")
        session.add(thing)
        job = pyworker.add_job(session, "no_such_task")
        session.commit()
        for timeout in (0.05, DEADLINE):
            if timeout == DEADLINE:
                queue.rows("select pyworker.cancel_job(%s)", job.id)
                pyworker.wait_for_job(session, job.id, timeout)
            else:
                with pytest.raises(pyworker.JobTimeout):
                    pyworker.wait_for_job(session, job.id, timeout)
            assert "name" in sqlalchemy.inspect(thing).dict
            assert not session.in_transaction()
            assert engine.pool.checkedout() == 0
    engine.dispose()
