"""The `pyworker` command. Each command is a few lines around one SQL function; see `pyworker COMMAND --help`."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import click
import psycopg
from rich.console import Console
from rich.table import Table

from . import _development, _doctor, _health, _migrate, _queues, _schedules, _sql, _tasks_command, _topics, _ui
from ._config import EXIT_DATABASE_NEWER, EXIT_DATABASE_OLDER, RunConfig
from ._connect import connect
from ._distribution import DISTRIBUTION, pip_install
from ._embedded import NoPostgres
from ._escape import shown
from ._options import Problem, as_json, asks, changes, common, database, first_line, resolved
from ._output import (
    STATES,
    STYLES,
    Screen,
    open_streams,
    print_json,
    print_table,
    report,
    say,
    text_of,
    time_of,
    unwritten,
)
from .errors import InvalidArgument, PyworkerError, SchemaVersionError, sqlstate_of

JOB_ID = click.IntRange(1, 2**63 - 1)


class Gone(Exception):
    """The reader of the output has gone."""


class Group(click.Group):
    def main(self, *args: Any, **extra: Any) -> Any:
        open_streams()
        try:
            return super().main(*args, **extra)
        except (SystemExit, OSError, Gone) as ended:
            error = unwritten(ended.__cause__ or ended)
            if error is None:
                raise
            if isinstance(error, BrokenPipeError):
                raise SystemExit(0) from None  # `pyworker jobs | head` is no error
            click.echo(f"pyworker: cannot write the output: {error.strerror}", err=True)
            raise SystemExit(1) from None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return self._invoke(ctx)
        except Problem as problem:
            if ctx.invoked_subcommand in ("doctor", "health"):
                problem.exit_code = _doctor.EXIT_UNKNOWN  # pyright: ignore[reportAttributeAccessIssue]
            raise

    def _invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except SchemaVersionError as error:
            codes = {"older": EXIT_DATABASE_OLDER, "newer": EXIT_DATABASE_NEWER}
            raise Problem(_with_hint(error), codes.get(error.detail or "", 1)) from error
        except PyworkerError as error:
            raise Problem(_with_hint(error)) from error
        except NoPostgres as error:
            raise Problem(str(error)) from error
        except psycopg.Error as error:
            raise Problem(_explained(error)) from error
        except UnicodeEncodeError as error:
            raise Problem(f"an argument is not UTF-8: {error.object!a}") from error
        except BrokenPipeError as error:
            raise Gone from error  # click would call it an error


def _with_hint(error: PyworkerError) -> str:
    return f"{error}. {error.hint}" if error.hint else str(error)


def _explained(error: psycopg.Error) -> str:
    first = first_line(error)
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        ways_out = {
            "for database": "Its owner can GRANT CREATE ON DATABASE … TO your role",
            "create role": "Let a role with CREATEROLE run it, or go without --roles",
            "owner of": "Upgrade as the role that installed it",
        }
        otherwise = "Ask the owner of the schema: GRANT <schema>_admin (or _producer, _worker, _reader) TO your role"
        return f"{first}. {next((way for words, way in ways_out.items() if words in first), otherwise)}"
    if isinstance(
        error, psycopg.errors.InvalidSchemaName | psycopg.errors.UndefinedFunction | psycopg.errors.UndefinedTable
    ):
        return f"{first}. Is pyworker installed here? Run: pyworker migrate (or name its schema with --schema)"
    if isinstance(error, psycopg.errors.LockNotAvailable):
        return f"{first}: somebody holds a lock on pyworker's tables for long. Nothing was changed; try again"
    if "session is read-only" in first:
        return (
            f"{first}: default_transaction_read_only is on for this server, database or role. Its owner can turn it off"
        )
    if isinstance(error, psycopg.OperationalError) and sqlstate_of(error) is None:
        return f"cannot reach the database: {first}. Name one with --dsn, DATABASE_URL or PGHOST, PGDATABASE …"
    if isinstance(error, psycopg.ProgrammingError) and sqlstate_of(error) is None:
        return f"{first}. --dsn, DATABASE_URL take postgresql://user@host/database, or host=… user=… dbname=…"
    return first


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name=DISTRIBUTION)
def main() -> None:
    """A job queue that lives in PostgreSQL.

    Any SQL client adds jobs, SELECT pyworker.add_job('send_email', '{"to": "a@b.c"}'), and `pyworker run` works them off.
    """
    with contextlib.suppress(AttributeError):  # where somebody has put another stream in its place
        cast("io.TextIOWrapper[Any]", sys.stdout).reconfigure(errors="backslashreplace")


# -- install ----------------------------------------------------------------------------------------------------------


@main.command()
@common
@click.option("--dry-run", is_flag=True, help="List the migrations that would be applied, and change nothing.")
@click.option("--sql", "print_sql", is_flag=True, help="Print the SQL script instead of running it; needs no database.")
@click.option(
    "--from", "from_version", default=0, metavar="N", help="With --sql: the database has schema version N already."
)
@click.option(
    "--no-transaction",
    is_flag=True,
    help="With --sql: without BEGIN and COMMIT, for a migration tool that sends them itself.",
)
@click.option(
    "--roles", is_flag=True, help="Create the roles SCHEMA_producer, _worker, _reader and _admin (needs CREATEROLE)."
)
@click.option(
    "--movable-clock", is_flag=True, help="For tests: let the setting pyworker.clock_offset move the queue's time."
)
def migrate(
    dsn: str, schema: str, dry_run: bool, print_sql: bool, from_version: int, no_transaction: bool, roles: bool, movable_clock: bool
) -> None:  # fmt: skip
    """Install pyworker, or upgrade it to this version.

    One transaction; repeated, concurrent and interrupted runs do no harm, and running workers go on.
    """
    if print_sql:
        try:
            script = _migrate.script(
                schema, from_version, roles=roles, movable_clock=movable_clock, transaction=not no_transaction
            )
        except InvalidArgument as error:
            raise click.UsageError(f"--from: {error}") from None
        click.echo(script)
        return
    if from_version or no_transaction:
        raise click.UsageError(
            f"{'--from' if from_version else '--no-transaction'} is for --sql: `migrate` looks for itself"
        )
    with resolved(dsn) as url, connect(url) as conn:
        if dry_run:
            pending = _migrate.pending(conn, schema)
            for migration in pending:
                click.echo(f"would apply {migration.name}{' (breaking)' if migration.breaking else ''}")
            click.echo(f"{len(pending)} migrations to apply; functions and views are always brought up to date")
            return
        done = _migrate.migrate(conn, schema, roles=roles, movable_clock=movable_clock)
        for migration in done:
            click.echo(f"applied {migration.name}")
        click.echo(f"schema {schema} is at version {_migrate.newest()}")


# -- run --------------------------------------------------------------------------------------------------------------


@main.command()
@click.argument("modules", nargs=-1, required=True)
@common
@click.option(
    "--concurrency",
    "-c",
    default=10,
    show_default=True,
    type=click.IntRange(1, 1000),
    help="Handlers at once in each process.",
)
@click.option(
    "--processes", "-p", default=1, show_default=True, type=click.IntRange(1, 256), help="Processes that run handlers."
)
@click.option("--queue", "queues", multiple=True, help="Only jobs of this queue ('default': of none). Can be repeated.")
@click.option("--task", "tasks", multiple=True, help="Only this task. Can be repeated.")
@click.option("--forbid-flag", "forbidden_flags", multiple=True, help="Not jobs with this flag. Can be repeated.")
@click.option("--once", is_flag=True, help="Run what can run now, then exit.")
@click.option(
    "--shutdown-timeout",
    default=25.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Seconds that running jobs get after SIGTERM.",
)
@click.option(
    "--poll-interval",
    default=2.0,
    show_default=True,
    type=click.FloatRange(0.05),
    help="Seconds between looks when no notification comes; 2 at most.",
)
@click.option(
    "--max-memory",
    type=click.IntRange(16),
    metavar="MB",
    help="Replace a process that holds more; end it at one and a half times this.",
)
@click.option(
    "--crontab",
    type=click.Path(exists=True, dir_okay=False),
    help="Load the schedules of this file first, as `pyworker schedules load` does.",
)
@click.option(
    "--no-uvloop", is_flag=True, help="Async handlers on asyncio's own event loop, even if uvloop is installed."
)
@click.option(
    "--log-format", type=click.Choice(["text", "short", "json"]), default="text", show_default=True,
    help="On a terminal, text is short.",
)  # fmt: skip
@click.option("--no-tracebacks", is_flag=True, help="Log what a failed handler raised without its traceback.")
@click.option(
    "--log-level",
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False),
    default="INFO",
    show_default=True,
)
@_health.run_options
def run(
    modules: tuple[str, ...], dsn: str, schema: str, concurrency: int, processes: int, queues: tuple[str, ...], tasks: tuple[str, ...],
    forbidden_flags: tuple[str, ...], once: bool, shutdown_timeout: float, poll_interval: float, max_memory: int | None,
    crontab: str | None, no_uvloop: bool, log_format: str, no_tracebacks: bool, log_level: str, name: str | None, health_port: int | None,
    metrics_port: int | None, stuck_after: float,
) -> None:  # fmt: skip
    """Run the jobs whose tasks MODULES define (packages with all their submodules).

    SIGTERM or Ctrl-C: no new job is claimed, running ones get the shutdown timeout, the rest is handed back at once; a second
    signal hands everything back. Exit codes: 0 done, 1 error, 2 wrong usage, 56 the database is older than this pyworker
    (run `pyworker migrate`), 57 it is newer and incompatible (upgrade pyworker).
    """
    from . import _metrics, _probes
    from ._logging import on_terminal, set_up
    from ._parent import Parent
    from ._progress import progress

    set_up(log_format, log_level.upper())
    with resolved(dsn) as url:
        config = RunConfig(
            dsn=url, schema=schema, tasks=list(modules), concurrency=concurrency, processes=processes, queues=list(queues),
            only_tasks=list(tasks), forbidden_flags=list(forbidden_flags), once=once, shutdown_timeout=shutdown_timeout,
            poll_interval=poll_interval, max_memory=max_memory << 20 if max_memory else None, log_format=log_format,
            log_level=log_level.upper(), name=name or "", stuck_after=stuck_after,
            metrics=metrics_port is not None, uvloop=not no_uvloop, tracebacks=not no_tracebacks,
        )  # fmt: skip
        if crontab:
            _schedules.load_for_run(url, schema, crontab)
        parent = Parent(config)
        ports = [port for port in (health_port, metrics_port) if port]
        with (
            _metrics.collected(parent) as own,
            _probes.serving(ports, {**_probes.of_worker(parent), **own}),
            progress(url, schema) if once and log_format != "json" and on_terminal() else contextlib.nullcontext(),
        ):
            code = parent.run()
    raise SystemExit(code)


@main.command()
@click.option("--users", default=25, show_default=True, type=click.IntRange(3, 10_000), help="How many users sign up.")
def demo(users: int) -> None:
    """See it work: a database, an application, a worker and real mail, all on this machine.

    Starts a private PostgreSQL, installs pyworker, runs the example application of `examples/welcome`. Its database is kept:
    use it with --dsn demo.
    """
    from ._demo import Demo

    Demo(users, Console()).run()


# -- jobs -------------------------------------------------------------------------------------------------------------


@main.command()
@click.argument("task")
@click.argument("payload", default="{}")
@changes
@click.option("--queue", "queue_name", help="Jobs of one queue run one after another.")
@click.option("--run-at", help="Not before this time, as PostgreSQL reads it: '2026-12-24 18:00', 'tomorrow'.")
@click.option("--max-attempts", type=int)
@click.option("--key", "job_key", help="Replace the waiting job of this key.")
@click.option("--key-mode", "job_key_mode", type=click.Choice(["replace", "preserve_run_at", "unsafe_dedupe"]))
@click.option("--priority", type=int, help="Smaller runs first.")
@click.option("--flag", "flags", multiple=True)
@click.option("--meta", help="A JSON object.")
@click.option("--unique-policy", help="A unique_policy, a JSON object: add the job only if there is no other like it.")
@click.option(
    "--sequence-policy", help="A sequence_policy, a JSON object: one job after the other, in order, for each key."
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
    **options: Any,
) -> None:
    """Add a job of TASK with PAYLOAD, a JSON text ("-" reads it from standard input)."""
    value = _parsed("PAYLOAD", sys.stdin.read() if payload == "-" else payload)
    options |= {"flags": flags or None, "meta": None if meta is None else _parsed("--meta", meta)}
    options["unique_policy"] = None if unique_policy is None else _parsed("--unique-policy", unique_policy)
    options["sequence_policy"] = None if sequence_policy is None else _parsed("--sequence-policy", sequence_policy)
    with database(dsn, schema) as db:
        job = db.add_job(task, value, **options)
    if machine:
        print_json(dataclasses.asdict(job))
    else:
        there = " (was there already)" if job.deduplicated else ""
        due = f", due {time_of(job.run_at)}" if job.state == "scheduled" else ""
        halted = f", its sequence is halted by job {job.sequence_halted_by}" if job.sequence_halted_by else ""
        click.echo(f"job {job.id} {job.state}{there}{due}{halted}")


def _parsed(name: str, text: str) -> _sql.JsonText:
    """Checked only: what the database gets is letter by letter what the caller wrote."""
    try:
        json.loads(text, parse_int=str, parse_constant=_refuse)
    except ValueError as error:
        raise click.UsageError(f"{name} is not JSON: {error}") from error
    return _sql.JsonText(text)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is none of its numbers")


@main.command()
@click.argument("job_id", type=JOB_ID, required=False)
@asks
@click.option("--state", "states", multiple=True, type=click.Choice([*STATES, "active"]))
@click.option("--task", "tasks", multiple=True)
@click.option("--queue", "queues", multiple=True)
@click.option("--key")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1))
@as_json
def jobs(
    job_id: int | None, dsn: str, schema: str, states: Sequence[str], tasks: Sequence[str], queues: Sequence[str], key: str | None,
    limit: int, machine: bool,
) -> None:  # fmt: skip
    """List jobs, newest first, finished ones included; or show one with the errors of its attempts."""
    with database(dsn, schema) as db:
        if job_id is not None:
            _show_job(db, job_id, machine)
            return
        rows = db.list_jobs(states=states, tasks=tasks, queues=queues, key=key, limit=limit)
    if machine:
        print_json(rows)
        return
    shown = [
        {
            "id": row["id"], "task": row["task_identifier"], "state": row["state"], "queue": row["queue_name"], "key": row["key"],
            "attempts": f"{row['attempts']}/{row['max_attempts']}", "run at": row["run_at"], "last error": row["last_error"],
        }
        for row in rows
    ]  # fmt: skip
    print_table(
        shown, "no jobs" + (" match" if states or tasks or queues or key else " yet: pyworker add TASK adds one")
    )


def _show_job(db: _sql.Database, job_id: int, machine: bool) -> None:
    job, attempts = db.each(partial(db.get_job, job_id), partial(db.job_errors, job_id))
    if job is None:
        raise Problem(f"there is no job {job_id} (finished jobs are kept for their retention)")
    errors = [dict(zip(("run", "at", "worker", "error"), row, strict=True)) for row in attempts]
    if machine:
        print_json({**dataclasses.asdict(job), "errors": errors})
        return
    console = Screen(soft_wrap=True, highlight=False)
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in dataclasses.asdict(job).items():
        if value is not None and name not in ("last_error", "deduplicated"):
            is_json = name in ("payload", "meta", "flags", "result")
            text = text_of(json.dumps(value, ensure_ascii=False) if is_json else value)
            table.add_row(name, text, style=STYLES.get(job.state) if name == "state" else None)
    console.print(table)
    for error in errors:
        console.print(f"\nattempt failed {time_of(error['at'])} on worker {error['worker']}:", style="yellow")
        console.print(shown(error["error"].rstrip()), markup=False)


@main.command()
@click.argument("job_ids", type=JOB_ID, nargs=-1, required=True)
@changes
@as_json
def retry(job_ids: tuple[int, ...], dsn: str, schema: str, machine: bool) -> None:
    """Run jobs now: discarded and finished ones again, scheduled and retryable ones ahead of their time."""
    with database(dsn, schema) as db:
        report(db.each(*(partial(db.retry_job, job_id) for job_id in job_ids)), machine)


@main.command()
@click.argument("job_ids", type=JOB_ID, nargs=-1, required=True)
@changes
@click.option("--force", is_flag=True, help="End a running job at once; its worker's word on it is refused.")
@as_json
def cancel(job_ids: tuple[int, ...], dsn: str, schema: str, force: bool, machine: bool) -> None:
    """Call jobs off. A running one is asked to stop, unless --force."""
    with database(dsn, schema) as db:
        report(db.each(*(partial(db.cancel_job, job_id, force) for job_id in job_ids)), machine)


@main.command()
@click.argument("job_ids", type=JOB_ID, nargs=-1)
@changes
@click.option("--key", "keys", multiple=True, help="Remove the job that holds this key. Can be repeated.")
@as_json
def remove(job_ids: tuple[int, ...], dsn: str, schema: str, keys: tuple[str, ...], machine: bool) -> None:
    """Remove jobs for good, by id (history included) or by key."""
    if not job_ids and not keys:
        raise click.UsageError("name at least one job id, or --key")
    with database(dsn, schema) as db:
        deletions = (partial(db.delete_job, job_id) for job_id in job_ids)
        removed = db.each(*deletions, *(partial(db.remove_job, key) for key in keys))
        if None in removed:
            raise Problem(f"no job holds the key {keys[removed.index(None) - len(job_ids)]!r}")
    if machine:
        print_json([dataclasses.asdict(job) for job in removed])
        return
    for job in removed:
        running = job.state == "running"
        click.echo(
            f"job {job.id} is running; this run is its last" if running else f"job {job.id} removed (was {job.state})"
        )


@main.command()
@click.argument("job_id", type=JOB_ID)
@asks
@as_json
def explain(job_id: int, dsn: str, schema: str, machine: bool) -> None:
    """Say why a job is not running, and what would change it."""
    with database(dsn, schema) as db:
        rows = db.explain_job(job_id)
    if machine:
        print_json(rows)
        return
    for n, row in enumerate(rows, 1):
        click.echo(f"{n}. {click.style(row['reason'], bold=True)}: {shown(row['detail'])}")
        if row["remedy"]:
            say(f"   → {row['remedy']}")


@main.command()
@asks
@click.option("--verbose", "-v", is_flag=True, help="Show each check, not only those that found something.")
@as_json
def doctor(dsn: str, schema: str, verbose: bool, machine: bool) -> None:
    """Check the health of the queue: problems, each with what repairs it.

    Changes nothing. Exit codes, as monitoring systems expect them: 0 nothing worse than info, 1 warnings, 2 errors (also wrong
    usage), 3 it could not be asked (no database, no pyworker in it, no permission).
    """
    with database(dsn, schema) as db:
        rows = _doctor.findings(db)
    if machine:
        print_json(rows)
    else:
        _doctor.show(rows, verbose)
    raise SystemExit(_doctor.exit_code(rows))


@main.command()
@common
def top(dsn: str, schema: str) -> None:
    """Watch the queue in the terminal: jobs, queues, sequences, schedules and workers, with keys for what you do to them.

    Needs pip install 'pyworker-pg[top]'.
    """
    try:
        from ._top import Top
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "textual":
            raise
        raise Problem(f"pyworker top needs textual: {pip_install('top')}") from None
    with resolved(dsn) as url:
        with connect(url) as conn:
            _sql.Database(conn, schema).check_version(_migrate.newest())
        Top(url, schema).run()


main.add_command(_health.health)
main.add_command(_health.metrics)
main.add_command(_queues.queues)
main.add_command(_queues.sequences)
main.add_command(_schedules.schedules)
main.add_command(_tasks_command.tasks)
main.add_command(_topics.sql)
main.add_command(_development.replay)
main.add_command(_development.dev)
main.add_command(_ui.ui)


def _name_variables(group: click.Group, prefix: str) -> None:
    """Each option can be set by a variable: --max-attempts of `add` by PYWORKER_ADD_MAX_ATTEMPTS."""
    for name, command in group.commands.items():
        for option in command.params:
            if isinstance(option, click.Option):
                own = f"{prefix}_{name}_{max(option.opts, key=len)[2:]}".upper().replace("-", "_")
                option.envvar = option.envvar or own
                option.show_envvar = True
        if isinstance(command, click.Group):
            _name_variables(command, f"{prefix}_{name}")


_name_variables(main, "PYWORKER")
