"""Connections of each library, in a transaction of the caller's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from psycopg import conninfo, rows


def count(db: psycopg.Connection[Any]) -> int:
    return db.execute("select count(*) from pyworker.jobs").fetchone()[0]  # type: ignore[index]


@pytest.fixture
def conn(db: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    return db


LATER = datetime(2100, 1, 1, 12, tzinfo=UTC)


URL = "postgresql+{}://"


def parts(dsn: str) -> dict[str, Any]:
    """Connection arguments, for libraries that do not take libpq's format."""
    return {key: value for key, value in conninfo.conninfo_to_dict(dsn).items() if value is not None}


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
            try:
                yield conn, conn.commit, conn.rollback
            finally:
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
            try:
                yield conn, conn.commit, conn.rollback
            finally:
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
