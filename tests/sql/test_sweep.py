"""Who is dead? Leases, the lock of a control connection, sweeps, amnesty, and whom a dead process is blamed on."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from psycopg.rows import namedtuple_row

SECONDS = float(os.environ.get("PYWORKER_TORTURE_SECONDS", "30"))


def state_of(api: Any, worker: int) -> str:
    (row,) = api.rows("select * from pyworker.workers where id = %s", [worker])
    return "dead" if row.dead_at else "suspect" if row.suspect_since else "locked" if row.locked else "leased"


def lock_holders(api: Any) -> int:
    return api.value("select count(*) from pg_locks where locktype = 'advisory' and objsubid = 2")


def gap(api: Any, seconds: float = 11) -> None:
    """As if nobody had swept for so long. It goes by the real clock."""
    api.rows(
        "select setval('pyworker.swept_at', (extract(epoch from clock_timestamp()) * 1000)::bigint - %s)",
        [int(seconds * 1000)],
    )


@pytest.fixture
def running(api: Any) -> Callable[..., Any]:
    """A job that this worker runs."""

    def make(worker: int, **named: Any) -> Any:
        job = api.add_job("t", **named)
        claimed = api.claim(worker)
        assert claimed.id == job.id
        return claimed

    return make


@pytest.fixture
def holder(actor: Any, worker: int) -> Any:
    """The worker's control connection, with its lock."""
    a = actor()
    assert a.hold_worker_lock(worker) is True
    return a


# The lock ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["kill", "close", "unlock"])
@pytest.mark.parametrize("sweep", ["sweep_workers", "maintain"])
def test_a_suspect_is_dead_when_its_lock_is_free_for_two_seconds(
    api: Any, dsn: str, worker: int, running: Any, clock: Any, end: str, sweep: str
) -> None:
    job = running(worker)
    conn = psycopg.connect(dsn, autocommit=True)
    assert type(api)(conn).hold_worker_lock(worker) is True
    if end == "kill":
        api.rows("select pg_terminate_backend(%s, 10000)", [conn.info.backend_pid])
    elif end == "unlock":
        conn.execute("select pg_advisory_unlock_all()")
    conn.close()
    while lock_holders(api):
        api.rows("select pg_sleep(0.01)")
    getattr(api, sweep)()
    assert state_of(api, worker) == "suspect"
    clock.advance(seconds=1.2)  # the rest is for a machine that is slow
    getattr(api, sweep)()
    assert (state_of(api, worker), api.get_job(job.id).state) == ("suspect", "running")
    clock.advance(seconds=0.9)
    swept = getattr(api, sweep)()
    assert (swept if sweep == "sweep_workers" else swept["rescued"]) == 1
    assert (state_of(api, worker), api.get_job(job.id).state) == ("dead", "available")
    assert api.heartbeat(worker) is False
    assert api.finish_jobs([job.id], [job.run]) == []


def test_a_lock_that_was_free_while_no_sweep_looked_makes_no_worker_dead(
    api: Any, worker: int, holder: Any
) -> None:
    """As while the database refuses connections for a moment: the first worker that is back sweeps before the others are back."""
    holder.kill()
    api.rows("update pyworker.workers set suspect_since = clock_timestamp() - interval '3 seconds'")
    swept = (
        "select setval('pyworker.swept_at', ((extract(epoch from clock_timestamp()) - %s) * 1000)::bigint)"
    )
    api.rows(swept, [1.8])
    api.sweep_workers()
    assert state_of(api, worker) == "suspect"
    api.rows("update pyworker.workers set suspect_since = clock_timestamp() - interval '3 seconds'")
    api.rows(swept, [1])
    api.sweep_workers()
    assert state_of(api, worker) == "dead"


def test_a_heartbeat_alone_does_not_save_a_suspect(api: Any, worker: int, holder: Any, clock: Any) -> None:
    """The lock says that its control connection is gone; it has two seconds to take it again."""
    holder.rows("select pg_advisory_unlock_all()")
    api.sweep_workers()
    clock.advance(seconds=3)
    assert api.heartbeat(worker)
    api.sweep_workers()
    assert state_of(api, worker) == "dead"


