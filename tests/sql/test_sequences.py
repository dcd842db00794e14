"""sequence_policy: one job of a sequence at a time, in the order of the ids, until one is cancelled or discarded."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.api import ids
from tests.support.sequences import S, add, drain


def view(api: Any, key: str = "s") -> Any:
    """running, waiting, halted_by, reason; None if the sequence is not listed."""
    rows = api.rows("select * from pyworker.sequences where sequence_key = %s", [key])
    assert not rows or (rows[0].since is None) == (rows[0].halted_by is None)
    return tuple(rows[0][1:5]) if rows else None


def explain(api: Any, job_id: int) -> list[Any]:
    return api.rows("select * from pyworker.explain_job(%s)", [job_id])


# Which sequence a job belongs to ---------------------------------------------------------------------------------------


def key(
    api: Any,
    policy: dict[str, Any],
    payload: Any = "{}",
    identifier: str = "t",
    bulk: bool = False,
    **named: Any,
) -> str:
    if bulk:
        spec = {"identifier": identifier, "sequence_policy": policy, **named}
        if payload is not None:
            spec["payload"] = json.loads(payload)
        return api.add_jobs([spec])[0].sequence_key
    return api.add_job(identifier, payload, sequence_policy=policy, **named).sequence_key


SAME: list[Any] = [
    # policy, one job, another one, of the same sequence?
    ({}, {}, {}, True),
    ({}, {"payload": "[1]"}, {"payload": "[2]"}, True),
    ({}, {}, {"identifier": "u"}, False),
    ({}, {"queue_name": "a"}, {"queue_name": "b"}, True),
    ({"by_args": False}, {"payload": "[1]"}, {"payload": "[2]"}, True),
    ({"by_args": True}, {"payload": '{"a": 1}'}, {"payload": '{"a": 2}'}, False),
    ({"by_args": True}, {"payload": '{"a": 1, "b": 2}'}, {"payload": '{"b": 2.0, "a": 1e0}'}, True),
    ({"by_args": True}, {"payload": '{"a": "\\u00e9"}'}, {"payload": '{"a": "e\\u0301"}'}, True),
    ({"by_args": True}, {"payload": '{"a": 1}'}, {"payload": '{"a": 1}', "identifier": "u"}, False),
    ({"by_args": True}, {"payload": "{}"}, {"payload": None}, True),
    ({"by_args": ["a"]}, {"payload": '{"a": 1, "b": 2}'}, {"payload": '{"b": 3, "a": 1.0}'}, True),
    ({"by_args": ["a"]}, {"payload": '{"a": 1}'}, {"payload": '{"a": "1"}'}, False),
    ({"by_args": ["a", "b"]}, {"payload": '{"a": 1, "b": 2}'}, {"payload": '{"a": 2, "b": 1}'}, False),
    ({"by_args": ["a"]}, {"payload": "{}"}, {"payload": '{"b": 1}'}, True),
    ({"by_args": ["a"]}, {"payload": "{}"}, {"payload": None}, True),
    ({"by_args": ["a"]}, {"payload": "{}"}, {"payload": '{"a": null}'}, False),
    ({"by_args": ["a"]}, {"payload": "[1]"}, {"payload": "[2]"}, False),
    ({"by_args": ["a"]}, {"payload": "[1]"}, {"payload": "[1.0]"}, True),
    ({"by_args": ["a"]}, {"payload": '"a"'}, {"payload": '{"a": 1}'}, False),
    ({"by_args": ["a"]}, {"payload": '{"a": [1, 2]}'}, {"payload": '{"a": [2, 1]}'}, False),
    ({"by_queue": True}, {"queue_name": "a"}, {"queue_name": "b"}, False),
    ({"by_queue": True}, {"queue_name": "default"}, {}, True),
    ({"by_queue": False}, {"queue_name": "a"}, {}, True),
    ({"exclude_kind": True}, {}, {"identifier": "u"}, True),
    ({"exclude_kind": True, "by_args": ["a"]}, {"payload": '{"a": 1}'}, {"payload": '{"a": 1}', "identifier": "u"}, True),
    ({"exclude_kind": True, "by_args": ["a"]}, {"payload": '{"a": 1}'}, {"payload": '{"a": 2}'}, False),
    ({"exclude_kind": False}, {}, {"identifier": "u"}, False),
    ({"key": "k"}, {"payload": "[1]"}, {"payload": "[2]", "identifier": "u", "queue_name": "q"}, True),
]  # fmt: skip


@pytest.mark.parametrize("bulk", [False, True], ids=["add_job", "add_jobs"])
@pytest.mark.parametrize(("policy", "one", "other", "same"), SAME, ids=str)
def test_a_policy_says_which_jobs_follow_one_another(
    api: Any, worker: int, policy: dict[str, Any], one: Any, other: Any, same: bool, bulk: bool
) -> None:
    assert (key(api, policy, bulk=bulk, **one) == key(api, policy, bulk=bulk, **other)) == same
    assert key(api, policy, bulk=bulk, **one) == key(api, policy, bulk=not bulk, **one)
    flags = {"continue_on_cancelled": True, "continue_on_discarded": False}
    assert key(api, policy, bulk=bulk, **one) == key(api, {**policy, **flags}, bulk=bulk, **one)


def test_people_can_read_a_key_but_not_a_whole_payload_in_it(api: Any) -> None:
    assert (
        key(api, {"by_args": ["b", "a"]}, '{"a": 1.0, "b": "é", "c": 3}')
        == '{"args":{"a":1,"b":"é"},"kind":"t"}'
    )
    assert key(api, {"by_queue": True, "exclude_kind": True}, queue_name='"q"') == '{"queue":"\\"q\\""}'
    assert key(api, S) == "s"
    secret = key(api, {"by_args": True}, '{"password": "hunter2"}')
    assert ("sha256:" in secret, "hunter2" in secret) == (True, False)
    long = key(api, {"by_args": ["a"]}, json.dumps({"a": "x" * 300}))
    assert ("sha256:" in long, len(long) < 150) == (True, True)


def test_the_longest_key_fits_into_every_index(api: Any, worker: int) -> None:
    policy = {"by_args": ["a"], "by_queue": True}
    (first, second) = (
        api.add_job(
            "\x01" * 128,
            json.dumps({"a": "\U0001f600" * 240}),
            queue_name="\x01" * 128,
            sequence_policy=policy,
        )
        for _ in range(2)
    )
    assert "sha256" not in first.sequence_key
    api.cancel_job(api.claim(worker).id, True)
    assert api.get_job(second.id).sequence_halted_by == first.id
    assert api.resume_sequence(first.sequence_key)
    assert api.claim(worker).id == second.id
    longest = {"key": "\U0001f600" * 512}
    assert api.add_job("t", sequence_policy=longest).sequence_key == longest["key"]


def test_a_tasks_own_policy_holds_for_every_way_of_adding(api: Any) -> None:
    api.define_task("t", sequence_policy={"by_args": ["a"], "continue_on_discarded": True})
    expected = '{"args":{"a":1},"kind":"t"}'
    assert api.add_job("t", '{"a": 1}').sequence_key == expected
    assert api.add_job("t", '{"a": 1}', job_key="k").sequence_key == expected
    assert api.add_job("t", '{"a": 1}', job_key="k").sequence_key == expected
    assert api.add_job("t", '{"a": 1}', unique_policy={"keys": ["type"]}).sequence_key == expected
    assert api.add_jobs([{"identifier": "t", "payload": {"a": 1}}])[0].sequence_key == expected
    spec = """select * from pyworker.add_jobs(array[row('t', '{"a": 1}', null, null, null, null, null, null)::pyworker.job_spec])"""
    assert api.rows(spec)[0].sequence_key == expected
    assert api.value(
        "select bool_and(continue_on_discarded and not continue_on_cancelled) from pyworker.live_jobs"
    )
    assert api.add_job("other").sequence_key is None


def test_a_jobs_policy_replaces_its_tasks_whole(api: Any) -> None:
    api.define_task("t", sequence_policy={"by_args": True, "continue_on_discarded": True})
    job = api.add_job("t", '{"a": 1}', sequence_policy={"by_queue": True})
    assert job.sequence_key == '{"kind":"t","queue":"default"}'
    assert not api.value("select continue_on_discarded from pyworker.live_jobs where id = %s", [job.id])


def test_the_key_takes_the_queue_that_the_task_names(api: Any) -> None:
    api.define_task("t", queue_name="q", sequence_policy={"by_queue": True})
    assert api.add_job("t").sequence_key == '{"kind":"t","queue":"q"}'
    assert api.add_job("t", queue_name="default").sequence_key == '{"kind":"t","queue":"default"}'
    assert api.add_job("t", job_key="k").sequence_key == '{"kind":"t","queue":"q"}'


@pytest.mark.parametrize("named", [{}, {"job_key": "k"}, {"unique_policy": {"keys": ["type"]}}], ids=str)
def test_a_policy_that_is_null_is_one_not_given(api: Any, named: Any) -> None:
    assert api.add_job("t", sequence_policy="null", **named).sequence_key is None
    assert (
        api.add_jobs([{"identifier": "u", "sequence_policy": None, **named, "job_key": None}])[0].sequence_key
        is None
    )
    api.define_task("t", sequence_policy=S)
    for i in range(2):
        more = {"job_key": f"k{i}"} if "job_key" in named else {}
        assert api.add_job("t", sequence_policy="null", **more).sequence_key == "s"
    api.define_task("t", sequence_policy="null")
    assert api.add_job("t").sequence_key is None
    assert api.value("select sequence_policy is null from pyworker.tasks where identifier = 't'")


REFUSED: list[tuple[str, list[str]]] = [
    ("[]", ["JSON object", "array"]),
    ('"key"', ["JSON object", "string"]),
    ("7", ["JSON object", "number"]),
    ("true", ["JSON object", "boolean"]),
    ('{"bykey": 1}', ["bykey", "known: key"]),
    ('{"key": ""}', ["key", "1 to 512", '""']),
    ('{"key": null}', ["key", "null"]),
    ('{"key": 5}', ["key", "5"]),
    ('{"key": ["a"]}', ["key", '"a"']),
    (json.dumps({"key": "x" * 513}), ["key", "xxx"]),
    ('{"key": "k", "by_args": true}', ["key", "combined"]),
    ('{"key": "k", "by_queue": false}', ["key", "combined"]),
    ('{"key": "k", "exclude_kind": true}', ["key", "combined"]),
    ('{"by_args": "a"}', ["by_args", '"a"']),
    ('{"by_args": null}', ["by_args", "null"]),
    ('{"by_args": {}}', ["by_args", r"\{\}"]),
    ('{"by_args": []}', ["by_args", r"\[\]"]),
    ('{"by_args": ["a", 1]}', ["by_args", "1"]),
    ('{"by_args": ["a", "a"]}', ["by_args", "twice"]),
    ('{"by_args": ["\\u00e9", "e\\u0301"]}', ["by_args", "twice"]),
    ('{"by_queue": "true"}', ["by_queue", '"true"']),
    ('{"by_queue": null}', ["by_queue", "null"]),
    ('{"exclude_kind": 1}', ["exclude_kind", "1"]),
    ('{"continue_on_cancelled": "no"}', ["continue_on_cancelled", '"no"']),
    ('{"key": "k", "continue_on_discarded": 0}', ["continue_on_discarded", "0"]),
]


@pytest.mark.parametrize(("policy", "words"), REFUSED, ids=lambda v: v[:40] if isinstance(v, str) else "")
def test_a_wrong_policy_is_refused_by_member_and_value(api: Any, policy: str, words: list[str]) -> None:
    for named in ({}, {"job_key": "k"}, {"unique_policy": {"keys": ["type"]}}):
        with api.refusal("PW001", "add_job: sequence_policy", *words):
            api.add_job("t", sequence_policy=policy, **named)
    with api.refusal("PW001", r"add_jobs: specs\[2\]: sequence_policy", *words):
        api.add_jobs([{"identifier": "t"}, {"identifier": "t", "sequence_policy": json.loads(policy)}])
    with api.refusal("PW001", "define_task: sequence_policy", *words):
        api.define_task("t", sequence_policy=policy)
    assert api.rows("select from pyworker.jobs") == []


@pytest.mark.parametrize("payload", ['{"a": "\\u0000"}', '{"a": 1e999999}', '{"\\u00e9": 1, "e\\u0301": 2}'])
def test_a_payload_that_cannot_be_compared_is_refused_where_it_would_have_to_be(
    api: Any, payload: str
) -> None:
    with api.refusal("PW001", "add_job: sequence_policy"):
        api.add_job("t", payload, sequence_policy={"by_args": True})
    assert api.add_job("t", payload, sequence_policy={}).sequence_key == '{"kind":"t"}'


# One at a time, in the order of the ids --------------------------------------------------------------------------------


def test_jobs_of_a_sequence_run_one_after_the_other_in_the_order_of_their_ids(api: Any, worker: int) -> None:
    jobs = add(api, 5)
    assert [job.state for job in jobs] == ["pending"] * 5
    assert drain(api, worker) == ids(jobs)
    assert view(api) is None


def test_ids_of_a_bulk_add_follow_its_order(api: Any, worker: int) -> None:
    jobs = api.add_jobs([{"identifier": "t", "payload": [n], "sequence_policy": S} for n in range(30)])
    assert ids(jobs) == sorted(ids(jobs))
    assert [job.payload for job in jobs] == [[n] for n in range(30)]
    assert drain(api, worker) == ids(jobs)


def test_neither_priority_nor_run_at_reorders_a_sequence(api: Any, worker: int) -> None:
    jobs = [
        api.add_job("t", sequence_policy=S, priority=p, run_at=api.at(at))
        for p, at in [(9, "-1 min"), (5, "-1 hour"), (-9, "-1 day"), (0, "-2 days")]
    ]
    assert drain(api, worker) == ids(jobs)


def test_priority_ranks_the_heads_of_different_sequences(api: Any, worker: int) -> None:
    low = api.add_job("t", sequence_policy={"key": "a"}, priority=5)
    api.add_job("t", sequence_policy={"key": "a"}, priority=-5)
    high = api.add_job("t", sequence_policy={"key": "b"}, priority=0)
    plain = api.add_job("t", priority=3)
    assert ids(api.claim_jobs(worker, 10)) == ids([high, plain, low])


def test_sequences_run_side_by_side_and_beside_plain_jobs(api: Any, worker: int) -> None:
    jobs = api.add_jobs(
        [{"identifier": "t", "sequence_policy": {"key": k}} for k in "abcabc"] + [{"identifier": "t"}]
    )
    first = api.claim_jobs(worker, 10)
    assert sorted(ids(first)) == ids([*jobs[:3], jobs[6]])
    api.finish(*ids(first))
    assert sorted(ids(api.claim_jobs(worker, 10))) == ids(jobs[3:6])


def test_more_sequences_than_one_promotion_looks_at_all_begin(api: Any, worker: int) -> None:
    jobs = api.add_jobs([{"identifier": "t", "sequence_policy": {"key": str(n)}} for n in range(350)])
    seen: list[int] = []
    while claimed := api.claim_jobs(worker, 100):
        seen += ids(claimed)
    assert sorted(seen) == ids(jobs)


@pytest.mark.parametrize("by", ["add_job", "add_jobs", "keyed", "unique", "task"])
def test_the_first_job_of_an_idle_sequence_is_there_for_the_next_claim(
    api: Any, worker: int, by: str
) -> None:
    for _ in range(3):  # idle for the first time, and again
        if by == "add_jobs":
            (job,) = api.add_jobs([{"identifier": "t", "sequence_policy": S}])
        elif by == "task":
            api.define_task("t", sequence_policy=S)
            job = api.add_job("t")
        else:
            more = {"keyed": {"job_key": "k"}, "unique": {"unique_policy": {"keys": ["type"]}}}.get(by, {})
            job = api.add_job("t", sequence_policy=S, **more)
        claimed = api.claim(worker)
        assert claimed.id == job.id
        assert claimed.sequence_key == "s"
        api.finish_job(claimed.id, claimed.run)
        assert api.claim(worker) is None


def test_a_follow_up_is_available_as_soon_as_the_job_before_it_ends(api: Any, worker: int) -> None:
    jobs = add(api, 3)
    api.claim(worker)
    api.finish(jobs[0].id)
    assert [api.get_job(job.id).state for job in jobs] == ["completed", "available", "pending"]


def test_a_follow_up_can_be_claimed_in_the_same_transaction(api: Any, worker: int) -> None:
    jobs = add(api, 3)
    with api.conn.transaction():
        for job in jobs:
            assert api.claim(worker).id == job.id
            api.finish(job.id)
        new = add(api, 1)[0]
        assert api.claim(worker).id == new.id


def test_a_follow_up_that_the_running_job_adds_starts_right_after_it(api: Any, worker: int) -> None:
    """River #960: only after about a second."""
    first = add(api, 1)[0]
    api.claim(worker)
    with api.conn.transaction():
        follow_up = add(api, 1)[0]
        api.finish(first.id)
    assert api.get_job(follow_up.id).state == "available"


