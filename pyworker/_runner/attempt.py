"""One attempt: call the handler of a claimed job, and turn its result into the job's outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from .. import _middleware, tasks
from .._db.either import at_once
from ..job import AsyncJob, Job, NotStarted
from .claimed import Claimed
from .connections import Connections
from .outcomes import Ended, failure_of, outcome_of, release


def run_job(job: Claimed, task: tasks.Task[..., Any], connections: Connections) -> Ended:
    """Run a sync handler in the calling thread. Never raises."""
    made = None
    try:
        job.handed = made = job.made(Job, connections)
        made._cancelled = job.cancelled  # pyright: ignore[reportPrivateUsage]
        if job.at_most_once(task):
            with _unless_unknown():
                started = at_once(connections.blocking.start_jobs([job.id], [job.run]))
            if not started:
                return release(job), None
        if not _middleware.registered:
            ended = outcome_of(job, task, task.invoke(made))
        else:
            with _middleware.MiddlewareStack(made) as around:
                around.result = task.invoke(made)
                ended = outcome_of(job, task, around.result)
        job.completed = made._completed
        return ended
    except BaseException as error:
        job.completed = made is not None and made._completed
        return failure_of(job, error)


async def run_job_async(job: Claimed, task: tasks.Task[..., Any], connections: Connections) -> Ended:
    """Run an async handler on the running loop, for at most the task's timeout.

    Raises nothing after its first step."""
    made, scope, limit = None, None, job.timeout
    try:
        job.handed = made = job.made(AsyncJob, connections)
        if job.cancelled:
            raise asyncio.CancelledError
        if not limit:
            ended = await _answer(job, task, connections, made)
        else:
            async with asyncio.timeout(limit) as scope:
                ended = await _answer(job, task, connections, made)
        job.completed = made._completed
        return ended
    except BaseException as error:
        if scope is not None and scope.expired() and isinstance(error, TimeoutError):
            error = TimeoutError(f"timed out after {limit:g} s")
        job.completed = made is not None and made._completed
        return failure_of(job, error)


async def _answer(
    job: Claimed, task: tasks.Task[..., Any], connections: Connections, made: AsyncJob
) -> Ended:
    if job.at_most_once(task):
        with _unless_unknown():
            started = await connections.awaited.start_jobs([job.id], [job.run])
        if not started:
            return release(job), None
    if not _middleware.registered:
        return outcome_of(job, task, await task.invoke(made))
    with _middleware.MiddlewareStack(made) as around:
        around.result = await task.invoke(made)
        return outcome_of(job, task, around.result)


@contextmanager
def _unless_unknown() -> Iterator[None]:
    """Do not begin if it is unknown whether the start was recorded."""
    try:
        yield
    except psycopg.Error as error:
        raise NotStarted(f"the start could not be recorded: {error}") from error
