"""Run a statement on any connection that the caller has, in the caller's transaction.

It takes psycopg connections and cursors, asyncpg connections, psycopg2's, SQLAlchemy connections
and sessions over any of them, and Django's `connection`. It tells them apart by their methods, so
that it imports only psycopg. `query` runs one statement in the library's own way, `driver_of` lends the
driver's connection below.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import Any, TypeVar, cast

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from ..errors import InvalidArgument, translated
from .either import at_once, settled
from .queue import Statement, naming_times, numbered
from .rights import naming_role

T = TypeVar("T")
Rows = Sequence[Sequence[Any]]


def _is_asyncpg(conn: Any) -> bool:
    return hasattr(conn, "is_in_transaction") and hasattr(conn, "fetchrow")


def _is_sqlalchemy(conn: Any) -> bool:
    return hasattr(conn, "exec_driver_sql")


def _is_session(conn: Any) -> bool:
    return hasattr(conn, "get_bind") and hasattr(conn, "connection")  # of SQLAlchemy, of any kind


def _is_cursor(conn: Any) -> bool:
    return hasattr(conn, "execute") and hasattr(conn, "fetchone")  # psycopg2's or Django's


def is_async(conn: Any) -> bool:
    return (
        isinstance(conn, psycopg.AsyncConnection | psycopg.AsyncCursor)
        or _is_asyncpg(conn)
        or (_is_sqlalchemy(conn) and hasattr(conn, "sync_connection"))
        or (_is_session(conn) and inspect.iscoroutinefunction(conn.connection))
    )


def answer_of(verb: str, conn: Any, call: Coroutine[Any, Any, T]) -> T | Coroutine[Any, Any, T]:
    """The call's answer; with an asynchronous connection, the coroutine."""
    if not is_async(conn):
        return at_once(call)
    named = cast("Any", call)  # Python's warning of a forgotten await shows the name
    named.__name__, named.__qualname__ = verb, f"pyworker.{verb}"
    return call


def query(verb: str, schema: str, conn: Any, statement: Statement, answer: Callable[[Rows], Any]) -> Any:
    """Return `answer(rows)`; on an asynchronous connection, a coroutine that returns it.

    Errors of the database become ours, with the role that is missing, or the argument that is wrong.
    """

    async def asked() -> Any:
        with naming_role(verb, schema), translated(), naming_times(verb, statement[1]):
            return answer(await _rows(verb, conn, statement))

    return answer_of(verb, conn, asked())


async def _rows(verb: str, conn: Any, statement: Statement) -> Rows:
    text, parameters = statement
    if isinstance(conn, psycopg.Cursor | psycopg.AsyncCursor):
        conn = cast("Any", conn).connection  # keep rows that the caller has not read yet
    if isinstance(conn, psycopg.AsyncConnection):
        async with psycopg.AsyncCursor[Any](cast("Any", conn), row_factory=tuple_row) as cursor:
            await cursor.execute(cast("Any", text), parameters or None)
            return await cursor.fetchall() if cursor.description else []
    if isinstance(conn, psycopg.Connection):
        with psycopg.Cursor[Any](cast("Any", conn), row_factory=tuple_row) as cursor:
            return _of_cursor(cursor, text, parameters)
    if _is_asyncpg(conn):
        text, values = numbered(text, parameters)
        return [tuple(record.values()) for record in await conn.fetch(text, *values)]
    if _is_sqlalchemy(conn):
        return (await settled(conn.exec_driver_sql(*_for_sqlalchemy(verb, conn, statement)))).all()
    if _is_session(conn):
        return await _rows(verb, await settled(conn.connection()), statement)
    if _is_cursor(conn):
        return _of_cursor(conn, text, parameters)
    if hasattr(conn, "cursor") and getattr(conn, "vendor", "postgresql") == "postgresql":
        with conn.cursor() as cursor:  # of psycopg2 or Django
            return _of_cursor(cursor, text, parameters)
    raise not_a_connection(verb, conn)


