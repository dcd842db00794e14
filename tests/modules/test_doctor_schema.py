"""doctor() on the schema: what is missing or changed, indexes, grants."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from pyworker._db.migrations import migrate
from tests.support.doctor import HEALTHY, doctor, heals, of, repair, short, the

pytestmark = pytest.mark.slow

DRIFT = {
    (
        "create or replace function pyworker.heartbeat(worker_id bigint) returns boolean language sql as "
        "'select true'"
    ):
        "function heartbeat(worker_id bigint) is not what was installed",
    "alter function pyworker.maintain() reset lock_timeout": "function maintain() is not what was installed",
    "drop function pyworker.unregister_worker(bigint)":
        "function unregister_worker(worker_id bigint) is missing",
    "drop view pyworker.sequences": "view sequences is missing",
    (
        "create or replace view pyworker.live_workers as select id, info, started_at, beat_at, expires_at "
        "from pyworker.workers"
    ):
        "view live_workers is not what was installed",
    "drop index pyworker.live_jobs_due": "index live_jobs_due is missing",
    "drop index pyworker.finished_jobs_id": "index finished_jobs_id is missing",
    "drop index pyworker.live_jobs_due; create index live_jobs_due on pyworker.live_jobs (due_at)":
        "index live_jobs_due is not what was installed",
    "create index mine on pyworker.live_jobs (state)": "index mine is not pyworker's",
    "alter table pyworker.workers drop column suspect_since": "column workers.suspect_since is missing",
    "alter table pyworker.promotion_requests add column mine integer":
        "column promotion_requests.mine is not pyworker's",
    "alter table pyworker.errors alter column worker type varchar(10)":
        "column errors.worker is not what was installed",
    "alter table pyworker.errors alter column error drop not null":
        "default of errors.error is not what was installed",
    "alter table pyworker.unique_keys alter column adds drop default":
        "default of unique_keys.adds is not what was installed",
    "alter table pyworker.queues drop constraint queues_concurrency":
        "constraint queues_concurrency is missing",
    "alter table pyworker.once_keys drop constraint once_keys_pkey": "constraint once_keys_pkey is missing",
    "drop table pyworker.sequence_halts cascade": "table sequence_halts is missing",
    "drop table pyworker.once_keys": "table once_keys is missing",
    "drop sequence pyworker.swept_at cascade": "sequence swept_at is missing",
}  # fmt: skip


@pytest.mark.parametrize("change", DRIFT)
def test_what_is_missing_or_changed(own: Any, change: str) -> None:
    own.rows(change)
    found = [row.finding for row in of(own, "schema")]
    assert DRIFT[change] in found, found
    for _ in range(3):
        for row in of(own, "schema"):
            if row.fix and row.fix.startswith("install this version again"):
                migrate(own.conn)
            elif row.fix:
                repair(own, row.fix)
    assert short(doctor(own)) == HEALTHY


def test_views_that_a_dump_restores_are_those_that_were_installed(own: Any) -> None:
    own.rows("""
        do $$
        declare
            v record;
        begin
            for v in select c.oid::regclass as name from pg_class c
            where c.relnamespace = 'pyworker'::regnamespace and c.relkind = 'v' loop
                execute format('create or replace view %s as %s', v.name, pg_get_viewdef(v.name));
            end loop;
        end $$""")
    assert short(of(own, "schema")) == [("schema", "ok", None)]


def test_ids_that_were_used_are_not_used_again(own: Any) -> None:
    own.add_job("t")
    assert own.add_job("t").id == 2
    own.rows("drop sequence pyworker.job_ids cascade")
    rows = of(own, "schema")
    assert [row.finding for row in rows] == [
        "sequence job_ids is missing",
        "default of live_jobs.id is not what was installed",
    ]
    for row in rows:
        repair(own, row.fix)
    assert short(of(own, "schema")) == [("schema", "ok", None)]
    assert own.add_job("t").id == 3


def test_much_drift_is_cut_short(own: Any) -> None:
    own.rows(
        "drop view pyworker.jobs, pyworker.history; "
        "drop index pyworker.live_jobs_ready, pyworker.live_jobs_due"
    )
    own.rows(
        "do $$ begin for i in 1..9 loop execute format('create index mine%s on pyworker.errors (at)', i); "
        "end loop; end $$"
    )
    rows = of(own, "schema")
    assert (len(rows), rows[-1].finding) == (11, "and 3 more")


def test_another_major_version_compares_names_only(own: Any) -> None:
    own.rows(
        "update pyworker.installed_objects set digest = case when object = 'server' then '13' else 'other "
        "words' end"
    )
    the(own, "schema", "info", "recorded on PostgreSQL 13, this is ")
    own.rows("drop index pyworker.live_jobs_due")
    assert [row.severity for row in of(own, "schema")] == ["info", "error"]
    migrate(own.conn)
    own.rows("delete from pyworker.installed_objects")
    the(own, "schema", "warning", "it is not known what was installed here")
    migrate(own.conn)
    assert of(own, "schema")[0].severity == "ok"


def test_an_index_that_is_invalid(own: Any) -> None:
    own.rows(
        "update pg_index set indisvalid = false where indexrelid = 'pyworker.live_jobs_job_key'::regclass"
    )
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
