"""Sequences together with job keys, unique jobs and named queues."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.api import ids
from tests.support.sequences import S, add, drain, explain, view
from tests.support.sequences import halted as halted


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


# unique_policy ------------------------------------------------------------------------------------


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


# Named queues -------------------------------------------------------------------------------------


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


def test_and_at_once_where_that_queue_is_idle(api: Any, worker: int) -> None:
    jobs = [add(api, 1, queue_name=name)[0] for name in "ab"]
    assert drain(api, worker) == ids(jobs)


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
