"""Claims and promotions of a sequence, and sessions that have locked its first waiting job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.api import ids
from tests.support.queues import answered
from tests.support.sequences import ENDS, add, drain, halted_by, now
from tests.support.sequences import impatient as impatient
from tests.support.sequences import running as running
from tests.support.sessions import LEVELS


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("verb", ["claim_jobs", "promote_jobs"])
def test_of_two_promoters_at_once_one_promotes_and_none_waits(
    impatient: Any, actor: Any, worker: int, verb: str, end: str
) -> None:
    api = impatient
    jobs = add(api, 2)
    a = actor()
    now(a)
    a.begin()
    getattr(a, verb)(*([worker, 10] if verb == "claim_jobs" else []))
    assert api.claim_jobs(worker, 10) == []
    assert api.promote_jobs() == 0
    new = add(api)
    assert api.claim_jobs(worker, 10) == []
    getattr(a, end)()
    if verb == "claim_jobs" and end == "commit":
        assert api.claim_jobs(worker, 10) == []
        api.finish(jobs[0].id)
        jobs = jobs[1:]
    assert drain(api, worker) == ids(jobs + new)


@pytest.mark.parametrize("end", ENDS)
def test_a_claim_in_a_savepoint_that_is_rolled_back_gives_everything_back(
    impatient: Any, actor: Any, worker: int, end: str
) -> None:
    api = impatient
    jobs = add(api, 2)
    a = actor()
    a.begin()
    a.rows("savepoint s")
    assert a.claim(worker).id == jobs[0].id
    a.rows("rollback to s")
    assert api.claim(worker).id == jobs[0].id
    getattr(a, end)()
    api.finish(jobs[0].id)
    assert drain(api, worker) == [jobs[1].id]


@pytest.mark.parametrize("level", LEVELS[1:])
def test_a_claim_with_a_snapshot_of_its_own_leaves_new_sequences_to_others(
    impatient: Any, actor: Any, worker: int, level: str
) -> None:
    api = impatient
    sequenced, plain = add(api)[0], api.add_job("t")
    w = actor()
    w.begin(level)
    assert ids(w.claim_jobs(worker, 5)) == [plain.id]
    w.commit()
    assert ids(api.claim_jobs(worker, 5)) == [sequenced.id]


TOUCHES: dict[str, Callable[[Any, Any], Any]] = {
    "a finish rolled back": lambda a, job: a.finish_job(job.id, job.run),
    "a cancellation rolled back": lambda a, job: a.cancel_job(job.id),
    "a lock only": lambda a, job: a.rows("select from pyworker.live_jobs where id = %s for update", [job.id]),
    "a share lock": lambda a, job: a.rows("select from pyworker.live_jobs where id = %s for share", [job.id]),
}


@pytest.mark.parametrize("touch", TOUCHES)
def test_a_claim_in_an_open_transaction_blocks_no_completion(
    impatient: Any, actor: Any, worker: int, running: Any, touch: str
) -> None:
    """Even if the head's row bears the marks of a transaction that has ended."""
    api = impatient
    a, c = actor(), actor()
    a.begin()
    TOUCHES[touch](a, running)
    (second,) = add(api)
    assert api.claim(worker) is None
    a.rollback()
    c.begin()
    assert c.claim_jobs(worker, 10) == []
    api.finish_job(running.id, running.run)
    c.commit()
    assert drain(api, worker) == [second.id]


