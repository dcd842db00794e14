"""The connections of handlers: a pool of those that block, one of those that are awaited."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from psycopg.rows import tuple_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolTimeout

from ..errors import WrongState, translated
from .connect import BE_QUIET, KEEPALIVES, WHICH_SERVER, conninfo, cut
from .connection import OWN_ADAPTERS, AsyncConnection, Connection, refuse_aborted
from .either import at_once, entered, settled
from .lent import CLEAN, AnyConnection, Lent, LentAsync, begun, refuse_copy

# Each handler may hold a connection in job.transaction(), and one may do several steps beside each other.
MORE = 2
ONE_MORE = 1  # stays free for job.once(), job.progress() and their like inside of those
MAX_IDLE = 10.0  # seconds after which one idle connection is closed, and then the next
PATIENCE = 30.0  # seconds to wait for a connection


class Pool:
    """The connections of one kind.

    `rehearsal`: roll back all that the handlers do on them, and notify no worker. Then any job can
    be run, in whichever state it is.
    """

    def __init__(self, dsn: str, schema: str, handlers: int, *, awaits: bool, rehearsal: bool) -> None:
        self.schema = schema
        self.pooled = False  # a transaction pooler is in between
        self.rehearsal = rehearsal
        self.awaits = awaits
        self._dsn, self._most = dsn, handlers + MORE
        self._process = os.getpid()
        self._lock = threading.Lock()  # guards the pool, and then the last
        self._pool: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None  # of the pool that is awaited
        # For what is lent to handlers.
        self._turns: Any = (asyncio if awaits else threading).Semaphore(self._most)
        self._opened = WeakKeyDictionary[AnyConnection, str]()  # each with the server that it leads to

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[Any]:
        """A connection for our own statements: each is committed at once."""
        async with entered((await self._open()).connection()) as conn:
            rolled_back = conn.transaction(force_rollback=True) if self.rehearsal else nullcontext()
            async with entered(rolled_back):
                yield conn

    @asynccontextmanager
    async def lend(self, caller: str, finish: Callable[[Any], Awaitable[Any]]) -> AsyncGenerator[Any]:
        """A connection for a handler's block, in a transaction of which `finish` is the last statement."""
        refuse_copy(self._process, "a job")
        try:
            async with asyncio.timeout(PATIENCE) if self.awaits else nullcontext():
                if not await settled(self._turns.acquire(**({} if self.awaits else {"timeout": PATIENCE}))):
                    raise TimeoutError
        except TimeoutError:
            raise PoolTimeout(
                f"{caller}: no connection came free within {PATIENCE:g} seconds: too many blocks are open at"
                " once"
            ) from None
        try:
            async with entered((await self._open()).connection()) as conn, begun(conn) as began:
                lent = (LentAsync if self.awaits else Lent)(conn, caller, began, self.pooled)
                try:
                    yield lent
                finally:
                    lent.end()
                lent.refuse_last(caller)
                refuse_aborted(conn)
                await finish(conn)
        finally:
            self._turns.release()

    async def row(self, statement: str, *parameters: Any) -> Any:
        kind: Any = psycopg.AsyncCursor if self.awaits else psycopg.Cursor
        async with self.connection() as conn:
            with translated():
                async with entered(kind(conn, row_factory=tuple_row)) as cursor:
                    await settled(cursor.execute(statement, parameters))
                    return await settled(cursor.fetchone())

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds) if self.awaits else time.sleep(seconds)

    async def _open(self) -> Any:
        refuse_copy(self._process, "a job")
        loop = asyncio.get_running_loop() if self.awaits else None
        with self._lock:
            if is_new := self._pool is None:
                self._loop, self._pool = loop, self._made()
        if is_new and self.awaits:
            await self._pool.open()
        if self._loop is not loop:
            raise WrongState(
                "an async job belongs to the event loop of its handler: from another thread or loop, use"
                " asyncio.run_coroutine_threadsafe(job.…, the handler's loop).result()"
            )
        return self._pool

    def _made(self) -> Any:
        options: dict[str, Any] = {
            "conninfo": conninfo(self._dsn, "pyworker handler"),
            # Prepared statements would not outlive CLEAN.
            "kwargs": {"autocommit": True, "prepare_threshold": None, "context": OWN_ADAPTERS},
            "min_size": 0,
            "max_size": self._most + ONE_MORE,
            "max_idle": MAX_IDLE,
            "timeout": PATIENCE,
            "open": not self.awaits,
        }
        if self.awaits:
            return AsyncConnectionPool[AsyncConnection[Any]](
                connection_class=AsyncConnection, check=AsyncConnectionPool.check_connection,
                configure=self._configure, reset=self._clean, **options,
            )  # fmt: skip
        return ConnectionPool[Connection[Any]](
            connection_class=Connection, check=ConnectionPool.check_connection,
            configure=lambda conn: at_once(self._configure(conn)),
            reset=lambda conn: at_once(self._clean(conn)), **options,
        )  # fmt: skip

    def _settings(self) -> str:
        """The statements that each new connection begins with.

        None behind a transaction pooler: what they set would reach other clients.
        """
        if self.pooled:
            return ""
        return f"{KEEPALIVES}; {BE_QUIET}" if self.rehearsal else KEEPALIVES

    def leave_all_but(self, server: str) -> None:
        """Cut the connections to other servers of the DSN: one of them has lost its role, and may hang.

        Its keepalives may be answered all the same."""
        with self._lock:
            opened = list(self._opened.items())
        for conn, its_server in opened:
            if not conn.closed and its_server != server:
                cut(conn)

    async def _configure(self, conn: Any) -> None:
        with self._lock:
            self._opened[conn] = ""  # it may hang before it says where it leads to
        cursor = await settled(conn.execute(WHICH_SERVER))
        server = (await settled(cursor.fetchall()))[0][0]
        with self._lock:
            self._opened[conn] = server
        if settings := self._settings():
            await settled(conn.execute(settings))

    async def _clean(self, conn: Any) -> None:
        """Before the pool gives the connection to the next. If this fails, it closes the connection."""
        if conn.was_lent:
            await settled(conn.execute(f"{CLEAN}; {self._settings()}"))
        conn.was_lent = False

    async def close(self) -> None:
        """Close the connections; of async handlers, on the loop on which they ran."""
        if self._pool is not None:
            await settled(self._pool.close())
