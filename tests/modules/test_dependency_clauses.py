"""depends_on beside what people, other sessions and other adds do to the parent or to the child."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg.types.json import Jsonb

from tests.support.api import ids
from tests.support.dependencies import ENDS, child, running, state, two_ends
from tests.support.explain import explain, run
from tests.support.sessions import LEVELS
from tests.support.waits import waiting

# What happens to the parent


@pytest.mark.parametrize("mode", ["replace", "preserve_run_at", "unsafe_dedupe"])
def test_a_parent_that_is_replaced_in_place_keeps_what_waits_for_it(api: Any, worker: int, mode: str) -> None:
    parent = api.add_job("parent", job_key="k").id
    job = child(api, [parent])
    assert api.add_job("parent", job_key="k", job_key_mode=mode).id == parent
    assert state(api, job) == "pending"
    assert api.claim(worker, "parent").id == parent
    api.finish(parent)
    assert state(api, job) == "available"


@pytest.mark.parametrize("way", ["superseded", "removed"])
@pytest.mark.parametrize("end", ["success", "failure"])
def test_a_running_parent_whose_key_is_taken_is_still_the_parent(
    api: Any, worker: int, way: str, end: str
) -> None:
    """It is not waited for what comes in its place."""
    parent = running(api, worker, job_key="k")
    jobs = {on: child(api, [{"id": parent, "on": on}]) for on in ("success", "failure")}
    if way == "superseded":
        assert api.add_job("parent", job_key="k").id != parent
    else:
        api.remove_job("k")
    assert {state(api, job) for job in jobs.values()} == {"pending"}
    if end == "success":
        api.finish(parent)
    else:
        api.fail_jobs([{"id": parent, "run": api.get_job(parent).run, "error": "e", "delay": 0}])
    assert api.get_job(parent).state == ("completed" if end == "success" else "cancelled")
    assert {on for on, job in jobs.items() if state(api, job) == "available"} == {end}


def test_a_parent_that_a_unique_replace_ends_counts_as_cancelled(api: Any, worker: int) -> None:
    policy = {"unique_policy": Jsonb({"keys": ["type"], "on_conflict": "replace"})}
    parent = api.add_job("parent", **policy).id
    jobs = [child(api, [{"id": parent, "on": on}]) for on in ("success", "failure")]
    successor = api.add_job("parent", **policy).id
    assert api.get_job(parent).state == "cancelled"
    assert [state(api, job) for job in jobs] == ["pending", "available"]
    assert api.claim(worker, "parent").id == successor
    api.finish(successor)
    assert state(api, jobs[0]) == "pending"  # the successor is another job


def test_a_parent_that_must_not_run_twice_and_is_lost_has_failed(api: Any, worker: int) -> None:
    parent = running(api, worker, delivery="at_most_once")
    assert api.start_job(parent, api.get_job(parent).run) is True
    jobs = [child(api, [{"id": parent, "on": on}]) for on in ("success", "failure", "end")]
    api.unregister_worker(worker)
    assert (api.get_job(parent).state, api.get_job(parent).reason) == ("discarded", "lost")
    assert [state(api, job) for job in jobs] == ["pending", "available", "available"]


@pytest.mark.parametrize("back", ["fail", "snooze", "release"])
def test_a_parent_that_will_run_again_has_not_ended(api: Any, worker: int, back: str) -> None:
    parent = running(api, worker)
    job = child(api, [{"id": parent, "on": "end"}])
    run_number = api.get_job(parent).run
    if back == "fail":
        api.fail_jobs([{"id": parent, "run": run_number, "error": "e", "delay": "1 hour"}])
    elif back == "snooze":
        api.snooze_job(parent, run_number, "1 hour")
    else:
        api.release_jobs([parent], [run_number])
    assert state(api, job) == "pending"


def test_jobs_may_wait_for_what_a_schedule_has_added(api: Any, worker: int, clock: Any) -> None:
    api.add_schedule("tick", "0 * * * *", "parent", payload="[1]", backfill="2 hours")
    clock.advance(hours=1)
    assert api.run_schedules() == 1
    (tick,) = api.rows("select id from pyworker.jobs")
    job = child(api, [tick.id])
    worker = api.register_worker()  # the first one was not heard of for an hour
    assert api.claim(worker, "parent").id == tick.id
    api.finish(tick.id)
    assert state(api, job) == "available"


# What happens to the child


def test_the_cancel_of_a_waiting_child_releases_nothing_else(api: Any, worker: int) -> None:
    parent = running(api, worker)
    job, sibling = child(api, [parent]), child(api, [parent])
    below = child(api, [job])
    api.cancel_job(job)
    assert [state(api, one) for one in (sibling, below)] == ["pending", "pending"]
    assert api.get_job(parent).state == "running"
    api.finish(parent)
    assert [state(api, one) for one in (sibling, below)] == ["available", "pending"]


def test_a_child_that_must_not_run_twice_starts_once_its_dependencies_hold(api: Any, worker: int) -> None:
    parent = running(api, worker)
    job = child(api, [parent], delivery="at_most_once")
    api.finish(parent)
    claimed = api.claim(worker, "child")
    assert claimed.id == job
    assert api.start_job(job, claimed.run) is True
    api.unregister_worker(worker)
    assert (api.get_job(job).state, api.get_job(job).reason) == ("discarded", "lost")
    assert api.rows("select 1 from pyworker.promotion_requests") == []


def test_reschedule_jobs_frees_no_child(api: Any, worker: int) -> None:
    parent = running(api, worker)
    job = child(api, [parent])
    api.reschedule_jobs([job], api.at("-1 hour"), attempts=0)
    assert state(api, job) == "pending"
    assert api.retry_job(job).state == "pending"
    assert state(api, job) == "pending"


def test_a_job_that_another_session_has_not_committed_is_no_job(api: Any, actor: Any) -> None:
    a = actor()
    a.begin()
    unseen = a.add_job("t").id
    with api.refusal("PW004", f"add_job: depends_on: there is no job {unseen}"):
        child(api, [unseen])
    with api.refusal("PW004", rf"add_jobs: specs\[2\]: depends_on: there is no job {unseen}"):
        api.add_jobs([{"identifier": "t"}, {"identifier": "t", "depends_on": [unseen]}])
    a.commit()
    assert api.value("select count(*) from pyworker.jobs") == 1


# What people are told, and what they are told to do


def test_the_remedy_for_a_failed_parent_mends_the_child(api: Any, worker: int) -> None:
    parent = running(api, worker)
    job = child(api, [parent])
    ENDS["discarded"](api, parent)
    state(api, job)
    (unmet, *_) = explain(api, job)
    assert unmet.reason == "dependency unmet"
    run(api, unmet.remedy)
    assert api.claim(worker, "parent").id == parent
    api.finish(parent)
    assert state(api, job) == "available"


def test_the_remedy_for_a_deleted_parent_gives_the_child_up(api: Any) -> None:
    parent = api.add_job("parent").id
    job = child(api, [parent])
    api.delete_job(parent)
    state(api, job)
    (unmet, *_) = explain(api, job)
    assert unmet.detail == f"waits for the success of job {parent} (cancelled)"
    run(api, unmet.remedy)
    assert api.get_job(job).state == "cancelled"


@pytest.mark.parametrize("which", [0, 1])
def test_both_remedies_for_a_wait_end_it(api: Any, worker: int, which: int) -> None:
    job = waiting(api, worker, "it's on")
    (wait, *_) = explain(api, job)
    run(api, wait.remedy, which)
    api.promote_jobs()
    assert api.get_job(job.id).state == ("available", "cancelled")[which]


# Both transactions open at once


@pytest.mark.parametrize("adds", LEVELS)
@pytest.mark.parametrize("ends", LEVELS)
@pytest.mark.parametrize("last", ["add", "end"])
@pytest.mark.parametrize("outcome", ["commit", "rollback", "kill"])
def test_an_add_and_an_end_that_are_open_at_once_meet(
    api: Any, actor: Any, worker: int, last: str, outcome: str, ends: str, adds: str
) -> None:
    """Neither waits for the other, in whatever order they commit. `outcome`: of the end. (Between two
    serializable ones, the server may refuse the later.)"""
    parent = running(api, worker)
    a, b = actor(), actor()
    a.begin(adds)
    b.begin(ends)
    job = child(a, [{"id": parent, "on": "end"}])
    ENDS["completed"](b, parent)
    if last == "add":
        getattr(b, outcome)()
        api.promote_jobs()
        a.commit()
    else:
        a.commit()
        assert state(api, job) == "pending"
        getattr(b, outcome)()
    if outcome != "commit":
        assert state(api, job) == "pending"
        api.finish(parent)
    assert state(api, job) == "available"


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("outcome", ["rollback", "kill"])
@pytest.mark.parametrize("first", [0, 1])
def test_of_two_parents_that_end_at_once_one_that_is_rolled_back_has_not_ended(
    api: Any, actor: Any, worker: int, first: int, outcome: str, level: str
) -> None:
    parents, job, sessions = two_ends(api, actor, worker, level)
    getattr(sessions[first], outcome)()
    assert state(api, job) == "pending"
    sessions[1 - first].commit()
    assert state(api, job) == "pending"
    api.finish(parents[first])
    assert ids(api.claim_jobs(worker, 10)) == [job]
