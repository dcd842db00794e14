"""What handlers log of their jobs (job.log), gathered for the next turn.

    job.log → add → take, by the turn that reports the job's end, or within a second → work

No handler waits for the database when it logs.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque

PERIOD = 1.0  # seconds that a line waits at most, while its handler runs
MAX_LINES = 200  # of a job between two turns: the database keeps no more (sql/features/log.sql)
MAX_JOBS = 1000  # whose lines wait while the database does not answer
MAX_LENGTH = 2001  # of a message, as it is sent: the database sees that it is too long
MAX_SENT = 4_000_000  # characters of messages in one call, but for the lines of the last run in it

Gathered = dict[tuple[int, int], deque[tuple[str, str, float]]]  # level, message and time, by id and run


class Lines:
    """The lines that are not written yet. Handlers add them, the turn takes them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gathered: Gathered = {}
        self._taken_at = 0.0

    def __bool__(self) -> bool:
        """True if there are lines to write."""
        return bool(self._gathered)

    def add(self, job_id: int, run: int, level: str, message: str) -> None:
        with self._lock:
            of_run = self._gathered.get((job_id, run))
            if of_run is None:
                of_run = self._gathered[job_id, run] = deque(maxlen=MAX_LINES)
            of_run.append((level, message[:MAX_LENGTH], time.monotonic()))

    def due_in(self) -> float:
        """Seconds until the turn must look for lines, while handlers run."""
        return max(self._taken_at + PERIOD - time.monotonic(), 0) if self._gathered else PERIOD

    def take(self) -> tuple[Gathered, bool]:
        """Lines for one call, and whether that is all. Those of a run stay together."""
        self._taken_at, size = time.monotonic(), 0
        taken: Gathered = {}
        with self._lock:
            while self._gathered and size < MAX_SENT:
                key = next(iter(self._gathered))
                taken[key] = of_run = self._gathered.pop(key)
                size += sum(len(message) for _, message, _ in of_run)
            return taken, not self._gathered

    def put_back(self, lines: Gathered) -> None:
        """Keep lines that may not have been written, for the next turn."""
        with self._lock:
            for key, later in self._gathered.items():
                lines.setdefault(key, deque(maxlen=MAX_LINES)).extend(later)
            self._gathered = dict(list(lines.items())[-MAX_JOBS:])


def as_reports(lines: Gathered) -> list[tuple[int, int, str]]:
    """As read_reports takes them. The lines of a job are in order."""
    now = time.monotonic()
    return [
        (job_id, run, json.dumps({"do": "log", "level": level, "message": message, "ago_s": now - at}))
        for (job_id, run), of_run in lines.items()
        for level, message, at in of_run
    ]
