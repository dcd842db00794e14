"""Slots that are given before the claim: to the first jobs of a queue whose jobs are all of one kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.api import ids
from tests.support.notify import heard as heard
from tests.support.queues import claim_from_the_head
from tests.support.slots import add, add_parked


def given(api: Any) -> list[int]:
    return [
        row.id
        for row in api.rows("select id from pyworker.live_jobs where has_slot order by priority, run_at, id")
    ]


def test_the_first_jobs_of_a_kind_get_the_free_slots_and_a_claim_takes_no_lane_for_them(
    api: Any, worker: int, actor: Callable[[], Any]
) -> None:
    api.set_queue("q", 3)
    jobs = add_parked(api, *"aaaaa")
    assert given(api) == jobs[:3]
    a = actor()
    a.begin()
    assert a.value("select pyworker._try_lane('queue:q')")
    assert ids(api.claim_jobs(worker, 10)) == jobs[:3]
    a.commit()
    assert given(api) == []
    api.finish(*jobs[:2])
    assert given(api) == jobs[3:]


def test_jobs_of_several_kinds_get_no_slot_before_the_claim(api: Any) -> None:
    add_parked(api, "a", "b")
    assert given(api) == []
    add(api, "a", queue="flags")
    add_parked(api, "a", queue="flags", flags=["x"])
    assert given(api) == []


@pytest.mark.parametrize("limit", [1, 2])
def test_nor_when_a_job_before_them_ends(api: Any, worker: int, limit: int) -> None:
    api.set_queue("q", limit)
    first, *_ = add(api, *"a" * limit, "a", "b")
    assert len(api.claim_jobs(worker, 9)) == limit
    api.finish(first)
    assert given(api) == []


@pytest.mark.parametrize("later", ["another kind", "an urgent job", "an urgent job of another kind"])
def test_a_slot_that_no_claim_has_used_is_taken_back_for_a_later_job(
    api: Any, worker: int, later: str
) -> None:
    (first,) = add_parked(api, "a")
    assert given(api) == [first]
    (second,) = add(api, "b" if "kind" in later else "a", priority=-1 if "urgent" in later else 0)
    if later == "an urgent job":
        assert ids(api.claim_jobs(worker, 10)) == [second]
    else:
        assert ids(api.claim_jobs(worker, 10, task_identifiers=["b"])) == [second]
    assert api.claim_jobs(worker, 10) == []
    api.finish(second)
    assert ids(api.claim_jobs(worker, 10)) == [first]


@pytest.mark.parametrize("end", ["commit", "rollback", "kill"])
def test_a_slot_that_a_claim_is_using_just_now_stays_taken_and_strands_nothing(
    api: Any, worker: int, actor: Callable[[], Any], end: str
) -> None:
    (first,) = add_parked(api, "a")
    claimer = actor()
    claimer.begin()
    assert ids(claimer.claim_jobs(worker, 10)) == [first]
    (second,) = add(api, "b")
    assert api.claim_jobs(worker, 10) == []
    assert api.seconds_until_due() <= 0.25
    getattr(claimer, end)()
    if end == "commit":
        assert api.claim_jobs(worker, 10) == []
        api.finish(first)
    assert ids(api.claim_jobs(worker, 10, task_identifiers=["b"])) == [second]
    assert api.claim_jobs(worker, 10) == []


@pytest.mark.parametrize(
    ("change", "left"), [("pause_queue('q')", 0), ("set_queue('q', 1)", 1), ("set_queue('q*', 1)", 1)]
)
def test_no_claim_after_a_change_of_the_queue_uses_a_slot_that_was_given_before(
    api: Any, worker: int, actor: Callable[[], Any], change: str, left: int
) -> None:
    """Even where another session has the lane, so that no promotion can take it back."""
    api.set_queue("q*", 3)
    jobs = add_parked(api, *"aaaa")
    assert given(api) == jobs[:3]
    holder = actor()
    holder.begin()
    assert holder.value("select pyworker._try_lane('queue:q')")
    api.rows(f"select pyworker.{change}")
    for _ in range(5):
        api.promote_jobs()  # a family passes its change on to its queues, twice
    assert api.claim_jobs(worker, 10) == []
    holder.commit()
    assert ids(api.claim_jobs(worker, 10)) == jobs[:left]
    assert given(api) == []
    if not left:
        api.resume_queue("q")
        assert ids(api.claim_jobs(worker, 10)) == jobs[:3]


def test_while_a_change_may_have_been_overlooked_claims_count_and_go_on(
    api: Any, worker: int, actor: Callable[[], Any]
) -> None:
    """An old transaction keeps the second look at the change from being done."""
    old = actor()
    old.begin()
    old.value("select pg_current_xact_id()")
    api.set_queue("q", 2)
    jobs = add(api, *"aaaa")
    api.promote_jobs()
    assert ids(api.claim_jobs(worker, 10)) == jobs[:2]
    api.finish(*jobs[:2])
    assert given(api) == jobs[2:]
    assert ids(api.claim_jobs(worker, 10)) == jobs[2:]
    old.commit()


@pytest.mark.parametrize(
    "move",
    [
        "add_job('a', queue_name => 'other', job_key => 'k')",
        "add_job('a', job_key => 'k')",
        "add_job('a', queue_name => 'q', job_key => 'k', run_at => now() + interval '1 day')",
        "reschedule_jobs(array[1::bigint], run_at => now() + interval '1 day')",
        "cancel_job(1)",
        "delete_job(1)",
        "permanently_fail_jobs(array[1::bigint])",
    ],
)
def test_a_job_that_moves_away_leaves_its_slot_to_the_next(api: Any, worker: int, move: str) -> None:
    add_parked(api, "a", job_key="k")
    (second,) = add(api, "a")
    assert given(api) == [1]
    api.rows(f"select pyworker.{move}")
    assert second in ids(api.claim_jobs(worker, 10))
    assert api.value("select count(*) from pyworker.live_jobs where has_slot") == 0


def test_a_job_that_has_run_has_no_slot_when_it_waits_again(api: Any, worker: int, clock: Any) -> None:
    first, second = add_parked(api, "a", "a", max_attempts=3)
    job = api.claim(worker)
    assert job.id == first
    api.fail(job)
    assert given(api) == [second]
    clock.advance(hours=1)
    api.promote_jobs()
    assert given(api) == [second]
    api.finish(api.claim(worker).id)
    assert given(api) == [first]


def test_slots_that_were_given_never_add_up_to_more_than_a_lowered_limit(api: Any, worker: int) -> None:
    api.set_queue("q", 4)
    jobs = add(api, *"aaaaaa")
    api.promote_jobs()
    assert ids(api.claim_jobs(worker, 2)) == jobs[:2]
    api.set_queue("q", 3)
    assert ids(api.claim_jobs(worker, 10)) == jobs[2:3]
    assert api.claim_jobs(worker, 10) == []
    api.finish(*jobs[:3])
    assert ids(api.claim_jobs(worker, 10)) == jobs[3:]


def add_many(api: Any, count: int) -> None:
    api.add_jobs([{"identifier": "a", "queue_name": "q"}] * count)
    api.promote_jobs()


def test_of_very_many_slots_a_hundred_are_given_ahead(api: Any, worker: int) -> None:
    """And one more job is a candidate: its claim asks the queue, and finds that it is to be filled again."""
    api.set_queue("q", 2500)
    add_many(api, 300)
    first, *_ = given(api)
    assert len(given(api)) == 100
    assert api.value("select count(*) from pyworker.live_jobs where ready_at is not null") == 101
    assert ids(api.claim_jobs(worker, 1)) == [first]


@pytest.mark.parametrize("at_once", [1, 100, 101, 5000])
def test_of_very_many_slots_all_are_used(api: Any, worker: int, at_once: int) -> None:
    """Without the end of any job."""
    api.set_queue("q", 250)
    add_many(api, 300)
    while api.claim_jobs(worker, at_once):
        pass
    assert api.value("select count(*) from pyworker.live_jobs where state = 'running'") == 250
    assert api.value("select count(*) from pyworker.live_jobs where parked = 'queue'") == 50


@pytest.mark.parametrize("end", ["commit", "rollback", "kill"])
@pytest.mark.parametrize(
    "change", ["cancel_job(%s)", "delete_job(%s)", "reschedule_jobs(array[%s], priority => 9)"]
)
def test_all_are_used_too_if_another_session_changes_the_candidate_that_asks(
    api: Any, worker: int, actor: Callable[[], Any], change: str, end: str
) -> None:
    api.set_queue("q", 250)
    add_many(api, 300)
    asking = "select id from pyworker.live_jobs where ready_at is not null and has_slot is null"
    a = actor()
    a.begin()
    a.rows(f"select pyworker.{change}", [api.value(asking)])
    while claim_from_the_head(api, worker, 50):
        pass
    getattr(a, end)()
    while claim_from_the_head(api, worker, 50):
        pass
    assert api.value("select count(*) from pyworker.live_jobs where state = 'running'") == 250


def test_most_claims_of_a_queue_with_very_many_slots_ask_for_none(
    api: Any, worker: int, actor: Callable[[], Any]
) -> None:
    """So they do not wait for the session that has the lane."""
    api.set_queue("q", 1000)
    add_many(api, 400)
    for _ in range(150):
        (job,) = api.claim_jobs(worker, 1)
        api.finish(job.id)
    a = actor()
    a.begin()
    assert a.value("select pyworker._try_lane('queue:q')")
    assert len(api.claim_jobs(worker, 1000)) >= 50
    a.commit()
    assert len(api.claim_jobs(worker, 1000)) >= 100


def test_an_idle_worker_gets_the_slots_that_are_free_beyond_those_given_ahead(
    api: Any, worker: int, actor: Callable[[], Any], heard: Any
) -> None:
    api.set_queue("q", 1000)
    add_many(api, 300)
    assert api.claim_jobs(worker, 1, task_identifiers=["other"]) == []  # it waits for a notification
    assert heard() == []
    assert len(actor().claim_jobs(api.register_worker(), 101)) == 101
    assert heard() == [""]
    assert len(api.claim_jobs(worker, 1000)) == 199


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
def test_a_job_without_a_slot_and_one_with_a_slot_are_counted_together(
    api: Any, actor: Callable[[], Any], worker: int, isolation: str
) -> None:
    """A retry that began beside a change of the limit has let its job go as from a queue without one."""
    api.set_queue("q", None)
    (first,) = add(api, "a")
    api.permanently_fail_jobs([first])
    api.promote_jobs()
    api.promote_jobs()
    s, a = actor(), actor()
    s.begin()
    s.set_queue("q", 1)
    a.begin(isolation)
    a.rows("select 1")
    if isolation == "read committed":
        a.retry_job(first)
    s.commit()
    add_parked(api, "a")
    api.promote_jobs()
    if isolation != "read committed":
        a.retry_job(first)
    a.commit()
    assert len(api.claim_jobs(worker, 5)) == 1
    assert api.claim_jobs(worker, 5) == []


@pytest.mark.parametrize("change", ["pause_queue('q')", "set_queue('q', 1)"])
def test_a_claim_with_an_older_snapshot_than_a_change_uses_no_slot(
    api: Any, actor: Callable[[], Any], worker: int, change: str
) -> None:
    api.set_queue("q", 3)
    jobs = add_parked(api, *"aaa")
    api.promote_jobs()
    assert given(api) == jobs
    a = actor()
    a.begin("repeatable read")
    a.rows("select 1")
    api.rows(f"select pyworker.{change}")
    assert a.claim_jobs(worker, 10) == []
    a.commit()