def test_marks_on_the_head_keep_no_wakeup_for_ever(
    impatient: Any, actor: Any, worker: int, running: Any
) -> None:
    api = impatient
    a = actor()
    a.begin()
    a.finish_job(running.id, running.run)
    add(api, 3)
    api.promote_jobs()
    a.rollback()
    answered(api)
    assert api.claim_jobs(worker) == []  # it waits from now on
    assert api.seconds_until_due() is None


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("many", [1, 5])
def test_a_completion_that_stays_open_lets_others_add_and_claim(
    impatient: Any, actor: Any, worker: int, running: Any, end: str, many: int
) -> None:
    api = impatient
    before = add(api, 2)
    w = actor()
    w.begin()
    w.finish_job(running.id, running.run)
    after = add(api, many)
    other = api.add_job("t", sequence_policy={"key": "other"})
    assert ids(api.claim_jobs(worker, 10)) == [other.id]
    getattr(w, end)()
    if end != "commit":
        assert api.claim(worker) is None
        api.finish_job(running.id, running.run)
    assert drain(api, worker) == ids(before + after)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("how", ["finish_jobs", "fail_jobs", "cancel_job", "snooze_job", "release_jobs"])
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_each_call_that_ends_a_run_at_each_level_lets_the_sequence_continue(
    impatient: Any, actor: Any, worker: int, level: str, how: str, end: str
) -> None:
    api = impatient
    flags = {"continue_on_cancelled": True, "continue_on_discarded": True}
    jobs = add(api, 3, policy=flags)
    claimed = api.claim(worker)
    w = actor()
    w.begin(level)
    {
        "finish_jobs": lambda: w.finish_jobs([claimed.id], [claimed.run]),
        "fail_jobs": lambda: w.fail(claimed, discard=True),
        "cancel_job": lambda: w.cancel_job(claimed.id, True),
        "snooze_job": lambda: w.snooze_job(claimed.id, claimed.run, "0"),
        "release_jobs": lambda: w.release_jobs([claimed.id], [claimed.run]),
    }[how]()
    (new,) = add(api)
    assert api.claim(worker) is None
    getattr(w, end)()
    if end != "commit":
        assert api.claim(worker) is None
        api.finish_job(claimed.id, claimed.run)
    again = end == "commit" and how in ("snooze_job", "release_jobs")
    assert drain(api, worker) == ids([*jobs[0 if again else 1 :], new])


@pytest.mark.parametrize("level", LEVELS)
def test_an_end_whose_snapshot_is_older_than_an_add_lets_that_job_go_on(
    impatient: Any, actor: Any, worker: int, running: Any, level: str
) -> None:
    api = impatient
    w = actor()
    w.begin(level)
    (new,) = add(api)
    assert api.claim(worker) is None
    assert api.rows("select from pyworker.promotion_requests") == []  # only the head's end will look again
    w.finish_job(running.id, running.run)
    w.commit()
    assert drain(api, worker) == [new.id]


@pytest.mark.parametrize("level", LEVELS)
def test_a_job_that_is_finished_right_after_its_follow_up_was_cancelled_meets_no_surprise(
    impatient: Any, actor: Any, worker: int, running: Any, level: str
) -> None:
    """The completer's snapshot still has the follow-up."""
    api = impatient
    second, third = add(api, 2, policy={"continue_on_cancelled": True})
    w = actor()
    w.begin(level)
    w.rows("select from pyworker.jobs")
    api.cancel_job(second.id)
    w.finish_job(running.id, running.run)
    w.commit()
    assert drain(api, worker) == [third.id]


# Another session has locked the first waiting job -------------------------------------------------


HOLDS: dict[str, Callable[[Any, Any], Any]] = {
    "cancel_job": lambda a, job: a.cancel_job(job.id),
    "delete_job": lambda a, job: a.delete_job(job.id),
    "remove_job": lambda a, job: a.remove_job("k"),
    "complete_jobs": lambda a, job: a.complete_jobs([job.id]),
    "permanently_fail_jobs": lambda a, job: a.permanently_fail_jobs([job.id]),
    "reschedule_jobs": lambda a, job: a.reschedule_jobs([job.id], priority=3),
    "retry_job": lambda a, job: a.retry_job(job.id),
    "keyed add": lambda a, job: add(a, job_key="k"),
    "keyed add to another sequence": lambda a, job: add(a, job_key="k", policy={"key": "other"}),
    "lock": lambda a, job: a.rows("select from pyworker.live_jobs where id = %s for update", [job.id]),
}

