"""One scene of each new fault, in seconds, with every test run. The long versions are beside this file."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.servers import Postgres
from tests.support.workers import Queue
from tests.torture.servers import LogElsewhere, WithJumpingClock

pytestmark = pytest.mark.slow

BACKENDS = "select pid from pg_stat_activity where application_name = 'pyworker'"


@pytest.fixture
def queue_on(tmp_path: Path) -> Iterator[Callable[..., tuple[Any, Queue]]]:
    """A server of this kind, and a queue on it."""
    with ExitStack() as closing:

        def make(kind: type[Postgres] = Postgres, **settings: str) -> tuple[Any, Queue]:
            server = kind(closing, **settings)
            server.install()
            queue = Queue(server.url, tmp_path)
            closing.callback(queue.close)
            return server, queue

        yield make


def test_when_a_full_disk_has_room_again_each_job_that_was_acknowledged_completes(queue_on: Any) -> None:
    server, queue = queue_on(LogElsewhere)
    worker = queue.start("--concurrency", "2").until_ready()
    server.fill()
    added: list[int] = []
    for size in (50_000, 0):
        with suppress(psycopg.errors.DiskFull):
            while len(added) < 1000:
                added.append(queue.add("note", {"text": random.randbytes(size).hex()}))
    assert len(added) < 1000, "the disk was not full"
    server.free()
    added.append(queue.add("note"))
    queue.rows("select pyworker.retry_jobs(array(select id from pyworker.jobs where state = 'retryable'))")
    queue.until_state("completed", *added)
    assert worker.stop() == 0


def test_a_worker_that_loses_its_connections_to_others_goes_on_when_they_give_them_back(
    queue_on: Any,
) -> None:
    server, queue = queue_on(max_connections="30")
    worker = queue.start("--concurrency", "1").until_ready()
    held = []

    def fill() -> None:
        with suppress(psycopg.OperationalError):
            while len(held) < 100:
                held.append(psycopg.connect(server.url))

    def others_are_quicker() -> bool:
        queue.rows(f"select pg_terminate_backend(pid) from ({BACKENDS}) theirs")
        fill()
        return "too many clients" in worker.log

    queue.until_so("others are quicker than the worker", others_are_quicker)
    assert len(held) < 30
    job = queue.add("note")
    for conn in held:
        conn.close()
    queue.until_state("completed", job)
    assert worker.stop() == 0


def test_while_the_servers_processes_stand_still_a_job_runs_on_and_runs_once(queue_on: Any) -> None:
    """For longer than a heartbeat waits for its answer."""
    _, queue = queue_on()
    queue.close_gate(1)
    workers = [queue.start("--concurrency", "1") for _ in range(2)]
    workers[0].until_ready(2)
    jobs = [queue.add(task, {"gate": 1}) for task in ("note", "deliver")]
    queue.until_waiting(1, 2)
    pids = [pid for (pid,) in queue.rows(BACKENDS)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        # The control connections of both are tried again.
        queue.until(f"select count(*) >= 2 from ({BACKENDS} and pid <> all (%s)) others", pids)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    queue.open_gate(1)
    queue.until_state("completed", *jobs)
    assert [len(queue.begun(job)) for job in jobs] == [1, 1]
    assert [worker.stop() for worker in workers] == [0, 0]


@pytest.mark.parametrize(
    "by", [3600.0, pytest.param(-3600.0, marks=pytest.mark.torture)], ids=["forward", "back"]
)
def test_when_the_clock_jumps_no_worker_counts_as_dead_and_a_running_job_runs_once(
    queue_on: Any, by: float
) -> None:
    server, queue = queue_on(WithJumpingClock)
    queue.close_gate(1)
    workers = [queue.start("--concurrency", "2") for _ in range(2)]
    workers[0].until_ready(2)
    jobs = [queue.add(task, {"gate": 1}) for task in ("note", "deliver")]
    queue.until_waiting(1, 2)
    before = queue.value("select max(beat_at) from pyworker.workers")
    server.jump_to(by)
    extreme, beyond = ("min", ">") if by > 0 else ("max", "<")
    moved = f"select {extreme}(beat_at) {beyond} %s::timestamptz + %s::interval from pyworker.workers"
    queue.until(moved, before, f"{by / 2} s")  # all have beaten since
    assert queue.value("select count(*) from pyworker.workers where dead_at is not null") == 0
    queue.open_gate(1)
    queue.until_state("completed", *jobs)
    later = queue.add("note")
    queue.until_state("completed", later)
    assert [len(queue.begun(job)) for job in jobs] == [1, 1]
    assert [worker.stop() for worker in workers] == [0, 0]
