"""Databases on the tests' server, and what must hold in each at the end of a test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo
from pytest_postgresql.janitor import DatabaseJanitor

from tests.support import ROOT

INVARIANTS = (ROOT / "tests" / "invariants.sql").read_text("utf-8")


# What a worker's test has used is truncated: a worker that walks past the rows of many tests polls more.
TRUNCATE = """
    do $$
    declare
        used text := (
            select string_agg(c.oid::regclass::text, ', ') from pg_class c
            where c.relnamespace = 'pyworker'::regnamespace and c.relkind = 'r'
              and pg_relation_size(c.oid) > 0
              and c.relname not in ('migrations', 'gate'));
    begin
        if used is not null then execute 'truncate ' || used; end if;
    end $$
"""

# For tests of the SQL by delete: a tenth of the time, and plans are kept, as between a worker's calls.
CLEAN = """
    -- A session that listens and does not read what it is sent stands still when its socket is full, and then
    -- PostgreSQL drops no database.
    unlisten *;
    reset all;
    do $$
    declare
        v record;
    begin
        for v in
            select c.oid::regclass as name, s.seqstart from pg_class c left join pg_sequence s
                on s.seqrelid = c.oid
            where c.relnamespace = 'pyworker'::regnamespace and c.relkind in ('r', 'p', 'S')
                and not c.relispartition
              and c.relname not in ('migrations', 'gate')
        loop
            if v.seqstart is not null then
                perform setval(v.name, v.seqstart, false);
            else
                execute format('delete from %s', v.name);
            end if;
        end loop;
        insert into pyworker.settings (movable_clock) values (true);
        perform pyworker._make_partitions(); -- a test in which months go by drops today's
    end $$
"""


SIZES = """
    select c.oid::regclass::text, pg_relation_size(c.oid) from pg_class c
    where c.relnamespace = 'pyworker'::regnamespace and c.relkind = 'r'
      and c.relname not in ('migrations', 'gate')"""
PAGE = 8192


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


class Shared:
    """The database that the tests of a run share. Its session stays from test to test: a new one spends
    20 ms on compiling our functions, as a worker's does once."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._conn: psycopg.Connection[Any] | None = None

    @property
    def conn(self) -> psycopg.Connection[Any]:
        if self._conn is None or self._conn.closed:
            self._conn = psycopg.connect(self.dsn, autocommit=True)
        return self._conn

    def truncate(self) -> None:
        while True:
            # A dashboard that the test before has left may read one table and wait for the next.
            with suppress(psycopg.errors.DeadlockDetected):
                self.conn.execute(TRUNCATE)
                break
        self.conn.execute(CLEAN)

    def empty(self) -> None:
        self.conn.execute(CLEAN)
        # Else a claim walks past the dead rows of many tests, and remembers its place.
        if large := [name for name, size in self.conn.execute(SIZES).fetchall() if size > 2 * PAGE]:
            self.conn.execute(f"vacuum (truncate) {', '.join(large)}")

    def check(self) -> None:
        check_invariants(self.conn)

    def close(self) -> None:
        if self._conn:
            self._conn.close()


def check_invariants(conn: psycopg.Connection[Any]) -> None:
    with conn.transaction():
        # By the real clock: where a test has moved its own, no session has swept in between.
        conn.execute("set local search_path = pyworker, pg_temp; set local pyworker.clock_offset = ''")
        # Where there are few rows, any plan will do, and to plan takes longer than to look.
        few = sum(size for _, size in conn.execute(SIZES).fetchall()) < 40 * PAGE
        conn.execute(f"set local plan_cache_mode = {'force_generic_plan' if few else 'force_custom_plan'}")
        violations = conn.execute(INVARIANTS).fetchall()  # type: ignore[arg-type]
    assert violations == []
