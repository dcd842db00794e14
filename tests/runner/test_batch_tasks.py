"""Promises of batch handlers, kept by real workers: which jobs a call gets, and what becomes of each."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

pytestmark = pytest.mark.slow

both = pytest.mark.parametrize("task", ["index", "index_async"])


def add(queue: Any, task: str, payloads: list[Any], **options: Any) -> list[int]:
    """Add these jobs in one transaction, so that one claim can find them all."""
    specs = [{"identifier": task, "payload": payload, **options} for payload in payloads]
    rows = queue.rows("select id from pyworker.add_jobs(%s::jsonb)", json.dumps(specs))
    return [row.id for row in rows]


def run(queue: Any, task: str, *options: str) -> Any:
    """Run what is due of this task alone, whose claims then bring full batches from the start."""
    return queue.run_once("--task", task, *options, modules="batched")


def calls(queue: Any) -> list[list[int]]:
    """The ids of each call, in the order of the calls."""
    return [list(call) for call in dict.fromkeys(tuple(seen.told) for seen in queue.seen())]


# What a call gets


@both
def test_a_call_gets_what_is_ready_up_to_a_full_batch_in_order(queue: Any, task: str) -> None:
    ids = add(queue, task, [{}] * 10)
    run(queue, task)
    assert sorted(calls(queue)) == [ids[:4], ids[4:8], ids[8:]]
    assert queue.states(*ids) == ["completed"] * 10


@both
def test_a_job_that_comes_alone_waits_for_no_other(queue: Any, task: str) -> None:
    queue.start("--task", task, modules="batched").until_ready()
    for _ in range(2):
        job = queue.add(task)
        queue.until_state("completed", job)
        assert calls(queue)[-1] == [job]


def test_a_call_takes_one_handler_however_many_jobs_it_has(queue: Any) -> None:
    queue.close_gate(1)
    ids = add(queue, "index", [{"gate": 1}] * 12)
    worker = queue.start("--task", "index", "--concurrency", "2", modules="batched")
    queue.until_waiting(1, 2)
    assert sorted(calls(queue)) == [ids[:4], ids[4:8]]
    queue.open_gate(1)
    queue.until_state("completed", *ids)
    assert sorted(calls(queue)) == [ids[:4], ids[4:8], ids[8:]]
    assert worker.stop() == 0


def test_a_backlog_comes_in_full_batches_also_where_the_worker_has_other_tasks(queue: Any) -> None:
    add(queue, "wide", [{}] * 1000)
    queue.run_once(modules="batched")
    sizes = [seen.told for seen in queue.seen()]
    assert len(sizes) == 1000
    assert sizes.count(100) >= 500


def test_jobs_of_other_tasks_come_in_calls_of_their_own(queue: Any) -> None:
    ids = [add(queue, task, [{}])[0] for _ in range(3) for task in ("index", "index_async", "unkept")]
    queue.run_once(modules="batched")
    assert sorted(calls(queue)) == [ids[0::3], ids[1::3]]
    assert queue.states(*ids) == ["completed"] * 9


def test_a_serial_queue_and_a_sequence_give_a_batch_one_job_at_a_time(queue: Any) -> None:
    serial = add(queue, "index", [{}] * 3, queue_name="serial")
    run(queue, "index")
    in_order = add(queue, "index", [{}] * 3, sequence_policy={"key": "s"})
    run(queue, "index")
    assert calls(queue) == [[job] for job in serial + in_order]


def test_a_bound_of_a_queue_bounds_the_jobs_of_a_batch(queue: Any) -> None:
    queue.rows("select pyworker.set_queue('mail', null)")
    ids = add(queue, "index", [{}] * 4, queue_name="mail")
    run(queue, "index", "--queue", "mail=2")
    assert sorted(calls(queue)) == [ids[:2], ids[2:]]


# What becomes of each job


@both
def test_each_element_of_a_list_is_the_outcome_of_its_job(queue: Any, task: str) -> None:
    value = {"value": [1]}
    says = [{"say": ["error", "no paper"]}, {"say": ["snooze", None]}, {"say": ["cancel", "gone"]}]
    more = [{}, {"say": ["discard", "no use"]}, {"say": ["exit", "x"]}, value]
    ids = add(queue, task, [value, *says]) + add(queue, task, more)
    run(queue, task)
    assert sorted(calls(queue)) == [ids[:4], ids[4:]]
    jobs = [queue.job(job_id) for job_id in ids]
    states = "completed retryable scheduled cancelled completed discarded retryable completed"
    assert [job.state for job in jobs] == states.split()
    assert [job.result for job in jobs] == [[1], None, None, None, None, None, None, [1]]
    assert [job.attempts for job in jobs] == [1, 1, 0, 1, 1, 1, 1, 1]
    assert jobs[1].last_error.strip().endswith("Canary: no paper")
    assert (jobs[3].last_error, jobs[5].last_error) == ("gone", "no use")


def test_results_are_dropped_where_the_task_keeps_none(queue: Any) -> None:
    ids = add(queue, "unkept", [{}] * 2)
    run(queue, "unkept")
    assert [(queue.job(job).state, queue.job(job).result) for job in ids] == [("completed", None)] * 2


def test_an_element_may_say_which_part_of_its_payload_is_to_be_tried_again(queue: Any) -> None:
    ids = add(queue, "index", [{"value": 1}, {"say": ["failed", [1]]}, {"value": 2}])
    run(queue, "index")
    assert queue.states(*ids) == ["completed", "retryable", "completed"]
    assert queue.job(ids[1]).payload == [1]


@both
def test_a_call_that_raises_fails_each_of_its_jobs(queue: Any, task: str) -> None:
    ids = add(queue, task, [{}, {"raise": ["error", "x"]}, {}])
    last = add(queue, task, [{}], max_attempts=1)
    log = run(queue, task).log
    jobs = [queue.job(job_id) for job_id in ids + last]
    assert [(job.state, job.attempts) for job in jobs] == [("retryable", 1)] * 3 + [("discarded", 1)]
    assert all("Traceback" in job.last_error and "Canary: x" in job.last_error for job in jobs)
    assert all(f"job {job.id} ({task}) attempt 1" in log for job in jobs)
    assert log.count("Traceback") == 1  # once for the call
    assert f"job {last[0]} ({task}) is discarded now" in log


@both
@pytest.mark.parametrize("way", ["raise", "return"])
@pytest.mark.parametrize(
    ("kind", "state", "attempts"),
    [("snooze", "scheduled", 0), ("cancel", "cancelled", 1), ("discard", "discarded", 1)],
)
def test_an_outcome_for_the_call_is_that_of_each_job(
    queue: Any, task: str, way: str, kind: str, state: str, attempts: int
) -> None:
    ids = add(queue, task, [{way: [kind, "why"]}, {}, {}])
    run(queue, task)
    assert [(queue.job(job).state, queue.job(job).attempts) for job in ids] == [(state, attempts)] * 3


@both
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ([None], "returned a list of 1 for 2 jobs; a batch handler returns None, or a list with an outcome"),
        ([None] * 3, "returned a list of 3 for 2 jobs; "),
        ([], "returned a list of 0 for 2 jobs; "),
        ({"a": 1}, "returned dict; a batch handler returns None, or a list with an outcome for each job"),
        ("ab", "returned str; "),
        (7, "returned int; "),
    ],
)
def test_any_other_answer_fails_all_jobs_of_the_call_and_says_why(
    queue: Any, task: str, answer: Any, said: str
) -> None:
    ids = add(queue, task, [{"answer": answer}, {}])
    run(queue, task)
    assert queue.states(*ids) == ["retryable"] * 2
    for job in ids:
        assert f"TypeError: <task {task} (batched.{task})> {said}" in queue.job(job).last_error


def test_a_payload_of_the_wrong_type_fails_its_job_and_the_others_are_converted(queue: Any) -> None:
    ids = add(queue, "orders", [{"number": 1}, {"number": "x"}, {"number": 3}])
    run(queue, "orders")
    assert [queue.job(job).result for job in ids] == [3, None, 5]  # two came to the call
    assert queue.states(*ids) == ["completed", "retryable", "completed"]
    assert "the payload does not fit" in queue.job(ids[1]).last_error


# Cancelling, time limits, ends of processes


@pytest.mark.parametrize("task", ["watch", "watch_async"])
def test_one_cancelled_job_ends_alone_and_the_call_goes_on_for_the_others(queue: Any, task: str) -> None:
    ids = add(queue, task, [{}] * 3)
    worker = queue.start("--task", task, modules="batched")
    queue.until("select count(*) = 3 from public.seen")
    queue.rows("select pyworker.cancel_job(%s)", ids[1])
    queue.until_state("completed", ids[0], ids[2])
    queue.until_state("cancelled", ids[1])
    assert calls(queue) == [ids]
    assert worker.stop() == 0
    assert "ending worker process" not in worker.log


@pytest.mark.parametrize("task", ["watch", "watch_async"])
def test_a_call_is_stopped_when_all_of_its_jobs_are_cancelled(queue: Any, task: str) -> None:
    """An async one by CancelledError; the process of a sync one is ended after five seconds."""
    ids = add(queue, task, [{"stubborn": 1}] * 2)
    worker = queue.start("--task", task, modules="batched")
    queue.until("select count(*) = 2 from public.seen")
    queue.rows("select pyworker.cancel_job(i) from unnest(%s) i", ids)
    queue.until_state("cancelled", *ids)
    assert calls(queue) == [ids]
    assert ("ending worker process" in worker.log) == (task == "watch")


@pytest.mark.parametrize("task", ["over_time", "over_time_async"])
def test_at_the_time_limit_all_jobs_of_the_call_have_failed(queue: Any, task: str) -> None:
    ids = add(queue, task, [{}] * 3)
    worker = queue.start("--task", task, modules="batched")
    queue.until_state("retryable", *ids)
    assert calls(queue) == [ids]
    assert all("timed out" in queue.job(job).last_error and queue.job(job).attempts == 1 for job in ids)
    assert ("and 2 more of its batch timed out" in worker.log) == (task == "over_time")


@pytest.mark.parametrize("task", ["deadly", "deadly_async"])
def test_jobs_of_a_batch_that_ended_its_process_run_alone_and_only_the_culprit_is_charged(
    queue: Any, task: str
) -> None:
    ids = add(queue, task, [{}, {"kill": 1}, {}, {}])
    queue.start("--task", task, modules="batched")
    queue.until_state("completed", *ids)
    together, *alone = calls(queue)
    assert together == ids
    assert sorted(alone) == [[job] for job in ids]
    assert [queue.job(job).attempts for job in ids] == [1, 2, 1, 1]


def test_a_stopped_worker_hands_all_jobs_of_a_batch_back(queue: Any) -> None:
    queue.close_gate(1)
    ids = add(queue, "index", [{"gate": 1}, {}, {}])
    worker = queue.start("--task", "index", "--shutdown-timeout", "0", modules="batched")
    queue.until_waiting(1)
    assert worker.stop() == 0
    assert [(queue.job(job).state, queue.job(job).attempts) for job in ids] == [("available", 0)] * 3
    queue.open_gate(1)
    run(queue, "index")
    assert queue.states(*ids) == ["completed"] * 3


# Delivery


@pytest.mark.parametrize("task", ["deadly", "deadly_async"])
def test_what_may_run_only_once_is_lost_with_its_batch_and_the_rest_runs_again(queue: Any, task: str) -> None:
    once = add(queue, task, [{"kill": 1}, {}], delivery="at_most_once")
    again = add(queue, task, [{}, {}])
    queue.start("--task", task, modules="batched")
    queue.until_state("completed", *again)
    assert [(queue.job(job).state, queue.job(job).reason) for job in once] == [("discarded", "lost")] * 2
    assert [len(queue.seen(job)) for job in once + again] == [1, 1, 2, 2]


@pytest.mark.parametrize("task", ["deadly", "deadly_async"])
def test_of_what_may_run_only_once_failures_are_final_job_by_job(queue: Any, task: str) -> None:
    payloads = [{"say": ["error", "x"]}, {"say": ["not_started", "no line"]}, {}]
    failed, not_started, done = add(queue, task, payloads, delivery="at_most_once", max_attempts=2)
    run(queue, task)
    assert calls(queue)[0] == [failed, not_started, done]
    assert (queue.job(failed).state, queue.job(done).state) == ("discarded", "completed")
    assert len(queue.seen(failed)) == 1
    assert queue.job(not_started).attempts == 2  # it was tried again


@both
def test_a_job_that_may_not_start_is_left_out_of_the_call(fresh_queue: Any, task: str) -> None:
    """It is cancelled while the worker starts the jobs of the batch."""
    queue = fresh_queue
    queue.rows(
        "create function public.wait() returns trigger language plpgsql as "
        "$$begin perform pg_advisory_lock_shared(77, 5); return new; end$$"
    )
    queue.rows(
        "create trigger wait before update of started_at on pyworker.live_jobs for each row "
        "when (new.started_at is not null) execute function public.wait()"
    )
    queue.close_gate(5)
    once = add(queue, task, [{}, {}], delivery="at_most_once")
    other = add(queue, task, [{}])
    queue.start("--task", task, modules="batched")
    queue.until_waiting(5)
    queue.rows("select pyworker.cancel_job(%s)", once[1])
    queue.open_gate(5)
    queue.until_state("completed", once[0], *other)
    queue.until_state("cancelled", once[1])
    assert calls(queue) == [[once[0], *other]]


# What a job of a batch can do


@pytest.mark.parametrize("task", ["uses", "uses_async"])
def test_a_job_has_its_log_and_steps_and_no_transaction_and_no_wait(queue: Any, task: str) -> None:
    ids = add(queue, task, [{}] * 2)
    run(queue, task)
    for job in ids:
        made, (transaction, wait) = queue.job(job).result
        assert made == job * 2
        assert transaction.startswith("WrongState: job.transaction(): not in a batch handler: ")
        assert wait.startswith("WrongState: job.wait_for(): not in a batch handler: ")
        assert [row.message for row in queue.rows("select message from pyworker.job_log(%s)", job)] == [
            f"line of {job}"
        ]


@pytest.mark.parametrize("task", ["surrounded_batch", "surrounded_batch_async"])
def test_middleware_surrounds_each_job_and_sees_its_outcome(queue: Any, task: str) -> None:
    ids = add(queue, task, [{"value": 7}, {"say": ["error", "x"]}, {"say": ["snooze", None]}])
    run(queue, task)
    told = [[seen.told for seen in queue.seen(job)] for job in ids]
    assert [begins for begins, _ in told] == ["begins"] * 3
    assert [end for _, end in told] == [["returned", 7], ["raised", "Canary"], ["raised", "Snooze"]]
    assert queue.states(*ids) == ["completed", "retryable", "scheduled"]
    order = [(seen.job_id, seen.told == "begins") for seen in queue.seen()]
    assert order == [(job, True) for job in ids] + [(job, False) for job in reversed(ids)]


@pytest.mark.parametrize("task", ["surrounded_batch", "surrounded_batch_async"])
def test_what_a_middleware_raises_before_or_after_is_the_outcome_of_its_job_alone(
    queue: Any, task: str
) -> None:
    value = {"value": 1}
    before = add(queue, task, [value], meta={"before": ["snooze", None]})
    after = add(queue, task, [value], meta={"after": ["cancel", "too late"]})
    plain = add(queue, task, [value])
    run(queue, task)
    assert queue.states(*before, *after, *plain) == ["scheduled", "cancelled", "completed"]
    assert queue.seen(*before) == []


def test_a_worker_that_is_killed_loses_no_job_of_its_batches(queue: Any) -> None:
    queue.close_gate(1)
    ids = add(queue, "index", [{"gate": 1}] * 4 + [{}] * 4)
    worker = queue.start("--task", "index", modules="batched")
    queue.until_waiting(1)
    with queue.ends_of(worker.children()):
        worker.signal(signal.SIGKILL)
    queue.open_gate(1)
    queue.start("--task", "index", modules="batched")
    queue.until_state("completed", *ids)