def test_a_batch_of_completions_lets_all_its_sequences_go_on(api: Any, worker: int) -> None:
    jobs = api.add_jobs([{"identifier": "t", "sequence_policy": {"key": k}} for k in "abcabc"])
    claimed = api.claim_jobs(worker, 10)
    api.finish(*ids(claimed))
    assert sorted(ids(api.claim_jobs(worker, 10))) == ids(jobs[3:])


HOLDS: dict[str, Callable[[Any, Any], Any]] = {
    "running": lambda api, job: None,
    "retryable": lambda api, job: api.fail(job, delay="1 hour"),
    "retryable, due": lambda api, job: api.fail(job, delay=0),
    "snoozed": lambda api, job: api.snooze_job(job.id, job.run, "1 hour"),
    "released": lambda api, job: api.release_jobs([job.id], [job.run]),
    "unregistered": lambda api, job: api.unregister_worker(int(api.get_job(job.id).locked_by)),
    "unlocked": lambda api, job: api.force_unlock_workers([api.get_job(job.id).locked_by]),
    "asked to cancel": lambda api, job: api.cancel_job(job.id),
}


@pytest.mark.parametrize("how", HOLDS)
def test_the_head_blocks_whatever_it_waits_for(api: Any, worker: int, clock: Any, how: str) -> None:
    jobs = add(api, 3)
    HOLDS[how](api, api.claim(worker))
    other = api.register_worker()
    back = [] if how in ("running", "retryable", "snoozed", "asked to cancel") else [jobs[0].id]
    assert ids(api.claim_jobs(other, 10)) == back
    new = add(api, 1)
    assert api.claim_jobs(other, 10) == []
    if how in ("retryable", "snoozed"):
        clock.advance(hours=2)
        other = api.register_worker()
        assert ids(api.claim_jobs(other, 10)) == [jobs[0].id]
    head = api.get_job(jobs[0].id)
    assert head.state == "running"
    api.finish_jobs([head.id], [head.run])
    assert drain(api, other) == ids(jobs[1:] + new)


