"""Another server takes over, or the one there is can only be read for a while: workers look for
the one that can be written to."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import namedtuple_row

from tests.support.servers import Postgres
from tests.support.workers import Queue

pytestmark = pytest.mark.slow

ASKING = """
from pyworker import task

@task(backoff=["1 hour"])
def ask(payload, job):
    with job.transaction() as conn:
        conn.execute("select pg_sleep(60)")

@task(backoff=["1 hour"])
async def ask_async(payload, job):
    async with job.transaction() as conn:
        await conn.execute("select pg_sleep(60)")
"""
REPLICATED = {"wal_level": "replica", "max_wal_senders": "4", "hot_standby": "on"}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as closing:
        yield closing


def at(server: Postgres, queue: Queue) -> None:
    queue.conn.close()
    queue.conn = psycopg.connect(server.url, autocommit=True, row_factory=namedtuple_row)


def test_when_the_standby_takes_over_the_worker_goes_on_there(stack: ExitStack, tmp_path: Path) -> None:
    """The standby stands first in the DSN: what it takes to be left alone is there without the
    user's doing."""
    primary = Postgres(stack, **REPLICATED)
    primary.install()
    queue = Queue(primary.url, tmp_path)
    stack.callback(queue.close)
    standby = Postgres(stack, primary, **REPLICATED)
    primary.execute("alter system set synchronous_standby_names = '*'")
    primary.execute("select pg_reload_conf()")
    queue.until("select count(*) = 1 from pg_stat_replication where sync_state = 'sync'")
    both = f"host={standby.server.host},{primary.server.host} port=5432,5432 user=postgres dbname=postgres"
    worker = queue.start("--dsn", both, DATABASE_URL=f"{both} target_session_attrs=read-write").until_ready()
    kinds = ["note", "write", "write_async", "deliver", "deliver_async"]
    before = [queue.add(kind) for kind in kinds]
    queue.until_state("completed", *before)
    assert queue.value("select count(*) from pyworker.live_workers") == 1

    primary.stop_immediately()
    standby.execute("select pg_promote()")
    at(standby, queue)
    standby.execute("alter system reset synchronous_standby_names")
    standby.execute("select pg_reload_conf()")
    after = [queue.add(kind) for kind in kinds]
    queue.until_state("completed", *before, *after)
    assert Counter(row.job_id for row in queue.seen()) == dict.fromkeys(before + after, 1)
    assert worker.stop() == 0
    assert "Traceback" not in worker.log
    queue._gate.close()


def stand_still(server: Postgres, stack: ExitStack) -> None:
    """All its processes, as when its disk hangs: the kernel still answers for them."""
    pids = [server.pid, *map(int, Queue.ps("pid", server.pid))]

    def tell(number: signal.Signals) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    stack.callback(tell, signal.SIGCONT)
    tell(signal.SIGSTOP)


def test_a_server_that_stands_still_is_left_for_the_one_that_took_over(
    stack: ExitStack, tmp_path: Path
) -> None:
    """It answers nothing, and its connections stay: what the worker has asked it, and what a handler has."""
    (tmp_path / "asking.py").write_text(ASKING)
    primary = Postgres(stack, **REPLICATED)
    primary.install()
    queue = Queue(primary.url, tmp_path)
    stack.callback(queue.close)
    standby = Postgres(stack, primary, **REPLICATED)
    both = f"host={primary.server.host},{standby.server.host} port=5432,5432 user=postgres dbname=postgres"
    to = f"{both} target_session_attrs=read-write connect_timeout=2"
    worker = queue.start("--dsn", both, modules="handlers asking", DATABASE_URL=to).until_ready()
    asking = [queue.add("ask"), queue.add("ask_async")]
    queue.until("select count(*) = 2 from pg_stat_activity where query ~ '^select pg_sleep.60'")
    # What is inserted, not what is written: a claim does not wait for the disk.
    queue.until("select pg_current_wal_insert_lsn() = replay_lsn from pg_stat_replication")
    stand_still(primary, stack)
    standby.execute("select pg_promote()")
    at(standby, queue)
    after = [queue.add("note"), queue.add("write"), queue.add("deliver")]
    queue.until_state("completed", *after)
    queue.until_state("retryable", *asking)
    assert worker.stop() == 0
    queue._gate.close()


def test_a_server_that_can_only_be_read_for_a_while_is_waited_for(stack: ExitStack, tmp_path: Path) -> None:
    """As providers do it when the disk is full, or at a switchover: the connections stay."""
    server = Postgres(stack)
    server.install()
    queue = Queue(server.url, tmp_path)
    stack.callback(queue.close)
    queue.rows("set default_transaction_read_only = off")
    worker = queue.start("--concurrency", "2").until_ready()
    children = worker.children()
    queue.close_gate(1)
    running = queue.add("note", {"gate": 1})
    queue.until_waiting(1)
    server.execute("alter system set default_transaction_read_only = on")
    server.execute("select pg_reload_conf()")
    worker.until_log("read-only")
    queue.open_gate(1)
    waiting = queue.add("note")
    queue.until_so("both processes have seen it", lambda: worker.log.count("session is read-only") >= 3)
    server.execute("alter system reset default_transaction_read_only")
    server.execute("select pg_reload_conf()")
    queue.until_state("completed", running, waiting)
    assert worker.children() == children
    assert worker.stop() == 0
    assert [error.error for error in queue.rows("select error from pyworker.job_errors(%s)", running)] == []
    assert "Traceback" not in worker.log


def test_a_worker_that_is_pointed_at_a_standby_says_what_is_wrong(stack: ExitStack, cli: Any) -> None:
    primary = Postgres(stack, **REPLICATED)
    primary.install()
    standby = Postgres(stack, primary, **REPLICATED)
    done = cli("run", "handlers", DATABASE_URL=standby.url)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "session is read-only: it is a standby" in done.stderr
