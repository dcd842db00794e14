"""What must not be done twice: delivery at_most_once with its start mark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.support.api import value_of
from tests.support.sessions import SNAPSHOT_LEVELS


@pytest.fixture
def add(api: Any) -> Callable[..., Any]:
    return lambda identifier="t", **named: api.add_job(identifier, **{"delivery": "at_most_once", **named})


@pytest.fixture
def reserved(api: Any, add: Any, worker: int) -> Callable[..., Any]:
    """A claimed job that was not started."""

    def make(by: int = worker, **named: Any) -> Any:
        job = add(**named)
        claimed = api.claim(by)
        assert claimed.id == job.id
        return claimed

    return make


@pytest.fixture
def started(api: Any, reserved: Any) -> Callable[..., Any]:
    def make(*args: Any, **named: Any) -> Any:
        job = reserved(*args, **named)
        assert api.start_job(job.id, job.run) is True
        return job

    return make


def reason(api: Any, job: Any) -> tuple[str, str | None]:
    job = api.get_job(job.id)
    return job.state, job.reason


# Every way in which a job comes back without its worker's word on how it went; whose attempt counts, and whether somebody is blamed.
def lease_ends(api: Any, job: Any, worker: int, clock: Any) -> None:
    clock.advance(seconds=21)
    assert api.sweep_workers() == 1


def lease_ends_maintain(api: Any, job: Any, worker: int, clock: Any) -> None:
    clock.advance(minutes=5)
    assert api.maintain()["rescued"] == 1


def worker_vanishes(api: Any, job: Any, worker: int, clock: Any) -> None:
    api.rows("delete from pyworker.workers")
    assert api.maintain()["rescued"] == 1


BACK: dict[str, tuple[Callable[..., Any], bool]] = {
    "release_jobs": (lambda api, job, worker, clock: api.release_jobs([job.id], [job.run]), False),
    "unregister_worker": (lambda api, job, worker, clock: api.unregister_worker(worker), False),
    "reconcile": (lambda api, job, worker, clock: api.reconcile(worker, [], []), False),
    "sweep_workers": (lease_ends, True),
    "maintain": (lease_ends_maintain, True),
    "unknown worker": (worker_vanishes, True),
    "force_unlock_workers": (lambda api, job, worker, clock: api.force_unlock_workers([str(worker)]), True),
    "report_crash, culprit": (
        lambda api, job, worker, clock: api.report_crash(worker, [job.id], [job.run]),
        True,
    ),
    "report_crash, bystander": (lambda api, job, worker, clock: api.report_crash(worker, [], []), False),
    "report_crash, suspect": (
        lambda api, job, worker, clock: api.report_crash(worker, [job.id, 4711], [job.run, 1]),
        False,
    ),
}


# A claim only reserves -----------------------------------------------------------------------------------------------


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


# start_job is true once ----------------------------------------------------------------------------------------------


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


CALLED_OFF: dict[str, Callable[[Any], Any]] = {
    "cancel_job": lambda api: api.cancel_job(1),
    "cancel_job, force": lambda api: api.cancel_job(1, force=True),
    "add_job": lambda api: api.add_job("t", job_key="k", priority=5),
    "add_jobs": lambda api: api.add_jobs([{"identifier": "t", "job_key": "k", "priority": 5}]),
    "remove_job": lambda api: api.remove_job("k"),
}


@pytest.mark.parametrize("how", CALLED_OFF)
def test_start_job_is_false_once_the_job_was_called_off(api: Any, reserved: Any, how: str) -> None:
    job = reserved(job_key="k")
    CALLED_OFF[how](api)
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
    """Even if the sweep could not take the job, as somebody has it in hand."""
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


# After the start -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attempts", [1, 25])
@pytest.mark.parametrize("way", BACK)
def test_what_was_started_and_has_lost_its_worker_ends_lost(
    api: Any, started: Any, worker: int, clock: Any, way: str, attempts: int
) -> None:
    job = started(job_key="k", max_attempts=attempts)
    BACK[way][0](api, job, worker, clock)
    lost = api.get_job(job.id)
    assert (lost.state, lost.reason, lost.key, lost.run, lost.finished_at is not None) == (
        "discarded", "lost", "k", job.run, True,
    )  # fmt: skip
    assert lost.last_error
    assert [error.run for error in api.job_errors(job.id)] == [job.run]
    # And that is the last of it.
    other = api.register_worker()
    for _ in range(2):
        assert api.claim_jobs(other, 10) == []
        assert api.start_job(job.id, job.run) is False
        assert api.start_job(job.id, job.run + 1) is False
        clock.advance(hours=1)
        api.maintain()
        other = api.register_worker()
    assert api.finish_jobs([job.id], [job.run]) == api.fail(job, not_started=True) == []
    assert api.get_job(job.id) == lost


@pytest.mark.parametrize("way", BACK)
@pytest.mark.parametrize(
    ("how", "end"), [("add_job", "superseded"), ("remove_job", "removed"), ("cancel_job", "cancelled")]
)
def test_what_was_started_and_then_called_off_ends_cancelled(
    api: Any, started: Any, worker: int, clock: Any, way: str, how: str, end: str
) -> None:
    job = started(job_key="k")
    CALLED_OFF[how](api)
    BACK[way][0](api, job, worker, clock)
    assert reason(api, job) == ("cancelled", end)


@pytest.mark.parametrize(
    ("how", "end"), [("add_job", "superseded"), ("remove_job", "removed"), ("cancel_job", "cancelled")]
)
@pytest.mark.parametrize("word", ["snooze", "fail", "not_started", "finish"])
def test_the_last_word_on_what_was_started_and_then_called_off(
    api: Any, started: Any, how: str, end: str, word: str
) -> None:
    job = started(job_key="k")
    CALLED_OFF[how](api)
    if word == "snooze":
        api.snooze_job(job.id, job.run, "1 s")
    elif word == "finish":
        api.finish_job(job.id, job.run)
    else:
        assert api.fail(job, not_started=word == "not_started") == [job.id]
    assert reason(api, job) == (("completed", None) if word == "finish" else ("cancelled", end))


def test_the_force_that_cancels_a_started_job_is_its_end(api: Any, started: Any) -> None:
    job = started()
    assert api.cancel_job(job.id, force=True).state == "cancelled"
    assert api.finish_jobs([job.id], [job.run]) == []
    assert api.fail(job, not_started=True) == []
    assert reason(api, job) == ("cancelled", "cancelled")


def test_what_was_started_cannot_be_put_off(api: Any, started: Any) -> None:
    job = started()
    with api.refusal("PW005", "snooze_job", "started"):
        api.snooze_job(job.id, job.run, "1 min")
    assert reason(api, job) == ("running", None)
    api.finish_job(job.id, job.run)


@pytest.mark.parametrize(
    "more", [{}, {"delay": "1 s"}, {"payload": [1]}, {"not_started": False}, {"not_started": None}]
)
def test_a_failure_after_the_start_is_final_whatever_attempts_are_left(
    api: Any, started: Any, more: Any
) -> None:
    job = started(job_key="k", max_attempts=25)
    assert api.fail(job, "smtp: 451", **more) == [job.id]
    failed = api.get_job(job.id)
    assert (failed.state, failed.reason, failed.key) == (
        "discarded",
        "failed, and must not be run twice",
        "k",
    )
    assert (failed.attempts, failed.last_error, failed.payload) == (1, "smtp: 451", more.get("payload", {}))


@pytest.mark.parametrize("delay", [None, "0", "5 min"])
def test_a_handler_that_had_not_started_may_be_tried_again(
    api: Any, started: Any, worker: int, clock: Any, delay: str | None
) -> None:
    job = started()
    assert api.fail(job, not_started=True, **({"delay": delay} if delay else {})) == [job.id]
    again = api.get_job(job.id)
    assert (again.state, again.attempts, again.last_error) == (
        "available" if delay == "0" else "retryable",
        1,
        "boom",
    )
    wait = {None: 2.7, "0": 0, "5 min": 300}[delay]
    assert abs((again.run_at - api.at()).total_seconds() - wait) < 2
    clock.advance(seconds=wait + 0.1)
    api.heartbeat(worker)
    assert api.start_job(job.id, job.run) is False
    second = api.claim(worker)
    assert (second.run > job.run, second.attempts) == (True, 2)
    assert api.start_job(second.id, job.run) is False
    assert api.start_job(second.id, second.run) is True
    api.fail(second)  # now it counts
    assert reason(api, job) == ("discarded", "failed, and must not be run twice")


def test_a_handler_that_had_not_started_needs_an_attempt_to_be_tried_again(api: Any, started: Any) -> None:
    job, thrown = started(max_attempts=1), started(max_attempts=5)
    api.fail(job, not_started=True, delay="1 s")
    assert reason(api, job) == ("discarded", "out of attempts")
    api.fail(thrown, not_started=True, discard=True)
    assert reason(api, thrown) == ("discarded", "discarded by its handler")


@pytest.mark.parametrize("value", ["yes", 1, [], "true"])
def test_not_started_must_be_a_boolean(api: Any, started: Any, value: Any) -> None:
    job = started()
    assert api.fail(job, not_started=value) == []
    assert reason(api, job) == ("running", None)
    assert api.fail(job, cancel=True) == [job.id]
    assert reason(api, job) == ("cancelled", "boom")


@pytest.mark.parametrize("verb", ["finish_jobs", "finish_job"])
def test_success_completes_what_was_started(api: Any, started: Any, verb: str) -> None:
    job = started()
    if verb == "finish_job":
        api.finish_job(job.id, job.run)
    else:
        api.finish_jobs([job.id], [job.run])
    assert reason(api, job) == ("completed", None)


@pytest.mark.parametrize("way", BACK)
def test_a_start_changes_nothing_for_a_job_that_may_run_twice(
    api: Any, started: Any, worker: int, clock: Any, way: str
) -> None:
    job = started(delivery="at_least_once")
    call, counts = BACK[way]
    call(api, job, worker, clock)
    assert reason(api, job) == ("available", None)
    again = api.claim(api.register_worker())
    assert (again.run > job.run, again.attempts) == (True, 1 + counts)
    assert api.start_job(again.id, again.run) is True  # a run of its own
    api.fail(again)
    assert reason(api, job) == ("retryable", None)
    api.retry_job(job.id)
    third = api.claim(api.register_worker())
    assert api.start_job(third.id, third.run) is True
    api.snooze_job(third.id, third.run, "1 s")
    assert reason(api, job) == ("scheduled", None)


# A human's act, or a producer's, runs it again -----------------------------------------------------------------------


def lose(api: Any, job: Any, worker: int) -> None:
    api.release_jobs([job.id], [job.run])
    assert reason(api, job) == ("discarded", "lost")


AGAIN: dict[str, Callable[[Any, int], Any]] = {
    "retry_job": lambda api, job_id: api.retry_job(job_id),
    "retry_jobs": lambda api, job_id: api.retry_jobs([job_id]),
    "reschedule_jobs": lambda api, job_id: api.reschedule_jobs([job_id], attempts=0),
    "add_job": lambda api, job_id: api.add_job("t", job_key="k", delivery="at_most_once"),
    "add_jobs": lambda api, job_id: api.add_jobs(
        [{"identifier": "t", "job_key": "k", "delivery": "at_most_once"}]
    ),
}


@pytest.mark.parametrize("act", AGAIN)
def test_a_lost_job_runs_again_only_when_somebody_says_so_and_is_then_started_once_more(
    api: Any, started: Any, worker: int, act: str
) -> None:
    job = started(job_key="k")
    for _ in range(2):
        lose(api, job, worker)
        AGAIN[act](api, job.id)
        assert reason(api, job) == ("available", None)
        lost, job = job, api.claim(worker)
        assert (job.run > lost.run, job.delivery) == (True, "at_most_once")
        assert [api.start_job(job.id, run) for run in (lost.run, job.run, job.run)] == [False, True, False]
    api.finish_job(job.id, job.run)


def test_a_cancelled_one_that_was_started_runs_again_when_somebody_says_so(
    api: Any, started: Any, worker: int
) -> None:
    job = started()
    api.cancel_job(job.id, force=True)
    api.retry_job(job.id)
    again = api.claim(worker)
    assert api.start_job(again.id, again.run) is True
    lose(api, again, worker)


def test_a_lost_job_with_another_priority_is_still_lost(api: Any, started: Any, worker: int) -> None:
    """A bulk change of priorities is nobody's decision to run twice what must not be; a time or an attempt is."""
    job = started(max_attempts=25)
    lose(api, job, worker)
    (still,) = api.reschedule_jobs([job.id], priority=3)
    assert (still.state, still.reason, still.priority) == ("discarded", "lost", 3)
    assert api.claim(worker) is None
    api.reschedule_jobs([job.id], run_at=api.at("-1 s"))
    again = api.claim(worker)
    assert api.start_job(again.id, again.run) is True


