"""The stage: a schema, the processes of the worker's command, and the notes of its handlers."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._db.conformance import Conformance
from .._db.rows import JobRow
from .broken import Broken, hold

TASK, TIMED = "conformance", "conformance_timeout"


@dataclass(frozen=True)
class Played:
    """A job that the script added. Its handlers note what they do under its name."""

    id: int
    name: str


class Notes:
    """The file in which handlers note `NAME begin`, `NAME tick`, `NAME end`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_text("")

    def lines(self) -> list[tuple[str, str]]:
        text = self.path.read_text("utf-8", errors="replace")
        words = [line.split() for line in text.split("\n")[:-1]]
        return [(pair[0], pair[1]) for pair in words if len(pair) == 2]

    def count(self, word: str, *jobs: Played) -> int:
        names = {job.name for job in jobs}
        return sum(name in names and said == word for name, said in self.lines())

    def begun(self, jobs: Iterable[Played]) -> list[Played]:
        names = {name for name, said in self.lines() if said == "begin"}
        return [job for job in jobs if job.name in names]

    def twice(self, jobs: Iterable[Played]) -> list[str]:
        """The jobs whose handler began more than once."""
        begun = Counter(name for name, said in self.lines() if said == "begin")
        return [job.name for job in jobs if begun[job.name] > 1]

    def hold_once(self, jobs: Iterable[Played]) -> None:
        """No handler of these jobs began more than once."""
        twice = self.twice(jobs)
        hold(not twice, f"handlers that began twice: {', '.join(twice)}")

    def order(self, jobs: Iterable[Played]) -> list[tuple[str, str]]:
        """What these jobs noted, without ticks."""
        names = {job.name for job in jobs}
        return [(name, said) for name, said in self.lines() if name in names and said != "tick"]

    def beside(self, job: Played) -> set[str]:
        """The names of the jobs that noted something while this one ran."""
        lines = self.lines()
        first, last = (lines.index((job.name, word)) for word in ("begin", "end"))
        return {name for name, _ in lines[first:last]} - {job.name}

    def most_at_once(self, jobs: Iterable[Played]) -> int:
        running, most = 0, 0
        for _, said in self.order(jobs):
            running += 1 if said == "begin" else -1
            most = max(most, running)
        return most


