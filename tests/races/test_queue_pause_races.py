"""pause_queue against sessions that work: no session waits, and no job is forgotten."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.queues import add, answered, claim, finish_all, states
from tests.support.sessions import LEVELS


@pytest.mark.parametrize("outcome", ["commit", "rollback", "kill"])
@pytest.mark.parametrize("limit", [1, 3, None])
def test_a_pause_meets_a_claim_that_is_just_letting_jobs_go(
    api: Any, actor: Any, worker: int, limit: int | None, outcome: str
) -> None:
    api.set_queue("q", limit)
    answered(api)
    ids = add(api, 5)
    w = actor()
    w.begin()
    assert claim(w, worker, 1) == ids[:1]
    api.pause_queue("q")  # does not wait
    assert claim(api, worker) == []
    getattr(w, outcome)()
    assert claim(api, worker) == []
    ran = 1 if outcome == "commit" else 0
    assert states(api) == {"running": 1, "available": 4} if ran else {"available": 5}
    api.resume_queue("q")
    assert claim(api, worker) == ids[ran : limit and limit]
    assert finish_all(api, worker) == ids


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
@pytest.mark.parametrize("level", LEVELS)
def test_a_pause_meets_an_end_in_an_open_transaction(
    api: Any, actor: Any, worker: int, level: str, outcome: str
) -> None:
    """Which lets the next job go, as it sees no pause."""
    ids = add(api, 3)
    claim(api, worker)
    w = actor()
    w.begin(level)
    w.finish(ids[0])
    api.pause_queue("q")
    assert claim(api, worker) == []
    getattr(w, outcome)()
    assert claim(api, worker) == []
    assert states(api) == ({"available": 2} if outcome == "commit" else {"available": 2, "running": 1})
    api.resume_queue("q")
    assert finish_all(api, worker) == ids[1 if outcome == "commit" else 0 :]


@pytest.mark.parametrize("first", ["add", "pause"])
@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_a_pause_meets_an_add(api: Any, actor: Any, worker: int, first: str, outcome: str) -> None:
    a = actor()
    a.begin()
    if first == "add":
        added = add(a, 2)
        api.pause_queue("q")
        getattr(a, outcome)()
        assert claim(api, worker) == []
        api.resume_queue("q")
        assert claim(api, worker) == (added[:1] if outcome == "commit" else [])
    else:
        a.pause_queue("q")
        added = add(api, 2)
        assert claim(api, worker) == added[:1]  # not paused yet
        getattr(a, outcome)()
        api.finish(added[0])
        assert claim(api, worker) == (added[1:] if outcome == "rollback" else [])


CHANGES: dict[str, Callable[[Any, int], Any]] = {
    "cancel": lambda api, job: api.cancel_job(job),
    "delete": lambda api, job: api.delete_job(job),
    "complete": lambda api, job: api.complete_jobs([job]),
    "reschedule": lambda api, job: api.reschedule_jobs([job], priority=5),
    "retry": lambda api, job: api.retry_job(job),
    "replace": lambda api, job: api.add_job("t", job_key="k", queue_name="q"),
    "move": lambda api, job: api.add_job("t", job_key="k", queue_name="r"),
    "remove": lambda api, job: api.remove_job("k"),
}


@pytest.mark.parametrize("how", CHANGES)
@pytest.mark.parametrize("outcome", ["commit", "rollback"])
@pytest.mark.parametrize("change", ["pause", "lower"])
def test_a_candidate_that_another_session_has_locked_does_not_start_once_its_queue_is_full_or_paused(
    api: Any, actor: Any, worker: int, change: str, outcome: str, how: str
) -> None:
    """It became a candidate before the queue was paused, or its limit lowered; no claim waits for
    that session."""
    api.set_queue("q", 2)
    running = add(api, 1)
    assert claim(api, worker) == running
    held = api.add_job("t", queue_name="q", job_key="k").id
    api.promote_jobs()
    assert api.get_job(held).state == "available"
    a = actor()
    a.begin()
    CHANGES[how](a, held)
    if change == "pause":
        api.pause_queue("q")
    else:
        api.set_queue("q", 1)
    for _ in range(3):
        assert claim(api, worker) == []
    getattr(a, outcome)()
    assert [job.id for job in api.claim_jobs(worker, 10, None, ["q"])] == []


HOLDS: dict[str, Callable[[Any, int], Any]] = {
    "lock": lambda api, job: api.rows("select from pyworker.live_jobs where id = %s for update", [job]),
    "reschedule": lambda api, job: api.reschedule_jobs([job], priority=5),
}


@pytest.mark.parametrize("how", HOLDS)
@pytest.mark.parametrize("outcome", ["commit", "rollback"])
@pytest.mark.parametrize("tasks", ["tt", "tu"])
def test_a_waiting_job_that_another_session_has_locked_holds_up_no_other_and_is_not_forgotten(
    api: Any, actor: Any, worker: int, outcome: str, how: str, tasks: str
) -> None:
    api.set_queue("q", 2)
    answered(api)
    running = [api.add_job("t", queue_name="q").id for _ in range(2)]
    assert claim(api, worker) == running
    first, second = (api.add_job(task, queue_name="q").id for task in tasks)
    a = actor()
    a.begin()
    HOLDS[how](a, first)
    api.finish(*running)
    assert claim(api, worker) == [second]
    assert claim(api, worker) == []
    getattr(a, outcome)()
    answered(api)
    assert claim(api, worker) == [first]


@pytest.mark.parametrize("how", HOLDS)
@pytest.mark.parametrize("outcome", ["commit", "rollback", "kill"])
def test_the_next_job_of_a_serial_queue_is_not_forgotten_if_another_session_has_locked_it(
    api: Any, actor: Any, worker: int, outcome: str, how: str
) -> None:
    running, following = (api.add_job("t", queue_name="q").id for _ in range(2))
    assert claim(api, worker) == [running]
    a = actor()
    a.begin()
    HOLDS[how](a, following)
    api.finish(running)
    assert claim(api, worker) == []
    getattr(a, outcome)()
    answered(api)
    assert claim(api, worker) == [following]


@pytest.mark.parametrize("how", HOLDS)
@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_a_job_that_falls_due_while_another_session_has_locked_it_holds_up_no_other(
    api: Any, actor: Any, worker: int, clock: Any, outcome: str, how: str
) -> None:
    first, second = (api.add_job("t", run_at=api.at("1 hour")).id for _ in range(2))
    clock.advance(hours=2)
    api.heartbeat(worker)
    a = actor()
    a.begin()
    HOLDS[how](a, first)
    assert claim(api, worker) == [second]
    assert claim(api, worker) == []
    getattr(a, outcome)()
    assert claim(api, worker) == [first]


def test_a_pause_in_an_open_transaction_holds_up_no_session_and_rolled_back_it_was_none(
    api: Any, actor: Any, worker: int
) -> None:
    api.set_queue("q", 3)
    ids = add(api, 6)
    claimed = claim(api, worker, 2)
    a = actor()
    a.begin()
    a.pause_queue("q")  # no claim can see it yet
    more = add(api, 1)
    assert claim(api, worker) == ids[2:3]
    assert api.finish(*claimed) == claimed
    assert claim(api, worker) == ids[3:5]
    a.rollback()
    assert claim(api, worker) == []
    assert finish_all(api, worker) == ids[2:] + more


def test_a_pause_and_a_resume_of_one_queue_follow_each_other(api: Any, actor: Any, worker: int) -> None:
    ids = add(api, 2)
    a, b = actor(), actor()
    a.begin()
    a.pause_queue("q")
    resume = b.later.resume_queue("q")
    # There is no pause yet that it could see.
    resume.result(20)
    a.commit()
    assert claim(api, worker) == []
    a.begin()
    a.resume_queue("q")
    pause = b.later.pause_queue("q")
    b.blocked(pause)
    a.commit()
    pause.result(20)
    assert claim(api, worker) == []
    api.resume_queue("q")
    assert claim(api, worker) == ids[:1]
