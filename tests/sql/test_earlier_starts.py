"""A queue that gets a rate: what it has started before counts, as far as running jobs and history show it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.support.queues import add, claim, claim_from_the_head
from tests.support.rates import begun as begun
from tests.support.rates import worst

HOUR = timedelta(hours=1)
USED = "select rate_used from pyworker.list_queues() where queue_name = 'k:1'"


@pytest.fixture(autouse=True)
def long_lease(worker: int, api: Any) -> None:
    """The clocks of these tests leap."""
    api.rows("update pyworker.workers set expires_at = 'infinity'")


def test_starts_from_before_the_first_rate_count(api: Any, worker: int, clock: Any) -> None:
    api.set_queue("q", None)
    ids = add(api, 9)
    assert claim(api, worker, 2) == ids[:2]
    clock.advance(seconds=5)
    assert claim(api, worker, 3) == ids[2:5]
    api.finish(*ids[:4])
    api.set_queue("q", None, 6, "10 seconds")
    assert claim(api, worker) == ids[5:6]
    clock.advance(seconds=5)
    assert claim(api, worker) == ids[6:8]


def test_starts_between_two_rates_count(api: Any, worker: int, clock: Any) -> None:
    api.rows("update pyworker.workers set expires_at = 'infinity'")
    api.set_queue("k:1", None, 9, "10 minutes")
    add(api, 9, "k:1")
    begun: list[int] = []
    for jobs in (1, 2, 3):
        begun.append(len(claim(api, worker, jobs)))
        clock.advance(minutes=2)
        api.set_queue("k:1", None)
    assert begun == [1, 2, 3]
    api.set_queue("k:1", None, 7, "10 minutes")
    assert [len(claim(api, worker))] == [1]
    api.set_queue("k:1", None, 6, "10 minutes")
    add(api, 9, "k:1")
    for later, started in ((4, 0), (2, 2), (2, 3)):  # 10, 12 and 14 minutes after the first start
        clock.advance(minutes=later)
        assert len(claim(api, worker)) == started, later


def run(api: Any, worker: int, jobs: int) -> int:
    """Add jobs, start those that may, and end them; how many started."""
    if jobs:
        add(api, jobs, "k:1")
    started = api.claim_jobs(worker, 1000)
    api.finish_jobs([job.id for job in started], [job.run for job in started])
    return len(started)


@pytest.mark.parametrize("rated", [False, True])
def test_starts_that_a_claim_could_not_see_are_not_subtracted_from_its_own(
    api: Any, worker: int, actor: Callable[[], Any], clock: Any, rated: bool
) -> None:
    """The family's set_queue has counted some, and commits after one of the queues has another rate."""
    api.define_task("t", retention="0")
    api.set_queue("k:1", None, *([9, "1 hour"] if rated else []))
    assert run(api, worker, 2) == 2
    api.set_queue("k:1", None)
    running = add(api, 3, "k:1")
    assert claim(api, worker) == running
    other = actor()
    other.begin()
    other.set_queue("k:*", None, 5, "1 hour")
    api.finish(*running)
    api.set_queue("k:1", None, 5, "1 hour")
    clock.advance(minutes=20)
    assert run(api, worker, 20) == (3 if rated else 5)
    other.commit()
    clock.advance(minutes=30)
    assert run(api, worker, 0) == 0
    clock.advance(minutes=11)
    assert run(api, worker, 0) == (2 if rated else 0)
    clock.advance(minutes=19)
    assert run(api, worker, 0) == (3 if rated else 5)
    clock.advance(minutes=1)
    assert run(api, worker, 0) == 0


def test_a_claim_waits_for_no_open_set_queue(
    api: Any, worker: int, actor: Callable[[], Any], clock: Any
) -> None:
    """Both count the starts of before: the open one has seen one that is gone since."""
    api.define_task("t", retention="0")
    api.set_queue("k:1", None)
    (first,) = add(api, 1, "k:1")
    assert claim(api, worker) == [first]
    other = actor()
    other.begin()
    other.set_queue("k:*", None, 5, "1 minute")
    api.finish(first)
    api.set_queue("k:1", None, 5, "1 minute")
    others = add(api, 2, "k:1")
    plain = api.add_job("t").id
    api.conn.execute("set statement_timeout = '5s'")
    assert claim(api, worker) == [*others, plain]
    other.commit()
    add(api, 9, "k:1")
    assert len(claim(api, worker)) == 2
    clock.advance(minutes=1)
    assert len(claim(api, worker)) == 5


def test_two_calls_that_are_open_together_wait_for_nothing_and_count_the_same_starts_once(
    api: Any, worker: int, actor: Callable[[], Any]
) -> None:
    """The queues of one come in another order than those of the other."""
    for queue in ("k:1", "k:2"):
        api.set_queue(queue, None)
        add(api, 9, queue)
        assert len(api.claim_jobs(worker, 3, queue_names=[queue])) == 3
    one, two = actor(), actor()
    for session in (one, two):
        session.begin()
        session.rows("set local statement_timeout = '5s'")
    one.set_queue("k:2", None, 6, "1 hour")
    two.set_queue("k:*", None, 6, "1 hour")
    one.set_queue("k:1", None, 7, "1 hour")
    one.commit()
    two.commit()
    assert api.value(USED) == 3
    claim(api, worker)
    assert api.value(USED) == 7


