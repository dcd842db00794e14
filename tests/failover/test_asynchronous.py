"""An asynchronous standby takes over that has not received all: what is lost is what the log had after the
place at which it was promoted, and nothing else; and the queue goes on."""

from __future__ import annotations

import signal
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import namedtuple_row

from tests.failover.cluster import Cluster, missing
from tests.failover.load import INSTALL
from tests.failover.writers import Added, Job, go_on, marked, stop, until, writers
from tests.support.checker import Event, read
from tests.support.workers import Queue

from pyworker._db.migrations import migrate  # isort: skip

WHY_NOT = missing()
pytestmark = [pytest.mark.torture, pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or "")]


def lose_the_leader(cluster: Cluster, there: list[Any]) -> tuple[float, int]:
    """It dies while nothing of its log goes out. Since when that was so, and where the log was torn."""
    leader = cluster.leads()
    senders = leader.senders()
    assert len(senders) == 2, cluster.report()
    since = time.time()
    leader.signal(signal.SIGSTOP, senders)
    go_on(there)
    leader.kill(leader.processes())
    cluster.until_led_by_another(leader)
    leader.start()
    cluster.until("it is told where the log was torn", lambda: bool(cluster.history()))
    torn = cluster.history()[-1][1]
    print(f"{leader.name} is lost, the log goes on at {torn:X}")
    return since, torn


def judge(added: list[Added], jobs: dict[str, Job], torn: int) -> list[Added]:
    """Those that are lost. Each of them was committed after the place at which the log was torn."""
    lost = [one for one in added if one.mark not in jobs]
    assert [one for one in lost if one.after <= torn] == [], "lost, though the standby had it"
    assert [one for one in added if one.before >= torn and one.mark in jobs and one.at < lost[-1].at] == []
    return lost


def test_what_is_lost_is_what_the_log_had_after_the_new_timeline_began(
    stack: ExitStack, history: Path, tmp_path: Path
) -> None:
    cluster = Cluster(stack, synchronous=False)
    with psycopg.connect(cluster.dsn, autocommit=True) as conn:
        migrate(conn)
        conn.execute(INSTALL)
    queue = Queue(cluster.dsn, tmp_path)
    stack.callback(queue.close)
    workers = [queue.start("--concurrency", "4", modules="recorded_tasks") for _ in range(2)]
    queue.until("select count(*) >= 2 from pyworker.live_workers")
    with writers(cluster.dsn) as there:
        go_on(there)
        since, torn = lose_the_leader(cluster, there)
        go_on(there)
        cluster.until_whole()
        go_on(there)
        added = stop(there)
    queue.conn.close()
    queue.conn = psycopg.connect(cluster.dsn, autocommit=True, row_factory=namedtuple_row)
    left = "select count(*) = 0 from pyworker.jobs where state <> 'discarded'"
    until("all jobs have ended", lambda: queue.value(left), 60)
    assert [worker.stop() for worker in workers] == [0, 0]
    with psycopg.connect(cluster.dsn) as conn:
        jobs = marked(conn)
        conn.execute("set search_path = pyworker")
        assert conn.execute("select * from _invariants()").fetchall() == []
    before = [one for one in added if one.at < since + 60]
    lost = judge(before, jobs, torn)
    events = list(read(history))
    ids = {one.id for one in lost}
    reused = ids & {job.id for job in jobs.values()}
    twice = [first for first in only_once_twice(events) if first["id"] not in ids]
    print(f"{len(added)} adds, {len(lost)} lost, {len(reused)} of their ids given out again,")
    print(f"{len(twice)} jobs with delivery at_most_once began again")
    assert lost
    assert all(first["t"] > since for first in twice), "a start that the standby had was forgotten"
    assert runs_twice(events) == []


def only_once_twice(events: list[Event]) -> list[Event]:
    """The first begins of those jobs with delivery at_most_once that began more than once."""
    first: dict[int, Event] = {}
    counts: Counter[int] = Counter()
    for event in events:
        if event["what"] == "begin" and event["task"] == "only_once":
            first.setdefault(event["id"], event)
            counts[event["id"]] += 1
    return [first[job_id] for job_id, number in counts.items() if number > 1]


def runs_twice(events: list[Event]) -> list[tuple[int, int]]:
    """Pairs of job and run that began more than once."""
    counts = Counter((event["id"], event["run"]) for event in events if event["what"] == "begin")
    return [pair for pair, number in counts.items() if number > 1]
