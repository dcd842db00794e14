"""The fence holds through a crash of the server that forgets claims: their commit does not wait
for the disk."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import psycopg
import pytest

from tests.support.servers import Postgres


@pytest.fixture
def server() -> Iterator[Postgres]:
    with ExitStack() as closing:
        # Nothing but a commit that waits writes the log to disk.
        server = Postgres(closing, wal_writer_delay="10s", autovacuum="off")
        server.install()
        yield server


def restarted(server: Postgres) -> None:
    server.stop_immediately()
    server.start()


def recovered(server: Postgres) -> None:
    """One killed backend takes all others with it, and the server starts again by itself."""
    with suppress(psycopg.OperationalError), psycopg.connect(server.url) as witness:
        with suppress(psycopg.OperationalError), psycopg.connect(server.url) as victim:
            os.kill(victim.info.backend_pid, signal.SIGKILL)
            victim.execute("select pg_sleep(10)")
        witness.execute("select pg_sleep(60)")  # until the server has noticed, and ends all sessions
    while True:
        with suppress(psycopg.OperationalError), psycopg.connect(server.url):
            return


def claim(server: Postgres, worker: int, commit: str) -> tuple[int, int] | None:
    with psycopg.connect(server.url, autocommit=True, options=f"-c synchronous_commit={commit}") as conn:
        return conn.execute("select id, run from pyworker.claim_jobs(%s)", [worker]).fetchone()


def forgotten_claim(server: Postgres, worker: int, crash: Callable[[Postgres], None]) -> tuple[int, int]:
    """A claim that was answered and then forgotten."""
    for _ in range(5):
        server.execute("select pyworker.add_job('t')")
        server.execute("checkpoint")
        claimed = claim(server, worker, "off")
        assert claimed
        crash(server)
        if server.execute(f"select state from pyworker.get_job({claimed[0]})") == [("available",)]:
            return claimed
        server.execute(
            f"select pyworker.finish_job({claimed[0]}, {claimed[1]})"
        )  # the log had been written all the same
    raise AssertionError("the crash forgets no claim")


@pytest.mark.parametrize("crash", [restarted, recovered])
def test_after_a_crash_that_forgot_a_claim_its_run_is_never_given_out_again(
    server: Postgres, crash: Any
) -> None:
    zombie, worker = (server.execute("select pyworker.register_worker()")[0][0] for _ in range(2))
    job_id, lost_run = forgotten_claim(server, zombie, crash)
    again = claim(server, worker, "on")
    assert again
    assert again[0] == job_id
    assert again[1] > lost_run
    failure = json.dumps([{"id": job_id, "run": lost_run, "error": "of the zombie", "delay": 0}])
    assert server.execute(f"select pyworker.fail_jobs('{failure}')") == [([],)]
    assert server.execute(f"select pyworker.finish_jobs('{{{job_id}}}', '{{{lost_run}}}')") == [([],)]
    assert server.execute(f"select pyworker.release_jobs('{{{job_id}}}', '{{{lost_run}}}')") == [([],)]
    assert server.execute(f"select pyworker.finish_jobs('{{{job_id}}}', '{{{again[1]}}}')") == [([job_id],)]
