"""A job that another session has locked, for however long, holds up no other job of its queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.notify import wait
from tests.support.queues import add, answered, claim_from_the_head

JOBS, STARTS = 150, 140  # so many may start, where there is a rate
SETTINGS: dict[str, tuple[Any, ...]] = {
    "one slot": (1,),
    "few slots": (5,),
    "many slots": (300,),
    "rate": (None, STARTS, "1 hour", False),
    "turns": (None, None, None, True),
    "turns, slots and rate": (300, STARTS, "1 hour", True),
}
WAITS = "parked is not null"
LET_IN = "parked is null and state = 'available'"


def lock(session: Any, where: str, most: int = 10) -> set[int]:
    """Up to so many such jobs, until the session's transaction ends."""
    session.begin()
    sql = f"select id from pyworker.live_jobs where {where} order by id limit {most} for update"
    return {row.id for row in session.rows(sql)}


def serve(api: Any, worker: int, most: int, clock: Any) -> set[int]:
    """The jobs that claims start, each of which ends before the next claim, until one finds none even a
    quarter of a second later."""
    served: set[int] = set()
    while True:
        jobs = api.claim_jobs(worker, most)
        if not jobs:
            clock.advance(seconds=0.25)
            jobs = claim_from_the_head(api, worker, most)
        if not jobs:
            return served
        served |= {job.id for job in jobs}
        api.finish_jobs([job.id for job in jobs], [job.run for job in jobs])


@pytest.mark.parametrize("end", ["commit", "kill"])
@pytest.mark.parametrize("most", [1, 20])
@pytest.mark.parametrize("setting", SETTINGS)
def test_while_waiting_jobs_of_a_queue_are_locked_the_others_run(
    api: Any, worker: int, actor: Callable[[], Any], clock: Any, setting: str, most: int, end: str
) -> None:
    api.set_queue("t:*", *SETTINGS[setting])
    ids = set(add(api, JOBS, "t:a"))
    other = actor()
    locked = lock(other, WAITS)
    assert len(locked) == 10
    served = serve(api, worker, most, clock)
    assert served <= ids - locked
    assert len(served) == min(JOBS - len(locked), STARTS if "rate" in setting else JOBS)
    getattr(other, end)()
    later = serve(api, worker, most, clock)
    assert later <= ids - served
    assert len(served | later) == (STARTS if "rate" in setting else JOBS)


@pytest.mark.parametrize("setting", ["many slots", "rate", "turns"])
def test_while_jobs_that_were_let_in_are_locked_the_others_run(
    api: Any, worker: int, actor: Callable[[], Any], clock: Any, setting: str
) -> None:
    """They hold a slot, or their place in the rate."""
    api.set_queue("t:*", *SETTINGS[setting])
    ids = set(add(api, JOBS, "t:a"))
    api.promote_jobs()
    other = actor()
    locked = lock(other, LET_IN)
    assert len(locked) == 10
    served = serve(api, worker, 20, clock)
    assert served <= ids - locked
    assert len(served) == (STARTS - 10 if setting == "rate" else JOBS - 10)
    other.rollback()
    assert serve(api, worker, 20, clock) == (locked if setting == "rate" else ids - served)


@pytest.mark.parametrize("end", ["commit", "rollback", "kill"])
@pytest.mark.parametrize("setting", ["turns", "few slots", "one slot"])
def test_jobs_that_are_locked_when_their_turn_comes_are_not_forgotten(
    api: Any, worker: int, actor: Callable[[], Any], clock: Any, setting: str, end: str
) -> None:
    api.set_queue("t:*", *SETTINGS[setting])
    answered(api)  # from now on nothing but these jobs is looked at again
    (running,) = add(api, 1, "t:a")
    (claimed,) = api.claim_jobs(worker, 1)
    ids = add(api, 6, "t:a")
    other = actor()
    assert len(lock(other, WAITS)) == 6
    api.finish(running)
    assert claimed.id == running
    assert api.promote_jobs() == 0
    assert 0 < api.seconds_until_due() <= 0.25
    getattr(other, end)()
    assert serve(api, worker, 1, clock) == set(ids)


def test_the_first_jobs_that_wait_for_a_rate_may_be_locked_when_it_has_room_again(
    api: Any, worker: int, actor: Callable[[], Any], clock: Any
) -> None:
    api.set_queue("q", None, 2, "10 seconds")
    ids = add(api, 8, "q")
    assert serve(api, worker, 1, clock) == set(ids[:2])
    other = actor()
    locked = lock(other, WAITS, 3)
    for expected in (ids[5:7], ids[7:]):
        clock.advance(seconds=10)
        assert serve(api, worker, 1, clock) == set(expected)
    other.commit()
    clock.advance(seconds=10)
    served = serve(api, worker, 1, clock)
    assert served == {min(locked), sorted(locked)[1]}


@pytest.mark.parametrize("setting", ["one slot", "few slots", "turns"])
def test_for_locked_jobs_a_worker_comes_again_four_times_a_second(
    api: Any, worker: int, actor: Callable[[], Any], clock: Any, setting: str
) -> None:
    api.set_queue("t:*", *SETTINGS[setting])
    wait(api, worker)  # so adds notify
    (first,) = add(api, 1, "t:a")
    assert api.claim_jobs(worker, 1)[0].id == first
    add(api, 7, "t:a")
    lock(actor(), "state = 'available'")
    api.finish(first)
    turn = "select again_in_s from pyworker.work(%s, null, null, null, null, 5)"
    for _ in range(3):
        api.value(turn, [worker])
        assert 0.02 < api.value(turn, [worker]) <= 0.25
        clock.advance(seconds=0.25)


def test_thousands_of_queues_with_locked_jobs_delay_no_other(
    api: Any, worker: int, actor: Callable[[], Any]
) -> None:
    specs = [{"identifier": "t", "queue_name": f"t:{n % 1000}"} for n in range(2000)]
    api.add_jobs(specs)
    running = api.claim_jobs(worker, 1000)
    assert len(running) == 1000
    assert len(lock(actor(), "state = 'available'", 1000)) == 1000
    api.finish_jobs([job.id for job in running], [job.run for job in running])
    first, second = add(api, 2, "z")
    # One turn looks at a thousand of them, and says that its worker is to come again at once.
    assert [job.id for _ in range(2) for job in api.claim_jobs(worker, 1)] == [first]
    api.finish(first)
    assert [job.id for job in api.claim_jobs(worker, 1)] == [second]


@pytest.mark.parametrize("limit", [None, 3])
def test_a_locked_turn_holds_up_no_other_queue_of_its_family(
    api: Any, worker: int, actor: Callable[[], Any], clock: Any, limit: int | None
) -> None:
    api.set_queue("t:*", limit, fair=True)
    ids = {job for queue in range(40) for job in add(api, 5, f"t:{queue}")}
    api.promote_jobs()
    locked = lock(actor(), f"{LET_IN} and queue_name in ('t:1', 't:2')", 2)
    assert len(locked) == 2
    served = serve(api, worker, 3, clock)
    assert served <= ids - locked
    assert len(served) >= len(ids) - 10


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_a_beat_at_another_isolation_level_does_not_fail(
    api: Any, worker: int, actor: Callable[[], Any], isolation: str
) -> None:
    api.set_queue("t:*", None, fair=True)
    add(api, 3, "t:a")
    api.promote_jobs()
    other = actor()
    other.begin(isolation)
    (job,) = api.claim_jobs(worker, 1)
    api.finish(job.id)
    api.rows("select setval('pyworker.swept_at', 1)")
    assert other.value("select kind from pyworker.beat(%s)", [worker]) == "alive"
