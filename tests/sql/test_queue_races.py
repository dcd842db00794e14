"""Limits and pauses against sessions that are at it: nobody waits, no limit is passed, nobody is forgotten."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from tests.support.queues import add, claim, finish_all, states
from tests.support.sessions import LEVELS

SECONDS = float(os.environ.get("PYWORKER_TORTURE_SECONDS", "30"))


# pause_queue meets … -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", ["commit", "rollback", "kill"])
@pytest.mark.parametrize("limit", [1, 3, None])
def test_a_pause_meets_a_claim_that_is_just_letting_jobs_go(
    api: Any, actor: Any, worker: int, limit: int | None, outcome: str
) -> None:
    api.set_queue("q", limit)
    ids = add(api, 5)
    w = actor()
    w.begin()
    assert claim(w, worker, 1) == ids[:1]
    api.pause_queue("q")  # does not wait
    assert claim(api, worker) == []
    getattr(w, outcome)()
    assert claim(api, worker) == []
    ran = 1 if outcome == "commit" else 0
    assert states(api) == {"running": 1, "available": 4} if ran else {"available": 5}
    api.resume_queue("q")
    assert claim(api, worker) == ids[ran : limit and limit]
    assert finish_all(api, worker) == ids


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
@pytest.mark.parametrize("level", LEVELS)
def test_a_pause_meets_an_end_in_an_open_transaction(
    api: Any, actor: Any, worker: int, level: str, outcome: str
) -> None:
    """Which lets the next job go, as it sees no pause."""
    ids = add(api, 3)
    claim(api, worker)
    w = actor()
    w.begin(level)
    w.finish(ids[0])
    api.pause_queue("q")
    assert claim(api, worker) == []
    getattr(w, outcome)()
    assert claim(api, worker) == []
    assert states(api) == ({"available": 2} if outcome == "commit" else {"available": 2, "running": 1})
    api.resume_queue("q")
    assert finish_all(api, worker) == ids[1 if outcome == "commit" else 0 :]


@pytest.mark.parametrize("first", ["add", "pause"])
@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_a_pause_meets_an_add(api: Any, actor: Any, worker: int, first: str, outcome: str) -> None:
    a = actor()
    a.begin()
    if first == "add":
        added = add(a, 2)
        api.pause_queue("q")
        getattr(a, outcome)()
        assert claim(api, worker) == []
        api.resume_queue("q")
        assert claim(api, worker) == (added[:1] if outcome == "commit" else [])
    else:
        a.pause_queue("q")
        added = add(api, 2)
        assert claim(api, worker) == added[:1]  # not paused yet
        getattr(a, outcome)()
        api.finish(added[0])
        assert claim(api, worker) == (added[1:] if outcome == "rollback" else [])


CHANGES: dict[str, Callable[[Any, int], Any]] = {
    "cancel": lambda api, job: api.cancel_job(job),
    "delete": lambda api, job: api.delete_job(job),
    "complete": lambda api, job: api.complete_jobs([job]),
    "reschedule": lambda api, job: api.reschedule_jobs([job], priority=5),
    "retry": lambda api, job: api.retry_job(job),
    "replace": lambda api, job: api.add_job("t", job_key="k", queue_name="q"),
    "move": lambda api, job: api.add_job("t", job_key="k", queue_name="r"),
    "remove": lambda api, job: api.remove_job("k"),
}


@pytest.mark.parametrize("how", CHANGES)
@pytest.mark.parametrize("outcome", ["commit", "rollback"])
@pytest.mark.parametrize("change", ["pause", "lower"])
def test_a_candidate_that_another_session_has_locked_does_not_start_once_its_queue_is_full_or_paused(
    api: Any, actor: Any, worker: int, change: str, outcome: str, how: str
) -> None:
    """It became a candidate before the queue was paused, or its limit lowered; no claim waits for that session."""
    api.set_queue("q", 2)
    running = add(api, 1)
    assert claim(api, worker) == running
    held = api.add_job("t", queue_name="q", job_key="k").id
    api.promote_jobs()
    assert api.get_job(held).state == "available"
    a = actor()
    a.begin()
    CHANGES[how](a, held)
    if change == "pause":
        api.pause_queue("q")
    else:
        api.set_queue("q", 1)
    for _ in range(3):
        assert claim(api, worker) == []
    getattr(a, outcome)()
    assert [job.id for job in api.claim_jobs(worker, 10, None, ["q"])] == []


HOLDS: dict[str, Callable[[Any, int], Any]] = {
    "lock": lambda api, job: api.rows("select from pyworker.live_jobs where id = %s for update", [job]),
    "reschedule": lambda api, job: api.reschedule_jobs([job], priority=5),
}


@pytest.mark.parametrize("how", HOLDS)
@pytest.mark.parametrize("outcome", ["commit", "rollback"])
@pytest.mark.parametrize("tasks", ["tt", "tu"])
def test_a_waiting_job_in_somebodys_hand_holds_up_no_other_and_is_not_forgotten(
    api: Any, actor: Any, worker: int, outcome: str, how: str, tasks: str
) -> None:
    api.set_queue("q", 2)
    while api.rows("select from pyworker.promotion_requests"):
        api.promote_jobs()  # both looks at the change
    first, second = (api.add_job(task, queue_name="q").id for task in tasks)
    a = actor()
    a.begin()
    HOLDS[how](a, first)
    assert claim(api, worker) == [second]
    assert claim(api, worker) == []
    getattr(a, outcome)()
    assert claim(api, worker) == [first]


@pytest.mark.parametrize("how", HOLDS)
@pytest.mark.parametrize("outcome", ["commit", "rollback", "kill"])
def test_the_next_job_of_a_serial_queue_is_not_forgotten_if_another_session_has_locked_it(
    api: Any, actor: Any, worker: int, outcome: str, how: str
) -> None:
    running, following = (api.add_job("t", queue_name="q").id for _ in range(2))
    assert claim(api, worker) == [running]
    a = actor()
    a.begin()
    HOLDS[how](a, following)
    api.finish(running)
    assert claim(api, worker) == []
    getattr(a, outcome)()
    assert claim(api, worker) == [following]


@pytest.mark.parametrize("how", HOLDS)
@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_a_job_that_falls_due_while_somebody_has_it_in_hand_holds_up_no_other(
    api: Any, actor: Any, worker: int, clock: Any, outcome: str, how: str
) -> None:
    first, second = (api.add_job("t", run_at=api.at("1 hour")).id for _ in range(2))
    clock.advance(hours=2)
    api.heartbeat(worker)
    a = actor()
    a.begin()
    HOLDS[how](a, first)
    assert claim(api, worker) == [second]
    assert claim(api, worker) == []
    getattr(a, outcome)()
    assert claim(api, worker) == [first]


def test_a_pause_in_an_open_transaction_holds_nobody_up_and_rolled_back_it_was_none(
    api: Any, actor: Any, worker: int
) -> None:
    api.set_queue("q", 3)
    ids = add(api, 6)
    claimed = claim(api, worker, 2)
    a = actor()
    a.begin()
    a.pause_queue("q")  # no claim can see it yet
    more = add(api, 1)
    assert claim(api, worker) == ids[2:3]
    assert api.finish(*claimed) == claimed
    assert claim(api, worker) == ids[3:5]
    a.rollback()
    assert claim(api, worker) == []
    assert finish_all(api, worker) == ids[2:] + more


def test_a_pause_and_a_resume_of_one_queue_follow_each_other(api: Any, actor: Any, worker: int) -> None:
    ids = add(api, 2)
    a, b = actor(), actor()
    a.begin()
    a.pause_queue("q")
    resume = b.later.resume_queue("q")
    # There is no pause yet that it could see.
    resume.result(20)
    a.commit()
    assert claim(api, worker) == []
    a.begin()
    a.resume_queue("q")
    pause = b.later.pause_queue("q")
    b.blocked(pause)
    a.commit()
    pause.result(20)
    assert claim(api, worker) == []
    api.resume_queue("q")
    assert claim(api, worker) == ids[:1]


# resume_queue and set_queue meet … -----------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", ["commit", "rollback", "kill"])
@pytest.mark.parametrize("limit", [1, 2, None])
def test_a_resume_while_an_open_transaction_holds_the_lane(
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
    assert started == (
        [] if limit else ids[1:]
    )  # the lane of a queue with a limit is taken; nobody waits for it
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
def test_whoever_changes_a_queue_in_an_open_transaction_blocks_no_add_no_claim_and_no_end(
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
    assert claim(api, worker) == more  # nobody waits for the one that finishes
    api.set_queue(name, 4)
    last = add(api, 2)
    assert claim(api, worker) == []
    api.finish(more[0])
    assert claim(api, worker) == []
    getattr(w, outcome)()
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


# Producers -----------------------------------------------------------------------------------------------------------

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
def test_nobody_waits_for_a_producers_open_transaction(
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


# All together --------------------------------------------------------------------------------------------------------

FIXED = {"one": 1, "three": 3, "f:a": 2, "f:b": 2}  # never set anew: their limit holds at every moment
CHANGING: dict[str, list[int | None]] = {"x": [1, 3, None], "g:a": [2, 4, None], "g:b": [2, 4, None]}
OVER = """
    select j.queue_name, count(*)::integer, q.concurrency, q.paused
    from pyworker.live_jobs j cross join lateral pyworker._queues_of(array[j.queue_name]) q
    where j.queue_name is not null and j.state = 'running' and j.ready_at is not null and (j.queue_name = any (%s) or exists (
        select from pyworker.claims c where c.worker_id = j.worker_id and j.id = any (c.job_ids) and c.seen > q.changed))
    group by 1, 3, 4
    having count(*) > case when q.paused and j.queue_name <> all (%s) then 0 else q.concurrency end
