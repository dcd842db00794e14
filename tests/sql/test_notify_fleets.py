"""A fleet: a notification would wake all its workers, so one polls; and its idle workers look more seldom."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.notify import heard as heard
from tests.support.turns import later, turn_of, turn_when, work

SWEPT = "select setval('pyworker.swept_at', (extract(epoch from clock_timestamp()) * 1000)::bigint - 1000)"


def register(api: Any, size: int) -> list[int]:
    """Workers. Some of them wait for a notification."""
    rows = api.rows("select pyworker.register_worker() as id from generate_series(1, %s)", [size])
    api.sweep_workers()
    for row in rows[:4]:
        turn_when(lambda turn: turn.again > 0.25, api, row.id)
    return [row.id for row in rows]


@pytest.fixture
def fleet(api: Any) -> list[int]:
    """A hundred workers: each polls for 100 ms."""
    return register(api, 100)


def got_one(api: Any, worker: int) -> Any:
    """A turn that got one job and has room for more."""
    job = api.add_job("t")
    turn = work(api, worker, tasks=["t"])
    assert [found.id for found in turn.jobs] == [job.id]
    return turn


def test_in_a_fleet_the_worker_that_got_a_job_polls_and_adds_are_silent(
    api: Any, heard: Any, fleet: list[int]
) -> None:
    assert got_one(api, fleet[0]).again == 0.005
    assert heard() == [""]
    assert got_one(api, fleet[0]).again == 0.005
    assert heard() == []
    api.rows("select pg_sleep(0.11)")
    assert turn_when(lambda turn: turn.again > 0.25, api, fleet[0]).jobs == []
    api.add_job("t")
    assert heard() == [""]


def test_few_workers_are_notified_of_each_job(api: Any, heard: Any) -> None:
    worker, *_ = register(api, 4)
    for _ in range(2):
        assert got_one(api, worker).again > 0.25
        assert heard() == [""]


def test_of_several_workers_that_poll_the_last_that_got_a_job_goes_on(api: Any, fleet: list[int]) -> None:
    first, second, third = fleet[:3]
    got_one(api, first)
    got_one(api, second)
    assert work(api, first).again > 0.25
    assert work(api, second).again == 0.005
    assert work(api, third).again > 0.25


def close(api: Any, worker: int) -> None:
    api.close_worker(worker)


def pause(api: Any, worker: int) -> None:
    """Its time to poll is over, and it does not come again, as one that has died."""
    api.rows("select pg_sleep(0.11)")


def fill(api: Any, worker: int) -> None:
    api.add_job("t")
    assert len(work(api, worker, room=1).jobs) == 1


def report_only(api: Any, worker: int) -> None:
    work(api, worker, room=0)


@pytest.mark.parametrize("end", [fill, report_only, close])
def test_a_worker_that_polled_and_has_no_room_any_more_notifies_the_others(
    api: Any, heard: Any, fleet: list[int], end: Callable[[Any, int], None]
) -> None:
    got_one(api, fleet[0])
    heard()
    end(api, fleet[0])
    assert set(heard()) == {""}
    api.add_job("t")
    assert heard() == [""]


def test_a_worker_that_polls_and_leaves_a_job_of_another_task_notifies_the_others(
    api: Any, heard: Any, fleet: list[int]
) -> None:
    got_one(api, fleet[0])
    heard()
    other = api.add_job("other")
    assert heard() == []
    assert work(api, fleet[0], tasks=["t"]).jobs == []
    assert heard() == [""]
    assert [job.id for job in work(api, fleet[1], tasks=["other"]).jobs] == [other.id]


def test_who_claims_by_claim_jobs_does_not_poll(api: Any, heard: Any, fleet: list[int]) -> None:
    api.add_job("t")
    assert len(api.claim_jobs(fleet[0], 5)) == 1
    heard()
    api.add_job("t")
    assert heard() == [""]


@pytest.mark.parametrize("end", [pause, fill])
@pytest.mark.parametrize("outcome", ["commit", "rollback", "kill"])
def test_an_add_that_ran_while_a_worker_polled_and_commits_later_is_looked_for(
    api: Any, actor: Any, fleet: list[int], end: Callable[[Any, int], None], outcome: str
) -> None:
    got_one(api, fleet[0])
    a = actor()
    a.begin()
    job = a.add_job("t")  # notifies nobody
    end(api, fleet[0])
    for _ in range(3):
        turn = work(api, fleet[1])
        assert (turn.jobs, turn.again <= 0.25) == ([], True)
        api.rows("select pg_sleep(%s)", [turn.again])
    getattr(a, outcome)()
    found = [found.id for found in work(api, fleet[1]).jobs]
    assert found == ([job.id] if outcome == "commit" else [])


def test_an_add_that_has_just_seen_a_worker_poll_is_found_by_the_one_that_begins_to_wait(
    api: Any, actor: Any, fleet: list[int]
) -> None:
    a, b = actor(), actor()
    got_one(api, fleet[0])
    a.begin()
    job = a.add_job("t")
    a.rows("alter sequence pyworker.polled_until cache 1")  # the turn comes to wait where adds become loud
    api.rows("select pg_sleep(0.11)")
    turn = later(b, fleet[0])
    b.blocked(turn)
    a.commit()
    assert [found.id for found in turn_of(turn.result(20)).jobs] == [job.id]


def test_the_idle_workers_of_a_large_fleet_look_and_beat_more_seldom_and_adds_notify_as_long(
    api: Any, heard: Any
) -> None:
    worker, *_ = register(api, 5)
    assert work(api, worker).again == 1
    register(api, 60)
    assert work(api, worker).again == 5
    assert api.rows("select next_in_s from pyworker.beat(%s)", [worker])[0].next_in_s == 5
    api.rows("select pg_sleep(2.5)")
    api.add_job("t")
    assert heard() == [""]


def test_of_a_fleet_one_worker_beats_each_second_and_sweeps(api: Any, fleet: list[int]) -> None:
    api.rows(SWEPT)
    beats = [api.rows("select next_in_s from pyworker.beat(%s)", [worker])[0] for worker in fleet[:3]]
    assert [beat.next_in_s for beat in beats] == [0.9, 5, 5]
