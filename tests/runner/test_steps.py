"""job.step, job.step_transaction, job.wait_for: in a real worker, which also dies between any two of them."""

from __future__ import annotations

from typing import Any

import pytest

KINDS = ["stepped", "stepped_async"]


def started(queue: Any, *options: str, **environment: str) -> Any:
    return queue.start(*options, modules="stepped", **environment).until_ready()


def effects(queue: Any, job_id: int) -> list[str]:
    return [row.told for row in queue.seen(job_id)]


def saved(queue: Any, job_id: int) -> dict[str, Any]:
    return {row.name: row.result for row in queue.rows("select * from pyworker.get_steps(%s)", job_id)}


def signal(queue: Any, job_id: int, name: str, payload: str = "null") -> None:
    queue.rows("select pyworker.send_signal(%s, %s, %s)", job_id, name, payload)


def until_waiting(queue: Any, job_id: int) -> None:
    queue.until_state("pending", job_id)


@pytest.mark.parametrize("kind", KINDS)
def test_a_retry_does_not_repeat_steps_that_were_saved(queue: Any, kind: str) -> None:
    started(queue)
    job = queue.add(
        kind,
        {"do": [["step", "a"], ["transaction", "b"], ["strike", "fail"], ["step", "c", [1, None]]]},
    )
    queue.until_state("completed", job)
    assert effects(queue, job) == ["a", "b", "c"]
    assert queue.job(job).attempts == 2
    assert queue.job(job).result == [{"of": "a"}, {"of": "b"}, [1, None]]
    assert saved(queue, job) == {"a": {"of": "a"}, "b": {"of": "b"}, "c": [1, None]}