def test_rescheduling_a_lost_job_that_has_no_attempts_leaves_it_lost(
    api: Any, started: Any, worker: int
) -> None:
    job = started(max_attempts=1)
    lose(api, job, worker)
    api.reschedule_jobs([job.id], attempts=1, run_at=api.at())
    assert reason(api, job) == ("discarded", "lost")


# With queues, sequences, unique keys and tasks -----------------------------------------------------------------------


@pytest.mark.parametrize("way", BACK)
def test_a_lost_job_halts_its_sequence_and_frees_its_queue(
    api: Any, add: Any, worker: int, clock: Any, way: str
) -> None:
    sequence = {"key": "s"}
    first, second = (add(queue_name="q", sequence_policy=sequence) for _ in range(2))
    other = add(queue_name="q")
    job = api.claim(worker)
    assert (job.id, api.claim(worker)) == (first.id, None)
    assert api.start_job(job.id, job.run)
    BACK[way][0](api, job, worker, clock)
    assert reason(api, first) == ("discarded", "lost")
    me = api.register_worker()
    assert [job.id for job in api.claim_jobs(me, 10)] == [other.id]
    assert api.get_job(second.id).sequence_halted_by == first.id
    api.finish(other.id)
    # A person runs it again: the sequence goes on with it, in order.
    api.retry_job(first.id)
    api.promote_jobs()  # its turn in the sequence, then in the queue
    again = api.claim(me)
    assert (again.id, api.claim(me)) == (first.id, None)
    assert api.start_job(again.id, again.run)
    api.finish_job(again.id, again.run)
    assert api.claim(me).id == second.id


