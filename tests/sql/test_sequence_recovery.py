"""A halted sequence goes on when its halting job, or a later one, is retried, deleted or passed over."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.api import ids
from tests.support.sequences import S, add, drain, view
from tests.support.sequences import halted as halted


def test_a_retry_of_the_halting_job_resumes_there(api: Any, worker: int, halted: list[Any]) -> None:
    assert api.retry_job(halted[1].id).state == "pending"
    assert drain(api, worker) == ids(halted[1:])


def test_a_retried_halting_job_that_fails_again_halts_again(api: Any, worker: int, halted: list[Any]) -> None:
    api.retry_job(halted[1].id)
    api.fail(api.claim(worker), discard=True)
    assert view(api) == (None, 2, halted[1].id, "discarded")
    assert api.claim(worker) is None


def test_a_retry_of_a_later_waiting_job_skips_the_halting_one(
    api: Any, worker: int, halted: list[Any]
) -> None:
    more = add(api, 1)
    assert api.retry_job(halted[3].id).sequence_halted_by is None
    assert drain(api, worker) == ids([halted[3], halted[2], *more])
    assert api.get_job(halted[1].id).state in ("discarded", "cancelled")


def test_a_retry_of_a_later_waiting_job_takes_it_out_of_its_future(
    api: Any, worker: int, halted: list[Any]
) -> None:
    later = add(api, 1, run_at=api.at("1 day"))[0]
    api.retry_job(later.id)
    assert drain(api, worker) == ids([later, halted[2], halted[3]])


def test_what_lies_before_a_job_that_skipped_still_runs_if_that_one_halts(
    api: Any, worker: int, halted: list[Any]
) -> None:
    more = add(api, 1)
    api.retry_job(halted[3].id)
    api.fail(api.claim(worker), discard=True)
    assert drain(api, worker) == [halted[2].id]
    assert view(api) == (None, 1, halted[3].id, "discarded")
    assert api.get_job(more[0].id).sequence_halted_by == halted[3].id


def test_jobs_that_are_retried_together_run_one_at_a_time_in_order(api: Any, worker: int) -> None:
    """River #971: all at once."""
    jobs = add(api, 6, policy={"continue_on_discarded": True, "continue_on_cancelled": True})
    for n in range(5):
        api.fail(api.claim(worker), cancel=bool(n % 2), discard=True)
    claimed = api.claim(worker)
    assert sorted(ids(api.retry_jobs(ids(jobs)[::-1]))) == ids(jobs[:5])
    assert api.claim(worker) is None
    api.finish_jobs([claimed.id], [claimed.run])
    assert drain(api, worker) == ids(jobs[:5])


def test_the_halting_job_and_later_ones_retried_together_keep_their_order(
    api: Any, worker: int, halted: list[Any]
) -> None:
    api.retry_jobs(ids(halted)[::-1])
    assert drain(api, worker) == ids(halted)


def test_a_retried_job_waits_for_the_head_and_runs_next(api: Any, worker: int) -> None:
    jobs = add(api, 3)
    api.finish(api.claim(worker).id)
    head = api.claim(worker)
    assert api.retry_job(jobs[0].id).state == "pending"
    assert api.claim(worker) is None
    api.finish_jobs([head.id], [head.run])
    assert drain(api, worker) == ids([jobs[0], jobs[2]])


@pytest.mark.parametrize("state", ["scheduled", "retryable"])
def test_a_retry_of_the_head_lets_it_run_now(api: Any, worker: int, state: str) -> None:
    head, _ = add(api, 2, run_at=api.at("1 hour") if state == "scheduled" else None)
    api.promote_jobs()
    if state == "retryable":
        api.fail(api.claim(worker), delay="1 hour")
    assert api.get_job(head.id).state == state
    assert api.retry_job(head.id).state == "available"
    assert api.claim(worker).id == head.id


def test_deleting_the_halting_job_resumes(api: Any, worker: int, halted: list[Any]) -> None:
    api.delete_job(halted[1].id)
    assert drain(api, worker) == ids(halted[2:])


def test_resume_sequence_goes_on_without_the_halting_job(api: Any, worker: int, halted: list[Any]) -> None:
    state = api.get_job(halted[1].id).state
    assert drain(api, worker) == []  # a look at it changes nothing
    assert api.resume_sequence("s") is True
    assert api.resume_sequence("s") is False
    assert drain(api, worker) == ids(halted[2:])
    assert api.get_job(halted[1].id).state == state


