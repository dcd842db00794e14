"""Exactly one outcome for each job that was begun, kept by real workers against handlers that mean harm."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.workers import one_worker

LIMIT = 33_000  # characters that an error may have: 32,000 and what says that some are left out

# By what the handler does: the job's state, and words of its error (a list), or its result.
EVERYWHERE: dict[str, tuple[str, Any]] = {
    "Cancel without init": ("cancelled", ["CardExpired: 4242"]),
    "Discard without init": ("discarded", ["Hopeless: no hope"]),
    "Snooze without init": ("retryable", ["Later", "delay", "super().__init__"]),
    "Snooze by nonsense": ("retryable", ["Sometime", "delay"]),
    "Snooze for ever": ("retryable", ["its report is malformed: delay_s"]),
    "Cancel that cannot be shown": ("cancelled", ["Unshowable"]),
    "huge Discard": ("discarded", ["xxx", "…"]),
    "deep Failed": ("retryable", ["elements of Failed cannot be stored"]),
    "Failed that is no JSON": ("retryable", ["elements of Failed cannot be stored"]),
    "bad notes": ("retryable", ["BadNotes"]),
    "bad text": ("retryable", ["BadText"]),
    "bad class": ("retryable", ["BadClass"]),
    "huge text": ("retryable", ["Traceback", "…"]),
    "SystemExit": ("retryable", ["SystemExit: bad config"]),
    "KeyboardInterrupt": ("retryable", ["KeyboardInterrupt"]),
    "GeneratorExit": ("retryable", ["GeneratorExit"]),
    "StopIteration": ("retryable", ["StopIteration"]),
    "BaseException": ("retryable", ["NoException"]),
    "group": ("retryable", ["KeyboardInterrupt", "ValueError: x"]),
    "recursion": ("retryable", ["RecursionError"]),
    "NUL result": ("completed", {"a\ufffdb": ["\ufffd\ufffd", "\\u0000", "\\\ufffd", "😀"]}),
    "half pair result": ("completed", ["\ufffd", "\ufffd\ufffd", "\\ud800", "😀"]),
    "closed streams": ("completed", None),
    "copy exits": ("completed", None),
    "copy returns": ("completed", None),
    "copy fails": ("completed", None),
}
ON_THE_LOOP: dict[str, tuple[str, Any]] = {
    "SystemExit in a subtask": ("retryable", ["SystemExit: bad config"]),
    "KeyboardInterrupt in a group": ("retryable", ["KeyboardInterrupt"]),
    "SystemExit in a callback": ("completed", None),
    "stopped loop": ("completed", None),
    "cancelled subtask": ("retryable", ["Traceback", "CancelledError"]),
    "cancels itself": ("retryable", ["Traceback", "CancelledError"]),
}
KINDS = {"sync": ("hostile", "1"), "async": ("hostile_async", "1"), "async on uvloop": ("hostile_async", "0")}


@pytest.fixture(scope="module", params=["1", "0"], ids=["asyncio", "uvloop"])
def served(
    request: Any, pg_template: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Any, str]]:
    """A database with one worker that has to bear all that follows in one process."""
    directory, options = tmp_path_factory.mktemp("hostile"), ("--concurrency", "5")
    loop = {"PYWORKER_RUN_NO_UVLOOP": request.param}
    with one_worker(pg_template, "hostile", directory, *options, modules="handlers hostile", **loop) as queue:
        worker = queue.workers[0].until_ready()
        (child,) = worker.children()
        yield queue, request.param
        assert worker.children() == [child], "another process had to take its place"


@pytest.mark.parametrize(
    ("task", "how"),
    [
        *(("hostile", how) for how in EVERYWHERE),
        *(("hostile_async", how) for how in EVERYWHERE | ON_THE_LOOP),
    ],
)
def test_a_hostile_handler_has_one_outcome_its_neighbours_complete_and_the_worker_goes_on(
    served: Any, task: str, how: str
) -> None:
    queue, no_uvloop = served
    if task == "hostile" and no_uvloop == "0":
        pytest.skip("sync handlers know nothing of the loop")
    state, expected = {**EVERYWHERE, **ON_THE_LOOP}[how]
    (child,) = queue.workers[0].children()
    queue.close_gate(1)
    neighbours = [queue.add(kind, {"gate": 1, "value": 1}) for kind in ("note", "act_async", "act_async")]
    queue.until_waiting(1, 3)
    runs = queue.runs(*neighbours)
    job_id = queue.add(task, {"how": how})
    try:
        queue.until_state(state, job_id)
    finally:
        queue.open_gate(1)
    queue.until_state("completed", *neighbours)
    assert [queue.begun(one) for one in neighbours] == [[(1, 1)]] * 3
    assert queue.runs(*neighbours) == runs
    after = [queue.add("note"), queue.add("act_async")]
    queue.until_state("completed", *after)
    assert queue.workers[0].children() == [child]
    job = queue.job(job_id)
    assert (len({seen.run for seen in queue.seen(job_id)} | {job.run}), job.attempts) == (1, 1)
    assert [seen.told for seen in queue.seen(job_id)] == [None, *(["copy"] if "copy" in how else [])]
    if state == "completed":
        assert job.result == expected
    else:
        assert [word for word in expected if word not in job.last_error] == []
        assert len(job.last_error) <= LIMIT
        errors = queue.rows("select error from pyworker.job_errors(%s)", job_id)
        assert [row.error for row in errors] == [job.last_error]
    assert queue.ps("pid", child) == [], "a copy of the process was left behind"


@pytest.mark.parametrize("no_uvloop", ["1", "0"])
def test_tasks_that_are_cancelled_before_they_begin_have_an_outcome_too(queue: Any, no_uvloop: str) -> None:
    with queue.conn.transaction():  # claimed together, so that the last ones have not begun
        culprit = queue.add("cancel_all", priority=-1)
        others = [queue.add("bystander") for _ in range(5)]
    queue.run_once("--concurrency", "6", modules="hostile", PYWORKER_RUN_NO_UVLOOP=no_uvloop)
    assert queue.states(culprit) == ["completed"]
    assert queue.value("select count(*) from pyworker.jobs where state = 'running'") == 0
    for job in map(queue.job, others):
        assert job.state == "completed" or (job.state == "retryable" and "CancelledError" in job.last_error)


@pytest.mark.parametrize(
    ("task", "how", "exits"),
    [
        ("ends_process", "exits with 0", "code 0"),
        ("ends_process", "exits with 78", "code 78"),
        ("ends_process_async", "exits with 0", "code 0"),
    ],
)
def test_a_handler_that_ends_its_process_is_found_out_at_every_exit_code(
    queue: Any, task: str, how: str, exits: str
) -> None:
    """Any of those that ran may be to blame: each runs alone the next time, and only the culprit
    loses an attempt."""
    queue.close_gate(1)
    worker = queue.start("--concurrency", "4", modules="handlers hostile").until_ready()
    neighbours = [queue.add(kind, {"gate": 1}, max_attempts=1) for kind in ("note", "act_async")]
    queue.until_waiting(1, 2)
    culprit = queue.add(task, {"how": how})
    worker.until_log(f"ended with {exits}; starting another")
    queue.open_gate(1)
    queue.until_state("completed", culprit, *neighbours)
    assert queue.begun(culprit) == [(1, 1), (2, 1), (3, 2)]
    assert [queue.job(one).attempts for one in neighbours] == [1, 1]
    assert exits in queue.value("select min(error) from pyworker.job_errors(%s)", culprit)
    assert worker.stop() == 0


@pytest.mark.parametrize(
    ("task", "how"),
    [
        ("ends_process", "breaks what the worker needs"),
        ("ends_process_async", "breaks what the worker needs"),
        ("ends_process_async", "breaks the loop"),
    ],
)
def test_where_an_outcome_cannot_be_kept_the_process_ends_loudly_and_blames_only_the_culprit(
    queue: Any, task: str, how: str
) -> None:
    queue.rows("select pyworker.configure(max_crashes => 2)")
    queue.close_gate(1)
    worker = queue.start("--concurrency", "4", modules="handlers hostile").until_ready()
    neighbours = [queue.add("note", {"gate": 1}, max_attempts=1) for _ in range(2)]
    queue.until_waiting(1, 2)
    culprit = queue.add(task, {"how": how, **({"then": 3600} if "loop" in how else {})})
    worker.until_log("starting another")
    queue.open_gate(1)
    queue.until_state("completed", culprit, *neighbours)
    assert queue.begun(culprit) == [(1, 1), (2, 2)]
    assert [queue.job(one).attempts for one in neighbours] == [1, 1]
    assert [queue.rows("select from pyworker.job_errors(%s)", one) for one in neighbours] == [[], []]
    assert f"this process ends, as it cannot go on after job {culprit} ({task})" in worker.log
    assert worker.stop() == 0


def test_what_has_ended_before_a_process_has_to_end_is_reported(queue: Any) -> None:
    """The handler breaks the loop and returns: its job is completed, and does not run again."""
    queue.close_gate(1)
    worker = queue.start("--concurrency", "4", modules="handlers hostile").until_ready()
    neighbour = queue.add("note", {"gate": 1}, max_attempts=1)
    queue.until_waiting(1)
    culprit = queue.add("ends_process_async", {"how": "breaks the loop"})
    worker.until_log("starting another")
    queue.open_gate(1)
    queue.until_state("completed", culprit, neighbour)
    assert queue.begun(culprit) == [(1, 1)]
    assert queue.job(neighbour).attempts == 1
    assert worker.stop() == 0


@pytest.mark.parametrize("how", ["force", "force and retry"])
def test_a_run_that_was_taken_from_its_handler_does_not_disturb_the_next_run_of_the_job(
    queue: Any, how: str
) -> None:
    queue.close_gate(1)
    worker = queue.start("--concurrency", "3", modules="handlers hostile").until_ready()
    job_id = queue.add("stubborn", {"gate": 1})
    queue.until_waiting(1)
    (first,) = queue.runs(job_id)
    queue.rows("select pyworker.cancel_job(%s, true)", job_id)
    if how == "force and retry":
        queue.rows("select pyworker.retry_job(%s)", job_id)
        queue.until_waiting(1, 2)
    queue.open_gate(1)
    queue.until_state("completed" if how == "force and retry" else "cancelled", job_id)
    last = queue.add("note")
    queue.until_state("completed", last)
    job = queue.job(job_id)
    assert job.result == (job.run if how == "force and retry" else None)
    assert (job.run > first) == (how == "force and retry")
    assert worker.stop() == 0


# job.transaction() and job.once()


@pytest.mark.parametrize("task", ["in_transactions", "in_transactions_async"])
@pytest.mark.parametrize("how", ["inside", "after"])
def test_a_second_transaction_of_a_job_is_refused_and_the_first_one_holds(
    queue: Any, task: str, how: str
) -> None:
    job_id = queue.add(task, {"how": how})
    queue.run_once("--concurrency", "1", modules="hostile")
    assert queue.states(job_id) == ["completed"]
    (written,) = [seen.told for seen in queue.seen(job_id) if not isinstance(seen.told, list)]
    (refused,) = [seen.told for seen in queue.seen(job_id) if isinstance(seen.told, list)]
    assert written == "outer"
    assert refused[0].startswith("WrongState: job.transaction(): ")
    assert ("inside" in refused[0]) == (how == "inside")


@pytest.mark.parametrize("task", ["in_transactions", "in_transactions_async"])
def test_what_a_handler_raises_after_its_transaction_changes_nothing_and_is_logged_as_that(
    queue: Any, task: str
) -> None:
    job_id = queue.add(task, {"how": "raises after"}, max_attempts=1)
    queue.run_once("--concurrency", "1", modules="hostile")
    assert queue.states(job_id) == ["completed"]
    log = queue.workers[0].log
    assert (
        f"job {job_id} ({task}) attempt 1 of 1 raised after job.transaction() had completed it: "
        f"ValueError: too late" in log
    )
    assert "is discarded" not in log


@pytest.mark.parametrize("task", ["in_transactions", "in_transactions_async"])
def test_a_refused_second_transaction_that_is_not_caught_fails_the_job_and_undoes_the_first(
    queue: Any, task: str
) -> None:
    job_id = queue.add(task, {"how": "inside", "raise": True})
    queue.run_once("--concurrency", "1", modules="hostile")
    assert queue.states(job_id) == ["retryable"]
    assert queue.seen(job_id) == []


@pytest.mark.parametrize("task", ["in_transactions", "in_transactions_async"])
def test_after_a_transaction_that_was_rolled_back_another_one_may_be_tried(queue: Any, task: str) -> None:
    job_id = queue.add(task, {"how": "after rollback"})
    queue.run_once("--concurrency", "1", modules="hostile")
    assert queue.states(job_id) == ["completed"]
    assert [seen.told for seen in queue.seen(job_id)] == ["outer", []]


@pytest.mark.parametrize("task", ["once_in_transaction", "once_in_transaction_async"])
def test_once_inside_a_transaction_is_committed_at_once_and_outlives_its_rollback(
    queue: Any, task: str
) -> None:
    jobs = [queue.add(task, {"fail": True}) for _ in range(4)]
    queue.run_once("--concurrency", "2", modules="hostile")
    assert set(queue.states(*jobs)) == {"retryable"}
    assert [seen.told for seen in queue.seen()] == [True] * 4
    for job_id in jobs:
        assert "Timeout" not in queue.job(job_id).last_error
        queue.rows("select pyworker.retry_job(%s)", job_id)
    queue.run_once("--concurrency", "2", modules="hostile")
    assert [seen.told for seen in queue.seen()] == [True] * 4 + [False] * 4


# Where it runs


def test_a_worker_runs_on_a_file_system_that_cannot_be_written_to(queue: Any) -> None:
    enter = ["unshare", "--mount", "--propagation", "private"]
    if (
        not shutil.which("unshare")
        or os.geteuid()
        or subprocess.run([*enter, "true"], capture_output=True).returncode
    ):
        pytest.skip("mounts of one's own take unshare and root")
    close = (
        "awk '{print $5}' /proc/self/mountinfo | sort -u | while read m; do"
        ' case $m in /proc*|/sys*|/dev/pts*) ;; *) mount -o remount,bind,ro "$m" 2>/dev/null;; esac; done;'
        " cd /; for d in /tmp /var/tmp /dev/shm .; do if touch $d/probe 2>/dev/null; then exit 99; fi; "
        'done; exec "$@"'
    )
    job_id = queue.add("note")
    worker = queue.start("--once", modules="handlers", within=[*enter, "sh", "-c", close, "sh"])
    code = worker.wait()
    if code == 99:
        pytest.skip("this machine's mounts cannot be made read-only")
    assert code == 0, worker.log
    assert queue.states(job_id) == ["completed"]


def test_a_process_that_dies_while_it_is_idle_blames_no_job(queue: Any) -> None:
    worker = queue.start("--concurrency", "2", modules="handlers hostile").until_ready()
    (child,) = worker.children()
    os.kill(child, signal.SIGKILL)
    worker.until_log("ended with signal SIGKILL; starting another")
    job_id = queue.add("note")
    queue.until_state("completed", job_id)
    assert queue.job(job_id).attempts == 1
    assert worker.stop() == 0


def test_a_handler_that_starts_all_threads_that_there_may_be_does_not_end_the_parent(queue: Any) -> None:
    if os.geteuid() or not shutil.which("setpriv") or not shutil.which("prlimit"):
        pytest.skip("a limit of one's own takes root, setpriv and prlimit")
    caps = "+dac_override,+dac_read_search"  # it reads what only root may
    user = ["setpriv", "--reuid", str(40_000 + os.getpid() % 20_000), "--clear-groups"]
    may = ["--inh-caps", caps, "--ambient-caps", caps, "prlimit", "--nproc=60"]  # root has no such limit
    queue.close_gate(1)
    job_id = queue.add("starts_threads", {"gate": 1})
    worker = queue.start("--concurrency", "1", modules="handlers hostile", within=[*user, *may])
    queue.until_waiting(1)
    for _ in range(2):
        beat = queue.value("select beat_at from pyworker.workers")
        queue.until("select beat_at > %s from pyworker.workers", beat)
    queue.open_gate(1)
    queue.until_state("completed", job_id)
    assert worker.stop() == 0
