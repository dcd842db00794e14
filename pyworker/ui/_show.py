"""Formats values for a page: times, spans of time, numbers, JSON, and plots as SVG."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from markupsafe import Markup

_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
WIDTH, HEIGHT, TOP = 720, 150, 16


def utc(at: datetime | str | None) -> datetime | None:
    if isinstance(at, str):
        at = datetime.fromisoformat(at)
    return at.astimezone(UTC) if at else None


def span(seconds: float | None) -> str:
    """5400 → '1 h 30 min'."""
    if seconds is None:
        return "—"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{round(seconds, 1):g} s"
    whole = int(seconds)
    for (size, unit), (smaller, name) in pairwise(_UNITS):
        if whole >= size:
            rest = whole % size // smaller if whole < 10 * size else 0
            return f"{whole // size} {unit}" + (f" {rest} {name}" if rest else "")
    return f"{whole} s"


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


def bars(rows: Sequence[Mapping[str, Any]]) -> Markup:
    """A column for each minute: completed, cancelled and failed, stacked."""
    most = max([row["completed"] + row["cancelled"] + row["failed"] for row in rows] + [1])
    step = WIDTH / len(rows)
    parts: list[Markup] = []
    for at, row in enumerate(rows):
        base = float(HEIGHT)
        title = Markup("<title>{} · {} completed, {} cancelled, {} failed attempts</title>").format(
            _minute(row["minute"]), row["completed"], row["cancelled"], row["failed"]
        )
        rects = [
            Markup('<rect class="hit" x="{:.1f}" y="0" width="{:.1f}" height="{}"/>').format(
                at * step, step, HEIGHT
            )
        ]
        for kind in ("completed", "cancelled", "failed"):
            if row[kind]:
                height = max(row[kind] / most * (HEIGHT - TOP), 1.5)
                base -= height
                rects.append(
                    Markup('<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>').format(
                        kind, at * step + 1, base, step - 2, height
                    )
                )
        parts.append(Markup("<g>{}{}</g>").format(Markup("").join(rects), title))
    return _plot("Jobs per minute in the last hour", parts, number(most), rows)


def lines(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> Markup:
    """Seconds for each minute on a square-root scale, so that seconds show beside minutes."""
    values = [row[column] for row in rows for column in columns if row[column] is not None]
    most = max([*values, 0.1])
    step = WIDTH / len(rows)

    def y(seconds: float) -> float:
        return HEIGHT - 3 - (seconds / most) ** 0.5 * (HEIGHT - TOP - 3)

    parts: list[Markup] = []
    for column, kind in columns.items():
        pen, path = "M", ""
        for at, row in enumerate(rows):
            if row[column] is None:
                pen = "M"
                continue
            x = (at + 0.5) * step
            # A minute between empty ones is a dash.
            path += (
                f"{pen}{x - 2:.1f} {y(row[column]):.1f}L{x + 2:.1f} {y(row[column]):.1f}"
                if pen == "M"
                else f"L{x:.1f} {y(row[column]):.1f}"
            )
            pen = "L"
        parts.append(Markup('<path class="{}" d="{}"/>').format(kind, path or "M0 0"))
    for at, row in enumerate(rows):
        parts.append(
            Markup(
                '<g><rect class="hit" x="{:.1f}" y="0" width="{:.1f}" height="{}"/><title>{} · {}</title></g>'
            ).format(
                at * step,
                step,
                HEIGHT,
                _minute(row["minute"]),
                ", ".join(f"{kind} {span(row[column])}" for column, kind in columns.items()),
            )
        )
    return _plot("Waiting and running times in the last hour", parts, span(most), rows)


def _minute(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%H:%M")


def _plot(label: str, parts: Sequence[Markup], most: str, rows: Sequence[Mapping[str, Any]]) -> Markup:
    ticks = Markup("").join(
        Markup('<text class="tick" x="{:.1f}" y="{}">{}</text>').format(
            (at + 0.5) * WIDTH / len(rows), HEIGHT + 14, _minute(row["minute"])
        )
        for at, row in enumerate(rows)
        if row["minute"].minute % 15 == 0 and 0.03 < at / len(rows) < 0.97
    )
    return Markup(
        '<svg class="plot" viewBox="0 0 {w} {full}" role="img" aria-label="{label}">'
        '<line class="axis" x1="0" y1="{h}" x2="{w}" y2="{h}"/>'
        '{parts}{ticks}<text class="most" x="2" y="11">{most}</text></svg>'
    ).format(
        w=WIDTH, h=HEIGHT, full=HEIGHT + 18, label=label, parts=Markup("").join(parts), ticks=ticks, most=most
    )


def seconds_between(start: datetime | None, end: datetime | None) -> float | None:
    return max((end - start) / timedelta(seconds=1), 0.0) if start and end else None
