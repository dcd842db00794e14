"""What a handler's job does in the database: its transactions, job.once(), its start and its end."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, cast
from weakref import WeakKeyDictionary

import psycopg
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from .._db.connect import BE_QUIET, WHICH_SERVER, conninfo, cut, keepalives
from .._db.connection import AsyncConnection, Connection, refuse_aborted
from .._db.database import Database
from .._db.queue import dependency_results_statement
from .._db.worker import (
    finish_job_statement,
    once_statement,
    save_step_statement,
    set_progress_statement,
    start_job_statement,
    start_jobs_statement,
    steps_statement,
    wait_for_signal_statement,
)
from ..errors import translated
from .config import RunConfig
from .lines import Lines

# Each handler may hold one connection in job.transaction(). One more stays free for job.once()
# inside.
ONE_MORE = 1


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
        self._sync: ConnectionPool[psycopg.Connection[Any]] | None = None
        self._async: AsyncConnectionPool[psycopg.AsyncConnection[Any]] | None = None
        self._lock = threading.Lock()
        self._opening = threading.Lock()  # guards the next
        # Each with the server that it leads to.
        self._opened = WeakKeyDictionary[psycopg.Connection[Any] | psycopg.AsyncConnection[Any], str]()
        self.lines = Lines()

    @contextmanager
    def connection(self) -> Generator[psycopg.Connection[Any]]:
        """A connection whose transaction is committed at the end of the block."""
        with self.sync_pool().connection() as conn:
            yield conn
            if self.rehearsal:
                conn.rollback()

    @asynccontextmanager
    async def async_connection(self) -> AsyncGenerator[psycopg.AsyncConnection[Any]]:
        pool = await self._async_pool()
        async with pool.connection() as conn:
            yield conn
            if self.rehearsal:
                await conn.rollback()

    def sync_pool(self) -> ConnectionPool[psycopg.Connection[Any]]:
        with self._lock:
            if self._sync is None:
                self._sync = ConnectionPool[psycopg.Connection[Any]](
                    open=True,
                    connection_class=Connection,
                    configure=self._configure,
                    check=ConnectionPool.check_connection,
                    **self._options(),
                )
        return self._sync

    async def _async_pool(self) -> AsyncConnectionPool[psycopg.AsyncConnection[Any]]:
        if self._async is None:
            self._async = AsyncConnectionPool[psycopg.AsyncConnection[Any]](
                open=False,
                connection_class=AsyncConnection,
                configure=self._configure_async,
                check=AsyncConnectionPool.check_connection,
                **self._options(),
            )
            await self._async.open()
        return self._async

    def _options(self) -> dict[str, Any]:
        return {
            "conninfo": conninfo(self._config.dsn, "pyworker handler"),
            "kwargs": {"prepare_threshold": None} if self.pooled else {},
            "min_size": 0,
            "max_size": self._config.concurrency + ONE_MORE,
        }

    def _settings(self) -> list[Any]:
        """The statements that each new connection begins with.

        None behind a transaction pooler: what they set would reach other clients.
        """
        if self.pooled:
            return []
        return [keepalives(), (BE_QUIET,)] if self.rehearsal else [keepalives()]

    def leave_all_but(self, server: str) -> None:
        """Cut the connections to other servers of the DSN: one of them has lost its role, and may hang.

        Its keepalives may be answered all the same."""
        with self._opening:
            opened = list(self._opened.items())
        for conn, its_server in opened:
            if not conn.closed and its_server != server:
                cut(conn)

    def _leads_to(
        self, conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], server: str = ""
    ) -> None:
        with self._opening:
            self._opened[conn] = server

    def _configure(self, conn: psycopg.Connection[Any]) -> None:
        self._leads_to(conn)  # it may hang before it says where
        self._leads_to(conn, conn.execute(WHICH_SERVER).fetchall()[0][0])
        for statement in self._settings():
            conn.execute(*statement)
        conn.commit()

    async def _configure_async(self, conn: psycopg.AsyncConnection[Any]) -> None:
        self._leads_to(conn)
        self._leads_to(conn, (await (await conn.execute(WHICH_SERVER)).fetchall())[0][0])
        for statement in self._settings():
            await conn.execute(*statement)
        await conn.commit()

    def close(self) -> None:
        if self._sync is not None:
            self._sync.close()

    async def close_async(self) -> None:
        """Close the connections of async handlers, on the loop on which they ran."""
        if self._async is not None:
            await self._async.close()

    def start_job(self, job_id: int, run: int) -> bool:
        if self.rehearsal:
            return True
        with self.connection() as conn:
            return Database(conn, self.schema).start_job(job_id, run)

    async def start_job_async(self, job_id: int, run: int) -> bool:
        if self.rehearsal:
            return True
        async with self.async_connection() as conn:
            row = await _row(conn, start_job_statement(self.schema), job_id, run)
        return row[0]

    def start_jobs(self, job_ids: Sequence[int], runs: Sequence[int]) -> list[int]:
        """Start the jobs in one transaction. Returns the ids of those that may run."""
        if self.rehearsal:
            return [*job_ids]
        with self.connection() as conn:
            return Database(conn, self.schema).start_jobs(job_ids, runs)

    async def start_jobs_async(self, job_ids: Sequence[int], runs: Sequence[int]) -> list[int]:
        if self.rehearsal:
            return [*job_ids]
        async with self.async_connection() as conn:
            row = await _row(conn, start_jobs_statement(self.schema), [*job_ids], [*runs])
        return row[0]

    def once(self, key: str) -> bool:
        with self.connection() as conn:
            return Database(conn, self.schema).once(key)

    async def once_async(self, key: str) -> bool:
        async with self.async_connection() as conn:
            row = await _row(conn, once_statement(self.schema), key)
        return row[0]

    def set_progress(self, job_id: int, run: int, progress: float, message: str | None) -> None:
        if not self.rehearsal:
            with self.connection() as conn:
                Database(conn, self.schema).set_progress(job_id, run, progress, message)

    async def set_progress_async(self, job_id: int, run: int, progress: float, message: str | None) -> None:
        if not self.rehearsal:
            async with self.async_connection() as conn:
                await _row(conn, set_progress_statement(self.schema), job_id, run, progress, message)

    def steps(self, job_id: int) -> str:
        """The saved results by name, as JSON text."""
        with self.connection() as conn:
            return Database(conn, self.schema).steps(job_id)

    async def steps_async(self, job_id: int) -> str:
        async with self.async_connection() as conn:
            row = await _row(conn, steps_statement(self.schema), job_id)
        return row[0]

    def inputs(self, job_id: int) -> str:
        """How the jobs have ended that this one has waited for, as JSON text."""
        with self.connection() as conn:
            return Database(conn, self.schema).inputs(job_id)

    async def inputs_async(self, job_id: int) -> str:
        async with self.async_connection() as conn:
            row = await _row(conn, dependency_results_statement(self.schema), job_id)
        return row[0]

    def save_step(self, job_id: int, run: int, name: str, result: str) -> None:
        if not self.rehearsal:
            with self.connection() as conn:
                self.save_step_in(conn, job_id, run, name, result)

    async def save_step_async(self, job_id: int, run: int, name: str, result: str) -> None:
        if not self.rehearsal:
            async with self.async_connection() as conn:
                await self.save_step_in_async(conn, job_id, run, name, result)

    def save_step_in(
        self, conn: psycopg.Connection[Any], job_id: int, run: int, name: str, result: str
    ) -> None:
        """Save a step in the connection's transaction."""
        refuse_aborted(conn)
        if self.rehearsal:
            raise psycopg.Rollback
        Database(conn, self.schema).save_step(job_id, run, name, result)

    async def save_step_in_async(
        self, conn: psycopg.AsyncConnection[Any], job_id: int, run: int, name: str, result: str
    ) -> None:
        refuse_aborted(conn)
        if self.rehearsal:
            raise psycopg.Rollback
        await _row(conn, save_step_statement(self.schema), job_id, run, name, result)

    def wait_for_signal(self, job_id: int, run: int, name: str, timeout: float | None) -> str | None:
        """The answer as JSON text; None if the job waits from now on."""
        if self.rehearsal:
            return _saved_answer(self.steps(job_id), name)
        with self.connection() as conn:
            return Database(conn, self.schema).wait_for_signal(job_id, run, name, timeout)

    async def wait_for_signal_async(
        self, job_id: int, run: int, name: str, timeout: float | None
    ) -> str | None:
        if self.rehearsal:
            return _saved_answer(await self.steps_async(job_id), name)
        async with self.async_connection() as conn:
            row = await _row(conn, wait_for_signal_statement(self.schema), job_id, run, name, timeout)
        return row[0]

    def finish_job(self, conn: psycopg.Connection[Any], job_id: int, run: int) -> str:
        """Complete the job in the connection's transaction. Returns its id, for `committed`."""
        refuse_aborted(conn)
        if self.rehearsal:
            raise psycopg.Rollback
        return Database(conn, self.schema).finish_job(job_id, run)

    async def finish_job_async(self, conn: psycopg.AsyncConnection[Any], job_id: int, run: int) -> str:
        refuse_aborted(conn)
        if self.rehearsal:
            raise psycopg.Rollback
        row = await _row(conn, finish_job_statement(self.schema), job_id, run)
        return row[1]

    def committed(self, job_id: int, run: int, transaction: str) -> bool:
        """True if a transaction whose COMMIT got no reply has committed."""
        while True:
            with self.connection() as conn:
                answer = Database(conn, self.schema).was_finished(job_id, run, transaction)
            if answer is not None:
                return answer
            time.sleep(0.1)


def _saved_answer(steps: str, name: str) -> str | None:
    saved = json.loads(steps)
    return json.dumps(saved[name]) if name in saved else None


async def _row(conn: psycopg.AsyncConnection[Any], statement: str, *parameters: Any) -> Any:
    with translated():
        cursor = await conn.execute(cast("Any", statement), parameters)
        return await cursor.fetchone()
