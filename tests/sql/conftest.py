"""What the tests of the SQL core share: the functions as Python calls, and a job in any state. Nothing but SQL calls inside."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import psycopg
import pytest
from psycopg.rows import namedtuple_row
from psycopg.types.json import Jsonb

ONE = {"add_job", "remove_job", "get_job", "cancel_job", "retry_job", "delete_job"}
MANY = {
    "add_jobs", "claim_jobs", "retry_jobs", "complete_jobs", "permanently_fail_jobs", "reschedule_jobs", "job_errors",
}  # fmt: skip


def statement(function: str, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[str, list[Any]]:
    """add_job("t", job_key="k") as SQL: text stays an untyped literal, a dict or a list of dicts is jsonb."""
    values = [*args, *named.values()]
    for i, value in enumerate(values):
        if isinstance(value, dict) or (isinstance(value, list) and value and isinstance(value[0], dict)):
            values[i] = Jsonb(value)
    slots = ["%s"] * len(args) + [f"{name} => %s" for name in named]
    return f"select * from pyworker.{function}({', '.join(slots)})", values


class Api:
    """pyworker's functions as methods of a connection: api.add_job("t", job_key="k")."""

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        self.conn = conn
        conn.execute("set lock_timeout = '10s'")  # what must not wait fails instead of hanging

    def __getattr__(self, function: str) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            rows = self.rows(*statement(function, args, named))
            return rows if function in MANY else rows[0] if function in ONE else rows[0][0]

        return call

    def rows(self, sql: str, params: Any = None) -> list[Any]:
        with self.conn.cursor(row_factory=namedtuple_row) as cursor:
            cursor.execute(sql, params)  # type: ignore[arg-type]
            result = cursor.pgresult  # not cursor.description: `select from …` gives rows without a column
            return cursor.fetchall() if result and result.status == psycopg.pq.ExecStatus.TUPLES_OK else []

    def value(self, sql: str, params: Any = None) -> Any:
        return self.rows(sql, params)[0][0]

    def at(self, offset: str = "0") -> datetime:
        return self.value("select pyworker.clock() + %s::interval", [offset])

    def payload(self, job_id: int) -> str:
        """The payload as it is stored, letter by letter."""
        return self.value("select payload::text from pyworker.get_job(%s)", [job_id])

    def claim(self, worker: int, identifier: str | None = None, limit: int = 1) -> Any:
        """One job, or None."""
        rows = self.claim_jobs(worker, limit, identifier and [identifier])
        return rows[0] if rows else None

    def runs(self, *job_ids: int) -> list[int]:
        """The runs of these jobs, as they are now."""
        return [self.get_job(job_id).run for job_id in job_ids]

    def finish(self, *job_ids: int) -> list[int]:
        """Their present runs succeed."""
        accepted: list[int] = self.finish_jobs(list(job_ids), self.runs(*job_ids))
        assert sorted(accepted) == sorted(job_ids)
        return accepted

    def fail(self, job: Any, error: str = "boom", **more: Any) -> list[int]:
        return self.fail_jobs([{"id": job.id, "run": job.run, "error": error, **more}])

    @contextmanager
    def refusal(self, code: str, *words: str) -> Iterator[Any]:
        """The block must be refused with this SQLSTATE, and a message that holds all these words."""
        with pytest.raises(psycopg.Error) as caught:
            yield caught
        assert caught.value.sqlstate == code, caught.value
        for word in words:
            assert re.search(word, str(caught.value.diag.message_primary)), caught.value


class Actor(Api):
    """Api on a session of its own; later.add_job(…) begins a call that another session may block, and gives a future."""

    def __init__(self, session: Any) -> None:
        super().__init__(session.conn)
        self.session = session
        self.begin, self.kill, self.blocked = session.begin, session.kill, session.await_blocked
        self.later = Later(session)

    def commit(self) -> None:
        self.session.run("commit")

    def rollback(self) -> None:
        self.session.run("rollback")


class Later:
    def __init__(self, session: Any) -> None:
        self._session = session

    def __getattr__(self, function: str) -> Callable[..., Future[Any]]:
        return lambda *args, **named: self._session.start(*statement(function, args, named))


# By delete, not truncate: a tenth of the time, and plans are kept, as they are between a worker's calls.
CLEAN = """
    do $$
    declare
        v record;
    begin
        for v in
            select c.oid::regclass as name, s.seqstart from pg_class c left join pg_sequence s on s.seqrelid = c.oid
            where c.relnamespace = 'pyworker'::regnamespace and c.relkind in ('r', 'p', 'S') and not c.relispartition
              and c.relname not in ('migrations', 'installed_objects')
        loop
            if v.seqstart is not null then
                perform setval(v.name, v.seqstart, false);
            else
                execute format('delete from %s', v.name);
            end if;
        end loop;
        insert into pyworker.settings (movable_clock) values (true);
    end $$;
    reset all
"""


@pytest.fixture(scope="session")
def _kept(_shared: Any) -> Iterator[dict[str, Any]]:
    """Connections stay from test to test: a new one spends 20 ms on compiling our functions, as a worker's does once."""
    kept: dict[str, Any] = {"db": None, "sessions": [], "tests": 0}
    yield kept
    for connection in [kept["db"], *kept["sessions"]]:
        if connection:
            connection.close()


@pytest.fixture
def db(
    dsn: str, _kept: dict[str, Any], invariants: Callable[[Any], None]
) -> Iterator[psycopg.Connection[Any]]:
    if not _kept["db"] or _kept["db"].closed:
        _kept["db"] = psycopg.connect(dsn, autocommit=True)
    conn = _kept["db"]
    conn.execute(CLEAN)
    _kept["tests"] += 1
    if (
        _kept["tests"] % 4 == 0
    ):  # else a claim has the rows of many tests to walk past, and remembers its place
        conn.execute("vacuum pyworker.live_jobs")
        conn.execute("vacuum pyworker.promotion_requests")
    yield conn
    conn.rollback()
    invariants(conn)


@pytest.fixture
def clean(db: psycopg.Connection[Any]) -> Callable[[], Any]:
    """Call it for an empty queue in the middle of a test."""
    return lambda: db.execute(CLEAN)


@pytest.fixture
def _sessions(_kept: dict[str, Any]) -> Iterator[list[Any]]:
    used: list[Any] = []
    yield used
    for session in used:
        try:
            assert session.conn.info.transaction_status != psycopg.pq.TransactionStatus.ACTIVE
            session.run("rollback")
            session.run("reset role; reset all; unlisten *; select pg_advisory_unlock_all()")
            _kept["sessions"].append(session)
        except (AssertionError, psycopg.OperationalError):  # still at it, or killed
            session.close()


@pytest.fixture
def session(
    session: Callable[[], Any], clock: Any, _sessions: list[Any], _kept: dict[str, Any]
) -> Callable[[], Any]:
    def new() -> Any:
        if not _kept["sessions"]:
            return session()
        again = _kept["sessions"].pop()
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


STATES = [
    "scheduled",
    "pending",
    "available",
    "running",
    "retryable",
    "due",
    "discarded",
    "completed",
    "cancelled",
]  # fmt: skip; due: retryable, until its time came; job_in makes one that is queued, too: available, its queue is full


@pytest.fixture
def job_in(api: Api, worker: int, clock: Any) -> Callable[..., Any]:
    """job_in("running", job_key="k") makes a job and brings it into that state; returns it as get_job does."""

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
