"""A database that answers and refuses: a grant was taken, a function or the schema is gone. The
worker waits until that is repaired."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo

from tests.support.health import until_health

pytestmark = pytest.mark.slow

CLAIM = "function pyworker.work(bigint, bigint[], bigint[], jsonb[], jsonb, integer, text[], text[], text[])"
# How it is broken, how it is repaired, what the log says.
WAYS = {
    "the grant of claims is taken": (
        f"revoke execute on {CLAIM} from public, pyworker_worker, limited",
        f"grant execute on {CLAIM} to limited",
        "permission denied for function work",
    ),
    "a function is gone": (
        f"alter {CLAIM} rename to gone",
        f"alter {CLAIM.replace('.work(', '.gone(')} rename to work",
        "work",
    ),
    "every grant is taken": (
        "revoke pyworker_worker from limited",
        "grant pyworker_worker to limited",
        "permission denied for schema pyworker",
    ),
    "the schema is away": (
        "alter schema pyworker rename to away",
        "alter schema away rename to pyworker",
        'schema "pyworker" does not exist',
    ),
}
ways = pytest.mark.parametrize("way", WAYS)


@pytest.fixture
def limited(fresh_queue: Any) -> Iterator[str]:
    """The connection string of a role that may work and no more."""
    fresh_queue.rows("create role limited login password 'limited'; grant pyworker_worker to limited")
    fresh_queue.rows(
        "grant usage on schema public to limited; grant all on all tables in schema public to limited"
    )
    fresh_queue.rows("grant all on all sequences in schema public to limited")
    yield make_conninfo(fresh_queue.dsn, user="limited", password="limited")
    for worker in fresh_queue.workers:
        worker.end()
    fresh_queue.rows("drop owned by limited; drop role limited")


def refusals(worker: Any) -> list[str]:
    return [line for line in worker.log.splitlines() if "refuses" in line]


@ways
def test_a_worker_whose_claims_are_refused_is_not_ready_says_so_once_and_goes_on_when_that_is_over(
    fresh_queue: Any, limited: str, cli: Any, port: str, way: str
) -> None:
    broken, repaired, word = WAYS[way]
    worker = fresh_queue.start("--health-port", port, DATABASE_URL=limited).until_ready()
    fresh_queue.rows(broken)

    def asked(*options: str) -> tuple[int, str]:
        done = cli("health", *options)
        return done.returncode, done.stdout + done.stderr

    until_health(fresh_queue, asked, 1, "refuses", "--port", port)
    worker.until_log(word)
    fresh_queue.rows("select pg_sleep(3)")  # in which it would have said so thousands of times
    lines = [line.split(" ", 3)[3] for line in refusals(worker)]
    assert len(lines) == len(set(lines)), worker.log
    assert len(lines) <= 6, worker.log
    fresh_queue.rows(repaired)
    job_id = fresh_queue.add("note")
    fresh_queue.until_state("completed", job_id)
    worker.until_log("accepts")
    until_health(fresh_queue, asked, 0, "ready", "--port", port)
    assert worker.stop() == 0
    assert "Traceback" not in worker.log


def test_the_database_knows_of_a_worker_whose_claims_are_refused(
    fresh_queue: Any, limited: str, cli: Any
) -> None:
    fresh_queue.start("--name", "one", DATABASE_URL=limited).until_ready()
    fresh_queue.rows(WAYS["a function is gone"][0])

    def asked(*options: str) -> tuple[int, str]:
        done = cli("health", *options, DATABASE_URL=fresh_queue.dsn)
        return done.returncode, done.stdout + done.stderr

    until_health(fresh_queue, asked, 1, "is live: the database refuses its claims", "--worker", "one")
    fresh_queue.rows(WAYS["a function is gone"][1])
    until_health(fresh_queue, asked, 0, "is ready", "--worker", "one")


@ways
def test_what_ended_while_the_database_refused_is_reported_when_that_is_over(
    fresh_queue: Any, limited: str, way: str
) -> None:
    broken, repaired, _ = WAYS[way]
    fresh_queue.close_gate(1)
    jobs = [fresh_queue.add(task, {"gate": 1}, max_attempts=1) for task in ("note", "act_async")]
    worker = fresh_queue.start(DATABASE_URL=limited)
    fresh_queue.until_waiting(1, 2)
    runs = fresh_queue.runs(*jobs)
    fresh_queue.rows(broken)
    fresh_queue.open_gate(1)
    worker.until_log("refuses")
    fresh_queue.rows(repaired)
    fresh_queue.until_state("completed", *jobs)
    assert fresh_queue.runs(*jobs) == runs
    assert worker.stop() == 0


@ways
def test_a_worker_stops_while_the_database_refuses(fresh_queue: Any, limited: str, way: str) -> None:
    worker = fresh_queue.start("--shutdown-timeout", "3600", DATABASE_URL=limited).until_ready()
    fresh_queue.rows(WAYS[way][0])
    worker.until_log("refuses")
    assert worker.stop() == 0
    fresh_queue.rows(WAYS[way][1])


def test_once_ends_with_the_reason_when_claims_are_refused(fresh_queue: Any, limited: str) -> None:
    fresh_queue.rows(WAYS["the grant of claims is taken"][0])
    fresh_queue.add("note")
    worker = fresh_queue.start("--once", DATABASE_URL=limited)
    assert worker.wait() == 1
    assert re.search(r"the database refuses: permission denied for function work$", worker.log, re.MULTILINE)
    assert "Traceback" not in worker.log
