"""Values as people read them: states and their colours, times, spans, rates."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from ._escape import shown

STATES = ["scheduled", "pending", "available", "running", "retryable", "completed", "cancelled", "discarded"]
ENDED = STATES[-3:]
STYLES = {
    "completed": "green",
    "running": "cyan",
    "retryable": "yellow",
    "discarded": "red",
    "cancelled": "magenta",
}
UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def _next(at: datetime, period: timedelta) -> str:
    """The time of day; for a period of more than 12 hours with the date."""
    return time_of(at) if period > timedelta(hours=12) else time_of(at).split()[1]


def rate_of(row: Mapping[str, Any]) -> str:
    """The rate of a queue, how much of it is used, and when it has room again."""
    if row["rate_limit"] is None:
        return ""
    used = "" if row["rate_used"] is None else f"{row['rate_used']} of "
    rest = f", next {_next(row['rate_free_at'], row['rate_period'])}" if row["rate_free_at"] else ""
    return f"{used}{row['rate_limit']} in {period_of(row['rate_period'])}{rest}"


def span(seconds: float | None) -> str:
    """How long something took or is ago, roughly: 5400 → '1 h 30 min'."""
    if seconds is None:
        return "—"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{round(seconds, 1):g} s"
    whole = int(seconds)
    for (size, unit), (smaller, name) in pairwise(UNITS):
        if whole >= size:
            rest = whole % size // smaller if whole < 10 * size else 0
            return f"{whole // size} {unit}" + (f" {rest} {name}" if rest else "")
    return f"{whole} s"


def period_of(time: timedelta) -> str:
    """A setting, exactly, and as PostgreSQL reads it: '1 h 30 min'."""
    seconds, words = abs(time), list[str]()
    for size, unit in UNITS[:-1]:
        whole, seconds = divmod(seconds, timedelta(seconds=size))
        if whole:
            words.append(f"{whole} {unit}")
    if not words and timedelta(0) < seconds < timedelta(seconds=1):
        words.append(f"{_plain(seconds / timedelta(milliseconds=1))} ms")
    elif not words or seconds:
        words.append(f"{_plain(seconds.total_seconds())} s")
    return ("-" if time < timedelta(0) else "") + " ".join(words)


def _plain(number: float) -> str:
    return f"{number:.6f}".rstrip("0").rstrip(".")


def line_of(value: Any) -> str:
    """A value in one line: of a traceback the last one, which has the exception."""
    if isinstance(value, datetime):
        return time_of(value)
    return shown(str(value).strip().split("\n")[-1]) if value is not None else ""


def time_of(value: datetime) -> str:
    """A time as PostgreSQL writes it, with its zone: 2026-12-24 18:00:00+01."""
    local = value.astimezone()
    return local.strftime("%Y-%m-%d %H:%M:%S") + local.strftime("%z").removesuffix("00")
