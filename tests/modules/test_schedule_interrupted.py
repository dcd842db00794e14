"""A tick that is interrupted is still due, and hinders no other schedule."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import psycopg
import pytest

from tests.support.schedules import HOURLY, MINUTELY, OnTheHour, add, jobs, run_all, scheduled, tick
from tests.support.schedules import hour as hour
from tests.support.schedules import own as own
from tests.support.schedules import roles as roles

pytestmark = pytest.mark.slow


def cancelled_while_it_waits(api: Any, firing: Any) -> None:
    """Cancels the call of another session once it waits for a lock, or sleeps."""
    waits = (
        "select from pg_stat_activity where pid = %s and (wait_event_type = 'Lock' or wait_event = 'PgSleep')"
    )
    while not api.rows(waits, [firing.session.pid]):
        api.rows("select pg_sleep(0.01)")
    api.rows("select pg_cancel_backend(%s)", [firing.session.pid])


@pytest.mark.parametrize("by", ["pg_cancel_backend", "statement_timeout"])
def test_a_tick_whose_statement_was_cancelled_is_still_due(
    api: Any, actor: Any, hour: OnTheHour, by: str
) -> None:
    api.add_schedule("s", HOURLY, "t", job_key="k")
    api.add_job("t", job_key="k", run_at=api.at("1 day"))
    due = scheduled(api, "s").next_at
    hour.go()
    holder, firing = actor(), actor()
    holder.begin()
    holder.add_job("t", job_key="k", payload={"by": "hand"}, run_at=api.at("1 day"))
    if by == "statement_timeout":
        firing.rows("set statement_timeout = '100ms'")
    future = firing.later.run_schedules()
    if by == "pg_cancel_backend":
        cancelled_while_it_waits(api, firing)
    with suppress(psycopg.errors.QueryCanceled):
        assert future.result(20) == [(0,)]
    holder.rollback()
    row = scheduled(api, "s")
    assert (row.next_at, row.last_at) == (due, None)
    assert run_all(api) == 1
    assert [job.payload["_cron"]["ts"][:13] for job in jobs(api)] == [due.strftime("%Y-%m-%dT%H")]
    assert scheduled(api, "s").last_error is None


def test_a_tick_that_is_interrupted_again_and_again_is_fired_however_late_it_is(
    api: Any, actor: Any, hour: OnTheHour
) -> None:
    api.add_schedule("s", HOURLY, "t", job_key="k")
    api.add_schedule("other", HOURLY, "u")
    api.add_job("t", job_key="k", run_at=api.at("10 days"))
    holder = actor()
    holder.begin()
    holder.add_job("t", job_key="k", run_at=api.at("10 days"))
    hour.go()
    assert run_all(api) == 1, "the other one"
    for minutes in (5, 10, 20):
        hour.clock.advance(minutes=minutes)
        assert run_all(api) == 0
    holder.rollback()
    hour.clock.advance(minutes=15)
    assert run_all(api) == 1
    assert [job.payload["_cron"]["backfilled"] for job in jobs(api)] == [True]
    assert run_all(api) == 0


@pytest.mark.parametrize("calls", [1, 2])
def test_a_schedule_that_never_gets_done_leaves_others_their_turn(
    own: Any, roles: dict[str, str], calls: int
) -> None:
    """However seldom a worker comes."""
    add(own, roles, "select pg_sleep(60)::text as job_key", name="a slow one")
    add(own, roles, "select 1 as priority", name="quick")
    own.add_schedule("plain", MINUTELY, "plain")
    own.rows("set statement_timeout = '500ms'")
    first = own.value("select max(next_at) from pyworker.schedules")
    for n in (1, 2, 3, 4):
        for _ in range(calls):
            tick(own, n, first)
    fired = own.rows(
        "select task_identifier as t, count(distinct run_at) from pyworker.live_jobs group by 1 order by 1"
    )
    assert fired == [("bill", 2 + calls), ("plain", 4)]  # the first call asks the slow one first
    slow = scheduled(own, "a slow one")
    assert (slow.last_at, "statement timeout" in slow.last_error) == (None, True)
    late = own.value(
        "select pyworker.clock() - next_at > interval '2 minutes' from pyworker.schedule_entries "
        "where name = 'a slow one'"
    )
    assert late, "its first tick is due still"


def test_after_a_query_ran_out_of_time_no_other_is_asked_without_a_limit(
    own: Any, roles: dict[str, str]
) -> None:
    for name in ("one", "two"):
        add(own, roles, "select pg_sleep(0.3)::text as job_key", name=name)
    own.rows("set statement_timeout = '100ms'")
    tick(own)
    assert own.rows("select name from pyworker.schedules where last_error is not null") == [("one",)]
    assert own.rows("select from pyworker.live_jobs") == []


def test_maintain_does_not_ask_a_query_that_has_just_run_out_of_time(own: Any, roles: dict[str, str]) -> None:
    """It would have no time limit any more."""
    add(own, roles, "select pg_sleep(0.3)::text as job_key")
    own.rows("set statement_timeout = '100ms'")
    tick(own)
    own.rows("set statement_timeout = 0")
    assert own.maintain()["scheduled"] == 0
    own.rows("set pyworker.clock_offset = '70 seconds'")
    assert own.maintain()["scheduled"] >= 1


@pytest.mark.parametrize("condition", ["disk_full", "admin_shutdown", "out_of_memory", "io_error"])
def test_a_tick_that_met_a_fault_of_the_server_is_still_due(
    own: Any, roles: dict[str, str], condition: str
) -> None:
    own.rows("reset session authorization")
    own.rows(f"""create function public.meets() returns text language plpgsql as
                 $$ begin raise {condition} using message = 'the server is in trouble'; end $$""")
    own.rows(f'set session authorization "{roles["caller"]}"')
    add(own, roles, "select public.meets() as job_key where 1 = 1", name="s")
    due = scheduled(own, "s").next_at
    tick(own)
    own.rows("reset session authorization")
    row = scheduled(own, "s")
    assert (row.next_at, row.last_at, "in trouble" in row.last_error) == (due, None, True)
    own.rows("create or replace function public.meets() returns text language sql as $$ select 'well' $$")
    assert run_all(own) >= 1
    assert own.rows("select job_key from pyworker.live_jobs") == [("well",)]


def test_a_tick_whose_query_is_wrong_counts_as_fired(own: Any, roles: dict[str, str]) -> None:
    add(own, roles, "select 1 / (id - 1) as priority from public.orders")
    due = scheduled(own, "q").next_at
    tick(own)
    row = scheduled(own, "q")
    assert (row.last_at >= due, row.next_at > due, row.last_error is not None) == (True, True, True)


def test_a_query_that_takes_too_long_is_cut_off_and_said(own: Any, roles: dict[str, str]) -> None:
    add(own, roles, "select pg_sleep(60)::text as job_key", name="slow")
    add(own, roles, "select 1 as priority", name="quick")
    own.rows("set statement_timeout = '300ms'")
    tick(own)
    errors = {row.name: row.last_error for row in own.rows("select name, last_error from pyworker.schedules")}
    assert "statement timeout" in errors["slow"]
    assert own.rows("select distinct priority from pyworker.live_jobs") == [
        (1,)
    ]  # twice, if a minute began meanwhile
