"""How `pyworker run` is told of several databases and several schemas, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pyworker._db.migrations import migrate
from tests.support import PYTHONPATH
from tests.support.several import NAME
from tests.support.several import other as other
from tests.support.workers import Queue

# -- schemas ---------------------------------------------------------------------------------------


def install(queue: Queue, schema: str) -> None:
    with psycopg.connect(queue.dsn, autocommit=True) as conn:
        migrate(conn, schema)


@pytest.fixture
def schemas(fresh_queue: Queue, tmp_path: Path) -> Iterator[dict[str, Queue]]:
    """Two schemas of one database."""
    found: dict[str, Queue] = {}
    for name in ("tenant_a", "tenant b"):
        install(fresh_queue, name)
        found[name] = Queue(fresh_queue.dsn, tmp_path, name)
    yield found
    for one in found.values():
        one.close()


def test_several_schemas_of_one_database_are_served(fresh_queue: Queue, schemas: dict[str, Queue]) -> None:
    jobs = {name: one.add("silent") for name, one in schemas.items()}
    skipped = fresh_queue.add("silent")
    worker = fresh_queue.run_once(*(word for name in schemas for word in ("--schema", name)))
    assert all(one.states(jobs[name]) == ["completed"] for name, one in schemas.items())
    assert fresh_queue.states(skipped) == ["available"]
    assert f"{fresh_queue.value(NAME)}.tenant b: stopped: 1 completed" in worker.log


def test_schemas_and_databases_that_are_equally_many_are_paired(
    queue: Queue, fresh_queue: Queue, schemas: dict[str, Queue]
) -> None:
    jobs = queue.add("silent"), schemas["tenant_a"].add("silent"), schemas["tenant b"].add("silent")
    queue.run_once(
        *("--dsn", queue.dsn, "--dsn", fresh_queue.dsn, "--schema", "pyworker", "--schema", "tenant_a")
    )
    assert queue.states(jobs[0]) == schemas["tenant_a"].states(jobs[1]) == ["completed"]
    assert schemas["tenant b"].states(jobs[2]) == ["available"]


def test_one_schema_counts_for_every_database(
    fresh_queue: Queue, schemas: dict[str, Queue], other: Queue, tmp_path: Path
) -> None:
    install(other, "tenant b")
    there = Queue(other.dsn, tmp_path, "tenant b")
    jobs = schemas["tenant b"].add("silent"), there.add("silent")
    fresh_queue.run_once("--dsn", fresh_queue.dsn, "--dsn", other.dsn, PYWORKER_SCHEMA="tenant b")
    assert schemas["tenant b"].states(jobs[0]) == there.states(jobs[1]) == ["completed"]
    there.close()


def test_databases_and_schemas_may_stand_before_the_command(
    program: Any, fresh_queue: Queue, schemas: dict[str, Queue]
) -> None:
    jobs = {name: one.add("silent") for name, one in schemas.items()}
    before = ["--dsn", fresh_queue.dsn, *(word for name in schemas for word in ("--schema", name))]
    done = program(*before, "run", "handlers", "--once", PYTHONPATH=PYTHONPATH)
    assert done.returncode == 0, done.stderr
    assert all(one.states(jobs[name]) == ["completed"] for name, one in schemas.items())


# -- wrong usage -----------------------------------------------------------------------------------

SHOP = "postgresql://ada:se%cret@db1.example.org/shop"
WRONG = {
    "the same twice": (
        ["--dsn", "host=h dbname=shop user=a", "--dsn", "postgresql://b@h:5432/shop"],
        "databases 1 and 2 are the same: shop, schema pyworker. One worker serves it; for more",
    ),
    "the same twice by a default": (
        ["--dsn", "host=h dbname=x", "--dsn", "host=g", "--dsn", "host=g dbname=mine"],
        "databases 2 and 3 are the same: mine, schema pyworker.",
    ),
    "the same schema twice": (
        ["--dsn", "host=h dbname=shop", *["--schema", "a"], *["--schema", "b"], *["--schema", "a"]],
        "databases 1 and 3 are the same: shop, schema a.",
    ),
    "unequal numbers": (
        ["--dsn", "dbname=a", "--dsn", "dbname=b", *["--schema", "a"], *["--schema", "b"], "--schema", "c"],
        "--dsn is given 2 times and --schema 3 times: give one of them once, for all, or both equally often",
    ),
    "a wrong URL": (
        ["--dsn", "host=h", "--dsn", "postgresql://ada:secret@h/shop?nonsense=1"],
        "--dsn number 2, postgresql://ada:***@h/shop?nonsense=1: invalid URI query parameter",
    ),
    "a wrong escape in the password": (
        ["--dsn", "host=h", "--dsn", SHOP],
        "--dsn number 2, postgresql://ada:***@db1.example.org/shop: invalid percent-encoded token",
    ),
    "a password with a space": (
        ["--dsn", "host=h", "--dsn", "host=h password = my secret user=x"],
        "--dsn number 2, host=h password =***: missing",
    ),
    "a scheme that is misspelt": (
        ["--dsn", "postgres//ada:secret:@h/shop", "--dsn", "host=h"],
        "--dsn number 1, postgres//ada:***@h/shop: missing",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_usage_names_the_database_and_hides_its_password(program: Any, case: str) -> None:
    options, text = WRONG[case]
    done = program("run", "handlers", *options, PGDATABASE="mine")
    assert (done.returncode, done.stdout) == (2, "")
    assert text in done.stderr
    assert "cret" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["jobs", "--dsn", "dbname=a", "--dsn", "dbname=b"],
        ["--dsn", "dbname=a", "--dsn", "dbname=b", "doctor"],
        ["queues", "pause", "q", "--dsn", "dbname=a", "--dsn", "dbname=b"],
    ],
    ids=" ".join,
)
def test_other_commands_take_one_database(cli: Any, arguments: list[str]) -> None:
    done = cli(*arguments)
    assert done.returncode == 2
    assert "--dsn names 2 databases: only `pyworker run` takes several" in done.stderr


def test_other_commands_take_one_schema_and_one_url_of_the_variable(cli: Any) -> None:
    done = cli("jobs", "--schema", "a", "--schema", "b")
    assert (done.returncode, "--schema names 2 schemas: only `pyworker run`" in done.stderr) == (2, True)
    done = cli("health", DATABASE_URL="postgresql:///a postgres:///b")
    assert (done.returncode, "--dsn names 2 databases" in done.stderr) == (2, True)
