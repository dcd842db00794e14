"""Unique adds against each other and against everything else that happens to a job, at every
isolation level."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.support.sessions import LEVELS
from tests.support.unique_races import IGNORE, OPEN, REJECT, REPLACE, spec

NEVER = {"keys": ["args"], "states": []}


def add(api: Any, policy: Any, n: int = 1) -> Any:
    """api may be an actor's `later`, too."""
    return api.add_job("t", {"n": n}, unique_policy=policy)


def outcome(future: Any) -> Any:
    """The job that came of it, or the SQLSTATE."""
    try:
        return future.result(20)[0]
    except psycopg.Error as error:
        return error.sqlstate


def live(api: Any) -> list[int]:
    return [row.id for row in api.rows(f"select id from pyworker.jobs where state in {OPEN} order by id")]


def keys_in_order(api: Any, many: int) -> list[int]:
    """Payload numbers, in the order of the keys they give."""
    jobs = [add(api, NEVER, n) for n in range(many)]
    for job in jobs:
        api.delete_job(job.id)
    return [job.payload["n"] for job in sorted(jobs, key=lambda job: job.unique_key)]


# Two adds
@pytest.mark.parametrize("policy", [REJECT, IGNORE, REPLACE], ids=lambda p: p["on_conflict"])
@pytest.mark.parametrize("end", ["commit", "rollback", "kill"])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("key", ["new", "known"])
def test_the_second_add_waits_for_the_first_and_then_knows(
    api: Any, actor: Any, job_in: Any, level: str, end: str, policy: Any, key: str
) -> None:
    if key == "known":  # by a job that is no duplicate any more
        job_in("completed", payload={"n": 1}, unique_policy=policy)
    one, two = actor(), actor()
    one.begin(level)
    first = add(one, policy)
    two.begin(level)
    second = add(two.later, policy)
    two.blocked(second)
    getattr(one, end)()
    result = outcome(second)
    if end != "commit":
        assert (result.deduplicated, result.state) == (False, "available")
        two.commit()
        assert live(api) == [result.id]
        return
    if level != "read committed":
        assert result == "40001"
        two.rollback()
        # Tried again, as 40001 asks for.
        if policy is REJECT:
            with two.refusal("PW003"):
                add(two, policy)
            return
        result = add(two, policy)
    elif policy is REJECT:
        assert result == "PW003"
        assert json.loads(second.exception().diag.message_detail)["existing_job_id"] == first.id
        assert live(api) == [first.id]
        return
    else:
        two.commit()
    assert (result.id == first.id, result.deduplicated) == (
        (True, True) if policy is IGNORE else (False, False)
    )
    assert live(api) == [result.id]


@pytest.mark.parametrize("policy", [REJECT, IGNORE, REPLACE], ids=lambda p: p["on_conflict"])
@pytest.mark.parametrize("level", LEVELS)
def test_an_add_whose_snapshot_is_older_than_the_other_job_says_so(
    api: Any, actor: Any, level: str, policy: Any
) -> None:
    two = actor()
    two.begin(level)
    two.rows("select count(*) from pyworker.jobs")
    job = add(api, policy)
    result = outcome(add(two.later, policy))
    if level != "read committed":
        assert result == "40001"
    elif policy is REJECT:
        assert result == "PW003"
    else:
        assert (result.id == job.id, result.deduplicated) == (policy is IGNORE, policy is IGNORE)
    two.rollback()
    assert live(api) == [job.id]


@pytest.mark.parametrize("end", ["commit", "rollback", "kill"])
@pytest.mark.parametrize("level", LEVELS)
def test_a_bulk_add_waits_for_a_single_one_and_the_other_way_round(
    api: Any, actor: Any, level: str, end: str
) -> None:
    for bulk_first in (True, False):
        one, two = actor(), actor()
        one.begin(level)
        n = 10 + bulk_first
        specs = [spec(IGNORE, n + 20), spec(IGNORE, n), spec(IGNORE, n)]
        first = one.add_jobs(specs)[1] if bulk_first else add(one, IGNORE, n)
        two.begin(level)
        future = add(two.later, IGNORE, n) if bulk_first else two.later.add_jobs(specs)
        two.blocked(future)
        getattr(one, end)()
        if end == "commit" and level != "read committed":
            assert outcome(future) == "40001"
            continue
        result = future.result(20)[0 if bulk_first else 1]
        assert (result.id == first.id, result.deduplicated) == (
            (True, True) if end == "commit" else (False, False)
        )
        two.commit()


@pytest.mark.parametrize("level", LEVELS)
def test_an_add_in_a_savepoint_that_was_rolled_back_leaves_the_key_free(
    api: Any, actor: Any, level: str
) -> None:
    one = actor()
    one.begin(level)
    one.rows("savepoint s")
    add(one, REJECT)
    one.rows("rollback to s")
    job = add(api, REJECT)
    assert live(api) == [job.id]
    one.rollback()


