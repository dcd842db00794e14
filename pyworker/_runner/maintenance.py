"""Maintenance by a worker's parent: due schedules, dead workers, pruning."""

from __future__ import annotations

import logging
import random
import threading
import time

import psycopg

from .._db.connect import Backoff, SilenceGuard, connect, is_lost
from .._db.database import Database
from .config import RunConfig

log = logging.getLogger("pyworker.parent")

SWEEP = 1.0
MAINTAIN = 15.0
QUERY_TIMEOUT = 60.0  # seconds that a schedule's query may take


def maintain(config: RunConfig, stopped: threading.Event) -> None:
    """Run maintenance in a thread with its own connection.

    A long pruning must not delay a heartbeat.
    """
    db: Database | None = None
    backoff, watch = Backoff(log), SilenceGuard(config.dsn)
    maintain_at = 0.0
    pause = 0.0
    while True:
        try:
            if db is None:
                db = Database(connect(config.dsn, worker=True), config.schema)
            with watch.over(db.conn):
                tick, fired = db.run_schedules(QUERY_TIMEOUT)
                # Run again at the next tick; at once if a schedule fired, as more may be due.
                usual = SWEEP * random.uniform(0.8, 1.2)  # noqa: S311
                pause = 0.0 if fired else min(usual, SWEEP if tick is None else tick)
                db.sweep_workers()  # in its own transaction, like every step that maintain() repeats
                if time.monotonic() >= maintain_at:
                    maintain_at = time.monotonic() + MAINTAIN * random.uniform(0.8, 1.2)  # noqa: S311
                    db.maintain()
            backoff.worked()
        except psycopg.Error as error:
            if db is not None:
                db.conn.close()
                db = None
            (backoff.failed if is_lost(error) else backoff.refused)(error)
        if stopped.wait(max(pause if db else backoff.until - time.monotonic(), 0)):
            return
