"""`pyworker replay`: the real handler on a past job's payload, and nothing is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support import ROOT

TASKS = """
import asyncio
from dataclasses import dataclass
from pyworker import AsyncJob, Cancel, Job, Snooze, task

@dataclass
class Order:
    id: int

@task(batch=10, result=True)
def in_batches(jobs: list[Job[Order]]):
    print("once:", jobs[0].once("mail"))
    return [f"{job.payload.id} of {len(jobs)}" for job in jobs]

@task(result=True)
def book(order: Order, job: Job):
    with job.transaction() as conn:
        conn.execute("insert into booked values (%s)", [order.id])
        job.add_job("book", {"id": 8})
        print("in it:", conn.execute("select count(*) from booked").fetchone()[0])
    job.add_job("book", {"id": 9})
    print("once:", job.once("mail"))

@task
async def book_async(order: Order, job: AsyncJob):
    async with job.transaction() as conn:
        await conn.execute("insert into booked values (%s)", [order.id])
        await job.add_job("book", {"id": 8})
    await job.add_job("book", {"id": 9})
    print("once:", await job.once("mail"))
    await asyncio.sleep(0)

@task
def by_hand(statement, job: Job):
    with job.transaction() as conn:
        conn.execute(statement)

@task(result=True)
def twice(payload, job):
    job.logger.info("attempt %s of %s", job.attempts, job.max_attempts)
    return payload * 2

@task
def later(payload):
    return Snooze(60)

@task(delivery="at_most_once")
def broken(payload):
    secret = payload["n"]
    raise ValueError(f"no {secret}")

@task
def stops(payload):
    breakpoint()
