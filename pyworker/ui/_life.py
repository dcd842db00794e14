"""The timeline of a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from .._db.rows import JobRow
from .._values import line_of

TOGETHER = 3  # from so many failures in a row with one text on, they are one event


@dataclass
class Event:
    name: str
    at: datetime
    detail: str | None = None
    since: datetime | None = None  # of several equal events, when the first one was
    times: int = 1


def events(job: JobRow, errors: Sequence[Mapping[str, Any]]) -> list[Event]:
    """What happened to the job, oldest first. Equal failures in a row are folded into one event."""
    found = [Event("created", job.created_at)]
    if job.run_at != job.created_at:
        found.append(Event("due", job.run_at))
    found += _failures(errors)
    if job.locked_at:
        found.append(Event("claimed", job.locked_at, f"by worker {job.locked_by}"))
    if job.finished_at:
        found.append(Event(job.state, job.finished_at, job.reason if job.reason != job.state else None))
    return sorted(found, key=lambda event: event.at)


def _failures(errors: Sequence[Mapping[str, Any]]) -> list[Event]:
    groups: list[list[Mapping[str, Any]]] = []
    for error in errors:
        if groups and line_of(groups[-1][0]["error"]) == line_of(error["error"]):
            groups[-1].append(error)
        else:
            groups.append([error])
    found: list[Event] = []
    for group in groups:
        last_line = line_of(group[0]["error"])
        if len(group) < TOGETHER:
            found += [Event("failed", error["at"], last_line) for error in group]
        else:
            found.append(Event("failed", group[-1]["at"], last_line, group[0]["at"], len(group)))
    return found
