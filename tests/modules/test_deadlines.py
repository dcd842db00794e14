"""expires_at: a job that never starts late. max_wait: a debounce that ends."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg.types.json import Jsonb

from tests.support.api import ids
from tests.support.waits import again, claimed, claims

# How a job waits when its time is over.
WAITS: dict[str, dict[str, Any]] = {
    "available": {},
    "scheduled": {"run_at": "2 hours"},
    "in a full queue": {"queue_name": "q"},
    "in a sequence": {"sequence_policy": Jsonb({"key": "s"})},
    "for another job": {"depends_on": Jsonb([1])},
    "with a key": {"job_key": "k"},
    "with a unique key": {"unique_policy": Jsonb({"by_args": True})},
}


def waiting(api: Any, worker: int, how: str) -> int:
    """Job 2, which expires in an hour, behind job 1, which is running."""
    more = dict(WAITS[how])
    first = {name: value for name, value in more.items() if name in ("queue_name", "sequence_policy")}
    claimed(api, worker, **first)
    if "run_at" in more:
        more["run_at"] = api.at(more["run_at"])
    return api.add_job("late", expires_at=api.at("1 hour"), **more).id


@pytest.mark.parametrize("how", WAITS)
def test_a_job_that_has_not_begun_in_time_is_cancelled(api: Any, worker: int, clock: Any, how: str) -> None:
    job = waiting(api, worker, how)
    clock.advance(minutes=59)
    api.promote_jobs()
    assert api.get_job(job).state not in ("cancelled", "running")
    clock.advance(minutes=2)
    api.promote_jobs()
    row = api.get_job(job)
    assert (row.state, row.reason, row.attempts) == ("cancelled", "expired", 0)
    assert row.last_error == "it had not begun by its expires_at"
    assert api.add_job("late", **{k: v for k, v in WAITS[how].items() if "key" in k or "uni" in k}).id != job


def test_no_claim_hands_out_an_expired_job_though_nothing_has_cancelled_it(
    api: Any, worker: int, clock: Any
) -> None:
    job = api.add_job("t", expires_at=api.at("1 hour"))
    other = api.add_job("t")
    clock.advance(minutes=61)
    # Only claims, by a worker for which there is nothing to promote.
    assert claims(api, worker) == [other.id]
    assert claims(api, worker) == []
    assert api.get_job(job.id).state in ("available", "cancelled")


def test_one_beat_a_second_cancels_what_has_expired(api: Any, worker: int, clock: Any) -> None:
    job = api.add_job("t", expires_at=api.at("1 hour"), run_at=api.at("1 day"))
    clock.advance(minutes=61)
    new = api.register_worker()
    api.rows("select setval('pyworker.swept_at', 0)")
    api.rows("select * from pyworker.beat(%s)", [new])
    assert api.get_job(job.id).state == "cancelled"


@pytest.mark.parametrize("how", ["retry", "snooze", "release"])
def test_a_job_that_has_begun_does_not_expire(api: Any, worker: int, clock: Any, how: str) -> None:
    job = claimed(api, worker, expires_at=api.at("1 hour"))
    if how == "retry":
        api.fail(job, delay="2 hours")
    elif how == "snooze":
        api.snooze_job(job.id, job.run, "2 hours")
    else:
        api.release_jobs([job.id], [job.run])
    clock.advance(hours=3)
    again(api, api.register_worker(), job)


def test_a_claim_that_is_rolled_back_has_not_begun_the_job(
    api: Any, actor: Any, worker: int, clock: Any
) -> None:
    job = api.add_job("t", expires_at=api.at("1 hour"))
    a = actor()
    a.begin()
    assert ids(a.claim_jobs(worker, 1)) == [job.id]
    a.rollback()
    clock.advance(hours=2)
    api.promote_jobs()
    assert api.get_job(job.id).state == "cancelled"


def test_an_expired_job_that_a_session_has_locked_is_cancelled_afterwards(
    api: Any, actor: Any, clock: Any
) -> None:
    job = api.add_job("t", expires_at=api.at("1 hour"))
    a = actor()
    clock.advance(hours=2)
    a.begin()
    a.rows("select from pyworker.live_jobs for update")
    api.promote_jobs()
    a.rollback()
    api.promote_jobs()
    assert api.get_job(job.id).state == "cancelled"


def test_retry_job_clears_the_expiry(api: Any, worker: int, clock: Any) -> None:
    job = api.add_job("t", expires_at=api.at("1 hour"))
    clock.advance(hours=2)
    api.promote_jobs()
    assert api.retry_job(job.id).state == "available"
    pending = api.add_job("t", expires_at=api.at("1 hour"), sequence_policy=Jsonb({"key": "s"}))
    api.retry_job(pending.id)
    clock.advance(hours=2)
    assert claims(api, api.register_worker()) == [job.id, pending.id]


@pytest.mark.parametrize(
    "how", ["available", "scheduled", "in a full queue", "in a sequence", "for another job"]
)
def test_retry_job_clears_the_expiry_however_the_job_waits(
    api: Any, worker: int, clock: Any, how: str
) -> None:
    job = waiting(api, worker, how)
    api.retry_job(job)
    clock.advance(minutes=61)
    api.promote_jobs()
    assert api.get_job(job).state in ("available", "pending")


def test_reschedule_jobs_keeps_the_expiry(api: Any, clock: Any) -> None:
    job = api.add_job("t", expires_at=api.at("1 hour"))
    api.reschedule_jobs([job.id], api.at("30 minutes"))
    clock.advance(hours=2)
    api.promote_jobs()
    assert api.get_job(job.id).state == "cancelled"
    other = api.add_job("t", expires_at=api.at("1 hour"))
    api.reschedule_jobs([other.id], attempts=25)
    clock.advance(hours=2)
    api.promote_jobs()
    assert api.get_job(other.id).state == "discarded"


@pytest.mark.parametrize("anew", ["2 hours", None])
def test_a_keyed_replace_sets_the_expiry_again(api: Any, clock: Any, anew: str | None) -> None:
    job = api.add_job("t", job_key="k", expires_at=api.at("1 hour"))
    named = {} if anew is None else {"expires_at": api.at(anew)}
    assert api.add_job("t", job_key="k", **named).id == job.id
    clock.advance(minutes=90)
    api.promote_jobs()
    assert api.get_job(job.id).state == "available"
    clock.advance(minutes=90)
    api.promote_jobs()
    assert api.get_job(job.id).state == ("available" if anew is None else "cancelled")


def test_an_expired_job_is_cancelled_for_its_sequence_and_its_children(
    api: Any, worker: int, clock: Any
) -> None:
    policy = Jsonb({"key": "s", "continue_on_cancelled": True})
    first = claimed(api, worker, sequence_policy=policy)
    second = api.add_job("t", sequence_policy=policy, expires_at=api.at("1 hour"))
    third = api.add_job("t", sequence_policy=policy)
    child = api.add_job("t", depends_on=Jsonb([{"id": second.id, "on": "failure"}]))
    clock.advance(minutes=61)
    worker = api.register_worker()
    api.promote_jobs()
    api.finish(first.id)
    assert sorted(claims(api, worker)) == [third.id, child.id]


def test_bulk_adds_have_deadlines_too(api: Any, clock: Any) -> None:
    jobs = api.add_jobs([
        {"identifier": "a", "expires_at": api.at("1 hour").isoformat()},
        {"identifier": "b", "job_key": "k", "max_wait": "1 hour", "run_at": api.at("2 hours").isoformat()},
        {"identifier": "c"},
    ])  # fmt: skip
    assert [job.task_identifier for job in jobs] == ["a", "b", "c"]
    clock.advance(minutes=61)
    api.promote_jobs()
    assert [api.get_job(job.id).state for job in jobs] == ["cancelled", "available", "available"]


def test_explain_job_says_when_a_job_expires(api: Any) -> None:
    job = api.add_job("t", expires_at=api.at("1 hour"))
    rows = api.rows("select * from pyworker.explain_job(%s)", [job.id])
    assert rows[-1].reason == "expiry"
    assert rows[-1].detail.startswith("it is cancelled unless it has begun by 20")


@pytest.mark.parametrize(
    ("named", "message"),
    [
        (
            {"expires_at": "2020-01-01"},
            "expires_at must be a time ahead, up to the year 9999, got 2020-01-01",
        ),
        ({"expires_at": "infinity"}, "expires_at must be a time ahead, up to the year 9999, got infinity"),
        ({"expires_at": "-infinity"}, "expires_at must be a time ahead, up to the year 9999, got -infinity"),
        ({"max_wait": "1 hour"}, "max_wait needs a job_key, got 01:00:00 without one"),
        ({"max_wait": "-1 second", "job_key": "k"}, "max_wait must be from 0 to 1000 years, got -00:00:01"),
        ({"max_wait": "1001 years", "job_key": "k"}, "max_wait must be from 0 to 1000 years, got 1001 years"),
    ],
)
def test_deadlines_that_mean_nothing_are_refused(api: Any, named: dict[str, Any], message: str) -> None:
    with api.refusal("PW001", "add_job: " + message):
        api.add_job("t", **named)
    with api.refusal("PW001", r"add_jobs: specs\[2\]: " + message):
        api.add_jobs([{"identifier": "t"}, {"identifier": "t", **named}])
    assert api.rows("select from pyworker.jobs") == []


# max_wait


def add(api: Any, run_in: str, **more: Any) -> Any:
    return api.add_job("t", job_key="k", run_at=api.at(run_in), **more)


def due(api: Any) -> float:
    """In minutes from the first moment of the test."""
    return api.value("select extract(epoch from run_at - created_at) / 60 from pyworker.jobs")


def test_a_job_that_is_put_off_again_and_again_runs_in_time(api: Any, clock: Any) -> None:
    job = add(api, "10 minutes", max_wait="30 minutes")
    for _ in range(4):
        clock.advance(minutes=9)
        assert add(api, "10 minutes", max_wait="30 minutes").id == job.id
    assert 29.9 < due(api) <= 30


def test_max_wait_bounds_the_first_add_too(api: Any) -> None:
    add(api, "1 hour", max_wait="30 minutes")
    assert 29.9 < due(api) <= 30.1


@pytest.mark.parametrize("waits", [("30 minutes", "1 hour"), ("1 hour", "30 minutes"), ("30 minutes", None)])
def test_the_earliest_deadline_that_any_add_gave_counts(api: Any, waits: Any) -> None:
    for wait in waits:
        add(api, "5 minutes", **({"max_wait": wait} if wait else {}))
    add(api, "3 hours")
    assert 29.9 < due(api) <= 30.1


def test_max_wait_of_a_later_add_counts_from_the_first(api: Any, clock: Any) -> None:
    add(api, "10 minutes")
    clock.advance(minutes=5)
    add(api, "1 hour", max_wait="30 minutes")
    assert 29.9 < due(api) <= 30.1


def test_preserve_run_at_keeps_the_bounded_time(api: Any) -> None:
    add(api, "1 hour", max_wait="30 minutes")
    add(api, "2 hours", job_key_mode="preserve_run_at")
    assert 29.9 < due(api) <= 30.1


@pytest.mark.parametrize("how", ["failed", "snoozed", "discarded"])
def test_a_job_that_has_run_since_has_a_window_of_its_own(
    api: Any, worker: int, clock: Any, how: str
) -> None:
    claimed(api, worker, job_key="k", max_wait="30 minutes")
    (job,) = api.rows("select (pyworker.get_job(id)).* from pyworker.jobs")
    if how == "failed":
        api.fail(job, delay="1 hour")
    elif how == "snoozed":
        api.snooze_job(job.id, job.run, "1 hour")
    else:
        api.fail(job, discard=True)
    clock.advance(minutes=40)
    assert add(api, "50 minutes", max_wait="30 minutes").id == job.id
    assert 69.9 < due(api) <= 70.1  # 40 + 30
    clock.advance(minutes=20)
    add(api, "50 minutes", max_wait="30 minutes")
    assert 69.9 < due(api) <= 70.1


@pytest.mark.parametrize("how", ["failed", "discarded"])
def test_max_wait_counts_from_the_first_add_since_the_last_run(
    api: Any, worker: int, clock: Any, how: str
) -> None:
    job = claimed(api, worker, job_key="k")
    if how == "failed":
        api.fail(job, delay="1 hour")
    else:
        api.fail(job, discard=True)
    clock.advance(minutes=10)
    add(api, "50 minutes")
    clock.advance(minutes=10)
    add(api, "1 hour", max_wait="30 minutes")
    assert 39.9 < due(api) <= 40.1  # 10 + 30


@pytest.mark.parametrize("ran", [False, True])
def test_a_job_that_is_cancelled_and_retried_is_put_off_no_longer_than_before(
    api: Any, worker: int, clock: Any, ran: bool
) -> None:
    """The retry makes it due at once; what adds may do to it afterwards counts from the first, as before."""
    if ran:
        job = claimed(api, worker, job_key="k")
        api.fail(job, delay="1 hour")
    add(api, "1 hour", max_wait="30 minutes")
    [row] = api.rows("select id from pyworker.jobs")
    api.cancel_job(row.id)
    clock.advance(minutes=10)
    assert api.retry_job(row.id).state == "available"
    assert 9.9 < due(api) <= 10.1
    add(api, "1 hour")
    assert 29.9 < due(api) <= 30.1
    add(api, "1 hour", max_wait="20 minutes")
    assert 19.9 < due(api) <= 20.1


def test_a_job_that_is_added_while_its_namesake_runs_has_a_window_of_its_own(
    api: Any, worker: int, clock: Any
) -> None:
    first = claimed(api, worker, job_key="k", max_wait="30 minutes")
    clock.advance(minutes=40)
    second = add(api, "1 hour", max_wait="30 minutes")
    assert second.id != first.id
    assert 29.9 < (second.run_at - second.created_at).total_seconds() / 60 <= 30.1


def test_two_adds_at_once_keep_the_earlier_deadline(api: Any, actor: Any) -> None:
    add(api, "5 minutes")
    a, b = actor(), actor()
    a.begin()
    add(a, "1 hour", max_wait="30 minutes")
    later = b.later.add_job("t", job_key="k", run_at=api.at("3 hours"))
    b.blocked(later)
    a.commit()
    later.result(30)
    assert 29.9 < due(api) <= 30.1
