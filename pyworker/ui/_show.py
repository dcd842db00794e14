"""Formats values for a page: times, spans of time, numbers and JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, cast

from markupsafe import Markup

from .._values import period_of, span


def utc(at: datetime | str | None) -> datetime | None:
    if isinstance(at, str):
        at = datetime.fromisoformat(at)
    return at.astimezone(UTC) if at else None


def period(time: timedelta | str | None) -> str:
    """The period of a rate; what a form gave stays as it is."""
    return period_of(time) if isinstance(time, timedelta) else time or ""


def ago(at: datetime | str | None, now: datetime) -> str:
    at = utc(at)
    if at is None:
        return "—"
    seconds = (now - at).total_seconds()
    if abs(seconds) < 1:
        return "now"
    return f"{span(float(int(seconds)))} ago" if seconds > 0 else f"in {span(float(int(-seconds)))}"


def when(at: datetime | str | None, now: datetime) -> Markup:
    """How long ago a time was; the time itself is in the title and the datetime attribute."""
    at = utc(at)
    if at is None:
        return Markup("—")
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        at.isoformat(), at.strftime("%Y-%m-%d %H:%M:%S UTC"), ago(at, now)
    )


def at_length(at: datetime | str | None, now: datetime) -> Markup:
    at = utc(at)
    if at is None:
        return Markup("—")
    return Markup('<time datetime="{}">{}</time> <span class="dim">{}</span>').format(
        at.isoformat(), at.strftime("%Y-%m-%d %H:%M:%S"), ago(at, now)
    )


def local(run: Mapping[str, Any]) -> str:
    """The time of a tick by the clock of its schedule, with that clock's distance from UTC."""
    offset = run["local_time"] - run["run_at"].astimezone(UTC).replace(tzinfo=None)
    return run["local_time"].replace(tzinfo=timezone(offset)).strftime("%a %H:%M%z").removesuffix("00")


def number(value: int, exact: bool = True) -> str:
    if exact:
        return f"{value:,}"
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"≈ {value / size:.3g} {unit}"
    return f"≈ {value}"


def pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> str:
    return str(value)


def size(count: float | None) -> str:
    """Bytes: 134217728 → '128 MB'."""
    if not count:
        return "—"
    mega = count / 2**20
    return f"{mega:.0f} MB" if mega < 1000 else f"{mega / 1024:.1f} GB"


def sequence_name(key: str) -> str:
    """The JSON key of a sequence_policy as text: its values, with their names."""
    try:
        value = json.loads(key)
    except ValueError:
        return key
    words = " · ".join(_words(value))
    return words or key


def told(outcome: str) -> str:
    """The outcome of an action without the name of the function that refused it."""
    return re.sub(r"^\w+: ", "", outcome)


def origin(text: str) -> str:
    """Where a schedule was declared: 'sql', 'crontab:NAME' or 'code:MODULE'."""
    kind, _, name = text.partition(":")
    return {
        "sql": "added by SQL",
        "crontab": f"from the crontab {name}",
        "code": f"from the code of {name}",
    }.get(kind, text)


def _words(value: Any) -> list[str]:
    if isinstance(value, dict):
        found: list[str] = []
        for name, part in cast("dict[str, Any]", value).items():
            inner = _words(part)
            found += inner if isinstance(part, dict) else [f"{name} {', '.join(inner)}"]
        return found
    if isinstance(value, list):
        return [word for part in cast("list[Any]", value) for word in _words(part)]
    return [value if isinstance(value, str) else json.dumps(value)]


def seconds_between(start: datetime | None, end: datetime | None) -> float | None:
    return max((end - start) / timedelta(seconds=1), 0.0) if start and end else None


def worker_facts(info: dict[str, Any]) -> dict[str, Any]:
    """What a worker reports about itself, as far as it has the form that pyworker's own gives it."""

    def number(name: str) -> Any:
        value = info.get(name)
        return value if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else None

    def texts(name: str) -> list[str]:
        value = info.get(name)
        return [str(item) for item in cast("list[Any]", value)] if isinstance(value, list) else []

    words = {name: str(info.get(name) or "") for name in ("name", "host", "pid", "version", "condition")}
    return words | {
        "concurrency": number("concurrency"), "memory": number("memory"),
        "queues": texts("queue_names"), "tasks": texts("task_identifiers"),
    }  # fmt: skip
