"""What is written once, and serves connections that block and connections that are awaited.

Each such call is a coroutine. Over a connection that blocks, nothing in it is ever suspended: `at_once` runs
it to its end, within the call.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from types import TracebackType
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


@asynccontextmanager
async def entered(manager: Any) -> AsyncGenerator[Any]:
    """The block of a context manager of either kind."""
    if hasattr(manager, "__aenter__"):
        async with manager as value:
            yield value
    else:
        with manager as value:
            yield value


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """The method as one that blocks, for an object whose connections do."""

    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return at_once(method(self, *args, **kwargs))

    return call


def blocking_block(
    method: Callable[Concatenate[Any, P], AbstractAsyncContextManager[Any]], _gives: type[T]
) -> Callable[Concatenate[Any, P], AbstractContextManager[T]]:
    """The same of a method for `async with`; the block gets a value of the type `_gives`."""

    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[T]:
        return _Block(method(self, *args, **kwargs))

    given = inspect.signature(method).replace(return_annotation=AbstractContextManager[_gives])
    cast("Any", call).__signature__ = given
    return call


class _Block(AbstractContextManager[Any]):
    def __init__(self, block: AbstractAsyncContextManager[Any]) -> None:
        self._block = block

    def __enter__(self) -> Any:
        return at_once(self._block.__aenter__())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return at_once(self._block.__aexit__(kind, error, trace))
