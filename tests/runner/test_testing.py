"""pyworker.testing: the documentation's project is tested as its reader would, and each promise of
the fixtures by itself."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT

GUIDE = (ROOT / "docs" / "testing.md").read_text("utf-8")
FILES = dict(re.findall(r"<!-- (\S+) -->\n```python\n(.*?)```", GUIDE, re.DOTALL))


@pytest.fixture
def project(tmp_path: Path, pg_server: Any) -> Any:
    """project(name=text …): pytest's output and exit code for a directory with the guide's files
    and these."""

    def run(files: dict[str, str]) -> tuple[int, str]:
        for name, text in {**FILES, **files}.items():
            (tmp_path / name).write_text(text, "utf-8")
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYWORKER_TEST_DATABASE_URL": pg_server.url(),
            "PYTEST_ADDOPTS": "",
            "PYTEST_XDIST_WORKER": f"inner_{tmp_path.name}",  # names the databases
        }
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-W",
            "error",
            *sorted(files),
        ]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
        )
        return done.returncode, done.stdout + done.stderr

    return run


def test_the_guides_project_passes_its_tests(project: Any) -> None:
    code, output = project({"test_shop.py": FILES["test_shop.py"]})
    assert code == 0, output
    assert "5 passed" in output


CASES = """
import asyncio, dataclasses, datetime, psycopg, pytest, shop
from pyworker import Cancel, Discard, task

@dataclasses.dataclass
class Mail:
    to: str
    on: datetime.date

@task(result=True)
def typed(payload: Mail):
    return str(payload.on.year)

@task
def again(payload, job):
    job.add_job("again")

@task(sequence_policy={"by_args": ["who"]})
def in_turn(payload):
    if payload.get("bad"):
        raise Discard("bad")

@task
def writes(payload, job):
    with job.transaction() as conn:
        conn.execute("create table if not exists public.written (n integer)")
        conn.execute("insert into public.written values (1)")

@task(batch=3, result=True)
def many(jobs):
    return [ValueError("bad") if job.payload == "bad" else len(jobs) for job in jobs]

@task(batch=3)
async def many_async(jobs):
    many_async.seen = [job.payload for job in jobs]

def test_a_batch_handler_gets_what_is_due_and_each_job_its_outcome(pyworker_db, drain, run_task):
    for payload in ("a", "b", "c", "bad"):
        many.add(pyworker_db, payload)
    ran = drain(raise_errors=False)
    assert [(r.job.state, r.result) for r in ran[:3]] == [("completed", 3)] * 3
    assert (ran[3].job.state, str(ran[3].error)) == ("retryable", "bad")
    many.add(pyworker_db, "a")
    assert run_task(many, "alone") == 1
    assert run_task(many_async, [5]) is None and many_async.seen == [[5]]
    with pytest.raises(ValueError, match="bad"):
        run_task(many, "bad")

def test_a_wrong_expectation_says_what_there_is(pyworker_db, assert_enqueued, assert_not_enqueued):
    shop.sign_up(pyworker_db, "ann@example.com")
    words = "no job of 'send_welcome' waits with payload=.*bob.*there are:\\n  1 send_welcome .*ann"
    with pytest.raises(AssertionError, match=words):
        assert_enqueued("send_welcome", payload={"to": "bob@example.com"})
    with pytest.raises(AssertionError, match="jobs of 'remind' wait:\\n  2 remind"):
        assert_not_enqueued("remind")
    with pytest.raises(TypeError, match="a job has no field 'queue' "):
        assert_enqueued("remind", queue="mail")

def test_a_typed_payload_may_be_expected_as_it_was_added(pyworker_db, assert_enqueued, drain):
    typed.add(pyworker_db, Mail("ann", datetime.date(2026, 1, 2)))
    assert_enqueued(typed, payload=Mail("ann", datetime.date(2026, 1, 2)))
    assert_enqueued(typed, payload={"to": "ann"})
    with pytest.raises(AssertionError, match="no job of 'typed' waits"):
        assert_enqueued(typed, payload=Mail("bob", datetime.date(2026, 1, 2)))
    (ran,) = drain(typed)
    assert ran.result == "2026"

def test_a_task_that_adds_itself_is_noticed(pyworker_queue, monkeypatch):
    monkeypatch.setattr("pyworker.testing.ENOUGH", 20)
    with pyworker_queue._database() as db:
        db.add_job("again")
    with pytest.raises(AssertionError, match="20 jobs have run, the last one of 'again'"):
        pyworker_queue.drain()

def test_a_job_that_cannot_run_says_why(pyworker_queue, run_task):
    with pytest.raises(Discard):
        run_task(in_turn, {"who": 1, "bad": True})
    with pytest.raises(AssertionError, match="run_task: job 2 .in_turn. does not run: .*1"):
        run_task(in_turn, {"who": 1})
    assert run_task(in_turn, {"who": 2}) is None

def test_effects_are_committed_with_the_job(run_task, pyworker_db):
    run_task(writes)
    assert pyworker_db.execute("select n from public.written").fetchall() == [(1,)]

