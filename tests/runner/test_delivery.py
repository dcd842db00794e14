"""What may be relied upon when handlers hang, die, are cancelled or must not be run twice: with
real workers, really killed."""

from __future__ import annotations

import json
import signal
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo


def told(queue: Any, job_id: int) -> list[Any]:
    return [row.told for row in queue.seen(job_id)]


# At most once


@pytest.mark.parametrize("task", ["deliver", "deliver_async"])
def test_what_may_run_only_once_is_not_run_again_after_its_process_was_killed(queue: Any, task: str) -> None:
    queue.start().until_ready()
    job_id = queue.add(task, {"die": True})
    queue.until_state("discarded", job_id)
    job = queue.job(job_id)
    assert (job.reason, job.delivery, len(queue.seen(job_id))) == ("lost", "at_most_once", 1)
    assert "SIGKILL" in job.last_error
    other = queue.add(task)
    queue.until_state("completed", other)
    assert len(queue.seen(job_id)) == 1


def test_what_may_run_only_once_is_lost_with_its_whole_worker_and_a_person_may_run_it_again(
    queue: Any, clock: Any, db: Any
) -> None:
    queue.close_gate(1)
    worker = queue.start()
    worker.until_ready()
    job_id = queue.add("deliver", {"gate": 1})
    queue.until_waiting(1)
    with queue.ends_of(worker.children()):
        worker.signal(signal.SIGKILL)
    queue.start()
    queue.until_state("discarded", job_id)
    assert queue.job(job_id).reason == "lost"
    queue.open_gate(1)
    queue.rows("select pyworker.retry_job(%s)", job_id)
    queue.until_state("completed", job_id)
    assert len(queue.seen(job_id)) == 2


@pytest.mark.parametrize("task", ["deliver", "deliver_async"])
def test_a_failure_after_the_start_is_final_and_one_before_it_is_not(queue: Any, task: str) -> None:
    queue.start().until_ready()
    failing, trying = queue.add(task, {"fail": True}), queue.add(task, {"not_started": 1})
    queue.until_state("discarded", failing)
    queue.until_state("completed", trying)
    assert "must not be run twice" in queue.job(failing).reason
    assert len(queue.seen(failing)) == 1
    assert [seen.run for seen in queue.seen(trying)] == [queue.job(trying).run]  # the second one
    assert "mail server is away" in queue.job(trying).last_error


@pytest.mark.parametrize(
    ("task", "modules", "payload"),
    [
        ("deliver", "handlers", {"die": True}),
        ("deliver_async", "handlers", {"die": True}),
        ("deadly_once", "batched", {"kill": 1}),
        ("deadly_once_async", "batched", {"kill": 1}),
    ],
)
def test_what_the_code_says_runs_at_most_once_never_runs_twice_whatever_its_row_says(
    queue: Any, task: str, modules: str, payload: Any
) -> None:
    queue.rows("select pyworker.define_task(%s, delivery => null)", task)
    jobs = [queue.add(task, payload), queue.add(task, payload, delivery="at_least_once")]
    assert [queue.job(job).delivery for job in jobs] == ["at_least_once"] * 2
    worker = queue.start("--task", task, "--concurrency", "1", modules=modules)
    queue.until_state("discarded", *jobs)
    assert [(queue.job(job).reason, queue.job(job).delivery) for job in jobs] == [
        ("lost", "at_most_once")
    ] * 2
    assert [len(queue.seen(job)) for job in jobs] == [1, 1]
    assert f"({task}) was added with delivery at_least_once; it runs at most once" in worker.log


def test_what_its_row_says_runs_at_most_once_does_so_whatever_the_code_says(queue: Any) -> None:
    queue.start().until_ready()
    job = queue.add("act", {"raise": ["error", "boom"]}, delivery="at_most_once")
    queue.until_state("discarded", job)
    assert len(queue.seen(job)) == 1


def test_a_worker_says_once_that_its_code_is_stricter_than_the_jobs_of_a_task(queue: Any) -> None:
    worker = queue.start().until_ready()
    jobs = [queue.add("deliver", {"fail": True}, delivery="at_least_once") for _ in range(3)]
    queue.until_state("discarded", *jobs)
    assert [len(queue.seen(job)) for job in jobs] == [1, 1, 1]
    assert worker.log.count("was added with delivery at_least_once") == 1