def test_a_sequence_may_go_on_after_a_lost_job(api: Any, add: Any, worker: int) -> None:
    policy = {"key": "s", "continue_on_discarded": True}
    first, second = (add(sequence_policy=policy) for _ in range(2))
    api.claim(worker)
    assert api.start_job(first.id, api.runs(first.id)[0])
    lose(api, api.get_job(first.id), worker)
    assert api.claim(worker).id == second.id


@pytest.mark.parametrize("policy", [{"on_conflict": "reject"}, {"by_args": True}])
def test_a_lost_job_has_given_its_unique_key_back(api: Any, started: Any, worker: int, policy: Any) -> None:
    job = started(unique_policy=policy)
    lose(api, job, worker)
    new = api.add_job("t", unique_policy=policy)
    assert (new.id > job.id, new.deduplicated) == (True, False)
    with api.refusal("PW003"):
        api.retry_job(job.id)
    assert api.reschedule_jobs([job.id], attempts=0) == []
    api.cancel_job(new.id)
    if "by_args" in policy:  # River's default does not mind a cancelled one
        api.retry_job(job.id)
        assert reason(api, job) == ("available", None)


def test_without_retention_a_lost_job_is_gone_with_its_errors(api: Any, started: Any, worker: int) -> None:
    api.configure(discarded_retention="0")
    job = started(job_key="k")
    api.release_jobs([job.id], [job.run])
    assert api.get_job(job.id).id is None
    assert api.rows("select from pyworker.errors") == []