def test_resume_sequence_passes_over_several_halts_in_a_row_but_no_further(api: Any, worker: int) -> None:
    jobs = add(api, 6)
    for n in (0, 1, 2, 4):
        api.cancel_job(jobs[n].id)
    assert view(api) == (None, 2, jobs[0].id, "cancelled")
    assert api.resume_sequence("s") is True
    assert drain(api, worker) == [jobs[3].id]
    assert view(api) == (None, 1, jobs[4].id, "cancelled")
    assert api.resume_sequence("s") is True
    assert drain(api, worker) == [jobs[5].id]


def test_resume_sequence_of_one_that_is_not_halted_is_false(api: Any, worker: int) -> None:
    assert api.resume_sequence("nobody's") is False
    jobs = add(api, 2)
    assert api.resume_sequence("s") is False
    api.claim(worker)
    assert api.resume_sequence("s") is False
    api.finish(jobs[0].id)
    assert drain(api, worker) == [jobs[1].id]


def test_a_halted_sequence_with_no_job_waiting_can_be_resumed_in_advance(api: Any, worker: int) -> None:
    (head,) = add(api, 1)
    api.fail(api.claim(worker), discard=True)
    assert view(api) == (None, 0, head.id, "discarded")
    assert api.resume_sequence("s") is True
    assert view(api) is None
    (new,) = add(api, 1)
    assert new.sequence_halted_by is None
    assert drain(api, worker) == [new.id]


def test_a_keyed_add_onto_the_discarded_halting_job_resumes_there(api: Any, worker: int) -> None:
    for bulk in (False, True):
        head = add(api, 1, job_key="k")[0]
        rest = add(api, 1)
        api.fail(api.claim(worker), discard=True)
        assert api.claim(worker) is None
        if bulk:
            again = api.add_jobs([{"identifier": "t", "job_key": "k", "sequence_policy": S}])[0]
        else:
            again = add(api, 1, job_key="k")[0]
        assert (again.id, again.state, again.sequence_halted_by) == (head.id, "pending", None)
        assert drain(api, worker) == ids([head, *rest])


@pytest.mark.parametrize("policy", [{"key": "other"}, None], ids=["another sequence", "none"])
def test_a_keyed_add_that_takes_the_halting_job_elsewhere_resumes(api: Any, worker: int, policy: Any) -> None:
    head = add(api, 1, job_key="k")[0]
    (rest,) = add(api, 1)
    api.fail(api.claim(worker), discard=True)
    assert api.add_job("t", job_key="k", sequence_policy=policy).id == head.id
    assert sorted(ids(api.claim_jobs(worker, 10))) == ids([head, rest])


def test_remove_job_of_the_discarded_halting_job_resumes(api: Any, worker: int) -> None:
    add(api, 1, job_key="k")
    (rest,) = add(api, 1)
    api.fail(api.claim(worker), discard=True)
    assert api.remove_job("k").state == "discarded"
    assert drain(api, worker) == [rest.id]


def test_completing_the_halting_job_by_hand_resumes(api: Any, worker: int) -> None:
    head, rest = add(api, 2)
    api.fail(api.claim(worker), discard=True)
    assert ids(api.complete_jobs([head.id])) == [head.id]
    assert view(api)[2] is None
    assert drain(api, worker) == [rest.id]


def test_rescheduling_the_discarded_halting_job_resumes_there(api: Any, worker: int, clock: Any) -> None:
    head, rest = add(api, 2, max_attempts=1)
    api.fail(api.claim(worker))
    assert api.reschedule_jobs([head.id], run_at=api.at("1 hour"), attempts=0)[0].state == "pending"
    assert api.claim(worker) is None
    assert api.get_job(head.id).state == "scheduled"
    clock.advance(hours=2)
    assert drain(api, api.register_worker()) == ids([head, rest])


@pytest.mark.parametrize("how", ["reschedule_jobs", "permanently_fail_jobs"])
def test_a_discarded_job_that_was_passed_over_does_not_halt_a_second_time(
    api: Any, worker: int, how: str
) -> None:
    head, *rest = add(api, 3, max_attempts=1)
    api.fail(api.claim(worker))
    api.resume_sequence("s")
    if how == "reschedule_jobs":
        assert api.reschedule_jobs([head.id], priority=3)[0].state == "discarded"
    else:
        api.permanently_fail_jobs([head.id])
    assert drain(api, worker) == ids(rest)
