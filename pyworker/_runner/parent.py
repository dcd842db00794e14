"""The parent: a small synchronous process without user code, able to run as PID 1.

It opens a worker for each child, sends their beats and passes signals on. When a child dies, it
reports that at once and starts another. Nothing that a handler does (a C call that holds the GIL
for an hour, a segmentation fault) can stop the parent.

    family      the child processes: started, watched, replaced
    beats       what the database hears of them
    control     the connection for that
    maintenance what the beats say is due
"""

from __future__ import annotations

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
from .._db.database import Database
from .._escape import shown
from . import signals
from .beats import BEAT, Beats
from .children import version
from .config import RunConfig
from .control import Control
from .family import GRACE, WATCH, Family
from .maintenance import QUERY_TIMEOUT, Duties

log = logging.getLogger("pyworker.parent")

NAMED = 8  # tasks in the first line


class Parent:
    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.duties = Duties(config)
        self.family = Family(config, self._beat_soon, self._say_that_it_started, self._end_with)
        self.control = Control(config, self._beat_soon)
        self.beats = Beats(self.family, self.control, self.duties)
        self.started = False  # a child has loaded its tasks, and the database has answered it
        self.signals = 0
        self.pid = os.getpid()
        self.kill_at: float | None = None
        self.turned = time.monotonic()
        self.exit_code = 0
        self.stopped = threading.Event()

    def run(self) -> int:
        # Without the time limit of beats: a query may take long, and a migration may hold a lock.
        db = Database(self.control.connect().conn, self.config.schema)
        db.check_version(migrations.newest())  # later, the children check it
        while self.config.once and db.run_schedules(QUERY_TIMEOUT):
            pass
        signals.adopt_orphans()
        with signals.listening(self._signalled) as wakeup:
            for _ in range(self.config.processes):
                self.family.spawn(db)
            self._work(wakeup)
        return self.exit_code

    def _work(self, wakeup: socket.socket) -> None:
        family = self.family
        threading.Thread(target=self.duties.run, daemon=True, name="maintain").start()
        threading.Thread(target=family.fence, args=[self.stopped], daemon=True, name="fence").start()
        while family:
            self.turned = time.monotonic()
            self._wait(wakeup)
            family.reap()
            now = time.monotonic()
            family.end_groups(now)
            if family.watch(now) and self.control.db:  # one shows another condition
                self.beats.next_at = now
            if self.kill_at and now >= self.kill_at:
                self._escalate()
            if now >= self.beats.next_at:
                self.beats.next_at = now + BEAT
                self._on_database(self.beats.beat)
            if family.to_unregister:
                if not (self.signals and self.control.away):
                    self._on_database(self.beats.unregister)
                if self.signals:
                    family.to_unregister.clear()  # stop without retrying: the leases will expire
            for due in [at for at in family.respawn_at if at <= now]:
                family.respawn_at.remove(due)
                if not (self.signals or self._on_database(family.spawn)):
                    family.respawn_at.append(time.monotonic() + 1)
        signal.setitimer(signal.ITIMER_REAL, 0)
        self.stopped.set()
        self._say("stopped: %s", done(family.ended))

    def _wait(self, wakeup: socket.socket) -> None:
        """Wait for a signal, input from the database, or the next thing to do."""
        now, retry = self.turned, self.control.backoff.until
        if retry:
            self.beats.next_at = min(self.beats.next_at, max(retry, now))
        deadlines = [self.beats.next_at, now + WATCH, *self.family.respawn_at]
        if self.kill_at:
            deadlines.append(self.kill_at)
        db = self.control.db
        ends: list[Any] = [wakeup, db.conn] if db else [wakeup]
        ready = select.select(ends, [], [], max(min(deadlines) - now, 0))[0]
        with suppress(BlockingIOError):
            wakeup.recv(4096)
        if db and db.conn in ready:
            self.control.listen()

    def _on_database(self, action: Callable[[Database], object]) -> bool:
        return self.control.run(action, hurry=self.signals > 0)

    def _beat_soon(self) -> None:
        self.beats.next_at = time.monotonic()

    def _say_that_it_started(self, tasks: list[str]) -> None:
        """Called once a child has loaded its tasks: until then the start may end in an error."""
        self.started = True
        log.info("pyworker %s started: %s", version(), about(self.config, self.control.database, tasks))

    def _say(self, text: str, *values: Any) -> None:
        """Log the progress of the stop, unless the start failed: the error of that stands alone."""
        if self.started or not self.exit_code:
            log.info(text, *values)

    # -- signals -----------------------------------------------------------------------------------

    def _signalled(self, number: int, _frame: object) -> None:
        if self.signals == 0:
            self._stop(signal.Signals(number).name)
        elif number != signal.SIGHUP:  # a closing terminal, its shell and systemd send one each
            self.kill_at = time.monotonic()
            self.signals += 1

    def _end_with(self, code: int) -> None:
        """A child says that none can go on."""
        self.exit_code = code
        self._stop("a worker process cannot go on")

    def _stop(self, why: str) -> None:
        if self.signals:
            return
        self.signals = 1
        self.kill_at = time.monotonic() + self.config.shutdown_timeout
        patience = self.config.shutdown_timeout
        self.control.hurry(self._needs_no_answer)
        self.family.stop()
        self._say("stopping (%s): running jobs have %g seconds, the rest is handed back", why, patience)

    def _needs_no_answer(self) -> bool:
        """Called while the database is waited for: there is something else to do, or nothing left."""
        late = self.kill_at and time.monotonic() >= self.kill_at
        return bool(late or not self.family.children or signals.is_child_to_reap())

    def _escalate(self) -> None:
        """Order the children to hand everything back; the next time, kill the remaining ones.

        Called after the shutdown timeout, and at a second signal.
        """
        if self.signals < 3:
            self.signals = 3
            self.kill_at = time.monotonic() + GRACE
            self.family.tell("abort")
        else:
            self.kill_at = None
            self.family.kill()


def about(config: RunConfig, database: str, tasks: list[str]) -> str:
    """What this worker runs, and where, for its first line."""
    more = len(tasks) - NAMED
    named = [*tasks[:NAMED], f"{more} more"] if more > 1 else tasks
    queues = [f"{q}={config.bounds[q]}" if q in config.bounds else q for q in config.queues]
    limits = (("queues", queues), ("not flags", config.forbidden_flags), ("tasks", named))
    where = [f"database {shown(database)}"] if database else []
    if config.schema != RunConfig.schema:
        where.append(f"schema {shown(config.schema)}")
    processes = f"{config.processes} process{'es' if config.processes > 1 else ''}"
    words = [f"{processes} of {config.concurrency} handlers", *where]
    words += [f"{what} {', '.join(map(shown, names))}" for what, names in limits if names]
    return ", ".join(words)


def done(did: Counter[str]) -> str:
    """What became of the jobs that this worker ran, for its last line."""
    words = [f"{did['done']} completed", f"{did['fail']} failed", f"{did['discard']} discarded"]
    rare = (("cancel", " cancelled"), ("snooze", " snoozed"))
    return ", ".join([*words, *(f"{did[name]}{word}" for name, word in rare if did[name])])
