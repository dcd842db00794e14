"""A job that another session has locked, for however long, holds up no other job of its queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.queues import add, claim_from_the_head

JOBS, STARTS = 150, 140  # so many may start, where there is a rate
PACED = {
    "rate": (None, STARTS, "1 hour", False),
    "turns": (None, None, None, True),
    "turns and slots": (300, None, None, True),
    "turns and rate": (None, STARTS, "1 hour", True),
}
SLOTS = {"many slots": (300,), "few slots": (5,), "one slot": (1,)}
PARKED = "parked = 'queue'"
ASKING = "ready_at is not null and has_slot is null"


def lock(session: Any, where: str) -> set[int]:
    """Up to ten such jobs, until the session's transaction ends."""
    session.begin()
    sql = f"select id from pyworker.live_jobs where {where} order by id limit 10 for update"
    return {row.id for row in session.rows(sql)}


def serve(api: Any, worker: int, most: int) -> set[int]:
    """The jobs that claims start, each of which ends before the next claim, until one finds none."""
    served: set[int] = set()
    while jobs := api.claim_jobs(worker, most) or claim_from_the_head(api, worker, most):
        served |= {job.id for job in jobs}
        api.finish_jobs([job.id for job in jobs], [job.run for job in jobs])
    return served


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("most", [1, 20])
@pytest.mark.parametrize(
    ("setting", "which"),
    [*((setting, PARKED) for setting in PACED | SLOTS),
     *((setting, ASKING) for setting in [*PACED, "many slots"])],
)  # fmt: skip
def test_while_some_jobs_of_a_queue_are_locked_the_others_run(
    api: Any, worker: int, actor: Callable[[], Any], setting: str, which: str, most: int, end: str
) -> None:
    api.set_queue("t:*", *(PACED | SLOTS)[setting])
    ids = set(add(api, JOBS, "t:a"))
    api.promote_jobs()
    other = actor()
    locked = lock(other, which)
    assert locked
    served = serve(api, worker, most)
    assert served <= ids - locked
    assert len(served) == min(JOBS - len(locked), STARTS if "rate" in setting else JOBS)
    getattr(other, end)()
    later = serve(api, worker, most)
    assert later <= ids - served
    assert len(served | later) == (STARTS if "rate" in setting else JOBS)


@pytest.mark.parametrize("end", ["commit", "rollback", "kill"])
@pytest.mark.parametrize("setting", ["turns", "few slots", "one slot"])
def test_a_job_that_is_locked_when_its_turn_comes_is_not_forgotten(
    api: Any, worker: int, actor: Callable[[], Any], setting: str, end: str
) -> None:
    api.set_queue("t:*", *(PACED | SLOTS)[setting])
    (running,) = add(api, 1, "t:a")
    (claimed,) = api.claim_jobs(worker, 1)
    ids = add(api, 1, "t:a") if setting == "turns" else add(api, 6, "t:a")
    other = actor()
    assert lock(other, PARKED)
    api.finish(running)
    assert claimed.id == running
    api.promote_jobs()
    getattr(other, end)()
    assert serve(api, worker, 1) == set(ids)


@pytest.mark.parametrize("setting", [*PACED, "many slots"])
def test_where_claims_find_enough_of_other_queues_a_sweep_passes_over_the_locked_jobs(
    api: Any, worker: int, actor: Callable[[], Any], setting: str
) -> None:
    api.set_queue("t:*", *(PACED | SLOTS)[setting])
    add(api, JOBS, "t:a")
    api.promote_jobs()
    if setting == "many slots":
        assert len(api.claim_jobs(worker, 100)) == 100  # those that had their slots
    assert lock(actor(), ASKING)
    candidates = "select count(*) from pyworker.live_jobs where ready_at is not null"
    before = api.value(candidates)
    api.rows("select setval('pyworker.swept_at', 1)")
    api.beat(worker)
    assert api.value(candidates) > before


def test_the_sweep_gives_no_second_turn_where_a_candidate_was_locked_and_is_free(
    api: Any, worker: int, actor: Callable[[], Any]
) -> None:
    api.set_queue("t:*", None, fair=True)
    add(api, 5, "t:a")
    api.promote_jobs()
    other = actor()
    lock(other, ASKING)
    other.rollback()
    for _ in range(3):
        api.rows("select setval('pyworker.swept_at', 1)")
        api.beat(worker)
    assert api.value("select count(*) from pyworker.live_jobs where ready_at is not null") == 1


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_the_job_that_tells_when_a_rate_has_room_again_may_be_locked_then(
    api: Any, worker: int, actor: Callable[[], Any], clock: Any, outcome: str
) -> None:
    api.set_queue("q", None, 2, "10 seconds")
    ids = add(api, 8, "q")
    assert serve(api, worker, 1) == set(ids[:2])
    other = actor()
    locked = lock(other, "parked = 'queue' and due_at is not null")
    assert len(locked) == 1
    clock.advance(seconds=10)
    api.rows("select setval('pyworker.swept_at', 1)")
    api.beat(worker)
    served = serve(api, worker, 1)
    assert len(served) == 2
    assert not served & locked
    clock.advance(seconds=10)  # now another job tells it
    served |= serve(api, worker, 1)
    assert len(served) == 4
    getattr(other, outcome)()
    clock.advance(seconds=10)
    assert served | serve(api, worker, 1) == set(ids[2:])


@pytest.mark.parametrize("queue", ["one slot", "few slots", "turns", "rate"])
def test_a_locked_job_costs_a_claim_no_more_than_two_promotions_of_its_queue(
    api: Any, worker: int, actor: Callable[[], Any], queue: str
) -> None:
    api.set_queue("t:*", *(PACED | SLOTS)[queue])
    api.claim_jobs(worker, 5)  # it waits from now on, so adds notify
    add(api, 2, "t:a")
    add(api, 2, "t:a")
    api.promote_jobs()
    assert len(lock(actor(), "true")) == 4
    requests = "select last_value from pyworker.promotion_requests_id_seq"
    api.claim_jobs(worker, 5)
    before = api.value(requests)
    turn = "select again_in_s from pyworker.work(%s, null, null, null, null, 5)"
    assert api.value(turn, [worker]) <= 0.25
    assert api.value(requests) - before <= 2
    assert 0.2 < api.value(turn, [worker]) <= 0.25
