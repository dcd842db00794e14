"""A wait for a signal, and what wakes it, ends it and outlives it."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg.types.json import Jsonb

from tests.support.notify import wait
from tests.support.waits import again, claimed, claims, steps, waiting

ANSWER = "select pyworker.wait_for_signal(%s, %s, 'go', '1 hour')::text"


def test_a_signal_tells_a_worker_that_waits(api: Any, actor: Any, worker: int) -> None:
    job = waiting(api, worker)
    ear = actor()
    ear.rows("listen pyworker")
    wait(ear, ear.register_worker())
    api.send_signal(job.id, "go")
    assert len(list(ear.conn.notifies(timeout=10, stop_after=1))) == 1


def test_a_wait_whose_signal_came_first_tells_a_worker_that_waits(api: Any, actor: Any, worker: int) -> None:
    """The send has committed while the wait was open, which did not see it."""
    job = claimed(api, worker)
    a, ear = actor(), actor()
    a.begin("repeatable read")
    api.send_signal(job.id, "go")
    ear.rows("listen pyworker")
    wait(ear, ear.register_worker())
    assert a.wait_for_signal(job.id, job.run, "go") is None
    a.commit()
    assert len(list(ear.conn.notifies(timeout=10, stop_after=1))) == 1
    again(api, worker, job)


@pytest.mark.parametrize(("way", "reason"), [("add_job", "superseded"), ("remove_job", "removed")])
def test_a_wait_of_a_run_whose_key_was_taken_ends_the_job(
    api: Any, worker: int, way: str, reason: str
) -> None:
    job = claimed(api, worker, job_key="k")
    after = api.add_job("after", depends_on=Jsonb([{"id": job.id, "on": "failure"}])).id
    getattr(api, way)(*(["t"] if way == "add_job" else []), job_key="k")
    assert api.wait_for_signal(job.id, job.run, "go") is None
    row = api.get_job(job.id)
    assert (row.state, row.reason) == ("cancelled", reason)
    assert after in claims(api, worker)


@pytest.mark.parametrize("end", ["completed", "cancelled"])
def test_a_job_that_runs_again_after_its_end_gets_the_same_answers(api: Any, worker: int, end: str) -> None:
    job = claimed(api, worker)
    api.send_signal(job.id, "go", Jsonb({"by": "ann"}))
    assert api.wait_for_signal(job.id, job.run, "go") == {"by": "ann"}
    api.save_step(job.id, job.run, "a", Jsonb(1))
    api.finish(job.id) if end == "completed" else api.cancel_job(job.id, True)
    assert steps(api, job) == {"go": {"by": "ann"}, "a": 1}  # in history, too
    api.retry_job(job.id)
    later = again(api, worker, job)
    assert api.wait_for_signal(job.id, later.run, "go") == {"by": "ann"}
    with api.refusal("PW003", "has a step named 'a' already"):
        api.save_step(job.id, later.run, "a", Jsonb(2))


def test_the_time_of_a_wait_goes_on_while_its_job_has_ended(api: Any, worker: int, clock: Any) -> None:
    job = waiting(api, worker, timeout="1 hour")
    api.cancel_job(job.id)
    clock.advance(hours=2)
    worker = api.register_worker()  # the first one was not heard of for so long
    api.retry_job(job.id)
    later = again(api, worker, job)
    assert api.value(ANSWER, [job.id, later.run]) == "null"
    assert api.get_job(job.id).state == "running"


def test_a_later_call_neither_shortens_nor_lengthens_a_wait(api: Any, worker: int, clock: Any) -> None:
    for first, later, hours, state in (
        ("1 hour", "3 hours", 2, "available"),
        ("1 hour", None, 2, "available"),
        ("3 hours", "1 hour", 2, "pending"),
        (None, "1 hour", 2, "pending"),
    ):
        worker = api.register_worker()
        job = waiting(api, worker, timeout=first)
        api.retry_job(job.id)
        mine = again(api, worker, job)
        assert api.wait_for_signal(job.id, mine.run, "go", later) is None
        clock.advance(hours=hours)
        api.promote_jobs()
        assert api.get_job(job.id).state == state, (first, later)
        api.cancel_job(job.id)
