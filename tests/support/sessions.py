"""Sessions that a test steps one statement at a time, and the clock that they share."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg

from tests.support import DEADLINE

LEVELS = ["read committed", "repeatable read", "serializable"]
SNAPSHOT_LEVELS = LEVELS[1:]  # a transaction sees what there was at its first statement


class Session:
    """A connection that another thread drives, one statement at a time: for tests that step two or
    more of them."""

    def __init__(self, dsn: str, offset: timedelta) -> None:
        self.conn = psycopg.connect(dsn, autocommit=True)
        self.conn.execute(
            "select set_config('pyworker.clock_offset', %s, false)", [f"{offset.total_seconds()} seconds"]
        )
        self.pid, self.killed = self.conn.info.backend_pid, False
        self._thread = ThreadPoolExecutor(1)
        self._watch = psycopg.connect(dsn, autocommit=True)

    def start(self, statement: str, parameters: Any = None) -> Future[Any]:
        """Begin a statement and return at once; the future gives its rows, or raises its error."""
        return self._thread.submit(self.run, statement, parameters)

    def run(self, statement: str, parameters: Any = None) -> Any:
        cursor = self.conn.execute(statement, parameters)  # type: ignore[arg-type]
        return cursor.fetchall() if cursor.description else None

    def value(self, statement: str, parameters: Any = None) -> Any:
        return self.run(statement, parameters)[0][0]

    def begin(self, isolation: str = "read committed") -> None:
        """Open a transaction and take its snapshot."""
        self.run(f"begin isolation level {isolation}")
        self.run("select 1 from pg_class limit 1")

    def await_blocked(self, future: Future[Any]) -> None:
        """Wait until the server says that this session waits for a lock of another one."""
        until = "select cardinality(pg_blocking_pids(%s)) > 0"
        for _ in range(int(DEADLINE * 100)):
            row = self._watch.execute(until, [self.pid]).fetchone()
            if row and row[0]:
                return
            assert not future.done(), f"did not block: {future.exception() or future.result()}"
            self._watch.execute("select pg_sleep(0.01)")
        raise AssertionError("the session never came to wait for a lock")

    def kill(self) -> None:
        """End this session's backend from outside, as a crash of its client would."""
        self.killed = True
        self._watch.execute("select pg_terminate_backend(%s, 10000)", [self.pid])

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        if not self.conn.closed:
            self._watch.execute("select pg_terminate_backend(%s)", [self.pid])
        self._thread.shutdown(wait=True)
        self.conn.close()
        self._watch.close()


class Clock:
    """The database's movable clock, for all sessions of this test."""

    def __init__(self, conn: psycopg.Connection[Any], sessions: list[Session]) -> None:
        self.offset = timedelta(0)
        self._conn = conn
        self._sessions = sessions

    def advance(self, **kwargs: float) -> None:
        self.offset += timedelta(**kwargs)
        text = f"{self.offset.total_seconds()} seconds"
        for conn in [self._conn, *(s.conn for s in self._sessions if not (s.killed or s.conn.closed))]:
            conn.execute("select set_config('pyworker.clock_offset', %s, false)", [text])