def test_a_lock_that_is_held_again_in_time_clears_the_suspicion(
    api: Any, actor: Any, worker: int, holder: Any, running: Any, clock: Any
) -> None:
    job = running(worker)
    for _ in range(3):
        holder.rows("select pg_advisory_unlock_all()")
        api.sweep_workers()
        assert state_of(api, worker) == "suspect"
        clock.advance(seconds=1.5)
        holder = actor()
        assert holder.hold_worker_lock(worker) is True
        assert state_of(api, worker) == "locked"
        clock.advance(seconds=1.5)
        assert api.sweep_workers() == 0
        assert (state_of(api, worker), api.get_job(job.id).state) == ("locked", "running")
        api.heartbeat(worker)


def test_a_sweep_that_sees_the_lock_held_clears_the_suspicion_too(
    api: Any, worker: int, holder: Any, clock: Any
) -> None:
    """Whoever held it: a sweep may have looked in the instant before."""
    api.rows("update pyworker.workers set suspect_since = pyworker.clock() - interval '1 minute'")
    clock.advance(seconds=3)
    assert api.sweep_workers() == 0
    assert state_of(api, worker) == "locked"


def test_a_worker_that_never_took_the_lock_lives_by_its_lease(
    api: Any, worker: int, running: Any, clock: Any
) -> None:
    job = running(worker)
    for _ in range(4):
        clock.advance(seconds=19)
        assert api.sweep_workers() == 0
        assert state_of(api, worker) == "leased"
        assert api.heartbeat(worker)
    clock.advance(seconds=19.9)
    assert api.sweep_workers() == 0
    clock.advance(seconds=0.2)
    assert api.sweep_workers() == 1
    assert (state_of(api, worker), api.get_job(job.id).state) == ("dead", "available")


def test_a_worker_that_holds_its_lock_and_does_not_beat_is_dead_all_the_same(
    api: Any, worker: int, holder: Any, clock: Any
) -> None:
    """A frozen process keeps its connection."""
    clock.advance(seconds=21)
    api.sweep_workers()
    assert state_of(api, worker) == "dead"


@pytest.mark.parametrize("sweep", ["sweep_workers", "maintain"])
def test_a_sweep_on_the_connection_that_holds_the_lock_spares_its_own_worker(
    api: Any, worker: int, holder: Any, running: Any, clock: Any, sweep: str
) -> None:
    """Advisory locks are re-entrant: a session that tries its own finds it free."""
    job = running(worker)
    for _ in range(4):
        getattr(holder, sweep)()
        assert state_of(api, worker) == "locked"
        clock.advance(seconds=3)
    assert api.get_job(job.id).state == "running"
    assert lock_holders(api) == 1


def test_the_lock_is_taken_once_however_often_it_is_asked_for(
    api: Any, actor: Any, worker: int, holder: Any
) -> None:
    assert [holder.hold_worker_lock(worker) for _ in range(3)] == [True] * 3
    assert lock_holders(api) == 1
    holder.unregister_worker(worker)
    assert lock_holders(api) == 0
    assert state_of(api, worker) == "dead"


def test_a_lock_that_another_session_holds_is_refused_and_the_worker_lives_by_its_lease(
    api: Any, actor: Any, worker: int, holder: Any, clock: Any
) -> None:
    """The worker has a new connection, and the server has not noticed the end of the old one; when it does, nobody must die."""
    new = actor()
    assert new.hold_worker_lock(worker) is False
    assert state_of(api, worker) == "leased"
    holder.kill()
    holder.conn.close()
    api.sweep_workers()
    clock.advance(seconds=3)
    api.sweep_workers()
    assert state_of(api, worker) == "leased"
    assert new.hold_worker_lock(worker) is True
    assert state_of(api, worker) == "locked"


@pytest.mark.parametrize("who", [4711, -1, 0, 2**40, None])
def test_there_is_no_lock_for_a_worker_that_is_unknown(api: Any, who: int | None) -> None:
    assert api.hold_worker_lock(who) is False
    assert lock_holders(api) == 0


def test_there_is_no_lock_for_a_worker_that_is_dead(
    api: Any, worker: int, holder: Any, actor: Any, clock: Any
) -> None:
    clock.advance(seconds=21)
    api.sweep_workers()
    assert holder.hold_worker_lock(worker) is False
    assert actor().hold_worker_lock(worker) is False
    other = api.register_worker()
    api.unregister_worker(other)
    assert holder.hold_worker_lock(other) is False


