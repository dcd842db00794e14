"""`pyworker tasks`: list the definitions of tasks in the database, and write them on deployment."""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from typing import Any, cast

import click

from .. import tasks as _tasks
from .._output import print_json, print_table
from .._values import period_of
from ..errors import TaskError
from .options import CliError, as_json, database, part_of_group, reads

_TIMES = ("timeout", "retention")


@click.group(invoke_without_command=True)
@reads
@as_json
@click.pass_context
def tasks(ctx: click.Context, dsn: str, schema: str, machine: bool) -> None:
    """List the definitions of tasks, or write them.

    A definition holds the options that SELECT add_job(…) inherits.
    """
    ctx.obj = (dsn, schema)
    if ctx.invoked_subcommand:
        return
    with database(dsn, schema) as db:
        rows = db.list_tasks()
    _show(rows, machine, "no task is defined: pyworker tasks sync MODULE writes the definitions of your code")


@tasks.command("sync")
@click.argument("modules", nargs=-1, required=True)
@as_json
@part_of_group
def sync(where: tuple[str, str], modules: tuple[str, ...], machine: bool) -> None:
    """Write the options of the tasks in MODULES to the database.

    `pyworker run` does the same when it starts. Packages are loaded with all submodules.

    Run it on deployment, so that jobs added by SQL have the new options before the first worker
    starts. A task without options and a definition without a task do not change.
    """
    sys.path.insert(0, os.getcwd())  # as in `pyworker run`
    try:
        known = _tasks.load(modules)
        with database(*where) as db:
            _tasks.define(db, known)
            rows = [
                row
                for row in db.list_tasks()
                if known.get(row["identifier"]) and known[row["identifier"]].options
            ]
    except TaskError as error:
        raise CliError(str(error)) from error
    _show(rows, machine, f"no task in {', '.join(modules)} has options: nothing to write")


def _show(rows: list[dict[str, Any]], machine: bool, nothing: str) -> None:
    if machine:
        print_json([{**row, **{name: _seconds(row[name]) for name in _TIMES}} for row in rows])
        return
    shown: list[dict[str, Any]] = []
    for row in rows:
        options = {
            name: _written(value)
            for name, value in row.items()
            if name not in ("identifier", "updated_at") and value is not None
        }
        words = "; ".join(f"{name} {value}" for name, value in options.items())
        shown.append({"task": row["identifier"], "since": row["updated_at"], "options": words or "none"})
    print_table(shown, nothing)


def _written(value: Any) -> str:
    """As people write it: 1 min 30 s; of a backoff 1 s, 5 s; a policy as in SQL."""
    if isinstance(value, timedelta):
        return period_of(value)
    if isinstance(value, list):
        return ", ".join(cast("list[str]", value))
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else str(value)


def _seconds(value: timedelta | None) -> float | None:
    return None if value is None else value.total_seconds()
