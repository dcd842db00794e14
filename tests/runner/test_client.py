"""pyworker.add_job on the connections, cursors and sessions of all the libraries that it knows, in their transactions."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec
import psycopg
import pydantic
import pytest
from psycopg import conninfo, rows

import pyworker
from pyworker._db.migrations import migrate

URL = "postgresql+{}://"


def parts(dsn: str) -> dict[str, Any]:
    """Connection arguments, for libraries that do not take libpq's format."""
    return {key: value for key, value in conninfo.conninfo_to_dict(dsn).items() if value is not None}


# -- each library in its own words: give a connection in a transaction, then commit or roll back ----------------------


@contextmanager
def psycopg_connection(dsn: str, **options: Any) -> Iterator[Any]:
    with psycopg.connect(dsn, **options) as conn:
        yield conn, conn.commit, conn.rollback


def psycopg_rows(factory: Any, on_cursor: bool = False) -> Any:
    @contextmanager
    def kind(dsn: str) -> Iterator[Any]:
        with psycopg.connect(dsn, row_factory=factory) as conn:
            yield conn.cursor() if on_cursor else conn, conn.commit, conn.rollback

    return kind


@contextmanager
def psycopg_cursor(dsn: str) -> Iterator[Any]:
    with psycopg.connect(dsn) as conn, conn.cursor() as cursor:
        yield cursor, conn.commit, conn.rollback


@contextmanager
def psycopg_raw_cursors(dsn: str) -> Iterator[Any]:
    with psycopg.connect(dsn, cursor_factory=psycopg.RawCursor) as conn:
        yield conn, conn.commit, conn.rollback


def psycopg2_kind(cursor_factory: str = "", on_cursor: bool = False) -> Any:
    @contextmanager
    def kind(dsn: str) -> Iterator[Any]:
        psycopg2 = pytest.importorskip("psycopg2")
        extras = pytest.importorskip("psycopg2.extras")
        conn = psycopg2.connect(dsn, cursor_factory=getattr(extras, cursor_factory, None))
        try:
            yield conn.cursor() if on_cursor else conn, conn.commit, conn.rollback
        finally:
            conn.close()

    return kind


def sqlalchemy_kind(driver: str, session: str = "") -> Any:
    @contextmanager
    def kind(dsn: str) -> Iterator[Any]:
        pytest.importorskip(driver)
        sqlalchemy, orm = pytest.importorskip("sqlalchemy"), pytest.importorskip("sqlalchemy.orm")
        engine = sqlalchemy.create_engine(URL.format(driver), connect_args=parts(dsn))
        try:
            if session == "scoped":
                conn: Any = orm.scoped_session(orm.sessionmaker(engine))
            else:
                conn = orm.Session(engine) if session else engine.connect()
            yield conn, conn.commit, conn.rollback
            conn.close()
        finally:
            engine.dispose()

    return kind


@contextmanager
def django_connection(dsn: str, on_cursor: bool = False) -> Iterator[Any]:
    django = pytest.importorskip("django")
    from django.conf import settings
    from django.db.utils import ConnectionHandler

    if not settings.configured:
        settings.configure(LOGGING_CONFIG=None)
        django.setup()
    given = parts(dsn)
    connections = ConnectionHandler({
        "default": {
            "ENGINE": "django.db.backends.postgresql", "NAME": given["dbname"], "HOST": given["host"],
            "PORT": given["port"], "USER": given["user"], "PASSWORD": given.get("password", ""),
        }
    })  # fmt: skip
    conn = connections["default"]
    conn.set_autocommit(False)
    try:
        yield conn.cursor() if on_cursor else conn, conn.commit, conn.rollback
    finally:
        conn.close()


@contextmanager
def django_cursor(dsn: str) -> Iterator[Any]:
    with django_connection(dsn, on_cursor=True) as given:
        yield given


