"""The tables of `pyworker top`: their rows, columns and keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rich.text import Text

from .._db.database import Database
from .._tables import text_of
from .._values import STYLES, rate_of, span

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
    job: Callable[[Row], Any] | None = None  # the job that Enter shows
    what: str = ""


def _of(name: str) -> Callable[[Row], Any]:
    return lambda row: row[name]


def _one(action: str) -> Callable[[Row], str]:
    return lambda _: action


def _about(name: str) -> Callable[[Row], Any]:
    return lambda row: f"{row[name]}{'' if row['exact'] else '+'}"


def _toggle(what: str) -> Callable[[Row], str]:
    return lambda row: f"{'resume' if row['paused'] else 'pause'}_{what}"


def _load(used: str, most: str, unlimited: str) -> Callable[[Row], str]:
    """ "6 of 12"."""
    return lambda row: f"{row[used]} of {row[most]}" if row.get(most) else f"{row[used]} {unlimited}".rstrip()


def _seconds(name: str) -> Callable[[Row], str]:
    return lambda row: "" if row[name] is None else span(row[name])


def _mega(size: Any) -> str:
    return f"{size / 2**20:,.0f} MB" if isinstance(size, int | float) else ""


def _slowest(db: Database) -> list[Row]:
    """What ran in the last hour, the slowest tasks first."""
    return sorted(db.activity("task", 60, 50), key=lambda row: row["ran_p95"] or 0, reverse=True)


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
        "Queues", lambda db: db.list_queues(None, 200), "queue_name",
        {"queue": _of("queue_name"), "running": _load("running", "concurrency", "no limit"),
         "available": _about("available"), "oldest": _of("oldest"),
         "paused": lambda row: "paused" if row["paused"] else "",
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
    "tasks": Page(
        "Tasks", lambda db: _slowest(db), "name",
        {"task": _of("name"), "completed/h": _about("completed"), "failed/h": _about("failed"),
         "waited p95": _seconds("waited_p95"), "ran p50": _seconds("ran_p50"),
         "ran p95": _seconds("ran_p95"), "ran in all": _seconds("ran_total")},
        {}, what="task",
    ),
    "workers": Page(
        "Workers", lambda db: db.list_workers(), "id",
        {"id": _of("id"), "host": lambda row: row["info"].get("host"),
         "pid": lambda row: row["info"].get("pid"),
         "since": _of("started_at"), "last beat": lambda row: "silent" if row["silent"] else row["beat_at"],
         "load": lambda row: _load("running", "concurrency", "")(row["info"] | {"running": row["running"]}),
         "memory": lambda row: _mega(row["info"].get("memory")),
         "version": lambda row: row["info"].get("version"),
         "what": lambda row: ", ".join(f"{job['task_identifier']} {job['id']}" for job in _jobs(row))},
        {}, lambda row: next((job["id"] for job in _jobs(row)), None), "worker",
    ),
}  # fmt: skip


def cell(value: Any, row: Row) -> Text:
    text = Text(_short(value)) if isinstance(value, datetime) else text_of(value)
    text.truncate(60, overflow="ellipsis")
    if style := STYLES.get(str(row.get("state")), "red" if row.get("halted_by") else ""):
        text.stylize(style)
    return text


def _short(at: datetime) -> str:
    """A time of today as 18:00:00, another one as 12-24 18:00, so that a row fits on 80 columns."""
    local, now = at.astimezone(), datetime.now().astimezone()
    if local.date() == now.date():
        return f"{local:%H:%M:%S}"
    return f"{local:%m-%d %H:%M}" if local.year == now.year else f"{local:%Y-%m-%d}"


def lately(db: Database) -> Row:
    """How many jobs a minute were completed, and attempts failed, in the last five."""
    rows = db.throughput(6, 1)[:-1]  # without the minute that has just begun
    return {
        "completed": sum(row["completed"] for row in rows) / len(rows),
        "failed": sum(row["failed"] for row in rows) / len(rows),
        "exact": rows[0]["exact"],
    }


def packed(parts: Sequence[Text], width: int) -> Text:
    """The parts in lines of this width; none is broken."""
    text, used = Text(), 0
    for part in parts:
        if used and used + 2 + len(part) > width:
            text.append("\n")
            used = 0
        elif used:
            text.append("  ")
            used += 2
        text.append_text(part)
        used += len(part)
    return text


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
