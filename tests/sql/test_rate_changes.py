"""Rates beside other sessions, rates that change, and a clock that goes back."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.support.queues import add, claim, claim_from_the_head
from tests.support.rates import starts, worst

SECOND = timedelta(seconds=1)


def test_a_claim_that_rolls_back_has_started_nothing(api: Any, worker: int, actor: Callable[[], Any]) -> None:
    api.set_queue("q", None, 2, "1 hour")
    ids = add(api, 3)
    other = actor()
    other.begin()
    assert claim(other, worker) == ids[:2]
    assert claim(api, worker) == []
    other.rollback()
    assert claim(api, worker) == ids[:2]
    assert claim(api, worker) == []


def test_a_claim_whose_session_is_killed_has_started_nothing(
    api: Any, worker: int, actor: Callable[[], Any]
) -> None:
    api.set_queue("q", None, 2, "1 hour")
    ids = add(api, 3)
    other = actor()
    other.begin()
    assert claim(other, worker, 1) == ids[:1]
    other.kill()
    assert claim(api, worker) == ids[:2]


def test_a_claim_that_commits_late_counts_from_its_time(
    api: Any, worker: int, actor: Callable[[], Any], clock: Any
) -> None:
    """Meanwhile the queue starts nothing: the claim has let in all that may start."""
    api.set_queue("q", None, 2, "10 seconds")
    ids = add(api, 6)
    other = actor()
    other.begin()
    assert claim(other, worker, 1) == ids[:1]
    clock.advance(seconds=4)
    assert claim(api, worker) == []
    other.commit()
    assert claim(api, worker) == ids[1:2]
    clock.advance(seconds=6)
    assert claim(api, worker) == ids[2:3]
    assert worst(starts(api), 10 * SECOND) == 2


def test_a_raised_rate_lets_more_start_at_once_and_earlier_starts_count(api: Any, worker: int) -> None:
    api.set_queue("q", None, 2, "1 hour")
    ids = add(api, 9)
    assert claim(api, worker) == ids[:2]
    api.set_queue("q", None, 5, "1 hour")
    assert claim(api, worker) == ids[2:5]
    api.set_queue("q", None)
    assert claim(api, worker) == ids[5:]


def test_a_lowered_rate_holds_for_each_later_start(api: Any, worker: int, clock: Any) -> None:
    api.rows("update pyworker.workers set expires_at = 'infinity'")
    api.set_queue("q", None, 5, "10 minutes")
    ids = add(api, 12)
    assert claim(api, worker, 4) == ids[:4]
    clock.advance(minutes=5)
    api.set_queue("q", None, 2, "10 minutes")
    assert claim(api, worker) == []
    clock.advance(minutes=4)
    assert claim(api, worker) == []
    clock.advance(minutes=1)
    assert claim(api, worker) == ids[4:6]


def test_what_was_let_in_under_a_rate_that_is_lowered_does_not_start(api: Any, worker: int) -> None:
    api.set_queue("q", None, 100, "1 hour")
    ids = add(api, 50)
    api.promote_jobs()
    api.set_queue("q", None, 3, "1 hour")
    assert claim(api, worker) == ids[:3]
    assert claim(api, worker) == []


def test_a_longer_period_counts_the_starts_of_the_shorter_one(api: Any, worker: int, clock: Any) -> None:
    api.set_queue("q", None, 2, "1 second")
    ids = add(api, 12)
    for n in range(0, 6, 2):
        assert claim(api, worker) == ids[n : n + 2]
        clock.advance(seconds=1)
    api.set_queue("q", None, 7, "1 hour")
    assert claim(api, worker) == ids[6:7]
    clock.advance(hours=1)
    api.conn.execute("update pyworker.workers set expires_at = 'infinity'")
    assert claim(api, worker) == ids[7:]


def test_starts_of_the_last_day_count_for_a_longer_period_though_maintenance_has_deleted_old_ones(
    api: Any, clock: Any
) -> None:
    api.set_queue("q", None, 1, "1 minute")
    for job in add(api, 2):
        assert claim(api, api.register_worker()) == [job]
        api.finish(job)
        clock.advance(hours=23)
    clock.advance(hours=-21)
    last = add(api, 1)
    api.maintain()
    api.set_queue("q", None, 1, "3 hours")
    assert claim(api, api.register_worker()) == []
    clock.advance(hours=1)
    assert claim(api, api.register_worker()) == last


def test_a_claim_with_an_old_snapshot_starts_nothing_and_brings_the_next_claim(
    api: Any, worker: int, actor: Callable[[], Any]
) -> None:
    api.set_queue("q", None, 2, "1 hour")
    ids = add(api, 4)
    api.promote_jobs()
    other = actor()
    other.begin("repeatable read")
    assert claim(other, worker) == []
    other.commit()
    assert claim(api, worker) == ids[:2]


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
@pytest.mark.parametrize("change", ["pause", "limit", "rate"])
def test_a_claim_whose_snapshot_does_not_show_a_limit_keeps_it(
    api: Any, worker: int, actor: Callable[[], Any], change: str, level: str
) -> None:
    api.set_queue("q", None)
    ids = add(api, 5)
    other = actor()
    other.begin(level)
    other.rows("select from pyworker.live_jobs")
    match change:
        case "pause":
            api.pause_queue("q")
        case "limit":
            api.set_queue("q", 1)
        case "rate":
            api.set_queue("q", None, 1, "1 hour")
    assert claim(other, worker, 5) == []
    other.commit()
    assert claim(api, worker, 5) == ([] if change == "pause" else ids[:1])


def test_a_claim_from_a_queue_with_a_rate_waits_for_the_disk(api: Any, worker: int) -> None:
    """Else a crash of the server could lose starts that workers have seen."""
    api.set_queue("q", None, 5, "1 hour")
    add(api, 1)
    with api.conn.transaction():
        api.conn.execute("set local synchronous_commit = off")
        claim(api, worker)
        assert api.value("show synchronous_commit") == "on"


@pytest.mark.parametrize("most", [1, 500])
def test_a_claim_takes_no_job_of_a_worse_priority_while_better_ones_wait(
    api: Any, worker: int, most: int
) -> None:
    api.set_queue("q", None, 2000, "1 hour")
    specs = [
        {"identifier": kind, "queue_name": "q", "priority": priority}
        for kind, priority in (("a", 0), ("b", 10))
        for _ in range(1100)
    ]
    api.add_jobs(specs)
    api.promote_jobs()
    for _ in range(-(-299 // most)):
        api.claim_jobs(worker, most)
    assert {job.task_identifier for job in api.claim_jobs(worker, 100)} == {"a"}


def test_starts_count_for_their_period_though_the_servers_clock_goes_back(
    api: Any, worker: int, clock: Any
) -> None:
    api.set_queue("q", None, 1100, "2 days")
    for jobs, later in ((450, {"minutes": 1}), (450, {"days": 2}), (50, {"hours": -1}), (60, {})):
        add(api, jobs)
        assert len(claim_from_the_head(api, worker, jobs)) == jobs
        clock.advance(**later)
    add(api, 200)
    assert len(claim_from_the_head(api, worker, 200)) == 1100 - 1010


def test_a_start_counts_from_the_time_at_which_its_job_was_let_in_though_the_claim_has_an_earlier_one(
    api: Any, worker: int, clock: Any
) -> None:
    api.set_queue("q", None, 1, "10 seconds")
    first, second = add(api, 2)
    assert api.promote_jobs() == 1
    clock.advance(seconds=-5)
    assert claim(api, worker) == [first]
    clock.advance(seconds=12)
    assert claim(api, worker) == []
    clock.advance(seconds=4)
    assert claim(api, worker) == [second]


def test_the_last_start_of_one_queue_moves_no_start_of_another_though_the_clock_goes_back(
    api: Any, worker: int, clock: Any
) -> None:
    api.set_queue("full", None, 1, "1 day")
    api.set_queue("q", None, 1, "1 minute")
    (first,) = add(api, 1, "full")
    assert claim(api, worker) == [first]
    for _ in range(4):
        api.promote_jobs()
    clock.advance(hours=-1)
    add(api, 1, "full")
    ids = add(api, 1)
    assert [job.id for job in claim_from_the_head(api, worker, 10)] == ids
    ids += add(api, 1)
    clock.advance(minutes=2)
    assert [job.id for job in claim_from_the_head(api, worker, 10)] == ids[1:]


# A rate after a time without one ------------------------------------------------------------------------

USED = "select rate_used from pyworker.list_queues() where queue_name = 'q'"
FREE = "select rate_free_at - pyworker.clock() from pyworker.list_queues() where queue_name = 'q'"


def test_starts_from_before_the_first_rate_do_not_count_and_those_under_an_earlier_rate_do(
    api: Any, worker: int, clock: Any
) -> None:
    api.set_queue("q", None)
    ids = add(api, 20)
    assert claim(api, worker, 3) == ids[:3]
    for limit, more in ((2, 2), (None, 4), (5, 3)):
        api.set_queue("q", None, *((limit, "1 hour") if limit else ()))
        assert len(claim(api, worker, 4 if limit is None else 100)) == more, limit
        clock.advance(seconds=1)
    assert api.value(USED) == 5
    for period, used in (("1 minute", 5), ("1 second", 0), ("1 hour", 5)):
        api.set_queue("q", None)
        api.set_queue("q", None, 9, period)
        assert api.value(USED) == used, period


def test_a_full_queue_tells_when_enough_of_its_starts_have_left_the_window(
    api: Any, worker: int, clock: Any
) -> None:
    api.rows("update pyworker.workers set expires_at = 'infinity'")
    api.set_queue("q", None, 99, "1 hour")
    add(api, 99)
    for jobs in (1, 2, 3, 2):
        assert len(claim(api, worker, jobs)) == jobs
        clock.advance(minutes=10)
    for limit, minutes in ((8, 20), (7, 30), (6, 30), (5, 40), (3, 40), (2, 50), (1, 50)):
        api.set_queue("q", None, limit, "1 hour")
        api.promote_jobs()
        assert timedelta(0) <= timedelta(minutes=minutes) - api.value(FREE) < timedelta(minutes=1), limit


def test_a_claim_under_an_old_rate_that_commits_late_counts_for_the_next_rate(
    api: Any, worker: int, actor: Callable[[], Any], clock: Any
) -> None:
    api.rows("update pyworker.workers set expires_at = 'infinity'")
    api.set_queue("q", None, 5, "1 hour")
    add(api, 9)
    other = actor()
    other.begin()
    assert len(claim(other, worker)) == 5
    api.set_queue("q", None)
    clock.advance(minutes=30)
    api.set_queue("q", None, 6, "1 hour")
    other.commit()
    assert len(claim(api, worker)) == 1
    clock.advance(minutes=29)
    assert claim(api, worker) == []
    clock.advance(minutes=1)
    assert len(claim(api, worker)) == 3


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_calls_that_are_open_together_wait_for_nothing_and_hold_up_no_claim(
    api: Any, worker: int, actor: Callable[[], Any], end: str
) -> None:
    """The queues of one come in another order than those of the other."""
    for queue in ("k:1", "k:2"):
        api.set_queue(queue, None)
        add(api, 3, queue)
    one, two = actor(), actor()
    for session in (one, two):
        session.begin()
    one.set_queue("k:2", None, 1, "1 hour")
    two.set_queue("k:*", None, 1, "1 hour")
    one.set_queue("k:3", None, 1, "1 hour")
    two.pause_queue("k:1")
    assert len(claim(api, worker, 2)) == 2
    two.commit()
    getattr(one, end)()
    assert len(claim(api, worker)) == (1 if end == "commit" else 3)
