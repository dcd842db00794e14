"""Login roles of one test, or of one file, on the tests' server."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.support.worker_fixtures import *  # noqa: F403


class Logins:
    """Login roles with names of their own: `logins("web", "in role pyworker_producer")` creates one."""

    def __init__(self, conn: psycopg.Connection[Any], dsn: str) -> None:
        self.conn, self.dsn = conn, dsn
        self.made: list[str] = []
        self.of: dict[str, str] = {}

    def __call__(self, name: str, options: str = "") -> str:
        """Returns the name of the role, which ends with this one."""
        role = f"pw_test_{os.getpid()}_{name}"
        self.conn.execute(f"drop role if exists {role}; create role {role} login {options}")
        self.made.append(role)
        return role

    def dsn_of(self, role: str) -> str:
        return make_conninfo(self.dsn, user=role)

    def close(self) -> None:
        superuser = self.conn.execute("select session_user").fetchone()[0]  # type: ignore[index]
        for role in self.made:
            self.conn.execute(f"reassign owned by {role} to {superuser}; drop owned by {role}")
        for role in self.made:
            self.conn.execute(f"drop role {role}")


@pytest.fixture
def logins(fresh: psycopg.Connection[Any], fresh_dsn: str) -> Iterator[Logins]:
    """Roles for a database of this test alone."""
    made = Logins(fresh, fresh_dsn)
    yield made
    made.close()


GROUPS = ("producer", "worker", "reader", "admin")


@pytest.fixture(scope="module")
def people(_shared: Any) -> Iterator[Logins]:
    """A login role for each of the four group roles, a member of that one alone: `people.of[group]`."""
    with psycopg.connect(_shared.dsn, autocommit=True) as conn:
        made = Logins(conn, _shared.dsn)
        made.of = {group: made(group, f"in role pyworker_{group}") for group in GROUPS}
        yield made
        made.close()


@pytest.fixture
def zoo(db: psycopg.Connection[Any]) -> dict[str, int]:
    """Jobs, queues, schedules and a worker, for a command of each kind: ids by name."""
    rows = db.execute("""
        select (pyworker.add_job('t', '{"secret": "xyzzy"}', job_key => 'k')).id as waiting,
               (pyworker.add_job('t', '{"secret": "xyzzy"}')).id as discarded,
               (pyworker.add_job('u', sequence_policy => '{"key": "s"}')).id as halting,
               (pyworker.add_job('u', sequence_policy => '{"key": "s"}')).id as halted""")
    names = [column.name for column in rows.description or ()]
    ids = dict(zip(names, rows.fetchall()[0], strict=True))
    db.execute("select pyworker.promote_jobs()")
    db.execute(
        "select * from pyworker.permanently_fail_jobs(%s, 'boom')", [[ids["discarded"], ids["halting"]]]
    )
    db.execute("select pyworker.add_schedule('nightly', '0 4 * * *', 't')")
    db.execute("select pyworker.add_schedule('still', '0 4 * * *', 't'), pyworker.pause_schedule('still')")
    db.execute("select pyworker.set_queue('q', 2), pyworker.set_queue('p', 2), pyworker.pause_queue('p')")
    worker = db.execute("select pyworker.open_worker('{}') ->> 'worker'").fetchone()[0]  # type: ignore[index]
    db.execute("select pyworker.send_signal(%s, 'early', '{\"secret\": \"xyzzy\"}')", [ids["waiting"]])
    return {**ids, "worker": int(worker)}


def state(db: psycopg.Connection[Any]) -> list[Any]:
    """What a command could have changed."""
    return [
        db.execute(f"select * from pyworker.{table} order by 1").fetchall()
        for table in ("live_jobs", "finished_jobs", "queues", "schedule_entries", "tasks", "signals",
                      "sequence_halts", "once_keys")
    ]  # fmt: skip


def one_role(text: str) -> str:
    """The one group role that a refusal names; it is plain words."""
    assert "Traceback" not in text
    assert text.count("GRANT") <= 1, text
    (role,) = {word for word in re.findall(r"pyworker_(producer|worker|reader|admin)\b", text)}
    return role
