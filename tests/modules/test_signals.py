"""wait_for_signal, send_signal: a job waits for a word from outside, without a worker."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg.types.json import Jsonb

from tests.support import DEADLINE
from tests.support.waits import again, claimed, claims, steps, waiting

LEVELS = ["read committed", "repeatable read", "serializable"]


def test_a_job_waits_without_a_worker_and_goes_on_when_its_signal_comes(api: Any, worker: int) -> None:
    job = waiting(api, worker, "approved")
    row = api.get_job(job.id)
    assert (row.state, row.attempts, row.locked_by) == ("pending", 0, None)
    assert claims(api, worker) == []
    api.send_signal(job.id, "approved", Jsonb({"by": "ann"}))
    later = again(api, worker, job)
    assert later.attempts == 1
    assert api.wait_for_signal(job.id, later.run, "approved") == {"by": "ann"}
    assert steps(api, job) == {"approved": {"by": "ann"}}
    assert api.finish(job.id) == [job.id]


def test_a_signal_that_was_sent_before_the_wait_is_kept(api: Any, worker: int) -> None:
    job = api.add_job("t", run_at=api.at("1 hour"))
    api.send_signal(job.id, "go", Jsonb([1]))
    api.retry_job(job.id)
    mine = again(api, worker, job)
    assert api.wait_for_signal(job.id, mine.run, "go") == [1]
    assert api.get_job(job.id).state == "running"


def test_later_runs_get_the_same_answer(api: Any, worker: int) -> None:
    job = claimed(api, worker)
    api.send_signal(job.id, "go", Jsonb(1))
    assert api.wait_for_signal(job.id, job.run, "go") == 1
    api.send_signal(job.id, "go", Jsonb(2))
    assert api.wait_for_signal(job.id, job.run, "go") == 1
    api.release_jobs([job.id], [job.run])
    assert api.wait_for_signal(job.id, again(api, worker, job).run, "go", "0") == 1


def test_of_two_signals_of_one_name_the_first_counts(api: Any, worker: int) -> None:
    job = waiting(api, worker)
    api.send_signal(job.id, "go", Jsonb("first"))
    api.send_signal(job.id, "go", Jsonb("second"))
    assert api.wait_for_signal(job.id, again(api, worker, job).run, "go") == "first"


def test_a_wait_ends_at_its_timeout_which_counts_from_the_first_call(
    api: Any, worker: int, clock: Any
) -> None:
    job = waiting(api, worker, timeout="1 hour")
    clock.advance(minutes=30)
    api.retry_job(job.id)
    later = again(api, worker, job)
    assert api.wait_for_signal(job.id, later.run, "go", "1 hour") is None
    clock.advance(minutes=29)
    assert claims(api, worker) == []
    clock.advance(minutes=2)
    last = again(api, worker, later)
    assert (
        api.rows("select pyworker.wait_for_signal(%s, %s, 'go')::text as answer", [job.id, last.run])[
            0
        ].answer
        == "null"
    )
    assert steps(api, job) == {"go": None}
    api.send_signal(job.id, "go", Jsonb(1))  # too late: the wait has its answer
    answer = api.rows("select pyworker.wait_for_signal(%s, %s, 'go')::text as answer", [job.id, last.run])
    assert answer[0].answer == "null"


def test_a_claim_finds_the_end_of_a_wait(api: Any, worker: int, clock: Any) -> None:
    waiting(api, worker, timeout="1 hour")
    assert claims(api, worker) == []
    assert claims(api, worker) == []
    clock.advance(hours=2)
    api.heartbeat(worker)
    assert len(claims(api, worker)) == 1


def test_a_timeout_of_zero_asks_without_waiting(api: Any, worker: int) -> None:
    job = claimed(api, worker)
    row = api.rows("select pyworker.wait_for_signal(%s, %s, 'go', '0')::text as answer", [job.id, job.run])
    assert (row[0].answer, api.get_job(job.id).state) == ("null", "running")


def test_every_word_of_a_run_that_waits_is_stale(api: Any, worker: int) -> None:
    job = waiting(api, worker)
    assert api.finish_jobs([job.id], [job.run]) == []
    assert api.release_jobs([job.id], [job.run]) == []
    assert api.fail_jobs(Jsonb([{"id": job.id, "run": job.run, "error": "e"}])) == []
    for call in (
        lambda: api.finish_job(job.id, job.run),
        lambda: api.save_step(job.id, job.run, "a"),
        lambda: api.wait_for_signal(job.id, job.run, "other"),
        lambda: api.snooze_job(job.id, job.run, "0"),
    ):
        with api.refusal("PW002"):
            call()
    assert api.get_job(job.id).state == "pending"


def test_a_waiting_job_frees_its_slot_and_takes_another_when_it_goes_on(api: Any, worker: int) -> None:
    first = waiting(api, worker, queue_name="q")
    second = claimed(api, worker, queue_name="q")
    api.send_signal(first.id, "go")
    assert claims(api, worker) == []
    api.finish(second.id)
    assert claims(api, worker) == [first.id]


def test_the_slot_of_a_waiting_job_is_given_to_a_job_that_waited_for_one(api: Any, worker: int) -> None:
    first = claimed(api, worker, queue_name="q")
    second = api.add_job("t", queue_name="q")
    assert claims(api, worker) == []
    assert api.wait_for_signal(first.id, first.run, "go") is None
    assert claims(api, worker) == [second.id]


def test_a_waiting_job_holds_its_sequence(api: Any, worker: int) -> None:
    first = waiting(api, worker, sequence_policy=Jsonb({"key": "s"}))
    second = api.add_job("t", sequence_policy=Jsonb({"key": "s"}))
    assert claims(api, worker) == []
    shown = "select sequence_key, running, waiting, halted_by from pyworker."
    for source in ("sequences", "list_sequences()"):
        assert api.rows(shown + source) == [("s", first.id, 1, None)]
    assert any(
        str(first.id) in r.detail for r in api.rows("select * from pyworker.explain_job(%s)", [second.id])
    )
    api.send_signal(first.id, "go")
    later = again(api, worker, first)
    api.finish_job(first.id, later.run)
    assert claims(api, worker) == [second.id]


def test_a_waiting_job_is_no_end_for_the_jobs_that_depend_on_it(api: Any, worker: int) -> None:
    parent = waiting(api, worker)
    child = api.add_job("t", depends_on=Jsonb([{"id": parent.id, "on": "end"}]))
    assert claims(api, worker) == []
    api.cancel_job(parent.id)
    assert claims(api, worker) == [child.id]


@pytest.mark.parametrize("end", ["cancel_job", "delete_job", "complete_jobs", "permanently_fail_jobs"])
def test_people_can_end_a_waiting_job(api: Any, worker: int, end: str) -> None:
    job = waiting(api, worker)
    many = end.endswith("jobs")
    getattr(api, end)(*([[job.id]] if many else [job.id]), *(["e"] if "fail" in end else []))
    assert api.get_job(job.id).state in (None, "cancelled", "completed", "discarded")


def test_reschedule_jobs_does_not_end_a_wait(api: Any, worker: int) -> None:
    job = waiting(api, worker)
    api.reschedule_jobs([job.id], api.at("1 hour"), 5)
    row = api.get_job(job.id)
    assert (row.state, row.priority, row.run_at) == ("pending", 5, job.run_at)
    api.send_signal(job.id, "go")
    again(api, worker, job)


def test_a_keyed_add_replaces_a_waiting_job_in_place(api: Any, worker: int) -> None:
    job = waiting(api, worker, timeout="1 hour", job_key="k")
    assert api.add_job("other", job_key="k").id == job.id
    (mine,) = api.claim_jobs(worker, 10)
    assert (mine.id, mine.task_identifier, steps(api, mine)) == (job.id, "other", {})
    assert api.wait_for_signal(job.id, mine.run, "go") is None


def test_retry_job_lets_a_waiting_job_ask_again(api: Any, worker: int) -> None:
    job = waiting(api, worker)
    assert api.retry_job(job.id).state == "available"
    later = again(api, worker, job)
    assert api.wait_for_signal(job.id, later.run, "go") is None
    api.send_signal(job.id, "go")
    again(api, worker, job)


def test_a_job_may_wait_for_several_signals_one_after_the_other(api: Any, worker: int) -> None:
    job = waiting(api, worker, "a")
    api.retry_job(job.id)
    later = again(api, worker, job)
    assert api.wait_for_signal(job.id, later.run, "b") is None
    api.send_signal(job.id, "a")
    assert claims(api, worker) == []  # it waits for b now
    api.send_signal(job.id, "b", Jsonb(2))
    last = again(api, worker, later)
    assert api.wait_for_signal(job.id, last.run, "a") is None
    assert api.wait_for_signal(job.id, last.run, "b") == 2


@pytest.mark.parametrize("state", ["completed", "cancelled"])
def test_an_ended_job_refuses_signals(api: Any, job_in: Any, state: str) -> None:
    job = job_in(state)
    with api.refusal("PW005", f"send_signal: job {job.id} is {state}") as refused:
        api.send_signal(job.id, "go")
    assert "retry_job" in refused.value.diag.message_hint


@pytest.mark.parametrize("state", ["scheduled", "available", "running", "retryable", "discarded"])
def test_every_other_job_keeps_its_signal(api: Any, job_in: Any, state: str) -> None:
    job = job_in(state)
    api.send_signal(job.id, "go", Jsonb(1))
    rows = api.rows("select job_id, name, payload from pyworker.signals")
    assert [tuple(row) for row in rows] == [(job.id, "go", 1)]


def test_calls_that_mean_nothing_are_refused(api: Any, actor: Any, worker: int) -> None:
    job = claimed(api, worker)
    with api.refusal("PW004", "send_signal: there is no job 99"):
        api.send_signal(99, "go")
    with api.refusal("PW004", "send_signal: there is no job NULL"):
        api.send_signal(None, "go")
    for name in (None, "", "n" * 513):
        with api.refusal("PW001", "send_signal: name must be 1 to 512 characters long"):
            api.send_signal(job.id, name)
        with api.refusal("PW001", "wait_for_signal: name must be 1 to 512 characters long"):
            api.wait_for_signal(job.id, job.run, name)
    with api.refusal("PW001", "send_signal: payload must not be larger than"):
        api.send_signal(job.id, "go", Jsonb("x" * 1048577))
    for timeout in ("-1 second", "1001 years", "2147483647 days"):
        with api.refusal("PW001", "wait_for_signal: timeout must be from 0 to 1000 years"):
            api.wait_for_signal(job.id, job.run, "go", timeout)
    api.save_step(job.id, job.run, "a")
    with api.refusal("PW003", "wait_for_signal: 'a' is a step of job"):
        api.wait_for_signal(job.id, job.run, "a")
    a = actor()
    a.begin()
    unseen = a.add_job("t")
    with api.refusal("PW004", "send_signal: there is no job"):
        api.send_signal(unseen.id, "go")
    assert api.get_job(job.id).state == "running"
    assert api.rows("select from pyworker.signals") == []


def test_a_job_that_was_started_at_most_once_may_not_wait(api: Any, worker: int) -> None:
    job = claimed(api, worker, delivery="at_most_once")
    assert api.start_job(job.id, job.run) is True
    with api.refusal("PW005", f"wait_for_signal: job {job.id} was started and must not be run twice"):
        api.wait_for_signal(job.id, job.run, "go")
    assert api.finish(job.id) == [job.id]
    before = waiting(api, worker, delivery="at_most_once")
    api.send_signal(before.id, "go")
    again(api, worker, before)


def test_a_wait_of_a_job_that_was_cancelled_meanwhile_ends_it(api: Any, worker: int) -> None:
    job = claimed(api, worker)
    api.cancel_job(job.id)
    assert api.get_job(job.id).state == "running"
    assert api.wait_for_signal(job.id, job.run, "go") is None
    assert api.get_job(job.id).state == "cancelled"


def test_explain_job_says_what_a_job_waits_for(api: Any, worker: int) -> None:
    job = waiting(api, worker, "it's on", timeout="1 hour")
    (row,) = api.rows("select * from pyworker.explain_job(%s)", [job.id])
    assert (row.reason, "'it''s on' until" in row.detail) == ("signal", True)
    assert f"send_signal({job.id}, 'it''s on')" in row.remedy
    api.send_signal(job.id, "it's on")
    assert [r.reason for r in api.rows("select * from pyworker.explain_job(%s)", [job.id])] == ["promotion"]


# Two sessions


@pytest.mark.parametrize("sends", LEVELS)
@pytest.mark.parametrize("waits", LEVELS)
@pytest.mark.parametrize("last", ["wait", "send"])
def test_a_wait_and_a_send_that_are_open_at_once_meet_and_the_last_commit_is_seen(
    api: Any, actor: Any, worker: int, last: str, waits: str, sends: str
) -> None:
    """Neither waits for the other. (Between two serializable ones, the server may refuse the later.)"""
    job = claimed(api, worker)
    a, b = actor(), actor()
    a.begin(waits)
    b.begin(sends)
    assert a.wait_for_signal(job.id, job.run, "go") is None
    b.send_signal(job.id, "go", Jsonb(1))
    first, second = (b, a) if last == "wait" else (a, b)
    first.commit()
    assert api.promote_jobs() == 0
    if (waits, sends) == ("serializable", "serializable"):
        with api.refusal("40001"):
            second.commit()
        return
    second.commit()
    assert api.wait_for_signal(job.id, again(api, worker, job).run, "go") == 1


@pytest.mark.parametrize("last", ["wait", "send"])
def test_an_own_promotion_misses_no_signal(api: Any, actor: Any, worker: int, last: str) -> None:
    job = claimed(api, worker)
    a, b = actor(), actor()
    assert [a.begin(), a.wait_for_signal(job.id, job.run, "go")] == [None, None]
    assert [b.begin(), b.send_signal(job.id, "go", Jsonb(1))] == [None, "kept"]
    assert [a.promote_jobs(), b.promote_jobs()] == [0, 0]
    for each in (b, a) if last == "wait" else (a, b):
        each.commit()
    assert api.wait_for_signal(job.id, again(api, worker, job).run, "go") == 1


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("outcome", ["rollback", "kill"])
@pytest.mark.parametrize("verb", ["wait", "send"])
def test_a_wait_or_a_send_that_is_rolled_back_leaves_nothing(
    api: Any, actor: Any, worker: int, verb: str, outcome: str, level: str
) -> None:
    job = claimed(api, worker)
    a = actor()
    a.begin(level)
    if verb == "wait":
        assert a.wait_for_signal(job.id, job.run, "go", "1 hour") is None
    else:
        a.send_signal(job.id, "go")
    getattr(a, outcome)()
    assert api.wait_for_signal(job.id, job.run, "go") is None
    assert claims(api, worker) == []
    api.send_signal(job.id, "go")
    again(api, worker, job)


def test_a_resume_that_is_open_does_not_lose_the_signal_when_it_is_rolled_back(
    api: Any, actor: Any, worker: int
) -> None:
    job = waiting(api, worker)
    api.send_signal(job.id, "go")
    a = actor()
    a.begin()
    assert a.promote_jobs() == 1
    assert api.promote_jobs() == 0
    a.rollback()
    again(api, worker, job)


def test_a_job_that_another_session_has_locked_goes_on_afterwards(api: Any, actor: Any, worker: int) -> None:
    job = waiting(api, worker)
    a = actor()
    a.begin()
    a.rows("select from pyworker.live_jobs where id = %s for update", [job.id])
    api.send_signal(job.id, "go")
    assert api.promote_jobs() == 0
    a.commit()
    again(api, worker, job)


def test_a_cancel_that_meets_a_wait_ends_the_job_in_either_order(api: Any, actor: Any, worker: int) -> None:
    job = claimed(api, worker)
    a, b = actor(), actor()
    a.begin()
    assert a.wait_for_signal(job.id, job.run, "go") is None
    cancelled = b.later.cancel_job(job.id)
    b.blocked(cancelled)
    a.commit()
    cancelled.result(DEADLINE)
    assert api.get_job(job.id).state == "cancelled"


def test_requests_of_many_signals_do_not_starve_behind_lanes_that_are_locked(
    api: Any, actor: Any, worker: int
) -> None:
    job = waiting(api, worker)
    a = actor()
    api.rows(
        "insert into pyworker.promotion_requests (lane) select 'queue:' || n from generate_series(1, 150) n"
    )
    a.begin()
    a.rows(
        "select pg_advisory_xact_lock(hashtextextended('pyworker/queue:' || n, 0)) "
        "from generate_series(1, 150) n"
    )
    api.send_signal(job.id, "go")
    again(api, worker, job)
    a.rollback()
    api.promote_jobs()


def test_a_signal_whose_job_vanished_as_it_was_sent_is_pruned(api: Any, actor: Any, worker: int) -> None:
    job = api.add_job("t")
    a = actor()
    a.begin()
    a.send_signal(job.id, "go")
    api.delete_job(job.id)
    a.commit()
    assert len(api.rows("select from pyworker.signals")) == 1
    api.prune()
    assert api.rows("select from pyworker.signals") == []
