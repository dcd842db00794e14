"""What a worker process has claimed and cannot begin within a second goes back: any idle process takes it."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support.proxy import Message, Proxy

QUICK = 600  # so many in a row make a process claim hundreds ahead
GONE = "select count(*) = 0 from pyworker.jobs where state = 'running' and id = any (%s)"


def add_all(queue: Any, *specs: dict[str, Any]) -> list[int]:
    added = queue.rows("select id from pyworker.add_jobs(%s::jsonb) order by id", json.dumps(specs))
    return [row.id for row in added]


def behind_long_ones(queue: Any, *specs: dict[str, Any], handlers: int = 2, options: Any = ()) -> list[int]:
    """Start a worker; each of its handlers stands at gate 1. The jobs of `specs` are behind: it has claimed
    them, too."""
    queue.close_gate(1)
    quick = [{"identifier": "silent"}] * QUICK
    long = [{"identifier": "note", "payload": {"gate": 1}}] * handlers
    jobs = add_all(queue, *quick, *long, *specs)[QUICK + handlers :]
    queue.start("--concurrency", f"{handlers}", *options, modules="waiting")
    queue.until_waiting(1, handlers=handlers)
    return jobs


def test_what_waits_behind_long_jobs_goes_back_and_another_worker_runs_it(queue: Any) -> None:
    jobs = behind_long_ones(queue, *[{"identifier": "silent"}] * 100)
    queue.until(GONE, jobs)
    rows = queue.rows("select distinct state, attempts from pyworker.jobs where id = any (%s)", jobs)
    assert rows == [("available", 0)]
    other = queue.start("--concurrency", "2", modules="waiting")
    queue.until_state("completed", *jobs)
    assert other.stop() == 0
    queue.open_gate(1)
    queue.until("select count(*) = 0 from pyworker.jobs")


def test_another_process_of_the_same_worker_takes_it_at_once(queue: Any) -> None:
    queue.close_gate(1)
    first = queue.start("--concurrency", "1", modules="waiting").until_ready()
    specs = [{"identifier": "note", "payload": {"gate": 1}}, *[{"identifier": "silent"}] * 300]
    add_all(queue, *[{"identifier": "silent"}] * 300, *specs)
    queue.start("--concurrency", "1", modules="waiting")
    queue.until("select count(*) = 1 from pyworker.jobs")
    queue.open_gate(1)
    queue.until("select count(*) = 0 from pyworker.jobs")
    assert first.stop() == 0


@pytest.mark.parametrize("task", ["note", "note_async", "note_batch"])
def test_a_job_that_has_expired_behind_long_ones_never_begins(queue: Any, task: str) -> None:
    soon = queue.value("select (now() + interval '6 seconds')::text")
    jobs = behind_long_ones(queue, *[{"identifier": task, "expires_at": soon}] * 3)
    queue.until_state("cancelled", *jobs)
    assert {queue.job(job).reason for job in jobs} == {"expired"}
    queue.open_gate(1)
    queue.until("select count(*) = 0 from pyworker.jobs")
    assert queue.seen(*jobs) == []


def test_jobs_of_a_queue_that_is_paused_do_not_begin_when_the_long_ones_end(queue: Any) -> None:
    queue.rows("select pyworker.set_queue('q', 1000)")
    jobs = behind_long_ones(queue, *[{"identifier": "note", "queue_name": "q"}] * 20)
    queue.rows("select pyworker.pause_queue('q')")
    queue.until(GONE, jobs)
    queue.open_gate(1)
    last = queue.add("silent")
    queue.until_state("completed", last)
    assert queue.seen(*jobs) == []
    queue.rows("select pyworker.resume_queue('q')")
    queue.until_state("completed", *jobs)


def test_a_job_behind_long_ones_can_be_replaced_removed_and_deleted(queue: Any) -> None:
    keyed, removed, deleted = behind_long_ones(
        queue,
        {"identifier": "note", "payload": "old", "job_key": "k"},
        {"identifier": "note", "job_key": "r"},
        {"identifier": "note"},
    )
    queue.until(GONE, [keyed, removed, deleted])
    assert queue.add("note", "new", job_key="k") == keyed
    assert queue.value("select (pyworker.remove_job('r')).id") == removed
    assert queue.value("select (pyworker.delete_job(%s)).id", deleted) == deleted
    queue.open_gate(1)
    queue.until_state("completed", keyed)
    assert [seen.told for seen in queue.seen(keyed)] == ["new"]
    assert queue.seen(removed, deleted) == []


def test_a_process_that_stood_still_begins_nothing_that_it_had_claimed_before(queue: Any) -> None:
    """Its long jobs end while it stands still."""
    queue.rows("select pyworker.set_queue('q', 1000)")
    queue.close_gate(1)
    quick = [{"identifier": "silent"}] * QUICK
    long = {"identifier": "note", "payload": {"gate": 1}}
    behind = [{"identifier": "note", "queue_name": "q"}] * 20
    jobs = add_all(queue, *quick, long, *behind)[-20:]
    worker = queue.start("--concurrency", "1", modules="waiting")
    queue.until_waiting(1)
    (child,) = worker.children()
    os.kill(child, signal.SIGSTOP)
    waiting = queue.rows("select id from pyworker.jobs where state = 'running' and id = any (%s)", jobs)
    queue.rows("select pyworker.pause_queue('q')")
    queue.open_gate(1)
    queue.rows("select pg_sleep(1.2)")  # so long they have waited at least
    os.kill(child, signal.SIGCONT)
    queue.until_state("completed", jobs[0] - 1)
    last = queue.add("silent")
    queue.until_state("completed", last)
    queue.until(GONE, jobs)
    assert queue.seen(*jobs) == []
    assert len(waiting) > 0


def test_jobs_behind_a_handler_that_keeps_the_event_loop_go_back(queue: Any) -> None:
    """They have a handler each, which the loop cannot call."""
    queue.close_gate(1)
    worker = queue.start("--concurrency", "5", modules="waiting").until_ready()
    jobs = add_all(
        queue, {"identifier": "keep_the_loop", "payload": {"gate": 1}}, *[{"identifier": "note_async"}] * 4
    )[1:]
    queue.until_waiting(1)
    queue.until(GONE, jobs)
    assert {queue.job(job).attempts for job in jobs} == {0}
    queue.start("--concurrency", "5", modules="waiting")
    queue.until_state("completed", *jobs)
    queue.open_gate(1)
    queue.until("select count(*) = 0 from pyworker.jobs")
    assert len(queue.seen(*jobs)) == len(jobs)
    last = [queue.add("note_async") for _ in range(20)]
    queue.until_state("completed", *last)
    assert worker.stop() == 0


@pytest.mark.parametrize("task", ["note", "note_async"])
def test_a_process_in_which_one_job_runs_alone_claims_nothing(queue: Any, task: str) -> None:
    queue.close_gate(1)
    suspect = alone(queue, task)
    queue.until_waiting(1)
    jobs = [queue.add("silent") for _ in range(5)]
    queue.start("--concurrency", "5", modules="waiting")
    queue.until_state("completed", *jobs)
    assert queue.states(suspect) == ["running"]
    queue.open_gate(1)
    queue.until_state("completed", suspect)


def alone(queue: Any, task: str, *options: str) -> int:
    """A job that may have ended its process before, with this payload, and a worker that has it."""
    suspect = queue.add(task, {"gate": 1})
    queue.rows("update pyworker.live_jobs set crashes = 1 where id = %s", suspect)
    queue.start("--concurrency", "5", *options, modules="waiting")
    return suspect


def test_what_was_claimed_with_a_job_that_runs_alone_goes_back(queue: Any) -> None:
    queue.close_gate(1)
    behind = {"identifier": "silent", "priority": 1}
    jobs = add_all(queue, *[behind] * 4)
    suspect = alone(queue, "note")
    queue.until_waiting(1)
    queue.start("--concurrency", "5", modules="waiting")
    queue.until_state("completed", *jobs)
    assert queue.states(suspect) == ["running"]
    queue.open_gate(1)


def test_a_job_that_must_run_alone_does_not_wait_for_long_ones_while_another_process_idles(
    queue: Any,
) -> None:
    queue.close_gate(2)
    long = queue.add("note", {"gate": 2})
    queue.start("--concurrency", "5", modules="waiting")
    queue.until_waiting(2)
    queue.close_gate(1)
    suspect = queue.add("note", {"gate": 1}, run_at="2100-01-01")
    queue.rows("update pyworker.live_jobs set crashes = 1 where id = %s", suspect)
    queue.rows("select pyworker.reschedule_jobs(array[%s]::bigint[], run_at := now())", suspect)
    queue.until_state("running", suspect)  # it waits until the long one has ended
    queue.start("--concurrency", "5", modules="waiting")
    queue.until_waiting(1)
    assert queue.states(long, suspect) == ["running", "running"]
    quick = queue.add("silent")  # the first process goes on
    queue.until_state("completed", quick)
    queue.open_gate(1, 2)
    queue.until_state("completed", long, suspect)


def test_a_job_that_must_run_alone_runs_in_the_only_process_when_the_others_have_ended(queue: Any) -> None:
    queue.close_gate(2)
    long = queue.add("note", {"gate": 2})
    queue.start("--concurrency", "5", modules="waiting")
    queue.until_waiting(2)
    suspect = queue.add("note", run_at="2100-01-01")
    queue.rows("update pyworker.live_jobs set crashes = 1 where id = %s", suspect)
    queue.rows("select pyworker.reschedule_jobs(array[%s]::bigint[], run_at := now())", suspect)
    queue.until("select run > 0 and state = 'available' from pyworker.get_job(%s)", suspect)  # gone back once
    queue.open_gate(2)
    queue.until_state("completed", long, suspect)
    assert [seen.attempts for seen in queue.seen(suspect)] == [1]


@pytest.mark.parametrize("task", ["note", "note_async", "note_batch"])
def test_jobs_run_though_each_answer_to_a_claim_takes_longer_than_a_second(
    queue: Any, network: Proxy, task: str
) -> None:
    def fault(message: Message) -> bool:
        if not message.up and message.kind == b"C" and ".work(" in message.about:
            threading.Event().wait(1.2)
        return True

    network.fault = fault
    queue.start("--dsn", network.dsn, "--concurrency", "2", modules="waiting")
    jobs = [queue.add(task) for _ in range(4)]
    queue.until_state("completed", *jobs)
    assert [seen.attempts for seen in queue.seen(*jobs)] == [1] * 4


def test_a_job_that_is_cancelled_while_the_answer_to_its_claim_is_late_does_not_begin(
    queue: Any, network: Proxy
) -> None:
    worker = queue.start("--dsn", network.dsn, "--concurrency", "2", modules="waiting").until_ready()
    claimed, arrives = threading.Event(), threading.Event()

    def fault(message: Message) -> bool:
        if not message.up and message.kind == b"D" and b"note" in message.raw:
            claimed.set()
            arrives.wait(30)
        return True

    queue.rows("select pyworker.set_queue('q', 10)")
    network.fault = fault
    job = queue.add("note", queue_name="q")
    assert claimed.wait(30)
    queue.rows("select pyworker.pause_queue('q')")
    queue.rows("select pg_sleep(1.2)")  # longer than an answer takes
    network.fault = None
    arrives.set()
    queue.until_state("available", job)
    assert queue.seen(job) == []
    queue.rows("select pyworker.resume_queue('q')")
    queue.until_state("completed", job)
    assert worker.stop() == 0


def test_a_rated_queue_is_not_used_up_by_jobs_that_go_back(queue: Any) -> None:
    queue.rows("select pyworker.set_queue('r', rate_limit := 100000, rate_period := interval '1 day')")
    jobs = behind_long_ones(queue, *[{"identifier": "silent", "queue_name": "r"}] * 50)
    queue.until(GONE, jobs)
    runs = queue.runs(*jobs)
    for _ in range(3):
        beat = queue.value("select max(beat_at) from pyworker.workers")
        queue.until("select max(beat_at) > %s from pyworker.workers", beat)
    assert queue.runs(*jobs) == runs
    queue.open_gate(1)
    queue.until_state("completed", *jobs)


def test_large_payloads_are_claimed_a_few_at_a_time(queue: Any) -> None:
    payload = {"x": "x" * 900_000}
    queue.rows(
        "select count(*) from (select pyworker.add_job('silent', %s::json) from generate_series(1, 1000)) x",
        json.dumps(payload),
    )
    worker = queue.start("--concurrency", "2", modules="waiting")
    queue.until("select count(*) >= 500 from pyworker.finished_jobs")
    (child,) = worker.children()
    queue.until("select count(*) = 1000 from pyworker.finished_jobs")
    peak = Path(f"/proc/{child}/status").read_text().split("VmHWM:")[1].split()[0]
    assert int(peak) < 200_000  # kB; the payloads have 900 MB


def test_a_worker_that_runs_once_ends_though_jobs_went_back(queue: Any) -> None:
    queue.close_gate(1)
    quick = [{"identifier": "silent"}] * QUICK
    long = {"identifier": "note", "payload": {"gate": 1}}
    jobs = add_all(queue, *quick, long, *[{"identifier": "silent"}] * 50)[-50:]
    worker = queue.start("--once", "--concurrency", "1", modules="waiting")
    queue.until_waiting(1)
    queue.until(GONE, jobs)
    queue.open_gate(1)
    assert worker.wait() == 0
    queue.until_state("completed", *jobs)
