"""What a parent's beats say is due, for any worker to do: schedules and maintain()."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from queue import SimpleQueue

import psycopg

from .._db.connect import Backoff, SilenceGuard, connect, is_lost
from .._db.database import Database
from .config import RunConfig

log = logging.getLogger("pyworker.parent")

QUERY_TIMEOUT = 60.0  # seconds that a schedule's query may take


class Duties:
    """A thread does them, on a connection of its own that it opens for that.

    A long query or a long pruning must not delay a heartbeat.
    """

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._told: SimpleQueue[str] = SimpleQueue()
        self.busy = False  # another parent should run what falls due now

    def tell(self, duties: Iterable[str]) -> None:
        for duty in duties:
            self._told.put(duty)

    def run(self) -> None:
        config, backoff, watch = self._config, Backoff(log), SilenceGuard(self._config.dsn)
        while True:
            self.busy = False
            due = {self._told.get()}
            self.busy = True
            while not self._told.empty():
                due.add(self._told.get())
            try:
                with connect(config.dsn, worker=True) as conn:
                    db = Database(conn, config.schema, watch.over)
                    while "schedules" in due and db.run_schedules(QUERY_TIMEOUT):
                        pass
                    if "maintain" in due:
                        db.maintain()
                backoff.worked()
            except psycopg.Error as error:  # the next beat tells again
                (backoff.failed if is_lost(error) else backoff.refused)(error)
