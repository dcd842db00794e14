"""NOTIFY: only when a worker waits, at commit, and then for everything that gives it something to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.notify import heard as heard
from tests.support.notify import wait

EVENTS: dict[str, Callable[[Any, Any], Any]] = {
    "add_job": lambda api, job_in: api.add_job("t"),
    "add_job, keyed": lambda api, job_in: api.add_job("t", job_key="k"),
    "add_job, queued": lambda api, job_in: api.add_job("t", queue_name="q"),
    "add_job, later": lambda api, job_in: api.add_job("t", run_at=api.at("1 hour")),
    "add_jobs": lambda api, job_in: api.add_jobs([{"identifier": "t"}, {"identifier": "t", "job_key": "k"}]),
}

ON_A_JOB: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "keyed update": ("scheduled", lambda api, job: api.add_job("t", job_key="k")),
    "retry_job": ("discarded", lambda api, job: api.retry_job(job.id)),
    "retry_job, history": ("completed", lambda api, job: api.retry_job(job.id)),
    "reschedule_jobs": ("scheduled", lambda api, job: api.reschedule_jobs([job.id], api.at())),
    "fail_jobs": ("running", lambda api, job: api.fail(job)),
    "snooze_job": ("running", lambda api, job: api.snooze_job(job.id, job.run, "1 s")),
    "release_jobs": ("running", lambda api, job: api.release_jobs([job.id], [job.run])),
    "unregister": ("running", lambda api, job: api.unregister_worker(int(job.locked_by))),
    "force unlock": ("running", lambda api, job: api.force_unlock_workers([job.locked_by])),
}


@pytest.mark.parametrize("event", EVENTS)
def test_no_worker_is_notified_while_none_waits(api: Any, heard: Any, event: str) -> None:
    EVENTS[event](api, None)
    assert heard() == []


@pytest.mark.parametrize("event", EVENTS)
def test_an_add_wakes_a_worker_that_waits(api: Any, worker: int, heard: Any, event: str) -> None:
    wait(api, worker)
    EVENTS[event](api, None)
    assert heard() == [""]


@pytest.mark.parametrize("event", ON_A_JOB)
def test_each_call_that_gives_a_waiting_worker_something_to_do_wakes_it(
    api: Any, job_in: Any, heard: Any, event: str
) -> None:
    state, verb = ON_A_JOB[event]
    job = job_in(state, job_key="k")
    heard()
    wait(api, api.register_worker())
    verb(api, job)
    assert set(heard()) == {""}


@pytest.mark.parametrize("verb", ["finish_jobs", "fail_jobs", "cancel_job", "delete_job", "remove_job"])
def test_the_next_of_a_queue_wakes_a_worker_that_waits(api: Any, worker: int, heard: Any, verb: str) -> None:
    head = api.add_job("t", queue_name="q", job_key="k")
    api.add_job("t", queue_name="q")
    if verb in ("finish_jobs", "fail_jobs"):
        job = api.claim(worker)
        wait(api, worker)
        api.finish_jobs([job.id], [job.run]) if verb == "finish_jobs" else api.fail(job, discard=True)
    else:
        api.promote_jobs()
        assert api.claim_jobs(worker, 5, task_identifiers=[]) == []
        {"cancel_job": api.cancel_job, "delete_job": api.delete_job}.get(verb, lambda _: api.remove_job("k"))(
            head.id
        )
    assert set(heard()) == {""}


@pytest.mark.parametrize("limits", [(1, 100, "1 hour"), (1,)], ids=["a rate", "an older version"])
def test_an_end_that_leaves_the_next_job_to_a_pass_wakes_a_worker_that_waits(
    api: Any, worker: int, heard: Any, limits: Any
) -> None:
    if len(limits) > 1:
        api.set_queue("q", *limits)
    api.add_jobs([{"identifier": "t", "queue_name": "q"}] * 2)
    [job] = api.claim_jobs(worker, 9)
    if len(limits) == 1:
        api.set_queue("q", *limits)
        api.promote_jobs()
    wait(api, worker)
    heard()
    api.finish_job(job.id, job.run)
    assert heard() == [""]


def test_a_claim_that_got_all_it_asked_for_asks_for_no_notification(
    api: Any, worker: int, heard: Any
) -> None:
    api.add_job("t")
    assert api.claim(worker)
    api.add_job("t")
    assert heard() == []


def test_an_add_that_has_just_seen_no_worker_wait_is_found_by_the_one_that_begins_to_wait(
    api: Any, actor: Any, worker: int
) -> None:
    a, b = actor(), actor()
    a.begin()
    a.rows(
        "alter sequence pyworker.listening_until cache 1"
    )  # the claim comes to wait where it would ask to be notified
    claim = b.later.claim_jobs(worker)
    b.blocked(claim)
    job = a.add_job("t")
    a.commit()
    assert [found.id for found in claim.result(20)] == [job.id]


def test_a_notification_comes_with_the_commit_and_once(api: Any, actor: Any, worker: int, heard: Any) -> None:
    a = actor()
    for end in (a.rollback, a.commit):
        wait(api, worker)
        a.begin()
        for _ in range(3):
            a.add_job("t")
        a.add_jobs([{"identifier": "t", "job_key": "k"}] * 3)
        assert heard() == []
        end()
        assert heard() == ([""] if end == a.commit else [])


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
def test_an_old_snapshot_does_not_hide_that_a_worker_waits(
    api: Any, actor: Any, worker: int, heard: Any, isolation: str
) -> None:
    a = actor()
    a.begin(isolation)
    wait(api, worker)
    a.add_job("t")
    a.commit()
    assert heard() == [""]


def test_a_wait_that_is_long_over_counts_no_more(api: Any, worker: int, heard: Any) -> None:
    wait(api, worker)
    api.rows(
        "select setval('pyworker.listening_until', (extract(epoch "
        "from clock_timestamp()) * 1000)::bigint - 1)"
    )
    api.add_job("t")
    assert heard() == []


def test_notifications_can_be_switched_off_for_a_session(
    api: Any, actor: Any, worker: int, heard: Any
) -> None:
    wait(api, worker)
    a = actor()
    a.rows("set pyworker.notify = off")
    a.add_job("t")
    a.add_jobs([{"identifier": "t", "job_key": "k"}])
    assert heard() == []
    a.rows("reset pyworker.notify")
    a.add_job("t")
    assert heard() == [""]


QUIETLY: dict[str, Callable[[Any, Any], Any]] = {
    "cancel_job": lambda api, job: api.cancel_job(job.id),
    "an add that replaces it": lambda api, job: api.add_job(
        "t", unique_policy={"keys": ["type"], "on_conflict": "replace"}
    ),
    "an end that a caller waits for": lambda api, job: api.finish(job.id),
    "an end that listeners for discarded jobs wait for": lambda api, job: api.fail(job, discard=True),
}


@pytest.mark.parametrize("verb", QUIETLY)
def test_a_transaction_with_notifications_switched_off_can_be_prepared(
    api: Any, actor: Any, job_in: Any, heard: Any, verb: str
) -> None:
    job = job_in("running", unique_policy={"keys": ["type"]})
    api.await_job(job.id)
    api.configure(notify_discarded=True)
    wait(api, api.register_worker())
    a = actor()
    a.rows("set pyworker.notify = off")
    a.begin()
    QUIETLY[verb](a, job)
    a.rows("prepare transaction 'quiet'")
    a.rows("commit prepared 'quiet'")
    assert heard() == []


def test_a_worker_is_told_at_once_when_its_job_is_cancelled(api: Any, job_in: Any, heard: Any) -> None:
    job = job_in("running")
    heard()
    api.cancel_job(job.id)
    assert heard() == ["cancel"]


def sequenced(api: Any, **named: Any) -> Any:
    return api.add_job("t", sequence_policy={"key": "s"}, **named)


def test_a_follow_up_in_a_sequence_is_notified_when_its_turn_comes(api: Any, worker: int, heard: Any) -> None:
    sequenced(api)
    sequenced(api)
    sequenced(api, run_at=api.at("1 hour"))
    wait(api, worker)
    heard()
    for job_id in (1, 2):
        api.finish(job_id)
        assert set(heard()) == {""}
        wait(api, worker)
    api.cancel_job(3)
    heard()
    sequenced(api)
    assert heard() == [""]
    wait(api, worker)
    heard()
    api.resume_sequence("s")
    assert heard() == [""]


@pytest.mark.parametrize("which", ["head", "first waiting", "touched head"])
def test_workers_do_not_keep_each_other_awake_while_a_session_has_locked_a_job(
    api: Any, actor: Any, worker: int, heard: Any, which: str
) -> None:
    head, second = sequenced(api), sequenced(api)
    api.claim(worker)
    a = actor()
    a.begin()
    if which == "first waiting":
        a.cancel_job(second.id)
        api.finish(head.id)
    else:
        a.cancel_job(head.id)
        sequenced(api)
    if which == "touched head":
        a.rollback()
    wait(api, worker)
    heard()
    for _ in range(3):
        wait(api, worker)
        assert heard() == []
