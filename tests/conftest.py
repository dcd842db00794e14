"""A real PostgreSQL for every test, as root or as anyone.

`db` is a connection to a clean database that the tests of a run share; `fresh` a database of its
own for a test that installs, drops or upgrades. PYWORKER_TEST_DATABASE_URL uses a running server,
PYWORKER_PG_BIN another PostgreSQL's programs.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from pytest_postgresql import factories

from pyworker._db.migrations import migrate
from pyworker._dev.postgres import Server, temporary_server

pytest.register_assert_rewrite("tests.support", "tests.model")  # before the first import of either

from tests.support.databases import Shared, check_invariants, copy_of, database, dsn_of  # noqa: E402
from tests.support.sessions import Clock, Session  # noqa: E402
from tests.support.unfriendly import (  # noqa: E402, F401
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_runtest_setup,
)


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


@pytest.fixture
def fresh_dsn(fresh: psycopg.Connection[Any]) -> str:
    return dsn_of(fresh)


@pytest.fixture
def empty_dsn(pg_server: Any) -> Iterator[str]:
    """A database in which nothing has been installed."""
    with database(pg_server, "empty") as dsn:
        yield dsn


@pytest.fixture(scope="session")
def _shared(pg_template: Any) -> Iterator[Shared]:
    with copy_of(pg_template, "shared") as dsn, closing(Shared(dsn)) as shared:
        yield shared


@pytest.fixture
def dsn(_shared: Shared) -> str:
    """The shared database, for code that opens its own connections. Clean only together with `db`."""
    return _shared.dsn


@pytest.fixture
def db(_shared: Shared) -> Iterator[psycopg.Connection[Any]]:
    """An autocommit connection to the shared database, emptied; the invariants are checked when
    the test is over."""
    _shared.truncate()
    with psycopg.connect(_shared.dsn, autocommit=True) as conn:
        yield conn
        conn.rollback()
    _shared.check()


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


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """`-n auto`: two processes for each core, since many tests wait for workers and locks."""
    return 2 * (os.cpu_count() or 1)


def pytest_report_header() -> str:
    return f"pyworker: euid {os.geteuid()}"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One for the tests of a file. While it runs, its thread has a running event loop, so tests of other
    files could not call asyncio.run."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if not chromium:
        pytest.skip("there is no chromium on this machine (apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield running
        running.close()
