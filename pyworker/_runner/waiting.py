"""Claimed jobs whose handlers have not been called yet.

    ready    they wait for a handler
    calls    they have one, and are on their way to it: a thread is to start, or the loop is busy

What has not begun a second after its claim was sent goes back, so that any idle process can take it. When a
handler is called, the answer of the database is therefore never old: its job was not cancelled, deleted,
replaced or expired, and its queue not paused.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from .claimed import Call, Claimed
from .pace import HOLD
from .shared import boottime

ALONE = 64.0  # seconds that a job which must run alone waits for that, at most
SHY = 0.25  # seconds in which an idle process may take such a job, before this one claims again


class Waiting:
    """Call `take` and those that take something out with the lock held."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self.ready: deque[Claimed] = deque()
        self.calls: dict[int, Call] = {}  # by slot; its handler is called by the one that takes it out
        self.late = 0  # jobs that have waited too long, for the pace to know
        self.shy_until = 0.0
        self._alone = HOLD

    def take(self, rows: Iterable[Sequence[Any]], until: float) -> None:
        """Take claimed jobs, which must begin until this boottime().

        One that must run alone has longer: the other handlers have to end first."""
        claimed: Any = Claimed
        for row in rows:
            job: Claimed = claimed(*row, until)
            if job.crashes:
                job.until += self._alone - HOLD
            self.ready.append(job)

    def runs_alone(self) -> None:
        self._alone = HOLD

    def go_back(self, lease: float = math.inf) -> list[Claimed]:
        """Take out of `ready` what has waited too long, or all if the lease is over."""
        now = boottime()
        if now > lease:
            now = math.inf
        if not self.ready or self._next() >= now:
            return []
        late = [job for job in self.ready if job.until < now]
        if self.ready[0].crashes and self.ready[0].until < now < math.inf:
            # Others run here. An idle process takes it, or this one takes it again, for twice as long.
            self._alone = min(2 * self._alone, ALONE)
            self.shy_until = now + SHY
        left = [job for job in self.ready if job.until >= now]
        self.ready.clear()
        self.ready.extend(left)
        self.late += len(late)
        return late

    def calls_back(self) -> list[Call]:
        """Take out of `calls` those that have not reached their handler in time."""
        now = boottime()
        late = [call for call in list(self.calls.values()) if call.until < now]
        late = [call for call in late if self.calls.pop(call.slot, None) is call]
        self.late += sum(len(call.jobs) for call in late)
        return late

    def late_in(self) -> float:
        """Seconds until something has waited too long."""
        with self._lock:
            until = min([self._next(), *(call.until for call in list(self.calls.values()))])
        return max(until - boottime(), 0.0)

    def begins(self, call: Call) -> bool:
        """Called where the handler is called next. False if the jobs of this call go back, or have gone."""
        if self.calls.pop(call.slot, None) is not call or call.cancelled:
            return False
        if call.until >= boottime():
            return True
        self.late += len(call.jobs)
        return False

    def _next(self) -> float:
        """Until when the first of `ready` must have begun. They are in the order of their claims."""
        if not self.ready:
            return math.inf
        if self.ready[0].crashes:  # it has longer
            return min(job.until for job in self.ready)
        return self.ready[0].until
