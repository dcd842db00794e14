"""The job that a handler gets, and the outcomes that it may raise.

A handler that returns has finished its job. It may instead raise (or return) one of the outcomes
below. Any other exception is a failed attempt, which is retried after the task's backoff.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, Unpack, cast

import psycopg

from . import _client
from ._arguments import AddOptions, TaskLike
from ._checks import checked
from ._db.either import at_once, blocking, blocking_block, settled
from ._db.rows import JobRow
from ._inputs import Inputs, inputs_of
from ._logging import JobLogger
from ._opened import guard, opened, refuse_inside, within
from ._steps import AsyncSteps, Book, Step, Steps, refuse_in_batch
from .errors import InvalidArgument, WrongState

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # with a default: Job is Job[Any]

    from ._db.handler import HandlerCalls
    from ._runner.connections import Connections

    PayloadT = TypeVar("PayloadT", default=Any)
else:
    from typing import TypeVar

    PayloadT = TypeVar("PayloadT")

LogLevel = Literal["debug", "info", "warning", "error"]
_LEVELS = {
    name: logging.getLevelNamesMapping()[name.upper()] for name in ("debug", "info", "warning", "error")
}


class Outcome(Exception):
    """The base class of the outcomes below."""


class Snooze(Outcome):
    """Run the job again after `delay` (a timedelta, or seconds).

    This attempt does not count. (River: snooze)
    """

    def __init__(self, delay: timedelta | float) -> None:
        try:
            self.delay = delay if isinstance(delay, timedelta) else timedelta(seconds=delay)
        except (OverflowError, ValueError):  # infinite, or no number
            raise ValueError(f"Snooze: delay must be a time that is finite, got {delay!r}") from None
        if self.delay < timedelta(0):
            raise ValueError(f"Snooze: delay must not be negative, got {delay!r}")
        super().__init__(f"snoozed for {self.delay}")


class Cancel(Outcome):
    """Cancel the job: it ends cancelled, with `reason` as its last error. (River: JobCancel)"""

    def __init__(self, reason: str = "cancelled by its handler") -> None:
        self.reason = reason
        super().__init__(reason)


class Discard(Outcome):
    """End the job as discarded, without further attempts.

    You may retry or delete it. (Oban: discard)
    """

    def __init__(self, reason: str = "discarded by its handler") -> None:
        self.reason = reason
        super().__init__(reason)


class NotStarted(Outcome):
    """For delivery at_most_once: the effect that must not be repeated has not begun.

    So the job may be retried.
    """

    def __init__(self, reason: str = "not started") -> None:
        self.reason = reason
        super().__init__(reason)


class Failed(Outcome):
    """For a batch (a payload that is an array): these elements failed.

    Only they are retried. (Graphile Worker: batch jobs)
    """

    def __init__(self, elements: Sequence[Any], reason: str | None = None) -> None:
        self.elements = list(elements)
        self.reason = reason or f"{len(self.elements)} elements of the batch failed"
        super().__init__(self.reason)


KINDS = (Snooze, Cancel, Discard, NotStarted, Failed)


def agreed(error: BaseException) -> BaseException:
    """The outcome of an exception group whose members are all of one kind; any other error as it is."""
    members: list[Any] = [*_members(error)]
    if members[0] is error:
        return error
    for kind in KINDS:
        if all(isinstance(one, kind) for one in members):
            if kind is Snooze:
                return max(members, key=lambda one: getattr(one, "delay", timedelta.max))
            if kind is Failed and len(members) > 1:
                return Failed([each for one in members for each in one.elements], members[0].reason)
            return members[0]
    return error


def _members(error: BaseException) -> Iterator[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        yield error
        return
    for one in cast("BaseExceptionGroup[BaseException]", error).exceptions:
        yield from _members(one)


@dataclass(slots=True)
class _JobFields(Generic[PayloadT]):
    id: int
    run: int
    task_identifier: str
    payload: PayloadT = field(repr=False)
    attempts: int
    max_attempts: int
    _run_at: float = field(repr=False)  # seconds since 1970: most handlers do not need the datetime
    queue_name: str | None
    key: str | None
    flags: dict[str, bool] | None
    meta: dict[str, Any] | None = field(repr=False)
    sequence_key: str | None
    _created_at: float = field(repr=False)
    _connections: Connections = field(repr=False)
    _cancelled: bool = field(default=False, repr=False)
    _transaction: str = field(default="", repr=False)  # "open", or "committed", which completed the job
    _steps: Book | None = field(default=None, repr=False)
    _silent_until: float = field(default=0.0, repr=False)  # until then progress writes nothing
    _underway: int = field(default=0, repr=False)  # steps and waits that are not done
    _batched: bool = field(default=False, repr=False)  # its handler got other jobs, too: a batch

    def __reduce__(self) -> NoReturn:
        raise WrongState(
            "a job cannot be pickled or copied, as it belongs to the process that runs the handler:"
            " give other processes job.payload and job.id, and let them open connections of their own"
        )

    @property
    def run_at(self) -> datetime:
        return datetime.fromtimestamp(self._run_at, UTC)

    @property
    def created_at(self) -> datetime:
        return datetime.fromtimestamp(self._created_at, UTC)

    @property
    def _book(self) -> Book:
        if self._steps is None:
            self._steps = Book()
        return self._steps

    @property
    def cancelled(self) -> bool:
        """True if the job was cancelled (cancel_job) while it runs, or its claim was lost.

        A handler that runs long should check it periodically, and return. After five seconds its process is
        killed. In async handlers asyncio.CancelledError is raised. A batch handler is stopped only if all of
        its jobs are cancelled: it may leave out the cancelled ones, and answer Cancel() for them."""
        return self._cancelled

    @property
    def _completed(self) -> bool:
        """True if job.transaction() has completed the job."""
        return self._transaction == "committed"

    @contextmanager
    def _completing(self) -> Iterator[list[str]]:
        """Around a transaction that completes the job: it appends its id before its commit."""
        refuse_in_batch(self._batched, "job.transaction()", "its jobs end when the call returns")
        refuse_inside(
            self,
            "job.transaction()",
            "not inside another job.transaction() or step_transaction() of this job:"
            " use the connection that is open",
        )
        with guard:
            if self._transaction == "open":
                raise WrongState(
                    "job.transaction(): not while another task or thread of the handler has one open,"
                    " which completes the job"
                )
            if self._transaction:
                raise WrongState(
                    "job.transaction(): not after another job.transaction() of this job,"
                    " which has completed it"
                )
            if self._underway:
                raise WrongState(
                    "job.transaction(): not while a step or a wait of this job is underway,"
                    " as it completes the job"
                )
            self._transaction = "open"
        transactions: list[str] = []
        ended = ""
        try:
            yield transactions
            ended = "committed" if transactions else ""
        finally:
            self._transaction = ended

    def _tells(self, progress: float, message: str | None) -> bool:
        number = isinstance(progress, int | float)  # pyright: ignore[reportUnnecessaryIsInstance]
        if not number or isinstance(progress, bool):
            raise InvalidArgument(f"job.progress(): progress must be a number from 0 to 1, got {progress!r}")
        text = isinstance(message, str | None)  # pyright: ignore[reportUnnecessaryIsInstance]
        if not text:
            raise InvalidArgument(f"job.progress(): message must be a string or None, got {message!r}")
        now = time.monotonic()
        if now < self._silent_until and 0 <= progress < 1:
            return False
        self._silent_until = now + 1
        return True

    if TYPE_CHECKING:

        @property
        def _calls(self) -> HandlerCalls: ...

    async def _inputs(self) -> Inputs:
        return inputs_of(await self._calls.inputs(self.id))

    def _mark(self, key: str) -> str:
        return f"job {self.id}: {checked('job.once()', 'key', key)}"

    def log(self, message: str, level: LogLevel = "info") -> None:
        """Add a line to the job's log, which is kept with the job: `job.log("page 4 has no text")`.

        level: "debug", "info", "warning" or "error". `pyworker jobs ID` and the dashboard show the log, with
        the attempt of each line. The line goes to `logger`, too. Nothing waits for the database, so an async
        handler need not await this: the worker sends lines with its turns, within about a second, at the
        latest with the attempt's end. They stay if a transaction is rolled back. Of a line the first 2,000
        characters are kept, of a job the newest 200 lines. Raises InvalidArgument. (SQL: work, job_log)"""
        if not isinstance(message, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidArgument(f"job.log(): message must be a string, got {message!r}")
        if level not in _LEVELS:
            known = ", ".join(_LEVELS)
            raise InvalidArgument(f"job.log(): level must be one of {known}, got {level!r}")
        self._connections.lines.add(self.id, self.run, level, message)
        self.logger.log(_LEVELS[level], "%s", message, stacklevel=2)

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records carry job_id, run and task. Unlike `log`, it keeps nothing with the job."""
        logger = logging.getLogger(f"pyworker.task.{self.task_identifier}")
        return JobLogger(logger, {"job_id": self.id, "run": self.run, "task": self.task_identifier})