def test_a_keyed_add_that_resets_a_lost_job_does_not_make_it_run_twice(queue: Any) -> None:
    queue.start().until_ready()
    for told in (1, 2):
        job = queue.add("deliver", {"die": True}, job_key="mail", delivery="at_least_once")
        queue.until_state("discarded", job)
        assert len(queue.seen(job)) == told


def test_what_was_only_claimed_when_its_process_died_is_run(queue: Any) -> None:
    """One handler at a time: the second job is claimed, and not begun."""
    queue.start("--concurrency", "1").until_ready()
    queue.rows("select pyworker.define_task('deliver', delivery => 'at_most_once')")
    jobs = queue.rows(
        "select id from pyworker.add_jobs(%s::jsonb)",
        '[{"identifier": "die"}, {"identifier": "deliver"}, {"identifier": "deliver"}]',
    )
    ids = [job.id for job in jobs]
    queue.until_state("completed", *ids)
    assert [len(queue.seen(one)) for one in ids[1:]] == [1, 1]


@pytest.mark.parametrize(
    ("task", "said"), [("mail_once", [True, False]), ("mail_once_async", [True, False, False])]
)
def test_job_once_is_true_once_over_all_attempts(queue: Any, task: str, said: list[bool]) -> None:
    queue.start().until_ready()
    for _ in range(2):  # each job for itself
        job_id = queue.add(task)
        queue.until_state("completed", job_id)
        assert told(queue, job_id) == said


# Time


@pytest.mark.parametrize(
    ("task", "no_uvloop"), [("too_long", "1"), ("too_long_async", "1"), ("too_long_async", "0")]
)
def test_a_handler_that_takes_too_long_is_ended_and_only_its_job_is_charged(
    queue: Any, task: str, no_uvloop: str
) -> None:
    queue.close_gate(1)
    worker = queue.start("--concurrency", "3", PYWORKER_RUN_NO_UVLOOP=no_uvloop)
    worker.until_ready()
    bystander = queue.add("note", {"gate": 1}, max_attempts=1)
    queue.until_waiting(1)
    late = queue.add(task)
    queue.until_state("retryable", late)
    job = queue.job(late)
    assert (job.attempts, len(queue.seen(late))) == (1, 1)
    assert "timed out" in job.last_error
    queue.open_gate(1)
    queue.until_state("completed", bystander)
    assert queue.job(bystander).attempts == 1
    # What can be cancelled costs the process nothing.
    assert len(queue.seen(bystander)) == (1 if task == "too_long_async" else 2)
    assert worker.stop() == 0


def test_a_handler_within_its_time_is_left_alone(queue: Any) -> None:
    queue.rows("select pyworker.define_task('note', timeout => '1 minute')")
    queue.start()
    jobs = [queue.add("note") for _ in range(3)]
    queue.until_state("completed", *jobs)
    assert [queue.job(job).attempts for job in jobs] == [1, 1, 1]


def test_a_timeout_set_by_sql_holds_for_a_task_that_names_none(queue: Any) -> None:
    queue.rows("select pyworker.define_task('look_away', timeout => '300 ms', max_attempts => 1)")
    queue.start()
    job_id = queue.add("look_away")
    queue.until_state("discarded", job_id)
    assert "timed out" in queue.job(job_id).last_error


# Cancelled


def test_a_sync_handler_sees_that_its_job_is_cancelled(queue: Any) -> None:
    queue.start().until_ready()
    stops, ends = queue.add("look_around"), queue.add("look_around", {"finish_anyway": True})
    queue.until("select count(*) = 2 from public.seen")
    for job_id in (stops, ends):
        queue.rows("select pyworker.cancel_job(%s)", job_id)
    queue.until_state("cancelled", stops)
    queue.until_state("completed", ends)  # success is success
    assert told(queue, stops) == told(queue, ends) == ["begun", "saw it"]


@pytest.mark.parametrize("no_uvloop", ["1", "0"])
def test_an_async_handler_is_cancelled_and_may_clean_up(queue: Any, no_uvloop: str) -> None:
    queue.start(PYWORKER_RUN_NO_UVLOOP=no_uvloop).until_ready()
    job_id = queue.add("sleep_async")
    queue.until("select count(*) = 1 from public.seen")
    queue.rows("select pyworker.cancel_job(%s)", job_id)
    queue.until_state("cancelled", job_id)
    assert told(queue, job_id) == ["begun", "cleaned up"]


