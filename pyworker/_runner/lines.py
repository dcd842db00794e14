"""What handlers log of their jobs (job.log), gathered for the next turn.

    job.log → add → take, by the turn that reports the job's end, or within a second → work

No handler waits for the database when it logs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from .._texts import printable

log = logging.getLogger("pyworker.worker")

PERIOD = 1.0  # seconds that a line waits at most, while its handler runs
MAX_LINES = 200  # of a job between two turns: the database keeps no more (sql/features/log.sql)
MAX_JOBS = 1000  # whose lines wait while the database does not answer
MAX_LENGTH = 2001  # of a message, as it is sent: the database sees that it is too long
MAX_SENT = 4_000_000  # characters of messages in one call


class Line(NamedTuple):
    level: str
    message: str
    at: float


Gathered = dict[tuple[int, int], deque[Line]]  # by id and run


class Lines:
    """The lines that are not written yet. Handlers add them, the turn takes them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gathered: Gathered = {}
        self._taken_at = 0.0
        self._refused = ""

    def __bool__(self) -> bool:
        """True if there are lines to write."""
        return bool(self._gathered)

    def add(self, job_id: int, run: int, level: str, message: str) -> None:
        line = Line(level, printable(message[:MAX_LENGTH]), time.monotonic())
        key = (job_id, run)
        with self._lock:
            of_run = self._gathered.get(key)
            if of_run is None:
                of_run = self._gathered[key] = deque(maxlen=MAX_LINES)
            of_run.append(line)

    def due_in(self) -> float:
        """Seconds until the turn must look for lines, while handlers run."""
        if not self._gathered:
            return PERIOD
        return max(self._taken_at + PERIOD - time.monotonic(), 0)

    def take(self) -> Gathered:
        """All lines, for the caller to write."""
        self._taken_at = time.monotonic()
        if not self._gathered:
            return {}
        with self._lock:
            taken, self._gathered = self._gathered, {}
        return taken

    def put_back(self, lines: Gathered) -> None:
        """Keep lines that may not have been written, for the next turn."""
        with self._lock:
            for key, later in self._gathered.items():
                lines.setdefault(key, deque(maxlen=MAX_LINES)).extend(later)
            self._gathered = dict(list(lines.items())[-MAX_JOBS:])

    def refused(self, error: Exception) -> None:
        """Tell once that the database has refused lines, which are dropped."""
        words = str(error).split("\n")[0]
        if words != self._refused:
            self._refused = words
            log.warning("the lines that jobs have logged cannot be written: %s", words)


def portions(lines: Gathered) -> Iterator[Gathered]:
    """The lines in portions, each for one call. The lines of a run stay together."""
    portion: Gathered = {}
    size = 0
    for key, of_run in lines.items():
        length = sum(len(line.message) for line in of_run)
        if portion and size + length > MAX_SENT:
            yield portion
            portion, size = {}, 0
        portion[key] = of_run
        size += length
    if portion:
        yield portion


def as_items(lines: Gathered) -> list[dict[str, Any]]:
    """As `work` takes them. The lines of a job are in order."""
    now = time.monotonic()
    return [
        {
            "do": "log",
            "id": job_id,
            "run": run,
            "level": line.level,
            "message": line.message,
            "ago_s": round(now - line.at, 6),
        }
        for (job_id, run), of_run in lines.items()
        for line in of_run
    ]