SYNC: dict[str, Callable[[str], Any]] = {
    "psycopg": psycopg_connection,
    "psycopg cursor": psycopg_cursor,
    "psycopg dict_row": psycopg_rows(rows.dict_row),
    "psycopg scalar_row": psycopg_rows(rows.scalar_row),
    "psycopg cursor of dict_row": psycopg_rows(rows.dict_row, on_cursor=True),
    "psycopg cursor of class_row": psycopg_rows(rows.class_row(datetime), on_cursor=True),
    "psycopg raw cursors": psycopg_raw_cursors,
    "psycopg2": psycopg2_kind(),
    "psycopg2 cursor": psycopg2_kind(on_cursor=True),
    "psycopg2 RealDictCursor": psycopg2_kind("RealDictCursor"),
    "psycopg2 NamedTupleCursor": psycopg2_kind("NamedTupleCursor", on_cursor=True),
    "SQLAlchemy connection over psycopg": sqlalchemy_kind("psycopg"),
    "SQLAlchemy connection over psycopg2": sqlalchemy_kind("psycopg2"),
    "SQLAlchemy session over psycopg": sqlalchemy_kind("psycopg", "plain"),
    "SQLAlchemy session over psycopg2": sqlalchemy_kind("psycopg2", "plain"),
    "SQLAlchemy scoped session": sqlalchemy_kind("psycopg", "scoped"),
    "Django connection": django_connection,
    "Django cursor": django_cursor,
}


@asynccontextmanager
async def async_psycopg(dsn: str, on_cursor: bool = False, **options: Any) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(dsn, **options) as conn:
        yield conn.cursor() if on_cursor else conn, conn.commit, conn.rollback


def async_sqlalchemy(session: str = "", driver: str = "psycopg_async") -> Any:
    @asynccontextmanager
    async def kind(dsn: str) -> AsyncIterator[Any]:
        pytest.importorskip("greenlet")
        asyncio_ = pytest.importorskip("sqlalchemy.ext.asyncio")
        given = parts(dsn)
        if driver == "asyncpg":
            pytest.importorskip(driver)
            given = {
                "database": given["dbname"],
                "port": int(given["port"]),
                "host": given["host"],
                "user": given["user"],
            }
        engine = asyncio_.create_async_engine(URL.format(driver), connect_args=given)
        try:
            if session == "scoped":
                maker = asyncio_.async_sessionmaker(engine)
                conn: Any = asyncio_.async_scoped_session(maker, scopefunc=asyncio.current_task)
            else:
                conn = asyncio_.AsyncSession(engine) if session else await engine.connect()
            yield conn, conn.commit, conn.rollback
            await conn.close()
        finally:
            await engine.dispose()

    return kind


@asynccontextmanager
async def asyncpg_connection(dsn: str, codecs: bool = False) -> AsyncIterator[Any]:
    asyncpg = pytest.importorskip("asyncpg")
    given = parts(dsn)
    conn = await asyncpg.connect(
        host=given["host"], port=int(given["port"]), user=given["user"], database=given["dbname"]
    )
    if codecs:  # as applications set them
        for name in ("json", "jsonb"):
            await conn.set_type_codec(name, schema="pg_catalog", encoder=json.dumps, decoder=json.loads)
    transaction = conn.transaction()
    await transaction.start()

    async def end(how: str) -> None:
        nonlocal transaction
        await getattr(transaction, how)()
        transaction = conn.transaction()
        await transaction.start()

    try:
        yield conn, lambda: end("commit"), lambda: end("rollback")
    finally:
        await conn.close()


@asynccontextmanager
async def asyncpg_of_pool(dsn: str) -> AsyncIterator[Any]:
    asyncpg = pytest.importorskip("asyncpg")
    given = parts(dsn)
    where = {
        "host": given["host"],
        "port": int(given["port"]),
        "user": given["user"],
        "database": given["dbname"],
    }
    async with asyncpg.create_pool(**where, min_size=1, max_size=1) as pool, pool.acquire() as conn:
        await conn.execute("begin")

        async def end(how: str) -> None:
            await conn.execute(how)
            await conn.execute("begin")

        try:
            yield conn, lambda: end("commit"), lambda: end("rollback")
        finally:
            await conn.execute("rollback")


