"""Promises of `pyworker run`, kept by real processes on a real database."""

from __future__ import annotations

from typing import Any

import pytest

# scope: else each test would have a worker started for it. None: the worker of the tests without a parameter.
both = pytest.mark.parametrize(
    ("served", "kind"), [(None, ""), (None, "_async"), ({"PYWORKER_RUN_NO_UVLOOP": "0"}, "_async")],
    indirect=["served"], ids=["sync", "async", "async on uvloop"], scope="module",
)  # fmt: skip

EVERYTHING = (
    "select count(*) = 0 from pyworker.jobs where state not in ('discarded', 'scheduled', 'retryable')"
)


# -- one worker for all of these -------------------------------------------------------------------


@both
def test_a_job_added_by_plain_sql_is_run_and_completed(served: Any, kind: str) -> None:
    job_id = served.value(f"""select (pyworker.add_job('act{kind}', '{{"value": 1}}')).id""")
    served.until_state("completed", job_id)
    assert [seen.told for seen in served.seen(job_id)] == [{"value": 1}]


@both
@pytest.mark.parametrize("value", [0, "ü\n'", [1, {"a": None}], {"deep": [[]]}, False, ""])
def test_what_a_task_with_result_returns_is_kept(served: Any, kind: str, value: Any) -> None:
    job_id = served.add(f"act{kind}", {"value": value})
    served.until_state("completed", job_id)
    assert served.job(job_id).result == value


@pytest.mark.parametrize(("task", "payload"), [("act", {"value": None}), ("silent", {})])
def test_without_a_result_none_is_kept(served: Any, task: str, payload: Any) -> None:
    job_id = served.add(task, payload)
    served.until_state("completed", job_id)
    assert served.job(job_id).result is None


@both
@pytest.mark.parametrize("way", ["raise", "return"])
@pytest.mark.parametrize(
    ("answer", "state", "attempts", "error", "payload"),
    [
        (["snooze", None], "scheduled", 0, None, None),
        (["cancel", "not wanted"], "cancelled", 1, "not wanted", None),
        (["discard", "hopeless"], "discarded", 1, "hopeless", None),
        (["failed", [3, "x"]], "retryable", 1, "some", [3, "x"]),
    ],
    ids=["Snooze", "Cancel", "Discard", "Failed"],
)
def test_an_outcome_is_heard_whether_raised_or_returned(
    served: Any, kind: str, way: str, answer: Any, state: str, attempts: int, error: str | None, payload: Any
) -> None:
    job_id = served.add(f"act{kind}", {way: answer})
    served.until_state(state, job_id)
    job = served.job(job_id)
    assert (job.attempts, job.last_error) == (attempts, error)
    assert job.payload == (payload or {way: answer})


@both
@pytest.mark.parametrize("how", ["error", "exit"])
def test_an_exception_is_a_failed_attempt_with_its_traceback_and_the_log_has_both_but_not_the_payload(
    served: Any, kind: str, how: str
) -> None:
    job_id = served.add(
        f"act{kind}", {"raise": [how, f"canary\0\udce9\x1b[31m {how}{kind}"], "secret": "not for the log"}
    )
    served.until_state("retryable", job_id)
    job = served.job(job_id)
    (error,) = served.rows("select * from pyworker.job_errors(%s)", job_id)
    assert job.last_error == error.error
    assert (error.run, error.worker) == (job.run, str(served.value("select id from pyworker.live_workers")))
    lines = job.last_error.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "handlers.py" in lines[1]  # it begins at the handler
    assert lines[-1].endswith(f"canary\ufffd\\udce9\x1b[31m {how}{kind}")
    served.workers[0].until_log("\\x1b[31m " + how + kind)
    log = served.workers[0].log
    (begin,) = [
        n
        for n, line in enumerate(log.split("\n"))
        if f"job {job_id} (act{kind}) attempt 1 of 25 failed: " in line
    ]
    shown = [line.replace("\x1b", "\\x1b") for line in lines]
    assert log.split("\n")[begin].endswith(shown[-1])
    assert log.split("\n")[begin + 1 :][: len(lines)] == shown
    assert "\x1b" not in log
    assert "not for the log" not in log


@pytest.mark.parametrize(
    "value",
    [{"return": ["failed", ["\0"]]}, {"raise": ["failed", ["\ud800"]]}],
    ids=["NUL element", "half-pair element"],
)
def test_what_postgresql_cannot_store_fails_only_its_own_job(served: Any, value: Any) -> None:
    with served.conn.transaction():  # claimed and reported together
        others = [served.add("act", {"value": n}) for n in (1, 2)]
        job_id = served.add("act", value)
        others += [served.add("act_async", {"value": n}) for n in (3, 4)]
    served.until_state("retryable", job_id)
    served.until_state("completed", *others)
    assert [served.job(other).result for other in others] == [1, 2, 3, 4]
    elements = next(iter(value.values()))[1]
    assert served.job(job_id).payload == elements  # they are tried again alone, as they were


@both
def test_a_result_that_is_no_json_fails_its_job(served: Any, kind: str) -> None:
    job_id = served.add("nonsense", {"value": kind})
    served.until_state("retryable", job_id)
    assert "JSON" in served.job(job_id).last_error


@both
def test_a_payload_that_python_cannot_decode_fails_only_its_own_job(served: Any, kind: str) -> None:
    digits = '{"value": ' + "7" * 5000 + "}"
    with served.conn.transaction():
        before = served.add(f"act{kind}")
        job_id = served.value("select (pyworker.add_job(%s, %s)).id", f"act{kind}", digits)
        after = served.add(f"act{kind}")
    served.until_state("retryable", job_id)
    served.until_state("completed", before, after)
    assert "digits" in served.value("select last_error from pyworker.jobs where id = %s", job_id)


