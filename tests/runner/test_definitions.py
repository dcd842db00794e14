"""A task's options hold from the first job that is added, and `pyworker tasks` writes them for
those who add by SQL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest

import pyworker
from pyworker import JobRow, tasks

OPTIONS: dict[str, Any] = {
    "max_attempts": 2,
    "priority": -3,
    "queue_name": "money",
    "unique_policy": {"by_args": True},
    "sequence_policy": {"key": "bank"},
    "delivery": "at_most_once",
}
MODULE = """
from pyworker import task

@task(max_attempts={max_attempts}, delivery="at_most_once", timeout=90, backoff=["10 s", "5 min"],
      retention=0, unique_policy={{"by_args": True}})
def charge(payload): ...

@task
def plain(payload): ...
"""


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_registry", {})


def charge_task() -> tasks.Task[..., Any]:
    @pyworker.task(name="charge", timeout=5, backoff=["1 s"], **OPTIONS)
    def charge(payload: Any) -> None: ...

    return charge


def told(job: JobRow) -> tuple[Any, ...]:
    return (
        job.max_attempts,
        job.priority,
        job.queue_name,
        job.delivery,
        job.unique_key is not None,
        job.sequence_key is not None,
    )


ALL = (2, -3, "money", "at_most_once", True, True)
WAYS = {
    "Task.add": lambda conn, task: task.add(conn, {"n": 1}),
    "add_job": lambda conn, task: pyworker.add_job(conn, task, {"n": 1}),
    "add_jobs": lambda conn, task: pyworker.add_jobs(conn, [{"identifier": task, "payload": {"n": 1}}])[0],
}


@pytest.mark.parametrize("way", WAYS)
def test_the_options_of_a_task_hold_although_no_worker_has_ever_started(db: Any, way: str) -> None:
    assert told(WAYS[way](db, charge_task())) == ALL


def test_what_a_call_gives_replaces_the_tasks_option_and_none_does_not(db: Any) -> None:
    charge = charge_task()
    job = charge.add(
        db, {"n": 1}, max_attempts=7, queue_name="default", priority=None, delivery="at_least_once"
    )
    assert (job.max_attempts, job.queue_name, job.priority, job.delivery) == (7, None, -3, "at_least_once")
    (job,) = pyworker.add_jobs(
        db, [{"identifier": charge, "payload": {"n": 2}, "max_attempts": 7, "priority": None}]
    )
    assert (job.max_attempts, job.priority) == (7, -3)


def test_two_programs_that_declare_a_task_in_two_ways_each_get_their_own(db: Any) -> None:
    db.execute("select pyworker.define_task('charge', max_attempts => 9, queue_name => 'theirs')")
    assert told(charge_task().add(db, {"n": 1})) == ALL
    assert pyworker.add_job(db, "charge").max_attempts == 9


def test_what_adds_spans_sees_the_tasks_options(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    from pyworker import _client

    monkeypatch.setattr(_client, "producers", [lambda name, options: seen.append((name, dict(options)))])
    charge_task().add(db, {"n": 1}, priority=5)
    pyworker.add_jobs(db, [{"identifier": "other", "meta": {"a": 1}}])
    assert seen == [("charge", {**OPTIONS, "priority": 5}), ("other", {"meta": {"a": 1}})]


def test_a_job_that_may_run_once_is_not_run_twice_although_it_was_added_before_any_worker(queue: Any) -> None:
    @pyworker.task(delivery="at_most_once", max_attempts=5)
    def deliver(payload: Any) -> None: ...  # the worker has the real one

    job_id = deliver.add(queue.conn, {"gate": 1}).id
    queue.close_gate(1)
    worker = queue.start()
    queue.until_waiting(1)
    worker.end()
    queue.open_gate(1)
    queue.start()
    queue.until_state("discarded", job_id)
    assert (queue.job(job_id).reason, len(queue.seen(job_id))) == ("lost", 1)


# -- pyworker tasks --------------------------------------------------------------------------------


@pytest.fixture
def deploy(db: psycopg.Connection[Any], dsn: str, program: Any, tmp_path: Path) -> Any:
    def run(*options: str, max_attempts: int = 2) -> Any:
        (tmp_path / "shop.py").write_text(MODULE.format(max_attempts=max_attempts))
        return program("tasks", "sync", "shop", *options, DATABASE_URL=dsn)

    return run


def test_definitions_are_written_at_deploy_time_and_sql_inherits_them(
    db: Any, dsn: str, deploy: Any, cli: Any
) -> None:
    assert cli("tasks", DATABASE_URL=dsn).stdout.startswith("no task is defined")
    done = deploy()
    assert (done.returncode, done.stderr) == (0, "")
    assert "charge" in done.stdout
    assert (
        'max_attempts 2; unique_policy {"by_args": true}; delivery at_most_once; timeout 1 min 30 s;'
        " backoff 10 s, 5 min; retention 0 s"
    ) in done.stdout
    assert "plain" not in done.stdout, "it says nothing of itself"
    job = db.execute("select max_attempts, delivery from pyworker.add_job('charge')").fetchone()
    assert job == (2, "at_most_once")
    (row,) = json.loads(cli("tasks", "--json", DATABASE_URL=dsn).stdout)
    assert (row["identifier"], row["max_attempts"], row["timeout"], row["backoff"]) == (
        "charge",
        2,
        90.0,
        ["10 s", "5 min"],
    )


def test_definitions_are_changed_by_the_next_deployment_and_kept_by_the_same_one(
    db: Any, deploy: Any
) -> None:
    deploy()
    written = db.execute("select updated_at from pyworker.list_tasks()").fetchall()
    assert deploy().returncode == 0
    assert db.execute("select updated_at from pyworker.list_tasks()").fetchall() == written
    tried = deploy("--dry-run", max_attempts=15)
    assert (tried.returncode, tried.stderr) == (0, "dry run, rolled back: tasks 1 updated\n")
    assert db.execute("select max_attempts from pyworker.list_tasks()").fetchall() == [(2,)]
    assert deploy(max_attempts=15).returncode == 0
    assert db.execute("select max_attempts from pyworker.list_tasks()").fetchall() == [(15,)]


def test_a_definition_that_is_refused_names_the_task_and_writes_none(db: Any, deploy: Any) -> None:
    done = deploy(max_attempts=0)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "pyworker: <task charge (shop.charge)>: define_task: max_attempts must be from 1 to 32767, got 0\n"
    )
    assert db.execute("select count(*) from pyworker.list_tasks()").fetchone() == (0,)


def test_a_module_that_is_not_there_is_named(db: Any, dsn: str, program: Any) -> None:
    done = program("tasks", "sync", "nowhere", DATABASE_URL=dsn)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("pyworker: there is no module 'nowhere' to load tasks from")


def test_a_worker_says_what_its_code_declares_and_doctor_says_that_the_database_has_changed(
    queue: Any, tmp_path: Path, cli: Any
) -> None:
    (tmp_path / "shop.py").write_text(MODULE.format(max_attempts=2))
    queue.start(modules="shop").until_ready()
    fine = cli("doctor", "--json", DATABASE_URL=queue.dsn)
    assert [row["severity"] for row in json.loads(fine.stdout) if row["check_name"] == "tasks"] == ["ok"]
    queue.rows("select pyworker.define_task('charge', max_attempts => 9)")
    (found,) = [
        row
        for row in json.loads(cli("doctor", "--json", DATABASE_URL=queue.dsn).stdout)
        if row["check_name"] == "tasks"
    ]
    assert found["severity"] == "warning"
    assert "charge (max_attempts: 2 in worker" in found["finding"]
    assert "pyworker tasks sync MODULE" in found["fix"]
