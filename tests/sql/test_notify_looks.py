"""Where an add may notify no worker, each worker that waits looks again soon."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.notify import calm, look, wait
from tests.support.notify import heard as heard
from tests.support.turns import work

NOW_MS = "(extract(epoch from clock_timestamp()) * 1000)::bigint"


def listen(api: Any, ms: int = 2000) -> None:
    """Adds notify for so long."""
    api.rows(f"select setval('pyworker.listening_until', {NOW_MS} + %s)", [ms])


def test_each_transaction_that_adds_while_a_worker_waits_notifies_even_beside_others(
    api: Any, actor: Any, worker: int, heard: Any
) -> None:
    """Those that stay open hold back no other's notification; nor does one that is rolled back."""
    others = [actor() for _ in range(6)]
    wait(api, worker)
    for other in others:
        other.begin()
        other.add_job("t")
    for _ in range(2):
        listen(api)
        api.add_job("t")
        assert heard() == [""]
    for other in others[:3]:
        other.rollback()
    listen(api)
    api.add_job("t")
    assert heard() == [""]
    for other in others[3:]:
        other.commit()
        assert heard() == [""]


@pytest.mark.parametrize("outcome", ["commit", "rollback", "kill"])
def test_while_a_transaction_is_open_that_saw_no_worker_wait_a_worker_looks_again_soon(
    api: Any, actor: Any, worker: int, outcome: str
) -> None:
    a = actor()
    a.begin()
    job = a.add_job("t")
    wait(api, worker)  # begins to wait now
    assert 0 < look(api) <= 0.25
    api.rows("select pg_sleep(0.3)")  # however long it is open
    assert 0.2 < look(api) <= 0.25
    getattr(a, outcome)()
    assert [found.id for found in api.claim_jobs(worker)] == ([job.id] if outcome == "commit" else [])
    calm(api)


def test_a_worker_that_sees_less_than_is_committed_looks_again_soon(
    api: Any, actor: Any, worker: int
) -> None:
    """A silent add is committed, but the worker's snapshot is older."""
    a, claimer = actor(), actor()
    a.begin()
    a.add_job("t")
    claimer.begin("repeatable read")
    assert claimer.claim_jobs(worker) == []
    a.commit()
    assert 0 < look(claimer) <= 0.25
    claimer.rollback()


@pytest.mark.parametrize("outcome", ["commit", "rollback", "kill"])
def test_a_worker_looks_again_soon_for_a_job_that_a_session_had_locked_and_left_as_it_was(
    api: Any, actor: Any, worker: int, outcome: str
) -> None:
    """A transaction notifies of nothing if it is rolled back or changes nothing."""
    wait(api, worker)
    job = api.add_job("t")
    a = actor()
    a.begin()
    if outcome == "commit":
        a.rows("select from pyworker.live_jobs where id = %s for update", [job.id])
    else:
        a.cancel_job(job.id)
    assert api.claim_jobs(worker) == []
    assert look(api) == 0.25
    getattr(a, outcome)()
    assert look(api) == 0.25
    assert [found.id for found in api.claim_jobs(worker)] == [job.id]
    calm(api)


@pytest.mark.parametrize(
    ("filters", "soon"),
    [
        ([["t"], ["q"], ["other"]], True),
        ([["other"], None, None], False),
        ([None, ["default"], None], False),
        ([None, None, ["f"]], False),
        ([[], None, None], False),
    ],
)
def test_a_job_that_the_worker_does_not_take_keeps_it_not_awake(
    api: Any, filters: list[Any], soon: bool
) -> None:
    wait(api, api.register_worker())
    api.add_job("t", queue_name="q", flags=["f"])
    api.promote_jobs()
    if soon:
        assert 0 < look(api, *filters) <= 0.25
    else:
        calm(api, *filters)


def test_a_transaction_that_began_later_keeps_no_worker_awake(api: Any, actor: Any, worker: int) -> None:
    wait(api, worker)
    a = actor()
    a.begin()
    a.add_job("t")  # notifies with its commit
    calm(api)


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_an_add_that_is_younger_than_the_transaction_of_the_turn_that_begins_to_wait_is_looked_for(
    api: Any, actor: Any, worker: int, outcome: str
) -> None:
    """A worker reports and claims in one transaction."""
    turn, a = actor(), actor()
    turn.begin()
    turn.rows("select pg_current_xact_id()")
    a.begin()
    job = a.add_job("t")  # no worker waits yet
    assert work(turn, worker).again <= 0.25
    turn.commit()
    for _ in range(3):
        assert work(api, worker).again <= 0.25
    getattr(a, outcome)()
    assert [found.id for found in work(api, worker).jobs] == ([job.id] if outcome == "commit" else [])


