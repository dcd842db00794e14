"""A worker's lock: its session holds it, and a sweep that finds it free knows that the worker is gone."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.support.sweeps import holder as holder
from tests.support.sweeps import running as running
from tests.support.sweeps import state_of


def lock_holders(api: Any) -> int:
    return api.value("select count(*) from pg_locks where locktype = 'advisory' and objsubid = 2")


# The lock -----------------------------------------------------------------------------------------


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
    """As while the database refuses connections for a moment: the first worker that is back sweeps
    before the others are back."""
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
    """Whichever session held it: a sweep may have looked in the instant before."""
    api.rows("update pyworker.workers set suspect_since = pyworker.clock() - interval '1 minute'")
    clock.advance(seconds=3)
    assert api.sweep_workers() == 0
    assert state_of(api, worker) == "locked"


def test_a_worker_that_never_took_the_lock_lives_by_its_lease(
    api: Any, worker: int, running: Any, clock: Any
) -> None:
    job = running(worker)
    for _ in range(4):
        clock.advance(seconds=15)
        assert api.sweep_workers() == 0
        assert state_of(api, worker) == "leased"
        assert api.heartbeat(worker)
    clock.advance(seconds=15)  # and real seconds go by: its lease is one of 20
    assert api.sweep_workers() == 0
    clock.advance(seconds=6)
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
    """The worker has a new connection, and the server has not noticed the end of the old one; when
    it does, no worker must be declared dead."""
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
