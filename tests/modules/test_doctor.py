"""doctor(): a healthy installation has no finding, and each broken invariant is one that its fix repairs."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pyworker._db.migrations import migrate
from tests.support.dependencies import child, running, state
from tests.support.doctor import HEALTHY, doctor, heals, of, repair, short, the
from tests.support.waits import again, waiting


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
        "drop view pyworker.jobs; drop function pyworker._check_partitions(); "
        "alter table pyworker.workers rename to gone"
    )
    rows = {row.check_name: row for row in doctor(own) if row.severity != "ok"}
    assert rows.keys() >= {"invariants", "workers", "tasks", "partitions"}
    failed = "the check itself failed: function _check_partitions() does not exist"
    assert rows["partitions"].finding.startswith(failed)


# Invariants ---------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("fix", ["state", "I14"])
@pytest.mark.parametrize("sequence", [None, {"key": "s"}])
def test_a_repaired_job_still_waits_for_the_jobs_that_it_depends_on(
    api: Any, worker: int, sequence: Any, fix: str
) -> None:
    parent = api.add_job("t").id
    job = api.add_job("t", depends_on=f"[{parent}]", sequence_policy=sequence and Jsonb(sequence)).id
    api.rows(f"update pyworker.live_jobs set parked = null where id = {job}")
    findings = {row.finding.partition(":")[0]: row for row in of(api, "invariants")}
    assert findings.keys() == {"state", "I14"}
    repair(api, findings[fix].fix)
    assert of(api, "invariants")[0].severity == "ok"
    assert [row.id for row in api.claim_jobs(worker, 10)] == [parent]
    api.finish(parent)
    assert [row.id for row in api.claim_jobs(worker, 10)] == [job]


def test_a_job_that_runs_before_its_dependencies_hold_goes_on(api: Any, worker: int) -> None:
    parent = api.add_job("t", run_at=api.at("1 hour")).id
    job = api.add_job("t", depends_on=f"[{parent}]").id
    api.rows(
        "update pyworker.live_jobs set state = 'available', parked = null, ready_at = run_at "
        f"where id = {job}"
    )
    assert [row.id for row in api.claim_jobs(worker, 10)] == [job]
    heals(api, "invariants", "error", "I14: ")
    assert api.finish(job) == [job]


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
    api.rows("update pyworker.live_jobs set state = 'available', ready_at = run_at,"
             " finished_at = null, expires_at = null,"
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
    heals(api, "invariants", "error", "unique key: jobs whose unique key others may take")
    assert api.add_job("t", unique_policy={"on_conflict": "ignore"}).deduplicated


def test_more_in_flight_than_the_limit(api: Any, worker: int) -> None:
    api.set_queue("it's", None)
    for _ in range(3):
        api.add_job("t", queue_name="it's")
    assert len(api.claim_jobs(worker, 5)) == 3
    api.rows(
        "update pyworker.queues set concurrency = 1, updated_at = null; "
        "delete from pyworker.promotion_requests"
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


@pytest.mark.parametrize("lost", ["request", "watch"])
def test_a_job_whose_parents_have_ended_without_its_notice(api: Any, worker: int, lost: str) -> None:
    parent = running(api, worker)
    job = child(api, [parent])
    assert state(api, job) == "pending"
    if lost == "request":
        api.finish(parent)
        api.rows("delete from pyworker.promotion_requests where lane = 'child'")
    else:
        api.rows("delete from pyworker.watches")
        api.finish(parent)
    heals(api, "invariants", "error", "stranded child: jobs that depend on others wait and nothing will call")
    assert api.get_job(job).state == "available"


def test_a_job_that_waits_for_a_parent_that_it_does_not_watch(api: Any, worker: int) -> None:
    parent = running(api, worker)
    job = child(api, [parent])
    assert state(api, job) == "pending"
    api.rows("delete from pyworker.watches")
    heals(api, "invariants", "error", "stranded child: ")
    assert api.get_job(job).state == "pending"
    api.finish(parent)
    assert state(api, job) == "available"


def test_a_job_whose_signal_was_sent_without_its_notice(api: Any, worker: int) -> None:
    job = waiting(api, worker)
    api.send_signal(job.id, "go", Jsonb(1))
    api.rows("delete from pyworker.promotion_requests where lane = 'signal'")
    heals(api, "invariants", "error", "stranded wait: jobs whose signal was sent wait and nothing will call")
    mine = again(api, worker, job)
    assert api.wait_for_signal(job.id, mine.run, "go") == 1


def test_a_halt_by_a_job_that_has_not_ended(api: Any) -> None:
    api.add_job("t", sequence_policy={"by_args": True})
    api.rows(
        "insert into pyworker.sequence_halts select sequence_key, id, 'discarded', now() "
        "from pyworker.live_jobs"
    )
    heals(api, "invariants", "error", "halt: ")
