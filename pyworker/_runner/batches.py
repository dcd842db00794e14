"""One call of a batch handler: some jobs go in, and each comes out with an outcome of its own.

    made → started, where delivery is at_most_once → middleware → payloads converted → called → settled

A job that does not come to the call (it was cancelled, it may not start, its payload is wrong, a middleware
has put it off) ends alone, and the call goes on without it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat
from typing import Any, cast

import psycopg

from .. import _middleware, tasks
from .._db.either import at_once
from ..job import AsyncJob, Job, NotStarted
from .attempt import run_job, run_job_async
from .claimed import Batch, Claimed
from .connections import Connections
from .outcomes import ANSWERS, Ended, Outcome, failure_of, failures_of, outcome_of, release


def gathered(first: Claimed, ready: deque[Claimed], most: int) -> Batch:
    """Take up to so many jobs of one task. A job that may have crashed a process comes alone."""
    jobs, others = [first], list[Claimed]()
    while ready and len(jobs) < most and not first.crashes:
        job = ready.popleft()
        fits = job.task_identifier == first.task_identifier and not job.crashes
        (jobs if fits else others).append(job)
    ready.extendleft(reversed(others))
    return Batch(jobs)


def run_batch(batch: Batch, task: tasks.Task[..., Any], connections: Connections) -> list[Ended]:
    """Run a sync batch handler in the calling thread. Never raises. The outcomes are in the jobs' order."""
    call = _Call(batch, task)
    try:
        call.make(Job, connections)
        if once := call.at_most_once():
            with call.starting(once) as started:
                started += at_once(connections.blocking.start_jobs(*call.runs(once)))
        if jobs := call.begin():
            call.answer(task.invoke(jobs))
    except BaseException as error:
        call.error = error
    return call.ends()


async def run_batch_async(batch: Batch, task: tasks.Task[..., Any], connections: Connections) -> list[Ended]:
    """Run an async batch handler on the running loop, for at most the batch's timeout.

    Raises nothing after its first step."""
    call, scope, limit = _Call(batch, task), None, batch.timeout
    try:
        call.make(AsyncJob, connections)
        async with asyncio.timeout(limit) as scope:
            if once := call.at_most_once():
                with call.starting(once) as started:
                    started += await connections.awaited.start_jobs(*call.runs(once))
            if jobs := call.begin():
                call.answer(await task.invoke(jobs))
    except BaseException as error:
        if scope is not None and scope.expired() and isinstance(error, TimeoutError):
            error = TimeoutError(f"timed out after {limit:g} s")
        call.error = error
    return call.ends()


def run_call(jobs: list[Claimed], task: tasks.Task[..., Any], connections: Connections) -> Sequence[Ended]:
    """Run a handler in the calling thread: once for the jobs of a batch task, or for the one job."""
    if task.batch is not None:
        return run_batch(Batch(jobs), task, connections)
    return [run_job(job, task, connections) for job in jobs]


async def run_call_async(
    jobs: list[Claimed], task: tasks.Task[..., Any], connections: Connections
) -> Sequence[Ended]:
    """The same of an async handler, on the running loop."""
    if task.batch is not None:
        return await run_batch_async(Batch(jobs), task, connections)
    return [await run_job_async(job, task, connections) for job in jobs]


