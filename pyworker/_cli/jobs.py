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

from .._db.database import Database
from .._db.rows import JobRow
from .._escape import shown
from .._output import became, print_table, say
from .._payload import JsonText
from .._values import ENDED, STATES, time_of
from ..errors import NotFound, PyworkerError
from .job import show_job
from .offers import as_commands
from .options import CliError, Exits, verb

JOB_ID = click.IntRange(1, 2**63 - 1)


class _ParentId(click.IntRange):
    """One job's id. Says what to do when a list is given."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if any(sign in str(value) for sign in ",["):
            self.fail(f"give --depends-on and an id once for each job, got {value!r}", param, ctx)
        return super().convert(value, param, ctx)


PARENT_ID = _ParentId(1, 2**63 - 1)


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


def _payload(_ctx: click.Context, _param: click.Parameter, text: str) -> JsonText:
    return _parsed("PAYLOAD", sys.stdin.read() if text == "-" else text)


def _json(_ctx: click.Context, param: click.Parameter, text: str | None) -> JsonText | None:
    return None if text is None else _parsed(param.opts[0], text)


def _one_time(run_at: str | None, delay: str | None, **_: Any) -> None:
    if run_at is not None and delay is not None:
        raise click.UsageError("give --run-at or --delay, not both")


@verb(changes=True, check=_one_time)
@click.argument("task")
@click.argument("payload", default="{}", callback=_payload)
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
@click.option("--meta", callback=_json, help="A JSON object.")
@click.option(
    "--delivery",
    type=click.Choice(["at_least_once", "at_most_once"]),
    help="at_most_once: a job whose worker dies is not run again.",
)
@click.option(
    "--unique-policy", callback=_json, help="A unique_policy, a JSON object: do not add a duplicate."
)
@click.option(
    "--sequence-policy",
    callback=_json,
    help="A sequence_policy, a JSON object: run jobs with the same key one at a time, in order.",
)
@click.option(
    "--depends-on",
    "parents",
    multiple=True,
    type=PARENT_ID,
    help="Run only after the job with this id was completed. Can be repeated.",
)
def add(
    db: Database, task: str, payload: str, flags: tuple[str, ...], parents: tuple[int, ...], **options: Any
) -> Iterator[JobRow]:
    """Add a job of TASK with PAYLOAD, a JSON text ("-" reads it from standard input)."""
    options |= {"depends_on": list(parents) or None, "flags": flags or None}
    try:
        job = db.add_job(task, payload, **options)
    except psycopg.DataError as error:
        raise _named(error, options) from error
    except NotFound as error:
        raise _without_parent(error) from error
    untaken = db.beside(lambda: db.why_untaken(job.id))
    yield job
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


def _one_filter(parent: int | None, lost: bool, limit: int, **others: Any) -> None:
    if (parent is not None and (lost or any(others.values()))) or (lost and any(others.values())):
        name = "--waiting-for" if parent is not None else "--lost"
        raise click.UsageError(f"{name} cannot be combined with an ID or other filters")


@verb(check=_one_filter)
@click.argument("job_id", type=JOB_ID, required=False)
@click.option("--state", "states", multiple=True, type=click.Choice([*STATES, "active"]))
@click.option("--task", "tasks", multiple=True)
@click.option("--queue", "queues", multiple=True)
@click.option("--key")
@click.option("--waiting-for", "parent", type=JOB_ID, help="Jobs that wait for the job with this id.")
@click.option("--lost", is_flag=True, help="Jobs with delivery at_most_once that were lost, done or not.")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1))
def jobs(
    db: Database, job_id: int | None, states: Sequence[str], tasks: Sequence[str], queues: Sequence[str],
    key: str | None, parent: int | None, lost: bool, limit: int,
) -> Iterator[Any]:  # fmt: skip
    """List jobs, newest first, or show one job with its steps and the errors of its attempts.

    Finished jobs are included.
    """
    if job_id is not None:
        yield from show_job(db, job_id)
        return
    if parent is not None:
        rows = db.jobs_waiting_for(parent, limit)
    elif lost:
        rows = db.lost_jobs(limit)
    else:
        rows = db.list_jobs(states=states, tasks=tasks, queues=queues, key=key, limit=limit)
    yield rows
    shown = [
        {
            "id": row["id"], "task": row["task_identifier"], "state": row["state"],
            "queue": row["queue_name"], "key": row["key"],
            "attempts": f"{row['attempts']}/{row['max_attempts']}",
            "run at": row["run_at"], "last error": row["last_error"],
        }
        for row in rows
    ]  # fmt: skip
    is_filtered = states or tasks or queues or key or parent or lost
    print_table(shown, "no jobs" + (" match" if is_filtered else " yet: pyworker add TASK adds one"))


@contextmanager
def _all_or_none(job_ids: Sequence[int]) -> Iterator[None]:
    """The error of one job of several says that the others are as they were."""
    try:
        yield
    except PyworkerError as error:
        if len(job_ids) > 1:
            error.hint = " ".join((*([error.hint] if error.hint else []), "No job was changed."))
        raise


JOB_IDS = click.argument("job_ids", type=JOB_ID, nargs=-1, required=True)


@verb(changes=True)
@JOB_IDS
@click.option("--lost", "with_lost", is_flag=True, help="Of several jobs: also those that were lost.")
def retry(db: Database, job_ids: tuple[int, ...], with_lost: bool) -> Iterator[Exits]:
    """Run discarded and finished jobs again, and waiting jobs now.

    A job that was lost (delivery at_most_once) may have been done. Of several jobs those are left out,
    unless --lost is given.

    Exit code 1: a job was available already, or was left out.
    """
    idle = {job_id for job_id, state in db.states(job_ids).items() if state == "available"}
    lost = [] if with_lost or len({*job_ids}) == 1 else db.lost_among(job_ids)
    with _all_or_none(job_ids):
        retried = db.each(*(partial(db.retry_job, job_id) for job_id in job_ids if job_id not in lost))
    if lost:
        ids = ", ".join(str(job_id) for job_id in lost)
        count = "1 job that was lost and" if len(lost) == 1 else f"{len(lost)} jobs that were lost and"
        say(
            f"pyworker: left out {count} may have been done: {ids}."
            " Look at each, and retry it alone; or give --lost",
            err=True,
        )
    yield Exits(retried, 1 if idle or lost else 0)
    _report(retried, idle, "retry")


def _report(jobs: Sequence[JobRow], already: set[int], action: str) -> None:
    for job in jobs:
        if job.id in already:
            say(f"job {job.id} was already {job.state}: nothing to {action}", err=True)
        else:
            say(f"job {job.id} {became(job)}")


BECAME = {
    "answered": ", the job's wait gets it",
    "kept": " for a wait to come",
    "ignored": ", since one of that name is kept already",
}


@verb(changes=True)
@click.argument("job_id", type=JOB_ID)
@click.argument("name")
@click.argument("payload", default="null", callback=_payload)
def signal(db: Database, job_id: int, name: str, payload: str) -> Iterator[Any]:
    """Send the signal NAME to a job that waits for it (job.wait_for), or will.

    PAYLOAD is a JSON text, which the job gets as the answer ("-" reads it from standard input).
    """
    effect = db.send_signal(job_id, name, payload)
    job = db.beside(lambda: db.get_job(job_id))
    yield {**(dataclasses.asdict(job) if job else {"id": job_id}), "signal": effect}
    about = f" ({job.task_identifier}, {job.state})" if job else ""
    say(f"job {job_id}{about} has the signal {name!r}: {effect}{BECAME[effect]}")


@verb(changes=True)
@JOB_IDS
@click.option(
    "--force", is_flag=True, help="Cancel a running job at once; later reports of its worker are refused."
)
def cancel(db: Database, job_ids: tuple[int, ...], force: bool) -> Iterator[Exits]:
    """Cancel jobs. A running job is asked to stop, unless --force is given.

    Exit code 1: a job had already ended.
    """
    ended = {job_id for job_id, state in db.states(job_ids).items() if state in ENDED}
    with _all_or_none(job_ids):
        cancelled = db.each(*(partial(db.cancel_job, job_id, force) for job_id in job_ids))
    yield Exits(cancelled, 1 if ended else 0)
    _report(cancelled, ended, "cancel")


@verb(changes=True)
@JOB_IDS
def delete(db: Database, job_ids: tuple[int, ...]) -> Iterator[Any]:
    """Delete jobs permanently, also finished ones."""
    with _all_or_none(job_ids):
        deleted = db.each(*(partial(db.delete_job, job_id) for job_id in job_ids))
    yield deleted
    _show_deleted(deleted)


def _refuse_words(_ctx: click.Context, _param: click.Parameter, words: tuple[str, ...]) -> None:
    """`remove` takes no argument, but people give it the id or the key as one."""
    if words and all(word.isdecimal() for word in words):
        raise click.UsageError(f"a job is removed by its key; by its id: pyworker delete {' '.join(words)}")
    if words:
        raise click.UsageError(f"name the key by its option: pyworker remove --key {shlex.quote(words[0])}")


@verb(changes=True)
@click.argument("words", nargs=-1, metavar="", is_eager=True, expose_value=False, callback=_refuse_words)
@click.option("--key", "keys", multiple=True, required=True, help="The job_key. Can be repeated.")
def remove(db: Database, keys: tuple[str, ...]) -> Iterator[Any]:
    """Remove the jobs that hold these keys. A running one does not run again."""
    removed = db.each(*(partial(db.remove_job, key) for key in keys))
    if None in removed:
        raise CliError(f"no job holds the key {keys[removed.index(None)]!r}")
    yield removed
    _show_deleted(removed)


def _show_deleted(jobs: Sequence[JobRow]) -> None:
    for job in jobs:
        running = job.state == "running"
        say(f"job {job.id} {'is running; this run is its last' if running else f'deleted (was {job.state})'}")


@verb()
@click.argument("job_id", type=JOB_ID)
def explain(db: Database, job_id: int) -> Iterator[Any]:
    """Explain why a job is not running, and what would change that."""
    rows = db.explain_job(job_id)
    yield rows
    for n, row in enumerate(rows, 1):
        click.echo(f"{n}. {click.style(row['reason'], bold=True)}: {shown(row['detail'])}")
        if row["remedy"]:
            say(f"   → {as_commands(row['remedy'], db.schema)}")