def test_a_head_with_a_future_run_at_blocks_until_then(api: Any, worker: int, clock: Any) -> None:
    first = add(api, 1, run_at=api.at("1 hour"))[0]
    rest = add(api, 2)
    assert api.claim(worker) is None
    assert [api.get_job(job.id).state for job in [first, *rest]] == ["scheduled", "pending", "pending"]
    assert view(api) == (first.id, 2, None, None)
    clock.advance(hours=2)
    assert drain(api, api.register_worker()) == ids([first, *rest])


def test_a_waiting_job_with_a_future_run_at_blocks_from_its_turn_on(
    api: Any, worker: int, clock: Any
) -> None:
    first = add(api, 1)[0]
    later = add(api, 1, run_at=api.at("1 hour"))[0]
    last = add(api, 1)[0]
    assert api.get_job(later.id).state == "pending"
    assert drain(api, worker) == [first.id]
    assert api.get_job(later.id).state == "scheduled"
    clock.advance(minutes=30)
    worker = api.register_worker()
    assert drain(api, worker) == []
    clock.advance(hours=1)
    assert drain(api, api.register_worker()) == ids([later, last])


def test_a_waiting_jobs_future_that_has_passed_at_its_turn_does_not_delay_it(
    api: Any, worker: int, clock: Any
) -> None:
    first = add(api, 1)[0]
    later = add(api, 1, run_at=api.at("1 hour"))[0]
    api.claim(worker)
    clock.advance(hours=2)
    api.finish(first.id)
    assert api.get_job(later.id).state == "available"


def test_a_head_that_this_worker_forbids_or_does_not_know_is_not_overtaken(api: Any, worker: int) -> None:
    heavy = add(api, 1, flags=["heavy"])[0]
    other = add(api, 1, "u")[0]
    queued = add(api, 1, queue_name="q")[0]
    assert api.claim_jobs(worker, 10, None, None, ["heavy"]) == []
    assert api.claim_jobs(worker, 10, ["u"]) == []
    assert api.claim(worker, "t").id == heavy.id
    assert api.claim_jobs(worker, 10) == []
    api.finish(heavy.id)
    assert ids(api.claim_jobs(worker, 10, None, None, ["heavy"])) == [other.id]
    api.finish(other.id)
    assert api.claim_jobs(worker, 10, None, ["default"]) == []
    assert ids(api.claim_jobs(worker, 10, None, ["q"])) == [queued.id]


# Halting ---------------------------------------------------------------------------------------------------------------


def lost(api: Any, clock: Any) -> None:
    clock.advance(minutes=5)
    assert api.maintain()["rescued"] == 1