STAYS = {"reschedule_jobs", "retry_job", "keyed add", "lock"}


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize(
    ("finished", "level"),
    [("before", LEVELS[0]), ("after", LEVELS[0]), *(("meanwhile", level) for level in LEVELS)],
)
@pytest.mark.parametrize("how", HOLDS)
def test_the_first_waiting_job_is_not_overtaken_while_another_session_has_locked_it(
    impatient: Any, actor: Any, worker: int, how: str, end: str, level: str, finished: str
) -> None:
    """finished: when the head ends, as seen from the change of the job after it."""
    api = impatient
    (head,) = add(api)
    (first,) = add(api, job_key="k")
    (second,) = add(api)
    claimed = None
    if finished != "before":
        claimed = api.claim(worker)
    a = actor()
    a.begin(level)
    HOLDS[how](a, first)
    if finished == "before":
        api.promote_jobs()
        claimed = api.claim(worker)
    if finished != "after":
        api.finish_job(claimed.id, claimed.run)
        for _ in range(2):
            assert api.claim_jobs(worker, 10) == []
            api.maintain()
    getattr(a, end)()
    if finished == "after":
        api.finish_job(claimed.id, claimed.run)
    answered(api)
    assert head.id == claimed.id
    if end != "commit" or how in STAYS:
        assert drain(api, worker) == ids([first, second])
    elif how in ("cancel_job", "permanently_fail_jobs"):
        assert api.claim(worker) is None
        assert halted_by(api) == first.id
    elif how == "keyed add to another sequence":
        assert sorted(ids(api.claim_jobs(worker, 10))) == ids([first, second])
    else:
        assert drain(api, worker) == [second.id]


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("how", HOLDS)
def test_a_head_that_another_session_has_locked_is_neither_claimed_nor_overtaken(
    impatient: Any, actor: Any, worker: int, how: str, end: str
) -> None:
    api = impatient
    (head,) = add(api, job_key="k")
    (second,) = add(api)
    api.promote_jobs()
    a = actor()
    a.begin()
    HOLDS[how](a, head)
    (third,) = add(api)
    assert api.claim_jobs(worker, 10) == []
    getattr(a, end)()
    if end != "commit" or how in STAYS:
        assert drain(api, worker) == ids([head, second, third])
    elif how in ("cancel_job", "permanently_fail_jobs"):
        assert api.claim(worker) is None
        assert halted_by(api) == head.id
    elif how == "keyed add to another sequence":
        assert sorted(ids(api.claim_jobs(worker, 10))) == ids([head, second])
        api.finish(second.id)
        assert drain(api, worker) == [third.id]
    else:
        assert drain(api, worker) == ids([second, third])


@pytest.mark.parametrize("end", ENDS)
def test_an_open_transaction_on_a_job_further_back_disturbs_no_session(
    impatient: Any, actor: Any, worker: int, running: Any, end: str
) -> None:
    api = impatient
    second, third, fourth = add(api, 3)
    a = actor()
    a.begin()
    a.cancel_job(third.id)
    api.finish_job(running.id, running.run)
    assert drain(api, worker) == [second.id]
    getattr(a, end)()
    answered(api)
    assert drain(api, worker) == ([] if end == "commit" else ids([third, fourth]))
    assert halted_by(api) == (third.id if end == "commit" else None)


@pytest.mark.parametrize("end", ENDS)
def test_the_slot_that_the_next_job_waits_for_comes_free_before_that_job_is_committed(
    api: Any, actor: Any, worker: int, running: Any, end: str
) -> None:
    """Who frees the slot does not see that job yet."""
    (second,) = add(api, queue_name="q")
    api.add_job("t", queue_name="q")
    busy = api.claim(worker)
    a = actor()
    a.begin()
    a.finish_job(running.id, running.run)
    assert api.finish_jobs([busy.id], [busy.run]) == [busy.id]
    getattr(a, end)()
    if end != "commit":
        assert api.claim(worker) is None
        api.finish_job(running.id, running.run)
    assert drain(api, worker) == [second.id]


def test_while_another_session_keeps_the_next_job_locked_workers_look_for_it_ever_less_often(
    api: Any, actor: Any, worker: int, running: Any
) -> None:
    """By the time since which it has been asked, which stays what it was however often it is answered."""
    (second,) = add(api)
    a = actor()
    a.begin()
    HOLDS["lock"](a, second)
    api.finish_job(running.id, running.run)
    assert api.claim_jobs(worker, 1) == []
    requests = "select lane, since from pyworker.promotion_requests"
    before = api.rows(requests)
    assert before
    assert api.claim_jobs(worker, 1) == []
    assert api.rows(requests) == before
    a.commit()
    answered(api)
    assert drain(api, worker)[0] == second.id
