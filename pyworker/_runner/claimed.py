"""A job between its claim and its end, as a worker process knows it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from ..job import AsyncJob, Job

if TYPE_CHECKING:
    from .connections import Connections

J = TypeVar("J", Job, AsyncJob)
_decode = json.JSONDecoder().raw_decode


def _decoded(text: str) -> Any:
    """JSON that PostgreSQL has checked."""
    return _decode(text.lstrip())[0]


@dataclass(slots=True)
class Claimed:
    """A claimed job, before its payload is decoded."""

    id: int
    run: int
    task_identifier: str
    payload: str
    attempts: int
    max_attempts: int
    priority: int
    run_at: float  # seconds since 1970
    queue_name: str | None
    key: str | None
    flags: str | None
    meta: str | None
    sequence_key: str | None
    created_at: float
    delivery: str
    crashes: int
    slot: int = -1  # while it runs: its place in the memory that the parent watches
    handler: asyncio.Task[Any] | Job | None = None  # while it runs: what is told that the job is cancelled
    cancelled: bool = False
    completed: bool = False  # by job.transaction(), whatever its handler does after it

    def made(self, kind: type[J], connections: Connections) -> J:
        """What its handler gets."""
        return kind(  # by position: by name it takes twice the time
            self.id, self.run, self.task_identifier, _decoded(self.payload), self.attempts, self.max_attempts, self.priority,
            datetime.fromtimestamp(self.run_at, UTC), self.queue_name, self.key, _decoded(self.flags) if self.flags else None,
            _decoded(self.meta) if self.meta else None, self.sequence_key, datetime.fromtimestamp(self.created_at, UTC), connections,
        )  # fmt: skip