@pytest.mark.parametrize("end", ["unregister_worker", "report_crash"])
def test_after_the_end_of_a_worker_its_lock_is_free(api: Any, worker: int, holder: Any, end: str) -> None:
    other = api.register_worker()
    assert holder.hold_worker_lock(other) is True  # a supervisor holds one for each of its workers
    getattr(holder, end)(worker)
    assert lock_holders(api) == 1
    api.sweep_workers()
    assert (state_of(api, worker), state_of(api, other)) == ("dead", "locked")
    # By another session: the lock goes with the session that holds it.
    getattr(api, end)(other)
    assert lock_holders(api) == 1


def test_a_lock_that_is_being_taken_while_its_worker_is_declared_dead_is_given_back(
    api: Any, actor: Any, worker: int, clock: Any
) -> None:
    clock.advance(seconds=21)
    a, w = actor(), actor()
    a.begin()
    a.sweep_workers()
    taking = w.later.hold_worker_lock(worker)
    w.blocked(taking)
    a.commit()
    assert taking.result(20) == [(False,)]
    assert lock_holders(api) == 0


def test_locks_of_others_with_the_same_number_mean_nothing(
    api: Any, actor: Any, worker: int, holder: Any, clock: Any
) -> None:
    other = actor()
    other.rows("select pg_advisory_lock(42, %s) as a, pg_advisory_lock(%s::bigint) as b", [worker, worker])
    holder.rows("select pg_advisory_unlock_all()")
    api.sweep_workers()
    clock.advance(seconds=3)
    api.sweep_workers()
    assert state_of(api, worker) == "dead"
    other.rows("select pg_advisory_unlock_all()")


def test_a_lock_of_the_same_number_in_another_database_means_nothing(
    api: Any, pg_server: Any, dsn: str, worker: int, holder: Any, clock: Any
) -> None:
    lock = api.rows("select l.class as a, l.id as b from pyworker._worker_lock(%s) l", [worker])[0]
    with psycopg.connect(dsn, dbname=pg_server.maintenance_dbname, autocommit=True) as other:
        other.execute("select pg_advisory_lock(%s, %s)", lock)
        assert lock_holders(api) == 2
        holder.rows("select pg_advisory_unlock_all()")
        api.sweep_workers()
        clock.advance(seconds=3)
        api.sweep_workers()
        assert state_of(api, worker) == "dead"


