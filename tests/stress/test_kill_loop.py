"""Workers, processes and connections are killed at random while jobs of every kind come in:
nothing is lost, nothing is done too often.

PYWORKER_KILLS says how many processes are killed by SIGKILL (60 unless told; connections that are
cut and processes that are stopped for a while come on top; from 300 on, some must have died before each
step of a job), PYWORKER_CRASHES how often the server crashes (12, every second time by an immediate stop).
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import threading
from collections import defaultdict
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import namedtuple_row
from psycopg.types.json import Jsonb

from tests.support.journeys import BOUNDARIES, Journeys
from tests.support.servers import Postgres
from tests.support.workers import Queue

KILLS = int(os.environ.get("PYWORKER_KILLS", "60"))
CRASHES = int(os.environ.get("PYWORKER_CRASHES", "12"))
pytestmark = pytest.mark.torture


def add_forever(
    dsn: str, stop: threading.Event, kinds: dict[int, str], journeys: Journeys | None = None
) -> None:
    """What is in kinds was acknowledged."""
    rng = random.Random(7)
    while not stop.is_set():
        with suppress(psycopg.OperationalError), psycopg.connect(dsn, autocommit=True) as conn:
            add_until_lost(conn, rng, stop, kinds, journeys)
        stop.wait(0.02)


def add_until_lost(
    conn: psycopg.Connection[Any],
    rng: random.Random,
    stop: threading.Event,
    kinds: dict[int, str],
    journeys: Journeys | None,
) -> None:
    while not stop.is_set():
        if journeys and rng.random() < 0.05:
            kinds |= journeys.add(conn, rng)
        elif journeys and rng.random() < 0.2:
            journeys.signal(conn, rng)
        kind = rng.choice(
            ["note", "note", "deliver", "deliver_async", "in_turn", "in_turn", "write", "queue"]
        )
        arguments: dict[str, Any] = {"identifier": kind, "payload": Jsonb({}), "max_attempts": 100}
        if kind == "in_turn":
            arguments["payload"] = Jsonb({"customer": rng.randrange(5)})
        if kind == "queue":
            arguments |= {"identifier": "note", "queue_name": f"q{rng.randrange(3)}"}
        names = ", ".join(f"{name} => %s" for name in arguments)
        row = conn.execute(f"select id from pyworker.add_job({names})", list(arguments.values())).fetchone()
        assert row
        kinds[row[0]] = kind
        stop.wait(0.01)


def test_when_processes_are_killed_no_job_is_lost_and_none_that_may_run_once_runs_twice(
    fresh_queue: Any,
) -> None:
    queue = fresh_queue
    queue.rows("alter table public.seen add column said_at timestamptz default clock_timestamp()")
    queue.rows("create index on public.seen (job_id, at); create index on public.seen (said_at)")
    queue.rows("select pyworker.configure(max_crashes => 1000, completed_retention => '1 day')")
    rng = random.Random(os.environ.get("PYWORKER_SEED", "3"))
    options = "--processes", "2", "--concurrency", "4"
    workers = [queue.start(*options, modules="handlers journeys") for _ in range(2)]
    for worker in workers:
        queue.until_so("its children are there", lambda worker=worker: len(worker.children()) == 2)
    queue.until("select count(*) > 0 from pyworker.tasks")
    kinds: dict[int, str] = {}
    journeys = Journeys()
    stop = threading.Event()
    adder = threading.Thread(target=add_forever, args=(queue.dsn, stop, kinds, journeys))
    adder.start()
    kills: dict[str, int] = defaultdict(int)
    when: list[tuple[str, Any]] = []
    try:
        while kills["parent"] + kills["child"] < KILLS:
            queue.rows("select pg_sleep(%s)", rng.uniform(0.05, 0.6))
            at = rng.randrange(len(workers))
            worker = workers[at]
            what = rng.choice(["parent", "child", "child", "connection", "both stopped for a while"])
            when.append((what, queue.value("select clock_timestamp()")))
            children = worker.children()
            kills[what] += bool(children) or what == "parent"
            if what == "parent":
                with queue.ends_of(children):
                    worker.signal(signal.SIGKILL)
                worker.process.wait()
                workers[at] = queue.start(*options, modules="handlers journeys")
            elif what == "child" and children:
                with suppress(ProcessLookupError):
                    os.kill(rng.choice(children), signal.SIGKILL)
            elif what == "connection":
                queue.rows(
                    "select pg_terminate_backend(pid) from pg_stat_activity "
                    "where application_name = 'pyworker'"
                    " and datname = current_database() order by random() limit 2"
                )
            elif children:
                stopped = [worker.pid, *children]
                for pid in stopped:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGSTOP)
                queue.rows("select pg_sleep(%s)", rng.uniform(0.1, 1.0))
                for pid in stopped:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGCONT)
    finally:
        stop.set()
        adder.join()
    journeys.signal(queue.conn, rng, at_least=1)
    journeys.signal(queue.conn, rng)
    live = "select count(*) from pyworker.jobs where state <> 'discarded'"
    queue.until_so("all jobs have ended", lambda: queue.value(live) == 0)

    starts: dict[int, int] = defaultdict(int)
    for row in queue.rows("select job_id, told::text as told from public.seen order by at"):
        starts[row.job_id] += row.told != '"end"'
    states = dict(
        queue.rows(
            "select id, coalesce(reason, state) from pyworker.jobs union all select id, state "
            "from pyworker.history"
        )
    )
    assert states.keys() == kinds.keys()  # nothing lost, nothing invented
    cut = journeys.judge(queue)
    assert KILLS < 300 or cut.keys() == {*BOUNDARIES}, "no process died before some of the steps"
    for job_id, kind in kinds.items():
        if job_id in journeys.kinds:
            continue
        if kind.startswith("deliver"):
            assert starts[job_id] <= 1, (job_id, kind)
            assert states[job_id] in ("completed", "lost"), (job_id, kind, states[job_id])
            assert starts[job_id] == 1 or states[job_id] == "lost"
        else:
            assert states[job_id] == "completed", (job_id, kind, states[job_id])
            assert starts[job_id] >= 1, (job_id, kind)
        if kind == "write":  # it wrote in the transaction that completed it
            assert starts[job_id] == 1, (job_id, kind)
    order: dict[str, list[int]] = defaultdict(list)
    for row in queue.rows("select job_id, task from public.seen where told::text = '\"begin\"' order by at"):
        order[row.task].append(row.job_id)
    assert all(ids == sorted(ids) for ids in order.values())
    # How long until a job that was running when its worker was killed was begun again.
    waits = queue.rows(
        "select extract(epoch from again.said_at - killed.at)::float as seconds, s.job_id, s.run, h.run as "
        "last, killed.at"
        " from unnest(%s::timestamptz[]) killed(at) join public.seen s on s.said_at between killed.at - "
        "interval '2 s' and killed.at"
        " cross join lateral (select n.said_at, n.run from public.seen n"
        "  where n.job_id = s.job_id and n.at > s.at order by n.at limit 1) again"
        " join pyworker.history h on h.id = s.job_id where again.run > s.run and again.said_at > killed.at "
        "order by 1",
        [at for what, at in when if what == "parent"],
    )
    lost = sum(state == "lost" for state in states.values())
    print(f"{dict(kills)}; {len(kinds)} jobs, {sum(starts.values())} starts, {lost} lost visibly")
    if waits:
        for wait in waits[-3:]:
            print(wait, kinds[wait.job_id], queue.rows("select * from pyworker.job_errors(%s)", wait.job_id))
        waits = [wait.seconds for wait in waits]
        print(f"again after a worker was killed: {len(waits)} jobs, median {statistics.median(waits):.1f} s,"
              f" p99 {waits[int(len(waits) * 0.99)]:.1f} s, worst {waits[-1]:.1f} s")  # fmt: skip
    for worker in workers:
        worker.end()  # the last one may not have started yet


def test_crashes_of_the_server_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """In turn an immediate stop and a start, and a killed backend, which takes the whole server
    down, to recover by itself."""
    with ExitStack() as closing:
        server = Postgres(closing)
        server.install()
        queue = Queue(server.url, tmp_path)
        closing.callback(queue.close)
        for _ in range(2):
            queue.start("--processes", "2", "--concurrency", "4")
        queue.until("select count(*) > 0 from pyworker.tasks")
        kinds: dict[int, str] = {}
        stop = threading.Event()
        adder = threading.Thread(target=add_forever, args=(server.url, stop, kinds))
        adder.start()
        rng = random.Random(os.environ.get("PYWORKER_SEED", "3"))
        try:
            for crash in range(CRASHES):
                stop.wait(rng.uniform(0.5, 2.5))
                if crash % 2 == 0:
                    server.stop_immediately()
                    server.start()
                    continue
                with suppress(psycopg.OperationalError), psycopg.connect(server.url) as victim:
                    os.kill(victim.info.backend_pid, signal.SIGKILL)
                    victim.execute("select pg_sleep(10)")
        finally:
            stop.set()
            adder.join()

        def back() -> bool:
            with suppress(psycopg.OperationalError):
                queue.conn.close()
                queue.conn = psycopg.connect(server.url, autocommit=True, row_factory=namedtuple_row)
                return True
            return False

        while not back():
            threading.Event().wait(0.1)

        def left() -> int:
            # Some handlers met a dead server and failed, to be tried again in an hour.
            queue.rows(
                "select pyworker.retry_jobs(array(select id from pyworker.jobs where state = 'retryable'))"
            )
            return queue.value("select count(*) from pyworker.jobs where state <> 'discarded'")

        many = left()
        while many:  # thousands, after many crashes
            queue.until_so(f"fewer than {many} jobs are left", lambda many=many: left() < many)
            many = left()
        states = dict(
            queue.rows(
                "select id, coalesce(reason, state) from pyworker.jobs union all select id, state "
                "from pyworker.history"
            )
        )
        starts: dict[int, int] = defaultdict(int)
        for row in queue.rows("select job_id, told::text as told from public.seen"):
            starts[row.job_id] += row.told != '"end"'
        assert kinds.keys() <= states.keys()
        for job_id, kind in kinds.items():
            if kind.startswith("deliver"):
                assert starts[job_id] <= 1, (job_id, kind)
                assert states[job_id] in ("completed", "lost") or "must not be run twice" in states[job_id]
            else:
                assert states[job_id] == "completed", (job_id, kind, states[job_id])
        lost = sum(states[job_id] != "completed" for job_id in kinds)
        print(
            f"{CRASHES} crashes; {len(kinds)} jobs acknowledged, {sum(starts.values())} starts, {lost} "
            f"lost visibly"
        )
