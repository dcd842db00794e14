"""doctor() on the schema: functions, indexes, grants; and what an installation loads again."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from pyworker._db.migrations import migrate
from tests.support.doctor import HEALTHY, doctor, heals, of, repair, short, the

pytestmark = pytest.mark.slow

CODE = """
    select p.oid::regprocedure::text, pg_get_functiondef(p.oid) from pg_proc p
    where p.pronamespace = 'pyworker'::regnamespace
    union all
    select c.relname, pg_get_viewdef(c.oid) from pg_class c
    where c.relnamespace = 'pyworker'::regnamespace and c.relkind = 'v' order by 1"""


def test_migrate_loads_functions_and_views_that_were_dropped_or_changed_again(own: Any) -> None:
    installed = own.rows(CODE)
    own.rows("""
        create or replace function pyworker.heartbeat(worker_id bigint) returns boolean
            language sql as 'select true';
        alter function pyworker.maintain() reset lock_timeout;
        alter function pyworker._few(text[]) rename to few;
        drop function pyworker.unregister_worker(bigint), pyworker.few(text[]);
        drop view pyworker.sequences;
        create or replace view pyworker.live_workers as
            select id, info, started_at, beat_at, expires_at from pyworker.workers""")
    assert own.rows(CODE) != installed
    migrate(own.conn)
    assert own.rows(CODE) == installed
    assert short(doctor(own)) == HEALTHY


WITHOUT_THE_OWNERS_RIGHTS = {
    "alter function pyworker.heartbeat(bigint) security invoker": "heartbeat",
    "alter function pyworker.heartbeat(bigint) reset search_path": "heartbeat",
    "alter function pyworker.maintain() set search_path = public, pyworker": "maintain",
    "alter function pyworker.once(text) reset all": "once",
    "alter function pyworker._json_of(text, text) reset search_path": "_json_of",
    "alter function pyworker.cancel_job(bigint, boolean) security invoker reset search_path": "cancel_job",
}


@pytest.mark.parametrize("change", WITHOUT_THE_OWNERS_RIGHTS)
def test_a_function_that_does_not_run_as_its_owner_in_a_fixed_search_path(own: Any, change: str) -> None:
    own.rows(change)
    row = the(own, "functions", "error", "functions that roles may call do not run as their owner")
    assert row.finding.endswith(f": {WITHOUT_THE_OWNERS_RIGHTS[change]}")
    assert row.fix.startswith("install this version again: pyworker migrate")
    migrate(own.conn)
    assert short(doctor(own)) == HEALTHY


def test_functions_of_others_in_the_schema_are_not_checked(own: Any) -> None:
    own.rows("create function pyworker.mine() returns integer language plpgsql as 'begin return 1; end'")
    own.rows("revoke all on function pyworker.mine() from public")
    assert short(doctor(own)) == HEALTHY


@pytest.mark.parametrize("lacks", ["indisvalid", "indisready"])
def test_an_index_that_is_invalid_or_not_ready(own: Any, lacks: str) -> None:
    own.rows(f"update pg_index set {lacks} = false where indexrelid = 'pyworker.live_jobs_job_key'::regclass")
    heals(own, "indexes", "error", "index live_jobs_job_key on live_jobs is invalid: it enforces nothing")


def test_what_a_concurrent_build_left_behind(own: Any) -> None:
    own.add_job("t")
    own.add_job("t")
    own.conn.execute("set statement_timeout = 0")
    with pytest.raises(psycopg.errors.UniqueViolation):
        own.conn.execute(
            "create unique index concurrently mine_ccnew on pyworker.live_jobs (task_identifier)"
        )
    heals(own, "indexes", "error", "index mine_ccnew on live_jobs is invalid")


def test_grants(own: Any) -> None:
    own.rows(
        "revoke usage on schema pyworker from pyworker_reader; "
        "revoke select on pyworker.history from pyworker_reader"
    )
    own.rows("revoke execute on all functions in schema pyworker from pyworker_producer")
    rows = of(own, "grants")
    assert [row.severity for row in rows] == ["warning"] * 2
    assert "pyworker_producer lacks execute on function _json_of" in rows[0].finding
    assert rows[1].finding == "role pyworker_reader lacks usage on schema pyworker; select on history"
    for row in rows:
        repair(own, row.fix)
    assert short(doctor(own)) == HEALTHY
    own.rows("grant execute on function pyworker.prune() to public; grant select on pyworker.jobs to public")
    heals(own, "grants", "warning", "everybody may call or read what is pyworker's own: jobs, prune()")
