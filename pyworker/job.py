"""What a handler is given, and what it may answer.

A handler that returns has finished its job. It may instead raise (or return) one of the outcomes below; any other exception
is a failed attempt, to be retried after the task's backoff.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg

from . import _client
from ._db.rows import JobRow
from ._logging import JobLogger
from .errors import WrongState

if TYPE_CHECKING:
    from typing import Unpack

    from ._arguments import AddOptions
    from ._runner.connections import Connections
    from .tasks import Task


class Outcome(Exception):
    """The root of the answers below."""


class Snooze(Outcome):
    """Put the job off by `delay` (a timedelta, or seconds); this attempt does not count. (River: snooze)"""

    def __init__(self, delay: timedelta | float) -> None:
        self.delay = delay if isinstance(delay, timedelta) else timedelta(seconds=delay)
        if self.delay < timedelta(0):
            raise ValueError(f"Snooze: delay must not be negative, got {delay!r}")
        super().__init__(f"snoozed for {self.delay}")


class Cancel(Outcome):
    """Call the job off for good: it ends cancelled, with `reason` as its last error. (River: JobCancel)"""

    def __init__(self, reason: str = "cancelled by its handler") -> None:
        self.reason = reason
        super().__init__(reason)


class Discard(Outcome):
    """Give up without further attempts: it ends discarded, a decision for people. (Oban: discard)"""

    def __init__(self, reason: str = "discarded by its handler") -> None:
        self.reason = reason
        super().__init__(reason)


class NotStarted(Outcome):
    """Of a job with delivery at_most_once: nothing that must not be done twice has been done yet, it may be tried again."""

    def __init__(self, reason: str = "not started") -> None:
        self.reason = reason
        super().__init__(reason)


class Failed(Outcome):
    """Of a batch (a payload that is an array), these elements failed: only they are tried again. (Graphile Worker: batch jobs)"""

    def __init__(self, elements: Sequence[Any], reason: str | None = None) -> None:
        self.elements = list(elements)
        self.reason = reason or f"{len(self.elements)} elements of the batch failed"
        super().__init__(self.reason)


@dataclass(slots=True)
class _JobFields:
    id: int
    run: int
    task_identifier: str
    payload: Any = field(repr=False)
    attempts: int
    max_attempts: int
    priority: int
    run_at: datetime
    queue_name: str | None
    key: str | None
    flags: dict[str, bool] | None
    meta: dict[str, Any] | None = field(repr=False)
    sequence_key: str | None
    created_at: datetime
    _connections: Connections = field(repr=False)
    _in_transaction: Any = field(default=None, repr=False)
    _cancelled: bool = field(default=False, repr=False)
    _transaction: str = field(default="", repr=False)  # "open", or "committed", by which the job is completed

    @property
    def _completed(self) -> bool:
        """Has job.transaction() completed the job?"""
        return self._transaction == "committed"

    def _begin_transaction(self) -> None:
        if self._transaction == "open":
            raise WrongState(
                "job.transaction(): not inside another job.transaction() of this job: use the connection that is open"
            )
        if self._transaction:
            raise WrongState(
                "job.transaction(): not after another job.transaction() of this job, which has completed it"
            )
        self._transaction = "open"

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records carry job_id, run and task."""
        logger = logging.getLogger(f"pyworker.task.{self.task_identifier}")
        return JobLogger(logger, {"job_id": self.id, "run": self.run, "task": self.task_identifier})


class Job(_JobFields):
    """The job at hand, for a handler that asks for it: a parameter named `job`, or annotated `Job`.

    id, run (the fencing token: it grows with each claim, hand it to whatever must refuse a late writer), task_identifier,
    payload, attempts (this one included), max_attempts, priority, run_at, queue_name, key, flags, meta, sequence_key, created_at,
    logger.
    """

    __slots__ = ()

    @property
    def cancelled(self) -> bool:
        """Was the job called off (cancel_job) while it runs, or its claim lost? A handler that runs long should look now and then, and
        end; five seconds later its process is ended. (In async handlers asyncio.CancelledError is raised.)"""
        return self._cancelled

    def once(self, key: str) -> bool:
        """True the first time in the life of this job, over all its attempts, false ever after: at least once up to this call, at
        most once after it. It is committed on its own, at once, inside job.transaction() too: the mark stays if that is rolled back.
        (McKinley) For a key of the application: SELECT pyworker.once(key)."""
        return self._connections.once(f"job {self.id}: {key}")

    @contextmanager
    def transaction(self) -> Iterator[psycopg.Connection[Any]]:
        """A connection in a transaction that ends with the job's own end: its writes and the job's completion are one commit.

        When the claim was lost meanwhile (the worker was taken for dead and the job handed on), ClaimLost is raised
        instead of the commit and everything rolls back. Effects in this database thus happen once. A second one, inside the first
        or after it, is refused with WrongState; after one that was rolled back you may try again.
        """
        xact, ended = None, ""
        self._begin_transaction()
        try:
            with self._connections.sync_pool().connection() as conn:
                try:
                    with conn.transaction():
                        self._in_transaction = conn
                        yield conn
                        self._in_transaction = None
                        xact = self._connections.database(conn).finish_job(self.id, self.run)
                except psycopg.OperationalError:
                    # Lost during the COMMIT? Then only the database knows.
                    if xact is None or not conn.closed or not self._connections.committed(self.id, self.run, xact):
                        raise
                ended = "committed" if xact else ""
        finally:
            self._in_transaction, self._transaction = None, ended

    def add_job(self, identifier: str | Task[..., Any], payload: Any = None, **options: Unpack[AddOptions]) -> JobRow:
        """Add another job: in `transaction()` if that is open, otherwise at once. Arguments as pyworker.add_job."""
        open_one: psycopg.Connection[Any] | None = self._in_transaction
        if open_one is not None:
            return _client.add_job(open_one, identifier, payload, schema=self._connections.schema, **options)
        with self._connections.sync_pool().connection() as conn:
            return _client.add_job(conn, identifier, payload, schema=self._connections.schema, **options)


class AsyncJob(_JobFields):
    """`Job` as an async handler gets it: `async with job.transaction()`, `await job.add_job(…)`."""

    __slots__ = ()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        """As Job.transaction, with an asynchronous connection."""
        xact, ended = None, ""
        self._begin_transaction()
        try:
            pool = await self._connections.async_pool()
            async with pool.connection() as conn:
                try:
                    async with conn.transaction():
                        self._in_transaction = conn
                        yield conn
                        self._in_transaction = None
                        xact = await self._connections.finish_job_async(conn, self.id, self.run)
                except psycopg.OperationalError:
                    committed = self._connections.committed
                    if (
                        xact is None
                        or not conn.closed
                        or not await asyncio.to_thread(committed, self.id, self.run, xact)
                    ):
                        raise
                ended = "committed" if xact else ""
        finally:
            self._in_transaction, self._transaction = None, ended

    async def once(self, key: str) -> bool:
        """As Job.once."""
        return await self._connections.once_async(f"job {self.id}: {key}")

    async def add_job(
        self, identifier: str | Task[..., Any], payload: Any = None, **options: Unpack[AddOptions]
    ) -> JobRow:
        """As Job.add_job."""
        open_one: psycopg.AsyncConnection[Any] | None = self._in_transaction
        if open_one is not None:
            return await _client.add_job(open_one, identifier, payload, schema=self._connections.schema, **options)
        pool = await self._connections.async_pool()
        async with pool.connection() as conn:
            return await _client.add_job(conn, identifier, payload, schema=self._connections.schema, **options)
