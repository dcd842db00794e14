"""wait_for_job: wait for the end of a job, woken by a notification where there is one, and right without."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any, cast

import psycopg
from psycopg.pq import TransactionStatus

from ._checks import seconds_of
from ._client import default_schema
from ._db.drivers import answer_of, driver_of, is_async, run, status_of
from ._db.either import either
from ._db.queue import ISOLATION, Statement, await_job_call, listen_to_ends
from ._db.rights import naming_role
from ._db.rows import JobRow, job_row
from .errors import JobTimeout, WrongState, sqlstate_of

LOOK_AGAIN = 1.0  # seconds at most until it looks again
AT_FIRST = 0.02  # seconds until it does, where nothing notifies it; each further time half as long again
FAILED = "wait_for_job: the transaction of conn has failed: roll back before you wait"


@either
def wait_for_job(
    conn: Any, job_id: int, timeout: timedelta | float = 60.0, *, schema: str | None = None
) -> JobRow:
    """Wait until a job has ended, and return it, without its payload: completed, cancelled or discarded.

    conn: as for add_job; with an asynchronous one, await the result. Best is psycopg's outside a transaction,
    which is notified; with others it looks again, at growing intervals of up to a second. The job must be
    committed, and a transaction that is open on conn must be READ COMMITTED. timeout: a timedelta or seconds.
    The job must have a history: one with retention 0 is gone when it ends. Raises JobTimeout, NotFound,
    WrongState (conn is closed, its transaction has failed, or would not see the end).
    """
    wait = _Wait(job_id, seconds_of("wait_for_job", timeout), schema or default_schema())
    return cast("Any", answer_of("wait_for_job", conn, wait.until_end(conn)))


class _Wait:
    def __init__(self, job_id: int, timeout: float, schema: str) -> None:
        self.timeout = timeout
        self.schema = schema
        self.listen, self.unlisten = listen_to_ends(schema)
        self.calls: dict[bool, Statement] = {
            listens: await_job_call(schema, job_id, listens) for listens in (True, False)
        }
        self.ends_at = time.monotonic() + timeout

    async def until_end(self, given: Any) -> JobRow:
        async with driver_of("wait_for_job", given) as conn:
            status = status_of(conn)
            if status == TransactionStatus.UNKNOWN:
                raise WrongState("wait_for_job: conn is closed")
            if status == TransactionStatus.INERROR:
                raise WrongState(FAILED)
            if status != TransactionStatus.IDLE:
                ((isolation,),) = await self._run(conn, ISOLATION)
                if isolation not in ("read committed", "read uncommitted"):
                    raise WrongState(
                        f"wait_for_job: conn is in a transaction at {isolation}, which does not see what"
                        " others commit: commit or roll back before you wait"
                    )
            if not _notifies(conn):
                return await self._look(conn, self.calls[False], AT_FIRST)
            await self._run(conn, self.listen)
            try:
                return await self._look(conn, self.calls[True], LOOK_AGAIN)
            finally:
                if not conn.closed:
                    await self._run(conn, self.unlisten)

    async def _look(self, conn: Any, call: Statement, pause: float) -> JobRow:
        while True:
            ((*columns,),) = await self._run(conn, call)
            job = cast("JobRow", job_row(columns))
            if job.finished_at is not None:
                return job
            left = self.ends_at - time.monotonic()
            if left <= 0:
                raise JobTimeout(job, self.timeout)
            await _pause(conn, min(left, pause))
            pause = min(pause * 1.5, LOOK_AGAIN)

    async def _run(self, conn: Any, statement: Statement) -> Any:
        try:
            with naming_role("wait_for_job", self.schema):
                return await run(conn, statement)
        except Exception as error:
            if sqlstate_of(error) == "25P02":  # asyncpg does not tell before
                raise WrongState(FAILED) from error
            raise


async def _pause(conn: Any, seconds: float) -> None:
    """Until a notification, where the connection gets them."""
    if not _notifies(conn):
        await asyncio.sleep(seconds) if is_async(conn) else time.sleep(seconds)
    elif isinstance(conn, psycopg.AsyncConnection):
        async for _ in conn.notifies(timeout=seconds, stop_after=1):
            pass
    else:
        for _ in conn.notifies(timeout=seconds, stop_after=1):
            pass


def _notifies(conn: Any) -> bool:
    is_psycopg = isinstance(conn, psycopg.Connection | psycopg.AsyncConnection)
    return is_psycopg and status_of(conn) == TransactionStatus.IDLE
