"""The threads that run sync handlers: started when they are needed, at most one for each handler.

Where the system allows no more, calls wait for those that there are. What waits too long is handed back.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

from .claimed import Call

log = logging.getLogger("pyworker.worker")

AGAIN = 1.0  # seconds until the next attempt to start a thread
NO_THREAD = (RuntimeError, MemoryError)  # what Python raises then


class Threads:
    def __init__(self, most: int, run: Callable[[], object]) -> None:
        """`run` takes calls out of `calls` for ever."""
        self.calls: SimpleQueue[Call] = SimpleQueue()
        self._most, self._run = most, run
        self._count = 0
        self._short = self._told = False
        self._again_at = 0.0

    def put(self, call: Call) -> None:
        self.calls.put(call)
        if not self._short:
            self._start()

    def failed(self, error: BaseException) -> None:
        """Called when a thread could not be started."""
        if not self._told:
            self._told = True
            log.error(
                "no thread can be started (%s): %d of %d handlers run, other jobs are handed back",
                error or "no memory",
                self._count,
                self._most,
            )
        self._short, self._again_at = True, time.monotonic() + AGAIN

    def again_in(self) -> float:
        """Seconds until `start_again` is to be called."""
        return max(self._again_at - time.monotonic(), 0.0) if self._short else math.inf

    def start_again(self) -> None:
        """Start what could not be started before."""
        self._short = False
        while self.calls.qsize() and self._start():
            pass

    def _start(self) -> bool:
        if self._count >= self._most:
            return False
        try:
            threading.Thread(target=self._run, daemon=True, name=f"handler-{self._count + 1}").start()
        except NO_THREAD as error:
            self.failed(error)
            return False
        self._count += 1
        self.worked()
        return True

    def worked(self) -> None:
        if self._told:
            self._told = False
            log.info("threads can be started again")
