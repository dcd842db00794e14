"""doctor(): every finding from a real cause, and gone once its fix was run as it stands; a healthy installation has none."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from pyworker._db.migrations import migrate
from pyworker._dev.postgres import temporary_server

CHECKS = [
    "invariants", "schema", "indexes", "grants", "partitions", "maintenance", "workers", "tasks", "sequences", "queues", "schedules",
    "lost", "xmin",
    "bloat", "autovacuum", "notifications", "settings",
]  # fmt: skip
HEALTHY = [(name, "ok", None) for name in CHECKS]


def doctor(api: Any) -> list[Any]:
    rows = api.rows("select * from pyworker.doctor()")
    assert list(dict.fromkeys(row.check_name for row in rows)) == CHECKS
    assert all(row.finding for row in rows)
    assert all((row.fix is None) == (row.severity == "ok") for row in rows)
    return rows


def of(api: Any, check: str) -> list[Any]:
    return [row for row in doctor(api) if row.check_name == check]


def short(rows: list[Any]) -> list[Any]:
    return [(row.check_name, row.severity, row.fix) for row in rows]


def the(api: Any, check: str, severity: str, words: str) -> Any:
    """The one finding of this check."""
    (row,) = of(api, check)
    assert (row.severity, words in row.finding) == (severity, True), row
    return row


def repair(api: Any, fix: str) -> None:
    for statement in fix.split(";\n"):
        api.conn.execute(statement)


def heals(api: Any, check: str, severity: str, words: str) -> None:
    repair(api, the(api, check, severity, words).fix)
    assert [row.severity for row in of(api, check)] == ["ok"], of(api, check)


# Health --------------------------------------------------------------------------------------------------------------


def test_a_fresh_installation_is_healthy_and_so_is_an_upgraded_one(own: Any) -> None:
    assert short(doctor(own)) == HEALTHY
    migrate(own.conn)
    assert short(doctor(own)) == HEALTHY


@pytest.mark.parametrize("schema", ["pyworker", 'My "queue", so: 100% ünïcode'])
def test_any_schema_owned_by_a_plain_role_is_healthy(own: Any, schema: str) -> None:
    own.rows("drop schema pyworker cascade")
    name = own.conn.info.dbname
    own.rows(f'create role "owner of {name}"')
    try:
        own.rows(f'grant create on database "{name}" to "owner of {name}"; set role "owner of {name}"')
        migrate(own.conn, schema)
        quoted = schema.replace('"', '""')
        assert short(own.rows(f'select * from "{quoted}".doctor()')) == HEALTHY
    finally:
        own.rows(f'reset role; drop owned by "owner of {name}" cascade; drop role "owner of {name}"')


def test_a_busy_queue_is_healthy(api: Any, clock: Any) -> None:
    api.maintain()  # as workers do when they start: an earlier test may have let the days of history go
    worker = api.register_worker()
    for i in range(30):
        api.add_job("t", queue_name=f"q{i % 3}", job_key=f"k{i % 20}")
        api.add_job("u", unique_policy={"on_conflict": "ignore"}, payload=f"[{i % 20}]")
        api.add_job("s", sequence_policy={"by_args": True})
        api.add_job("a", delivery="at_most_once", run_at=api.at("1 minute"))
    for turn in range(12):
        api.heartbeat(worker)
        for job in api.claim_jobs(worker, 7):
            if job.task_identifier == "a":
                assert api.start_job(job.id, job.run)
            if job.id % 5 == 0:
                api.fail(job)
            elif job.id % 5 != 1 or turn > 9:
                api.finish_job(job.id, job.run)
        clock.advance(seconds=10)
    api.heartbeat(worker)
    # dead rows of other tests in this database may wait for autovacuum
    assert [row for row in short(doctor(api)) if row[0] != "bloat"] == [
        row for row in HEALTHY if row[0] != "bloat"
    ]


def test_an_admin_may_ask_and_others_may_not(own: Any) -> None:
    own.rows("set role pyworker_admin")
    assert short(doctor(own)) == HEALTHY
    own.rows("set role pyworker_worker")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        doctor(own)
    own.rows("reset role")


def test_a_check_that_fails_is_a_finding_and_the_others_go_on(own: Any) -> None:
    own.rows(
        "drop view pyworker.jobs; drop function pyworker._check_lost(); alter table pyworker.workers rename to gone"
    )
    rows = {row.check_name: row for row in doctor(own) if row.severity != "ok"}
    assert rows.keys() >= {"invariants", "workers", "tasks", "lost", "schema"}
    assert rows["lost"].finding.startswith("the check itself failed: function _check_lost() does not exist")


# Invariants ----------------------------------------------------------------------------------------------------------

BREAK = {
    "ready_at": ("available", "state", "set ready_at = null"),
    "due_at": ("scheduled", "state", "set due_at = run_at + interval '1 hour'"),
    "parked": ("pending", "state", "set parked = null"),
    "no such state": ("available", "state", "set state = 'lost'"),
    "running without a worker": ("running", "state", "set worker_id = null"),
    "unclaimed": ("running", "claims", "set worker_id = (select max(id) + 1 from pyworker.workers)"),
    "attempts": ("available", "state", "set attempts = -1"),
    "never expires": ("discarded", "state", "set expires_at = null"),
    "superseded": ("running", "state", "set superseded = 'removed', job_key = 'k'"),
    "runs unclaimed": ("running", "state", "set claimed_at = null"),
    "started": ("available", "I5", "set started_at = now(), delivery = 'at_most_once'"),
}


@pytest.mark.parametrize("how", BREAK)
def test_a_job_whose_columns_contradict_each_other(api: Any, job_in: Any, how: str) -> None:
    state, invariant, change = BREAK[how]
    job = job_in(state)
    api.rows(f"update pyworker.live_jobs {change} where id = {job.id}")
    repair(api, the(api, "invariants", "error", f"{invariant}: ").fix)
    assert of(api, "invariants")[0].severity == "ok"
    if how == "started":
        assert api.get_job(job.id).reason == "lost"


def test_attempts_that_people_have_set_contradict_nothing(api: Any) -> None:
    changed, failed = api.add_job("t"), api.add_job("t")
    api.reschedule_jobs([changed.id], attempts=3)
    api.permanently_fail_jobs([failed.id], "not wanted")
    assert api.retry_job(failed.id).attempts == 25
    assert of(api, "invariants")[0].severity == "ok"


def test_the_head_of_a_sequence(own: Any) -> None:
    for _ in range(3):
        own.add_job("t", sequence_policy={"by_args": True})
    own.rows(
        "drop index pyworker.live_jobs_sequence_head; update pyworker.live_jobs set sequence_head = true"
    )
    findings = {row.finding.partition(":")[0]: row for row in of(own, "invariants")}
    assert findings.keys() == {"I3", "state"}
    repair(own, findings["I3"].fix)
    assert [row.severity for row in of(own, "invariants")] == ["ok"]
    worker = own.register_worker()
    assert [job.id for job in own.claim_jobs(worker, 10)] == [1]


def test_two_jobs_with_one_key(own: Any) -> None:
    own.add_job("t", job_key="it's")
    own.add_job("t")
    own.rows("drop index pyworker.live_jobs_job_key; update pyworker.live_jobs set job_key = 'it''s'")
    heals(own, "invariants", "error", "I2: more than one job holds the job_key it's")
    heals(own, "schema", "error", "index live_jobs_job_key is missing")


def test_history(api: Any, job_in: Any) -> None:
    done, cancelled = job_in("completed"), job_in("cancelled")
    api.rows("update pyworker.finished_jobs set parked = 'queue', expires_at = null")
    api.rows(f"update pyworker.finished_jobs set state = 'running' where id = {cancelled.id}")
    heals(
        api,
        "invariants",
        "error",
        f"history: finished jobs that cannot have ended like this: job {done.id}, {cancelled.id}",
    )
    assert [api.get_job(job.id).state for job in (done, cancelled)] == ["completed", "cancelled"]


def test_completed_without_a_run(api: Any, job_in: Any) -> None:
    job_in("completed")
    by_hand = api.add_job("t")
    api.complete_jobs([by_hand.id])
    assert of(api, "invariants")[0].severity == "ok"
    api.rows("update pyworker.finished_jobs set run = 0")
    heals(api, "invariants", "error", "history: ")
    assert api.get_job(by_hand.id).state == "completed"


def test_a_job_in_two_places(api: Any, job_in: Any) -> None:
    job = job_in("completed")
    api.rows("insert into pyworker.live_jobs select * from pyworker.finished_jobs")
    api.rows("update pyworker.live_jobs set state = 'available', ready_at = run_at, finished_at = null, expires_at = null,"
             " worker_id = null, claimed_at = null")  # fmt: skip
    heals(api, "invariants", "error", "one place: jobs that are live and finished at once: job")
    assert api.get_job(job.id).state == "available"


def test_jobs_of_the_dead(api: Any, job_in: Any, clock: Any) -> None:
    job = job_in("running")
    clock.advance(seconds=30)
    assert of(api, "invariants")[0].severity == "ok"
    clock.advance(seconds=20)
    heals(
        api,
        "invariants",
        "error",
        f"I1: jobs are held by workers that have been dead for more than 25 seconds: job {job.id}",
    )
    assert api.claim(api.register_worker()).id == job.id
    api.rows("delete from pyworker.workers")
    clock.advance(seconds=30)
    heals(api, "invariants", "error", f"more than 25 seconds: job {job.id}")


def test_a_unique_key_without_its_row(api: Any) -> None:
    api.add_job("t", unique_policy={})
    api.rows("delete from pyworker.unique_keys")
    heals(api, "invariants", "error", "ledger: ")
    assert api.add_job("t", unique_policy={"on_conflict": "ignore"}).deduplicated


def test_more_in_flight_than_the_limit(api: Any, worker: int) -> None:
    api.set_queue("it's", None)
    for _ in range(3):
        api.add_job("t", queue_name="it's")
    assert len(api.claim_jobs(worker, 5)) == 3
    api.rows(
        "update pyworker.queues set concurrency = 1, updated_at = null; delete from pyworker.promotion_requests"
    )
    (row,) = of(api, "invariants")
    assert (
        row.severity,
        "I13: more jobs than the limit allows are in flight in queue it's" in row.finding,
    ) == (
        "error",
        True,
    )
    assert "no other job of these queues starts" in row.fix
    api.finish(1, 2)


@pytest.mark.parametrize("kind", ["queue", "sequence"])
def test_stranded_jobs(api: Any, worker: int, kind: str) -> None:
    how = {"queue_name": "q"} if kind == "queue" else {"sequence_policy": {"by_args": True}}
    for _ in range(2):
        api.add_job("t", **how)
    api.promote_jobs()
    api.rows("delete from pyworker.promotion_requests; delete from pyworker.live_jobs where id = 1")
    heals(api, "invariants", "error", f"stranded {kind}: jobs wait and nothing will call them")
    assert api.claim(worker).id == 2


def test_a_halt_by_a_job_that_has_not_ended(api: Any) -> None:
    api.add_job("t", sequence_policy={"by_args": True})
    api.rows(
        "insert into pyworker.sequence_halts select sequence_key, id, 'discarded', now() from pyworker.live_jobs"
    )
    heals(api, "invariants", "error", "halt: ")


# Schema --------------------------------------------------------------------------------------------------------------

DRIFT = {
    "create or replace function pyworker.heartbeat(worker_id bigint) returns boolean language sql as 'select true'":
        "function heartbeat(worker_id bigint) is not what was installed",
    "alter function pyworker.maintain() reset lock_timeout": "function maintain() is not what was installed",
    "drop function pyworker.unregister_worker(bigint)": "function unregister_worker(worker_id bigint) is missing",
    "drop view pyworker.sequences": "view sequences is missing",
    "create or replace view pyworker.live_workers as select id, info, started_at, beat_at, expires_at from pyworker.workers":
        "view live_workers is not what was installed",
    "drop index pyworker.live_jobs_due": "index live_jobs_due is missing",
    "drop index pyworker.finished_jobs_id": "index finished_jobs_id is missing",
    "drop index pyworker.live_jobs_due; create index live_jobs_due on pyworker.live_jobs (due_at)":
        "index live_jobs_due is not what was installed",
    "create index mine on pyworker.live_jobs (state)": "index mine is not pyworker's",
    "alter table pyworker.workers drop column suspect_since": "column workers.suspect_since is missing",
    "alter table pyworker.promotion_requests add column mine integer": "column promotion_requests.mine is not pyworker's",
    "alter table pyworker.errors alter column worker type varchar(10)": "column errors.worker is not what was installed",
    "alter table pyworker.errors alter column error drop not null": "default of errors.error is not what was installed",
    "alter table pyworker.unique_keys alter column adds drop default": "default of unique_keys.adds is not what was installed",
    "alter table pyworker.queues drop constraint queues_concurrency": "constraint queues_concurrency is missing",
    "alter table pyworker.once_keys drop constraint once_keys_pkey": "constraint once_keys_pkey is missing",
    "drop table pyworker.sequence_halts cascade": "table sequence_halts is missing",
    "drop table pyworker.once_keys": "table once_keys is missing",
    "drop sequence pyworker.swept_at": "sequence swept_at is missing",
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
            for v in select c.oid::regclass as name from pg_class c where c.relnamespace = 'pyworker'::regnamespace and c.relkind = 'v' loop
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
        "drop view pyworker.jobs, pyworker.history; drop index pyworker.live_jobs_ready, pyworker.live_jobs_due"
    )
    own.rows(
        "do $$ begin for i in 1..9 loop execute format('create index mine%s on pyworker.errors (at)', i); end loop; end $$"
    )
    rows = of(own, "schema")
    assert (len(rows), rows[-1].finding) == (11, "and 3 more")


def test_another_major_version_compares_names_only(own: Any) -> None:
    own.rows(
        "update pyworker.installed_objects set digest = case when object = 'server' then '13' else 'other words' end"
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
        "revoke usage on schema pyworker from pyworker_reader; revoke select on pyworker.history from pyworker_reader"
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


# Work that waits -----------------------------------------------------------------------------------------------------


def test_partitions(own: Any) -> None:
    own.rows("select pyworker.register_worker()")
    (name,) = own.rows(
        "select min(c.relname) as name from pg_class c where c.relname ~ '^finished_jobs_[0-9]+$' and c.relkind = 'r'"
    )[0]
    own.rows(f"drop table pyworker.{name}")
    heals(own, "partitions", "warning", "history has no partition for what expires on 2")
    own.rows(f"drop table pyworker.{name}")
    own.add_job("t")
    job = own.claim(1)
    own.finish_job(job.id, job.run)
    heals(own, "partitions", "info", "finished jobs in the default partition: 1; they are pruned one by one")
    assert own.get_job(job.id).state == "completed"
    assert own.value("select tableoid::regclass::text from pyworker.finished_jobs") == f"pyworker.{name}"
    own.rows("drop table pyworker.finished_jobs_default")
    heals(own, "partitions", "error", "finished_jobs has no default partition")
    assert short(doctor(own)) == HEALTHY


def test_nobody_promotes(api: Any, clock: Any) -> None:
    api.add_job("t", run_at=api.at("1 minute"))
    clock.advance(minutes=10)
    heals(api, "maintenance", "warning", "due jobs are not promoted: the oldest has been due since ")


def test_nobody_prunes(own: Any) -> None:
    own.register_worker()
    own.rows("select pyworker.add_job('t'); select pyworker.add_job('t')")
    failed, done = own.claim_jobs(1, 2)
    own.fail(failed, discard=True)
    own.finish_job(done.id, done.run)
    own.rows("set pyworker.clock_offset = '8 days'")
    (row,) = of(own, "maintenance")
    assert (row.severity, row.finding[:45]) == ("warning", "expired jobs are not pruned: what expired at ")
    repair(own, row.fix)
    assert of(own, "maintenance")[0].severity == "ok"


def test_no_worker(api: Any, clock: Any) -> None:
    api.add_job("t")
    the(api, "workers", "info", "no worker is alive; jobs that wait: 1, the first since")
    clock.advance(minutes=2)
    the(api, "workers", "warning", "no worker is alive; jobs that wait: 1, the first since")
    api.register_worker()
    assert of(api, "workers")[0].severity == "ok"


def test_tasks_that_nobody_knows_and_queues_that_nobody_serves(api: Any) -> None:
    for task, queue in (("t", None), ("t", None), ("u", None), ("v", "q")):
        api.add_job(task, queue_name=queue)
    api.promote_jobs()
    worker = api.register_worker()
    assert of(api, "tasks")[0].severity == "ok"  # it has not said what it takes
    api.update_worker(worker, {"task_identifiers": ["v"], "queue_names": ["default"]})
    assert [(row.severity, row.finding) for row in of(api, "tasks")] == [
        ("warning", "jobs wait for tasks that no live worker knows: t (2), u (1)"),
        ("warning", "jobs wait in queues that no live worker serves: q (1)"),
    ]
    api.update_worker(worker, {"task_identifiers": ["t", "u", "v"], "queue_names": ["q", "default"]})
    assert of(api, "tasks")[0].severity == "ok"


def test_code_that_declares_a_task_otherwise_than_the_database_defines_it(api: Any, clock: Any) -> None:
    api.define_task(
        "charge", max_attempts=2, delivery="at_most_once", timeout="90 seconds", queue_name="mail"
    )
    declared = {"max_attempts": 2, "delivery": "at_most_once", "timeout": 90.0, "queue_name": "mail"}
    old, new = api.register_worker({"name": "old"}), api.register_worker()
    api.update_worker(old, {"definitions": {"charge": declared}})
    api.update_worker(new, {"definitions": {"charge": declared, "plain": {"queue_name": "default"}}})
    assert of(api, "tasks")[0].severity == "ok"
    api.update_worker(
        old, {"definitions": {"charge": {**declared, "max_attempts": 25}, "new": {"backoff": ["1 h"]}}}
    )
    assert (
        "(max_attempts: 25 in worker old, 2 in the database)"
        in the(api, "tasks", "warning", "declares tasks otherwise").finding
    )
    assert 'new (backoff: ["1 h"] in worker old, none in the database)' in of(api, "tasks")[0].finding
    api.define_task("charge", max_attempts=25, timeout="2 minutes")
    api.define_task("new", backoff='["1 h"]')
    finding = of(api, "tasks")[0].finding
    for difference in (
        f'delivery: "at_most_once" in worker {new}, old, none in the database',
        f"max_attempts: 2 in worker {new}, 25 in the database",
        'queue_name: "mail" in worker',
        "timeout: 90.0 in worker",
    ):
        assert difference in finding
    assert "new (" not in finding
    clock.advance(minutes=2)  # the dead declare nothing
    assert [row.severity for row in of(api, "tasks")] == ["ok"]


@pytest.mark.parametrize("definitions", [5, [], {"charge": 5}, {"charge": None}, {}, None])
def test_a_worker_may_say_of_its_tasks_what_it_likes(api: Any, definitions: Any) -> None:
    api.define_task("charge", max_attempts=2)
    api.update_worker(api.register_worker(), {"definitions": definitions})
    assert of(api, "tasks")[0].severity == "ok"


def test_halted_sequences(api: Any, worker: int) -> None:
    for _ in range(2):
        api.add_job("t", sequence_policy={"key": "it's"})
    api.fail(api.claim(worker), discard=True)
    heals(api, "sequences", "info", "halted sequences: ")
    assert api.claim(worker).id == 2


def test_paused_queues(api: Any, worker: int) -> None:
    api.pause_queue("it's")
    assert of(api, "queues")[0].severity == "ok"
    api.add_job("t", queue_name="it's")
    heals(api, "queues", "info", "jobs wait in paused queues: it's")
    assert api.claim(worker).id == 1


def test_lost_jobs(api: Any, worker: int) -> None:
    job = api.add_job("t", delivery="at_most_once")
    run = api.claim(worker)
    assert api.start_job(run.id, run.run)
    api.unregister_worker(worker)
    heals(api, "lost", "warning", f"done or not: job {job.id}; delete_job those that were done")
    assert api.get_job(job.id).state == "available"


# The server ----------------------------------------------------------------------------------------------------------


def test_an_old_transaction_and_its_owner(api: Any, session: Any, clock: Any) -> None:
    other = session()
    other.run("set application_name = 'the report'")
    other.begin("repeatable read")
    assert of(api, "xmin")[0].severity == "ok"
    clock.advance(minutes=10)
    row = the(
        api, "xmin", "warning", f"session {other.pid} of postgres (application the report) keeps vacuum"
    )
    assert "state idle in transaction" in row.finding
    assert row.fix == f"select pg_terminate_backend({other.pid})"
    repair(api, row.fix)
    for _ in range(200):
        if of(api, "xmin")[0].severity == "ok":
            return
        time.sleep(0.05)
    raise AssertionError(of(api, "xmin"))


def test_of_a_session_that_may_not_be_looked_at_the_time_is_unknown(own: Any, fresh_dsn: str) -> None:
    name = own.conn.info.dbname
    own.rows(f'create role plain; grant create on database "{name}" to plain; drop schema pyworker cascade')
    try:
        own.rows("set role plain")
        migrate(own.conn)
        with psycopg.connect(fresh_dsn) as other:
            other.execute("select pg_current_xact_id()")
            pid = other.info.backend_pid
            assert short(of(own, "xmin")) == [("xmin", "ok", None)]
            own.rows("reset role")
            own.rows("create temp table x (y integer)")
            own.rows("do $$ begin for i in 1..10010 loop begin insert into x values (i); exception when others then null; end;"
                     " end loop; end $$")  # fmt: skip
            row = the(own, "xmin", "warning", "in a transaction since unknown, state unknown")
            other.rollback()
        assert row.fix == f"select pg_terminate_backend({pid})"
        assert of(own, "xmin")[0].severity == "ok"
    finally:
        own.rows("reset role; drop owned by plain cascade; drop role plain")


def test_a_prepared_transaction(api: Any, session: Any, clock: Any) -> None:
    if api.value("show max_prepared_transactions") == "0":
        pytest.skip("max_prepared_transactions = 0")
    other = session()
    other.begin()
    other.run("select pg_current_xact_id()")
    other.run("prepare transaction 'it''s doctor'")
    try:
        clock.advance(minutes=10)
        heals(api, "xmin", "warning", "transaction 'it''s doctor', prepared at ")
    finally:
        for (gid,) in api.rows("select gid from pg_prepared_xacts where gid like '%doctor'"):
            api.rows("rollback prepared '{}'".format(gid.replace("'", "''")))


def test_bloat(own: Any) -> None:
    own.rows("alter table pyworker.promotion_requests set (autovacuum_enabled = off)")
    own.rows(
        "insert into pyworker.promotion_requests select 'queue:q' from generate_series(1, 20100); delete from pyworker.promotion_requests;"
        "select pg_stat_force_next_flush()"
    )
    heals(
        own,
        "bloat",
        "warning",
        "promotion_requests has 20100 dead rows beside 0 live ones; last vacuum: never",
    )
    heals(own, "autovacuum", "warning", "autovacuum is off for promotion_requests")


@contextmanager
def a_server(api: Any, **settings: str) -> Iterator[Any]:
    with temporary_server(in_memory=True, settings=settings) as server:
        with psycopg.connect(server.url(), autocommit=True) as conn:
            migrate(conn)
            yield type(api)(conn)


@pytest.fixture(scope="module")
def version(pg_server: Any) -> int:
    with psycopg.connect(
        host=pg_server.host, port=pg_server.port, user=pg_server.user, dbname="postgres"
    ) as conn:
        return conn.info.server_version // 10000


def test_a_server_with_other_settings(api: Any, version: int) -> None:
    settings = {
        "wal_level": "logical",
        "max_wal_senders": "2",
        "max_locks_per_transaction": "32",
        "synchronous_commit": "on",
    }
    if version >= 17:
        settings["max_notify_queue_pages"] = "64"
    with a_server(api, **settings) as own:
        assert "take" in the(own, "settings", "info", "max_locks_per_transaction is 32").finding

        own.rows("select pg_create_logical_replication_slot('it_is_a_slot', 'pgoutput')")
        heals(own, "xmin", "warning", "replication slot it_is_a_slot (logical) is not in use")

        for name in ("track_counts", "autovacuum"):
            own.rows(f"alter system set {name} = off")
            own.rows("select pg_reload_conf()")
            until(own, "autovacuum", "warning")
            repair(own, the(own, "autovacuum", "warning", f"{name} is off").fix)
            until(own, "autovacuum", "ok")

        if version >= 17:
            listener = psycopg.connect(own.conn.info.dsn)
            listener.execute("listen x")
            listener.commit()
            listener.execute("select 1")  # and stays in this transaction
            own.rows("select pg_notify('x', i || repeat('x', 7000)) from generate_series(1, 50) i")
            row = the(own, "notifications", "warning", f"probably {listener.info.backend_pid} of postgres")
            repair(own, row.fix)
            until(own, "notifications", "ok")
            listener.close()


def until(api: Any, check: str, severity: str) -> None:
    for _ in range(200):
        if [row.severity for row in of(api, check)] == [severity]:
            return
        time.sleep(0.05)
    raise AssertionError(of(api, check))


def test_synchronous_commit_off_is_fine(api: Any) -> None:
    api.rows("set synchronous_commit = off")
    assert the(api, "settings", "ok", "synchronous_commit is off").fix is None
    api.rows("set synchronous_commit = on")
    assert "settings suit" in of(api, "settings")[0].finding
