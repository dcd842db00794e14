"""Run a statement on any connection that the caller has, in the caller's transaction.

It takes psycopg connections and cursors, asyncpg connections, psycopg2's, SQLAlchemy connections
and sessions over any of them, and Django's `connection`. It tells them apart by their methods, so
that it imports only psycopg. On an asynchronous connection the answer is a coroutine. `query` runs one
statement in the library's own way, `on_driver` lends the driver's connection below.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar, cast

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from ..errors import InvalidArgument, translated
from .queue import Statement, naming_times, numbered
from .rights import naming_role

T = TypeVar("T")
Rows = Sequence[Sequence[Any]]


class _CommitsAsync(Protocol):
    """AsyncConnection and AsyncSession of SQLAlchemy."""

    def commit(self) -> Coroutine[Any, Any, None]: ...


class _Asyncpg(Protocol):
    def is_in_transaction(self) -> bool: ...


class _AsyncpgOfPool(Protocol):
    """A connection from asyncpg's pool, as type checkers see it without asyncpg's stubs."""

    _holder: Any


class _Commits(Protocol):
    """Connections and sessions of SQLAlchemy, connections of psycopg2 and Django."""

    def commit(self) -> None: ...


class _Cursor(Protocol):
    def execute(self, query: Any, params: Any = ..., /) -> Any: ...
    def fetchone(self) -> Any: ...
    def __iter__(self) -> Iterator[Any]: ...  # an asynchronous one cannot be iterated like this


class _DjangoProxy(Protocol):
    """django.db.connection."""

    def __getattr__(self, item: str, /) -> Any: ...
    def __contains__(self, key: str, /) -> bool: ...


AsyncConnection: TypeAlias = (
    "psycopg.AsyncConnection[Any] | psycopg.AsyncCursor[Any] | _CommitsAsync | _Asyncpg | _AsyncpgOfPool"
)
SyncConnection: TypeAlias = (
    "psycopg.Connection[Any] | psycopg.Cursor[Any] | _Commits | _Cursor | _DjangoProxy"
)


def _is_asyncpg(conn: Any) -> bool:
    return hasattr(conn, "is_in_transaction") and hasattr(conn, "fetchrow")


def _is_sqlalchemy(conn: Any) -> bool:
    return hasattr(conn, "exec_driver_sql")


def _is_session(conn: Any) -> bool:
    return hasattr(conn, "get_bind") and hasattr(conn, "connection")  # of SQLAlchemy, of any kind


def _is_cursor(conn: Any) -> bool:
    return hasattr(conn, "execute") and hasattr(conn, "fetchone")  # psycopg2's or Django's


class _Call(NamedTuple):
    verb: str
    schema: str
    statement: Statement


def query(
    verb: str, schema: str, conn: Any, statement: Statement, answer: Callable[[Rows], T]
) -> T | Coroutine[Any, Any, T]:
    """Return `answer(rows)`; on an asynchronous connection, a coroutine that returns it.

    Raises RoleMissing where the role of the connection may not call the verb.
    """
    return _query(_Call(verb, schema, statement), conn, answer)


def _query(call: _Call, conn: Any, answer: Callable[[Rows], T]) -> T | Coroutine[Any, Any, T]:
    verb = call.verb
    if isinstance(conn, psycopg.Cursor | psycopg.AsyncCursor):
        conn = cast("Any", conn).connection  # keep rows that the caller has not read yet
    if isinstance(conn, psycopg.AsyncConnection):
        return as_call(verb, _on_psycopg_async(call, cast("Any", conn), answer))
    if isinstance(conn, psycopg.Connection):
        with _explained(call), psycopg.Cursor[Any](cast("Any", conn), row_factory=tuple_row) as cursor:
            return answer(_of_cursor(cursor, *call.statement))
    if _is_asyncpg(conn):
        return as_call(verb, _on_asyncpg(call, conn, answer))
    if _is_sqlalchemy(conn):
        text, parameters = _for_sqlalchemy(call, conn)
        if hasattr(conn, "sync_connection"):
            return as_call(verb, _on_sqlalchemy_async(call, conn, answer))
        with _explained(call):
            return answer(conn.exec_driver_sql(text, parameters).all())
    if _is_session(conn):
        if inspect.iscoroutinefunction(conn.connection):
            return as_call(verb, _on_async_session(call, conn, answer))
        return _query(call, conn.connection(), answer)
    if _is_cursor(conn):
        with _explained(call):
            return answer(_of_cursor(conn, *call.statement))
    if hasattr(conn, "cursor") and getattr(conn, "vendor", "postgresql") == "postgresql":
        with _explained(call), conn.cursor() as cursor:  # of psycopg2 or Django
            return answer(_of_cursor(cursor, *call.statement))
    raise not_a_connection(verb, conn)


def on_driver(
    verb: str, conn: Any, call: Callable[[Any], T], call_async: Callable[[Any], Coroutine[Any, Any, T]]
) -> T | Coroutine[Any, Any, T]:
    """Call one of the two with the driver's connection: psycopg's, asyncpg's or psycopg2's."""
    if isinstance(conn, psycopg.Cursor | psycopg.AsyncCursor):
        conn = cast("Any", conn).connection
    if isinstance(conn, psycopg.AsyncConnection) or _is_asyncpg(conn):
        return as_call(verb, call_async(conn))
    if isinstance(conn, psycopg.Connection):
        return call(conn)
    if _is_sqlalchemy(conn):
        _for_sqlalchemy(_Call(verb, "", ("", {})), conn)
        if hasattr(conn, "sync_connection"):
            return as_call(verb, _below_sqlalchemy_async(conn, call_async))
        return call(conn.connection.driver_connection)
    if _is_session(conn):
        return _below_session(verb, conn, call, call_async)
    if hasattr(getattr(conn, "db", None), "ensure_connection"):  # a cursor of Django
        conn = conn.db
    if hasattr(conn, "ensure_connection") and conn.vendor == "postgresql":
        conn.ensure_connection()
        return on_driver(verb, conn.connection, call, call_async)
    if _is_cursor(conn) and hasattr(conn, "connection"):
        conn = conn.connection
    if hasattr(conn, "cursor") and hasattr(conn, "get_transaction_status"):
        return call(conn)
    raise not_a_connection(verb, conn)


def _below_session(
    verb: str, session: Any, call: Callable[[Any], T], call_async: Callable[[Any], Coroutine[Any, Any, T]]
) -> T | Coroutine[Any, Any, T]:
    """A session without a transaction has no connection: give back the one that it gets."""
    session = session.registry() if hasattr(session, "registry") else session  # a scoped one
    was_begun = session.in_transaction()
    connection = session.connection()
    if inspect.isawaitable(connection):

        async def below() -> T:
            conn = await connection
            try:
                _for_sqlalchemy(_Call(verb, "", ("", {})), conn)
                return await _below_sqlalchemy_async(conn, call_async)
            finally:
                if not was_begun:
                    try:
                        await session.commit()  # a rollback would expire the session's objects
                    except Exception:  # the connection is lost
                        await session.rollback()

        return as_call(verb, below())
    try:
        return on_driver(verb, connection, call, call_async)
    finally:
        if not was_begun:
            try:
                session.commit()
            except Exception:
                session.rollback()


async def _below_sqlalchemy_async(conn: Any, call_async: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
    return await call_async((await conn.get_raw_connection()).driver_connection)


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


def run(conn: Any, statement: Statement) -> Rows:
    """Run a statement on a driver's connection, outside a transaction in one of its own."""
    text, parameters = statement
    idle = status_of(conn) == TransactionStatus.IDLE
    if isinstance(conn, psycopg.Connection):
        conn = cast("psycopg.Connection[Any]", conn)
        with conn.transaction() if idle else nullcontext(), translated():
            with psycopg.Cursor[Any](conn, row_factory=tuple_row) as cursor:
                cursor.execute(cast("Any", text), parameters or None)
                return cursor.fetchall() if cursor.description else []
    try:
        with translated(), conn.cursor() as cursor:
            return _of_cursor(cursor, text, parameters)
    finally:
        if idle and not (conn.autocommit or conn.closed):
            conn.rollback()  # psycopg2 only looks


