"""The two plots of the overview, as SVG: jobs for each step of time, and how long they waited and ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from markupsafe import Markup

from ._show import number, span

WIDTH, HEIGHT, TOP, LEFT, FOOT = 720, 220, 12, 84, 24
INNER, FLOOR = WIDTH - LEFT - 4, HEIGHT - FOOT
Row = Mapping[str, Any]

# The ranges to choose from: their names, minutes, minutes of a step, and the words after "in the last".
RANGES = {
    "15m": ("15 min", 15, 1, "15 minutes"),
    "1h": ("1 h", 60, 1, "hour"),
    "24h": ("24 h", 1440, 15, "24 hours"),
    "7d": ("7 d", 10080, 120, "7 days"),
}
_SECONDS = (0.001, 0.01, 0.1, 1, 10, 60, 600, 3600, 6 * 3600, 86400)  # the lines of the scale of times
_KINDS = ("completed", "cancelled", "failed")


def bars(rows: Sequence[Row], step: int) -> Markup:
    """A column for each step: completed, cancelled and failed, stacked.

    A peak that would flatten the others is cut off at the top, and marked with its number.
    """
    sums = [sum(row[kind] for kind in _KINDS) for row in rows]
    top = _top(sums)
    wide = INNER / len(rows)
    parts: list[Markup] = []
    for at, (row, total) in enumerate(zip(rows, sums, strict=True)):
        x, base = LEFT + at * wide, float(FLOOR)
        columns: list[Markup] = []
        for kind in _KINDS:
            if row[kind] and base > TOP:
                height = min(max(row[kind] / top * (FLOOR - TOP), 1.5), base - TOP)
                base -= height
                columns.append(
                    Markup('<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>').format(
                        kind, x + 0.5, base, max(wide - 1, 0.8), height
                    )
                )
        if total > top and total == max(sums):
            side, edge = ("end", x - 4) if x > WIDTH / 2 else ("start", x + wide + 4)
            words = Markup('<text class="peak" text-anchor="{}" x="{:.1f}" y="{}">▲ {}</text>')
            columns.append(words.format(side, edge, TOP + 16, number(total)))
        words = f"{row['completed']:,} completed, {row['cancelled']:,} cancelled"
        words += f", {row['failed']:,} failed attempts"
        parts.append(_hit(x, wide, f"{_named(row['minute'], step)} · {words}", Markup("").join(columns)))
    lines = [(FLOOR - value / top * (FLOOR - TOP), number(value)) for value in _ticks(top)]
    return _plot("Jobs over time", lines, parts, rows, step)


def lines(rows: Sequence[Row], columns: Mapping[str, str], step: int) -> Markup:
    """Seconds for each step on a logarithmic scale, so that milliseconds show beside minutes."""
    values = [row[column] for row in rows for column in columns if row[column] is not None]
    low = max([s for s in _SECONDS if s <= min([*values, 0.1])] or [_SECONDS[0]])
    high = min([s for s in _SECONDS if s > max([*values, low])] or [_SECONDS[-1]])
    scale = [s for s in _SECONDS if low <= s <= high]

    def y(seconds: float) -> float:
        """Between two lines of the scale, by the logarithm."""
        from math import log

        seconds = min(max(seconds, low), high)
        return FLOOR - (log(seconds / low) / log(high / low)) * (FLOOR - TOP)

    wide = INNER / len(rows)
    parts: list[Markup] = []
    for column, kind in columns.items():
        pen, path = "M", ""
        for at, row in enumerate(rows):
            if row[column] is None:
                pen = "M"
                continue
            x = LEFT + (at + 0.5) * wide
            # A step between empty ones is a dash.
            path += (
                f"{pen}{x - 2:.1f} {y(row[column]):.1f}L{x + 2:.1f} {y(row[column]):.1f}"
                if pen == "M"
                else f"L{x:.1f} {y(row[column]):.1f}"
            )
            pen = "L"
        parts.append(Markup('<path class="{}" d="{}"/>').format(kind, path or "M0 0"))
    for at, row in enumerate(rows):
        words = ", ".join(f"{kind} {span(row[column])}" for column, kind in columns.items())
        parts.append(_hit(LEFT + at * wide, wide, f"{_named(row['minute'], step)} · {words}", Markup("")))
    return _plot(
        "Waiting and running times", [(y(seconds), span(seconds)) for seconds in scale], parts, rows, step
    )


def _top(sums: Sequence[int]) -> int:
    """Where the scale of the columns ends: above all, or above the busy ones if one towers over them."""
    busy = sorted(value for value in sums if value)
    most = busy[-1] if busy else 1
    usual = busy[len(busy) * 9 // 10] if len(busy) > 9 else most
    most = usual * 2 if most > usual * 4 else most
    size = 10 ** (len(str(most)) - 1)
    return next(size * n // 2 for n in (2, 4, 6, 10, 20) if size * n // 2 >= most) if most > 5 else 5


def _ticks(top: int) -> list[int]:
    quarter = top / 4
    return [int(quarter * n) for n in range(5)] if quarter == int(quarter) else [0, top // 2, top]


def _hit(x: float, wide: float, words: str, inside: Markup) -> Markup:
    """A column that shows these words when the pointer is on it."""
    return Markup(
        '<g><rect class="hit" x="{:.1f}" y="0" width="{:.1f}" height="{}"/>{}<title>{}</title></g>'
    ).format(x, wide, FLOOR, inside, words)


def _named(at: datetime, step: int) -> str:
    at = at.astimezone(UTC)
    end = at + timedelta(minutes=step)
    return f"{at:%H:%M}" if step == 1 else f"{at:%a %H:%M} to {end:%H:%M}"


def _plot(
    label: str, grid: Sequence[tuple[float, str]], parts: Sequence[Markup], rows: Sequence[Row], step: int
) -> Markup:
    wide = INNER / len(rows)
    # A label where the clock is at a round time, some six in all.
    every = next((n for n in (1, 5, 10, 15, 30, 60, 240, 1440) if len(rows) * step / n <= 7), 1440)
    ticks = Markup("").join(
        Markup('<text class="tick" x="{:.1f}" y="{}">{}</text>').format(
            LEFT + at * wide, FLOOR + 18, f"{when:%a}" if every == 1440 else f"{when:%H:%M}"
        )
        for at, row in enumerate(rows)
        if (when := row["minute"].astimezone(UTC)) and (when.hour * 60 + when.minute) % every == 0
        and 0.02 < at / len(rows) < 0.98
    )  # fmt: skip
    across = Markup("").join(
        Markup(
            '<line class="grid" x1="{}" y1="{:.1f}" x2="{}" y2="{:.1f}"/>'
            '<text class="of" x="{}" y="{:.1f}">{}</text>'
        ).format(LEFT, y, WIDTH - 4, y, LEFT - 6, y + 4, words)
        for y, words in grid
    )  # fmt: skip
    return Markup('<svg class="plot" viewBox="0 0 {} {}" role="img" aria-label="{}">{}{}{}</svg>').format(
        WIDTH, HEIGHT, label, across, Markup("").join(parts), ticks
    )