ASYNC: dict[str, Callable[[str], Any]] = {
    "psycopg": async_psycopg,
    "psycopg cursor": lambda dsn: async_psycopg(dsn, on_cursor=True),
    "psycopg dict_row": lambda dsn: async_psycopg(dsn, row_factory=rows.dict_row),
    "psycopg cursor of dict_row": lambda dsn: async_psycopg(dsn, on_cursor=True, row_factory=rows.dict_row),
    "SQLAlchemy connection": async_sqlalchemy(),
    "SQLAlchemy session": async_sqlalchemy("plain"),
    "SQLAlchemy scoped session": async_sqlalchemy("scoped"),
    "asyncpg": asyncpg_connection,
    "asyncpg with codecs": lambda dsn: asyncpg_connection(dsn, codecs=True),
    "asyncpg of a pool": asyncpg_of_pool,
    "SQLAlchemy connection over asyncpg": async_sqlalchemy(driver="asyncpg"),
    "SQLAlchemy session over asyncpg": async_sqlalchemy("plain", "asyncpg"),
    "SQLAlchemy scoped session over asyncpg": async_sqlalchemy("scoped", "asyncpg"),
}


def count(db: psycopg.Connection[Any]) -> int:
    return db.execute("select count(*) from pyworker.jobs").fetchone()[0]  # type: ignore[index]


