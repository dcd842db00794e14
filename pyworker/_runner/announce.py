"""A worker process loads its tasks, and announces them, its schedules and what it takes when it connects."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from .. import _logging, tasks
from .._db import migrations
from .._db.database import Database
from ..errors import InvalidArgument, SchemaVersionError, TaskError
from . import signals
from .config import RunConfig

log = logging.getLogger("pyworker.worker")


def load(config: RunConfig) -> dict[str, tasks.Task[..., Any]]:
    """Import the modules of tasks."""
    known = tasks.load(config.tasks)
    signals.leave_to_parent()  # again: a module may have set handlers of its own
    _logging.enable_again()
    if unknown := [name for name in config.only_tasks if name not in known]:
        raise TaskError(f"--task {unknown[0]}: no such task (known: {', '.join(sorted(known))})")
    return known


def announce(
    db: Database,
    config: RunConfig,
    worker_id: int,
    known: Mapping[str, tasks.Task[..., Any]],
    schedules: bool,
) -> None:
    """Define the worker's tasks and record what it takes; with `schedules`, declare schedules too."""
    db.check_version(migrations.newest())
    tasks.define(db, known)
    if schedules:
        try:
            declared = db.declare_schedules(*tasks.schedules(config.tasks))
        except InvalidArgument as error:
            raise TaskError(str(error)) from None
        for row in declared:
            log.info("schedule %s: %s", row["name"], row["action"])
    about = {
        "task_identifiers": config.only_tasks or sorted(known),
        "definitions": tasks.definitions(known),
        "queue_names": config.queue_filter,
        "forbidden_flags": config.forbidden_flags or None,
    }
    db.update_worker(worker_id, {name: value for name, value in about.items() if value is not None})


def still_fits(db: Database) -> bool:
    """False if a migration has left this program behind."""
    try:
        db.check_version(migrations.newest())
    except SchemaVersionError as error:
        log.error("%s. %s", error, error.hint or "")
        return False
    return True
