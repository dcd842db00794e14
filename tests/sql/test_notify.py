"""NOTIFY: only when a worker waits, at commit, and then for everything that gives it something to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest


@pytest.fixture
def heard(api: Any, actor: Any) -> Callable[[], list[str]]:
    """heard() gives what was notified since the last call: all that was committed before this one's own word."""
    ear = actor()
    ear.rows("listen pyworker")

    def heard() -> list[str]:
        api.rows("select pg_notify('pyworker', 'end of hearing')")
        words = []
        for notification in ear.conn.notifies(timeout=10):
            if notification.payload == "end of hearing":
                return words
            words.append(notification.payload)
        raise AssertionError("not even our own word came")

    heard()
    return heard


def wait(api: Any, worker: int) -> None:
    """A claim that comes back short: this worker will wait for a notification."""
    assert len(api.claim_jobs(worker, 1000)) < 1000


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
def test_nobody_is_notified_while_nobody_waits(api: Any, heard: Any, event: str) -> None:
    EVENTS[event](api, None)
    assert heard() == []


@pytest.mark.parametrize("event", EVENTS)
def test_an_add_wakes_a_worker_that_waits(api: Any, worker: int, heard: Any, event: str) -> None:
    wait(api, worker)
    EVENTS[event](api, None)
    assert heard() == [""]


