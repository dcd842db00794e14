"""A worker that holds nothing is told to stop: it waits neither for imports nor for the database."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

LONG = ("--shutdown-timeout", "3600")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_while_modules_are_imported(queue: Any, tmp_path: Path, number: int) -> None:
    (tmp_path / "mine.py").write_text(
        "import pathlib, time\npathlib.Path('importing').touch()\ntime.sleep(3600)\n"
    )
    worker = queue.start("--processes", "2", *LONG, modules="mine")
    queue.until_so("a module is imported", (tmp_path / "importing").exists)
    worker.signal(number)
    assert worker.wait() == 0
    assert queue.value("select count(*) from pyworker.live_workers") == 0


@pytest.mark.parametrize("how", ["refuses", "is silent", "is silent to new connections"])
def test_while_the_database_is_away(queue: Any, network: Any, how: str) -> None:
    worker = queue.start("--dsn", network.dsn, *LONG).until_ready()
    if how == "refuses":
        network.close()
        worker.until_log("no connection to the database")
    else:
        network.hush(*([] if how == "is silent" else ["once they are up"]))
        silenced = len(network.links)
        if how != "is silent":
            network.cut()
            queue.until_so("they connect again", lambda: len(network.links) >= min(silenced, 2))
    worker.signal()
    assert worker.wait() == 0
    assert "ending worker process" not in worker.log
    assert "handed back" in worker.log


def test_but_a_report_waits_for_the_database(queue: Any, network: Any) -> None:
    queue.close_gate(1)
    job_id = queue.add("act", {"gate": 1})
    worker = queue.start("--dsn", network.dsn, *LONG)
    queue.until_waiting(1)
    network.refuse()
    network.cut()
    worker.until_log("no connection to the database")
    worker.signal()
    worker.until_log("stopping")
    queue.open_gate(1)
    queue.until(
        "select count(*) = 0 from pg_locks where locktype = 'advisory' and classid = 77 and not granted"
    )
    network.accept()
    assert worker.wait() == 0
    assert queue.states(job_id) == ["completed"]


def test_jobs_that_have_not_begun_wait_for_no_database_either(queue: Any, network: Any) -> None:
    """Other workers get them when the lease is over."""
    queue.close_gate(1)
    quick = [queue.add("silent", priority=-1) for _ in range(60)]
    held = queue.add("note", {"gate": 1})
    rest = [queue.add("note", {"gate": 1}) for _ in range(9)]
    worker = queue.start("--dsn", network.dsn, "--concurrency", "1", *LONG)
    queue.until_waiting(1)
    queue.until_state("completed", *quick)
    network.refuse()
    network.cut()
    worker.until_log("no connection to the database")
    worker.signal()
    worker.until_log("stopping")
    worker.signal()  # the running one is handed back as well
    assert worker.wait() == 0
    assert set(queue.states(held, *rest)) <= {"running", "available"}