async def run_async(conn: Any, statement: Statement) -> Rows:
    if not isinstance(conn, psycopg.AsyncConnection):
        text, values = numbered(*statement)
        with translated():
            return [tuple(record.values()) for record in await conn.fetch(text, *values)]
    text, parameters = statement
    conn = cast("psycopg.AsyncConnection[Any]", conn)
    idle = status_of(conn) == TransactionStatus.IDLE
    async with conn.transaction() if idle else nullcontext():
        with translated():
            async with psycopg.AsyncCursor[Any](conn, row_factory=tuple_row) as cursor:
                await cursor.execute(cast("Any", text), parameters or None)
                return await cursor.fetchall() if cursor.description else []


def _of_cursor(cursor: Any, text: str, parameters: Mapping[str, Any]) -> Rows:
    cursor.execute(text, parameters)
    rows = cursor.fetchall()
    # psycopg2's RealDictCursor returns mappings.
    return [
        tuple(cast("Mapping[str, Any]", row).values()) if isinstance(row, Mapping) else row for row in rows
    ]


def as_call(verb: str, waiting: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
    """The coroutine under the name of the call, which Python's warning of a forgotten await shows."""
    named = cast("Any", waiting)
    named.__name__, named.__qualname__ = verb, f"pyworker.{verb}"
    return waiting


@contextmanager
def _explained(call: _Call) -> Iterator[None]:
    """Errors of the database become ours, with the role that is missing, or the argument that is wrong."""
    with naming_role(call.verb, call.schema), translated(), naming_times(call.verb, call.statement[1]):
        yield


async def _on_psycopg_async(call: _Call, conn: Any, answer: Callable[[Rows], T]) -> T:
    with _explained(call):
        async with psycopg.AsyncCursor[Any](conn, row_factory=tuple_row) as cursor:
            await cursor.execute(*cast("Any", call.statement))
            return answer(await cursor.fetchall())


async def _on_asyncpg(call: _Call, conn: Any, answer: Callable[[Rows], T]) -> T:
    text, parameters = numbered(*call.statement)
    with _explained(call):
        return answer([tuple(record.values()) for record in await conn.fetch(text, *parameters)])


async def _on_async_session(call: _Call, session: Any, answer: Callable[[Rows], T]) -> T:
    return await _on_sqlalchemy_async(call, await session.connection(), answer)


async def _on_sqlalchemy_async(call: _Call, conn: Any, answer: Callable[[Rows], T]) -> T:
    text, parameters = _for_sqlalchemy(call, conn)
    with _explained(call):
        return answer((await conn.exec_driver_sql(text, parameters)).all())


def _for_sqlalchemy(call: _Call, conn: Any) -> tuple[str, Any]:
    """The statement in the parameter style of SQLAlchemy's driver."""
    dialect = getattr(conn, "dialect", None)
    style = getattr(dialect, "paramstyle", "pyformat")
    if style == "pyformat":
        return call.statement
    if style == "numeric_dollar" and getattr(dialect, "driver", "") == "asyncpg":
        text, parameters = numbered(*call.statement)
        return text, tuple(parameters)
    raise TypeError(
        f"{call.verb}: SQLAlchemy's driver {getattr(dialect, 'driver', '?')} is not supported;"
        f" use psycopg, asyncpg or psycopg2, or execute SELECT pyworker.{call.verb}(…) yourself"
    )
