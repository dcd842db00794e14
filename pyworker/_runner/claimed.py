"""A claimed job in the worker process, until its outcome is reported."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from .. import tasks
from .._escape import shown
from ..job import AsyncJob, Job

if TYPE_CHECKING:
    from .connections import Connections

log = logging.getLogger("pyworker.worker")

J = TypeVar("J", Job, AsyncJob)
_stricter: set[str] = set()  # the tasks of which the log says so
_decode = json.JSONDecoder().raw_decode


def _decoded(text: str) -> Any:
    """Decode JSON that PostgreSQL has validated."""
    return _decode(text.lstrip())[0]


@dataclass(slots=True)
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
    slot: int = -1  # while it runs: its index in the memory shared with the parent
    handler: asyncio.Task[Any] | None = None  # while it runs on the loop: cancel this
    handed: Job | AsyncJob | None = None  # what its handler got
    cancelled: bool = False
    completed: bool = False  # by job.transaction(); the handler may still raise

    def made(self, kind: type[J], connections: Connections) -> J:
        """The Job or AsyncJob that the handler gets."""
        return kind(  # positional: keyword arguments take twice the time
            self.id, self.run, self.task_identifier, _decoded(self.payload),
            self.attempts, self.max_attempts, self.run_at,
            self.queue_name, self.key,
            _decoded(self.flags) if self.flags else None, _decoded(self.meta) if self.meta else None,
            self.sequence_key, self.created_at, connections,
        )  # fmt: skip

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
                self.id,
                shown(task.name),
            )
        return True

    @property
    def jobs(self) -> Sequence[Claimed]:
        """The jobs of its call: itself alone."""
        return (self,)

    @property
    def runs(self) -> Sequence[tuple[int, int]]:
        return ((self.id, self.run),)


@dataclass(slots=True, eq=False)
class Batch:
    """Jobs of one task that one call of its handler gets."""

    jobs: list[Claimed]
    called: Sequence[Claimed] = ()  # those that have come to the call, where not all have
    slot: int = -1
    handler: asyncio.Task[Any] | None = None

    @property
    def task_identifier(self) -> str:
        return self.jobs[0].task_identifier

    @property
    def runs(self) -> Sequence[tuple[int, int]]:
        return [(job.id, job.run) for job in self.jobs]

    @property
    def timeout(self) -> float | None:
        """The least of its jobs', which differ only where the task was defined again meanwhile."""
        return min((job.timeout for job in self.jobs if job.timeout), default=None)

    @property
    def until(self) -> float:
        return self.jobs[0].until  # the first to be claimed

    @property
    def cancelled(self) -> bool:
        """True if no job is left for which the call should go on."""
        return all(job.cancelled for job in self.called or self.jobs)


Call = Claimed | Batch  # of a handler
