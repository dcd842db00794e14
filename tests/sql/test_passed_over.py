"""A job that another session has locked for long holds up no other job of a queue that has room."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.queues import add, claim

Actor = Callable[[], Any]


def settle(api: Any) -> None:
    while api.rows("select from pyworker.promotion_requests where after is null limit 1"):
        api.promote_jobs()


def keyed(api: Any, count: int, queue: str = "q") -> list[int]:
    return [api.add_job("t", queue_name=queue, job_key=f"k{n}").id for n in range(count)]


def begun(api: Any, worker: int, most: int, turns: int) -> list[int]:
    """What so many turns of a worker begin; each comes after the one before has answered."""
    return [job for _ in range(turns) for job in claim(api, worker, most)]


@pytest.mark.parametrize("lock", ["replace", "for update", "for share"])
@pytest.mark.parametrize(
    "limits", [{"fair": True}, {"rate_limit": 1000, "rate_period": "1 hour"}], ids=["fair", "rate"]
)
def test_a_locked_candidate_holds_up_no_other_job_of_its_queue(
    api: Any, worker: int, actor: Actor, limits: dict[str, Any], lock: str
) -> None:
    api.set_queue("c:*", None, **limits)
    settle(api)
    first, *others = keyed(api, 4, "c:1")
    settle(api)
    other = actor()
    other.begin()
    if lock == "replace":
        other.add_job("t", queue_name="c:1", job_key="k0")
    else:
        other.rows(f"select from pyworker.live_jobs where id = {first} {lock}")
    assert sorted(begun(api, worker, 5, 20)) == others
    other.commit()
    assert begun(api, worker, 5, 10) == [first]


def test_a_locked_job_leaves_its_place_in_a_rate_to_the_next_one(
    api: Any, worker: int, actor: Actor, clock: Any
) -> None:
    """The locked one waits for the time at which the rate has room, for all of them."""
    api.set_queue("q", None, 1, "10 seconds")
    settle(api)
    first, *others = keyed(api, 4)
    assert claim(api, worker, 1) == [first]
    settle(api)
    other = actor()
    other.begin()
    ((locked,),) = other.rows("select id from pyworker.live_jobs where due_at is not null for update")
    left = [job for job in others if job != locked]
    for job in left:
        clock.advance(seconds=11)
        assert begun(api, worker, 1, 3) == [job]
    clock.advance(seconds=11)
    assert begun(api, worker, 1, 3) == []
    other.commit()
    assert begun(api, worker, 1, 3) == [locked]


def test_slots_beside_a_locked_candidate_are_used(api: Any, worker: int, actor: Actor) -> None:
    api.set_queue("q", 1000)
    settle(api)
    add(api, 400)
    settle(api)
    other = actor()
    other.begin()
    locked = other.rows(
        "select id from pyworker.live_jobs"
        " where queue_name = 'q' and ready_at is not null and has_slot is null for update"
    )
    # Sessions of their own: one that skips what it has read before looks at the locked job after two seconds.
    assert len([job for _ in range(10) for job in claim(actor(), worker)]) == 400 - len(locked)


@pytest.mark.parametrize("queue", [None, "q"])
def test_an_overdue_job_that_is_locked_brings_no_worker_at_once(
    api: Any, worker: int, actor: Actor, clock: Any, queue: str | None
) -> None:
    api.set_queue("q", None)
    job = api.add_job("t", queue_name=queue, run_at=api.at("1 minute")).id
    other = actor()
    other.begin()
    other.rows("select from pyworker.live_jobs for update")
    clock.advance(minutes=2)
    assert claim(api, worker) == []
    turn = "select again_in_s from pyworker.work(%s, null, null, null, null, 5)"
    assert 0 < api.value(turn, [worker]) <= 0.25
    assert 0 < api.seconds_until_due() <= 0.25
    other.commit()
    assert claim(api, worker) == [job]
