"""add_job and the other job functions for Python.

They run in the caller's transaction on any connection (see _db/drivers).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Unpack, cast

from ._arguments import AddOptions, JobSpec, On, TaskLike
from ._db import queue
from ._db.drivers import Rows, not_a_connection, query
from ._db.either import either
from ._db.rows import JobRow, job_row
from .errors import InvalidArgument


class Batch(NamedTuple):
    """The jobs of a batch, and its callback."""

    jobs: list[JobRow]
    callback: JobRow


# Called before each add with the task's name and the options, which they may change.
producers: list[Callable[[str, dict[str, Any]], None]] = []


def default_schema() -> str:
    return os.environ.get("PYWORKER_SCHEMA") or "pyworker"


def job_of(task: str | TaskLike, payload: Any, options: Mapping[str, Any]) -> tuple[str, Any, dict[str, Any]]:
    """Identifier, payload and options to send: the call's options override those of a task."""
    identifier: Any = task
    given = dict(options)
    if not isinstance(task, str) and hasattr(task, "add_options"):
        identifier, payload = task.name, task.encoded(payload)
        given = {**task.add_options, **{name: value for name, value in options.items() if value is not None}}
    for producer in producers:
        producer(identifier, given)
    return identifier, payload, given


@either
def add_job(
    conn: Any,
    identifier: str | TaskLike,
    payload: Any = None,
    *,
    schema: str | None = None,
    **options: Unpack[AddOptions],
) -> JobRow:
    """Add a job in the caller's transaction; it runs after that transaction has committed.

    conn: a connection, cursor or session of psycopg, asyncpg, psycopg2, SQLAlchemy or Django. With
    an asynchronous one, await the result. identifier: a task's name, or the task itself; then the
    task's options apply where the call gives none. payload: any JSON value, or a dataclass,
    pydantic model or msgspec struct, which a worker must read as it was given. options: add_job's
    SQL arguments (queue_name, run_at, max_attempts, job_key, priority, flags, job_key_mode,
    unique_policy, sequence_policy, meta, delivery, depends_on, expires_at, max_wait).
    run_at and expires_at are datetimes with a time zone, or timedeltas from now; max_wait is
    a timedelta, or seconds. delay: a timedelta or seconds, in place of run_at. schema: where
    pyworker is installed, by default $PYWORKER_SCHEMA or "pyworker". Returns the job.
    Raises InvalidArgument and other PyworkerErrors.
    """
    if isinstance(conn, str):  # a call that begins with the task, as elsewhere
        raise not_a_connection("add_job", conn)
    where = schema or default_schema()
    call = queue.add_job_call(where, *job_of(identifier, payload, cast("Any", options)))
    return query("add_job", where, conn, call, _one)


@either
def add_jobs(conn: Any, specs: Iterable[JobSpec], *, schema: str | None = None) -> list[JobRow]:
    """Add many jobs in one statement. Returns them in the order of specs.

    specs: dicts with add_job's arguments: {"identifier": "send_email", "payload": {…}, "priority":
    1}. identifier: a task's name, or the task itself. If one spec is refused, no job is added.
    """
    where = schema or default_schema()
    call = queue.add_jobs_call(where, _sent("add_jobs: specs", specs))
    return query("add_jobs", where, conn, call, _all)


@either
def add_batch(
    conn: Any,
    jobs: Iterable[JobSpec],
    callback: JobSpec | TaskLike | str,
    on: On = "end",
    *,
    schema: str | None = None,
) -> Batch:
    """Add jobs, and a callback that runs when all of them have ended, in one statement.

    jobs: as in add_jobs. callback: such a dict, or a task or its name. on: "end" (however they ended),
    "success" (all were completed) or "failure" (none was). The callback reads what they returned by
    job.inputs. A batch without jobs calls back at once. Raises InvalidArgument.
    """
    last = cast("JobSpec", dict(callback) if isinstance(callback, Mapping) else {"identifier": callback})
    where, sent = schema or default_schema(), _sent("add_batch: jobs", jobs)
    call = queue.add_batch_call(where, sent, _sent("add_batch: callback", [last])[0], on)
    return query("add_batch", where, conn, call, _batch)


