"""A person's transaction has a running job locked, and stays open while the job's worker ends: what takes the
worker's jobs from it does not wait for that transaction."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def held(api: Any, actor: Any, worker: int) -> Any:
    """Two running jobs, the first of which another session is cancelling."""
    api.add_jobs([{"identifier": "t"}] * 2)
    locked, free = api.claim_jobs(worker, 2)
    person = actor()
    person.begin()
    person.cancel_job(locked.id)
    return person, locked, free


ENDS = {
    "report_crash": lambda api, worker, jobs: api.report_crash(
        worker, [job.id for job in jobs], [job.run for job in jobs]
    ),
    "close_worker": lambda api, worker, jobs: api.close_worker(worker),
}


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
@pytest.mark.parametrize("end", ENDS)
def test_a_worker_ends_and_the_locked_job_is_handed_on_when_it_is_free(
    api: Any, worker: int, held: Any, clock: Any, end: str, outcome: str
) -> None:
    person, locked, free = held
    ENDS[end](api, worker, [locked, free])
    assert [api.get_job(job.id).state for job in (locked, free)] == ["running", "available"]
    ENDS[end](api, worker, [locked, free])
    assert api.sweep_workers() == 0
    clock.advance(minutes=10)
    getattr(person, outcome)()
    api.maintain()
    assert api.get_job(locked.id).state == ("cancelled" if outcome == "commit" else "available")


def test_a_worker_that_comes_back_still_holds_the_locked_job(api: Any, worker: int, held: Any) -> None:
    person, locked, free = held
    assert api.reconcile(worker, [locked.id, free.id], [locked.run, free.run]) == [locked.id, free.id]
    assert api.reconcile(worker, [locked.id], [locked.run]) == [locked.id]
    assert api.get_job(free.id).state == "available"
    assert api.reconcile(worker, [locked.id], [locked.run - 1]) == []
    person.rollback()
    assert api.reconcile(worker, [], []) == []
    assert api.get_job(locked.id).state == "available"


def test_a_persons_force_waits_for_the_lock(api: Any, actor: Any, worker: int, held: Any) -> None:
    person, locked, free = held
    other = actor()
    unlocking = other.later.force_unlock_workers([str(worker)])
    other.blocked(unlocking)
    person.rollback()
    unlocking.result(20)
    assert [api.get_job(job.id).state for job in (locked, free)] == ["available"] * 2
