"""Several tasks or threads of one handler with transactions, steps and adds beside each other: what one of
them rolls back, the others have not written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.workers import one_worker

KINDS = ["", "_async"]
NOBODYS = "from pyworker.history where task_identifier = 'nobody'"


@pytest.fixture(scope="module")
def one_handler(pg_template: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    directory = tmp_path_factory.mktemp("beside")
    with one_worker(pg_template, "beside", directory, "--concurrency", "1", modules="beside") as queue:
        queue.workers[0].until_ready()  # it has defined its tasks
        yield queue


def ended(queue: Any, identifier: str, payload: Any = None) -> Any:
    """The job after its end; and how often which payload was added by it."""
    queue.rows(f"select pyworker.delete_job(id) {NOBODYS}")
    job = queue.add(identifier, payload)
    queue.until("select (pyworker.get_job(%s)).state in ('completed', 'discarded')", job)
    queue.until("select count(*) = 0 from pyworker.jobs where task_identifier = 'nobody'")
    added = queue.rows(f"select (pyworker.get_job(id)).result {NOBODYS}")
    return queue.job(job), Counter(str(row.result) for row in added)


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_that_one_step_adds_is_not_lost_when_a_step_beside_it_rolls_back(
    one_handler: Any, kind: str
) -> None:
    job, added = ended(one_handler, f"two_steps{kind}")
    assert (job.state, job.attempts, added) == ("completed", 2, {"first": 1, "second": 1}), job.last_error


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block", ["transaction", "step"])
def test_an_add_beside_a_transaction_is_not_part_of_it(one_handler: Any, block: str, kind: str) -> None:
    job, added = ended(one_handler, f"sibling_adds{kind}", block)
    assert job.last_error.strip().endswith("ValueError: rolled back"), job.last_error
    assert added == {"sibling": 1}


def test_an_asyncio_task_that_outlives_the_block_it_was_started_in_adds_by_itself(one_handler: Any) -> None:
    job, added = ended(one_handler, "outlives_its_block")
    assert (job.state, added) == ("completed", {"within": 1, "late": 1, "last": 1}), job.last_error


def test_what_cannot_be_beside_a_transaction_that_completes_the_job_is_refused_by_name(
    one_handler: Any,
) -> None:
    job, _ = ended(one_handler, "refused_async")
    assert job.state == "completed", job.last_error
    one_handler.until(f"select count(*) = 1 {NOBODYS}")  # it adds that job after its end
    told = one_handler.value(f"select (pyworker.get_job(id)).result {NOBODYS}")
    assert told[0].startswith("job.transaction(): not while a step or a wait of this job is underway")
    by_caller = Counter(" ".join(one.split()[:3]) for one in told[1:])
    assert by_caller == {
        "job.step(): not inside": 1,
        "job.transaction(): not inside": 1,
        "job.step(): not while": 1,
        "job.transaction(): not while": 1,
    }


@pytest.mark.parametrize("kind", KINDS)
def test_many_steps_at_once_share_the_connections_of_one_handler(one_handler: Any, kind: str) -> None:
    """Each also needs one for job.once() while it holds its own."""
    job, _ = ended(one_handler, f"many_steps{kind}", 12)
    assert job.result == [*range(12)], job.last_error


def test_threads_of_a_handler_do_steps(one_handler: Any) -> None:
    job, _ = ended(one_handler, "steps_in_threads")
    assert job.result == ["1", 0, 1, 2], job.last_error


def test_a_step_of_an_async_job_on_another_event_loop_is_refused_with_what_to_do(one_handler: Any) -> None:
    job, _ = ended(one_handler, "steps_in_threads_async")
    assert job.result[0] == "1", job.last_error
    assert "asyncio.run_coroutine_threadsafe" in job.result[1]
