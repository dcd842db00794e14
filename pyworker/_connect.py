"""Connections that notice a dead or silent server, and waiting between attempts to get one back."""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from . import _sql

# Half-open connections are found in seconds, not hours; whatever the user says in the DSN wins. Of several hosts, only the one that
# can be written to will do.
_DEFAULTS = {
    "connect_timeout": "5",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
    "target_session_attrs": "read-write",
}
# The same for the server's end: what a vanished machine had locked is free in seconds, too. But not before that machine has ended its
# handlers (FENCE): two seconds after its lock is free, others take the jobs.
_SERVER = {
    "tcp_keepalives_idle": "8",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "14000",
}
FENCE = 15.0  # seconds at most without a beat that was answered
PATIENCE = 5.0  # seconds for an answer
BLIND_PATIENCE = 60.0  # … where nobody can be asked whether the server is still at it

# The server is away, or has become one that may only be read: for both, look for it anew.
LOST = (psycopg.OperationalError, psycopg.errors.ReadOnlySqlTransaction)


def _given(dsn: str) -> dict[str, Any]:
    return {key: value for key, value in conninfo_to_dict(dsn).items() if value is not None}


def conninfo(dsn: str, application_name: str = "pyworker") -> str:
    return make_conninfo(**{"application_name": application_name, **_DEFAULTS, **_given(dsn)})


def server_options(dsn: str) -> str:
    return " ".join([_given(dsn).get("options", ""), *(f"-c {name}={value}" for name, value in _SERVER.items())])


def connect(dsn: str) -> psycopg.Connection[Any]:
    """An autocommit connection at READ COMMITTED, which the protocol's statements are written for."""
    conn = psycopg.connect(conninfo(dsn), autocommit=True)
    with answered(conn):
        # Only where it is needed: behind a transaction pooler a SET would leak to other clients.
        if conn.execute(_sql.SHOW_ISOLATION).fetchone() != ("read committed",):
            conn.execute(_sql.READ_COMMITTED)
        if is_pooled(conn):
            conn.prepare_threshold = None  # a prepared statement stays with one of the pooler's connections
        else:
            conn.execute(_sql.SET_ALL, [list(_SERVER), list(_SERVER.values())])
    return conn


def is_pooled(conn: psycopg.Connection[Any]) -> bool:
    """Is there a transaction pooler (PgBouncer) in between? Then the process that answers is not the one we were introduced to."""
    return conn.execute(_sql.BACKEND_PID).fetchone() != (conn.info.backend_pid,)


def cut(conn: psycopg.Connection[Any]) -> None:
    with suppress(OSError, psycopg.Error):
        end = socket.socket(fileno=conn.fileno())
        try:
            end.shutdown(socket.SHUT_RDWR)
        finally:
            end.detach()


def abandon(conn: psycopg.Connection[Any]) -> socket.socket:
    """End it for us alone. For the server it goes on, with the locks it holds, until what is returned is closed."""
    kept = socket.socket(fileno=os.dup(conn.fileno()))
    nobody, silent = socket.socketpair()
    with nobody, silent:
        os.dup2(
            nobody.fileno(), conn.fileno(), inheritable=False
        )  # the server is not to hear what libpq says at the end
    with suppress(OSError):
        kept.shutdown(socket.SHUT_RD)  # wakes who waits for an answer
    return kept


@contextmanager
def answered(conn: psycopg.Connection[Any], give_up: Callable[[psycopg.Connection[Any]], None] = cut) -> Iterator[None]:
    """What is asked here takes no time: a server that neither answers nor refuses is not waited for, its connection is cut."""
    timer = threading.Timer(PATIENCE, give_up, [conn])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # the connection is not closed under its hands


class Watch:
    """What is asked here may take its time, by work or a lock: the connection is cut only if the server has forgotten about it.

    A network that swallows everything looks like a server that thinks. So when one is silent for long, it is asked on another connection.
    """

    def __init__(self, dsn: str, busy: Callable[[], None] | None = None) -> None:
        """busy is called each second while something is asked: whoever waits for the database is not stuck."""
        self._dsn = dsn
        self._busy = busy
        self._asked: tuple[psycopg.Connection[Any], float] | None = None
        threading.Thread(target=self._look, daemon=True, name="watch").start()

    @contextmanager
    def over(self, conn: psycopg.Connection[Any]) -> Iterator[None]:
        self._asked = (conn, time.monotonic())
        try:
            yield
        finally:
            self._asked = None

    def _look(self) -> None:
        while True:
            time.sleep(1)
            asked = self._asked
            if asked and self._busy:
                self._busy()
            if asked and (since := time.monotonic() - asked[1]) > PATIENCE:
                if self._at_it(asked[0], since):
                    time.sleep(PATIENCE)
                elif self._asked is asked:
                    cut(asked[0])

    def _at_it(self, conn: psycopg.Connection[Any], since: float) -> bool:
        try:
            pid = conn.info.backend_pid
            with connect(self._dsn) as other, answered(other):
                row = other.execute(_sql.AT_IT, [pid]).fetchone()
        except psycopg.Error:
            return True  # then a new connection would be no better
        return row[0] if row and row[0] is not None else since < BLIND_PATIENCE


class Backoff:
    """From 0.1 seconds to the limit between attempts, with jitter; of failures a process logs at most one line in a second."""

    logged = 0.0

    def __init__(self, log: logging.Logger, limit: float = 5.0) -> None:
        self._log, self._limit = log, limit
        self._delay = 0.1
        self._told = False
        self.until = 0.0  # when to try again

    def failed(self, error: Exception) -> None:
        now = time.monotonic()
        if now - Backoff.logged >= 1:
            Backoff.logged, self._told = now, True
            self._log.warning("no connection to the database: %s", str(error).strip().split("\n")[0])
        self.until = now + self._delay * random.uniform(0.5, 1.5)  # noqa: S311
        self._delay = min(self._delay * 1.5, self._limit)

    def worked(self) -> None:
        if self._told:
            self._log.info("the database is back")
        self._told, self._delay = False, 0.1
