"""One call of a handler: some jobs go in, mostly one, and each comes out with an outcome of its own.

    made → started, where delivery is at_most_once → middleware → payloads converted → called → settled

A job that does not come to the call (it was cancelled, it may not start, its payload is wrong, a middleware
has put it off) ends alone, and the call goes on without it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import psycopg

from .. import _middleware
from .._db.either import at_once
from .._db.handler import HandlerCalls
from ..job import AsyncJob, Job, NotStarted
from .claimed import Call, Claimed
from .connections import Connections
from .outcomes import ANSWERS, Ended, done, failure_of, failures_of, outcome_of, release


def run(call: Call, connections: Connections) -> list[Ended]:
    """Run a sync handler in the calling thread. Never raises. The outcomes are in the jobs' order."""
    attempt = _Attempt(call)
    try:
        at_once(_called(attempt, Job, connections, connections.blocking))
    except BaseException as error:
        attempt.fail(error)
    return attempt.ends()


async def run_async(call: Call, connections: Connections) -> list[Ended]:
    """Run an async handler on the running loop, for at most the call's timeout.

    Raises nothing after its first step."""
    attempt, scope = _Attempt(call), None
    try:
        if call.timeout is None:
            await _called(attempt, AsyncJob, connections, connections.awaited)
        else:
            async with asyncio.timeout(call.timeout) as scope:
                await _called(attempt, AsyncJob, connections, connections.awaited)
    except BaseException as error:
        if scope is not None and scope.expired() and isinstance(error, TimeoutError):
            attempt.late = TimeoutError(f"timed out after {call.timeout:g} s")
        attempt.fail(error)
    return attempt.ends()


async def _called(
    attempt: _Attempt, kind: type[Job] | type[AsyncJob], connections: Connections, calls: HandlerCalls
) -> None:
    """The way to the call, and the call. Of a sync handler nothing is ever awaited."""
    if once := attempt.make(kind, connections):
        with attempt.starting(once) as started:
            started += await calls.start_jobs(*_runs(once))
    if attempt.begins():
        answer = attempt.task.invoke(attempt.given)
        attempt.answer(await answer if attempt.task.is_async else answer)


def _runs(jobs: Sequence[Claimed]) -> tuple[list[int], list[int]]:
    return [job.id for job in jobs], [job.run for job in jobs]


_NONE: list[Claimed] = []


class _Attempt:
    __slots__ = ("_call", "_jobs", "given", "late", "task")

    def __init__(self, call: Call) -> None:
        self.task = call.task
        self.given: Any = None  # what the handler is called with
        self.late: TimeoutError | None = None  # what becomes of its cancellation, which middlewares see
        self._call = call
        self._jobs: list[Claimed] = []  # those that come to the call

    def make(self, kind: Any, connections: Connections) -> list[Claimed]:
        """Make the jobs that the handler gets. Returns those that must be started before."""
        batched, once = self.task.batch is not None, _NONE[:]
        strict = self.task.options.get("delivery") == "at_most_once"
        for job in self._call.jobs:
            if job.cancelled:
                job.ended = release(job), None  # if it is still ours, the database ends it as cancelled
                continue
            try:
                job.handed = made = job.made(kind, connections)
            except BaseException as error:
                job.ended = failure_of(job, error)
                continue
            if batched:
                made._batched = True
            if job.cancelled:  # just now
                made._cancelled = True
            self._jobs.append(job)
            if (strict or job.delivery == "at_most_once") and job.at_most_once(self.task):
                once.append(job)
        return once

    @contextmanager
    def starting(self, jobs: Sequence[Claimed]) -> Iterator[list[int]]:
        """Leave out those of these jobs whose ids are not in the list after the block.

        None begins if it is unknown whether the starts were recorded."""
        started: list[int] = []
        try:
            yield started
        except psycopg.Error as error:
            unknown = NotStarted(f"the start could not be recorded: {error}")
            unknown.__cause__ = error
            for job in jobs:
                job.ended = failure_of(job, unknown)
        else:
            for job in jobs:
                job.ended = None if job.id in started else (release(job), None)
        self._leave_out()

    def _leave_out(self) -> None:
        """Go on without those that have ended, or whose payload is wrong."""
        self._jobs = [job for job in self._jobs if job.ended is None and job.raised is None]

    def begins(self) -> bool:
        """True if jobs are left for the handler, after their middlewares have begun."""
        if _middleware.registered:
            for job in self._jobs:
                try:
                    job.stack = _middleware.MiddlewareStack(cast("Job", job.handed)).__enter__()
                except BaseException as outcome:
                    job.ended = failure_of(job, outcome)
            self._leave_out()
        if self.task.batch is None:
            self.given = self._jobs[0].handed if self._jobs else None
            return bool(self._jobs)
        if convert := self.task.convert:
            for job in self._jobs:
                made = cast("Job", job.handed)
                try:
                    made.payload = convert(made.payload)
                except BaseException as error:
                    job.raised = error
            self._leave_out()
        self._call.called = self._jobs
        self.given = [job.handed for job in self._jobs]
        return bool(self._jobs)

    def answer(self, value: Any) -> None:
        """Take what the handler returned. If that is an outcome of a batch such as Snooze, raise it."""
        if self.task.batch is None:
            self._jobs[0].said = value
        elif value is not None:
            for job, answer in zip(self._jobs, self._checked(value), strict=True):
                if isinstance(answer, BaseException):
                    job.raised = answer
                else:
                    job.said = answer

    def _checked(self, value: Any) -> list[Any]:
        """The answers of a batch handler, one for each job that was called."""
        if isinstance(value, ANSWERS):
            raise value
        due = "a batch handler returns None, or a list with an outcome for each job"
        kind = type(value).__name__
        if inspect.isawaitable(value):
            raise TypeError(f"{self.task!r} returned {kind} to be awaited; make it an async function")
        if not isinstance(value, list):
            raise TypeError(f"{self.task!r} returned {kind}; {due}")
        answers = cast("list[Any]", value)
        if len(answers) != len(self._jobs):
            many = f"a list of {len(answers)} for {len(self._jobs)} jobs"
            raise TypeError(f"{self.task!r} returned {many}; {due}")
        return answers

    def fail(self, error: BaseException) -> None:
        """The call has raised this."""
        if any(job.stack is not None for job in self._jobs):
            for job in self._jobs:
                job.raised = error.__cause__ if self.late else error
        else:
            for job, ended in zip(self._jobs, failures_of(self._jobs, self.late or error), strict=True):
                job.ended = ended

    def ends(self) -> list[Ended]:
        """The outcome of each job."""
        ends: list[Ended] = []
        for job in reversed(self._call.jobs):  # middlewares end in reverse
            if job.said is None and job.raised is None and job.stack is None and job.ended is None:
                ends.append((done(job), None))  # the common end
            else:
                ends.append(job.ended or self._settled(job))
        ends.reverse()
        return ends

    def _settled(self, job: Claimed) -> Ended:
        """The outcome of a job for which the handler has answered or raised, after its middlewares."""
        error, stack = job.raised, job.stack
        ended: Ended | None = None
        try:
            if error is None:
                try:
                    ended = outcome_of(job, self.task, job.said)
                except BaseException as problem:
                    error = problem
            if stack is not None:
                stack.result = job.said
                stack.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)
        except BaseException as outcome:  # a middleware has raised it
            error = outcome
        if self.late and error is job.raised:
            error = self.late
        return ended if error is None and ended is not None else failure_of(job, cast("BaseException", error))
