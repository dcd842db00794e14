"""A query of a schedule runs with the rights of its role, and lends no rights to anyone."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import psycopg
import pytest

from pyworker._db.migrations import migrate
from tests.support.schedules import MINUTELY, ORDERS, add, run_all, scheduled, tick
from tests.support.schedules import own as own
from tests.support.schedules import roles as roles


def test_a_role_that_the_caller_is_not_a_member_of_is_refused(own: Any, roles: dict[str, str]) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        add(own, roles, "select 1 as priority", query_role=roles["stranger"])


def test_no_role_can_be_made_to_lend_its_rights(own: Any, roles: dict[str, str]) -> None:
    """A superuser calls another role's SECURITY DEFINER function, or refreshes its materialized
    view: PostgreSQL's own rules hold."""
    own.rows("reset session authorization; create schema trap")
    own.rows(f'grant create, usage on schema trap to "{roles["caller"]}"')
    own.rows(
        f'grant "{roles["stranger"]}" to postgres'
        if own.value("select current_user") != "postgres"
        else "select 1"
    )
    call = (
        f"pyworker.add_schedule('q', '* * * * *', 'bill', query => 'select 1 as priority', query_role => "
        f"'{roles['stranger']}')"
    )
    own.rows(f'set session authorization "{roles["caller"]}"')
    own.rows(
        f"create function trap.f() returns void language plpgsql security definer as $$ begin perform "
        f"{call}; end $$"
    )
    own.rows(f"create materialized view trap.v as select {call} as x with no data")
    own.rows("reset session authorization")
    for trap in ("select trap.f()", "refresh materialized view trap.v"):
        with pytest.raises(psycopg.Error, match='cannot set parameter "role" within security-'):
            own.rows(trap)
    own.rows("drop schema trap cascade")
    assert own.rows("select from pyworker.schedules") == []


def test_the_function_of_a_query_cannot_be_slipped_in(own: Any, roles: dict[str, str]) -> None:
    """_add_schedule may be called by an admin, with any role and text: only what that role has
    made itself counts."""
    call = """select pyworker._add_schedule(jsonb_populate_record(null::pyworker.schedule, jsonb_build_object(
        'name', 'q', 'cron', '* * * * *', 'timezone', 'UTC', 'backfill', '0', 'identifier', 'bill', 'query',
            'select 1 as priority',
        'query_role', %s::text, 'query_limit', 10, 'origin', 'sql', 'paused', false)))"""
    with own.refusal("PW001", "its function is not the one that add_schedule makes"):
        own.rows(call, [roles["stranger"]])
    for query, role in (("select 2 as priority", "reader"), ("select 1 as priority", "stranger")):
        add(own, roles, query)
        with own.refusal("PW001", "its function is not the one that add_schedule makes"):
            own.rows(call, [roles[role]])


ROB = "insert into pyworker.once_keys values ('robbed by ' || current_user, now())"


def test_the_owner_of_a_function_cannot_have_it_run_with_our_rights(own: Any, roles: dict[str, str]) -> None:
    """It is his, and he might alter it: but not without a right on its schema, and with one no
    query is run."""
    add(own, roles, "select 1 as priority")
    function = own.value("select (pyworker._query_function('q', '')).path")
    alter = f"alter function {function}(integer) security invoker"
    with pytest.raises(
        psycopg.errors.InsufficientPrivilege, match="permission denied for schema pyworker_queries"
    ):
        own.rows(alter)
    # An admin may call what add_schedule calls.
    own.rows("select pyworker._lend_query_schema('other', %s)", [roles["caller"]])
    tick(own)
    assert "may have been changed" in scheduled(own, "q").last_error
    own.rows(f'set session authorization "{roles["caller"]}"')
    body = f"begin {ROB}; return next '{{}}'; end"
    own.rows(alter)
    own.rows(
        f"create or replace function {function}(max_rows integer) returns setof jsonb language plpgsql as "
        f"$$ {body} $$"
    )
    own.rows("reset session authorization; revoke all on schema pyworker_queries from public")
    own.rows(f'revoke all on schema pyworker_queries from "{roles["caller"]}", "{roles["reader"]}"')
    tick(own, 2)
    assert "may have been changed" in scheduled(own, "q").last_error
    own.rows(f'set session authorization "{roles["caller"]}"')
    with own.refusal("PW005", "may have been changed"):
        own.rows("select * from pyworker.run_schedule('q')")
    add(own, roles, "select 1 as priority")
    tick(own, 3)
    assert own.value("select count(*) from pyworker.live_jobs") == 1
    assert own.rows("select from pyworker.once_keys") == []


