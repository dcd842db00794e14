"""examples/minimal_worker.py: a worker that knows the protocol only, as a process beside adds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "examples" / "minimal_worker.py"
HANDLERS = """
import os
import time
from pathlib import Path


def note(payload):
    with Path("notes").open("a") as notes:
        notes.write(f"{payload['n']}\\n")
    if "fail" in payload:
        raise ValueError("bob is no address")
    if payload.get("once") and not Path("again").exists():
        Path("again").touch()
        os._exit(1)
    time.sleep(payload.get("sleep", 0))


HANDLERS = {"note": note}
"""


class Running:
    """The worker as a process, and its queue."""

    def __init__(self, example: Any, directory: Path) -> None:
        self.directory = directory
        self.environment = {**example.environment, "PYTHONPATH": str(directory)}
        self.conn = psycopg.connect(example.dsn, autocommit=True)
        self.processes: list[subprocess.Popen[str]] = []

    def start(self) -> subprocess.Popen[str]:
        self.processes.append(
            subprocess.Popen(
                [sys.executable, str(PROGRAM), "notes_by_hand"], cwd=self.directory, env=self.environment,
                stderr=subprocess.PIPE, text=True,
            )
        )  # fmt: skip
        self.until("select exists (select from pyworker.live_workers)")
        return self.processes[-1]

    def add(self, payload: Any, **options: Any) -> int:
        named = "".join(f", {name} => %s" for name in options)
        added = self.conn.execute(
            f"select (pyworker.add_job('note', %s{named})).id", [Jsonb(payload), *options.values()]
        )
        return added.fetchone()[0]  # type: ignore[index]

    def value(self, sql: str, *parameters: Any) -> Any:
        row = self.conn.execute(sql, parameters).fetchone()  # type: ignore[arg-type]
        return row[0] if row else None

    def until(self, sql: str, *parameters: Any) -> None:
        for _ in range(2000):
            if self.value(sql, *parameters):
                return
            assert not self.processes or self.processes[-1].poll() in (None, 70), self.processes[
                -1
            ].stderr.read()  # type: ignore[union-attr]
            self.conn.execute("select pg_sleep(0.01)")
        raise AssertionError(f"never came true: {sql} {parameters}")

    def until_state(self, state: str, *job_ids: int) -> None:
        self.until(
            "select bool_and((pyworker.get_job(i)).state = %s) from unnest(%s) i", state, list(job_ids)
        )

    def notes(self) -> list[int]:
        return [int(line) for line in (self.directory / "notes").read_text().split()]

    def stop(self) -> int:
        self.processes[-1].send_signal(signal.SIGTERM)
        return self.processes[-1].wait(10)


@pytest.fixture
def queue(migrated: Any, tmp_path: Path) -> Iterator[Running]:
    (tmp_path / "notes_by_hand.py").write_text(HANDLERS)
    running = Running(migrated, tmp_path)
    yield running
    running.conn.close()
    for process in running.processes:
        process.kill()
        process.communicate()


def test_it_has_sixty_lines_and_knows_the_protocol_only() -> None:
    text = PROGRAM.read_text("utf-8")
    assert len([line for line in text.splitlines() if line.strip()]) <= 60
    assert "import pyworker" not in text


def test_jobs_complete_beside_adds_and_one_that_fails_is_retried(queue: Running) -> None:
    early = [queue.add({"n": n}) for n in range(5)]
    queue.start()
    late = [queue.add({"n": n}, delivery="at_most_once") for n in range(5, 10)]
    failing = queue.add({"n": 99, "fail": True})
    queue.until_state("completed", *early, *late)
    queue.until_state("retryable", failing)
    assert sorted(queue.notes()) == [*range(10), 99]
    assert "bob is no address" in queue.value("select (pyworker.get_job(%s)).last_error", failing)


def test_sigterm_ends_it_after_its_handler_and_closes_the_worker(queue: Running) -> None:
    queue.start()
    job = queue.add({"n": 1, "sleep": 0.5})
    queue.until_state("running", job)
    assert queue.stop() == 0
    assert queue.value("select (pyworker.get_job(%s)).state", job) == "completed"
    assert queue.value("select count(*) from pyworker.live_workers") == 0
    idle = queue.start()
    assert queue.stop() == 0
    assert idle.stderr
    assert idle.stderr.read() == ""


def test_it_opens_again_when_it_was_declared_dead(queue: Running) -> None:
    queue.start()
    first = queue.value("select max(id) from pyworker.live_workers")
    queue.conn.execute("select pyworker.close_worker(%s)", [first])
    queue.until_state("completed", queue.add({"n": 1}))
    assert queue.value("select min(id) from pyworker.live_workers") > first
    assert queue.stop() == 0


def test_a_run_that_is_lost_ends_its_process(queue: Running) -> None:
    worker = queue.start()
    job = queue.add({"n": 1, "sleep": 30})
    queue.until_state("running", job)
    queue.conn.execute("select pyworker.cancel_job(%s, true)", [job])
    assert worker.wait(10) == 70


def test_a_handler_whose_time_is_over_ends_its_process_and_runs_again(queue: Running) -> None:
    queue.conn.execute("select pyworker.define_task('note', timeout => '0.2 seconds')")
    worker = queue.start()
    job = queue.add({"n": 1, "sleep": 30})
    assert worker.wait(10) == 70
    queue.conn.execute("select pyworker.open_worker()")
    queue.until(
        "select sum(pyworker.sweep_workers()) + 1 > 0 and (pyworker.get_job(%s)).state = 'available'", job
    )


def test_a_job_whose_process_was_killed_runs_again_by_another_one(queue: Running) -> None:
    first = queue.start()
    job = queue.add({"n": 1, "once": True})
    assert first.wait(10) == 1
    queue.start()
    queue.until_state("completed", job)
    assert queue.notes() == [1, 1]
    assert os.path.exists(queue.directory / "again")
