"""Schedules with a query: each of its rows becomes a job."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.schedules import ORDERS, add, tick
from tests.support.schedules import own as own
from tests.support.schedules import roles as roles


def test_each_row_of_a_query_becomes_a_job(own: Any, roles: dict[str, str]) -> None:
    add(own, roles, ORDERS, payload={"unused": 1}, max_attempts=4)
    tick(own)
    rows = own.rows("select job_key, payload, priority, max_attempts from pyworker.live_jobs order by id")
    assert rows == [(f"order {n}", {"id": n}, 10 * n, 4) for n in range(1, 6)]
    tick(own, 2)
    assert own.value("select count(*) from pyworker.live_jobs") == 5, "a key is a key"


def test_a_null_is_left_to_the_schedule_and_a_limit_is_kept(own: Any, roles: dict[str, str]) -> None:
    add(own, roles,
        "select null::json as payload, case when id > 1 then 7 end as priority from public.orders "
        "order by id",
        payload={"mine": True}, priority=1, query_limit=2)  # fmt: skip
    tick(own)
    assert own.rows("select payload, priority from pyworker.live_jobs order by id") == [
        ({"mine": True}, 1),
        ({"mine": True}, 7),
    ]


def test_no_row_is_no_job_and_a_missed_tick_is_not_asked_again(own: Any, roles: dict[str, str]) -> None:
    add(own, roles, "select 1 as priority where false", name="none")
    add(own, roles, "select 1 as priority", name="one")
    tick(own, 10)
    assert own.value("select count(*) from pyworker.live_jobs") == 1
    assert [row.last_error for row in own.rows("select last_error from pyworker.schedules")] == [None, None]


def test_a_query_may_say_what_its_jobs_wait_for(own: Any, roles: dict[str, str]) -> None:
    parent = own.add_job("parent").id
    add(own, roles, f'select \'[{{"id": {parent}, "on": "end"}}]\'::jsonb as depends_on', name="waits")
    add(own, roles, "select '[\"no ref\"]'::jsonb as depends_on", name="bad")
    tick(own)
    waits = own.rows("select job_id, depends_on, condition from pyworker.dependencies")
    assert [(row.depends_on, row.condition) for row in waits] == [(parent, "end")]
    (error,) = own.rows("select last_error from pyworker.schedules where last_error is not null")
    assert "no job of the call has the ref 'no ref'" in error.last_error
    own.cancel_job(parent)
    own.promote_jobs()
    assert own.get_job(waits[0].job_id).state == "available"


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("select id from public.orders", "its columns must be named like arguments of add_job, got 'id'"),
        ("select 1", "got '\\?column\\?'"),
        (
            "select job_key from orders",
            r'relation "orders" does not exist \(names must be qualified by their schema\)',
        ),
        ("select nope()", "does not exist"),
        ("not sql", "syntax error"),
        ("", "query"),
        ("select 1 as priority; select 2 as priority", "multi-query"),
        ("select 1 as priority) q; drop table public.orders; --", "syntax error"),
        ("delete from public.orders returning id as priority", "query"),
        (
            "with gone as (delete from public.orders returning id) select id as priority from gone",
            "not allowed in a non-volatile",
        ),
        ("create table public.x ()", "query"),
        ("set role postgres", "query"),
        ("table pyworker.live_jobs", "permission denied"),
        ("select rolpassword as job_key from pg_catalog.pg_authid", "permission denied"),
    ],
)
def test_a_query_is_tried_when_it_is_given(own: Any, roles: dict[str, str], query: str, words: str) -> None:
    with own.refusal("PW001", "^add_schedule: query: ", words):
        add(own, roles, query)
    own.rows("reset session authorization")
    assert own.value("select count(*) from public.orders") == 5
    assert own.rows("select from pyworker.schedules") == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"query_role": "nobody at all"}, "query_role must name the role .*got 'nobody at all'"),
        (
            {"query_role": "postgres"},
            "query_role must not have the rights of the owner of schema pyworker, got 'postgres'",
        ),
        ({"query_limit": 0}, "query_limit must be from 1 to 100000, got 0"),
        ({"backfill": "1 hour"}, "backfill is of no use to a query"),
    ],
)
def test_arguments_of_a_query_that_are_refused(
    own: Any, roles: dict[str, str], arguments: dict[str, Any], words: str
) -> None:
    with own.refusal("PW001", "^add_schedule: ", words):
        add(own, roles, ORDERS, **arguments)


def test_a_query_that_calls_back_finds_nothing_due(own: Any, roles: dict[str, str]) -> None:
    own.rows("reset session authorization")
    own.rows(f'grant pyworker_worker to "{roles["reader"]}"')
    own.rows(f'set session authorization "{roles["caller"]}"')
    add(own, roles, "select json_build_array(pyworker.run_schedules()) as payload")
    tick(own)
    assert own.rows("select payload from pyworker.live_jobs") == [([0],)]
