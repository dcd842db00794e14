"""History is replicated to another database: docs/failover.md has the statements, and they are run here."""

from __future__ import annotations

import re
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from pyworker._db.migrations import migrate
from tests.docs.test_snippets import blocks_of
from tests.failover.writers import until
from tests.support import ROOT
from tests.support.servers import Postgres

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs" / "failover.md"
PUBLISHER = {"wal_level": "logical", "max_wal_senders": "4", "max_replication_slots": "4"}
ARCHIVED = "select array_agg(id order by id) from pyworker.finished_jobs"


def statements(word: str) -> str:
    """The page's block that begins with this word."""
    (found,) = (block.text for block in blocks_of(PAGE) if block.text.startswith(word))
    return found


@pytest.fixture
def source(stack: ExitStack) -> Postgres:
    server = Postgres(stack, **PUBLISHER)
    with psycopg.connect(server.url, autocommit=True) as conn:
        migrate(conn, movable_clock=True)
    return server


@pytest.fixture
def archive(stack: ExitStack, source: Postgres) -> Postgres:
    server = Postgres(stack)
    server.execute(statements("CREATE SCHEMA"))
    return server


def complete(server: Postgres, number: int = 1) -> list[int]:
    """Jobs that are added and completed now."""
    rows = server.execute(
        f"select (pyworker.add_job('t', '{{\"a\": 1}}')).id from generate_series(1, {number})"
    )
    ids = [row[0] for row in rows]
    server.execute(f"select pyworker.complete_jobs(array{ids}::bigint[])")
    return ids


def subscribe(archive: Postgres, source: Postgres) -> None:
    there = f"host={source.server.host} port=5432 user=postgres dbname=postgres"
    archive.execute(re.sub("CONNECTION '[^']*'", f"CONNECTION '{there}'", statements("CREATE SUBSCRIPTION")))


def until_archived(archive: Postgres, *ids: int) -> None:
    until(f"{ids} are in the archive", lambda: archive.execute(ARCHIVED)[0][0] == sorted(ids))


def days(server: Postgres) -> int:
    partitions = "select count(*) from pg_inherits where inhparent = 'pyworker.finished_jobs'::regclass"
    return server.execute(partitions)[0][0]


def maintained(server: Postgres) -> None:
    server.execute("select pyworker.maintain()")
    server.execute("select pyworker.prune()")


def test_the_archive_gets_what_ends_and_keeps_it_when_its_day_is_dropped(
    source: Postgres, archive: Postgres
) -> None:
    before = complete(source, 3)
    source.execute(statements("CREATE PUBLICATION"))
    subscribe(archive, source)
    until_archived(archive, *before)
    after = complete(source, 3)
    until_archived(archive, *before, *after)
    for _ in range(3):  # new days come, and old ones are dropped
        source.execute("select pyworker.advance_clock('1 day')")
        maintained(source)
        after += complete(source)
    old = f"select count(*) from pyworker.finished_jobs where id = any (array{before})"
    assert source.execute(old)[0] == (0,)
    assert days(source) <= 6
    until_archived(archive, *before, *after)
    kept = archive.execute(
        "select distinct task_identifier, state, payload ->> 'a' from pyworker.finished_jobs"
    )
    assert kept == [("t", "completed", "1")]
    assert source.execute("select * from pyworker.doctor() where severity = 'error'") == []


def test_a_completed_job_that_runs_again_is_twice_in_the_archive(source: Postgres, archive: Postgres) -> None:
    source.execute(statements("CREATE PUBLICATION"))
    subscribe(archive, source)
    (job_id,) = complete(source)
    until_archived(archive, job_id)
    source.execute(f"select pyworker.retry_job({job_id})")
    source.execute(f"select pyworker.complete_jobs(array[{job_id}::bigint])")
    until_archived(archive, job_id, job_id)


def test_a_publication_of_deletes_needs_a_replica_identity_on_each_day(source: Postgres) -> None:
    """As of all tables, for a stream of changes: without the identity history cannot be pruned any more.
    New days get it from their table."""
    ids = complete(source, 2)
    source.execute("create publication everything for all tables")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="does not have a replica identity"):
        source.execute(f"select pyworker.retry_job({ids[0]})")
    source.execute(statements("DO $$"))
    source.execute(f"select pyworker.retry_job({ids[0]})")
    for _ in range(3):
        source.execute("select pyworker.advance_clock('1 day')")
        maintained(source)
        (job_id,) = complete(source)
        source.execute(f"select pyworker.retry_job({job_id})")
        source.execute(f"select pyworker.complete_jobs(array[{job_id}::bigint])")
    worker = source.execute("select (pyworker.open_worker() ->> 'worker')::bigint")[0][0]
    for _ in range(3):  # claims are merged and forgotten
        source.execute("select pyworker.add_job('t') from generate_series(1, 3)")
        source.execute(f"select pyworker.claim_jobs({worker}, 2)")
    source.execute(f"select pyworker.close_worker({worker})")
    identities: Any = source.execute(
        "select relname from pg_class where relname ~ '^finished_jobs' and relkind = 'r' "
        "and relnamespace = 'pyworker'::regnamespace and relreplident <> 'f'"
    )
    assert identities == []
