"""Handlers that use Django's ORM, in a real worker: their connections, as in a request of Django's."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.orm import TABLE, environment

pytest.importorskip("django")
pytestmark = pytest.mark.slow

KINDS = ["sync", "asynchronous", "orm.tasks.djangos", "orm.tasks.djangos_asynchronous"]
BATCHES = ["batch", "asynchronous_batch"]


def payload_for(kind: str, word: str) -> Any:
    return {"args": [word], "kwargs": {}} if kind.startswith("orm.") else word


@pytest.fixture
def things(queue: Any) -> Any:
    """things(…) starts a worker with these settings of Django's database."""
    queue.rows(TABLE)

    def start(*options: str, modules: str = "pyworker.django.worker", apps: Any = None, **more: Any) -> Any:
        given = environment(queue.dsn, apps, **more)
        return queue.start("-c", "1", *options, modules=modules, **given).until_ready()

    return start


def names(queue: Any) -> list[str]:
    return [row.name for row in queue.rows("select name from public.thing order by id")]


def run(queue: Any, kind: str, word: str) -> Any:
    """Run a job, and return it."""
    job = queue.add(kind, payload_for(kind, word))
    queue.until_state("completed", job)
    return queue.job(job)


def end_of_orm(queue: Any) -> int:
    """PostgreSQL ends the connections of Django's: how many there were."""
    ended = queue.rows(
        "select pg_terminate_backend(pid, 30000) from pg_stat_activity where application_name = 'orm'"
    )
    return len(ended)


@pytest.mark.parametrize("kind", [*KINDS, *BATCHES])
def test_a_lost_connection_fails_one_attempt_at_most(queue: Any, things: Any, kind: str) -> None:
    things(CONN_MAX_AGE=None)
    run(queue, kind, "a")
    assert end_of_orm(queue) == 1
    second = run(queue, kind, "b")
    assert second.attempts <= 2
    assert run(queue, kind, "c").attempts == 1
    assert names(queue) == ["a", "b", "c"]


@pytest.mark.parametrize("kind", [*KINDS, *BATCHES])
def test_with_health_checks_a_lost_connection_fails_no_attempt(queue: Any, things: Any, kind: str) -> None:
    things(CONN_MAX_AGE=None, CONN_HEALTH_CHECKS=True)
    run(queue, kind, "a")
    assert end_of_orm(queue) == 1
    assert run(queue, kind, "b").attempts == 1
    assert end_of_orm(queue) == 1
    assert run(queue, kind, "c").attempts == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_connection_lives_as_long_as_conn_max_age_says(queue: Any, things: Any, kind: str) -> None:
    things(CONN_MAX_AGE=600)
    assert run(queue, kind, "a").result == run(queue, kind, "b").result


@pytest.mark.parametrize("kind", KINDS)
def test_without_conn_max_age_no_connection_is_left_after_a_job(queue: Any, things: Any, kind: str) -> None:
    things()
    first, second = run(queue, kind, "a").result, run(queue, kind, "b").result
    assert first != second
    queue.until("select count(*) = 0 from pg_stat_activity where application_name = 'orm'")


def test_connections_of_every_alias_are_closed(queue: Any, things: Any) -> None:
    things()
    assert run(queue, "other", "a").result != run(queue, "other", "b").result
    queue.until("select count(*) = 0 from pg_stat_activity where application_name = 'other orm'")


@pytest.mark.parametrize("how", ["atomic", "two blocks", "autocommit", "begin"])
@pytest.mark.parametrize("kind", ["leaves", "leaves_asynchronous"])
def test_a_transaction_that_a_handler_leaves_open_is_rolled_back(
    queue: Any, things: Any, kind: str, how: str
) -> None:
    worker = things(CONN_MAX_AGE=None)
    run(queue, kind, how)
    run(queue, "asynchronous" if kind.endswith("ous") else "sync", "after")
    assert names(queue) == ["before", "after"]
    assert f"task {kind} has left a transaction of database 'default' open: rolled back" in worker.log


def test_a_project_need_not_have_installed_the_application(queue: Any, things: Any) -> None:
    things(apps=[], CONN_MAX_AGE=None)
    run(queue, "sync", "a")
    assert end_of_orm(queue) == 1
    run(queue, "sync", "b")
    assert run(queue, "sync", "c").attempts == 1


def test_an_async_handler_has_a_connection_of_its_own_until_it_ends(queue: Any, things: Any) -> None:
    """Another handler's end does not close it."""
    things("-c", "3")
    queue.rows("insert into public.thing (name) select 'x' from generate_series(1, 5)")
    queue.close_gate(1)
    slow = queue.add("reads_slowly")
    queue.until_waiting(1)
    run(queue, "asynchronous", "a")
    run(queue, "asynchronous", "b")
    queue.open_gate(1)
    queue.until_state("completed", slow)
    assert queue.job(slow).attempts == 1
    assert names(queue)[-1] == "read 5"
    assert run(queue, "gathers", "").result == 1


def test_a_thread_that_is_still_at_work_serves_no_other_handler(queue: Any, things: Any) -> None:
    things("-c", "3", CONN_MAX_AGE=None)
    queue.close_gate(1)
    late = queue.add("times_out")
    queue.until_state("discarded", late)
    for word in ("a", "b"):
        run(queue, "asynchronous", word)
    queue.open_gate(1)


def test_tasks_that_need_the_applications_say_how_to_load_them(queue: Any, things: Any) -> None:
    given = environment(queue.dsn)
    worker = queue.start(modules="orm.tasks", **given)
    assert worker.wait() == 1
    assert "Apps aren't loaded yet" in worker.log
    assert (
        "For a Django project: manage.py pyworker run, or pyworker run pyworker.django.worker" in worker.log
    )