@pytest.mark.parametrize("level", LEVELS)
def test_a_skip_in_an_open_transaction_blocks_no_session(
    api: Any, actor: Any, worker: int, level: str
) -> None:
    version = "select ctid::text, xmin::text, xmax::text from pyworker.live_jobs"
    job = add(api, IGNORE)
    before = api.rows(version)
    one, two = actor(), actor()
    for each in (one, two):
        each.begin(level)
        assert add(each, IGNORE).id == job.id
    with two.refusal("PW003"):
        add(two, REJECT)
    assert (api.rows(version), add(api, IGNORE).id) == (before, job.id)
    claimed = api.claim(worker)
    assert api.finish_jobs([claimed.id], [claimed.run]) == [job.id]
    assert add(api, REJECT).id == job.id + 1  # none of the skips took an id
    one.commit()


# An add against what else happens to the job
ENDS: dict[str, tuple[Callable[[Any, Any], Any], str | None]] = {
    "finish": (lambda api, job: api.finish_jobs([job.id], [job.run]), "completed"),
    "discard": (lambda api, job: api.fail(job, discard=True), "discarded"),
    "fail": (lambda api, job: api.fail(job), "cancelled"),
    "snooze": (lambda api, job: api.snooze_job(job.id, job.run, "1 hour"), "cancelled"),
    "release": (lambda api, job: api.release_jobs([job.id], [job.run]), "cancelled"),
    "cancel": (lambda api, job: api.cancel_job(job.id, True), "cancelled"),
}

ENDINGS = [
    ("read committed", True),
    ("repeatable read", True),
    ("serializable", True),
    ("read committed", False),
]


@pytest.mark.parametrize(("level", "commits"), ENDINGS)
@pytest.mark.parametrize("end", ENDS)
def test_an_add_during_a_jobs_end_is_refused_or_replaces_what_is_left(
    api: Any, actor: Any, worker: int, end: str, level: str, commits: bool
) -> None:
    add(api, REJECT)
    old = api.claim(worker)
    one, two = actor(), actor()
    one.begin()
    act, final = ENDS[end]
    act(one, old)
    # Until that is committed the job is there: a plain add knows at once.
    with api.refusal("PW003", f"job {old.id} .running"):
        add(api, REJECT)
    two.begin(level)
    new = add(two.later, REPLACE)
    two.blocked(new)
    one.commit() if commits else one.rollback()
    result = outcome(new)
    if commits and level != "read committed":
        assert result == "40001"
        two.rollback()
        return
    two.commit()
    assert live(api) == [result.id]
    assert api.get_job(old.id).state == (final if commits else "cancelled")


@pytest.mark.parametrize(("level", "commits"), ENDINGS)
@pytest.mark.parametrize(
    ("verb", "state"),
    [("delete_job", "completed"), ("prune", "completed"), ("prune", "discarded"), ("maintain", "discarded")],
)
def test_an_add_while_the_keys_last_job_is_removed_is_not_lost(
    api: Any, actor: Any, job_in: Any, clock: Any, verb: str, state: str, level: str, commits: bool
) -> None:
    old = job_in(state, payload={"n": 1}, unique_policy=REJECT)
    one, two = actor(), actor()
    clock.advance(days=8)
    one.begin()
    one.delete_job(old.id) if verb == "delete_job" else getattr(one, verb)()
    two.begin(level)
    future = add(two.later, REJECT)
    two.blocked(future)
    one.commit() if commits else one.rollback()
    job = outcome(future)
    two.commit()
    with api.refusal("PW003", str(job.id)):
        add(api, REJECT)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("verb", ["delete_job", "prune", "maintain", "finish_jobs"])
def test_what_removes_a_job_waits_for_no_add_and_leaves_it_its_key(
    api: Any, actor: Any, job_in: Any, clock: Any, worker: int, verb: str, level: str
) -> None:
    api.configure(completed_retention="0")
    old = job_in("running" if verb == "finish_jobs" else "discarded", payload={"n": 1}, unique_policy=NEVER)
    clock.advance(days=8)
    one, two = actor(), actor()
    two.begin(level)
    one.begin()
    add(one, {**REJECT, "states": ["scheduled", "available"]})
    if verb == "delete_job":
        assert two.delete_job(old.id).id == old.id
    elif verb == "finish_jobs":
        assert two.finish_jobs([old.id], [old.run]) == [old.id]
    else:
        getattr(two, verb)()
    one.commit()
    two.commit()
    with api.refusal("PW003"):
        add(api, REJECT)


