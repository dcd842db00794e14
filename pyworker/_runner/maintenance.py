"""What a worker's parent does for the queue: due schedules, dead workers, pruning."""

from __future__ import annotations

import logging
import random
import threading
import time

import psycopg

from .._db.connect import Backoff, Watch, connect, is_lost
from .._db.database import Database
from .config import RunConfig

log = logging.getLogger("pyworker.parent")

SWEEP = 1.0
MAINTAIN = 15.0
ASK = 60.0  # seconds that the query of a schedule may take


def maintain(config: RunConfig, stopped: threading.Event) -> None:
    """In a thread with its own connection: a long pruning must not hold up a beat."""
    db: Database | None = None
    backoff, watch = Backoff(log), Watch(config.dsn)
    maintain_at = 0.0
    pause = 0.0
    while True:
        try:
            if db is None:
                db = Database(connect(config.dsn, worker=True), config.schema)
            with watch.over(db.conn):
                tick, fired = db.run_schedules(ASK)
                # On time for the next one; at once, if there may be more.
                pause = 0.0 if fired else min(SWEEP * random.uniform(0.8, 1.2), SWEEP if tick is None else tick)  # noqa: S311
                db.sweep_workers()  # in a transaction of its own, like all that maintain() repeats
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
