"""The starts of a queue, and the fullest window."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest

# Each claim, as its transaction wrote it: a job that runs again has had more than one start.
RECORD = """
    create table public.begun (queue text, at timestamptz);
    create function public.note_start() returns trigger language plpgsql as $$
    begin
        insert into public.begun values (new.queue_name, new.claimed_at);
        return null;
    end $$;
    create trigger note_start after update on pyworker.live_jobs for each row
        when (new.state = 'running' and new.run <> old.run) execute function public.note_start()"""
FORGET = "drop function if exists public.note_start() cascade; drop table if exists public.begun"


@pytest.fixture
def begun(db: psycopg.Connection[Any]) -> Iterator[Callable[..., list[datetime]]]:
    """begun("q") gives the times of all starts of a queue that were committed, in their order."""
    db.execute(FORGET)
    db.execute(RECORD)
    times = "select at from public.begun where queue = %s order by 1"
    yield lambda queue="q": [at for (at,) in db.execute(times, [queue]).fetchall()]
    db.execute(FORGET)


def starts(api: Any, queue: str = "q") -> list[datetime]:
    """The times of the jobs' last starts, as the views show them."""
    sql = "select locked_at from pyworker.{} where queue_name = %s and locked_at is not null"
    both = f"{sql.format('jobs')} union all {sql.format('history')} order by 1"
    return [row.locked_at for row in api.rows(both, [queue, queue])]


def worst(times: list[datetime], period: timedelta) -> int:
    """The most starts in any window [t, t + period)."""
    return max(sum(first <= t < first + period for t in times) for first in times)
