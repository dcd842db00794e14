"""`pyworker run` with several databases: each has a worker of its own, and trouble in one is no
trouble in another."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pyworker._db.migrations import migrate
from tests.runner.test_metrics import until_scraped
from tests.support.databases import database
from tests.support.health import until_health
from tests.support.proxy import Proxy
from tests.support.several import NAME, PARENT, all_of, serves
from tests.support.several import network as network
from tests.support.several import other as other
from tests.support.several import start as start
from tests.support.workers import Queue, Worker, ends_of

pytestmark = pytest.mark.slow


def lines(worker: Worker) -> list[dict[str, Any]]:
    return [json.loads(line) for line in worker.log.splitlines()]


# -- all is well -----------------------------------------------------------------------------------


def test_one_command_serves_several_databases_and_its_log_says_which(
    queue: Queue, other: Queue, start: Callable[..., Worker]
) -> None:
    worker = start()
    serves(queue, other)
    assert worker.stop() == 0
    for one in (queue, other):
        name = one.value(NAME)
        mine = [line for line in worker.log.splitlines() if f"] {name}: " in line]
        assert "started: 1 process of 10 handlers, database " + name in mine[0]
        assert mine[-1].endswith(f"{name}: stopped: 1 completed, 0 failed, 0 discarded")
        assert one.value("select count(*) from pyworker.live_workers") == 0


def test_a_log_in_json_names_the_database_in_a_field(
    queue: Queue, other: Queue, start: Callable[..., Worker]
) -> None:
    for one in (queue, other):
        one.add("log_a_line")
    worker = start("--once", "--log-format", "json")
    assert worker.wait() == 0, worker.log
    told = [line for line in lines(worker) if line["message"] == "two\nlines"]
    assert {line["database"] for line in told} == {queue.value(NAME), other.value(NAME)}


def test_a_worker_of_one_database_does_not_name_it_in_each_line(queue: Queue) -> None:
    queue.add("log_a_line")
    worker = queue.run_once("--log-format", "json")
    assert [line for line in lines(worker) if "database" in line] == []


def test_the_variable_names_several_databases_by_urls_with_spaces_between_them(
    pg_template: Any, pg_server: Any, queue: Queue, other: Queue
) -> None:
    urls = [pg_server.url(one.value(NAME)) for one in (queue, other)]
    jobs = [one.add("silent") for one in (queue, other)]
    queue.run_once(DATABASE_URL=" \n".join(urls))
    assert queue.states(jobs[0]) == other.states(jobs[1]) == ["completed"]


def test_once_ends_when_all_databases_are_drained(
    queue: Queue, other: Queue, start: Callable[..., Worker]
) -> None:
    jobs = {one: [one.add("follow", {"left": 3}), one.add("silent")] for one in (queue, other)}
    assert start("--once").wait() == 0
    for one, added in jobs.items():
        assert set(one.states(*added)) == {"completed"}
        assert one.value("select count(*) from pyworker.history where task_identifier = 'follow'") == 4


def test_limits_hold_for_each_database(queue: Queue, other: Queue, start: Callable[..., Worker]) -> None:
    queue.close_gate(1)
    for one in (queue, other):
        for _ in range(4):
            one.add("note", {"gate": 1})
    start("--processes", "2", "--concurrency", "5", "--queue", "default=1")
    queue.until_waiting(1, 4)
    for one in (queue, other):
        one.until("select count(*) = 2 from pyworker.jobs where state = 'running'")
        assert one.value("select count(*) from pyworker.live_workers") == 2
    queue.open_gate(1)


def test_a_crontab_is_loaded_into_each_database(
    queue: Queue, other: Queue, start: Callable[..., Worker], tmp_path: Path
) -> None:
    (tmp_path / "crontab").write_text("0 4 * * * silent ?id=nightly\n")
    assert start("--once", "--crontab", "crontab").wait() == 0
    for one in (queue, other):
        assert one.rows("select name from pyworker.schedules") == [("nightly",)]


# -- one is away -----------------------------------------------------------------------------------


def test_a_database_that_is_away_at_the_start_is_served_once_it_comes(
    queue: Queue, other: Queue, network: Proxy, start: Callable[..., Worker]
) -> None:
    network.refuse()
    worker = start(second=network.dsn)
    serves(queue)
    name = other.value(NAME)
    worker.until_log(f"{name}: cannot reach the database: connection")
    worker.until_log(f"the worker of {name} ended with code 1; starting another in 1 s")
    network.accept()
    serves(other, queue)
    assert worker.stop() == 0


def test_a_database_without_pyworker_is_served_once_it_is_migrated(
    pg_server: Any, queue: Queue, start: Callable[..., Worker], tmp_path: Path
) -> None:
    with database(pg_server, "later") as dsn:
        worker = start(second=dsn)
        worker.until_log("ended with code 56; starting another")
        serves(queue)
        with psycopg.connect(dsn, autocommit=True) as conn:
            migrate(conn)
        later = Queue(dsn, tmp_path)
        serves(later)
        later.close()
        assert worker.stop() == 0


def test_while_a_database_is_lost_the_other_is_served_and_later_both(
    queue: Queue, other: Queue, network: Proxy, start: Callable[..., Worker]
) -> None:
    worker = start(second=network.dsn)
    serves(queue, other)
    parents = worker.children()
    network.close()
    worker.until_log(f"{other.value(NAME)}: no connection to the database")
    waiting = other.add("silent")
    serves(queue)
    network.accept()
    other.until_state("completed", waiting)
    assert worker.children() == parents
    assert f"{queue.value(NAME)}: no connection" not in worker.log
    assert worker.stop() == 0


def test_if_no_database_can_be_served_the_worker_ends_as_with_one(
    pg_server: Any, queue: Queue, network: Proxy
) -> None:
    network.refuse()
    with database(pg_server, "empty") as empty:
        worker = queue.start("--dsn", network.dsn, "--dsn", empty)
        assert worker.wait() == 56
    assert "cannot reach the database" in worker.log
    assert "there is no pyworker in schema 'pyworker'" in worker.log
    assert "no database is served" in worker.log


def test_tasks_that_cannot_be_loaded_end_the_worker(start: Callable[..., Worker]) -> None:
    worker = start(modules="nowhere")
    assert worker.wait() == 1
    assert worker.log.count("there is no module 'nowhere' to load") >= 2


def test_once_drains_the_others_and_reports_the_one_that_is_away(
    queue: Queue, other: Queue, network: Proxy, start: Callable[..., Worker]
) -> None:
    network.refuse()
    job_id = queue.add("follow", {"left": 3})
    worker = start("--once", second=network.dsn)
    assert worker.wait() == 1
    assert queue.states(job_id) == ["completed"]
    assert queue.value("select count(*) from pyworker.history where task_identifier = 'follow'") == 4
    assert f"the worker of {other.value(NAME)} ended with code 1" in worker.log


# -- signals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("target", ["the command", "all its processes"])
def test_one_signal_lets_the_jobs_of_all_databases_end(
    queue: Queue, other: Queue, start: Callable[..., Worker], number: int, target: str
) -> None:
    queue.close_gate(1)
    jobs = {one: one.add("note", {"gate": 1}) for one in (queue, other)}
    worker = start("--shutdown-timeout", "3600", within=["setsid"])
    queue.until_waiting(1, 2)
    runs = {one: one.runs(job_id) for one, job_id in jobs.items()}
    if target == "the command":
        worker.signal(number)
    else:
        os.killpg(worker.pid, number)
    if number == signal.SIGHUP:
        worker.until_log("stopping")
        worker.signal(number)  # a second one does not hurry it
    for one in jobs:
        worker.until_log(f"{one.value(NAME)}: stopping")
        one.until("select bool_and(info ->> 'condition' = 'stopping') from pyworker.live_workers")
    queue.open_gate(1)
    assert worker.wait() == 0
    for one, job_id in jobs.items():
        assert (one.states(job_id), one.runs(job_id)) == (["completed"], runs[one])
        assert one.value("select count(*) from pyworker.live_workers") == 0


def test_a_second_signal_hands_back_the_jobs_of_all_databases(
    queue: Queue, other: Queue, start: Callable[..., Worker]
) -> None:
    queue.close_gate(1)
    jobs = {one: one.add("note", {"gate": 1}) for one in (queue, other)}
    worker = start("--shutdown-timeout", "3600")
    queue.until_waiting(1, 2)
    worker.signal()
    for one in jobs:
        worker.until_log(f"{one.value(NAME)}: stopping (SIGTERM)")
    worker.signal(signal.SIGINT)
    assert worker.wait() == 0
    for one, job_id in jobs.items():
        assert (one.job(job_id).state, one.job(job_id).attempts) == ("available", 0)


def test_a_worker_stops_while_it_waits_for_a_database(
    queue: Queue, network: Proxy, start: Callable[..., Worker]
) -> None:
    network.hush()  # so that one is asked to stop in the midst of its connecting
    worker = start(second=network.dsn)
    serves(queue)
    assert worker.stop() == 0


# -- processes die ---------------------------------------------------------------------------------


def test_when_the_supervisor_is_killed_all_its_processes_die_and_their_jobs_are_handed_on(
    queue: Queue, other: Queue, start: Callable[..., Worker]
) -> None:
    queue.close_gate(1)
    jobs = {one: one.add("note", {"gate": 1}) for one in (queue, other)}
    worker = start()
    queue.until_waiting(1, 2)
    processes = all_of(worker)
    assert len(processes) == 5
    os.kill(processes[1], signal.SIGSTOP)  # a frozen one, too
    with ends_of(processes):
        worker.signal(signal.SIGKILL)
        worker.wait()
    queue.open_gate(1)
    start()
    for one, job_id in jobs.items():
        one.until_state("completed", job_id)


def test_a_parent_that_is_killed_is_replaced_and_the_other_database_does_not_notice(
    queue: Queue, other: Queue, start: Callable[..., Worker]
) -> None:
    worker = start()
    serves(queue, other)
    queue.close_gate(1)
    here, there = queue.add("note", {"gate": 1}), other.add("note", {"gate": 1})
    queue.until_waiting(1, 2)
    run = queue.runs(here)
    kept, killed = queue.value(PARENT), other.value(PARENT)
    os.kill(killed, signal.SIGKILL)
    worker.until_log(f"the worker of {other.value(NAME)} ended with signal SIGKILL; starting another")
    queue.open_gate(1)
    other.until_state("completed", there)
    queue.until_state("completed", here)
    assert queue.runs(here) == run
    assert queue.value(PARENT) == kept != other.value(PARENT)
    assert worker.stop() == 0


def test_a_worker_of_several_databases_can_be_the_first_process_of_a_container(
    queue: Queue, other: Queue, start: Callable[..., Worker]
) -> None:
    enter = ["unshare", "--pid", "--fork", "--kill-child"]
    if not shutil.which("unshare") or subprocess.run([*enter, "true"], capture_output=True).returncode:
        pytest.skip("a process namespace of one's own takes unshare and root")
    job_id = other.add("leave_an_orphan")
    outer = start(within=enter)
    other.until_state("completed", job_id)
    (first,) = outer.children()
    killed = [int(pid) for pid in queue.ps("pid", first)]
    for pid in killed:
        os.kill(pid, signal.SIGKILL)  # the children of both become the first process's
    serves(queue, other)
    queue.until_so("its orphans are reaped", lambda: not any("Z" in stat for stat in queue.ps("stat", first)))
    os.kill(first, signal.SIGTERM)
    assert outer.wait() == 0


# -- probes and metrics ----------------------------------------------------------------------------


def test_one_port_answers_for_all_databases(
    queue: Queue, other: Queue, network: Proxy, health: Any, port: str, start: Callable[..., Worker]
) -> None:
    network.refuse()
    worker = start("--health-port", port, "--stuck-after", "15", second=network.dsn)
    name = other.value(NAME)
    until_health(queue, health, 1, f"{name}: ", "--port", port)
    assert health("--port", port, "--live") == (0, "live\n")
    network.accept()
    until_health(queue, health, 0, "ready", "--port", port)
    network.close()
    until_health(queue, health, 1, f"{name}: the database does not answer", "--port", port)
    assert health("--port", port, "--live") == (0, "live\n")
    network.accept()
    until_health(queue, health, 0, "ready", "--port", port)
    frozen = other.value(PARENT)
    os.kill(frozen, signal.SIGSTOP)
    until_health(queue, health, 1, f"{name}: its worker does not answer", "--port", port)
    assert health("--port", port, "--live") == (0, "live\n")
    until_health(queue, health, 1, f"{name}: its worker does not answer", "--port", port, "--live")
    os.kill(frozen, signal.SIGCONT)
    assert worker.stop() == 0


def test_metrics_have_the_database_as_a_label(
    queue: Queue, other: Queue, network: Proxy, port: str, start: Callable[..., Worker]
) -> None:
    network.refuse()
    worker = start("--metrics-port", port, "--concurrency", "3", second=network.dsn)
    here, there = (f"database={one.value(NAME)}" for one in (queue, other))
    serves(queue)
    count = "pyworker_handler_seconds_count"
    found = until_scraped(
        queue, port,
        (("pyworker_ready", here), 1), (("pyworker_ready", there), 0),
        ((count, here, "outcome=success", "task=silent"), 1), (("pyworker_handlers", here), 3),
    )  # fmt: skip
    assert ("pyworker_handlers", there) not in found
    network.accept()
    serves(other)
    until_scraped(
        queue, port,
        (("pyworker_ready", there), 1), ((count, there, "outcome=success", "task=silent"), 1),
        ((count, here, "outcome=success", "task=silent"), 1),
    )  # fmt: skip
    assert worker.stop() == 0


def test_databases_of_one_name_are_told_apart_by_their_hosts(queue: Queue, other: Queue) -> None:
    proxies = [Proxy(queue.dsn) for _ in range(2)]
    hosts = ["127.0.0.1", "localhost"]
    dsns = [make_conninfo(proxy.dsn, host=host) for proxy, host in zip(proxies, hosts, strict=True)]
    worker = queue.run_once(*(word for dsn in dsns for word in ("--dsn", dsn)))
    for proxy in proxies:
        proxy.close()
    for host in hosts:
        assert f"{host}/{queue.value(NAME)}: stopped" in worker.log
