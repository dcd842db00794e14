"""Fixtures for tests of the SQL: pyworker's functions, a job in any state, sessions.

Connections are kept from test to test. A conftest imports these fixtures for its directory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg.rows import namedtuple_row

from tests.support.api import Actor, Api
from tests.support.databases import CLEAN, Shared
from tests.support.plans import watched

__all__ = ["_kept", "_sessions", "actor", "api", "clean", "db", "job_in", "own", "session", "watched"]


@pytest.fixture(scope="session")
def _kept() -> Iterator[list[Any]]:
    """Sessions stay from test to test, too."""
    kept: list[Any] = []
    yield kept
    for session in kept:
        session.close()


@pytest.fixture
def db(_shared: Shared) -> Iterator[psycopg.Connection[Any]]:
    _shared.empty()
    conn = _shared.conn
    yield conn
    conn.rollback()
    _shared.check()


@pytest.fixture
def clean(db: psycopg.Connection[Any]) -> Callable[[], Any]:
    """Call it for an empty queue in the middle of a test."""
    return lambda: db.execute(CLEAN)


@pytest.fixture
def _sessions(_kept: list[Any]) -> Iterator[list[Any]]:
    used: list[Any] = []
    yield used
    for session in used:
        try:
            assert session.conn.info.transaction_status != psycopg.pq.TransactionStatus.ACTIVE
            session.run("rollback")
            session.run("reset role; reset all; unlisten *; select pg_advisory_unlock_all()")
            _kept.append(session)
        except (AssertionError, psycopg.OperationalError):  # it still runs a statement, or was killed
            session.close()


@pytest.fixture
def session(
    session: Callable[[], Any], clock: Any, _sessions: list[Any], _kept: list[Any]
) -> Callable[[], Any]:
    def new() -> Any:
        if not _kept:
            return session()
        again = _kept.pop()
        _sessions.append(again)
        again.run(
            "select set_config('pyworker.clock_offset', %s, false)",
            [f"{clock.offset.total_seconds()} seconds"],
        )
        return again

    return new


@pytest.fixture
def api(db: psycopg.Connection[Any]) -> Api:
    return Api(db)


@pytest.fixture
def actor(session: Callable[[], Any]) -> Callable[[], Actor]:
    """Call it for one more session."""

    def new() -> Actor:
        s = session()
        s.conn.row_factory = namedtuple_row
        return Actor(s)

    return new


@pytest.fixture
def own(fresh: psycopg.Connection[Any]) -> Api:
    """A database of this test alone."""
    return Api(fresh)


@pytest.fixture
def job_in(api: Api, worker: int, clock: Any) -> Callable[..., Any]:
    """job_in("running", job_key="k") makes a job and brings it into that state; returns it as get_job does.

    Two more states are `due`, that of a failed job when its time has come, and `queued`, that of an
    available job whose queue is full.
    """

    def make(state: str, identifier: str = "t", **named: Any) -> Any:
        if state == "scheduled":
            named.setdefault("run_at", api.at("1 hour"))
        if state == "pending":
            named.setdefault("sequence_policy", {"key": "busy"})
            api.add_job("holder", sequence_policy=named["sequence_policy"])
            assert api.claim(worker, "holder")
        if state == "queued":
            named.setdefault("queue_name", "busy")
            api.add_job("holder", queue_name=named["queue_name"])
            assert api.claim(worker, "holder")
        job = api.add_job(identifier, **named)
        if state in ("running", "retryable", "due", "discarded", "completed"):
            claimed = api.claim(worker, identifier)
            assert claimed.id == job.id
            if state in ("retryable", "due"):
                api.fail(claimed, delay="30 min")
            if state == "due":
                clock.advance(hours=1)
                api.heartbeat(worker)
                api.promote_jobs()
            if state == "discarded":
                api.fail(claimed, discard=True)
            if state == "completed":
                api.finish_job(claimed.id, claimed.run)
        if state == "cancelled":
            api.cancel_job(job.id)
        job = api.get_job(job.id)
        assert job.state == ("available" if state in ("due", "queued") else state)
        return job

    return make