@both
def test_a_handler_is_told_its_times_to_the_microsecond(served: Any, kind: str) -> None:
    moment = "2026-01-02 03:04:05.678901+00"
    job_id = served.add(f"times{kind}", run_at=moment)
    served.until_state("completed", job_id)
    created = served.value("select to_json(created_at)#>>'{}' from pyworker.get_job(%s)", job_id)
    told = served.job(job_id).result
    assert told[0] == moment.replace(" ", "T").replace("+00", "+00:00")
    assert served.value("select %s::timestamptz = %s::timestamptz", told[1], created)


def test_a_handler_that_was_never_awaited_has_not_succeeded(served: Any) -> None:
    job_id = served.add("not_awaited")
    served.until_state("retryable", job_id)
    assert "make it an async function" in served.job(job_id).last_error


def test_a_job_without_a_task_here_is_left_for_other_workers(served: Any) -> None:
    stranger, known = served.add("stranger", priority=-9), served.add("note")
    served.until_state("completed", known)
    assert served.job(stranger).state == "available"
    assert served.job(stranger).attempts == 0


def test_of_a_batch_only_the_failed_elements_are_tried_again(served: Any) -> None:
    job_id = served.add("batch", [1, 2, 3, "x"])
    served.until_state("retryable", job_id)
    assert served.job(job_id).payload == [1, 3]
    assert served.job(job_id).last_error == "2 elements of the batch failed"


def test_failed_elements_may_be_the_records_that_the_handler_was_given(served: Any) -> None:
    job_id = served.add("letters", [{"to": "a", "bad": False}, {"to": "b", "bad": True}])
    served.until_state("retryable", job_id)
    assert served.job(job_id).payload == [{"to": "b", "bad": True}]


@both
def test_writes_in_the_jobs_transaction_are_committed_with_its_end(served: Any, kind: str) -> None:
    job_id = served.add(f"write{kind}", {"then": ["note", {"n": 1}]})
    served.until_state("completed", job_id)
    assert len(served.seen(job_id)) == 1
    follower = served.value(
        "select max(id) from (select id from pyworker.jobs union all select id from pyworker.history) j"
    )
    assert follower > job_id
    served.until_state("completed", follower)


@both
def test_an_exception_in_the_jobs_transaction_undoes_its_writes_and_its_added_jobs(
    served: Any, kind: str
) -> None:
    payload = {"then": ["note", {"undone": kind}], "raise": ["error", ""]}
    job_id = served.add(f"write{kind}", payload)
    served.until_state("retryable", job_id)
    assert served.seen(job_id) == []
    assert served.value("select count(*) from pyworker.jobs where task_identifier = 'note'") == 0


@both
def test_a_worker_that_lost_its_job_cannot_commit_what_it_wrote(served: Any, kind: str) -> None:
    served.close_gate(1)
    job_id = served.add(f"write{kind}", {"gate": 1})
    served.until_waiting(1)
    lost = served.job(job_id).run
    served.value("select pyworker.force_unlock_workers(array[(pyworker.get_job(%s)).locked_by])", job_id)
    served.until(
        f"select (pyworker.get_job(%s)).run > {lost}", job_id
    )  # claimed again, while the first still stands there
    served.until_waiting(1, 2)
    served.open_gate(1)
    served.until_state("completed", job_id)
    assert [(seen.job_id, seen.run > lost) for seen in served.seen(job_id)] == [(job_id, True)]


@pytest.mark.parametrize("task", ["follow", "follow_async"])
def test_a_handler_may_add_jobs(served: Any, task: str) -> None:
    served.add(task, {"left": 2})
    served.until("select count(*) = 3 from pyworker.history where task_identifier = %s", task)
    assert [seen.told["left"] for seen in served.seen() if seen.task == task] == [2, 1, 0]


def test_a_program_started_by_a_handler_cannot_take_the_workers_orders(served: Any) -> None:
    job_id = served.add("read_stdin")
    served.until_state("completed", job_id)
    assert served.seen(job_id)[0].told == ""


@pytest.mark.parametrize("priorities", [[3, -1, 0]])
def test_jobs_of_one_queue_run_one_after_another_best_priority_first(
    served: Any, priorities: list[int]
) -> None:
    served.close_gate(2)
    first = served.add("note", {"gate": 2}, queue_name="line", priority=9)
    served.until_waiting(2)
    waiting = [served.add("note", queue_name="line", priority=priority) for priority in priorities]
    other = served.add("note", queue_name="another line")
    served.until_state("completed", other)
    assert served.states(first, *waiting) == ["running", "available", "available", "available"]
    served.open_gate(2)
    served.until_state("completed", *waiting)
    order = sorted(waiting, key=lambda job_id: priorities[waiting.index(job_id)])
    assert [seen.job_id for seen in served.seen(first, *waiting)] == [first, *order]


def test_what_a_task_says_of_itself_is_inherited_by_plain_sql(served: Any) -> None:
    served.until("select count(*) = 1 from pyworker.tasks where identifier = 'with_defaults'")
    served.close_gate(3)
    blocker = served.add("note", {"gate": 3}, queue_name="letters")
    served.until_waiting(3)
    job = served.job(served.value("select (pyworker.add_job('with_defaults')).id"))
    assert (job.max_attempts, job.priority, job.queue_name, job.state) == (3, -5, "letters", "available")
    served.open_gate(3)
    served.until_state("completed", blocker, job.id)
    kept = "select expires_at - finished_at = interval '30 days' from pyworker.finished_jobs where id = %s"
    assert served.value(kept, job.id)
