"""Outcomes that cannot be reported yet: another session has their jobs locked, and may keep them for long."""

from __future__ import annotations

import math
import time

from .outcomes import Outcomes

FIRST, LONGEST = 1.0, 8.0  # seconds until they are reported again


class Aside:
    def __init__(self) -> None:
        self._outcomes = Outcomes()
        self._delay = FIRST
        self._at = math.inf

    def __bool__(self) -> bool:
        return len(self._outcomes) > 0

    def put(self, outcomes: Outcomes) -> None:
        for outcome in outcomes:
            self._outcomes.add(outcome)
        self._at = min(self._at, time.monotonic() + self._delay)

    def due_in(self) -> float:
        """Seconds until they are to be reported again."""
        return max(self._at - time.monotonic(), 0)

    def take(self, hurry: bool = False) -> Outcomes:
        """All of them, when their time has come."""
        if not self or (self.due_in() and not hurry):
            return Outcomes()
        taken, self._outcomes, self._at = self._outcomes, Outcomes(), math.inf
        self._delay = min(self._delay * 2, LONGEST)
        return taken

    def tried(self) -> None:
        """Called when they were reported again."""
        if not self:
            self._delay = FIRST

    def runs(self) -> list[tuple[int, int]]:
        """Id and run of their jobs, which this process still holds."""
        return [outcome[:2] for outcome in self._outcomes]
