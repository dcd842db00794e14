"""Jobs that have ended, and what is kept of them."""

from __future__ import annotations

from typing import Any


def end(api: Any, state: str, worker: int, task: str = "t") -> Any:
    """A job that failed once and ended in that state."""
    api.add_job(task)
    job = api.claim(worker, task)
    api.fail(job, delay=0)
    if state == "cancelled":
        api.cancel_job(job.id)
        return job
    job = api.claim(worker, task)
    if state == "completed":
        api.finish_job(job.id, job.run)
    else:
        api.fail(job, discard=True)
    return job


def is_there(api: Any, job: Any) -> bool:
    there = api.get_job(job.id).id is not None
    assert there == bool(api.job_errors(job.id)), "errors go with their job"
    return there
