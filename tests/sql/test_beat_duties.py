"""What a beat does for all workers, of which one does it: the sweep of dead workers, schedules, and
telling when maintain() is due."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.beats import A_SECOND_AGO, beat, wait, words
from tests.support.sweeps import state_of

APART = "select set_config('pyworker.schedules', %s, false)"
# A beat so many seconds after the last sweep, to the millisecond.
BEAT_AFTER = """
    with swept as materialized (
        select setval('pyworker.swept_at', ((extract(epoch from clock_timestamp()) - %s) * 1000)::bigint),
            %s::bigint as worker)
    select b.* from swept s cross join lateral pyworker.beat(s.worker) b"""
IN_SECONDS = "select last_value / 1000.0 - extract(epoch from clock_timestamp()) from pyworker.maintain_at"


# Schedules ----------------------------------------------------------------------------------------


def test_a_beat_adds_the_jobs_of_schedules_that_are_due(api: Any, worker: int, clock: Any) -> None:
    api.add_schedule("minutely", "* * * * *", "t")
    beat(api, worker)
    assert api.value("select count(*) from pyworker.jobs") == 0
    clock.advance(seconds=61)
    (alive, *_) = beat(api, worker)
    assert api.value("select count(*) from pyworker.jobs where task_identifier = 't'") >= 1
    assert alive.next_in_s == 0  # there may be more
    while beat(api, worker)[0].next_in_s == 0:
        pass


def test_a_beat_comes_again_when_a_schedule_falls_due(api: Any, worker: int, clock: Any) -> None:
    api.add_schedule("minutely", "* * * * *", "t")
    clock.advance(seconds=api.value("select extract(epoch from min(next_at) - pyworker.clock())::float - 0.9 "
                                    "from pyworker.schedule_entries"))  # fmt: skip
    assert beat(api, worker)[0].next_in_s <= 0.9  # else it is 1


def due(api: Any, clock: Any) -> None:
    api.maintain()
    api.add_schedule("minutely", "* * * * *", "t")
    clock.advance(seconds=61)


def told_long_ago(api: Any) -> None:
    ago = "((extract(epoch from clock_timestamp()) - 1.1) * 1000)::bigint"
    api.rows(f"select setval('pyworker.due_told_at', {ago})")


def test_a_runner_that_runs_schedules_apart_is_told_when_one_is_due(
    api: Any, worker: int, clock: Any
) -> None:
    api.rows(APART, ["apart"])
    api.add_schedule("hourly", "0 * * * *", "t")
    assert "schedules" not in words(beat(api, worker))
    due(api, clock)
    (alive,) = beat(api, worker)
    assert (alive.why, alive.next_in_s <= 1) == ("schedules", True)
    assert api.value("select count(*) from pyworker.jobs") == 0
    while api.run_schedules():
        pass
    told_long_ago(api)
    assert words(beat(api, worker)) == []
    assert api.value("select count(*) from pyworker.jobs") >= 1


def test_of_many_such_runners_one_a_second_is_told_and_the_next_one_if_it_died(
    api: Any, actor: Any, clock: Any
) -> None:
    other = actor()
    for session in (api, other):
        session.rows(APART, ["apart"])
    api.configure(worker_ttl="1 hour")
    worker, second = api.register_worker(), api.register_worker()
    api.rows("select setval('pyworker.due_told_at', 1)")
    due(api, clock)
    other.rows("select set_config('pyworker.clock_offset', %s, false)", [api.value(
        "select current_setting('pyworker.clock_offset')")])  # fmt: skip
    told = api.rows(
        "select a.why as a, b.why as b, b.next_in_s from pyworker.beat(%s) a, pyworker.beat(%s) b",
        [worker, second],
    )[0]
    assert sorted([told.a or "", told.b or ""]) == ["", "schedules"]
    assert told.next_in_s <= 1
    told_long_ago(api)
    assert words(beat(other, second)) == ["schedules"]


def test_a_runner_that_is_busy_with_schedules_leaves_the_next_one_to_others(
    api: Any, worker: int, clock: Any
) -> None:
    due(api, clock)
    api.rows(APART, ["busy"])
    assert words(beat(api, worker)) == []
    api.rows(APART, ["apart"])
    assert words(beat(api, worker)) == ["schedules"]


def test_a_tick_that_waits_for_its_next_try_is_not_due(api: Any, worker: int, clock: Any) -> None:
    due(api, clock)
    api.rows(APART, ["apart"])
    api.rows("update pyworker.schedule_entries set retry_at = pyworker.clock() + interval '1 minute'")
    assert words(beat(api, worker)) == []
    clock.advance(seconds=61)
    assert words(beat(api, worker)) == ["schedules"]


# maintain() ---------------------------------------------------------------------------------------


def test_a_beat_says_maintain_until_a_session_calls_it(api: Any, worker: int) -> None:
    for _ in range(2):
        assert words(beat(api, worker)) == ["maintain"]
    api.maintain()
    assert words(beat(api, worker)) == []
    api.rows("select setval('pyworker.maintain_at', (extract(epoch from clock_timestamp()) * 1000)::bigint)")
    assert words(beat(api, worker)) == ["maintain"]


def test_a_clock_that_was_set_back_silences_no_beat(api: Any, worker: int) -> None:
    later = "((extract(epoch from clock_timestamp()) + 3600) * 1000)::bigint"
    api.rows(f"select setval('pyworker.maintain_at', {later})")
    assert words(beat(api, worker)) == ["maintain"]


@pytest.mark.parametrize(("found", "low", "high"), [(0, 20, 60), (1, 1, 15), (1000, -20, 0)])
def test_maintain_is_due_again_the_sooner_the_more_it_found(
    api: Any, clock: Any, found: int, low: int, high: int
) -> None:
    api.configure(discarded_retention="1 second")
    if found:
        api.rows("select from pyworker.add_jobs((select jsonb_agg('{\"identifier\": \"t\"}'::jsonb) "
                 "from generate_series(1, %s)))", [found])  # fmt: skip
        api.rows("select from pyworker.permanently_fail_jobs(array(select id from pyworker.jobs))")
        clock.advance(seconds=2)
    assert api.maintain()["pruned"] == found
    assert low <= api.value(IN_SECONDS) < high + 0.001  # it is kept in whole milliseconds, rounded


def test_a_maintenance_that_takes_long_is_not_called_for_again_at_once(
    api: Any, worker: int, actor: Any
) -> None:
    """Nor one that fails, by every worker."""
    other = actor()
    other.begin()
    other.rows("select pg_advisory_xact_lock(hashtextextended('pyworker/maintain', 0))")
    assert api.maintain() is None
    other.rollback()
    assert words(beat(api, worker)) == []
    assert api.value(IN_SECONDS) > 10


# The sweep ----------------------------------------------------------------------------------------


def test_the_jobs_of_a_dead_worker_come_back_by_anothers_beat(api: Any, worker: int, clock: Any) -> None:
    job = api.add_job("t")
    api.claim(worker)
    clock.advance(seconds=30)
    beat(api, api.register_worker())
    assert api.get_job(job.id).state == "available"


def test_of_many_workers_one_sweeps(api: Any, worker: int) -> None:
    """Not again within 0.9 seconds of a sweep."""
    swept_at = "select last_value from pyworker.swept_at"
    beat(api, worker)
    ago = api.rows(
        "with swept as materialized (select setval('pyworker.swept_at',"
        " ((extract(epoch from clock_timestamp()) - 0.4) * 1000)::bigint) as at)"
        " select s.at from swept s, pyworker.beat(%s) b",
        [api.register_worker()],
    )[0].at
    assert api.value(swept_at) == ago
    api.rows(A_SECOND_AGO)
    before = api.value(swept_at)
    beat(api, worker)
    assert api.value(swept_at) > before


def test_a_beat_waits_for_no_locked_job(api: Any, actor: Any, worker: int, clock: Any) -> None:
    job = api.add_job("t")
    api.claim(worker)
    other = actor()
    other.begin()
    other.rows("select from pyworker.live_jobs where id = %s for update", [job.id])
    clock.advance(seconds=30)
    second = api.register_worker()
    assert words(beat(api, second)) == ["maintain"]
    assert api.get_job(job.id).state == "running"
    other.rollback()
    api.rows(A_SECOND_AGO)
    beat(api, second)
    assert api.get_job(job.id).state == "available"


def test_a_beat_whose_sweep_meets_a_lock_counts_all_the_same(
    api: Any, actor: Any, worker: int, clock: Any
) -> None:
    job = api.add_job("t")
    api.claim(worker)
    other = actor()
    other.begin()
    other.rows("lock table pyworker.errors")
    clock.advance(seconds=30)
    second = api.register_worker()
    clock.advance(seconds=10)
    beat(api, second)
    assert api.get_job(job.id).state == "running"
    assert api.value(
        "select pyworker.clock() - beat_at < interval '9 s' from pyworker.workers where id = %s", [second]
    )
    other.rollback()
    api.rows(A_SECOND_AGO)
    beat(api, second)
    assert api.get_job(job.id).state == "available"


def test_one_worker_that_beats_as_it_is_told_finds_that_another_one_was_killed(
    api: Any, actor: Any, clock: Any
) -> None:
    """Its own sweeps are up to two seconds apart, until it suspects a worker: then it comes sooner, or it
    would take each interval for a pause in which the other could not take its lock again."""
    api.configure(worker_ttl="1 hour")
    worker, second = api.register_worker(), api.register_worker()
    control = actor()
    beat(control, worker, lock=True)
    assert beat(api, second)[0].next_in_s > 1
    control.kill()
    control.conn.close()
    wait(api, "select count(*) = 0 from pg_locks where locktype = 'advisory'")
    came_after = 1.0
    for _ in range(5):
        (alive,) = api.rows(BEAT_AFTER, [came_after, second])
        if state_of(api, worker) == "dead":
            assert alive.next_in_s > 1
            return
        assert alive.next_in_s <= 1
        came_after = alive.next_in_s
        clock.advance(seconds=came_after)
    raise AssertionError("the worker is alive without its connection")


def test_the_beat_at_the_end_of_a_suspects_grace_sweeps_however_recent_the_last_sweep_is(
    api: Any, worker: int, actor: Any, clock: Any
) -> None:
    actor().hold_worker_lock(worker)
    second = api.register_worker()
    api.rows("update pyworker.workers set suspect_since = pyworker.clock() where id = %s", [worker])
    api.rows(
        "select setval('pyworker.swept_at', (extract(epoch from clock_timestamp()) * 1000)::bigint - 300)"
    )
    beat(api, second)
    suspect = "select suspect_since is not null from pyworker.workers where id = %s"
    assert api.value(suspect, [worker]) is True
    clock.advance(seconds=3)
    api.rows(
        "select setval('pyworker.swept_at', (extract(epoch from clock_timestamp()) * 1000)::bigint - 300)"
    )
    beat(api, second)
    assert api.value(suspect, [worker]) is False  # its lock is held


def test_a_suspect_whose_row_is_locked_makes_no_worker_beat_without_a_pause(
    api: Any, worker: int, actor: Any, clock: Any
) -> None:
    api.rows("update pyworker.workers set locked = true, suspect_since = pyworker.clock()")
    second = api.register_worker()
    other = actor()
    other.begin()
    other.rows("select from pyworker.workers where id = %s for update", [worker])
    clock.advance(seconds=3)
    assert beat(api, second)[0].next_in_s == 1
    other.rollback()
