"""Checks of the options of @task and @cron; and what to write in place of other queues' words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from ._checks import in_place_of
from ._db.queue import SCHEDULE_OPTIONS, TASK_OPTIONS

MAX_BATCH = 10_000  # jobs of a call
_ADD = "task.add(conn, payload)"
_LATER = "task.add(conn, payload, delay=…, run_at=…)"
# Methods of tasks in Celery, Dramatiq, Procrastinate, Huey, TaskIQ, RQ and Django.
ELSEWHERE = {
    **dict.fromkeys(("delay", "send", "enqueue", "defer", "defer_async", "kiq", "aenqueue", "kicker"), _ADD),
    **dict.fromkeys(("apply_async", "send_with_options", "schedule", "configure", "using"), _LATER),
    **dict.fromkeys(("s", "si", "signature", "subtask", "chain"), "flow.add(task, payload, after=…)"),
    **dict.fromkeys(("apply", "call_local"), "task(payload), which calls the function"),
    "retry": "raise an exception in the handler, or Snooze(delay)",
}


def task_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of @task that are given, with times as timedeltas."""
    _refuse_unknown("task", options, TASK_OPTIONS, ["name", "result", "batch", *sorted(TASK_OPTIONS)])
    given = {name: value for name, value in options.items() if value is not None}
    for name in given.keys() & {"timeout", "retention"}:
        given[name] = _span("task", name, given[name])
    return given


def cron_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of @cron that are given, with `backfill` as text."""
    _refuse_unknown("cron", options, SCHEDULE_OPTIONS, sorted(SCHEDULE_OPTIONS))
    given = {name: value for name, value in options.items() if value is not None}
    backfill = given.get("backfill")
    if isinstance(_span("cron", "backfill", backfill), timedelta):
        seconds = backfill.total_seconds() if isinstance(backfill, timedelta) else backfill
        given["backfill"] = f"{seconds} seconds"
    return given


def checked_batch(batch: Any) -> int | None:
    if batch is None:
        return None
    if isinstance(batch, bool) or not isinstance(batch, int):
        raise TypeError(f"task: batch must be an integer, got {batch!r}")
    if not 1 <= batch <= MAX_BATCH:
        raise ValueError(f"task: batch must be from 1 to {MAX_BATCH}, got {batch}")
    return batch


def _refuse_unknown(
    decorator: str, options: Mapping[str, Any], taken: Iterable[str], known: Iterable[str]
) -> None:
    if unknown := sorted(options.keys() - set(taken)):
        raise TypeError(
            f"{decorator} has no option {unknown[0]!r} (known: {', '.join(known)}){in_place_of(unknown[0])}"
        )


def _span(decorator: str, name: str, value: Any) -> Any:
    """Seconds as a timedelta; anything else as it is."""
    if not isinstance(value, int | float):
        return value
    try:
        return timedelta(seconds=value)
    except (OverflowError, ValueError):  # infinite, or no number
        raise ValueError(f"{decorator}: {name} must be a time that is finite, got {value!r}") from None