@pytest.mark.parametrize("level", LEVELS)
def test_an_end_is_never_refused_for_an_add_that_was_committed_meanwhile(
    api: Any, actor: Any, worker: int, level: str
) -> None:
    """A handler's own transaction, with a retention of 0: the release of the key is not worth a 40001."""
    api.configure(completed_retention="0")
    add(api, NEVER)
    old = api.claim(worker)
    one = actor()
    one.begin(level)
    new = add(api, NEVER)
    one.finish_job(old.id, old.run)
    one.commit()
    assert live(api) == [new.id]


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("state", ["completed", "cancelled", "discarded"])
def test_a_retry_and_an_add_of_one_key_take_turns(
    api: Any, actor: Any, job_in: Any, state: str, end: str
) -> None:
    old = job_in(state, payload={"n": 1}, unique_policy=REJECT)
    for retry_first in (True, False):
        one, two = actor(), actor()
        one.begin()
        one.retry_job(old.id) if retry_first else add(one, REJECT)
        two.begin()
        future = add(two.later, REJECT) if retry_first else two.later.retry_job(old.id)
        two.blocked(future)
        getattr(one, end)()
        result = outcome(future)
        assert (result == "PW003") if end == "commit" else (result.state == "available")
        two.rollback()
        assert len(live(api)) == (end == "commit")
        if end == "commit" and retry_first:
            return


# No deadlocks
def test_a_bulk_add_whose_duplicate_ends_while_it_waits_cannot_deadlock(
    api: Any, actor: Any, worker: int
) -> None:
    low, high = keys_in_order(api, 2)
    add(api, IGNORE, low)
    job = api.claim(worker)
    blocker, one, two = actor(), actor(), actor()
    blocker.begin()
    add(blocker, IGNORE, high)
    first = one.later.add_jobs([spec(IGNORE, high), spec(IGNORE, low), {"identifier": "t"}])
    one.blocked(first)
    api.finish_jobs([job.id], [job.run])
    second = two.later.add_jobs([spec(IGNORE, high), spec(IGNORE, low)])
    two.blocked(second)
    blocker.rollback()
    [a, b, plain], [c, d] = first.result(20), second.result(20)
    assert (b.id, d.deduplicated, a.id == c.id) == (job.id, False, True)
    assert a.id < plain.id
    assert live(api) == sorted([a.id, d.id, plain.id])


def test_an_add_looks_again_once_it_holds_a_key_that_was_known_before(
    api: Any, actor: Any, job_in: Any
) -> None:
    """Between its look and its hold another one has come and gone."""
    job_in("completed", payload={"n": 1}, unique_policy=IGNORE)
    gate, one = actor(), actor()
    gate.begin()
    gate.rows("lock table pyworker.finished_jobs")  # where only this policy looks
    late = add(one.later, {**IGNORE, "states": ["available", "cancelled"]})
    one.blocked(late)
    early = add(api, IGNORE)
    assert early.deduplicated is False
    gate.commit()
    result = outcome(late)
    assert (result.id, result.deduplicated) == (early.id, True)
    assert live(api) == [early.id]


def test_the_row_of_a_key_that_stays_locked_fails_no_end_of_a_job(api: Any, actor: Any, worker: int) -> None:
    jobs = [add(api, NEVER, n) for n in (1, 2)]
    other = actor()
    other.rows("begin")
    other.rows("lock table pyworker.unique_keys in exclusive mode")  # as SKIP LOCKED does not foresee
    assert api.delete_job(jobs[0].id).id == jobs[0].id
    (claim,) = api.claim_jobs(worker, 1)
    assert api.finish_jobs([claim.id], [claim.run]) == [claim.id]
    other.rows("commit")
    api.delete_job(claim.id)
    api.maintain()
    assert api.value("select count(*) from pyworker.unique_keys") == 0


def test_two_bulk_adds_with_opposite_orders_of_unique_keys_do_not_deadlock(api: Any, actor: Any) -> None:
    low, middle, high = keys_in_order(api, 3)
    blocker, one, two = actor(), actor(), actor()
    for each in (one, two):
        each.rows(
            "set deadlock_timeout = '10min'"
        )  # one that was in a deadlock begins again, and no session would notice
    blocker.begin()
    add(blocker, IGNORE, middle)  # so that both batches really begin before either ends
    first = one.later.add_jobs([spec(IGNORE, n) for n in (low, middle, high)])
    one.blocked(first)
    second = two.later.add_jobs([spec(IGNORE, n) for n in (high, middle, low)])
    two.blocked(second)
    blocker.commit()
    assert {job.id for job in first.result(20)} == {job.id for job in second.result(20)} == set(live(api))


def test_retry_jobs_takes_the_keys_in_the_order_of_bulk_adds(api: Any, actor: Any, job_in: Any) -> None:
    low, high = keys_in_order(api, 2)
    done = [job_in("completed", payload={"n": n}, unique_policy=IGNORE) for n in (high, low)]
    blocker, one, two = actor(), actor(), actor()
    for each in (one, two):
        each.rows("set deadlock_timeout = '10min'")
    blocker.begin()
    add(blocker, IGNORE, low)
    first = one.later.add_jobs([spec(IGNORE, low), spec(IGNORE, high)])
    one.blocked(first)
    second = two.later.retry_jobs([job.id for job in done])
    two.blocked(second)
    blocker.rollback()
    added, retried = first.result(20), second.result(20)
    assert len([job for job in added if not job.deduplicated]) + len(retried) == 2
    assert len(live(api)) == 2