# Sweeps --------------------------------------------------------------------------------------------------------------


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
    assert api.sweep_workers() == 0  # waits for nobody
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
def test_a_sweep_passes_by_a_row_that_somebody_holds_and_comes_again(
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
def test_a_busy_database_is_not_walked_when_nobody_died(
    api: Any, actor: Any, worker: int, clock: Any, statistics: str
) -> None:
    busy = """
        select count(*) from pyworker.add_jobs((
            select jsonb_agg(jsonb_build_object('identifier', 't', 'run_at', now() + make_interval(days => n % 2)))
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
        seen = "select coalesce(sum(seq_tup_read + idx_tup_fetch), 0) from pg_stat_xact_all_tables where relname = 'live_jobs'"
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


# Amnesty -------------------------------------------------------------------------------------------------------------


def test_after_a_gap_nobody_is_declared_dead_at_once_but_after_another_lease(
    api: Any, worker: int, running: Any, clock: Any
) -> None:
    job = running(worker)
    api.sweep_workers()
    clock.advance(minutes=5)
    gap(api)
    for _ in range(3):
        assert api.sweep_workers() == 0
        assert state_of(api, worker) == "leased"
    clock.advance(seconds=19)
    assert api.sweep_workers() == 0
    clock.advance(seconds=2)
    assert api.sweep_workers() == 1
    assert api.get_job(job.id).state == "available"


def test_a_short_gap_is_none(api: Any, worker: int, clock: Any) -> None:
    api.sweep_workers()
    clock.advance(seconds=21)
    gap(api, 8)
    api.sweep_workers()
    assert state_of(api, worker) == "dead"


@pytest.mark.parametrize("what", ["amnesty", "suspicion"])
def test_a_sweep_that_stood_still_goes_by_the_time_at_which_it_goes_on(
    api: Any, actor: Any, worker: int, clock: Any, what: str
) -> None:
    a, b = actor(), actor()
    if what == "amnesty":
        clock.advance(minutes=5)
        gap(api)
    else:
        api.rows("update pyworker.workers set locked = true")
        api.sweep_workers()
        api.rows("update pyworker.workers set suspect_since = null")
    a.begin()
    a.rows("lock table pyworker.workers")  # which it asks for after the time
    sweep = b.later.sweep_workers()
    b.blocked(sweep)
    went_on = a.at()
    a.commit()
    sweep.result(20)
    (row,) = api.rows("select * from pyworker.workers")
    if what == "amnesty":
        assert row.expires_at >= went_on + api.worker_ttl()
    else:
        assert row.suspect_since >= went_on


def test_whoever_beats_after_a_gap_lives_on_and_the_others_die(api: Any, worker: int, clock: Any) -> None:
    silent = api.register_worker()
    clock.advance(minutes=5)
    gap(api)
    api.sweep_workers()
    assert api.heartbeat(worker) is True
    for _ in range(3):
        clock.advance(seconds=10)
        assert api.heartbeat(worker) is True
        api.sweep_workers()
    assert (state_of(api, worker), state_of(api, silent)) == ("leased", "dead")


def test_a_lost_lock_is_forgiven_after_a_gap_and_counts_again_once_it_is_taken(
    api: Any, actor: Any, worker: int, holder: Any, clock: Any
) -> None:
    """The database was restarted: all sessions are gone, all workers are there."""
    holder.rows("select pg_advisory_unlock_all()")
    gap(api)
    api.sweep_workers()
    clock.advance(seconds=3)
    api.sweep_workers()
    assert state_of(api, worker) == "leased"
    assert holder.hold_worker_lock(worker) is True
    api.sweep_workers()
    assert state_of(api, worker) == "locked"
    holder.rows("select pg_advisory_unlock_all()")
    for _ in range(2):
        api.sweep_workers()
        clock.advance(seconds=3)
    api.sweep_workers()
    assert state_of(api, worker) == "dead"


def test_whoever_holds_its_lock_through_a_gap_is_still_known_by_it(
    api: Any, worker: int, holder: Any, clock: Any
) -> None:
    """A whole fleet was away, and the first one is back: its end must be seen in seconds."""
    gap(api, 3600)
    api.sweep_workers()
    assert state_of(api, worker) == "locked"
    holder.rows("select pg_advisory_unlock_all()")
    api.sweep_workers()
    clock.advance(seconds=3)
    api.sweep_workers()
    assert state_of(api, worker) == "dead"


@pytest.mark.parametrize("outcome", ["rollback", "kill"])
def test_an_amnesty_that_is_rolled_back_is_declared_again(
    api: Any, actor: Any, worker: int, clock: Any, outcome: str
) -> None:
    clock.advance(minutes=5)
    gap(api)
    a = actor()
    a.begin()
    a.sweep_workers()
    getattr(a, outcome)()
    api.sweep_workers()
    assert state_of(api, worker) == "leased"
    api.sweep_workers()
    assert state_of(api, worker) == "leased"


def test_a_sweep_beside_an_amnesty_condemns_nobody(api: Any, actor: Any, clock: Any) -> None:
    workers = [api.register_worker() for _ in range(3)]
    clock.advance(minutes=5)
    gap(api)
    a, b = actor(), actor()
    b.begin()
    b.rows("select from pyworker.workers where id = %s for update", [workers[1]])  # one that it cannot spare
    a.begin()
    a.sweep_workers()
    api.sweep_workers()
    b.rollback()
    api.sweep_workers()
    a.commit()
    for _ in range(3):
        api.sweep_workers()
    assert [state_of(api, worker) for worker in workers] == ["leased"] * 3


def test_where_sweeps_are_rare_the_dead_are_found_too(
    api: Any, worker: int, running: Any, clock: Any
) -> None:
    """pg_cron calls maintain() once a minute, and nobody else does: every call comes after a gap."""
    api.maintain()
    job = running(worker)
    other = api.register_worker()
    rescued = []
    for _ in range(3):
        clock.advance(seconds=59)
        api.heartbeat(other)
        clock.advance(seconds=1)
        gap(api, 60)
        rescued.append(api.maintain()["rescued"])
    assert sum(rescued) == 1
    assert (state_of(api, worker), state_of(api, other)) == ("dead", "leased")
    assert api.get_job(job.id).state == "available"


def test_a_longer_lease_is_forgiven_as_long(api: Any, clock: Any) -> None:
    api.configure(worker_ttl="1 hour")
    worker = api.register_worker()
    clock.advance(hours=2)
    gap(api)
    api.sweep_workers()
    clock.advance(minutes=59)
    api.sweep_workers()
    assert state_of(api, worker) == "leased"
    clock.advance(minutes=2)
    api.sweep_workers()
    assert state_of(api, worker) == "dead"


# report_crash ---------------------------------------------------------------------------------------------------------


def died(api: Any, worker: int, *jobs: Any, **named: Any) -> None:
    api.report_crash(worker, [job.id for job in jobs], [job.run for job in jobs], **named)


def fate(api: Any, job: Any) -> tuple[str, int, int]:
    (row,) = api.rows(
        "select state, attempts, coalesce(crashes, 0) from pyworker.live_jobs where id = %s", [job.id]
    )
    return tuple(row)


def test_a_single_culprit_is_charged_and_a_bystander_is_not(api: Any, worker: int) -> None:
    api.add_jobs([{"identifier": "t", "max_attempts": 2}] * 3)
    culprit, *bystanders = api.claim_jobs(worker, 3)
    died(api, worker, culprit, error="killed by signal 9")
    assert fate(api, culprit) == ("available", 1, 1)
    assert [fate(api, job) for job in bystanders] == [("available", 0, 0)] * 2
    assert [(error.run, error.error, error.worker) for error in api.job_errors(culprit.id)] == [
        (culprit.run, "killed by signal 9", str(worker))
    ]
    assert [api.get_job(job.id).last_error for job in bystanders] == [None, None]
    assert state_of(api, worker) == "dead"
    assert api.heartbeat(worker) is False
    with api.refusal("PW004"):
        api.claim_jobs(worker)
    again = api.claim_jobs(api.register_worker(), 3)
    assert [(job.crashes, job.attempts) for job in again] == [(1, 2), (0, 1), (0, 1)]
    assert all(api.finish_jobs([job.id], [culprit.run]) == [] for job in again)


def test_of_several_suspects_each_gets_its_attempt_back_and_a_mark(api: Any, worker: int) -> None:
    api.add_jobs([{"identifier": "t", "max_attempts": 1}] * 3)
    one, two, bystander = api.claim_jobs(worker, 3)
    died(api, worker, one, two)
    assert [fate(api, job) for job in (one, two, bystander)] == [
        ("available", 0, 1),
        ("available", 0, 1),
        ("available", 0, 0),
    ]
    assert "process" in api.get_job(one.id).last_error
    assert [len(api.job_errors(job.id)) for job in (one, two, bystander)] == [1, 1, 0]


def test_a_job_that_ends_its_process_too_often_is_discarded(api: Any) -> None:
    job = api.add_job("t", job_key="k", max_attempts=25)
    other = api.add_job("t")
    for crashes in (1, 2, 3):
        worker = api.register_worker()
        claimed = {c.id: c for c in api.claim_jobs(worker, 2)}
        assert claimed[job.id].crashes == crashes - 1
        if crashes == 2:
            died(api, worker, claimed[job.id], claimed[other.id])
        else:
            died(api, worker, claimed[job.id])
    dead = api.get_job(job.id)
    assert (dead.state, dead.reason, dead.key) == ("discarded", "it ended 3 worker processes", "k")
    assert dead.attempts < dead.max_attempts
    assert fate(api, other) == ("available", 0, 1)
    assert len(api.job_errors(job.id)) == 3


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_how_many_crashes_are_too_many_can_be_configured(api: Any, limit: int) -> None:
    api.configure(max_crashes=limit)
    job = api.add_job("t")
    for crashes in range(1, limit + 1):
        worker = api.register_worker()
        died(api, worker, api.claim(worker))
        assert api.get_job(job.id).state == ("discarded" if crashes == limit else "available")
    assert api.get_job(job.id).reason == f"it ended {limit} worker processes"


def test_the_limit_of_crashes_discards_only_a_job_that_ran_alone(api: Any, worker: int) -> None:
    """Of several any one may be to blame: they are marked, and the next time the culprit is alone."""
    api.configure(max_crashes=1)
    api.add_jobs([{"identifier": "t", "max_attempts": 1}] * 2)
    suspects = api.claim_jobs(worker, 2)
    died(api, worker, *suspects)
    assert [fate(api, job) for job in suspects] == [("available", 0, 1)] * 2
    again = api.register_worker()
    culprit = api.claim(again)
    died(api, again, culprit)
    assert [api.get_job(job.id).state for job in suspects] == ["discarded", "available"]
    assert api.get_job(culprit.id).reason == "it ended 2 worker processes"


@pytest.mark.parametrize("limit", [0, -1])
def test_the_limit_of_crashes_is_at_least_1(api: Any, limit: int) -> None:
    with api.refusal("PW001", "max_crashes", str(limit)):
        api.configure(max_crashes=limit)


def test_a_culprit_on_its_last_attempt_is_discarded(api: Any, worker: int, running: Any) -> None:
    job = running(worker, max_attempts=1)
    died(api, worker, job)
    assert (api.get_job(job.id).state, api.get_job(job.id).reason) == (
        "discarded",
        "worker lost on the last attempt",
    )


@pytest.mark.parametrize("limit", [1, 3])
@pytest.mark.parametrize("alone", [True, False])
def test_what_must_not_run_twice_and_was_started_is_lost_whatever_else_it_is(
    api: Any, worker: int, limit: int, alone: bool
) -> None:
    api.configure(max_crashes=limit)
    api.add_job("t", delivery="at_most_once", max_attempts=1)
    api.add_job("t")
    job, other = api.claim_jobs(worker, 2)
    assert api.start_job(job.id, job.run)
    died(api, worker, *([job] if alone else [job, other]), error="killed")
    lost = api.get_job(job.id)
    assert (lost.state, lost.reason, lost.last_error) == ("discarded", "lost", "killed")


@pytest.mark.parametrize("reset", ["retry_job", "retry_jobs", "add_job", "reschedule_jobs"])
def test_a_persons_decision_forgets_the_crashes(api: Any, reset: str) -> None:
    api.configure(max_crashes=2)
    job = api.add_job("t", job_key="k")
    for _ in range(2):
        worker = api.register_worker()
        died(api, worker, api.claim(worker))
    assert api.get_job(job.id).state == "discarded"
    {
        "retry_job": lambda: api.retry_job(job.id),
        "retry_jobs": lambda: api.retry_jobs([job.id]),
        "add_job": lambda: api.add_job("t", job_key="k"),
        "reschedule_jobs": lambda: api.reschedule_jobs([job.id], attempts=0),
    }[reset]()
    worker = api.register_worker()
    again = api.claim(worker)
    assert (again.id, again.crashes) == (job.id, 0)
    died(api, worker, again)
    assert fate(api, job)[::2] == ("available", 1)
    api.reschedule_jobs([job.id], priority=1)  # no decision on its crashes
    assert fate(api, job)[::2] == ("available", 1)


def test_a_success_after_crashes_is_a_success_and_starts_anew(api: Any, worker: int, running: Any) -> None:
    job = running(worker)
    died(api, worker, job)
    worker = api.register_worker()
    again = api.claim(worker)
    api.finish_job(again.id, again.run)
    api.retry_job(job.id)
    assert api.claim(worker).crashes == 0


def test_stale_runs_and_strangers_in_the_list_are_left_as_they_are(api: Any, worker: int) -> None:
    api.add_jobs([{"identifier": "t"}] * 4)
    finished, gone, bystander = api.claim_jobs(worker, 3)
    api.finish_job(finished.id, finished.run)
    api.release_jobs([gone.id], [gone.run])
    other = api.register_worker()
    theirs, theirs_too = api.claim_jobs(other, 2)
    assert theirs.id == gone.id
    before = [api.get_job(job.id) for job in (finished, theirs, theirs_too)]
    died(api, worker, finished, gone, theirs, theirs_too)
    assert [api.get_job(job.id) for job in (finished, theirs, theirs_too)] == before
    assert fate(api, bystander) == ("available", 0, 0)
    # A run that this worker does not have: its job is a bystander.
    api.release_jobs([theirs.id], [theirs.run])
    worker = api.register_worker()
    mine = api.claim(worker)
    api.report_crash(worker, [mine.id], [mine.run - 1])
    assert fate(api, mine) == ("available", mine.attempts - 1, 0)


@pytest.mark.parametrize("args", [(), ([], []), (None, None), ([4711], [1]), ([None], [None])])
def test_without_a_culprit_all_are_bystanders(api: Any, worker: int, running: Any, args: Any) -> None:
    job = running(worker, max_attempts=1)
    api.report_crash(worker, *args)
    assert fate(api, job) == ("available", 0, 0)
    assert api.job_errors(job.id) == []


@pytest.mark.parametrize("who", [4711, None])
def test_the_death_of_an_unknown_worker_harms_nobody(
    api: Any, worker: int, running: Any, who: int | None
) -> None:
    job = running(worker)
    api.report_crash(who, [job.id], [job.run])
    assert fate(api, job) == ("running", 1, 0)
    died(api, worker, job)
    died(api, worker, job)  # said twice
    assert fate(api, job) == ("available", 1, 1)


@pytest.mark.parametrize("suspects", [1, 2])
def test_a_culprit_that_was_called_off_ends_cancelled(api: Any, worker: int, suspects: int) -> None:
    api.add_jobs([{"identifier": "t", "job_key": f"k{i}"} for i in range(3)])
    superseded, cancelled, removed = api.claim_jobs(worker, 3)
    api.add_job("t", job_key="k0", run_at="2100-01-01")
    api.cancel_job(cancelled.id)
    api.remove_job("k2")
    died(api, worker, *[superseded, removed, cancelled][:suspects])
    assert [api.get_job(job.id).reason for job in (superseded, cancelled, removed)] == [
        "superseded",
        "cancelled",
        "removed",
    ]
    assert api.value("select count(*) from pyworker.history where state = 'cancelled'") == 3


def test_a_word_under_way_is_waited_for(api: Any, actor: Any, worker: int, running: Any) -> None:
    done, failed = running(worker), running(worker)
    w, a = actor(), actor()
    w.begin()
    w.finish_job(done.id, done.run)
    dying = a.later.report_crash(worker, [done.id, failed.id], [done.run, failed.run])
    a.blocked(dying)
    w.commit()
    dying.result(20)
    assert api.get_job(done.id).state == "completed"
    assert fate(api, failed)[0] == "available"


# Everything at once --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [2.0, pytest.param(SECONDS, marks=pytest.mark.torture, id="long")])
def test_workers_that_die_at_random_do_nothing_twice_that_must_not_be_and_forget_nothing(
    api: Any, dsn: str, seconds: float, record_property: Any
) -> None:
    """Killed connections, leases that end, forced unlocks, dead processes, in the midst of everything that a worker says."""
    until = time.monotonic() + seconds
    guard = threading.Lock()
    effects: dict[int, list[int]] = defaultdict(list)  # by job: the runs that did what they are for
    accepted: Counter[int] = Counter()
    deaths: Counter[str] = Counter()
    victims: set[int] = set()
    workers: dict[int, int] = {}  # those that may be struck: the backend of each
    added: dict[int, str] = {}
    api.define_task("t", backoff="[0]", max_attempts=25)

    def connect() -> Any:
        return type(api)(psycopg.connect(dsn, autocommit=True, row_factory=namedtuple_row))

    def adder() -> None:
        a, rng = connect(), random.Random(1)
        while time.monotonic() < until:
            specs = [
                {
                    "identifier": "t",
                    "delivery": rng.choice(["at_most_once", "at_least_once"]),
                    "queue_name": rng.choice([None, None, "q1", "q2"]),
                }
                for _ in range(20)
            ]
            jobs = a.add_jobs(specs)
            with guard:
                added.update({job.id: job.delivery for job in jobs})
            if rng.random() < 0.2:
                a.cancel_job(rng.choice(jobs).id, force=True)
            while a.value("select count(*) from pyworker.jobs where state in ('available', 'pending')") > 200:
                a.rows("select pg_sleep(0.005)")
        a.conn.close()

    def over(a: Any) -> bool:
        return time.monotonic() > until and not a.rows(
            "select from pyworker.jobs where state <> 'discarded' limit 1"
        )

    def work(a: Any, me: int, rng: random.Random) -> None:
        """One life."""
        jobs = a.claim_jobs(me, rng.choice([1, 2, 5]))
        if not jobs:
            a.rows("select pg_sleep(0.002)")
        done = []
        for job in jobs:
            word = rng.random()
            if word < 0.05:
                a.release_jobs([job.id], [job.run])
                continue
            if (job.delivery == "at_most_once" or word < 0.3) and not a.start_job(job.id, job.run):
                a.release_jobs([job.id], [job.run])
                continue
            if word < 0.1:
                a.fail(job, not_started=True, delay="0")
                continue
            with guard:
                effects[job.id].append(job.run)
            if word < 0.2:
                a.fail(job, delay="0")
            elif word < 0.4:
                with suppress(psycopg.Error):
                    with a.conn.transaction():
                        a.finish_job(job.id, job.run)
                    with guard:
                        accepted[job.id] += 1
            elif word < 0.42:
                a.reconcile(me, [job.id], [job.run])  # the others of this batch go back
                done.append(job)
            elif word < 0.44:
                a.unregister_worker(me)
                raise EOFError
            elif word < 0.46:
                deaths["process"] += 1
                a.report_crash(me, [job.id for job in jobs], [job.run for job in jobs])
                raise EOFError
            else:
                done.append(job)
        ids = a.finish_jobs([job.id for job in done], [job.run for job in done])
        with guard:
            accepted.update(ids)

    def worker(seed: int) -> None:
        rng = random.Random(seed)
        watch = connect()
        while not over(watch):
            a = connect()
            me = -1
            try:
                with guard:
                    me = a.register_worker()
                    workers[me] = a.conn.info.backend_pid
                if seed % 3:  # every third one lives by its lease
                    assert a.hold_worker_lock(me) or me in victims
                while not over(watch):
                    work(a, me, rng)
                    if not a.heartbeat(me):
                        found = watch.rows("select * from pyworker.workers where id = %s", [me])
                        assert me in victims, f"a live worker was declared dead: {found}"
                        break
                else:
                    a.unregister_worker(me)
            except psycopg.OperationalError:
                assert me in victims or a.conn.closed
            except psycopg.ProgrammingError as error:
                if error.sqlstate != "PW004":  # claim_jobs, reconcile
                    raise
                assert me in victims, "a live worker was declared dead"
            except EOFError:
                pass
            finally:
                with guard:
                    workers.pop(me, None)
                a.conn.close()
        watch.conn.close()

    def reaper() -> None:
        a, rng = connect(), random.Random(2)
        while time.monotonic() < until:
            a.rows("select pg_sleep(0.01)")
            with guard:
                if not workers:
                    continue
                victim, backend = rng.choice(sorted(workers.items()))
                kind = rng.choice(["connection", "lease", "forced", "forced"])
                deaths[kind] += 1
                if kind != "forced":
                    victims.add(victim)
            if kind == "connection":
                a.rows("select pg_terminate_backend(%s)", [backend])
            elif kind == "lease":
                a.rows(
                    "update pyworker.workers set expires_at = pyworker.clock() - interval '1 s' where id = %s",
                    [victim],
                )
                a.sweep_workers()  # before it beats again, or it was only late
            else:
                a.force_unlock_workers([str(victim)])
        a.conn.close()

    def sweeper(maintains: bool) -> int:
        a, swept = connect(), 0
        while not over(a):
            swept += ((a.maintain() or {"rescued": 0})["rescued"]) if maintains else a.sweep_workers()
            # Two seconds of suspicion, and the lease of those that never took a lock, pass faster here.
            with guard:
                a.rows(
                    "update pyworker.workers set suspect_since = suspect_since - interval '2.1 s'"
                    # A sweep that looked before a worker took its lock suspects it, until the next one.
                    " where suspect_since < pyworker.clock() - interval '0.3 s'"
                )
                a.rows(
                    "update pyworker.workers set expires_at = pyworker.clock() - interval '1 s'"
                    " where dead_at is null and not (id = any(%s)) and not locked",
                    [sorted(workers)],
                )
            a.rows("select pg_sleep(0.01)")
        a.conn.close()
        return swept

    with ThreadPoolExecutor(10) as threads:
        crew = [
            threads.submit(adder),
            threads.submit(reaper),
            *(threads.submit(sweeper, bool(i)) for i in range(2)),
        ]
        crew += [threads.submit(worker, seed) for seed in range(6)]
        results = [future.result() for future in crew]
    rows = {
        row.id: row
        for row in api.rows(
            "select id, state, reason, run from pyworker.jobs union all select id, state, reason, run from pyworker.history"
        )
    }
    assert set(rows) == set(added), "every job that was added is somewhere"
    assert max(accepted.values()) == 1
    for job_id, delivery in added.items():
        row, runs = rows[job_id], effects[job_id]
        assert row.state in ("completed", "discarded", "cancelled"), row
        if delivery == "at_most_once":
            assert len(runs) <= 1, (row, runs)
            assert row.state != "completed" or len(runs) == 1, (row, runs)
        assert row.state != "completed" or (runs and row.run == max(runs)), (row, runs)
        assert (row.state == "completed") >= accepted[job_id], row
    fates = Counter(f"{added[row.id]}: {row.reason or row.state}" for row in rows.values())
    figures = (
        f"{len(added)} jobs, {sum(row.run for row in rows.values())} runs, deaths {dict(deaths)}, swept {results[2] + results[3]}, "
        f"ends {dict(sorted(fates.items()))}"
    )
    record_property("figures", figures)
    print(f"\n{figures}")
