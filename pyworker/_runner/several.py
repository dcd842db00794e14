"""Several databases: a supervisor, and for each database an ordinary parent as a process of its own.

    supervisor ─┬─ parent of shop_1 ─── children
                └─ parent of shop_2 ─── children

The parents share nothing, so a database that is away delays no other one. The supervisor passes
signals on, starts a parent again that has ended, and answers probes for all. It has no connection
to any database. When it is killed, the parents die with it (see served.py).
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from . import signals, together
from .children import exit_text
from .config import RunConfig
from .probes import Route
from .servant import Servant

log = logging.getLogger("pyworker.supervisor")

FIRST, LONGEST = 0.5, 10.0  # seconds until a parent that has ended is started again
QUIET = 60.0  # seconds after which its end counts as the first one again


class Supervisor:
    def __init__(self, configs: Mapping[str, RunConfig], crontab: str | None) -> None:
        """`configs`: by the name of the database, as logs and metrics show it."""
        self.databases = [Servant(name, config, crontab) for name, config in configs.items()]
        self.once = any(config.once for config in configs.values())
        self.signals = 0
        self.exit_code = 0
        self._signalled: deque[int] = deque()

    def run(self) -> int:
        with signals.listening(lambda number, _: self._signalled.append(number)) as wakeup:
            self._work(wakeup)
        return self.exit_code

    def routes(self, metrics: bool) -> dict[str, Route]:
        """What is asked over HTTP."""
        return together.routes(self.databases, metrics)

    def _work(self, wakeup: socket.socket) -> None:
        while any(one.process or one.due is not None for one in self.databases):
            self._stop()
            now = time.monotonic()
            for one in self.databases:
                if one.due is not None and one.due <= now:
                    self._start(one)
            self._wait(wakeup)
            self._reap()

    def _wait(self, wakeup: socket.socket) -> None:
        """Wait for a signal, a message of a parent, or the time to start one."""
        channels: dict[Any, Servant] = {one.channel: one for one in self.databases if one.channel}
        due = [one.due for one in self.databases if one.due is not None]
        wait = max(min(due) - time.monotonic(), 0) if due else None
        ready = select.select([wakeup, *channels], [], [], wait)[0]
        with suppress(BlockingIOError):
            wakeup.recv(4096)
        for channel in ready:
            if channel in channels:
                channels[channel].read()

    def _stop(self) -> None:
        """Pass signals on. As for one database, only the first SIGHUP counts, and only as the first."""
        while self._signalled:
            number = self._signalled.popleft()
            if self.signals and number == signal.SIGHUP:
                continue
            if not self.signals:
                log.info("stopping (%s) the workers of all databases", signal.Signals(number).name)
            self.signals += 1
            for one in self.databases:
                one.due = None
                if one.process:
                    os.kill(one.process.pid, signals.TOLD)

    def _start(self, one: Servant) -> None:
        try:
            one.start()
        except OSError as error:
            self._again(one, f"the worker of {one.name} could not be started: {error}")

    def _reap(self) -> None:
        while ended := signals.ended_child():
            for one in self.databases:
                if one.process and one.process.pid == ended.pid:
                    self._ended(one, ended.code)

    def _ended(self, one: Servant, code: int) -> None:
        one.ended(code)
        words = f"the worker of {one.name} ended with {exit_text(code)}"
        if self.signals or self.once:
            if code and code != -signals.TOLD:
                log.warning("%s", words, extra={"database": one.name})
                self.exit_code = max(self.exit_code, code if code > 0 else 1)
            return
        codes = [other.failed for other in self.databases if other.failed and not other.process]
        if len(codes) == len(self.databases):
            log.error("%s; no database is served", words, extra={"database": one.name})
            self.exit_code = max(codes)
            for other in self.databases:
                other.due = None
        else:
            self._again(one, words)

    def _again(self, one: Servant, why: str) -> None:
        now = time.monotonic()
        one.delay = FIRST if now - one.began > QUIET else min(max(one.delay * 2, FIRST), LONGEST)
        one.due = now + one.delay
        log.warning("%s; starting another in %g s", why, one.delay, extra={"database": one.name})
