"""Who gets the slots of a queue: several sessions, several tasks, many queues, changed limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.api import ids
from tests.support.plans import touched
from tests.support.queues import add, busy, claim, named
from tests.support.sessions import LEVELS


def test_an_urgent_job_goes_before_one_that_could_have_started_long_ago(api: Any, worker: int) -> None:
    (first,) = named(api, "slow", priority=10)
    api.promote_jobs()
    (urgent,) = named(api, "slow", priority=-10)
    (other,) = named(api, "other", priority=-20)
    for expected in (other, urgent, first):
        assert claim(api, worker) == [expected]
        api.finish(expected)


def test_an_earlier_job_of_another_task_goes_first_for_a_worker_that_takes_both(
    api: Any, worker: int
) -> None:
    order = named(api, "a", "b", "b", "a", "c", "a")
    seen = []
    while jobs := api.claim_jobs(worker, 10):
        seen += ids(jobs)
        api.finish(*ids(jobs))
    assert seen == order


def test_a_job_that_waits_for_a_slot_is_available_and_no_policy_need_know_of_queues(
    api: Any, worker: int
) -> None:
    """The Open Job Spec's own example names no `pending`."""
    policy = {
        "keys": ["type", "args"],
        "states": ["available", "active", "scheduled"],
        "on_conflict": "ignore",
    }
    named(api, "holder")
    assert api.claim(worker)
    first = api.add_job("t", {"n": 1}, queue_name="q", unique_policy=policy)
    assert first.state == "available"
    second = api.add_job("t", {"n": 1}, queue_name="q", unique_policy=policy)
    assert (second.id, second.deduplicated) == (first.id, True)


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_however_many_sessions_claim_at_once_no_more_start_than_there_are_slots(
    api: Any, actor: Callable[[], Any], limit: int
) -> None:
    api.set_queue("q", limit)
    jobs = named(api, *"abcdef")
    api.promote_jobs()
    sessions = [actor() for _ in range(3)]
    workers = [api.register_worker() for _ in sessions]
    started = []
    for session, worker in zip(sessions, workers, strict=True):
        session.begin()
        started += claim(session, worker, 10)
    assert started == jobs[:limit]
    for session in sessions:
        session.commit()
    for session, worker in zip(sessions, workers, strict=True):
        assert claim(session, worker, 10) == []
    jobs += named(api, "g")
    assert claim(api, workers[0], 10) == []
    api.finish(*started)
    assert claim(api, workers[0], limit) == jobs[limit : 2 * limit]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("first_end", ["commit", "rollback", "kill"])
def test_two_producers_that_both_find_the_queue_idle_pass_no_limit_and_strand_no_job(
    api: Any, worker: int, actor: Callable[[], Any], level: str, first_end: str
) -> None:
    a, b = actor(), actor()
    a.begin(level)
    b.begin(level)
    jobs = named(a, "t") + named(b, "t")
    getattr(a, first_end)()
    b.commit()
    jobs = jobs if first_end == "commit" else jobs[1:]
    assert claim(api, worker, 10) == jobs[:1]
    assert claim(api, worker, 10) == []
    api.finish(jobs[0])
    assert claim(api, worker, 10) == jobs[1:]


def test_no_job_overtakes_those_that_were_added_before(api: Any, worker: int) -> None:
    api.set_queue("q", 2)
    jobs = named(api, *"aaaa")
    claim(api, worker)
    api.finish(*jobs[:2])
    assert claim(api, worker, 1) == [jobs[2]]
    later = named(api, "a")  # one slot is free, and is of the job before
    assert claim(api, worker, 1) == [jobs[3]]
    api.finish(*jobs[2:])
    assert claim(api, worker) == later


# Many queues, many slots --------------------------------------------------------------------------------


def test_a_claim_passes_a_full_queue_and_takes_what_comes_behind(api: Any, worker: int) -> None:
    (first, *_) = named(api, *"aaaaa")
    other = api.add_job("a")
    api.set_queue("r", 2)
    rest = named(api, *"bbb", queue="r")
    assert claim(api, worker, 10) == [first, other.id, *rest[:2]]


def test_a_claim_that_asks_for_one_job_passes_many_full_queues(api: Any, worker: int) -> None:
    for n in range(30):
        named(api, "a", "b", queue=f"q{n}")
    assert len(api.claim_jobs(worker, 100)) == 30
    last = api.add_job("a")
    assert claim(api, worker, 1) == [last.id]
    assert claim(api, worker, 1) == []


def test_a_claim_finds_a_job_whose_queue_was_asked_for_after_hundreds_of_others(
    api: Any, worker: int
) -> None:
    api.add_jobs([{"identifier": "t", "queue_name": f"q{n}"} for n in range(450)])
    (last,) = named(api, "last")
    assert ids(api.claim_jobs(worker, 1, ["last"])) == [last]
    assert len(api.claim_jobs(worker, 1000)) == 450


