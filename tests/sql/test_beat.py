"""beat, what a runner calls once a second: heartbeat, lock, sweep, schedules and what must stop."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg.types.json import Jsonb

A_SECOND_AGO = (
    "select setval('pyworker.swept_at', ((extract(epoch from clock_timestamp()) - 1) * 1000)::bigint)"
)
BEAT = "select * from pyworker.beat(%s, %s, %s, %s, %s, %s)"


def beat(
    api: Any,
    worker: Any,
    jobs: Any = (),
    lock: bool = False,
    condition: Any = None,
    lost_answer: bool = False,
) -> list[Any]:
    ids, runs = ([job[at] for job in jobs] for at in (0, 1))
    return api.rows(BEAT, [worker, ids, runs, lock, condition, lost_answer])


def stops(rows: list[Any]) -> list[tuple[int, str]]:
    alive, *rest = rows
    assert (alive.kind, alive.id, alive.run, alive.why) == ("alive", None, None, None)
    assert 0 <= alive.next_in_s <= 1
    assert {row.kind for row in rest} <= {"stop"}
    return [(row.id, row.why) for row in rest]


def test_a_beat_extends_the_lease(api: Any, worker: int, clock: Any) -> None:
    for _ in range(3):
        clock.advance(seconds=15)
        assert stops(beat(api, worker)) == []
    api.sweep_workers()
    assert api.value("select count(*) from pyworker.live_workers") == 1


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
    while api.value("select count(*) from pg_locks where locktype = 'advisory'"):
        api.rows("select pg_sleep(0.01)")
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
    assert stops(beat(api, second)) == []
    assert api.get_job(job.id).state == "running"
    other.rollback()
    api.rows(A_SECOND_AGO)
    beat(api, second)
    assert api.get_job(job.id).state == "available"


@pytest.mark.parametrize("condition", [{}, 7, [], True])
def test_a_condition_that_is_no_string_is_refused(api: Any, worker: int, condition: Any) -> None:
    with api.refusal("PW001", "beat: condition must be a JSON string or null"):
        beat(api, worker, condition=Jsonb(condition))


def test_arrays_of_unequal_length_are_refused(api: Any, worker: int) -> None:
    with api.refusal("PW001", "beat: job_ids and runs must be of one length, got 2 and 1"):
        api.rows(BEAT, [worker, [1, 2], [1], False, None, False])


def test_null_arrays_name_no_job(api: Any, worker: int) -> None:
    assert stops(api.rows(BEAT, [worker, None, None, False, None, False])) == []
