"""What people do to jobs by hand. The table of test_lifecycle.py says what each verb does to each
state; here is the rest."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

WAITING = ["scheduled", "pending", "available", "retryable", "due"]


@pytest.mark.parametrize("verb", ["cancel_job", "retry_job", "delete_job"])
@pytest.mark.parametrize("job_id", [4711, 0, None])
def test_a_verb_on_one_job_says_when_there_is_none(api: Any, verb: str, job_id: int | None) -> None:
    with api.refusal("PW004", f"^{verb}: ", "NULL" if job_id is None else str(job_id)):
        getattr(api, verb)(job_id)


@pytest.mark.parametrize("verb", ["retry_jobs", "complete_jobs", "permanently_fail_jobs", "reschedule_jobs"])
@pytest.mark.parametrize("job_ids", [[4711, None], [], None])
def test_a_verb_on_many_jobs_leaves_out_what_is_not_there(api: Any, verb: str, job_ids: Any) -> None:
    assert getattr(api, verb)(job_ids) == []


@pytest.mark.parametrize("verb", ["retry_jobs", "complete_jobs", "permanently_fail_jobs", "reschedule_jobs"])
def test_each_job_of_many_comes_back_once_as_it_is_now(api: Any, job_in: Any, verb: str) -> None:
    jobs = [job_in(state, state) for state in ("due", "discarded", "running", "scheduled")]
    ids = [job.id for job in jobs]
    done = getattr(api, verb)([*ids[::-1], 4711, ids[0]])
    assert [job.id for job in done] == sorted(set(ids) - {ids[2]})
    for job in done:
        now = api.get_job(job.id)
        assert job._replace(updated_at=None, finished_at=None) == now._replace(
            updated_at=None, finished_at=None
        )
    assert api.get_job(ids[2]) == jobs[2]


def test_an_unknown_job_is_a_row_of_nulls(api: Any) -> None:
    for job_id in (4711, 0, None):
        assert set(api.get_job(job_id)) == {None}


# cancel_job ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("force", [False, True, None])
@pytest.mark.parametrize("state", WAITING)
def test_a_waiting_job_is_cancelled_at_once(api: Any, job_in: Any, state: str, force: bool | None) -> None:
    job = job_in(state, job_key="k", payload="[1]")
    returned = api.cancel_job(job.id, force)
    now = api.get_job(job.id)
    assert (now.state, now.reason, now.key, now.payload, now.attempts) == (
        "cancelled",
        "cancelled",
        "k",
        [1],
        job.attempts,
    )
    assert returned._replace(finished_at=None, updated_at=None) == now._replace(
        finished_at=None, updated_at=None
    )
    assert now.finished_at >= job.created_at


WORDS: dict[str, Any] = {
    "failure": lambda api, job, clock: api.fail(job),
    "last failure": lambda api, job, clock: (api.add_job("t", job_key="k"), api.fail(job)),
    "discard": lambda api, job, clock: api.fail(job, discard=True),
    "cancel": lambda api, job, clock: api.fail(job, cancel=True),
    "snooze": lambda api, job, clock: api.snooze_job(job.id, job.run, "1 s"),
    "release": lambda api, job, clock: api.release_jobs([job.id], [job.run]),
    "reconcile": lambda api, job, clock: api.reconcile(int(job.locked_by), [], []),
    "unregister": lambda api, job, clock: api.unregister_worker(int(job.locked_by)),
    "force unlock": lambda api, job, clock: api.force_unlock_workers([job.locked_by]),
    "its worker's death": lambda api, job, clock: (clock.advance(minutes=5), api.maintain()),
}


@pytest.mark.parametrize("word", WORDS)
def test_a_running_job_asked_to_stop_ends_cancelled_at_its_workers_next_word(
    api: Any, job_in: Any, clock: Any, word: str
) -> None:
    job = job_in("running", job_key="other" if word == "last failure" else "k")
    for _ in range(2):
        assert api.cancel_job(job.id).state == "running"
    WORDS[word](api, job, clock)
    now = api.get_job(job.id)
    assert now.state == "cancelled"
    assert now.reason
    clock.advance(days=1)
    assert api.claim(api.register_worker(), "t") is None or word == "last failure"


def test_success_beats_a_request_to_stop(api: Any, job_in: Any) -> None:
    job = job_in("running")
    api.cancel_job(job.id)
    assert api.finish_jobs([job.id], [job.run]) == [job.id]
    assert api.get_job(job.id).state == "completed"


def test_a_request_to_stop_dies_with_the_run_it_was_meant_for(api: Any, job_in: Any, worker: int) -> None:
    job = job_in("running")
    api.cancel_job(job.id)
    api.fail(job)
    api.retry_job(job.id)
    again = api.claim(worker)
    api.fail(again)
    assert api.get_job(job.id).state == "retryable"


def test_a_job_cancelled_by_force_refuses_its_workers_word(api: Any, job_in: Any) -> None:
    job = job_in("running", queue_name="q")
    following = api.add_job("t", queue_name="q")
    assert api.cancel_job(job.id, force=True).state == "cancelled"
    assert api.finish_jobs([job.id], [job.run]) == []
    assert api.fail(job) == []
    with api.refusal("PW002"):
        api.finish_job(job.id, job.run)
    assert api.claim(api.register_worker()).id == following.id


# retry_job ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["scheduled", "retryable", "discarded", "completed", "cancelled"])
def test_retry_lets_a_job_run_now(api: Any, job_in: Any, worker: int, state: str) -> None:
    job = job_in(state, payload="[1e2]", job_key="k", priority=3, flags=["f"], meta={"m": 1})
    before = api.at()
    again = api.retry_job(job.id)
    assert before <= again.run_at <= api.at()
    assert (again.state, again.reason, again.finished_at, again.result) == ("available", None, None, None)
    same = (
        "id",
        "key",
        "priority",
        "flags",
        "meta",
        "attempts",
        "max_attempts",
        "last_error",
        "run",
        "created_at",
        "revision",
    )
    assert [getattr(again, name) for name in same] == [getattr(job, name) for name in same]
    assert api.get_job(job.id) == again
    assert api.payload(job.id) == "[1e2]"
    assert api.rows("select from pyworker.history") == []
    assert api.claim(worker).run > job.run


def test_retry_gives_one_more_attempt_where_none_is_left(api: Any, worker: int) -> None:
    job = api.add_job("t", max_attempts=1)
    for attempts in (1, 2, 3):
        api.fail(api.claim(worker), f"error {attempts}")
        assert api.get_job(job.id).state == "discarded"
        again = api.retry_job(job.id)
        assert (again.attempts, again.max_attempts, again.last_error) == (
            attempts,
            attempts + 1,
            f"error {attempts}",
        )
    last = api.claim(worker)
    api.finish_job(last.id, last.run)
    assert api.retry_job(job.id).max_attempts == 5


@pytest.mark.parametrize("holder", ["scheduled", "available", "running", "discarded"])
@pytest.mark.parametrize("state", ["completed", "cancelled"])
def test_retry_is_refused_while_the_key_is_held_by_a_newer_job(
    api: Any, job_in: Any, state: str, holder: str
) -> None:
    job = job_in(state, job_key="k")
    newer = job_in(holder, job_key="k")
    with api.refusal("PW003", "retry_job", str(job.id), str(newer.id)) as caught:
        api.retry_job(job.id)
    assert json.loads(caught.value.diag.message_detail) == {
        "existing_job_id": newer.id,
        "existing_job_state": holder,
    }
    assert api.get_job(job.id) == job
    assert api.retry_jobs([job.id]) == []
    assert api.get_job(newer.id) == newer
    api.remove_job("k")
    assert api.retry_job(job.id).state == "available"


def test_a_superseded_job_may_be_retried_by_hand_and_is_no_longer_superseded(
    api: Any, job_in: Any, worker: int
) -> None:
    job = job_in("running", job_key="k")
    newer = api.add_job("t", job_key="k", run_at=api.at("1 hour"))
    api.fail(job)
    again = api.retry_job(job.id)
    assert (again.state, again.key) == ("available", None)
    api.fail(api.claim(worker))
    assert api.get_job(job.id).state == "discarded"
    assert api.get_job(newer.id) == newer


# delete_job ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [*WAITING, "discarded", "completed", "cancelled"])
def test_a_deleted_job_leaves_no_trace(api: Any, job_in: Any, state: str) -> None:
    job = job_in(state, job_key="k")
    api.permanently_fail_jobs([job.id])
    before = api.get_job(job.id)
    assert api.delete_job(job.id) == before
    assert api.get_job(job.id).id is None
    assert api.value("select count(*) from pyworker.errors") == 0
    with api.refusal("PW004"):
        api.delete_job(job.id)


# Graphile Worker's four ---------------------------------------------------------------------------


@pytest.mark.parametrize("state", [*WAITING, "discarded"])
def test_complete_jobs_ends_a_job_without_running_it(api: Any, job_in: Any, state: str) -> None:
    job = job_in(state, job_key="k")
    (done,) = api.complete_jobs([job.id])
    assert (done.state, done.attempts, done.reason) == ("completed", job.attempts, "completed by hand")
    assert api.get_job(job.id).state == "completed"
    assert api.add_job("t", job_key="k").id != job.id


@pytest.mark.parametrize(
    ("message", "kept"), [("not wanted", "not wanted"), (None, "Manually marked as failed")]
)
@pytest.mark.parametrize("state", [*WAITING, "discarded"])
def test_permanently_fail_jobs_takes_all_attempts_and_keeps_the_key(
    api: Any, job_in: Any, state: str, message: str | None, kept: str
) -> None:
    job = job_in(state, job_key="k")
    (failed,) = api.permanently_fail_jobs([job.id], message)
    assert (failed.state, failed.attempts, failed.last_error, failed.key) == ("discarded", 25, kept, "k")
    assert api.job_errors(job.id)[-1].error == kept
    assert api.add_job("t", job_key="k").id == job.id


@pytest.mark.parametrize("state", WAITING)
def test_reschedule_jobs_changes_only_what_it_is_given(api: Any, job_in: Any, state: str) -> None:
    job = job_in(state, job_key="k", priority=3, max_attempts=9)

    def changed(**given: Any) -> dict[str, Any]:
        before = api.get_job(job.id)._asdict()
        (after,) = api.reschedule_jobs([job.id], **given)
        return {
            k: v for k, v in after._asdict().items() if v != before[k] and k not in ("updated_at", "state")
        }

    at = api.at("2 days").replace(microsecond=5)
    assert changed() == {}
    assert changed(run_at=at) == {"run_at": at}
    assert changed(priority=0) == {"priority": 0}
    assert changed(max_attempts=3) == {"max_attempts": 3}
    assert changed(attempts=2) == {"attempts": 2}
    assert changed(attempts=0) == {"attempts": 0}
    assert changed(run_at=at - timedelta(days=9), priority=-4, max_attempts=7) == {
        "run_at": at - timedelta(days=9), "priority": -4, "max_attempts": 7,
    }  # fmt: skip


def test_a_discarded_job_with_attempts_again_waits_again(api: Any, worker: int) -> None:
    job = api.add_job("t", max_attempts=1, job_key="k")
    api.fail(api.claim(worker))
    (still,) = api.reschedule_jobs([job.id], run_at=api.at("1 hour"))
    assert (still.state, still.attempts) == ("discarded", 1)
    (again,) = api.reschedule_jobs([job.id], api.at("1 hour"), attempts=0)
    assert (again.state, again.last_error, again.reason, again.finished_at) == (
        "scheduled",
        "boom",
        None,
        None,
    )
    (now,) = api.reschedule_jobs([job.id], api.at("-1 hour"), max_attempts=2)
    assert now.state == "available"
    assert api.claim(worker).id == job.id


@pytest.mark.parametrize("given", [{"attempts": 25}, {"attempts": 32767}, {"max_attempts": 1}])
def test_a_job_rescheduled_with_no_attempts_left_never_runs(
    api: Any, job_in: Any, worker: int, clock: Any, given: dict[str, int]
) -> None:
    """In Graphile Worker such a job is not available; here it is discarded, for people to see."""
    job = job_in("due", queue_name="q", job_key="k")
    (done,) = api.reschedule_jobs([job.id], **given)
    assert (done.state, done.key, done.last_error) == ("discarded", "k", "boom")
    assert done.finished_at
    clock.advance(days=1)
    assert api.claim_jobs(worker, 5) == []
    clock.advance(days=7)
    api.maintain()
    assert api.get_job(job.id).id is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"run_at": "infinity"}, ("run_at", "infinity")),
        ({"priority": 32768}, ("priority", "32768")),
        ({"attempts": -1}, ("attempts", "-1")),
        ({"attempts": 32768}, ("attempts", "32768")),
        ({"max_attempts": 0}, ("max_attempts", "0")),
        ({"max_attempts": 32768}, ("max_attempts", "32768")),
    ],
)
def test_reschedule_jobs_refuses_what_add_job_would_refuse(
    api: Any, job_in: Any, given: dict[str, Any], words: tuple[str, ...]
) -> None:
    job = job_in("available")
    with api.refusal("PW001", "^reschedule_jobs: ", *words):
        api.reschedule_jobs([job.id], **given)
    assert api.get_job(job.id) == job


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"completed_retention": "-1 s"}, ("retention", "-00:00:01")),
        ({"cancelled_retention": "-1 s"}, ("retention", "-00:00:01")),
        ({"discarded_retention": "-1 s"}, ("retention", "-00:00:01")),
        ({"max_payload_bytes": 1023}, ("max_payload_bytes", "1023")),
        ({"worker_ttl": "11 s"}, ("worker_ttl", "00:00:11")),
    ],
)
def test_senseless_settings_are_refused(api: Any, given: dict[str, Any], words: tuple[str, ...]) -> None:
    with api.refusal("PW001", "^configure: ", *words):
        api.configure(**given)


def test_what_is_not_configured_stays_as_it_is(api: Any) -> None:
    before = api.rows("select * from pyworker.settings")
    api.configure()
    assert api.rows("select * from pyworker.settings") == before
    api.configure(completed_retention="1 hour")
    (after,) = api.rows("select * from pyworker.settings")
    assert after == before[0]._replace(completed_retention=timedelta(hours=1))
