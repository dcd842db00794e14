"""Connections that detect a dead or silent server, and backoff between attempts to reconnect."""

from __future__ import annotations

import logging
import os
import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from ..errors import sqlstate_of
from .connection import OWN_ADAPTERS, Connection

# Which server it is. Its host and port do not tell: one server may be reached by many.
_STARTED = b"extract(epoch from pg_postmaster_start_time())::text"
WHICH_SERVER = b"select " + _STARTED
ABOUT = b"select pg_backend_pid(), current_setting('default_transaction_isolation'), " + _STARTED
SET_ALL = b"select set_config(s.name, s.value, false) from unnest(%s::text[], %s::text[]) s(name, value)"
# Null: there is no such process, or we may not see its statement.
# Or it sends the answer, and the network may be slow. It knows nothing if it tracks no activities.
RUNS_IT = (
    b"select bool_or(nullif(state, 'disabled') = 'active' and wait_event_type is distinct from 'Client')"
    b" from pg_stat_activity where pid = %s and wait_event is distinct from 'ClientWrite'"
)
BE_QUIET = "select set_config('pyworker.notify', 'off', false)"
READ_COMMITTED = b"set default_transaction_isolation = 'read committed'"
NEEDS_READ_COMMITTED = (
    "there is a transaction pooler in between, and transactions begin at {}: a worker needs read committed."
    " Use: ALTER ROLE … SET default_transaction_isolation = 'read committed', and let the pooler reconnect"
)

# Detect half-open connections within seconds; the DSN overrides these. Of several hosts, use only
# the one that accepts writes.
_DEFAULTS = {
    "connect_timeout": "5",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
    "target_session_attrs": "read-write",
}
# The same for the server: it releases the locks of a vanished machine within seconds. But not
# before that machine has ended its handlers (FENCE): two seconds after the lock is free, others
# take its jobs.
_SERVER = {
    "tcp_keepalives_idle": "8",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "14000",
}
# For handlers' connections. As libpq's `options` they would displace PGOPTIONS and those of a service file.
KEEPALIVES = "; ".join(f"set {name} = '{value}'" for name, value in _SERVER.items())
# Our statements rely on these settings; they override those of the role and the database.
_OURS = {
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "array_nulls": "on",
    "quote_all_identifiers": "off",
    "standard_conforming_strings": "on",
}
# A worker's statements have no time limits; those of the command line keep theirs.
_WORKERS = {
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "lock_timeout": "0",
    "statement_timeout": "0",
}
_KNOWN = re.compile('missing "="|invalid (connection option|URI query parameter:) "[a-z_]{1,30}"')
_UNREADABLE = (
    "the connection string cannot be read (it may contain a password, so it is not shown)."
    " In a URL, a password has %25 for %, %2F for /, %3A for :, %3F for ?, %40 for @"
)
FENCE = 15.0  # seconds at most without an answered heartbeat
ANSWER_TIMEOUT = 5.0  # seconds for an answer
BLIND_TIMEOUT = 60.0  # seconds, if no other connection can tell whether the statement runs

# The server is away, or has become a read-only standby; in both cases reconnect.
LOST = (psycopg.OperationalError, psycopg.errors.ReadOnlySqlTransaction)
TRY_AGAIN = ("40001", "40P01", "55P03", "57014")  # serialization failure, deadlock, lock or statement timeout
FORBIDDING = ("42", "3F")  # classes of SQLSTATEs: no permission, no such function, no such schema


def is_lost(error: psycopg.Error) -> bool:
    """True if the connection is lost or useless.

    Otherwise one statement was refused: by the database, or by psycopg because of its values.
    """
    if sqlstate_of(error) is None:
        return not isinstance(error, psycopg.DataError)
    return isinstance(error, LOST) and sqlstate_of(error) not in TRY_AGAIN


def forbids(error: psycopg.Error) -> bool:
    """True if it would be refused with any values: a grant, function or schema is missing."""
    return (sqlstate_of(error) or "")[:2] in FORBIDDING


