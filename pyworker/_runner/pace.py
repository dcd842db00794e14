"""Decides when a worker process claims, and how many jobs."""

from __future__ import annotations

import time
from collections.abc import Collection

MAX_PREFETCH = 500
MAX_BATCHED = 2000  # where all jobs go to batch handlers: a turn of 1,000 jobs costs a third less than two
LARGE = 32_000_000  # characters of payloads in a claim, above which it prefetches no more than MAX_PREFETCH


class Pace:
    def __init__(self, concurrency: int, poll_interval: float) -> None:
        self._concurrency = concurrency
        self._poll_interval = poll_interval
        self.nothing_available = False  # the last claim came back short; claim again when notified
        self.claim_at = 0.0  # or at this time
        self.notified = False  # notified since the last claim was sent
        self.prefetch = 0
        self.batch = 0  # jobs of a call, as long as claims bring jobs of batch handlers alone
        self._most = MAX_PREFETCH

    def hear(self) -> None:
        """Handle a notification: there may be jobs to claim."""
        self.nothing_available, self.notified = False, True

    def room(self, load: int, reporting: bool) -> int:
        """How many jobs to claim now.

        A report always carries a claim: an end may have freed a queue's slot, and the round trip is
        made anyway.
        """
        if self.nothing_available and not reporting and time.monotonic() < self.claim_at:
            return 0
        room = self._concurrency + self.prefetch - load
        if load < self._concurrency:  # a handler would be idle
            return max(room, self.batch)
        return room if room >= self.prefetch // 2 else 0  # prefer one large claim to many small ones

    def meet(self, batches: Collection[int | None], characters: int = 0) -> None:
        """Learn which tasks a claim has brought: how many jobs a call of each takes (None: a plain task).

        characters: of all payloads."""
        self.batch = 0 if None in batches else max(size or 0 for size in batches)
        self._most = MAX_PREFETCH
        if self.batch and characters < LARGE:
            self._most = max(MAX_BATCHED, 2 * self.batch)

    def put_off(self, seconds: float) -> None:
        self.nothing_available, self.claim_at = True, time.monotonic() + seconds

    def learn(self, asked: int, got: int, reported: int) -> None:
        """Prefetch as many jobs as just ended in one turn.

        Slow jobs stay available to other workers, and quick ones need no wait.
        """
        if got < asked:
            self.prefetch //= 2
        elif reported >= self.prefetch // 2:
            self.prefetch = min(self._most, max(2 * self.prefetch, 2 * reported))
        else:
            self.prefetch = max(2 * reported, self.prefetch // 2)

    def sleep(self, again_in: float) -> None:
        """Wait for a notification, at most as long as `work` has said."""
        poll = min(again_in, self._poll_interval)  # no jitter: idle workers that call together cost less
        # A job that was added after the claim's snapshot is notified with the claim's reply.
        self.nothing_available = not self.notified
        self.claim_at = time.monotonic() + max(poll, 0.001)

    def patience(self) -> float:
        """Seconds until the next claim."""
        return max(self.claim_at - time.monotonic(), 0) if self.nothing_available else 0.0