class Process:
    """The worker's command, in a process group of its own, as a machine of its own would be."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], output: Path) -> None:
        self._output = output
        with output.open("ab") as file:
            self._process = subprocess.Popen(  # noqa: S603 - to run it is what the user asks for
                command, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                start_new_session=True,
            )  # fmt: skip
        self.forgotten = False  # the play has ended it

    @property
    def code(self) -> int | None:
        return self._process.poll()

    def signal_all(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def kill(self) -> None:
        self.forgotten = True
        self.signal_all(signal.SIGKILL)
        self._process.wait()

    def terminate(self) -> None:
        self.forgotten = True
        self._process.terminate()

    def tail(self) -> str:
        return "\n".join(self._output.read_text("utf-8", errors="replace").splitlines()[-6:])


class Stage:
    """One promise after the other is played on it."""

    def __init__(self, db: Conformance, command: Sequence[str], environment: Mapping[str, str],
                 directory: Path, patience: float) -> None:  # fmt: skip
        self.db, self.patience = db, patience
        self.ttl_s = db.worker_ttl()
        self._command, self._environment, self._directory = command, environment, directory
        self._jobs = 0
        self._processes: list[Process] = []
        self.notes = Notes(directory / "notes")
        self._supervised = False

    # -- the worker

    def start(self, *, supervised: bool = False) -> Process:
        """The worker, which may run from before. `supervised`: if it ends, it is started again."""
        self._supervised = supervised
        if self._processes and not self._processes[-1].forgotten:
            return self._processes[-1]
        return self._start()

    def _start(self) -> Process:
        output = self._directory / "output"
        environment = {**self._environment, "PYWORKER_CONFORMANCE_LOG": str(self.notes.path)}
        self._processes.append(Process(self._command, environment, output))
        return self._processes[-1]

    def ready(self, *, supervised: bool = False) -> Process:
        """The worker, when it has run a first job."""
        process = self.start(supervised=supervised)
        self.until_state("completed", self.add())
        return process

    def is_calm(self) -> bool:
        """True if one worker is there, as it was started, and has nothing to do."""
        there = [process for process in self._processes if process.code is None]
        return len(self._processes) == len(there) == 1 and self.db.counts().get("running", 0) == 0

    def clear(self, *, keep_worker: bool = False) -> None:
        """For the next promise: leave no job, and no worker unless it may stay."""
        if not keep_worker:
            for process in self._processes:
                process.kill()
            self._processes.clear()
            self.db.close_workers()
            self.notes = Notes(self.notes.path)
            (self._directory / "output").unlink(missing_ok=True)
        self.db.cancel_all()

    def output(self) -> str:
        return self._processes[-1].tail() if self._processes else ""

    # -- jobs

    def _payload(self, payload: Mapping[str, Any] | None) -> dict[str, Any]:
        self._jobs += 1
        return {"name": f"job-{self._jobs}", **(payload or {})}

    def add(self, payload: Mapping[str, Any] | None = None, task: str = TASK, **options: Any) -> Played:
        named = self._payload(payload)
        return Played(self.db.add_job(task, named, **options).id, named["name"])

    def add_many(self, count: int, payload: Mapping[str, Any] | None = None, **options: Any) -> list[Played]:
        return [self.add(payload, **options) for _ in range(count)]

    def add_silently(self) -> Played:
        named = self._payload(None)
        return Played(self.db.add_silently(TASK, named).id, named["name"])

    def job(self, job: Played) -> JobRow:
        row = self.db.get_job(job.id)
        if row is None:
            raise Broken(f"{job.name} does not exist any more")
        return row

    def states(self, jobs: Iterable[Played]) -> list[str]:
        return [self.job(job).state for job in jobs]

    # -- to await

    def until(self, what: str, condition: Callable[[], object], seconds: float = 20) -> None:
        """Until the condition is true. A worker that ends meanwhile breaks the promise."""
        end = time.monotonic() + seconds * self.patience
        while not condition():
            self._look_after_worker(what)
            hold(time.monotonic() < end, f"within {seconds * self.patience:g} s it never came true: {what}")
            time.sleep(0.01)

    def _look_after_worker(self, what: str) -> None:
        for process in [process for process in self._processes if not process.forgotten]:
            if process.code is None:
                continue
            hold(self._supervised, f"the worker ended with exit code {process.code} before {what}")
            process.forgotten = True
            self._start()

    def until_state(self, state: str, *jobs: Played, seconds: float = 20) -> None:
        self.until_each(jobs, state, seconds=seconds)

    def until_each(self, jobs: Sequence[Played], *states: str, seconds: float = 20) -> None:
        what = f"{len(jobs)} jobs are {' or '.join(states)}"
        try:
            self.until(what, lambda: all(self.job(job).state in states for job in jobs), seconds)
        except Broken as broken:
            raise Broken(f"{broken}; they are {dict(Counter(self.states(jobs)))}") from None

    def until_begun(self, *jobs: Played, times: int = 1, seconds: float = 20) -> None:
        def begun() -> bool:
            return all(self.notes.count("begin", job) >= times for job in jobs)

        again = "" if times == 1 else f" for the {times}. time"
        self.until(f"the handlers of {len(jobs)} jobs begin{again}", begun, seconds)

    def until_ended(self, process: Process, seconds: float = 30) -> int:
        self.until("the worker ends", lambda: process.code is not None, seconds)
        return process.code or 0

    def is_stopped(self, job: Played, seconds: float = 1) -> bool:
        """True if the job's handler notes nothing for so long."""
        before = self.notes.count("tick", job)
        return self.watch(seconds, lambda: self.notes.count("tick", job) == before)

    def watch_begin(self, job: Played, seconds: float) -> bool:
        """True if the handler begins within so many seconds."""
        return not self.watch(seconds * self.patience, lambda: not self.notes.begun([job]))

    def watch(self, seconds: float, condition: Callable[[], object]) -> bool:
        """True if the condition was true each time, for so long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if not condition():
                return False
            time.sleep(0.01)
        return True
