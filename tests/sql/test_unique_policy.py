"""unique_policy: what a policy may say, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg.types.json import Jsonb

from tests.support.states import ALL, REQUIRED
from tests.support.unique import OJS, RIVER, A, add, count, keys

# What a policy may say
REFUSED = [
    ([], ["object", "array"]),
    ("args", ["object", "string"]),
    (1, ["object", "number"]),
    ({"key": ["type"]}, ["unknown member", "key"]),
    ({"scope": "x"}, ["unknown member", "scope"]),
    ({"Keys": ["type"]}, ["unknown member", "Keys"]),
    ({"keys": ["type"], "by_queue": True}, ["mixed"]),
    ({"period": "PT1H", "by_args": True}, ["mixed"]),
    ({"keys": None}, ["keys", "null"]),
    ({"keys": "type"}, ["keys", "type"]),
    ({"keys": {"type": 1}}, ["keys", "type"]),
    ({"keys": [1]}, ["keys", "1"]),
    ({"keys": [None]}, ["keys", "null"]),
    ({"keys": ["Type"]}, ["keys", "Type"]),
    ({"keys": ["kind"]}, ["keys", "kind"]),
    ({"keys": ["type", "type"]}, ["keys", "twice", "type"]),
    ({"keys": ["meta"]}, ["meta_keys"]),
    ({"keys": ["meta"], "meta_keys": None}, ["meta_keys"]),
    ({"keys": ["meta"], "meta_keys": []}, ["meta_keys"]),
    ({"keys": ["meta"], "meta_keys": "tenant"}, ["meta_keys", "tenant"]),
    ({"meta_keys": ["x", "x"]}, ["meta_keys", "x"]),
    ({"meta_keys": [1]}, ["meta_keys", "1"]),
    ({"keys": ["args"], "args_keys": "a"}, ["args_keys", "a"]),
    ({"keys": ["args"], "args_keys": ["a", "a"]}, ["args_keys", "twice"]),
    ({"keys": ["args"], "args_keys": [["a"]]}, ["args_keys", "a"]),
    ({"keys": ["args"], "args_keys": ["b"]}, ["args_keys", "b", "the payload has"]),
    ({"keys": ["args"], "args_keys": ["a", "A"]}, ["args_keys", "A", "the payload has"]),
    ({"args_keys": ["b"]}, ["args_keys", "b", "the payload has"]),
    ({"states": None}, ["states", "null"]),
    ({"states": "available"}, ["states", "available"]),
    ({"states": ["available", "done"]}, ["states", "done"]),
    ({"states": ["Available"]}, ["states", "Available"]),
    ({"states": ["available", "available"]}, ["states", "twice"]),
    ({"states": ["active", "running"]}, ["states", "twice"]),
    *[
        ({"period": period}, ["period", "ISO 8601"])
        for period in [
            3600, "", "P", "PT", "P1DT", "1 hour", "3600s", "P-1D", "-P1D", "P1.5D", "PT1.H", "pt1h", "P1H",
            "PT1D", "P0001-00-00T00:00:00", "P99999999999Y", "P300000Y", ["PT1H"], True, " PT1H", "PT1H\n",
        ]
    ],
    *[({"on_conflict": value}, ["on_conflict"]) for value in ["drop", "Reject", "", None, 1, ["reject"]]],
    ({"by_args": True, "on_conflict": "drop"}, ["on_conflict", "drop"]),
    ({"by_args": []}, ["by_args", r"\[\]"]),
    ({"by_args": None}, ["by_args", "null"]),
    ({"by_args": "a"}, ["by_args", "a"]),
    ({"by_args": {"a": 1}}, ["by_args"]),
    ({"by_args": ["a", "a"]}, ["by_args", "twice"]),
    ({"by_args": [1]}, ["by_args", "1"]),
    ({"by_args": ["caf\u00e9", "cafe\u0301"]}, ["by_args", "twice"]),
    *[
        ({"by_period": period}, ["by_period"])
        for period in [
            0, 0.5, -5, "0", "999 ms", "-1 hour", "1 month", "1 year", "1 month -30 days", "hour", "",
            None, True, [900], "P99999999999D", "infinity",
        ]
    ],
    ({"by_queue": "yes"}, ["by_queue", "yes"]),
    ({"by_queue": None}, ["by_queue", "null"]),
    ({"by_args": True, "exclude_kind": 1}, ["exclude_kind", "1"]),
    ({"exclude_kind": True}, ["exclude_kind"]),
    ({"by_args": False}, ["by_args"]),
    ({"by_args": False, "by_queue": False}, ["nothing"]),
    ({"by_state": None}, ["by_state", "null"]),
    ({"by_state": "available"}, ["by_state"]),
    ({"by_state": []}, ["by_state", "missing: available, pending, running, scheduled"]),
    ({"by_state": ["available", "scheduled"]}, ["by_state", "missing: pending, running$"]),
    ({"by_state": [*REQUIRED, "done"]}, ["by_state", "done"]),
    ({"by_state": [*REQUIRED, "active"]}, ["by_state", "twice"]),
    ({"by_state": [*REQUIRED, "available"]}, ["by_state", "twice"]),
]  # fmt: skip


@pytest.mark.parametrize("entrance", ["add_job", "add_jobs", "define_task"])
def test_an_invalid_policy_is_refused_by_name_and_nothing_is_inserted(api: Any, entrance: str) -> None:
    for policy, words in REFUSED:
        if entrance == "add_job":
            with api.refusal("PW001", "add_job: unique_policy", *words):
                add(api, policy)
        elif entrance == "add_jobs":
            with api.refusal("PW001", r"add_jobs: specs\[2\]: unique_policy", *words):
                api.add_jobs(
                    [{"identifier": "t"}, {"identifier": "t", "payload": A, "unique_policy": policy}]
                )
        elif "the payload has" not in words:
            with api.refusal("PW001", "define_task: unique_policy", *words):
                api.define_task("t", unique_policy=Jsonb(policy))
    assert (count(api), keys(api), api.value("select count(*) from pyworker.tasks")) == (0, 0, 0)


VALID: list[tuple[Any, Any, Any]] = [
    ({}, A, None),
    ({"on_conflict": "ignore"}, A, None),
    ({"keys": []}, A, None),
    ({"keys": ["type"], "args_keys": None, "meta_keys": None, "period": None}, A, None),
    ({"keys": ["type", "queue", "args"], "args_keys": ["a"], "meta_keys": []}, A, None),
    ({"keys": ["args"], "args_keys": []}, [1], None),
    ({"keys": ["args"], "args_keys": ["a"]}, {"a": None}, None),
    ({"keys": ["meta"], "meta_keys": ["x"]}, A, None),
    ({"keys": ["meta"], "meta_keys": ["x"]}, A, {"y": 1}),
    ({"meta_keys": ["x"]}, A, None),
    ({"states": []}, A, None),
    ({"states": ALL}, A, None),
    ({"states": ["active"]}, A, None),
    *[
        ({"period": p}, A, None)
        for p in ["PT0S", "PT5M", "PT1H", "P1D", "P7D", "P1W", "P1M", "P1Y2M3W4DT5H6M7.8S", "PT36H", "PT0.5S"]
    ],
    *[
        ({"by_period": p}, A, None)
        for p in [1, 900, 1.5, "1 second", "15 minutes", "24 hours", "7 days", "PT15M", "1 day 02:00:00"]
    ],
    ({"by_args": True}, [1, 2], None),
    ({"by_args": ["a"]}, "text", None),
    ({"by_args": ["nowhere"]}, A, None),
    ({"by_args": True, "exclude_kind": True, "by_queue": False}, A, None),
    ({"by_queue": True}, A, None),
    ({"by_state": [*REQUIRED]}, A, None),
    ({"by_state": ["scheduled", "pending", "available", "active", "cancelled", "discarded"]}, A, None),
]


def test_every_valid_policy_is_accepted_everywhere(api: Any) -> None:
    for n, (policy, payload, meta) in enumerate(VALID):
        job = api.add_job(f"{n}a", Jsonb(payload), unique_policy=Jsonb(policy), meta=meta and Jsonb(meta))
        assert len(job.unique_key) == 64
        api.define_task(f"{n}b", unique_policy=Jsonb(policy))
        assert api.add_job(f"{n}b", Jsonb(payload), meta=meta and Jsonb(meta)).unique_key
        [bulk] = api.add_jobs(
            [{"identifier": f"{n}c", "payload": payload, "meta": meta, "unique_policy": policy}]
        )
        assert bulk.unique_key


def test_no_policy_sql_null_and_json_null_are_the_same_no_uniqueness(api: Any) -> None:
    jobs = [api.add_job("t"), api.add_job("t", unique_policy=None), add(api, None)]
    jobs += api.add_jobs([{"identifier": "t"}, {"identifier": "t", "unique_policy": None}])
    jobs += [add(api, None, job_key="k")]
    assert [job.unique_key for job in jobs] == [None] * 6
    assert (count(api), keys(api)) == (6, 0)


@pytest.mark.parametrize("policy", [OJS, RIVER])
def test_a_job_key_and_a_policy_exclude_each_other(api: Any, policy: Any) -> None:
    with api.refusal("PW001", "unique_policy", "job_key"):
        add(api, policy, job_key="k")
    with api.refusal("PW001", r"specs\[1\]", "job_key"):
        api.add_jobs([{"identifier": "t", "job_key": "k", "unique_policy": policy}])
    assert count(api) == 0


@pytest.mark.parametrize("payload", [r'{"a":"\u0000"}', r'{"a":"\ud800"}', '{"a":1e500000}'])
def test_a_payload_that_cannot_be_compared_is_refused_as_such(api: Any, payload: str) -> None:
    with api.refusal("PW001", "add_job: unique_policy"):
        api.add_job("t", payload, unique_policy=Jsonb(OJS))
    with api.refusal("PW001", "add_job: unique_policy"):
        api.add_job("t", payload, unique_policy=Jsonb(RIVER))
    assert count(api) == 0


def test_a_policy_by_type_alone_takes_any_payload(api: Any) -> None:
    assert api.add_job("t", r'{"a":"\u0000"}', unique_policy=Jsonb({})).unique_key
    assert api.add_job("t", r'{"a":"\ud800"}', unique_policy=Jsonb({"by_queue": True})).unique_key


def test_a_unique_job_may_be_as_deep_as_any_job_and_too_deep_meta_is_refused(api: Any) -> None:
    deep: Any = 1
    for _ in range(99):
        deep = [deep]
    policy = {"keys": ["args", "meta"], "meta_keys": ["m"]}
    assert add(api, policy, {"a": deep}, meta=Jsonb({"m": deep})).unique_key
    with api.refusal("PW001", "meta", "100 levels"):
        api.rows(
            (
                "select pyworker.add_job('t', unique_policy => %s, meta => jsonb_build_object('m', "
                "(repeat('[', 3000) || repeat(']', 3000))::jsonb))"
            ),
            [Jsonb(policy)],
        )


# What unique_opts, tasks and conformance say
@pytest.mark.parametrize(
    ("arguments", "policy"),
    [
        ("by_args => 'true'", {"by_args": True}),
        (
            """by_args => '["customer_id"]', by_queue => true""",
            {"by_args": ["customer_id"], "by_queue": True},
        ),
        (
            "by_period => '15 minutes', on_conflict => 'replace'",
            {"by_period": "00:15:00", "on_conflict": "replace"},
        ),
        (
            "by_state => '{available,pending,running,scheduled}'",
            {"by_state": ["available", "pending", "running", "scheduled"]},
        ),
        ("'true', exclude_kind => true", {"by_args": True, "exclude_kind": True}),
    ],
)
def test_unique_opts_spells_a_river_policy(api: Any, arguments: str, policy: Any) -> None:
    assert api.value(f"select pyworker.unique_opts({arguments})") == policy
    job = api.rows(
        f"select * from pyworker.add_job('t', unique_policy => pyworker.unique_opts({arguments}))"
    )[0]
    assert job.unique_key == add(api, {**policy, "on_conflict": "ignore"}, {}).unique_key


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "on_conflict => 'ignore'",
        "exclude_kind => true",
        "by_args => 'false'",
        "by_args => '[]'",
        "by_period => '1 month'",
        "by_period => '0'",
        "by_state => '{available}'",
        "by_state => '{}'",
        "by_queue => true, on_conflict => 'x'",
    ],
)
def test_unique_opts_refuses_what_river_refuses_and_never_means_nothing(api: Any, arguments: str) -> None:
    with api.refusal("PW001", "^unique_opts: "):
        api.value(f"select pyworker.unique_opts({arguments})")


def test_a_tasks_policy_holds_for_every_add_and_an_argument_replaces_it_whole(api: Any) -> None:
    api.define_task(
        "t",
        unique_policy=Jsonb({"keys": ["args"], "period": "PT1H", "on_conflict": "ignore"}),
        queue_name="q",
    )
    first = api.add_job("t", A)
    assert api.add_job("t", A).id == first.id
    [bulk] = api.rows(
        "select * from pyworker.add_jobs(array[row('t', '{\"a\": 1}', null, null, null, null, null, "
        "null)::pyworker.job_spec])"
    )
    assert (bulk.id, bulk.deduplicated) == (first.id, True)
    assert [job.id for job in api.add_jobs([{"identifier": "t", "payload": A, "unique_policy": None}])] == [
        first.id
    ]
    # Whole: neither its keys nor its on_conflict remain.
    assert add(api, {}).id != first.id
    with api.refusal("PW003"):
        add(api, {})
    api.define_task("t", queue_name="q")
    assert api.add_job("t", A).unique_key is None


def test_a_tasks_queue_is_part_of_the_key_and_default_is_no_queue(api: Any) -> None:
    policy = {"keys": ["queue"], "on_conflict": "ignore"}
    plain = add(api, policy)
    assert add(api, policy, queue_name="default").id == plain.id
    assert add(api, policy, queue_name="q").id != plain.id
    api.define_task("t", queue_name="q", unique_policy=Jsonb(policy))
    assert api.add_job("t").queue_name == "q"
    assert api.add_job("t").deduplicated
    assert api.add_job("t", queue_name="default").id == plain.id


def test_conformance_declares_strong_uniqueness(api: Any) -> None:
    manifest = api.conformance()
    assert manifest["specversion"] == "1.0"
    assert manifest["implementation"]["name"] == "pyworker"
    assert manifest["conformance_level"] == 0
    assert manifest["capabilities"]["unique_jobs"]["strength"] == "strong"
    assert manifest["capabilities"]["unique_jobs"]["mechanism"]
