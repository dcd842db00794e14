"""A job queue that lives in PostgreSQL.

Its rules are SQL functions, and a thin Python runner executes the jobs.

    from pyworker import task

    @task
    def send_email(payload):
        ...

Names that are not listed in __all__ are private and change without notice.
"""

from importlib.metadata import version as _version

from ._arguments import AddOptions, JobSpec
from ._client import (
    Batch,
    add_batch,
    add_job,
    add_jobs,
    cancel_job,
    delete_job,
    extend_batch,
    get_job,
    remove_job,
    retry_job,
    send_signal,
)
from ._db.rows import JobRow
from ._distribution import DISTRIBUTION as _DISTRIBUTION
from ._flow import AsyncFlow, Flow, FlowJob, flow
from ._inputs import Input, Inputs
from ._middleware import middleware
from ._steps import Step, Suspended
from ._wait import wait_for_job
from .errors import (
    ClaimLost,
    Duplicate,
    InvalidArgument,
    JobTimeout,
    NotFound,
    PyworkerError,
    RoleMissing,
    SchemaVersionError,
    TaskError,
    TransactionAborted,
    WrongState,
)
from .job import AsyncJob, Cancel, Discard, Failed, Job, NotStarted, Snooze
from .tasks import Task, cron, task

__all__ = [
    "AddOptions",
    "AsyncFlow",
    "AsyncJob",
    "Batch",
    "Cancel",
    "ClaimLost",
    "Discard",
    "Duplicate",
    "Failed",
    "Flow",
    "FlowJob",
    "Input",
    "Inputs",
    "InvalidArgument",
    "Job",
    "JobRow",
    "JobSpec",
    "JobTimeout",
    "NotFound",
    "NotStarted",
    "PyworkerError",
    "RoleMissing",
    "SchemaVersionError",
    "Snooze",
    "Step",
    "Suspended",
    "Task",
    "TaskError",
    "TransactionAborted",
    "WrongState",
    "add_batch",
    "add_job",
    "add_jobs",
    "cancel_job",
    "cron",
    "delete_job",
    "extend_batch",
    "flow",
    "get_job",
    "middleware",
    "remove_job",
    "retry_job",
    "send_signal",
    "task",
    "wait_for_job",
]

__version__ = _version(_DISTRIBUTION)
