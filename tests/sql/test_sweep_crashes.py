"""report_crash: which job ended its process, and what becomes of each."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.sweeps import patient as patient
from tests.support.sweeps import running as running
from tests.support.sweeps import state_of


def died(api: Any, worker: int, *jobs: Any, **named: Any) -> None:
    api.report_crash(worker, [job.id for job in jobs], [job.run for job in jobs], **named)


def fate(api: Any, job: Any) -> tuple[str, int, int]:
    (row,) = api.rows(
        "select state, attempts, coalesce(crashes, 0) from pyworker.live_jobs where id = %s", [job.id]
    )
    return tuple(row)


def test_a_single_culprit_is_charged_and_a_bystander_is_not(api: Any, worker: int) -> None:
    api.add_jobs([{"identifier": "t", "max_attempts": 2}] * 3)
    culprit, *bystanders = api.claim_jobs(worker, 3)
    died(api, worker, culprit, error="killed by signal 9")
    assert fate(api, culprit) == ("available", 1, 1)
    assert [fate(api, job) for job in bystanders] == [("available", 0, 0)] * 2
    assert [(error.run, error.error, error.worker) for error in api.job_errors(culprit.id)] == [
        (culprit.run, "killed by signal 9", str(worker))
    ]
    assert [api.get_job(job.id).last_error for job in bystanders] == [None, None]
    assert state_of(api, worker) == "dead"
    assert api.heartbeat(worker) is False
    with api.refusal("PW004"):
        api.claim_jobs(worker)
    again = api.claim_jobs(api.register_worker(), 3)
    assert [(job.crashes, job.attempts) for job in again] == [(1, 2), (0, 1), (0, 1)]
    assert all(api.finish_jobs([job.id], [culprit.run]) == [] for job in again)


def test_of_several_suspects_each_gets_its_attempt_back_and_a_mark(api: Any, worker: int) -> None:
    api.add_jobs([{"identifier": "t", "max_attempts": 1}] * 3)
    one, two, bystander = api.claim_jobs(worker, 3)
    died(api, worker, one, two)
    assert [fate(api, job) for job in (one, two, bystander)] == [
        ("available", 0, 1),
        ("available", 0, 1),
        ("available", 0, 0),
    ]
    assert "process" in api.get_job(one.id).last_error
    assert [len(api.job_errors(job.id)) for job in (one, two, bystander)] == [1, 1, 0]


def test_a_job_that_ends_its_process_too_often_is_discarded(api: Any) -> None:
    job = api.add_job("t", job_key="k", max_attempts=25)
    other = api.add_job("t")
    for crashes in (1, 2, 3):
        worker = api.register_worker()
        claimed = {c.id: c for c in api.claim_jobs(worker, 2)}
        assert claimed[job.id].crashes == crashes - 1
        if crashes == 2:
            died(api, worker, claimed[job.id], claimed[other.id])
        else:
            died(api, worker, claimed[job.id])
    dead = api.get_job(job.id)
    assert (dead.state, dead.reason, dead.key) == ("discarded", "it ended 3 worker processes", "k")
    assert dead.attempts < dead.max_attempts
    assert fate(api, other) == ("available", 0, 1)
    assert len(api.job_errors(job.id)) == 3


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_how_many_crashes_are_too_many_can_be_configured(api: Any, limit: int) -> None:
    api.configure(max_crashes=limit)
    job = api.add_job("t")
    for crashes in range(1, limit + 1):
        worker = api.register_worker()
        died(api, worker, api.claim(worker))
        assert api.get_job(job.id).state == ("discarded" if crashes == limit else "available")
    assert api.get_job(job.id).reason == f"it ended {limit} worker processes"


def test_the_limit_of_crashes_discards_only_a_job_that_ran_alone(api: Any, worker: int) -> None:
    """Of several any one may be to blame: they are marked, and the next time the culprit is alone."""
    api.configure(max_crashes=1)
    api.add_jobs([{"identifier": "t", "max_attempts": 1}] * 2)
    suspects = api.claim_jobs(worker, 2)
    died(api, worker, *suspects)
    assert [fate(api, job) for job in suspects] == [("available", 0, 1)] * 2
    again = api.register_worker()
    culprit = api.claim(again)
    died(api, again, culprit)
    assert [api.get_job(job.id).state for job in suspects] == ["discarded", "available"]
    assert api.get_job(culprit.id).reason == "it ended 2 worker processes"


@pytest.mark.parametrize("limit", [0, -1])
def test_the_limit_of_crashes_is_at_least_1(api: Any, limit: int) -> None:
    with api.refusal("PW001", "max_crashes", str(limit)):
        api.configure(max_crashes=limit)


def test_a_culprit_on_its_last_attempt_is_discarded(api: Any, worker: int, running: Any) -> None:
    job = running(worker, max_attempts=1)
    died(api, worker, job)
    assert (api.get_job(job.id).state, api.get_job(job.id).reason) == (
        "discarded",
        "worker lost on the last attempt",
    )


@pytest.mark.parametrize("limit", [1, 3])
@pytest.mark.parametrize("alone", [True, False])
def test_what_must_not_run_twice_and_was_started_is_lost_alone_and_among_suspects(
    api: Any, worker: int, limit: int, alone: bool
) -> None:
    api.configure(max_crashes=limit)
    api.add_job("t", delivery="at_most_once", max_attempts=1)
    api.add_job("t")
    job, other = api.claim_jobs(worker, 2)
    assert api.start_job(job.id, job.run)
    died(api, worker, *([job] if alone else [job, other]), error="killed")
    lost = api.get_job(job.id)
    assert (lost.state, lost.reason, lost.last_error) == ("discarded", "lost", "killed")


@pytest.mark.parametrize("reset", ["retry_job", "retry_jobs", "add_job", "reschedule_jobs"])
def test_a_persons_decision_forgets_the_crashes(api: Any, reset: str) -> None:
    api.configure(max_crashes=2)
    job = api.add_job("t", job_key="k")
    for _ in range(2):
        worker = api.register_worker()
        died(api, worker, api.claim(worker))
    assert api.get_job(job.id).state == "discarded"
    {
        "retry_job": lambda: api.retry_job(job.id),
        "retry_jobs": lambda: api.retry_jobs([job.id]),
        "add_job": lambda: api.add_job("t", job_key="k"),
        "reschedule_jobs": lambda: api.reschedule_jobs([job.id], attempts=0),
    }[reset]()
    worker = api.register_worker()
    again = api.claim(worker)
    assert (again.id, again.crashes) == (job.id, 0)
    died(api, worker, again)
    assert fate(api, job)[::2] == ("available", 1)
    api.reschedule_jobs([job.id], priority=1)  # no decision on its crashes
    assert fate(api, job)[::2] == ("available", 1)


def test_a_success_after_crashes_is_a_success_and_forgets_them(api: Any, worker: int, running: Any) -> None:
    job = running(worker)
    died(api, worker, job)
    worker = api.register_worker()
    again = api.claim(worker)
    api.finish_job(again.id, again.run)
    api.retry_job(job.id)
    assert api.claim(worker).crashes == 0


def test_stale_runs_and_strangers_in_the_list_are_left_as_they_are(api: Any, worker: int) -> None:
    api.add_jobs([{"identifier": "t"}] * 4)
    finished, gone, bystander = api.claim_jobs(worker, 3)
    api.finish_job(finished.id, finished.run)
    api.release_jobs([gone.id], [gone.run])
    other = api.register_worker()
    theirs, theirs_too = api.claim_jobs(other, 2)
    assert theirs.id == gone.id
    before = [api.get_job(job.id) for job in (finished, theirs, theirs_too)]
    died(api, worker, finished, gone, theirs, theirs_too)
    assert [api.get_job(job.id) for job in (finished, theirs, theirs_too)] == before
    assert fate(api, bystander) == ("available", 0, 0)
    # A run that this worker does not have: its job is a bystander.
    api.release_jobs([theirs.id], [theirs.run])
    worker = api.register_worker()
    mine = api.claim(worker)
    api.report_crash(worker, [mine.id], [mine.run - 1])
    assert fate(api, mine) == ("available", mine.attempts - 1, 0)


@pytest.mark.parametrize("args", [(), ([], []), (None, None), ([4711], [1]), ([None], [None])])
def test_without_a_culprit_all_are_bystanders(api: Any, worker: int, running: Any, args: Any) -> None:
    job = running(worker, max_attempts=1)
    api.report_crash(worker, *args)
    assert fate(api, job) == ("available", 0, 0)
    assert api.job_errors(job.id) == []


@pytest.mark.parametrize("who", [4711, None])
def test_the_death_of_an_unknown_worker_harms_no_job(
    api: Any, worker: int, running: Any, who: int | None
) -> None:
    job = running(worker)
    api.report_crash(who, [job.id], [job.run])
    assert fate(api, job) == ("running", 1, 0)
    died(api, worker, job)
    died(api, worker, job)  # said twice
    assert fate(api, job) == ("available", 1, 1)


@pytest.mark.parametrize("suspects", [1, 2])
def test_a_culprit_whose_run_was_cancelled_or_replaced_ends_cancelled(
    api: Any, worker: int, suspects: int
) -> None:
    api.add_jobs([{"identifier": "t", "job_key": f"k{i}"} for i in range(3)])
    superseded, cancelled, removed = api.claim_jobs(worker, 3)
    api.add_job("t", job_key="k0", run_at="2100-01-01")
    api.cancel_job(cancelled.id)
    api.remove_job("k2")
    died(api, worker, *[superseded, removed, cancelled][:suspects])
    assert [api.get_job(job.id).reason for job in (superseded, cancelled, removed)] == [
        "superseded",
        "cancelled",
        "removed",
    ]
    assert api.value("select count(*) from pyworker.history where state = 'cancelled'") == 3


def test_a_word_under_way_is_waited_for(
    api: Any, actor: Any, worker: int, running: Any, patient: None
) -> None:
    done, failed = running(worker), running(worker)
    w, a = actor(), actor()
    w.begin()
    w.finish_job(done.id, done.run)
    dying = a.later.report_crash(worker, [done.id, failed.id], [done.run, failed.run])
    a.blocked(dying)
    w.commit()
    dying.result(20)
    assert api.get_job(done.id).state == "completed"
    assert fate(api, failed)[0] == "available"
