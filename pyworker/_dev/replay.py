"""`pyworker replay`: run a job's handler again on its payload, and roll everything back."""

from __future__ import annotations

import asyncio
import json
import os
import pdb
import sys
import traceback
from typing import Any

from .. import _logging, tasks
from .._db.connect import connect, is_pooled, server_of
from .._db.database import Database
from .._db.either import at_once
from .._db.rows import JobRow
from .._escape import shown
from .._output import say
from .._runner import attempt
from .._runner.claimed import Call, Claimed
from .._runner.config import RunConfig
from .._runner.connections import Connections
from .._runner.outcomes import Ended
from .._steps import Suspended
from ..errors import PyworkerError
from ..job import Outcome


def run(job_id: int, dsn: str, schema: str, modules: list[str], debug: bool) -> None:
    _logging.set_up("text", "INFO")
    sys.path.insert(0, os.getcwd())
    with connect(dsn) as conn:
        job, where = _look_up(Database(conn, schema), job_id, modules)
        server, pooled = server_of(conn), is_pooled(conn)
    task = _task_of(job, where)
    connections = Connections(RunConfig(dsn, schema=schema, concurrency=1), rehearsal=True)
    connections.meet(server, pooled)
    say(f"job {job.id} ({job.task_identifier}, {job.state}) is run here, and rolled back", err=True)
    outcome, error = _attempt(_claimed(job), task, connections)
    if isinstance(error, Suspended):
        say(f"it would wait for the signal {error.name!r}, unless that was sent")
        return
    if outcome.do in ("done", "release"):
        say(f"it would be completed{f', with the result {outcome.result}' if outcome.result else ''}")
        return
    if isinstance(error, Outcome):
        say(f"it answered {type(error).__name__}: {error}")
        return
    sys.stderr.write(shown("".join(traceback.format_exception(error))))
    if debug:
        pdb.post_mortem(error.__traceback__)
    raise SystemExit(1)


def _look_up(db: Database, job_id: int, modules: list[str]) -> tuple[JobRow, list[str]]:
    """The job, and the modules that define its task: the given ones, or a live worker's."""
    job = db.get_job(job_id)
    if job is None:
        raise PyworkerError(f"there is no job {job_id} (finished jobs are kept for their retention)")
    where = modules or db.modules_of(job.task_identifier)
    if not where:
        raise PyworkerError(
            f"no live worker knows the task {job.task_identifier!r}:"
            " name the module that defines it by --modules"
        )
    return job, where


def _task_of(job: JobRow, modules: list[str]) -> tasks.Task[..., Any]:
    known = tasks.load(modules)
    if job.task_identifier not in known:
        raise PyworkerError(
            f"{', '.join(modules)} has no task {job.task_identifier!r} (it has: {', '.join(sorted(known))})"
        )
    return known[job.task_identifier]


def _attempt(job: Claimed, task: tasks.Task[..., Any], connections: Connections) -> Ended:
    """Run the handler, without a time limit, because of the debugger. A batch handler gets this job alone."""

    async def run_async() -> Ended:
        try:
            (ended,) = await attempt.run_async(Call(task, [job]), connections)
            return ended
        finally:
            await connections.awaited.close()

    try:
        return asyncio.run(run_async()) if task.is_async else attempt.run(Call(task, [job]), connections)[0]
    finally:
        at_once(connections.blocking.close())


def _claimed(job: JobRow) -> Claimed:
    """The job as its handler gets it."""
    flags, meta = (None if value is None else json.dumps(value) for value in (job.flags, job.meta))
    return Claimed(
        job.id, max(job.run, 1), job.task_identifier, json.dumps(job.payload), max(job.attempts, 1),
        job.max_attempts, job.queue_name, job.key, flags, meta, job.sequence_key, job.delivery,
        crashes=0, timeout=None, run_at=job.run_at.timestamp(), created_at=job.created_at.timestamp(),
    )  # fmt: skip
