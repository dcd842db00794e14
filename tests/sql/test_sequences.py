"""sequence_policy: one job of a sequence at a time, in the order of the ids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.api import ids
from tests.support.sequences import S, add, drain, explain, view
from tests.support.sequences import halted as halted


def test_jobs_of_a_sequence_run_one_after_the_other_in_the_order_of_their_ids(api: Any, worker: int) -> None:
    jobs = add(api, 5)
    assert [job.state for job in jobs] == ["pending"] * 5
    assert drain(api, worker) == ids(jobs)
    assert view(api) is None


def test_ids_of_a_bulk_add_follow_its_order(api: Any, worker: int) -> None:
    jobs = api.add_jobs([{"identifier": "t", "payload": [n], "sequence_policy": S} for n in range(30)])
    assert ids(jobs) == sorted(ids(jobs))
    assert [job.payload for job in jobs] == [[n] for n in range(30)]
    assert drain(api, worker) == ids(jobs)


def test_neither_priority_nor_run_at_reorders_a_sequence(api: Any, worker: int) -> None:
    jobs = [
        api.add_job("t", sequence_policy=S, priority=p, run_at=api.at(at))
        for p, at in [(9, "-1 min"), (5, "-1 hour"), (-9, "-1 day"), (0, "-2 days")]
    ]
    assert drain(api, worker) == ids(jobs)


def test_priority_ranks_the_heads_of_different_sequences(api: Any, worker: int) -> None:
    low = api.add_job("t", sequence_policy={"key": "a"}, priority=5)
    api.add_job("t", sequence_policy={"key": "a"}, priority=-5)
    high = api.add_job("t", sequence_policy={"key": "b"}, priority=0)
    plain = api.add_job("t", priority=3)
    assert ids(api.claim_jobs(worker, 10)) == ids([high, plain, low])


def test_sequences_run_side_by_side_and_beside_plain_jobs(api: Any, worker: int) -> None:
    jobs = api.add_jobs(
        [{"identifier": "t", "sequence_policy": {"key": k}} for k in "abcabc"] + [{"identifier": "t"}]
    )
    first = api.claim_jobs(worker, 10)
    assert sorted(ids(first)) == ids([*jobs[:3], jobs[6]])
    api.finish(*ids(first))
    assert sorted(ids(api.claim_jobs(worker, 10))) == ids(jobs[3:6])


def test_more_sequences_than_one_promotion_looks_at_all_begin(api: Any, worker: int) -> None:
    jobs = api.add_jobs([{"identifier": "t", "sequence_policy": {"key": str(n)}} for n in range(350)])
    seen: list[int] = []
    while claimed := api.claim_jobs(worker, 100):
        seen += ids(claimed)
    assert sorted(seen) == ids(jobs)


@pytest.mark.parametrize("by", ["add_job", "add_jobs", "keyed", "unique", "task"])
def test_the_first_job_of_an_idle_sequence_is_there_for_the_next_claim(
    api: Any, worker: int, by: str
) -> None:
    for _ in range(3):  # idle for the first time, and again
        if by == "add_jobs":
            (job,) = api.add_jobs([{"identifier": "t", "sequence_policy": S}])
        elif by == "task":
            api.define_task("t", sequence_policy=S)
            job = api.add_job("t")
        else:
            more = {"keyed": {"job_key": "k"}, "unique": {"unique_policy": {"keys": ["type"]}}}.get(by, {})
            job = api.add_job("t", sequence_policy=S, **more)
        claimed = api.claim(worker)
        assert claimed.id == job.id
        assert claimed.sequence_key == "s"
        api.finish_job(claimed.id, claimed.run)
        assert api.claim(worker) is None


def test_a_follow_up_is_available_as_soon_as_the_job_before_it_ends(api: Any, worker: int) -> None:
    jobs = add(api, 3)
    api.claim(worker)
    api.finish(jobs[0].id)
    assert [api.get_job(job.id).state for job in jobs] == ["completed", "available", "pending"]


def test_a_follow_up_can_be_claimed_in_the_same_transaction(api: Any, worker: int) -> None:
    jobs = add(api, 3)
    with api.conn.transaction():
        for job in jobs:
            assert api.claim(worker).id == job.id
            api.finish(job.id)
        new = add(api, 1)[0]
        assert api.claim(worker) is None, "the first of an idle sequence is let in after the commit"
    assert api.claim(worker).id == new.id


def test_a_follow_up_that_the_running_job_adds_starts_right_after_it(api: Any, worker: int) -> None:
    """River #960: only after about a second."""
    first = add(api, 1)[0]
    api.claim(worker)
    with api.conn.transaction():
        follow_up = add(api, 1)[0]
        api.finish(first.id)
    assert api.get_job(follow_up.id).state == "available"


