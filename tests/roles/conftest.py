"""Login roles of one test, or of one file, on the tests' server."""

from __future__ import annotations

import os
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