# name: (is it claimed first?, the reason, what happens); all jobs have one attempt
ENDS: dict[str, tuple[bool, str, Callable[[Any, Any, Any], Any]]] = {
    "failed for good by its handler": (True, "discarded", lambda api, job, clock: api.fail(job, discard=True)),
    "out of attempts": (True, "discarded", lambda api, job, clock: api.fail(job)),
    "permanently_fail_jobs": (False, "discarded", lambda api, job, clock: api.permanently_fail_jobs([job.id])),
    "reschedule_jobs without attempts": (
        False, "discarded", lambda api, job, clock: api.reschedule_jobs([job.id], attempts=1)),
    "worker lost on the last attempt": (True, "discarded", lambda api, job, clock: lost(api, clock)),
    "unlocked on the last attempt": (
        True, "discarded", lambda api, job, clock: api.force_unlock_workers([api.get_job(job.id).locked_by])),
    "cancelled by its handler": (True, "cancelled", lambda api, job, clock: api.fail(job, cancel=True)),
    "cancelled by its handler in our own words": (
        True, "cancelled", lambda api, job, clock: api.fail(job, "replaced", cancel=True)),
    "cancel_job": (False, "cancelled", lambda api, job, clock: api.cancel_job(job.id)),
    "cancel_job with force": (True, "cancelled", lambda api, job, clock: api.cancel_job(job.id, True)),
    "cancelled on request, failed": (
        True, "cancelled", lambda api, job, clock: (api.cancel_job(job.id), api.fail(job))),
    "cancelled on request, failed for good": (
        True, "cancelled", lambda api, job, clock: (api.cancel_job(job.id), api.fail(job, discard=True))),
    "cancelled on request, snoozed": (
        True, "cancelled", lambda api, job, clock: (api.cancel_job(job.id), api.snooze_job(job.id, job.run, "0"))),
    "cancelled on request, released": (
        True, "cancelled", lambda api, job, clock: (api.cancel_job(job.id), api.release_jobs([job.id], [job.run]))),
    "cancelled on request, worker lost": (
        True, "cancelled", lambda api, job, clock: (api.cancel_job(job.id), lost(api, clock))),
}  # fmt: skip


def end(api: Any, clock: Any, how: str) -> str:
    """Brings the head of the sequence, the only job that can be claimed, to this end; returns why it halts."""
    claimed, reason, happens = ENDS[how]
    if claimed:
        job = api.claim(api.register_worker())
    else:
        api.promote_jobs()
        job = api.rows("select * from pyworker.jobs where state = 'available'")[0]
    happens(api, job, clock)
    assert api.get_job(job.id).state in (reason, None)
    return reason


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "not kept"])
@pytest.mark.parametrize("flags", ["none", "the other one"])
@pytest.mark.parametrize("how", ENDS)
def test_a_job_that_is_cancelled_or_discarded_halts_its_sequence(
    api: Any, clock: Any, how: str, flags: str, kept: bool
) -> None:
    if not kept:
        api.configure(discarded_retention="0", cancelled_retention="0")
    other = {"discarded": "cancelled", "cancelled": "discarded"}[ENDS[how][1]]
    policy = {f"continue_on_{other}": True} if flags != "none" else {}
    head, *rest = add(api, 3, max_attempts=1, policy=policy)
    reason = end(api, clock, how)
    worker = api.register_worker()
    assert api.claim_jobs(worker, 10) == []
    assert view(api) == (None, 2, head.id, reason)
    assert [api.get_job(job.id).sequence_halted_by for job in rest] == [head.id, head.id]
    (new,) = add(api, 1)
    (bulk,) = api.add_jobs([{"identifier": "t", "sequence_policy": S}])
    assert [(job.state, job.sequence_halted_by) for job in (new, bulk)] == [("pending", head.id)] * 2
    assert api.claim_jobs(worker, 10) == []
    assert api.resume_sequence("s") is True
    assert drain(api, worker) == ids([*rest, new, bulk])
    assert view(api) is None


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "not kept"])
@pytest.mark.parametrize("how", ENDS)
def test_with_its_continue_flag_the_sequence_goes_on(api: Any, clock: Any, how: str, kept: bool) -> None:
    if not kept:
        api.configure(discarded_retention="0", cancelled_retention="0")
    head, *rest = add(api, 3, max_attempts=1, policy={f"continue_on_{ENDS[how][1]}": True})
    end(api, clock, how)
    assert api.rows("select from pyworker.sequence_halts") == []
    assert [api.get_job(job.id).state for job in rest] == ["available", "pending"]
    assert head.id not in drain(api, api.register_worker())


def test_the_flags_that_count_are_those_of_the_job_that_ended(api: Any, worker: int) -> None:
    first = add(api, 1)[0]
    add(api, 1, policy={"continue_on_discarded": True})
    api.fail(api.claim(worker), discard=True)
    assert api.claim(worker) is None
    assert view(api)[2] == first.id


@pytest.mark.parametrize("how", ["cancel_job", "permanently_fail_jobs", "reschedule_jobs"])
@pytest.mark.parametrize("flag", [True, False])
def test_a_waiting_job_that_is_called_off_halts_when_its_turn_comes(
    api: Any, worker: int, how: str, flag: bool
) -> None:
    policy = {"continue_on_cancelled": flag, "continue_on_discarded": flag}
    first, second, third, fourth = add(api, 4, policy=policy)
    api.claim(worker)
    {
        "cancel_job": lambda: api.cancel_job(third.id),
        "permanently_fail_jobs": lambda: api.permanently_fail_jobs([third.id]),
        "reschedule_jobs": lambda: api.reschedule_jobs([third.id], attempts=5, max_attempts=5),
    }[how]()
    halted_by = None if flag else third.id
    assert view(api) == (first.id, 2, None, None), "it is not halted yet"
    assert api.get_job(second.id).sequence_halted_by is None
    assert api.get_job(fourth.id).sequence_halted_by == halted_by
    api.finish(first.id)
    assert drain(api, worker) == [second.id, *([fourth.id] if flag else [])]
    if not flag:
        assert view(api) == (None, 1, third.id, "cancelled" if how == "cancel_job" else "discarded")


def test_deleting_a_waiting_job_just_removes_it(api: Any, worker: int) -> None:
    first, second, third, fourth = add(api, 4)
    api.delete_job(second.id)
    keyed = add(api, 1, job_key="k")[0]
    assert api.remove_job("k").id == keyed.id
    assert drain(api, worker) == ids([first, third, fourth])


SUPERSEDE: dict[str, Callable[[Any], Any]] = {
    "keyed add": lambda api: api.add_job("t", job_key="k", sequence_policy=S),
    "bulk keyed add": lambda api: api.add_jobs([{"identifier": "t", "job_key": "k", "sequence_policy": S}]),
    "remove_job": lambda api: api.remove_job("k"),
}
LAST_WORDS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "failed": lambda api, job, clock: api.fail(job),
    "failed for good": lambda api, job, clock: api.fail(job, discard=True),
    "cancelled": lambda api, job, clock: api.fail(job, cancel=True),
    "snoozed": lambda api, job, clock: api.snooze_job(job.id, job.run, "0"),
    "released": lambda api, job, clock: api.release_jobs([job.id], [job.run]),
    "unregistered": lambda api, job, clock: api.unregister_worker(int(api.get_job(job.id).locked_by)),
    "lost": lambda api, job, clock: lost(api, clock),
    "unlocked": lambda api, job, clock: api.force_unlock_workers([api.get_job(job.id).locked_by]),
    "cancelled on request": lambda api, job, clock: (api.cancel_job(job.id), api.fail(job)),
    "cancelled by force": lambda api, job, clock: api.cancel_job(job.id, True),
    "completed": lambda api, job, clock: api.finish_job(job.id, job.run),
}


@pytest.mark.parametrize("last_word", LAST_WORDS)
@pytest.mark.parametrize("how", SUPERSEDE)
def test_a_superseded_or_removed_run_never_halts(
    api: Any, worker: int, clock: Any, how: str, last_word: str
) -> None:
    add(api, 1, job_key="k")
    rest = add(api, 2)
    claimed = api.claim(worker)
    SUPERSEDE[how](api)
    assert api.claim(worker) is None, "its successor waits for the end of the run"
    LAST_WORDS[last_word](api, claimed, clock)
    new = [] if how == "remove_job" else api.rows("select * from pyworker.jobs where key = 'k'")
    assert drain(api, api.register_worker()) == ids(rest + new)


