"""Who runs the jobs: `pyworker run`, directly and by way of PgBouncer, and runners in other languages."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.runners import COMMANDS
from tests.support.tasks.recorded_tasks import Recorder
from tests.support.workers import Queue, ends_of

MODULES = "recorded_tasks tortured_tasks"
PATIENCE = 60.0  # seconds that a worker has to end
BOUNDS = {"rated": 2, "narrow": 1}  # what each process of some workers holds of a queue


class Foreign:
    """A runner of examples/runners."""

    def __init__(self, command: list[str], log: Path, dsn: str) -> None:
        self._log = log
        keep = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command, cwd=log.parent, env={**keep, "DATABASE_URL": dsn}, stderr=output, stdout=output,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        return self._log.read_text()

    def children(self) -> list[int]:
        return []


class Crew:
    def __init__(self, queue: Queue, directory: Path) -> None:
        self._queue, self._directory = queue, directory
        self._record = Recorder("crew")
        self._recipes: list[tuple[str, Callable[[], Any]]] = []
        self.members: list[Any] = []
        self.kinds: list[str] = []

    def python(self, dsn: str, *, kind: str = "python", bounds: bool = False, uvloop: bool = False) -> None:
        """One more `pyworker run` of two processes."""
        options = ["--dsn", dsn, "--processes", "2", "--concurrency", "4"]
        if bounds:
            options += [part for name, most in BOUNDS.items() for part in ("--queue", f"{name}={most}")]
            options += ["--queue", "*=4", "--queue", "default=4"]

        def begin() -> Any:
            environment = {"DATABASE_URL": self._queue.dsn, "PYWORKER_RUN_NO_UVLOOP": "01"[not uvloop]}
            worker = self._queue.start(*options, modules=MODULES, **environment)
            for name, most in BOUNDS.items() if bounds else ():
                self._record("share", parent=worker.pid, queue=name, limit=most)
            return worker

        self._join(kind, begin)

    def foreign(self, name: str, url: str) -> bool:
        """One more runner in another language, where its tools and packages are."""
        try:
            command = COMMANDS[name](self._directory / name, handlers="recorded")
        except pytest.skip.Exception as why:
            print(f"without the {name} runner: {why}")
            return False
        log = self._directory / f"{name}.log"
        self._join(name, lambda: Foreign(command, log, url))
        return True

    def _join(self, kind: str, begin: Callable[[], Any]) -> None:
        self._recipes.append((kind, begin))
        self.kinds.append(kind)
        self.members.append(begin())

    def kill(self, at: int) -> None:
        """kill -9, and another one in its place."""
        worker = self.members[at]
        with ends_of(worker.children()):
            self._kill(self.kinds[at], worker.pid)
            worker.process.wait()
        self.members[at] = self._recipes[at][1]()

    def kill_child(self, worker: Any, child: int) -> None:
        self._kill("child", child, parent=worker.pid)

    def _kill(self, how: str, pid: int, **more: Any) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            self._record("kill", pid=pid, how=how, **more)

    def revive(self) -> None:
        """Runners may end by themselves, when they lost the database for too long."""
        for at, worker in enumerate(self.members):
            if (code := worker.process.poll()) is not None:
                self._record("ended", pid=worker.pid, how=self.kinds[at], code=code)
                self.members[at] = self._recipes[at][1]()

    def all_started(self) -> bool:
        """One that begins just now has no handler of SIGTERM yet. One that found no database has ended."""
        self.revive()
        return all(" started: " in worker.log for worker in self.members if not isinstance(worker, Foreign))

    def end(self) -> dict[str, int]:
        """SIGTERM; the exit codes."""
        self._queue.until_so("all workers have started", self.all_started)
        for worker in self.members:
            worker.process.send_signal(signal.SIGTERM)
        until = time.monotonic() + PATIENCE
        return {
            f"{kind} {worker.pid}": worker.process.wait(max(until - time.monotonic(), 0.1))
            for kind, worker in zip(self.kinds, self.members, strict=True)
        }

    def close(self) -> None:
        for worker in self.members:
            if isinstance(worker, Foreign):
                worker.process.kill()
                worker.process.wait()