"""


@pytest.mark.parametrize("seconds", [2.5, pytest.param(SECONDS, marks=pytest.mark.torture, id="long")])
def test_limits_hold_and_nobody_is_forgotten_whatever_people_and_workers_do(
    api: Any, dsn: str, seconds: float, record_property: Any
) -> None:
    """Queues of limit 1, 3 and none and two families, paused, resumed and set; jobs fail, snooze, are cancelled and unlocked."""
    for name, limit in {"one": 1, "three": 3, "f:*": 2, "x": 1, "g:*": 2, "free": None}.items():
        api.set_queue(name, limit)
    names = [*FIXED, *CHANGING, "free", "default"]
    turmoil, calm = threading.Event(), threading.Event()
    turmoil.set()
    figures: Counter[str] = Counter()

    def adder(api: Any, rng: random.Random) -> None:
        while turmoil.is_set():
            with api.conn.transaction(force_rollback=rng.random() < 0.1):
                name = rng.choice(names)
                if rng.random() < 0.3:
                    api.add_job("t", queue_name=name, job_key=f"k{rng.randrange(4)}", max_attempts=3)
                else:
                    figures["added"] += len(add(api, rng.randrange(1, 5), name, priority=rng.randrange(3)))
            while turmoil.is_set() and api.value("select count(*) from pyworker.jobs") > 300:
                pass

    def operator(api: Any, rng: random.Random) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            name = rng.choice(names[:-1])
            act = rng.random()
            with api.conn.transaction(force_rollback=rng.random() < 0.2):
                if act < 0.3:
                    api.pause_queue(name)
                elif act < 0.7:
                    api.resume_queue(name)
                elif act < 0.8:
                    name = rng.choice(list(CHANGING))
                    api.set_queue("g:*" if name[0] == "g" else name, rng.choice(CHANGING[name]))
                elif act < 0.95:
                    waiting = api.rows("select id from pyworker.jobs where state <> 'discarded' limit 20")
                    if waiting:
                        figures["cancelled"] += (
                            api.cancel_job(rng.choice(waiting).id, act < 0.9).state == "cancelled"
                        )
                else:
                    api.force_unlock_workers(
                        [str(rng.choice(api.rows("select id from pyworker.live_workers")).id)]
                    )
            figures["acts"] += 1
        turmoil.clear()
        for name in names[:-1]:
            api.resume_queue(name)
        calm.set()

    def worker(api: Any, rng: random.Random) -> None:
        me = api.register_worker()
        idle = 0
        left = "select count(*) from pyworker.jobs where state <> 'discarded'"
        while not calm.is_set() or api.value(left):
            jobs = api.claim_jobs(me, rng.choice([1, 3, 10]))
            idle = 0 if jobs or not calm.is_set() else idle + 1
            assert idle < 2000, "jobs are left that nobody can claim"
            for job in jobs:
                end = rng.random()
                if end < 0.1:
                    api.fail(job, delay=0)
                elif end < 0.15:
                    api.fail(job, discard=True)
                elif end < 0.25:
                    api.release_jobs([job.id], [job.run])
                elif end < 0.35:
                    with suppress(psycopg.ProgrammingError):  # PW002: the claim was lost
                        api.snooze_job(job.id, job.run, "0")
                else:
                    with api.conn.transaction(force_rollback=end < 0.5):
                        figures["finished"] += len(api.finish_jobs([job.id], [job.run]))
                    if end < 0.5:
                        api.finish_jobs([job.id], [job.run])

    def watcher(api: Any, rng: random.Random) -> None:
        while turmoil.is_set():
            assert api.rows(OVER, [list(FIXED), list(FIXED)]) == []
            figures["looks"] += 1

    def one(work: Callable[[Any, random.Random], None], seed: int) -> None:
        try:
            with psycopg.connect(dsn, autocommit=True) as conn:
                work(type(api)(conn), random.Random(seed))
        finally:
            if work in (operator, watcher):
                turmoil.clear()
                calm.set()

    with ThreadPoolExecutor(7) as threads:
        at_work = [
            threads.submit(one, work, i) for i, work in enumerate([worker] * 4 + [adder, operator, watcher])
        ]
        for future in at_work:
            future.result()
    record_property("figures", str(dict(figures)))
    print(f"\n{dict(figures)}")
    assert api.rows("select from pyworker.jobs where state <> 'discarded'") == []
    assert figures["looks"] > 5
