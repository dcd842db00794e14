"""The network and the server are slow, and neither is away: a worker keeps its connections and its jobs."""

from __future__ import annotations

import threading
from collections import Counter
from queue import Queue
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo

from tests.support import DEADLINE
from tests.support.proxy import Link, Message, Narrow, Proxy

pytestmark = pytest.mark.slow


def test_an_answer_that_is_on_its_way_is_waited_for(queue: Any, network: Proxy) -> None:
    """Another connection asks whether the server still runs the statement. It has just ended."""
    worker = queue.start("--dsn", network.dsn, "--concurrency", "1").until_ready()
    asked: Queue[Link] = Queue()
    arrives = threading.Event()

    def fault(message: Message) -> bool:
        if not message.up and ".work(" in message.about:
            arrives.wait(DEADLINE)
        if not message.up and message.kind == b"C" and "pg_stat_activity" in message.about:
            asked.put(message.link)
        return True

    network.fault = fault
    job_id = queue.add("note")
    link = asked.get(timeout=DEADLINE)
    queue.until_so("the worker knows the answer", lambda: link not in network.links)
    arrives.set()
    queue.until_state("completed", job_id)
    assert "no connection" not in worker.log


@pytest.mark.parametrize(
    "payloads",
    [[{"size": 1, "and": "x" * 1_000_000}] * 4, [{"size": 4_000_000}]],
    ids=["large payloads", "a large result"],
)
def test_what_takes_long_to_carry_is_waited_for(queue: Any, payloads: list[Any]) -> None:
    jobs = [queue.add("large", payload) for payload in payloads]
    network = Narrow(queue.dsn)
    worker = queue.start("--dsn", network.dsn, "--concurrency", "5")
    queue.until_state("completed", *jobs)
    network.close()
    assert [queue.job(job).attempts for job in jobs] == [1] * len(jobs)
    assert "no connection" not in worker.log


def test_each_heartbeat_of_many_processes_may_take_its_time(queue: Any, network: Proxy) -> None:
    processes, slowly = 5, 1.3  # together they take longer than one answer may
    worker = queue.start("--dsn", network.dsn, "--processes", str(processes)).until_ready(processes)
    beats = Counter[Link]()

    def fault(message: Message) -> bool:
        if not message.up and message.kind == b"C" and '"lock" =>' in message.about:
            threading.Event().wait(slowly)
            beats[message.link] += 1
        return True

    network.fault = fault
    queue.until_so("two of each", lambda: sum(beats.values()) >= 2 * processes)
    assert (len(beats), "ending worker process" in worker.log) == (1, False)


def test_a_worker_that_runs_once_waits_for_the_query_of_a_schedule(queue: Any) -> None:
    query = "select json_build_object('n', n) as payload from generate_series(1, 2) n, pg_sleep(6)"
    queue.rows("select pyworker.add_schedule('s', '0 * * * *', 'note', query => %s)", query)
    queue.rows("update pyworker.schedule_entries set next_at = date_trunc('second', pyworker.clock())")
    queue.run_once()
    assert len(queue.seen()) == 2


def test_a_statement_that_waits_for_a_lock_is_waited_for_where_the_server_tracks_no_activities(
    queue: Any,
) -> None:
    job_id = queue.add("note")
    queue.rows(f"alter database {queue.conn.info.dbname} set track_activities = off")
    try:
        with queue.conn.transaction():
            queue.rows("lock table pyworker.tasks in share mode")  # a worker that starts defines its tasks
            worker = queue.start("--concurrency", "1")
            queue.rows("select pg_sleep(9)")  # a look at six seconds, and what it does at seven
        queue.until_state("completed", job_id)
    finally:
        queue.rows(f"alter database {queue.conn.info.dbname} reset track_activities")
    assert "no connection" not in worker.log


def test_a_worker_is_live_while_it_connects(queue: Any, network: Proxy, health: Any, port: str) -> None:
    dsn = make_conninfo(network.dsn, connect_timeout=60)
    queue.start("--dsn", dsn, "--health-port", port, "--stuck-after", "15").until_ready()
    network.hush()
    network.cut()
    queue.rows("select pg_sleep(17)")
    assert health("--live", "--port", port) == (0, "live\n")
