"""A start meets what takes the job away, in both orders: one session has not committed, the other waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.support.api import value_of
from tests.support.delivery import add as add
from tests.support.delivery import lose, reason
from tests.support.delivery import reserved as reserved
from tests.support.delivery import started as started
from tests.support.sessions import SNAPSHOT_LEVELS
from tests.support.sweeps import patient as patient

# Races --------------------------------------------------------------------------------------------
TAKERS: dict[str, tuple[Callable[[Any, Any, int], Any], str, str]] = {
    # the call; what becomes of a job that was only reserved; … of one that was started
    "cancel_job": (lambda a, job, worker: a.cancel_job(job.id), "running", "running"),
    "cancel_job, force": (lambda a, job, worker: a.cancel_job(job.id, force=True), "cancelled", "cancelled"),
    "force_unlock_workers": (
        lambda a, job, worker: a.force_unlock_workers([str(worker)]),
        "available",
        "discarded",
    ),
    "unregister_worker": (lambda a, job, worker: a.unregister_worker(worker), "available", "discarded"),
    "reconcile": (lambda a, job, worker: a.reconcile(worker, [], []), "available", "discarded"),
    "report_crash": (
        lambda a, job, worker: a.report_crash(worker, [job.id], [job.run]),
        "available",
        "discarded",
    ),
    "release_jobs": (lambda a, job, worker: a.release_jobs([job.id], [job.run]), "available", "discarded"),
    "add_job": (
        lambda a, job, worker: a.add_job("t", job_key="k", run_at="2100-01-01"),
        "running",
        "running",
    ),
    "remove_job": (lambda a, job, worker: a.remove_job("k"), "running", "running"),
    "finish_jobs": (lambda a, job, worker: a.finish_jobs([job.id], [job.run]), "completed", "completed"),
    "fail_jobs": (
        lambda a, job, worker: a.fail_jobs([{"id": job.id, "run": job.run, "error": "boom"}]),
        "retryable",
        "discarded",
    ),
}


@pytest.mark.parametrize("outcome", ["commit", "rollback", "kill"])
@pytest.mark.parametrize("taker", TAKERS)
def test_a_start_waits_for_a_session_that_is_taking_the_job(
    api: Any, actor: Any, reserved: Any, worker: int, taker: str, outcome: str
) -> None:
    job = reserved(job_key="k")
    call, state, _ = TAKERS[taker]
    a, w = actor(), actor()
    a.begin()
    call(a, job, worker)
    start = w.later.start_job(job.id, job.run)
    w.blocked(start)
    getattr(a, outcome)()
    assert value_of(start) is (outcome != "commit")
    assert reason(api, job)[0] == (state if outcome == "commit" else "running")
    if outcome != "commit":
        lose(api, job, worker)


@pytest.mark.parametrize("outcome", ["commit", "rollback", "kill"])
@pytest.mark.parametrize("taker", TAKERS)
def test_a_session_that_takes_the_job_waits_for_its_start(
    api: Any, actor: Any, reserved: Any, worker: int, patient: None, taker: str, outcome: str
) -> None:
    job = reserved(job_key="k")
    call, unstarted, started = TAKERS[taker]
    a, w = actor(), actor()
    w.begin()
    assert w.start_job(job.id, job.run) is True
    taking = call(a.later, job, worker)
    a.blocked(taking)
    getattr(w, outcome)()
    taking.result(20)
    assert reason(api, job)[0] == (started if outcome == "commit" else unstarted)
    # In each case: not a second true for this run.
    assert api.start_job(job.id, job.run) is False
    if started == "discarded" and outcome == "commit" and taker != "fail_jobs":
        assert reason(api, job)[1] == "lost"


@pytest.mark.parametrize("outcome", ["commit", "rollback", "kill"])
def test_a_start_waits_for_the_sweep_that_has_the_job(
    api: Any, actor: Any, reserved: Any, worker: int, clock: Any, outcome: str
) -> None:
    job = reserved()
    clock.advance(seconds=21)
    a, w = actor(), actor()
    a.begin()
    assert a.sweep_workers() == 1
    start = w.later.start_job(job.id, job.run)
    w.blocked(start)
    getattr(a, outcome)()
    assert value_of(start) is (outcome != "commit")
    assert reason(api, job)[0] == ("available" if outcome == "commit" else "running")
    assert api.sweep_workers() == (outcome != "commit")
    assert reason(api, job) == (("available", None) if outcome == "commit" else ("discarded", "lost"))


@pytest.mark.parametrize("outcome", ["commit", "rollback", "kill"])
def test_a_sweep_skips_a_start_under_way_and_looks_again(
    api: Any, actor: Any, reserved: Any, clock: Any, outcome: str
) -> None:
    job = reserved()
    clock.advance(seconds=21)
    w = actor()
    w.begin()
    assert w.start_job(job.id, job.run) is True
    assert api.sweep_workers() == 0
    getattr(w, outcome)()
    assert api.sweep_workers() == 1
    assert reason(api, job) == (("discarded", "lost") if outcome == "commit" else ("available", None))


@pytest.mark.parametrize("level", SNAPSHOT_LEVELS)
def test_in_an_old_snapshot_a_start_fails_rather_than_be_told_true(
    api: Any, actor: Any, reserved: Any, worker: int, level: str
) -> None:
    job = reserved()
    a = actor()
    a.begin(level)
    api.force_unlock_workers([str(worker)])
    with pytest.raises(psycopg.errors.SerializationFailure):
        a.start_job(job.id, job.run)
    a.rollback()
    api.claim(worker)


def test_two_starts_of_one_run_give_one_true(api: Any, actor: Any, reserved: Any) -> None:
    for outcome in ("commit", "rollback"):
        job = reserved()
        a, b = actor(), actor()
        a.begin()
        assert a.start_job(job.id, job.run) is True
        second = b.later.start_job(job.id, job.run)
        b.blocked(second)
        getattr(a, outcome)()
        assert value_of(second) is (outcome == "rollback")


def test_a_job_that_was_taken_and_claimed_again_is_started_by_its_new_run_alone(
    api: Any, actor: Any, reserved: Any, worker: int
) -> None:
    """The same worker, the same row, one instant later."""
    job = reserved()
    a, w = actor(), actor()
    a.begin()
    a.force_unlock_workers([str(worker)])
    again = a.claim(worker)
    assert a.start_job(again.id, again.run) is True
    start = w.later.start_job(job.id, job.run)
    w.blocked(start)
    a.commit()
    assert value_of(start) is False
    assert api.start_job(again.id, again.run) is False


@pytest.mark.parametrize("delivery", ["at_most_once", "at_least_once"])
@pytest.mark.parametrize("verb", ["finish_jobs", "finish_job"])
@pytest.mark.parametrize("outcome", ["commit", "rollback", "kill"])
def test_a_completion_meets_a_sweep(
    api: Any, actor: Any, started: Any, clock: Any, delivery: str, verb: str, outcome: str
) -> None:
    one, two = (started(delivery=delivery) for _ in range(2))
    clock.advance(seconds=21)

    def finish(who: Any, job: Any) -> Any:
        return (
            who.finish_job(job.id, job.run) if verb == "finish_job" else who.finish_jobs([job.id], [job.run])
        )

    # The completion first: the sweep passes by.
    w, a = actor(), actor()
    w.begin()
    finish(w, one)
    a.begin()
    assert a.sweep_workers() == 1
    # The sweep first: the completion waits, and is refused.
    v = actor()
    late = finish(v.later, two)
    v.blocked(late)
    w.commit()
    getattr(a, outcome)()
    assert reason(api, one) == ("completed", None)
    lost = ("discarded", "lost") if delivery == "at_most_once" else ("available", None)
    if outcome != "commit":
        late.result(20)
        assert reason(api, two) == ("completed", None)
    elif verb == "finish_job":
        with pytest.raises(psycopg.Error, match="not held") as caught:
            late.result(20)
        assert caught.value.sqlstate == "PW002"
        assert reason(api, two) == lost
    else:
        assert value_of(late) == []
        assert reason(api, two) == lost
