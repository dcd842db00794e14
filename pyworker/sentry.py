"""Errors of handlers to Sentry: import this module beside your `sentry_sdk.init(…)`, in a module of tasks.

    import sentry_sdk
    import pyworker.sentry

    sentry_sdk.init(dsn="…")

Every attempt that raises is an event, with the job's id, task, queue and attempt; outcomes (Snooze, Cancel …) are none. Sentry's SDK sends the
local variables of the frames as well, payloads among them, unless told otherwise: include_local_variables=False.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from ._middleware import middleware
from .job import AsyncJob, Job, Outcome

try:
    import sentry_sdk
except ImportError as error:
    raise ImportError("pyworker.sentry needs Sentry's SDK: pip install 'pyworker[sentry]'") from error

__all__: list[str] = []


@middleware
def report(job: Job | AsyncJob) -> Generator[None, Any, None]:
    """Reports what the handler raises, in a scope of the job's own."""
    with sentry_sdk.isolation_scope() as scope:
        scope.clear_breadcrumbs()
        scope.set_transaction_name(job.task_identifier, source="task")
        scope.set_tag("pyworker.task", job.task_identifier)
        scope.set_tag("pyworker.queue", job.queue_name or "default")
        scope.set_context(
            "pyworker", {"job_id": job.id, "run": job.run, "attempt": job.attempts, "max_attempts": job.max_attempts}
        )
        try:
            yield
        except Outcome:
            raise
        except Exception as error:
            scope.capture_exception(error)
            raise