def test_each_test_starts_with_an_empty_queue(pyworker_queue, drain):
    assert pyworker_queue.enqueued() == [] and drain() == []

async def on_a_loop(drain):
    return drain()

def test_a_job_that_a_unique_policy_leaves_out_is_named(run_task):
    policy = {"by_args": True, "by_period": "1 hour"}
    assert run_task(many, "a", unique_policy=policy) == 1
    with pytest.raises(AssertionError, match="completed at .*; it was there already, so no other was added"):
        run_task(many, "a", unique_policy=policy)


def test_a_drain_may_be_called_from_a_running_loop(pyworker_db, drain):
    shop.sign_up(pyworker_db, "ann@example.com")
    assert len(asyncio.run(on_a_loop(drain))) == 3

def test_the_clock_moves_for_every_connection(pyworker_dsn, clock):
    with psycopg.connect(pyworker_dsn, autocommit=True) as other:
        before = other.execute("select pyworker.clock()").fetchone()[0]
        after = clock.advance(days=400)
        assert other.execute("select pyworker.clock()").fetchone()[0] >= after
        assert (after - before).days == 400
        assert clock.advance(days=-400) < after
"""


def test_the_fixtures_keep_their_promises(project: Any) -> None:
    code, output = project({"test_cases.py": CASES})
    assert code == 0, output
    assert "10 passed" in output


INTERRUPTED = """
import pytest
from pyworker import task
from pyworker.errors import TaskError

ERRORS = {"ctrl_c": KeyboardInterrupt, "fail": pytest.fail.Exception, "skip": pytest.skip.Exception}
ERRORS |= {"plain": ValueError, "exit": SystemExit}

@task(max_attempts=1)
def breaks(payload):
    raise ERRORS[payload]("told")

@task(max_attempts=1)
async def breaks_async(payload):
    raise ERRORS[payload]("told")

def test_what_is_meant_for_the_test_is_raised(pyworker_queue, pyworker_db):
    for what in ("ctrl_c", "fail", "skip"):
        pyworker_db.execute("select pyworker.add_job('breaks', to_json(%s::text))", [what])
        with pytest.raises(ERRORS[what], match="told"):
            pyworker_queue.drain(raise_errors=False)

def test_what_fails_a_job_is_not(pyworker_queue, pyworker_db):
    for what in ("plain", "exit"):
        for task in ("breaks", "breaks_async")[:1 if what == "exit" else 2]:
            pyworker_db.execute(
                "select pyworker.add_job(%s, to_json(%s::text), max_attempts => 1)", [task, what]
            )
            (ran,) = pyworker_queue.drain(raise_errors=False)
            assert type(ran.error) is ERRORS[what]
            assert ran.job.state == "discarded"

def test_a_task_that_was_not_imported_is_named(drain, run_task):
    for call in (drain, run_task):
        words = "there is no task 'nosuch' .known: .*breaks.*. Import the module that defines it"
        with pytest.raises(TaskError, match=words):
            call("nosuch")
"""


def test_a_drain_keeps_nothing_from_the_test_and_names_an_unknown_task(project: Any) -> None:
    code, output = project({"test_interrupted.py": INTERRUPTED})
    assert code == 0, output
    assert "3 passed" in output


KIT = """
import contextvars
import psycopg, sqlalchemy
from psycopg.conninfo import conninfo_to_dict
from pyworker import task
from pyworker._dev.url import url_of

var = contextvars.ContextVar("var", default=None)

@task(result=True)
def sets(payload):
    var.set("tenant 1")

@task(result=True)
def reads(payload):
    return var.get()

def test_what_a_handler_sets_in_its_context_no_other_one_sees(pyworker_db, drain):
    sets.add(pyworker_db, {})
    reads.add(pyworker_db, {})
    assert drain(sets, reads)[1].job.result is None

def test_the_url_names_the_same_database(pyworker_db, pyworker_url):
    assert pyworker_url.startswith("postgresql://")
    with psycopg.connect(pyworker_url) as conn:
        assert conn.info.dbname == pyworker_db.info.dbname
    engine = sqlalchemy.create_engine(pyworker_url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as conn:
        assert conn.exec_driver_sql("select current_database()").scalar() == pyworker_db.info.dbname
    engine.dispose()

def test_any_connection_string_has_its_url():
    for dsn in (
        "host='/var/run/p q' port=5433 user=u dbname=d", "host=::1 port=1 user=u dbname=d",
        "host=h dbname='a b/c' user=u@x password='p@:/?#%'",
        "dbname=d options='-c search_path=a,b' sslmode=require", "host=a,b port=1,2 dbname=d",
    ):
        assert conninfo_to_dict(url_of(dsn)) == conninfo_to_dict(dsn)
"""


def test_a_handler_has_a_context_of_its_own_and_the_database_a_url(project: Any) -> None:
    code, output = project({"test_kit.py": KIT})
    assert code == 0, output
    assert "3 passed" in output
