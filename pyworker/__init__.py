"""A job queue that lives in PostgreSQL: its rules are SQL functions, its Python runner is thin.

    from pyworker import task

    @task
    def send_email(payload):
        ...

Whatever is not listed in __all__ is private and changes without notice.
"""

from importlib.metadata import version as _version

from ._client import add_job
from ._middleware import middleware
from ._sql import JobRow
from .errors import (
    ClaimLost,
    Duplicate,
    InvalidArgument,
    NotFound,
    PyworkerError,
    SchemaVersionError,
    TaskError,
    WrongState,
)
from .job import AsyncJob, Cancel, Discard, Failed, Job, NotStarted, Snooze
from .tasks import Task, cron, task

__all__ = [
    "AsyncJob",
    "Cancel",
    "ClaimLost",
    "Discard",
    "Duplicate",
    "Failed",
    "InvalidArgument",
    "Job",
    "JobRow",
    "NotFound",
    "NotStarted",
    "PyworkerError",
    "SchemaVersionError",
    "Snooze",
    "Task",
    "TaskError",
    "WrongState",
    "add_job",
    "cron",
    "middleware",
    "task",
]

__version__ = _version("pyworker")
