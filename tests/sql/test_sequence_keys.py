"""sequence_policy: which sequence a job belongs to."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.sequences import S


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
    ({"by_args": ["a"]}, {"payload": '{"a": [1, 2]}'}, {"payload": '{"a": [2, 1]}'}, False),
    ({"by_queue": True}, {"queue_name": "a"}, {"queue_name": "b"}, False),
    ({"by_queue": True}, {"queue_name": "default"}, {}, True),
    ({"by_queue": False}, {"queue_name": "a"}, {}, True),
    ({"exclude_kind": True}, {}, {"identifier": "u"}, True),
    (
        {"exclude_kind": True, "by_args": ["a"]},
        {"payload": '{"a": 1}'},
        {"payload": '{"a": 1}', "identifier": "u"},
        True,
    ),
    ({"exclude_kind": True, "by_args": ["a"]}, {"payload": '{"a": 1}'}, {"payload": '{"a": 2}'}, False),
    ({"exclude_kind": False}, {}, {"identifier": "u"}, False),
    ({"key": "k"}, {"payload": "[1]"}, {"payload": "[2]", "identifier": "u", "queue_name": "q"}, True),
]


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
    spec = """select * from pyworker.add_jobs(array[
        row('t', '{"a": 1}', null, null, null, null, null, null)::pyworker.job_spec])"""
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


@pytest.mark.parametrize("payload", [None, "{}", '{"b": 1}', '{"A": 1, "b": 1}', "[1]", '["a"]', '"a"', "7"])
def test_a_member_that_the_payload_lacks_is_refused_by_its_name(api: Any, payload: str | None) -> None:
    policy = {"by_args": ["b", "a"]} if payload and '"b"' in payload else {"by_args": ["a"]}
    for named in ({}, {"job_key": "k"}, {"unique_policy": {"keys": ["type"]}}):
        with api.refusal(
            "PW001", 'add_job: sequence_policy: by_args names the member "a", which the payload'
        ):
            api.add_job("t", payload, sequence_policy=policy, **named)
    spec = {"identifier": "t", "sequence_policy": policy} | (
        {"payload": json.loads(payload)} if payload else {}
    )
    with api.refusal("PW001", r'add_jobs: specs\[2\]: sequence_policy: by_args names the member "a", which'):
        api.add_jobs([{"identifier": "u"}, spec])
    api.define_task("t", sequence_policy=policy)
    with api.refusal("PW001", 'add_job: sequence_policy: by_args names the member "a", which'):
        api.add_job("t", payload)
    assert api.add_job("t", '{"a": null, "b": 1}').sequence_key


@pytest.mark.parametrize("payload", ['{"a": "\\u0000"}', '{"a": 1e999999}', '{"\\u00e9": 1, "e\\u0301": 2}'])
def test_a_payload_that_cannot_be_compared_is_refused_where_it_would_have_to_be(
    api: Any, payload: str
) -> None:
    with api.refusal("PW001", "add_job: sequence_policy"):
        api.add_job("t", payload, sequence_policy={"by_args": True})
    assert api.add_job("t", payload, sequence_policy={}).sequence_key == '{"kind":"t"}'
