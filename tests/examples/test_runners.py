"""examples/runners: a runner in another language keeps the promises, also beside `pyworker run`."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.support.proxy import Message, Proxy, once
from tests.support.runners import COMMANDS, Running

pytestmark = pytest.mark.slow

TASKS = ["note", "deliver", "in_turn", "book", "flaky", "in_turn", "deliver", "note"]


@pytest.fixture(scope="session", params=COMMANDS)
def command(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that starts a runner, built or installed once."""
    return COMMANDS[request.param](tmp_path_factory.mktemp(request.param) / "runner")


@pytest.fixture
def queue(migrated: Any, command: list[str], tmp_path: Path) -> Iterator[Running]:
    running = Running(migrated, command, tmp_path)
    yield running
    running.close()


only_go = pytest.mark.parametrize("command", ["go"], indirect=True)


@pytest.mark.parametrize(
    ("report", "state", "attempts"),
    [
        ({"what": "fail", "error": "boom"}, "retryable", 1),
        ({"what": "discard", "error": "boom"}, "discarded", 1),
        ({"what": "cancel", "error": "boom"}, "cancelled", 1),
        ({"what": "not_started", "error": "boom"}, "retryable", 1),
        ({"what": "snooze", "delay_s": 60}, "scheduled", 0),
    ],
)
def test_each_outcome_is_reported(queue: Running, report: Any, state: str, attempts: int) -> None:
    queue.start()
    delivery = "at_most_once" if report["what"] == "not_started" else "at_least_once"
    job = queue.add("act", report, delivery=delivery)
    queue.until_state(state, job)
    assert queue.job(job, "attempts") == attempts
    assert queue.job(job, "last_error") == report.get("error")


def test_a_job_of_a_task_that_the_code_runs_at_most_once_never_runs_twice_whatever_its_row_says(
    queue: Running,
) -> None:
    queue.start()
    job = queue.add("act_once", {"what": "fail", "error": "boom"}, delivery="at_least_once")
    queue.until_state("discarded", job)
    assert queue.job(job, "delivery") == "at_most_once"


def test_results_are_kept_and_what_jsonb_cannot_hold_is_replaced(queue: Running) -> None:
    queue.start()
    jobs = [queue.add("answer", {"a": [1, None]}), queue.add("nul")]
    queue.until_state("completed", *jobs)
    results = queue.rows("select result from pyworker.finished_jobs order by id")
    assert results == [({"a": [1, None]},), ({"text": "a\ufffdb\ufffd"},)]


def test_a_timeout_aborts_the_handler_and_the_job_fails(queue: Running) -> None:
    queue.rows("select pyworker.define_task('wait', timeout => '0.3 seconds')")
    queue.start()
    job = queue.add("wait")
    queue.until_state("retryable", job)
    assert "timed out after 0.3 s" in queue.job(job, "last_error")


def test_a_handler_that_does_not_stop_ends_its_process_after_its_report(queue: Running) -> None:
    queue.rows("select pyworker.define_task('deaf', timeout => '0.3 seconds')")
    worker = queue.start()
    job = queue.add("deaf")
    assert worker.wait(30) == 70
    assert queue.job(job, "state") == "retryable"
    assert queue.value("select count(*) from pyworker.live_workers") == 0


def test_cancel_job_aborts_the_handler_at_once(queue: Running) -> None:
    queue.start()
    job = queue.add("wait")
    queue.until_begun(job)
    queue.rows("select pyworker.cancel_job(%s)", job)
    queue.until_state("cancelled", job)


@pytest.mark.torture
def test_a_handler_that_ignores_its_cancellation_may_complete_its_job(queue: Running) -> None:
    queue.start()
    job = queue.add("note", {"ms": 7000})
    queue.until_begun(job)
    queue.rows("select pyworker.cancel_job(%s)", job)
    queue.until("select state <> 'running' from pyworker.get_job(%s)", job)
    assert queue.job(job, "state") == "completed"


