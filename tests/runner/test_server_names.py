"""One server that has many names, as with a pooler on each of several machines: a worker does not take it for
another one."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.support.proxy import Proxy

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(psycopg.pq.version() < 160000, reason="libpq chooses no host at random"),
]


def by_many_names(dsn: str) -> str:
    """The same server, by ten names: each connection chooses one at random."""
    names, addresses = [f"pooler{number}" for number in range(10)], [conninfo_to_dict(dsn)["host"]] * 10
    return make_conninfo(
        dsn, host=",".join(names), hostaddr=",".join(map(str, addresses)), load_balance_hosts="random"
    )


def test_a_statement_that_takes_its_time_is_waited_for(queue: Any, network: Proxy) -> None:
    """The server is silent, but at work: it waits for another session's lock."""
    job_id = queue.add("note")
    with queue.conn.transaction():
        queue.rows("lock table pyworker.tasks in share mode")  # a worker that starts defines its tasks
        worker = queue.start("--dsn", by_many_names(network.dsn), "--concurrency", "1")
        queue.rows("select pg_sleep(13)")  # longer than any timeout
        assert queue.job(job_id).attempts == 0
    queue.until_state("completed", job_id)
    assert "no connection" not in worker.log


@pytest.mark.parametrize("task", ["write", "write_async"])
def test_a_handlers_transaction_goes_on_when_its_worker_has_to_connect_again(
    queue: Any, network: Proxy, task: str
) -> None:
    queue.close_gate(1)
    worker = queue.start("--dsn", by_many_names(network.dsn), "--concurrency", "1").until_ready()
    job_id = queue.add(task, {"gate": 1})
    queue.until_waiting(1)
    for link in network.asked(".work("):
        link.cut()
    worker.until_log("the database is back")
    queue.open_gate(1)
    queue.until_state("completed", job_id)
    assert (len(queue.seen(job_id)), queue.job(job_id).attempts) == (1, 1)
