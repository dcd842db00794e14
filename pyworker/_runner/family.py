"""The child processes: started, watched, and replaced when they end."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from .._db.connect import FENCE
from .._db.database import Database
from . import signals
from .children import ChildProcess, Ended, condition_of, exit_text, memory_of, start_child, version
from .config import (
    EXIT_CANNOT_START,
    EXIT_DATABASE_NEWER,
    EXIT_DATABASE_OLDER,
    EXIT_REGISTER_AGAIN,
    RunConfig,
)
from .shared import boottime

log = logging.getLogger("pyworker.parent")

WATCH = 0.25  # seconds between checks of the children's deadlines and memory
MEMORY = "it holds too much memory"
GRACE = 2.0  # seconds from "abort" to SIGKILL, and from SIGTERM to SIGKILL for what a child leaves
FINAL = (EXIT_CANNOT_START, EXIT_DATABASE_OLDER, EXIT_DATABASE_NEWER)


class Family:
    """The children of one parent.

    `beat_soon` is called when a child has been started, to take its lock. `loaded` gets the tasks of the
    first child that has loaded them. `end` is called with the exit code when no child can go on."""

    def __init__(
        self,
        config: RunConfig,
        beat_soon: Callable[[], object],
        loaded: Callable[[list[str]], object],
        end: Callable[[int], object],
    ) -> None:
        self.children: dict[int, ChildProcess] = {}  # by pid
        self.respawn_at: list[float] = []  # one time for each child to be replaced
        self.to_unregister: list[Ended] = []
        self.ended: Counter[str] = Counter()  # jobs, by how they ended
        self.patience = FENCE  # seconds without such a heartbeat until our handlers must end
        self.on_end: Callable[[], object] = lambda: None  # called when a child has ended
        self._config, self._beat_soon, self._loaded, self._end = config, beat_soon, loaded, end
        self._ending: list[tuple[float, ChildProcess]] = []  # that have ended, and when to kill their groups
        self._delay = 0.1  # seconds until a child is replaced
        self._stopping = self._has_loaded = False
        self._reaping = threading.Lock()  # held to kill or to reap, so that no reused pid is killed

    def __bool__(self) -> bool:
        return bool(self.children or self._ending or self.respawn_at or self.to_unregister)

    def stop(self) -> None:
        self._stopping = True
        self.respawn_at.clear()
        self.tell("stop")

    def tell(self, word: str) -> None:
        for child in self.children.values():
            child.tell(word)

    def kill(self) -> None:
        for pid in self.children:
            os.kill(pid, signal.SIGKILL)

    def fence(self, stopped: threading.Event) -> None:
        """Kill the children whose heartbeats stay unanswered for too long.

        Others may take their jobs then. Runs in its own thread, so that nothing delays it. It logs nothing:
        to write a line may take for ever where nothing reads the log.
        """
        while not stopped.wait(WATCH):
            with self._reaping:
                alive = [child for child in list(self.children.values()) if not child.killed]
                for child in alive:
                    if (away := boottime() - child.acknowledged) > self.patience:
                        why = f"the database has not answered for {away:.0f} s, others may take its jobs"
                        child.kill(why)

    # -- start and end -----------------------------------------------------------------------------

    def spawn(self, db: Database) -> None:
        began, host = boottime(), socket.gethostname()
        worker = db.open_worker(
            {
                "name": self._config.name or host, "host": host, "pid": os.getpid(),
                "version": version(), "modules": self._config.tasks, "condition": "starting",
                "concurrency": self._config.concurrency,
            }
        )  # fmt: skip
        self.patience = min(worker["stop_after_s"], FENCE)
        try:
            child = start_child(self._config, worker["worker"], began)
        except (OSError, MemoryError) as error:  # the limit of processes or open files, or no memory
            log.error("cannot start a worker process: %s; trying again", error or "no memory")
            self.to_unregister.append(Ended(worker["worker"], False, [], [], ""))
            self._respawn()
            return
        child.slots.prolong(began + self.patience)
        self.children[child.process.pid] = child
        self._beat_soon()
        if self._stopping:  # a signal arrived during the start
            child.tell("stop")

    def reap(self) -> None:
        while True:
            with self._reaping:
                ended = signals.ended_child()
                if ended is None:
                    return
                child = self.children.pop(ended.pid, None)
            if child:
                child.process.returncode = ended.code
                signals.signal_group(ended.pid, signal.SIGTERM)
                self._ending.append((time.monotonic() + GRACE, child))

    def end_groups(self, now: float) -> None:
        """End what children that have ended leave in their groups, such as programs of their handlers.

        Only then are their jobs given to others.
        """
        for ending in [*self._ending]:
            kill_at, child = ending
            if now >= kill_at:
                signals.signal_group(child.process.pid, signal.SIGKILL)
            elif signals.signal_group(child.process.pid, 0):
                continue
            self._ending.remove(ending)
            self._ended(child, child.process.returncode)

    def _ended(self, child: ChildProcess, code: int) -> None:
        if child.killed:
            child.log_why()
        with suppress(OSError):
            assert child.process.stdin is not None  # noqa: S101
            child.process.stdin.close()
        self._note_start(child)
        # A process that ends deliberately clears its slots. Jobs left there may have crashed it,
        # with any exit code.
        running = [(job.job_id, job.run) for job in child.slots.running()]
        deliberate = not running
        crashed = code not in (0, *FINAL, EXIT_REGISTER_AGAIN) or not deliberate
        # A child that we killed for one job, or while stopping, did not crash: its jobs are
        # released, and this attempt does not count.
        crashed = crashed and not self._stopping and (not child.killed or child.killed == MEMORY)
        failures = [{"id": job_id, "run": run, "error": child.killed} for job_id, run in child.culprits]
        why = f"its worker process ended with {exit_text(code)}{child.killed and ': ' + child.killed}"
        self.to_unregister.append(Ended(child.worker_id, crashed, running if crashed else [], failures, why))
        self.ended.update(child.slots.counts())
        child.slots.close()
        self.on_end()
        if deliberate and code in FINAL:
            self._end(1 if code == EXIT_CANNOT_START else code)
        elif not self._stopping and not (
            deliberate and code == 0 and self._config.once and not child.leaving
        ):
            log.warning(
                "worker process %s ended with %s; starting another", child.process.pid, exit_text(code)
            )
            self._respawn(time.monotonic() - child.started)

    def _respawn(self, lived: float = 0.0) -> None:
        if not self._stopping:
            self._delay = 0.1 if lived > 60 else min(self._delay * 2, 5.0)
            self.respawn_at.append(time.monotonic() + self._delay)

    # -- meanwhile ---------------------------------------------------------------------------------

    def watch(self, now: float) -> bool:
        """Check each child's deadlines and memory. True if the condition of one has changed."""
        changed = False
        for child in [child for child in self.children.values() if not child.killed]:
            self._note_start(child)
            stopping = self._stopping or child.leaving
            child.condition = condition_of(child.slots, now - self._config.stuck_after, stopping)
            changed |= child.condition != child.told
            late = [job for job in child.slots.running() if job.deadline and now > job.deadline]
            if late:
                of_call = [(job.job_id, job.run) for job in late if job.slot == late[0].slot]
                child.kill("timed out, or did not stop when it was cancelled", of_call)
            elif self._config.max_memory:
                self._limit_memory(child, self._config.max_memory)
        return changed

    def _limit_memory(self, child: ChildProcess, most: int) -> None:
        memory = memory_of(child.process.pid)
        if memory > most * 1.5:
            child.kill(MEMORY)
        elif memory > most and not child.leaving:
            log.warning("worker process %s holds %d MB; replacing it", child.process.pid, memory >> 20)
            child.leaving = True
            child.tell("stop")

    def _note_start(self, child: ChildProcess) -> None:
        if not self._has_loaded and child.slots.stamps()[1]:
            self._has_loaded = True
            self._loaded(child.slots.known())
