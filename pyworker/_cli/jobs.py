"""The commands for jobs: add, jobs, retry, signal, cancel, delete, remove, explain."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import click
import psycopg

from .._db.rows import JobRow
from .._escape import shown
from .._output import print_json, print_table, report, say
from .._payload import JsonText
from .._values import ENDED, STATES, time_of
from ..errors import NotFound, PyworkerError
from .job import show_job
from .offers import as_commands
from .options import CliError, as_json, database, reads, writes

JOB_ID = click.IntRange(1, 2**63 - 1)


class _ParentId(click.IntRange):
    """One job's id. Says what to do when a list is given."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if any(sign in str(value) for sign in ",["):
            self.fail(f"give --depends-on and an id once for each job, got {value!r}", param, ctx)
        return super().convert(value, param, ctx)


PARENT_ID = _ParentId(1, 2**63 - 1)


@click.command()
@click.argument("task")
@click.argument("payload", default="{}")
@writes
@click.option("--queue", "queue_name", help="Jobs of one queue run one after another by default.")
@click.option(
    "--run-at", help="Run not before this time, in PostgreSQL's syntax: '2026-12-24 18:00', 'tomorrow'."
)
@click.option("--delay", help="Run after this time: seconds, or '10 minutes'.")
@click.option("--expires-at", help="Cancel it if it has not begun by this time.")
@click.option("--max-wait", help="With --key: run within this time of its first add: '30 seconds'.")
@click.option("--max-attempts", type=int)
@click.option("--key", "job_key", help="Replace the waiting job with this key.")
@click.option(
    "--key-mode", "job_key_mode", type=click.Choice(["replace", "preserve_run_at", "unsafe_dedupe"])
)
@click.option("--priority", type=int, help="Smaller runs first.")
@click.option("--flag", "flags", multiple=True)
@click.option("--meta", help="A JSON object.")
@click.option(
    "--delivery",
    type=click.Choice(["at_least_once", "at_most_once"]),
    help="at_most_once: a job whose worker dies is not run again.",
)
@click.option("--unique-policy", help="A unique_policy, a JSON object: do not add a duplicate.")
@click.option(
    "--sequence-policy",
    help="A sequence_policy, a JSON object: run jobs with the same key one at a time, in order.",
)
@click.option(
    "--depends-on",
    "parents",
    multiple=True,
    type=PARENT_ID,
    help="Run only after the job with this id was completed. Can be repeated.",
)
@as_json
def add(
    task: str,
    payload: str,
    dsn: str,
    schema: str,
    machine: bool,
    flags: tuple[str, ...],
    meta: str | None,
    unique_policy: str | None,
    sequence_policy: str | None,
    parents: tuple[int, ...],
    **options: Any,
) -> None:
    """Add a job of TASK with PAYLOAD, a JSON text ("-" reads it from standard input)."""
    value = _parsed("PAYLOAD", sys.stdin.read() if payload == "-" else payload)
    if options["run_at"] is not None and options["delay"] is not None:
        raise click.UsageError("give --run-at or --delay, not both")
    options["depends_on"] = list(parents) or None
    options |= {"flags": flags or None, "meta": None if meta is None else _parsed("--meta", meta)}
    options["unique_policy"] = None if unique_policy is None else _parsed("--unique-policy", unique_policy)
    options["sequence_policy"] = (
        None if sequence_policy is None else _parsed("--sequence-policy", sequence_policy)
    )
    with database(dsn, schema) as db:
        try:
            job = db.add_job(task, value, **options)
        except psycopg.DataError as error:
            raise _named(error, options) from error
        except NotFound as error:
            raise _without_parent(error) from error
        untaken = None if machine else db.beside(lambda: db.why_untaken(job.id))
    if machine:
        print_json(dataclasses.asdict(job))
    else:
        there = " (was there already)" if job.deduplicated else ""
        due = f", due {time_of(job.run_at)}" if job.state == "scheduled" else ""
        halted = f", its sequence is halted by job {job.sequence_halted_by}" if job.sequence_halted_by else ""
        click.echo(f"job {job.id} {job.state}{there}{due}{halted}")
        if untaken:
            say(f"pyworker: {untaken}", err=True)


def _named(error: psycopg.DataError, options: dict[str, Any]) -> Exception:
    """The error of a time that PostgreSQL cannot read, with its option."""
    for name in ("run_at", "delay", "expires_at", "max_wait"):
        if options[name] is not None and f'"{options[name]}"' in str(error):
            return CliError(f"--{name.replace('_', '-')}: {error.diag.message_primary}")
    return error


