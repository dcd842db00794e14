"""`pyworker queues` and `pyworker sequences`: list them, and change one."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import click
import psycopg

from .._db.database import Database
from .._output import print_table, say
from .._values import period_of, rate_of
from .options import CliError, listing, verb


@listing
def queues(db: Database) -> Iterator[Any]:
    """List the queues that have jobs or limits, with their counts per state; or change one."""
    rows = db.queue_stats()
    yield rows
    for row in rows:
        row["concurrency"] = "no limit" if row["concurrency"] is None else str(row["concurrency"])
        row["paused"] = "yes" if row["paused"] else "no"
        row["rate"] = rate_of(row)
        row["fair"] = "yes" if row["fair"] else ""
        for column in ("rate_limit", "rate_period", "rate_used", "rate_left", "rate_free_at"):
            del row[column]
    for column in ("rate", "fair"):
        if not any(row[column] for row in rows):
            for row in rows:
                del row[column]
    print_table(rows, "no queue has jobs")
    if any(row["paused"] == "yes" for row in rows):
        say("\nTo resume a paused queue: pyworker queues resume QUEUE")


def _rate(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, str] | None:
    """`10/1m`: how many jobs, in which time. PostgreSQL reads the time."""
    if value is None:
        return None
    match = re.fullmatch(r"\s*(\d{1,10})\s*/\s*(\d*\.?\d*)\s*([a-z]+)\s*", value)
    if not match:
        raise click.BadParameter(f"{value!r} is no rate: write it like 10/1m, 5/s or 1000/24h", ctx, param)
    return match[1], f"{match[2] or 1} {match[3]}"


def _some_limit(concurrency: int | None, no_limit: bool, rate: Any, fair: bool, **_: Any) -> None:
    if concurrency is not None and no_limit:
        raise click.UsageError("name a number or --no-limit, not both")
    if concurrency is None and not (no_limit or rate or fair):
        raise click.UsageError("name a number, --no-limit, --rate or --fair")


@verb(queues, "set", changes=True, machine=False, check=_some_limit)
@click.argument("queue")
@click.argument("concurrency", type=click.IntRange(1), required=False)
@click.option("--no-limit", is_flag=True, help="Run any number of jobs at once.")
@click.option(
    "--rate", metavar="JOBS/TIME", callback=_rate, help="Start at most so many jobs in any such time: 10/1m."
)
@click.option("--fair", is_flag=True, help="Let the queues of a family take turns.")
def set_queue(
    db: Database, queue: str, concurrency: int | None, rate: tuple[str, str] | None, fair: bool, **_: Any
) -> Iterator[None]:
    """Run at most CONCURRENCY jobs of QUEUE at once.

    'customer:*' sets all queues with this prefix. Each call replaces all limits of the queue.
    """
    try:
        period = db.set_queue(queue, concurrency, rate, fair)
    except psycopg.DataError as error:
        raise CliError(f"--rate: {error.diag.message_primary}") from error
    yield
    limits = [
        "no limit" if concurrency is None else f"concurrency {concurrency}",
        *([f"at most {rate[0]} starts in any {period_of(period)}"] if rate and period else []),
        *(["its queues take turns"] if fair else []),
    ]
    say(f"queue {queue}: {', '.join(limits)}")


@verb(queues, "pause", changes=True, machine=False)
@click.argument("queue")
@click.option("--create", is_flag=True, help="Pause it even if it has had no job yet.")
def pause_queue(db: Database, queue: str, create: bool) -> Iterator[None]:
    """Start no further job of QUEUE. Running jobs finish, and jobs can be added."""
    known = create or db.queue_state(queue)["known"]
    db.pause_queue(queue)  # first, as it refuses names that no queue may have
    if not known:
        raise CliError(
            f"no queue {queue} has jobs or a limit (pyworker queues lists them);"
            " to pause it before its first job, say --create"
        )
    yield
    say(f"queue {queue} is paused")


@verb(queues, "resume", changes=True, machine=False)
@click.argument("queue")
def resume_queue(db: Database, queue: str) -> Iterator[None]:
    """Resume a paused QUEUE."""
    was = db.queue_state(queue)
    db.resume_queue(queue)
    if not was["known"]:
        raise CliError(f"no queue {queue} has jobs or a limit, or is paused (pyworker queues lists them)")
    yield
    if family := was["paused_family"]:
        raise CliError(
            f"queue {queue} stays paused, since its family {family} is paused:"
            f" pyworker queues resume {shlex.quote(family)}"
        )
    say(f"queue {queue} {'resumed' if was['paused'] else 'was not paused'}")


@listing
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1))
def sequences(db: Database, limit: int) -> Iterator[Any]:
    """List the sequences that have jobs to run, halted ones first; or resume one."""
    rows = db.sequences(limit)
    yield rows
    halted = next((row["halted_by"] for row in rows if row["halted_by"]), None)
    shown = [
        {
            "running": row["running"], "waiting": row["waiting"] if row["exact"] else f"{row['waiting']}+",
            "halted by": row["halted_by"], "reason": row["reason"],
            "since": row["since"], "sequence": row["sequence_key"],
        }
        for row in rows
    ]  # fmt: skip
    print_table(shown, "no sequence has jobs to run")
    if halted:
        say(
            f"\nTo resume a halted sequence: pyworker retry {halted} (the job that halted it),"
            " or pyworker sequences resume SEQUENCE (without it)"
        )


@verb(sequences, "resume", changes=True, machine=False)
@click.argument("sequence")
def resume_sequence(db: Database, sequence: str) -> Iterator[None]:
    """Resume a halted SEQUENCE with its next job. The job that halted it does not change."""
    if not db.resume_sequence(sequence):
        raise CliError(f"sequence {sequence} is not halted (pyworker sequences lists them)")
    yield
    say(f"sequence {sequence} resumed")
