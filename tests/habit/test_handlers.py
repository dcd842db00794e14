"""What people ordinarily do in handlers works, ends as the table says, and harms no other job.

One worker runs them all. After each habit it runs an innocent job of another task, sync and async, which has
to find its connection as it was before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.habit import answers, calls, connections, innocent, libraries, payloads, shapes
from tests.habit.table import ANYTHING, HABITS, Habit
from tests.support.databases import copy_of
from tests.support.workers import Queue

MODULES = (answers, calls, connections, innocent, libraries, payloads, shapes)
# As innocent.STATE reads it: what each handler has a right to find.
CLEAN = [
    *(True, "tuple", False, True, "0", "Etc/UTC", "ISO, MDY", '"$user", public', "read committed", "off"),
    *(0, 0, 0, 0),
]


@pytest.fixture(scope="module")
def _served(pg_template: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Queue]:
    with copy_of(pg_template, "habit") as dsn:
        queue = Queue(dsn, tmp_path_factory.mktemp("habit"))
        yield queue
        queue.close()


@pytest.fixture
def worker(_served: Queue) -> Iterator[Queue]:
    """A queue with one worker. After a test that has failed, the next one gets a new worker."""
    if not _served.workers:
        _served.start("--concurrency", "2", modules=" ".join(module.__name__ for module in MODULES))
    yield _served
    if _served.workers:
        log = _served.workers[0].log
        assert _served.workers[0].process.poll() is None, log
        assert "ended unexpectedly" not in log


def ended(queue: Queue, job_id: int) -> Any:
    """The job, when its handler has ended."""
    queue.until("select (pyworker.get_job(%s)).state not in ('available', 'running')", job_id)
    return queue.job(job_id)


def innocents(queue: Queue) -> list[Any]:
    """What innocent jobs find now."""
    added = [queue.add("next_job"), queue.add("next_job_async")]
    found = [ended(queue, job_id) for job_id in added]
    assert [job.last_error for job in found] == [None, None]
    return [job.result for job in found]


@pytest.mark.parametrize("habit", HABITS.values(), ids=HABITS)
def test_a_habit_ends_as_people_expect_and_leaves_nothing_behind(habit: Habit, worker: Queue) -> None:
    try:
        job = ended(worker, habit.task.add(worker.conn, habit.payload).id)
        assert (job.state, job.last_error if habit.ends == "completed" else None) == (habit.ends, None)
        if habit.returns is not ANYTHING:
            if habit.is_told:  # after the commit that has completed the job
                worker.until("select count(*) > 0 from public.seen where job_id = %s", job.id)
            assert [job.result, *(seen.told for seen in worker.seen(job.id))][-1] == habit.returns
        assert habit.error in (job.last_error or "")
        assert innocents(worker) == [CLEAN, CLEAN]
    except BaseException:
        worker.workers.pop().end()  # so that the next habit finds a new worker
        raise


def test_no_job_is_lost_that_concurrent_step_transactions_have_added(worker: Queue) -> None:
    added = (
        "select count(*) from (select task_identifier from pyworker.jobs union all "
        "select task_identifier from pyworker.history) j where task_identifier = 'counted'"
    )
    before = worker.value(added)
    ended(worker, calls.gathered_step_transactions.add(worker.conn).id)
    assert worker.value(added) == before + 2
