"""Schedules, the clock at a full hour, and databases with roles for the queries of schedules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

HOURLY, MINUTELY = "0 * * * *", "* * * * *"


class OnTheHour:
    """The clock, and how to get to a certain time of an hour."""

    def __init__(self, api: Any, clock: Any) -> None:
        self.api = api
        self.clock = clock

    def go(self, minutes: float = 0, hours: float = 0) -> None:
        """So long after the next full hour."""
        into = self.api.value(
            "select extract(epoch from pyworker.clock() - date_trunc('hour', pyworker.clock()))::float8"
        )
        self.clock.advance(seconds=3600 - into + 60 * minutes + 3600 * hours)


@pytest.fixture
def hour(api: Any, clock: Any) -> OnTheHour:
    at = OnTheHour(api, clock)
    at.go(30)
    return at


def scheduled(api: Any, name: str) -> Any:
    return api.rows("select * from pyworker.schedules where name = %s", [name])[0]


def jobs(api: Any, identifier: str = "t") -> list[Any]:
    return api.rows(
        "select id, run_at, payload, state, job_key from pyworker.live_jobs where task_identifier = %s "
        "order by run_at, id",
        [identifier],
    )


def run_all(api: Any) -> int:
    """As a worker does: again, as long as there was something to do."""
    fired, total = 1, 0
    while fired:
        fired = api.run_schedules()
        total += fired
    return total


# Queries ------------------------------------------------------------------------------------------


@pytest.fixture
def roles(fresh: psycopg.Connection[Any]) -> Iterator[dict[str, str]]:
    """Roles of this test alone: reader owns nothing and may read orders; caller is a
    pyworker_admin and a member of reader."""
    name = fresh.info.dbname
    found = {role: f"{role} of {name}" for role in ("reader", "caller", "stranger")}
    for role in found.values():
        fresh.execute(f'create role "{role}"')
    fresh.execute(f"""
        create table public.orders (id integer, total integer);
        insert into public.orders select n, 10 * n from generate_series(1, 5) n;
        grant usage on schema public to public;
        grant select on public.orders to "{found["reader"]}";
        grant "{found["reader"]}", pyworker_admin to "{found["caller"]}" """)
    yield found
    fresh.rollback()
    fresh.execute("reset session authorization")
    for role in found.values():
        fresh.execute(f'drop owned by "{role}" cascade; drop role "{role}"')


@pytest.fixture
def own(own: Any, roles: dict[str, str]) -> Any:
    """A database of this test alone, as its caller."""
    own.rows(f'set session authorization "{roles["caller"]}"')
    return own


def add(own: Any, roles: dict[str, str], query: str, name: str = "q", **more: Any) -> Any:
    return own.add_schedule(name, MINUTELY, "bill", query=query, **{"query_role": roles["reader"], **more})


def tick(own: Any, n: int = 1, first: Any = None) -> None:
    """As a worker, a second after the next minute has begun, or the n-th: no other tick is due
    then. `first`: the minute to count from, for a test that takes so long that another one may
    begin meanwhile."""
    offset = own.value(
        "select extract(epoch from coalesce(%s::timestamptz - interval '1 minute', date_trunc('minute', "
        "now())) - now()) + %s",
        [first, 60 * n + 1],
    )
    own.rows(
        f"reset session authorization; set pyworker.clock_offset = '{offset} seconds'; "
        f"set role pyworker_worker"
    )
    run_all(own)
    own.rows("reset role")


ORDERS = (
    "select 'order ' || id as job_key, jsonb_build_object('id', id) as payload, total as priority "
    "from public.orders order by id"
)
