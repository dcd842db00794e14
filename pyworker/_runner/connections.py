"""The connections behind job.transaction(), job.add_job() and job.once(), and the record of a
job's start."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any, cast

import psycopg
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from .._db.connect import conninfo, keepalives
from .._db.database import Database
from .._db.worker import finish_job_statement, once_statement, start_job_statement
from ..errors import translated
from ..job import NotStarted
from .config import RunConfig

# Each handler may hold one connection in job.transaction(). One more stays free for job.once()
# inside.
ONE_MORE = 1


class Connections:
    """Connection pools for handlers, opened on first use."""

    def __init__(self, config: RunConfig) -> None:
        self.schema = config.schema
        self.pooled = False
        self._config = config
        self._sync: ConnectionPool[psycopg.Connection[Any]] | None = None
        self._async: AsyncConnectionPool[psycopg.AsyncConnection[Any]] | None = None
        self._lock = threading.Lock()

    def _options(self) -> dict[str, Any]:
        return {"prepare_threshold": None} if self.pooled else {}

    def _configure(self, conn: psycopg.Connection[Any]) -> None:
        if not self.pooled:
            conn.execute(*keepalives())
            conn.commit()

    async def _configure_async(self, conn: psycopg.AsyncConnection[Any]) -> None:
        if not self.pooled:
            await conn.execute(*keepalives())
            await conn.commit()

    def database(self, conn: psycopg.Connection[Any]) -> Database:
        return Database(conn, self.schema)

    def sync_pool(self) -> ConnectionPool[psycopg.Connection[Any]]:
        with self._lock:
            if self._sync is None:
                self._sync = ConnectionPool(
                    conninfo(self._config.dsn, "pyworker handler"),
                    min_size=0,
                    max_size=self._config.concurrency + ONE_MORE,
                    kwargs=self._options(),
                    open=True,
                    configure=self._configure,
                    check=ConnectionPool.check_connection,
                )
        return self._sync

    async def async_pool(self) -> AsyncConnectionPool[psycopg.AsyncConnection[Any]]:
        if self._async is None:
            self._async = AsyncConnectionPool(
                conninfo(self._config.dsn, "pyworker handler"),
                min_size=0,
                max_size=self._config.concurrency + ONE_MORE,
                kwargs=self._options(),
                open=False,
                configure=self._configure_async,
                check=AsyncConnectionPool.check_connection,
            )
            await self._async.open()
        return self._async

    def close(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Close both pools. `loop` is the loop on which async handlers ran."""
        if self._sync is not None:
            self._sync.close()
        if self._async is not None and loop is not None:
            asyncio.run_coroutine_threadsafe(self._async.close(), loop).result()

    def start_job(self, job_id: int, run: int) -> bool:
        try:
            with self.sync_pool().connection() as conn:
                return self.database(conn).start_job(job_id, run)
        except psycopg.Error as error:  # unknown whether the start was recorded: do not begin
            raise NotStarted(f"the start could not be recorded: {error}") from error

    async def start_job_async(self, job_id: int, run: int) -> bool:
        try:
            async with (await self.async_pool()).connection() as conn:
                row = await (
                    await conn.execute(cast("Any", start_job_statement(self.schema)), [job_id, run])
                ).fetchone()
                return bool(row and row[0])
        except psycopg.Error as error:
            raise NotStarted(f"the start could not be recorded: {error}") from error

    def once(self, key: str) -> bool:
        with self.sync_pool().connection() as conn:
            return self.database(conn).once(key)

    async def once_async(self, key: str) -> bool:
        async with (await self.async_pool()).connection() as conn:
            with translated():
                row = await (await conn.execute(cast("Any", once_statement(self.schema)), [key])).fetchone()
            return bool(row and row[0])

    async def finish_job_async(self, conn: psycopg.AsyncConnection[Any], job_id: int, run: int) -> str:
        with translated():
            row = await (
                await conn.execute(cast("Any", finish_job_statement(self.schema)), [job_id, run])
            ).fetchone()
            return row[1] if row else ""

    def committed(self, job_id: int, run: int, transaction: str) -> bool:
        """True if a transaction whose COMMIT got no reply has committed."""
        while True:
            with self.sync_pool().connection() as conn:
                answer = self.database(conn).was_finished(job_id, run, transaction)
            if answer is not None:
                return answer
            time.sleep(0.1)
