"""The parent's connection to the database, which holds the worker locks.

It is opened again when it was lost. Meanwhile the parent continues without it.
"""

from __future__ import annotations

import logging
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg

from .._db.connect import Backoff, abandon, answered, connect, cut, is_lost, is_pooled
from .._db.database import Database
from .config import RunConfig

log = logging.getLogger("pyworker.parent")

# At most so many seconds between attempts to reconnect: once the database is back, other workers
# sweep, and they take a worker for dead whose lock is free for two seconds.
RETRY = 0.5
PATIENCE = 1.0  # seconds for an answer that no running job needs, when told to stop


class _TooLate(Exception):
    """There was no such answer."""


class Control:
    def __init__(self, config: RunConfig, opened: Callable[[], None]) -> None:
        """`opened` is called after each new connection: the locks must be taken on it."""
        self.db: Database | None = None
        self.connecting = self.pooled = False
        self.database = ""  # its name, once it was reached
        self.refused = ""  # the last action that the database refused
        self.backoff = Backoff(log, RETRY)
        self._config = config
        self._opened = opened
        self._abandoned: socket.socket | None = None
        self._asked: float | None = None  # when the statement or connection was begun that is waited for

    @property
    def away(self) -> bool:
        """True if the last attempt to reach the database has failed."""
        return self.db is None and self.backoff.until > 0

    def hurry(self, needless: Callable[[], bool]) -> None:
        """From now on wait for PATIENCE at most, if nothing needs the answer. Call it in the main thread."""

        def look(_number: int, _frame: object) -> None:
            if self._asked and time.monotonic() - self._asked > PATIENCE and needless():
                raise _TooLate

        signal.signal(signal.SIGALRM, look)
        signal.setitimer(signal.ITIMER_REAL, PATIENCE / 2, PATIENCE / 2)

    def connect(self) -> Database:
        self.connecting = True
        try:
            conn = connect(self._config.dsn, worker=True)
        finally:
            self.connecting = False
        self.pooled = is_pooled(conn)
        db = Database(conn, self._config.schema, self._guarded)
        if self._abandoned:
            self._abandoned.close()
            self._abandoned = None
        self.db = db
        self.database = db.conn.info.dbname
        self._opened()
        return db

    def run(self, action: Callable[[Database], object], hurry: bool) -> bool:
        """Run an action on the database. False if that is away or refuses: try again later.

        With `hurry` it does not wait for the time of the next attempt.
        """
        what = action.__name__
        if time.monotonic() < self.backoff.until and not hurry:
            return False
        try:
            self._run(action)
        except _TooLate:
            if self.db:
                self._give_up(self.db.conn)
            self._lost(psycopg.OperationalError("it does not answer"))
            return False
        except psycopg.Error as error:
            if is_lost(error):
                self._lost(error)
            else:
                self.backoff.refused(error, what)
                self.refused = what
            return False
        self.backoff.worked(what)
        self.refused = "" if self.refused == what else self.refused
        return True

    def _run(self, action: Callable[[Database], object]) -> None:
        self._asked = time.monotonic()
        try:
            action(self.db or self.connect())
        finally:
            self._asked = None

    @contextmanager
    def _guarded(self, conn: psycopg.Connection[Any]) -> Iterator[None]:
        self._asked = time.monotonic()
        with answered(conn, self._give_up):
            yield

    def listen(self) -> None:
        """Read unasked input, which most likely means that the connection has ended.

        Then the next action opens another one soon, to take the locks again.
        """
        if self.db is None:
            return
        with suppress(psycopg.OperationalError):
            self.db.conn.pgconn.consume_input()
        if self.db.conn.pgconn.status != psycopg.pq.ConnStatus.OK:
            self._lost(psycopg.OperationalError("the control connection was lost"))

    def _give_up(self, conn: psycopg.Connection[Any]) -> None:
        """The database does not answer. Keep the worker locks.

        If they were released, others would take jobs at once that are still running here.
        """
        if self.pooled or self._abandoned:
            cut(conn)
        else:
            with suppress(OSError, psycopg.Error):
                self._abandoned = abandon(conn)

    def _lost(self, error: Exception) -> None:
        self.backoff.failed(error)
        if self.db is not None:
            self.db.conn.close()
            self.db = None
