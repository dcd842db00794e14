"""pyworker.add_job on the connections, cursors and sessions of all the libraries that it knows, in their transactions."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from typing import Any

import msgspec
import psycopg
import pydantic
import pytest
from psycopg import conninfo, rows

import pyworker

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


def async_sqlalchemy(session: str = "") -> Any:
    @asynccontextmanager
    async def kind(dsn: str) -> AsyncIterator[Any]:
        pytest.importorskip("greenlet")
        asyncio_ = pytest.importorskip("sqlalchemy.ext.asyncio")
        engine = asyncio_.create_async_engine(URL.format("psycopg_async"), connect_args=parts(dsn))
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


ASYNC: dict[str, Callable[[str], Any]] = {
    "psycopg": async_psycopg,
    "psycopg cursor": lambda dsn: async_psycopg(dsn, on_cursor=True),
    "psycopg dict_row": lambda dsn: async_psycopg(dsn, row_factory=rows.dict_row),
    "psycopg cursor of dict_row": lambda dsn: async_psycopg(dsn, on_cursor=True, row_factory=rows.dict_row),
    "SQLAlchemy connection": async_sqlalchemy(),
    "SQLAlchemy session": async_sqlalchemy("plain"),
    "SQLAlchemy scoped session": async_sqlalchemy("scoped"),
}


def count(db: psycopg.Connection[Any]) -> int:
    return db.execute("select count(*) from pyworker.jobs").fetchone()[0]  # type: ignore[index]


@pytest.fixture
def conn(db: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    return db


@pytest.mark.parametrize("kind", SYNC)
def test_a_job_is_part_of_the_callers_transaction(db: Any, dsn: str, kind: str) -> None:
    with SYNC[kind](dsn) as (conn, commit, rollback):
        job = pyworker.add_job(conn, "t", {"a": [1, "ü"]}, priority=3, flags=["f"], meta={"m": None}, job_key="k")
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
                pyworker.InvalidArgument, match=r"^add_job: identifier must be 1 to 128 characters long, got ''$"
            ):
                await pyworker.add_job(conn, "")
            await rollback()
            job = await pyworker.add_job(conn, "t", {"a": 2})
            assert job.payload == {"a": 2}
            await commit()
            return job.id

    job_id = asyncio.run(run())
    assert db.execute("select id from pyworker.jobs").fetchall() == [(job_id,)]


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


@pytest.mark.parametrize(
    ("payload", "options", "words"),
    [
        ({}, {"meta": []}, "add_job: meta must be a JSON object, got array"),
        ({}, {"priority": 99999}, "add_job: priority must be from -32768 to 32767, got 99999"),
        ({}, {"job_key_mode": "x"}, "add_job: job_key_mode must be replace, preserve_run_at or unsafe_dedupe, got 'x'"),
        (
            {},
            {"sequence_policy": {"key": 7}},
            "add_job: sequence_policy: key must be a string of 1 to 512 characters, got 7",
        ),
        ("x" * (1 << 20), {}, "payload must not be larger than 1048576 bytes"),
    ],
    ids=lambda value: None,
)
def test_what_the_database_refuses_says_why(conn: Any, payload: Any, options: dict[str, Any], words: str) -> None:
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


def test_the_schema_is_an_argument_or_comes_from_the_environment(conn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
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
    from pyworker._sql import Database

    with pytest.raises(pyworker.Duplicate) as caught:
        Database(conn).retry_job(old.id)
    assert (caught.value.existing_job_id, caught.value.existing_job_state) == (new.id, "available")
