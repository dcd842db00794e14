"""Jobs that save steps and wait for signals."""

from __future__ import annotations

from typing import Any

from tests.support.api import ids
from tests.support.dependencies import settle


def claimed(api: Any, worker: int, **more: Any) -> Any:
    """A new job that this worker runs."""
    job = api.add_job("t", **more)
    (mine,) = api.claim_jobs(worker, 1)
    assert mine.id == job.id
    return mine


def again(api: Any, worker: int, job: Any) -> Any:
    """The next run of a job that is available now."""
    settle(api)
    (mine,) = api.claim_jobs(worker, 1)
    assert (mine.id, mine.run > job.run) == (job.id, True)
    return mine


def waiting(api: Any, worker: int, name: str = "go", timeout: str | None = None, **more: Any) -> Any:
    """A job that waits for a signal."""
    job = claimed(api, worker, **more)
    assert api.wait_for_signal(job.id, job.run, name, timeout) is None
    assert api.get_job(job.id).state == "pending"
    return job


def steps(api: Any, job: Any) -> dict[str, Any]:
    return {step.name: step.result for step in api.get_steps(job.id)}


def claims(api: Any, worker: int) -> list[int]:
    return ids(api.claim_jobs(worker, 10))
