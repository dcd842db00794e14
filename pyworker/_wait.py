"""wait_for_job: wait for the end of a job, woken by a notification where there is one, and right without."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Generator
from datetime import timedelta
from typing import Any, TypeAlias, cast, overload

import psycopg
from psycopg.pq import TransactionStatus

from ._checks import seconds_of
from ._client import default_schema
from ._db.drivers import AsyncConnection, Rows, SyncConnection, on_driver, run, run_async, status_of
from ._db.queue import ISOLATION, Statement, await_job_call, listen_to_ends
from ._db.rights import naming_role
from ._db.rows import JobRow, job_row
from .errors import JobTimeout, WrongState, sqlstate_of

LOOK_AGAIN = 1.0  # seconds at most until it looks again
AT_FIRST = 0.02  # seconds until it does, where nothing notifies it; each further time half as long again
FAILED = "wait_for_job: the transaction of conn has failed: roll back before you wait"
Plan: TypeAlias = "Generator[Statement | float, Rows, JobRow]"


@overload
def wait_for_job(
    conn: AsyncConnection,
    job_id: int,
    timeout: timedelta | float = 60.0,
    *,
    schema: str | None = None,
) -> Coroutine[Any, Any, JobRow]: ...
@overload
def wait_for_job(
    conn: SyncConnection,
    job_id: int,
    timeout: timedelta | float = 60.0,
    *,
    schema: str | None = None,
) -> JobRow: ...
def wait_for_job(
    conn: Any, job_id: int, timeout: timedelta | float = 60.0, *, schema: str | None = None
) -> Any:
    """Wait until a job has ended, and return it, without its payload: completed, cancelled or discarded.

    conn: as for add_job; with an asynchronous one, await the result. Best is psycopg's outside a transaction,
    which is notified; with others it looks again, at growing intervals of up to a second. The job must be
    committed, and a transaction that is open on conn must be READ COMMITTED. timeout: a timedelta or seconds.
    The job must have a history: one with retention 0 is gone when it ends. Raises JobTimeout, NotFound,
    WrongState (conn is closed, its transaction has failed, or would not see the end).
    """
    wait = _Wait(job_id, seconds_of("wait_for_job", timeout), schema or default_schema())
    return on_driver("wait_for_job", conn, wait.run, wait.run_async)


class _Wait:
    def __init__(self, job_id: int, timeout: float, schema: str) -> None:
        self.timeout = timeout
        self.schema = schema
        self.listen, self.unlisten = listen_to_ends(schema)
        self.calls: dict[bool, Statement] = {
            listens: await_job_call(schema, job_id, listens) for listens in (True, False)
        }
        self.ends_at = time.monotonic() + timeout

    def plan(self, conn: Any) -> Plan:
        """Statements to run, whose rows it gets, and seconds to pause. Returns the ended job."""
        status = status_of(conn)
        if status == TransactionStatus.UNKNOWN:
            raise WrongState("wait_for_job: conn is closed")
        if status == TransactionStatus.INERROR:
            raise WrongState(FAILED)
        if status != TransactionStatus.IDLE:
            ((isolation,),) = yield ISOLATION
            if isolation not in ("read committed", "read uncommitted"):
                raise WrongState(
                    f"wait_for_job: conn is in a transaction at {isolation}, which does not see what others"
                    " commit: commit or roll back before you wait"
                )
        listens = status == TransactionStatus.IDLE and _notifies(conn)
        if not listens:
            return (yield from self._look(self.calls[False], AT_FIRST))
        yield self.listen
        try:
            return (yield from self._look(self.calls[True], LOOK_AGAIN))
        finally:
            if not conn.closed:
                yield self.unlisten

    def _look(self, call: Statement, pause: float) -> Plan:
        while True:
            ((*columns,),) = yield call
            job = cast("JobRow", job_row(columns))
            if job.finished_at is not None:
                return job
            left = self.ends_at - time.monotonic()
            if left <= 0:
                raise JobTimeout(job, self.timeout)
            yield min(left, pause)
            pause = min(pause * 1.5, LOOK_AGAIN)

    def run(self, conn: Any) -> JobRow:
        plan, act = self.plan(conn), _Act()
        while (what := act.next(plan)) is not None:
            try:
                if isinstance(what, tuple):
                    with naming_role("wait_for_job", self.schema):
                        act.rows = run(conn, what)
                elif status_of(conn) == TransactionStatus.IDLE and _notifies(conn):
                    for _ in conn.notifies(timeout=what, stop_after=1):
                        pass
                else:
                    time.sleep(what)
            except BaseException as error:
                act.error = error
        return act.job

    async def run_async(self, conn: Any) -> JobRow:
        plan, act = self.plan(conn), _Act()
        while (what := act.next(plan)) is not None:
            try:
                if isinstance(what, tuple):
                    with naming_role("wait_for_job", self.schema):
                        act.rows = await run_async(conn, what)
                elif status_of(conn) == TransactionStatus.IDLE and _notifies(conn):
                    async for _ in conn.notifies(timeout=what, stop_after=1):
                        pass
                else:
                    await asyncio.sleep(what)
            except BaseException as error:
                act.error = error
        return act.job


def _notifies(conn: Any) -> bool:
    return isinstance(conn, psycopg.Connection | psycopg.AsyncConnection)


class _Act:
    """What became of the last thing that a plan asked for."""

    job: JobRow

    def __init__(self) -> None:
        self.rows: Any = None
        self.error: BaseException | None = None

    def next(self, plan: Plan) -> Statement | float | None:
        """What the plan asks for next; None at its end."""
        rows, error = self.rows, self.error
        self.rows = self.error = None
        try:
            return plan.send(rows) if error is None else plan.throw(error)
        except StopIteration as end:
            self.job = end.value
            return None
        except Exception as raised:
            if raised is error and sqlstate_of(raised) == "25P02":  # asyncpg does not tell before
                raise WrongState(FAILED) from raised
            raise
