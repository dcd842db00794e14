"""job.log, with a real worker: what handlers log is kept with the job, and sent on to logging."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

KINDS = ["logs", "logs_async"]


def lines(queue: Any, job: int) -> list[tuple[int, str, str]]:
    rows = queue.rows("select attempt, level, message from pyworker.job_log(%s)", job)
    return [(row.attempt, row.level, row.message) for row in rows]


def until_lines(queue: Any, job: int, number: int) -> None:
    queue.until("select count(*) >= %s from pyworker.job_log(%s)", number, job)


@pytest.mark.parametrize("kind", KINDS)
def test_the_lines_of_all_attempts_are_kept_and_sent_to_logging(queue: Any, kind: str) -> None:
    worker = queue.start("--log-format", "json", modules="logging_jobs")
    said = [["100 % done"], ["no\0paper \ud800", "warning"], ["not shown", "debug"]]
    job = queue.add(kind, {"lines": said, "attempts": 2})
    queue.until_state("completed", job)
    stored = [("info", "100 % done"), ("warning", "no�paper �"), ("debug", "not shown")]
    assert lines(queue, job) == [(attempt, *line) for attempt in (1, 2) for line in stored]
    records = [json.loads(line) for line in worker.log.splitlines()]
    mine = [record for record in records if record["logger"] == f"pyworker.task.{kind}"]
    assert [record["level"] for record in mine if "done" in record["message"]] == ["info"] * 2
    assert all((record["job_id"], record["task"]) == (job, kind) for record in mine)
    assert not any(record["message"] == "not shown" for record in mine)  # by the level of logging


def test_a_line_in_the_workers_log_names_its_job(queue: Any) -> None:
    worker = queue.start(modules="logging_jobs")
    job = queue.add("logs", {"lines": [["100 % done"]]})
    worker.until_log(f"job {job}: 100 % done")


@pytest.mark.parametrize("kind", KINDS)
def test_a_line_is_there_while_its_handler_runs(queue: Any, kind: str) -> None:
    queue.start(modules="logging_jobs")
    job = queue.add(kind, {"lines": [["begun"]], "hangs": True})
    until_lines(queue, job, 1)
    assert queue.job(job).state == "running"
    queue.rows("select pyworker.cancel_job(%s)", job)
    queue.until_state("cancelled", job)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("way", "state"), [("commits", "completed"), ("rolls back", "discarded")])
def test_lines_stay_however_the_handlers_transaction_ends(
    queue: Any, kind: str, way: str, state: str
) -> None:
    queue.start(modules="logging_jobs")
    job = queue.add(kind, {"lines": [["before"]], way: True}, max_attempts=1)
    queue.until_state(state, job)
    expected = ["before", "in the transaction", "after the transaction"][: 3 if way == "commits" else 2]
    until_lines(queue, job, len(expected))  # the end was the transaction's commit, before the last line
    assert [message for _, _, message in lines(queue, job)] == expected


@pytest.mark.parametrize("kind", KINDS)
def test_many_jobs_that_log_much_share_their_transactions(queue: Any, kind: str) -> None:
    long = {"lines": [["x" * 5000]]}
    job, *others = (queue.add(kind, {**long, "times": 500 if n == 0 else 1}) for n in range(50))
    queue.start("--concurrency", "10", modules="logging_jobs")
    queue.until_state("completed", job, *others)
    assert [(len(message), level) for _, level, message in lines(queue, job)] == [(2000, "info")] * 200
    for other in others:
        until_lines(queue, other, 1)


def test_what_is_no_line_is_refused(queue: Any) -> None:
    queue.start(modules="logging_jobs")
    wrong = queue.add("logs", {"lines": [["m", "loud"]]}, max_attempts=1)
    other = queue.add("logs", {"lines": [[5]]}, max_attempts=1)
    queue.until_state("discarded", wrong, other)
    refused = "InvalidArgument: job.log(): level must be one of debug, info, warning, error, got 'loud'"
    assert refused in queue.job(wrong).last_error
    assert "job.log(): message must be a string, got 5" in queue.job(other).last_error


def test_a_worker_whose_lines_are_refused_says_so_once_and_does_its_jobs(queue: Any) -> None:
    queue.rows("alter table pyworker.log_lines add constraint none check (message is null)")
    try:
        worker = queue.start(modules="logging_jobs")
        jobs = [queue.add("logs", {"lines": [["m"]]}) for _ in range(3)]
        again = queue.add("logs", {"lines": [["m"]], "attempts": 3})
        queue.until_state("completed", *jobs, again)
    finally:
        queue.rows("alter table pyworker.log_lines drop constraint none")
    assert worker.log.count("the lines that jobs have logged cannot be written") == 1
    assert [queue.job(job).attempts for job in (*jobs, again)] == [1, 1, 1, 3]
    later = queue.add("logs", {"lines": [["m"]]})
    queue.until_state("completed", later)
    assert lines(queue, later) == [(1, "info", "m")]


@pytest.mark.parametrize("kind", KINDS)
def test_the_lines_of_an_attempt_that_fails_are_there_when_it_has_failed(queue: Any, kind: str) -> None:
    queue.start(modules="logging_jobs")
    job = queue.add(kind, {"lines": [["x"]], "times": 300, "attempts": 2}, max_attempts=1)
    queue.until_state("discarded", job)
    assert lines(queue, job) == [(1, "info", "x")] * 200


@pytest.mark.parametrize("kind", ["logs_too_long", "logs_too_long_async"])
def test_the_lines_of_an_attempt_that_times_out_stay(queue: Any, kind: str) -> None:
    queue.start(modules="logging_jobs")
    job = queue.add(kind, max_attempts=1)
    queue.until_state("discarded", job)
    assert "timed out" in queue.job(job).last_error
    assert lines(queue, job) == [(1, "info", "begun")]


@pytest.mark.parametrize("kind", KINDS)
def test_the_lines_that_were_sent_stay_when_the_worker_is_killed(queue: Any, kind: str) -> None:
    worker = queue.start(modules="logging_jobs")
    job = queue.add(kind, {"lines": [["begun"]], "ignores": True})
    until_lines(queue, job, 1)
    worker.signal(signal.SIGKILL)
    queue.start(modules="logging_jobs")
    until_lines(queue, job, 2)
    assert lines(queue, job) == [(1, "info", "begun"), (2, "info", "begun")]


def test_an_attempt_that_is_given_back_keeps_its_number_in_the_log(queue: Any) -> None:
    queue.start(modules="logging_jobs")
    job = queue.add("logs", {"lines": [["later"]], "snoozes": True})
    queue.until_state("scheduled", job)
    assert (queue.job(job).attempts, lines(queue, job)) == (0, [(1, "info", "later")])


def test_lines_are_sent_again_when_the_connection_was_lost(queue: Any) -> None:
    queue.start(modules="logging_jobs")
    job = queue.add("logs", {"lines": [["begun"]], "ends after": 1.5})
    until_lines(queue, job, 1)
    queue.rows(
        "select pg_terminate_backend(pid, 10000) from pg_stat_activity"
        " where datname = current_database() and application_name = 'pyworker'"
    )
    queue.until_state("completed", job)
    assert [message for _, _, message in lines(queue, job)] == ["begun", "the end"]