def test_no_role_has_a_right_on_the_schema_of_queries_but_while_one_is_added(
    own: Any, roles: dict[str, str]
) -> None:
    guests = (
        "select a.grantee from pg_namespace n, aclexplode(n.nspacl) a "
        "where n.nspname = 'pyworker_queries' and a.grantee <> n.nspowner"
    )
    own.rows("select pyworker._lend_query_schema('other', %s)", [roles["caller"]])
    own.rows(f"select pyworker._lend_query_schema('other', '{roles['reader']}')")
    assert len(own.rows(guests)) > 0
    add(own, roles, "select 1 as priority")
    assert own.rows(guests) == []
    add(own, roles, "select 1 as priority")
    assert own.rows(guests) == [], "nor after it was added again"


def test_a_query_is_not_run_while_one_is_being_added(own: Any, roles: dict[str, str], fresh_dsn: str) -> None:
    add(own, roles, "select 1 as priority")
    with psycopg.connect(fresh_dsn) as other:
        other.execute("select pyworker._lend_query_schema('other', %s)", [roles["reader"]])
        tick(own)
        assert scheduled(own, "q").last_at is None
        other.rollback()
    tick(own, 2)
    assert own.value("select count(*) from pyworker.live_jobs") == 2  # both ticks


ESCAPES = [
    "select set_config('role', 'postgres', false) as job_key",
    "select set_config('session_authorization', 'postgres', false) as job_key",
    "select job_key from pg_catalog.query_to_xml('select * "
    "from pyworker.live_jobs', true, true, '') x(job_key)",
    "select lo_export(lo_create(0), '/tmp/x')::text as job_key",
    "select pyworker._query_function('a', 'b')::text as job_key",
]


@pytest.mark.parametrize("query", ESCAPES)
def test_a_query_cannot_get_at_more_than_its_role_may(own: Any, roles: dict[str, str], query: str) -> None:
    with suppress(psycopg.Error):  # some are refused at once
        add(own, roles, query)
    tick(own)
    assert own.rows("select from pyworker.live_jobs") == []
    assert own.value("select current_user") == own.value("select session_user")
    for row in own.rows("select last_error from pyworker.schedules"):
        assert row.last_error


def test_a_query_runs_as_its_role_with_a_safe_path(own: Any, roles: dict[str, str]) -> None:
    add(
        own,
        roles,
        "select current_user::text as job_key, json_build_array(current_setting('search_path')) as payload",
    )
    own.rows("reset session authorization; create temp table pg_class (relname text)")
    tick(own)
    assert own.rows("select job_key, payload from pyworker.live_jobs") == [
        (roles["reader"], ["pg_catalog, pg_temp"])
    ]


def test_what_functions_do_that_a_query_calls_is_undone(own: Any, roles: dict[str, str]) -> None:
    """Even a setting of the session, which would outlast it: think of search_path."""
    own.rows("reset session authorization")
    own.rows(f'grant pyworker_producer to "{roles["reader"]}"')
    own.rows(f'set session authorization "{roles["caller"]}"')
    before = own.value("select current_setting('application_name')")
    add(
        own,
        roles,
        "select set_config('application_name', 'evil', false) as job_key, (pyworker.add_job('side "
        "effect')).id::integer as priority",
    )
    own.rows("select * from pyworker.run_schedule('q')")
    assert own.value("select current_setting('application_name')") == before
    own.rows("reset session authorization")
    assert own.rows("select task_identifier, job_key from pyworker.live_jobs") == [("bill", "evil")]


