"""What is written once, and serves connections that block and connections that are awaited.

Each such call is a coroutine. Over a connection that blocks, nothing in it is ever suspended: `at_once` runs
it to its end, within the call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar, cast, overload

import psycopg

P = ParamSpec("P")
T = TypeVar("T")
AnswerT = TypeVar("AnswerT", covariant=True)


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


class Either(Protocol[P, AnswerT]):
    """A call as type checkers see it: with an asynchronous connection, its answer is to be awaited."""

    @overload
    def __call__(
        self, conn: AsyncConnection, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, AnswerT]: ...
    @overload
    def __call__(self, conn: SyncConnection, *args: P.args, **kwargs: P.kwargs) -> AnswerT: ...


def either(function: Callable[Concatenate[Any, P], T]) -> Either[P, T]:
    """Declares that a function takes connections of both kinds, and does not change it."""
    return cast("Either[P, T]", function)


def at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that awaits nothing but its like."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    except RuntimeError as error:
        if isinstance(error.__cause__, StopIteration):  # of a function of the user's, which Python disguises
            raise error.__cause__ from None
        raise
    coroutine.close()
    raise RuntimeError("a connection that blocks was awaited")


async def settled(value: Any) -> Any:
    """The value, or what comes of it if it is to be awaited."""
    return await value if inspect.isawaitable(value) else value
