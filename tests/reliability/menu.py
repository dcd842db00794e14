"""The faults, the same for all. Each hits a running contender, and writes down what it did and when."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tests.reliability.clients import Producer, Workers, family, kill
from tests.reliability.history import Recorder
from tests.support.proxy import Proxy
from tests.support.servers import Postgres

FREEZE = 28.0  # seconds: longer than any lease here


class Scene:
    """What faults may touch. `watch(seconds)` waits, and starts again what has ended meanwhile;
    `running(processes)` counts their handlers."""

    def __init__(
        self, server: Postgres, network: Proxy, workers: Workers, producers: list[Producer],
        record: Recorder, rng: random.Random, watch: Callable[[float], None],
        running: Callable[[list[int]], int],
    ) -> None:  # fmt: skip
        self.server, self.network, self.workers, self.producers = server, network, workers, producers
        self.record, self.rng, self.watch, self.running = record, rng, watch, running

    def busy_worker(self) -> tuple[subprocess.Popen[str], list[int]]:
        """One of the workers, as soon as it runs two jobs, with its processes."""
        worker = self.rng.choice(self.workers.all)
        for _ in range(50):
            if worker.poll() is not None:  # it ended by itself, and another one has its place
                worker = self.rng.choice(self.workers.all)
            if self.running(family(worker.pid)) >= 2:
                break
            self.watch(0.1)
        return worker, family(worker.pid)


def killed_worker(scene: Scene) -> None:
    """kill -9 of a worker with all its processes, amid jobs; another one starts at once"""
    worker, pids = scene.busy_worker()
    kill(pids)
    scene.record("fault", name="kill", processes=pids)
    if worker in scene.workers.all:
        scene.workers.replace(worker)


def stopped_worker(scene: Scene) -> None:
    """SIGTERM of a worker, as at each deployment; another one starts when it has ended"""
    worker = scene.rng.choice(scene.workers.all)
    scene.record("fault", name="stop", processes=family(worker.pid))
    worker.terminate()
    for _ in range(300):
        if worker.poll() is not None:
            break
        scene.watch(0.1)
    else:
        kill(family(worker.pid))
    if worker in scene.workers.all:
        scene.workers.replace(worker)


def frozen_worker(scene: Scene) -> None:
    """SIGSTOP of a worker for 28 seconds, then SIGCONT, as when a virtual machine is suspended"""
    for _ in range(50):
        _, pids = scene.busy_worker()
        send(signal.SIGSTOP, pids)
        if scene.running(pids) >= 2:
            break
        send(signal.SIGCONT, pids)  # they ended just now
        scene.watch(0.1)
    scene.record("fault", name="freeze", processes=pids)
    send(signal.SIGSTOP, pids)
    scene.watch(FREEZE)
    send(signal.SIGCONT, pids)
    scene.record("fault", name="freeze", phase="over", processes=pids)


def send(sign: int, pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, sign)


def stopped_server(scene: Scene) -> None:
    """an immediate stop of PostgreSQL, as by kill -9 of all its processes, and a start"""
    scene.record("fault", name="server", processes=[])
    scene.server.stop_immediately()
    scene.server.start()
    scene.record("fault", name="server", phase="over", processes=[])


def ended_sessions(scene: Scene) -> None:
    """pg_terminate_backend of all sessions"""
    scene.record("fault", name="sessions", processes=[])
    scene.server.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity "
        "where backend_type = 'client backend' and pid <> pg_backend_pid()"
    )


def cut_network(scene: Scene) -> None:
    """all connections are reset, at both ends"""
    scene.record("fault", name="network", processes=[])
    scene.network.cut()


def killed_producer(scene: Scene, end: str = "hang") -> None:
    """kill -9 of a producer: with an open transaction, or as soon as it was asked for a commit"""
    scene.rng.choice(scene.producers).fatal.put(end)


def sent_off_producer(scene: Scene) -> None:
    killed_producer(scene, "commit")


# With the seconds until the next one.
ROUND: list[tuple[Callable[[Scene], Any], float]] = [
    (killed_worker, 6), (killed_producer, 1), (cut_network, 3), (killed_worker, 6), (sent_off_producer, 1),
    (stopped_server, 4), (stopped_worker, 3), (ended_sessions, 3),
]  # fmt: skip
NAMES = {
    "kill": killed_worker,
    "stop": stopped_worker,
    "freeze": frozen_worker,
    "server": stopped_server,
    "sessions": ended_sessions,
    "network": cut_network,
    "producer": killed_producer,
}