class _Call:
    """Jobs are named by their place in the batch."""

    def __init__(self, batch: Batch, task: tasks.Task[..., Any]) -> None:
        self._batch = batch
        self._jobs = batch.jobs
        self._task = task
        self._made: dict[int, Job | AsyncJob] = {}  # those that take part
        self._stacks: dict[int, _middleware.MiddlewareStack] = {}
        self._wrong: dict[int, BaseException] = {}  # payloads that could not be converted
        self._ends: dict[int, Ended] = {}
        self._answers: list[Any] | None = None  # one for each job that was called; None: all are completed
        self.error: BaseException | None = None  # raised by the call

    def make(self, kind: type[Job] | type[AsyncJob], connections: Connections) -> None:
        for at, job in enumerate(self._jobs):
            if job.cancelled:
                self._ends[at] = release(job), None  # if it is still ours, the database ends it as cancelled
                continue
            try:
                self._made[at] = job.handed = made = job.made(cast("type[Job]", kind), connections)
            except BaseException as error:
                self._ends[at] = failure_of(job, error)
            else:
                made._batched = True  # pyright: ignore[reportPrivateUsage]
                made._cancelled = job.cancelled  # pyright: ignore[reportPrivateUsage]

    def at_most_once(self) -> list[int]:
        return [at for at in self._made if self._jobs[at].at_most_once(self._task)]

    def runs(self, places: Sequence[int]) -> tuple[list[int], list[int]]:
        return [self._jobs[at].id for at in places], [self._jobs[at].run for at in places]

    @contextmanager
    def starting(self, places: Sequence[int]) -> Iterator[list[int]]:
        """Leave out those of these jobs whose ids are not in the list after the block.

        None begins if it is unknown whether the starts were recorded."""
        started: list[int] = []
        unknown: BaseException | None = None
        try:
            yield started
        except psycopg.Error as error:
            unknown = NotStarted(f"the start could not be recorded: {error}")
            unknown.__cause__ = error
        may_start = set(started)
        for at in places:
            job = self._jobs[at]
            if unknown is not None:
                self._leave_out(at, failure_of(job, unknown))
            elif job.id not in may_start:
                self._leave_out(at, (release(job), None))

    def _leave_out(self, at: int, ended: Ended) -> None:
        self._ends[at] = ended
        del self._made[at]

    def begin(self) -> list[Job | AsyncJob]:
        """The jobs for the handler, after their middlewares have begun."""
        if _middleware.registered:
            for at, made in [*self._made.items()]:
                try:
                    self._stacks[at] = _middleware.MiddlewareStack(made).__enter__()
                except BaseException as outcome:
                    self._leave_out(at, failure_of(self._jobs[at], outcome))
        if convert := self._task.convert:
            for at, made in self._made.items():
                try:
                    made.payload = convert(made.payload)
                except BaseException as error:
                    self._wrong[at] = error
        if self._wrong or self._ends:
            self._batch.called = [self._jobs[at] for at in self._called()]
        return [self._made[at] for at in self._called()]

    def _called(self) -> list[int]:
        return [at for at in self._made if at not in self._wrong] if self._wrong else [*self._made]

    def answer(self, value: Any) -> None:
        """Take what the handler returned. If that is an outcome such as Snooze, raise it."""
        if value is None:
            return
        if isinstance(value, ANSWERS):
            raise value
        due = "a batch handler returns None, or a list with an outcome for each job"
        if inspect.isawaitable(value):
            raise TypeError(
                f"{self._task!r} returned {type(value).__name__} to be awaited; make it an async function"
            )
        if not isinstance(value, list):
            raise TypeError(f"{self._task!r} returned {type(value).__name__}; {due}")
        answers = cast("list[Any]", value)
        if len(answers) != len(self._called()):
            raise TypeError(
                f"{self._task!r} returned a list of {len(answers)} for {len(self._called())} jobs; {due}"
            )
        self._answers = answers

    def ends(self) -> list[Ended]:
        """The outcome of each job."""
        called, jobs = self._called(), self._jobs
        if self._answers is None and self.error is None and len(called) == len(jobs) and not self._stacks:
            return [(Outcome(job.id, job.run), None) for job in jobs]
        if self.error is not None and not self._stacks:
            ends = failures_of([jobs[at] for at in called], self.error)
            self._ends.update(zip(called, ends, strict=True))
            called = []
        answers: Any = repeat(self.error) if self._answers is None else self._answers
        said = {**self._wrong, **dict(zip(called, answers, strict=False))}
        for at in sorted(said, reverse=True):  # middlewares end in reverse
            self._ends[at] = self._settled(at, said[at])
        return [self._ends[at] for at in range(len(jobs))]

    def _settled(self, at: int, said: Any) -> Ended:
        """The outcome of a job for which the handler has returned or raised this, after its middlewares."""
        job, stack = self._jobs[at], self._stacks.get(at)
        error, ended = (said, None) if isinstance(said, BaseException) else (None, None)
        try:
            if error is None:
                try:
                    ended = outcome_of(job, self._task, said)
                except BaseException as problem:
                    error = problem
            if stack is not None:
                stack.result = said
                stack.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)
        except BaseException as outcome:  # a middleware has raised it
            error = outcome
        return ended if error is None and ended is not None else failure_of(job, cast("BaseException", error))
