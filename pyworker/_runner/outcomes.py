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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple, cast

from .. import tasks
from .._escape import shown
from .._payload import storable, to_json
from .._steps import suspends
from .._texts import first_line, limited, name_of, summary_of, text_of, traceback_of
from ..errors import InvalidArgument
from ..job import Cancel, Discard, Failed, NotStarted, Snooze, agreed
from .claimed import Claimed

log = logging.getLogger("pyworker.worker")

Done = tuple[int, int, str | None]  # a completed job: id, run, and its result as JSON text or None


class Report(NamedTuple):
    """Any other outcome, as `work` takes it."""

    id: int
    run: int
    do: str
    error: str | None = None
    more: Mapping[str, Any] = {}  # delay_s, payload_text
    task: str = ""
    last: bool = False  # this may have been the last attempt; the database decides

    def item(self) -> dict[str, Any]:
        error = {} if self.error is None else {"error": self.error}
        return {"id": self.id, "run": self.run, "do": self.do, **error, **self.more}


Outcome = Done | Report
Ended = tuple[Outcome, Any]  # and what the handler returned or raised
ANSWERS = Snooze | Cancel | Discard | Failed | NotStarted  # a handler may return them, too


@dataclass(slots=True)
class Outcomes:
    """Outcomes that are not reported yet."""

    done: list[Done] = field(default_factory=list[Done])
    reports: list[Report] = field(default_factory=list[Report])

    def add(self, outcome: Outcome) -> None:
        if isinstance(outcome, Report):
            self.reports.append(outcome)
        else:
            self.done.append(outcome)

    def __iter__(self) -> Iterator[Outcome]:
        yield from self.done
        yield from self.reports

    def __len__(self) -> int:
        return len(self.done) + len(self.reports)


def outcome_of(job: Claimed, task: tasks.Task[..., Any], value: Any) -> Ended:
    """The outcome of a handler that returned.

    If it returned an outcome such as Snooze, raise that.
    """
    if value is None:
        return (job.id, job.run, None), None
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
    return (job.id, job.run, storable(to_json(value, "its result")) if task.result else None), value


def failure_of(job: Claimed, error: BaseException) -> Ended:
    """The outcome of a handler that raised. Never raises, so each started job has an outcome."""
    try:
        error = agreed(error)
        if suspends(error):
            return release(job, begun=True), error  # its run has ended already
        report = _report(job, error)
    except BaseException as problem:
        report = _failed(job, f"{name_of(error)}: the exception cannot be shown ({name_of(problem)})")
    return report, error


def failures_of(jobs: Sequence[Claimed], error: BaseException) -> list[Ended]:
    """The outcomes of the jobs of a call that raised. The text of the error is made once."""
    made: dict[bool, Ended] = {}
    for job in jobs:
        if job.cancelled not in made:
            made[job.cancelled] = failure_of(job, error)
    ends: list[Ended] = []
    for job in jobs:
        report, said = cast("tuple[Report, Any]", made[job.cancelled])
        last = report.error is not None and _is_last(job, report.do)
        ends.append((report._replace(id=job.id, run=job.run, last=last), said))
    return ends


def release(job: Claimed, begun: bool = False) -> Report:
    """Hand the job back: its attempt does not count. `begun`: its handler was called."""
    return Report(job.id, job.run, "release", more={"begun": begun})


def unstorable(outcome: Outcome, why: str) -> Report:
    """The failure to report for a job whose outcome the database refused."""
    what = outcome.do if isinstance(outcome, Report) else "done"
    return Report(outcome[0], outcome[1], "fail", limited(f"the outcome ({what}) could not be stored: {why}"))


def _report(job: Claimed, error: BaseException) -> Report:
    match error:
        case Snooze():
            delay = getattr(error, "delay", None)
            if isinstance(delay, timedelta):
                return Report(job.id, job.run, "snooze", more={"delay_s": delay.total_seconds()})
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
    text = json.dumps(plain, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="backslashreplace").decode()  # half a surrogate pair can only be escaped


def _encoded(job: Claimed, elements: list[Any]) -> Any:
    """In the container that the handler's annotation names."""
    task = tasks.registered().get(job.task_identifier)
    for container in (list, tuple, set, frozenset, deque):
        with contextlib.suppress(TypeError, InvalidArgument):
            return task.encoded(cast("Any", container)(elements)) if task else elements
    return elements  # they are not of the annotated type


def _failed(job: Claimed, error: str, do: str = "fail", **more: Any) -> Report:
    return Report(
        job.id, job.run, do, limited(error), more, job.task_identifier, _is_last(job, do)
    )  # fmt: skip


def _is_last(job: Claimed, do: str) -> bool:
    return job.attempts >= job.max_attempts or job.delivery == "at_most_once" or do == "discard"


def tell(job: Claimed, report: Report, error: BaseException, tracebacks: bool) -> None:
    """Log a failed attempt: what the handler raised, and where.

    The payload appears only if the exception quotes it.
    """
    text = shown(report.error or "").rstrip("\n")
    answered = report.do != "fail" or report.more  # it raised an outcome such as Cancel, not an error
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
