"""What a handler does to the connection of its block ends with that, and hurts nobody else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.support.tasks import dirty
from tests.support.workers import one_worker

KINDS = ["", "_async"]
BLOCKS = ["in_transaction", "in_step"]


@pytest.fixture(scope="module")
def one_handler(pg_template: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A worker with one handler at once: jobs get the same connection one after the other."""
    directory = tmp_path_factory.mktemp("dirty")
    with one_worker(pg_template, "dirty", directory, "--concurrency", "1", modules="dirty") as queue:
        with_role(queue.conn)
        yield queue
        queue.rows("delete from public.seen")


def with_role(conn: psycopg.Connection[Any]) -> None:
    try:
        conn.execute("create role dirty")
    except psycopg.errors.DuplicateObject:
        pass


def look(queue: Any, kind: str) -> Any:
    job = queue.add(f"look{kind}")
    queue.until("select (pyworker.get_job(%s)).state in ('completed', 'discarded')", job)
    assert queue.job(job).state == "completed", queue.job(job).last_error
    return queue.job(job).result


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("deed", dirty.DEEDS)
def test_what_a_handler_does_to_its_connection_hurts_neither_its_job_nor_the_next(
    one_handler: Any, deed: str, block: str, kind: str
) -> None:
    queue = one_handler
    before = look(queue, kind)
    job = queue.add(f"{block}{kind}", deed)
    queue.until("select (pyworker.get_job(%s)).state in ('completed', 'discarded')", job)
    assert queue.job(job).state == "completed", queue.job(job).last_error
    assert look(queue, kind) == before
    others = [queue.add("innocent"), queue.add("innocent_async")]
    queue.until_state("completed", *others)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("deed", dirty.BREAKS)
def test_a_block_that_cannot_commit_fails_its_job_by_name_and_leaves_nothing(
    one_handler: Any, deed: str, kind: str
) -> None:
    queue = one_handler
    before = look(queue, kind)
    job = queue.add(f"break_it{kind}", deed)
    queue.until_state("discarded", job)
    assert dirty.BREAKS[deed][0] in queue.job(job).last_error
    assert queue.rows("select from public.runs where job_id = %s", job) == []
    assert look(queue, kind) == before
