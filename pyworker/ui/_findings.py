"""What doctor() finds, kept for a minute: a large database takes seconds to check."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

KEPT = 60  # seconds

Row = dict[str, Any]


class Findings:
    """The rows of doctor(), asked for by a thread so that no page waits for them."""

    def __init__(self, examine: Callable[[], list[Row]]) -> None:
        self._examine = examine
        self._asking = threading.Lock()
        self._rows: list[Row] | None = None
        self._at = 0.0

    def latest(self) -> list[Row] | None:
        """None before the first answer. Asks again, in the background, if it is older than a minute."""
        if time.monotonic() - self._at > KEPT and self._asking.acquire(blocking=False):
            threading.Thread(target=self._ask, name="pyworker ui doctor", daemon=True).start()
        return self._rows

    def now(self) -> list[Row]:
        rows = self._examine()
        self._rows, self._at = rows, time.monotonic()
        return rows

    def _ask(self) -> None:
        try:
            self.now()
        except Exception:  # the overview shows what its own statements meet
            self._at = time.monotonic()
        finally:
            self._asking.release()
