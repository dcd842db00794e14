"""pg_upgrade takes a queue from the oldest supported PostgreSQL here to the newest one. Jobs in every state
go on, and a worker that was there before connects again by itself."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pyworker._dev import postgres
from tests.failover.programs import need, run, versions
from tests.support.servers import Postgres
from tests.support.workers import Queue
from tests.upgrade.states import LEFT, fill
from tests.upgrade.test_upgrade import jobs, left, settle

FOUND = versions()
OLDEST, NEWEST = min(FOUND), max(FOUND)
WAITING = 5000
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        OLDEST == NEWEST,
        reason=f"there is one PostgreSQL on this machine, {NEWEST}: an upgrade needs two",
    ),
]


@pytest.fixture
def server(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> Postgres:
    need(
        FOUND[NEWEST], "pg_upgrade", "pg_dump", "pg_dumpall", "pg_restore", "psql", "vacuumdb", "pg_resetwal"
    )
    monkeypatch.setenv("PYWORKER_PG_BIN", str(FOUND[OLDEST]))
    server = Postgres(stack)
    server.install()
    return server


# What belongs to a build, not to the queue. Some minor versions of Debian's PostgreSQL 15 note an option of
# their own at each column, which newer servers refuse. And the wheel of the newest one has no lz4.
OF_THE_BUILD = """
    set allow_system_table_mods = on;
    update pg_attribute set attoptions = null where attoptions::text like '{pg\\_attver=%}';
    update pg_attribute set attcompression = '' where attcompression = 'l'"""


def upgrade(server: Postgres, *options: str) -> None:
    """As a person does it: stop, initdb, pg_upgrade, start. Its address stays."""
    with psycopg.connect(server.url, autocommit=True) as conn:
        conn.execute(OF_THE_BUILD)
    server.stop_cleanly()
    data = Path(server.server.host)
    before = data.rename(data.with_name("before"))
    account = postgres._account()
    with postgres._runnable(FOUND[NEWEST], account) as (bindir, newest):
        locale = ["-E", "UTF8", "--locale=C", "--lc-ctype=C.UTF-8", "--no-sync"]
        checksums = ["--no-data-checksums"] if newest >= 18 else []
        place = data.with_name("upgrade")
        place.mkdir(mode=0o700)
        if account:
            os.chown(place, account.pw_uid, account.pw_gid)
        made = place / "data"
        run(
            bindir, "initdb", "-D", str(made), "-U", "postgres", "-A", "trust", *locale, *checksums, cwd=place
        )
        for stale in before.glob("*.lock"):
            stale.unlink()
        try:
            run(
                bindir, "pg_upgrade", "-b", str(server.server.bindir), "-B", str(bindir), "-d", str(before),
                "-D", str(made), "-U", "postgres", "-s", str(place), "--no-sync", *options, cwd=place,
            )  # fmt: skip
        except AssertionError:
            for log in made.glob("pg_upgrade_output.d/*/log/*"):
                found = [line for line in log.read_text().splitlines() if "ERROR" in line or "error:" in line]
                print(log.name, *found, sep="\n")
            raise
        made.rename(data)
    server.server.bindir = FOUND[NEWEST]
    server.start()


def version(server: Postgres) -> int:
    return int(server.execute("show server_version_num")[0][0]) // 10000


def errors(conn: psycopg.Connection[Any]) -> list[Any]:
    found = "select check_name, finding from pyworker.doctor() where severity in ('error', 'warning')"
    return [row for row in conn.execute(found).fetchall() if row[0] not in ("lost", "workers", "tasks")]


def scans(server: Postgres) -> Counter[str]:
    """How often each large table was read from its beginning to its end."""
    server.execute("select pg_stat_force_next_flush()")
    return Counter(
        dict(
            server.execute(
                "select relname, seq_scan from pg_stat_user_tables where schemaname = 'pyworker' "
                "and relname ~ '^(live_jobs|finished_jobs)'"
            )
        )
    )


def test_jobs_in_every_state_go_on_after_pg_upgrade(server: Postgres) -> None:
    with psycopg.connect(server.url, autocommit=True) as conn:
        fill(conn)
        before = jobs(conn)
        partitions = "select count(*) from pg_inherits where inhparent = 'pyworker.finished_jobs'::regclass"
        days = conn.execute(partitions).fetchone()
    assert version(server) == OLDEST
    upgrade(server)
    assert version(server) == NEWEST
    with psycopg.connect(server.url, autocommit=True) as conn:
        assert jobs(conn) == before
        assert conn.execute(partitions).fetchone() == days
        assert errors(conn) == []
        settle(conn)
        after = jobs(conn)
        assert after.keys() >= before.keys()
        assert left(conn) <= LEFT
        assert [job[1:] for job in after.values() if job[0] == "begun"] == [("discarded", "lost")]
        conn.execute("select pyworker.maintain()")
        assert errors(conn) == []
        conn.execute("set search_path = pyworker")
        assert conn.execute("select * from _invariants()").fetchall() == []


def test_a_worker_goes_on_after_pg_upgrade_and_needs_no_statistics(server: Postgres, tmp_path: Path) -> None:
    """Without `analyze` a plan that depends on statistics would read all the jobs that wait."""
    queue = Queue(server.url, tmp_path)
    try:
        worker = queue.start("--concurrency", "4").until_ready()
        begun = [queue.add("note", queue_name="serial"), queue.add("write"), queue.add("deliver")]
        queue.until_state("completed", *begun)
        queue.rows("select pyworker.add_job('later') from generate_series(1, %s)", WAITING)
        queue.conn.close()
        queue._gate.close()
        upgrade(server, *(["--no-statistics"] if NEWEST >= 18 else []))
        before = scans(server)
        queue.conn = psycopg.connect(server.url, autocommit=True, row_factory=psycopg.rows.namedtuple_row)
        waits = [queue.add("note", queue_name="serial"), queue.add("write"), queue.add("deliver")]
        queue.until_state("completed", *waits)
        assert {row.job_id for row in queue.seen()} == {*begun, *waits}
        assert worker.stop() == 0
        assert "Traceback" not in worker.log
        assert scans(server) - before == Counter()
    finally:
        queue.close()
