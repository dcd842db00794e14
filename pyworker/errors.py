"""The exceptions of pyworker.

    PyworkerError
    ├── InvalidArgument      PW001  an argument was refused; the message names it and its value
    ├── ClaimLost            PW002  the job was handed on, cancelled or finished under another run
    ├── Duplicate            PW003  a unique key or a job key is held by another job
    ├── NotFound             PW004  there is no such job or worker
    ├── WrongState           PW005  not possible in the job's present state
    ├── SchemaVersionError   PW006  database and package do not fit together
    ├── RoleMissing                 the role that connects is no member of the one that the call needs
    ├── TransactionAborted          a statement of the transaction has failed: nothing of it was committed
    ├── JobTimeout                  wait_for_job: the job has not ended in time; also a TimeoutError
    └── TaskError                   a task cannot be used: bad signature, two of one name, nothing to import

The SQL functions raise SQLSTATEs. `translated` turns them into these classes, for every driver.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class PyworkerError(Exception):
    """The base class of all exceptions that pyworker raises on purpose."""

    sqlstate: str | None = None
    hint: str | None = None
    detail: str | None = None


class InvalidArgument(PyworkerError):
    """PW001: an argument was refused; the message names it and its value."""

    sqlstate = "PW001"


class ClaimLost(PyworkerError):
    """PW002: the job is no longer held by this run. Roll back, and drop the result."""

    sqlstate = "PW002"


class Duplicate(PyworkerError):
    """PW003: another job holds the key; see `existing_job_id` and `existing_job_state`."""

    sqlstate = "PW003"

    @property
    def existing_job_id(self) -> int | None:
        return json.loads(self.detail or "{}").get("existing_job_id")

    @property
    def existing_job_state(self) -> str | None:
        return json.loads(self.detail or "{}").get("existing_job_state")


class NotFound(PyworkerError):
    """PW004: there is no such job or worker."""

    sqlstate = "PW004"


class WrongState(PyworkerError):
    """PW005: not possible in the job's present state."""

    sqlstate = "PW005"


class SchemaVersionError(PyworkerError):
    """PW006: the versions of database and package do not fit together.

    `detail` says whether the database is "older" or "newer" than the package.
    """

    sqlstate = "PW006"


class RoleMissing(PyworkerError):
    """The role that connects may not do this. `role`: the one of which it must be a member."""

    def __init__(self, verb: str, role: str) -> None:
        self.role = role
        super().__init__(f"{verb} needs the role {role}, which the role of this connection does not have")
        self.hint = f"An administrator can run: GRANT {role} TO …"


class TransactionAborted(PyworkerError):
    """A statement of the transaction has failed, and its error was caught: nothing of it was committed.

    `cause`: the server's words for that error, where they are known.
    """

    hint = (
        "Let the error pass, or run the statement that may fail in a block of its own:"
        " with conn.transaction(): …"
    )

    def __init__(self, cause: str = "") -> None:
        self.cause = cause
        known = f" ({cause})" if cause else ""
        super().__init__(
            f"nothing was committed: a statement of the transaction had failed{known}, and PostgreSQL"
            " has rolled back all of it"
        )


class JobTimeout(PyworkerError, TimeoutError):
    """wait_for_job: the job has not ended within the timeout. `job`: as it was last seen."""

    def __init__(self, job: Any, timeout: float) -> None:
        self.job = job
        super().__init__(f"job {job.id} has not ended within {timeout:g} s: it is {job.state}")


class TaskError(PyworkerError):
    """A task cannot be used.

    It has a bad signature, two tasks have one name, or a module cannot be imported.
    """


BY_SQLSTATE: dict[str, type[PyworkerError]] = {
    str(cls.sqlstate): cls
    for cls in (InvalidArgument, ClaimLost, Duplicate, NotFound, WrongState, SchemaVersionError)
}


def _within(error: BaseException) -> Iterator[Any]:
    """The exception, and the driver's exceptions that SQLAlchemy or Django wrapped in it."""
    original = getattr(error, "orig", None)
    for candidate in (error, original, error.__cause__, getattr(original, "__cause__", None)):
        if candidate is not None:
            yield candidate


def sqlstate_of(error: BaseException) -> str | None:
    """The SQLSTATE of an exception of psycopg, asyncpg or psycopg2.

    SQLAlchemy or Django may have wrapped it.
    """
    for candidate in _within(error):
        code = getattr(candidate, "sqlstate", None) or getattr(candidate, "pgcode", None)
        if isinstance(code, str):
            return code
    return None


def context_of(error: BaseException) -> str | None:
    """Inside which function the database has raised it, as PostgreSQL describes that."""
    for candidate in _within(error):
        diag = getattr(candidate, "diag", candidate)
        if isinstance(context := getattr(diag, "context", None), str):
            return context
    return None


def message_of(error: BaseException) -> tuple[str, str | None, str | None]:
    """The database's message, detail and hint."""
    for candidate in _within(error):
        if diag := getattr(candidate, "diag", None):
            return diag.message_primary or str(error), diag.message_detail, diag.message_hint
        if isinstance(message := getattr(candidate, "message", None), str) and hasattr(
            candidate, "detail"
        ):  # asyncpg
            return message, candidate.detail, getattr(candidate, "hint", None)
    return str(error), None, None


@contextmanager
def translated() -> Iterator[None]:
    """Re-raise a database error with one of our SQLSTATEs as its class; other errors pass."""
    try:
        yield
    except Exception as error:
        cls = BY_SQLSTATE.get(sqlstate_of(error) or "")
        if cls is None or isinstance(error, PyworkerError):
            raise
        message, detail, hint = message_of(error)
        own = cls(message)
        own.detail, own.hint = detail, hint
        raise own from error
