"""When a worker process claims, and how much."""

from __future__ import annotations

import random
import time

MAX_PREFETCH = 500
MARK_LASTS = 2.0  # seconds: claim_jobs promises 2.5, see there


class Pace:
    def __init__(self, concurrency: int, poll_interval: float) -> None:
        self._concurrency = concurrency
        self._poll_interval = poll_interval
        self.nothing_available = False  # the last claim came back short: nothing more to be had until something happens
        self.claim_at = 0.0  # … or until this time
        self.notified = False  # since the last claim was sent
        self.prefetch = 0

    def hear(self) -> None:
        """A notification: there may be something to claim."""
        self.nothing_available, self.notified = False, True

    def room(self, load: int, reporting: bool) -> int:
        """How many jobs to claim now. With a report always: an end may have freed a queue, and the round trip is paid for."""
        if self.nothing_available and not reporting and time.monotonic() < self.claim_at:
            return 0
        room = self._concurrency + self.prefetch - load
        # Rather one large claim than many small ones, unless a handler would be idle.
        return room if load < self._concurrency or room >= self.prefetch // 2 else 0

    def put_off(self, seconds: float) -> None:
        self.nothing_available, self.claim_at = True, time.monotonic() + seconds

    def learn(self, asked: int, got: int, reported: int) -> None:
        """Prefetch as much as was just used up in one turn, so that slow jobs are left to others and quick ones not waited for."""
        if got < asked:
            self.prefetch //= 2
        elif reported >= self.prefetch // 2:
            self.prefetch = min(MAX_PREFETCH, max(2 * self.prefetch, 2 * reported))
        else:
            self.prefetch = max(2 * reported, self.prefetch // 2)

    def sleep_until(self, due: float | None) -> None:
        # A notification ends the sleep early; the poll is for when none can come. It renews the mark by which those who add
        # jobs know that this worker waits to be notified: only on that condition may a worker sleep at all.
        poll = min(self._poll_interval, MARK_LASTS) * random.uniform(0.8, 1.2)  # noqa: S311
        if due is not None:
            poll = min(poll, max(due, 0.001))
        # A job added after the claim looked has its notification arrive with the claim's answer.
        self.nothing_available = not self.notified
        self.claim_at = time.monotonic() + poll

    def patience(self) -> float:
        """Seconds until the next claim."""
        return max(self.claim_at - time.monotonic(), 0) if self.nothing_available else 0.0
