"""The output of commands: lines and tables for people, JSON for machines."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import click

from ._db.rows import JobRow
from ._escape import shown, shown_json

FULL = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


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


def say(text: str, err: bool = False) -> None:
    """Print a line, with control characters escaped."""
    click.echo(shown(text), err=err)


def became(job: JobRow) -> str:
    """What became of a job."""
    return "is running and was asked to stop" if job.state == "running" else job.state


def print_json(value: Any) -> None:
    def dump(ensure_ascii: bool) -> str:
        return json.dumps(
            value,
            indent=2,
            ensure_ascii=ensure_ascii,
            default=_as_json,
        )

    try:
        text = dump(ensure_ascii=False)
        text.encode(sys.stdout.encoding or "utf-8")  # a StringIO has none
    except UnicodeEncodeError:  # half a surrogate pair, or an encoding without these characters
        text = dump(ensure_ascii=True)
    click.echo(shown_json(text))


def _as_json(value: Any) -> Any:
    if isinstance(value, JobRow):
        return dataclasses.asdict(value)
    return value.isoformat() if isinstance(value, datetime) else str(value)


def print_table(rows: Sequence[Mapping[str, Any]], nothing: str) -> None:
    if not rows:
        click.echo(nothing)
        return
    from ._tables import show

    show(rows)
