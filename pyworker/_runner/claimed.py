"""A claimed job in the worker process, until its outcome is reported."""

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
    slot: int = -1  # while it runs: its index in the memory shared with the parent
    handler: asyncio.Task[Any] | Job | None = None  # while it runs: cancel this
    cancelled: bool = False
    completed: bool = False  # by job.transaction(); the handler may still raise

    def made(self, kind: type[J], connections: Connections) -> J:
        """The Job or AsyncJob that the handler gets."""
        return kind(  # positional: keyword arguments take twice the time
            self.id, self.run, self.task_identifier, _decoded(self.payload),
            self.attempts, self.max_attempts, datetime.fromtimestamp(self.run_at, UTC),
            self.queue_name, self.key,
            _decoded(self.flags) if self.flags else None, _decoded(self.meta) if self.meta else None,
            self.sequence_key, datetime.fromtimestamp(self.created_at, UTC), connections,
        )  # fmt: skip
