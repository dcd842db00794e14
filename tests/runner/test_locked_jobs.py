"""Another session has a running job locked, in a transaction that stays open, and the job or its process
ends: the worker goes on with other jobs."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest


@pytest.fixture
def person(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn) as conn:
        yield conn


def goes_on(queue: Any, worker: Any) -> None:
    queue.until_state("completed", queue.add("note"))
    assert "no connection to the database" not in worker.log
    assert (
        queue.value(
            "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
            " and datname = current_database() and query ~ 'report_crash|close_worker|fail_jobs'"
        )
        == 0
    )


def test_a_process_that_dies_with_the_job_is_replaced_at_once(queue: Any, person: Any) -> None:
    queue.close_gate(1)
    job = queue.add("note", {"gate": 1})
    worker = queue.start("--concurrency", "1")
    queue.until_waiting(1)
    person.execute("select pyworker.cancel_job(%s)", [job])
    (child,) = worker.children()
    os.kill(child, signal.SIGKILL)
    goes_on(queue, worker)
    person.rollback()
    queue.open_gate(1)
    queue.until_state("completed", job)
    assert len(queue.seen(job)) == 2
    assert worker.stop() == 0


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_a_job_that_takes_too_long_is_ended_all_the_same(queue: Any, person: Any, outcome: str) -> None:
    job = queue.add("too_long")
    worker = queue.start("--concurrency", "1")
    person.execute("select from pg_stat_activity")  # its transaction is open before
    queue.until("select count(*) = 1 from public.seen where job_id = %s", job)
    person.execute("select pyworker.cancel_job(%s)", [job])
    goes_on(queue, worker)
    getattr(person, outcome)()
    queue.until_state("cancelled" if outcome == "commit" else "retryable", job)
    assert worker.stop() == 0


def ends_locked(queue: Any, person: Any, how: str = "select pyworker.cancel_job(%s)") -> tuple[int, Any]:
    """A job whose handler ends while a person has it locked, and its worker."""
    queue.close_gate(1)
    job = queue.add("note", {"gate": 1}, job_key="k")
    worker = queue.start("--concurrency", "2")
    queue.until_waiting(1)
    person.execute(how, [job])
    queue.open_gate(1)
    goes_on(queue, worker)
    return job, worker


LOCKS = {
    "a person cancels it": "select pyworker.cancel_job(%s)",
    "a producer replaces it": "select pyworker.add_job('silent', job_key => (pyworker.get_job(%s)).key)",
}


@pytest.mark.parametrize("how", LOCKS)
@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_a_job_that_has_ended_holds_up_no_other_and_is_reported_when_it_is_free(
    queue: Any, person: Any, how: str, outcome: str
) -> None:
    job, worker = ends_locked(queue, person, LOCKS[how])
    for _ in range(2):
        goes_on(queue, worker)
    assert queue.states(job) == ["running"]
    getattr(person, outcome)()
    queue.until_state("completed", job)
    assert len(queue.seen(job)) == 1
    assert "refused" not in worker.log
    assert worker.stop() == 0


def test_its_outcome_outlives_the_loss_of_the_connection(queue: Any, person: Any) -> None:
    job, worker = ends_locked(queue, person)
    goes_on(queue, worker)
    queue.rows(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where application_name = 'pyworker' and datname = current_database()"
    )
    queue.until_state("completed", queue.add("note"))
    person.rollback()
    queue.until_state("completed", job)
    assert len(queue.seen(job)) == 1
    assert worker.stop() == 0


def test_a_worker_that_is_told_to_stop_waits_for_the_report(queue: Any, person: Any) -> None:
    job, worker = ends_locked(queue, person)
    worker.signal()
    worker.until_log("stopping")
    person.rollback()
    assert worker.wait() == 0
    assert queue.states(job) == ["completed"]


def test_while_a_table_is_locked_many_outcomes_wait_and_are_reported_after_it(
    queue: Any, person: Any
) -> None:
    queue.close_gate(1)
    jobs = [queue.add("note", {"gate": 1}) for _ in range(12)]
    worker = queue.start("--concurrency", "12")
    queue.until_waiting(1, handlers=12)
    person.execute("lock table pyworker.finished_jobs in share row exclusive mode")
    queue.open_gate(1)
    queue.until(
        "select count(*) > 0 from pg_stat_activity where wait_event_type = 'Lock'"
        " and datname = current_database() and query ~ 'work'"
    )
    person.rollback()
    queue.until_state("completed", *jobs)
    assert len(queue.seen(*jobs)) == 12
    assert worker.stop() == 0
