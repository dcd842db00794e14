"""Named queues: one job after the other, no job overtakes, no job is forgotten, and adding never waits."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.support.api import ids


@pytest.fixture
def three(api: Any) -> list[Any]:
    return [api.add_job("t", queue_name="q") for _ in range(3)]


def test_jobs_of_a_named_queue_run_one_after_the_other_in_order(
    api: Any, worker: int, three: list[Any]
) -> None:
    for job in three:
        (claimed,) = api.claim_jobs(worker, 10)
        assert claimed.id == job.id
        assert api.claim_jobs(api.register_worker(), 10) == []
        api.finish_job(claimed.id, claimed.run)
    assert api.claim_jobs(worker, 10) == []


@pytest.mark.parametrize("limit", [None, 1, 2], ids=["never set", "1", "2"])
def test_the_order_in_a_queue_is_priority_run_at_id(api: Any, worker: int, limit: int | None) -> None:
    if limit:
        api.set_queue("q", limit)
    now = api.at("-1 hour")
    keys = [(5, 0), (0, 3), (0, 1), (-1, 9), (0, 1), (5, -1)]
    jobs = api.add_jobs(
        [
            {"identifier": "t", "queue_name": "q", "priority": p, "run_at": str(now + timedelta(seconds=s))}
            for p, s in keys
        ]
    )
    seen = []
    while claimed := api.claim(worker):
        seen.append(claimed.id)
        api.finish_job(claimed.id, claimed.run)
    assert seen == ids(sorted(jobs, key=lambda job: (job.priority, job.run_at, job.id)))


def test_a_job_that_commits_after_the_job_before_it_has_ended_gets_its_turn(
    api: Any, worker: int, actor: Any
) -> None:
    api.add_job("t", queue_name="q")
    (before,) = api.claim_jobs(worker, 1)
    a = actor()
    a.begin()
    added = a.add_job("t", queue_name="q").id
    api.finish(before.id)
    assert api.claim_jobs(worker, 1) == []
    a.commit()
    assert ids(api.claim_jobs(worker, 1)) == [added]


def test_queues_run_side_by_side_and_beside_jobs_without_one(api: Any, worker: int) -> None:
    names = ["a", "b", "c", "default", "default"]
    jobs = api.add_jobs([{"identifier": "t", "queue_name": name} for name in names + names])
    first = api.claim_jobs(worker, 10)
    assert sorted(ids(first)) == sorted(ids(jobs[:5] + jobs[8:]))
    api.finish_jobs(ids(first), [job.run for job in first])
    assert sorted(ids(api.claim_jobs(worker, 10))) == ids(jobs[5:8])


LEAVES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "success": lambda api, job, clock: api.finish_job(job.id, job.run),
    "a batch of successes": lambda api, job, clock: api.finish_jobs([job.id], [job.run]),
    "failure": lambda api, job, clock: api.fail(job),
    "discard": lambda api, job, clock: api.fail(job, discard=True),
    "cancel": lambda api, job, clock: api.fail(job, cancel=True),
    "forced cancel": lambda api, job, clock: api.cancel_job(job.id, True),
    "snooze": lambda api, job, clock: api.snooze_job(job.id, job.run, "1 hour"),
    "cancel on request": lambda api, job, clock: (api.cancel_job(job.id), api.fail(job)),
}


@pytest.mark.parametrize("how", LEAVES)
def test_however_a_job_leaves_the_next_of_its_queue_follows_at_once(
    api: Any, worker: int, three: list[Any], clock: Any, how: str
) -> None:
    claimed = api.claim(worker)
    LEAVES[how](api, claimed, clock)
    assert ids(api.claim_jobs(worker, 10)) == [three[1].id]


@pytest.mark.parametrize("how", ["release", "unregister", "force unlock", "lease"])
def test_a_job_that_is_handed_back_keeps_its_place_in_the_queue(
    api: Any, worker: int, three: list[Any], clock: Any, how: str
) -> None:
    claimed = api.claim(worker)
    if how == "release":
        api.release_jobs([claimed.id], [claimed.run])
    elif how == "unregister":
        api.unregister_worker(worker)
    elif how == "force unlock":
        api.force_unlock_workers([str(worker)])
    else:
        clock.advance(minutes=5)
        api.maintain()
    assert ids(api.claim_jobs(api.register_worker(), 10)) == [three[0].id]


TAKES_AWAY: dict[str, Callable[[Any, Any], Any]] = {
    "cancel": lambda api, job: api.cancel_job(job.id),
    "delete": lambda api, job: api.delete_job(job.id),
    "remove": lambda api, job: api.remove_job("k"),
    "complete": lambda api, job: api.complete_jobs([job.id]),
    "fail": lambda api, job: api.permanently_fail_jobs([job.id]),
    "reschedule": lambda api, job: api.reschedule_jobs([job.id], run_at=api.at("1 hour")),
    "outrank": lambda api, job: api.reschedule_jobs([job.id], priority=9),
    "key to another queue": lambda api, job: api.add_job("u", job_key="k", queue_name="r"),
    "key to no queue": lambda api, job: api.add_job("u", job_key="k"),
    "key to a later time": lambda api, job: api.add_job(
        "u", job_key="k", queue_name="q", run_at=api.at("1 hour")
    ),
    "bulk key to no queue": lambda api, job: api.add_jobs([{"identifier": "u", "job_key": "k"}]),
}


@pytest.mark.parametrize("how", TAKES_AWAY)
@pytest.mark.parametrize("promoted", [True, False], ids=["its turn had come", "still waiting"])
def test_a_waiting_job_that_is_taken_away_passes_its_turn_on(
    api: Any, worker: int, how: str, promoted: bool
) -> None:
    head, following = api.add_job("t", queue_name="q", job_key="k"), api.add_job("t", queue_name="q")
    if promoted:
        api.promote_jobs()
        assert api.get_job(head.id).state == "available"
    TAKES_AWAY[how](api, head)
    assert ids(api.claim_jobs(worker, 10, ["t"])) == [following.id]


def test_a_job_that_moves_into_a_busy_queue_waits_there(api: Any, worker: int) -> None:
    holder = api.add_job("t", queue_name="q")
    api.claim(worker)
    api.add_job("t", job_key="k")
    moved = api.add_job("t", job_key="k", queue_name="q")
    assert api.claim_jobs(worker, 10) == []
    api.finish(holder.id)
    assert ids(api.claim_jobs(worker, 10)) == [moved.id]


def test_a_running_job_holds_its_queue_even_when_superseded(api: Any, worker: int) -> None:
    old = api.add_job("t", queue_name="q", job_key="k")
    api.claim(worker)
    new = api.add_job("t", queue_name="q", job_key="k")
    assert api.claim_jobs(worker, 10) == []
    api.finish(old.id)
    assert ids(api.claim_jobs(worker, 10)) == [new.id]


def test_what_is_not_due_does_not_hold_its_queue_and_waits_its_turn_when_due(
    api: Any, worker: int, clock: Any
) -> None:
    later = api.add_job("t", queue_name="q", run_at=api.at("1 hour"), priority=-5)
    now = api.add_job("t", queue_name="q")
    (claimed,) = api.claim_jobs(worker, 10)
    assert claimed.id == now.id
    clock.advance(hours=2)
    assert api.claim_jobs(worker, 10) == []
    assert api.get_job(later.id).state == "available"
    api.finish_job(claimed.id, claimed.run)
    assert ids(api.claim_jobs(worker, 10)) == [later.id]


def test_a_failed_job_comes_back_into_its_queue(api: Any, worker: int, three: list[Any], clock: Any) -> None:
    api.fail(api.claim(worker))
    clock.advance(hours=1)
    seen = []
    while claimed := api.claim(worker):
        seen.append(claimed.id)
        api.finish_job(claimed.id, claimed.run)
    assert seen == ids([*three[1:], three[0]])  # its run_at is the latest now


@pytest.mark.parametrize("state", ["discarded", "completed", "cancelled"])
def test_a_job_retried_by_hand_waits_for_its_queue(api: Any, job_in: Any, worker: int, state: str) -> None:
    job = job_in(state, queue_name="q")
    holder = api.add_job("u", queue_name="q")
    assert api.claim(worker, "u")
    assert api.retry_job(job.id).state == "available"
    assert api.claim_jobs(worker, 10) == []
    api.finish(holder.id)
    assert ids(api.claim_jobs(worker, 10)) == [job.id]


@pytest.mark.parametrize("keyed", [False, True])
def test_the_first_use_of_a_queue_or_task_in_an_open_transaction_blocks_no_session(
    api: Any, actor: Any, worker: int, keyed: bool
) -> None:
    """Graphile Worker's add waits here, for a row of the queue's name."""
    a = actor()
    a.begin()
    mine = a.add_job("new task", queue_name="new", job_key="a" if keyed else None)
    a.add_jobs([{"identifier": "new task", "queue_name": "new", "job_key": "b" if keyed else None}])
    b = actor()
    b.begin("repeatable read")
    b.add_job("new task", queue_name="new", job_key="c" if keyed else None)
    b.commit()
    (claimed,) = api.claim_jobs(worker, 10)
    assert claimed.id > mine.id
    api.finish_job(claimed.id, claimed.run)
    assert api.claim_jobs(worker, 10) == []
    a.commit()
    assert ids(api.claim_jobs(worker, 10)) == [mine.id]


def test_two_hundred_queues_are_all_served(api: Any, worker: int) -> None:
    api.add_jobs([{"identifier": "t", "queue_name": f"q{i % 200}"} for i in range(400)])
    done = 0
    while jobs := api.claim_jobs(worker, 500):
        assert len({job.queue_name for job in jobs}) == len(jobs)
        done += len(api.finish_jobs(ids(jobs), [job.run for job in jobs]))
    assert done == 400


def test_no_queue_starves_behind_busy_ones(api: Any, worker: int) -> None:
    busy = [{"identifier": "t", "queue_name": f"a{i}"} for i in range(200)]
    api.add_jobs(busy)
    while api.claim_jobs(worker, 500):
        pass
    last = api.add_job("t", queue_name="z")
    for _ in range(5):
        api.add_jobs(busy)
        if api.claim_jobs(worker, 500):
            break
    assert api.get_job(last.id).state == "running"


def test_a_completion_in_an_open_transaction_holds_up_no_other_queue(
    api: Any, actor: Any, worker: int
) -> None:
    """Its lane is taken until then, however many jobs are added to it meanwhile."""
    first = api.add_job("t", queue_name="q")
    api.claim(worker)
    handler = actor()
    handler.begin()
    handler.finish(first.id)
    for _ in range(300):
        api.add_job("t", queue_name="q")
    others = [api.add_job("t", queue_name=name) for name in ("a", "z")]
    claimed: list[int] = []
    for _ in range(100):
        claimed += ids(api.claim_jobs(worker, 10))
    assert sorted(claimed) == ids(others)
    handler.commit()
    assert len(api.claim_jobs(worker, 10)) == 1


def test_queue_stats_tell_what_waits_where(api: Any, worker: int, three: list[Any]) -> None:
    api.add_job("t")
    api.add_job("t", queue_name="q", run_at=api.at("1 hour"))
    api.claim_jobs(worker, 1, queue_names=["q"])
    rows = api.rows(
        "select queue_name, concurrency, running, pending, scheduled, available from pyworker.queue_stats "
        "order by 1"
    )
    assert rows == [("default", None, 0, 0, 0, 1), ("q", 1, 1, 0, 1, 2)]


def test_a_family_that_was_just_set_strands_none_of_its_queues(
    api: Any, worker: int, invariants: Any
) -> None:
    """Their jobs wait until the family's request is handled."""
    for _ in range(3):
        api.add_job("t", queue_name="c:1")
    assert len(api.claim_jobs(worker, 1)) == 1
    api.set_queue("c:*", 2)
    invariants(api.conn)