@pytest.mark.parametrize("running", [True, False])
def test_a_replaced_job_never_halts_and_its_successor_takes_its_turn_by_its_id(
    api: Any, worker: int, running: bool
) -> None:
    unique = {"unique_policy": {"keys": ["type"], "on_conflict": "replace"}}
    old = add(api, 1, "u", **unique)[0]
    (second,) = add(api, 1)
    assert not running or api.claim(worker).id == old.id
    new = add(api, 1, "u", **unique)[0]
    assert (api.get_job(old.id).state, api.get_job(old.id).reason) == ("cancelled", "replaced")
    assert drain(api, worker) == ids([second, new])


def test_many_duplicates_of_one_sequence_are_all_replaced(api: Any, worker: int) -> None:
    never = {"keys": ["type"], "states": []}
    old = add(api, 25, unique_policy=never)
    api.promote_jobs()
    new = add(api, 1, unique_policy={"keys": ["type"], "on_conflict": "replace"})[0]
    assert {api.get_job(job.id).state for job in old} == {"cancelled"}
    assert drain(api, worker) == [new.id]


# Recovery --------------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["discarded", "cancelled"])
def halted(api: Any, worker: int, request: Any) -> list[Any]:
    """Four jobs of the sequence s, the second of which halted it."""
    jobs = add(api, 4)
    api.finish(api.claim(worker).id)
    api.fail(api.claim(worker), cancel=request.param == "cancelled", discard=True)
    assert view(api) == (None, 2, jobs[1].id, request.param)
    return jobs


def test_a_retry_of_the_halting_job_resumes_there(api: Any, worker: int, halted: list[Any]) -> None:
    assert api.retry_job(halted[1].id).state == "pending"
    assert drain(api, worker) == ids(halted[1:])


def test_a_retried_halting_job_that_fails_again_halts_again(api: Any, worker: int, halted: list[Any]) -> None:
    api.retry_job(halted[1].id)
    api.fail(api.claim(worker), discard=True)
    assert view(api) == (None, 2, halted[1].id, "discarded")
    assert api.claim(worker) is None


def test_a_retry_of_a_later_waiting_job_skips_the_halting_one(
    api: Any, worker: int, halted: list[Any]
) -> None:
    more = add(api, 1)
    assert api.retry_job(halted[3].id).sequence_halted_by is None
    assert drain(api, worker) == ids([halted[3], halted[2], *more])
    assert api.get_job(halted[1].id).state in ("discarded", "cancelled")


def test_a_retry_of_a_later_waiting_job_takes_it_out_of_its_future(
    api: Any, worker: int, halted: list[Any]
) -> None:
    later = add(api, 1, run_at=api.at("1 day"))[0]
    api.retry_job(later.id)
    assert drain(api, worker) == ids([later, halted[2], halted[3]])


def test_what_lies_before_a_job_that_skipped_still_runs_if_that_one_halts(
    api: Any, worker: int, halted: list[Any]
) -> None:
    more = add(api, 1)
    api.retry_job(halted[3].id)
    api.fail(api.claim(worker), discard=True)
    assert drain(api, worker) == [halted[2].id]
    assert view(api) == (None, 1, halted[3].id, "discarded")
    assert api.get_job(more[0].id).sequence_halted_by == halted[3].id


def test_jobs_that_are_retried_together_run_one_at_a_time_in_order(api: Any, worker: int) -> None:
    """River #971: all at once."""
    jobs = add(api, 6, policy={"continue_on_discarded": True, "continue_on_cancelled": True})
    for n in range(5):
        api.fail(api.claim(worker), cancel=bool(n % 2), discard=True)
    claimed = api.claim(worker)
    assert sorted(ids(api.retry_jobs(ids(jobs)[::-1]))) == ids(jobs[:5])
    assert api.claim(worker) is None
    api.finish_jobs([claimed.id], [claimed.run])
    assert drain(api, worker) == ids(jobs[:5])


def test_the_halting_job_and_later_ones_retried_together_keep_their_order(
    api: Any, worker: int, halted: list[Any]
) -> None:
    api.retry_jobs(ids(halted)[::-1])
    assert drain(api, worker) == ids(halted)


def test_a_retried_job_waits_for_the_head_and_runs_next(api: Any, worker: int) -> None:
    jobs = add(api, 3)
    api.finish(api.claim(worker).id)
    head = api.claim(worker)
    assert api.retry_job(jobs[0].id).state == "pending"
    assert api.claim(worker) is None
    api.finish_jobs([head.id], [head.run])
    assert drain(api, worker) == ids([jobs[0], jobs[2]])


@pytest.mark.parametrize("state", ["scheduled", "retryable"])
def test_a_retry_of_the_head_lets_it_run_now(api: Any, worker: int, state: str) -> None:
    head, _ = add(api, 2, run_at=api.at("1 hour") if state == "scheduled" else None)
    api.promote_jobs()
    if state == "retryable":
        api.fail(api.claim(worker), delay="1 hour")
    assert api.get_job(head.id).state == state
    assert api.retry_job(head.id).state == "available"
    assert api.claim(worker).id == head.id


def test_deleting_the_halting_job_resumes(api: Any, worker: int, halted: list[Any]) -> None:
    api.delete_job(halted[1].id)
    assert drain(api, worker) == ids(halted[2:])


def test_resume_sequence_goes_on_without_the_halting_job(api: Any, worker: int, halted: list[Any]) -> None:
    state = api.get_job(halted[1].id).state
    assert api.resume_sequence("s") is True
    assert api.resume_sequence("s") is False
    assert drain(api, worker) == ids(halted[2:])
    assert api.get_job(halted[1].id).state == state


def test_resume_sequence_passes_over_several_halts_in_a_row_but_no_further(api: Any, worker: int) -> None:
    jobs = add(api, 6)
    for n in (0, 1, 2, 4):
        api.cancel_job(jobs[n].id)
    assert view(api) == (None, 2, jobs[0].id, "cancelled")
    assert api.resume_sequence("s") is True
    assert drain(api, worker) == [jobs[3].id]
    assert view(api) == (None, 1, jobs[4].id, "cancelled")
    assert api.resume_sequence("s") is True
    assert drain(api, worker) == [jobs[5].id]


def test_resume_sequence_of_one_that_is_not_halted_is_false(api: Any, worker: int) -> None:
    assert api.resume_sequence("nobody's") is False
    jobs = add(api, 2)
    assert api.resume_sequence("s") is False
    api.claim(worker)
    assert api.resume_sequence("s") is False
    api.finish(jobs[0].id)
    assert drain(api, worker) == [jobs[1].id]


def test_a_halted_sequence_with_nobody_waiting_can_be_resumed_in_advance(api: Any, worker: int) -> None:
    (head,) = add(api, 1)
    api.fail(api.claim(worker), discard=True)
    assert view(api) == (None, 0, head.id, "discarded")
    assert api.resume_sequence("s") is True
    assert view(api) is None
    (new,) = add(api, 1)
    assert new.sequence_halted_by is None
    assert drain(api, worker) == [new.id]


def test_a_keyed_add_onto_the_discarded_halting_job_resumes_there(api: Any, worker: int) -> None:
    for bulk in (False, True):
        head = add(api, 1, job_key="k")[0]
        rest = add(api, 1)
        api.fail(api.claim(worker), discard=True)
        assert api.claim(worker) is None
        if bulk:
            again = api.add_jobs([{"identifier": "t", "job_key": "k", "sequence_policy": S}])[0]
        else:
            again = add(api, 1, job_key="k")[0]
        assert (again.id, again.state, again.sequence_halted_by) == (head.id, "pending", None)
        assert drain(api, worker) == ids([head, *rest])


