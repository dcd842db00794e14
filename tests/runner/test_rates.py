"""Workers and a queue with a rate: they start the next jobs when it has room, and never too many."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.support.rates import begun as begun
from tests.support.rates import worst
from tests.support.workers import Queue


def test_a_worker_starts_the_next_jobs_at_the_moment_when_the_rate_has_room(queue: Queue, begun: Any) -> None:
    """By its polls alone, one each 2.5 seconds, it would take longer than the deadline."""
    queue.value("select pyworker.set_queue('api', null, 1, '300 ms')")
    jobs = [queue.add("note", queue_name="api") for _ in range(18)]
    queue.start("--concurrency", "10")
    queue.until_state("completed", *jobs)
    assert len(begun("api")) == 18
    assert worst(begun("api"), timedelta(milliseconds=300)) == 1


@pytest.mark.slow
def test_a_rate_holds_over_workers_that_are_killed_and_all_jobs_run(queue: Queue, begun: Any) -> None:
    """The handlers of those that are killed hang; their jobs start again, and count again."""
    queue.value("select pyworker.set_queue('api', null, 4, '1 second')")
    queue.close_gate(1)
    hanging = [queue.add("note", {"gate": 1}, queue_name="api") for _ in range(4)]
    first = queue.start("--concurrency", "4")
    queue.until_waiting(1, 4)
    jobs = [queue.add("note", queue_name="api") for _ in range(8)]
    second = queue.start("--concurrency", "4")
    first.end()
    queue.value("select pyworker.force_unlock_workers(array_agg(distinct locked_by)) from pyworker.jobs"
                " where id = any (%s)", hanging)  # fmt: skip
    queue.open_gate(1)
    queue.until_state("completed", *jobs, *hanging)
    assert len(begun("api")) == 16
    assert worst(begun("api"), timedelta(seconds=1)) <= 4
    assert second.stop() == 0