class AsyncJob(_JobFields[PayloadT], AsyncSteps):
    """`Job` for async handlers: `async with job.transaction()`, `await job.add_job(…)`, `await job.inputs`.

    Each method is written once, here; Job has it as one that blocks.
    """

    __slots__ = ()

    @property
    def _calls(self) -> HandlerCalls:
        return self._connections.awaited

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        """A connection in a transaction that also completes the job.

        Your writes and the completion are one commit.

        If the claim was lost in the meantime (the worker was declared dead and the job claimed by
        another), the commit is replaced by ClaimLost and everything rolls back. So effects in this
        database happen once. A second transaction, inside the first or after its commit, raises
        WrongState; after a rollback you may try again.
        """
        with self._completing() as ids:

            async def finish(conn: Any) -> None:
                ids.append(await self._calls.finish_job(conn, self.id, self.run))

            lent, calls = None, self._calls
            try:
                async with calls.lend("job.transaction()", finish) as lent:
                    with within(self, lent):
                        yield lent
            except psycopg.OperationalError:
                # If the connection was lost during COMMIT, only the database knows the result.
                lost = lent is not None and ids and lent.lost
                if not (lost and await calls.committed(self.id, self.run, ids[0])):
                    raise

    @property
    async def inputs(self) -> Inputs:
        """Like Job.inputs: `(await job.inputs)["fetch"]`."""
        return await self._inputs()

    async def progress(self, progress: float, message: str | None = None) -> None:
        """Tell people how far this run has come: `job.progress(0.4, "page 4 of 10")`.

        progress: from 0 to 1. It writes at most once a second: a call within a second of the last write does
        nothing, unless progress is 1. get_job, `pyworker jobs ID` and the dashboard show it. Raises
        InvalidArgument, ClaimLost. (SQL: set_progress)"""
        if self._tells(progress, message):
            await self._calls.set_progress(self.id, self.run, progress, message)

    async def once(self, key: str) -> bool:
        """True the first time in this job's life, over all its attempts; False ever after.

        The code up to this call runs at least once, the code after it at most once. The mark is
        committed at once, on another connection: it stays if job.transaction() is rolled back.
        For a key of the application, use SELECT pyworker.once(key)."""
        return await self._calls.once(self._mark(key))

    async def add_job(
        self, identifier: str | TaskLike, payload: Any = None, **options: Unpack[AddOptions]
    ) -> JobRow:
        """Add another job: in `transaction()` if that is open, otherwise at once.

        Takes the arguments of pyworker.add_job.
        """
        add: Callable[..., Any] = functools.partial(_client.add_job, schema=self._connections.schema)
        open_one = opened(self)
        if open_one is not None:
            return await settled(add(open_one, identifier, payload, **options))
        async with self._calls.connection() as conn:
            return await settled(add(conn, identifier, payload, **options))


class Job(_JobFields[PayloadT], Steps):
    """The running job, for a handler with a parameter named `job` or annotated `Job`.

    Its fields: id, run (the fencing token: it grows with each claim; pass it to systems that must
    refuse a late writer), task_identifier, payload, attempts (including this one), max_attempts,
    priority, run_at, queue_name, key, flags, meta, sequence_key, created_at, logger. A batch handler
    gets a list of jobs: `jobs: list[Job[Order]]` converts each payload to an Order.
    """

    __slots__ = ()

    @property
    def _calls(self) -> HandlerCalls:
        return self._connections.blocking

    @property
    def inputs(self) -> Inputs:
        """What the jobs have returned that this one has waited for: `job.inputs["fetch"]`, by ref or id.

        Each use asks the database. (SQL: dependency_results)"""
        return at_once(self._inputs())

    transaction = blocking_block(AsyncJob.transaction, psycopg.Connection[Any])
    step_transaction = blocking_block(AsyncJob.step_transaction, Step[psycopg.Connection[Any]])
    step = blocking(AsyncJob.step)
    wait_for = blocking(AsyncJob.wait_for)
    progress = blocking(AsyncJob.progress)
    once = blocking(AsyncJob.once)
    add_job = blocking(AsyncJob.add_job)