@pytest.fixture
def conn(db: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    return db


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


# -- the other verbs, each on every connection -------------------------------------------------------------------------

LATER = datetime(2100, 1, 1, 12, tzinfo=UTC)
EVERYTHING: dict[str, Any] = {
    "queue_name": "q", "run_at": LATER, "max_attempts": 3, "priority": -3, "flags": ["a", "b,c"], "job_key_mode": "replace",
    "meta": {"m": [None]}, "delivery": "at_most_once", "sequence_policy": {"key": "s"}, "unique_policy": {"by_args": True},
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
    assert isinstance((yield pyworker.retry_job, (2**60,), {}), pyworker.NotFound)


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


def test_a_pool_is_not_taken_for_a_connection(db: Any, dsn: str) -> None:
    asyncpg, psycopg_pool = pytest.importorskip("asyncpg"), pytest.importorskip("psycopg_pool")
    words = r"conn must be a connection, .*, got \w*Pool: take a connection from the pool, and call it in its transaction"

    async def run() -> None:
        with pytest.raises(TypeError, match=words):
            await pyworker.add_job(asyncpg.create_pool(dsn), "t")  # type: ignore[misc]

    asyncio.run(run())
    with (
        psycopg_pool.ConnectionPool(dsn, min_size=1, open=False) as pool,
        pytest.raises(TypeError, match=words),
    ):
        pyworker.add_job(pool, "t")


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


class Model(pydantic.BaseModel):
    at: datetime


class Struct(msgspec.Struct):
    at: datetime


@dataclasses.dataclass
class Data:
    a: list[int]


@pytest.mark.parametrize(
    ("payload", "stored"),
    [
        (None, {}),
        ({}, {}),
        ([], []),
        ("x", "x"),
        (0, 0),
        (False, False),
        (2**70, 2**70),
        ({"a": "\0"}, {"a": "\0"}),
        ({"a": "\ud800"}, {"a": "\ud800"}),
        ({"a": "%s %(x)s {} \\"}, {"a": "%s %(x)s {} \\"}),
        (Data([1]), {"a": [1]}),
        ([Data([1])], [{"a": [1]}]),
        (Model(at=datetime(2026, 1, 2, tzinfo=UTC)), {"at": "2026-01-02T00:00:00Z"}),
        (Struct(at=datetime(2026, 1, 2, tzinfo=UTC)), {"at": "2026-01-02T00:00:00Z"}),
    ],
    ids=repr,
)
def test_a_payload_is_stored_as_it_is(conn: Any, payload: Any, stored: Any) -> None:
    assert pyworker.add_job(conn, "t", payload).payload == stored


@pytest.mark.parametrize(
    ("payload", "options", "kind", "words"),
    [
        (float("nan"), {}, pyworker.InvalidArgument, "must be JSON: Out of range float values"),
        ({"a": [float("inf")]}, {}, pyworker.InvalidArgument, "must be JSON: Out of range float values"),
        ({1, 2}, {}, TypeError, "a value of type set cannot be stored as JSON"),
        ({"at": datetime(2026, 1, 1)}, {}, TypeError, "a value of type datetime cannot be stored as JSON"),
        ({}, {"meta": {"a": float("nan")}}, pyworker.InvalidArgument, "must be JSON"),
        ({}, {"flags": "urgent"}, pyworker.InvalidArgument, "flags must be a list of strings, got 'urgent'"),
        ({}, {"queue": "x"}, TypeError, r"add_job has no argument 'queue' \(known: identifier, payload, queue_name, "),
    ],
    ids=lambda value: None,
)  # fmt: skip
def test_what_python_can_refuse_costs_no_transaction(
    db: Any, dsn: str, payload: Any, options: dict[str, Any], kind: type[Exception], words: str
) -> None:
    with psycopg.connect(dsn) as conn:
        pyworker.add_job(conn, "before")
        with pytest.raises(kind, match=words):
            pyworker.add_job(conn, "t", payload, **options)
        conn.commit()
    assert count(db) == 1


DEEP: list[Any] = []
for _ in range(100_000):
    DEEP = [DEEP]


class Level(enum.IntEnum):
    HIGH = -5


# What a driver would round, take for something else, or refuse without saying which argument is meant.
@pytest.mark.parametrize(
    ("identifier", "payload", "options", "words"),
    [
        (None, {}, {}, "add_job: identifier must be a string, got None"),
        (5, {}, {}, "add_job: identifier must be a string, got 5"),
        (b"t", {}, {}, "add_job: identifier must be a string, got b't'"),
        ("a\0b", {}, {}, r"add_job: identifier must not contain NUL or half a surrogate pair, got 'a\\x00b'"),
        ("t", DEEP, {}, "add_job: payload must be JSON: it is nested too deeply"),
        ("t", 10**5000, {}, "add_job: payload must be JSON: Exceeds the limit"),
        ("t", {}, {"queue_name": 5}, "add_job: queue_name must be a string, got 5"),
        ("t", {}, {"queue_name": "\ud800"}, r"add_job: queue_name must not contain .*, got '\\ud800'"),
        ("t", {}, {"job_key": 42}, "add_job: job_key must be a string, got 42"),
        ("t", {}, {"job_key_mode": 1}, "add_job: job_key_mode must be a string, got 1"),
        ("t", {}, {"delivery": True}, "add_job: delivery must be a string, got True"),
        ("t", {}, {"priority": 1.7}, "add_job: priority must be an integer, got 1.7"),
        ("t", {}, {"priority": True}, "add_job: priority must be an integer, got True"),
        ("t", {}, {"priority": "high"}, "add_job: priority must be an integer, got 'high'"),
        ("t", {}, {"priority": 10**12}, "add_job: priority is out of range, got 1000000000000"),
        ("t", {}, {"max_attempts": 3.0}, "add_job: max_attempts must be an integer, got 3.0"),
        ("t", {}, {"max_attempts": -(10**12)}, "add_job: max_attempts is out of range, got -1000000000000"),
        ("t", {}, {"flags": 5}, "add_job: flags must be a list of strings, got 5"),
        ("t", {}, {"flags": {"a": True}}, "add_job: flags must be a list of strings, got {'a': True}"),
        ("t", {}, {"flags": [1]}, r"add_job: flags must be a list of strings, got \[1\]"),
        (
            "t",
            {},
            {"run_at": 5},
            "add_job: run_at must be a datetime with a time zone, a timedelta from now, or a string, got 5",
        ),
        (
            "t",
            {},
            {"run_at": date(2100, 1, 1)},
            r"add_job: run_at must be .*, got datetime.date\(2100, 1, 1\)",
        ),
        (
            "t",
            {},
            {"run_at": datetime(2100, 1, 1)},
            r"add_job: run_at must have a time zone, got datetime.datetime\(2100, 1, 1, 0, 0\): use datetime.now\(timezone.utc\), ",
        ),
        (
            "t",
            {},
            {"run_at": timedelta.max},
            "add_job: run_at must be a time of the years 1 to 9999, got .* from now",
        ),
        ("t", {}, {"meta": {"a": float("nan")}}, "add_job: meta must be JSON: Out of range"),
        (
            "t",
            {},
            {"unique_policy": {"by_args": float("nan")}},
            "add_job: unique_policy must be JSON: Out of range",
        ),
    ],
    ids=lambda value: "",
)
def test_a_refusal_names_the_argument_and_its_value_and_costs_no_transaction(
    db: Any, dsn: str, identifier: Any, payload: Any, options: dict[str, Any], words: str
) -> None:
    with psycopg.connect(dsn) as conn:
        pyworker.add_job(conn, "before")
        with pytest.raises(pyworker.InvalidArgument, match=f"^{words}"):
            pyworker.add_job(conn, identifier, payload, **options)
        spec: Any = {"identifier": identifier, "payload": payload, **options}
        with pytest.raises(
            pyworker.InvalidArgument, match=words.replace("add_job:", r"^add_jobs: specs\[2\]:")
        ):
            pyworker.add_jobs(conn, [{"identifier": "first"}, spec])
        conn.commit()
    assert count(db) == 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda conn: pyworker.get_job(conn, "1"), "get_job: job_id must be an integer, got '1'"),  # type: ignore[arg-type]
        (lambda conn: pyworker.retry_job(conn, True), "retry_job: job_id must be an integer, got True"),
        (
            lambda conn: pyworker.delete_job(conn, 2**63),
            "delete_job: job_id is out of range, got 9223372036854775808",
        ),
        (
            lambda conn: pyworker.cancel_job(conn, 1, force="no"),
            "cancel_job: force must be True or False, got 'no'",
        ),  # type: ignore[arg-type]
        (lambda conn: pyworker.remove_job(conn, 7), "remove_job: job_key must be a string, got 7"),  # type: ignore[arg-type]
    ],
)
def test_what_another_verb_is_given_is_checked_too(conn: Any, call: Any, words: str) -> None:
    with pytest.raises(pyworker.InvalidArgument, match=f"^{words}$"):
        call(conn)