def test_a_step_is_done_once_over_all_attempts(queue: Running) -> None:
    queue.rows("select pyworker.define_task('step', backoff => '[0]')")
    queue.start()
    job = queue.add("step")
    queue.until_state("completed", job)
    assert queue.seen(job) == [(1, "true"), (2, "false")]


def test_sigterm_lets_handlers_end_and_hands_back_the_others(queue: Running) -> None:
    worker = queue.start(PYWORKER_RUN_CONCURRENCY="1")
    first = queue.add("note", {"ms": 1500})
    queue.until_begun(first)
    others = [queue.add("note") for _ in range(5)]
    queue.until("select count(*) = 6 from pyworker.jobs where state = 'running'")
    assert queue.stop(worker) == 0
    assert queue.job(first, "state") == "completed"
    assert [(queue.job(job, "state"), queue.job(job, "attempts")) for job in others] == [("available", 0)] * 5
    assert queue.value("select count(*) from pyworker.live_workers") == 0


def test_a_second_sigterm_hands_back_what_runs(queue: Running) -> None:
    worker = queue.start()
    jobs = [queue.add("wait"), queue.add("wait", delivery="at_most_once")]
    for job in jobs:
        queue.until_begun(job)
    worker.send_signal(signal.SIGTERM)
    queue.until_logged("stopping")  # two signals at once are one
    assert queue.stop(worker) == 0
    assert (queue.job(jobs[0], "state"), queue.job(jobs[0], "attempts")) == ("available", 0)
    assert queue.value("select state || reason from pyworker.jobs where id = %s", jobs[1]) == "discardedlost"


def test_lost_connections_cost_no_running_handler(queue: Running) -> None:
    queue.start()
    jobs = [queue.add("note", {"ms": 1500}, delivery=how) for how in ("at_least_once", "at_most_once")]
    for job in jobs:
        queue.until_begun(job)
    for _ in range(2):
        queue.cut_connections()
    later = queue.add("note")
    queue.until_state("completed", *jobs, later)
    assert [len(queue.seen(job)) for job in jobs] == [1, 1]


def test_a_report_whose_answer_is_lost_is_repeated(queue: Running) -> None:
    queue.start()
    job = queue.add("note", {"ms": 500})
    queue.until_begun(job)
    with queue.conn.transaction():  # the report waits for this transaction
        queue.rows("select from pyworker.live_jobs where id = %s for update", job)
        cut = "select pg_terminate_backend(pid) from pg_locks where not granted limit 1"
        queue.until(f"select coalesce(({cut}), false)")
    queue.until_state("completed", job)
    assert len(queue.seen(job)) == 1


def test_a_turn_that_the_database_cancels_is_repeated(queue: Running) -> None:
    queue.start()
    queue.until_state("completed", queue.add("note"))
    with queue.conn.transaction():  # a turn waits for this transaction
        queue.conn.execute("lock table pyworker.live_jobs")
        waits = "select pid from pg_stat_activity where wait_event_type = 'Lock' and query ~ 'work[(]'"
        cancel = f"coalesce(pg_cancel_backend(({waits} limit 1)), false)"
        queue.until(f"select {cancel}, pg_stat_clear_snapshot()")
    queue.conn.execute("set pyworker.notify = off")
    queue.until_state("completed", queue.add("note"))


def test_it_opens_again_when_it_was_declared_dead_and_drops_what_it_was_running(queue: Running) -> None:
    queue.start()
    job = queue.add("wait")
    queue.until_begun(job)
    first = queue.value("select max(id) from pyworker.live_workers")
    queue.rows("select pyworker.close_worker(%s)", first)
    queue.until_begun(job, times=2)
    assert queue.job(job, "state") == "running"
    assert queue.value("select min(id) from pyworker.live_workers") > first


@pytest.fixture
def network(queue: Running) -> Iterator[Proxy]:
    """All that the runner does goes through this network."""
    proxy = Proxy(queue.dsn)
    where = conninfo_to_dict(proxy.dsn)
    queue.environment |= {"PGHOST": str(where["host"]), "PGPORT": str(where["port"]), "PGSSLMODE": "disable"}
    yield proxy
    proxy.close()