def test_a_batch_of_completions_lets_all_its_sequences_go_on(api: Any, worker: int) -> None:
    jobs = api.add_jobs([{"identifier": "t", "sequence_policy": {"key": k}} for k in "abcabc"])
    claimed = api.claim_jobs(worker, 10)
    api.finish(*ids(claimed))
    assert sorted(ids(api.claim_jobs(worker, 10))) == ids(jobs[3:])


HOLDS: dict[str, Callable[[Any, Any], Any]] = {
    "running": lambda api, job: None,
    "retryable": lambda api, job: api.fail(job, delay="1 hour"),
    "retryable, due": lambda api, job: api.fail(job, delay=0),
    "snoozed": lambda api, job: api.snooze_job(job.id, job.run, "1 hour"),
    "released": lambda api, job: api.release_jobs([job.id], [job.run]),
    "unregistered": lambda api, job: api.unregister_worker(int(api.get_job(job.id).locked_by)),
    "unlocked": lambda api, job: api.force_unlock_workers([api.get_job(job.id).locked_by]),
    "asked to cancel": lambda api, job: api.cancel_job(job.id),
}


@pytest.mark.parametrize("how", HOLDS)
def test_the_head_blocks_in_every_state_that_it_waits_in(api: Any, worker: int, clock: Any, how: str) -> None:
    jobs = add(api, 3)
    HOLDS[how](api, api.claim(worker))
    other = api.register_worker()
    back = [] if how in ("running", "retryable", "snoozed", "asked to cancel") else [jobs[0].id]
    assert ids(api.claim_jobs(other, 10)) == back
    new = add(api, 1)
    assert api.claim_jobs(other, 10) == []
    if how in ("retryable", "snoozed"):
        clock.advance(hours=2)
        other = api.register_worker()
        assert ids(api.claim_jobs(other, 10)) == [jobs[0].id]
    head = api.get_job(jobs[0].id)
    assert head.state == "running"
    api.finish_jobs([head.id], [head.run])
    assert drain(api, other) == ids(jobs[1:] + new)


def test_a_head_with_a_future_run_at_blocks_until_then(api: Any, worker: int, clock: Any) -> None:
    first = add(api, 1, run_at=api.at("1 hour"))[0]
    rest = add(api, 2)
    assert api.claim(worker) is None
    assert [api.get_job(job.id).state for job in [first, *rest]] == ["scheduled", "pending", "pending"]
    assert view(api) == (first.id, 2, None, None)
    clock.advance(hours=2)
    assert drain(api, api.register_worker()) == ids([first, *rest])


def test_a_waiting_job_with_a_future_run_at_blocks_from_its_turn_on(
    api: Any, worker: int, clock: Any
) -> None:
    first = add(api, 1)[0]
    later = add(api, 1, run_at=api.at("1 hour"))[0]
    last = add(api, 1)[0]
    assert api.get_job(later.id).state == "pending"
    assert drain(api, worker) == [first.id]
    assert api.get_job(later.id).state == "scheduled"
    clock.advance(minutes=30)
    worker = api.register_worker()
    assert drain(api, worker) == []
    clock.advance(hours=1)
    assert drain(api, api.register_worker()) == ids([later, last])


