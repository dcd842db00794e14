"""`pyworker top`: the terminal dashboard."""

from __future__ import annotations

import sys

import click

from .._db import migrations
from .._dev.url import resolved
from .._distribution import pip_install
from .options import CliError, common, database


@click.command()
@common
def top(dsn: str, schema: str) -> None:
    """View and change the queue in the terminal: jobs, queues, sequences, schedules and workers.

    Needs pip install 'pyworker-pg[top]'.
    """
    try:
        from .._top.app import Top
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "textual":
            raise
        raise CliError(f"pyworker top needs textual: {pip_install('top')}") from None
    with resolved(dsn) as url:
        with database(dsn, schema) as db:
            db.check_version(migrations.newest())
            db.list_queues(None, 1)  # what the first page needs
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise CliError("pyworker top needs a terminal; for programs: pyworker queues --json, jobs --json")
        Top(url, schema).run()
