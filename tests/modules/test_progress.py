"""set_progress: how far a run has come. await_job: who waits for an end is told."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.api import ids
from tests.support.waits import again, claimed


def told(api: Any, job: Any) -> tuple[Any, Any]:
    row = api.get_job(job.id)
    return row.progress, row.progress_message


def test_get_job_has_the_last_progress_of_the_last_run(api: Any, worker: int) -> None:
    job = claimed(api, worker)
    assert told(api, job) == (None, None)
    api.set_progress(job.id, job.run, 0.25, "page 1 of 4")
    assert told(api, job) == (0.25, "page 1 of 4")
    api.set_progress(job.id, job.run, 0.5)
    assert told(api, job) == (0.5, None)
    api.release_jobs([job.id], [job.run])
    assert told(api, job) == (0.5, None)
    later = again(api, worker, job)
    assert told(api, job) == (None, None)
    api.set_progress(job.id, later.run, 1)
    api.finish(job.id)
    assert told(api, job) == (1.0, None)  # in history
    api.delete_job(job.id)
    assert api.rows("select from pyworker.progress") == []


@pytest.mark.parametrize("progress", [None, -0.01, 1.01, "NaN", "infinity"])
def test_progress_is_from_0_to_1(api: Any, worker: int, progress: Any) -> None:
    job = claimed(api, worker)
    with api.refusal("PW001", "set_progress: progress must be from 0 to 1, got"):
        api.set_progress(job.id, job.run, progress)
    with api.refusal("PW001", "set_progress: message must be at most 1000 characters long, got 1001"):
        api.set_progress(job.id, job.run, 0.1, "m" * 1001)
    assert told(api, job) == (None, None)


def test_a_run_that_has_lost_the_job_tells_nothing(api: Any, worker: int) -> None:
    job = claimed(api, worker)
    api.release_jobs([job.id], [job.run])
    for run in (job.run, None):
        with api.refusal("PW002", f"set_progress: job {job.id} is not held by run"):
            api.set_progress(job.id, run, 0.5)
    later = again(api, worker, job)
    with api.refusal("PW002"):
        api.set_progress(job.id, job.run, 0.5)
    api.set_progress(job.id, later.run, 0.1)
    assert told(api, job) == (pytest.approx(0.1), None)


def test_progress_waits_for_no_other_session_and_delays_none(api: Any, actor: Any, worker: int) -> None:
    job = claimed(api, worker)
    a, b = actor(), actor()
    a.begin()
    a.set_progress(job.id, job.run, 0.5)
    api.finish_job(job.id, job.run)  # not delayed
    a.commit()
    assert told(api, job) == (0.5, None)
    other = claimed(api, worker)
    b.begin()
    b.rows("select from pyworker.live_jobs where id = %s for update", [other.id])
    api.set_progress(other.id, other.run, 0.5)  # does not wait


# await_job


def channel(actor: Any) -> Any:
    listening = actor()
    listening.rows("listen pyworker_ended")
    return listening


def heard(listening: Any, api: Any) -> list[str]:
    """What has come up to a mark that is sent now."""
    api.rows("select pg_notify('pyworker_ended', 'mark')")
    found: list[str] = []
    for note in listening.conn.notifies(timeout=30):
        if note.payload == "mark":
            return found
        found.append(note.payload)
    raise AssertionError("no mark came")


ENDS = {
    "finish": lambda api, job: api.finish(job.id),
    "discard": lambda api, job: api.fail(job, discard=True),
    "discard with others": lambda api, job: api.fail_jobs([
        {"id": job.id, "run": job.run, "error": "e", "discard": True},
        {"id": 0, "run": 0, "error": "e"},
    ]),
    "cancel": lambda api, job: api.cancel_job(job.id, True),
    "fail by hand": lambda api, job: (
        api.cancel_job(job.id, True), api.retry_job(job.id), api.permanently_fail_jobs([job.id], "e"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("end", ENDS)
def test_the_end_of_a_job_that_a_caller_awaits_notifies(api: Any, actor: Any, worker: int, end: str) -> None:
    listening = channel(actor)
    job, other = claimed(api, worker), claimed(api, worker)
    assert api.await_job(job.id).state == "running"
    api.finish(other.id)
    assert heard(listening, api) == []
    ENDS[end](api, job)
    assert set(heard(listening, api)) == {str(job.id)}


def test_each_discarded_job_notifies_if_the_setting_says_so(api: Any, actor: Any, worker: int) -> None:
    listening = actor()
    listening.rows("listen pyworker_discarded")

    def told() -> list[str]:
        """What has come up to a mark that is sent now."""
        api.rows("select pg_notify('pyworker_discarded', 'mark')")
        told = []
        for note in listening.conn.notifies(timeout=30):
            if note.payload == "mark":
                return told
            told.append(note.payload)
        raise AssertionError(f"no mark, but {told}")

    api.fail(claimed(api, worker), discard=True)
    assert told() == []
    api.configure(notify_discarded=True)
    jobs = [claimed(api, worker) for _ in range(5)]
    ends = [
        lambda job: api.fail(job, discard=True),
        lambda job: api.fail_jobs([{"id": job.id, "run": job.run, "error": "e", "discard": True}]),
        lambda job: (api.release_jobs([job.id], [job.run]), api.permanently_fail_jobs([job.id], "e")),
        lambda job: (api.configure(discarded_retention="0"), api.fail(job, discard=True)),
    ]
    for end, job in zip(ends, jobs, strict=False):
        end(job)
        assert told() == [str(job.id)]
    api.finish(jobs[-1].id)
    api.cancel_job(api.add_job("t").id)
    retried = claimed(api, worker)
    api.fail_jobs([{"id": retried.id, "run": retried.run, "error": "e"}])  # has attempts left
    assert told() == []
    api.configure(notify_discarded=False)
    api.fail(claimed(api, worker), discard=True)
    assert told() == []


def test_an_end_notifies_nobody_that_does_not_wait_any_more(api: Any, actor: Any, worker: int) -> None:
    listening = channel(actor)
    job = claimed(api, worker)
    api.await_job(job.id, 0)
    api.finish(job.id)
    assert heard(listening, api) == []


def test_await_job_of_an_ended_job_returns_it_and_waits_for_nothing(api: Any, worker: int) -> None:
    job = claimed(api, worker)
    api.finish(job.id)
    assert api.await_job(job.id).state == "completed"
    assert api.rows("select from pyworker.waiters") == []


def test_old_waiters_are_forgotten(api: Any) -> None:
    jobs = ids(api.add_jobs([{"identifier": "t"}] * 3))
    for job in jobs:
        api.await_job(job, 0)
    api.await_job(jobs[0])
    assert len(api.rows("select from pyworker.waiters")) == 1


def test_what_cannot_be_awaited_is_refused(api: Any) -> None:
    with api.refusal("PW004", "await_job: there is no job 99"):
        api.await_job(99)
    job = api.add_job("t").id
    for seconds in (None, -1, 3601, "NaN"):
        with api.refusal("PW001", "await_job: seconds must be from 0 to 3600"):
            api.await_job(job, seconds)
