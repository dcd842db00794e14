"""Connections that notice a dead server, and waiting between attempts to get one back."""

from __future__ import annotations

import logging
import random
import time
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from . import _sql

log = logging.getLogger("pyworker.worker")

# Half-open connections are found in seconds, not hours; whatever the user says in the DSN wins.
_DEFAULTS = {
    "application_name": "pyworker",
    "connect_timeout": "5",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
    "target_session_attrs": "read-write",
}


def connect(dsn: str) -> psycopg.Connection[Any]:
    """An autocommit connection at READ COMMITTED, which the protocol's statements are written for."""
    given: dict[str, Any] = {key: value for key, value in conninfo_to_dict(dsn).items() if value is not None}
    conn = psycopg.connect(make_conninfo(**{**_DEFAULTS, **given}), autocommit=True)
    # Only where it is needed: behind a transaction pooler a SET would leak to other clients.
    if conn.execute(_sql.SHOW_ISOLATION).fetchone() != ("read committed",):
        conn.execute(_sql.READ_COMMITTED)
    if is_pooled(conn):
        conn.prepare_threshold = None  # a prepared statement stays with one of the pooler's connections
    return conn


def is_pooled(conn: psycopg.Connection[Any]) -> bool:
    """Is there a transaction pooler (PgBouncer) in between? Then the process that answers is not the one we were introduced to."""
    return conn.execute(_sql.BACKEND_PID).fetchone() != (conn.info.backend_pid,)


class Backoff:
    """0.1 to 5 seconds between attempts, with jitter; at most one line of log in a second."""

    def __init__(self) -> None:
        self.delay = 0.1
        self._logged = 0.0

    def wait(self) -> None:
        time.sleep(self.delay * random.uniform(0.5, 1.5))  # noqa: S311
        self.delay = min(self.delay * 1.5, 5.0)

    def failed(self, error: Exception) -> None:
        if time.monotonic() - self._logged >= 1:
            self._logged = time.monotonic()
            log.warning("no connection to the database yet: %s", str(error).strip().split("\n")[0])
