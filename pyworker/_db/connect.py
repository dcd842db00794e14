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
from typing import Any, ClassVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from ..errors import sqlstate_of

BACKEND_PID = b"select pg_backend_pid()"
SHOW_ISOLATION = b"show default_transaction_isolation"
SET_ALL = b"select set_config(s.name, s.value, false) from unnest(%s::text[], %s::text[]) s(name, value)"
# Null: there is no such process, or its statement is not ours to see.
AT_IT = b"select bool_or(state = 'active' and wait_event_type is distinct from 'Client') from pg_stat_activity where pid = %s"
BE_QUIET = b"select set_config('pyworker.notify', 'off', false)"
READ_COMMITTED = b"set default_transaction_isolation = 'read committed'"

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
# What our statements are written for, whatever a role or a database says.
_OURS = {
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "array_nulls": "on",
    "quote_all_identifiers": "off",
    "standard_conforming_strings": "on",
}
# … and what a worker's are. What people ask may have limits.
_WORKERS = {
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "lock_timeout": "0",
    "statement_timeout": "0",
}
FENCE = 15.0  # seconds at most without a beat that was answered
PATIENCE = 5.0  # seconds for an answer
BLIND_PATIENCE = 60.0  # … where nobody can be asked whether the server is still at it

# The server is away, or has become one that may only be read: for both, look for it anew.
LOST = (psycopg.OperationalError, psycopg.errors.ReadOnlySqlTransaction)
TRY_AGAIN = ("40001", "40P01", "55P03", "57014")  # serialization failure, deadlock, lock or statement timeout
FORBIDDING = ("42", "3F")  # classes of SQLSTATEs: no permission, no such function, no such schema


def is_lost(error: psycopg.Error) -> bool:
    """Is the connection gone, or of no more use? Otherwise one statement was refused: by the database, or by psycopg for its values."""
    if sqlstate_of(error) is None:
        return not isinstance(error, psycopg.DataError)
    return isinstance(error, LOST) and sqlstate_of(error) not in TRY_AGAIN


def forbids(error: psycopg.Error) -> bool:
    """Is it refused whatever its values are: by a missing grant, function or schema?"""
    return (sqlstate_of(error) or "")[:2] in FORBIDDING


def _given(dsn: str) -> dict[str, Any]:
    return {key: value for key, value in conninfo_to_dict(dsn).items() if value is not None}


def conninfo(dsn: str, application_name: str = "pyworker") -> str:
    return make_conninfo(**{"application_name": application_name, **_DEFAULTS, **_given(dsn)})


def keepalives() -> tuple[bytes, list[list[str]]]:
    """A statement for each connection of handlers. As libpq's `options` it would displace PGOPTIONS and a service file's."""
    return SET_ALL, [list(_SERVER), list(_SERVER.values())]


def connect(dsn: str, worker: bool = False) -> psycopg.Connection[Any]:
    """An autocommit connection at READ COMMITTED, which the protocol's statements are written for. A worker's has no time limits."""
    conn = psycopg.connect(make_conninfo(conninfo(dsn), client_encoding="UTF8"), autocommit=True)
    with answered(conn):
        # Only where it is needed: behind a transaction pooler a SET would leak to other clients.
        if conn.execute(SHOW_ISOLATION).fetchone() != ("read committed",):
            conn.execute(READ_COMMITTED)
        if is_pooled(conn):
            conn.prepare_threshold = None  # a prepared statement stays with one of the pooler's connections
        else:
            ours = _SERVER | _OURS | (_WORKERS if worker else {})
            if worker and conn.info.server_version >= 170000:
                ours["transaction_timeout"] = "0"
            conn.execute(SET_ALL, [list(ours), list(ours.values())])
    return conn


def is_pooled(conn: psycopg.Connection[Any]) -> bool:
    """Is there a transaction pooler (PgBouncer) in between? Then the process that answers is not the one we were introduced to."""
    return conn.execute(BACKEND_PID).fetchone() != (conn.info.backend_pid,)


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
            with connect(self._dsn, worker=True) as other, answered(other):
                row = other.execute(AT_IT, [pid]).fetchone()
        except psycopg.Error:
            return True  # then a new connection would be no better
        return row[0] if row and row[0] is not None else since < BLIND_PATIENCE


class Backoff:
    """From 0.1 seconds to the limit between attempts, with jitter.

    A process logs lost connections at most once in a second, and each reason for which the database refuses once."""

    logged = 0.0
    _refusals: ClassVar[dict[tuple[int, str], str]] = {}  # by who asked and what: the reason

    def __init__(self, log: logging.Logger, limit: float = 5.0) -> None:
        self._log, self._limit = log, limit
        self._delay = 0.1
        self._told = False
        self.until = 0.0  # when to try again

    def failed(self, error: Exception) -> None:
        """The connection was lost, or there is none to be had."""
        now = time.monotonic()
        if now - Backoff.logged >= 1:
            Backoff.logged, self._told = now, True
            self._log.warning("no connection to the database: %s", first_line(error))
        self._wait()

    def refused(self, error: Exception, what: str = "") -> None:
        """The database answers, and refuses what was asked."""
        reason = first_line(error)
        if reason not in Backoff._refusals.values():
            self._log.warning("the database refuses: %s; trying again until it accepts", reason)
        Backoff._refusals[id(self), what] = reason
        self._wait()

    def _wait(self) -> None:
        self.until = time.monotonic() + self._delay * random.uniform(0.5, 1.5)  # noqa: S311
        self._delay = min(self._delay * 1.5, self._limit)

    def worked(self, what: str = "") -> None:
        if self._told:
            self._log.info("the database is back")
        if Backoff._refusals.pop((id(self), what), None) and not Backoff._refusals:
            self._log.info("the database accepts what it refused")
        self._told, self._delay, self.until = False, 0.1, 0.0


def first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0].removeprefix("connection is bad: ").removeprefix("connection failed: ")
