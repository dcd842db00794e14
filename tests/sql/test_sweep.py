"""sweep_workers: the jobs of a dead worker are handed on once, and no live worker is declared dead."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg.rows import namedtuple_row

from tests.support.sweeps import gap, state_of
from tests.support.sweeps import running as running


@pytest.mark.parametrize("outcome", ["commit", "rollback", "kill"])
def test_two_sweeps_at_once_hand_each_job_on_once(
    api: Any, actor: Any, worker: int, clock: Any, outcome: str
) -> None:
    jobs = api.add_jobs([{"identifier": "t"}] * 5)
    api.claim_jobs(worker, 5)
    clock.advance(seconds=21)
    a = actor()
    a.begin()
    assert a.sweep_workers() == 5
    assert api.sweep_workers() == 0  # waits for no session
    getattr(a, outcome)()
    assert api.sweep_workers() == (0 if outcome == "commit" else 5)
    assert [(job.state, job.attempts) for job in map(api.get_job, [job.id for job in jobs])] == [
        ("available", 1)
    ] * 5
    assert api.value("select count(*) from pyworker.errors") == 5


def test_many_sweeps_at_once_hand_each_job_on_once(api: Any, dsn: str, clock: Any) -> None:
    workers = [api.register_worker() for _ in range(5)]
    api.add_jobs([{"identifier": "t"}] * 50)
    for worker in workers:
        api.claim_jobs(worker, 10)
    api.rows("update pyworker.workers set expires_at = pyworker.clock() - interval '1 s'")

    def sweep(n: int) -> int:
        with psycopg.connect(dsn, autocommit=True, row_factory=namedtuple_row) as conn:
            a = type(api)(conn)
            return sum(
                a.sweep_workers() if n % 3 else (a.maintain() or {"rescued": 0})["rescued"] for _ in range(5)
            )

    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(sweep, range(4))) == 50
    assert api.value("select count(*) from pyworker.errors") == 50
    assert api.value("select count(*) from pyworker.jobs where state = 'available' and attempts = 1") == 50


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once"])
@pytest.mark.parametrize("late", [1, 24, 3600])
def test_a_claim_that_commits_after_its_worker_was_declared_dead_is_found_by_a_later_sweep(
    api: Any, actor: Any, worker: int, clock: Any, delivery: str, late: int
) -> None:
    job = api.add_job("t", delivery=delivery)
    a = actor()
    a.begin()
    assert a.claim(worker).id == job.id
    clock.advance(seconds=21)
    assert api.sweep_workers() == 0
    assert state_of(api, worker) == "dead"
    clock.advance(seconds=late)
    a.commit()
    assert api.get_job(job.id).state == "running"
    assert api.start_job(job.id, 1) is False
    if late < 60:
        assert api.sweep_workers() == 1
    else:
        assert api.maintain()["rescued"] == 1
    assert (api.get_job(job.id).state, api.get_job(job.id).attempts) == ("available", 1)


@pytest.mark.parametrize("verb", ["unregister_worker", "report_crash"])
def test_a_claim_that_commits_after_its_worker_has_left_is_found_too(
    api: Any, actor: Any, worker: int, verb: str
) -> None:
    job = api.add_job("t")
    a = actor()
    a.begin()
    a.claim(worker)
    getattr(api, verb)(worker)
    a.commit()
    assert api.get_job(job.id).state == "running"
    assert api.sweep_workers() == 1
    assert api.get_job(job.id).state == "available"


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once"])
def test_a_sweep_skips_a_row_that_another_session_has_locked_and_looks_again(
    api: Any, actor: Any, worker: int, clock: Any, delivery: str
) -> None:
    jobs = api.add_jobs([{"identifier": "t", "job_key": f"k{i}", "delivery": delivery} for i in range(3)])
    api.claim_jobs(worker, 3)
    a = actor()
    a.begin()
    a.add_job("t", job_key="k1", run_at="2100-01-01")
    clock.advance(seconds=21)
    api.rows("set lock_timeout = '1ms'")
    assert api.sweep_workers() == 2
    assert api.sweep_workers() == 0
    assert api.maintain()["rescued"] == 0
    clock.advance(minutes=10)
    a.rollback()
    assert [api.get_job(job.id).state for job in jobs] == ["available", "running", "available"]
    assert api.maintain()["rescued"] == 1  # however long ago its worker died
    assert api.get_job(jobs[1].id).state == "available"


@pytest.mark.parametrize("who", ["dead by lease", "suspect", "cleared", "forgotten", "spared"])
def test_a_sweep_never_waits_for_a_workers_row(
    api: Any, actor: Any, worker: int, clock: Any, who: str
) -> None:
    a = actor()
    if who == "suspect":
        api.rows("update pyworker.workers set locked = true")
    elif who == "cleared":
        assert a.hold_worker_lock(worker)
        api.rows("update pyworker.workers set suspect_since = pyworker.clock()")
    elif who == "forgotten":
        api.rows("update pyworker.workers set dead_at = pyworker.clock() - interval '2 days'")
    else:
        clock.advance(seconds=21)
    b = actor()
    b.begin()
    b.rows("select from pyworker.workers for update")
    if who == "spared":
        gap(api)
    api.rows("set lock_timeout = '1ms'")
    before = api.rows("select * from pyworker.workers")
    assert api.sweep_workers() == 0
    assert api.maintain()["rescued"] == 0
    assert api.rows("select * from pyworker.workers") == before
    b.commit()
    api.sweep_workers()
    assert api.rows("select * from pyworker.workers") != before


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_a_heartbeat_under_way_saves_its_worker_if_it_is_committed(
    api: Any, actor: Any, worker: int, running: Any, clock: Any, outcome: str
) -> None:
    job = running(worker)
    clock.advance(seconds=21)
    w = actor()
    w.begin()
    assert w.heartbeat(worker) is True
    assert api.sweep_workers() == 0
    getattr(w, outcome)()
    assert api.sweep_workers() == (outcome == "rollback")
    assert api.get_job(job.id).state == ("running" if outcome == "commit" else "available")


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_a_heartbeat_that_meets_the_sweep_learns_the_truth(
    api: Any, actor: Any, worker: int, clock: Any, outcome: str
) -> None:
    clock.advance(seconds=21)
    a, w = actor(), actor()
    a.begin()
    a.sweep_workers()
    beat = w.later.heartbeat(worker)
    w.blocked(beat)
    getattr(a, outcome)()
    assert beat.result(20) == [(outcome == "rollback",)]


def test_a_clock_that_was_set_back_prolongs_no_life(api: Any, worker: int, clock: Any) -> None:
    api.rows("update pyworker.workers set expires_at = expires_at + interval '1 hour'")
    api.sweep_workers()
    clock.advance(seconds=21)
    api.sweep_workers()
    assert state_of(api, worker) == "dead"


def test_a_register_from_the_future_is_set_right(api: Any, worker: int) -> None:
    gap(api, -3600)
    api.sweep_workers()
    api.sweep_workers()
    assert (
        abs(
            api.value(
                "select last_value / 1000.0 - extract(epoch from clock_timestamp()) from pyworker.swept_at"
            )
        )
        < 5
    )
    assert state_of(api, worker) == "leased"


def test_the_dead_are_forgotten_a_day_later(api: Any, worker: int, clock: Any) -> None:
    clock.advance(seconds=21)
    api.sweep_workers()
    clock.advance(hours=23, minutes=59)
    api.sweep_workers()
    assert state_of(api, worker) == "dead"
    clock.advance(minutes=2)
    alive = api.register_worker()
    api.sweep_workers()
    assert api.rows("select id from pyworker.workers") == [(alive,)]


def test_what_a_worker_holds_is_found_however_often_it_has_claimed_since(api: Any, worker: int) -> None:
    """Its claims are tidied as it goes on: few rows say what it holds, and none is forgotten."""
    api.add_jobs([{"identifier": "t"}] * 60)
    held = [api.claim(worker) for _ in range(3)]
    for _ in range(50):
        api.finish(api.claim(worker).id)
        api.rows("reset pyworker.claims_tidied")  # as after some time
    assert api.value("select count(*) from pyworker.claims") < 5
    assert api.reconcile(worker, [job.id for job in held], [job.run for job in held]) == [
        job.id for job in held
    ]
    api.unregister_worker(worker)
    assert api.rows("select from pyworker.jobs where state = 'running'") == []


@pytest.mark.parametrize("end", ["unregister_worker", "report_crash", "sweep_workers", "maintain"])
def test_nothing_is_left_of_the_claims_of_workers_that_ended(
    api: Any, worker: int, clock: Any, end: str
) -> None:
    api.add_jobs([{"identifier": "t"}] * 3)
    api.claim(worker)
    api.finish(api.claim(worker).id)
    clock.advance(seconds=21)
    getattr(api, end)(*([worker] if end in ("unregister_worker", "report_crash") else []))
    assert api.rows("select from pyworker.claims") == []
    assert api.rows("select from pyworker.jobs where state = 'running'") == []


def test_a_claim_that_is_committed_long_after_its_workers_end_is_handed_on(
    api: Any, actor: Any, worker: int, clock: Any
) -> None:
    job = api.add_job("t")
    w = actor()
    w.begin()
    w.claim(worker)
    api.unregister_worker(worker)
    clock.advance(seconds=120)
    api.sweep_workers()
    w.commit()
    assert api.get_job(job.id).state == "running"
    assert api.maintain()["rescued"] == 1
    assert api.get_job(job.id).state == "available"


@pytest.mark.parametrize("statistics", ["none", "of the minute before, when little waited"])
def test_a_busy_database_is_not_walked_when_no_worker_died(
    api: Any, actor: Any, worker: int, clock: Any, statistics: str
) -> None:
    busy = """
        select count(*) from pyworker.add_jobs((
            select jsonb_agg(jsonb_build_object('identifier', 't',
                'run_at', now() + make_interval(days => n % 2)))
            from generate_series(1, 100000) n))
    """
    if statistics != "none":
        api.rows(busy)
        api.rows("delete from pyworker.live_jobs where ready_at is not null or id > 20")
        api.rows("vacuum analyze pyworker.live_jobs")
    api.rows(busy)
    a = actor()
    assert a.hold_worker_lock(worker)

    def looked_at() -> int:
        seen = (
            "select coalesce(sum(seq_tup_read + idx_tup_fetch), 0) from pg_stat_xact_all_tables "
            "where relname = 'live_jobs'"
        )
        with a.conn.transaction():
            before = a.value(seen)
            a.sweep_workers()
            return int(a.value(seen) - before)

    try:
        assert looked_at() == 0
        dead = api.register_worker()
        api.claim_jobs(dead, 10)
        api.unregister_worker(dead)
        assert looked_at() == 0  # nor just after a worker's end
        killed = api.register_worker()
        api.claim_jobs(killed, 10)
        api.rows(
            "update pyworker.workers set expires_at = pyworker.clock() - interval '1 s' where id = %s",
            [killed],
        )
        assert 0 < looked_at() < 100
    finally:
        api.rows("truncate pyworker.live_jobs")
