"""resume_queue, set_queue and producers against sessions that work: no limit is passed, no job is
forgotten."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.queues import add, answered, claim, finish_all, states
from tests.support.sessions import LEVELS


@pytest.mark.parametrize("outcome", ["commit", "rollback", "kill"])
@pytest.mark.parametrize("limit", [1, 2, None])
def test_a_resume_while_a_job_is_ended_in_an_open_transaction(
    api: Any, actor: Any, worker: int, limit: int | None, outcome: str
) -> None:
    api.set_queue("q", limit)
    ids = add(api, 4)
    claim(api, worker, 1)
    api.pause_queue("q")
    w = actor()
    w.begin()
    w.finish(ids[0])
    api.resume_queue("q")
    started = claim(api, worker)
    assert started == ids[1:limit]  # that job still has its slot, and no session waits for it
    getattr(w, outcome)()
    left = 1 if outcome == "commit" else 0
    assert started + claim(api, worker) == ids[1 : limit and limit + left]
    assert finish_all(api, worker) == ids[left:]


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_a_resume_in_an_open_transaction_lets_nothing_start_before_it_commits(
    api: Any, actor: Any, worker: int, outcome: str
) -> None:
    ids = add(api, 2)
    api.pause_queue("q")
    a = actor()
    a.begin()
    a.resume_queue("q")
    assert claim(api, worker) == []
    add(api, 1)
    assert claim(api, worker) == []
    getattr(a, outcome)()
    assert claim(api, worker) == (ids[:1] if outcome == "commit" else [])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_a_limit_is_lowered_while_jobs_are_being_finished(
    api: Any, actor: Any, worker: int, order: tuple[int, ...], level: str
) -> None:
    """Those that finish do not know of the new limit, and let others go by the old one."""
    api.set_queue("q", 4)
    ids = add(api, 8)
    assert claim(api, worker) == ids[:4]
    finishers = [actor() for _ in range(3)]
    for i, finisher in enumerate(finishers):
        finisher.begin(level)
        finisher.finish(ids[i])
    api.set_queue("q", 2)
    for i in order:
        finishers[i].commit()
        claim(api, worker)
        assert states(api)["running"] <= max(2, 4 - order.index(i) - 1)
    answered(api)
    claim(api, worker)
    assert states(api) == {"running": 2, "available": 3}
    assert finish_all(api, worker) == ids[3:]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("outcome", ["commit", "rollback", "mixed"])
@pytest.mark.parametrize("limit", [2, 3, 5])
def test_however_many_finish_at_once_the_limit_is_never_passed(
    api: Any, actor: Any, worker: int, limit: int, outcome: str, level: str
) -> None:
    api.set_queue("q", limit)
    ids = add(api, 3 * limit)
    assert claim(api, worker) == ids[:limit]
    finishers = [actor() for _ in range(limit)]
    for i, finisher in enumerate(finishers):
        finisher.begin(level)
        assert finisher.finish(ids[i]) == [ids[i]]
        assert claim(api, worker) == []
    for i, finisher in enumerate(finishers):
        if outcome == "commit" or (outcome == "mixed" and i % 2):
            finisher.commit()
        else:
            finisher.rollback()
        claim(api, worker)
        assert states(api)["running"] <= limit
    claim(api, worker)
    assert states(api)["running"] == limit
    assert len(finish_all(api, worker)) >= 2 * limit


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
@pytest.mark.parametrize("verb", ["set_queue", "lift", "family", "pause_queue", "resume_queue"])
def test_a_change_of_a_queue_in_an_open_transaction_blocks_no_add_no_claim_and_no_end(
    api: Any, actor: Any, worker: int, verb: str, outcome: str
) -> None:
    api.set_queue("q", 2)
    other = add(api, 1, "other")
    ids = add(api, 4)
    assert claim(api, worker) == other + ids[:2]
    a = actor()
    a.begin()
    if verb == "lift":
        a.set_queue("q", None)
    elif verb == "family":
        a.set_queue("*", 3)
    else:
        getattr(a, verb)(*(["q", 1] if verb == "set_queue" else ["q"]))
    api.conn.execute("set lock_timeout = '1ms'")
    more = add(api, 1)
    single = api.add_job("t", queue_name="q").id
    assert claim(api, worker) == []
    assert sorted(api.finish(ids[0], other[0])) == [other[0], ids[0]]
    assert claim(api, worker) == ids[2:3]
    api.fail_jobs([{"id": ids[1], "run": api.runs(ids[1])[0], "discard": True}])
    assert claim(api, worker) == ids[3:]
    api.maintain()
    api.conn.execute("set lock_timeout = '10s'")
    getattr(a, outcome)()
    if verb == "pause_queue" and outcome == "commit":
        assert claim(api, worker) == []
        api.resume_queue("q")
    assert finish_all(api, worker) == ids[2:] + more + [single]


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
@pytest.mark.parametrize("how", ["name", "family"])
def test_a_limit_set_while_a_job_of_a_queue_without_one_is_being_finished(
    api: Any, actor: Any, worker: int, how: str, outcome: str
) -> None:
    """Who finishes it knows of no limit, and who sets it still counts the job."""
    name = "q" if how == "name" else "q*"
    api.set_queue(name, None)
    ids = add(api, 3)
    assert claim(api, worker) == ids
    w = actor()
    w.begin()
    w.finish(ids[0])
    more = add(api, 2)
    assert claim(api, worker) == more  # no session waits for the one that finishes
    api.set_queue(name, 4)
    last = add(api, 2)
    assert claim(api, worker) == []
    api.finish(more[0])
    assert claim(api, worker) == []
    getattr(w, outcome)()
    answered(api)
    assert claim(api, worker) == (last[:1] if outcome == "commit" else [])
    assert len(finish_all(api, worker)) == (5 if outcome == "commit" else 6)


def test_a_family_changed_in_an_open_transaction_reaches_what_was_added_meanwhile(
    api: Any, actor: Any, worker: int
) -> None:
    a = actor()
    a.begin()
    a.set_queue("c:*", 2)
    ids = add(api, 3, "c:1")
    assert claim(api, worker) == ids[:1]
    a.commit()
    assert claim(api, worker) == ids[1:2]


def test_a_family_lowered_in_an_open_transaction_holds_for_what_became_a_candidate_meanwhile(
    api: Any, actor: Any, worker: int
) -> None:
    api.set_queue("c:*", 3)
    a = actor()
    a.begin()
    a.set_queue("c:*", 1)
    ids = add(api, 3, "c:1")
    api.promote_jobs()
    assert states(api, "c:1") == {"available": 3}
    a.commit()
    assert claim(api, worker) == ids[:1]


def test_a_family_meets_a_promotion_that_still_goes_by_the_old_limit(
    api: Any, actor: Any, worker: int
) -> None:
    ids = add(api, 4, "c:1")
    w = actor()
    w.begin()
    assert claim(w, worker) == ids[:1]
    api.set_queue("c:*", 3)
    assert claim(api, worker) == []
    w.commit()
    assert claim(api, worker) == ids[1:3]


# Producers ----------------------------------------------------------------------------------------


UNIQUE = {"keys": ["type"], "on_conflict": "replace"}

PRODUCES: dict[str, Callable[[Any], Any]] = {
    "add": lambda api: api.add_job("t", queue_name="q"),
    "bulk add": lambda api: add(api, 3),
    "keyed add": lambda api: api.add_job("t", "[2]", queue_name="q", job_key="k"),
    "keyed add elsewhere": lambda api: api.add_job("t", "[2]", job_key="k"),
    "keyed bulk add": lambda api: api.add_jobs([{"identifier": "t", "queue_name": "q", "job_key": "k"}]),
    "remove": lambda api: api.remove_job("k"),
    "unique replace": lambda api: api.add_job("u", queue_name="q", unique_policy=UNIQUE),
}


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
@pytest.mark.parametrize("how", PRODUCES)
@pytest.mark.parametrize("limit", [2, 3, None])
def test_no_session_waits_for_a_producers_open_transaction(
    api: Any, actor: Any, worker: int, limit: int | None, how: str, outcome: str
) -> None:
    """It may have locked the first job of the queue, which is a candidate already."""
    api.set_queue("q", limit)
    own = {"unique_policy": UNIQUE} if how == "unique replace" else {"job_key": "k"}
    first = api.add_job("u", "[1]", queue_name="q", priority=-1, **own)
    api.promote_jobs()
    assert api.get_job(first.id).state == "available"
    a = actor()
    a.begin()
    PRODUCES[how](a)
    ids = add(api, 6, priority=-1)
    done: list[int] = []
    while len(done) < 6:
        jobs = [job for job in api.claim_jobs(worker, 10) if job.id in ids]
        assert jobs, "others wait for the producer"
        done += api.finish_jobs([job.id for job in jobs], [job.run for job in jobs])
    getattr(a, outcome)()
    finish_all(api, worker)
    assert api.rows("select from pyworker.jobs") == []


def test_a_replaced_running_job_frees_its_place_when_the_producer_commits(
    api: Any, actor: Any, worker: int
) -> None:
    api.set_queue("q", 2)
    first = api.add_job("u", queue_name="q", unique_policy=UNIQUE)
    assert claim(api, worker) == [first.id]
    a = actor()
    a.begin()
    second = a.add_job("u", queue_name="q", unique_policy=UNIQUE)
    ids = add(api, 3)
    assert claim(api, worker) == ids[:1]
    api.finish(ids[0])
    assert claim(api, worker) == ids[1:2]
    a.commit()
    assert second.id > first.id
    assert len(claim(api, worker)) == 1
    assert len(finish_all(api, worker)) == 3


@pytest.mark.parametrize("outcome", ["commit", "rollback", "kill"])
@pytest.mark.parametrize("limits", [(1, None, None), (3, None, None), (None, 3, "1 hour")])
def test_a_claim_that_is_open_while_its_queue_is_set_counts(
    api: Any, actor: Any, worker: int, limits: tuple[Any, ...], outcome: str
) -> None:
    """It began before the change, and commits after others have been let in."""
    api.set_queue("q", *limits)
    ids = add(api, 6)
    api.promote_jobs()
    one = actor()
    one.begin()
    assert claim(one, api.register_worker(), 1) == ids[:1]
    api.set_queue("q", *limits)
    most = limits[0] or limits[1]
    others = claim(api, worker)
    assert others == ids[1:most]
    getattr(one, outcome)()
    answered(api)
    others += claim(api, worker)
    assert len(others) == most - (outcome == "commit")
