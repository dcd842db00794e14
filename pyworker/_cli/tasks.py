"""`pyworker tasks`: list the definitions of tasks in the database, and write them on deployment."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, cast

import click

from .. import tasks as _tasks
from .._db.database import Database
from .._output import print_table
from .._values import period_of
from ..errors import TaskError
from .options import CliError, listing, verb

_TIMES = ("timeout", "retention")


@listing
def tasks(db: Database) -> Iterator[Any]:
    """List the definitions of tasks, or write them.

    A definition holds the options that SELECT add_job(…) inherits.
    """
    rows = db.list_tasks()
    yield _as_json(rows)
    _show(rows, "no task is defined: pyworker tasks sync MODULE writes the definitions of your code")


def _loaded(_ctx: click.Context, _param: click.Parameter, modules: tuple[str, ...]) -> dict[str, Any]:
    """The tasks, before the database is asked for anything."""
    sys.path.insert(0, os.getcwd())  # as in `pyworker run`
    try:
        return _tasks.load(modules)
    except TaskError as error:
        raise CliError(str(error)) from error


@verb(tasks, "sync", changes=True)
@click.argument("modules", nargs=-1, required=True, callback=_loaded)
def sync(db: Database, modules: dict[str, Any]) -> Iterator[Any]:
    """Write the options of the tasks in MODULES to the database.

    `pyworker run` does the same when it starts. Packages are loaded with all submodules.

    Run it on deployment, so that jobs added by SQL have the new options before the first worker
    starts. A task without options and a definition without a task do not change.
    """
    try:
        _tasks.define(db, modules)
    except TaskError as error:
        raise CliError(str(error)) from error
    defined = {name for name, task in modules.items() if task.options}
    rows = [row for row in db.list_tasks() if row["identifier"] in defined]
    yield _as_json(rows)
    _show(rows, "no task of these modules has options: nothing to write")


def _as_json(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, **{name: row[name] and row[name].total_seconds() for name in _TIMES}} for row in rows]


def _show(rows: list[dict[str, Any]], nothing: str) -> None:
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
