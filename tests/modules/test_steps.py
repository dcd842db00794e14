"""save_step, get_steps: what a job has done, it need not do again."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg.types.json import Jsonb

from tests.support import DEADLINE
from tests.support.api import ids, value_of
from tests.support.waits import again, claimed, steps

LEVELS = ["read committed", "repeatable read", "serializable"]


def test_a_later_run_reads_the_steps_of_an_earlier_one(api: Any, worker: int) -> None:
    job = claimed(api, worker)
    api.save_step(job.id, job.run, "reserve", Jsonb({"seat": "12A"}))
    api.save_step(job.id, job.run, "nothing")
    api.fail_jobs(Jsonb([{"id": job.id, "run": job.run, "error": "e", "delay": 0}]))
    later = again(api, worker, job)
    rows = api.get_steps(job.id)
    assert [(s.name, s.result, s.run) for s in rows] == [
        ("reserve", {"seat": "12A"}, job.run),
        ("nothing", None, job.run),
    ]
    api.save_step(job.id, later.run, "charge", Jsonb(17))
    assert steps(api, job) == {"reserve": {"seat": "12A"}, "nothing": None, "charge": 17}


@pytest.mark.parametrize("how", ["snooze", "release", "crash", "retry of a failure", "retry of a success"])
def test_steps_outlive_the_run(api: Any, actor: Any, worker: int, clock: Any, how: str) -> None:
    job = claimed(api, worker)
    api.save_step(job.id, job.run, "a", Jsonb(1))
    if how == "snooze":
        api.snooze_job(job.id, job.run, "0")
    elif how == "release":
        api.release_jobs([job.id], [job.run])
    elif how == "crash":
        api.unregister_worker(worker)
        worker = api.register_worker()
    elif how == "retry of a failure":
        api.fail_jobs(Jsonb([{"id": job.id, "run": job.run, "error": "e", "discard": True}]))
        api.retry_job(job.id)
    else:
        api.finish_job(job.id, job.run)
        assert steps(api, job) == {"a": 1}  # also in history
        api.retry_job(job.id)
    again(api, worker, job)
    assert steps(api, job) == {"a": 1}


def test_a_step_that_the_job_has_already_is_refused(api: Any, worker: int) -> None:
    job = claimed(api, worker)
    api.save_step(job.id, job.run, "a", Jsonb(1))
    with api.refusal("PW003", "save_step: job 1 has a step named 'a' already"):
        api.save_step(job.id, job.run, "a", Jsonb(2))
    assert steps(api, job) == {"a": 1}


def test_a_run_that_has_lost_the_job_saves_nothing(api: Any, worker: int) -> None:
    job = claimed(api, worker)
    api.release_jobs([job.id], [job.run])
    for run in (job.run, None):
        with api.refusal("PW002", "save_step: job 1 is not held by run"):
            api.save_step(job.id, run, "a")
    later = again(api, worker, job)
    with api.refusal("PW002", "save_step"):
        api.save_step(job.id, job.run, "a")
    api.finish_job(job.id, later.run)
    with api.refusal("PW002", "save_step"):
        api.save_step(job.id, later.run, "a")
    with api.refusal("PW002", "save_step: job 99"):
        api.save_step(99, later.run, "a")
    assert api.get_steps(job.id) == []
    assert api.get_steps(99) == []


@pytest.mark.parametrize(
    ("name", "result", "message"),
    [
        (None, 1, "save_step: name must be 1 to 512 characters long, got NULL"),
        ("", 1, "save_step: name must be 1 to 512 characters long, got ''"),
        ("n" * 513, 1, "save_step: name must be 1 to 512 characters long"),
        ("a", "x" * 1048577, "save_step: result must not be larger than 1048576 bytes"),
        ("a", eval("[" * 101 + "]" * 101), "save_step: result must not be nested deeper than 100 levels"),
    ],
)
def test_a_step_without_a_name_or_with_too_large_a_result_is_refused(
    api: Any, worker: int, name: Any, result: Any, message: str
) -> None:
    job = claimed(api, worker)
    with api.refusal("PW001", message):
        api.save_step(job.id, job.run, name, Jsonb(result))
    assert api.get_steps(job.id) == []


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("outcome", ["commit", "rollback", "kill"])
def test_no_new_run_begins_while_a_step_is_being_saved(
    api: Any, actor: Any, worker: int, outcome: str, level: str
) -> None:
    job = claimed(api, worker)
    a, b = actor(), actor()
    a.begin(level)
    a.save_step(job.id, job.run, "a", Jsonb(1))
    released = b.later.release_jobs([job.id], [job.run])
    b.blocked(released)
    getattr(a, outcome)()
    assert value_of(released) == [job.id]
    again(api, worker, job)
    assert steps(api, job) == ({"a": 1} if outcome == "commit" else {})


@pytest.mark.parametrize("level", LEVELS)
def test_a_step_that_meets_the_end_of_its_run_is_refused(
    api: Any, actor: Any, worker: int, level: str
) -> None:
    job = claimed(api, worker)
    a, b = actor(), actor()
    a.begin()
    a.release_jobs([job.id], [job.run])
    b.begin(level)
    saved = b.later.save_step(job.id, job.run, "a", Jsonb(1))
    b.blocked(saved)
    a.commit()
    error = saved.exception(DEADLINE)
    assert getattr(error, "sqlstate", None) == ("PW002" if level == "read committed" else "40001")
    b.rollback()
    assert api.get_steps(job.id) == []


def test_a_keyed_add_that_changes_the_job_drops_its_steps(api: Any, worker: int) -> None:
    job = claimed(api, worker, job_key="k")
    api.save_step(job.id, job.run, "a", Jsonb(1))
    api.release_jobs([job.id], [job.run])
    assert api.add_job("t", job_key="k", job_key_mode="unsafe_dedupe").id == job.id
    assert steps(api, job) == {"a": 1}
    assert api.add_job("t", job_key="k").id == job.id
    assert steps(api, job) == {}
    later = again(api, worker, job)
    api.save_step(job.id, later.run, "a", Jsonb(2))
    assert steps(api, job) == {"a": 2}


@pytest.mark.parametrize("how", ["delete_job", "pruning", "a dropped day", "no history"])
def test_steps_and_signals_end_with_their_job(api: Any, worker: int, clock: Any, how: str) -> None:
    if how == "no history":
        api.configure(completed_retention="0")
    job = claimed(api, worker)
    other = claimed(api, worker)
    for one in (job, other):
        api.save_step(one.id, one.run, "a", Jsonb(1))
        api.send_signal(one.id, "s")
    api.finish_job(job.id, job.run)
    if how == "delete_job":
        api.delete_job(job.id)
    elif how == "pruning":
        clock.advance(hours=25)
        api.prune()
    elif how == "a dropped day":
        clock.advance(days=3)
        api.maintain()
    left = "select job_id from pyworker.steps union all select job_id from pyworker.signals"
    assert {row.job_id for row in api.rows(left)} == {other.id}


def test_a_job_that_is_run_at_most_once_saves_steps_too(api: Any, worker: int) -> None:
    job = claimed(api, worker, delivery="at_most_once")
    assert api.start_job(job.id, job.run) is True
    api.save_step(job.id, job.run, "charged", Jsonb("tx1"))
    api.unregister_worker(worker)
    assert (api.get_job(job.id).state, steps(api, job)) == ("discarded", {"charged": "tx1"})


def test_many_jobs_wait_and_go_on_at_once(api: Any, worker: int) -> None:
    jobs = [api.add_job("t").id for _ in range(50)]
    mine = {job.id: job.run for job in api.claim_jobs(worker, 50)}
    for job, run in mine.items():
        assert api.wait_for_signal(job, run, "go") is None
    api.rows("select pyworker.send_signal(id, 'go') from pyworker.jobs")
    assert sorted(ids(api.claim_jobs(worker, 50))) == jobs
