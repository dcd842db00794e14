"""Claimed jobs, and the call of a handler that gets one, or those of a batch."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

from .. import tasks
from .._escape import shown
from ..job import AsyncJob, Job

if TYPE_CHECKING:
    from .._middleware import MiddlewareStack
    from .connections import Connections

log = logging.getLogger("pyworker.worker")

J = TypeVar("J", Job, AsyncJob)
_stricter: set[str] = set()  # the tasks of which the log says so
_scan: Any = cast("Any", json.JSONDecoder()).scan_once


def _decoded(text: str) -> Any:
    """Decode JSON that PostgreSQL has validated."""
    return _scan(text.lstrip(), 0)[0]


@dataclass(slots=True, eq=False)
class Claimed:
    """A claimed job, as `work` returns it; its payload is not decoded yet."""

    id: int
    run: int
    task_identifier: str
    payload: str
    attempts: int
    max_attempts: int
    queue_name: str | None
    key: str | None
    flags: str | None
    meta: str | None
    sequence_key: str | None
    delivery: str
    crashes: int
    timeout: float | None  # seconds that its handler may run
    run_at: float  # seconds since 1970
    created_at: float
    until: float = math.inf  # by boottime(): its handler is called by then, or it is handed back
    slot: int = -1  # of its call, while that runs
    cancelled: bool = False
    # Of its attempt:
    handed: Job | AsyncJob | None = None  # what its handler got
    stack: MiddlewareStack | None = None
    said: Any = None  # what its handler returned
    raised: BaseException | None = None
    ended: Any = None  # its outcome, and what was said or raised

    def made(self, kind: type[J], connections: Connections) -> J:
        """The Job or AsyncJob that the handler gets."""
        return kind(  # positional: keyword arguments take twice the time
            self.id, self.run, self.task_identifier, _decoded(self.payload),
            self.attempts, self.max_attempts, self.run_at,
            self.queue_name, self.key,
            _decoded(self.flags) if self.flags else None, _decoded(self.meta) if self.meta else None,
            self.sequence_key, self.created_at, connections,
        )  # fmt: skip

    @property
    def completed(self) -> bool:
        """True if job.transaction() has completed it; the handler may still raise."""
        return self.handed is not None and self.handed._completed  # pyright: ignore[reportPrivateUsage]

    def at_most_once(self, task: tasks.Task[..., Any]) -> bool:
        """The stricter of what the code and the job say. Then start_job writes it to the job."""
        if self.delivery == "at_most_once":
            return True
        if task.options.get("delivery") != "at_most_once":
            return False
        self.delivery = "at_most_once"
        if task.name not in _stricter:
            _stricter.add(task.name)
            log.warning(
                "job %s (%s) was added with delivery at_least_once; it runs at most once, as the code"
                " declares; pyworker tasks sync defines that for jobs that SQL adds",
                self.id, shown(task.name),
            )  # fmt: skip
        return True


class Call:
    """One call of a handler: a job, or the jobs of a batch."""

    __slots__ = ("called", "handler", "jobs", "slot", "task", "timeout", "until")

    def __init__(self, task: tasks.Task[..., Any], jobs: list[Claimed], slot: int = -1) -> None:
        self.task = task
        self.jobs = self.called = jobs  # `called`: those that have come to the call
        self.slot = slot  # its index in the memory shared with the parent
        self.handler: asyncio.Task[Any] | None = None  # while it runs on the loop: cancel this
        first = jobs[0]  # the first to be claimed
        self.until, self.timeout = first.until, first.timeout
        if len(jobs) > 1:
            # They differ only where the task was defined again meanwhile.
            self.timeout = min((job.timeout for job in jobs if job.timeout), default=None)

    @property
    def cancelled(self) -> bool:
        """True if no job is left for which the call should go on."""
        for job in self.called or self.jobs:
            if not job.cancelled:
                return False
        return True


def gathered(first: Claimed, ready: deque[Claimed], most: int) -> list[Claimed]:
    """Take up to so many jobs of one task. A job that may have crashed a process comes alone."""
    jobs, others = [first], list[Claimed]()
    while ready and len(jobs) < most and not first.crashes:
        job = ready.popleft()
        fits = job.task_identifier == first.task_identifier and not job.crashes
        (jobs if fits else others).append(job)
    ready.extendleft(reversed(others))
    return jobs
