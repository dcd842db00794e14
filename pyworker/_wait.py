"""wait_for_job: wait for the end of a job, woken by a notification, and correct without one."""

from __future__ import annotations

import time
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, cast, overload

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from ._checks import seconds_of
from ._client import default_schema
from ._db.drivers import as_call
from ._db.queue import Statement, await_job_call, listen_to_ends
from ._db.rights import naming_role
from ._db.rows import JobRow, job_row
from .errors import InvalidArgument, JobTimeout, WrongState, translated

LOOK_AGAIN = 1.0  # seconds, in case no notification comes


@overload
def wait_for_job(
    conn: psycopg.Connection[Any],
    job_id: int,
    timeout: timedelta | float = 60.0,
    *,
    schema: str | None = None,
) -> JobRow: ...
@overload
def wait_for_job(
    conn: psycopg.AsyncConnection[Any],
    job_id: int,
    timeout: timedelta | float = 60.0,
    *,
    schema: str | None = None,
) -> Coroutine[Any, Any, JobRow]: ...
def wait_for_job(
    conn: Any, job_id: int, timeout: timedelta | float = 60.0, *, schema: str | None = None
) -> Any:
    """Wait until a job has ended, and return it, without its payload: completed, cancelled or discarded.

    conn: a connection of psycopg outside a transaction, for this alone (it LISTENs); await the result of an
    asynchronous one. timeout: a timedelta or seconds. The job must have a history: one with retention 0 is
    gone when it ends. Raises JobTimeout, NotFound, WrongState (the connection is in a transaction).
    """
    if not isinstance(conn, psycopg.Connection | psycopg.AsyncConnection):
        raise InvalidArgument(
            f"wait_for_job: conn must be a connection of psycopg, got {type(conn).__name__}"
        )
    wait = _Wait(conn, job_id, seconds_of("wait_for_job", timeout), schema or default_schema())
    return wait.run() if isinstance(conn, psycopg.Connection) else as_call("wait_for_job", wait.run_async())


class _Wait:
    def __init__(self, conn: Any, job_id: int, timeout: float, schema: str) -> None:
        if conn.info.transaction_status != TransactionStatus.IDLE:
            raise WrongState("wait_for_job: conn is in a transaction, which might not see the end: commit")
        self.conn = conn
        self.schema = schema
        self.timeout = timeout
        self.listen, self.unlisten = listen_to_ends(schema)
        self.call: Statement = await_job_call(schema, job_id)
        self.ends_at = time.monotonic() + timeout

    def left(self, job: JobRow) -> float:
        """Seconds until it looks again."""
        left = self.ends_at - time.monotonic()
        if left <= 0:
            raise JobTimeout(job, self.timeout)
        return min(left, LOOK_AGAIN)

    def run(self) -> JobRow:
        self._execute(self.listen)
        try:
            while (job := self._look()).finished_at is None:
                for _ in self.conn.notifies(timeout=self.left(job), stop_after=1):
                    pass
            return job
        finally:
            if not self.conn.closed:
                self._execute(self.unlisten)

    def _execute(self, statement: Any) -> None:
        with self.conn.transaction():
            self.conn.execute(statement)

    def _look(self) -> JobRow:
        with naming_role("wait_for_job", self.schema), translated(), self.conn.transaction():
            with psycopg.Cursor[Any](self.conn, row_factory=tuple_row) as cursor:
                return cast("JobRow", job_row(cursor.execute(*cast("Any", self.call)).fetchone()))

    async def run_async(self) -> JobRow:
        await self._execute_async(self.listen)
        try:
            while (job := await self._look_async()).finished_at is None:
                async for _ in self.conn.notifies(timeout=self.left(job), stop_after=1):
                    pass
            return job
        finally:
            if not self.conn.closed:
                await self._execute_async(self.unlisten)

    async def _execute_async(self, statement: Any) -> None:
        async with self.conn.transaction():
            await self.conn.execute(statement)

    async def _look_async(self) -> JobRow:
        with naming_role("wait_for_job", self.schema), translated():
            async with self.conn.transaction():
                async with psycopg.AsyncCursor[Any](self.conn, row_factory=tuple_row) as cursor:
                    await cursor.execute(*cast("Any", self.call))
                    return cast("JobRow", job_row(await cursor.fetchone()))
