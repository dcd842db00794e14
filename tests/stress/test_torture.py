"""Torture: producers, workers and faults of every kind. All write down what they see; afterwards
checker.py judges the record alone.

PYWORKER_TORTURE_SECONDS says how long (make nightly: an hour). PYWORKER_HISTORY names a directory
that keeps the record.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row, namedtuple_row

from tests.support.checker import read, summary, violations
from tests.support.proxy import Proxy
from tests.support.servers import Postgres
from tests.support.tasks.recorded_tasks import Recorder
from tests.support.torture import FINAL, SEED, Producer, observe
from tests.support.torture import history as history
from tests.support.workers import Queue

SECONDS = float(os.environ.get("PYWORKER_TORTURE_SECONDS", "60"))
PRODUCERS = 4
pytestmark = pytest.mark.torture


class Faults:
    def __init__(self, server: Postgres, network: Proxy, queue: Queue) -> None:
        self._server, self._network, self._queue = server, network, queue
        self._rng = random.Random(SEED)
        self._record = Recorder("faults")
        self.workers = [self._start() for _ in range(2)]

    def _start(self) -> Any:
        return self._queue.start(
            "--dsn", self._network.dsn, "--processes", "2", "--concurrency", "4", modules="recorded_tasks",
            PYWORKER_RUN_NO_UVLOOP=self._rng.choice("01"),
        )  # fmt: skip

    def strike(self) -> None:
        deeds = [self.parent, self.child, self.child, self.backend, self.freeze, self.cut, self.hush_one]
        self._rng.choice([*deeds, *deeds, self.server])()

    def _kill(self, how: str, pid: int, **more: Any) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            self._record("kill", pid=pid, how=how, **more)

    def parent(self) -> None:
        at = self._rng.randrange(len(self.workers))
        with self._queue.ends_of(self.workers[at].children()):
            self._kill("parent", self.workers[at].pid)
            self.workers[at].process.wait()
        self.workers[at] = self._start()

    def child(self) -> None:
        worker = self._rng.choice(self.workers)
        if children := worker.children():
            self._kill("child", self._rng.choice(children), parent=worker.pid)

    def backend(self) -> None:
        self._server.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'pyworker' "
            "order by random() limit 2"
        )

    def freeze(self) -> None:
        worker = self._rng.choice(self.workers)
        frozen = [worker.pid, *worker.children()]
        for sign in (signal.SIGSTOP, signal.SIGCONT):
            for pid in frozen:
                with suppress(ProcessLookupError):
                    os.kill(pid, sign)
            time.sleep(self._rng.uniform(0.1, 1.0))

    def cut(self) -> None:
        self._network.cut()

    def hush_one(self) -> None:
        if links := list(self._network.links):
            self._rng.choice(links).silent = True

    def server(self) -> None:
        self._record("stop", how="immediate")
        self._server.stop_immediately()
        self._server.start()


def test_the_record_of_a_tortured_queue_has_no_violation(history: Path, tmp_path: Path) -> None:
    print(f"PYWORKER_SEED={SEED}")
    stop, crowded = threading.Event(), threading.Event()
    with ExitStack() as closing:
        server = Postgres(closing, max_connections="300")
        server.install()
        server.execute("create table public.effects (job_id bigint, run bigint)")
        server.execute("create index on public.effects (job_id)")
        server.execute("select pyworker.set_queue('narrow', 2)")
        Recorder("limits")("limit", queue="narrow", limit=2)
        network = Proxy(server.url)
        closing.callback(network.close)
        queue = Queue(server.url, tmp_path)
        closing.callback(queue.close)
        faults = Faults(server, network, queue)
        closing.callback(stop.set)
        threads = [
            threading.Thread(target=Producer(n, network.dsn if n else server.url, stop, crowded).work)
            for n in range(PRODUCERS)
        ]
        watching = threading.Event()
        observer = threading.Thread(target=observe, args=(server.url, watching, crowded))
        closing.callback(watching.set)
        for thread in (*threads, observer):
            thread.start()
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            time.sleep(random.uniform(0.2, 1.5))
            faults.strike()
        stop.set()
        network.cut()  # a client that waits for an answer of a silent one
        for thread in threads:
            thread.join()
        queue.conn.close()
        queue.conn = psycopg.connect(server.url, autocommit=True, row_factory=namedtuple_row)
        queue.until_so(
            "all jobs have ended",
            lambda: not queue.value("select count(*) from pyworker.jobs where state <> 'discarded'"),
        )
        watching.set()
        observer.join()
        for worker in faults.workers:
            worker.until_log(" started: ")  # one that begins just now has no handler of SIGTERM yet
        assert [worker.stop() for worker in faults.workers] == [0, 0]
        record = Recorder("final")
        with psycopg.connect(server.url, row_factory=dict_row, options="-c search_path=pyworker") as conn:
            for final in conn.execute(FINAL).fetchall():
                record("final", **final)
            assert conn.execute("select * from _invariants()").fetchall() == []
    events = list(read(history))
    print(summary(events), Counter(event["state"] for event in events if event["what"] == "final"))
    assert violations(events) == []
    began = [event["t"] for event in events if event["what"] == "begin"]
    first = min(began)
    tenths = Counter(int((t - first) / SECONDS * 10) for t in began)
    assert all(tenths[n] > 0 for n in range(9)), f"it came to a stop: {tenths}"