def test_a_job_whose_claim_was_not_answered_is_handed_back_and_runs(queue: Running, network: Proxy) -> None:
    network.fault = once("work(", up=False, kinds=b"D")
    job = queue.add("note")
    queue.start()
    assert network.fault.struck.wait(30)
    queue.until_state("completed", job)
    assert queue.seen(job) == [(1, None)]


def test_a_report_that_counted_and_was_not_answered_is_repeated_and_is_stale(
    queue: Running, network: Proxy
) -> None:
    queue.start()
    job = queue.add("note", {"ms": 300})
    struck = threading.Event()

    def fault(message: Message) -> bool:
        """The first answer of `work` after the end of the job is lost."""
        answers = not message.up and message.kind in b"D" and "work(" in message.about
        if struck.is_set() or not answers or queue.job(job, "state") != "completed":
            return True
        struck.set()
        message.link.cut()
        return False

    network.fault = fault
    assert struck.wait(30)
    queue.until_logged("stale")
    queue.until_state("completed", job, queue.add("note"))
    assert len(queue.seen(job)) == 1


def test_a_job_whose_commit_was_not_answered_runs_once_and_is_completed(
    queue: Running, network: Proxy
) -> None:
    network.fault = once("commit", up=False, kinds=b"C", after="finish_job")
    queue.start()
    job = queue.add("book")
    assert network.fault.struck.wait(30)
    queue.until_state("completed", job, queue.add("note"))  # the failure was reported by then
    assert queue.job(job, "state") == "completed"
    assert queue.rows("select job_id from booked") == [(job,)]
    assert len(queue.seen(job)) == 1


def test_a_second_transaction_of_a_job_is_rolled_back_and_harms_no_connection(queue: Running) -> None:
    queue.start()
    job = queue.add("twice")
    queue.until_begun(job)
    assert queue.seen(job) == [(1, "true")]
    assert queue.rows("select job_id from booked") == [(job,)]
    assert queue.job(job, "state") == "completed"


def refuse(network: Proxy, attempts: int) -> None:
    """The server is away, until so many connections were tried."""
    network.refuse()
    network.cut()
    with socket.create_server(("127.0.0.1", network.port)) as closed:
        for _ in range(attempts):
            closed.accept()[0].close()
    network.accept()


def test_when_the_server_is_back_the_runner_holds_its_lock_before_others_take_its_jobs(
    queue: Running, network: Proxy
) -> None:
    """A sweep takes the jobs of a worker whose lock is free for two seconds. No sweep comes while the server
    is away."""
    queue.start()
    job = queue.add("wait")
    queue.until_begun(job)
    run = queue.job(job, "run")
    lock = "select count(*) > 0 from pg_locks where locktype = 'advisory' and granted"
    queue.until(lock)
    refuse(network, 12 if queue.command[0] == "node" else 24)  # the next one is seconds away if waits double
    queue.until(f"select pyworker.sweep_workers() is null or ({lock})")
    assert queue.job(job, "run") == run
    assert queue.value("select count(*) from pyworker.workers where dead_at is not null") == 0
    assert queue.job(job, "state") == "running"


@pytest.mark.torture
@pytest.mark.parametrize("lease", ["12 seconds", "1 minute"])
def test_handlers_stop_before_others_take_their_jobs_when_the_database_is_silent(
    queue: Running, network: Proxy, lease: str
) -> None:
    """The server's keepalives end the connection with the lock after 14 seconds, also in a long lease."""
    queue.rows("select pyworker.configure(worker_ttl => %s::text::interval)", lease)
    worker = queue.start()
    job = queue.add("wait")
    queue.until_begun(job)
    run = queue.job(job, "run")
    locks = "select count(*) from pg_locks where locktype = 'advisory' and granted"
    queue.until(f"select ({locks}) = 1")
    network.hush()
    began = time.monotonic()
    queue.until_logged("not answer")
    assert time.monotonic() - began < 16
    assert queue.job(job, "run") == run
    assert queue.value(locks) == 1, "its lock was free while the handler ran"
    network.speak()
    network.cut()
    queue.until_begun(job, times=2)
    assert worker.poll() is None


