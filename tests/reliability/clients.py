"""The processes of a contender: workers, which are started again when they end, and producers, each with a
thread that asks it and writes down what it answers."""

from __future__ import annotations

import json
import os
import queue
import random
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.reliability.contenders import PYTHON_PATH, Contender, command
from tests.reliability.history import Recorder
from tests.support.workers import Queue, ends_of

PATIENCE = 15.0  # seconds that a producer waits for an answer
UNIQUE_DELAY = 3  # seconds after which a unique job runs


def start(contender: Contender, verb: str, url: str, directory: Path, **more: Any) -> subprocess.Popen[str]:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PG", "PYWORKER_RUN"))
    }
    environment |= {
        "DATABASE_URL": url,
        "REPORT_RUNS": str(directory / "runs.jsonl"),
        "PYTHONPATH": PYTHON_PATH,
        "PGSSLMODE": "disable",  # the proxy reads the protocol
        "PGGSSENCMODE": "disable",
    }
    with (directory / f"{verb}.log").open("a") as log:
        return subprocess.Popen(
            command(contender, verb), env=environment, cwd=directory, text=True, stderr=log,
            start_new_session=True, **{"stdin": subprocess.DEVNULL, "stdout": log} | more,
        )  # fmt: skip


def family(pid: int) -> list[int]:
    """A process and its descendants."""
    found = [pid]
    for parent in found:
        found += map(int, Queue.ps("pid", parent))
    return found


def kill(pids: list[int]) -> None:
    """By SIGKILL, and wait until they are gone."""
    with ends_of(pids):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class Workers:
    def __init__(self, launch: Callable[[], subprocess.Popen[str]], count: int, record: Recorder) -> None:
        self._launch, self._record = launch, record
        self.all = [launch() for _ in range(count)]

    def replace(self, worker: subprocess.Popen[str], told: bool = True) -> None:
        worker.wait()
        self._record("process", phase="exit", process=worker.pid, told=told)
        self.all[self.all.index(worker)] = self._launch()

    def supervise(self) -> None:
        """As systemd and Kubernetes do: what has ended by itself is started again."""
        for worker in list(self.all):
            if worker.poll() is not None:
                self.replace(worker, told=False)

    def end(self) -> None:
        for worker in self.all:
            kill(family(worker.pid))
            worker.wait()


class Producer:
    """Calls one after the other. `fatal` asks it to be killed in one."""

    def __init__(
        self, number: int, contender: Contender, launch: Callable[[], subprocess.Popen[str]],
        record: Recorder, seed: str, pace: float, numbers: Iterator[int],
    ) -> None:  # fmt: skip
        self._contender, self._launch, self._record = contender, launch, record
        self._number, self._pace, self._numbers = number, pace, numbers
        self._rng = random.Random(f"{seed} producer {number}")
        self._stop = threading.Event()
        self.fatal: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.unique: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.answered: list[int] = []
        self._process: subprocess.Popen[str] | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._guarded)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def join(self) -> None:
        """A fault of the harness itself is raised here."""
        self._thread.join()
        if self._error:
            raise self._error

    def _guarded(self) -> None:
        try:
            self._work()
        except Exception as error:
            self._error = error

    def _work(self) -> None:
        while not self._stop.is_set():
            if self._process is None:
                self._process = self._launch()
                self._read(60)
                continue
            if not self.fatal.empty():
                self._die(self.fatal.get())
            elif not self.unique.empty():
                self._call("unique", "commit", self.unique.get())
            else:
                kinds = [kind for kind in self._contender.kinds if kind != "unique"]
                kind = self._rng.choice([*kinds, "plain", "plain"])
                key = f"s{self._number}" if kind == "sequence" else None
                self._call(kind, "rollback" if self._rng.random() < 0.2 else "commit", key)
                self._stop.wait(self._rng.uniform(0, 2 * self._pace))
        if self._process:
            self._bury()

    def _read(self, seconds: float) -> dict[str, Any]:
        """The next answer, or none: then the process is given up."""
        process, lines = self._process, queue.SimpleQueue[str]()
        assert process
        assert process.stdout
        answers = filter(lambda line: line.startswith("{"), iter(process.stdout.readline, ""))
        threading.Thread(target=lambda: lines.put(next(answers, "")), daemon=True).start()
        with suppress(queue.Empty):
            if line := lines.get(timeout=seconds):
                return json.loads(line)
        self._bury()
        return {"phase": "unknown", "error": "no answer"}

    def _bury(self) -> float:
        assert self._process
        kill([self._process.pid])
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError, AttributeError):
                pipe.close()  # type: ignore[union-attr]
        at = self._record("process", phase="exit", process=self._process.pid, told=True)
        self._process = None
        return at

    def _ask(self, kind: str, end: str, key: str | None) -> int:
        op = next(self._numbers)
        ms = self._rng.choice([20, 50, 80, 1500, 1500])
        call = {"op": op, "kind": kind, "end": end, "key": key, "ms": ms}
        self._record("add", phase="invoke", producer=self._number, **call)
        assert self._process
        assert self._process.stdin
        with suppress(OSError):
            delay = UNIQUE_DELAY if kind == "unique" else 0
            self._process.stdin.write(json.dumps({**call, "delay": delay}) + "\n")
            self._process.stdin.flush()
        return op

    def _call(self, kind: str, end: str, key: str | None) -> None:
        op = self._ask(kind, end, key)
        answer = self._read(PATIENCE)
        phase = answer["phase"] if end == "commit" else "rolled back"  # without COMMIT it is, in any case
        more = {"error": answer["error"][:200]} if answer.get("error") else {}
        self._record("add", phase=phase, op=op, **more)
        if phase == "ok" and kind in ("plain", "sequence", "effect"):
            self.answered.append(op)

    def _die(self, end: str) -> None:
        """Killed while its transaction is open (hang), or just after the call is sent (commit)."""
        assert self._process
        pid, op = self._process.pid, self._ask("plain", end, None)
        if end == "hang":
            self._read(PATIENCE)
        else:
            self._stop.wait(self._rng.uniform(0, 0.02))
        if self._process:
            self._bury()
        self._record("fault", name="producer", processes=[pid], end=end)
        self._record("add", phase="abandoned" if end == "hang" else "unknown", op=op)
