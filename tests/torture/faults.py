"""What goes wrong. Each fault is one method; a test says which of them strike."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from contextlib import suppress
from typing import Any

import psycopg

from tests.support.pooler import Pooler
from tests.support.proxy import Proxy
from tests.support.servers import Postgres
from tests.support.tasks.recorded_tasks import Recorder
from tests.torture.crew import Crew

USUAL = ["parent", "child", "child", "child", "backend", "freeze", "cut", "hush_one", "still", "crowd"]
RARE = ["server", "kill_backend"]


class Faults:
    def __init__(self, server: Postgres, network: Proxy, crew: Crew, seed: str) -> None:
        self._server, self._network, self._crew = server, network, crew
        self._rng = random.Random(seed)
        self._record = Recorder("faults")
        self._timers: list[threading.Timer] = []
        self.pooler: Pooler | None = None

    def strike(self, usual: list[str], rare: list[str]) -> None:
        self._crew.revive()
        name = self._rng.choice([*usual, *usual, *rare])
        self._record("fault", how=name)
        with suppress(psycopg.Error):  # a server that has no connection left, or is just recovering
            getattr(self, name)()

    def settle(self) -> None:
        """Whatever stands still goes on."""
        for timer in self._timers:
            timer.join()

    def _signal(self, pids: list[int], sign: signal.Signals) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, sign)

    def parent(self) -> None:
        self._crew.kill(self._rng.randrange(len(self._crew.members)))

    def child(self) -> None:
        worker = self._rng.choice(self._crew.members)
        if children := worker.children():
            self._crew.kill_child(worker, self._rng.choice(children))

    def freeze(self) -> None:
        """A worker stands still."""
        worker = self._rng.choice(self._crew.members)
        frozen = [worker.pid, *worker.children()]
        for sign in (signal.SIGSTOP, signal.SIGCONT):
            self._signal(frozen, sign)
            time.sleep(self._rng.uniform(0.1, 1.0))

    def cut(self) -> None:
        self._network.cut()

    def hush_one(self) -> None:
        if links := list(self._network.links):
            self._rng.choice(links).silent = True

    def backend(self) -> None:
        self._server.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'pyworker' "
            "order by random() limit 2"
        )

    def kill_pooler(self) -> None:
        if self.pooler:
            self._record("kill", how="pgbouncer", pid=self.pooler.process.pid)
            self.pooler.end(signal.SIGKILL)
            self.pooler.start()

    def doze(self) -> None:
        """A worker stands still for longer than its lease, and goes on when others have its jobs."""
        worker = self._rng.choice(self._crew.members)
        frozen = [worker.pid, *worker.children()]
        self._record("doze", pid=worker.pid)
        self._signal(frozen, signal.SIGSTOP)
        self._later(self._rng.uniform(18.0, 30.0), frozen)

    def _later(self, seconds: float, pids: list[int]) -> None:
        self._timers = [timer for timer in self._timers if timer.is_alive()]
        timer = threading.Timer(seconds, self._signal, [pids, signal.SIGCONT])
        timer.start()
        self._timers.append(timer)

    def still(self) -> None:
        """Some of the server's processes stand still, perhaps with locks in their hands, beside what else
        goes wrong."""
        rows = self._server.execute(
            "select pid from pg_stat_activity where pid <> pg_backend_pid() order by random() limit 3"
        )
        pids = [pid for (pid,) in rows]
        self._signal(pids, signal.SIGSTOP)
        self._later(self._rng.uniform(0.1, 4.0), pids)

    def crowd(self) -> None:
        """Others take all connections, and those that workers lose; but not those by which workers show that
        they live: without one for more than two seconds, a worker counts as dead while its handlers run."""
        without_lock = (
            "select count(*) from pyworker.workers w where w.dead_at is null and w.locked "
            "and not pyworker._has_lock(w, pyworker._held_worker_locks())"
        )
        held: list[Any] = []

        def fill() -> None:
            with suppress(psycopg.OperationalError):
                while True:
                    held.append(psycopg.connect(self._server.url, autocommit=True, connect_timeout=5))

        for _ in range(30):
            if self._server.execute(without_lock) == [(0,)]:
                break
            time.sleep(0.1)
        else:
            return
        try:
            fill()
            for _ in range(3):
                held[0].execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity "
                    "where application_name = 'pyworker' and query !~ 'beat[(]|hold_worker_lock' "
                    "order by random() limit 3"
                )
                time.sleep(self._rng.uniform(0.1, 1.0))
                fill()
        finally:
            for conn in held:
                conn.close()

    def server(self) -> None:
        self._record("stop", how="immediate")
        self._server.stop_immediately()
        self._server.start()

    def kill_backend(self) -> None:
        """kill -9 of one of the server's processes: it ends the others, and recovers by itself."""
        rows = self._server.execute(
            "select pid from pg_stat_activity where application_name = 'pyworker' order by random() limit 1"
        )
        for (pid,) in rows:
            self._record("stop", how="killed backend")
            self._signal([pid], signal.SIGKILL)
