"""`pyworker replay`: run a job's handler again on its payload, and roll everything back."""

from __future__ import annotations

import asyncio
import json
import os
import pdb
import sys
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import psycopg

from .. import _logging, tasks
from .._db.connect import BE_QUIET, connect, conninfo
from .._db.database import Database
from .._db.rows import JobRow
from .._escape import shown
from .._output import say
from .._runner.attempt import run_job, run_job_async
from .._runner.claimed import Claimed
from .._runner.config import RunConfig
from .._runner.connections import Connections
from ..errors import PyworkerError
from ..job import Outcome
from .url import resolved


class _TakenBack(Database):
    """Rolls back where the job would be completed, with all that its transaction did."""

    def finish_job(self, job_id: int, run: int) -> str:
        raise psycopg.Rollback


class _Pool:
    """Connections for the handler's job, whose work is always rolled back."""

    def __init__(self, dsn: str) -> None:
        self._conninfo = conninfo(dsn, "pyworker replay")

    @contextmanager
    def connection(self) -> Iterator[psycopg.Connection[Any]]:
        with psycopg.connect(self._conninfo) as conn:
            conn.execute(BE_QUIET)
            conn.commit()
            try:
                yield conn
            finally:
                conn.rollback()

    def close(self) -> None:
        pass


class _AsyncPool(_Pool):
    @asynccontextmanager
    async def connection(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:  # pyright: ignore[reportIncompatibleMethodOverride]
        async with await psycopg.AsyncConnection.connect(self._conninfo) as conn:
            await conn.execute(BE_QUIET)
            await conn.commit()
            try:
                yield conn
            finally:
                await conn.rollback()


class _Connections(Connections):
    def sync_pool(self) -> Any:
        return _Pool(self._config.dsn)

    async def async_pool(self) -> Any:
        return _AsyncPool(self._config.dsn)

    def database(self, conn: psycopg.Connection[Any]) -> Database:
        return _TakenBack(conn, self.schema)

    def start_job(self, job_id: int, run: int) -> bool:
        return True

    async def start_job_async(self, job_id: int, run: int) -> bool:
        return True

    async def finish_job_async(self, conn: psycopg.AsyncConnection[Any], job_id: int, run: int) -> str:
        raise psycopg.Rollback


def _claimed(job: JobRow) -> Claimed:
    """The job as its handler gets it."""
    flags, meta = (None if value is None else json.dumps(value) for value in (job.flags, job.meta))
    return Claimed(
        job.id, max(job.run, 1), job.task_identifier, json.dumps(job.payload), max(job.attempts, 1), job.max_attempts, job.priority,
        job.run_at.timestamp(), job.queue_name, job.key, flags, meta, job.sequence_key, job.created_at.timestamp(), job.delivery, crashes=0,
    )  # fmt: skip


def run(job_id: int, dsn: str, schema: str, modules: list[str], debug: bool) -> None:
    _logging.set_up("text", "INFO")
    sys.path.insert(0, os.getcwd())
    with resolved(dsn) as url, connect(url) as conn:
        db = Database(conn, schema)
        job = db.get_job(job_id)
        if job is None:
            raise PyworkerError(f"there is no job {job_id} (finished jobs are kept for their retention)")
        where = modules or db.modules_of(job.task_identifier)
    if not where:
        raise PyworkerError(
            f"no live worker knows the task {job.task_identifier!r}: name the module that defines it by --modules"
        )
    with resolved(dsn) as url:
        connections = _Connections(RunConfig(url, schema=schema, tasks=where, concurrency=1))
        known = tasks.load(where)
        if job.task_identifier not in known:
            raise PyworkerError(
                f"{', '.join(where)} has no task {job.task_identifier!r} (it has: {', '.join(sorted(known))})"
            )
        say(f"job {job.id} ({job.task_identifier}, {job.state}) is run here, and rolled back", err=True)
        task, claimed = known[job.task_identifier], _claimed(job)
        if task.is_async:  # no time limit, because of the debugger
            kind, value, error = asyncio.run(run_job_async(claimed, task, connections))
        else:
            kind, value, error = run_job(claimed, task, connections)
    if kind in ("finished", "released"):
        result = value[2] if kind == "finished" else None
        say(f"it would be completed{f', with the result {result}' if result else ''}")
        return
    if isinstance(error, Outcome):
        say(f"it answered {type(error).__name__}: {error}")
        return
    sys.stderr.write(shown("".join(traceback.format_exception(error))))
    if debug:
        pdb.post_mortem(error.__traceback__)
    raise SystemExit(1)
