"""Draws a job between the jobs that it waits for and those that wait for it, as SVG."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from .._db.rows import JobRow

SHOWN = 6  # jobs on each side; the others are counted
MOST = 1000  # as many of a kind does the database return
BOX, HIGH, GAP, ROW = 216, 40, 96, 52  # pixels
Row = Mapping[str, Any]


def drawn(job: JobRow, rows: Sequence[Row], jobs: str) -> Markup | None:
    """None if the job waits for no other and no other for it. jobs: the address of a job without its id."""
    if not rows:
        return None
    before = [row for row in rows if row["side"] == "before"]
    after = [row for row in rows if row["side"] == "after"]
    high = ROW * max(_lines(before), _lines(after), 1)
    middle = (high - HIGH) / 2
    wide = 3 * BOX + 2 * GAP
    parts = [*_side(before, 0, middle, high, jobs), *_side(after, 2 * (BOX + GAP), middle, high, jobs)]
    here = {"id": job.id, "task_identifier": job.task_identifier, "state": job.state}
    parts.append(_box(here, BOX + GAP, middle, jobs))
    return Markup(
        '<svg class="graph" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}" role="img" '
        'aria-label="{label}">{parts}</svg>'
    ).format(
        wide=wide,
        high=high,
        label=f"Job {job.id} waits for {_many(before)} jobs; {_many(after)} jobs wait or waited for it",
        parts=Markup("").join(parts),
    )


def _lines(rows: Sequence[Row]) -> int:
    return min(len(rows), SHOWN + 1)


def _many(rows: Sequence[Row]) -> str:
    return f"{len(rows)}" if len(rows) < MOST else f"{MOST} or more"


def _side(rows: Sequence[Row], x: float, middle: float, high: float, jobs: str) -> list[Markup]:
    parts: list[Markup] = []
    y = (high - ROW * _lines(rows)) / 2 + (ROW - HIGH) / 2
    for row in rows[:SHOWN]:
        parts += [_line(x, y, middle, row["blocks"], row["condition"]), _box(row, x, y, jobs)]
        y += ROW
    if rest := rows[SHOWN:]:
        blocks = any(row["blocks"] for row in rest)
        states = Counter(row["state"] or "gone" for row in rest)
        words = ", ".join(f"{count} {state}" for state, count in states.most_common())
        parts += [
            _line(x, y, middle, blocks, "several"),
            _label(x, y, f"{'at least ' if len(rows) >= MOST else ''}{len(rest)} more", words),
        ]
    return parts


def _line(x: float, y: float, middle: float, blocks: bool, condition: str) -> Markup:
    """From the box at (x, y) to the job in the middle, or from it."""
    left, right = (BOX, BOX + GAP) if x == 0 else (2 * BOX + GAP, 2 * (BOX + GAP))
    start, end = (y, middle) if x == 0 else (middle, y)
    start, end, bend = start + HIGH / 2, end + HIGH / 2, (left + right) / 2
    return Markup(
        '<path class="{}" d="M{} {:.1f}C{} {:.1f} {} {:.1f} {} {:.1f}"><title>{}</title></path>'
    ).format("blocks" if blocks else "met", left, start, bend, start, bend, end, right, end, condition)


def _box(row: Row, x: float, y: float, jobs: str) -> Markup:
    name = row["task_identifier"]
    first = f"{row['id']} {name or ''}".strip()
    ref = f" · {row['ref']}" if row.get("ref") else ""
    label = _label(x, y, first, f"{row['state'] or 'gone'}{ref}")
    return Markup('<a href="{}{}">{}</a>').format(jobs, row["id"], label) if name else label


def _label(x: float, y: float, first: str, second: str) -> Markup:
    return Markup(
        '<g><title>{first} · {second}</title><rect x="{x}" y="{y:.1f}" width="{w}" height="{h}" rx="6"/>'
        '<text x="{tx}" y="{y1:.1f}">{short}</text><text class="dim" x="{tx}" y="{y2:.1f}">{state}</text></g>'
    ).format(
        first=first, second=second, x=x, y=y, w=BOX, h=HIGH, tx=x + 10, y1=y + 17, y2=y + 33,
        short=_cut(first), state=_cut(second),
    )  # fmt: skip


def _cut(text: str) -> str:
    return text if len(text) <= 27 else text[:26] + "…"
