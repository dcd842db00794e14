"""doctor() on maintenance, on work that waits and on the server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from pyworker._db.migrations import migrate
from pyworker._dev.postgres import temporary_server
from tests.support.doctor import HEALTHY, doctor, heals, of, repair, short, the


def test_partitions(own: Any) -> None:
    own.rows("select pyworker.register_worker()")
    (name,) = own.rows(
        "select min(c.relname) as name from pg_class c where c.relname ~ '^finished_jobs_[0-9]+$' "
        "and c.relkind = 'r'"
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


def test_no_session_promotes(api: Any, clock: Any) -> None:
    api.add_job("t", run_at=api.at("1 minute"))
    clock.advance(minutes=10)
    heals(api, "maintenance", "warning", "due jobs are not promoted: the oldest has been due since ")


def test_no_session_prunes(own: Any) -> None:
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


def test_tasks_that_no_worker_knows_and_queues_that_no_worker_serves(api: Any) -> None:
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
    api.register_worker()  # nor beside a live one
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
    found = the(api, "lost", "warning", f"done or not: job {job.id}; look at each: delete_job if it was done")
    assert [row.id for row in api.rows(found.fix)] == [job.id]
    assert "retry_jobs" not in found.fix
    assert api.get_job(job.id).state == "discarded"  # to look at it changes nothing
    api.delete_job(job.id)
    assert [row.severity for row in of(api, "lost")] == ["ok"]


def test_no_check_offers_to_run_all_lost_jobs_again(api: Any, worker: int) -> None:
    for _ in range(3):
        api.add_job("mail", delivery="at_most_once")
        run = api.claim(worker)
        assert api.start_job(run.id, run.run)
    api.add_job("other")
    api.fail(api.claim(worker), discard=True)
    api.unregister_worker(worker)
    found = [*doctor(api), *api.rows("select * from pyworker.problems()")]
    for row in found:
        if row.fix and "retry_jobs" in row.fix:
            assert [job.id for job in api.rows(row.fix)] == [4]
    (lately,) = [row for row in found if row.check_name == "discarded"]
    assert "1 job: other" in lately.finding
    assert [job.state for job in map(api.get_job, (1, 2, 3))] == ["discarded"] * 3


# The server ---------------------------------------------------------------------------------------


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
            own.rows("do $$ begin for i in 1..10010 loop"
                     " begin insert into x values (i); exception when others then null; end;"
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
        "insert into pyworker.promotion_requests select 'queue:q' from generate_series(1, 20100); "
        "delete from pyworker.promotion_requests;"
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
