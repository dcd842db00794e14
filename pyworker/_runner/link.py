"""The child's connection to the database, and the pipe that wakes its turn."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import time
from collections.abc import Callable

import psycopg

from .._db.connect import TRY_AGAIN, Backoff, SilenceGuard, connect, cut, is_lost, is_pooled
from .._db.database import Database
from .._escape import shown
from ..errors import TaskError, sqlstate_of
from .config import RunConfig
from .shared import Slots

log = logging.getLogger("pyworker.worker")

PATIENCE = 0.5  # seconds for an answer that no job waits for, when told to stop


class Link:
    """It is opened again when it was lost.

    `heard` is called with the word of each notification. `needless` is called while the database is waited
    for: true if nothing needs the answer any more."""

    def __init__(
        self, config: RunConfig, slots: Slots, heard: Callable[[str], None], needless: Callable[[], bool]
    ) -> None:
        self.db: Database | None = None
        self.began = 0.0  # the turn
        self._config, self._slots, self._heard, self._needless = config, slots, heard, needless
        self._backoff = Backoff(log)
        self._watch = SilenceGuard(config.dsn, self._unanswered)
        self._warned = ""
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)

    def open(self, announce: Callable[[Database], object]) -> Database:
        """The connection; `announce` is called with each new one."""
        if self.db is None:
            with self._watch.over(None):
                conn = connect(self._config.dsn, worker=True)
            try:
                conn.add_notice_handler(self._warn)
                if not is_pooled(conn):
                    conn.add_notify_handler(lambda note: self._heard(note.payload))
                db = Database(conn, self._config.schema, self._watch.over)
                announce(db)
                self.db = db
            except psycopg.Error:
                conn.close()
                raise
        return self.db

    def worked(self) -> None:
        """A turn has been answered."""
        self._slots.answered()
        self._backoff.worked()

    def failed(self, error: psycopg.Error) -> None:
        """The connection was lost, or the database refused a statement."""
        if is_lost(error):
            self._backoff.failed(error)
            if self.db is not None:
                self.db.conn.close()
                self.db = None
        elif self._config.once and sqlstate_of(error) not in TRY_AGAIN:
            raise TaskError("the database refuses: " + str(error).split("\n")[0]) from None
        else:
            self._backoff.refused(error)
            self._slots.refused()

    def pause(self) -> None:
        """Wait until it is time to try again, or something happens."""
        select.select([self._wake_read], [], [], max(self._backoff.until - time.monotonic(), 0))
        self._empty()

    def wait(self, timeout: float | None) -> None:
        """Wait for a notification, or to be woken."""
        assert self.db is not None  # noqa: S101
        conn = self.db.conn
        poll = select.poll()  # costs less than a selector, which is a file of the kernel
        poll.register(self._wake_read, select.POLLIN)
        poll.register(conn.fileno(), select.POLLIN)
        events = poll.poll(None if timeout is None else timeout * 1000)
        self._empty()
        if any(fd != self._wake_read for fd, _ in events):
            conn.pgconn.consume_input()
            while note := conn.pgconn.notifies():
                self._heard(note.extra.decode())
            if conn.pgconn.status != psycopg.pq.ConnStatus.OK:
                raise psycopg.OperationalError("the server closed the connection")

    def wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"x")

    def _empty(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)

    def _unanswered(self) -> None:
        """Called each second while the database is waited for."""
        self._slots.turned()
        if time.monotonic() - self.began > PATIENCE and self._needless() and self.db is not None:
            cut(self.db.conn)

    def _warn(self, notice: psycopg.errors.Diagnostic) -> None:
        """Log what the database warns of, each time only if it is new."""
        words = f"{notice.message_primary}"
        if notice.severity_nonlocalized == "WARNING" and words != self._warned:
            self._warned = words
            log.warning("the database warns: %s", shown(words))
