"""job_key: Graphile Worker's algorithm (https://worker.graphile.org/docs/job-key), for every state
of the existing job."""

from __future__ import annotations

import json
from typing import Any

import pytest
from psycopg.types.json import Jsonb

WAITING = ["scheduled", "pending", "available"]
FAILED = ["retryable", "due", "discarded"]
MODES = ["replace", "preserve_run_at"]


def fields(job: Any, *but: str) -> dict[str, Any]:
    return {name: value for name, value in job._asdict().items() if name not in but}


@pytest.mark.parametrize("mode", [*MODES, "unsafe_dedupe", None])
def test_without_a_namesake_the_job_is_new(api: Any, mode: str | None) -> None:
    at = api.at("1 hour")
    api.add_job("t", job_key="other")
    job = api.add_job("t", "[1]", job_key="k", job_key_mode=mode, run_at=at)
    assert (job.key, job.payload, job.run_at, job.revision, job.deduplicated) == ("k", [1], at, 0, False)


@pytest.mark.parametrize("by", ["add_job", "add_jobs"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("state", WAITING + FAILED)
def test_a_namesake_that_is_not_running_takes_all_new_values(
    api: Any, job_in: Any, state: str, mode: str, by: str
) -> None:
    old = job_in(
        state, payload='{"old": 1}', job_key="k", priority=5, max_attempts=3, flags=["old"], meta={"old": 1}
    )
    at = api.at("2 hours")
    given = {
        "identifier": "new", "payload": {"new": 1}, "job_key": "k", "job_key_mode": mode, "max_attempts": 9,
        "priority": -1, "flags": ["new"], "meta": {"new": 1},
    }  # fmt: skip
    job = (
        api.add_job(**given, run_at=at)
        if by == "add_job"
        else api.add_jobs([{**given, "run_at": str(at)}])[0]
    )
    assert (job.id, job.created_at, job.revision, job.run) == (old.id, old.created_at, 1, old.run)
    assert (job.task_identifier, job.payload, job.max_attempts, job.priority) == ("new", {"new": 1}, 9, -1)
    assert (job.flags, job.meta, job.key, job.queue_name) == ({"new": True}, {"new": 1}, "k", None)
    assert (job.attempts, job.last_error, job.reason, job.finished_at) == (0, None, None, None)
    kept = mode == "preserve_run_at" and state in WAITING
    assert job.run_at == (old.run_at if kept else at)
    assert job.state == ("available" if kept and state != "scheduled" else "scheduled")
    assert job.updated_at > old.updated_at
    assert api.get_job(old.id) == job
    assert api.value("select count(*) from pyworker.jobs where key = 'k'") == 1


@pytest.mark.parametrize("state", WAITING + FAILED)
def test_what_a_replacing_add_leaves_out_falls_back_to_the_defaults(
    api: Any, job_in: Any, state: str
) -> None:
    old = job_in(
        state, payload='{"old": 1}', job_key="k", priority=5, max_attempts=3, flags=["old"], meta={"old": 1}
    )
    before = api.at()
    job = api.add_job("t", job_key="k")
    assert (job.id, job.payload, job.priority, job.max_attempts, job.flags, job.meta, job.queue_name,
        job.state) == (
        old.id, {}, 0, 25, None, None, None, "available",
    )  # fmt: skip
    assert before <= job.run_at <= api.at()


@pytest.mark.parametrize("by", ["add_job", "add_jobs"])
@pytest.mark.parametrize("mode", MODES)
def test_a_running_namesake_loses_its_key_and_a_new_job_is_made(
    api: Any, job_in: Any, worker: int, mode: str, by: str
) -> None:
    old = job_in("running", payload="[1]", job_key="k")
    given = {"identifier": "t", "payload": [2], "job_key": "k", "job_key_mode": mode}
    job = api.add_job(**{**given, "payload": "[2]"}) if by == "add_job" else api.add_jobs([given])[0]
    assert (job.id > old.id, job.payload, job.revision, job.state, job.key) == (
        True,
        [2],
        0,
        "available",
        "k",
    )
    was = api.get_job(old.id)
    assert (was.key, was.attempts, was.state, was.payload) == (None, was.max_attempts, "running", [1])
    assert fields(was, "key", "attempts", "updated_at") == fields(old, "key", "attempts", "updated_at")
    assert api.claim(worker).id == job.id


@pytest.mark.parametrize("by", ["add_job", "add_jobs"])
@pytest.mark.parametrize("state", [*WAITING, *FAILED, "running"])
def test_unsafe_dedupe_returns_the_namesake_untouched_in_every_state(
    api: Any, job_in: Any, state: str, by: str
) -> None:
    old = job_in(state, payload="[1]", job_key="k")
    given = {
        "identifier": "other",
        "payload": [2],
        "job_key": "k",
        "job_key_mode": "unsafe_dedupe",
        "priority": 9,
    }
    job = api.add_job(**{**given, "payload": "[2]"}) if by == "add_job" else api.add_jobs([given])[0]
    assert job.deduplicated
    assert fields(job, "deduplicated") == fields(old, "deduplicated")
    assert api.get_job(old.id) == old


@pytest.mark.parametrize("state", ["completed", "cancelled"])
@pytest.mark.parametrize("mode", [*MODES, "unsafe_dedupe"])
def test_a_key_is_free_once_its_job_is_in_history(api: Any, job_in: Any, state: str, mode: str) -> None:
    old = job_in(state, job_key="k")
    assert api.add_job("t", job_key="k", job_key_mode=mode).id != old.id
    assert api.get_job(old.id) == old


@pytest.mark.parametrize("state", WAITING + FAILED)
def test_remove_job_deletes_a_job_that_is_not_running(api: Any, job_in: Any, state: str) -> None:
    old = job_in(state, job_key="k")
    assert api.remove_job("k") == old
    assert api.get_job(old.id).id is None
    assert api.job_errors(old.id) == []
    assert api.remove_job("k").id is None


def test_remove_job_makes_the_present_run_the_last(api: Any, job_in: Any) -> None:
    old = job_in("running", job_key="k")
    job = api.remove_job("k")
    assert (job.id, job.key, job.attempts, job.state) == (old.id, None, job.max_attempts, "running")
    assert api.remove_job("k").id is None


@pytest.mark.parametrize("key", ["nobody", "", None])
def test_remove_job_without_a_match_gives_a_row_of_nulls(api: Any, job_in: Any, key: str | None) -> None:
    job_in("completed", job_key="nobody")
    job_in("available")
    assert set(api.remove_job(key)) == {None}
    assert api.value("select count(*) from pyworker.jobs") == 1


def test_revision_counts_the_updates(api: Any) -> None:
    assert [api.add_job("t", job_key="k").revision for _ in range(4)] == [0, 1, 2, 3]
    assert api.add_job("t", job_key="k", job_key_mode="unsafe_dedupe").revision == 3
    assert api.add_job("t", job_key="k", job_key_mode="preserve_run_at").revision == 4


def test_a_rescheduled_first_attempt_is_not_a_failure(api: Any, job_in: Any) -> None:
    old = job_in("running", job_key="k")
    api.snooze_job(old.id, old.run, "1 hour")
    at = api.get_job(old.id).run_at
    assert api.add_job("t", job_key="k", job_key_mode="preserve_run_at").run_at == at


MERGES = [
    ("[1]", "[2]", "[1,2]"),
    ('[{"id": 42}]', '[{"id": 67}]', '[{"id": 42},{"id": 67}]'),
    ("[]", "[2]", "[2]"),
    ("[1]", "[]", "[1]"),
    ("[]", "[ ]", "[ ]"),
    ("[ ]", "[2]", "[2]"),
    ("[[]]", "[[]]", "[[],[]]"),
    (" [ 1 , 2 ]\n", "\t[ 3 ] ", " [ 1 , 2 , 3 ] "),
    ("[1e2, 1.50]", "[1e5000]", "[1e2, 1.50,1e5000]"),
    ('[{"b":1,"a":2,"a":3}]', '[{"d":1,"c":2}]', '[{"b":1,"a":2,"a":3},{"d":1,"c":2}]'),
    ('["\\u0000"]', '["]\\"[,"]', '["\\u0000","]\\"[,"]'),
    ('["é"]', '["\N{PILE OF POO}"]', '["é","\N{PILE OF POO}"]'),
    ("[null]", "[null]", "[null,null]"),
    ("[1]", '{"a":1}', '{"a":1}'),
    ('{"a":1}', "[1]", "[1]"),
    ('{"a":1}', '{"b":1}', '{"b":1}'),
    ("[1]", "null", "null"),
    ("[1]", None, "{}"),
    ("null", "[1]", "[1]"),
    ("1", '"[1]"', '"[1]"'),
]


@pytest.mark.parametrize(("older", "newer", "merged"), MERGES)
@pytest.mark.parametrize("state", ["available", "retryable", "discarded"])
def test_two_arrays_are_merged_letter_by_letter_anything_else_is_replaced(
    api: Any, job_in: Any, older: str, newer: str | None, merged: str, state: str
) -> None:
    job_in(state, payload=older, job_key="k")
    assert api.payload(api.add_job("t", newer, job_key="k").id) == merged


def test_a_thousand_merges_keep_every_element_in_order(api: Any) -> None:
    api.rows(
        "select count(pyworker.add_job('t', jsonb_build_array(i), job_key => 'k', job_key_mode => "
        "'preserve_run_at'))"
        " from generate_series(0, 999) i"
    )
    assert api.get_job(1).payload == list(range(1000))
    (job, *_) = api.add_jobs([{"identifier": "t", "job_key": "k", "payload": [i]} for i in range(1000, 2000)])
    assert api.get_job(job.id).payload == list(range(2000))


@pytest.mark.parametrize("by", ["add_job", "add_jobs"])
def test_a_merge_beyond_the_size_limit_is_refused_and_changes_nothing(api: Any, by: str) -> None:
    api.configure(max_payload_bytes=2000)
    old = api.add_job("t", json.dumps(["x" * 1200]), job_key="k")
    with api.refusal("PW001", "merged payload", "2000 bytes"):
        if by == "add_job":
            api.add_job("t", json.dumps(["y" * 1200]), job_key="k")
        else:
            api.add_jobs([{"identifier": "t", "payload": ["y" * 1200], "job_key": "k"}])
    assert api.get_job(old.id) == old


SUPERSEDING = {
    "superseded": lambda api: api.add_job("t", "[2]", job_key="k"),
    "removed": lambda api: api.remove_job("k"),
}
ENDS: dict[str, Any] = {
    "failure": lambda api, job, worker, clock: api.fail(job),
    "failure with a delay": lambda api, job, worker, clock: api.fail(job, delay="1 s", payload=[9]),
    "discard": lambda api, job, worker, clock: api.fail(job, discard=True),
    "cancel": lambda api, job, worker, clock: api.fail(job, cancel=True),
    "snooze": lambda api, job, worker, clock: api.snooze_job(job.id, job.run, "1 s"),
    "release": lambda api, job, worker, clock: api.release_jobs([job.id], [job.run]),
    "unregister": lambda api, job, worker, clock: api.unregister_worker(worker),
    "force unlock": lambda api, job, worker, clock: api.force_unlock_workers([str(worker)]),
    "lease": lambda api, job, worker, clock: (clock.advance(minutes=5), api.maintain()),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("reason", SUPERSEDING)
def test_a_superseded_run_that_does_not_succeed_ends_cancelled_and_never_runs_again(
    api: Any, job_in: Any, clock: Any, reason: str, end: str
) -> None:
    old = job_in("running", payload="[1]", job_key="k", queue_name="q")
    worker = int(old.locked_by)
    new = SUPERSEDING[reason](api)
    ENDS[end](api, old, worker, clock)
    was = api.get_job(old.id)
    assert (was.state, was.reason, was.key, was.payload) == ("cancelled", reason, None, [1])
    clock.advance(days=1)
    assert [job.id for job in api.claim_jobs(api.register_worker(), 10)] == (
        [new.id] if reason == "superseded" else []
    )


@pytest.mark.parametrize("reason", SUPERSEDING)
def test_a_superseded_run_that_succeeds_is_completed(api: Any, job_in: Any, reason: str) -> None:
    old = job_in("running", payload="[1]", job_key="k")
    SUPERSEDING[reason](api)
    assert api.finish_jobs([old.id], [old.run], [Jsonb({"sum": 1})]) == [old.id]
    was = api.get_job(old.id)
    assert (was.state, was.key, was.result, was.reason) == ("completed", None, {"sum": 1}, None)


def test_a_superseded_run_that_fails_keeps_its_error(api: Any, job_in: Any) -> None:
    old = job_in("running", job_key="k")
    api.add_job("t", job_key="k")
    api.fail(old, "boom")
    assert api.get_job(old.id).last_error == "boom"
    assert [error.error for error in api.job_errors(old.id)] == ["boom"]


def test_each_run_may_be_superseded_in_turn(api: Any, worker: int) -> None:
    for payload in ("[1]", "[2]", "[3]"):
        api.add_job("t", payload, job_key="k")
        assert api.claim(worker).payload == json.loads(payload)
    api.add_job("t", "[4]", job_key="k")
    api.add_job("t", "[5]", job_key="k")
    assert api.claim(worker).payload == [4, 5]
    assert api.rows("select key from pyworker.jobs order by id") == [(None,), (None,), (None,), ("k",)]


def test_graphile_workers_own_examples_hold(api: Any, actor: Any) -> None:
    a = actor()
    a.begin()
    a.add_job("send_email", '{"count": 1}', job_key="abc")
    a.add_job("send_email", '{"count": 2}', job_key="abc")
    a.add_job("process_invoices", '[{"id": 42}]', job_key="inv")
    a.add_job("process_invoices", '[{"id": 67}]', job_key="inv")
    a.commit()
    worker = api.register_worker()
    assert [job.payload for job in api.claim_jobs(worker, 10)] == [{"count": 2}, [{"id": 42}, {"id": 67}]]