@pytest.mark.parametrize("policy", [{"key": "other"}, None], ids=["another sequence", "none"])
def test_a_keyed_add_that_takes_the_halting_job_elsewhere_resumes(api: Any, worker: int, policy: Any) -> None:
    head = add(api, 1, job_key="k")[0]
    (rest,) = add(api, 1)
    api.fail(api.claim(worker), discard=True)
    assert api.add_job("t", job_key="k", sequence_policy=policy).id == head.id
    assert sorted(ids(api.claim_jobs(worker, 10))) == ids([head, rest])


def test_remove_job_of_the_discarded_halting_job_resumes(api: Any, worker: int) -> None:
    add(api, 1, job_key="k")
    (rest,) = add(api, 1)
    api.fail(api.claim(worker), discard=True)
    assert api.remove_job("k").state == "discarded"
    assert drain(api, worker) == [rest.id]


def test_completing_the_halting_job_by_hand_resumes(api: Any, worker: int) -> None:
    head, rest = add(api, 2)
    api.fail(api.claim(worker), discard=True)
    assert ids(api.complete_jobs([head.id])) == [head.id]
    assert view(api)[2] is None
    assert drain(api, worker) == [rest.id]


def test_rescheduling_the_discarded_halting_job_resumes_there(api: Any, worker: int, clock: Any) -> None:
    head, rest = add(api, 2, max_attempts=1)
    api.fail(api.claim(worker))
    assert api.reschedule_jobs([head.id], run_at=api.at("1 hour"), attempts=0)[0].state == "pending"
    assert api.claim(worker) is None
    assert api.get_job(head.id).state == "scheduled"
    clock.advance(hours=2)
    assert drain(api, api.register_worker()) == ids([head, rest])


@pytest.mark.parametrize("how", ["reschedule_jobs", "permanently_fail_jobs"])
def test_a_discarded_job_that_was_passed_over_does_not_halt_a_second_time(
    api: Any, worker: int, how: str
) -> None:
    head, *rest = add(api, 3, max_attempts=1)
    api.fail(api.claim(worker))
    api.resume_sequence("s")
    if how == "reschedule_jobs":
        assert api.reschedule_jobs([head.id], priority=3)[0].state == "discarded"
    else:
        api.permanently_fail_jobs([head.id])
    assert drain(api, worker) == ids(rest)


# Pruning ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["prune", "maintain"])
@pytest.mark.parametrize("partition", [True, False], ids=["a day's partition", "row by row"])
@pytest.mark.parametrize("state", ["discarded", "cancelled"])
def test_pruning_never_takes_a_halting_job_while_jobs_wait(
    api: Any, worker: int, clock: Any, state: str, partition: bool, how: str
) -> None:
    if partition:
        api.maintain()
    else:
        clock.advance(days=400)  # a day that has no partition
        worker = api.register_worker()
    head, rest = add(api, 2)
    gone = add(api, 1, policy={"key": "nobody waits"})[0]
    for job in api.claim_jobs(worker, 2):
        api.fail(job, cancel=state == "cancelled", discard=True)
    for _ in range(3):
        clock.advance(days=10)
        getattr(api, how)()
        assert (api.get_job(head.id).state, api.get_job(gone.id).id) == (state, None)
        assert api.claim(api.register_worker()) is None
        assert view(api) == (None, 1, head.id, state)
        assert view(api, "nobody waits") is None
    api.retry_job(head.id)
    assert drain(api, api.register_worker()) == ids([head, rest])


@pytest.mark.parametrize("state", ["discarded", "cancelled"])
def test_once_nobody_waits_the_halting_job_is_pruned_and_the_sequence_is_new(
    api: Any, worker: int, clock: Any, state: str
) -> None:
    head, rest = add(api, 2)
    api.fail(api.claim(worker), cancel=state == "cancelled", discard=True)
    clock.advance(days=30)
    api.prune()
    assert api.get_job(head.id).state == state
    api.delete_job(rest.id)
    clock.advance(days=30)
    api.prune()
    assert api.get_job(head.id).id is None
    assert view(api) is None
    new = add(api, 1)
    assert drain(api, api.register_worker()) == ids(new)


@pytest.mark.parametrize("state", ["discarded", "cancelled"])
def test_a_halt_by_a_job_of_which_nothing_was_kept_stays_while_jobs_wait(
    api: Any, worker: int, clock: Any, state: str
) -> None:
    api.configure(discarded_retention="0", cancelled_retention="0")
    head, rest = add(api, 2)
    (lone,) = add(api, 1, policy={"key": "nobody waits"})
    for job in api.claim_jobs(worker, 2):
        api.fail(job, cancel=state == "cancelled", discard=True)
    clock.advance(days=10)
    api.prune()
    assert [view(api)[2], view(api, "nobody waits")[2]] == ids([head, lone])
    clock.advance(days=100)
    api.prune()
    assert (view(api), view(api, "nobody waits")) == ((None, 1, head.id, state), None)
    api.resume_sequence("s")
    assert drain(api, api.register_worker()) == [rest.id]


def test_a_halt_lasts_as_long_as_the_job_that_is_kept_for_it(api: Any, worker: int, clock: Any) -> None:
    api.configure(discarded_retention="100 days")
    (head,) = add(api, 1)
    api.fail(api.claim(worker), discard=True)
    clock.advance(days=60)
    api.prune()
    assert api.get_job(head.id).state == "discarded"
    assert add(api, 1)[0].sequence_halted_by == head.id


# job_key ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bulk", [False, True], ids=["add_job", "add_jobs"])
@pytest.mark.parametrize("target", ["another sequence", "a busy sequence", "none"])
@pytest.mark.parametrize("state", ["waiting", "head", "head, scheduled", "head, in a queue"])
def test_a_keyed_add_moves_a_job_to_another_sequence(
    api: Any, worker: int, state: str, target: str, bulk: bool
) -> None:
    before = add(api, 1) if state == "waiting" else []
    more: dict[str, Any] = {}
    if state == "head, scheduled":
        more = {"run_at": api.at("1 hour")}
    elif state == "head, in a queue":
        more = {"queue_name": "q"}
        api.add_job("x", queue_name="q")
        assert api.claim(worker, "x")
    job = add(api, 1, job_key="k", **more)[0]
    after = add(api, 1)
    api.promote_jobs()
    busy = []
    if target == "a busy sequence":
        busy = add(api, 1, "b", policy={"key": "busy"})
        assert api.claim(worker, "b")
    policy = {"another sequence": {"key": "another"}, "a busy sequence": {"key": "busy"}, "none": None}[
        target
    ]
    if bulk:
        moved = api.add_jobs([{"identifier": "t", "job_key": "k", "sequence_policy": policy}])[0]
    else:
        moved = api.add_job("t", job_key="k", sequence_policy=policy)
    assert (moved.id, moved.sequence_key) == (job.id, policy and policy["key"])
    claimed = api.claim_jobs(worker, 10)
    first = before or after
    assert sorted(ids(claimed)) == sorted(ids(first + ([] if busy else [job])))
    if busy:
        api.finish(*ids(busy))
        assert ids(api.claim_jobs(worker, 10)) == [job.id]
    if before:
        api.finish(*ids(before))
        assert ids(api.claim_jobs(worker, 10)) == ids(after)


