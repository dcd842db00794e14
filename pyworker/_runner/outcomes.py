"""The outcome of an attempt, in plain values that can always be reported.

A handler's exception may be anything: its text may raise or be endless, its fields may be missing.
No function here raises because of it.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import re
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

from .. import tasks
from .._db.database import Database
from .._db.text import Call
from .._escape import shown
from .._payload import to_json
from .._texts import first_line, limited, name_of, summary_of, text_of, traceback_of
from ..job import Cancel, Discard, Failed, NotStarted, Snooze
from .claimed import Claimed

log = logging.getLogger("pyworker.worker")

KINDS = ("finished", "failed", "snoozed", "released")
# The kind, the report, and what the handler returned or raised.
Ended = tuple[str, Any, Any]
_ESCAPES = re.compile(r"\\u(?:d[89ab]..\\ud[c-f]..|(0000|d[89a-f]..))|\\.", re.IGNORECASE)


class Failure(NamedTuple):
    """A failed attempt."""

    id: int
    run: int
    fields: dict[str, Any]  # as fail_jobs takes them
    task: str
    last: bool  # this may have been the last attempt; the database decides


@dataclass(slots=True)
class Outcomes:
    """Outcomes that are not reported yet."""

    finished: list[tuple[int, int, str | None]] = field(default_factory=list[tuple[int, int, str | None]])
    failed: list[Failure] = field(default_factory=list[Failure])
    snoozed: list[tuple[int, int, timedelta]] = field(default_factory=list[tuple[int, int, timedelta]])
    released: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    @classmethod
    def of(cls, kind: str, item: Any) -> Outcomes:
        """Wrap one outcome; `kind` is one of KINDS."""
        return cls(**{kind: [item]})

    def __len__(self) -> int:
        return len(self.finished) + len(self.failed) + len(self.snoozed) + len(self.released)

    def reports(self, db: Database) -> list[Call]:
        """The calls that report them, in the order of KINDS; each snooze is its own call."""
        calls: list[Call] = []
        if self.finished:
            calls.append(db.finish_call(self.finished))
        if self.failed:
            calls.append(db.fail_call([failure.fields for failure in self.failed]))
        calls.extend(db.snooze_call(*snoozed) for snoozed in self.snoozed)
        if self.released:
            calls.append(db.release_call(self.released))
        return calls


def outcome_of(job: Claimed, task: tasks.Task[..., Any], value: Any) -> Ended:
    """The outcome of a handler that returned.

    If it returned an outcome such as Snooze, raise that.
    """
    if value is None:
        return "finished", (job.id, job.run, None), None
    if isinstance(value, Snooze | Cancel | Discard | Failed | NotStarted):
        raise value
    if inspect.isawaitable(value):  # and nothing has run yet
        raise TypeError(f"{task!r} returned {type(value).__name__} to be awaited; make it an async function")
    return "finished", (job.id, job.run, _storable(to_json(value)) if task.result else None), value


def failure_of(job: Claimed, error: BaseException) -> Ended:
    """The outcome of a handler that raised. Never raises, so each started job has an outcome."""
    try:
        kind, value = _told(job, error)
    except BaseException as problem:
        kind, value = _failed(job, f"{name_of(error)}: the exception cannot be shown ({name_of(problem)})")
    return kind, value, error


def unstorable(job_id: int, run: int, kind: str, error: BaseException) -> dict[str, Any]:
    """The failure to report for a job whose outcome the database refused."""
    return {
        "id": job_id,
        "run": run,
        "error": limited(f"the outcome ({kind}) could not be stored: {text_of(error)}"),
    }


def _told(job: Claimed, error: BaseException) -> tuple[str, Any]:
    match error:
        case Snooze():
            delay = getattr(error, "delay", None)
            if isinstance(delay, timedelta):
                return "snoozed", (job.id, job.run, delay)
            why = (
                f"{name_of(error)} has no delay (a timedelta);"
                " a subclass of Snooze calls super().__init__(delay)"
            )
            return _failed(job, f"{why}\n{traceback_of(error)}")
        case asyncio.CancelledError() if job.cancelled:
            return _failed(job, "cancelled while it was running")
        case Cancel():
            return _failed(job, _reason(error), cancel=True)
        case Discard():
            return _failed(job, _reason(error), discard=True)
        case NotStarted():
            return _failed(job, _reason(error), not_started=True)
        case Failed():
            try:
                return _failed(job, _reason(error), payload=json.loads(to_json(error.elements)))
            except Exception as problem:
                why = f"the elements of Failed cannot be stored: {text_of(problem)}"
                return _failed(job, f"{why}\n{traceback_of(error)}")
        case _:
            return _failed(job, traceback_of(error))


def _failed(job: Claimed, error: str, **fields: Any) -> tuple[str, Failure]:
    last = job.attempts >= job.max_attempts or job.delivery == "at_most_once" or "discard" in fields
    told = {"id": job.id, "run": job.run, "error": limited(error), **fields}
    return "failed", Failure(job.id, job.run, told, job.task_identifier, last)


def tell(job: Claimed, failure: Failure, error: BaseException, tracebacks: bool) -> None:
    """Log a failed attempt: what the handler raised, and where.

    The payload appears only if the exception quotes it.
    """
    text = shown(failure.fields["error"]).rstrip("\n")
    answered = len(failure.fields) > 3  # the handler raised an outcome such as Cancel, not an error
    cancelled = job.cancelled and "\n" not in text
    if answered or cancelled:
        said = f": {first_line(text if cancelled else f'{name_of(error)}: {text}')}"
    else:
        what = "raised after job.transaction() had completed it" if job.completed else "failed"
        said = f" {what}: {shown(first_line(summary_of(error)))}"
    record = log.makeRecord(
        log.name, logging.WARNING, __file__, 0, "job %s (%s) attempt %s of %s%s",
        (job.id, shown(job.task_identifier), job.attempts, job.max_attempts, said), None,
        extra={"job_id": job.id, "task": job.task_identifier, "attempt": job.attempts},
    )  # fmt: skip
    if tracebacks and "\n" in text and not answered:
        record.exc_text = text
    if log.isEnabledFor(logging.WARNING):
        log.handle(record)


def _storable(text: str) -> str:
    """Replace what jsonb cannot store, NUL and half surrogate pairs, by U+FFFD."""
    if "\\u0000" not in text and "\\ud" not in text and "\\uD" not in text:
        return text
    return _ESCAPES.sub(lambda match: "\\ufffd" if match[1] else match[0], text)


def _reason(error: Any) -> str:
    reason = getattr(error, "reason", None)  # missing where a subclass does not call super().__init__
    return reason if isinstance(reason, str) else summary_of(error) if reason is None else text_of(reason)
