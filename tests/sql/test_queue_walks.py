"""What a session remembers of a limited queue: a saving, never a job more than the limit, and never a job
that is forgotten."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.api import ids
from tests.support.slots import add, add_parked

MANY = 1_500
READ = "select pyworker._queue_entries_read()"


def prolong(a: Any) -> None:
    """What the session remembers of any queue lasts, as if it had walked for long."""
    a.rows(
        """select set_config(n.name, (n.walk || jsonb_build_object(
                  'until', date_part('epoch', clock_timestamp()) + 1.9))::text, false),
                  setval('pyworker.walks_until',
                         (date_part('epoch', clock_timestamp()) * 1000)::bigint + 10000)
           from (select 'pyworker.walk_queue_' || i as name, nullif(current_setting(
                            'pyworker.walk_queue_' || i, true), '')::jsonb as walk
                 from generate_series(0, 15) i) n where n.walk is not null"""
    )


def remember(a: Any, limit: int, queue: str = "q") -> None:
    a.begin()
    assert a.value("select pyworker._try_lane('queue:' || %s)", [queue])
    a.rows("select pyworker._remember_queue(%s, %s)", [queue, limit])
    prolong(a)
    a.commit()
    assert remembers(a, limit, queue)


def remembers(a: Any, limit: int, queue: str = "q") -> bool:
    return a.value("select pyworker._remembered_of(%s, %s) is not null", [queue, limit])


def running(api: Any, queue: str = "q") -> list[int]:
    return [
        row.id
        for row in api.rows(
            "select id from pyworker.live_jobs"
            " where queue_name = %s and (state = 'running' or has_slot) order by id",
            [queue],
        )
    ]


@pytest.fixture
def two(api: Any, actor: Callable[[], Any], worker: int) -> Any:
    """A session that remembers queue q with its limit of 2: two jobs run, three more are parked."""
    api.set_queue("q", 2)
    a = actor()
    a.jobs = add_parked(api, *"ttttt")
    assert ids(api.claim_jobs(worker, 10)) == a.jobs[:2]
    remember(a, 2)
    return a


@pytest.mark.parametrize("limit", [1, 3])
def test_a_fill_does_not_read_what_has_ended_under_an_old_snapshot(
    api: Any, actor: Callable[[], Any], worker: int, limit: int
) -> None:
    api.set_queue("q", limit)
    old, a = actor(), actor()
    old.begin("repeatable read")
    old.rows("select 1 from pyworker.jobs")
    jobs = ids(api.add_jobs([{"identifier": "t", "queue_name": "q"}] * (MANY + 30)))
    done = 0

    def turn() -> int:
        nonlocal done
        claimed = a.claim_jobs(worker, limit)
        assert ids(claimed) == jobs[done : done + limit]
        done += limit
        before = a.value(READ)
        a.finish_jobs(ids(claimed), [job.run for job in claimed])
        read = a.value(READ) - before
        prolong(a)
        return read

    while done < MANY:
        a.begin()
        turn()
        a.commit()
    a.begin()
    reads = [turn() for _ in range(8)]
    a.commit()
    assert max(reads) < 400


def test_a_job_that_another_session_has_started_counts(two: Any, api: Any, worker: int) -> None:
    api.finish(*two.jobs[:1])
    assert ids(api.claim_jobs(worker, 10)) == two.jobs[2:3]
    prolong(two)
    two.finish(*two.jobs[1:2])
    assert running(api) == two.jobs[2:4]


def test_so_does_one_that_was_never_parked(two: Any, api: Any, worker: int) -> None:
    for job in two.jobs:
        api.claim_jobs(worker, 10)
        api.finish(job)
    assert running(api) == []
    started = add(api, "t", "t")
    assert ids(api.claim_jobs(worker, 10)) == started
    (job,) = add(api, "t")
    prolong(two)
    two.promote_jobs()
    assert running(api) == started
    api.finish(started[0])
    assert running(api) == [started[1], job]


def test_a_job_that_was_long_in_committing_is_not_forgotten(
    two: Any, api: Any, actor: Callable[[], Any], worker: int
) -> None:
    slow = actor()
    slow.begin()
    (late,) = add(slow, "t")
    more = add(api, "t", "t")
    for job in two.jobs[2:] + more:
        prolong(two)
        two.finish(running(api)[0])
        api.claim_jobs(worker, 10)
        assert job in running(api)
    slow.commit()
    prolong(two)
    two.promote_jobs()
    two.finish(running(api)[0])
    prolong(two)
    two.finish(running(api)[0])
    prolong(two)
    two.promote_jobs()
    assert running(api) in ([], [late])
    api.promote_jobs()
    assert running(api) == [late]


def test_a_more_urgent_job_goes_first(two: Any, api: Any) -> None:
    (urgent,) = add(api, "t", priority=-1)
    prolong(two)
    two.finish(two.jobs[0])
    assert running(api) == [two.jobs[1], urgent]


def test_an_urgent_job_takes_the_slot_of_one_that_no_claim_has_taken(two: Any, api: Any, worker: int) -> None:
    two.finish(two.jobs[0])
    assert running(api) == two.jobs[1:3]
    (urgent,) = add(api, "t", priority=-1)
    prolong(two)
    two.promote_jobs()
    assert ids(api.claim_jobs(worker, 10)) == [urgent]


def test_another_kind_is_seen_at_once(two: Any, api: Any, worker: int) -> None:
    (other,) = add(api, "a")
    prolong(two)
    two.finish(*two.jobs[:2])
    assert running(api) == []  # jobs of several kinds get no slot before the claim
    assert ids(api.claim_jobs(worker, 10, task_identifiers=["a"])) == [other]


def test_a_new_limit_holds_at_once(two: Any, api: Any) -> None:
    api.set_queue("q", 1)
    assert not remembers(two, 2)
    two.finish(two.jobs[0])
    assert running(api) == two.jobs[1:2]


def test_a_paused_queue_starts_nothing(two: Any, api: Any) -> None:
    api.pause_queue("q")
    two.finish(*two.jobs[:2])
    assert running(api) == []


def test_nothing_is_remembered_after_its_time_or_by_another_schema(two: Any) -> None:
    setting = two.value("select pyworker._queue_walk('q')")
    for change in ("'until', date_part('epoch', clock_timestamp()) - 0.001", "'table', 1"):
        before = two.value("select current_setting(%s)", [setting])
        two.rows(
            "select set_config(%s, (current_setting(%s)::jsonb || jsonb_build_object(" + change + "))::text,"
            " false)",
            [setting, setting],
        )
        assert not remembers(two, 2)
        two.rows("select set_config(%s, %s, false)", [setting, before])
        prolong(two)
    assert remembers(two, 2)


def test_a_fill_that_is_rolled_back_leaves_what_was_remembered(two: Any, api: Any, worker: int) -> None:
    two.begin()
    two.finish(two.jobs[0])
    two.rollback()
    prolong(two)
    two.finish(two.jobs[1])
    assert running(api) == [two.jobs[0], two.jobs[2]]


def test_a_claim_does_not_answer_the_requests_of_its_own_fills(two: Any, api: Any, worker: int) -> None:
    two.finish(*two.jobs[:2])
    assert ids(two.claim_jobs(worker, 10)) == two.jobs[2:4]
    prolong(two)
    two.finish(*two.jobs[2:4])
    assert ids(two.claim_jobs(worker, 10)) == two.jobs[4:]
    prolong(two)
    two.finish(two.jobs[4])
    prolong(two)
    before = api.value("select last_value from pyworker.promotion_requests_id_seq")
    assert two.claim_jobs(worker, 10) == []
    assert api.value("select last_value from pyworker.promotion_requests_id_seq") - before <= 2
