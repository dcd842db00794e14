"""The network between workers and the server fails at every point of a conversation: nothing is
lost, nothing is done too often.

PYWORKER_CUTS says how often it is cut in the random test (make torture: thousands).
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from pyworker._db.connect import connect
from pyworker._db.either import at_once
from pyworker._runner.config import RunConfig
from pyworker._runner.connections import Connections
from tests.support.proxy import Message, Proxy, Weather, once

pytestmark = pytest.mark.slow

CUTS = int(os.environ.get("PYWORKER_CUTS", "5000"))


def lives(pid: int) -> bool:
    try:  # a zombie does not: its parent may be slow to ask for it
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


# An answer that is lost: was it done?


@pytest.mark.parametrize("task", ["write", "write_async"])
def test_a_transaction_whose_commit_was_done_but_not_answered_has_completed_its_job(
    queue: Any, network: Proxy, task: str
) -> None:
    network.fault = once("COMMIT", False, b"C", after="finish_job(")
    queue.start("--dsn", network.dsn).until_ready()
    job_id = queue.add(task)
    queue.until_state("completed", job_id)
    assert network.fault.struck.wait(10)
    assert (len(queue.seen(job_id)), queue.job(job_id).attempts) == (1, 1)
    assert queue.rows("select * from pyworker.job_errors(%s)", job_id) == []


@pytest.mark.parametrize("task", ["write", "write_async"])
def test_a_transaction_whose_commit_never_arrived_is_rolled_back_and_its_job_tried_again(
    queue: Any, network: Proxy, task: str
) -> None:
    network.fault = once("COMMIT", True, b"Q", after="finish_job(")
    queue.start("--dsn", network.dsn).until_ready()
    job_id = queue.add(task)
    queue.until_state("retryable", job_id)
    assert network.fault.struck.wait(10)
    assert queue.seen(job_id) == []
    queue.rows("select pyworker.retry_job(%s)", job_id)
    queue.until_state("completed", job_id)
    assert [row.run for row in queue.seen(job_id)] == [queue.job(job_id).run]  # the last one


# A turn that only claims sets synchronous_commit first, one that reports lock_timeout.
CLAIM, REPORT = "true), pyworker.work(", "patience, pyworker.work("
LOST_CLAIMS = {
    "no answer": once(CLAIM, False, b"D"),
    "half an answer": once(CLAIM, False, b"D", spare=3),
    "all but its end": once(CLAIM, False, b"C"),
    "begun, not executed": once(CLAIM, True, b"E"),
}


@pytest.mark.parametrize("lost", LOST_CLAIMS)
def test_jobs_of_a_claim_whose_answer_was_lost_come_back_and_run_once(
    queue: Any, network: Proxy, lost: str
) -> None:
    network.fault = fault = LOST_CLAIMS[lost]
    queue.rows("select pyworker.define_task('deliver', delivery => 'at_most_once')")
    jobs = [queue.add(task) for task in ("note", "deliver", "deliver_async", "note", "deliver", "note")]
    queue.start("--dsn", network.dsn)
    queue.until_state("completed", *jobs)
    assert fault.struck.wait(10)
    assert Counter(row.job_id for row in queue.seen()) == dict.fromkeys(jobs, 1)
    assert [queue.job(job_id).attempts for job_id in jobs] == [1] * 6


def test_a_claim_that_arrives_after_its_worker_has_turned_elsewhere_strands_no_job(
    queue: Any, network: Proxy
) -> None:
    """It was on its way when the connection was lost, and the worker compared notes with the
    database before it got there."""
    held, go_on, arrived = threading.Event(), threading.Event(), threading.Event()
    kept: list[Message] = []

    def fault(message: Message) -> bool:
        if (
            not message.up
            or held.is_set()
            or not (kept[0].link is message.link if kept else ".work(" in message.about)
        ):
            return True
        kept.append(message)
        if message.kind == b"S":  # that was all of it
            held.set()
            message.link.cut(message.link.client)
            go_on.wait()
            message.link.server.sendall(b"".join(each.raw for each in kept))
            arrived.wait()  # the end of the connection must not overtake it
        return False

    worker = queue.start("--dsn", network.dsn, "--concurrency", "1").until_ready()
    network.fault = fault
    queue.close_gate(1)
    queue.until_so("a claim is held up", held.is_set)
    first = queue.add("note", {"gate": 1})
    queue.until_waiting(1)  # it is back, and has no room for more
    second = queue.add("note")
    go_on.set()
    queue.until_state("running", second)
    arrived.set()
    queue.open_gate(1)
    queue.until_state("completed", first, second)
    assert len(queue.seen(second)) == 1
    assert worker.stop() == 0


@pytest.mark.parametrize(
    "lost",
    [once(REPORT, False, b"D"), once(REPORT, False, b"C"), once(REPORT, True, b"B")],
    ids=["no answer", "all but its end", "never arrived"],
)
def test_a_job_whose_end_was_reported_into_the_void_is_not_run_again(
    queue: Any, network: Proxy, lost: Any
) -> None:
    network.fault = lost
    worker = queue.start("--dsn", network.dsn, "--concurrency", "2").until_ready()
    jobs = [queue.add(task) for task in ("note", "deliver", "note")]
    queue.until_state("completed", *jobs)
    assert lost.struck.wait(10)
    assert Counter(row.job_id for row in queue.seen()) == dict.fromkeys(jobs, 1)
    assert worker.stop() == 0
    assert "stopped: 3 completed, 0 failed, 0 discarded" in worker.log


@pytest.mark.parametrize("task", ["deliver", "deliver_async"])
@pytest.mark.parametrize("up", [True, False], ids=["never arrived", "not answered"])
def test_a_start_that_could_not_be_confirmed_is_no_start(
    queue: Any, network: Proxy, task: str, up: bool
) -> None:
    network.fault = fault = once("start_job", up, b"E" if up else b"D")
    queue.start("--dsn", network.dsn).until_ready()
    job_id = queue.add(task)
    queue.until_state("completed", job_id)
    assert fault.struck.wait(10)
    assert [row.run for row in queue.seen(job_id)] == [queue.job(job_id).run]  # the last one


# Silence: no answer, and no refusal either


@pytest.mark.parametrize("new", ["from the start", "once they are up"])
def test_a_worker_that_hears_nothing_any_more_ends_its_handlers_before_others_get_its_jobs(
    queue: Any, network: Proxy, new: str
) -> None:
    worker = queue.start("--dsn", network.dsn, "--concurrency", "1").until_ready()
    job_id = queue.add("look_away")
    queue.until("select count(*) = 1 from public.seen")
    (child,) = worker.children()
    network.hush(new)
    other = queue.start("--concurrency", "1")
    queue.until("select count(*) = 2 from public.seen where job_id = %s", job_id)
    assert not lives(child)
    network.speak()
    other.end()
    queue.rows("select pyworker.cancel_job(%s, true)", job_id)
    after = queue.add("note")
    queue.until_state("completed", after)  # it has registered again


def test_a_worker_that_heard_nothing_for_some_seconds_keeps_its_jobs(queue: Any, network: Proxy) -> None:
    worker = queue.start("--dsn", network.dsn, "--concurrency", "1").until_ready()
    held = "select count(*) = 1 from pyworker.workers where locked and dead_at is null"
    queue.until(held)
    queue.close_gate(1)
    job_id = queue.add("note", {"gate": 1})
    queue.until_waiting(1)
    queue.start("--concurrency", "1").until_ready()  # who would take it
    network.hush()
    worker.until_log("no connection to the database")
    network.speak()
    worker.until_log("the database is back")
    queue.until(held.replace("= 1", "= 2"))  # its lock has gone from the old connection to the new one
    queue.open_gate(1)
    queue.until_state("completed", job_id)
    assert len(queue.seen(job_id)) == 1


def test_a_control_connection_that_has_gone_silent_is_replaced_and_no_worker_is_taken_for_dead(
    queue: Any, network: Proxy
) -> None:
    queue.close_gate(1)
    worker = queue.start("--dsn", network.dsn, "--concurrency", "1").until_ready()
    job_id = queue.add("deliver", {"gate": 1})
    queue.until_waiting(1)
    for link in network.asked("beat("):
        link.silent = True
    worker.until_log("the database is back")
    beat = queue.value("select beat_at from pyworker.workers")
    queue.until("select beat_at > %s from pyworker.workers", beat)
    queue.open_gate(1)
    queue.until_state("completed", job_id)
    assert (len(queue.seen(job_id)), queue.value("select count(*) from pyworker.workers")) == (1, 1)


def test_the_connection_of_a_child_that_has_gone_silent_is_replaced(queue: Any, network: Proxy) -> None:
    word = ".work("
    worker = queue.start("--dsn", network.dsn, "--concurrency", "1").until_ready()
    queue.until_so("it is there", lambda: any(network.asked(word)))
    first = set(network.asked(word))
    for link in first:
        link.silent = True
    job_id = queue.add("note")
    queue.until_so("another one", lambda: bool(set(network.asked(word)) - first))
    queue.until_state("completed", job_id)
    assert (len(queue.seen(job_id)), "starting another" in worker.log) == (1, False)


def test_the_connection_for_schedules_that_has_gone_silent_is_replaced(queue: Any, network: Proxy) -> None:
    silenced: list[Any] = []

    def fault(message: Message) -> bool:
        if "run_schedules" in message.about and not silenced:
            silenced.append(message.link)
        message.link.silent = message.link in silenced
        return not message.link.silent

    network.fault = fault
    worker = queue.start("--dsn", network.dsn, "--concurrency", "1").until_ready()
    queue.rows("select pyworker.add_schedule('s', '0 * * * *', 'note', backfill => '1 hour')")
    queue.rows("update pyworker.schedule_entries set next_at = date_trunc('second', pyworker.clock())")
    queue.until("select true from public.seen where task = 'note'")
    assert (len(silenced), "starting another" in worker.log) == (1, False)


def test_the_servers_end_notices_a_vanished_machine_as_well(queue: Any, network: Proxy) -> None:
    """What it had locked, on any connection, is not locked for hours."""
    ours = "select count(*) from pg_settings where source in ('client', 'session') and name ~ '^tcp_'"
    calls = Connections(RunConfig(network.dsn)).blocking
    with connect(network.dsn) as control, at_once(calls._open()).connection() as handlers:
        assert [conn.execute(ours).fetchone() for conn in (control, handlers)] == [(4,), (4,)]
    at_once(calls.close())


# Coming back


def test_while_no_server_listens_it_tries_again_and_says_so_at_most_once_a_second(
    queue: Any, network: Proxy
) -> None:
    queue.rows("select pyworker.configure(worker_ttl => '12 s')")
    worker = queue.start("--dsn", network.dsn, "--processes", "2").until_ready(2)
    network.refuse()
    network.cut()
    worker.until_log("has not answered for")  # and by then it has dead processes to tell of, too
    queue.rows("select pg_sleep(3)")
    lines = [line for line in worker.log.splitlines() if "no connection" in line]
    by_process = Counter(line.split("]")[0].split("[")[1] for line in lines)
    for process, count in by_process.items():
        times = [
            datetime.fromisoformat(line[:23].replace(",", ".")) for line in lines if f"[{process}]" in line
        ]
        assert count <= 2 + (times[-1] - times[0]).total_seconds(), worker.log
    network.accept()
    job_id = queue.add("note")
    queue.until_state("completed", job_id)


def test_a_connection_that_is_lost_as_soon_as_it_is_there_is_not_made_again_at_once(
    queue: Any, network: Proxy
) -> None:
    worker = queue.start("--dsn", network.dsn).until_ready()
    many = threading.Semaphore(0)

    def fault(message: Message) -> bool:
        if message.up and ".work(" in message.about:
            message.link.cut()
            many.release()
            return False
        return True

    network.fault = fault
    for _ in range(8):
        assert many.acquire(timeout=30)
    network.fault = None
    job_id = queue.add("note")
    queue.until_state("completed", job_id)
    lines = [line for line in worker.log.splitlines() if "worker[" in line and "no connection" in line]
    times = [datetime.fromisoformat(line[:23].replace(",", ".")) for line in lines]
    assert len(times) <= 2 + (times[-1] - times[0]).total_seconds(), worker.log


def test_who_adds_a_job_is_told_what_went_wrong(queue: Any, network: Proxy, cli: Callable[..., Any]) -> None:
    network.fault = once("add_job", True, b"E")
    done = cli("add", "note", DATABASE_URL=network.dsn)
    assert done.returncode == 1
    assert done.stderr.startswith("pyworker: the connection to the database was lost: ")
    assert "may or may not" in done.stderr
    assert queue.value("select count(*) from pyworker.jobs") == 0
    network.fault = once("COMMIT", False, b"C")
    done = cli("add", "note", DATABASE_URL=network.dsn)
    assert (done.returncode, "may or may not" in done.stderr) == (1, True)
    assert queue.value("select count(*) from pyworker.jobs") == 1
    network.refuse()
    done = cli("add", "note", DATABASE_URL=network.dsn)
    assert done.returncode == 1
    assert done.stderr.startswith("pyworker: cannot reach the database: ")
    assert "Connection refused" in done.stderr


# At random


@pytest.mark.parametrize("cuts", [150, pytest.param(CUTS, marks=pytest.mark.torture)], ids=["some", "many"])
def test_wherever_the_network_is_cut_no_job_is_lost_and_none_that_may_run_once_runs_twice(
    queue: Any, network: Proxy, cuts: int
) -> None:
    seed = os.environ.get("PYWORKER_SEED", "3")
    print(f"PYWORKER_SEED={seed}")
    queue.rows("select pyworker.configure(max_crashes => 1000, completed_retention => '1 day')")
    for task in ("deliver", "deliver_async"):
        queue.rows("select pyworker.define_task(%s, delivery => 'at_most_once')", task)

    def waiting() -> int:  # and those that failed are not left to wait for an hour
        queue.rows(
            "select pyworker.retry_jobs(array(select id from pyworker.jobs where state = 'retryable'))"
        )
        return queue.value("select count(*) from pyworker.jobs where state <> 'discarded'")

    workers = [queue.start("--dsn", network.dsn, "--concurrency", "4") for _ in range(2)]
    for worker in workers:
        worker.until_log("started")
    network.fault = weather = Weather(seed, cuts)
    kinds: dict[int, str] = {}
    while not weather.over.is_set():
        for kind in ["note", "deliver", "deliver_async", "write", "write_async", "in_turn"]:
            policy = {"sequence_policy": Jsonb({"key": "s"})} if kind == "in_turn" else {}
            kinds[queue.add(kind, {"customer": 1}, max_attempts=1000, **policy)] = kind
        queue.until_so("the workers keep up", lambda: waiting() < 60)
    network.fault = None
    queue.until_so("all jobs have ended", lambda: waiting() == 0)
    states = dict(
        queue.rows(
            "select id, coalesce(reason, state) from pyworker.jobs union all select id, state "
            "from pyworker.history"
        )
    )
    began = Counter(row.job_id for row in queue.seen() if row.told != "end")
    assert states.keys() == kinds.keys()
    assert {job_id: state for job_id, state in states.items() if state != "completed"} == {}
    once_only = [job_id for job_id, kind in kinds.items() if kind not in ("note", "in_turn")]
    assert {job_id: began[job_id] for job_id in once_only} == dict.fromkeys(once_only, 1)
    assert all(began[job_id] >= 1 for job_id in kinds)
    print(f"{cuts} cuts; {len(kinds)} jobs, {sum(began.values())} starts")