@pytest.mark.parametrize(
    ("options", "unknown"),
    [
        ({"identifier": "t", "prio": 1}, "add_jobs: specs[1] has no argument 'prio' (known: "),
        ({}, "identifier must be a string"),
    ],
)
def test_a_spec_that_is_wrong_is_named_by_its_position(conn: Any, options: Any, unknown: str) -> None:
    with pytest.raises((TypeError, pyworker.InvalidArgument)) as caught:
        pyworker.add_jobs(conn, [options])
    assert unknown in str(caught.value)


def test_a_timedelta_is_from_now_by_the_queues_clock(fresh: Any, fresh_dsn: str) -> None:
    fresh.execute("select pyworker.advance_clock('10 days')")
    with psycopg.connect(fresh_dsn) as conn:
        now = conn.execute("select extract(epoch from pyworker.clock())::float8").fetchone()
        job = pyworker.add_job(conn, "t", run_at=timedelta(days=1, microseconds=1))
        (other,) = pyworker.add_jobs(conn, [{"identifier": "t", "run_at": timedelta(days=-1)}])
    assert now is not None
    assert 0 <= job.run_at.timestamp() - now[0] - 86400 < 30
    assert -86400 <= other.run_at.timestamp() - now[0] < 30 - 86400
    assert (job.state, other.state) == ("scheduled", "available")


