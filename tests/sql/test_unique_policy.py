"""unique_policy, one session at a time: what is refused, what counts as a duplicate, what becomes of it."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import pytest
from psycopg.types.json import Jsonb

ALL = ["scheduled", "pending", "available", "running", "retryable", "discarded", "completed", "cancelled"]
REQUIRED = ["scheduled", "pending", "available", "running"]  # River's
LIVE = [*REQUIRED, "retryable"]
OJS = {"keys": ["type", "args"]}
RIVER = {"by_args": True}
A = {"a": 1}


def count(api: Any) -> int:
    sql = "select (select count(*) from pyworker.live_jobs) + (select count(*) from pyworker.finished_jobs)"
    return api.value(sql)


def keys(api: Any) -> int:
    return api.value("select count(*) from pyworker.unique_keys")


def detail(caught: Any) -> Any:
    return json.loads(caught.value.diag.message_detail)


def add(api: Any, policy: Any, payload: Any = A, **named: Any) -> Any:
    return api.add_job("t", Jsonb(payload), unique_policy=Jsonb(policy), **named)


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
            3600, "", "P", "PT", "P1DT", "1 hour", "3600s", "P-1D", "-P1D", "P1.5D", "PT1.H", "pt1h", "P1H", "PT1D", "P0001-00-00T00:00:00",
            "P99999999999Y", "P300000Y", ["PT1H"], True, " PT1H", "PT1H\n",
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
            0, 0.5, -5, "0", "999 ms", "-1 hour", "1 month", "1 year", "1 month -30 days", "hour", "", None, True, [900], "P99999999999D", "infinity",  # noqa: E501
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
    *[({"period": p}, A, None) for p in ["PT0S", "PT5M", "PT1H", "P1D", "P7D", "P1W", "P1M", "P1Y2M3W4DT5H6M7.8S", "PT36H", "PT0.5S"]],
    *[({"by_period": p}, A, None) for p in [1, 900, 1.5, "1 second", "15 minutes", "24 hours", "7 days", "PT15M", "1 day 02:00:00"]],
    ({"by_args": True}, [1, 2], None),
    ({"by_args": ["a"]}, "text", None),
    ({"by_args": ["nowhere"]}, A, None),
    ({"by_args": True, "exclude_kind": True, "by_queue": False}, A, None),
    ({"by_queue": True}, A, None),
    ({"by_state": [*REQUIRED]}, A, None),
    ({"by_state": ["scheduled", "pending", "available", "active", "cancelled", "discarded"]}, A, None),
]  # fmt: skip


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
            "select pyworker.add_job('t', unique_policy => %s, meta => jsonb_build_object('m', (repeat('[', 3000) || repeat(']', 3000))::jsonb))",  # noqa: E501
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
    ["", "on_conflict => 'ignore'", "exclude_kind => true", "by_args => 'false'", "by_args => '[]'", "by_period => '1 month'",
     "by_period => '0'", "by_state => '{available}'", "by_state => '{}'", "by_queue => true, on_conflict => 'x'"],
)  # fmt: skip
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
        "select * from pyworker.add_jobs(array[row('t', '{\"a\": 1}', null, null, null, null, null, null)::pyworker.job_spec])"
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


# What is in the key


@pytest.mark.parametrize(
    ("policy", "one", "other", "same"),
    [
        ({}, {"payload": {"a": 1}}, {"payload": {"a": 2}}, True),
        ({"keys": ["args"]}, {"payload": {"a": 1, "b": {"x": 1, "y": 2}}}, {"payload": {"b": {"y": 2, "x": 1.0}, "a": 1}}, True),
        ({"keys": ["args"]}, {"payload": {"a": 1}}, {"payload": {"a": "1"}}, False),
        ({"keys": ["args"]}, {"payload": {"a": None}}, {"payload": {}}, False),
        ({"keys": ["args"], "args_keys": ["a"]}, {"payload": {"a": 1, "b": 1}}, {"payload": {"a": 1, "b": 2}}, True),
        ({"keys": ["args"], "args_keys": ["a"]}, {"payload": {"a": 1}}, {"payload": {"a": 2}}, False),
        ({"keys": ["args"], "args_keys": []}, {"payload": [1]}, {"payload": "x"}, True),
        ({"keys": ["queue"]}, {"queue_name": "q"}, {"queue_name": "r"}, False),
        ({"keys": ["type"]}, {"queue_name": "q"}, {"queue_name": "r"}, True),
        ({"keys": ["meta"], "meta_keys": ["x"]}, {"meta": {"x": 1, "y": 1}}, {"meta": {"x": 1, "y": 2}}, True),
        ({"keys": ["meta"], "meta_keys": ["x"]}, {"meta": {"x": None}}, {}, False),
        ({"keys": ["meta"], "meta_keys": ["x"]}, {"meta": {"y": 1}}, {}, True),
        ({}, {"identifier": "t"}, {"identifier": "u"}, False),
        ({"keys": ["args"]}, {"priority": 1, "flags": ["f"], "max_attempts": 3}, {"run_at": "2000-01-01"}, True),
        (RIVER, {"payload": {"a": 1, "b": {"x": 1, "y": 2}}}, {"payload": {"b": {"y": 2, "x": 1}, "a": 1}}, True),
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
)  # fmt: skip
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


# Periods


def test_an_ojs_period_slides_from_the_creation_of_the_job_that_is_there(api: Any, clock: Any) -> None:
    policy = {**OJS, "period": "PT1H", "on_conflict": "ignore"}
    first = add(api, policy)
    clock.advance(minutes=59)
    assert add(api, policy).id == first.id  # and that does not prolong it
    clock.advance(minutes=2)
    second = add(api, policy)
    assert second.id != first.id
    assert add(api, policy).id == second.id
    assert add(api, {**policy, "period": "PT2H"}).id == second.id
    assert add(api, {**policy, "period": "PT0S"}).id not in (first.id, second.id)


def test_an_expired_job_is_not_replaced_but_runs_beside_the_new_one(api: Any, clock: Any) -> None:
    policy = {**OJS, "period": "PT1H", "on_conflict": "replace"}
    old = add(api, policy)
    clock.advance(hours=1)
    add(api, policy)
    assert api.get_job(old.id).state == "available"


@pytest.mark.parametrize(
    ("created", "period", "end"),
    [
        ("2026-03-28 12:00+00", "P1D", "2026-03-29 12:00+00"),
        ("2026-10-24 12:00+00", "P1D", "2026-10-25 12:00+00"),
        ("2026-03-07 20:00+00", "P1W", "2026-03-14 20:00+00"),
        ("2026-01-31 23:30+00", "P1M", "2026-02-28 23:30+00"),
        ("2026-01-01 00:00+00", "PT0S", "2026-01-01 00:00+00"),
    ],
)
def test_a_period_ends_at_the_same_instant_in_every_time_zone_and_equality_is_over(
    api: Any, created: str, period: str, end: str
) -> None:
    sql = """select pyworker._in_period(created, period, expires - interval '1 us') as before,
                    pyworker._in_period(created, period, expires) as at
             from (select %s::timestamptz, pyworker._iso_duration(%s), %s::timestamptz) v(created, period, expires)"""
    for zone in ["UTC", "Europe/Berlin", "America/New_York", "Pacific/Apia"]:
        api.rows(f"set timezone = '{zone}'")
        assert api.rows(sql, [created, period, end]) == [(True, False)]


@pytest.mark.parametrize(
    ("period", "moment", "same", "next_window"),
    [
        ("15 minutes", "2026-02-03 15:21:00+00", ["15:15:00+00", "15:29:59.999999+00"], "15:30:00+00"),
        (900, "2026-02-03 15:21:00+00", ["15:15:00+00", "15:29:59+00"], "15:30:00+00"),
        ("90 minutes", "2026-02-03 15:21:00+00", ["15:00:00+00", "16:29:59+00"], "14:59:59+00"),
        ("24 hours", "2026-03-29 15:21:00+00", ["00:00:00+00", "23:59:59+00"], "2026-03-30 00:00:00+00"),
        ("1 day", "2026-03-29 15:21:00+00", ["00:00:00+00", "23:59:59+00"], "2026-03-28 23:59:59+00"),
        # 2026-03-23 was a Monday
        ("7 days", "2026-03-25 12:00:00+00", ["2026-03-23 00:00:00+00", "2026-03-29 23:59:59+00"], "2026-03-22 23:59:59+00"),
        ("7 days", "2026-03-25 12:00:00+00", ["2026-03-23 00:00:00+00", "2026-03-29 23:59:59+00"], "2026-03-30 00:00:00+00"),
        (1, "2026-02-03 15:21:00+00", ["15:21:00.999999+00"], "15:21:01+00"),
    ],
)  # fmt: skip
def test_a_river_period_is_a_window_aligned_in_utc_wherever_the_client_sits(
    api: Any, period: Any, moment: str, same: list[str], next_window: str
) -> None:
    policy = {**RIVER, "by_period": period}

    def at(text: str) -> str:
        return text if len(text) > 16 and text[4] == "-" else f"{moment[:10]} {text}"

    first = add(api, policy, run_at=moment)
    for zone, style, text in zip(
        ["Europe/Berlin", "Asia/Kathmandu"], ["iso_8601", "sql_standard"], same, strict=False
    ):
        api.rows(f"set timezone = '{zone}'; set intervalstyle = '{style}'; set datestyle = 'ISO, DMY'")
        assert add(api, policy, run_at=at(text)).id == first.id
    assert add(api, policy, run_at=at(next_window)).id != first.id
    # River's rule: a finished job of the same window still counts, whatever the clock says.
    api.complete_jobs([first.id])
    assert add(api, policy, run_at=moment).id == first.id


def test_a_river_window_is_that_of_now_when_there_is_no_run_at(api: Any, clock: Any) -> None:
    policy = {**RIVER, "by_period": "1 day"}
    first = add(api, policy)
    assert add(api, policy, run_at=api.at()).id == first.id
    clock.advance(days=1)
    assert add(api, policy).id != first.id
    assert add(api, policy, run_at=first.run_at).id == first.id


# Jobs that have ended, and the ledger


@pytest.mark.parametrize("state", ["completed", "cancelled", "discarded"])
@pytest.mark.parametrize("spelling", ["ojs", "river"])
def test_a_listed_ended_job_counts_until_it_is_pruned(
    api: Any, job_in: Any, clock: Any, state: str, spelling: str
) -> None:
    policy = {**OJS, "states": ALL} if spelling == "ojs" else {**RIVER, "by_state": ALL}
    policy["on_conflict"] = "reject"
    old = job_in(state, payload=A, unique_policy=policy)
    with api.refusal("PW003", state):
        add(api, policy)
    clock.advance(days=9)
    assert api.prune() >= 1
    assert keys(api) == 0
    assert add(api, policy).id > old.id


def test_a_completed_job_counts_within_its_period_and_not_after(api: Any, job_in: Any, clock: Any) -> None:
    policy = {**OJS, "states": [*LIVE, "completed"], "period": "PT2H", "on_conflict": "ignore"}
    old = job_in("completed", payload=A, unique_policy=policy)
    assert add(api, policy) == api.get_job(old.id)._replace(deduplicated=True)
    clock.advance(hours=2)
    assert add(api, policy).id != old.id


@pytest.mark.parametrize("state", ["completed", "cancelled", "discarded"])
def test_an_ended_job_brought_back_by_retry_counts_as_live_again(api: Any, job_in: Any, state: str) -> None:
    old = job_in(state, payload=A, unique_policy=OJS)
    back = api.retry_job(old.id)
    assert (back.state, back.unique_key) == ("available", old.unique_key)
    with api.refusal("PW003", "available"):
        add(api, OJS)


@pytest.mark.parametrize("state", [s for s in ALL if s != "running"])
def test_deleting_the_last_job_of_a_key_releases_its_row(api: Any, job_in: Any, state: str) -> None:
    policy = {**OJS, "states": []}
    two = [
        job_in(
            state,
            payload=A,
            unique_policy=policy,
            sequence_policy={"key": f"s{n}"} if state == "pending" else None,
        )
        for n in range(2)
    ]
    assert keys(api) == 1
    api.delete_job(two[0].id)
    assert keys(api) == 1
    api.delete_job(two[1].id)
    assert keys(api) == 0


def test_without_retention_an_end_releases_the_key_at_once(api: Any, worker: int) -> None:
    api.configure(completed_retention="0", cancelled_retention="0", discarded_retention="0")
    policy = {**OJS, "states": ALL, "on_conflict": "replace"}
    add(api, policy)
    add(api, policy)
    assert (keys(api), count(api)) == (1, 1)  # the replaced one is gone, its successor holds the key
    job = api.claim(worker)
    api.finish_job(job.id, job.run)
    assert (keys(api), count(api)) == (0, 0)
    api.cancel_job(add(api, policy).id)
    assert keys(api) == 0
    add(api, policy)
    api.fail(api.claim(worker), discard=True)
    assert (keys(api), count(api)) == (0, 0)


def test_maintenance_sweeps_keys_that_nobody_holds_and_leaves_the_others(api: Any) -> None:
    add(api, OJS)
    api.rows("insert into pyworker.unique_keys select sha256(n::text::bytea) from generate_series(1, 10) n")
    for _ in range(200):
        api.maintain()
        if keys(api) == 1:
            break
    assert keys(api) == 1
    with api.refusal("PW003"):
        add(api, OJS)


# Many at once


def test_duplicates_in_one_call_meet_in_spec_order(api: Any) -> None:
    def spec(n: int, conflict: str) -> dict[str, Any]:
        return {
            "identifier": "t",
            "payload": {"a": 1, "n": n},
            "unique_policy": {"keys": ["args"], "args_keys": ["a"], "on_conflict": conflict},
        }

    jobs = api.add_jobs(
        [spec(1, "reject"), spec(2, "ignore"), spec(3, "replace"), spec(4, "ignore"), spec(5, "replace")]
    )
    assert [job.payload["n"] for job in jobs] == [1, 1, 3, 3, 5]
    assert [job.deduplicated for job in jobs] == [False, True, False, True, False]
    assert [api.get_job(job.id).state for job in jobs] == ["cancelled"] * 4 + ["available"]


def test_a_rejected_spec_names_its_position_and_rolls_the_call_back(api: Any) -> None:
    held = add(api, OJS)
    specs: list[dict[str, Any]] = [
        {"identifier": "t"},
        {"identifier": "t", "job_key": "k"},
        {"identifier": "t", "payload": {"a": 2}, "unique_policy": OJS},
        {"identifier": "t", "payload": A, "unique_policy": OJS},
    ]
    with api.refusal(
        "PW003", rf"^add_jobs: specs\[4\]: job {held.id} .available. has the same unique key"
    ) as caught:
        api.add_jobs(specs)
    assert detail(caught)["existing_job_id"] == held.id
    assert (count(api), keys(api)) == (1, 1)
    with api.refusal("PW003", r"specs\[4\]"):
        api.add_jobs([*specs[:3], specs[2]])
    assert (count(api), keys(api)) == (1, 1)


def test_a_mixed_call_gives_ids_in_spec_order_and_burns_none_for_duplicates(api: Any) -> None:
    held = [add(api, {**OJS, "on_conflict": "ignore"}, {"a": n}) for n in range(3)]
    keyed = api.add_job("t", job_key="k")
    specs: list[dict[str, Any]] = []
    for n in range(40):
        specs += [
            {"identifier": "t", "payload": {"n": n}},
            {"identifier": "t", "payload": {"a": n % 6}, "unique_policy": {**OJS, "on_conflict": "ignore"}},
            {"identifier": "t", "payload": {"n": n}, "job_key": f"k{n}" if n % 2 else "k"},
            {
                "identifier": "t",
                "payload": {"a": 99 - n},
                "unique_policy": {**RIVER, "on_conflict": "replace"},
            },
            {
                "identifier": "t",
                "payload": {"r": n % 2},
                "unique_policy": {**RIVER, "on_conflict": "replace"},
            },
            {"identifier": "t", "payload": {"s": n % 2}, "unique_policy": {**OJS, "states": []}},
        ]
    jobs = api.add_jobs(specs)
    assert len(jobs) == len(specs)
    for spec, job in zip(specs, jobs, strict=True):
        assert job.payload == spec["payload"] or "job_key" in spec
    seen = {job.id for job in [*held, keyed]}
    fresh = [job.id for job in jobs if job.id not in seen and not seen.add(job.id)]  # type: ignore[func-returns-value]
    assert fresh == sorted(fresh)
    assert fresh == list(range(keyed.id + 1, keyed.id + 1 + len(fresh)))
    assert [job.id for job in jobs[1:18:6]] == [job.id for job in held]


def test_a_duplicate_writes_nothing_locks_nothing_and_burns_no_id(api: Any, actor: Any, worker: int) -> None:
    first = add(api, {**OJS, "on_conflict": "ignore"})
    other = actor()
    other.begin()
    assert add(other, {**OJS, "on_conflict": "ignore"}).id == first.id
    assert [
        job.id
        for job in other.add_jobs(
            [{"identifier": "t", "payload": A, "unique_policy": {**OJS, "on_conflict": "ignore"}}]
        )
    ] == [first.id]
    assert other.value("select pg_current_xact_id_if_assigned()") is None
    locks = api.rows("select distinct locktype, mode from pg_locks where pid = %s", [other.session.pid])
    tables = {
        ("relation", mode) for mode in ("AccessShareLock", "RowShareLock", "RowExclusiveLock")
    }  # not a row of them
    assert set(locks) <= {("virtualxid", "ExclusiveLock"), *tables}
    claimed = api.claim(worker)
    assert (claimed.id, api.finish_jobs([claimed.id], [claimed.run])) == (first.id, [first.id])
    assert add(api, {**OJS, "on_conflict": "ignore"}).id == first.id + 1
    other.rollback()


def test_in_a_mixed_batch_every_fresh_key_gets_its_row(api: Any) -> None:
    policy = {"by_args": True}
    api.add_job("t", Jsonb({"n": 1}), unique_policy=Jsonb(policy))
    api.add_jobs(
        [
            {"identifier": "plain"},
            {"identifier": "t", "payload": {"n": 1}, "unique_policy": policy},
            {"identifier": "t", "payload": {"n": 2}, "unique_policy": policy},
        ]
    )
    assert api.value("select count(*) from pyworker.unique_keys") == 2


def test_no_setting_of_a_session_makes_a_policy_valid(api: Any) -> None:
    policy = {"by_args": True, "on_conflict": "nonsense", "unknown": 1}
    api.rows("select set_config('pyworker.valid_policy', %s::jsonb::text, false)", [json.dumps(policy)])
    with api.refusal("PW001", "unknown member"):
        api.add_job("t", unique_policy=Jsonb(policy))
