"""After a time without sweeps, workers have another lease to be heard in."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.sweeps import gap, state_of
from tests.support.sweeps import holder as holder
from tests.support.sweeps import running as running


def test_after_a_gap_no_worker_is_declared_dead_at_once_but_after_another_lease(
    api: Any, worker: int, running: Any, clock: Any
) -> None:
    api.configure(worker_ttl="20 minutes")
    api.heartbeat(worker)
    job = running(worker)
    api.sweep_workers()
    clock.advance(hours=5)
    gap(api)
    for _ in range(3):
        assert api.sweep_workers() == 0
        assert state_of(api, worker) == "leased"
    clock.advance(minutes=19)
    assert api.sweep_workers() == 0
    clock.advance(minutes=2)
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


def test_a_worker_that_beats_after_a_gap_lives_on_and_the_others_die(
    api: Any, worker: int, clock: Any
) -> None:
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


def test_a_worker_that_holds_its_lock_through_a_gap_is_still_known_by_it(
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


def test_a_sweep_beside_an_amnesty_declares_no_worker_dead(api: Any, actor: Any, clock: Any) -> None:
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
    """pg_cron calls maintain() once a minute, and no other session does: every call comes after a gap."""
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
