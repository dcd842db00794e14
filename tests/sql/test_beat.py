"""beat, what a runner calls every second or two: heartbeat, lock, sweep and what must stop. Its duties
for all workers are in test_beat_duties."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg.types.json import Jsonb

from tests.support.beats import A_SECOND_AGO, BEAT, beat, wait, words


def stops(rows: list[Any]) -> list[tuple[int, str]]:
    alive, *rest = rows
    assert (alive.kind, alive.id, alive.run) == ("alive", None, None)
    assert alive.why in (None, "maintain")
    assert 0 <= alive.next_in_s <= 2
    assert {row.kind for row in rest} <= {"stop"}
    return [(row.id, row.why) for row in rest]


def test_a_beat_extends_the_lease(api: Any, worker: int, clock: Any) -> None:
    for _ in range(3):
        clock.advance(seconds=15)
        assert stops(beat(api, worker)) == []
    api.sweep_workers()
    assert api.value("select count(*) from pyworker.live_workers") == 1


LEFT = """
    select extract(epoch from w.expires_at - pyworker.clock()) / extract(epoch from s.worker_ttl)
    from pyworker.workers w, pyworker.settings s where w.id = %s"""


@pytest.mark.parametrize("ttl", ["12 seconds", "20 seconds", "1 hour"])
@pytest.mark.parametrize("before", ["20 seconds", "12 seconds", "1 day"])
@pytest.mark.parametrize("seconds", [0, 1, 2.4, 2.6, 11, -3600])
def test_after_a_beat_at_least_seven_eighths_of_the_lease_are_left(
    api: Any, clock: Any, ttl: str, before: str, seconds: float
) -> None:
    """Else others would take its jobs before stop_after_s. The clock may be set back."""
    api.configure(worker_ttl=before)
    worker = api.register_worker()
    api.configure(worker_ttl=ttl)
    clock.advance(seconds=seconds)
    beat(api, worker)
    assert 0.87 < api.value(LEFT, [worker]) <= 1


def test_a_beat_soon_after_another_writes_nothing_into_the_workers_row(
    api: Any, actor: Any, worker: int
) -> None:
    control = actor()
    row = "select ctid, beat_at from pyworker.workers where id = %s"
    before = api.rows(row, [worker])
    beat(control, worker, lock=True)  # notes the lock
    noted = api.rows(row, [worker])
    assert noted != before
    for lock in (True, False):
        beat(control, worker, lock=lock)
        assert api.rows(row, [worker]) == noted


def test_a_worker_without_jobs_may_beat_half_as_often(api: Any, worker: int) -> None:
    assert 1 < beat(api, worker)[0].next_in_s <= 2
    api.add_job("t")
    job = api.claim(worker)
    assert beat(api, worker, [(job.id, job.run)])[0].next_in_s == 1


def test_idle_workers_come_together_at_whole_seconds(api: Any, worker: int) -> None:
    again = (
        "next_in_s as after from pyworker.beat(%s)",
        "again_in_s as after from pyworker.work(%s, null, null, null, null, 1)",
    )
    for call in again * 3:
        (row,) = api.rows(f"select extract(epoch from clock_timestamp())::float as now, {call}", [worker])
        assert 1 < row.after <= 2
        assert abs(row.now + row.after - round(row.now + row.after)) < 0.1
        api.rows("select pg_sleep(0.3)")  # to another part of the second


def test_a_worker_whose_lock_another_session_holds_is_told_so(api: Any, worker: int, actor: Any) -> None:
    former = actor()
    former.hold_worker_lock(worker)
    assert "unlocked" in words(beat(api, worker, lock=True))
    assert api.value("select locked from pyworker.workers where id = %s", [worker]) is False
    former.rows("select pg_advisory_unlock_all()")
    assert "unlocked" not in words(beat(actor(), worker, lock=True))
    assert api.value("select locked from pyworker.workers where id = %s", [worker]) is True
    assert "unlocked" not in words(beat(api, worker))


@pytest.mark.parametrize("end", ["close", "crash", "never was"])
def test_a_worker_that_is_not_registered_is_told_so(api: Any, worker: int, end: str) -> None:
    if end == "close":
        api.close_worker(worker)
    elif end == "crash":
        api.report_crash(worker)
    ((kind, *others),) = beat(
        api, 4711 if end == "never was" else worker, [(1, 1)], True, Jsonb("stuck"), True
    )
    assert (kind, set(others)) == ("dead", {None})


def test_a_run_must_stop_when_its_job_is_cancelled_or_its_claim_is_lost(api: Any, worker: int) -> None:
    for _ in range(4):
        api.add_job("t")
    kept, cancelled, forced, finished = api.claim_jobs(worker, 4)
    mine = [(job.id, job.run) for job in (kept, cancelled, forced, finished)]
    assert stops(beat(api, worker, [*mine, (4711, 1)])) == [(4711, "lost")]
    api.cancel_job(cancelled.id)
    api.cancel_job(forced.id, True)
    api.finish(finished.id)
    expected = [(cancelled.id, "cancel"), (forced.id, "lost"), (finished.id, "lost")]
    assert sorted(stops(beat(api, worker, mine))) == expected
    assert sorted(stops(beat(api, worker, mine))) == expected  # until the worker names them no more
    assert stops(beat(api, worker, mine[:1])) == []
    api.finish(cancelled.id)
    assert stops(beat(api, worker, [mine[1]])) == [(cancelled.id, "lost")]


def test_a_beat_may_hold_the_workers_lock_on_its_connection(
    api: Any, worker: int, actor: Any, clock: Any
) -> None:
    control = actor()
    for _ in range(2):
        beat(control, worker, lock=True)
        assert api.value("select locked from pyworker.workers where id = %s", [worker]) is True
    control.kill()
    control.conn.close()
    wait(api, "select count(*) = 0 from pg_locks where locktype = 'advisory'")
    other = api.register_worker()
    for _ in range(10):  # on a slow machine a sweep may take the time between two for a pause
        api.rows(A_SECOND_AGO)
        beat(api, other)
        clock.advance(seconds=2.1)
        if beat(api, worker)[0].kind == "dead":
            return
        beat(api, other)
    raise AssertionError("the worker is alive without its connection")


def test_a_beat_tells_people_the_workers_condition(api: Any, worker: int) -> None:
    condition = "select info -> 'condition' as c from pyworker.live_workers where id = %s"
    for told, shown in [(Jsonb("stuck"), "stuck"), (None, "stuck"), (Jsonb(None), None)]:
        beat(api, worker, condition=told)
        assert api.value(condition, [worker]) == shown


def test_after_a_lost_answer_what_the_worker_does_not_name_is_handed_back(api: Any, worker: int) -> None:
    for _ in range(2):
        api.add_job("t")
    api.add_job("t", delivery="at_most_once")
    known, unknown, begun = api.claim_jobs(worker, 3)
    api.start_job(begun.id, begun.run)
    assert stops(beat(api, worker, [(known.id, known.run)])) == []
    assert api.get_job(unknown.id).state == "running"
    assert stops(beat(api, worker, [(known.id, known.run)], lost_answer=True)) == []
    after = [api.get_job(job.id) for job in (known, unknown, begun)]
    assert [job.state for job in after] == ["running", "available", "discarded"]
    assert (after[1].attempts, after[2].reason) == (0, "lost")


@pytest.mark.parametrize("condition", [{}, 7, [], True])
def test_a_condition_that_is_no_string_is_refused(api: Any, worker: int, condition: Any) -> None:
    with api.refusal("PW001", "beat: condition must be a JSON string or null"):
        beat(api, worker, condition=Jsonb(condition))


def test_arrays_of_unequal_length_are_refused(api: Any, worker: int) -> None:
    with api.refusal("PW001", "beat: job_ids and runs must be of one length, got 2 and 1"):
        api.rows(BEAT, [worker, [1, 2], [1], False, None, False])


def test_null_arrays_name_no_job(api: Any, worker: int) -> None:
    assert stops(api.rows(BEAT, [worker, None, None, False, None, False])) == []
