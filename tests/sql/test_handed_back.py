"""A job that is handed back before its handler was called has not begun: its expires_at still holds."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.turns import claimed, word, work


def expiring(api: Any, worker: int, **options: Any) -> Any:
    api.add_job("t", expires_at=api.at("1 hour"), **options)
    (job,) = work(api, worker).jobs
    return job


def expired(api: Any, worker: int, clock: Any, job: Any) -> bool:
    clock.advance(hours=2)
    assert api.heartbeat(worker) is True
    work(api, worker)
    api.promote_jobs()
    return api.get_job(job.id).reason == "expired"


@pytest.mark.parametrize("options", [{}, {"queue_name": "q"}, {"sequence_policy": {"key": "s"}}])
def test_a_job_that_had_not_begun_expires_as_if_it_had_not_been_claimed(
    api: Any, worker: int, clock: Any, options: Any
) -> None:
    job = expiring(api, worker, **options)
    turn = work(api, worker, (), [word(job, "release", begun=False)], 0)
    assert turn.refused == []
    after = api.get_job(job.id)
    assert (after.state, after.attempts) == ("available", 0)
    assert expired(api, worker, clock, job)


def test_it_can_be_claimed_until_then_and_handed_back_as_often_as_you_like(
    api: Any, worker: int, clock: Any
) -> None:
    job = expiring(api, worker)
    for _ in range(3):
        (again,) = work(api, worker, (), [word(job, "release", begun=False)]).jobs
        assert (again.id, again.run > job.run) == (job.id, True)
        job = again
    work(api, worker, (), [word(job, "release", begun=False)], 0)
    assert expired(api, worker, clock, job)


@pytest.mark.parametrize("report", [{"do": "release"}, {"do": "release", "begun": True}, {"do": "fail"}])
def test_a_job_that_has_begun_does_not_expire(api: Any, worker: int, clock: Any, report: Any) -> None:
    job = expiring(api, worker)
    work(api, worker, (), [{"id": job.id, "run": job.run, **report}], 0)
    assert not expired(api, worker, clock, job)
    assert api.get_job(job.id).state in ("running", "available")


def test_a_job_that_had_begun_in_an_earlier_run_does_not_expire(api: Any, worker: int, clock: Any) -> None:
    job = expiring(api, worker)
    (again,) = work(api, worker, (), [word(job, "fail", delay_s=0)]).jobs
    work(api, worker, (), [word(again, "release", begun=False)], 0)
    assert not expired(api, worker, clock, job)


def test_a_job_of_an_answer_that_was_lost_had_not_begun(api: Any, worker: int, clock: Any) -> None:
    job = expiring(api, worker)
    api.rows("select * from pyworker.beat(%s, lost_answer := true)", [worker])
    assert api.get_job(job.id).state == "available"
    assert expired(api, worker, clock, job)


def test_a_job_that_a_process_had_not_begun_when_it_crashed_expires(
    api: Any, worker: int, clock: Any
) -> None:
    job = expiring(api, worker)
    api.report_crash(worker)
    other = api.register_worker()
    assert expired(api, other, clock, job)


def test_a_job_that_was_cancelled_or_replaced_while_it_waited_ends(api: Any, worker: int) -> None:
    api.add_job("t", job_key="k", expires_at=api.at("1 hour"))
    api.add_job("t", expires_at=api.at("1 hour"))
    first, second = work(api, worker).jobs
    new = api.add_job("t", job_key="k")
    api.cancel_job(second.id)
    work(api, worker, (), [word(job, "release", begun=False) for job in (first, second)], 0)
    ends = [(api.get_job(job.id).state, api.get_job(job.id).reason) for job in (first, second)]
    assert ends == [("cancelled", "superseded"), ("cancelled", "cancelled")]
    assert api.get_job(new.id).state == "available"


def test_a_started_at_most_once_job_is_lost_also_if_it_is_said_not_to_have_begun(
    api: Any, worker: int
) -> None:
    job = expiring(api, worker, delivery="at_most_once")
    assert api.start_job(job.id, job.run) is True
    work(api, worker, (), [word(job, "release", begun=False)], 0)
    after = api.get_job(job.id)
    assert (after.state, after.reason) == ("discarded", "lost")


@pytest.mark.parametrize("begun", ["false", 0, []])
def test_begun_must_be_a_boolean(api: Any, worker: int, begun: Any) -> None:
    (job,) = claimed(api, worker, "t")
    turn = work(api, worker, (), [word(job, "release", begun=begun)], 0)
    assert "malformed: begun must be a boolean" in turn.refused[0][2]
    assert api.get_job(job.id).state == "running"


def test_a_worker_is_never_told_to_come_again_before_now(api: Any, worker: int) -> None:
    """Jobs fall due while the answer is made."""
    soon = "clock_timestamp() + i * interval '1.3 ms'"
    jobs = f"jsonb_agg(jsonb_build_object('identifier', 't', 'run_at', {soon}))"
    api.rows(f"select count(*) from pyworker.add_jobs((select {jobs} from generate_series(1, 1500) i))")
    turn = "select again_in_s from pyworker.work(%s, null, null, null, null, 5, '{none}') where kind = 'turn'"
    waits = [api.rows(turn, [worker])[0].again_in_s for _ in range(1500)]
    assert [wait for wait in waits if not 0 <= wait <= 5] == []
