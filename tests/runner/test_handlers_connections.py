"""What a handler does to the connection of its block ends with that, and hurts nobody else."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.pooler import pooler
from tests.support.tasks import dirty
from tests.support.workers import one_worker

KINDS = ["", "_async"]
BLOCKS = ["in_transaction", "in_step"]


@pytest.fixture(scope="module")
def one_handler(pg_template: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A worker with one handler at once: jobs get the same connection one after the other."""
    directory = tmp_path_factory.mktemp("dirty")
    with one_worker(pg_template, "dirty", directory, "--concurrency", "1", modules="dirty") as queue:
        queue.workers[0].until_ready()  # it has defined its tasks
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
    about, session = queue.job(job).result
    return {"about": about, **session.pop("settings"), **session}


def differences(before: Any, after: Any) -> dict[str, Any]:
    return {name: (before[name], after[name]) for name in before if before[name] != after[name]}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("deed", [deed for deed in dirty.DEEDS if deed not in dirty.ENDS])
def test_what_a_handler_does_to_its_connection_hurts_neither_its_job_nor_the_next(
    one_handler: Any, deed: str, block: str, kind: str
) -> None:
    queue = one_handler
    before = look(queue, kind)
    job = queue.add(f"{block}{kind}", deed)
    queue.until("select (pyworker.get_job(%s)).state in ('completed', 'discarded')", job)
    assert queue.job(job).state == "completed", queue.job(job).last_error
    assert differences(before, look(queue, kind)) == {}
    others = [queue.add("innocent"), queue.add("innocent_async")]
    queue.until_state("completed", *others)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("deed", dirty.ENDS)
def test_a_block_whose_handler_has_ended_the_transaction_by_hand_fails_its_job_and_hurts_no_other(
    one_handler: Any, deed: str, block: str, kind: str
) -> None:
    queue = one_handler
    before = look(queue, kind)
    job = queue.add(f"{block}{kind}", deed)
    queue.until("select (pyworker.get_job(%s)).state in ('completed', 'discarded')", job)
    assert queue.job(job).state == "discarded"
    assert "has ended the transaction by hand" in queue.job(job).last_error
    assert "what it has committed cannot be undone" in queue.job(job).last_error
    assert differences(before, look(queue, kind)) == {}
    queue.until_state("completed", queue.add("innocent"), queue.add("innocent_async"))


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
    assert differences(before, look(queue, kind)) == {}


DEFERRING = """
    create table if not exists public.deferring (id bigint, by text);
    create or replace function public.note() returns trigger language plpgsql as
        'begin update public.deferring set by = current_user where id = new.id; return null; end';
    drop trigger if exists note on public.deferring;
    create constraint trigger note after insert on public.deferring deferrable initially deferred
        for each row execute function public.note();
    grant all on public.deferring to dirty; grant usage on schema public to dirty"""


@pytest.mark.parametrize("kind", KINDS)
def test_deferred_triggers_run_as_the_role_that_the_handler_has_set(one_handler: Any, kind: str) -> None:
    """A role without any right on pyworker; the job is completed as the worker's."""
    queue = one_handler
    queue.conn.execute(DEFERRING)
    job = queue.add(f"defers{kind}")
    queue.until("select (pyworker.get_job(%s)).state in ('completed', 'discarded')", job)
    assert queue.job(job).state == "completed", queue.job(job).last_error
    assert queue.value("select by from public.deferring where id = %s", job) == "dirty"


@pytest.mark.parametrize("kind", KINDS)
def test_an_add_as_a_role_that_must_not_add_says_what_to_do(one_handler: Any, kind: str) -> None:
    job = one_handler.add(f"adds_as_tenant{kind}")
    one_handler.until_state("discarded", job)
    assert "add_job needs the role pyworker_producer" in one_handler.job(job).last_error


OF_HANDLERS = """
    select count(*) from pg_stat_activity
    where application_name = 'pyworker handler' and datname = current_database()"""


def test_handlers_have_as_many_connections_as_the_page_says_and_idle_ones_are_closed(queue: Any) -> None:
    page = Path(__file__).parents[2] / "docs" / "operations.md"
    assert "at most `--concurrency` + 3 per process" in page.read_text("utf-8")
    queue.start("--concurrency", "2", modules="beside").until_ready()
    queue.until_state("completed", *[queue.add("many_steps", 12) for _ in range(3)])
    assert 3 <= queue.value(OF_HANDLERS) <= 2 + 3
    queue.until_state("completed", *[queue.add("many_steps_async", 12) for _ in range(3)])
    most = queue.value(OF_HANDLERS)
    assert most <= 2 * (2 + 3)
    queue.until(f"select ({OF_HANDLERS}) <= %s", most - 2)


def test_the_applications_own_adapters_for_all_connections_do_not_reach_the_workers(queue: Any) -> None:
    queue.start("--concurrency", "1", modules="adapted").until_ready()
    jobs = [queue.add(name) for name in ("adapted", "adapted_async")]
    queue.until_state("completed", *jobs)
    assert [queue.job(job).result for job in jobs] == [["LOUD", True], ["LOUD", True]]


@pytest.mark.skipif(not shutil.which("pgbouncer"), reason="there is no pgbouncer here")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block", BLOCKS)
def test_behind_a_pooler_the_next_client_of_the_session_finds_nothing_of_a_handlers(
    queue: Any, tmp_path: Path, block: str, kind: str
) -> None:
    with_role(queue.conn)
    with pooler(queue, tmp_path) as dsn:
        queue.start("--concurrency", "1", modules="dirty", DATABASE_URL=dsn).until_log("transaction pooler")
        before = look(queue, kind)
        for deed in ("role", "timeouts", "a tenant", "advisory lock", "temporary table", "row factory"):
            job = queue.add(f"{block}{kind}", deed)
            queue.until("select (pyworker.get_job(%s)).state in ('completed', 'discarded')", job)
            assert queue.job(job).state == "completed", queue.job(job).last_error
        assert [differences(before, look(queue, kind)) for _ in range(4)] == [{}] * 4