@pytest.mark.parametrize("how", ["cancel", "force", "replace"])
def test_a_handler_that_does_not_listen_is_ended_after_a_grace(queue: Any, how: str) -> None:
    unique = """select pyworker.add_job('look_away', unique_policy => '{"on_conflict": "replace"}')"""
    worker = queue.start("--concurrency", "1").until_ready()
    (child,) = worker.children()
    queue.rows(unique)
    queue.until("select count(*) = 1 from public.seen")
    queue.rows(unique if how == "replace" else f"select pyworker.cancel_job(1, {how == 'force'})")
    queue.until_state("cancelled", 1)
    if how == "replace":
        queue.until("select count(*) = 2 from public.seen")
        assert queue.seen()[1].job_id == 2
    else:
        later = queue.add("note")
        queue.until_state("completed", later)
    assert child not in worker.children()
    worker.end()


def test_other_cancels_do_not_prolong_the_grace_of_a_handler_that_does_not_listen(queue: Any) -> None:
    queue.start("--concurrency", "2").until_ready()
    job_id = queue.add("look_away")
    queue.until("select count(*) = 1 from public.seen")
    queue.rows("select pyworker.cancel_job(%s)", job_id)
    for _ in range(200):
        queue.rows("select pg_notify('pyworker', 'cancel'), pg_sleep(0.1)")
        if queue.states(job_id) == ["cancelled"]:
            break
    assert queue.states(job_id) == ["cancelled"]


# Memory, and a parent that has lost touch


def test_a_process_that_holds_too_much_memory_is_replaced_without_harm_or_ended(queue: Any) -> None:
    worker = queue.start("--max-memory", "150", "--concurrency", "1").until_ready()
    (first,) = worker.children()
    leak = [queue.add("hold_memory", {"mb": 60}) for _ in range(2)]
    queue.until_state("completed", *leak)
    assert [len(queue.seen(job_id)) for job_id in leak] == [1] * 2
    worker.until_log("replacing it")
    queue.until_so("another process", lambda: bool(worker.children()) and first not in worker.children())
    monster = queue.add("hold_memory", {"mb": 400}, max_attempts=1)
    after = queue.add("note")
    queue.until_state("completed", after)
    assert queue.states(monster)[0] in ("completed", "discarded")  # it may be done before the parent looks
    assert worker.stop() == 0


def test_a_worker_that_cannot_reach_the_database_for_long_ends_its_handlers(fresh_queue: Any) -> None:
    """Others may be given its jobs then. (A lease of 12 seconds, of which it waits three quarters.)"""
    queue = fresh_queue
    queue.rows("select pyworker.configure(worker_ttl => '12 s')")
    queue.rows("create role lonely login superuser")
    worker = queue.start("--concurrency", "1", DATABASE_URL=queue.dsn.replace("user=postgres", "user=lonely"))
    worker.until_ready()
    job_id = queue.add("look_away")
    queue.until("select count(*) = 1 from public.seen")
    (child,) = worker.children()
    with queue.ends_of([child]):
        queue.rows("alter role lonely nologin")
        queue.rows("select pg_terminate_backend(pid) from pg_stat_activity where usename = 'lonely'")
    worker.until_log("has not answered for")
    queue.rows("alter role lonely login")
    queue.until("select count(*) = 2 from public.seen where job_id = %s", job_id)
    worker.end()
    queue.rows("drop owned by lonely; drop role lonely")


def test_a_process_whose_lease_was_not_prolonged_begins_nothing_and_gives_back_what_it_has(
    queue: Any,
) -> None:
    """Its parent stands still, so that no process ends it; others may be given what it holds at
    any moment."""
    queue.rows("select pyworker.configure(worker_ttl => '12 s')")
    worker = queue.start("--concurrency", "1").until_ready()
    queue.close_gate(1)
    specs = [{"identifier": "note", "payload": {"gate": 1} if n == 39 else {}} for n in range(80)]
    first = queue.rows("select id from pyworker.add_jobs(%s::jsonb)", json.dumps(specs))[0].id
    queue.until_waiting(1)
    held = [
        row.id
        for row in queue.rows("select id from pyworker.jobs where state = 'running' and id > %s", first + 39)
    ]
    assert held
    worker.signal(signal.SIGSTOP)
    try:
        # 9 seconds after its last beat, which may have found the lease as much as 1.5 seconds old
        queue.until("select max(beat_at) < clock_timestamp() - interval '10.7 s' from pyworker.live_workers")
        queue.open_gate(1)
        queue.until_state("available", *held)
        assert queue.value("select count(*) from public.seen") == 40
    finally:
        worker.signal(signal.SIGCONT)
    queue.until_state("completed", *held)
    worker.end()


