"""add_jobs: many jobs in one call."""

from __future__ import annotations

from typing import Any

import pytest


def test_bulk_rows_come_back_in_the_order_of_the_specs_with_rising_ids(api: Any) -> None:
    tasks = [f"task {(i * 7) % 33}" for i in range(200)]
    for name in tasks[:33]:
        api.define_task(name, priority=1)
    api.rows("analyze pyworker.tasks; analyze pyworker.live_jobs")
    specs = [
        {"identifier": name, "payload": [i], "job_key": f"k{(i * 13) % 200}" if i % 3 == 0 else None}
        for i, name in enumerate(tasks)
    ]
    jobs = api.add_jobs(specs)
    assert [(job.task_identifier, job.payload) for job in jobs] == [
        (s["identifier"], s["payload"]) for s in specs
    ]
    assert [job.id for job in jobs] == list(range(1, 201))


@pytest.mark.parametrize(
    ("keys", "ids"),
    [
        ("kp", [1, 2]),
        ("pk", [1, 2]),
        ("ppkkpp", [1, 2, 3, 3, 4, 5]),
        ("kkk", [1, 1, 1]),
        ("pkl", [1, 2, 3]),
        ("lpk", [1, 2, 3]),
    ],
)
def test_keyed_and_plain_specs_mix_in_any_order(api: Any, keys: str, ids: list[int]) -> None:
    specs = [
        {"identifier": "t", "payload": [i], **({} if k == "p" else {"job_key": k})}
        for i, k in enumerate(keys)
    ]
    jobs = api.add_jobs(specs)
    assert [job.id for job in jobs] == ids
    assert [job.payload[-1] for job in jobs] == list(range(len(keys)))
    assert api.add_job("t").id == max(ids) + 1


def test_namesakes_in_one_call_meet_in_spec_order(api: Any) -> None:
    jobs = api.add_jobs(
        [
            {"identifier": "first", "job_key": "k", "payload": [1], "priority": 5},
            {"identifier": "plain"},
            {"identifier": "second", "job_key": "k", "payload": [2]},
            {"identifier": "third", "job_key": "k", "payload": {"a": 3}},
            {"identifier": "kept", "job_key": "k", "payload": {"a": 4}, "job_key_mode": "unsafe_dedupe"},
        ]
    )
    assert [job.task_identifier for job in jobs] == ["first", "plain", "second", "third", "third"]
    assert [job.payload for job in jobs] == [[1], {}, [1, 2], {"a": 3}, {"a": 3}]
    assert [job.revision for job in jobs] == [0, 0, 1, 2, 2]
    assert [job.deduplicated for job in jobs] == [False, False, False, False, True]
    assert len({job.id for job in jobs}) == 2
    assert api.get_job(jobs[0].id).priority == 0


def test_the_bulk_flag_of_graphile_worker_preserves_run_at(api: Any) -> None:
    at = api.at("1 hour")
    api.add_job("t", run_at=at, job_key="k")
    spec = "array[('t','[1]',null,null,null,'k',null,null)]::pyworker.job_spec[]"
    assert api.value(f"select run_at from pyworker.add_jobs({spec}, true)") == at
    assert api.value(f"select run_at from pyworker.add_jobs({spec}, job_key_preserve_run_at => false)") < at


@pytest.mark.parametrize(
    "empty", ["'{}'::pyworker.job_spec[]", "null::pyworker.job_spec[]", "'[]'::jsonb", "'[]'"]
)
def test_no_specs_are_no_jobs(api: Any, empty: str) -> None:
    assert api.rows(f"select * from pyworker.add_jobs({empty})") == []


def test_a_null_member_of_a_spec_is_a_default(api: Any) -> None:
    names = (
        "payload queue_name run_at max_attempts job_key priority flags job_key_mode unique_policy "
        "sequence_policy meta delivery"
    )
    (job,) = api.add_jobs([{"identifier": "t", **dict.fromkeys(names.split())}])
    assert (job.payload, job.priority, job.max_attempts, job.state) == ({}, 0, 25, "available")


def test_keyed_updates_burn_no_ids(api: Any) -> None:
    first = api.add_job("t", job_key="k").id
    api.rows("select count(pyworker.add_job('t', job_key => 'k')) from generate_series(1, 500)")
    for mode in ("replace", "preserve_run_at", "unsafe_dedupe"):
        api.add_jobs([{"identifier": "t", "job_key": "k", "job_key_mode": mode}] * 100)
        api.add_job("t", job_key="k", job_key_mode=mode)
    api.add_job("t", job_key="k", queue_name="q")
    api.add_job("t", job_key="k")
    api.add_job("t", job_key="k", sequence_policy={"key": "s"})
    api.add_job("t", job_key="k")
    assert api.add_job("t").id == first + 1


def test_deduplicating_against_a_running_job_burns_no_ids(api: Any, job_in: Any) -> None:
    running = job_in("running", job_key="k")
    (job,) = api.add_jobs([{"identifier": "t", "job_key": "k", "job_key_mode": "unsafe_dedupe"}])
    assert job.id == running.id
    assert api.add_job("t").id == running.id + 1


def test_ids_rise_in_spec_order_also_after_a_duplicate_of_a_running_job(api: Any, job_in: Any) -> None:
    running = job_in("running", job_key="k").id
    keyed = {"identifier": "t", "job_key": "k"}
    jobs = api.add_jobs(
        [
            {**keyed, "job_key_mode": "unsafe_dedupe"},
            keyed,
            {"identifier": "plain"},
            {**keyed, "job_key_mode": "unsafe_dedupe"},
            {**keyed, "job_key_mode": "replace"},
        ]
    )
    assert [job.id - running for job in jobs] == [0, 1, 2, 1, 1]
    assert api.add_job("t").id == running + 3


def test_jobs_of_different_kinds_in_one_bulk_add_run_in_its_order(api: Any, worker: int) -> None:
    kinds: list[dict[str, Any]] = [
        {"unique_policy": {}},
        {"job_key": "z"},
        {},
        {"job_key": "a"},
        {"sequence_policy": {}},
    ]
    jobs = api.add_jobs([{"identifier": "t", **kind} for kind in kinds])
    assert [job.id for job in api.claim_jobs(worker, 10)] == [job.id for job in jobs]


@pytest.mark.parametrize("member", ["identifier", "queue_name", "job_key", "job_key_mode", "delivery", "ref"])
@pytest.mark.parametrize("value", [5, True, {}, ["a"]], ids=str)
def test_a_member_that_is_a_text_takes_no_other_value(api: Any, member: str, value: Any) -> None:
    with api.refusal("PW001", rf"^add_jobs: specs\[2\]\.{member} must be a string, got "):
        api.add_jobs([{"identifier": "t"}, {"identifier": "t", member: value}])
    assert api.rows("select from pyworker.jobs") == []


@pytest.mark.parametrize("flags", [[1], ["a", True]], ids=str)
def test_flags_are_texts(api: Any, flags: Any) -> None:
    with api.refusal("PW001", r"^add_jobs: specs\[1\]\.flags must be a list of strings, got "):
        api.add_jobs([{"identifier": "t", "flags": flags}])
