"""`pyworker schedules`: list and change schedules, try a cron expression, load a crontab."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from .._db.database import Database
from .._output import became, print_table, say
from ..errors import InvalidArgument
from .crontab import load_crontab
from .options import CliError, does, listing, verb


@listing
def schedules(db: Database) -> Iterator[Any]:
    """List the schedules, or change one.

    The list has their task, their next and last tick, and their cron expression in words.
    """
    rows = db.schedules()
    yield rows
    shown = [
        {
            "name": row["name"], "task": row["identifier"], "cron": row["cron"],
            "next": "paused" if row["paused"] else row["next_at"],
            "last": row["last_at"], "job": row["last_job_id"], "origin": row["origin"],
            "when": f"{row['words']} ({row['timezone']})"
                    + (f"; failed: {row['last_error']}" if row["last_error"] else ""),
        }
        for row in rows
    ]  # fmt: skip
    print_table(shown, "there are no schedules: SELECT pyworker.add_schedule(name, cron, task) adds one")


@verb(schedules, "next")
@click.argument("schedule")
@click.option("--timezone", default="UTC", show_default=True, help="Time zone of a cron expression.")
@click.option("-n", "--number", "n", default=5, show_default=True, type=click.IntRange(1, 1000))
def show_next(db: Database, schedule: str, timezone: str, n: int) -> Iterator[Any]:
    """Show the next ticks of SCHEDULE, a name or a cron expression, and describe it in words.

    Changes nothing.
    """
    try:
        rows = db.next_runs(schedule, timezone, n)
    except InvalidArgument as error:
        if schedule.startswith("@") or " " in schedule.strip():
            raise
        raise CliError(f"{schedule!r} is neither a schedule nor a valid cron expression: {error}") from None
    about = {name: rows[0][name] for name in ("cron", "timezone", "words")}
    runs = [{name: row[name] for name in ("run_at", "local_time")} for row in rows if row["run_at"]]
    yield {**about, "runs": runs}
    say(f"{about['words']} ({about['timezone']})")
    for run in runs:
        say(f"  {run['local_time']:%a %Y-%m-%d %H:%M}")


@verb(schedules, "load", machine=False)
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--dry-run", is_flag=True, help="Show what would change; change nothing.")
def load(db: Database, file: str, dry_run: bool) -> Iterator[None]:
    """Load the schedules of FILE, a crontab in Graphile Worker's format, into the database.

    Removes schedules that were loaded from a file of this name and are no longer in it; other
    schedules do not change.
    """
    done = load_crontab(db, file, dry_run)
    yield
    for row in done:
        say(f"{row['name']}: {'would be ' if dry_run else ''}{row['action']}")
    plural = "" if len(done) == 1 else "s"
    say(f"{len(done)} schedule{plural}{', nothing was changed' if dry_run else ''}")


@verb(schedules, "run", changes=True)
@click.argument("schedule")
def run(db: Database, schedule: str) -> Iterator[Any]:
    """Fire SCHEDULE now, as at one of its ticks."""
    jobs = db.run_schedule(schedule)
    yield jobs
    for job in jobs:
        say(f"job {job.id} {became(job)}")


does(
    schedules, "pause", Database.pause_schedule, "is paused",
    "Pause SCHEDULE until you resume it.",
)  # fmt: skip
does(
    schedules, "resume", Database.resume_schedule, "resumed",
    "Resume a paused SCHEDULE at its next tick. Ticks during the pause are skipped.",
)  # fmt: skip
does(
    schedules, "remove", Database.remove_schedule, "removed",
    "Remove SCHEDULE. The jobs that it has added stay.",
)  # fmt: skip
