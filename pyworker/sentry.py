"""Sends errors of handlers to Sentry.

Call instrument() after `sentry_sdk.init(…)` in a module of tasks.

    import sentry_sdk
    from pyworker import sentry

    sentry_sdk.init(dsn="…")
    sentry.instrument()

Every attempt that raises is an event with the job's id, task, queue and attempt; outcomes (Snooze,
Cancel …) are not. Sentry's SDK also sends the local variables of the frames, including payloads,
unless you set include_local_variables=False.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from ._distribution import pip_install
from ._middleware import middleware
from .job import AsyncJob, Job, Outcome

try:
    import sentry_sdk
except ImportError as error:
    raise ImportError(f"pyworker.sentry needs Sentry's SDK: {pip_install('sentry')}") from error

__all__ = ["instrument"]


def instrument() -> None:
    """Register a middleware that reports what handlers raise, each in its own scope.

    You may call it more than once.
    """
    middleware(_report)


def _report(job: Job | AsyncJob) -> Generator[None, Any, None]:
    with sentry_sdk.isolation_scope() as scope:
        scope.clear_breadcrumbs()
        scope.set_transaction_name(job.task_identifier, source="task")
        scope.set_tag("pyworker.task", job.task_identifier)
        scope.set_tag("pyworker.queue", job.queue_name or "default")
        scope.set_context(
            "pyworker",
            {"job_id": job.id, "run": job.run, "attempt": job.attempts, "max_attempts": job.max_attempts},
        )
        try:
            yield
        except Outcome:
            raise
        except Exception as error:
            scope.capture_exception(error)
            raise