@pytest.mark.parametrize("event", ON_A_JOB)
def test_whatever_gives_a_waiting_worker_something_to_do_wakes_it(
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


def test_a_claim_that_got_all_it_asked_for_asks_for_no_notification(
    api: Any, worker: int, heard: Any
) -> None:
    api.add_job("t")
    assert api.claim(worker)
    api.add_job("t")
    assert heard() == []


def test_an_add_that_has_just_seen_nobody_wait_is_found_by_who_begins_to_wait(
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
    wait(api, worker)
    a = actor()
    for end in (a.rollback, a.commit):
        a.begin()
        for _ in range(3):
            a.add_job("t")
        a.add_jobs([{"identifier": "t", "job_key": "k"}] * 3)
        assert heard() == []
        end()
        assert heard() == ([""] if end == a.commit else [])


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
def test_an_old_snapshot_does_not_hide_that_somebody_waits(
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
        "select setval('pyworker.listening_until', (extract(epoch from clock_timestamp()) * 1000)::bigint - 1)"
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


def look(api: Any) -> float:
    """Seconds after which a worker that waits looks again, notified or not."""
    # Rows of other tests may have made a walk dear: not what is asked for here.
    api.rows(
        "select set_config('pyworker.walk_' || name, '', false) from unnest('{claim,due,requests}'::text[]) name"
    )
    due = api.seconds_until_due()
    return 2.0 if due is None else due


def test_each_transaction_that_adds_while_a_worker_waits_notifies_whatever_others_do(
    api: Any, actor: Any, worker: int, heard: Any
) -> None:
    """Those that stay open hold back no other's notification; nor does one that is rolled back."""
    wait(api, worker)
    others = [actor() for _ in range(6)]
    for other in others:
        other.begin()
        other.add_job("t")
    for _ in range(2):
        api.add_job("t")
        assert heard() == [""]
    for other in others[:3]:
        other.rollback()
    api.add_job("t")
    assert heard() == [""]
    for other in others[3:]:
        other.commit()
        assert heard() == [""]


@pytest.mark.parametrize("outcome", ["commit", "rollback", "kill"])
def test_while_a_transaction_is_open_that_saw_no_worker_wait_a_worker_looks_again_soon(
    api: Any, actor: Any, worker: int, outcome: str
) -> None:
    a = actor()
    a.begin()
    job = a.add_job("t")
    wait(api, worker)  # begins to wait now
    assert 0 < look(api) <= 0.25
    api.rows("select pg_sleep(0.3)")  # however long it is open
    assert 0.2 < look(api) <= 0.25
    getattr(a, outcome)()
    assert look(api) == 2
    assert [found.id for found in api.claim_jobs(worker)] == ([job.id] if outcome == "commit" else [])


def test_a_transaction_that_began_later_or_in_another_database_keeps_no_worker_awake(
    api: Any, actor: Any, worker: int, dsn: str
) -> None:
    with psycopg.connect(dsn, dbname="postgres") as elsewhere:
        elsewhere.execute("select pg_current_xact_id()")
        wait(api, worker)
        a = actor()
        a.begin()
        a.add_job("t")  # notifies with its commit
        assert look(api) == 2


def many(api: Any, worker: int) -> None:
    """One look that finds many jobs."""
    api.add_jobs([{"identifier": "t"}] * 20)
    assert len(api.claim_jobs(worker, 1000)) == 20


def test_where_many_jobs_come_in_each_worker_that_waits_looks_every_10_ms_and_adds_are_silent(
    api: Any, worker: int, heard: Any
) -> None:
    wait(api, worker)
    many(api, worker)
    assert heard() == ["", ""]  # the add, and the claim: now other workers look, too
    assert look(api) == 0.01
    api.add_job("t")
    assert heard() == []
    other = api.register_worker()
    assert api.claim_jobs(other, 10, ["another task"]) == []
    assert look(api) == 0.01
    api.rows("select pg_sleep(0.12)")
    wait(api, worker)  # it finds that one: no longer many
    assert look(api) == 2
    api.add_job("t")
    assert heard() == [""]


def test_an_add_that_was_silent_and_is_long_in_committing_is_looked_for(
    api: Any, actor: Any, worker: int
) -> None:
    wait(api, worker)
    many(api, worker)
    a = actor()
    a.begin()
    job = a.add_job("t")
    api.rows("select pg_sleep(0.12)")
    wait(api, worker)
    assert 0.01 < look(api) <= 0.25
    a.commit()
    assert [found.id for found in api.claim_jobs(worker)] == [job.id]


@pytest.fixture
def full(api: Any, actor: Any) -> Callable[[], None]:
    """A worker's session whose claims come back full."""
    a, busy = actor(), api.register_worker()

    def full() -> None:
        a.rows("select pg_sleep(0.002)")  # times are in ms
        a.rows("set pyworker.notify = off")
        a.add_job("t")
        a.rows("reset pyworker.notify")
        assert len(a.claim_jobs(busy, 1)) == 1

    return full


def test_a_claim_that_comes_back_full_leaves_what_comes_to_the_others(
    api: Any, worker: int, heard: Any, full: Callable[[], None]
) -> None:
    wait(api, worker)
    api.rows("set pyworker.notify = off")
    api.add_jobs([{"identifier": "t"}] * 4)
    api.rows("reset pyworker.notify")
    assert heard() == []
    full()
    assert heard() == [""]


def test_a_session_that_does_not_notify_disarms_no_worker(
    api: Any, actor: Any, worker: int, heard: Any
) -> None:
    wait(api, worker)
    a = actor()
    a.rows("set pyworker.notify = off")
    for _ in range(3):
        a.add_job("t")
        api.rows("select pg_sleep(0.002)")
        assert len(a.claim_jobs(worker, 1)) == 1
    api.add_job("t")
    assert heard() == [""]


def test_an_add_that_is_younger_than_the_transaction_of_the_claim_that_begins_to_wait_is_looked_for(
    api: Any, actor: Any, worker: int
) -> None:
    """A worker reports and claims in one transaction."""
    turn, a = actor(), actor()
    turn.begin()
    turn.rows("select pg_current_xact_id()")
    a.begin()
    job = a.add_job("t")  # no worker waits yet
    assert turn.claim_jobs(worker, 10) == []
    turn.commit()
    assert look(api) <= 0.25
    a.commit()
    assert [found.id for found in api.claim_jobs(worker)] == [job.id]


def test_a_clock_that_was_set_back_keeps_no_claim_in_a_loop(api: Any, worker: int, heard: Any) -> None:
    api.rows(
        "select setval('pyworker.not_listening_until', (extract(epoch from clock_timestamp()) * 1000)::bigint + 600000)"
    )
    wait(api, worker)
    api.add_job("t")
    assert heard() == [""]


def test_adds_are_silent_once_every_worker_that_waited_was_notified(
    api: Any, worker: int, heard: Any, full: Callable[[], None]
) -> None:
    wait(api, worker)
    full()
    assert heard() == [""]
    api.add_job("t")
    assert heard() == [""]  # that notification may have been rolled back
    full()
    api.add_job("t")
    assert heard() == []
    wait(api, worker)
    api.add_job("t")
    assert heard() == [""]


def test_a_worker_that_waits_again_after_the_notification_is_notified(
    api: Any, worker: int, heard: Any, full: Callable[[], None]
) -> None:
    wait(api, worker)
    full()
    api.rows("select pg_sleep(0.002)")
    wait(api, worker)
    heard()
    full()
    full()
    api.add_job("t")
    assert heard() == [""]


def test_an_add_that_was_silent_as_nobody_waited_is_found_by_the_worker_that_begins_to_wait(
    api: Any, actor: Any, worker: int, heard: Any, full: Callable[[], None]
) -> None:
    wait(api, worker)
    full()
    full()
    heard()
    a = actor()
    a.begin()
    job = a.add_job("t")
    wait(api, worker)
    assert look(api) <= 0.25
    a.commit()
    assert heard() == []
    assert [found.id for found in api.claim_jobs(worker)] == [job.id]


def test_a_full_claim_that_is_rolled_back_keeps_no_worker_asleep(
    api: Any, actor: Any, worker: int, heard: Any
) -> None:
    wait(api, worker)
    a = actor()
    api.add_jobs([{"identifier": "t"}] * 3)
    heard()
    for _ in range(3):
        a.begin()
        assert len(a.claim_jobs(worker, 1)) == 1
        api.rows("select pg_sleep(0.002)")
        assert len(a.claim_jobs(worker, 1)) == 1
        a.rollback()
    assert heard() == []
    api.add_job("t")
    assert heard() == [""]


def test_nobody_stays_silent_for_a_worker_that_has_stopped_looking(api: Any, worker: int, heard: Any) -> None:
    wait(api, worker)
    many(api, worker)
    heard()
    api.rows(
        "select setval('pyworker.polling_until', (extract(epoch from clock_timestamp()) * 1000)::bigint - 1)"
    )
    api.add_job("t")
    assert heard() == [""]


def test_a_worker_looks_again_soon_while_another_session_has_locked_a_queue(
    api: Any, actor: Any, worker: int
) -> None:
    api.set_queue("q", 2)
    jobs = [api.add_job("t", queue_name="q") for _ in range(4)]
    one, two = api.claim_jobs(worker, 2)
    wait(api, worker)
    a = actor()
    a.begin()
    a.finish_job(one.id, one.run)
    api.finish_job(two.id, two.run)  # it cannot look for the next one: the lane is taken
    assert api.claim_jobs(worker, 1) == []
    assert look(api) <= 0.25
    api.rows("select pg_sleep(0.3)")
    assert 0.2 < look(api) <= 0.25
    a.commit()
    assert {job.id for job in api.claim_jobs(worker, 2)} == {job.id for job in jobs[2:]}
    assert look(api) == 2


@pytest.mark.parametrize("verb", ["delete_job", "cancel_job", "remove_job"])
@pytest.mark.parametrize("outcome", ["commit", "rollback", "kill"])
def test_a_worker_looks_again_soon_while_another_session_has_locked_the_next_job_of_a_sequence(
    api: Any, actor: Any, worker: int, verb: str, outcome: str
) -> None:
    policy = {"key": "s", "continue_on_cancelled": True}
    ids = [api.add_job("t", sequence_policy=policy, job_key=f"k{n}").id for n in range(3)]
    api.claim(worker)
    wait(api, worker)
    a = actor()
    a.begin()
    a.remove_job("k1") if verb == "remove_job" else getattr(a, verb)(ids[1])
    api.finish(ids[0])
    wait(api, worker)
    assert look(api) <= 0.25
    getattr(a, outcome)()
    assert [job.id for job in api.claim_jobs(worker)] == [ids[2 if outcome == "commit" else 1]]


def test_a_worker_is_told_at_once_when_its_job_is_called_off(api: Any, job_in: Any, heard: Any) -> None:
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
def test_workers_do_not_keep_each_other_awake_while_somebody_has_a_job_in_hand(
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