def _without_parent(error: NotFound) -> Exception:
    """The error of a job to wait for that does not exist, with its option and what to do."""
    _, depends_on, missing = str(error).partition("depends_on: ")
    if not depends_on:
        return error
    return CliError(f"--depends-on: {missing}; give ids that `pyworker jobs` lists")


def _parsed(name: str, text: str) -> JsonText:
    """Check the JSON; the database gets the text exactly as given."""
    try:
        json.loads(text, parse_int=str, parse_constant=_refuse)
    except RecursionError:
        raise click.UsageError(f"{name} is nested too deeply: 100 levels are the limit") from None
    except ValueError as error:
        example = """, such as '{"to": "ada@example.org"}'""" if name == "PAYLOAD" else ""
        raise click.UsageError(f"{name} is not JSON{example}: {error}") from error
    return JsonText(text)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is none of its numbers")


@click.command()
@click.argument("job_id", type=JOB_ID, required=False)
@reads
@click.option("--state", "states", multiple=True, type=click.Choice([*STATES, "active"]))
@click.option("--task", "tasks", multiple=True)
@click.option("--queue", "queues", multiple=True)
@click.option("--key")
@click.option("--waiting-for", "parent", type=JOB_ID, help="Jobs that wait for the job with this id.")
@click.option("--lost", is_flag=True, help="Jobs with delivery at_most_once that were lost, done or not.")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1))
@as_json
def jobs(
    job_id: int | None, dsn: str, schema: str, states: Sequence[str], tasks: Sequence[str],
    queues: Sequence[str], key: str | None, parent: int | None, lost: bool, limit: int, machine: bool,
) -> None:  # fmt: skip
    """List jobs, newest first, or show one job with its steps and the errors of its attempts.

    Finished jobs are included.
    """
    others = job_id or states or tasks or queues or key
    if (parent is not None and (others or lost)) or (lost and others):
        name = "--waiting-for" if parent is not None else "--lost"
        raise click.UsageError(f"{name} cannot be combined with an ID or other filters")
    with database(dsn, schema) as db:
        if job_id is not None:
            show_job(db, job_id, machine)
            return
        if parent is not None:
            rows = db.jobs_waiting_for(parent, limit)
        elif lost:
            rows = db.lost_jobs(limit)
        else:
            rows = db.list_jobs(states=states, tasks=tasks, queues=queues, key=key, limit=limit)
    if machine:
        print_json(rows)
        return
    shown = [
        {
            "id": row["id"], "task": row["task_identifier"], "state": row["state"],
            "queue": row["queue_name"], "key": row["key"],
            "attempts": f"{row['attempts']}/{row['max_attempts']}",
            "run at": row["run_at"], "last error": row["last_error"],
        }
        for row in rows
    ]  # fmt: skip
    print_table(
        shown,
        "no jobs" + (" match" if others or parent or lost else " yet: pyworker add TASK adds one"),
    )


@contextmanager
def _all_or_none(job_ids: Sequence[int]) -> Iterator[None]:
    """The error of one job of several says that the others are as they were."""
    try:
        yield
    except PyworkerError as error:
        if len(job_ids) > 1:
            error.hint = " ".join((*([error.hint] if error.hint else []), "No job was changed."))
        raise


@click.command()
@click.argument("job_ids", type=JOB_ID, nargs=-1, required=True)
@writes
@click.option("--lost", "with_lost", is_flag=True, help="Of several jobs: also those that were lost.")
@as_json
def retry(job_ids: tuple[int, ...], dsn: str, schema: str, with_lost: bool, machine: bool) -> None:
    """Run discarded and finished jobs again, and waiting jobs now.

    A job that was lost (delivery at_most_once) may have been done. Of several jobs those are left out,
    unless --lost is given.

    Exit code 1: a job was available already, or was left out.
    """
    with database(dsn, schema) as db:
        idle = {job_id for job_id, state in db.states(job_ids).items() if state == "available"}
        lost = [] if with_lost or len({*job_ids}) == 1 else db.lost_among(job_ids)
        with _all_or_none(job_ids):
            retried = db.each(*(partial(db.retry_job, job_id) for job_id in job_ids if job_id not in lost))
    if machine:
        report(retried, machine)
    for job in retried if not machine else ():
        if job.id in idle:
            say(f"job {job.id} was already {job.state}: nothing to retry", err=True)
        else:
            report([job], machine)
    if lost:
        ids = ", ".join(str(job_id) for job_id in lost)
        count = "1 job that was lost and" if len(lost) == 1 else f"{len(lost)} jobs that were lost and"
        say(
            f"pyworker: left out {count} may have been done: {ids}."
            " Look at each, and retry it alone; or give --lost",
            err=True,
        )
    if idle or lost:
        raise SystemExit(1)