"""
EVERYTHING = """
    select (select json_agg(to_jsonb(j) order by id) from pyworker.live_jobs j),
           (select json_agg(to_jsonb(f) order by id) from pyworker.finished_jobs f),
           (select json_agg(e) from pyworker.errors e),
           (select count(*) from pyworker.once_keys), (select count(*) from booked), (select count(*)
           from pyworker.workers)"""


@pytest.fixture
def replay(db: Any, dsn: str, program: Any, tmp_path: Path) -> Any:
    """replay(task, payload) adds such a job and replays it; returns the process, and asserts that
    the database is as it was."""
    (tmp_path / "mytasks.py").write_text(TASKS)
    db.execute("create table if not exists public.booked (id integer); truncate public.booked")
    db.execute(
        "select setval('pyworker.listening_until', extract(epoch "
        "from clock_timestamp())::bigint * 1000 + 60000)"
    )

    def run(task: str, payload: Any, *words: str, prepare: str = "select 1", stdin: str = "") -> Any:
        job_id = db.execute(
            "select id from pyworker.add_job(%s, %s::json)", [task, json.dumps(payload)]
        ).fetchone()[0]
        db.execute(prepare, [job_id] * prepare.count("%s"))
        before = db.execute(EVERYTHING).fetchone()
        with psycopg.connect(dsn, autocommit=True) as listener:
            listener.execute("listen pyworker")
            done = program(
                "replay",
                str(job_id),
                *(words or ("--modules", "mytasks")),
                stdin=stdin,
                DATABASE_URL=dsn,
                PYTHONPATH=str(ROOT),
            )
            listener.execute("select 1")
            assert list(listener.notifies(timeout=0)) == []
        assert db.execute(EVERYTHING).fetchone() == before
        return done

    yield run
    db.execute("drop table public.booked")


@pytest.mark.parametrize("task", ["book", "book_async"])
def test_what_the_handler_does_by_its_job_is_rolled_back(replay: Any, task: str) -> None:
    done = replay(task, {"id": 7})
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("once: True\nit would be completed\n")
    if task == "book":
        assert done.stdout.startswith("in it: 1\n")


@pytest.mark.parametrize(
    ("prepare", "state"),
    [
        ("select pyworker.complete_jobs(array[%s::bigint])", "completed"),
        ("select pyworker.permanently_fail_jobs(array[%s::bigint], 'boom')", "discarded"),
        ("select * from pyworker.claim_jobs(pyworker.register_worker())", "running"),
    ],
)
def test_a_job_may_be_in_any_state_and_stays_as_it_is(replay: Any, prepare: str, state: str) -> None:
    done = replay("twice", "ab", prepare=prepare)
    assert (done.returncode, done.stdout) == (0, 'it would be completed, with the result "abab"\n')
    assert f"(twice, {state}) is run here, and rolled back\n" in done.stderr
    assert f"attempt {25 if state == 'discarded' else 1} of 25" in done.stderr


def test_a_batch_handler_gets_the_job_alone(replay: Any) -> None:
    done = replay("in_batches", {"id": 7})
    assert (done.returncode, done.stdout) == (
        0,
        'once: True\nit would be completed, with the result "7 of 1"\n',
    )


def test_an_answer_other_than_success_is_told(replay: Any) -> None:
    assert replay("later", {}).stdout == "it answered Snooze: snoozed for 0:01:00\n"


def test_of_a_failure_the_traceback_is_shown(replay: Any) -> None:
    done = replay("broken", {"n": 13})
    assert done.returncode == 1
    assert "ValueError: no 13" in done.stderr
    assert 'mytasks.py", line' in done.stderr


@pytest.mark.parametrize("statement", ["rollback", "rollback and chain"])
def test_a_transaction_that_is_ended_by_hand_fails_as_in_a_worker(replay: Any, statement: str) -> None:
    done = replay("by_hand", statement)
    assert done.returncode == 1
    assert "has ended the transaction by hand" in done.stderr


def test_a_failure_can_be_looked_at_in_the_debugger(replay: Any) -> None:
    done = replay("broken", {"n": 13}, "--modules", "mytasks", "--pdb", stdin="p secret * 3\nq\n")
    assert "39" in done.stdout


def test_a_breakpoint_stops_in_the_handler(replay: Any) -> None:
    done = replay("stops", {"n": 14}, stdin="up 0\np payload['n'] * 2\nc\n")
    assert "28" in done.stdout
    assert done.stdout.endswith("it would be completed\n")
    assert done.returncode == 0


def test_where_the_task_is_defined_a_live_worker_knows(replay: Any, db: Any) -> None:
    for modules, knows in (("older", "twice"), ("mytasks", "twice"), ("others", "other")):
        info = json.dumps({"modules": [modules]})
        worker = db.execute("select pyworker.register_worker(%s)", [info]).fetchone()[0]
        db.execute(
            "select pyworker.update_worker(%s, %s)", [worker, json.dumps({"task_identifiers": [knows]})]
        )
    assert (
        replay("twice", [1], "--schema", "pyworker").stdout
        == "it would be completed, with the result [1, 1]\n"
    )


@pytest.mark.parametrize("task", ["twice", "book_async"])
def test_middlewares_surround_it_as_in_a_worker(replay: Any, tmp_path: Path, task: str) -> None:
    (tmp_path / "around.py").write_text(
        "from pyworker import middleware\n"
        "@middleware\n"
        "def told(job):\n"
        "    print('before', job.task_identifier)\n"
        "    result = yield\n"
        "    print('after', result)\n"
    )
    lines = replay(
        task, {"id": 7} if task == "book_async" else "ab", "--modules", "mytasks", "--modules", "around"
    ).stdout.splitlines()
    assert lines[0] == f"before {task}"
    assert lines[-2] == f"after {'None' if task == 'book_async' else 'abab'}"


def test_what_is_missing_is_named(replay: Any) -> None:
    assert replay("twice", 1, "--schema", "pyworker").stderr == (
        "pyworker: no live worker knows the task 'twice': name the module that defines it by --modules\n"
    )
    assert replay("unheard", 1).stderr == (
        "pyworker: mytasks has no task 'unheard' (it has: book, book_async, broken, by_hand, in_batches,"
        " later, stops, twice)\n"
    )
    assert "there is no module 'nowhere'" in replay("twice", 1, "--modules", "nowhere").stderr
