"""What docs/coming-from.md says about Celery's workers and retries, and about procrastinate's locks, is run
as it stands there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from .test_coming_from import PAGE


def codes(section: str, left: str) -> list[str]:
    """The code on the right of the row that begins with this cell."""
    part = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    (row,) = [line for line in part.splitlines() if line.startswith(f"| {left} |")]
    return re.findall("`([^`]+)`", row.removeprefix(f"| {left} |"))


@pytest.mark.parametrize(("which", "processes"), [(0, 4), (1, 1)], ids=["processes", "threads"])
def test_a_worker_that_ran_four_tasks_at_once_runs_four_jobs_at_once(
    queue: Any, which: int, processes: int
) -> None:
    options = shlex.split(codes("Celery", "`-c 4`")[which])
    queue.close_gate(1)
    jobs = [queue.add("note", {"gate": 1}) for _ in range(8)]
    worker = queue.start(*options)
    queue.until_waiting(1, 4)
    worker.until_log(f"{processes} process")
    started = re.search(r"started: (\d+) process\w* of (\d+) handler", worker.log)
    assert started, worker.log
    assert int(started[1]) * int(started[2]) == 4
    assert len({seen.pid for seen in queue.seen()}) == processes
    assert len(queue.seen()) == 4
    queue.open_gate(1)
    queue.until_state("completed", *jobs)
    assert worker.stop() == 0


def test_a_retry_after_a_minute_counts_and_ends_after_three(queue: Any, tmp_path: Path) -> None:
    decorator, snooze = codes("Celery", "`self.retry(countdown=60)`")
    (tmp_path / "moved.py").write_text(
        "from pyworker import Snooze, task\n"
        f"{decorator}\ndef fails(payload): raise ValueError('no')\n"
        f"@task\ndef snoozes(payload): {snooze}\n"
    )
    limit = codes("Celery", "`autoretry_for`, `retry_backoff`, `max_retries=3`")[1]
    assert limit in decorator
    worker = queue.start(modules="moved").until_ready()
    failing, snoozing = queue.add("fails"), queue.add("snoozes")
    wait = "select round(extract(epoch from j.run_at - j.updated_at)) from pyworker.get_job(%s) j"
    for attempt in (1, 2, 3):
        queue.until_state("retryable", failing)
        assert (queue.job(failing).attempts, queue.value(wait, failing)) == (attempt, 60)
        queue.rows("select pyworker.retry_job(%s)", failing)
    queue.until_state("discarded", failing)
    assert queue.job(failing).attempts == 4
    queue.until_state("scheduled", snoozing)
    assert (queue.job(snoozing).attempts, queue.value(wait, snoozing)) == (0, 60)
    assert worker.stop() == 0


def lock_as(page: str) -> dict[str, Any]:
    """The policy that the page gives for a lock."""
    (policy,) = re.findall(r"`sequence_policy := '(\{.*?\})'`", page.replace("\n", " "))
    return {"sequence_policy": policy}


LOCKS: dict[str, tuple[dict[str, Any], list[int]]] = {
    "queue": ({"queue_name": "x"}, [3, 2, 1]),  # by priority
    "sequence": (lock_as(PAGE.partition("\n## procrastinate\n")[2]), [1, 2, 3]),  # as they were added
}


@pytest.mark.parametrize("how", LOCKS)
def test_of_jobs_with_one_lock_one_runs_at_a_time_and_a_failed_one_holds_up_none(
    queue: Any, how: str
) -> None:
    assert codes("procrastinate", '`task.configure(lock="x").defer()`')[0] == "queue_name := 'x'"
    options, order = LOCKS[how]
    for priority in (5, 0, -5):
        queue.add("t", None, priority=priority, **options)
    worker = queue.value("select pyworker.register_worker()")
    ran = []
    while jobs := queue.rows("select id, run from pyworker.claim_jobs(%s, 10)", worker):
        ((job_id, run),) = jobs
        ran.append(job_id)
        failure = {"id": job_id, "run": run, "error": "no", "discard": True}
        assert queue.value("select pyworker.fail_jobs(%s)", Jsonb([failure])) == [job_id]
    assert ran == order
