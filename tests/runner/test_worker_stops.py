"""What a worker runs, and when it stops: options, signals."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from typing import Any

import pytest


def test_once_drains_queues_and_jobs_that_jobs_add_and_then_ends(queue: Any) -> None:
    plain = [queue.add("note") for _ in range(30)]
    serial = [queue.add("note", queue_name=f"q{n % 2}") for n in range(10)]
    chain = queue.add("follow", {"left": 3}, queue_name="chain")
    later = queue.add("note", run_at="2100-01-01")
    broken = queue.add("act", {"raise": ["error", ""]})
    queue.run_once("--concurrency", "4")
    assert set(queue.states(*plain, *serial, chain)) == {"completed"}
    assert queue.states(later, broken) == ["scheduled", "retryable"]
    assert queue.value("select count(*) from pyworker.history where task_identifier = 'follow'") == 4
    assert queue.value("select count(*) from pyworker.live_workers") == 0
    for n in range(2):
        assert [seen.job_id for seen in queue.seen(*serial[n::2])] == serial[n::2]


@pytest.mark.parametrize(
    ("options", "run"),
    [
        (["--queue", "a", "--queue", "default"], "a-t"),
        (["--task", "act", "--task", "note", "--queue", "default"], "-t"),
        (["--forbid-flag", "heavy", "--forbid-flag", "x"], "-at"),
    ],
    ids=" ".join,
)
def test_a_worker_runs_only_what_it_was_told_to(queue: Any, options: list[str], run: str) -> None:
    jobs = {
        "-": queue.add("note"),
        "a": queue.add("note", queue_name="a"),
        "t": queue.add("act"),
        "f": queue.add("note", flags=["heavy", "big"]),
    }
    if "--forbid-flag" not in options:
        queue.value("select pyworker.delete_job(%s)", jobs.pop("f"))
    queue.run_once(*options)
    assert {kind for kind, job_id in jobs.items() if queue.job(job_id).state == "completed"} == set(run)


def test_an_option_may_come_from_the_environment(queue: Any) -> None:
    mine, other = queue.add("note", queue_name="a"), queue.add("note")
    flagged = queue.add("note", queue_name="b", flags=["x"])
    queue.run_once(
        PYWORKER_RUN_QUEUE="a b", PYWORKER_RUN_FORBID_FLAG="x", PYWORKER_RUN_TASK="note",
        PYWORKER_RUN_CONCURRENCY="1",
        PYWORKER_RUN_LOG_LEVEL="warning",
    )  # fmt: skip
    assert queue.states(mine, other, flagged) == ["completed", "available", "available"]
    assert queue.workers[0].log == ""


def test_processes_share_the_work(queue: Any) -> None:
    queue.close_gate(1)
    jobs = [queue.add("note", {"gate": 1}) for _ in range(4)]
    worker = queue.start("--processes", "2", "--concurrency", "2")
    queue.until_waiting(1, 4)
    assert {seen.pid for seen in queue.seen()} == set(worker.children())
    assert queue.value("select count(*) from pyworker.live_workers") == 2
    queue.open_gate(1)
    queue.until_state("completed", *jobs)
    assert worker.stop() == 0


def test_no_more_handlers_than_allowed_run_at_once(queue: Any) -> None:
    queue.close_gate(1)
    jobs = [queue.add("note" if n % 2 else "act_async", {"gate": 1}) for n in range(8)]
    worker = queue.start("--concurrency", "3")
    queue.until_waiting(1, 3)
    assert len(queue.seen()) == 3
    queue.open_gate(1)
    queue.until_state("completed", *jobs)
    assert worker.stop() == 0


# -- signals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_when_told_to_stop_a_worker_ends_what_runs_and_hands_back_the_rest(queue: Any, number: int) -> None:
    queue.close_gate(1)
    quick = [queue.add("note", priority=-1) for _ in range(60)]  # so that some are claimed ahead
    slow = [queue.add("note" if n % 2 else "act_async", {"gate": 1}) for n in range(20)]
    worker = queue.start("--concurrency", "2", "--shutdown-timeout", "3600")
    queue.until_waiting(1, 2)
    queue.until_state("completed", *quick)
    worker.signal(number)
    queue.until("select count(*) = 18 from pyworker.jobs where state = 'available' and attempts = 0")
    late = queue.add("note", priority=-9)
    queue.open_gate(1)
    assert worker.wait() == 0
    assert sorted(queue.states(*slow)) == ["available"] * 18 + ["completed"] * 2
    assert queue.job(late).run == 0
    assert queue.value("select count(*) from pyworker.live_workers") == 0


@pytest.mark.parametrize("why", ["second signal", "timeout"])
def test_a_second_signal_or_the_timeout_hands_back_what_runs(queue: Any, why: str) -> None:
    queue.close_gate(1)
    jobs = [queue.add(task, {"gate": 1}) for task in ("note", "act_async")]
    worker = queue.start("--shutdown-timeout", "3600" if why == "second signal" else "0.1")
    queue.until_waiting(1, 2)
    worker.signal()
    if why == "second signal":
        worker.until_log("stopping")
        worker.signal()
    assert worker.wait() == 0
    assert [(job.state, job.attempts, job.run > 0, job.last_error) for job in map(queue.job, jobs)] == [
        ("available", 0, True, None)
    ] * 2


def test_a_handler_that_does_not_end_is_killed_and_its_job_handed_back(queue: Any) -> None:
    job_id = queue.add("hold_the_interpreter")
    worker = queue.start("--shutdown-timeout", "0")
    queue.until("select count(*) = 1 from public.seen")
    assert worker.stop() == 0
    assert (queue.job(job_id).state, queue.job(job_id).attempts) == ("available", 0)


def test_a_worker_that_is_told_to_stop_while_it_starts_stops(queue: Any, session: Any) -> None:
    other = session()
    other.run("begin")
    other.run("lock table pyworker.workers")
    job_id = queue.add("note")
    worker = queue.start("--shutdown-timeout", "3600")
    queue.until(
        "select count(*) > 0 from pg_stat_activity where wait_event_type = 'Lock' and query ~ 'open_worker'"
    )
    worker.signal()
    worker.until_log("stopping")
    other.run("rollback")
    assert worker.wait() == 0
    assert queue.job(job_id).run == 0


def test_a_worker_can_be_the_first_process_of_a_container(queue: Any) -> None:
    enter = ["unshare", "--pid", "--fork", "--kill-child"]
    if not shutil.which("unshare") or subprocess.run([*enter, "true"], capture_output=True).returncode:
        pytest.skip("a process namespace of one's own takes unshare and root")
    job_id = queue.add("leave_an_orphan")
    outer = queue.start(within=enter)
    queue.until_state("completed", job_id)
    (first,) = outer.children()
    assert queue.seen(job_id)[0].told == {"parent": 1}  # as it is numbered in there
    queue.until_so("its orphans are reaped", lambda: not any("Z" in stat for stat in queue.ps("stat", first)))
    os.kill(first, signal.SIGTERM)
    assert outer.wait() == 0
