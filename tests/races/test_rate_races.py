"""However many sessions claim, roll back or are killed, no window holds more starts than the rate; and each
job ends."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from tests.support.claimers import work_off
from tests.support.queues import add, claim
from tests.support.rates import begun as begun
from tests.support.rates import starts, worst
from tests.support.sessions import LEVELS, SNAPSHOT_LEVELS


@pytest.mark.parametrize(
    ("limit", "rate", "period", "batch"), [(None, 20, 100, 7), (3, 10, 100, 2), (None, 5, 50, 1)]
)
def test_no_window_holds_more_starts_than_the_rate(
    api: Any, dsn: str, begun: Any, limit: int | None, rate: int, period: int, batch: int
) -> None:
    api.set_queue("q", limit, rate, f"{period} ms")
    add(api, 200)
    work_off(api, dsn, batch, LEVELS[:1] * 6)
    assert len(begun()) >= 200
    assert worst(begun(), timedelta(milliseconds=period)) <= rate


def most_at_once(api: Any, queue: str) -> int:
    """How many jobs of a queue have run at the same time, each in its last run."""
    sql = "select locked_at, finished_at from pyworker.history where queue_name = %s"
    spans = [tuple(row) for row in api.rows(sql, [queue])]
    return max(sum(begin <= at < end for begin, end in spans) for at, _ in spans)


def test_each_queue_of_a_fair_family_keeps_its_rate_its_limit_and_the_order_of_sequences(
    api: Any, dsn: str, begun: Any
) -> None:
    api.set_queue("k:*", 2, 6, "100 ms", True)
    queues = [f"k:{n}" for n in range(4)]
    specs = [{"identifier": "ab"[n % 2], "queue_name": queues[n % 4], "priority": n % 3} for n in range(160)]
    api.add_jobs(
        [s | ({} if n % 7 else {"sequence_policy": {"key": f"s{n % 3}"}}) for n, s in enumerate(specs)]
    )
    work_off(api, dsn, 5, LEVELS[:1] * 5)
    for queue in queues:
        assert len(begun(queue)) >= 40
        assert worst(begun(queue), timedelta(milliseconds=100)) <= 6
        assert most_at_once(api, queue) <= 2
    ended = "select array_agg(id order by finished_at, id) from pyworker.history group by sequence_key"
    for (order,) in api.rows(f"{ended} having sequence_key is not null"):
        assert order == sorted(order)


def test_a_rate_that_changes_again_and_again_holds_the_largest_one(api: Any, dsn: str, begun: Any) -> None:
    def change(n: int) -> None:
        api.set_queue(*[("q", None), ("q", 5)][n % 2], [10, 4, 7][n % 3], "100 ms")

    api.set_queue("q", None, 10, "100 ms")
    add(api, 300)
    work_off(api, dsn, 4, LEVELS[:1] * 4, change)
    assert worst(begun(), timedelta(milliseconds=100)) <= 10


def test_claimers_at_each_isolation_level_together_keep_the_rate_and_leave_no_job(
    api: Any, dsn: str, begun: Any
) -> None:
    api.set_queue("q", None, 10, "100 ms")
    add(api, 150)
    work_off(api, dsn, 4, LEVELS * 2)
    assert worst(begun(), timedelta(milliseconds=100)) <= 10


def attempt(actor: Any, worker: int) -> list[int]:
    """The jobs that a claim in the open transaction starts; none if PostgreSQL refuses with 40001."""
    try:
        return claim(actor, worker)
    except psycopg.errors.SerializationFailure:
        actor.rollback()
        return []


@pytest.mark.parametrize("end", ["commit", "rollback", "kill"])
@pytest.mark.parametrize("second", LEVELS)
@pytest.mark.parametrize("first", LEVELS)
def test_two_claims_at_any_isolation_level_start_no_more_than_the_rate_and_forget_no_job(
    api: Any, actor: Any, clock: Any, first: str, second: str, end: str
) -> None:
    api.set_queue("q", None, 3, "10 seconds")
    add(api, 6)
    workers = [api.register_worker() for _ in range(3)]
    one, two = actor(), actor()
    one.begin(first)
    two.begin(second)
    attempt(one, workers[0])
    attempt(two, workers[1])
    getattr(one, end)()
    attempt(two, workers[1])
    two.commit()
    assert len(starts(api)) <= 3
    claim(api, workers[2])
    assert len(starts(api)) == 3
    clock.advance(seconds=10)
    assert len(claim(api, workers[2])) == 3


@pytest.mark.parametrize("change", ["rate", "period", "of a family to its own"])
@pytest.mark.parametrize("end", ["commit", "rollback", "kill"])
@pytest.mark.parametrize("level", SNAPSHOT_LEVELS)
def test_a_claim_that_cannot_see_a_change_of_the_rate_starts_no_job_beyond_it(
    api: Any, actor: Any, clock: Any, level: str, end: str, change: str
) -> None:
    api.set_queue("q*" if "family" in change else "q", None, 4, "10 seconds")
    add(api, 6)
    workers = [api.register_worker() for _ in range(2)]
    assert len(claim(api, workers[0], 2)) == 2
    one = actor()
    one.begin(level)
    match change:
        case "rate":
            api.set_queue("q", None, 3, "10 seconds")
        case _:
            api.set_queue("q", None, 3, "20 seconds")
    attempt(one, workers[1])
    getattr(one, end)()
    assert len(starts(api)) <= 3
    claim(api, workers[0])
    assert len(starts(api)) == 3
    clock.advance(seconds=10 if change == "rate" else 20)
    assert len(claim(api, workers[0])) == 3
