"""Jobs with delivery at_most_once: claimed, started, and every way in which they come back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def add(api: Any) -> Callable[..., Any]:
    return lambda identifier="t", **named: api.add_job(identifier, **{"delivery": "at_most_once", **named})


@pytest.fixture
def reserved(api: Any, add: Any, worker: int) -> Callable[..., Any]:
    """A claimed job that was not started."""

    def make(by: int = worker, **named: Any) -> Any:
        job = add(**named)
        claimed = api.claim(by)
        assert claimed.id == job.id
        return claimed

    return make


@pytest.fixture
def started(api: Any, reserved: Any) -> Callable[..., Any]:
    def make(*args: Any, **named: Any) -> Any:
        job = reserved(*args, **named)
        assert api.start_job(job.id, job.run) is True
        return job

    return make


def reason(api: Any, job: Any) -> tuple[str, str | None]:
    job = api.get_job(job.id)
    return job.state, job.reason


# Every way in which a job comes back without its worker's word on how it went,
# and whether its attempt counts.
def lease_ends(api: Any, job: Any, worker: int, clock: Any) -> None:
    clock.advance(seconds=21)
    assert api.sweep_workers() == 1


def lease_ends_maintain(api: Any, job: Any, worker: int, clock: Any) -> None:
    clock.advance(minutes=5)
    assert api.maintain()["rescued"] == 1


def worker_vanishes(api: Any, job: Any, worker: int, clock: Any) -> None:
    api.rows("delete from pyworker.workers")
    assert api.maintain()["rescued"] == 1


BACK: dict[str, tuple[Callable[..., Any], bool]] = {
    "release_jobs": (lambda api, job, worker, clock: api.release_jobs([job.id], [job.run]), False),
    "unregister_worker": (lambda api, job, worker, clock: api.unregister_worker(worker), False),
    "reconcile": (lambda api, job, worker, clock: api.reconcile(worker, [], []), False),
    "sweep_workers": (lease_ends, True),
    "maintain": (lease_ends_maintain, True),
    "unknown worker": (worker_vanishes, True),
    "force_unlock_workers": (lambda api, job, worker, clock: api.force_unlock_workers([str(worker)]), True),
    "report_crash, culprit": (
        lambda api, job, worker, clock: api.report_crash(worker, [job.id], [job.run]),
        True,
    ),
    "report_crash, bystander": (lambda api, job, worker, clock: api.report_crash(worker, [], []), False),
    "report_crash, suspect": (
        lambda api, job, worker, clock: api.report_crash(worker, [job.id, 4711], [job.run, 1]),
        False,
    ),
}

ENDED_EARLY: dict[str, Callable[[Any], Any]] = {
    "cancel_job": lambda api: api.cancel_job(1),
    "cancel_job, force": lambda api: api.cancel_job(1, force=True),
    "add_job": lambda api: api.add_job("t", job_key="k", priority=5),
    "add_jobs": lambda api: api.add_jobs([{"identifier": "t", "job_key": "k", "priority": 5}]),
    "remove_job": lambda api: api.remove_job("k"),
}


# A human's act, or a producer's, runs it again ----------------------------------------------------


def lose(api: Any, job: Any, worker: int) -> None:
    api.release_jobs([job.id], [job.run])
    assert reason(api, job) == ("discarded", "lost")