def _given(dsn: str) -> dict[str, Any]:
    """What a connection string says. No error about it quotes it: a password may be in any part of it."""
    try:
        given = {key: value for key, value in conninfo_to_dict(dsn).items() if value is not None}
    except psycopg.ProgrammingError as error:
        known = _KNOWN.match(str(error))
        raise psycopg.ProgrammingError(
            f"{known[0]} in the connection string" if known else _UNREADABLE
        ) from None
    host, port = str(given.get("host", "")), str(given.get("port", ""))
    if ("@" in host and host[0] not in "@/") or not re.fullmatch("[0-9,]*", port):
        raise psycopg.ProgrammingError(_UNREADABLE)  # they are the rest of a password
    return given


def conninfo(dsn: str, application_name: str = "pyworker") -> str:
    return make_conninfo(**{"application_name": application_name, **_DEFAULTS, **_given(dsn)})


def connect(dsn: str, worker: bool = False) -> psycopg.Connection[Any]:
    """Open an autocommit connection at READ COMMITTED, which the protocol's statements require.

    A worker's connection has no time limits.
    """
    info = make_conninfo(conninfo(dsn), client_encoding="UTF8")
    conn = Connection[Any].connect(info, autocommit=True, context=OWN_ADAPTERS)
    with answered(conn):
        pid, isolation, server = conn.execute(ABOUT).fetchall()[0]
        _known[conn] = server, pid != conn.info.backend_pid
        if is_pooled(conn):
            conn.prepare_threshold = None  # a prepared statement belongs to one server connection
            if worker and isolation != "read committed":
                conn.close()
                raise psycopg.errors.FeatureNotSupported(NEEDS_READ_COMMITTED.format(isolation))
        else:  # behind a transaction pooler a SET would leak to other clients
            if isolation != "read committed":
                conn.execute(READ_COMMITTED)
            ours = _SERVER | _OURS | (_WORKERS if worker else {})
            if worker and conn.info.server_version >= 170000:
                ours["transaction_timeout"] = "0"
            conn.execute(SET_ALL, [list(ours), list(ours.values())])
    return conn


_known = WeakKeyDictionary[psycopg.Connection[Any], tuple[str, bool]]()  # of each that `connect` has opened


def server_of(conn: psycopg.Connection[Any]) -> str:
    """Which of the servers that the DSN leads to answers `conn`, which `connect` has opened."""
    return _known[conn][0]


def is_pooled(conn: psycopg.Connection[Any]) -> bool:
    """True if a transaction pooler (PgBouncer) is in between.

    Then the process that answers is not the one that the connection was opened with.
    """
    return _known[conn][1]


