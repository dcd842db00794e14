"""release_jobs and snooze_job: a running job goes back, and so does its attempt."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest


def unchanged(before: Any, after: Any, *but: str) -> bool:
    return all(name in but or getattr(after, name) == value for name, value in before._asdict().items())


def test_a_released_job_is_as_before_its_claim_and_can_be_claimed_at_once(api: Any, worker: int) -> None:
    job = api.add_job("t", "[1]", job_key="k", priority=3)
    claimed = api.claim(worker)
    assert api.release_jobs([claimed.id], [claimed.run]) == [job.id]
    released = api.get_job(job.id)
    assert unchanged(job, released, "run", "updated_at")
    assert api.claim(api.register_worker()).run > claimed.run


def test_a_snoozed_job_comes_back_later_with_its_attempt(
    api: Any, job_in: Any, worker: int, clock: Any
) -> None:
    running = job_in("running")
    before = api.at()
    api.snooze_job(running.id, running.run, "90 s")
    job = api.get_job(running.id)
    assert (job.state, job.attempts, job.last_error) == ("scheduled", 0, None)
    assert before <= job.run_at - timedelta(seconds=90) <= api.at()
    assert unchanged(running, job, "state", "attempts", "run_at", "locked_at", "locked_by", "updated_at")
    assert api.claim_jobs(worker) == []
    clock.advance(seconds=91)
    assert api.claim(worker).attempts == 1


def test_snoozing_by_nothing_makes_the_job_available(api: Any, job_in: Any) -> None:
    job = job_in("running")
    api.snooze_job(job.id, job.run, "0")
    assert api.get_job(job.id).state == "available"


def test_snoozing_and_releasing_use_up_no_attempts(api: Any, worker: int) -> None:
    api.add_job("t", max_attempts=1)
    for _ in range(5):
        job = api.claim(worker)
        api.snooze_job(job.id, job.run, "0")
        job = api.claim(worker)
        api.release_jobs([job.id], [job.run])
    assert api.claim(worker).attempts == 1


def test_earlier_failures_are_not_forgotten(api: Any, job_in: Any, worker: int) -> None:
    job = job_in("due")
    again = api.claim(worker)
    api.snooze_job(again.id, again.run, "0")
    assert (api.get_job(job.id).attempts, api.get_job(job.id).last_error) == (1, "boom")


@pytest.mark.parametrize("delay", ["-1 s", None])
def test_a_senseless_delay_is_refused(api: Any, job_in: Any, delay: str | None) -> None:
    job = job_in("running")
    with api.refusal("PW001", "snooze_job", "delay", "NULL" if delay is None else "-00:00:01"):
        api.snooze_job(job.id, job.run, delay)
    assert api.get_job(job.id) == job


def test_an_endless_delay_is_refused(api: Any, job_in: Any) -> None:
    if api.conn.info.server_version < 170000:
        pytest.skip("before PostgreSQL 17 every interval ends")
    job = job_in("running")
    with api.refusal("PW001", "snooze_job", "delay", "infinity"):
        api.snooze_job(job.id, job.run, "infinity")


@pytest.mark.parametrize(("by_id", "by_run"), [(0, 1), (0, -1), (4711, 0)])
def test_a_stale_word_is_refused(api: Any, job_in: Any, by_id: int, by_run: int) -> None:
    job = job_in("running")
    with api.refusal("PW002", "snooze_job", str(job.id + by_id), str(job.run + by_run)):
        api.snooze_job(job.id + by_id, job.run + by_run, "1 s")
    assert api.release_jobs([job.id + by_id], [job.run + by_run]) == []
    assert api.get_job(job.id) == job


def test_each_job_of_a_batch_is_released_by_itself(api: Any, worker: int) -> None:
    jobs = [api.add_job("t") for _ in range(4)]
    run = api.claim_jobs(worker, 3)[0].run
    a, finished, c, waiting = (job.id for job in jobs)
    api.finish(finished)
    assert api.release_jobs([c, waiting, finished, 4711, a, None, a], [run, 0, run, 1, run, 1, run]) == [a, c]
    assert api.release_jobs([], []) == api.release_jobs(None, None) == []
    with api.refusal("PW001", "release_jobs", "length"):
        api.release_jobs([1], [1, 2])