# Where a process may die, and how often each effect is done then.
BOUNDARIES = {
    "before the first step": ([["strike", "die"], ["step", "a"], ["transaction", "b"]], 1, 1),
    "after a step's effect, before its save": (
        [["step, struck after its effect", "a", "die"], ["transaction", "b"]],
        2,
        1,
    ),
    "between two steps": ([["step", "a"], ["strike", "die"], ["transaction", "b"]], 1, 1),
    "before a step's commit": (
        [["step", "a"], ["transaction, struck before its commit", "b", "die"]],
        1,
        1,
    ),
    "after the last step": ([["step", "a"], ["transaction", "b"], ["strike", "die"]], 1, 1),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_each_saved_step_has_one_result_wherever_its_process_dies(
    queue: Any, boundary: str, kind: str
) -> None:
    """A step's effect outside may happen again, that of a step transaction never."""
    program, a, b = BOUNDARIES[boundary]
    started(queue)
    job = queue.add(kind, {"do": program})
    queue.until_state("completed", job)
    assert sorted(effects(queue, job)) == ["a"] * a + ["b"] * b
    assert saved(queue, job) == {"a": {"of": "a"}, "b": {"of": "b"}}
    assert queue.job(job).result == [{"of": "a"}, {"of": "b"}]


@pytest.mark.parametrize("kind", KINDS)
def test_a_waiting_job_needs_no_process_and_goes_on_with_the_signals_payload(queue: Any, kind: str) -> None:
    started(queue, "--concurrency", "1")
    job = queue.add(kind, {"do": [["step", "a"], ["wait", "approved"], ["step", "b"]]})
    until_waiting(queue, job)
    other = queue.add(kind, {"do": [["step", "x"]]})
    queue.until_state("completed", other)  # the only thread is free
    assert queue.job(job).attempts == 0
    signal(queue, job, "approved", '{"by": "ann"}')
    queue.until_state("completed", job)
    assert effects(queue, job) == ["a", "b"]
    assert queue.job(job).result == [{"of": "a"}, {"by": "ann"}, {"of": "b"}]
    assert queue.job(job).attempts == 1
    assert queue.rows("select * from pyworker.job_errors(%s)", job) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_wait_ends_at_its_timeout_with_none(queue: Any, kind: str) -> None:
    started(queue)
    job = queue.add(kind, {"do": [["wait", "approved", 0.2], ["wait", "more", 0]]})
    queue.until_state("completed", job)
    assert queue.job(job).result == [None, None]


@pytest.mark.parametrize("kind", KINDS)
def test_a_handler_waits_for_one_name_again_and_a_signal_after_a_timeout_answers_the_next_wait(
    queue: Any, kind: str
) -> None:
    started(queue)
    job = queue.add(kind, {"do": [["wait", "go", 0], ["wait", "go"], ["step", "a"], ["wait", "go"]]})
    for payload in ("1", "2"):
        until_waiting(queue, job)
        assert queue.value("select pyworker.send_signal(%s, 'go', %s)", job, payload) == "answered"
        queue.until("select state <> 'pending' or %s <> '1' from pyworker.get_job(%s)", payload, job)
    queue.until_state("completed", job)
    assert queue.job(job).result == [None, 1, {"of": "a"}, 2]
    assert effects(queue, job) == ["a"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_signal_without_a_payload_is_none_as_a_timeout_is(queue: Any, kind: str) -> None:
    started(queue)
    job = queue.add(kind, {"do": [["wait", "go", 3600]]})
    until_waiting(queue, job)
    signal(queue, job, "go")
    queue.until_state("completed", job)
    assert queue.job(job).result == [None]


def test_a_wait_in_a_subtask_ends_the_run_too(queue: Any) -> None:
    worker = started(queue)
    job = queue.add("stepped_async", {"do": [["wait in a subtask", "go"]]})
    until_waiting(queue, job)
    signal(queue, job, "go", "1")
    queue.until_state("completed", job)
    assert queue.job(job).result == [1]
    assert "failed" not in worker.log


@pytest.mark.parametrize("kind", KINDS)
def test_a_wait_says_nothing_in_the_log(queue: Any, kind: str) -> None:
    worker = started(queue)
    job = queue.add(kind, {"do": [["wait", "go"]]})
    until_waiting(queue, job)
    assert worker.stop() == 0
    assert "WARNING" not in worker.log
    assert "ERROR" not in worker.log


def test_a_worker_that_dies_while_a_job_waits_changes_nothing(queue: Any) -> None:
    worker = started(queue)
    job = queue.add("stepped", {"do": [["wait", "go"]]})
    until_waiting(queue, job)
    worker.signal(9)
    worker.wait()
    signal(queue, job, "go", "7")
    started(queue)
    queue.until_state("completed", job)
    assert queue.job(job).result == [7]


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_transaction_adds_jobs_with_its_commit(queue: Any, kind: str) -> None:
    started(queue)
    job = queue.add(kind, {"do": [["transaction with an add", "a", "fail"]]})
    queue.until_state("completed", job)
    assert effects(queue, job) == ["a"]  # that of the first run was rolled back
    # In one statement: the added job may end between two.
    everywhere = "(select id from pyworker.history union all select id from pyworker.jobs) j"
    assert queue.value(f"select count(*) from {everywhere} where id <> %s", job) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_handler_may_try_a_failed_step_again_in_the_same_run(queue: Any, kind: str) -> None:
    started(queue)
    job = queue.add(kind, {"do": [["caught", "a"]]})
    queue.until_state("completed", job)
    assert queue.job(job).result == ["failed", {"of": "a"}]
    assert queue.job(job).attempts == 1


MEANINGLESS = [
    ([["step", "a"], ["step", "a"]], "Duplicate: job.step(): 'a' was used before in this run"),
    ([["step", "a"], ["wait", "a", 0]], "Duplicate: job.wait_for(): 'a' was used before in this run"),
    ([["step", ""]], "InvalidArgument: job.step(): name must be a string of 1 to 512 characters, got ''"),
    ([["step", 7]], "InvalidArgument: job.step(): name must be a string of 1 to 512 characters, got 7"),
    ([["wait", "a", "soon"]], "timeout must be a timedelta or seconds, got 'soon'"),
    ([["wait", "a", -1]], "InvalidArgument: wait_for_signal: timeout must be from 0 to 1000 years"),
    ([["within a transaction", "a"]], "WrongState: job.step(): not inside job.transaction()"),
    ([["two in a transaction", "a", "b"]], "WrongState: job.wait_for(): not inside job.transaction()"),
    ([["no JSON", "a"]], "the result of step 'a' must be JSON"),
    ([["step", "a", "huge"]], "InvalidArgument: save_step: result must not be larger than"),
]


@pytest.mark.parametrize("kind", KINDS)
def test_what_means_nothing_fails_the_job_with_its_reason(queue: Any, kind: str) -> None:
    started(queue)
    jobs = [queue.add(kind, {"do": program}, max_attempts=1) for program, _ in MEANINGLESS]
    queue.until_state("discarded", *jobs)
    errors = [queue.job(job).last_error for job in jobs]
    assert [words for (_, words), error in zip(MEANINGLESS, errors, strict=True) if words not in error] == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_after_the_transaction_that_completes_the_job_is_refused(queue: Any, kind: str) -> None:
    worker = started(queue)
    job = queue.add(kind, {"do": [["after the transaction", "a"]]})
    queue.until_state("completed", job)
    worker.until_log("not after job.transaction(), which has completed the job")
    assert effects(queue, job) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_handler_that_catches_every_exception_does_not_catch_the_end_of_its_run(
    queue: Any, kind: str
) -> None:
    started(queue)
    job = queue.add(kind, {"do": [["wait, but for exceptions", "go"]]})
    until_waiting(queue, job)
    signal(queue, job, "go", "1")
    queue.until_state("completed", job)
    assert (queue.job(job).result, effects(queue, job)) == ([1], [])


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_that_is_done_has_no_connection(queue: Any, kind: str) -> None:
    started(queue)
    job = queue.add(kind, {"do": [["transaction", "a"], ["strike", "fail"]]}, max_attempts=2)
    queue.until_state("completed", job)
    queue.rows("update pyworker.finished_jobs set payload = %s where id = %s", '{"do": [["done", "a"]]}', job)
    queue.rows("select pyworker.retry_job(%s)", job)
    queue.until("select count(*) = 2 from pyworker.job_errors(%s)", job)
    assert "WrongState: step 'a' is done" in queue.job(job).last_error


def test_a_job_that_is_run_at_most_once_saves_steps_but_does_not_wait(queue: Any) -> None:
    started(queue)
    job = queue.add("once_only", {})
    queue.until_state("completed", job)
    assert saved(queue, job) == {"charge": {"of": "charge"}}
    waits = queue.add("once_only", {"wait": True})
    queue.until_state("discarded", waits)
    assert "WrongState: wait_for_signal: job" in queue.job(waits).last_error


def test_a_handler_that_swallows_the_end_of_its_run_reports_too_late(queue: Any) -> None:
    started(queue)
    job = queue.add("catches_all", {})
    until_waiting(queue, job)
    signal(queue, job, "go", '"gone"')
    queue.until_state("completed", job)
    assert queue.job(job).result == "gone"