def test_a_report_that_the_database_refuses_becomes_a_failure(queue: Running) -> None:
    queue.start()
    job = queue.add("act", {"what": "snooze"})
    queue.until_state("retryable", job)
    assert "delay_s" in queue.job(job, "last_error")


@only_go
def test_a_result_that_jsonb_cannot_hold_spoils_no_other_report(queue: Running) -> None:
    queue.rows("select pyworker.define_task('huge', backoff => '[60]')")
    queue.rows("select pyworker.define_task('panic', backoff => '[60]')")
    jobs = [queue.add(task) for task in ("answer", "huge", "panic", "answer")]
    queue.start()
    queue.until_state("completed", jobs[0], jobs[3])
    queue.until_state("retryable", jobs[1], jobs[2])
    assert "overflow" in queue.job(jobs[1], "last_error")
    assert "panic: boom" in queue.job(jobs[2], "last_error")


@pytest.mark.parametrize("many", [400, pytest.param(5000, marks=pytest.mark.torture)])
def test_beside_a_python_worker_nothing_is_lost_and_nothing_runs_too_often_when_both_are_killed(
    queue: Running, many: int
) -> None:
    python, worker = queue.python(), queue.start()
    queue.until("select count(*) >= 2 from pyworker.live_workers")
    queue.until("select count(*) = 3 from pyworker.list_tasks()")
    kinds: dict[int, str] = {}
    for n in range(many):
        options = {"queue_name": "serial"} if n % 16 == 0 else {}
        kinds[queue.add(TASKS[n % 8], {"customer": n // 8 % 8}, **options)] = TASKS[n % 8]
    kill_in_turn(queue, worker, python, many)
    queue.until("select count(*) = 0 from pyworker.jobs where state <> 'discarded'", looks=many * 20)

    left = dict(queue.rows("select id, reason from pyworker.jobs"))
    assert set(left.values()) <= {"lost"}
    assert {kinds[job] for job in left} <= {"deliver"}
    completed = {job for (job,) in queue.rows("select id from pyworker.history where state = 'completed'")}
    assert completed | left.keys() == kinds.keys()
    begun = dict(queue.rows("select job_id, count(*) from seen group by 1"))
    assert [job for job, task in kinds.items() if task == "deliver" and begun.get(job, 0) > 1] == []
    assert kinds.keys() - left.keys() <= begun.keys()
    booked = {job for (job,) in queue.rows("select job_id from booked")}
    assert booked == {job for job, task in kinds.items() if task == "book"}
    in_turn = "select j.payload ->> 'customer', array_agg(s.job_id order by s.at) from seen s"
    in_turn += " cross join lateral pyworker.get_job(s.job_id) j where s.task = 'in_turn' group by 1"
    for _, starts in queue.rows(in_turn):
        assert starts == sorted(starts)
    findings = "select check_name, finding from pyworker.doctor() where severity in ('warning', 'error')"
    assert [row for row in queue.rows(findings) if "lost" not in row[1]] == []
    queue.until("select count(*) >= 2 from pyworker.live_workers")  # both hear signals by now
    assert [queue.stop(process) for process in queue.processes[2:]] == [0, 0]


def kill_in_turn(queue: Running, worker: Any, python: Any, many: int) -> None:
    """kill -9 one, start it again, then the other."""
    ended = "select count(*) >= %s from pyworker.history"
    queue.until(ended, many * 15 // 100)
    worker.kill()
    worker.wait()
    queue.until(ended, many * 30 // 100)
    queue.start()
    queue.until(ended, many * 50 // 100)
    python.kill()
    python.wait()
    queue.until(ended, many * 65 // 100)
    queue.python()
