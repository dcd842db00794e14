"""A real PostgreSQL for every test, as root or as anyone.

`db` is a connection to a clean database that the tests of a run share; `fresh` a database of its own for a test that installs,
drops or upgrades. PYWORKER_TEST_DATABASE_URL uses a running server, PYWORKER_PG_BIN another PostgreSQL's programs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pytest_postgresql import factories
from pytest_postgresql.janitor import DatabaseJanitor

from pyworker._db.migrations import migrate
from pyworker._dev.postgres import Server, temporary_server

INVARIANTS = (Path(__file__).parent / "invariants.sql").read_text("utf-8")
DEADLINE = 20.0  # seconds that anything awaited may take; no test measures time


@pytest.fixture(scope="session")
def pg_server() -> Iterator[Server]:
    if url := os.environ.get("PYWORKER_TEST_DATABASE_URL"):
        c = conninfo_to_dict(url)
        yield Server(
            host=str(c.get("host", "localhost")),
            port=int(c.get("port", 5432)),
            user=str(c.get("user", "postgres")),
            password=c.get("password"),
            maintenance_dbname=str(c.get("dbname", "postgres")),
        )
        return
    with temporary_server(in_memory=True, settings={"max_prepared_transactions": "4"}) as server:
        yield server


def _install(**kwargs: Any) -> None:
    kwargs.pop("autocommit", None)
    with psycopg.connect(**kwargs, autocommit=True) as conn:
        migrate(conn, movable_clock=True, roles=True)


# One template with everything installed …
pg_template = factories.postgresql_noproc(depends_on="pg_server", dbname="pyworker_test", load=[_install])
# … a copy of it for a test that needs its own, and an empty database beside it.
_fresh = factories.postgresql("pg_template")


@pytest.fixture
def fresh(_fresh: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    """A connection to a database of this test alone, with pyworker installed."""
    _fresh.autocommit = True
    return _fresh


def dsn_of(conn: psycopg.Connection[Any]) -> str:
    info = conn.info
    return make_conninfo(
        host=info.host, port=info.port, user=info.user, dbname=info.dbname, password=info.password or None
    )


@pytest.fixture
def fresh_dsn(fresh: psycopg.Connection[Any]) -> str:
    return dsn_of(fresh)


@pytest.fixture(scope="session")
def _shared(pg_template: Any) -> Iterator[tuple[str, str]]:
    t = pg_template
    with DatabaseJanitor(
        user=t.user, host=t.host, port=t.port, password=t.password,
        dbname=f"{t.dbname}_shared", template_dbname=t.template_dbname, maintenance_dbname=t.maintenance_dbname,
    ):  # fmt: skip
        dsn = make_conninfo(
            host=t.host, port=t.port, user=t.user, password=t.password, dbname=f"{t.dbname}_shared"
        )
        yield (
            dsn,
            "set search_path = pyworker, pg_temp;"
            "truncate live_jobs, finished_jobs, unique_keys, errors, promotion_requests, workers, claims, tasks, queues,"
            " sequence_halts, once_keys, schedule_entries, audit_log restart identity;"
            "alter sequence job_ids restart; alter sequence listening_until restart; alter sequence polling_until restart;"
            "alter sequence not_listening_until restart;"
            "alter sequence silent_before restart; alter sequence silent_at restart; alter sequence walks_until restart;"
            "alter sequence swept_at restart;"
            "delete from settings; insert into settings (movable_clock) values (true); reset search_path",
        )


class Session:
    """A connection that another thread drives, one statement at a time: for tests that step two or more of them."""

    def __init__(self, dsn: str, offset: timedelta) -> None:
        self.conn = psycopg.connect(dsn, autocommit=True)
        self.conn.execute(
            "select set_config('pyworker.clock_offset', %s, false)", [f"{offset.total_seconds()} seconds"]
        )
        self.pid = self.conn.info.backend_pid
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
        for conn in [self._conn, *(session.conn for session in self._sessions if not session.conn.closed)]:
            conn.execute("select set_config('pyworker.clock_offset', %s, false)", [text])


@pytest.fixture
def dsn(_shared: tuple[str, str]) -> str:
    """The shared database, for code that opens its own connections. Clean only together with `db`."""
    return _shared[0]


@pytest.fixture
def db(_shared: tuple[str, str]) -> Iterator[psycopg.Connection[Any]]:
    """An autocommit connection to the shared database, emptied; the invariants are checked when the test is over."""
    dsn, clean = _shared
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(clean)  # type: ignore[arg-type]
        yield conn
        conn.rollback()
        check_invariants(conn)


def check_invariants(conn: psycopg.Connection[Any]) -> None:
    with conn.transaction():
        # By the real clock: where a test has moved its own, nobody has swept in between.
        conn.execute("set local search_path = pyworker, pg_temp; set local pyworker.clock_offset = ''")
        violations = conn.execute(INVARIANTS).fetchall()  # type: ignore[arg-type]
    assert violations == []


@pytest.fixture
def invariants() -> Callable[[psycopg.Connection[Any]], None]:
    return check_invariants


@pytest.fixture
def _sessions() -> Iterator[list[Session]]:
    sessions: list[Session] = []
    yield sessions
    for session in sessions:
        session.close()


@pytest.fixture
def clock(db: psycopg.Connection[Any], _sessions: list[Session]) -> Clock:
    return Clock(db, _sessions)


@pytest.fixture
def session(
    db: psycopg.Connection[Any], dsn: str, clock: Clock, _sessions: list[Session]
) -> Callable[[], Session]:
    """Call it for one more session on the shared database."""

    def new() -> Session:
        _sessions.append(Session(dsn, clock.offset))
        return _sessions[-1]

    return new


@pytest.fixture
def worker(db: psycopg.Connection[Any]) -> int:
    """A registered worker's id."""
    return db.execute("select pyworker.register_worker()").fetchone()[0]  # type: ignore[index]


def pytest_report_header() -> str:
    return f"pyworker: euid {os.geteuid()}"
