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
ASKING = "ready_at is not null and has_slot is null and state = 'available'"


def lock(session: Any, where: str) -> set[int]:
    """Up to ten such jobs, until the session's transaction ends."""
    session.begin()
    sql = f"select id from pyworker.live_jobs where {where} order by id limit 10 for update"
    return {row.id for row in session.rows(sql)}


def sweep(api: Any, worker: int) -> None:
    """As a beat does that comes a second after the last one."""
    api.rows("select setval('pyworker.swept_at', 1)")
    api.beat(worker)


def serve(api: Any, worker: int, most: int) -> set[int]:
    """The jobs that claims start, each of which ends before the next claim, until one finds none after a
    sweep."""
    served: set[int] = set()
    while True:
        jobs = api.claim_jobs(worker, most)
        if not jobs:
            sweep(api, worker)
            jobs = claim_from_the_head(api, worker, most)
        if not jobs:
            return served
        served |= {job.id for job in jobs}
        api.finish_jobs([job.id for job in jobs], [job.run for job in jobs])


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
def test_a_sweep_passes_over_locked_candidates(
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
    sweep(api, worker)
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
        sweep(api, worker)
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
    sweep(api, worker)
    served = serve(api, worker, 1)
    assert len(served) == 2
    assert not served & locked
    clock.advance(seconds=10)  # now another job tells it
    served |= serve(api, worker, 1)
    assert len(served) == 4
    getattr(other, outcome)()
    clock.advance(seconds=10)
    assert served | serve(api, worker, 1) == set(ids[2:])


@pytest.mark.parametrize("setting", ["one slot", "few slots", "turns"])
def test_locked_jobs_cost_a_claim_no_more_than_two_promotions_of_their_queue(
    api: Any, worker: int, actor: Callable[[], Any], setting: str
) -> None:
    api.set_queue("t:*", *(PACED | SLOTS)[setting])
    api.claim_jobs(worker, 5)  # it waits from now on, so adds notify
    (first,) = add(api, 1, "t:a")
    assert api.claim_jobs(worker, 1)[0].id == first
    assert add(api, 7, "t:a")
    lock(actor(), "state = 'available'")
    api.finish(first)
    api.claim_jobs(worker, 5)
    requests = "select last_value from pyworker.promotion_requests_id_seq"
    before = api.value(requests)
    turn = "select again_in_s from pyworker.work(%s, null, null, null, null, 5)"
    assert api.value(turn, [worker]) <= 0.25
    assert api.value(requests) - before <= 2
    assert 0.2 < api.value(turn, [worker]) <= 0.25


@pytest.mark.parametrize("limit", [None, 1, 3])
@pytest.mark.parametrize("most", [1, 3])
def test_fair_queues_with_a_locked_candidate_go_on_without_sweeps(
    api: Any, worker: int, actor: Callable[[], Any], limit: int | None, most: int
) -> None:
    api.set_queue("t:*", limit, fair=True)
    ids = {job for queue in "abcd" for job in add(api, 20, f"t:{queue}")}
    for _ in range(2):
        api.promote_jobs()
    locked = lock(actor(), f"{ASKING} and queue_name in ('t:a', 't:b')")
    assert len(locked) == 2
    sweep(api, worker)
    served: set[int] = set()
    while jobs := api.claim_jobs(worker, most):
        served |= {job.id for job in jobs}
        api.finish_jobs([job.id for job in jobs], [job.run for job in jobs])
    assert served == ids - locked


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_a_beat_at_another_isolation_level_does_not_fail(
    api: Any, worker: int, actor: Callable[[], Any], isolation: str
) -> None:
    api.set_queue("t:*", None, fair=True)
    add(api, 3, "t:a")
    api.promote_jobs()
    other = actor()
    other.begin(isolation)
    other.rows("select count(*) from pyworker.live_jobs")
    (job,) = api.claim_jobs(worker, 1)
    api.finish(job.id)
    api.rows("select setval('pyworker.swept_at', 1)")
    assert other.value("select kind from pyworker.beat(%s)", [worker]) == "alive"


def test_thousands_of_queues_with_locked_jobs_delay_no_other(
    api: Any, worker: int, actor: Callable[[], Any]
) -> None:
    specs = [{"identifier": "t", "queue_name": f"t:{n % 1000}"} for n in range(2000)]
    api.add_jobs(specs)
    running = api.claim_jobs(worker, 1000)
    other = actor()
    other.begin()
    assert len(other.rows("select from pyworker.live_jobs where state = 'available' for update")) == 1000
    api.finish_jobs([job.id for job in running], [job.run for job in running])
    for _ in range(30):
        api.promote_jobs()
    assert api.value("select count(*) from pyworker.promotion_requests") <= 1000
    (first, second) = add(api, 2, "z")
    assert [job.id for job in api.claim_jobs(worker, 1)] == [first]
    api.finish(first)
    assert [job.id for job in api.claim_jobs(worker, 1)] == [second]


@pytest.mark.parametrize("slots", [1, 5])
@pytest.mark.parametrize("tasks", [["t"], ["t", "u"]])
def test_candidates_that_ask_for_their_slot_hold_up_no_others_where_slots_are_few(
    api: Any, worker: int, actor: Callable[[], Any], slots: int, tasks: list[str]
) -> None:
    api.set_queue("q", slots)
    for _ in range(slots):
        api.add_job("t", queue_name="q")  # there is room, so it is a candidate at once
    other = actor()
    locked = lock(other, ASKING)
    assert len(locked) == slots
    ids = {api.add_job(task, queue_name="q").id for task in tasks for _ in range(6)}
    assert serve(api, worker, 3) == ids
    other.rollback()
    assert serve(api, worker, 3) == locked


@pytest.mark.parametrize("which", [PARKED, ASKING])
def test_hundreds_of_locked_jobs_of_a_fair_queue_hold_up_no_others(
    api: Any, worker: int, actor: Callable[[], Any], which: str
) -> None:
    api.set_queue("t:*", None)
    ids = add(api, 400 if which == ASKING else 1, "t:a")
    api.set_queue("t:*", None, fair=True)
    ids += add(api, 700 if which == PARKED else 200, "t:a")
    other = actor()
    other.begin()
    sql = f"select id from pyworker.live_jobs where {which} order by id limit 400 for update"
    locked = {row.id for row in other.rows(sql)}
    assert len(locked) == 400
    assert serve(api, worker, 100) == set(ids) - locked


def test_other_kinds_of_a_fair_queue_go_on_beside_hundreds_of_the_first_kind(
    api: Any, worker: int, actor: Callable[[], Any]
) -> None:
    api.set_queue("t:*", None, fair=True)
    for task, count in (("a", 1100), ("b", 50)):
        api.add_jobs([{"identifier": task, "queue_name": "t:a"}] * count)
    lock(actor(), "task_identifier = 'b'")
    sweep(api, worker)
    assert len({job.id for _ in range(40) for job in api.claim_jobs(worker, 1, ["b"])}) == 40


def test_queues_beyond_the_first_hundred_go_on(api: Any, worker: int, actor: Callable[[], Any]) -> None:
    api.set_queue("t:*", None, fair=True)
    for n in range(130):
        add(api, 2, f"t:{n}")
    for _ in range(3):
        api.promote_jobs()
    other = actor()
    other.begin()
    locked = other.rows(f"select id from pyworker.live_jobs where {ASKING} for update")
    assert len(locked) == 130
    assert len(serve(api, worker, 50)) == 130


def test_a_slot_that_was_given_and_is_locked_holds_up_no_turn(
    api: Any, worker: int, actor: Callable[[], Any]
) -> None:
    api.set_queue("t:*", 5)
    ids = add(api, 30, "t:a")
    api.promote_jobs()
    locked = lock(actor(), "has_slot")
    api.set_queue("t:*", None, fair=True)
    assert serve(api, worker, 1) == set(ids) - locked
    requests = "select last_value from pyworker.promotion_requests_id_seq"
    before = api.value(requests)
    api.claim_jobs(worker, 1)
    assert api.value(requests) - before <= 4