def test_a_task_says_how_its_jobs_are_delivered_and_an_add_may_say_otherwise(api: Any, worker: int) -> None:
    api.define_task("t", delivery="at_most_once")
    api.add_job("t")
    api.add_job("t", delivery="at_least_once")
    api.add_jobs([{"identifier": "t"}, {"identifier": "t", "delivery": "at_least_once"}])
    api.add_job("t", job_key="k")
    api.add_job("t", job_key="l", delivery="at_least_once")
    api.add_job("u")
    # It is a job's own: what is defined later is for jobs added later.
    api.define_task("t", delivery="at_least_once")
    wanted = ["at_most_once", "at_least_once"] * 3 + ["at_least_once"]
    jobs = sorted(api.claim_jobs(worker, 10), key=lambda job: job.id)
    assert [job.delivery for job in jobs] == wanted
    for job in jobs:
        assert api.start_job(job.id, job.run)
    api.unregister_worker(worker)
    lost = {"at_most_once": ("discarded", "lost"), "at_least_once": ("available", None)}
    assert [reason(api, job) for job in jobs] == [lost[delivery] for delivery in wanted]
    with api.refusal("PW001", "define_task", "delivery", "twice"):
        api.define_task("t", delivery="twice")


# The durable commit --------------------------------------------------------------------------------------------------


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