def test_a_killed_workers_jobs_run_elsewhere_long_before_its_lease_ends(queue: Any, clock: Any) -> None:
    """By the lock of its control connection; the leases of 20 seconds are stretched to an hour, so
    that it cannot be them."""
    queue.rows("select pyworker.configure(worker_ttl => '1 hour')")
    queue.close_gate(1)
    doomed = queue.start()
    job_id = queue.add("note", {"gate": 1})
    queue.until_waiting(1)
    other = queue.start().until_ready()
    with queue.ends_of(doomed.children()):
        doomed.signal(signal.SIGKILL)
    queue.until("select count(*) = 2 from public.seen where job_id = %s", job_id)
    queue.open_gate(1)
    queue.until_state("completed", job_id)
    assert [error.error for error in queue.rows("select error from pyworker.job_errors(%s)", job_id)] == [
        "worker died"
    ]
    assert other.stop() == 0


def test_a_worker_that_loses_its_control_connection_has_it_again_before_it_is_taken_for_dead(
    queue: Any,
) -> None:
    queue.close_gate(1)
    worker = queue.start("--concurrency", "1").until_ready()
    job_id = queue.add("deliver", {"gate": 1})
    queue.until_waiting(1)
    holder = (
        "from pg_locks l join pyworker.workers w on l.objid = w.id where l.locktype = 'advisory' "
        "and l.objsubid = 2 and l.granted"
    )
    holder += (
        " and l.classid <> 77 and l.database = (select oid from pg_database "
        "where datname = current_database())"
    )
    for _ in range(2):
        was = queue.until(f"select max(l.pid) {holder} and w.locked and w.suspect_since is null")
        queue.rows("select pg_terminate_backend(%s, 10000)", was)
        queue.until(f"select max(l.pid) <> %s {holder}", was)
    # Longer than the grace: as many sweeps as it would have taken to find it dead.
    swept = queue.value("select last_value from pyworker.swept_at")
    queue.until("select last_value > %s from pyworker.swept_at", swept + 4000)
    assert queue.rows("select id from pyworker.workers where dead_at is not null") == []
    queue.open_gate(1)
    queue.until_state("completed", job_id)
    assert len(queue.seen(job_id)) == 1
    assert worker.stop() == 0


def test_no_worker_is_taken_for_dead_because_the_database_was_away_for_a_moment(queue: Any) -> None:
    """Too short for an amnesty; the worker that is back first sweeps."""
    queue.close_gate(1)
    workers = [queue.start("--concurrency", "1").until_ready() for _ in range(2)]
    jobs = [queue.add("deliver", {"gate": 1}) for _ in workers]
    queue.until_waiting(1, 2)
    name = queue.value("select quote_ident(current_database())")
    with psycopg.connect(make_conninfo(queue.dsn, dbname="postgres"), autocommit=True) as outside:
        outside.execute(f"alter database {name} allow_connections false")
        queue.rows(
            "select count(pg_terminate_backend(pid, 10000)) from pg_stat_activity"
            " where datname = current_database() and query !~ 'advisory' and application_name = 'pyworker'"
        )
        refused = "not currently accepting connections"
        for worker in workers:  # at the loss, and when they tried again
            queue.until_so(
                "the parent was refused twice",
                lambda worker=worker: (
                    sum(refused in line and "parent[" in line for line in worker.log.split("\n")) >= 2
                ),
            )
        outside.execute(f"alter database {name} allow_connections true")
    back = queue.value("select (extract(epoch from clock_timestamp()) * 1000)::bigint")
    queue.until("select last_value > %s + 4000 from pyworker.swept_at", back)
    assert queue.rows("select id from pyworker.workers where dead_at is not null") == []
    queue.open_gate(1)
    queue.until_state("completed", *jobs)
    assert [len(queue.seen(job_id)) for job_id in jobs] == [1, 1]
    assert [worker.stop() for worker in workers] == [0, 0]
