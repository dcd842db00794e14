"""Which jobs of this process are to stop: cancelled ones, and those that are no longer its own."""

from __future__ import annotations

import math
import time

from .._db.database import Database
from .exchange import Exchange
from .handlers import Handlers
from .shared import Slots

PERIOD = 10.0  # seconds between checks for cancelled jobs; a notification triggers one sooner
RECONCILE = 5.0  # seconds from the first to the second reconciliation after a lost connection


class Stops:
    def __init__(self, worker_id: int, slots: Slots, handlers: Handlers, exchange: Exchange) -> None:
        self._worker_id, self._slots, self._handlers, self._exchange = worker_id, slots, handlers, exchange
        self._ask_at = 0.0
        self._reconcile_in, self._reconcile_at = 0.0, math.inf

    def hear(self) -> None:
        """A job was cancelled."""
        self._ask_at = 0.0

    def lost(self) -> None:
        """The connection was lost."""
        self._reconcile_in = RECONCILE

    def due_in(self) -> float:
        """Seconds until the next check, while handlers run."""
        return max(self._ask_at - time.monotonic(), 0)

    def look(self, db: Database) -> None:
        """Ask, if it is time."""
        reconcile = self._reconcile_at <= time.monotonic()
        if reconcile or not self.due_in():
            self.ask(db, reconcile)

    def ask(self, db: Database, lost_answer: bool) -> None:
        """Stop these jobs. With `lost_answer` the database releases those that we do not know of."""
        self._ask_at = time.monotonic() + PERIOD
        if lost_answer:
            # A claim that was in flight when the connection was lost may commit after this: repeat
            # this check, at growing intervals.
            self._reconcile_at = time.monotonic() + (self._reconcile_in or math.inf)
            self._reconcile_in = self._reconcile_in * 2 if self._reconcile_in < RECONCILE * 64 else 0.0
        held = [(one.id, one.run) for one in (*self._handlers.held(), *self._exchange.held())]
        # A beat extends the worker's lease, which a parent that stands still must not keep.
        if lost_answer or (held and not self._slots.expired()):
            self._handlers.cancel(set(db.runs_to_stop(self._worker_id, held, lost_answer)))
