"""A turn hands on what its reports have freed, and tells its worker when to come again."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.turns import claimed, turn_when, work

LANES: dict[str, dict[str, Any]] = {
    "a serial queue": {"queue_name": "q"},
    "a sequence": {"sequence_policy": {"key": "s", "continue_on_cancelled": True}},
}
OUTCOMES = ["commit", "rollback", "kill"]


def done(*jobs: Any) -> list[tuple[int, int]]:
    return [(job.id, job.run) for job in jobs]


@pytest.fixture(autouse=True)
def short_walks(api: Any) -> None:
    """Other tests leave dead rows: a session remembers a walk along them (02_walks), and promotes always."""
    api.rows("vacuum pyworker.live_jobs")


def waits(api: Any, worker: int) -> None:
    """From now on adds notify this worker."""
    turn_when(lambda turn: turn.again >= 0.5, api, worker)


@pytest.mark.parametrize("lane", LANES)
def test_the_next_job_of_a_lane_is_changed_in_one_subtransaction(api: Any, worker: int, lane: str) -> None:
    """PostgreSQL would write a MultiXact for a row that a transaction changes in two: that costs more than
    the change, and a vacuum later."""

    def multixacts() -> int:
        api.rows("checkpoint")
        return api.value("select next_multixact_id::text::bigint from pg_control_checkpoint()")

    added = api.add_jobs([{"identifier": "t", **LANES[lane]}] * 20)
    jobs = work(api, worker).jobs
    before, run = multixacts(), list[int]()
    while jobs:
        run += [job.id for job in jobs]
        jobs = work(api, worker, done(*jobs)).jobs
    assert run == [job.id for job in added]
    assert multixacts() <= before + 5  # a turn whose look was slow promotes in another one


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("lane", LANES)
def test_a_turn_does_not_wait_for_a_session_that_has_the_next_job_locked(
    api: Any, actor: Any, worker: int, lane: str, outcome: str
) -> None:
    """A queue goes on with the job behind it; a sequence keeps its order."""
    one, two, three = api.add_jobs([{"identifier": "t", **LANES[lane]}] * 3)
    jobs = work(api, worker).jobs
    waits(api, worker)
    other = actor()
    other.begin()
    other.cancel_job(two.id)
    turn = work(api, worker, done(*jobs))
    assert (turn.refused, api.get_job(one.id).state) == ([], "completed")
    assert [job.id for job in turn.jobs] == ([three.id] if lane == "a serial queue" else [])
    assert turn.jobs or turn.again <= 0.25
    getattr(other, outcome)()
    left = [three] if outcome == "commit" else [two, three]
    run = turn.jobs
    while len(run) < len(left):
        run += turn_when(lambda turn: turn.jobs != [], api, worker, done(*run[-1:])).jobs
    assert {job.id for job in run} == {job.id for job in left}
    if lane == "a sequence":
        assert [job.id for job in run] == [job.id for job in left]


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_turn_does_not_wait_for_an_open_end_of_the_same_queue(
    api: Any, actor: Any, worker: int, outcome: str
) -> None:
    """Each hands on its own place."""
    api.set_queue("q", 2)
    added = api.add_jobs([{"identifier": "t", "queue_name": "q"}] * 4)
    one, two = work(api, worker).jobs
    waits(api, worker)
    other = actor()
    other.begin()
    other.finish_job(one.id, one.run)
    turn = work(api, worker, done(two))
    assert (turn.refused, [job.id for job in turn.jobs]) == ([], [added[3].id])
    getattr(other, outcome)()
    free = [added[2].id] if outcome == "commit" else []
    assert [job.id for job in work(api, worker).jobs] == free


GATE = "select from pyworker.gate for update"


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_turn_does_not_wait_for_a_session_that_has_the_gate(
    api: Any, actor: Any, worker: int, outcome: str
) -> None:
    """Busy lanes and plain jobs go on; the first job of an idle lane is let in soon after."""
    _, two = api.add_jobs([{"identifier": "t", "queue_name": "q"}] * 2)
    jobs = work(api, worker).jobs
    waits(api, worker)
    other = actor()
    other.begin()
    other.rows(GATE)
    first = [api.add_job("t", **lane) for lane in LANES.values() if lane != {"queue_name": "q"}]
    first.append(api.add_job("t", queue_name="idle"))
    plain = api.add_job("t")
    turn = work(api, worker, done(*jobs))
    assert {job.id for job in turn.jobs} == {two.id, plain.id}
    assert 0 < turn.again <= 0.25
    getattr(other, outcome)()
    found: list[int] = []
    while len(found) < len(first):
        found += [job.id for job in turn_when(lambda turn: turn.jobs != [], api, worker).jobs]
    assert sorted(found) == [job.id for job in first]


@pytest.mark.parametrize("lane", LANES)
def test_a_turn_without_room_hands_on_the_lane_to_other_workers(api: Any, worker: int, lane: str) -> None:
    _, second = api.add_jobs([{"identifier": "t", **LANES[lane]}] * 2)
    jobs = work(api, worker).jobs
    work(api, worker, done(*jobs), None, 0)
    assert [job.id for job in work(api, api.register_worker()).jobs] == [second.id]


@pytest.mark.parametrize("room", [0, 1, 5])
@pytest.mark.parametrize("lane", LANES)
def test_a_turn_that_is_rolled_back_hands_nothing_on(api: Any, worker: int, lane: str, room: int) -> None:
    first, second = api.add_jobs([{"identifier": "t", **LANES[lane]}] * 2)
    jobs = work(api, worker).jobs
    with api.conn.transaction(force_rollback=True):
        assert len(work(api, worker, done(*jobs), None, room).jobs) == min(room, 1)
    assert api.get_job(first.id).state == "running"
    assert api.get_job(second.id).state != "running"
    assert work(api, worker).jobs == []
    assert [job.id for job in work(api, worker, done(*jobs)).jobs] == [second.id]


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_turn_that_took_a_job_comes_again_soon_for_another_that_was_locked(
    api: Any, actor: Any, worker: int, outcome: str
) -> None:
    (held,) = claimed(api, worker, "t")
    waits(api, worker)
    locked, free = api.add_job("t"), api.add_job("t")
    other = actor()
    other.begin()
    other.rows("select from pyworker.live_jobs where id = %s for update", [locked.id])
    turn = work(api, worker, done(held))
    assert ([job.id for job in turn.jobs], turn.again) == ([free.id], 0.25)
    getattr(other, outcome)()  # tells no worker of it
    assert [job.id for job in work(api, worker).jobs] == [locked.id]


def test_a_turn_that_took_a_job_comes_again_when_the_next_one_is_due(api: Any, worker: int) -> None:
    waits(api, worker)
    api.add_job("t", run_at=api.at("0.9 seconds"))
    api.add_job("t")
    turn = work(api, worker)
    assert len(turn.jobs) == 1
    assert 0 < turn.again <= 0.9


def test_a_turn_that_took_a_job_comes_again_soon_while_an_add_that_was_silent_is_open(
    api: Any, actor: Any, worker: int
) -> None:
    producer, other = actor(), api.register_worker()
    producer.begin()
    producer.add_job("t")  # no worker waits yet, so its commit notifies none
    waits_now = work(api, other)  # the other worker waits from now on
    assert waits_now.again <= 0.25
    job = api.add_job("t")
    turn = work(api, worker)
    assert [found.id for found in turn.jobs] == [job.id]
    assert turn.again <= 0.25
    producer.commit()
    assert len(work(api, worker).jobs) == 1


def test_a_turn_wakes_others_for_a_job_that_has_fallen_due(
    api: Any, actor: Any, worker: int, clock: Any
) -> None:
    (mine,) = claimed(api, worker, "mine")
    api.add_job("theirs", run_at=api.at("1 hour"))
    work(api, api.register_worker(), tasks=["theirs"])  # it waits
    listener = actor()
    listener.rows("listen pyworker")
    clock.advance(hours=2)
    work(api, worker, done(mine), tasks=["mine"])
    (note,) = listener.conn.notifies(timeout=10, stop_after=1)
    assert note.payload == ""
