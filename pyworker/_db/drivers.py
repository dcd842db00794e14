"""Run a statement on any connection that the caller has, in the caller's transaction.

It takes psycopg connections and cursors, asyncpg connections, psycopg2's, SQLAlchemy connections
and sessions over any of them, and Django's `connection`. It tells them apart by their methods, so
that it imports only psycopg. On an asynchronous connection the answer is a coroutine.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar, cast

import psycopg
from psycopg.rows import tuple_row

from ..errors import translated
from .queue import Statement, numbered
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


def query(
    verb: str, schema: str, conn: Any, statement: Statement, answer: Callable[[Rows], T]
) -> T | Coroutine[Any, Any, T]:
    """Return `answer(rows)`; on an asynchronous connection, a coroutine that returns it.

    Raises RoleMissing where the role of the connection may not call the verb.
    """
    with naming_role(verb, schema):
        found = _query(verb, conn, statement, answer)
    return _naming_role(verb, schema, found) if inspect.iscoroutine(found) else found


def _naming_role(verb: str, schema: str, waiting: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
    async def call() -> T:
        with naming_role(verb, schema):
            return await waiting

    call.__qualname__ = verb  # what Python calls it, where the caller forgets to await it
    return call()


def _query(
    verb: str, conn: Any, statement: Statement, answer: Callable[[Rows], T]
) -> T | Coroutine[Any, Any, T]:
    text, parameters = statement
    if isinstance(conn, psycopg.Cursor | psycopg.AsyncCursor):
        conn = cast("Any", conn).connection  # keep rows that the caller has not read yet
    if isinstance(conn, psycopg.AsyncConnection):
        return _on_psycopg_async(cast("Any", conn), text, parameters, answer)
    if isinstance(conn, psycopg.Connection):
        with translated(), psycopg.Cursor[Any](cast("Any", conn), row_factory=tuple_row) as cursor:
            return answer(_of_cursor(cursor, text, parameters))
    if hasattr(conn, "is_in_transaction") and hasattr(conn, "fetchrow"):
        return _on_asyncpg(conn, statement, answer)
    if hasattr(conn, "exec_driver_sql"):  # a SQLAlchemy connection
        call = _for_sqlalchemy(verb, conn, statement)
        if hasattr(conn, "sync_connection"):
            return _on_sqlalchemy_async(conn, call, answer)
        with translated():
            return answer(conn.exec_driver_sql(*call).all())
    if hasattr(conn, "get_bind") and hasattr(conn, "connection"):  # a SQLAlchemy session of any kind
        connection = conn.connection()
        if inspect.isawaitable(connection):
            return _on_awaited(verb, connection, statement, answer)
        return _query(verb, connection, statement, answer)
    if hasattr(conn, "execute") and hasattr(conn, "fetchone"):  # a cursor: psycopg2's or Django's
        with translated():
            return answer(_of_cursor(conn, text, parameters))
    if hasattr(conn, "cursor"):  # a connection of psycopg2 or Django
        with translated(), conn.cursor() as cursor:
            return answer(_of_cursor(cursor, text, parameters))
    lends = hasattr(conn, "acquire") or (hasattr(conn, "getconn") and hasattr(conn, "connection"))
    advice = ": take a connection from the pool, and call it in its transaction" if lends else ""
    raise not_a_connection(verb, conn, advice)


def not_a_connection(verb: str, conn: object, advice: str = "") -> TypeError:
    return TypeError(
        f"{verb}: conn must be a connection, cursor or session of psycopg, asyncpg, psycopg2, SQLAlchemy"
        f" or Django, got {type(conn).__name__}{advice}"
    )


def _of_cursor(cursor: Any, text: str, parameters: Mapping[str, Any]) -> Rows:
    cursor.execute(text, parameters)
    rows = cursor.fetchall()
    # psycopg2's RealDictCursor returns mappings.
    return [
        tuple(cast("Mapping[str, Any]", row).values()) if isinstance(row, Mapping) else row for row in rows
    ]


async def _on_psycopg_async(
    conn: Any, text: str, parameters: Mapping[str, Any], answer: Callable[[Rows], T]
) -> T:
    with translated():
        async with psycopg.AsyncCursor[Any](conn, row_factory=tuple_row) as cursor:
            await cursor.execute(cast("Any", text), parameters)
            return answer(await cursor.fetchall())


async def _on_asyncpg(conn: Any, statement: Statement, answer: Callable[[Rows], T]) -> T:
    text, parameters = numbered(*statement)
    with translated():
        return answer([tuple(record.values()) for record in await conn.fetch(text, *parameters)])


async def _on_awaited(verb: str, connection: Any, statement: Statement, answer: Callable[[Rows], T]) -> T:
    conn = await connection
    return await _on_sqlalchemy_async(conn, _for_sqlalchemy(verb, conn, statement), answer)


async def _on_sqlalchemy_async(conn: Any, call: tuple[str, Any], answer: Callable[[Rows], T]) -> T:
    with translated():
        return answer((await conn.exec_driver_sql(*call)).all())


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