def test_a_waiting_jobs_future_that_has_passed_at_its_turn_does_not_delay_it(
    api: Any, worker: int, clock: Any
) -> None:
    first = add(api, 1)[0]
    later = add(api, 1, run_at=api.at("1 hour"))[0]
    api.claim(worker)
    clock.advance(hours=2)
    api.finish(first.id)
    assert api.get_job(later.id).state == "available"


def test_a_head_that_this_worker_forbids_or_does_not_know_is_not_overtaken(api: Any, worker: int) -> None:
    heavy = add(api, 1, flags=["heavy"])[0]
    other = add(api, 1, "u")[0]
    queued = add(api, 1, queue_name="q")[0]
    assert api.claim_jobs(worker, 10, None, None, ["heavy"]) == []
    assert api.claim_jobs(worker, 10, ["u"]) == []
    assert api.claim(worker, "t").id == heavy.id
    assert api.claim_jobs(worker, 10) == []
    api.finish(heavy.id)
    assert ids(api.claim_jobs(worker, 10, None, None, ["heavy"])) == [other.id]
    api.finish(other.id)
    assert api.claim_jobs(worker, 10, None, ["default"]) == []
    assert ids(api.claim_jobs(worker, 10, None, ["q"])) == [queued.id]


# What people do to jobs of a sequence -------------------------------------------------------------


@pytest.mark.parametrize("which", ["head", "waiting"])
@pytest.mark.parametrize("how", ["complete_jobs", "delete_job", "remove_job"])
def test_a_job_that_is_taken_out_by_hand_lets_the_others_go_on(
    api: Any, worker: int, which: str, how: str
) -> None:
    jobs = [add(api, 1, job_key=f"k{n}")[0] for n in range(3)]
    api.promote_jobs()
    n = ["head", "waiting"].index(which)
    getattr(api, how)({"complete_jobs": [jobs[n].id], "delete_job": jobs[n].id, "remove_job": f"k{n}"}[how])
    assert drain(api, worker) == ids(jobs[:n] + jobs[n + 1 :])


@pytest.mark.parametrize("how", ["complete_jobs", "permanently_fail_jobs", "reschedule_jobs"])
def test_many_jobs_of_one_sequence_are_ended_in_one_call(api: Any, worker: int, how: str) -> None:
    jobs = add(api, 40, policy={"continue_on_discarded": True})
    api.promote_jobs()
    more = {"attempts": 25} if how == "reschedule_jobs" else {}
    assert ids(getattr(api, how)(ids(jobs)[:39], **more)) == ids(jobs)[:39]
    state = "completed" if how == "complete_jobs" else "discarded"
    assert {api.get_job(job.id).state for job in jobs[:39]} == {state}
    assert ids(api.claim_jobs(worker, 10)) == [jobs[39].id]


def test_many_jobs_of_one_queue_are_ended_in_one_call(api: Any, worker: int) -> None:
    jobs = api.add_jobs([{"identifier": "t", "queue_name": "q"}] * 40)
    api.promote_jobs()
    assert ids(api.complete_jobs(ids(jobs)[:39])) == ids(jobs)[:39]
    assert ids(api.claim_jobs(worker, 10)) == [jobs[39].id]


def test_rescheduling_a_waiting_job_leaves_it_in_its_place(api: Any, worker: int, clock: Any) -> None:
    jobs = add(api, 3)
    api.claim(worker)
    assert api.reschedule_jobs([jobs[1].id], run_at=api.at("1 hour"), priority=-5)[0].state == "pending"
    assert api.reschedule_jobs([jobs[2].id], run_at=api.at("-1 hour"), priority=-9)[0].state == "pending"
    api.finish(jobs[0].id)
    assert api.claim(worker) is None
    assert api.get_job(jobs[1].id).state == "scheduled"
    clock.advance(hours=2)
    assert drain(api, api.register_worker()) == ids(jobs[1:])


