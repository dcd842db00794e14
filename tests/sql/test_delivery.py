"""What must not be done twice: a job with delivery at_most_once that was started never runs again
by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from tests.support.delivery import BACK, ENDED_EARLY, lose, reason
from tests.support.delivery import add as add
from tests.support.delivery import reserved as reserved
from tests.support.delivery import started as started


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
def test_what_was_started_and_then_cancelled_or_replaced_ends_cancelled(
    api: Any, started: Any, worker: int, clock: Any, way: str, how: str, end: str
) -> None:
    job = started(job_key="k")
    ENDED_EARLY[how](api)
    BACK[way][0](api, job, worker, clock)
    assert reason(api, job) == ("cancelled", end)


@pytest.mark.parametrize(
    ("how", "end"), [("add_job", "superseded"), ("remove_job", "removed"), ("cancel_job", "cancelled")]
)
@pytest.mark.parametrize("word", ["snooze", "fail", "not_started", "finish"])
def test_the_last_word_on_what_was_started_and_then_cancelled_or_replaced(
    api: Any, started: Any, how: str, end: str, word: str
) -> None:
    job = started(job_key="k")
    ENDED_EARLY[how](api)
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
def test_a_failure_after_the_start_is_final_even_if_attempts_are_left(
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


AGAIN: dict[str, Callable[[Any, int], Any]] = {
    "retry_job": lambda api, job_id: api.retry_job(job_id),
    "retry_jobs": lambda api, job_id: api.rows(
        "select from pyworker.retry_jobs(array[%s]::bigint[], lost => true)", [job_id]
    ),
    "perform_action": lambda api, job_id: api.perform_action("retry", [str(job_id)], "ada"),
    "reschedule_jobs": lambda api, job_id: api.reschedule_jobs([job_id], attempts=0),
    "add_job": lambda api, job_id: api.add_job("t", job_key="k", delivery="at_most_once"),
    "add_jobs": lambda api, job_id: api.add_jobs(
        [{"identifier": "t", "job_key": "k", "delivery": "at_most_once"}]
    ),
}


@pytest.mark.parametrize("act", AGAIN)
def test_a_lost_job_runs_again_only_when_a_person_or_a_producer_says_so_and_is_then_started_once_more(
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


def notices(api: Any) -> list[str]:
    told: list[str] = []
    api.conn.add_notice_handler(lambda notice: told.append(notice.message_primary))
    return told


@pytest.mark.parametrize("count", [1, 3])
def test_a_bulk_retry_leaves_lost_jobs_out_and_says_how_many_and_why(
    api: Any, started: Any, worker: int, count: int
) -> None:
    lost = [started() for _ in range(count)]
    for job in lost:
        lose(api, job, worker)
    other = api.add_job("t")
    api.fail(api.claim(worker), discard=True)
    told = notices(api)
    assert [job.id for job in api.retry_jobs([*(job.id for job in lost), other.id])] == [other.id]
    many = "1 job that was" if count == 1 else "3 jobs that were"
    assert told == [f"retry_jobs: left out {many} lost: each may have been done"]
    assert [reason(api, job) for job in lost] == [("discarded", "lost")] * count


def test_a_retry_of_one_lost_job_says_that_it_may_have_been_done(api: Any, started: Any, worker: int) -> None:
    job = started()
    lose(api, job, worker)
    (why,) = api.rows("select * from pyworker.explain_job(%s)", [job.id])
    assert "it may have been done" in why.remedy
    told = notices(api)
    assert api.retry_job(job.id).state == "available"
    assert told == [f"retry_job: job {job.id} was lost: it may have been done"]


def test_an_action_on_many_jobs_refuses_lost_ones_unless_they_are_asked_for(
    api: Any, started: Any, worker: int
) -> None:
    job, other = started(), started()
    lose(api, job, worker)
    lose(api, other, worker)
    both = [str(job.id), str(other.id)]
    refused = [(False, "it was lost, and may have been done: retry it by itself")] * 2
    told = api.rows("select * from pyworker.perform_action('retry', %s, 'ada')", [both])
    assert [(row.ok, row.outcome) for row in told] == refused
    for more, done in (("", 0), (", lost => true", 2)):
        (told,) = api.rows(f"select * from pyworker.perform_on_listed('retry', 'ada'{more})")
        assert (told.done, told.refused) == (done, 2 - done)
    for again in (api.claim(worker), api.claim(worker)):
        assert api.start_job(again.id, again.run)
        lose(api, again, worker)
    options = '{"lost": true}'
    told = api.rows("select * from pyworker.perform_action('retry', %s, 'ada', %s::jsonb)", [both, options])
    assert [(row.ok, row.outcome) for row in told] == [(True, "available")] * 2


def test_a_cancelled_job_that_was_started_runs_again_when_a_person_or_a_producer_says_so(
    api: Any, started: Any, worker: int
) -> None:
    job = started()
    api.cancel_job(job.id, force=True)
    api.retry_job(job.id)
    again = api.claim(worker)
    assert api.start_job(again.id, again.run) is True
    lose(api, again, worker)


def test_a_lost_job_with_another_priority_is_still_lost(api: Any, started: Any, worker: int) -> None:
    """A change of priorities decides nothing about running a job twice; a new time or a new attempt does."""
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


# With queues, sequences, unique keys and tasks ----------------------------------------------------


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
