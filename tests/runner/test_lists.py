"""The lists of the command line: whole, however many pages the database gives them in."""

from __future__ import annotations

from typing import Any

import pytest

from pyworker._db import pages
from pyworker._db.database import Database

ALL: Any = {"states": [], "tasks": [], "queues": [], "key": None}


@pytest.fixture
def lists(db: Any, monkeypatch: Any) -> Database:
    """With pages of two rows."""
    monkeypatch.setattr(pages, "PAGE", 2)
    return Database(db)


@pytest.mark.parametrize(("limit", "found"), [(1, 1), (2, 2), (5, 5), (8, 7)])
def test_jobs_come_newest_first_up_to_the_limit(lists: Database, db: Any, limit: int, found: int) -> None:
    db.execute("select pyworker.add_job('t') from generate_series(1, 7)")
    db.execute("select pyworker.cancel_job(3), pyworker.cancel_job(6)")
    assert [job["id"] for job in lists.list_jobs(**ALL, limit=limit)] == [7, 6, 5, 4, 3, 2, 1][:found]


def test_a_filter_finds_jobs_on_every_page(lists: Database, db: Any) -> None:
    db.execute("select pyworker.add_job((array['a', 'b'])[1 + i % 2]) from generate_series(1, 10) i")
    assert [job["id"] for job in lists.list_jobs(**{**ALL, "tasks": ["a"]}, limit=50)] == [10, 8, 6, 4, 2]


@pytest.mark.parametrize(("limit", "found"), [(1, 1), (4, 4), (9, 6)])
def test_halted_sequences_come_first_and_each_comes_once(
    lists: Database, db: Any, limit: int, found: int
) -> None:
    db.execute("""
        select pyworker.add_job('t', sequence_policy => jsonb_build_object('key', k))
        from unnest(array['a', 'b', 'c', 'd', 'e', 'f']) k cross join generate_series(1, 2)""")
    db.execute("select pyworker.promote_jobs()")
    db.execute("""
        select pyworker.cancel_job(min(id)) from pyworker.jobs where sequence_key in ('b', 'd', 'e')
        group by sequence_key""")
    rows = lists.sequences(limit)
    assert [row["sequence_key"] for row in rows] == ["b", "d", "e", "a", "c", "f"][:found]
    assert [row["halted_by"] is not None for row in rows] == [True, True, True, False, False, False][:found]
