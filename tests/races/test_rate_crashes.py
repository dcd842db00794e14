"""A crash of the server forgets no start that a session has seen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import psycopg
import pytest

from tests.support.servers import Postgres

SETTINGS = {
    "rate": "select pyworker.set_queue('q', null, 5, '1 hour')",
    "fair family": "select pyworker.set_queue('q*', null, 5, '1 hour', true)",
}


@pytest.fixture
def server() -> Iterator[Postgres]:
    with ExitStack() as closing:
        # Nothing but a commit that waits writes the log to disk.
        yield Postgres(closing, wal_writer_delay="10s", autovacuum="off")


@pytest.mark.parametrize("setting", SETTINGS)
def test_starts_that_sessions_have_seen_before_a_crash_count_after_it(server: Postgres, setting: str) -> None:
    """Though the sessions do not wait for the disk otherwise, and one claim had not committed."""
    server.install()
    server.execute(SETTINGS[setting])
    server.execute("select pyworker.add_job('t', queue_name => 'q') from generate_series(1, 20)")
    server.execute("checkpoint")
    options = "-c synchronous_commit=off"
    with (
        closing(psycopg.connect(server.url, autocommit=True, options=options)) as one,
        closing(psycopg.connect(server.url, options=options)) as other,
    ):
        seen = claim(one, 3)
        assert len(seen) == 3
        assert len(claim(other, 1)) == 1
        server.stop_immediately()
    server.start()
    with psycopg.connect(server.url, autocommit=True) as conn:
        assert len(claim(conn, 20)) == 2
        assert claim(conn, 20) == []
        for job, run in seen:
            assert conn.execute("select run from pyworker.get_job(%s)", [job]).fetchone() == (run,)


def claim(conn: psycopg.Connection[Any], most: int) -> list[tuple[int, int]]:
    worker = conn.execute("select pyworker.register_worker()").fetchone()
    assert worker
    return conn.execute("select id, run from pyworker.claim_jobs(%s, %s)", [worker[0], most]).fetchall()
