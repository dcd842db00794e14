"""Jobs are added on the connection that the caller has, of any library."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

import pyworker
from pyworker._db.migrations import migrate
from tests.support.connections import ASYNC, LATER, SYNC, asyncpg_connection, count
from tests.support.connections import conn as conn

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", SYNC)
def test_a_job_is_part_of_the_callers_transaction(db: Any, dsn: str, kind: str) -> None:
    with SYNC[kind](dsn) as (conn, commit, rollback):
        job = pyworker.add_job(
            conn, "t", {"a": [1, "ü"]}, priority=3, flags=["f"], meta={"m": None}, job_key="k"
        )
        assert (job.state, job.payload, job.priority, job.flags, job.meta) == (
            "available", {"a": [1, "ü"]}, 3, {"f": True}, {"m": None}
        )  # fmt: skip
        assert (job.key, job.run_at.tzinfo is not None) == ("k", True)
        assert count(db) == 0
        rollback()
        assert count(db) == 0
        job = pyworker.add_job(conn, "t")
        commit()
        assert db.execute("select id from pyworker.jobs").fetchall() == [(job.id,)]


@pytest.mark.parametrize("kind", SYNC)
def test_a_refusal_is_an_exception_of_ours(db: Any, dsn: str, kind: str) -> None:
    with SYNC[kind](dsn) as (conn, _, rollback):
        with pytest.raises(
            pyworker.InvalidArgument, match=r"^add_job: max_attempts must be from 1 to 32767, got 0$"
        ) as caught:
            pyworker.add_job(conn, "t", max_attempts=0)
        assert caught.value.sqlstate == "PW001"
        assert caught.value.__cause__ is not None
        rollback()
        assert pyworker.add_job(conn, "t").task_identifier == "t"


@pytest.mark.parametrize("kind", ASYNC)
def test_on_an_asynchronous_connection_the_call_is_awaited(db: Any, dsn: str, kind: str) -> None:
    async def run() -> int:
        async with ASYNC[kind](dsn) as (conn, commit, rollback):
            await pyworker.add_job(conn, "t", {"a": 1})
            await rollback()
            with pytest.raises(
                pyworker.InvalidArgument,
                match=r"^add_job: identifier must be 1 to 128 characters long, got ''$",
            ):
                await pyworker.add_job(conn, "")
            await rollback()
            job = await pyworker.add_job(conn, "t", {"a": 2})
            assert job.payload == {"a": 2}
            await commit()
            return job.id

    job_id = asyncio.run(run())
    assert db.execute("select id from pyworker.jobs").fetchall() == [(job_id,)]


def parameters(name: str) -> Any:
    value = getattr(pyworker, name)
    return inspect.signature(value).parameters if inspect.isfunction(value) else {}


EVERYTHING: dict[str, Any] = {
    "queue_name": "q", "run_at": LATER, "max_attempts": 3, "priority": -3, "flags": ["a", "b,c"],
    "job_key_mode": "replace",
    "meta": {"m": [None]}, "delivery": "at_most_once", "sequence_policy": {"key": "s"},
    "unique_policy": {"by_args": True},
}  # fmt: skip


def life_of_jobs() -> Iterator[Any]:
    """A conversation by all verbs: yields what is to be called, is sent the answer."""
    job = yield pyworker.add_job, ("t", {"a": "%s $1 ü"}), EVERYTHING
    assert (job.payload, job.queue_name, job.run_at, job.max_attempts) == ({"a": "%s $1 ü"}, "q", LATER, 3)
    assert (job.priority, job.flags, job.meta, job.delivery) == (
        -3,
        {"a": True, "b,c": True},
        {"m": [None]},
        "at_most_once",
    )
    assert (job.unique_key is not None, job.sequence_key is not None, job.state) == (True, True, "pending")
    specs: list[Any] = [
        {"identifier": "u", "payload": [1], "run_at": LATER},
        {"identifier": "t", "payload": "x", "run_at": timedelta(hours=1), "flags": ("f",), "priority": None},
        {"identifier": "u", "job_key": "k", "meta": {"a": 1}},
    ]
    first, second, third = yield pyworker.add_jobs, (specs,), {}
    assert [j.task_identifier for j in (first, second, third)] == ["u", "t", "u"]
    assert [j.payload for j in (first, second, third)] == [[1], "x", {}]
    assert (first.run_at, second.flags, third.key, third.meta) == (LATER, {"f": True}, "k", {"a": 1})
    assert timedelta(minutes=50) < second.run_at - third.created_at <= timedelta(hours=1)
    later = yield pyworker.add_job, ("t",), {"delay": 90.5, "job_key": "l", "max_wait": timedelta(hours=1)}
    assert abs(later.run_at - later.created_at - timedelta(seconds=90.5)) < timedelta(seconds=0.1)
    assert (yield pyworker.remove_job, ("l",), {}).id == later.id
    assert (yield pyworker.add_jobs, ([],), {}) == []
    assert (yield pyworker.get_job, (first.id,), {}) == first
    assert (yield pyworker.get_job, (2**60,), {}) is None
    assert (yield pyworker.retry_job, (first.id,), {}).state == "available"
    assert (yield pyworker.cancel_job, (first.id,), {}).state == "cancelled"
    assert (yield pyworker.cancel_job, (second.id,), {"force": True}).state == "cancelled"
    assert (yield pyworker.delete_job, (second.id,), {}).id == second.id
    assert (yield pyworker.get_job, (second.id,), {}) is None
    assert (yield pyworker.remove_job, ("k",), {}).id == third.id
    assert (yield pyworker.remove_job, ("k",), {}) is None
    jobs, callback = yield pyworker.add_batch, ([{"identifier": "u"}], "u"), {}
    assert ([j.state for j in jobs], callback.state) == (["available"], "pending")
    (more,) = yield pyworker.extend_batch, (callback.id, [{"identifier": "u"}]), {}
    assert more.id > callback.id
    assert (yield pyworker.send_signal, (callback.id, "go", {"a": 1}), {}) == "kept"
    first, second = yield in_flow, (), {}
    assert (first.state, second.state) == ("available", "pending")
    assert (yield pyworker.cancel_job, (more.id,), {}).state == "cancelled"
    ended = yield pyworker.wait_for_job, (more.id,), {}
    assert (ended.id, ended.state, ended.payload) == (more.id, "cancelled", None)
    assert (yield add_by_task, ({"a": 1},), {"priority": 2}).priority == 2
    assert isinstance((yield pyworker.retry_job, (2**60,), {}), pyworker.NotFound)


@pyworker.task(name="added by its task")
def by_task(payload: Any) -> None: ...


def add_by_task(conn: Any, payload: Any, **options: Any) -> Any:
    return by_task.add(conn, payload, **options)


def in_flow(conn: Any) -> Any:
    """The jobs of a flow on either kind of connection."""
    flow: Any = pyworker.flow(conn)

    def fill() -> list[Any]:
        one = flow.add("u")
        return [one, flow.add("u", after=one)]

    async def asynchronously() -> list[Any]:
        async with flow:
            added = fill()
        return [one.job for one in added]

    if conn_is_async(conn):
        return asynchronously()
    with flow:
        added = fill()
    return [one.job for one in added]


def conn_is_async(conn: Any) -> bool:
    kinds = [kind.__module__ for kind in type(conn).__mro__]
    return "async" in type(conn).__name__.lower() or any(
        "asyncio" in kind or "asyncpg" in kind for kind in kinds
    )


CALLS = {name for name in pyworker.__all__ if next(iter(parameters(name)), "") == "conn"}


def test_each_public_call_that_takes_a_connection_is_tried_on_all_of_them() -> None:
    script = inspect.getsource(life_of_jobs) + inspect.getsource(in_flow)
    assert {name for name in CALLS if f"pyworker.{name}" not in script} == set()
    assert len(CALLS) >= 12


@pytest.mark.parametrize("kind", SYNC)
def test_every_verb_works_on_every_connection(db: Any, dsn: str, kind: str) -> None:
    with SYNC[kind](dsn) as (conn, _, rollback):
        calls = life_of_jobs()
        verb, given, options = next(calls)
        while True:
            try:
                answer: Any = verb(conn, *given, **options)
            except pyworker.NotFound as error:
                answer = error
            try:
                verb, given, options = calls.send(answer)
            except StopIteration:
                break
        rollback()
    assert count(db) == 0


@pytest.mark.parametrize("kind", ASYNC)
def test_every_verb_is_awaited_on_every_asynchronous_connection(db: Any, dsn: str, kind: str) -> None:
    async def run() -> None:
        async with ASYNC[kind](dsn) as (conn, _, rollback):
            calls = life_of_jobs()
            verb, given, options = next(calls)
            while True:
                try:
                    answer = await verb(conn, *given, **options)
                except pyworker.NotFound as error:
                    answer = error
                try:
                    verb, given, options = calls.send(answer)
                except StopIteration:
                    break
            await rollback()

    asyncio.run(run())
    assert count(db) == 0


@pytest.mark.parametrize("kind", ["asyncpg", "SQLAlchemy session over asyncpg"])
def test_an_error_of_asyncpg_has_all_that_the_database_said(db: Any, dsn: str, kind: str) -> None:
    old = db.execute("select id from pyworker.add_job('t', unique_policy => '{}')").fetchone()[0]

    async def run() -> None:
        async with ASYNC[kind](dsn) as (conn, _, rollback):
            with pytest.raises(pyworker.Duplicate, match=r"^add_job: ") as caught:
                await pyworker.add_job(conn, "t", unique_policy={})
            assert (caught.value.existing_job_id, caught.value.existing_job_state) == (old, "available")
            await rollback()

    asyncio.run(run())


def near_connections(dsn: str) -> Iterator[tuple[Any, str]]:
    """What people pass in place of a connection, and the advice."""
    import asyncpg
    import psycopg2.pool
    import psycopg_pool
    import sqlalchemy
    import sqlalchemy.ext.asyncio as async_alchemy
    import sqlalchemy.orm
    from django.db.utils import ConnectionHandler

    pool = ": take a connection from the pool, and call it in its transaction"
    engine = sqlalchemy.create_engine("postgresql+psycopg://")
    async_engine = async_alchemy.create_async_engine("postgresql+asyncpg://")
    sqlite = ConnectionHandler({"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
    yield psycopg_pool.ConnectionPool(dsn, min_size=1, open=False), pool
    yield psycopg_pool.AsyncConnectionPool(dsn, min_size=1, open=False), pool
    yield psycopg2.pool.ThreadedConnectionPool(0, 1, dsn), pool
    yield asyncpg.create_pool(dsn), pool
    yield engine, ": pass a connection, as of `with engine.begin() as conn`, or a session"
    yield async_engine, ": pass a connection, as of `async with engine.begin() as conn`, or a session"
    yield sqlalchemy.orm.sessionmaker(engine), ": pass a session that it has made"
    yield async_alchemy.async_sessionmaker(async_engine), ": pass a session that it has made"
    yield (
        SimpleNamespace(session=sqlalchemy.orm.scoped_session(sqlalchemy.orm.sessionmaker(engine))),
        (": pass its session"),
    )
    yield sqlite, ": pass django.db.connection, or one of `connections` by its alias"
    yield sqlite["default"], " to sqlite: its database must be PostgreSQL"
    yield dsn, f" {dsn!r}: the connection comes first"
    yield None, "got NoneType"


def test_what_is_no_connection_is_refused_with_the_advice_what_to_pass(dsn: str) -> None:
    calls = [
        lambda conn: pyworker.add_job(conn, "t"),
        lambda conn: pyworker.get_job(conn, 1),
        lambda conn: pyworker.wait_for_job(conn, 1),
    ]

    async def run() -> None:
        for near, words in near_connections(dsn):
            for call in calls:
                with pytest.raises(pyworker.InvalidArgument, match="conn must be a connection") as caught:
                    call(near)
                assert isinstance(caught.value, TypeError)
                assert str(caught.value).endswith(words)

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["psycopg", "Django connection", "SQLAlchemy session over psycopg2"])
def test_a_schema_may_have_any_name(fresh: Any, fresh_dsn: str, kind: str) -> None:
    name = 'so "it" is: 100% $1 %s'
    migrate(fresh, name)
    with SYNC[kind](fresh_dsn) as (conn, _, _):
        job = pyworker.add_job(conn, "t", {"a": 1}, schema=name, run_at=timedelta(seconds=60))
        again = pyworker.add_jobs(conn, [{"identifier": "t", "run_at": timedelta(seconds=60)}], schema=name)
        assert pyworker.get_job(conn, job.id, schema=name) == job
        assert again[0].state == "scheduled"


def test_a_schema_may_have_any_name_for_asyncpg_too(fresh: Any, fresh_dsn: str) -> None:
    name = 'so "it" is: 100% $1 %s'
    migrate(fresh, name)

    async def run() -> None:
        async with asyncpg_connection(fresh_dsn) as (conn, _, _):
            job = await pyworker.add_job(conn, "t", {"a": 1}, schema=name, run_at=timedelta(seconds=60))
            assert job.state == "scheduled"

    asyncio.run(run())


def test_a_cursor_that_is_being_read_can_be_read_on(db: Any, dsn: str) -> None:
    with psycopg.connect(dsn) as conn, conn.cursor() as cursor:
        cursor.execute("select n from generate_series(1, 3) n")
        assert [(row[0], pyworker.add_job(cursor, "t").task_identifier) for row in cursor] == [
            (1, "t"),
            (2, "t"),
            (3, "t"),
        ]


TIMES = [
    {"run_at": "the day after"},
    {"run_at": "2026-13-45"},
    {"expires_at": "then"},
    {"delay": "soon"},
    {"delay": "999999999999 years"},
    {"max_wait": "soon", "job_key": "k"},
    {"max_wait": float("inf"), "job_key": "k"},
    {"max_wait": float("nan"), "job_key": "k"},
    {"max_wait": 1e300, "job_key": "k"},
    {"max_wait": timedelta.max, "job_key": "k"},
    {"delay": float("inf")},
]


@pytest.mark.parametrize("options", TIMES, ids=str)
@pytest.mark.parametrize("kind", SYNC)
def test_what_is_no_time_is_refused_by_the_arguments_name(dsn: str, kind: str, options: Any) -> None:
    with SYNC[kind](dsn) as (conn, _, rollback):
        for function, add in (
            ("add_job", lambda: pyworker.add_job(conn, "t", **options)),
            ("add_jobs", lambda: pyworker.add_jobs(conn, [{"identifier": "t", **options}])),
        ):
            with pytest.raises(pyworker.InvalidArgument, match=rf"^{function}: .*{next(iter(options))}"):
                add()
            rollback()


@pytest.mark.parametrize("kind", ASYNC)
def test_what_is_no_time_is_refused_on_asynchronous_connections_too(dsn: str, kind: str) -> None:
    async def run() -> None:
        async with ASYNC[kind](dsn) as (conn, _, _):
            with pytest.raises(pyworker.InvalidArgument, match=r"^add_job: run_at is not valid: .*day after"):
                await pyworker.add_job(conn, "t", run_at="the day after")

    asyncio.run(run())


@pytest.mark.parametrize("kind", ASYNC)
def test_the_warning_of_a_forgotten_await_names_the_call(dsn: str, kind: str) -> None:
    async def run() -> None:
        async with ASYNC[kind](dsn) as (conn, _, _):
            for name, call in (
                ("add_job", lambda: pyworker.add_job(conn, "t")),
                ("cancel_job", lambda: pyworker.cancel_job(conn, 1)),
            ):
                with pytest.warns(RuntimeWarning) as warned:
                    call()
                assert [str(one.message) for one in warned] == [
                    f"coroutine 'pyworker.{name}' was never awaited"
                ]

    asyncio.run(run())


def test_the_warning_of_a_forgotten_wait_names_it_too(dsn: str) -> None:
    async def run() -> None:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
            with pytest.warns(RuntimeWarning, match=r"coroutine 'pyworker\.wait_for_job' was never awaited"):
                pyworker.wait_for_job(conn, 1)

    asyncio.run(run())
