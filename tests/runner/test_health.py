"""Promises of `pyworker health` and of the probes over HTTP, on real workers in trouble."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
from typing import Any

import pytest

from tests.support.health import until_health

pytestmark = pytest.mark.slow


def test_a_worker_that_can_claim_is_live_and_ready_by_name_by_id_and_at_its_port(
    queue: Any, health: Any, port: str
) -> None:
    queue.start("--name", "one", "--health-port", port)
    until_health(queue, health, 0, "is ready: it claims jobs", "--worker", "one")
    worker_id = str(queue.value("select id from pyworker.live_workers"))
    for options in ([], ["--live"], ["--ready"], ["--worker", worker_id], ["--live", "--worker", "one"]):
        assert health(*options) == (0, f"worker {worker_id} (one) is ready: it claims jobs\n")
    assert health("--port", port, "--live") == (0, "live\n")
    until_health(queue, health, 0, "ready", "--port", port)
    (row,) = json.loads(health("--json")[1])
    assert (row["name"], row["live"], row["ready"]) == ("one", True, True)


def test_where_there_is_no_worker_the_answer_is_no(queue: Any, health: Any, port: str) -> None:
    assert health() == (1, "there is no worker\n")
    assert health("--live", "--worker", "x") == (1, "there is no worker x\n")
    code, text = health("--port", port)
    assert code == 1
    assert f"no worker answers on port {port}" in text


def test_a_database_that_cannot_be_asked_is_another_answer(health: Any) -> None:
    code, text = health(dsn="host=127.0.0.1 port=1 dbname=x")
    assert code == 3
    assert "cannot reach the database" in text
    assert health("--port", "1", "--worker", "x")[0] == 2


def test_over_http_other_paths_are_not_found_and_head_has_no_body(queue: Any, health: Any, port: str) -> None:
    queue.start("--health-port", port)
    until_health(queue, health, 0, "ready", "--port", port)
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=20)
    for method, path, status, body in (
        ("GET", "/", 404, b"/live /ready\n"), ("GET", "/ready?x=1", 200, b"ready\n"),
        ("HEAD", "/live", 200, b""),
    ):  # fmt: skip
        connection.request(method, path)
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (status, body)
    connection.close()


def test_a_port_that_is_taken_is_named(queue: Any) -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        worker = queue.start("--health-port", str(port))
        assert worker.wait() == 1
    assert f"pyworker: cannot listen on 127.0.0.1, port {port}: Address already in use" in worker.log


def test_a_worker_whose_tasks_are_still_being_loaded_is_live_and_not_ready(
    queue: Any, health: Any, port: str
) -> None:
    queue.close_gate(9)
    queue.start("--name", "slow", "--health-port", port, modules="slow_start")
    queue.until_waiting(9)
    assert health("--worker", "slow")[0] == 1
    assert "is live: it is starting" in health("--worker", "slow")[1]
    assert health("--live", "--worker", "slow")[0] == 0
    assert health("--port", port) == (1, "it is starting\n")
    assert health("--port", port, "--live") == (0, "live\n")
    queue.open_gate(9)
    until_health(queue, health, 0, "is ready", "--worker", "slow")
    until_health(queue, health, 0, "ready", "--port", port)


@pytest.mark.parametrize("how", ["stopped", "without the interpreter"])
def test_a_process_whose_loop_does_not_turn_is_not_live_until_it_does(
    queue: Any, health: Any, port: str, how: str
) -> None:
    worker = queue.start("--name", "one", "--stuck-after", "15", "--health-port", port).until_ready()
    (child,) = worker.children()
    if how == "stopped":
        os.kill(child, signal.SIGSTOP)
    else:
        queue.add("hold_the_interpreter", max_attempts=1)  # the next process is not to get it
    with queue.in_one_deadline():
        until_health(
            queue, health, 1, f"the loop of process {child} has not turned", "--live", "--port", port
        )
        until_health(
            queue,
            health,
            1,
            "is not live: the loop of its process does not turn",
            "--live",
            "--worker",
            "one",
        )
    assert health("--port", port)[0] == 1
    if how == "stopped":
        os.kill(child, signal.SIGCONT)
    else:
        os.kill(child, signal.SIGKILL)
    until_health(queue, health, 0, "live", "--live", "--port", port)
    until_health(queue, health, 0, "is ready", "--worker", "one")


def test_a_worker_that_is_stopped_whole_does_not_answer_and_its_lease_runs_out(
    queue: Any, health: Any, port: str
) -> None:
    worker = queue.start("--name", "one", "--health-port", port).until_ready()
    worker_id = str(queue.value("select id from pyworker.live_workers"))
    worker.signal(signal.SIGSTOP)
    code, text = health("--live", "--port", port)
    assert code == 1
    assert "no worker answers" in text
    until_health(queue, health, 1, "is not live: its last heartbeat", "--live", "--worker", worker_id)
    worker.signal(signal.SIGCONT)


def test_a_worker_that_was_killed_is_not_live_though_no_worker_is_left_to_sweep(
    queue: Any, health: Any
) -> None:
    worker = queue.start("--name", "one").until_ready()
    until_health(queue, health, 0, "is ready", "--worker", "one")
    with queue.ends_of(worker.children()):
        worker.signal(signal.SIGKILL)
    until_health(queue, health, 1, "is not live: its control connection has ended", "--live")


def test_while_it_drains_a_worker_is_live_and_not_ready(queue: Any, health: Any, port: str) -> None:
    worker = queue.start("--name", "one", "--health-port", port)
    queue.close_gate(1)
    job_id = queue.add("note", {"gate": 1})
    queue.until_waiting(1)
    worker.signal()
    until_health(queue, health, 1, "it is stopping", "--port", port)
    until_health(queue, health, 1, "is live: it is stopping", "--worker", "one")
    assert health("--live", "--port", port) == (0, "live\n")
    assert health("--live", "--worker", "one")[0] == 0
    queue.open_gate(1)
    assert worker.wait() == 0
    assert queue.states(job_id) == ["completed"]
    assert health("--worker", "one") == (1, "there is no worker one\n")


def test_a_worker_that_was_declared_dead_is_not_live_and_its_successor_is_ready(
    queue: Any, health: Any
) -> None:
    queue.start("--name", "one").until_ready()
    until_health(queue, health, 0, "is ready", "--worker", "one")
    worker_id = queue.value(
        "update pyworker.workers set dead_at = pyworker.clock() where dead_at is null returning id"
    )
    code, text = health("--live", "--worker", str(worker_id))
    assert code == 1
    assert "is not live: it has ended, or was declared dead" in text
    until_health(queue, health, 0, "is ready", "--worker", "one")
    assert str(worker_id) not in health("--worker", "one")[1]


def test_without_its_database_a_worker_lives_and_is_not_ready(
    fresh_queue: Any, health: Any, port: str, db: Any
) -> None:
    queue = fresh_queue
    name = queue.value("select current_database()")
    queue.start("--health-port", port)
    until_health(queue, health, 0, "ready", "--port", port)
    db.execute(f'alter database "{name}" with allow_connections false')
    db.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s"
               " and query not like '%%until%%'"
               " and pid <> %s", [name, queue.conn.info.backend_pid])  # fmt: skip
    until_health(queue, health, 1, "the database does not answer", "--port", port)
    assert health("--live", "--port", port) == (0, "live\n")
    db.execute(f'alter database "{name}" with allow_connections true')
    until_health(queue, health, 0, "ready", "--port", port)


def test_of_several_processes_each_must_live_and_one_must_be_ready(queue: Any, health: Any) -> None:
    queue.rows("select pyworker.register_worker(%s)", json.dumps({"name": "two"}))
    other = queue.value("select pyworker.register_worker(%s)", json.dumps({"name": "two"}))
    for condition, live, ready in ((None, 0, 0), ("stopping", 0, 0), ("stuck", 1, 0)):
        queue.rows("select pyworker.update_worker(%s, %s)", other, json.dumps({"condition": condition}))
        assert (health("--live", "--worker", "two")[0], health("--worker", "two")[0]) == (live, ready)
        assert health("--live") == (0, health("--worker", "two")[1])  # of any worker