def test_rescheduling_the_head_into_the_future_holds_the_sequence(api: Any, worker: int, clock: Any) -> None:
    jobs = add(api, 2)
    api.promote_jobs()
    assert api.reschedule_jobs([jobs[0].id], run_at=api.at("1 hour"))[0].state == "scheduled"
    assert api.claim(worker) is None
    assert api.reschedule_jobs([jobs[0].id], run_at=api.at("-1 hour"))[0].state == "available"
    assert drain(api, worker) == ids(jobs)


def test_rescheduling_a_job_that_is_to_skip_a_halt_leaves_it_first(
    api: Any, worker: int, halted: list[Any]
) -> None:
    api.retry_job(halted[3].id)
    api.reschedule_jobs([halted[3].id], priority=4)
    assert drain(api, worker) == ids([halted[3], halted[2]])


def test_permanently_failing_all_jobs_halts_at_the_first(api: Any, worker: int) -> None:
    jobs = add(api, 4)
    api.permanently_fail_jobs(ids(jobs)[:3])
    assert view(api) == (None, 1, jobs[0].id, "discarded")
    api.retry_jobs(ids(jobs)[:3])
    assert drain(api, worker) == ids(jobs)


# The view, and explain_job ------------------------------------------------------------------------


def test_the_view_lists_what_has_jobs_to_run_or_is_halted(api: Any, worker: int) -> None:
    assert api.rows("select from pyworker.sequences") == []
    jobs = add(api, 3)
    assert view(api) == (None, 3, None, None)
    api.promote_jobs()
    assert view(api) == (jobs[0].id, 2, None, None)
    api.claim(worker)
    assert view(api) == (jobs[0].id, 2, None, None)
    api.cancel_job(jobs[0].id, True)
    assert view(api) == (None, 2, jobs[0].id, "cancelled")
    api.retry_job(jobs[2].id)
    assert view(api) == (None, 2, None, None)
    assert drain(api, worker) == ids([jobs[2], jobs[1]])
    assert api.rows("select from pyworker.sequences") == []
    api.add_job("t")
    assert api.rows("select from pyworker.sequences") == []


def test_the_time_of_a_halt_is_the_time_of_the_end_that_caused_it(api: Any, worker: int) -> None:
    job = add(api, 1)[0]
    api.fail(api.claim(worker), discard=True)
    (row,) = api.rows("select * from pyworker.sequences")
    assert abs((row.since - api.get_job(job.id).finished_at).total_seconds()) < 1


def test_explain_job_tells_what_a_sequenced_job_waits_for(api: Any, worker: int) -> None:
    jobs = add(api, 3)
    api.claim(worker)
    (row,) = explain(api, jobs[2].id)
    assert (row.reason, f"job {jobs[0].id}" in row.detail, "wait before this one: 1" in row.detail) == (
        "sequence",
        True,
        True,
    )
    api.cancel_job(jobs[0].id, True)
    (row,) = explain(api, jobs[1].id)
    assert (row.reason, f"job {jobs[0].id}" in row.detail) == ("sequence halted", True)
    assert [row.reason for row in explain(api, jobs[2].id)] == ["sequence halted", "sequence"]


def test_a_waiting_job_that_is_retried_while_the_sequence_still_moves_keeps_its_place(
    api: Any, worker: int
) -> None:
    head, cancelled_runs, waiting, last = (api.add_job("t", sequence_policy={"key": "s"}) for _ in range(4))
    api.claim(worker)
    api.cancel_job(cancelled_runs.id)
    assert api.retry_job(last.id).state == "pending"
    api.finish(head.id)
    assert api.claim_jobs(worker, 10) == []  # halted by the second, as before
    assert [api.get_job(job.id).sequence_halted_by for job in (waiting, last)] == [cancelled_runs.id] * 2
    api.retry_job(last.id)
    assert api.claim(worker).id == last.id