BECAME = {
    "answered": ", the job's wait gets it",
    "kept": " for a wait to come",
    "ignored": ", since one of that name is kept already",
}


@click.command()
@click.argument("job_id", type=JOB_ID)
@click.argument("name")
@click.argument("payload", default="null")
@writes
@as_json
def signal(job_id: int, name: str, payload: str, dsn: str, schema: str, machine: bool) -> None:
    """Send the signal NAME to a job that waits for it (job.wait_for), or will.

    PAYLOAD is a JSON text, which the job gets as the answer ("-" reads it from standard input).
    """
    value = _parsed("PAYLOAD", sys.stdin.read() if payload == "-" else payload)
    with database(dsn, schema) as db:
        became = db.send_signal(job_id, name, value)
        job = db.beside(lambda: db.get_job(job_id))
    if machine:
        print_json({**(dataclasses.asdict(job) if job else {"id": job_id}), "signal": became})
    else:
        about = f" ({job.task_identifier}, {job.state})" if job else ""
        say(f"job {job_id}{about} has the signal {name!r}: {became}{BECAME[became]}")


@click.command()
@click.argument("job_ids", type=JOB_ID, nargs=-1, required=True)
@writes
@click.option(
    "--force", is_flag=True, help="Cancel a running job at once; later reports of its worker are refused."
)
@as_json
def cancel(job_ids: tuple[int, ...], dsn: str, schema: str, force: bool, machine: bool) -> None:
    """Cancel jobs. A running job is asked to stop, unless --force is given.

    Exit code 1: a job had already ended.
    """
    with database(dsn, schema) as db:
        ended = {job_id for job_id, state in db.states(job_ids).items() if state in ENDED}
        with _all_or_none(job_ids):
            cancelled = db.each(*(partial(db.cancel_job, job_id, force) for job_id in job_ids))
    if machine:
        report(cancelled, machine)
    for job in cancelled if not machine else ():
        if job.id in ended:
            say(f"job {job.id} was already {job.state}: nothing to cancel", err=True)
        else:
            report([job], machine)
    if ended:
        raise SystemExit(1)


@click.command()
@click.argument("job_ids", type=JOB_ID, nargs=-1, required=True)
@writes
@as_json
def delete(job_ids: tuple[int, ...], dsn: str, schema: str, machine: bool) -> None:
    """Delete jobs permanently, also finished ones."""
    with database(dsn, schema) as db:
        with _all_or_none(job_ids):
            deleted = db.each(*(partial(db.delete_job, job_id) for job_id in job_ids))
        _show_deleted(deleted, machine)


def _refuse_words(_ctx: click.Context, _param: click.Parameter, words: tuple[str, ...]) -> None:
    """`remove` takes no argument, but people give it the id or the key as one."""
    if words and all(word.isdecimal() for word in words):
        raise click.UsageError(f"a job is removed by its key; by its id: pyworker delete {' '.join(words)}")
    if words:
        raise click.UsageError(f"name the key by its option: pyworker remove --key {shlex.quote(words[0])}")


@click.command()
@writes
@click.argument("words", nargs=-1, metavar="", is_eager=True, expose_value=False, callback=_refuse_words)
@click.option("--key", "keys", multiple=True, required=True, help="The job_key. Can be repeated.")
@as_json
def remove(dsn: str, schema: str, keys: tuple[str, ...], machine: bool) -> None:
    """Remove the jobs that hold these keys. A running one does not run again."""
    with database(dsn, schema) as db:
        removed = db.each(*(partial(db.remove_job, key) for key in keys))
        if None in removed:
            raise CliError(f"no job holds the key {keys[removed.index(None)]!r}")
        _show_deleted(removed, machine)


def _show_deleted(jobs: Sequence[JobRow], machine: bool) -> None:
    if machine:
        print_json([dataclasses.asdict(job) for job in jobs])
        return
    for job in jobs:
        running = job.state == "running"
        click.echo(
            f"job {job.id} is running; this run is its last"
            if running
            else f"job {job.id} deleted (was {job.state})"
        )


@click.command()
@click.argument("job_id", type=JOB_ID)
@reads
@as_json
def explain(job_id: int, dsn: str, schema: str, machine: bool) -> None:
    """Explain why a job is not running, and what would change that."""
    with database(dsn, schema) as db:
        rows = db.explain_job(job_id)
    if machine:
        print_json(rows)
        return
    for n, row in enumerate(rows, 1):
        click.echo(f"{n}. {click.style(row['reason'], bold=True)}: {shown(row['detail'])}")
        if row["remedy"]:
            say(f"   → {as_commands(row['remedy'], schema)}")
