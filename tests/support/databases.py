"""Databases on the tests' server, and what must hold in each at the end of a test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo
from pytest_postgresql.janitor import DatabaseJanitor

from tests.support import ROOT

INVARIANTS = (ROOT / "tests" / "invariants.sql").read_text("utf-8")


def dsn_of(conn: psycopg.Connection[Any]) -> str:
    info = conn.info
    return make_conninfo(
        host=info.host, port=info.port, user=info.user, dbname=info.dbname, password=info.password or None
    )


@contextmanager
def copy_of(template: Any, name: str) -> Iterator[str]:
    """A copy of the template database, for as long as the block lasts; gives its connection string."""
    t, dbname = template, f"{template.dbname}_{name}"
    with DatabaseJanitor(
        user=t.user, host=t.host, port=t.port, password=t.password,
        dbname=dbname, template_dbname=t.template_dbname, maintenance_dbname=t.maintenance_dbname,
    ):  # fmt: skip
        yield make_conninfo(host=t.host, port=t.port, user=t.user, password=t.password, dbname=dbname)


@contextmanager
def database(pg_server: Any, name: str, template: str | None = None) -> Iterator[str]:
    """Another database of the server, empty or a copy of the template."""
    name = f"pyworker_{name}_{os.getpid()}"
    with DatabaseJanitor(
        user=pg_server.user, host=pg_server.host, port=pg_server.port, password=pg_server.password,
        dbname=name, template_dbname=template,
    ):  # fmt: skip
        yield pg_server.url(name)


def check_invariants(conn: psycopg.Connection[Any]) -> None:
    with conn.transaction():
        # By the real clock: where a test has moved its own, no session has swept in between.
        conn.execute("set local search_path = pyworker, pg_temp; set local pyworker.clock_offset = ''")
        violations = conn.execute(INVARIANTS).fetchall()  # type: ignore[arg-type]
    assert violations == []
