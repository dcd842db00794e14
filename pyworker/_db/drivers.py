"""Run a statement on any connection that the caller has, in the caller's transaction.

It takes psycopg connections and cursors, asyncpg connections, psycopg2's, SQLAlchemy connections
and sessions over any of them, and Django's `connection`. It tells them apart by their methods, so
that it imports only psycopg. On an asynchronous connection the answer is a coroutine.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar, cast

import psycopg
from psycopg.rows import tuple_row

from ..errors import translated
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
    if hasattr(conn, "is_in_transaction") and hasattr(conn, "fetchrow"):
        return as_call(verb, _on_asyncpg(call, conn, answer))
    if hasattr(conn, "exec_driver_sql"):  # a SQLAlchemy connection
        text, parameters = _for_sqlalchemy(call, conn)
        if hasattr(conn, "sync_connection"):
            return as_call(verb, _on_sqlalchemy_async(call, conn, answer))
        with _explained(call):
            return answer(conn.exec_driver_sql(text, parameters).all())
    if hasattr(conn, "get_bind") and hasattr(conn, "connection"):  # a SQLAlchemy session of any kind
        if inspect.iscoroutinefunction(conn.connection):
            return as_call(verb, _on_async_session(call, conn, answer))
        return _query(call, conn.connection(), answer)
    if hasattr(conn, "execute") and hasattr(conn, "fetchone"):  # a cursor: psycopg2's or Django's
        with _explained(call):
            return answer(_of_cursor(conn, *call.statement))
    if hasattr(conn, "cursor"):  # a connection of psycopg2 or Django
        with _explained(call), conn.cursor() as cursor:
            return answer(_of_cursor(cursor, *call.statement))
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
