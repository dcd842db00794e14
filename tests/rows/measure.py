"""How many rows, index entries and pages a session reads, by PostgreSQL's own count."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from tests.rows.verbs import Verb
from tests.support.databases import copy_of

# What this transaction has read of each table and index of the schema.
READ = """
    select c.relname, pg_stat_get_xact_blocks_fetched(c.oid) as pages,
        pg_stat_get_xact_tuples_returned(c.oid) + pg_stat_get_xact_tuples_fetched(c.oid) as rows
    from pg_class c where c.relnamespace = 'pyworker'::regnamespace and c.relkind in ('r', 'i')"""
# The session keeps the plans of a small table, and PostgreSQL must not look at the large one by itself.
ALONE = """
    do $$ declare t record; begin
        for t in select c.oid::regclass as name from pg_class c
                 where c.relnamespace = 'pyworker'::regnamespace and c.relkind = 'r' loop
            execute format('alter table %s set (autovacuum_enabled = off)', t.name);
        end loop;
    end $$"""

# A session keeps a place for 20 times as long as it took to reach it; here, for two seconds.
PROLONG = """
    select set_config(n, regexp_replace(current_setting(n), '[0-9]+$', (
        extract(epoch from clock_timestamp()) * 1000000 + 1900000)::bigint::text), false)
    from unnest(array['ready', 'due', 'expired']) name
    cross join lateral (select 'pyworker.floor_' || name) s(n)
    where current_setting(n, true) <> ''"""


class Reads:
    """Rows and pages, by table or index."""

    def __init__(self, of: dict[str, tuple[int, int]]) -> None:
        self.rows = sum(rows for rows, _ in of.values())
        self.pages = sum(pages for _, pages in of.values())
        self._most = sorted(of, key=lambda name: -sum(of[name]))[:2]

    def __repr__(self) -> str:
        return f"{self.rows} rows, {self.pages} pages ({', '.join(self._most)})"


class Place:
    """A database of its own, and the session that is measured."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.conn = psycopg.connect(
            dsn, autocommit=True, row_factory=dict_row, cursor_factory=psycopg.ClientCursor
        )
        self.rows(ALONE)
        # PostgreSQL marks an index entry as dead only after the commit that ended its row is on disk.
        self.rows("set synchronous_commit = on")
        self.before_each = ""
        self.old = 0  # the process of a session that holds an old snapshot

    def rows(self, sql: str, params: Any = None) -> list[Any]:
        cursor = self.conn.execute(sql, params)  # type: ignore[call-overload]
        while cursor.nextset():
            pass
        ok = cursor.pgresult and cursor.pgresult.status == psycopg.pq.ExecStatus.TUPLES_OK
        return cursor.fetchall() if ok else []

    def _read(self) -> dict[str, tuple[int, int]]:
        return {row["relname"]: (row["rows"], row["pages"]) for row in self.rows(READ)}

    def reads(self, verb: Verb, named: dict[str, Any]) -> Reads:
        """What the verb reads; what it does is rolled back."""
        with self.conn.transaction(force_rollback=True):
            for sql in (self.before_each, verb.before):
                self.rows(sql or "select", named)
            self.rows(PROLONG)
            before = self._read()
            self.rows(verb.sql, named)
            after = self._read()
        none = (0, 0)
        return Reads({
            name: (rows - before.get(name, none)[0], pages - before.get(name, none)[1])
            for name, (rows, pages) in after.items()
        })  # fmt: skip

    def await_the_end_of_other_snapshots(self) -> None:
        """Autovacuum looks at the catalog; for so long PostgreSQL marks no index entry as dead."""
        while self.rows("select from pg_stat_activity where datname = current_database() and pid <> %s"
                        " and pid <> pg_backend_pid() and backend_xmin is not null", [self.old]):  # fmt: skip
            pass

    def close(self) -> None:
        self.conn.close()


@pytest.fixture
def place(pg_template: Any) -> Iterator[Place]:
    with copy_of(pg_template, "rows") as dsn:
        place = Place(dsn)
        yield place
        place.close()
