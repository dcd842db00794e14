"""The parent: a small synchronous process without user code, able to run as PID 1.

It opens a worker for each child, sends their beats and passes signals on. When a child dies, it
reports that at once and starts another. Nothing that a handler does (a C call that holds the GIL
for an hour, a segmentation fault) can stop the parent.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from .._db import migrations
from .._db.connect import FENCE
from .._db.database import Database
from .._escape import shown
from . import signals
from .children import ChildProcess, Ended, condition_of, exit_text, memory_of, start_child
from .config import (
    EXIT_CANNOT_START,
    EXIT_DATABASE_NEWER,
    EXIT_DATABASE_OLDER,
    EXIT_REGISTER_AGAIN,
    RunConfig,
)
from .control import Control
from .maintenance import QUERY_TIMEOUT, Duties
from .shared import boottime

log = logging.getLogger("pyworker.parent")

BEAT = 5.0  # seconds at most between beats; their answers say when the next is due
WATCH = 0.25  # seconds between checks of the children's deadlines and memory
MEMORY = "it holds too much memory"
NAMED = 8  # tasks in the first line
GRACE = 2.0  # seconds from "abort" to SIGKILL, and from SIGTERM to SIGKILL for what a child leaves


class Parent:
    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.control = Control(config, self._beat_soon)
        self.duties = Duties(config)
        self.children: dict[int, ChildProcess] = {}  # by pid
        self.ending: list[tuple[float, ChildProcess]] = []  # that have ended, and when to kill their groups
        self.respawn_at: list[float] = []  # one time for each child to be replaced
        self.respawn_delay = 0.1
        self.started = False  # a child has loaded its tasks, and the database has answered it
        self.signals = 0
        self.pid = os.getpid()
        self.kill_at: float | None = None
        self.turned = time.monotonic()
        self.next_beat = self.turned + BEAT
        self.exit_code = 0
        self.ended: Counter[str] = Counter()  # jobs, by how they ended
        self.to_unregister: list[Ended] = []
        self.fence = FENCE  # seconds without such a heartbeat until our handlers must end
        self.on_end: Callable[[], object] = lambda: None  # called when a child has ended
        self.stopped = threading.Event()
        self.reaping = threading.Lock()  # held to kill or to reap, so that no reused pid is killed

    # -- from start to end -------------------------------------------------------------------------

    def run(self) -> int:
        # Without the time limit of beats: a query may take long, and a migration may hold a lock.
        db = Database(self.control.connect().conn, self.config.schema)
        db.check_version(migrations.newest())  # later, the children check it
        while self.config.once and db.run_schedules(QUERY_TIMEOUT):
            pass
        signals.adopt_orphans()
        with signals.listening(self._signalled) as wakeup:
            for _ in range(self.config.processes):
                self._spawn(db)
            self._work(wakeup)
        return self.exit_code

    def _work(self, wakeup: socket.socket) -> None:
        threading.Thread(target=self.duties.run, daemon=True, name="maintain").start()
        threading.Thread(target=self._fence, daemon=True, name="fence").start()
        while self.children or self.ending or self.respawn_at or self.to_unregister:
            self.turned = time.monotonic()
            self._wait(wakeup)
            self._reap()
            now = time.monotonic()
            self._end_groups(now)
            self._watch(now)
            if self.kill_at and now >= self.kill_at:
                self._escalate()
            if now >= self.next_beat:
                self.next_beat = now + BEAT
                self._on_database(self._beat)
            if self.to_unregister:
                if not (self.signals and self.control.away):
                    self._on_database(self._unregister)
                if self.signals:
                    self.to_unregister.clear()  # stop without retrying: the leases will expire
            for due in [at for at in self.respawn_at if at <= now]:
                self.respawn_at.remove(due)
                if not (self.signals or self._on_database(self._spawn)):
                    self.respawn_at.append(time.monotonic() + 1)
        signal.setitimer(signal.ITIMER_REAL, 0)
        self.stopped.set()
        self._say("stopped: %s", self._done())

    def _wait(self, wakeup: socket.socket) -> None:
        """Wait for a signal, input from the database, or the next thing to do."""
        now, retry = self.turned, self.control.backoff.until
        if retry:
            self.next_beat = min(self.next_beat, max(retry, now))
        deadlines = [self.next_beat, now + WATCH, *self.respawn_at]
        if self.kill_at:
            deadlines.append(self.kill_at)
        db = self.control.db
        ends: list[Any] = [wakeup, db.conn] if db else [wakeup]
        ready = select.select(ends, [], [], max(min(deadlines) - now, 0))[0]
        with suppress(BlockingIOError):
            wakeup.recv(4096)
        if db and db.conn in ready:
            self.control.listen()

    def _version(self) -> str:
        from .. import __version__

        return __version__

    def _note_start(self, child: ChildProcess) -> None:
        """Log the start once a child has loaded its tasks: until then it may end in an error."""
        if not self.started and child.slots.stamps()[1]:
            self.started = True
            log.info("pyworker %s started: %s", self._version(), self._about(child.slots.known()))

    def _about(self, tasks: list[str]) -> str:
        """What this worker runs, and where, for its first line."""
        config = self.config
        more = len(tasks) - NAMED
        named = [*tasks[:NAMED], f"{more} more"] if more > 1 else tasks
        limits = [
            f"{what} {', '.join(map(shown, names))}"
            for what, names in (
                ("queues", [f"{q}={config.bounds[q]}" if q in config.bounds else q for q in config.queues]),
                ("not flags", config.forbidden_flags), ("tasks", named)
            )
            if names
        ]  # fmt: skip
        where = [f"database {shown(self.control.database)}"] if self.control.database else []
        if config.schema != RunConfig.schema:
            where.append(f"schema {shown(config.schema)}")
        processes = f"{config.processes} process{'es' if config.processes > 1 else ''}"
        many = f"{processes} of {config.concurrency} handlers"
        return ", ".join([many, *where, *limits])

    def _done(self) -> str:
        """What became of the jobs that this worker ran, for its last line."""
        did = self.ended
        words = [f"{did['done']} completed", f"{did['fail']} failed", f"{did['discard']} discarded"]
        rare = (("cancel", " cancelled"), ("snooze", " snoozed"))
        return ", ".join([*words, *(f"{did[name]}{word}" for name, word in rare if did[name])])

    def _say(self, text: str, *values: Any) -> None:
        """Log the progress of the stop, unless the start failed: the error of that stands alone."""
        if self.started or not self.exit_code:
            log.info(text, *values)

    # -- the database ------------------------------------------------------------------------------

    def _on_database(self, action: Callable[[Database], object]) -> bool:
        return self.control.run(action, hurry=self.signals > 0)

    def _beat_soon(self) -> None:
        self.next_beat = time.monotonic()

    def _beat(self, db: Database) -> None:
        first, self.next_beat = boottime(), time.monotonic() + BEAT
        for child in sorted(self.children.values(), key=lambda child: child.acknowledged):
            began = boottime()
            if began - first > BEAT / 2:  # the answers come slowly, and there are other things to do
                self._beat_soon()
                return
            unlocked = child.locked_by is not db  # then it may be another database, too
            told = child.condition
            news = json.dumps(told) if unlocked or told != child.told else None
            lock = unlocked and not self.control.pooled
            answer = db.beat(child.worker_id, lock, news, self.duties.busy)
            if not answer.alive:
                child.kill("it was declared dead")
                continue
            child.acknowledged = began
            child.slots.prolong(began + self.fence)
            child.told = told
            child.locked_by = None if answer.unlocked else db
            self._tell_memory(db, child)
            self.duties.tell(answer.duties)
            self.next_beat = min(self.next_beat, time.monotonic() + answer.next_in_s)

    def _tell_memory(self, db: Database, child: ChildProcess) -> None:
        """Once it has changed by a tenth, since each time is a write."""
        memory = memory_of(child.process.pid)
        if abs(memory - child.memory) > child.memory // 10:
            db.update_worker(child.worker_id, {"memory": memory})
            child.memory = memory

    def _unregister(self, db: Database) -> None:
        while self.to_unregister:
            ended = self.to_unregister[0]
            charged = [job_id for job_id, _ in ended.running]
            if ended.failures:
                db.fail_jobs(ended.failures)
                charged += [failure["id"] for failure in ended.failures]
            if ended.crashed:
                db.report_crash(ended.worker_id, ended.running, ended.why)
            db.close_worker(ended.worker_id)
            self.ended["fail"] += len(charged)
            for job_id, reason in db.discarded(charged) if charged else []:
                self.ended.update(discard=1, fail=-1)
                why = shown(reason or "")
                log.error("job %s is discarded now: %s", job_id, why, extra={"job_id": job_id})
            self.to_unregister.pop(0)

    def _fence(self) -> None:
        """Kill the children whose heartbeats stay unanswered for too long.

        Others may take their jobs then. Runs in its own thread, so that nothing delays it. It logs nothing:
        to write a line may take for ever where nothing reads the log.
        """
        while not self.stopped.wait(WATCH):
            with self.reaping:
                alive = [child for child in list(self.children.values()) if not child.killed]
                for child in alive:
                    if (away := boottime() - child.acknowledged) > self.fence:
                        why = f"the database has not answered for {away:.0f} s, others may take its jobs"
                        child.kill(why)

    # -- children ----------------------------------------------------------------------------------

    def _spawn(self, db: Database) -> None:
        began, host = boottime(), socket.gethostname()
        worker = db.open_worker(
            {
                "name": self.config.name or host, "host": host, "pid": os.getpid(),
                "version": self._version(), "modules": self.config.tasks, "condition": "starting",
                "concurrency": self.config.concurrency,
            }
        )  # fmt: skip
        self.fence = min(worker["stop_after_s"], FENCE)
        try:
            child = start_child(self.config, worker["worker"], began)
        except (OSError, MemoryError) as error:  # the limit of processes or open files, or no memory
            log.error("cannot start a worker process: %s; trying again", error or "no memory")
            self.to_unregister.append(Ended(worker["worker"], False, [], [], ""))
            self._respawn()
            return
        child.slots.prolong(began + self.fence)
        self.children[child.process.pid] = child
        self._beat_soon()  # to take its lock
        if self.signals:  # a signal arrived during the start
            child.tell("stop")

    def _reap(self) -> None:
        while True:
            with self.reaping:
                ended = signals.ended_child()
                if ended is None:
                    return
                child = self.children.pop(ended.pid, None)
            if child:
                child.process.returncode = ended.code
                signals.signal_group(ended.pid, signal.SIGTERM)
                self.ending.append((time.monotonic() + GRACE, child))

    def _end_groups(self, now: float) -> None:
        """End what children that have ended leave in their groups, such as programs of their handlers.

        Only then are their jobs given to others.
        """
        for ending in [*self.ending]:
            kill_at, child = ending
            if now >= kill_at:
                signals.signal_group(child.process.pid, signal.SIGKILL)
            elif signals.signal_group(child.process.pid, 0):
                continue
            self.ending.remove(ending)
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
        crashed = code not in (
            0,
            EXIT_CANNOT_START,
            EXIT_DATABASE_OLDER,
            EXIT_DATABASE_NEWER,
            EXIT_REGISTER_AGAIN,
        )
        crashed = crashed or not deliberate
        # A child that we killed for one job, or while stopping, did not crash: its jobs are
        # released, and this attempt does not count.
        crashed = crashed and not self.signals and (not child.killed or child.killed == MEMORY)
        failures = [{"id": job_id, "run": run, "error": child.killed} for job_id, run in child.culprits]
        why = f"its worker process ended with {exit_text(code)}{child.killed and ': ' + child.killed}"
        self.to_unregister.append(Ended(child.worker_id, crashed, running if crashed else [], failures, why))
        self.ended.update(child.slots.counts())
        child.slots.close()
        self.on_end()
        if deliberate and code in (EXIT_CANNOT_START, EXIT_DATABASE_OLDER, EXIT_DATABASE_NEWER):
            self.exit_code = 1 if code == EXIT_CANNOT_START else code
            self._stop("a worker process cannot go on")
        elif self.signals or (deliberate and code == 0 and self.config.once and not child.leaving):
            pass
        else:
            log.warning(
                "worker process %s ended with %s; starting another", child.process.pid, exit_text(code)
            )
            self._respawn(time.monotonic() - child.started)

    def _respawn(self, lived: float = 0.0) -> None:
        if not self.signals:
            self.respawn_delay = 0.1 if lived > 60 else min(self.respawn_delay * 2, 5.0)
            self.respawn_at.append(time.monotonic() + self.respawn_delay)

    def _watch(self, now: float) -> None:
        """Check each child's deadlines and memory, and update its condition."""
        for child in [child for child in self.children.values() if not child.killed]:
            self._note_start(child)
            stopping = self.signals > 0 or child.leaving
            child.condition = condition_of(child.slots, now - self.config.stuck_after, stopping)
            if child.condition != child.told and self.control.db:
                self.next_beat = now
            late = [job for job in child.slots.running() if job.deadline and now > job.deadline]
            if late:
                of_call = [(job.job_id, job.run) for job in late if job.slot == late[0].slot]
                child.kill("timed out, or did not stop when it was cancelled", of_call)
            elif self.config.max_memory:
                memory = memory_of(child.process.pid)
                if memory > self.config.max_memory * 1.5:
                    child.kill(MEMORY)
                elif memory > self.config.max_memory and not child.leaving:
                    log.warning(
                        "worker process %s holds %d MB; replacing it", child.process.pid, memory >> 20
                    )
                    child.leaving = True
                    child.tell("stop")

    # -- signals -----------------------------------------------------------------------------------

    def _signalled(self, number: int, _frame: object) -> None:
        if self.signals == 0:
            self._stop(signal.Signals(number).name)
        elif number != signal.SIGHUP:  # a closing terminal, its shell and systemd send one each
            self.kill_at = time.monotonic()
            self.signals += 1

    def _stop(self, why: str) -> None:
        if self.signals:
            return
        self.signals = 1
        self.respawn_at.clear()
        self.kill_at = time.monotonic() + self.config.shutdown_timeout
        patience = self.config.shutdown_timeout
        self.control.hurry(self._needs_no_answer)
        for child in self.children.values():
            child.tell("stop")
        self._say("stopping (%s): running jobs have %g seconds, the rest is handed back", why, patience)

    def _needs_no_answer(self) -> bool:
        """Called while the database is waited for: there is something else to do, or nothing left."""
        late = self.kill_at and time.monotonic() >= self.kill_at
        return bool(late or not self.children or signals.is_child_to_reap())

    def _escalate(self) -> None:
        """Order the children to hand everything back; the next time, kill the remaining ones.

        Called after the shutdown timeout, and at a second signal.
        """
        if self.signals < 3:
            self.signals = 3
            self.kill_at = time.monotonic() + GRACE
            for child in self.children.values():
                child.tell("abort")
        else:
            self.kill_at = None
            for pid in self.children:
                os.kill(pid, signal.SIGKILL)
