"""Claims and the ends of runs meet the decisions of others, stepped one statement at a time."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.api import row_of
from tests.support.sessions import LEVELS


def test_two_claims_at_once_take_different_jobs_and_wait_for_nothing(api: Any, actor: Any) -> None:
    jobs = api.add_jobs([{"identifier": "t"}] * 10)
    a, b = actor(), actor()
    a.begin()
    b.begin()
    first = a.claim_jobs(api.register_worker(), 4)
    second = b.claim_jobs(api.register_worker(), 4)
    a.commit()
    third = api.claim_jobs(api.register_worker(), 4)
    b.rollback()
    fourth = api.claim_jobs(api.register_worker(), 10)
    assert [[job.id for job in claim] for claim in (first, second, third, fourth)] == [
        [job.id for job in jobs[slice(*part)]] for part in ((0, 4), (4, 8), (8, 10), (4, 8))
    ]


@pytest.mark.parametrize("end", ["unregister", "lease"])
def test_a_claim_that_commits_after_its_workers_end_is_handed_on(
    api: Any, actor: Any, worker: int, clock: Any, end: str
) -> None:
    job = api.add_job("t")
    w = actor()
    w.begin()
    w.claim(worker)
    if end == "unregister":
        api.unregister_worker(worker)
    else:
        clock.advance(minutes=5)
        assert api.maintain()["rescued"] == 0
    w.commit()
    assert api.get_job(job.id).state == "running"
    assert api.maintain()["rescued"] == 1
    assert api.claim(api.register_worker()).id == job.id


@pytest.mark.parametrize("level", LEVELS[1:])
def test_a_claim_with_a_snapshot_of_its_own_leaves_queued_jobs_to_others(
    api: Any, actor: Any, worker: int, level: str
) -> None:
    """It cannot know whether the queue is still free."""
    queued, plain = api.add_job("t", queue_name="q"), api.add_job("t")
    w = actor()
    w.begin(level)
    assert [job.id for job in w.claim_jobs(worker, 5)] == [plain.id]
    w.commit()
    assert [job.id for job in api.claim_jobs(worker, 5)] == [queued.id]


@pytest.mark.parametrize("change", ["cancel_job", "reschedule_jobs", "delete_job", "permanently_fail_jobs"])
@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_a_claim_passes_over_a_job_that_another_session_is_changing(
    api: Any, actor: Any, worker: int, change: str, outcome: str
) -> None:
    first, second = api.add_job("t"), api.add_job("t")
    a = actor()
    a.begin()
    getattr(a, change)(first.id if change in ("cancel_job", "delete_job") else [first.id])
    assert api.claim(worker).id == second.id
    getattr(a, outcome)()
    taken = outcome == "rollback" or change == "reschedule_jobs"
    assert (api.claim(worker) is not None) == taken


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_cancelling_a_job_waits_for_an_open_claim_and_sees_what_became_of_it(
    api: Any, actor: Any, worker: int, outcome: str
) -> None:
    job = api.add_job("t")
    w, a = actor(), actor()
    w.begin()
    w.claim(worker)
    cancel = a.later.cancel_job(job.id)
    a.blocked(cancel)
    getattr(w, outcome)()
    assert row_of(cancel).state == ("running" if outcome == "commit" else "cancelled")
    if outcome == "commit":
        api.fail_jobs([{"id": job.id, "run": api.runs(job.id)[0]}])
        assert api.get_job(job.id).state == "cancelled"


# The end of a run meets others' decisions ---------------------------------------------------------


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("first", ["cancel", "finish"])
def test_cancel_and_finish_follow_each_other(
    api: Any, actor: Any, claimed: Any, first: str, force: bool
) -> None:
    a, b = actor(), actor()
    a.begin()
    if first == "cancel":
        a.cancel_job(claimed.id, force)
        other = b.later.finish_jobs([claimed.id], [claimed.run])
    else:
        a.finish_jobs([claimed.id], [claimed.run])
        other = b.later.cancel_job(claimed.id, force)
    b.blocked(other)
    a.commit()
    if first == "cancel":
        assert row_of(other)[0] == ([] if force else [claimed.id])
    else:
        assert row_of(other).state == "completed"
    assert api.get_job(claimed.id).state == ("cancelled" if first == "cancel" and force else "completed")


def test_a_sweep_passes_over_a_job_that_is_just_being_finished(
    api: Any, actor: Any, claimed: Any, clock: Any
) -> None:
    w = actor()
    w.begin()
    w.finish_job(claimed.id, claimed.run)
    clock.advance(minutes=5)
    assert api.maintain()["rescued"] == 0
    w.commit()
    assert api.maintain()["rescued"] == 0
    assert api.get_job(claimed.id).state == "completed"


def test_a_worker_that_finishes_while_it_is_swept_is_refused(
    api: Any, actor: Any, claimed: Any, clock: Any
) -> None:
    s, w = actor(), actor()
    clock.advance(minutes=5)
    s.begin()
    assert s.maintain()["rescued"] == 1
    finish = w.later.finish_jobs([claimed.id], [claimed.run])
    w.blocked(finish)
    s.commit()
    assert row_of(finish)[0] == []
    assert api.get_job(claimed.id).state == "available"


def test_a_heartbeat_that_meets_the_sweep_learns_of_it(api: Any, actor: Any, worker: int, clock: Any) -> None:
    s, w = actor(), actor()
    clock.advance(minutes=5)
    s.begin()
    s.maintain()
    beat = w.later.heartbeat(worker)
    w.blocked(beat)
    s.commit()
    assert row_of(beat)[0] is False


def test_force_unlock_waits_for_the_session_that_has_locked_the_job(
    api: Any, actor: Any, claimed: Any
) -> None:
    a, f = actor(), actor()
    a.begin()
    a.add_job("t", "[2]", job_key="k")
    unlock = f.later.force_unlock_workers(["1"])
    f.blocked(unlock)
    a.commit()
    row_of(unlock)
    assert api.get_job(claimed.id).state == "cancelled"


@pytest.mark.parametrize("state", ["completed", "cancelled", "discarded", "scheduled"])
@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_a_job_retried_twice_at_once_is_there_once(
    api: Any, actor: Any, job_in: Any, state: str, outcome: str
) -> None:
    job = job_in(state, job_key="k")
    a, b = actor(), actor()
    a.begin()
    a.retry_job(job.id)
    second = b.later.retry_job(job.id)
    b.blocked(second)
    getattr(a, outcome)()
    assert (row_of(second).id, row_of(second).state) == (job.id, "available")
    assert len(api.claim_jobs(api.register_worker(), 5, ["t"])) == 1


def test_retry_and_an_add_of_the_same_key_follow_each_other(api: Any, actor: Any, job_in: Any) -> None:
    old = job_in("completed", payload="[1]", job_key="k")
    a, b = actor(), actor()
    a.begin()
    new = a.add_job("t", "[2]", job_key="k")
    retry = b.later.retry_job(old.id)
    b.blocked(retry)
    a.commit()
    with api.refusal("PW003", "retry_job", str(new.id)):
        retry.result(20)
    api.remove_job("k")
    a.begin()
    a.retry_job(old.id)
    add = b.later.add_job("t", "[3]", job_key="k")
    b.blocked(add)
    a.commit()
    assert (row_of(add).id, row_of(add).payload) == (old.id, [1, 3])


def test_deleting_a_finished_job_meets_its_retry(api: Any, actor: Any, job_in: Any) -> None:
    job = job_in("completed")
    a, b = actor(), actor()
    a.begin()
    a.retry_job(job.id)
    deletion = b.later.delete_job(job.id)
    b.blocked(deletion)
    a.commit()
    assert row_of(deletion).id == job.id
    assert api.get_job(job.id).id is None


# Queue lanes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", ["commit", "rollback", "kill"])
@pytest.mark.parametrize("level", LEVELS)
def test_a_completion_in_an_open_transaction_blocks_no_session_of_its_queue_and_strands_no_job(
    api: Any, actor: Any, worker: int, level: str, outcome: str
) -> None:
    first = api.add_job("t", queue_name="q")
    api.claim(worker)
    handler, other = actor(), actor()
    handler.begin(level)
    handler.finish(first.id)
    jobs = [
        api.add_job("t", queue_name="q"),
        api.add_job("t", queue_name="q", job_key="k"),
        *api.add_jobs([{"identifier": "t", "queue_name": "q"}]),
    ]
    other.begin()
    other.add_job("t", queue_name="q", job_key="other")
    assert api.claim_jobs(worker, 10) == []
    assert api.maintain()
    api.remove_job("k")
    getattr(handler, outcome)()
    other.rollback()
    if outcome != "commit":
        assert api.claim_jobs(worker, 10) == []
        api.finish(first.id)
    seen = []
    while claimed := api.claim_jobs(worker, 10):
        seen += [job.id for job in claimed]
        assert len(claimed) == 1
        api.finish_job(claimed[0].id, claimed[0].run)
    assert seen == [jobs[0].id, jobs[2].id]


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
@pytest.mark.parametrize("first", ["add", "finish"])
def test_an_add_that_meets_the_end_of_its_predecessor_is_not_forgotten(
    api: Any, actor: Any, worker: int, first: str, outcome: str
) -> None:
    old = api.add_job("t", queue_name="q")
    api.claim(worker)
    a, w = actor(), actor()
    a.begin()
    w.begin()
    new = None
    for step in (first, {"add": "finish", "finish": "add"}[first]):
        if step == "add":
            new = a.add_job("t", queue_name="q")
        else:
            w.finish(old.id)
    for who in (a, w) if first == "add" else (w, a):
        getattr(who, outcome if who is w else "commit")()
    if outcome == "rollback":
        assert api.claim_jobs(worker, 5) == []
        api.finish(old.id)
    assert [job.id for job in api.claim_jobs(worker, 5)] == [new.id]


def test_two_promoters_at_once_never_fill_one_slot_twice(api: Any, actor: Any, worker: int) -> None:
    api.add_jobs([{"identifier": "t", "queue_name": name} for name in "aabbcc"])
    a, b = actor(), actor()
    a.begin()
    b.begin()
    mine, theirs = a.claim_jobs(worker, 2), b.claim_jobs(worker, 10)
    assert len(mine) == 2
    assert theirs == [], "the lanes are taken; what they promoted is not yet to be seen"
    a.commit()
    b.commit()
    rest = api.claim_jobs(worker, 10)
    assert sorted(job.queue_name for job in mine + rest) == ["a", "b", "c"]
