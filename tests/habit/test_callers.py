"""What people ordinarily do where they add jobs: the job arrives, with its payload."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.habit.callers import CALLERS, ONE


def _url(dsn: str) -> str:
    """As people write it: SQLAlchemy and asyncpg take no "host=… port=…"."""
    parts = {name: value for name, value in conninfo_to_dict(dsn).items() if value}
    return f"postgresql:///{parts.pop('dbname')}?{urlencode(parts)}"


@pytest.mark.parametrize("caller", CALLERS, ids=lambda caller: caller.__name__)
def test_a_job_arrives_however_it_was_added(
    caller: Callable[[str], int], db: psycopg.Connection[Any], dsn: str
) -> None:
    job_id = caller(_url(dsn))
    found = db.execute("select state, payload from pyworker.get_job(%s)", [job_id]).fetchone()
    assert found == ("available", ONE)
    assert db.execute("select count(*) from pyworker.jobs where task_identifier <> 'pong'").fetchone() == (0,)
