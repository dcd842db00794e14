"""What a handler's job does in the database: its transactions, job.once(), its start and its end."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, cast
from weakref import WeakKeyDictionary

import psycopg
from psycopg.rows import tuple_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolTimeout

from .._db.connect import BE_QUIET, KEEPALIVES, WHICH_SERVER, conninfo, cut
from .._db.connection import OWN_ADAPTERS, AsyncConnection, Connection, refuse_aborted
from .._db.database import Database
from .._db.lent import (
    CLEAN,
    AnyConnection,
    Lent,
    LentAsync,
    begun,
    begun_async,
    last,
    last_async,
    refuse_copy,
)
from .._db.queue import dependency_results_statement
from .._db.worker import (
    finish_job_statement,
    once_statement,
    save_step_statement,
    saved_answer_statement,
    set_progress_statement,
    start_job_statement,
    start_jobs_statement,
    steps_statement,
    wait_for_signal_statement,
)
from .._texts import printable
from ..errors import WrongState, translated
from .config import RunConfig
from .lines import Lines

# Each handler may hold a connection in job.transaction(), and one may do several steps beside each other.
MORE = 2
ONE_MORE = 1  # stays free for job.once(), job.progress() and their like inside of those
MAX_IDLE = 10.0  # seconds after which one idle connection is closed, and then the next
PATIENCE = 30.0  # seconds to wait for a connection


class Connections:
    """Connection pools for handlers, opened on first use.

    `rehearsal`: roll back all that the handlers do on them, and notify no worker. Then any job can
    be run, in whichever state it is.
    """

    def __init__(self, config: RunConfig, rehearsal: bool = False) -> None:
        self.schema = config.schema
        self.pooled = False
        self.rehearsal = rehearsal
        self._config = config
        self._sync: ConnectionPool[Connection[Any]] | None = None
        self._async: AsyncConnectionPool[AsyncConnection[Any]] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # of the async pool
        self._lock = threading.Lock()
        self._process = os.getpid()
        # For what is lent to handlers.
        self._turns = threading.Semaphore(config.concurrency + MORE)
        self._async_turns = asyncio.Semaphore(config.concurrency + MORE)
        self._opening = threading.Lock()  # guards the next
        # Each with the server that it leads to.
        self._opened = WeakKeyDictionary[AnyConnection, str]()
        self.lines = Lines()

    @contextmanager
    def connection(self) -> Generator[Connection[Any]]:
        """A connection for our own statements: each is committed at once."""
        with self._sync_pool().connection() as conn:
            if not self.rehearsal:
                yield conn
                return
            with conn.transaction(force_rollback=True):
                yield conn

    @asynccontextmanager
    async def async_connection(self) -> AsyncGenerator[AsyncConnection[Any]]:
        pool = await self._async_pool()
        async with pool.connection() as conn:
            if not self.rehearsal:
                yield conn
                return
            async with conn.transaction(force_rollback=True):
                yield conn

    @contextmanager
    def lend(self, caller: str, finish: Callable[[Connection[Any]], Any]) -> Generator[Lent]:
        """A connection for a handler's block, in a transaction of which `finish` is the last statement."""
        refuse_copy(self._process, "a job")
        if not self._turns.acquire(timeout=PATIENCE):
            raise PoolTimeout(_too_many(caller))
        try:
            with self._sync_pool().connection() as conn, begun(conn) as began:
                lent = Lent(conn, caller, began, self.pooled)
                try:
                    yield lent
                finally:
                    lent.end()
                lent.refuse_last(caller)
                refuse_aborted(conn)
                finish(conn)
        finally:
            self._turns.release()

    @asynccontextmanager
    async def lend_async(
        self, caller: str, finish: Callable[[AsyncConnection[Any]], Awaitable[Any]]
    ) -> AsyncGenerator[LentAsync]:
        try:
            async with asyncio.timeout(PATIENCE):
                await self._async_turns.acquire()
        except TimeoutError:
            raise PoolTimeout(_too_many(caller)) from None
        try:
            pool = await self._async_pool()
            async with pool.connection() as conn, begun_async(conn) as began:
                lent = LentAsync(conn, caller, began, self.pooled)
                try:
                    yield lent
                finally:
                    lent.end()
                lent.refuse_last(caller)
                refuse_aborted(conn)
                await finish(conn)
        finally:
            self._async_turns.release()

    def _sync_pool(self) -> ConnectionPool[Connection[Any]]:
        refuse_copy(self._process, "a job")
        with self._lock:
            if self._sync is None:
                self._sync = ConnectionPool[Connection[Any]](
                    open=True,
                    connection_class=Connection,
                    configure=self._configure,
                    check=ConnectionPool.check_connection,
                    reset=self._clean,
                    **self._options(),
                )
        return self._sync

    async def _async_pool(self) -> AsyncConnectionPool[AsyncConnection[Any]]:
        refuse_copy(self._process, "a job")
        loop = asyncio.get_running_loop()
        if self._async is None:
            self._loop = loop
            self._async = AsyncConnectionPool[AsyncConnection[Any]](
                open=False,
                connection_class=AsyncConnection,
                configure=self._configure_async,
                check=AsyncConnectionPool.check_connection,
                reset=self._clean_async,
                **self._options(),
            )
            await self._async.open()
        if self._loop is not loop:
            raise WrongState(
                "an async job belongs to the event loop of its handler: from another thread or loop, use"
                " asyncio.run_coroutine_threadsafe(job.…, the handler's loop).result()"
            )
        return self._async

    def _options(self) -> dict[str, Any]:
        return {
            "conninfo": conninfo(self._config.dsn, "pyworker handler"),
            # Prepared statements would not outlive CLEAN.
            "kwargs": {"autocommit": True, "prepare_threshold": None, "context": OWN_ADAPTERS},
            "min_size": 0,
            "max_size": self._config.concurrency + MORE + ONE_MORE,
            "max_idle": MAX_IDLE,
            "timeout": PATIENCE,
        }

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
        with self._opening:
            opened = list(self._opened.items())
        for conn, its_server in opened:
            if not conn.closed and its_server != server:
                cut(conn)

    def _leads_to(self, conn: AnyConnection, server: str = "") -> None:
        with self._opening:
            self._opened[conn] = server

    def _configure(self, conn: Connection[Any]) -> None:
        self._leads_to(conn)  # it may hang before it says where
        self._leads_to(conn, conn.execute(WHICH_SERVER).fetchall()[0][0])
        if settings := self._settings():
            conn.execute(cast("Any", settings))

    async def _configure_async(self, conn: AsyncConnection[Any]) -> None:
        self._leads_to(conn)
        self._leads_to(conn, (await (await conn.execute(WHICH_SERVER)).fetchall())[0][0])
        if settings := self._settings():
            await conn.execute(cast("Any", settings))

    def _clean(self, conn: Connection[Any]) -> None:
        """Before the pool gives the connection to the next. If this fails, it closes the connection."""
        if conn.was_lent:
            conn.execute(cast("Any", f"{CLEAN}; {self._settings()}"))
        conn.was_lent = False

    async def _clean_async(self, conn: AsyncConnection[Any]) -> None:
        if conn.was_lent:
            await conn.execute(cast("Any", f"{CLEAN}; {self._settings()}"))
        conn.was_lent = False

    def close(self) -> None:
        if self._sync is not None:
            self._sync.close()

    async def close_async(self) -> None:
        """Close the connections of async handlers, on the loop on which they ran."""
        if self._async is not None:
            await self._async.close()

    def _row(self, statement: str, *parameters: Any) -> Any:
        with self.connection() as conn, translated(), psycopg.Cursor(conn, row_factory=tuple_row) as cursor:
            return cursor.execute(cast("Any", statement), parameters).fetchone()

    async def _row_async(self, statement: str, *parameters: Any) -> Any:
        async with self.async_connection() as conn:
            with translated():
                async with psycopg.AsyncCursor(conn, row_factory=tuple_row) as cursor:
                    await cursor.execute(cast("Any", statement), parameters)
                    return await cursor.fetchone()

    def start_job(self, job_id: int, run: int) -> bool:
        return self.rehearsal or self._row(start_job_statement(self.schema), job_id, run)[0]

    async def start_job_async(self, job_id: int, run: int) -> bool:
        return self.rehearsal or (await self._row_async(start_job_statement(self.schema), job_id, run))[0]

    def start_jobs(self, job_ids: Sequence[int], runs: Sequence[int]) -> list[int]:
        """Start the jobs in one transaction. Returns the ids of those that may run."""
        if self.rehearsal:
            return [*job_ids]
        return self._row(start_jobs_statement(self.schema), [*job_ids], [*runs])[0]

    async def start_jobs_async(self, job_ids: Sequence[int], runs: Sequence[int]) -> list[int]:
        if self.rehearsal:
            return [*job_ids]
        return (await self._row_async(start_jobs_statement(self.schema), [*job_ids], [*runs]))[0]

    def once(self, key: str) -> bool:
        return self._row(once_statement(self.schema), key)[0]

    async def once_async(self, key: str) -> bool:
        return (await self._row_async(once_statement(self.schema), key))[0]

    def set_progress(self, job_id: int, run: int, progress: float, message: str | None) -> None:
        if not self.rehearsal:
            said = message and printable(message)
            self._row(set_progress_statement(self.schema), job_id, run, progress, said)

    async def set_progress_async(self, job_id: int, run: int, progress: float, message: str | None) -> None:
        if not self.rehearsal:
            said = message and printable(message)
            await self._row_async(set_progress_statement(self.schema), job_id, run, progress, said)

    def steps(self, job_id: int) -> str:
        """The saved results by name, as JSON text."""
        return self._row(steps_statement(self.schema), job_id)[0]

    async def steps_async(self, job_id: int) -> str:
        return (await self._row_async(steps_statement(self.schema), job_id))[0]

    def inputs(self, job_id: int) -> str:
        """How the jobs have ended that this one has waited for, as JSON text."""
        return self._row(dependency_results_statement(self.schema), job_id)[0]

    async def inputs_async(self, job_id: int) -> str:
        return (await self._row_async(dependency_results_statement(self.schema), job_id))[0]

    def save_step(self, job_id: int, run: int, name: str, result: str) -> None:
        if not self.rehearsal:
            self._row(save_step_statement(self.schema), job_id, run, name, result)

    async def save_step_async(self, job_id: int, run: int, name: str, result: str) -> None:
        if not self.rehearsal:
            await self._row_async(save_step_statement(self.schema), job_id, run, name, result)

    def save_step_in(self, conn: Connection[Any], job_id: int, run: int, name: str, result: str) -> None:
        """Save a step as the last statement of a transaction that was lent."""
        self._last(conn, save_step_statement(self.schema), job_id, run, name, result)

    async def save_step_in_async(
        self, conn: AsyncConnection[Any], job_id: int, run: int, name: str, result: str
    ) -> None:
        await self._last_async(conn, save_step_statement(self.schema), job_id, run, name, result)

    def wait_for_signal(
        self, job_id: int, run: int, name: str, timeout: float | None, nth: int
    ) -> str | None:
        """The answer as JSON text; None if the job waits from now on."""
        if self.rehearsal:
            return self._row(saved_answer_statement(self.schema), job_id, name, nth - 1)[0]
        return self._row(wait_for_signal_statement(self.schema), job_id, run, name, timeout, nth)[0]

    async def wait_for_signal_async(
        self, job_id: int, run: int, name: str, timeout: float | None, nth: int
    ) -> str | None:
        if self.rehearsal:
            return (await self._row_async(saved_answer_statement(self.schema), job_id, name, nth - 1))[0]
        statement = wait_for_signal_statement(self.schema)
        return (await self._row_async(statement, job_id, run, name, timeout, nth))[0]

    def finish_job(self, conn: Connection[Any], job_id: int, run: int) -> str:
        """Complete the job as the last statement of a transaction that was lent.

        Returns the transaction's id, for `committed`."""
        return self._last(conn, finish_job_statement(self.schema), job_id, run)[1]

    async def finish_job_async(self, conn: AsyncConnection[Any], job_id: int, run: int) -> str:
        return (await self._last_async(conn, finish_job_statement(self.schema), job_id, run))[1]

    def _last(self, conn: Connection[Any], statement: str, *parameters: Any) -> tuple[Any, ...]:
        if self.rehearsal:
            last(conn, "select")
            raise psycopg.Rollback
        return last(conn, statement, *parameters)

    async def _last_async(
        self, conn: AsyncConnection[Any], statement: str, *parameters: Any
    ) -> tuple[Any, ...]:
        if self.rehearsal:
            await last_async(conn, "select")
            raise psycopg.Rollback
        return await last_async(conn, statement, *parameters)

    def committed(self, job_id: int, run: int, transaction: str) -> bool:
        """True if a transaction whose COMMIT got no reply has committed."""
        while True:
            with self.connection() as conn:
                answer = Database(conn, self.schema).was_finished(job_id, run, transaction)
            if answer is not None:
                return answer
            time.sleep(0.1)


def _too_many(caller: str) -> str:
    return f"{caller}: no connection came free within {PATIENCE:g} seconds: too many blocks are open at once"
