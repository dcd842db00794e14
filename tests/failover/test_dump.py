"""A busy queue in a dump: which moment it is, what runs again where it is restored, and how a queue moves
to another server without a job that is lost or done twice."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.failover.programs import need, run
from tests.failover.writers import go_on, marked, stop, until, writers
from tests.support.checker import Event, read
from tests.support.servers import Postgres
from tests.support.workers import Queue, Worker

pytestmark = pytest.mark.slow

ENDS = {"lost", "failed, and must not be run twice"}  # as they were begun in the dump, or by a ValueError
LEFT = "select count(*) = 0 from pyworker.jobs where state <> 'discarded'"


@pytest.fixture
def old(stack: ExitStack) -> Postgres:
    server = Postgres(stack)
    need(server.server.bindir, "pg_dump", "pg_restore")
    server.install()
    server.execute("create table public.effects (job_id bigint, run bigint)")
    return server


@pytest.fixture
def new(stack: ExitStack) -> Postgres:
    return Postgres(stack)


def worker_of(stack: ExitStack, server: Postgres, tmp_path: Path) -> tuple[Queue, Worker]:
    directory = tmp_path / f"of-{server.pid}"
    directory.mkdir(exist_ok=True)
    queue = Queue(server.url, directory)
    stack.callback(queue.close)
    return queue, queue.start("--concurrency", "4", modules="recorded_tasks").until_ready()


def dump(server: Postgres, file: Path) -> None:
    run(server.server.bindir, "pg_dump", "-Fc", "-f", str(file), "-d", server.url)


def restore(file: Path, server: Postgres) -> None:
    run(server.server.bindir, "pg_restore", "--exit-on-error", "-d", server.url, str(file))


def begins(history: Path, *tasks: str) -> dict[int, list[Event]]:
    found: dict[int, list[Event]] = {}
    for event in read(history):
        if event["what"] == "begin" and (not tasks or event["task"] in tasks):
            found.setdefault(event["id"], []).append(event)
    return found


def no_errors(server: Postgres) -> list[Any]:
    """Each finding of doctor() that is an error, and each broken invariant."""
    with psycopg.connect(server.url) as conn:
        found = conn.execute("select * from pyworker.doctor() where severity = 'error'").fetchall()
        conn.execute("set search_path = pyworker")
        return [*found, *conn.execute("select * from _invariants()").fetchall()]


@pytest.mark.torture
def test_a_dump_of_a_busy_queue_is_one_moment_and_what_ended_later_runs_again(
    stack: ExitStack, history: Path, tmp_path: Path, old: Postgres, new: Postgres
) -> None:
    _, worker = worker_of(stack, old, tmp_path)
    with writers(old.url) as there:
        go_on(there)
        began = time.time()
        dump(old, tmp_path / "dump")
        ended = time.time()
        waited = {one.id for writer in there for one in list(writer.acknowledged) if one.at < began}
        until(
            "a job of the dump begins after it",
            lambda: any(
                runs[0]["t"] > ended and job_id in waited
                for job_id, runs in begins(history, "only_once").items()
            ),
        )
        go_on(there)
        added = stop(there)
    assert worker.stop() == 0
    restore(tmp_path / "dump", new)
    with psycopg.connect(new.url) as conn:
        copied = marked(conn)
    assert {one.mark for one in added if one.at < began} <= copied.keys()
    assert not {one.mark for one in added if one.at > ended} & copied.keys()
    unfinished = {job.id for job in copied.values() if job.state not in ("completed", "discarded")}
    queue, worker = worker_of(stack, new, tmp_path)
    queue.until(LEFT)
    assert worker.stop() == 0
    with psycopg.connect(new.url) as conn:
        ends = Counter((job.state, job.reason) for job in marked(conn).values())
    assert {reason for state, reason in ends if state == "discarded"} <= ENDS, ends
    assert {state for state, _ in ends} == {"completed", "discarded"}
    assert no_errors(new) == []
    runs = begins(history, "only_once")
    twice = {job_id for job_id, events in runs.items() if len(events) > 1}
    assert twice <= unfinished
    assert all(events[0]["t"] > began for job_id, events in runs.items() if job_id in twice)
    assert twice, "no job with delivery at_most_once ran again in the copy: the test shows nothing"


@pytest.mark.torture
def test_a_queue_that_stands_still_moves_and_nothing_is_lost_or_done_twice(
    stack: ExitStack, history: Path, tmp_path: Path, old: Postgres, new: Postgres
) -> None:
    """As docs/failover.md tells: the workers first, then the adds, then the dump."""
    _, worker = worker_of(stack, old, tmp_path)
    with writers(old.url) as there:
        go_on(there)
        assert worker.stop() == 0
        go_on(there, 5)
        old.execute("alter system set default_transaction_read_only = on")
        old.execute("select pg_reload_conf()")
        dump(old, tmp_path / "dump")
        added = stop(there)
    restore(tmp_path / "dump", new)
    assert no_errors(new) == []
    queue, worker = worker_of(stack, new, tmp_path)
    with writers(new.url, first=2) as there:
        go_on(there, 5)
        stop(there)
    queue.until(LEFT)
    assert worker.stop() == 0
    with psycopg.connect(new.url) as conn:
        moved = marked(conn)
    assert {one.mark: one.id for one in added}.items() <= {m: job.id for m, job in moved.items()}.items()
    assert not [job for job in moved.values() if job.reason == "lost"]
    assert [one for one in begins(history, "only_once").values() if len(one) > 1] == []
    assert no_errors(new) == []


def burn_transactions(server: Postgres, number: int) -> None:
    """Their numbers are what a server counts by itself; those of a new server begin low again."""
    server.execute(
        f"create temp table burnt (n integer); do $$ begin for n in 1..{number} loop "
        "begin insert into burnt values (n); exception when others then null; end; end loop; end $$"
    )


def test_numbers_of_transactions_of_the_server_before_hold_nothing_up(
    stack: ExitStack, tmp_path: Path, old: Postgres, new: Postgres
) -> None:
    burn_transactions(old, 200_000)
    with psycopg.connect(old.url) as open_transaction, psycopg.connect(old.url, autocommit=True) as conn:
        conn.execute("select pyworker.open_worker()")
        conn.execute("select pyworker.claim_jobs(1, 10)")  # it waits, and remembers which adds are open
        open_transaction.execute("select pg_current_xact_id()")
        conn.execute("select pyworker.set_queue('q', 3)")
        conn.execute("select pyworker.promote_jobs()")
        asks = "select count(*) from pyworker.promotion_requests"
        assert conn.execute(asks).fetchone() == (1,), "nothing waits for the open transaction"
        dump(old, tmp_path / "dump")
    restore(tmp_path / "dump", new)
    with psycopg.connect(new.url) as writes, psycopg.connect(new.url, autocommit=True) as conn:
        conn.execute("select pyworker.maintain()")  # as a worker does when it starts

        def settles() -> bool:
            conn.execute("select pyworker.promote_jobs()")
            return conn.execute(asks).fetchone() == (0,)

        until("the settings hold for all", settles)
        worker = conn.execute("select (pyworker.open_worker() ->> 'worker')::bigint").fetchall()[0][0]
        claim = "select again_in_s from pyworker.work(%s, null, null, null, null, 10) where kind = 'turn'"
        until("adds notify", lambda: conn.execute(claim, [worker]).fetchall()[0][0] > 0.5)
        writes.execute("create table public.something (n integer)")  # begun after the claim: it notifies
        assert conn.execute(claim, [worker]).fetchall()[0][0] > 0.5, "it polls beside any open transaction"


def test_jobs_of_limited_queues_start_though_the_server_before_had_counted_further(
    stack: ExitStack, tmp_path: Path, old: Postgres, new: Postgres
) -> None:
    """Its passes began at the number of a transaction that the new server reaches later."""
    burn_transactions(old, 50_000)
    with psycopg.connect(old.url) as report, psycopg.connect(old.url, autocommit=True) as conn:
        report.execute("set transaction isolation level repeatable read")
        report.execute("select count(*) from pyworker.jobs")  # from now on no answered request is vacuumed
        for _ in range(2):
            conn.execute(
                "select pyworker.add_job('t', queue_name => 'q' || n) from generate_series(1, 1500) n"
            )
            conn.execute("select pyworker.promote_jobs()")
        conn.execute("select pyworker.add_job('t', queue_name => 'last')")
        conn.execute("select pyworker.promote_jobs()")
        conn.execute("select pyworker.add_job('t', queue_name => 'waits')")
        floor = "select floor::text::bigint > 50000 from pyworker.gate"
        assert conn.execute(floor).fetchone() == (True,), "its passes begin at the head"
        dump(old, tmp_path / "dump")
    restore(tmp_path / "dump", new)
    with psycopg.connect(new.url, autocommit=True) as conn:
        conn.execute("select pyworker.add_job('t', queue_name => 'new')")
        burn_transactions(new, 60_000)  # now it has counted further, too
        conn.execute("select pyworker.promote_jobs()")
        worker = conn.execute("select pyworker.register_worker()").fetchall()[0][0]
        claim = "select queue_name from pyworker.claim_jobs(%s, 10, queue_names => '{new,waits}')"
        assert sorted(conn.execute(claim, [worker]).fetchall()) == [("new",), ("waits",)]
