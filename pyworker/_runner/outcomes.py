"""The outcome of an attempt, in plain values that can always be reported.

A handler's exception may be anything: its text may raise or be endless, its fields may be missing.
No function here raises because of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import logging
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple, cast

from .. import tasks
from .._escape import shown
from .._payload import to_json
from .._steps import suspends
from .._texts import first_line, limited, name_of, summary_of, text_of, traceback_of
from ..errors import InvalidArgument
from ..job import Cancel, Discard, Failed, NotStarted, Snooze, agreed
from .claimed import Claimed

log = logging.getLogger("pyworker.worker")

ANSWERS = Snooze | Cancel | Discard | Failed | NotStarted  # a handler may return them, too


class Outcome(NamedTuple):
    """How a run has ended, as read_reports takes it."""

    id: int
    run: int
    do: str = "done"
    text: str | None = None  # the report as JSON; None: completed
    result: str | None = None  # of a completed job, as JSON
    error: str | None = None
    task: str = ""
    last: bool = False  # this may have been the last attempt; the database decides


_BEGUN, _NOT_BEGUN = '{"do": "release", "begun": true}', '{"do": "release", "begun": false}'
Ended = tuple[Outcome, Any]  # and what the handler returned or raised


def done(job: Claimed) -> Outcome:
    """Completed, without a result. (Arguments with defaults take three times as long.)"""
    return cast("Any", tuple).__new__(Outcome, (job.id, job.run, "done", None, None, None, "", False))


def outcome_of(job: Claimed, task: tasks.Task[..., Any], value: Any) -> Ended:
    """The outcome of a handler that returned.

    If it returned an outcome such as Snooze, raise that.
    """
    if value is None:
        return done(job), None
    if isinstance(value, ANSWERS):
        raise value
    if inspect.isawaitable(value):  # and nothing has run yet
        raise TypeError(f"{task!r} returned {type(value).__name__} to be awaited; make it an async function")
    if isinstance(value, BaseException):
        raise TypeError(f"{task!r} returned {name_of(value)}: to fail the job, raise it") from value
    if inspect.isclass(value) and issubclass(value, BaseException):
        raise TypeError(
            f"{task!r} returned the class {value.__name__}: return or raise one, {value.__name__}(…)"
        )
    if not task.result:
        return done(job), value
    return Outcome(job.id, job.run, result=_plain(to_json(value, "its result"))), value


def failure_of(job: Claimed, error: BaseException) -> Ended:
    """The outcome of a handler that raised. Never raises, so each started job has an outcome."""
    try:
        error = agreed(error)
        if suspends(error):
            return release(job, begun=True), error  # its run has ended already
        outcome = _outcome(job, error)
    except BaseException as problem:
        outcome = _failed(job, f"{name_of(error)}: the exception cannot be shown ({name_of(problem)})")
    return outcome, error


def failures_of(jobs: Sequence[Claimed], error: BaseException) -> list[Ended]:
    """The outcomes of the jobs of a call that raised. The text of the error is made once."""
    made: dict[bool, Ended] = {}
    for job in jobs:
        if job.cancelled not in made:
            made[job.cancelled] = failure_of(job, error)
    ends: list[Ended] = []
    for job in jobs:
        outcome, said = made[job.cancelled]
        last = outcome.error is not None and _is_last(job, outcome.do)
        ends.append((outcome._replace(id=job.id, run=job.run, last=last), said))
    return ends


def release(job: Claimed, begun: bool = False) -> Outcome:
    """Hand the job back: its attempt does not count. `begun`: its handler was called."""
    return Outcome(job.id, job.run, "release", _BEGUN if begun else _NOT_BEGUN)


def _outcome(job: Claimed, error: BaseException) -> Outcome:
    match error:
        case Snooze():
            delay = getattr(error, "delay", None)
            if isinstance(delay, timedelta):
                return Outcome(job.id, job.run, "snooze", _text("snooze", delay_s=delay.total_seconds()))
            why = (
                f"{name_of(error)} has no delay (a timedelta);"
                " a subclass of Snooze calls super().__init__(delay)"
            )
            return _failed(job, f"{why}\n{traceback_of(error)}")
        case asyncio.CancelledError() if job.cancelled:
            return _failed(job, "cancelled while it was running")
        case Cancel():
            return _failed(job, _reason(error), "cancel")
        case Discard():
            return _failed(job, _reason(error), "discard")
        case NotStarted():
            return _failed(job, _reason(error), "not_started")
        case Failed():
            try:
                return _failed(job, _reason(error), payload_text=_elements(job, error.elements))
            except Exception as problem:
                why = f"the elements of Failed cannot be stored: {text_of(problem)}"
                return _failed(job, f"{why}\n{traceback_of(error)}")
        case _:
            return _failed(job, traceback_of(error))


def _elements(job: Claimed, elements: list[Any]) -> str:
    """As JSON that the handler will read, no longer than in any other payload."""
    plain = json.loads(to_json(_encoded(job, elements), "they"))
    return _plain(json.dumps(plain, ensure_ascii=False, separators=(",", ":")))


def _encoded(job: Claimed, elements: list[Any]) -> Any:
    """In the container that the handler's annotation names."""
    task = tasks.registered().get(job.task_identifier)
    for container in (list, tuple, set, frozenset, deque):
        with contextlib.suppress(TypeError, InvalidArgument):
            return task.encoded(cast("Any", container)(elements)) if task else elements
    return elements  # they are not of the annotated type


def _failed(job: Claimed, error: str, do: str = "fail", **more: Any) -> Outcome:
    error = limited(error)
    text = _text(do, error=error, **more)
    return Outcome(job.id, job.run, do, text, None, error, job.task_identifier, _is_last(job, do))


def _text(do: str, **more: Any) -> str:
    return json.dumps({"do": do, **more})


def _plain(text: str) -> str:
    """JSON that UTF-8 can carry: half a surrogate pair is escaped."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def _is_last(job: Claimed, do: str) -> bool:
    return job.attempts >= job.max_attempts or job.delivery == "at_most_once" or do == "discard"


def tell(job: Claimed, outcome: Outcome, error: BaseException, tracebacks: bool) -> None:
    """Log a failed attempt: what the handler raised, and where.

    The payload appears only if the exception quotes it.
    """
    text = shown(outcome.error or "").rstrip("\n")
    answered = outcome.do != "fail" or isinstance(error, Failed)  # it raised no error
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


def _reason(error: Any) -> str:
    reason = getattr(error, "reason", None)  # missing where a subclass does not call super().__init__
    return reason if isinstance(reason, str) else summary_of(error) if reason is None else text_of(reason)
