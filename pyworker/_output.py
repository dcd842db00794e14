"""The output of commands: tables for people, JSON for machines."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ._db.rows import JobRow
from ._escape import shown, shown_json

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
FULL = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class Screen(Console):
    """rich's console, which leaves a closed pipe to `unwritten`."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def open_streams() -> None:
    """Open closed standard streams (`>&-`) on the null device.

    Otherwise the next connection would get one of their numbers.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            nothing = os.open(os.devnull, os.O_RDWR)
            if nothing != number:
                os.dup2(nothing, number)
                os.close(nothing)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, mode))


def unwritten(error: BaseException) -> OSError | None:
    """The reason if standard output could not be written and that ended the command.

    Afterwards standard output is discarded.
    """
    if type(sys.stdout).__name__.endswith("PacifyFlushWrapper"):  # click has found the pipe closed
        return BrokenPipeError()
    found = error if isinstance(error, OSError) and error.errno in FULL and error.filename is None else None
    try:
        sys.stdout.flush()
    except OSError as again:
        found = again
    if found:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)
    return found


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


def say(text: str, err: bool = False) -> None:
    """Print a line, with control characters escaped."""
    click.echo(shown(text), err=err)


def report(jobs: Sequence[JobRow], machine: bool) -> None:
    """Print what became of jobs."""
    if machine:
        print_json([dataclasses.asdict(job) for job in jobs])
        return
    for job in jobs:
        asked = job.state == "running"
        say(f"job {job.id} is running and was asked to stop" if asked else f"job {job.id} {job.state}")


def print_json(value: Any) -> None:
    def dump(ensure_ascii: bool) -> str:
        return json.dumps(
            value,
            indent=2,
            ensure_ascii=ensure_ascii,
            default=lambda v: v.isoformat() if isinstance(v, datetime) else str(v),
        )

    try:
        text = dump(ensure_ascii=False)
        text.encode(sys.stdout.encoding)
    except UnicodeEncodeError:  # half a surrogate pair, or an encoding without these characters
        text = dump(ensure_ascii=True)
    click.echo(shown_json(text))


def print_table(rows: Sequence[Mapping[str, Any]], nothing: str) -> None:
    if not rows:
        click.echo(nothing)
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    texts = [[text_of(value) for value in row.values()] for row in rows]
    widths = [max(len(name), *(text[at].cell_len for text in texts)) for at, name in enumerate(rows[0])]
    for at, name in enumerate(rows[0]):
        number = all(isinstance(row[name], int) for row in rows)
        # Only the last column shrinks when the terminal is narrow.
        width = None if at == len(rows[0]) - 1 else widths[at]
        table.add_column(
            name.replace("_", " "),
            justify="right" if number else "left",
            min_width=width,
            overflow="ellipsis",
            no_wrap=True,
        )
    for row, text in zip(rows, texts, strict=True):
        table.add_row(*text, style=STYLES.get(str(row.get("state"))))
    console = Screen(highlight=False, width=None if sys.stdout.isatty() else 200)
    console.width = max(console.width, sum(width + 1 for width in widths[:-1]) + 20)
    console.print(table)


def text_of(value: Any) -> Text:
    if isinstance(value, datetime):
        return Text(time_of(value))
    lines = str(value).strip().split("\n") if value is not None else [""]
    return Text(shown(lines[-1]))  # the last line of a traceback has the exception


def time_of(value: datetime) -> str:
    """A time as PostgreSQL writes it, with its zone: 2026-12-24 18:00:00+01."""
    local = value.astimezone()
    return local.strftime("%Y-%m-%d %H:%M:%S") + local.strftime("%z").removesuffix("00")
