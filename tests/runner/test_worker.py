"""Promises of `pyworker run`, kept by real processes on a real database."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from typing import Any

import pytest

both = pytest.mark.parametrize(
    ("served", "kind"), [({}, ""), ({}, "_async"), ({"PYWORKER_RUN_NO_UVLOOP": "0"}, "_async")],
    indirect=["served"], ids=["sync", "async", "async on uvloop"],
)  # fmt: skip
EVERYTHING = (
    "select count(*) = 0 from pyworker.jobs where state not in ('discarded', 'scheduled', 'retryable')"
)


# -- one worker for all of these --------------------------------------------------------------------------------------


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
    assert "could not be stored" in served.job(job_id).last_error
    assert served.job(job_id).payload == value  # a batch is tried again whole rather than changed


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


# -- workers of their own: what they run, and when --------------------------------------------------------------------


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
        PYWORKER_RUN_QUEUE="a b", PYWORKER_RUN_FORBID_FLAG="x", PYWORKER_RUN_TASK="note", PYWORKER_RUN_CONCURRENCY="1",
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


# -- signals ----------------------------------------------------------------------------------------------------------


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


def test_a_handler_that_does_not_let_go_is_killed_and_its_job_handed_back(queue: Any) -> None:
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
        "select count(*) > 0 from pg_stat_activity where wait_event_type = 'Lock' and query ~ 'register_worker'"
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


# -- crashes ----------------------------------------------------------------------------------------------------------


def test_a_dead_childs_jobs_are_handed_on_and_another_child_takes_its_place(queue: Any) -> None:
    queue.close_gate(1)
    bystander = queue.add("note", {"gate": 1}, priority=-1)
    worker = queue.start()
    queue.until_waiting(1)
    (child,) = worker.children()
    killer = queue.add("die")
    queue.until("select count(*) = 2 from public.seen where job_id = %s", bystander)
    queue.open_gate(1)
    queue.until_state("completed", bystander, killer)
    assert [(seen.attempts, seen.pid == child) for seen in queue.seen(bystander)] == [(1, True), (1, False)]
    # Either might have been to blame the first time; the second time it was alone.
    assert [seen.attempts for seen in queue.seen(killer)] == [1, 1, 2]
    assert len({seen.run for seen in queue.seen(killer)}) == 3
    errors = queue.rows("select run, error from pyworker.job_errors(%s)", killer)
    assert [error.run for error in errors] == [seen.run for seen in queue.seen(killer)][:2]
    assert "SIGKILL" in errors[1].error
    assert "ended with signal SIGKILL; starting another" in worker.log
    assert worker.stop() == 0


def test_a_job_that_kills_every_worker_is_discarded_when_its_attempts_are_used_up(queue: Any) -> None:
    job_id = queue.add("die", {"always": True}, max_attempts=2)
    worker = queue.start()
    queue.until_state("discarded", job_id)
    assert len(queue.seen(job_id)) == 2
    worker.until_log(f"job {job_id} is discarded now: worker lost on the last attempt")
    last = queue.add("note")
    queue.until_state("completed", last)
    assert worker.stop() == 0


def test_a_job_that_kills_three_processes_is_discarded_and_its_neighbours_lose_no_attempt(queue: Any) -> None:
    queue.close_gate(1)
    neighbours = [queue.add("note", {"gate": 1}, max_attempts=1, priority=-1) for _ in range(3)]
    worker = queue.start("--concurrency", "5")
    queue.until_waiting(1, handlers=3)
    killer = queue.add("die", {"always": True})
    queue.until("select count(*) = 4 from public.seen where job_id = any (%s)", neighbours)
    queue.open_gate(1)
    queue.until_state("discarded", killer)
    queue.until_state("completed", *neighbours)
    job = queue.job(killer)
    assert (job.reason, len(queue.seen(killer))) == ("it ended 3 worker processes", 3)
    assert [queue.job(one).attempts for one in neighbours] == [1, 1, 1]
    assert worker.stop() == 0


def test_children_do_not_outlive_a_killed_parent_and_their_jobs_are_handed_on_after_the_lease(
    queue: Any, clock: Any, db: Any
) -> None:
    queue.close_gate(1)
    jobs = [queue.add(task, {"gate": 1}) for task in ("note", "act_async")]
    frozen = queue.add("hold_the_interpreter")
    worker = queue.start("--processes", "2", "--concurrency", "2")
    queue.until_waiting(1, 2)
    queue.until("select count(*) = 1 from public.seen where task = 'hold_the_interpreter'")
    with queue.ends_of(worker.children()):
        worker.signal(signal.SIGKILL)
    queue.open_gate(1)
    rescue = "select (pyworker.maintain() ->> 'rescued')::integer"
    assert queue.value(rescue) == 0  # not before
    clock.advance(seconds=21)
    assert db.execute(rescue).fetchone()[0] == 3
    assert [(job.state, job.attempts) for job in map(queue.job, [*jobs, frozen])] == [("available", 1)] * 3
    queue.value("select pyworker.delete_job(%s)", frozen)
    queue.run_once()
    assert queue.states(*jobs) == ["completed"] * 2


@pytest.mark.parametrize("attempt", [1, 2])
def test_a_worker_survives_the_loss_of_all_its_connections_and_runs_nothing_twice(
    queue: Any, attempt: int
) -> None:
    queue.close_gate(1)
    slow = [queue.add(task, {"gate": 1}) for task in ("note", "act_async", "write", "write_async")]
    worker = queue.start("--concurrency", "6", "--processes", str(attempt))
    queue.until_waiting(1, 4)
    ours = "datname = current_database() and query !~ 'advisory' and pid <> pg_backend_pid() and application_name = 'pyworker'"
    assert (
        queue.value(f"select count(pg_terminate_backend(pid, 10000)) from pg_stat_activity where {ours}") >= 2
    )
    more = [queue.add("note") for _ in range(3)]
    queue.until_state("completed", *more)
    queue.open_gate(1)
    queue.until_state("completed", *slow)
    assert sorted(seen.job_id for seen in queue.seen()) == sorted([*slow, *more])
    assert worker.stop() == 0


@pytest.mark.parametrize("connection", ["kept", "lost"])
def test_a_worker_that_was_declared_dead_registers_again(
    queue: Any, clock: Any, db: Any, connection: str
) -> None:
    worker = queue.start().until_ready()
    (before,) = queue.rows("select id from pyworker.live_workers")
    clock.advance(seconds=21)
    db.execute("select pyworker.maintain()")
    if connection == "lost":
        queue.value(
            "select count(pg_terminate_backend(pid)) from pg_stat_activity where application_name = 'pyworker'"
        )
    job_id = queue.add("note")
    queue.until_state("completed", job_id)
    (after,) = queue.rows("select id from pyworker.live_workers")
    assert after.id > before.id
    assert "Traceback" not in worker.log
    assert worker.stop() == 0


def test_a_late_word_of_a_worker_that_lost_its_job_is_refused(queue: Any) -> None:
    queue.close_gate(1)
    job_id = queue.add("act", {"gate": 1, "value": "first"})
    worker = queue.start()
    queue.until_waiting(1)
    queue.value("select pyworker.cancel_job(%s, true)", job_id)
    queue.open_gate(1)
    queue.until_state("completed", queue.add("note"))
    assert worker.stop() == 0
    assert (queue.job(job_id).state, queue.job(job_id).result) == ("cancelled", None)


# -- database and package ---------------------------------------------------------------------------------------------


def test_a_breaking_upgrade_lets_running_jobs_end_and_stops_the_worker_with_57(fresh_queue: Any) -> None:
    fresh_queue.close_gate(1)
    jobs = [fresh_queue.add("note", {"gate": 1}) for _ in range(2)]
    worker = fresh_queue.start("--processes", "2", "--concurrency", "1")
    fresh_queue.until_waiting(1, 2)
    fresh_queue.rows("insert into pyworker.migrations values (998, 'x', false), (999, 'x', true)")
    fresh_queue.rows("select pg_notify('pyworker', 'migrate')")
    worker.until_log("breaking")
    late = fresh_queue.add("note")
    fresh_queue.open_gate(1)
    assert worker.wait() == 57
    assert fresh_queue.states(*jobs, late) == ["completed", "completed", "available"]
    assert "pip install -U pyworker-pg" in worker.log


def test_an_upgrade_that_is_not_breaking_disturbs_no_worker(fresh_queue: Any) -> None:
    worker = fresh_queue.start().until_ready()
    fresh_queue.rows("insert into pyworker.migrations values (998, 'x', false)")
    fresh_queue.rows("select pg_notify('pyworker', 'migrate')")
    fresh_queue.until_state("completed", fresh_queue.add("note"))
    assert worker.stop() == 0


def test_a_worker_that_does_not_fit_the_database_says_so_in_one_line(fresh_queue: Any) -> None:
    fresh_queue.rows("drop schema pyworker cascade; create schema pyworker")
    worker = fresh_queue.start()
    assert worker.wait() == 56
    assert worker.log == (
        "pyworker: there is no pyworker in schema 'pyworker' of this database, or a very old one. Run: pyworker migrate\n"
    )


def test_a_worker_of_an_older_version_goes_on_with_a_newer_database_that_is_not_breaking(
    fresh_queue: Any,
) -> None:
    job_id = fresh_queue.add("note")
    fresh_queue.rows("insert into pyworker.migrations values (999, 'x', false)")
    fresh_queue.run_once()
    assert fresh_queue.states(job_id) == ["completed"]


# -- tasks that cannot be used ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "options", "words"),
    [
        (None, [], ["there is no module 'mine'"]),
        (
            "import nothing_like_it",
            [],
            ["module 'mine' cannot be imported", "No module named 'nothing_like_it'"],
        ),
        (
            "from pyworker import task\n@task(max_attempts=0)\ndef f(): pass",
            [],
            ["<task f (mine.f)>: define_task: max_attempts must be from 1 to 32767, got 0"],
        ),
        (
            "from pyworker import task\n@task\ndef f(): pass",
            ["--task", "g"],
            ["--task g: no such task (known: f)"],
        ),
    ],
    ids=["no module", "missing import", "refused default", "--task"],
)
def test_a_worker_that_cannot_load_its_tasks_says_why_and_exits(
    queue: Any, tmp_path: Any, module: str | None, options: list[str], words: list[str]
) -> None:
    if module is not None:
        (tmp_path / "mine.py").write_text(module)
    worker = queue.start("--processes", "2", *options, modules="mine")
    assert worker.wait() == 1
    for word in words:
        assert word in worker.log


def test_a_package_is_loaded_with_all_its_modules(queue: Any, tmp_path: Any) -> None:
    for name, text in {
        "__init__": "", "__main__": "raise SystemExit", "a": "from pyworker import task\n@task\ndef one(): pass",
        "deep/__init__": "", "deep/b": "from pyworker import task\n@task\ndef two(): pass",
    }.items():  # fmt: skip
        (tmp_path / "app" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "app" / f"{name}.py").write_text(text)
    jobs = [queue.add("one"), queue.add("two"), queue.add("note")]
    queue.run_once(modules="app handlers")
    assert queue.states(*jobs) == ["completed"] * 3


# -- logs -------------------------------------------------------------------------------------------------------------


def test_every_line_of_a_json_log_is_json_and_tells_of_the_job(queue: Any) -> None:
    job_id = queue.add("log_a_line")
    failing = queue.add("act", {"raise": ["error", "canary\n\x1b"], "secret": "not for the log"})
    queue.run_once("--log-format", "json", "--log-level", "debug")
    lines = [json.loads(line) for line in queue.workers[0].log.splitlines()]
    assert {"time", "level", "logger", "message", "pid"} <= set.intersection(*(set(line) for line in lines))
    (line,) = [line for line in lines if line["message"] == "two\nlines"]
    told = (line["job_id"], line["run"], line["task"], line["level"])
    assert told == (job_id, queue.job(job_id).run, "log_a_line", "info")
    (line,) = [line for line in lines if line.get("job_id") == failing]
    assert (line["level"], line["task"], line["attempt"]) == ("warning", "act", 1)
    assert line["message"] == f"job {failing} (act) attempt 1 of 25 failed: Canary: canary …".replace(
        "Canary", "handlers.Canary"
    )
    assert line["exception"].startswith("Traceback (most recent call last):\n")
    assert "not for the log" not in queue.workers[0].log


def test_without_tracebacks_the_log_says_what_was_raised_and_no_more(queue: Any) -> None:
    job_id = queue.add("act", {"raise": ["error", "canary"]})
    queue.run_once("--no-tracebacks")
    (line,) = [line for line in queue.workers[0].log.splitlines() if f"job {job_id} " in line]
    assert line.endswith(f"job {job_id} (act) attempt 1 of 25 failed: handlers.Canary: canary")
    assert "Traceback" not in queue.workers[0].log


@pytest.mark.parametrize(
    ("task", "payload", "options", "reason"),
    [
        ("act", {"raise": ["error", "x"]}, {"max_attempts": 1}, "out of attempts"),
        ("act_async", {"raise": ["error", "x"]}, {"max_attempts": 1}, "out of attempts"),
        ("act", {"raise": ["discard", "hopeless"]}, {}, "discarded by its handler"),
        ("deliver", {"fail": True}, {}, "failed, and must not be run twice"),
    ],
)
def test_the_log_says_that_a_job_is_discarded_now(
    queue: Any, task: str, payload: Any, options: Any, reason: str
) -> None:
    retried = queue.add("act", {"raise": ["error", "x"]}, max_attempts=2)
    queue.start().until_ready()
    job_id = queue.add(task, payload, **options)
    queue.until_state("discarded", job_id)
    queue.workers[0].until_log(f"job {job_id} ({task}) is discarded now: {reason}")
    assert queue.workers[0].stop() == 0
    assert f"job {retried} (act) is discarded" not in queue.workers[0].log


def test_an_outcome_is_logged_with_its_reason_and_without_a_traceback(queue: Any) -> None:
    job_id = queue.add("act", {"raise": ["cancel", "not wanted"]})
    queue.run_once()
    (line,) = [line for line in queue.workers[0].log.splitlines() if f"job {job_id} " in line]
    assert line.endswith(f"job {job_id} (act) attempt 1 of 25: Cancel: not wanted")
    assert "Traceback" not in queue.workers[0].log
