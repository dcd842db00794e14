"""unique_policy: what counts as a duplicate, and what becomes of it."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from tests.support.states import ALL, LIVE, REQUIRED
from tests.support.unique import OJS, RIVER, A, add, count, detail


# What is in the key
@pytest.mark.parametrize(
    ("policy", "one", "other", "same"),
    [
        ({}, {"payload": {"a": 1}}, {"payload": {"a": 2}}, True),
        (
            {"keys": ["args"]},
            {"payload": {"a": 1, "b": {"x": 1, "y": 2}}},
            {"payload": {"b": {"y": 2, "x": 1.0}, "a": 1}},
            True,
        ),
        ({"keys": ["args"]}, {"payload": {"a": 1}}, {"payload": {"a": "1"}}, False),
        ({"keys": ["args"]}, {"payload": {"a": None}}, {"payload": {}}, False),
        (
            {"keys": ["args"], "args_keys": ["a"]},
            {"payload": {"a": 1, "b": 1}},
            {"payload": {"a": 1, "b": 2}},
            True,
        ),
        ({"keys": ["args"], "args_keys": ["a"]}, {"payload": {"a": 1}}, {"payload": {"a": 2}}, False),
        ({"keys": ["args"], "args_keys": []}, {"payload": [1]}, {"payload": "x"}, True),
        ({"keys": ["queue"]}, {"queue_name": "q"}, {"queue_name": "r"}, False),
        ({"keys": ["type"]}, {"queue_name": "q"}, {"queue_name": "r"}, True),
        (
            {"keys": ["meta"], "meta_keys": ["x"]},
            {"meta": {"x": 1, "y": 1}},
            {"meta": {"x": 1, "y": 2}},
            True,
        ),
        ({"keys": ["meta"], "meta_keys": ["x"]}, {"meta": {"x": None}}, {}, False),
        ({"keys": ["meta"], "meta_keys": ["x"]}, {"meta": {"y": 1}}, {}, True),
        ({}, {"identifier": "t"}, {"identifier": "u"}, False),
        (
            {"keys": ["args"]},
            {"priority": 1, "flags": ["f"], "max_attempts": 3},
            {"run_at": "2000-01-01"},
            True,
        ),
        (
            RIVER,
            {"payload": {"a": 1, "b": {"x": 1, "y": 2}}},
            {"payload": {"b": {"y": 2, "x": 1}, "a": 1}},
            True,
        ),
        (RIVER, {"identifier": "t"}, {"identifier": "u"}, False),
        ({"by_args": True, "exclude_kind": True}, {"identifier": "t"}, {"identifier": "u"}, True),
        ({"by_args": ["a"]}, {"payload": {"a": 1, "b": 1}}, {"payload": {"a": 1, "b": 2}}, True),
        ({"by_args": ["a"]}, {"payload": {"a": None}}, {"payload": {}}, False),
        ({"by_args": ["a"]}, {"payload": {"b": 1}}, {"payload": {}}, True),
        ({"by_queue": True}, {"queue_name": "q"}, {"queue_name": "r"}, False),
        ({"by_queue": True, "by_args": False}, {"payload": {"a": 1}}, {"payload": {"a": 2}}, True),
        ({"by_state": [*LIVE]}, {"payload": {"a": 1}, "queue_name": "q"}, {"payload": {"a": 2}}, True),
    ],
    ids=str,
)
def test_only_the_chosen_properties_make_a_job_unique(
    api: Any, policy: Any, one: Any, other: Any, same: bool
) -> None:
    policy = {**policy, "on_conflict": "ignore"}
    first, second = api.add_jobs(
        [{"identifier": "t", "unique_policy": policy, **spec} for spec in (one, other)]
    )
    assert (second.deduplicated, second.id == first.id) == (same, same)


def test_period_states_and_conflict_are_not_in_the_key_but_the_spelling_is(api: Any) -> None:
    ojs = [
        add(api, {**OJS, "states": [], **more}).unique_key
        for more in ({}, {"period": "PT1H"}, {"on_conflict": "replace"})
    ]
    river = [
        add(api, {**RIVER, **more}).unique_key
        for more in ({}, {"by_state": [*REQUIRED]}, {"on_conflict": "replace"})
    ]
    assert (len(set(ojs)), len(set(river))) == (1, 1)
    assert ojs[0] != river[0]


# Every strategy against every state
CASES = [
    (spelling, conflict, state, listed)
    for spelling, conflict, state, listed in product(
        ["ojs", "river"], ["reject", "ignore", "replace", "replace_except_schedule"], ALL, [True, False]
    )
    if listed or spelling == "ojs" or state not in REQUIRED
]


@pytest.mark.parametrize(("spelling", "conflict", "state", "listed"), CASES)
def test_a_conflict_ends_as_the_policy_says_in_every_state(
    api: Any, job_in: Any, spelling: str, conflict: str, state: str, listed: bool
) -> None:
    base = {**OJS, "on_conflict": "reject"} if spelling == "ojs" else {**RIVER, "on_conflict": "reject"}
    old = job_in(state, payload=A, unique_policy=base)
    states = [s for s in ALL if listed or s != state]
    before = count(api)
    policy = {**base, "states" if spelling == "ojs" else "by_state": states, "on_conflict": conflict}
    if listed and conflict == "reject":
        with api.refusal("PW003", f"add_job: job {old.id} .{state}. has the same unique key") as caught:
            add(api, policy, run_at=api.at("2 hours"))
        assert detail(caught) == {
            "existing_job_id": old.id,
            "existing_job_state": state,
            "unique_key": old.unique_key,
        }
        assert (count(api), api.get_job(old.id)) == (before, old)
        return
    run_at = api.at("2 hours")
    new = add(api, policy, run_at=run_at)
    if listed and conflict == "ignore":
        assert new == old._replace(deduplicated=True)
        assert (count(api), api.get_job(old.id)) == (before, old)
        return
    assert not new.deduplicated
    assert (new.id > old.id, new.unique_key, count(api)) == (True, old.unique_key, before + 1)
    kept = listed and conflict == "replace_except_schedule" and state == "scheduled"
    assert (new.run_at, new.state) == (old.run_at if kept else run_at, "scheduled")
    if listed and state in LIVE:
        [row] = api.rows("select state, reason from pyworker.history where id = %s", [old.id])
        assert row == ("cancelled", "replaced")
        assert api.get_job(old.id).payload == A
        assert api.rows("select id from pyworker.jobs where id = %s", [old.id]) == []
    else:
        assert api.get_job(old.id) == old


@pytest.mark.parametrize("policy", [OJS, RIVER])
def test_the_run_that_was_replaced_is_fenced_off_and_its_worker_told(
    api: Any, worker: int, policy: Any
) -> None:
    policy = {**policy, "on_conflict": "replace"}
    api.rows("listen pyworker")
    add(api, policy, queue_name="q")
    old = api.claim(worker)
    new = add(api, policy, queue_name="q")
    assert [n.payload for n in api.conn.notifies(timeout=20, stop_after=1)] == ["cancel"]
    with api.refusal("PW002"):
        api.finish_job(old.id, old.run)
    with api.refusal("PW002"):
        api.snooze_job(old.id, old.run, "1 s")
    assert (
        api.finish_jobs([old.id], [old.run]) == api.fail(old) == api.release_jobs([old.id], [old.run]) == []
    )
    assert api.get_job(old.id).reason == "replaced"
    # The queue's slot is free: the new job has its turn.
    assert api.claim(worker).id == new.id


def test_replace_cancels_every_live_match_and_ignore_names_the_newest_that_lives(
    api: Any, job_in: Any
) -> None:
    narrow = {**OJS, "states": []}
    old = [
        job_in(state, payload=A, unique_policy=narrow)
        for state in ("completed", "scheduled", "discarded", "scheduled")
    ]
    last = job_in("completed", payload=A, unique_policy=narrow)
    assert add(api, {**OJS, "states": ALL, "on_conflict": "ignore"}).id == old[3].id
    new = add(api, {**OJS, "states": ALL, "on_conflict": "replace_except_schedule"})
    states = [api.get_job(job.id).state for job in [*old, last, new]]
    assert states == ["completed", "cancelled", "discarded", "cancelled", "completed", "scheduled"]
    assert new.run_at == old[3].run_at


@pytest.mark.parametrize(
    "states", ["completed discarded", "discarded completed", "discarded cancelled", "cancelled discarded"]
)
def test_of_jobs_that_have_ended_the_newest_is_the_duplicate(api: Any, job_in: Any, states: str) -> None:
    """Whether it is in history or, as a discarded one, still among the living."""
    old = [job_in(state, payload=A, unique_policy={**OJS, "states": []}) for state in states.split()]
    assert add(api, {**OJS, "states": ALL, "on_conflict": "ignore"}).id == old[-1].id


def test_a_retry_is_not_checked_again_and_exhaustion_frees_the_key(api: Any, worker: int, clock: Any) -> None:
    job = add(api, OJS, max_attempts=2)
    api.fail(api.claim(worker))
    with api.refusal("PW003", "retryable"):
        add(api, OJS)
    other = add(api, {**OJS, "states": ["available"]})  # legal: the retryable one is not listed
    clock.advance(hours=1)
    claimed = api.claim_jobs(worker, 5)
    assert {j.id for j in claimed} == {job.id, other.id}
    api.fail(next(j for j in claimed if j.id == job.id))
    assert api.get_job(job.id).state == "discarded"
    api.finish_job(other.id, next(j for j in claimed if j.id == other.id).run)
    assert add(api, OJS).state == "available"
