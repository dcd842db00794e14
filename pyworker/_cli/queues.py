"""`pyworker queues` and `pyworker sequences`: list them, and change one."""

from __future__ import annotations

import click

from .._db.database import Database
from .._output import print_json, print_table, say
from .options import CliError, as_json, database, part_of_group, reads, verb


@click.group(invoke_without_command=True)
@reads
@as_json
@click.pass_context
def queues(ctx: click.Context, dsn: str, schema: str, machine: bool) -> None:
    """List the queues that have jobs or limits, with their counts per state; or change one."""
    ctx.obj = (dsn, schema)
    if ctx.invoked_subcommand:
        return
    with database(dsn, schema) as db:
        rows = db.queue_stats()
    if machine:
        print_json(rows)
        return
    for row in rows:
        row["concurrency"] = "no limit" if row["concurrency"] is None else str(row["concurrency"])
        row["paused"] = "yes" if row["paused"] else "no"
    print_table(rows, "no queue has jobs")
    if any(row["paused"] == "yes" for row in rows):
        say("\nTo resume a paused queue: pyworker queues resume QUEUE")


@queues.command("set")
@click.argument("queue")
@click.argument("concurrency", type=click.IntRange(1), required=False)
@click.option("--no-limit", is_flag=True, help="Run any number of jobs at once.")
@part_of_group
def set_queue(where: tuple[str, str], queue: str, concurrency: int | None, no_limit: bool) -> None:
    """Run at most CONCURRENCY jobs of QUEUE at once.

    'customer:*' sets all queues with this prefix.
    """
    if (concurrency is None) != no_limit:
        raise click.UsageError("name a number, or --no-limit")
    with database(*where) as db:
        db.set_queue(queue, concurrency)
    say(f"queue {queue}: {'no limit' if no_limit else f'concurrency {concurrency}'}")


@queues.command("pause")
@click.argument("queue")
@click.option("--create", is_flag=True, help="Pause it even if it has had no job yet.")
@part_of_group
def pause_queue(where: tuple[str, str], queue: str, create: bool) -> None:
    """Start no further job of QUEUE. Running jobs finish, and jobs can be added."""
    with database(*where) as db:
        known = create or db.has_queue(queue)
        db.pause_queue(queue)  # first, as it refuses names that no queue may have
        if not known:
            raise CliError(
                f"no queue {queue} has jobs or a limit (pyworker queues lists them);"
                " to pause it before its first job, say --create"
            )
    say(f"queue {queue} is paused")


verb(queues, "resume", Database.resume_queue, "resumed", "Resume a paused QUEUE.")


@click.group(invoke_without_command=True)
@reads
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1))
@as_json
@click.pass_context
def sequences(ctx: click.Context, dsn: str, schema: str, limit: int, machine: bool) -> None:
    """List the sequences that have jobs to run, halted ones first; or resume one."""
    ctx.obj = (dsn, schema)
    if ctx.invoked_subcommand:
        return
    with database(dsn, schema) as db:
        rows = db.sequences(limit)
    if machine:
        print_json(rows)
        return
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


@sequences.command("resume")
@click.argument("sequence")
@part_of_group
def resume_sequence(where: tuple[str, str], sequence: str) -> None:
    """Resume a halted SEQUENCE with its next job. The job that halted it does not change."""
    with database(*where) as db:
        resumed = db.resume_sequence(sequence)
    if not resumed:
        raise CliError(f"sequence {sequence} is not halted (pyworker sequences lists them)")
    say(f"sequence {sequence} resumed")