def test_a_queue_of_thousands_of_slots_is_counted_by_no_end(api: Any, worker: int, watched: Any) -> None:
    api.set_queue("q", 5000)
    api.add_jobs([{"identifier": "t", "queue_name": "q"}] * 2500)
    running = [job for _ in range(3) for job in api.claim_jobs(worker, 1000)]
    assert len(running) == 2500
    named(api, "t")
    plans = watched(lambda a: a.finish_jobs([running[0].id], [running[0].run]))
    assert sum(touched(plans).values()) < 100


@pytest.mark.parametrize("bulk", [False, True])
def test_in_a_queue_without_a_limit_no_add_claim_or_end_asks_for_a_decision(
    api: Any, worker: int, actor: Callable[[], Any], bulk: bool
) -> None:
    """So all of it goes on while another session holds the gate."""
    api.set_queue("q", None)
    holder = actor()
    holder.begin()
    holder.promote_jobs()
    if bulk:
        jobs = add(api, 3)
    else:
        jobs = named(api, *"aaa")
    jobs += named(api, "a", job_key="k")
    assert claim(api, worker, 2) == jobs[:2]
    api.finish(*jobs[:2])
    assert claim(api, worker) == jobs[2:]


# Changed limits -----------------------------------------------------------------------------------------


def test_those_that_were_let_in_never_add_up_to_more_than_a_lowered_limit(api: Any, worker: int) -> None:
    api.set_queue("q", 4)
    jobs = add(api, 6)
    api.promote_jobs()
    assert claim(api, worker, 2) == jobs[:2]
    api.set_queue("q", 3)
    assert claim(api, worker) == jobs[2:3]
    assert claim(api, worker) == []
    api.finish(*jobs[:3])
    assert claim(api, worker) == jobs[3:]


def test_an_add_that_began_before_a_pause_waits_until_the_queue_is_resumed(
    api: Any, actor: Callable[[], Any], worker: int
) -> None:
    api.set_queue("q", None)
    jobs = add(api, 2)
    a = actor()
    a.begin("repeatable read")  # its snapshot knows of no pause
    api.pause_queue("q")
    jobs += add(a, 1)
    a.commit()
    assert claim(api, worker) == []
    api.resume_queue("q")
    assert claim(api, worker) == jobs


def test_a_limit_that_is_set_while_a_job_ends_that_knew_of_none_strands_no_job(
    api: Any, actor: Callable[[], Any], worker: int, clock: Any
) -> None:
    api.set_queue("q", None)
    running = add(api, 1)
    assert claim(api, worker) == running
    a = actor()
    a.begin()
    a.finish(*running)  # a queue without a limit: nothing waits for an end
    api.set_queue("q", 1)
    behind = add(api, 1)
    assert claim(api, worker) == []
    a.commit()
    clock.advance(seconds=0.25)
    assert claim(api, worker) == behind


@pytest.mark.parametrize("level", LEVELS[:2])
def test_an_end_that_began_beside_a_change_of_the_limit_strands_no_job(
    api: Any, actor: Callable[[], Any], worker: int, clock: Any, level: str
) -> None:
    """Its transaction is younger than the change, or has an older snapshot."""
    api.set_queue("q", None)
    running, behind = add(api, 2)
    assert claim(api, worker, 1) == [running]
    s, a = actor(), actor()
    s.begin()
    s.set_queue("q", 1)
    a.begin(level)
    if level == LEVELS[0]:
        a.finish(running)
    s.commit()
    for _ in range(3):
        add(api, 1)
        assert claim(api, worker, 1) == []
    if level != LEVELS[0]:
        a.finish(running)
    a.commit()
    clock.advance(seconds=0.25)
    assert claim(api, worker, 1) == [behind]


@pytest.mark.parametrize("level", LEVELS[:2])
def test_a_retry_that_began_beside_a_change_of_the_limit_does_not_pass_it(
    api: Any, actor: Callable[[], Any], worker: int, level: str
) -> None:
    api.set_queue("q", None)
    (first,) = add(api, 1)
    api.permanently_fail_jobs([first])
    api.promote_jobs()
    s, a = actor(), actor()
    s.begin()
    s.set_queue("q", 1)
    a.begin(level)
    if level == LEVELS[0]:
        a.retry_job(first)
    s.commit()
    add(api, 1)
    api.promote_jobs()
    if level != LEVELS[0]:
        a.retry_job(first)
    a.commit()
    assert len(claim(api, worker)) == 1
    assert claim(api, worker) == []


def test_a_job_of_a_queue_that_was_let_in_before_is_claimed_in_a_long_transaction(
    api: Any, actor: Callable[[], Any], worker: int
) -> None:
    jobs = add(api, 2)
    assert api.promote_jobs() == 1
    a = actor()
    busy(a)
    assert claim(a, worker) == jobs[:1]
    a.commit()
    assert claim(api, worker) == []
