"""Signals that reach more than the parent: a terminal's Ctrl-C, systemd's KillMode=control-group,
`kill -- -PGID`, nohup."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

STOPS = pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda n: n.name
)
GROUP = ("setsid",)  # a process group of the worker's own


@STOPS
def test_a_signal_to_the_whole_group_leaves_running_jobs_the_shutdown_timeout(
    queue: Any, number: int
) -> None:
    queue.close_gate(1)
    tasks = ("deliver", "deliver_async", "note", "act_async")  # the first two at most once
    jobs = [queue.add(task, {"gate": 1}) for task in tasks]
    options = ("--processes", "2", "--concurrency", "2", "--shutdown-timeout", "3600", "--log-level", "debug")
    worker = queue.start(*options, within=GROUP)
    queue.until_waiting(1, 4)
    runs = queue.runs(*jobs)
    late = queue.add("note")
    os.killpg(worker.pid, number)
    queue.until_so("both children know", lambda: worker.log.count("told to stop") == 2)
    queue.open_gate(1)
    assert worker.wait() == 0
    assert queue.states(*jobs) == ["completed"] * 4, worker.log
    assert queue.runs(*jobs) == runs
    assert queue.job(late).state == "available"
    assert "ended with" not in worker.log


@STOPS
def test_a_signal_to_the_whole_group_while_processes_start_stops_the_worker(queue: Any, number: int) -> None:
    """The child has just been started: Python itself still starts, or the modules are being imported."""
    job_id = queue.add("note")
    worker = queue.start("--shutdown-timeout", "3600", within=GROUP)
    queue.until_so("there is a child", lambda: bool(worker.children()))
    os.killpg(worker.pid, number)
    assert worker.wait() == 0
    assert "ended with" not in worker.log
    assert queue.job(job_id).attempts <= 1


def test_a_module_that_handles_signals_does_not_take_them_from_the_parent(queue: Any, tmp_path: Any) -> None:
    text = (
        "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\n"
        "from handlers import note\n"
    )
    (tmp_path / "mine.py").write_text(text)
    queue.close_gate(1)
    job_id = queue.add("note", {"gate": 1})
    worker = queue.start("--shutdown-timeout", "3600", modules="mine", within=GROUP)
    queue.until_waiting(1)
    (run,) = queue.runs(job_id)
    os.killpg(worker.pid, signal.SIGTERM)
    worker.until_log("stopping")
    queue.open_gate(1)
    assert worker.wait() == 0
    assert (queue.job(job_id).state, queue.job(job_id).run) == ("completed", run)


def test_a_program_that_a_handler_starts_gets_signals_as_any_program_does(served: Any) -> None:
    job_id = served.add("run_program", ["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"])
    served.until_state("completed", job_id)
    printed, _ = served.job(job_id).result
    sets = dict(line.split(":\t") for line in printed.splitlines())
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        inherited = signal.getsignal(number) is signal.SIG_IGN  # by these tests, from nohup
        assert inherited or not int(sets["SigIgn"], 16) >> (number - 1) & 1, number
        assert not int(sets["SigBlk"], 16) >> (number - 1) & 1, number


def test_a_hangup_stops_a_worker_and_a_second_one_does_not_hurry_it(queue: Any) -> None:
    """When a terminal closes, the kernel and the shell may both send one; systemd sends one after SIGTERM."""
    queue.close_gate(1)
    job_id = queue.add("note", {"gate": 1})
    worker = queue.start("--shutdown-timeout", "3600")
    queue.until_waiting(1)
    worker.signal(signal.SIGHUP)
    worker.until_log("stopping (SIGHUP)")
    worker.signal(signal.SIGHUP)
    queue.until(
        "select true from pyworker.live_workers where info ->> 'condition' = 'stopping'"
    )  # a turn later
    queue.open_gate(1)
    assert worker.wait() == 0
    assert queue.job(job_id).state == "completed"


def test_under_nohup_a_hangup_is_no_signal(queue: Any) -> None:
    worker = queue.start(within=("setsid", "nohup")).until_ready()
    os.killpg(worker.pid, signal.SIGHUP)
    job_id = queue.add("run_program", ["grep", "SigIgn", "/proc/self/status"])
    queue.until_state("completed", job_id)
    assert int(queue.job(job_id).result[0].split()[1], 16) & 1  # and of what it starts
    assert worker.stop() == 0
    assert "SIGHUP" not in worker.log