@pytest.mark.parametrize("state", ["waiting", "head"])
def test_a_keyed_add_in_the_same_sequence_keeps_the_jobs_place(api: Any, worker: int, state: str) -> None:
    before = add(api, 1) if state == "waiting" else []
    job = add(api, 1, job_key="k")[0]
    after = add(api, 1)
    api.promote_jobs()
    assert add(api, 1, "u", job_key="k", priority=9)[0].id == job.id
    assert drain(api, worker) == ids([*before, job, *after])


def test_a_keyed_add_changes_the_flags_of_a_job(api: Any, worker: int) -> None:
    add(api, 1, job_key="k")
    (rest,) = add(api, 1)
    add(api, 1, job_key="k", policy={"continue_on_discarded": True})
    api.fail(api.claim(worker), discard=True)
    assert drain(api, worker) == [rest.id]


def test_a_keyed_add_that_puts_the_head_off_holds_the_sequence_until_then(
    api: Any, worker: int, clock: Any
) -> None:
    jobs = [*add(api, 1, job_key="k"), *add(api, 1)]
    api.promote_jobs()
    assert add(api, 1, job_key="k", run_at=api.at("1 hour"))[0].state == "scheduled"
    assert api.claim(worker) is None
    clock.advance(hours=2)
    assert drain(api, api.register_worker()) == ids(jobs)


def test_a_keyed_add_onto_a_job_that_is_to_skip_a_halt_leaves_it_first(
    api: Any, worker: int, halted: list[Any]
) -> None:
    job = add(api, 1, job_key="k")[0]
    api.retry_job(job.id)
    assert add(api, 1, job_key="k")[0].id == job.id
    assert drain(api, worker) == ids([job, halted[2], halted[3]])


def test_the_successor_of_a_superseded_run_joins_the_end(api: Any, worker: int) -> None:
    old = add(api, 1, job_key="k")[0]
    rest = add(api, 2)
    claimed = api.claim(worker)
    new = add(api, 1, job_key="k")[0]
    assert (new.id > rest[1].id, new.state) == (True, "pending")
    assert api.finish_jobs([claimed.id], [claimed.run]) == [old.id]
    assert drain(api, worker) == ids([*rest, new])


def test_unsafe_dedupe_leaves_the_job_in_its_sequence(api: Any, worker: int) -> None:
    job = add(api, 1, job_key="k")[0]
    again = api.add_job("t", job_key="k", job_key_mode="unsafe_dedupe", sequence_policy={"key": "other"})
    assert (again.id, again.sequence_key, again.deduplicated) == (job.id, "s", True)


# unique_policy ---------------------------------------------------------------------------------------------------------


def test_a_skipped_duplicate_joins_no_sequence(api: Any, worker: int) -> None:
    unique = {"keys": ["args"], "on_conflict": "ignore"}
    first = api.add_job("t", {"n": 1}, unique_policy=unique, sequence_policy=S)
    again = api.add_job("t", {"n": 1}, unique_policy=unique, sequence_policy={"key": "other"})
    assert (again.id, again.deduplicated, again.sequence_key) == (first.id, True, "s")
    with api.refusal("PW003"):
        api.add_job("t", {"n": 1}, unique_policy={**unique, "on_conflict": "reject"}, sequence_policy=S)
    assert drain(api, worker) == [first.id]
    assert api.rows("select from pyworker.promotion_requests") == []


def test_a_job_that_waits_in_its_sequence_is_a_duplicate_in_state_pending(api: Any, worker: int) -> None:
    add(api, 1)
    unique = {"keys": ["args"], "on_conflict": "ignore"}
    waiting = api.add_job("t", {"n": 1}, unique_policy={**unique, "states": ["pending"]}, sequence_policy=S)
    assert waiting.state == "pending"
    again = api.add_job("t", {"n": 1}, unique_policy={**unique, "states": ["pending"]}, sequence_policy=S)
    other = api.add_job("t", {"n": 1}, unique_policy={**unique, "states": ["available"]}, sequence_policy=S)
    assert (again.id, other.deduplicated) == (waiting.id, False)


def test_a_bulk_add_with_unique_and_sequenced_jobs_keeps_their_order(api: Any, worker: int) -> None:
    unique = {"keys": ["args"], "on_conflict": "ignore"}
    specs = [
        {"identifier": "t", "payload": {"n": n % 4}, "sequence_policy": S, **more}
        for n, more in enumerate(
            [{"unique_policy": unique}, {}, {"job_key": "z"}, {"unique_policy": unique}] * 2
        )
    ]
    jobs = api.add_jobs(specs)
    fresh = [jobs[n] for n in (0, 1, 2, 3, 5)]
    assert ids(fresh) == sorted(set(ids(jobs)))
    assert drain(api, worker) == ids(fresh)


def test_a_retry_that_lost_its_unique_key_halts_as_any_discarded_job_does(
    api: Any, worker: int, clock: Any
) -> None:
    """River: of those that want the key again one survives."""
    states = ["available", "pending", "running", "scheduled"]
    unique = {"by_args": True, "by_state": states}
    first = api.add_job("t", {"n": 1}, unique_policy=unique, sequence_policy=S)
    (waiting,) = add(api, 1)
    api.fail(api.claim(worker), delay="1 hour")
    api.add_job("t", {"n": 1}, unique_policy=unique, run_at=api.at("1 day"))
    clock.advance(hours=2)
    assert api.claim(api.register_worker()) is None
    assert api.get_job(first.id).state == "discarded"
    assert view(api) == (None, 1, first.id, "discarded")
    assert api.get_job(waiting.id).sequence_halted_by == first.id


# Named queues ----------------------------------------------------------------------------------------------------------


def test_a_job_of_both_waits_for_its_sequence_first_and_then_for_its_queue(api: Any, worker: int) -> None:
    api.add_job("x", queue_name="q")
    busy = api.claim(worker)
    jobs = add(api, 2, queue_name="q")
    follower = api.add_job("x", queue_name="q", priority=9)
    assert api.claim(worker) is None
    states = "select parked from pyworker.live_jobs where sequence_key = 's' order by id"
    assert [row.parked for row in api.rows(states)] == ["queue", "sequence"]
    assert view(api) == (jobs[0].id, 1, None, None)
    assert api.get_job(jobs[0].id).sequence_halted_by is None
    api.finish_jobs([busy.id], [busy.run])
    assert ids(api.claim_jobs(worker, 10)) == [jobs[0].id]
    api.finish(jobs[0].id)
    assert ids(api.claim_jobs(worker, 10)) == [jobs[1].id], "the end of its predecessor made room, too"
    api.finish(jobs[1].id)
    assert ids(api.claim_jobs(worker, 10)) == [follower.id]


def test_a_job_of_an_idle_sequence_and_an_idle_queue_is_there_for_the_next_claim(
    api: Any, worker: int
) -> None:
    assert api.claim(worker) is None  # from here on a claim looks only once
    for _ in range(2):
        (job,) = add(api, 1, queue_name="q")
        assert api.claim(worker).id == job.id
        api.finish(job.id)


def test_one_sequence_spans_queues(api: Any, worker: int) -> None:
    jobs = [add(api, 1, queue_name=name)[0] for name in ("a", "b", "default", "a")]
    assert drain(api, worker) == ids(jobs)


def test_a_follow_up_in_another_queue_takes_its_turn_there(api: Any, worker: int) -> None:
    api.add_job("x", queue_name="b")
    busy = api.claim(worker)
    first, second = add(api, 1, queue_name="a")[0], add(api, 1, queue_name="b")[0]
    assert drain(api, worker) == [first.id]
    api.finish_jobs([busy.id], [busy.run])
    assert drain(api, worker) == [second.id]


