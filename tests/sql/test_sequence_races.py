"""Sequences, stepped: whatever the other session is at, nobody waits, nobody is overtaken or forgotten, never two run at once."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import psycopg
import pytest

from tests.support.api import ids
from tests.support.sequences import S, add, drain
from tests.support.sessions import LEVELS

ENDS = ["commit", "rollback", "kill"]


def halted_by(api: Any) -> Any:
    rows = api.rows("select halted_by from pyworker.sequences where sequence_key = 's'")
    return rows[0][0] if rows else None


def now(api: Any) -> None:
    """From here on this session fails rather than waits."""
    api.conn.execute("set lock_timeout = '1ms'")


@pytest.fixture
def running(api: Any, worker: int) -> Any:
    """The first job of the sequence, which runs."""
    add(api)
    return api.claim(worker)


@pytest.fixture
def impatient(api: Any) -> Any:
    now(api)
    return api


# An add and the end of the job before it -------------------------------------------------------------------------------

ORDERS = [
    order
    for order in permutations(["add", "add ends", "finish", "finish ends"])
    if order.index("add") < order.index("add ends") and order.index("finish") < order.index("finish ends")
]


@pytest.mark.parametrize("looking", [False, True], ids=["", "somebody claims all the time"])
@pytest.mark.parametrize(
    ("level", "end"),
    [(LEVELS[0], "commit"), (LEVELS[0], "kill"), (LEVELS[1], "commit"), (LEVELS[2], "rollback")],
)
@pytest.mark.parametrize("order", ORDERS, ids=", ".join)
def test_an_add_that_meets_the_end_of_its_predecessor_is_neither_lost_nor_early(
    impatient: Any, actor: Any, worker: int, running: Any, order: Any, level: str, end: str, looking: bool
) -> None:
    api = impatient
    adder, handler = actor(), actor()
    now(adder)
    now(handler)
    new = None
    ended: set[str] = set()
    for step in order:
        if step == "add":
            adder.begin()
            new = add(adder)[0]
        elif step == "add ends":
            adder.commit()
        elif step == "finish":
            handler.begin(level)
            handler.finish_job(running.id, running.run)
        else:
            getattr(handler, end)()
        ended.add(step)
        if looking and not ({"add ends", "finish ends"} <= ended and end == "commit"):
            assert api.claim_jobs(worker, 10) == []
            api.maintain()
    if end != "commit":
        assert api.claim_jobs(worker, 10) == []
        api.finish_job(running.id, running.run)
    assert ids(api.claim_jobs(worker, 10)) == [new.id]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("by", ["add_job", "add_jobs", "keyed"])
def test_an_add_that_stays_open_neither_delays_nor_is_delayed(
    impatient: Any, actor: Any, worker: int, running: Any, by: str, level: str
) -> None:
    api = impatient
    adder = actor()
    now(adder)
    adder.begin(level)

    def one() -> Any:
        if by == "add_jobs":
            return adder.add_jobs([{"identifier": "t", "sequence_policy": S}])[0]
        return add(adder, **({"job_key": f"k{len(late)}"} if by == "keyed" else {}))[0]

    late: list[Any] = []
    late.append(one())
    second, third = add(api, 2)
    late.append(one())
    api.finish_job(running.id, running.run)
    late.append(one())
    assert api.claim(worker).id == second.id
    late.append(one())
    api.finish(second.id)
    assert api.claim(worker).id == third.id
    adder.commit()
    assert api.claim(worker) is None, "a lower id that commits late waits for the end of what runs"
    api.finish(third.id)
    assert drain(api, worker) == ids(late)


@pytest.mark.parametrize("end", ["rollback", "kill"])
def test_an_add_that_is_rolled_back_leaves_nothing(
    impatient: Any, actor: Any, worker: int, running: Any, end: str
) -> None:
    api = impatient
    adder = actor()
    adder.begin()
    add(adder, 3)
    (kept,) = add(api)
    api.finish_job(running.id, running.run)
    getattr(adder, end)()
    assert drain(api, worker) == [kept.id]


def test_lower_ids_that_commit_late_run_next_and_by_id(impatient: Any, actor: Any, worker: int) -> None:
    api = impatient
    adders = [actor(), actor(), actor()]
    late = []
    for a in adders:
        a.begin()
        late += add(a)
    first, last = add(api, 2)
    assert api.claim(worker).id == first.id
    for a in (adders[2], adders[0]):
        a.commit()
        assert api.claim(worker) is None
    api.finish(first.id)
    assert api.claim(worker).id == late[0].id
    adders[1].commit()
    api.finish(late[0].id)
    assert drain(api, worker) == ids([late[1], late[2], last])


def test_adds_of_several_sessions_to_an_idle_sequence_start_one_job(
    impatient: Any, actor: Any, worker: int
) -> None:
    api = impatient
    adders = [actor() for _ in range(4)]
    jobs = []
    for a in adders:
        now(a)
        a.begin()
        jobs += add(a)
    for a in adders[::-1]:
        a.commit()
        claimed = api.claim_jobs(worker, 10)
        assert ids(claimed) == ([jobs[3].id] if a is adders[3] else [])
    api.finish(jobs[3].id)
    assert drain(api, worker) == ids(jobs[:3])


# Promoters -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("verb", ["claim_jobs", "promote_jobs", "maintain"])
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
    assert api.value("select count(*) from pyworker.promotion_requests") == 1
    a.rollback()
    api.promote_jobs()
    assert api.value("select count(*) from pyworker.promotion_requests") == 0


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
def test_whatever_ends_a_run_at_whatever_level_the_sequence_goes_on(
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
    assert (
        api.rows("select from pyworker.promotion_requests") == []
    )  # nobody but the head's end will look again
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


# Somebody has the first waiting job in hand ----------------------------------------------------------------------------

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
def test_the_first_waiting_job_is_not_overtaken_while_somebody_has_it_in_hand(
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
def test_the_head_in_somebodys_hand_is_neither_claimed_nor_overtaken(
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
def test_an_open_transaction_on_a_job_further_back_disturbs_nobody(
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
    assert drain(api, worker) == ([] if end == "commit" else ids([third, fourth]))
    assert halted_by(api) == (third.id if end == "commit" else None)


# Decisions against the end of a run ------------------------------------------------------------------------------------


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("first", ["cancel", "finish"])
@pytest.mark.parametrize("end", ENDS)
def test_a_cancellation_and_the_end_of_the_run_follow_each_other(
    api: Any, actor: Any, worker: int, running: Any, first: str, end: str, force: bool
) -> None:
    (second,) = add(api)
    a, b = actor(), actor()
    a.begin()
    if first == "cancel":
        a.cancel_job(running.id, force)
        other = b.later.finish_jobs([running.id], [running.run])
    else:
        a.finish_job(running.id, running.run)
        other = b.later.cancel_job(running.id, force)
    b.blocked(other)
    assert api.claim(worker) is None
    getattr(a, end)()
    other.result(20)
    halts = (first == "cancel") == (end == "commit") and force
    if first == "finish" and end != "commit" and not force:
        assert api.claim(worker) is None
        assert api.finish_jobs([running.id], [running.run]) == [running.id]
    assert drain(api, worker) == ([] if halts else [second.id])
    assert halted_by(api) == (running.id if halts else None)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(
    "how", ["retry_job", "delete_job", "resume_sequence", "retry a later one", "keyed add", "complete"]
)
def test_a_recovery_that_is_not_committed_resumes_nothing_yet_and_is_waited_for_by_nobody(
    impatient: Any, actor: Any, worker: int, how: str, end: str
) -> None:
    api = impatient
    (head,) = add(api, job_key="k")
    second, third = add(api, 2)
    api.fail(api.claim(worker), discard=True)
    a = actor()
    a.begin()
    {
        "retry_job": lambda: a.retry_job(head.id),
        "delete_job": lambda: a.delete_job(head.id),
        "resume_sequence": lambda: a.resume_sequence("s"),
        "retry a later one": lambda: a.retry_job(third.id),
        "keyed add": lambda: add(a, job_key="k"),
        "complete": lambda: a.complete_jobs([head.id]),
    }[how]()
    (fourth,) = add(api)
    for _ in range(2):
        assert api.claim(worker) is None
        api.maintain()
    getattr(a, end)()
    if end != "commit":
        assert api.claim(worker) is None
        assert halted_by(api) == head.id
        assert api.resume_sequence("s")
        assert drain(api, worker) == ids([second, third, fourth])
        return
    order = [second, third, fourth]
    if how in ("retry_job", "keyed add"):
        order = [head, *order]
    elif how == "retry a later one":
        order = [third, second, fourth]
    assert drain(api, worker) == ids(order)


@pytest.mark.parametrize("how", ["retry_job", "resume_sequence", "retry a later one"])
@pytest.mark.parametrize("end", ENDS)
def test_a_recovery_meets_a_halt_that_is_not_committed(
    api: Any, actor: Any, worker: int, running: Any, how: str, end: str
) -> None:
    second, third = add(api, 2)
    w, a = actor(), actor()
    w.begin()
    w.fail(running, discard=True)
    if how == "retry_job":
        retry = a.later.retry_job(running.id)
        a.blocked(retry)
        getattr(w, end)()
        if end == "commit":
            retry.result(20)
            assert drain(api, worker) == ids([running, second, third])
            return
        with api.refusal("PW005"):
            retry.result(20)
    elif how == "resume_sequence":
        assert a.resume_sequence("s") is False
        getattr(w, end)()
    else:
        a.retry_job(third.id)
        getattr(w, end)()
    if end == "commit":
        assert api.claim(worker) is None
        assert halted_by(api) == running.id
        api.resume_sequence("s")
    else:
        api.finish_job(running.id, running.run)
    assert drain(api, worker) == ids([second, third])


def test_two_recoveries_at_once_bring_one_head(api: Any, actor: Any, worker: int) -> None:
    jobs = add(api, 4)
    api.fail(api.claim(worker), discard=True)
    a, b = actor(), actor()
    a.begin()
    a.retry_job(jobs[3].id)
    retry = b.later.retry_job(jobs[2].id)
    b.blocked(retry)
    assert api.claim(worker) is None
    a.commit()
    retry.result(20)
    assert drain(api, worker) == ids([jobs[3], jobs[1], jobs[2]])


def test_retries_of_the_halting_job_and_of_later_ones_do_not_deadlock(
    api: Any, actor: Any, worker: int
) -> None:
    jobs = add(api, 3)
    api.fail(api.claim(worker), discard=True)
    a, b = actor(), actor()
    a.begin()
    a.retry_job(jobs[0].id)
    later = b.later.retry_job(jobs[2].id)
    b.blocked(later)
    a.retry_job(jobs[2].id)
    a.commit()
    later.result(20)
    assert drain(api, worker) == ids(jobs)


def test_two_sessions_resume_a_sequence_once(api: Any, actor: Any, worker: int) -> None:
    jobs = add(api, 3)
    api.cancel_job(jobs[0].id)
    api.cancel_job(jobs[1].id)
    a, b = actor(), actor()
    a.begin()
    assert a.resume_sequence("s") is True
    again = b.later.resume_sequence("s")
    b.blocked(again)
    a.commit()
    assert again.result(20) == [(False,)]
    assert drain(api, worker) == [jobs[2].id]


@pytest.mark.parametrize("end", ENDS)
def test_a_completed_job_that_is_retried_meets_the_end_of_the_head(
    impatient: Any, actor: Any, worker: int, end: str
) -> None:
    api = impatient
    jobs = add(api, 3)
    api.finish(api.claim(worker).id)
    claimed = api.claim(worker)
    w, a = actor(), actor()
    now(a)
    w.begin()
    w.finish_job(claimed.id, claimed.run)
    a.begin()
    a.retry_job(jobs[0].id)
    getattr(w, end)()
    if end == "commit":
        assert api.claim(worker).id == jobs[2].id
    else:
        assert api.claim(worker) is None
    a.commit()
    assert api.claim(worker) is None
    api.finish(jobs[2 if end == "commit" else 1].id)
    assert drain(api, worker) == ids([jobs[0]] if end == "commit" else [jobs[0], jobs[2]])


# Halts against adds ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["discarded", "cancelled"])
@pytest.mark.parametrize("kept", [True, False], ids=["kept", "not kept"])
@pytest.mark.parametrize("how", ["prune", "maintain"])
def test_an_add_behind_a_halting_job_that_is_just_being_pruned_is_not_stranded(
    api: Any, actor: Any, worker: int, clock: Any, state: str, kept: bool, how: str
) -> None:
    if not kept:
        api.configure(cancelled_retention="0", discarded_retention="0")
    add(api)
    api.fail(api.claim(worker), cancel=state == "cancelled", discard=True)
    p = actor()
    clock.advance(days=50)
    worker = api.register_worker()
    p.begin()
    getattr(p, how)()
    (new,) = add(api)
    assert api.claim(worker) is None
    p.commit()
    assert drain(api, worker) == [new.id]


@pytest.mark.parametrize("end", ENDS)
def test_an_add_meets_a_halt_that_is_not_committed(
    impatient: Any, actor: Any, worker: int, running: Any, end: str
) -> None:
    api = impatient
    w = actor()
    w.begin()
    w.fail(running, discard=True)
    (new,) = add(api)
    assert (new.sequence_halted_by, api.claim(worker)) == (None, None)
    getattr(w, end)()
    if end == "commit":
        assert api.claim(worker) is None
        assert api.get_job(new.id).sequence_halted_by == running.id
    else:
        api.finish_job(running.id, running.run)
        assert drain(api, worker) == [new.id]


# Workers that die ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", ["claim", "finish", "finish and claim", "fail", "snooze", "unregister"])
def test_a_worker_that_is_killed_at_its_work_leaves_the_sequence_as_it_was(
    impatient: Any, actor: Any, worker: int, at: str
) -> None:
    api = impatient
    jobs = add(api, 3)
    w = actor()
    mine = api.register_worker()
    job = None if at == "claim" else w.claim(mine)
    w.begin()
    if at == "claim":
        w.claim(mine)
    elif at == "fail":
        w.fail(job)
    elif at == "snooze":
        w.snooze_job(job.id, job.run, "1 hour")
    elif at == "unregister":
        w.unregister_worker(mine)
    else:
        w.finish_job(job.id, job.run)
        if at == "finish and claim":
            assert w.claim(mine).id == jobs[1].id
    assert api.claim(worker) is None
    w.kill()
    if at != "claim":
        assert api.claim(worker) is None, "the dead worker still has its lease"
        api.force_unlock_workers([str(mine)])
    assert drain(api, worker) == ids(jobs)


@pytest.mark.parametrize("last", [False, True], ids=["attempts left", "last attempt"])
def test_a_sweep_meets_the_end_of_the_run(api: Any, actor: Any, worker: int, clock: Any, last: bool) -> None:
    (head,) = add(api, max_attempts=1 if last else 25)
    (second,) = add(api)
    claimed = api.claim(worker)
    s, w = actor(), actor()
    clock.advance(minutes=5)
    other = api.register_worker()
    s.begin()
    assert s.maintain()["rescued"] == 1
    finish = w.later.finish_jobs([claimed.id], [claimed.run])
    w.blocked(finish)
    assert api.claim(other) is None
    s.commit()
    assert finish.result(20)[0][0] == []
    assert drain(api, other) == ([] if last else ids([head, second]))
    assert halted_by(api) == (head.id if last else None)


@pytest.mark.parametrize("end", ENDS)
def test_a_keyed_add_that_moves_jobs_between_two_sequences_meets_their_promoters(
    impatient: Any, actor: Any, worker: int, end: str
) -> None:
    api = impatient
    jobs = [add(api, job_key=f"{s}{n}", policy={"key": s})[0] for s in "ab" for n in range(2)]
    api.promote_jobs()
    m = actor()
    m.begin()
    for job_key, other in (("a0", "b"), ("b0", "a")):
        add(m, job_key=job_key, policy={"key": other})
    assert api.claim_jobs(worker, 10) == []
    getattr(m, end)()
    a0, a1, b0, b1 = ids(jobs)
    claimed = api.claim_jobs(worker, 10)
    assert sorted(ids(claimed)) == ([a0, a1] if end == "commit" else [a0, b0])
    api.finish(*ids(claimed))
    assert sorted(ids(api.claim_jobs(worker, 10))) == ([b0, b1] if end == "commit" else [a1, b1])


@pytest.mark.parametrize("level", LEVELS[1:])
def test_a_head_that_was_promoted_since_the_snapshot_is_left_alone(
    api: Any, actor: Any, worker: int, level: str
) -> None:
    (first,) = add(api)
    (second,) = add(api, job_key="k")
    a = actor()
    a.begin(level)
    a.rows("select from pyworker.jobs")
    api.finish(api.claim(worker).id)
    with pytest.raises(psycopg.errors.SerializationFailure):
        add(a, job_key="k")
    a.rollback()
    assert drain(api, worker) == [second.id]
    assert first.id < second.id
