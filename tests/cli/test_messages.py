"""What goes wrong around a command is told in one line, with an exit code, and without a traceback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.support import PYTHONPATH, ROOT
from tests.support.workers import Queue

pytestmark = pytest.mark.slow

LINK = "tcp://10.96.0.17:8080"


def run(words: list[str], stdout: Any, **environment: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "pyworker", *words]
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, env=env, timeout=60)
    return done.returncode, done.stderr


# -- Kubernetes sets PYWORKER_METRICS_PORT=tcp://… for a service named pyworker-metrics ------------


def test_a_worker_starts_beside_a_service_named_like_its_options(queue: Any) -> None:
    links = {
        f"PYWORKER{name}_PORT": LINK
        for name in ("", "_RUN_HEALTH", "_RUN_METRICS", "_HEALTH", "_METRICS", "_UI")
    }
    job_id = queue.add("note")
    worker = queue.run_once(**links)
    assert queue.job(job_id).state == "completed"
    for name in ("PYWORKER_RUN_HEALTH_PORT", "PYWORKER_RUN_METRICS_PORT"):
        assert f"pyworker: {name}={LINK} is ignored: it is the address of a service" in worker.log


def test_commands_go_on_beside_such_a_service(queue: Any, cli: Callable[..., Any]) -> None:
    for words, name in (("health", "PYWORKER_HEALTH_PORT"), ("metrics", "PYWORKER_METRICS_PORT")):
        done = cli(words, DATABASE_URL=queue.dsn, **{name: LINK})
        assert done.returncode in (0, 1)
        assert f"{name}={LINK} is ignored" in done.stderr


def test_an_address_on_the_command_line_or_another_word_in_the_variable_is_refused(
    queue: Any, cli: Any
) -> None:
    assert cli("health", "--port", LINK, DATABASE_URL=queue.dsn).returncode == 2
    assert cli("health", DATABASE_URL=queue.dsn, PYWORKER_HEALTH_PORT="http").returncode == 2


# -- output that cannot be written -----------------------------------------------------------------


@pytest.mark.parametrize(
    "words", ["jobs", "jobs --json", "add t", "migrate --sql", "explain 1", "metrics", "--help"]
)
def test_where_nothing_can_be_written_that_is_said(queue: Any, words: str) -> None:
    queue.add("note")
    with open("/dev/full", "w") as full:
        code, error = run(words.split(), full, DATABASE_URL=queue.dsn)
    assert code == 1
    assert error == "pyworker: cannot write the output: No space left on device\n"


@pytest.mark.parametrize("words", ["jobs", "migrate --sql", "--help"])
def test_a_reader_that_has_gone_is_no_error(queue: Any, words: str) -> None:
    queue.rows("select pyworker.add_job('note') from generate_series(1, 20)")
    read, write = os.pipe()
    os.close(read)
    try:
        assert run(words.split(), write, DATABASE_URL=queue.dsn) == (0, "")
    finally:
        os.close(write)


@pytest.mark.parametrize(
    "words", ["jobs", "jobs --json", "add t", "explain 1", "migrate", "run handlers --once"]
)
@pytest.mark.parametrize("closed", ["<&-", ">&-", ">&- 2>&- <&-"])
def test_streams_that_are_closed_are_written_nowhere(queue: Any, words: str, closed: str) -> None:
    job_id = queue.add("note")
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": PYTHONPATH,
        "DATABASE_URL": queue.dsn,
    }
    command = f"exec '{sys.executable}' -m pyworker {words} {closed}"
    done = subprocess.run(command, shell=True, stderr=subprocess.PIPE, text=True, env=env, timeout=60)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert queue.job(job_id).state == ("completed" if "run" in words else "available")


# -- ports, versions -------------------------------------------------------------------------------


def test_a_dashboard_on_a_taken_port_says_so(queue: Any) -> None:
    pytest.importorskip("uvicorn")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, error = run(["ui", "--port", str(port)], subprocess.DEVNULL, DATABASE_URL=queue.dsn)
    assert code == 1
    assert error == f"pyworker: cannot listen on 127.0.0.1, port {port}: Address already in use\n"


def test_a_dashboard_at_an_address_of_another_machine_says_so(queue: Any) -> None:
    pytest.importorskip("uvicorn")
    words = ["ui", "--host", "192.0.2.1", "--port", "0"]
    code, error = run(words, subprocess.DEVNULL, DATABASE_URL=queue.dsn, PYWORKER_UI_AUTH="a:b")
    assert code == 1
    assert error.startswith("pyworker: cannot listen on 192.0.2.1, port 0: ")
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize("version", ["99", "-1"])
def test_a_script_from_a_version_that_there_is_not_is_refused(cli: Any, version: str) -> None:
    done = cli("migrate", "--sql", "--from", version)
    assert done.returncode == 2
    assert f"there is no schema version {version} (this pyworker knows 0 to " in done.stderr
    assert done.stdout == ""


def test_a_version_to_begin_from_is_for_a_script(cli: Any, queue: Any) -> None:
    done = cli("migrate", "--from", "1", DATABASE_URL=queue.dsn)
    assert done.returncode == 2
    assert "--from is for --sql" in done.stderr


# -- names of schemas ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "schema",
    ["a%sb", "100%", "%(x)s", 'we"ird', "it's", "Up Per", "naïve", "a.b", "a\\b", "select", "x" * 53],
)
def test_a_schema_may_have_any_name(
    fresh: psycopg.Connection[Any], fresh_dsn: str, cli: Any, tmp_path: Any, schema: str
) -> None:
    where = {"DATABASE_URL": fresh_dsn, "PYWORKER_SCHEMA": schema}
    assert cli("migrate", **where).returncode == 0
    queue = Queue(fresh_dsn, tmp_path, schema)
    try:
        with psycopg.connect(fresh_dsn) as conn:
            import pyworker

            job = pyworker.add_job(conn, "write", {"then": ["note"]}, schema=schema)
        at_most_once, again = (
            int(cli("add", *task, **where).stdout.split()[1])
            for task in (["deliver", "--delivery", "at_most_once"], ["act_async"])
        )
        worker = queue.start().until_ready()
        queue.until_so(
            "they are completed",
            lambda: states(queue, schema, job.id, at_most_once, again) == ["completed"] * 3,
        )
        assert worker.stop() == 0
        assert "WARNING" not in worker.log
        for words in (
            "jobs",
            f"jobs {job.id}",
            f"explain {job.id}",
            f"retry {job.id}",
            "queues",
            "queues pause q --create",
            "sequences",
            "schedules",
            "schedules next @daily",
            "metrics",
            "sql lag",
            f"cancel {job.id}",
            "jobs --sql",
            f"retry {job.id} --dry-run",
        ):
            done = cli(*words.split(), **where)
            assert done.returncode == 0, (words, done.stderr)
        done = cli("doctor", **where)
        assert done.returncode < 2, done.stdout
        assert cli("health", "--live", **where).returncode == 1
    finally:
        queue.close()


def states(queue: Any, schema: str, *job_ids: int) -> list[str]:
    name = '"' + schema.replace('"', '""').replace("%", "%%") + '"'
    return [
        queue.conn.execute(f"select state from {name}.get_job(%s)", [job_id]).fetchone()[0]
        for job_id in job_ids
    ]
