"""What passes between a child's turn and its handlers: claimed jobs one way, outcomes the other."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import os
import traceback
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from . import _sql, tasks
from .errors import InvalidArgument
from .job import AsyncJob, Cancel, Discard, Failed, Job, NotStarted, Snooze

if TYPE_CHECKING:
    from ._connections import Connections

log = logging.getLogger("pyworker.worker")

MAX_ERROR_TEXT = 32_000
J = TypeVar("J", Job, AsyncJob)
_decode = json.JSONDecoder().raw_decode
KINDS = ("finished", "failed", "snoozed", "released")


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
    handler: asyncio.Task[None] | Job | None = None  # while it runs: what can be told that it is called off
    called_off: bool = False

    def made(self, kind: type[J], connections: Connections) -> J:
        """What its handler gets."""
        return kind(  # by position: by name it takes twice the time
            self.id, self.run, self.task_identifier, _decoded(self.payload), self.attempts, self.max_attempts, self.priority,
            datetime.fromtimestamp(self.run_at, UTC), self.queue_name, self.key, _decoded(self.flags) if self.flags else None,
            _decoded(self.meta) if self.meta else None, self.sequence_key, datetime.fromtimestamp(self.created_at, UTC), connections,
        )  # fmt: skip


@dataclass(slots=True)
class Outcomes:
    """What has ended and is not yet reported."""

    finished: list[tuple[int, int, str | None]]
    failed: list[dict[str, Any]]
    snoozed: list[tuple[int, int, timedelta]]
    released: list[tuple[int, int]]

    def __len__(self) -> int:
        return len(self.finished) + len(self.failed) + len(self.snoozed) + len(self.released)

    def reports(self, db: _sql.Database) -> list[_sql.Call]:
        """In the order of KINDS; snoozes one by one."""
        calls: list[_sql.Call] = []
        if self.finished:
            calls.append(db.finish_call(self.finished))
        if self.failed:
            calls.append(db.fail_call(self.failed))
        calls.extend(db.snooze_call(*snoozed) for snoozed in self.snoozed)
        if self.released:
            calls.append(db.release_call(self.released))
        return calls


def outcome_of(job: Claimed, task: tasks.Task[..., Any], value: Any) -> tuple[str, Any]:
    if value is None:
        return "finished", (job.id, job.run, None)
    if isinstance(value, Snooze | Cancel | Discard | Failed | NotStarted):
        raise value
    if inspect.isawaitable(value):  # and has not done a thing yet
        raise TypeError(f"{task!r} returned {type(value).__name__} to be awaited; make it an async function")
    return "finished", (job.id, job.run, _sql.to_json(value) if task.result else None)


def failure_of(job: Claimed, error: BaseException) -> tuple[str, Any]:
    if isinstance(error, Snooze):
        return "snoozed", (job.id, job.run, error.delay)
    failure: dict[str, Any] = {"id": job.id, "run": job.run}
    match error:
        case asyncio.CancelledError():
            failure["error"] = "called off"
        case Cancel():
            failure |= {"error": error.reason, "cancel": True}
        case Discard():
            failure |= {"error": error.reason, "discard": True}
        case NotStarted():
            failure |= {"error": error.reason, "not_started": True}
        case Failed():
            try:
                failure |= {"error": error.reason, "payload": json.loads(_sql.to_json(error.elements))}
            except (TypeError, InvalidArgument) as problem:
                failure["error"] = f"the elements of Failed cannot be stored: {problem}\n{_text_of(error)}"
        case _:
            failure["error"] = _text_of(error)
    # The exception's class only: its message may quote the payload, which has no business in a log.
    log.warning(
        "job %s (%s) attempt %s of %s: %s", job.id, job.task_identifier, job.attempts, job.max_attempts, type(error).__name__,
        extra={"job_id": job.id, "task": job.task_identifier, "attempt": job.attempts},
    )  # fmt: skip
    return "failed", failure


def _text_of(error: BaseException) -> str:
    """The traceback, from the handler on."""
    frames = error.__traceback__
    while frames and os.path.dirname(frames.tb_frame.f_code.co_filename) == os.path.dirname(__file__):
        frames = frames.tb_next
    text = "".join(traceback.format_exception(type(error), error, frames))
    return text if len(text) <= MAX_ERROR_TEXT else text[: MAX_ERROR_TEXT // 2] + "\n…\n" + text[-MAX_ERROR_TEXT // 2 :]
