"""Promises of `pyworker metrics` and of a worker's own metrics, and that the dashboard and the
alerts go by metrics that exist."""

from __future__ import annotations

import concurrent.futures
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pyworker._runner import metrics
from tests.support import ROOT

DEPLOY = ROOT / "deploy"
NO_SERVER = "host=127.0.0.1 port=1 dbname=x"


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Every sample: its name, then label=value in order."""
    return {
        (sample.name, *(f"{key}={value}" for key, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scrape(port: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=20)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    except ConnectionError:
        return 0, ""
    finally:
        connection.close()


def until_scraped(
    queue: Any, port: str, *wanted: tuple[tuple[str, ...], float]
) -> dict[tuple[str, ...], float]:
    """Until each of these has its value."""
    found: dict[tuple[str, ...], float] = {}

    def there() -> bool:
        found.clear()
        found.update(samples(scrape(port)[1]))
        return all(found.get(name) == value for name, value in wanted)

    queue.until_so(f"{wanted}", there)
    return found


def test_metrics_are_printed_as_prometheus_reads_them(queue: Any, cli: Any) -> None:
    queue.add("a", queue_name='a "queue"\\\n')
    done = cli("metrics", DATABASE_URL=queue.dsn)
    assert done.returncode == 0
    found = samples(done.stdout)
    assert found["pyworker_jobs", 'queue=a "queue"\\\n', "state=available"] == 1
    assert found["pyworker_jobs_added_total",] == 1
    rows = json.loads(cli("metrics", "--json", DATABASE_URL=queue.dsn).stdout)
    assert {row["name"] for row in rows} == {name for name, *_ in found}
    assert all(re.fullmatch("pyworker_[a-z_]+", row["name"]) and row["help"] for row in rows)
    assert {row["name"].endswith("_total") for row in rows if row["kind"] == "counter"} == {True}


def test_metrics_of_a_database_that_is_away_are_an_error(cli: Any) -> None:
    done = cli("metrics", DATABASE_URL=NO_SERVER)
    assert (done.returncode, done.stdout) == (1, "")
    assert "cannot reach the database" in done.stderr


def test_metrics_are_served_anew_for_each_scrape_until_a_signal(
    queue: Any, port: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "pyworker", "metrics", "--port", port, "--dsn", queue.dsn]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE) as server:
        try:
            assert server.stderr is not None
            assert server.stderr.readline().decode() == f"serving /metrics on 127.0.0.1, port {port}\n"
            for jobs in (1, 2):
                queue.add("a")
                assert samples(scrape(port)[1])["pyworker_jobs", "queue=default", "state=available"] == jobs
            server.send_signal(signal.SIGTERM)
            assert server.wait(30) == 0
        finally:
            server.kill()


def test_a_worker_tells_of_its_handlers_and_claims_and_of_those_of_processes_that_were_killed(
    queue: Any, port: str
) -> None:
    queue.start("--metrics-port", port, "--concurrency", "3")
    queue.close_gate(1)
    gated = queue.add("note", {"gate": 1})
    queue.until_waiting(1)
    until_scraped(
        queue, port, (("pyworker_in_flight",), 1), (("pyworker_handlers",), 3), (("pyworker_ready",), 1)
    )
    queue.open_gate(1)
    queue.until_state("completed", gated)
    for way in (["error", "x"], ["snooze", None], ["cancel", "x"]):
        queue.add("act", {"raise": way})
        queue.add("act_async", {"return": way})
    count = "pyworker_handler_seconds_count"
    before = until_scraped(
        queue, port,
        ((count, "outcome=success", "task=note"), 1), ((count, "outcome=error", "task=act"), 1),
        ((count, "outcome=snooze", "task=act"), 1), ((count, "outcome=snooze", "task=act_async"), 1),
        ((count, "outcome=cancel", "task=act"), 1), ((count, "outcome=error", "task=act_async"), 1),
        (("pyworker_claimed_jobs_total",), 7),
    )  # fmt: skip
    assert before["pyworker_claims_total", "result=jobs"] >= 1
    assert before["pyworker_claims_total", "result=nothing"] >= 1
    # What a killed process has measured but not yet reported is done, and measured, again.
    queue.until("select not exists (select from pyworker.jobs where state = 'running')")
    died = queue.add("die")
    queue.until_state("completed", died)
    after = until_scraped(
        queue, port, ((count, "outcome=success", "task=die"), 1), (("pyworker_claimed_jobs_total",), 9)
    )
    assert after[count, "outcome=success", "task=note"] == 1


def test_the_metrics_of_processes_that_have_ended_are_kept_in_one_file_of_each_kind(
    queue: Any, port: str, tmp_path: Path
) -> None:
    (tmp_path / "gauged.py").write_text(
        "import os\nfrom prometheus_client import Counter, Gauge, Summary\nfrom pyworker import task\n"
        "times, size = Counter('mine', 'x'), Summary('size', 'x')\n"
        "one, most = Gauge('one', 'x'), Gauge('most', 'x', multiprocess_mode='max')\n"
        "@task\n"
        "def measured(payload):\n"
        "    times.inc(); size.observe(2); one.set(1); most.set(payload)\n"
    )
    (tmp_path / "metrics").mkdir()
    worker = queue.start("--metrics-port", port, modules="handlers gauged", TMPDIR=str(tmp_path / "metrics"))
    for value in (5, 7, 6):
        queue.until_state("completed", queue.add("measured", value))
        (child,) = worker.children()
        until_scraped(queue, port, (("mine_total",), {5: 1, 7: 2, 6: 3}[value]))
        with queue.ends_of([child]):
            os.kill(child, signal.SIGKILL)
        queue.until_so("another runs", lambda: worker.children() not in ([], [child]))  # noqa: B023
    found = until_scraped(queue, port, (("mine_total",), 3), (("size_sum",), 6), (("size_count",), 3))
    assert found["most",] == 7
    assert [name for name in found if name[0] == "one"] == []
    count = "pyworker_handler_seconds_count", "outcome=success", "task=measured"
    assert found[count] == 3
    (child,) = worker.children()
    files = [file.stem for file in (tmp_path / "metrics").glob("*/*.db")]
    ended = {file for file in files if not file.endswith(f"_{child}")}
    assert ended == {"counter_0", "histogram_0", "summary_0", "gauge_max_0"}
    assert worker.stop() == 0


def test_metrics_use_one_connection_however_many_ask_at_once(queue: Any, port: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pyworker", "metrics", "--port", port, "--dsn", queue.dsn]
    sessions = (
        "select count(*) from pg_stat_activity"
        " where application_name = 'pyworker' and datname = current_database()"
    )
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE) as server:
        try:
            assert server.stderr is not None
            server.stderr.readline()
            with (
                concurrent.futures.ThreadPoolExecutor(30) as clients,
                psycopg.connect(queue.dsn) as other,
            ):
                other.execute("lock table pyworker.live_jobs in access exclusive mode")  # queries wait for it
                asked = [clients.submit(scrape, port) for _ in range(30)]
                queue.until("select count(*) > 0 from pg_locks where not granted")
                assert queue.value(sessions) == 1
                other.rollback()
                assert {answer.result()[0] for answer in asked} == {200}
            assert queue.value(sessions) == 1
            queue.rows(sessions.replace("count(*)", "pg_terminate_backend(pid, 20000)"))
            assert scrape(port)[0] == 200  # on another one
            assert queue.value(sessions) == 1
        finally:
            server.kill()


@pytest.mark.parametrize(
    ("options", "reached"),
    [([], [True, False]), (["--host", "0.0.0.0"], [True, True]), (["--host", "127.0.0.2"], [False, True])],
    ids=["by default", "all interfaces", "one address"],
)
def test_ports_are_open_on_this_machine_alone_unless_an_address_is_given(
    queue: Any, port: str, options: list[str], reached: list[bool]
) -> None:
    queue.start("--health-port", port, *options).until_ready()

    def reaches(host: str) -> bool:
        with socket.socket() as client:
            return client.connect_ex((host, int(port))) == 0

    assert [reaches("127.0.0.1"), reaches("127.0.0.2")] == reached


def test_without_a_metrics_port_nothing_is_measured(queue: Any, port: str) -> None:
    queue.start("--health-port", port).until_ready()
    assert scrape(port) == (404, "/live /ready\n")


def test_without_prometheus_client_the_error_names_the_extra(queue: Any, tmp_path: Path) -> None:
    (tmp_path / "hidden.py").write_text(
        "import importlib.util, sys\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'prometheus_client' else "
        "find(name, *rest)\n"
        "from pyworker.cli import main\n"
        "main(['run', 'handlers', '--metrics-port', '1'])\n"
    )
    done = subprocess.run(
        [sys.executable, "hidden.py"], cwd=tmp_path, capture_output=True, text=True,
        env={"PYTHONPATH": str(DEPLOY.parent), "DATABASE_URL": queue.dsn},
    )  # fmt: skip
    assert done.returncode == 1
    assert " install 'pyworker-pg[metrics]'" in done.stderr


def test_every_metric_of_the_dashboard_and_the_alerts_exists(queue: Any, cli: Any, port: str) -> None:
    queue.start("--metrics-port", port)
    job = queue.add("note")
    queue.until_state("completed", job)
    count = "pyworker_handler_seconds_count", "outcome=success", "task=note"
    known = {name for name, *_ in until_scraped(queue, port, (count, 1))}
    known |= {name for name, *_ in samples(cli("metrics", DATABASE_URL=queue.dsn).stdout)}
    for file in ("grafana-dashboard.json", "alerts.yml"):
        used = set(re.findall(r"\bpyworker_[a-z_]+", (DEPLOY / file).read_text("utf-8")))
        assert len(used) >= 5
        assert used - known == set(), file


def test_labels_are_escaped() -> None:
    row = {"name": "m", "kind": "gauge", "help": "a\\b\nc", "labels": {"l": '"\\\n'}, "value": 1e18}
    text = metrics.text_of([row])
    assert text == '# HELP m a\\\\b\\nc\n# TYPE m gauge\nm{l="\\"\\\\\\n"} 1e+18\n'