@asynccontextmanager
async def driver_of(verb: str, conn: Any) -> AsyncGenerator[Any]:
    """The driver's connection: psycopg's, asyncpg's or psycopg2's."""
    if isinstance(conn, psycopg.Cursor | psycopg.AsyncCursor):
        conn = cast("Any", conn).connection
    if isinstance(conn, psycopg.Connection | psycopg.AsyncConnection) or _is_asyncpg(conn):
        yield conn
    elif _is_sqlalchemy(conn):
        _for_sqlalchemy(verb, conn, ("", {}))
        raw = await conn.get_raw_connection() if hasattr(conn, "sync_connection") else conn.connection
        yield raw.driver_connection
    elif _is_session(conn):
        session = conn.registry() if hasattr(conn, "registry") else conn  # of a scoped one
        was_begun = session.in_transaction()
        try:
            async with driver_of(verb, await settled(session.connection())) as driver:
                yield driver
        finally:
            if not was_begun:  # it had no connection: give back the one that it got
                try:
                    await settled(session.commit())  # a rollback would expire the session's objects
                except Exception:  # the connection is lost
                    await settled(session.rollback())
    else:
        if hasattr(getattr(conn, "db", None), "ensure_connection"):  # a cursor of Django
            conn = conn.db
        if hasattr(conn, "ensure_connection") and conn.vendor == "postgresql":
            conn.ensure_connection()
            conn = conn.connection
        elif _is_cursor(conn) and hasattr(conn, "connection"):
            conn = conn.connection
        if not (
            isinstance(conn, psycopg.Connection)
            or (hasattr(conn, "cursor") and hasattr(conn, "get_transaction_status"))
        ):
            raise not_a_connection(verb, conn)
        yield conn


class NotAConnection(InvalidArgument, TypeError):
    """What was given as conn is no connection of a library that we know."""


def not_a_connection(verb: str, conn: object) -> NotAConnection:
    return NotAConnection(
        f"{verb}: conn must be a connection, cursor or session of psycopg, asyncpg, psycopg2, SQLAlchemy"
        f" or Django, got {type(conn).__name__}{_advice(conn)}"
    )


def _advice(conn: object) -> str:
    """What to pass in place of something near it."""
    if isinstance(conn, str):
        return f" {conn!r}: the connection comes first"
    if hasattr(conn, "acquire") or hasattr(conn, "getconn"):
        return ": take a connection from the pool, and call it in its transaction"
    if hasattr(conn, "sync_engine"):
        return ": pass a connection, as of `async with engine.begin() as conn`, or a session"
    if hasattr(conn, "dialect") and hasattr(conn, "connect"):
        return ": pass a connection, as of `with engine.begin() as conn`, or a session"
    if hasattr(conn, "class_") and hasattr(conn, "kw"):
        return ": pass a session that it has made"
    if _is_session(getattr(conn, "session", None)):
        return ": pass its session"
    if hasattr(conn, "vendor"):
        return f" to {getattr(conn, 'vendor', '')}: its database must be PostgreSQL"
    if hasattr(conn, "create_connection") and hasattr(conn, "databases"):
        return ": pass django.db.connection, or one of `connections` by its alias"
    return ""


def status_of(conn: Any) -> TransactionStatus:
    """The state of a driver's connection; UNKNOWN if it is closed."""
    if _is_asyncpg(conn):
        if conn.is_closed():
            return TransactionStatus.UNKNOWN
        return TransactionStatus.INTRANS if conn.is_in_transaction() else TransactionStatus.IDLE
    return TransactionStatus.UNKNOWN if conn.closed else TransactionStatus(conn.info.transaction_status)


async def run(conn: Any, statement: Statement) -> Rows:
    """Run a statement on a driver's connection, outside a transaction in one of its own."""
    idle = status_of(conn) == TransactionStatus.IDLE
    with translated():
        if isinstance(conn, psycopg.AsyncConnection):
            async with cast("Any", conn).transaction() if idle else nullcontext():
                return await _rows("", conn, statement)
        if isinstance(conn, psycopg.Connection):
            with cast("Any", conn).transaction() if idle else nullcontext():
                return await _rows("", conn, statement)
        try:
            return await _rows("", conn, statement)
        finally:
            if idle and not (_is_asyncpg(conn) or conn.autocommit or conn.closed):
                conn.rollback()  # psycopg2 only looks


def _of_cursor(cursor: Any, text: str, parameters: Mapping[str, Any]) -> Rows:
    cursor.execute(text, parameters or None)
    rows: list[Any] = cursor.fetchall() if cursor.description else []
    # psycopg2's RealDictCursor returns mappings.
    return [
        tuple(cast("Mapping[str, Any]", row).values()) if isinstance(row, Mapping) else row for row in rows
    ]


def _for_sqlalchemy(verb: str, conn: Any, statement: Statement) -> tuple[str, Any]:
    """The statement in the parameter style of SQLAlchemy's driver."""
    dialect = getattr(conn, "dialect", None)
    style = getattr(dialect, "paramstyle", "pyformat")
    if style == "pyformat":
        return statement
    if style == "numeric_dollar" and getattr(dialect, "driver", "") == "asyncpg":
        text, parameters = numbered(*statement)
        return text, tuple(parameters)
    raise TypeError(
        f"{verb}: SQLAlchemy's driver {getattr(dialect, 'driver', '?')} is not supported;"
        f" use psycopg, asyncpg or psycopg2, or execute SELECT pyworker.{verb}(…) yourself"
    )
