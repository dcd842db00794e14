"""The tables of `pyworker top`: their rows, columns and keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from .._db.database import Database
from .._output import STYLES, rate_of, text_of

Row = dict[str, Any]

ROWS = 50  # jobs on a page
FILTERS = {
    "state": "states",
    "task": "tasks",
    "queue": "queues",
    "key": "job_key",
}  # filter prefix → argument of list_jobs


@dataclass(frozen=True)
class Page:
    """A table, as pages show it.

    It has columns (each a function of a row), the field that names a row, and the actions by key.
    """

    title: str
    rows: Callable[[Database], list[Row]]
    key: str
    columns: Mapping[str, Callable[[Row], Any]]
    keys: Mapping[str, Callable[[Row], str]]
    job: Callable[[Row], Any] = lambda _: None  # the job that Enter shows
    what: str = ""


def _of(name: str) -> Callable[[Row], Any]:
    return lambda row: row[name]


def _one(action: str) -> Callable[[Row], str]:
    return lambda _: action


def _about(name: str) -> Callable[[Row], Any]:
    return lambda row: f"{row[name]}{'' if row['exact'] else '+'}"


def _toggle(what: str) -> Callable[[Row], str]:
    return lambda row: f"{'resume' if row['paused'] else 'pause'}_{what}"


def _jobs(row: Row) -> list[Row]:
    return row["jobs"] or []


ON_A_JOB = {name: _one(name) for name in ("retry", "cancel", "force_cancel", "delete")}
PAGES = {
    "jobs": Page(
        "Jobs", lambda _: [], "id",
        {"id": _of("id"), "task": _of("task_identifier"), "state": _of("state"),
         "queue": _of("queue_name"), "key": _of("key"),
         "attempts": lambda row: f"{row['attempts']}/{row['max_attempts']}",
         "run at": _of("run_at"), "last error": _of("last_error")},
        ON_A_JOB, _of("id"), "job",
    ),
    "queues": Page(
        "Queues", lambda db: db.list_queues(limit=500), "queue_name",
        {"queue": _of("queue_name"),
         "concurrency": lambda row: "no limit" if row["concurrency"] is None else row["concurrency"],
         "paused": lambda row: "paused" if row["paused"] else "",
         "available": _about("available"), "running": _of("running"), "oldest": _of("oldest"),
         "rate": rate_of, "fair": lambda row: "fair" if row["fair"] else ""},
        {"pause": _toggle("queue")}, what="queue",
    ),
    "sequences": Page(
        "Sequences", lambda db: db.sequences(200), "sequence_key",
        {"halted by": _of("halted_by"), "reason": _of("reason"), "since": _of("since"),
         "running": _of("running"), "waiting": _about("waiting"), "sequence": _of("sequence_key")},
        {"pause": _one("resume_sequence")}, lambda row: row["halted_by"] or row["running"], "sequence",
    ),
    "schedules": Page(
        "Schedules", lambda db: db.schedules(), "name",
        {"name": _of("name"), "task": _of("identifier"), "cron": _of("cron"),
         "next": lambda row: "paused" if row["paused"] else row["next_at"],
         "last": _of("last_at"), "job": _of("last_job_id"),
         "when": lambda row: f"{row['words']} ({row['timezone']})", "problem": _of("last_error")},
        {"pause": _toggle("schedule"), "run": _one("run_schedule")}, _of("last_job_id"), "schedule",
    ),
    "workers": Page(
        "Workers", lambda db: db.list_workers(), "id",
        {"id": _of("id"), "host": lambda row: row["info"].get("host"),
         "pid": lambda row: row["info"].get("pid"),
         "since": _of("started_at"), "last beat": lambda row: "silent" if row["silent"] else row["beat_at"],
         "running": _of("running"),
         "what": lambda row: ", ".join(f"{job['task_identifier']} {job['id']}" for job in _jobs(row))},
        {}, lambda row: next((job["id"] for job in _jobs(row)), None), "worker",
    ),
}  # fmt: skip


def cell(value: Any, row: Row) -> Text:
    text = text_of(value)
    text.truncate(60, overflow="ellipsis")
    if style := STYLES.get(str(row.get("state")), "red" if row.get("halted_by") else ""):
        text.stylize(style)
    return text


def span(seconds: int) -> str:
    minutes, seconds = divmod(max(seconds, 0), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def filters(text: str) -> dict[str, Any]:
    """Parse a filter such as "state:discarded task:send mail" into arguments of list_jobs.

    Words without a known prefix are searched for.
    """
    found: dict[str, Any] = {}
    words: list[str] = []
    for word in text.split():
        name, colon, value = word.partition(":")
        argument = FILTERS.get(name) if colon and value else None
        if argument is None:
            words.append(word)
        elif argument.endswith("s"):
            found.setdefault(argument, []).append(value)
        else:
            found[argument] = value
    return found | ({"search": " ".join(words)} if words else {})