# Races ---------------------------------------------------------------------------------------------------------------
# A start meets whatever takes the job away, in both orders: one of the two is in an open transaction, the other waits for it
# or passes by.

TAKERS: dict[str, tuple[Callable[[Any, Any, int], Any], str, str]] = {
    # the call; what becomes of a job that was only reserved; … of one that was started
    "cancel_job": (lambda a, job, worker: a.cancel_job(job.id), "running", "running"),
    "cancel_job, force": (lambda a, job, worker: a.cancel_job(job.id, force=True), "cancelled", "cancelled"),
    "force_unlock_workers": (lambda a, job, worker: a.force_unlock_workers([str(worker)]), "available", "discarded"),
    "unregister_worker": (lambda a, job, worker: a.unregister_worker(worker), "available", "discarded"),
    "reconcile": (lambda a, job, worker: a.reconcile(worker, [], []), "available", "discarded"),
    "report_crash": (lambda a, job, worker: a.report_crash(worker, [job.id], [job.run]), "available", "discarded"),
    "release_jobs": (lambda a, job, worker: a.release_jobs([job.id], [job.run]), "available", "discarded"),
    "add_job": (lambda a, job, worker: a.add_job("t", job_key="k", run_at="2100-01-01"), "running", "running"),
    "remove_job": (lambda a, job, worker: a.remove_job("k"), "running", "running"),
    "finish_jobs": (lambda a, job, worker: a.finish_jobs([job.id], [job.run]), "completed", "completed"),
    "fail_jobs": (
        lambda a, job, worker: a.fail_jobs([{"id": job.id, "run": job.run, "error": "boom"}]), "retryable", "discarded",
    ),
}  # fmt: skip


@pytest.mark.parametrize("outcome", ["commit", "rollback", "kill"])
@pytest.mark.parametrize("taker", TAKERS)
def test_a_start_waits_for_whoever_is_taking_the_job(
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
def test_whoever_takes_the_job_waits_for_its_start(
    api: Any, actor: Any, reserved: Any, worker: int, taker: str, outcome: str
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
    # Whatever it was: not a second true for this run.
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
def test_a_sweep_passes_by_a_start_under_way_and_comes_again(
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


def test_failures_said_in_one_batch_are_judged_one_by_one(api: Any, add: Any, worker: int) -> None:
    jobs = [add(max_attempts=3) for _ in range(4)] + [add(delivery="at_least_once")]
    claimed = sorted(api.claim_jobs(worker, 5), key=lambda job: job.id)
    for job in claimed[1:]:
        assert api.start_job(job.id, job.run)
    failures = [{"id": job.id, "run": job.run, "error": "e"} for job in claimed]
    failures[2]["not_started"] = True
    failures[3]["not_started"] = "?"
    accepted = api.value("select pyworker.fail_jobs(%s)", [Jsonb(failures)])
    assert accepted == [jobs[i].id for i in (0, 1, 2, 4)]
    assert [api.get_job(job.id).state for job in jobs] == [
        "retryable", "discarded", "retryable", "running", "retryable",
    ]  # fmt: skip
