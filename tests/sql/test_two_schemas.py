"""One session works in two schemas, as behind a pooler: what it knows of one means nothing in the other."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from pyworker._db.migrations import migrate
from tests.support import DEADLINE

SCHEMAS = ("one", "two")


@pytest.fixture
def both(fresh: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    for schema in SCHEMAS:
        migrate(fresh, schema)
        fresh.execute(f"select {schema}.register_worker(), {schema}.register_worker()")
    return fresh


def test_an_add_wakes_the_workers_of_its_schema_after_one_in_the_other(
    both: psycopg.Connection[Any], fresh_dsn: str
) -> None:
    with psycopg.connect(fresh_dsn, autocommit=True) as listener:
        for schema in SCHEMAS:
            listener.execute(f"listen {schema}")
            for _ in range(2):  # it waits from its second claim on: the first one may have found a job
                listener.execute(f"select from {schema}.claim_jobs(2, 9)")
            for other in SCHEMAS:
                if other != schema:
                    both.execute(f"select setval('{other}.listening_until', 1)")  # none waits there
                both.execute(f"select {other}.add_job('t')")
            heard = listener.notifies(timeout=DEADLINE, stop_after=1)
            assert [notification.channel for notification in heard] == [schema]


def test_the_claims_of_a_worker_are_tidied_after_those_of_its_namesake_in_the_other(
    both: psycopg.Connection[Any], fresh_dsn: str
) -> None:
    for schema in SCHEMAS:
        both.execute(f"select {schema}.add_job('t') from generate_series(1, 3)")
    with psycopg.connect(fresh_dsn, autocommit=True) as another:
        for _ in range(2):
            another.execute("select from two.claim_jobs(1, 1)")
    for schema in SCHEMAS:
        both.execute(f"select from {schema}.claim_jobs(1, 1)")
    rows = both.execute("select cardinality(job_ids) from two.claims order by 1").fetchall()
    assert rows == [(1,), (2,)]  # what was there is one row now