def test_an_add_that_is_older_than_others_that_have_ended_since_is_looked_for(
    api: Any, actor: Any, worker: int
) -> None:
    """Ids of transactions are given out in order; they end in any."""
    late, first = actor(), actor()
    first.begin()
    first.add_job("t")
    late.begin()
    job = late.add_job("t")
    first.commit()
    assert len(work(api, worker).jobs) == 1
    for _ in range(3):
        api.rows("set pyworker.notify = off")
        api.add_job("t")
        api.rows("reset pyworker.notify")
        assert len(work(api, worker).jobs) == 1
    for _ in range(5):  # it becomes rarer, and does not end
        turn = work(api, worker)
        assert turn.jobs == []
        assert turn.again <= 0.25
        api.rows("select pg_sleep(%s)", [turn.again])
    late.commit()
    assert [found.id for found in work(api, worker).jobs] == [job.id]


@pytest.mark.parametrize("left", [-5000, 10, 1000])
def test_adds_are_loud_until_a_worker_that_waits_looks_again(
    api: Any, worker: int, heard: Any, left: int
) -> None:
    listen(api, left)
    turn = work(api, worker)
    assert turn.jobs == []
    api.rows("select pg_sleep(%s)", [turn.again])
    work(api, worker)  # after the first turn of all it may have had to come again soon
    heard()
    api.rows("select pg_sleep(1)")
    api.add_job("t")
    assert heard() == [""]


def test_a_busy_worker_keeps_no_adds_loud(api: Any, worker: int, heard: Any) -> None:
    """Nothing is switched off: what says that a worker waits becomes out of date."""
    wait(api, worker)
    api.add_jobs([{"identifier": "t"}] * 4)
    heard()
    listen(api, -1)
    held: list[Any] = []
    for _ in range(3):
        held = work(api, worker, [(job.id, job.run) for job in held], room=1).jobs
        assert len(held) == 1
        api.add_job("t")
    assert heard() == []


def test_where_many_jobs_come_in_a_worker_comes_again_in_5_ms_and_keeps_no_adds_loud(
    api: Any, worker: int, heard: Any
) -> None:
    api.add_jobs([{"identifier": "t"}] * 20)
    turn = work(api, worker, room=1000)
    assert (len(turn.jobs), turn.again) == (20, 0.005)
    api.add_job("t")
    assert heard() == []
    assert len(work(api, worker).jobs) == 1  # few: it comes to wait
    wait(api, worker)
    api.add_jobs([{"identifier": "t"}] * 20)
    assert heard() == [""]
    assert work(api, worker, room=1000).again == 0.005


def test_an_add_that_was_silent_beside_many_jobs_and_is_long_in_committing_is_looked_for(
    api: Any, actor: Any, worker: int
) -> None:
    api.add_jobs([{"identifier": "t"}] * 20)
    work(api, worker, room=1000)
    a = actor()
    a.begin()
    job = a.add_job("t")
    wait(api, worker)
    assert 0 < look(api) <= 0.25
    a.commit()
    assert [found.id for found in api.claim_jobs(worker)] == [job.id]


def test_a_busy_worker_silences_no_adds_for_one_that_waits(
    api: Any, actor: Any, worker: int, heard: Any
) -> None:
    busy = api.register_worker()
    wait(api, worker)
    a = actor()
    a.rows("set pyworker.notify = off")
    for _ in range(3):
        a.add_job("t")
        assert len(a.claim_jobs(busy, 1)) == 1
    api.add_job("t")
    assert heard() == [""]


def test_what_was_written_before_the_clock_was_set_back_keeps_no_adds_loud_and_no_worker_deaf(
    api: Any, worker: int, heard: Any
) -> None:
    listen(api, 600_000)
    api.add_job("t")
    assert heard() == []
    wait(api, worker)
    api.add_job("t")
    assert heard() == [""]
