"""What passes between a child's turn and its handlers: claimed jobs one way, outcomes the other."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from .job import Job

KINDS = ("finished", "failed", "snoozed", "released")


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
    run_at: datetime
    queue_name: str | None
    key: str | None
    flags: str | None
    meta: str | None
    sequence_key: str | None
    created_at: datetime
    delivery: str
    crashes: int
    slot: int = -1  # while it runs: its place in the memory that the parent watches
    handler: asyncio.Task[None] | Job | None = None  # while it runs: what can be told that it is called off
    called_off: bool = False


@dataclass(slots=True)
class Outcomes:
    """What has ended and is not yet reported."""

    finished: list[tuple[int, int, str | None]]
    failed: list[dict[str, Any]]
    snoozed: list[tuple[int, int, timedelta]]
    released: list[tuple[int, int]]

    def __len__(self) -> int:
        return len(self.finished) + len(self.failed) + len(self.snoozed) + len(self.released)
