"""Child processes, from the parent's side: start one, send it orders, measure its memory."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .._db.database import Database
from . import signals
from .config import RunConfig
from .shared import Slots

log = logging.getLogger("pyworker.parent")

PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass
class ChildProcess:
    worker_id: int
    process: subprocess.Popen[str]  # the leader of a session and of a process group
    started: float
    slots: Slots
    acknowledged: float  # when its last heartbeat began that the database answered
    culprits: Sequence[tuple[int, int]] = ()  # id and run of the jobs of the call for which it was killed
    killed: str = ""  # why we killed it
    leaving: bool = False  # told to stop because of its memory
    condition: str | None = None  # shown by worker_health
    told: str | None = "starting"  # the condition that the database has
    memory: int = 0  # bytes, as the database has it
    locked_by: Database | None = None  # the connection that holds this worker's lock

    def tell(self, word: str) -> None:
        with suppress(OSError, ValueError):
            assert self.process.stdin is not None  # noqa: S101
            self.process.stdin.write(word + "\n")
            self.process.stdin.flush()

    def kill(self, why: str, culprits: Sequence[tuple[int, int]] = ()) -> None:
        self.killed, self.culprits = why, culprits
        os.kill(self.process.pid, signal.SIGKILL)

    def log_why(self) -> None:
        """Log why it was killed."""
        more = f"and {len(self.culprits) - 1} more of its batch " if self.culprits[1:] else ""
        who = f"job {self.culprits[0][0]} {more}" if self.culprits else ""
        log.warning("ending worker process %s: %s%s", self.process.pid, who, self.killed)


@dataclass
class Ended:
    """A child that has exited and is not yet unregistered in the database."""

    worker_id: int
    crashed: bool
    running: list[tuple[int, int]]  # jobs that may have crashed it
    failures: list[dict[str, Any]]  # reports for the jobs of the call for which it was killed
    why: str


def start_child(config: RunConfig, worker_id: int, acknowledged: float) -> ChildProcess:
    slots = Slots.create(config.concurrency)
    try:
        with signals.held_back():
            process = subprocess.Popen(  # noqa: S603
                python("pyworker._runner.child_main"),
                stdin=subprocess.PIPE,
                text=True,
                pass_fds=[slots.fd],
                start_new_session=True,  # its group ends with it: the programs of its handlers
            )
    except BaseException:
        slots.close()
        raise
    child = ChildProcess(worker_id, process, time.monotonic(), slots, acknowledged)
    order = {"config": asdict(config), "worker_id": worker_id, "slots": slots.fd, "path": python_path()}
    child.tell(json.dumps(order))
    return child


def condition_of(slots: Slots, stuck_before: float, stopping: bool) -> str | None:
    """What worker_health shows of a child."""
    turned, answered = slots.stamps()
    if turned < stuck_before:
        return "stuck"
    if answered < 0 and not stopping:
        return "refused"
    return "stopping" if stopping else None if answered else "starting"


def memory_of(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * PAGE
    except (OSError, ValueError, IndexError):
        return 0


# Options of Python that sys.flags counts.
FLAGS = {
    "debug": "d", "optimize": "O", "dont_write_bytecode": "B", "no_user_site": "s", "no_site": "S",
    "ignore_environment": "E", "verbose": "v", "bytes_warning": "b", "isolated": "I", "safe_path": "P",
}  # fmt: skip


def python(module: str, *arguments: str) -> list[str]:
    """The command that calls main() of this module, with the options and the path of this process."""
    path, here = python_path(), os.getcwd()
    if here in path and here != str(Path(__file__).parents[2]):
        # Last at first: the application may have a module that is named like one of Python's.
        path = [*(entry for entry in path if entry != here), here]
    flags = ["-" + letter * getattr(sys.flags, name) for name, letter in FLAGS.items()]
    if getattr(sys.__stdout__, "write_through", False):
        flags.append("-u")
    options: dict[str, Any] = sys._xoptions  # pyright: ignore[reportPrivateUsage] - documented, for CPython
    flags += [f"-X{name}" if value is True else f"-X{name}={value}" for name, value in options.items()]
    flags += [f"-W{option}" for option in dict.fromkeys(sys.warnoptions)]
    begin = f"import sys; sys.path[:] = {path!r}; from {module} import main; main()"
    return [sys.executable, *(flag for flag in flags if flag != "-"), "-c", begin, *arguments]


def python_path() -> list[str]:
    """Children import what the parent can; the current directory comes first, as in `python -m`."""
    here = os.getcwd()
    own = [entry or here for entry in sys.path]
    return own if sys.flags.safe_path else [*dict.fromkeys([here, *own])]


def version() -> str:
    from .. import __version__

    return __version__


def exit_text(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"code {code}"
