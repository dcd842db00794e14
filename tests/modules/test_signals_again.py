"""What became of a signal: it answers one wait, is kept for one to come, or is ignored."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg.types.json import Jsonb

from tests.support.waits import again, claimed, claims, waiting


def wait(api: Any, job: Any, nth: int, timeout: str | None = None, name: str = "go") -> str | None:
    """The answer as JSON text; None if the job waits from now on."""
    call = "select pyworker.wait_for_signal(%s, %s, %s, %s::interval, %s)::text"
    return api.value(call, [job.id, job.run, name, timeout, nth])


def listed(api: Any, job: Any) -> list[Any]:
    return [(step.name, step.result) for step in api.get_steps(job.id)]


def test_a_signal_says_what_became_of_it(api: Any, worker: int) -> None:
    job = waiting(api, worker)
    assert api.send_signal(job.id, "go", Jsonb(1)) == "answered"
    assert api.send_signal(job.id, "go", Jsonb(2)) == "ignored"
    assert api.send_signal(job.id, "other", Jsonb(3)) == "kept"
    job = again(api, worker, job)
    assert api.send_signal(job.id, "go", Jsonb(4)) == "ignored"  # the wait has not asked for its answer yet
    assert wait(api, job, 1) == "1"
    assert api.send_signal(job.id, "go", Jsonb(5)) == "kept"
    assert [wait(api, job, 2), wait(api, job, 1)] == ["5", "1"]
    assert wait(api, job, 1, name="other") == "3"


@pytest.mark.parametrize("state", ["scheduled", "available", "running", "discarded"])
def test_a_signal_to_a_job_that_does_not_wait_is_kept_once(api: Any, job_in: Any, state: str) -> None:
    job = job_in(state)
    assert [api.send_signal(job.id, "go") for _ in range(2)] == ["kept", "ignored"]


def test_a_signal_after_a_timeout_answers_the_next_wait(api: Any, worker: int, clock: Any) -> None:
    job = waiting(api, worker, timeout="1 minute")
    clock.advance(minutes=2)
    job = again(api, api.register_worker(), job)
    assert wait(api, job, 1, "1 minute") == "null"
    assert api.send_signal(job.id, "go", Jsonb("late")) == "kept"
    assert wait(api, job, 2, "1 minute") == '"late"'
    assert listed(api, job) == [("go", None), ("go", "late")]


def test_a_loop_waits_for_one_name_again_and_each_run_gets_the_same_answers(
    api: Any, worker: int, clock: Any
) -> None:
    job, got = claimed(api, worker), ["1", "null", "3"]
    for nth, answer in enumerate(got, 1):
        assert [wait(api, job, n, "1 minute") for n in range(1, nth)] == got[: nth - 1]
        assert wait(api, job, nth, "1 minute") is None
        if answer == "null":
            clock.advance(minutes=2)
            worker = api.register_worker()
        else:
            assert api.send_signal(job.id, "go", Jsonb(int(answer))) == "answered"
        job = again(api, worker, job)
    assert [wait(api, job, n, "0") for n in (3, 1, 2)] == ["3", "1", "null"]
    api.finish(job.id)
    api.retry_job(job.id)
    job = again(api, worker, job)
    assert [wait(api, job, n) for n in (1, 2, 3)] == got
    assert wait(api, job, 4) is None
    assert claims(api, worker) == []


def test_a_step_and_a_wait_have_different_names_however_often_it_waits(api: Any, worker: int) -> None:
    job = claimed(api, worker)
    assert wait(api, job, 2, "0") == "null"
    with api.refusal("PW003", "has a step named 'go' already"):
        api.save_step(job.id, job.run, "go")
    api.save_step(job.id, job.run, "paid")
    with api.refusal("PW003", "'paid' is a step of job"):
        wait(api, job, 2, name="paid")


@pytest.mark.parametrize("nth", [0, -1, None])
def test_the_number_of_a_wait_is_one_or_more(api: Any, worker: int, nth: int | None) -> None:
    job = claimed(api, worker)
    with api.refusal("PW001", f"nth must be 1 or more, got {'NULL' if nth is None else nth}"):
        wait(api, job, nth)  # type: ignore[arg-type]


def test_a_keyed_add_that_replaces_a_job_starts_its_waits_again(api: Any, worker: int) -> None:
    job = waiting(api, worker, job_key="k")
    api.send_signal(job.id, "go", Jsonb(1))
    api.add_job("t", job_key="k")
    job = again(api, worker, job)
    assert [wait(api, job, 1), wait(api, job, 2, "0")] == ["1", "null"]


# Two sessions


@pytest.mark.parametrize("end", ["commit", "rollback", "kill"])
def test_of_two_senders_at_once_one_answers_the_wait_and_the_other_is_kept(
    api: Any, actor: Any, worker: int, end: str
) -> None:
    """Neither waits for the other, and none is lost."""
    job = waiting(api, worker)
    a = actor()
    a.begin()
    assert a.send_signal(job.id, "go", Jsonb("a")) == "answered"
    assert api.send_signal(job.id, "go", Jsonb("b")) == "kept"
    getattr(a, end)()
    job = again(api, worker, job)
    first, then = ('"a"', '"b"') if end == "commit" else ('"b"', "null")
    assert [wait(api, job, 1), wait(api, job, 2, "0")] == [first, then]


def test_a_send_after_one_that_was_rolled_back_answers_the_wait(api: Any, actor: Any, worker: int) -> None:
    job = waiting(api, worker)
    a = actor()
    a.begin()
    assert a.send_signal(job.id, "go") == "answered"
    a.rollback()
    assert api.send_signal(job.id, "go", Jsonb(1)) == "answered"
    assert wait(api, again(api, worker, job), 1) == "1"


def test_an_open_send_does_not_hold_up_a_wait_whose_time_is_over(
    api: Any, actor: Any, worker: int, clock: Any
) -> None:
    job = waiting(api, worker, timeout="1 minute")
    a = actor()
    a.begin()
    a.send_signal(job.id, "go", Jsonb("late"))
    clock.advance(minutes=2)
    job = again(api, api.register_worker(), job)
    assert wait(api, job, 1, "1 minute") == "null"
    a.commit()
    assert wait(api, job, 2, "1 minute") == '"late"'


def test_a_transaction_may_send_more_signals_than_there_is_room_for_locks(api: Any, worker: int) -> None:
    jobs = 700
    api.rows("select from pyworker.add_jobs(%s::jsonb)", [Jsonb([{"identifier": "t"}] * jobs)])
    runs = api.claim_jobs(worker, jobs)
    api.rows("select pyworker.wait_for_signal(i, r, 'go') from unnest(%s::bigint[], %s::bigint[]) u(i, r)",
             [[run.id for run in runs], [run.run for run in runs]])  # fmt: skip
    with api.conn.transaction():
        told = api.rows("select pyworker.send_signal(id, 'go') from pyworker.jobs")
        assert {row[0] for row in told} == {"answered"}
        held = "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()"
        assert api.value(held) < 510
