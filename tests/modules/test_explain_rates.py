"""explain_job, list_queues and queue_stats: what a rate leaves to start, and when."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from tests.support.queues import add, claim


def rate_of(api: Any, queue: str = "q") -> tuple[Any, ...]:
    columns = "rate_limit, rate_used, rate_left, rate_free_at, fair"
    (stats,) = api.rows(f"select {columns} from pyworker.queue_stats where queue_name = %s", [queue])
    (listed,) = api.rows(f"select {columns} from pyworker.list_queues() where queue_name = %s", [queue])
    assert stats == listed
    return tuple(stats)


def raise_limit(api: Any, job: int) -> None:
    """Follows the remedy of a job whose queue is full."""
    (full,) = [
        row for row in api.rows("select * from pyworker.explain_job(%s)", [job]) if row.reason == "queue full"
    ]
    api.rows(full.remedy.removesuffix(" lets one more run at once"))


@pytest.mark.parametrize("name", ["q", "it's", "c:1"])
def test_a_job_that_waits_for_a_rate_is_told_the_moment(api: Any, worker: int, clock: Any, name: str) -> None:
    api.set_queue("c:*" if name == "c:1" else name, None, 2, "1 minute")
    ids = add(api, 4, name)
    claim(api, worker, 1)
    clock.advance(seconds=20)
    claim(api, worker)
    first = api.value("select min(locked_at) from pyworker.jobs")
    for job in ids[2:]:
        reason, *_ = api.rows("select * from pyworker.explain_job(%s)", [job])
        moment = reason.reason.removeprefix("rate: none starts before ")
        assert (datetime.fromisoformat(moment) - first).total_seconds() == 60
        assert f"queue {name} starts at most 2 in any 1 min, and has started 2" in reason.detail
    claim(api, worker)
    call = reason.remedy.removesuffix(" doubles the rate")
    api.rows(call)
    assert claim(api, worker) == ids[2:]


def test_the_limit_of_a_full_queue_is_raised_without_a_change_of_its_rate(api: Any, worker: int) -> None:
    api.set_queue("q", 1, 5, "1 minute")
    ids = add(api, 2)
    claim(api, worker)
    raise_limit(api, ids[1])
    assert claim(api, worker) == ids[1:]
    assert rate_of(api)[:3] == (5, 2, 3)


@pytest.mark.parametrize("rate", [(), (5, "1 minute")])
def test_the_limit_of_a_full_queue_that_takes_turns_is_raised_for_its_family(
    api: Any, worker: int, rate: tuple[Any, ...]
) -> None:
    """The queue's own setting would end its turns."""
    api.set_queue("c*", 7)
    api.set_queue("c:*", 1, *rate, fair=True)
    ids = add(api, 2, "c:1")
    claim(api, worker)
    raise_limit(api, ids[1])
    assert claim(api, worker) == ids[1:]
    (stats,) = api.rows("select * from pyworker.queue_stats where queue_name = 'c:1'")
    assert (stats.concurrency, stats.fair) == (2, True)
    assert (stats.rate_limit, stats.rate_used) == ((5, 2) if rate else (None, None))


def test_a_queue_shows_what_its_rate_has_used_and_left(api: Any, worker: int, clock: Any) -> None:
    add(api, 1, "plain")
    assert rate_of(api, "plain") == (None, None, None, None, False)
    api.set_queue("q", None, 3, "10 seconds")
    assert rate_of(api) == (3, 0, 3, None, False)
    add(api, 9)
    claim(api, worker, 3)  # and the plain one
    assert rate_of(api) == (3, 2, 1, None, False)
    clock.advance(seconds=5)
    claim(api, worker)
    limit, used, left, free_at, _ = rate_of(api)
    assert (limit, used, left) == (3, 3, 0)
    assert (free_at - api.at()).total_seconds() == pytest.approx(5, abs=1)
    clock.advance(seconds=5)
    assert rate_of(api) == (3, 1, 2, None, False)


def test_the_next_start_under_a_rate_is_the_same_before_and_after_a_pass_adds_up_the_starts(
    api: Any, worker: int, clock: Any
) -> None:
    api.set_queue("q", None, 5, "1 minute")
    add(api, 6)
    starts = []
    for _ in range(5):
        assert len(claim(api, worker, 1)) == 1
        starts.append(api.at())
        clock.advance(seconds=10)
    assert (rate_of(api)[3] - starts[0]).total_seconds() == pytest.approx(60, abs=1)
    api.set_queue("q", None, 2, "1 minute")  # the next one starts when four of five have left the window
    before = rate_of(api)
    api.promote_jobs()
    assert before == rate_of(api)
    assert (before[3] - starts[3]).total_seconds() == pytest.approx(60, abs=1)


def test_a_family_shows_its_rate_and_each_of_its_queues_what_is_used(api: Any, worker: int) -> None:
    api.set_queue("c:*", None, 3, "10 seconds", True)
    add(api, 1, "c:1")
    add(api, 9, "c:2")
    claim(api, worker)
    assert rate_of(api, "c:*") == (3, None, None, None, True)
    assert rate_of(api, "c:1") == (3, 1, 2, None, True)
    assert rate_of(api, "c:2")[:3] == (3, 3, 0)


def test_metrics_have_the_limits_of_queues_and_what_is_used(api: Any, worker: int) -> None:
    api.set_queue("a", 4)
    api.set_queue("c:*", None, 3, "10 seconds")
    add(api, 2, "c:1")
    claim(api, worker)
    found = api.rows(
        "select name, labels ->> 'queue' as queue, value from pyworker.metrics() "
        "where name like 'pyworker_queue!_%%' escape '!' order by 1, 2",
        [],
    )
    assert [tuple(row) for row in found] == [
        ("pyworker_queue_concurrency", "a", 4),
        ("pyworker_queue_rate_limit", "c:*", 3),
        ("pyworker_queue_rate_limit", "c:1", 3),
        ("pyworker_queue_rate_used", "c:1", 2),
    ]