@pytest.mark.parametrize("verb", ["pause_queue", "set_queue"])
def test_what_was_claimed_before_a_queues_change_was_committed_is_within_its_limit(
    api: Any, actor: Any, worker: int, invariants: Any, verb: str
) -> None:
    api.set_queue("q", 2)
    for _ in range(2):
        api.add_job("t", queue_name="q")
    a = actor()
    a.begin()
    a.rows(
        "select pyworker.pause_queue('q')" if verb == "pause_queue" else "select pyworker.set_queue('q', 1)"
    )
    claimed = api.claim_jobs(worker, 2)
    a.commit()
    assert len(claimed) == 2
    invariants(api.conn)


def test_what_was_claimed_after_a_limit_was_lowered_counts_against_it(api: Any, worker: int) -> None:
    api.set_queue("q", 3)
    jobs = [api.add_job("t", queue_name="q") for _ in range(3)]
    api.set_queue("q", 1)
    api.set_queue("q", 3)
    assert len(api.claim_jobs(worker, 3)) == 3
    found = "select distinct subject from pyworker._invariants() where invariant = 'I13'"
    assert api.rows(found) == []
    # As if the limit had been one all the time, and a claim had passed it, without a slot.
    api.rows("update pyworker.queues set concurrency = 1")
    api.rows("update pyworker.live_jobs set slot = null")
    assert api.rows(found) == [("q",)]
    api.finish(*(job.id for job in jobs))
