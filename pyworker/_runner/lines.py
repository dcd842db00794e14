"""What handlers log of their jobs (job.log), gathered and written together.

    job.log → add → write, by the thread each second and at the end of an attempt → log_jobs

No handler waits for the database when it logs. At the end of attempts one transaction writes at a time: the
jobs that end meanwhile wait for it, and the next one writes the lines of all of them.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import psycopg
from psycopg_pool import PoolTimeout

from .._texts import printable
from ..errors import PyworkerError

log = logging.getLogger("pyworker.worker")

PERIOD = 1.0  # seconds that a line waits at most, while its handler runs
MAX_LINES = 200  # of a job between two writes: the database keeps no more (functions/46_log.sql)
MAX_JOBS = 1000  # whose lines wait while the database does not answer
MAX_LENGTH = 4000  # of a message, as it is sent


class Line(NamedTuple):
    level: str
    message: str
    at: float


Gathered = dict[tuple[int, int], deque[Line]]  # by id and run


class Lines:
    """The lines that are not written yet. `write` gets them from `take`."""

    def __init__(self, write: Callable[[], None]) -> None:
        self._write = write
        self._lock = threading.Lock()
        self._gathered: Gathered = {}
        self._thread: threading.Thread | None = None
        self._some = threading.Event()
        self._closed = threading.Event()
        self._pid = os.getpid()
        self._refused = ""
        self._pause_until = 0.0  # the database did not answer: no attempt's end waits for it

    def add(self, job_id: int, run: int, level: str, message: str) -> None:
        line = Line(level, printable(message[:MAX_LENGTH]), time.monotonic())
        with self._lock:
            self._gathered.setdefault((job_id, run), deque(maxlen=MAX_LINES)).append(line)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True, name="job-log")
                self._thread.start()
        self._some.set()

    @property
    def waiting(self) -> bool:
        """True if there are lines to write, in this process and now."""
        return bool(self._gathered and os.getpid() == self._pid and time.monotonic() >= self._pause_until)

    def take(self) -> Gathered:
        """All lines, for the caller to write.

        None in a copy of the process that a handler has forked: it must not use its parent's connections.
        """
        if not self.waiting:
            return {}
        with self._lock:
            taken, self._gathered = self._gathered, {}
        return taken

    def failed(self, lines: Gathered, error: Exception) -> None:
        """Keep lines that could not be written, unless the database has refused them."""
        if isinstance(error, psycopg.OperationalError | PoolTimeout):
            self._pause_until = time.monotonic() + PERIOD / 2
            self.put_back(lines)
        words = str(error).split("\n")[0]
        if words != self._refused:
            self._refused = words
            log.warning("the lines that jobs have logged cannot be written: %s", words)

    def put_back(self, lines: Gathered) -> None:
        with self._lock:
            for key, later in self._gathered.items():
                lines.setdefault(key, deque(maxlen=MAX_LINES)).extend(later)
            self._gathered = dict(list(lines.items())[-MAX_JOBS:])
        self._some.set()

    def close(self) -> None:
        """Write what there is, and end the thread."""
        self._closed.set()
        self._some.set()
        self._write()

    def _run(self) -> None:
        while self._some.wait() and not self._closed.wait(PERIOD):
            self._some.clear()
            self._write()


def as_items(lines: Gathered) -> list[dict[str, object]]:
    """As log_jobs takes them. The lines of a job are in order."""
    now = time.monotonic()
    return [
        {"id": job_id, "run": run, "level": line.level, "message": line.message, "ago_s": now - line.at}
        for (job_id, run), of_job in lines.items()
        for line in of_job
    ]


WRITE_ERRORS = (psycopg.Error, PoolTimeout, PyworkerError)