def cut(conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    with suppress(OSError, psycopg.Error):
        end = socket.socket(fileno=conn.fileno())
        try:
            end.shutdown(socket.SHUT_RDWR)
        finally:
            end.detach()


def abandon(conn: psycopg.Connection[Any]) -> socket.socket:
    """End the connection on this side only.

    For the server it stays open and keeps its locks until the returned socket is closed.
    """
    kept = socket.socket(fileno=os.dup(conn.fileno()))
    closed, silent = socket.socketpair()
    with closed, silent:
        os.dup2(
            closed.fileno(), conn.fileno(), inheritable=False
        )  # libpq's Terminate message must not reach the server
    with suppress(OSError):
        kept.shutdown(socket.SHUT_RD)  # ends a read that waits for an answer
    return kept


@contextmanager
def answered(
    conn: psycopg.Connection[Any], give_up: Callable[[psycopg.Connection[Any]], None] = cut
) -> Iterator[None]:
    """Cut the connection if a statement in this block gets no answer within ANSWER_TIMEOUT.

    Use it for statements that take no time.
    """
    with _watchdog(os.getpid()).over(partial(give_up, conn)):
        yield


class _Watchdog:
    """Calls what is late. It is one thread for good: in a process that may start no more, it still does."""

    def __init__(self) -> None:
        self._due: dict[object, tuple[float, Callable[[], None]]] = {}  # the earliest first
        self._changed = threading.Condition()
        threading.Thread(target=self._look, daemon=True, name="watchdog").start()

    @contextmanager
    def over(self, give_up: Callable[[], None]) -> Iterator[None]:
        key = object()
        with self._changed:
            if not self._due:
                self._changed.notify()
            self._due[key] = time.monotonic() + ANSWER_TIMEOUT, give_up
        try:
            yield
        finally:
            with self._changed:  # so that the caller does not close the connection while give_up runs
                self._due.pop(key, None)

    def _look(self) -> None:
        with self._changed:
            while True:
                now = time.monotonic()
                while (first := next(iter(self._due), None)) and self._due[first][0] <= now:
                    with suppress(Exception):  # this thread must go on
                        self._due.pop(first)[1]()
                self._changed.wait(self._due[first][0] - now if first else None)


@cache
def _watchdog(pid: int) -> _Watchdog:  # a forked process has none of the threads
    return _Watchdog()


class SilenceGuard:
    """Guards statements that may take long, by work or a lock.

    It cuts the connection only if the server no longer runs the statement. A network that drops
    everything looks like a slow server. So SilenceGuard asks the server on another connection when
    a statement gets no answer for long. Bytes of it that are still to be sent are no silence.
    """

    def __init__(self, dsn: str, busy: Callable[[], None] | None = None) -> None:
        """`busy` is called each second while a statement runs.

        Waiting for the database does not count as stuck.
        """
        self._dsn = dsn
        self._busy = busy
        self._asked: tuple[psycopg.Connection[Any] | None, float] | None = None
        threading.Thread(target=self._look, daemon=True, name="watch").start()

    @contextmanager
    def over(self, conn: psycopg.Connection[Any] | None) -> Iterator[None]:
        """Guards one statement. None: a connection is being opened, which has time limits of its own."""
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
            conn, since = asked or (None, 0.0)
            if conn and (waited := time.monotonic() - since) > ANSWER_TIMEOUT:
                if self._runs_it(conn, waited):
                    time.sleep(ANSWER_TIMEOUT)
                else:
                    time.sleep(1)  # it may have just ended, and its answer be on the way
                    if self._asked is asked:
                        cut(conn)

    def _runs_it(self, conn: psycopg.Connection[Any], waited: float) -> bool:
        try:
            if waited < BLIND_TIMEOUT and _unsent(conn):
                return True
            pid = conn.info.backend_pid
            with connect(self._dsn, worker=True) as other, answered(other):
                if server_of(other) != server_of(conn):
                    return False  # another server has taken over
                row = other.execute(RUNS_IT, [pid]).fetchone()
        except Exception:  # of any kind, since this thread must go on
            return True  # no connection at all: reconnecting would not help
        return row[0] if row and row[0] is not None else waited < BLIND_TIMEOUT


def _unsent(conn: psycopg.Connection[Any]) -> bool:
    """True if the system still holds bytes for the server. What never gets there, TCP gives up."""
    import fcntl
    import termios

    with suppress(OSError):  # not every system can tell; a Unix socket tells what the server has not read
        return bool(conn.info.hostaddr) and any(fcntl.ioctl(conn.fileno(), termios.TIOCOUTQ, bytes(4)))
    return False


class Backoff:
    """The delay between attempts, from 0.1 seconds to the limit, with jitter.

    A process logs lost connections at most once a second, and each reason of a refusal once."""

    logged = 0.0
    _refusals: ClassVar[dict[tuple[int, str], str]] = {}  # the reason, by Backoff and action

    def __init__(self, log: logging.Logger, limit: float = 5.0) -> None:
        self._log, self._limit = log, limit
        self._delay = 0.1
        self._told = False
        self.until = 0.0  # when to try again

    def failed(self, error: Exception) -> None:
        """Call it when the connection was lost, or none could be opened."""
        now = time.monotonic()
        if now - Backoff.logged >= 1:
            Backoff.logged, self._told = now, True
            self._log.warning("no connection to the database: %s", first_line(error))
        self._wait()

    def refused(self, error: Exception, what: str = "") -> None:
        """Call it when the database refused a statement."""
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
    return (
        str(error)
        .strip()
        .split("\n")[0]
        .removeprefix("connection is bad: ")
        .removeprefix("connection failed: ")
    )