def test_the_owner_may_ask_with_its_own_rights_and_needs_no_role(own: Any, roles: dict[str, str]) -> None:
    own.rows(
        "reset session authorization; drop schema pyworker cascade; "
        "drop schema if exists pyworker_queries cascade"
    )
    database = own.conn.info.dbname
    owner = f"owner of {database}"
    own.rows(f'create role "{owner}"; grant create on database "{database}" to "{owner}"')
    own.rows(f'grant select on public.orders to "{owner}"; set session authorization "{owner}"')
    try:
        migrate(own.conn, movable_clock=True)
        assert (
            own.value(
                "select query_role from pyworker.add_schedule('q', '* * * * *', 'bill', query => %s)",
                [ORDERS],
            )
            == owner
        )
        own.rows("set pyworker.clock_offset = '61 seconds'")
        assert run_all(own) == 1
        assert own.value("select count(*) from pyworker.jobs") == 5
        writes = "select (pyworker.add_job('more')).task_identifier as job_key"
        own.rows("select pyworker.add_schedule('q', '* * * * *', 'bill', query => %s)", [writes])
        own.rows("set pyworker.clock_offset = '122 seconds'")
        run_all(own)
        assert own.value("select count(*) from pyworker.jobs where task_identifier = 'more'") == 0
    finally:
        own.rows(f'reset session authorization; drop owned by "{owner}" cascade; drop role "{owner}"')


def test_a_query_runs_with_the_rights_of_its_caller_unless_told_otherwise(
    own: Any, roles: dict[str, str]
) -> None:
    added = add(own, roles, "select current_user::text as job_key", query_role=None)
    assert own.value("select query_role from pyworker.schedules") == roles["caller"]
    assert added
    tick(own)
    assert own.rows("select job_key from pyworker.live_jobs") == [(roles["caller"],)]


def test_a_role_that_loses_its_rights_is_an_error_of_its_schedule_alone(
    own: Any, roles: dict[str, str]
) -> None:
    add(own, roles, ORDERS)
    add(own, roles, "select 1 as priority", name="other")
    own.rows(f'reset session authorization; revoke select on public.orders from "{roles["reader"]}"')
    tick(own)
    assert "permission denied for table orders" in scheduled(own, "q").last_error
    assert own.value("select count(*) from pyworker.live_jobs") == 1


def test_the_function_of_a_query_comes_and_goes_with_it(own: Any, roles: dict[str, str]) -> None:
    functions = (
        "select count(*) from pg_proc p join pg_namespace n on n.oid = p.pronamespace "
        "where n.nspname = 'pyworker_queries'"
    )
    add(own, roles, ORDERS)
    add(own, roles, ORDERS + " desc")
    assert own.value(functions) == 1
    own.add_schedule("q", MINUTELY, "bill")
    assert own.value(functions) == 0
    add(own, roles, ORDERS)
    own.remove_schedule("q")
    assert own.value(functions) == 0


def test_a_plain_owner_of_a_schema_of_any_name_needs_no_other_rights(own: Any, roles: dict[str, str]) -> None:
    own.rows("reset session authorization; drop schema pyworker cascade")
    database = own.conn.info.dbname
    owner = f"owner of {database}"
    own.rows(f'create role "{owner}"; grant create on database "{database}" to "{owner}"; set role "{owner}"')
    try:
        migrate(own.conn, 'My "queue": 100% ünïcode', movable_clock=True)
        add_schedule = """select "My ""queue"": 100%% ünïcode".add_schedule"""
        arguments = "'q', '* * * * *', 'bill', query := %s, query_role := %s"
        own.rows(f"{add_schedule}({arguments})", [ORDERS, roles["reader"]])
        assert own.value("select current_user") == owner
        own.rows("set pyworker.clock_offset = '61 seconds'")
        assert own.value("""select "My ""queue"": 100%% ünïcode".run_schedules()""", []) == 1
        assert own.value("""select count(*) from "My ""queue"": 100%% ünïcode".jobs""", []) == 5
        own.rows("""select "My ""queue"": 100%% ünïcode".remove_schedule('q')""", [])
    finally:
        own.rows(f'reset role; drop owned by "{owner}" cascade; drop role "{owner}"')


def test_only_admins_change_schedules(own: Any) -> None:
    own.rows("reset session authorization; set role pyworker_producer")
    for call in (
        "add_schedule('s', '* * * * *', 't')",
        "remove_schedule('s')",
        "run_schedule('s')",
        "run_schedules()",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            own.rows(f"select pyworker.{call}")
    own.rows("reset role; set role pyworker_worker")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        own.rows("select pyworker.add_schedule('s', '* * * * *', 't')")
    assert own.run_schedules() == 0
    own.rows("reset role; set role pyworker_reader")
    assert own.rows("select * from pyworker.schedules") == []
    own.rows("reset role; set role pyworker_admin")
    assert own.add_schedule("s", MINUTELY, "t")
