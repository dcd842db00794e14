"""History is kept as long as was asked for, then pruned with its errors."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.history import end, is_there


@pytest.mark.parametrize("by", ["prune", "maintain"])
@pytest.mark.parametrize(("state", "kept"), [("completed", 24), ("cancelled", 24), ("discarded", 7 * 24)])
def test_a_job_is_pruned_when_its_retention_is_over_and_not_before(
    api: Any, worker: int, clock: Any, state: str, kept: int, by: str
) -> None:
    job = end(api, state, worker)
    clock.advance(hours=kept, seconds=-60)
    getattr(api, by)()
    assert is_there(api, job)
    clock.advance(seconds=60)
    pruned = getattr(api, by)()
    assert (pruned if by == "prune" else pruned["pruned"]) == 1
    assert not is_there(api, job)


def test_each_task_may_have_a_retention_of_its_own(api: Any, worker: int, clock: Any) -> None:
    api.define_task("short", retention="1 hour")
    api.define_task("long", retention="3 days")
    api.define_task("none", retention="0")
    jobs = {
        (task, state): end(api, state, worker, task)
        for task in ("short", "long", "none")
        for state in ("completed", "cancelled")
    }
    discarded = end(api, "discarded", worker, "none")

    def left() -> set[str]:
        api.prune()
        return {task for (task, _), job in jobs.items() if is_there(api, job)}

    assert left() == {"short", "long"}
    clock.advance(hours=1)
    assert left() == {"long"}
    clock.advance(days=3)
    assert left() == set()
    assert is_there(api, discarded)


@pytest.mark.parametrize("state", ["completed", "cancelled", "discarded"])
def test_retention_zero_deletes_at_once_and_a_change_holds_from_then_on(
    api: Any, worker: int, clock: Any, state: str
) -> None:
    before = end(api, state, worker)
    api.configure(**{f"{state}_retention": "0"})
    assert not is_there(api, end(api, state, worker))
    assert is_there(api, before)
    api.configure(**{f"{state}_retention": "3 hours"})
    after = end(api, state, worker)
    clock.advance(hours=3)
    api.prune()
    assert (is_there(api, before), is_there(api, after)) == (True, False)


def test_a_discarded_job_frees_its_key_when_it_is_pruned(api: Any, job_in: Any, clock: Any) -> None:
    old = job_in("discarded", job_key="k")
    clock.advance(days=7)
    api.prune()
    assert api.add_job("t", job_key="k").id != old.id


def test_a_retried_job_is_not_pruned_and_keeps_its_errors(api: Any, worker: int, clock: Any) -> None:
    jobs = [end(api, state, worker) for state in ("completed", "cancelled", "discarded")]
    for job in jobs:
        api.retry_job(job.id)
    clock.advance(days=30)
    api.maintain()
    assert all(is_there(api, job) for job in jobs)


def test_maintenance_is_done_by_one_at_a_time(api: Any, actor: Any) -> None:
    a = actor()
    a.begin()
    assert a.maintain() == {"promoted": 0, "rescued": 0, "pruned": 0, "scheduled": 0}
    assert api.maintain() is None
    a.rollback()
    assert api.maintain() is not None


@pytest.mark.parametrize("by", ["maintain", "prune"])
@pytest.mark.parametrize("state", ["completed", "discarded"])
def test_a_row_that_another_session_has_locked_does_not_stop_maintenance(
    api: Any, actor: Any, worker: int, clock: Any, state: str, by: str
) -> None:
    held, free = end(api, state, worker), end(api, state, worker)
    a = actor()
    clock.advance(days=8)
    api.heartbeat(worker)
    a.begin()
    a.delete_job(held.id)
    getattr(api, by)()
    assert not is_there(api, free)
    a.rollback()
    assert is_there(api, held)
    getattr(api, by)()
    assert not is_there(api, held)


def test_maintenance_takes_small_bites(api: Any, worker: int, clock: Any) -> None:
    api.configure(discarded_retention="1 hour")
    api.add_jobs([{"identifier": "t"}] * 1500)
    api.rows("select pyworker.permanently_fail_jobs(array(select id from pyworker.jobs))")
    clock.advance(hours=1)
    assert [api.maintain()["pruned"] for _ in range(3)] == [1000, 500, 0]