def test_a_claim_of_an_old_rate_that_commits_late_counts_for_the_next_rate(
    api: Any, worker: int, actor: Callable[[], Any], clock: Any, begun: Any
) -> None:
    api.set_queue("k:1", None, 9, "1 hour")
    add(api, 5, "k:1")
    other = actor()
    other.begin()
    assert len(claim(other, worker)) == 5
    api.set_queue("k:1", None)
    clock.advance(minutes=30)
    add(api, 3, "k:1")
    assert len(claim(api, worker)) == 3
    api.set_queue("k:1", None, 9, "1 hour")
    other.commit()
    add(api, 50, "k:1")
    for later, started in ((0, 1), (30, 5), (30, 4), (0, 0)):
        clock.advance(minutes=later)
        assert len(claim_from_the_head(api, worker, 100)) == started, later
    assert worst(begun("k:1"), HOUR) == 9


@pytest.mark.parametrize("starts", [0, 4])
def test_a_call_that_commits_late_hides_nothing_that_a_later_one_has_counted(
    api: Any, worker: int, actor: Callable[[], Any], clock: Any, starts: int
) -> None:
    api.define_task("t", retention="0")
    api.set_queue("k:1", None)
    running = add(api, 3, "k:1")
    assert claim(api, worker) == running
    other = actor()
    other.begin()
    other.set_queue("k:*", None, 30, "1 hour")
    api.finish(*running)
    clock.advance(minutes=20)
    if starts:
        api.set_queue("k:1", None, 30, "1 hour")
        assert run(api, worker, starts) == starts
        api.set_queue("k:1", None)
    add(api, 20, "k:1")
    assert len(claim(api, worker)) == 20
    api.set_queue("k:1", None, 30, "1 hour")
    other.commit()
    assert api.value(USED) == 3 + starts + 20
    clock.advance(minutes=41)
    assert api.value(USED) == starts + 20


def test_a_full_queue_tells_when_enough_of_its_earlier_starts_have_left_the_window(
    api: Any, worker: int, clock: Any
) -> None:
    """Counted and recorded starts leave in the order of their times."""
    api.set_queue("k:1", None)
    add(api, 99, "k:1")
    for jobs in (1, 2, 3):
        assert len(claim(api, worker, jobs)) == jobs
        clock.advance(minutes=10)
    api.set_queue("k:1", None, 8, "1 hour")
    assert len(claim(api, worker)) == 2
    free = "select rate_free_at - pyworker.clock() from pyworker.list_queues() where queue_name = 'k:1'"
    for limit, minutes in ((8, 30), (7, 40), (6, 40), (5, 50), (3, 50), (2, 60), (1, 60)):
        api.set_queue("k:1", None, limit, "1 hour")
        assert timedelta(0) <= timedelta(minutes=minutes) - api.value(free) < timedelta(minutes=1), limit


def test_a_thousand_earlier_starts_are_few_rows_and_count_hardly_longer(
    api: Any, worker: int, clock: Any
) -> None:
    api.set_queue("k:1", None)
    for _ in range(50):
        add(api, 20, "k:1")
        assert len(claim(api, worker)) == 20
        clock.advance(seconds=10)
    api.set_queue("k:1", None, 2000, "100 seconds")
    assert api.value("select count(*) from pyworker.earlier_starts") == 50
    assert 180 <= api.value(USED) <= 200
    api.set_queue("k:1", None)
    api.rows("truncate pyworker.earlier_starts")
    api.set_queue("k:1", None, 2000, "1 hour")
    assert 8 <= api.value("select count(*) from pyworker.earlier_starts") <= 10
    assert api.value(USED) == 1000


def test_earlier_starts_count_once_however_often_the_rate_is_removed_and_set(
    api: Any, worker: int, clock: Any
) -> None:
    api.set_queue("k:1", None)
    add(api, 2, "k:1")
    for _ in range(2):
        assert len(claim(api, worker, 1)) == 1
        clock.advance(seconds=1)
    for period in ("1 hour", "10 seconds", "1 hour"):
        api.set_queue("k:1", None, 9, period)
        assert api.value(USED) == 2
        api.set_queue("k:1", None)


def test_earlier_starts_are_deleted_when_no_period_reaches_them(api: Any, worker: int, clock: Any) -> None:
    for queue, period in (("k:1", "2 days"), ("k:2", "1 hour")):
        api.set_queue(queue, None)
        add(api, 3, queue)
        assert len(claim(api, worker)) == 3
        api.set_queue(queue, None, 9, period)
    names = "select array_agg(queue_name order by queue_name) from pyworker.earlier_starts"
    for hours, left in ((23, ["k:1", "k:2"]), (2, ["k:1"]), (22, ["k:1"]), (2, None)):
        clock.advance(hours=hours)
        api.maintain()
        assert api.value(names) == left, hours
