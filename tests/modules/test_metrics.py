"""Promises of metrics()."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest


def metrics(db: Any, name: str, max_rows: int = 10_000) -> dict[tuple[str, ...], float]:
    """Of one metric: its values by the values of its labels, in the order of their names; those
    that are 0 left out."""
    rows = db.execute(
        "select labels, value from pyworker.metrics(%s) where name = %s", [max_rows, f"pyworker_{name}"]
    )
    return {tuple(labels[key] for key in sorted(labels)): value for labels, value in rows if value}


def metric(db: Any, name: str) -> float:
    return sum(metrics(db, name).values())


def test_jobs_are_counted_by_queue_and_state(db: Any, worker: int) -> None:
    db.execute("""
        select pyworker.add_job('a'), pyworker.add_job('a', priority := -1),
               pyworker.add_job('a', run_at := now() + interval '1 day'),
               pyworker.add_job('a', queue_name := 'q'), pyworker.add_job('a', queue_name := 'q'),
               pyworker.add_job('a', sequence_policy := '{}'), pyworker.add_job('a', sequence_policy := '{}'),
               pyworker.add_job('f', max_attempts := 1), pyworker.add_job('f')""")
    db.execute("select pyworker.promote_jobs()")
    db.execute(
        "select pyworker.fail_jobs(jsonb_agg(jsonb_build_object('id', j.id, 'run', j.run, 'error', 'x')))"
        " from pyworker.claim_jobs(%s, 9, '{f}') j",
        [worker],
    )
    assert db.execute("select count(*) from pyworker.claim_jobs(%s, 1, '{a}')", [worker]).fetchone() == (1,)
    assert metrics(db, "jobs") == {
        ("default", "available"): 2, ("default", "running"): 1, ("default", "scheduled"): 1,
        ("default", "retryable"): 1,
        ("default", "discarded"): 1, ("default", "pending"): 1, ("q", "available"): 2,
    }  # fmt: skip
    assert metric(db, "jobs_added_total") == 9


def test_without_jobs_every_state_and_every_metric_is_there_as_zero(db: Any) -> None:
    rows = db.execute("select name, labels ->> 'state', value from pyworker.metrics()").fetchall()
    assert {state for _, state, _ in rows if state} == {
        "scheduled", "pending", "available", "running", "retryable", "discarded",
    }  # fmt: skip
    server = {"jobs_ended_total", "attempts_failed_total", "dead_rows", "oldest_xmin_age"}  # of all tests
    assert [row for row in rows if row[2] and row[0].removeprefix("pyworker_") not in server] == []
    assert len({name for name, _, _ in rows}) == 14


def test_counting_stops_at_the_limit(db: Any) -> None:
    db.execute("select pyworker.add_job('a') from generate_series(1, 5)")
    assert metrics(db, "jobs", 3) == {("default", "available"): 3}
    assert metrics(db, "promotion_requests", 3) == {}
    for wrong in (0, None):
        with pytest.raises(psycopg.Error, match="metrics: max_rows must be at least 1") as caught:
            db.execute("select pyworker.metrics(%s)", [wrong])
        assert caught.value.sqlstate == "PW001"


def test_of_many_queues_the_largest_have_names(db: Any) -> None:
    db.execute("select pyworker.add_job('a', queue_name := 'q' || i) from generate_series(1, 60) i")
    db.execute("select pyworker.add_job('a', queue_name := 'q60')")
    named = metrics(db, "jobs")
    assert len({queue for queue, _ in named} - {"*"}) == 50
    assert named["q60", "available"] == 2
    assert named["*", "available"] == 10


def test_the_oldest_available_job_is_found_at_any_priority(db: Any, worker: int, clock: Any) -> None:
    db.execute("select pyworker.add_job('a', priority := 9)")
    clock.advance(hours=1)
    db.execute("select pyworker.add_job('a'), pyworker.add_job('a', priority := -9)")
    clock.advance(hours=1)
    assert 7200 <= metric(db, "oldest_available_seconds") < 7300
    db.execute("select pyworker.heartbeat(%s)", [worker])
    db.execute("select pyworker.claim_jobs(%s, 2)", [worker])  # the better ones
    assert 7200 <= metric(db, "oldest_available_seconds") < 7300
    assert 3600 <= metric(db, "claim_lag_seconds") < 3700
    db.execute("select pyworker.claim_jobs(%s)", [worker])
    assert metric(db, "oldest_available_seconds") == 0
    assert 7200 <= metric(db, "claim_lag_seconds") < 7300


def test_the_oldest_available_job_of_each_queue_is_found_in_full_queues_too(
    db: Any, worker: int, clock: Any
) -> None:
    db.execute("select pyworker.add_job('a', queue_name := 'full')")
    clock.advance(hours=1)
    db.execute("select pyworker.add_job('a', queue_name := 'full'), pyworker.add_job('a')")
    db.execute("select pyworker.add_job('a', queue_name := 'later', run_at := pyworker.clock() + '1 day')")
    clock.advance(hours=1)
    oldest = metrics(db, "queue_oldest_available_seconds")
    assert {queue: round(seconds / 3600) for (queue,), seconds in oldest.items()} == {"full": 2, "default": 1}
    db.execute("select pyworker.claim_jobs(%s, 1, null, '{full}')", [worker])
    oldest = metrics(db, "queue_oldest_available_seconds")
    assert {queue: round(seconds / 3600) for (queue,), seconds in oldest.items()} == {"full": 1, "default": 1}


def test_of_very_many_queues_the_oldest_fifty_are_shown(db: Any, clock: Any) -> None:
    db.execute("select pyworker.add_job('a', queue_name := 'late')")
    clock.advance(hours=1)
    db.execute("select pyworker.add_job('a', queue_name := 'q' || i) from generate_series(1, 60) i")
    clock.advance(seconds=1)
    oldest = metrics(db, "queue_oldest_available_seconds")
    assert len(oldest) == 50
    assert oldest["late",] > 3600


def test_workers_and_expired_leases_are_counted(db: Any, worker: int, clock: Any) -> None:
    db.execute("""select pyworker.register_worker('{"condition": "starting"}')""")
    assert metrics(db, "workers") == {("ready",): 1, ("live",): 1}
    assert metric(db, "expired_leases") == 0
    clock.advance(seconds=30)
    db.execute("select pyworker.heartbeat(%s)", [worker])
    assert metrics(db, "workers") == {("ready",): 1, ("lost",): 1}
    assert metric(db, "expired_leases") == 1


def test_what_stands_still_is_counted(db: Any, clock: Any) -> None:
    db.execute("""
        select pyworker.add_job('a', sequence_policy := '{"key": "s"}') from generate_series(1, 2);
        select pyworker.pause_queue('p');
        select pyworker.add_schedule('minutely', '* * * * *', 'a')""")
    assert [metric(db, name) for name in ("sequences_halted", "queues_paused", "schedules_overdue")] == [
        0,
        1,
        0,
    ]
    db.execute("select pyworker.cancel_job(min(id)) from pyworker.jobs")
    clock.advance(minutes=2)
    assert [metric(db, name) for name in ("sequences_halted", "queues_paused", "schedules_overdue")] == [
        1,
        1,
        1,
    ]
    assert metric(db, "promotion_requests") >= 1
    db.execute("select pyworker.promote_jobs()")
    db.execute("select pyworker.promote_jobs(), pyworker.run_schedules()")  # the second look at the pause
    assert metric(db, "promotion_requests") == metric(db, "schedules_overdue") == 0


def test_ends_and_failures_are_counted_by_the_server(db: Any, dsn: str, worker: int) -> None:
    def until_more(name: str, before: float) -> None:
        for _ in range(2000):
            with psycopg.connect(
                dsn
            ) as conn:  # statistics are seen once in a transaction, and told when a session is idle or over
                if metric(conn, name) > before:
                    return
                conn.execute("select pg_sleep(0.01)")
        raise AssertionError(f"{name} was not counted")

    ended, failed = metric(db, "jobs_ended_total"), metric(db, "attempts_failed_total")
    with psycopg.connect(dsn, autocommit=True) as other:
        other.execute("select pyworker.add_job('a'), pyworker.add_job('b')")
        other.execute(
            "select pyworker.finish_jobs(array[j.id], array[j.run]) from pyworker.claim_jobs(%s, 1, '{a}') j",
            [worker],
        )
        other.execute(
            "select pyworker.fail_jobs(jsonb_build_array(jsonb_build_object('id', j.id, 'run', j.run, "
            "'error', 'x')))"
            " from pyworker.claim_jobs(%s, 1, '{b}') j",
            [worker],
        )
    until_more("jobs_ended_total", ended)
    until_more("attempts_failed_total", failed)


def test_what_keeps_vacuum_back_is_told(db: Any, session: Any) -> None:
    one = session()
    one.begin("repeatable read")
    before = metric(db, "oldest_xmin_age")
    db.execute("select pyworker.add_job('a')")
    db.execute("select pyworker.add_job('a')")
    assert metric(db, "oldest_xmin_age") >= before + 2
