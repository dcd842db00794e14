"""wait_for_job and job.progress, with a real worker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

import pyworker


@pytest.fixture(params=[True, False], ids=["autocommit", "no autocommit"])
def alone(request: Any, dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn, autocommit=request.param) as conn:
        yield conn


def later(queue: Any, *statements: str) -> threading.Thread:
    """Runs them once a caller waits."""

    def run() -> None:
        queue.until("select exists (select from pyworker.waiters)")
        for statement in statements:
            queue.rows(statement)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_it_returns_the_ended_job_with_its_result(queue: Any, alone: Any) -> None:
    job = queue.add("act", {"value": 7})
    queue.start()
    ended = pyworker.wait_for_job(alone, job)
    assert (ended.state, ended.result) == ("completed", 7)
    assert pyworker.wait_for_job(alone, job).state == "completed"  # at once
    assert alone.info.transaction_status.name == "IDLE"


@pytest.mark.parametrize("notified", [True, False])
def test_it_is_woken_by_a_notification_and_right_without_one(queue: Any, alone: Any, notified: bool) -> None:
    job = queue.add("no_such_task")
    lost = [] if notified else ["truncate pyworker.waiters"]
    thread = later(queue, *lost, f"select pyworker.cancel_job({job})")
    assert pyworker.wait_for_job(alone, job, timedelta(seconds=30)).state == "cancelled"
    thread.join()


def test_a_notification_ends_the_wait_long_before_the_next_look(queue: Any, alone: Any) -> None:
    """A look comes each second, so without the notification every wait would take nearly as long."""
    late = []
    for _ in range(5):
        job = queue.add("no_such_task")
        thread = later(queue, f"select pyworker.cancel_job({job})")
        pyworker.wait_for_job(alone, job, timedelta(seconds=30))
        late.append(queue.value("select clock_timestamp() - (pyworker.get_job(%s)).finished_at", job))
        thread.join()
        queue.rows("truncate pyworker.waiters")
    assert min(late) < timedelta(seconds=0.5)


def test_any_kind_of_cursor_may_be_the_connections_own(queue: Any, dsn: str) -> None:
    job = queue.add("no_such_task")
    queue.rows("select pyworker.cancel_job(%s)", job)
    with psycopg.connect(dsn, cursor_factory=psycopg.RawCursor) as conn:
        assert pyworker.wait_for_job(conn, job).state == "cancelled"

    async def run() -> None:
        async with await psycopg.AsyncConnection.connect(dsn, cursor_factory=psycopg.AsyncRawCursor) as conn:
            assert (await pyworker.wait_for_job(conn, job)).state == "cancelled"

    asyncio.run(run())


def test_a_job_that_does_not_end_in_time_is_in_the_exception(queue: Any, alone: Any) -> None:
    job = queue.add("no_such_task")
    with pytest.raises(
        pyworker.JobTimeout, match=f"job {job} has not ended within 0.2 s: it is available"
    ) as e:
        pyworker.wait_for_job(alone, job, 0.2)
    assert isinstance(e.value, TimeoutError)
    assert e.value.job.id == job
    assert pyworker.add_job(alone, "t").state == "available"  # the connection works on


def test_an_asynchronous_connection_waits_on_the_loop(queue: Any, dsn: str) -> None:
    job = queue.add("no_such_task")

    async def wait() -> Any:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
            with pytest.raises(pyworker.JobTimeout):
                await pyworker.wait_for_job(conn, job, 0.1)
            waiting = asyncio.create_task(pyworker.wait_for_job(conn, job, 30))  # type: ignore[arg-type]
            thread = later(queue, f"select pyworker.cancel_job({job})")
            ended = await waiting
            thread.join()
            return ended

    assert asyncio.run(wait()).state == "cancelled"


def test_what_it_cannot_wait_for_is_refused(queue: Any, alone: Any, dsn: str) -> None:
    with pytest.raises(pyworker.NotFound, match="await_job: there is no job 99"):
        pyworker.wait_for_job(alone, 99)
    with pytest.raises(pyworker.InvalidArgument, match="job_id must be an integer"):
        pyworker.wait_for_job(alone, "1")  # type: ignore[call-overload]
    for timeout in ("soon", True, float("nan"), None):
        with pytest.raises(pyworker.InvalidArgument, match="timeout must be a timedelta or seconds, got"):
            pyworker.wait_for_job(alone, 1, timeout)  # type: ignore[call-overload]
    alone.close()
    with pytest.raises(pyworker.WrongState, match="conn is closed"):
        pyworker.wait_for_job(alone, 1)


@pytest.mark.parametrize("kind", ["tells", "tells_async"])
def test_a_handler_tells_its_progress_at_most_once_a_second(queue: Any, kind: str) -> None:
    queue.start(modules="progressing")
    job = queue.add(kind, {"tell": [0.1, 0.2, 1.0]})
    queue.until_state("completed", job)
    row = queue.job(job)
    assert (row.progress, row.progress_message) == (1.0, "at 1.0")
    other = queue.add(kind, {"tell": [0.1, 0.2, 0.3]})
    queue.until_state("completed", other)
    assert queue.job(other).progress == pytest.approx(0.1)
    bad = queue.add(kind, {"tell": [2]}, max_attempts=1)
    queue.until_state("discarded", bad)
    assert "InvalidArgument: set_progress: progress must be from 0 to 1, got 2" in queue.job(bad).last_error
    words = queue.add(kind, {"tell": ["half"]}, max_attempts=1)
    queue.until_state("discarded", words)
    assert "progress must be a number from 0 to 1, got 'half'" in queue.job(words).last_error
