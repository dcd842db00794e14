"""The functions of SQL as calls in Python: on one connection, and on sessions that wait for each other."""

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

from tests.support import DEADLINE

ONE = {"add_job", "remove_job", "get_job", "cancel_job", "retry_job", "delete_job", "await_job"}
MANY = {
    "add_jobs", "claim_jobs", "retry_jobs", "complete_jobs", "permanently_fail_jobs", "reschedule_jobs",
    "job_errors", "get_steps", "job_log", "run_schedule",
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
    """Api on a session of its own; later.add_job(…) begins a call that another session may block,
    and gives a future."""

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


def row_of(future: Any) -> Any:
    """The one row that a call gives."""
    (row,) = future.result(DEADLINE)
    return row


def value_of(future: Any) -> Any:
    """The one value that a call gives."""
    ((value,),) = future.result(DEADLINE)
    return value


def ids(jobs: list[Any]) -> list[int]:
    return [job.id for job in jobs]
