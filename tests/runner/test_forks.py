"""Processes that handlers start, by fork, by multiprocessing or as programs: what they inherit, and when
they end."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.workers import one_worker

MODULES = "handlers forking"
METHODS = pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])


@pytest.fixture(scope="module")
def served(pg_template: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    directory = tmp_path_factory.mktemp("forks")
    with one_worker(pg_template, "forks", directory, "--concurrency", "4", modules=MODULES) as queue:
        yield queue


def result_of(queue: Any, task: str, **payload: Any) -> Any:
    job_id = queue.add(task, payload)
    queue.until("select (pyworker.get_job(%s)).state in ('completed', 'discarded')", job_id)
    job = queue.job(job_id)
    assert job.state == "completed", job.last_error
    return job.result


@METHODS
@pytest.mark.parametrize("task", ["terminated", "terminated_async"])
def test_a_process_of_multiprocessing_ends_at_a_signal_that_comes_at_once(
    served: Any, task: str, method: str
) -> None:
    codes = result_of(served, task, method=method, numbers=[signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
    assert codes[:2] == [-signal.SIGTERM, -signal.SIGHUP]
    assert codes[2] in (1, -signal.SIGINT)  # by KeyboardInterrupt, or while Python ends


@METHODS
def test_a_pool_is_left_while_its_process_is_busy(served: Any, method: str) -> None:
    assert result_of(served, "pool", method=method) == 49


def test_an_executor_of_which_a_process_has_ended_is_broken_and_does_not_hang(served: Any) -> None:
    """With the other methods Python 3.11 itself may hang."""
    assert result_of(served, "broken_executor", method="fork") == "BrokenProcessPool"


@pytest.mark.parametrize("task", ["job_in_a_copy", "job_in_a_copy_async"])
def test_a_forked_copy_that_uses_the_job_is_refused_and_the_handlers_connections_are_whole(
    served: Any, task: str
) -> None:
    of_job, of_connection, first = result_of(served, task)
    assert of_job.startswith("a job belongs to the process that runs the handler")
    assert of_connection.startswith("the connection of job.step_transaction() belongs to the process")
    assert first is True  # the copy has set no mark


def test_a_program_whose_start_runs_python_code_has_default_signals(served: Any) -> None:
    sets = dict(line.split(":\t") for line in result_of(served, "preexec").splitlines())
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            for which in ("SigBlk", "SigIgn", "SigCgt"):
                assert not int(sets[which], 16) >> (number - 1) & 1, (which, number)


def test_a_copy_that_a_thread_of_a_handler_makes_ends_at_a_signal(served: Any) -> None:
    assert result_of(served, "copy_of_a_thread") == [-signal.SIGTERM]


# -- when they end ---------------------------------------------------------------------------------


WITH_ITS_PROCESS = ["program", "shell", "ignores SIGTERM", "copy", "executor", "process"]


@pytest.mark.parametrize("start", WITH_ITS_PROCESS)
@pytest.mark.parametrize("end", ["time limit", "cancelled", "SIGTERM", "SIGKILL", "once"])
def test_what_a_handler_has_started_ends_with_its_process(queue: Any, start: str, end: str) -> None:
    then = {"time limit": "wait", "cancelled": "wait", "SIGTERM": "wait"}.get(end, "return")
    task = "starts_for_long" if end == "time limit" else "starts"
    job_id = queue.add(task, {"start": start, "then": then})
    options = ["--once"] if end == "once" else ["--shutdown-timeout", "0.5"]
    if end == "once":
        queue.close_gate(1)
        held = queue.add("note", {"gate": 1})
    worker = queue.start("--concurrency", "2", *options, modules=MODULES)
    queue.until("select count(*) > 0 from public.seen where job_id = %s", job_id)
    pids = queue.seen(job_id)[0].told
    with queue.ends_of([*pids, *worker.children()]):
        if end == "cancelled":
            queue.rows("select pyworker.cancel_job(%s)", job_id)
        elif end == "SIGTERM":
            worker.signal()
        elif end == "SIGKILL":
            queue.until_state("completed", job_id)
            os.kill(worker.children()[0], signal.SIGKILL)
        elif end == "once":
            queue.open_gate(1)
            queue.until_state("completed", held, job_id)
    if end in ("SIGTERM", "once"):
        assert worker.wait() == 0
    else:
        assert worker.stop() == 0
    if end == "time limit":
        assert queue.states(job_id) == ["retryable"]


def test_the_next_attempt_begins_when_the_programs_of_the_last_one_have_ended(
    queue: Any, tmp_path: Path
) -> None:
    """They get SIGTERM and two seconds before SIGKILL."""
    job_id = queue.add("cleans_up", {"file": str(tmp_path / "cleaned")}, max_attempts=2)
    worker = queue.start("--concurrency", "1", modules=MODULES)
    queue.until("select count(*) > 1 from public.seen where job_id = %s", job_id)
    assert (tmp_path / "cleaned").read_text() == "cleaned\n"
    queue.until_state("discarded", job_id)
    assert worker.stop() == 0


def test_a_program_in_a_session_of_its_own_goes_on(queue: Any) -> None:
    job_id = queue.add("starts", {"start": "own session"})
    queue.run_once(modules=MODULES)
    (pid,) = queue.seen(job_id)[0].told
    os.kill(pid, 0)
    with queue.ends_of([pid]):
        os.kill(pid, signal.SIGTERM)


def test_a_signal_to_the_workers_group_reaches_no_program_of_a_job_that_may_still_end(queue: Any) -> None:
    """As Ctrl-C in a terminal: the job has the shutdown timeout, and its program with it."""
    queue.close_gate(1)
    job_id = queue.add("starts", {"start": "program"})
    gated = queue.add("note", {"gate": 1})
    worker = queue.start(
        "--concurrency", "2", "--shutdown-timeout", "3600", modules=MODULES, within=("setsid",)
    )
    queue.until_waiting(1)
    queue.until_state("completed", job_id)
    (pid,) = queue.seen(job_id)[0].told
    os.killpg(worker.pid, signal.SIGINT)
    worker.until_log("stopping (SIGINT)")
    os.kill(pid, 0)
    queue.open_gate(1)
    with queue.ends_of([pid]):
        assert worker.wait() == 0
    assert queue.states(gated) == ["completed"]


# -- exit hooks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["once", "SIGTERM", "memory", "broken"])
def test_exit_hooks_run_when_a_process_ends(queue: Any, tmp_path: Path, end: str) -> None:
    file = tmp_path / "hooks"
    job_id = queue.add("on_exit", {"file": str(file)})
    options = {"once": ["--once"], "memory": ["--max-memory", "100"]}.get(end, [])
    worker = queue.start("--concurrency", "2", *options, modules="handlers hostile forking")
    queue.until_state("completed", job_id)
    if end == "memory":
        queue.add("hold_memory", {"mb": 70})
    elif end == "broken":
        queue.add("ends_process", {"how": "breaks what the worker needs"})
    elif end == "SIGTERM":
        worker.signal()
    queue.until_so("hooks have run", lambda: file.exists() and len(file.read_text().split()) == 2)
    assert file.read_text().split() == ["hook", "flushed"]
    assert worker.wait() == 0 if end in ("once", "SIGTERM") else worker.stop() == 0


@pytest.mark.parametrize("how", ["hook", "thread"])
@pytest.mark.parametrize("end", ["once", "SIGTERM"])
def test_an_exit_hook_or_a_thread_that_hangs_is_cut(queue: Any, tmp_path: Path, how: str, end: str) -> None:
    job_id = queue.add("on_exit", {"file": str(tmp_path / "hooks"), "hangs": how})
    worker = queue.start(*(["--once"] if end == "once" else []), modules=MODULES)
    queue.until_state("completed", job_id)
    if end == "SIGTERM":
        worker.signal()
    assert worker.wait() == 0
    assert "had not ended after 5 s" in worker.log
    assert "ended with" not in worker.log


def test_exit_hooks_wait_for_no_handler_whose_job_was_handed_back(queue: Any, tmp_path: Path) -> None:
    """Another worker may run that job already."""
    file = tmp_path / "hooks"
    first = queue.add("on_exit", {"file": str(file)})
    worker = queue.start("--shutdown-timeout", "0.1", modules=MODULES)
    queue.until_state("completed", first)
    held = queue.add("starts", {"start": "program", "then": "wait"})
    queue.until("select count(*) > 0 from public.seen where job_id = %s", held)
    assert worker.stop() == 0
    assert queue.states(held) == ["available"]
    assert not file.exists()