@either
def extend_batch(
    conn: Any, callback_id: int, jobs: Iterable[JobSpec], *, schema: str | None = None
) -> list[JobRow]:
    """Add jobs to a batch whose callback still waits for others; one of its jobs may do so, too.

    The callback waits for them as for the others. Raises NotFound; WrongState if the last job has ended.
    """
    where = schema or default_schema()
    call = queue.extend_batch_call(where, callback_id, _sent("extend_batch: jobs", jobs))
    return query("extend_batch", where, conn, call, _all)


def _sent(argument: str, specs: Iterable[JobSpec]) -> list[Mapping[str, Any]]:
    sent: list[Mapping[str, Any]] = []
    for position, spec in enumerate(specs, 1):
        given: dict[str, Any] = dict(spec)
        try:
            name, payload, options = job_of(given.pop("identifier", None), given.pop("payload", None), given)
        except InvalidArgument as error:
            raise InvalidArgument(f"{argument}[{position}]: {error}") from None
        sent.append({"identifier": name, "payload": payload, **options})
    return sent


def _batch(rows: Rows) -> Batch:
    *jobs, callback = _all(rows)
    return Batch(jobs, callback)


@either
def get_job(conn: Any, job_id: int, *, schema: str | None = None) -> JobRow | None:
    """The job with this id, live or finished; None if it does not exist or was pruned."""
    return _verb(conn, schema, "get_job", _maybe, job_id=job_id)


@either
def cancel_job(conn: Any, job_id: int, force: bool = False, *, schema: str | None = None) -> JobRow:
    """Cancel a job.

    A running job is asked to stop; with force it ends at once, and later reports of its worker are
    refused. Returns the job as it is afterwards. Raises NotFound.
    """
    return _verb(conn, schema, "cancel_job", _one, job_id=job_id, force=force)


@either
def retry_job(conn: Any, job_id: int, *, schema: str | None = None) -> JobRow:
    """Run a finished job again, or a waiting one now. Raises NotFound, WrongState, Duplicate."""
    return _verb(conn, schema, "retry_job", _one, job_id=job_id)


@either
def delete_job(conn: Any, job_id: int, *, schema: str | None = None) -> JobRow:
    """Delete a job that is not running; it may be finished.

    Returns it as it was. Raises NotFound, WrongState.
    """
    return _verb(conn, schema, "delete_job", _one, job_id=job_id)


@either
def remove_job(conn: Any, job_key: str, *, schema: str | None = None) -> JobRow | None:
    """Delete the job that holds this key.

    A running job loses the key and is not retried. Returns None if no job holds the key.
    """
    return _verb(conn, schema, "remove_job", _maybe, job_key=job_key)


@either
def send_signal(conn: Any, job_id: int, name: str, payload: Any = None, *, schema: str | None = None) -> str:
    """Send a signal to a job that waits for it, or will (job.wait_for), in the caller's transaction.

    payload: any JSON value; the job gets it as the answer. Returns what became of the signal: "answered",
    the wait of the job gets it; "kept" for a wait to come; "ignored", since one of that name is kept already.
    Raises InvalidArgument, NotFound, WrongState (the job is completed or cancelled).
    """
    where = schema or default_schema()
    call = queue.send_signal_call(where, job_id, name, payload)
    return query("send_signal", where, conn, call, lambda rows: rows[0][0])


def _verb(conn: Any, schema: str | None, verb: str, answer: Callable[[Rows], Any], **arguments: Any) -> Any:
    where = schema or default_schema()
    return query(verb, where, conn, queue.verb_call(where, verb, **arguments), answer)


def _maybe(rows: Rows) -> JobRow | None:
    return job_row(rows[0]) if rows else None


def _one(rows: Rows) -> JobRow:
    return cast("JobRow", job_row(rows[0]))


def _all(rows: Rows) -> list[JobRow]:
    return [cast("JobRow", job_row(row)) for row in rows]