def test_kinds_of_text_and_numbers_are_taken_as_what_they_are(conn: Any) -> None:
    class Name(enum.StrEnum):
        MAIL = "mail"

    job = pyworker.add_job(
        conn, Name.MAIL, queue_name=Name.MAIL, priority=Level.HIGH, flags=(n for n in ("a", "b"))
    )
    assert (job.task_identifier, job.queue_name, job.priority, job.flags) == (
        "mail",
        "mail",
        -5,
        {"a": True, "b": True},
    )
    assert pyworker.add_job(conn, "t", run_at="2100-01-01 12:00+00").run_at == LATER


@pytest.mark.parametrize(
    ("payload", "options", "words"),
    [
        ({}, {"meta": []}, "add_job: meta must be a JSON object, got array"),
        ({}, {"priority": 99999}, "add_job: priority must be from -32768 to 32767, got 99999"),
        (
            {},
            {"job_key_mode": "x"},
            "add_job: job_key_mode must be replace, preserve_run_at or unsafe_dedupe, got 'x'",
        ),
        (
            {},
            {"sequence_policy": {"key": 7}},
            "add_job: sequence_policy: key must be a string of 1 to 512 characters, got 7",
        ),
        ("x" * (1 << 20), {}, "payload must not be larger than 1048576 bytes"),
    ],
    ids=lambda value: None,
)
def test_what_the_database_refuses_says_why(
    conn: Any, payload: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(pyworker.InvalidArgument, match=words):
        pyworker.add_job(conn, "t", payload, **options)


@pytest.mark.parametrize("wrong", [None, "postgresql:///", 7], ids=repr)
def test_what_is_no_connection_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"conn must be a connection, cursor or session of psycopg, .*, got "):
        pyworker.add_job(wrong, "t")


def test_a_sqlalchemy_driver_with_other_parameters_is_refused_by_name() -> None:
    sqlalchemy = pytest.importorskip("sqlalchemy")
    engine = sqlalchemy.create_engine("sqlite://")
    with (
        engine.connect() as conn,
        pytest.raises(TypeError, match="SQLAlchemy's driver pysqlite is not supported; use psycopg"),
    ):
        pyworker.add_job(conn, "t")
    engine.dispose()


def test_a_task_adds_its_own_jobs(conn: Any) -> None:
    @pyworker.task(name="of a test")
    def handler(payload: Any) -> None: ...

    job = handler.add(conn, {"a": 1}, priority=2)
    assert (job.task_identifier, job.payload, job.priority) == ("of a test", {"a": 1}, 2)


def test_the_schema_is_an_argument_or_comes_from_the_environment(
    conn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYWORKER_SCHEMA", "elsewhere")
    with pytest.raises(psycopg.errors.InvalidSchemaName, match='"elsewhere"'):
        pyworker.add_job(conn, "t")
    assert pyworker.add_job(conn, "t", schema="pyworker").state == "available"


def test_a_job_is_returned_as_the_database_tells_it(conn: Any) -> None:
    job = pyworker.add_job(conn, "t", [1], run_at=datetime(2100, 1, 1, tzinfo=UTC), job_key="k")
    again = pyworker.add_job(conn, "t", [2], job_key="k", job_key_mode="unsafe_dedupe")
    assert dataclasses.replace(again, deduplicated=False) == job
    assert again.deduplicated
    columns = conn.execute(
        "select attname from pg_attribute where attrelid = 'pyworker.job'::regclass and attnum > 0 order by attnum"
    ).fetchall()
    assert [field.name for field in dataclasses.fields(job)] == [name for (name,) in columns]


def test_a_duplicate_names_the_job_that_is_in_the_way(conn: Any) -> None:
    old = pyworker.add_job(conn, "t", job_key="k")
    conn.execute("select pyworker.cancel_job(%s)", [old.id])
    new = pyworker.add_job(conn, "t", job_key="k")
    from pyworker._db.database import Database

    with pytest.raises(pyworker.Duplicate) as caught:
        Database(conn).retry_job(old.id)
    assert (caught.value.existing_job_id, caught.value.existing_job_state) == (new.id, "available")