def test_a_paused_queue_at_the_head_stalls_the_sequence(api: Any, worker: int) -> None:
    api.pause_queue("q")
    jobs = [add(api, 1, queue_name="q")[0], *add(api, 1)]
    assert api.claim(worker) is None
    assert [row.reason for row in explain(api, jobs[0].id)] == ["queue paused"]
    assert [row.reason for row in explain(api, jobs[1].id)] == ["sequence"]
    api.resume_queue("q")
    assert drain(api, worker) == ids(jobs)


def test_a_halted_sequence_does_not_hold_its_queue(api: Any, worker: int) -> None:
    add(api, 2, queue_name="q")
    other = api.add_job("t", queue_name="q")
    api.fail(api.claim(worker), discard=True)
    assert drain(api, worker) == [other.id]


def test_a_queue_with_room_runs_as_many_sequences(api: Any, worker: int) -> None:
    api.set_queue("q", 3)
    jobs = api.add_jobs(
        [{"identifier": "t", "queue_name": "q", "sequence_policy": {"key": key}} for key in "aabbccdd"]
    )
    claimed = api.claim_jobs(worker, 10)
    assert ids(claimed) == ids([jobs[0], jobs[2], jobs[4]])
    api.finish(jobs[0].id)
    assert ids(api.claim_jobs(worker, 10)) == [jobs[1].id]


# What people do to jobs of a sequence ----------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["head", "waiting"])
@pytest.mark.parametrize("how", ["complete_jobs", "delete_job", "remove_job"])
def test_a_job_that_is_taken_out_by_hand_lets_the_others_go_on(
    api: Any, worker: int, which: str, how: str
) -> None:
    jobs = [add(api, 1, job_key=f"k{n}")[0] for n in range(3)]
    api.promote_jobs()
    n = ["head", "waiting"].index(which)
    getattr(api, how)({"complete_jobs": [jobs[n].id], "delete_job": jobs[n].id, "remove_job": f"k{n}"}[how])
    assert drain(api, worker) == ids(jobs[:n] + jobs[n + 1 :])


@pytest.mark.parametrize("how", ["complete_jobs", "permanently_fail_jobs", "reschedule_jobs"])
def test_many_jobs_of_one_sequence_are_ended_in_one_call(api: Any, worker: int, how: str) -> None:
    jobs = add(api, 40, policy={"continue_on_discarded": True})
    api.promote_jobs()
    more = {"attempts": 25} if how == "reschedule_jobs" else {}
    assert ids(getattr(api, how)(ids(jobs)[:39], **more)) == ids(jobs)[:39]
    state = "completed" if how == "complete_jobs" else "discarded"
    assert {api.get_job(job.id).state for job in jobs[:39]} == {state}
    assert ids(api.claim_jobs(worker, 10)) == [jobs[39].id]


def test_many_jobs_of_one_queue_are_ended_in_one_call(api: Any, worker: int) -> None:
    jobs = api.add_jobs([{"identifier": "t", "queue_name": "q"}] * 40)
    api.promote_jobs()
    assert ids(api.complete_jobs(ids(jobs)[:39])) == ids(jobs)[:39]
    assert ids(api.claim_jobs(worker, 10)) == [jobs[39].id]


def test_rescheduling_a_waiting_job_leaves_it_in_its_place(api: Any, worker: int, clock: Any) -> None:
    jobs = add(api, 3)
    api.claim(worker)
    assert api.reschedule_jobs([jobs[1].id], run_at=api.at("1 hour"), priority=-5)[0].state == "pending"
    assert api.reschedule_jobs([jobs[2].id], run_at=api.at("-1 hour"), priority=-9)[0].state == "pending"
    api.finish(jobs[0].id)
    assert api.claim(worker) is None
    assert api.get_job(jobs[1].id).state == "scheduled"
    clock.advance(hours=2)
    assert drain(api, api.register_worker()) == ids(jobs[1:])


def test_rescheduling_the_head_into_the_future_holds_the_sequence(api: Any, worker: int, clock: Any) -> None:
    jobs = add(api, 2)
    api.promote_jobs()
    assert api.reschedule_jobs([jobs[0].id], run_at=api.at("1 hour"))[0].state == "scheduled"
    assert api.claim(worker) is None
    assert api.reschedule_jobs([jobs[0].id], run_at=api.at("-1 hour"))[0].state == "available"
    assert drain(api, worker) == ids(jobs)


def test_rescheduling_a_job_that_is_to_skip_a_halt_leaves_it_first(
    api: Any, worker: int, halted: list[Any]
) -> None:
    api.retry_job(halted[3].id)
    api.reschedule_jobs([halted[3].id], priority=4)
    assert drain(api, worker) == ids([halted[3], halted[2]])


def test_permanently_failing_all_jobs_halts_at_the_first(api: Any, worker: int) -> None:
    jobs = add(api, 4)
    api.permanently_fail_jobs(ids(jobs)[:3])
    assert view(api) == (None, 1, jobs[0].id, "discarded")
    api.retry_jobs(ids(jobs)[:3])
    assert drain(api, worker) == ids(jobs)


# The view, and explain_job ---------------------------------------------------------------------------------------------


def test_the_view_lists_what_has_jobs_to_run_or_is_halted(api: Any, worker: int) -> None:
    assert api.rows("select from pyworker.sequences") == []
    jobs = add(api, 3)
    assert view(api) == (None, 3, None, None)
    api.promote_jobs()
    assert view(api) == (jobs[0].id, 2, None, None)
    api.claim(worker)
    assert view(api) == (jobs[0].id, 2, None, None)
    api.cancel_job(jobs[0].id, True)
    assert view(api) == (None, 2, jobs[0].id, "cancelled")
    api.retry_job(jobs[2].id)
    assert view(api) == (None, 2, None, None)
    assert drain(api, worker) == ids([jobs[2], jobs[1]])
    assert api.rows("select from pyworker.sequences") == []
    api.add_job("t")
    assert api.rows("select from pyworker.sequences") == []


def test_the_time_of_a_halt_is_the_time_of_the_end_that_caused_it(api: Any, worker: int) -> None:
    job = add(api, 1)[0]
    api.fail(api.claim(worker), discard=True)
    (row,) = api.rows("select * from pyworker.sequences")
    assert abs((row.since - api.get_job(job.id).finished_at).total_seconds()) < 1


def test_explain_job_tells_what_a_sequenced_job_waits_for(api: Any, worker: int) -> None:
    jobs = add(api, 3)
    api.claim(worker)
    (row,) = explain(api, jobs[2].id)
    assert (row.reason, f"job {jobs[0].id}" in row.detail, "wait before this one: 1" in row.detail) == (
        "sequence",
        True,
        True,
    )
    api.cancel_job(jobs[0].id, True)
    (row,) = explain(api, jobs[1].id)
    assert (row.reason, f"job {jobs[0].id}" in row.detail) == ("sequence halted", True)
    assert [row.reason for row in explain(api, jobs[2].id)] == ["sequence halted", "sequence"]


def test_a_waiting_job_that_is_retried_while_the_sequence_still_moves_keeps_its_place(
    api: Any, worker: int
) -> None:
    head, cancelled_runs, waiting, last = (api.add_job("t", sequence_policy={"key": "s"}) for _ in range(4))
    api.claim(worker)
    api.cancel_job(cancelled_runs.id)
    assert api.retry_job(last.id).state == "pending"
    api.finish(head.id)
    assert api.claim_jobs(worker, 10) == []  # halted by the second, as before
    assert [api.get_job(job.id).sequence_halted_by for job in (waiting, last)] == [cancelled_runs.id] * 2
    api.retry_job(last.id)
    assert api.claim(worker).id == last.id
