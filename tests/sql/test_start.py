"""start_job: a claim only reserves a job, and the first start of a run is its only one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.delivery import BACK, ENDED_EARLY, reason
from tests.support.delivery import add as add
from tests.support.delivery import reserved as reserved


@pytest.mark.parametrize("way", BACK)
def test_what_was_only_claimed_runs_again(api: Any, reserved: Any, worker: int, clock: Any, way: str) -> None:
    job = reserved()
    assert job.delivery == "at_most_once"
    call, counts = BACK[way]
    call(api, job, worker, clock)
    assert reason(api, job) == ("available", None)
    assert api.get_job(job.id).attempts == int(counts)
    assert api.start_job(job.id, job.run) is False
    again = api.claim(api.register_worker())
    assert (again.id, again.run > job.run, again.attempts) == (job.id, True, 1 + counts)
    assert api.start_job(job.id, job.run) is False
    assert api.start_job(again.id, again.run) is True
    api.finish_job(again.id, again.run)


@pytest.mark.parametrize("way", [way for way in BACK if BACK[way][1]])
def test_what_was_only_claimed_is_out_of_attempts_like_any_other(
    api: Any, reserved: Any, worker: int, clock: Any, way: str
) -> None:
    job = reserved(max_attempts=1)
    BACK[way][0](api, job, worker, clock)
    assert reason(api, job) == ("discarded", "worker lost on the last attempt")


def test_what_was_only_claimed_may_be_put_off_and_may_fail(api: Any, reserved: Any) -> None:
    put_off, failed = reserved(), reserved()
    api.snooze_job(put_off.id, put_off.run, "1 min")
    assert reason(api, put_off) == ("scheduled", None)
    assert api.get_job(put_off.id).attempts == 0
    api.fail(failed)
    assert reason(api, failed) == ("retryable", None)


# the stricter of the code's and the job's word ------------------------------------------------------


@pytest.mark.parametrize("way", BACK)
def test_a_job_that_its_worker_starts_as_at_most_once_is_so_from_then_on(
    api: Any, reserved: Any, worker: int, clock: Any, way: str
) -> None:
    job = reserved(delivery="at_least_once")
    assert api.start_job(job.id, job.run, "at_most_once") is True
    assert api.get_job(job.id).delivery == "at_most_once"
    BACK[way][0](api, job, worker, clock)
    assert reason(api, job)[0] == "discarded"
    assert api.retry_job(job.id).delivery == "at_most_once"


@pytest.mark.parametrize("word", ["at_least_once", None])
def test_no_start_relaxes_a_job_that_runs_at_most_once(api: Any, reserved: Any, word: str | None) -> None:
    job = reserved()
    assert api.start_job(job.id, job.run, word) is True
    assert api.get_job(job.id).delivery == "at_most_once"


def test_a_start_with_another_delivery_is_refused(api: Any, reserved: Any) -> None:
    job = reserved()
    with api.refusal("PW001", "delivery must be at_least_once or at_most_once, got 'once'"):
        api.start_job(job.id, job.run, "once")
    assert api.start_job(job.id, job.run) is True


# start_job is true once ---------------------------------------------------------------------------


@pytest.mark.parametrize("delivery", ["at_most_once", "at_least_once"])
def test_start_job_is_true_once(api: Any, reserved: Any, delivery: str) -> None:
    job = reserved(delivery=delivery)
    assert [api.start_job(job.id, job.run) for _ in range(3)] == [True, False, False]
    assert reason(api, job) == ("running", None)
    assert api.finish_jobs([job.id], [job.run]) == [job.id]
    assert api.start_job(job.id, job.run) is False


@pytest.mark.parametrize("run", [0, 2, -1, None])
def test_start_job_is_false_for_another_run(api: Any, reserved: Any, run: int | None) -> None:
    job = reserved()
    assert api.start_job(job.id, run) is False
    assert api.start_job(job.id, job.run) is True


@pytest.mark.parametrize("job_id", [4711, -1, None])
def test_start_job_is_false_for_an_unknown_job(api: Any, job_id: int | None) -> None:
    assert api.start_job(job_id, 1) is False


@pytest.mark.parametrize(
    "state", ["scheduled", "pending", "available", "retryable", "discarded", "completed", "cancelled"]
)
def test_start_job_is_false_for_a_job_that_does_not_run(api: Any, job_in: Any, state: str) -> None:
    job = job_in(state, delivery="at_most_once")
    assert api.start_job(job.id, job.run) is False
    assert api.start_job(job.id, job.run + 1) is False
    assert api.get_job(job.id) == job


@pytest.mark.parametrize("how", ENDED_EARLY)
def test_start_job_is_false_once_the_job_was_cancelled_or_replaced(api: Any, reserved: Any, how: str) -> None:
    job = reserved(job_key="k")
    ENDED_EARLY[how](api)
    assert api.start_job(job.id, job.run) is False
    # The worker says so by handing it back, and that is its end.
    api.release_jobs([job.id], [job.run])
    assert reason(api, job)[0] == "cancelled"


def test_start_job_is_false_for_a_replaced_job(api: Any, reserved: Any) -> None:
    policy = {"on_conflict": "replace"}
    job = reserved(unique_policy=policy)
    new = api.add_job("t", unique_policy=policy)
    assert api.start_job(job.id, job.run) is False
    assert (reason(api, job), reason(api, new)) == (("cancelled", "replaced"), ("available", None))


def test_start_job_is_false_once_its_worker_was_declared_dead(
    api: Any, actor: Any, reserved: Any, worker: int
) -> None:
    """Even if the sweep could not take the job, as another session has it locked."""
    job = reserved()
    a = actor()
    a.begin()
    a.rows("select from pyworker.live_jobs for share")
    api.rows("update pyworker.workers set expires_at = pyworker.clock() - interval '1 s'")
    assert api.sweep_workers() == 0
    a.commit()
    assert reason(api, job) == ("running", None)
    assert api.start_job(job.id, job.run) is False
    assert api.sweep_workers() == 1
    assert reason(api, job) == ("available", None)


def test_start_job_is_false_without_a_worker(api: Any, reserved: Any) -> None:
    job = reserved()
    api.rows("delete from pyworker.workers")
    assert api.start_job(job.id, job.run) is False
    api.maintain()


# The durable commit -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "inside"),
    [("off", "on"), ("local", "on"), ("remote_write", "on"), ("on", "on"), ("remote_apply", "remote_apply")],
)
@pytest.mark.parametrize("call", ["start_job", "once"])
@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_the_mark_is_on_the_disk_when_its_commit_returns_and_the_session_is_as_before(
    api: Any, actor: Any, reserved: Any, call: str, before: str, inside: str, outcome: str
) -> None:
    job = reserved()
    a = actor()
    a.rows(f"set synchronous_commit = {before}")
    for _ in range(2):  # a second call in the same session, be it false, is no different
        a.begin()
        a.once("k") if call == "once" else a.start_job(job.id, job.run)
        assert a.value("show synchronous_commit") == inside
        getattr(a, outcome)()
        assert a.value("show synchronous_commit") == before


def test_the_commit_of_a_call_by_itself_waits_for_the_disk(api: Any, actor: Any, reserved: Any) -> None:
    """Not only as a setting: when the call returns, the log is on the disk up to its commit."""
    a = actor()
    a.rows("set synchronous_commit = off")
    for call in ("once", "start_job"):
        job = reserved()
        a.rows("begin")
        assert (a.once("k") if call == "once" else a.start_job(job.id, job.run)) is True
        at = a.value("select pg_current_wal_insert_lsn()")
        a.commit()
        assert api.value("select pg_current_wal_flush_lsn() > %s::pg_lsn", [at])
