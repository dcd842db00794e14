"""Decides when a worker process claims, and how many jobs."""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Sequence

HOLD = 1.0  # seconds from the request of a claim until its jobs have begun
MAX_PREFETCH = 500
MAX_BATCHED = 2000  # where all jobs go to batch handlers: a turn of 1,000 jobs costs a third less than two
LARGE = 32_000_000  # characters of payloads that a claim may bring, as far as the one before it can tell
CALM, CALMEST = 2.0, 64.0  # seconds without prefetching, after jobs have waited too long: at first, at most
SHIEST = 0.1  # seconds by which a worker puts off its look after a notification, at most


class Pace:
    def __init__(self, concurrency: int, poll_interval: float) -> None:
        self._concurrency = concurrency
        self._poll_interval = poll_interval
        self.nothing_available = False  # the last claim came back short; claim again when notified
        self.claim_at = 0.0  # or at this time
        self.notified = False  # notified since the last claim was sent
        self._woken = False  # the last claim answered a notification
        self._shy = 0.0  # seconds by which it puts off the next such claim
        self.prefetch = 0
        self.batch = 0  # jobs of a call, as long as claims bring jobs of batch handlers alone
        self._most = MAX_PREFETCH
        self._size = 0.0  # characters of a payload
        self._calm_until, self._calm = 0.0, 0.0
        self._trip = 0.0  # how long the last claim took

    def hear(self) -> None:
        """Handle a notification: there may be jobs to claim.

        It reaches all workers of a fleet, and one of them gets the job. So a worker that has looked in vain
        puts its next look off by a random time: up to 5 ms, then 10, up to 100. One that has got a job does
        not."""
        self.notified = True
        if not self._shy:
            self.nothing_available = False
        elif self.nothing_available:
            self.claim_at = min(self.claim_at, time.monotonic() + self._delay())

    def room(self, load: int, reporting: bool) -> int:
        """How many jobs to claim now.

        A report always carries a claim: an end may have freed a queue's slot, and the round trip is
        made anyway.
        """
        if self.nothing_available and not reporting and time.monotonic() < self.claim_at:
            return 0
        room = self._concurrency + self.prefetch - load
        if load < self._concurrency:  # a handler would be idle
            return min(max(room, self.batch), self._fits)
        # Prefer one large claim to many small ones.
        return min(room, self._fits) if room >= self.prefetch // 2 else 0

    @property
    def _fits(self) -> int:
        return max(int(LARGE / max(self._size, 1.0)), 1)

    def meet(self, batches: Collection[int | None]) -> None:
        """Learn which tasks a claim has brought: how many jobs a call of each takes (None: a plain task)."""
        self.batch = 0 if None in batches else max(size or 0 for size in batches)
        self._most = max(MAX_BATCHED, 2 * self.batch) if self.batch else MAX_PREFETCH

    def weigh(self, payloads: Sequence[str]) -> None:
        """Learn how large the payloads of a claim were."""
        if payloads:
            self._size = max(sum(map(len, payloads)) / len(payloads), self._size / 2)

    def until(self, sent: float, now: float) -> float:
        """Until when the jobs of a claim must begin: within a second of its request.

        If the answer takes longer, the process stood still, or the network is slow: so is the next answer,
        too. Then the second counts from the answer."""
        before, self._trip = self._trip, now - sent
        return (now if HOLD < self._trip <= 2 * before else sent) + HOLD

    def waited(self) -> None:
        """Some jobs have waited too long: prefetch none for a while, and longer if it happens again."""
        now = time.monotonic()
        if now >= self._calm_until:
            self._calm = min(2 * self._calm, CALMEST) if now < self._calm_until + self._calm else CALM
            self._calm_until = now + self._calm
        self.prefetch = 0

    def claims(self) -> None:
        """A claim is sent now."""
        self._woken, self.notified = self.notified, False

    def put_off(self, seconds: float) -> None:
        self.nothing_available, self.claim_at = True, time.monotonic() + seconds

    def learn(self, asked: int, got: int, reported: int) -> None:
        """Prefetch as many jobs as just ended in one turn.

        Slow jobs stay available to other workers, and quick ones need no wait. While it is calm, prefetch
        none: a job that goes back has started in vain, as a rate counts.
        """
        if got:
            self._shy = 0.0
        elif self._woken:
            self._shy = min(max(2 * self._shy, 0.005), SHIEST)
        if got < asked:
            self.prefetch //= 2
        elif reported >= self.prefetch // 2:
            self.prefetch = min(self._most, max(2 * self.prefetch, 2 * reported))
        else:
            self.prefetch = max(2 * reported, self.prefetch // 2)
        self.prefetch = min(self.prefetch, self._fits) if time.monotonic() >= self._calm_until else 0

    def sleep(self, again_in: float) -> None:
        """Wait for a notification, at most as long as `work` has said."""
        poll = min(again_in, self._poll_interval)
        if poll > 1:  # not all workers at the same time
            poll *= random.uniform(0.8, 1)  # noqa: S311
        # A job that was added after the claim's snapshot is notified with the claim's reply.
        if self.notified and self._shy:
            poll = min(poll, self._delay())
        self.nothing_available = not self.notified or self._shy > 0
        self.claim_at = time.monotonic() + max(poll, 0.001)

    def _delay(self) -> float:
        return random.uniform(0, self._shy)  # noqa: S311

    def patience(self) -> float:
        """Seconds until the next claim."""
        return max(self.claim_at - time.monotonic(), 0) if self.nothing_available else 0.0
