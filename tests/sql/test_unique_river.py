"""River's unique jobs without River's defects (U1 to U10 of our notes), and its rule for a retry
that did not hold its key."""

from __future__ import annotations

import json
from itertools import permutations
from typing import Any

import pytest
from psycopg.types.json import Jsonb

RIVER = {"by_args": True}
REQUIRED = ["available", "pending", "running", "scheduled"]
LOOSE = {"by_args": True, "by_state": REQUIRED}  # without retryable: another job may come during the backoff
OJS = {"keys": ["args"]}
A = {"a": 1}


def add(api: Any, policy: Any = LOOSE, payload: Any = A, **named: Any) -> Any:
    return api.add_job("t", Jsonb(payload), unique_policy=Jsonb(policy), **named)


def waiting(api: Any, worker: int, **named: Any) -> Any:
    """A job that waits for its retry, and does not hold its key."""
    job = add(api, **named)
    api.fail(api.claim(worker, "t"), delay=60)  # longer than the test takes on a busy machine
    return api.get_job(job.id)


def states(api: Any, *jobs: Any) -> list[str]:
    return [api.get_job(job.id).state for job in jobs]


def gave_way(api: Any, job: Any) -> None:
    job = api.get_job(job.id)
    assert (job.state, job.meta["unique_key_conflict"]) == ("discarded", "scheduler_discarded")
    assert "unique key" in job.reason
    assert job.last_error == "boom"


# U1, U2: the window


def test_u1_the_window_is_that_of_run_at_not_of_now(api: Any) -> None:
    policy = {"by_period": "1 day"}
    today = add(api, policy)
    tomorrow = add(api, policy, run_at=api.at("1 day"))
    assert tomorrow.id != today.id
    assert add(api, policy, run_at=api.at("1 day")).id == tomorrow.id


def test_u2_hosts_in_different_time_zones_deduplicate(api: Any, actor: Any) -> None:
    ids = set()
    for zone in ["UTC", "Europe/Berlin", "Pacific/Kiritimati", "America/Los_Angeles"]:
        host = actor()
        host.rows(f"set timezone = '{zone}'")
        ids |= {
            add(host, {"by_period": "1 day"}, run_at=f"2026-03-29 {clock}+00").id
            for clock in ("00:30", "23:30")
        }
    assert len(ids) == 1


# U3, U7: the end of a backoff


def test_u3_of_a_retry_and_a_scheduled_job_due_at_once_one_survives(
    api: Any, worker: int, clock: Any
) -> None:
    retry = waiting(api, worker)
    scheduled = add(api, run_at=api.at("1 minute"))
    clock.advance(hours=1)
    assert api.promote_jobs() == 1
    gave_way(api, retry)
    assert states(api, scheduled) == ["available"]


@pytest.mark.parametrize("queue", [None, "q"])
def test_of_several_retries_due_at_once_the_first_survives(
    api: Any, worker: int, clock: Any, queue: str | None
) -> None:
    retries = [waiting(api, worker, queue_name=queue) for _ in range(4)]
    others = [waiting(api, worker, payload={"a": n}) for n in (2, 3)]
    plain = api.add_job("u", run_at=api.at("1 minute"))
    clock.advance(hours=1)
    assert api.promote_jobs() == 4
    assert states(api, retries[0], *others, plain) == ["available"] * 4
    for job in retries[1:]:
        gave_way(api, job)
    assert api.get_job(retries[0].id).attempts == 1
    assert len(api.claim_jobs(worker, 10)) == 4


@pytest.mark.parametrize("holder", ["available", "running", "scheduled", "pending"])
def test_retries_give_way_to_any_live_holder(api: Any, worker: int, clock: Any, holder: str) -> None:
    retries = [waiting(api, worker) for _ in range(2)]
    if holder == "pending":
        api.add_job("other", sequence_policy={"key": "s"})
        api.promote_jobs()
    named = {"scheduled": {"run_at": api.at("1 year")}, "pending": {"sequence_policy": {"key": "s"}}}.get(
        holder, {}
    )
    job = add(api, **named)
    if holder == "running":
        assert api.claim(worker, "t").id == job.id
    assert states(api, job) == [holder]
    clock.advance(hours=1)
    api.promote_jobs()
    for retry in retries:
        gave_way(api, retry)
    assert states(api, job) == [holder]


def test_a_retry_whose_key_is_free_goes_on_and_meta_is_kept_when_it_is_not(
    api: Any, worker: int, clock: Any
) -> None:
    alone = waiting(api, worker)
    clock.advance(hours=1)
    assert api.promote_jobs() == 1
    job = api.claim(worker)
    assert (job.id, job.attempts, job.meta) == (alone.id, 2, None)
    api.finish_job(job.id, job.run)
    retry = waiting(api, worker, meta=Jsonb({"tenant": 7}))
    add(api)
    clock.advance(hours=1)
    api.promote_jobs()
    assert api.get_job(retry.id).meta == {"tenant": 7, "unique_key_conflict": "scheduler_discarded"}


@pytest.mark.parametrize("counts", [True, False])
def test_a_completed_job_takes_the_key_only_if_the_policy_names_completed(
    api: Any, worker: int, clock: Any, counts: bool
) -> None:
    policy = {"by_args": True, "by_state": [*REQUIRED, "completed"] if counts else REQUIRED}
    retry = waiting(api, worker, policy=policy)
    add(api, policy)
    done = api.claim(worker)
    api.finish_job(done.id, done.run)
    clock.advance(hours=1)
    api.promote_jobs()
    assert states(api, retry) == ["discarded" if counts else "available"]


def test_a_retry_that_holds_its_key_is_never_asked(api: Any, worker: int, clock: Any) -> None:
    for n, policy in enumerate([RIVER, OJS]):
        job = waiting(api, worker, policy=policy, payload={"n": n})
        add(api, {**policy, "on_conflict": "ignore"}, {"n": n})
        clock.advance(hours=1)
        api.promote_jobs()
        assert api.claim(worker).id == job.id


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_u7_a_promotion_during_an_add_waits_for_nothing_and_decides_later(
    api: Any, actor: Any, worker: int, clock: Any, end: str
) -> None:
    retries = [waiting(api, worker) for _ in range(2)]
    other = waiting(api, worker, payload={"a": 2})
    plain = api.add_job("u", run_at=api.at("1 minute"))
    one = actor()
    one.begin()
    new = add(one)
    clock.advance(hours=1)
    assert api.promote_jobs() == 2
    assert states(api, *retries, other, plain) == ["retryable", "retryable", "available", "available"]
    getattr(one, end)()
    assert api.promote_jobs() == (end == "rollback")
    assert states(api, *retries) == (["discarded"] * 2 if end == "commit" else ["available", "discarded"])
    assert api.get_job(new.id).state == ("available" if end == "commit" else None)


def test_many_retries_of_a_key_in_use_do_not_hold_up_the_others(
    api: Any, actor: Any, worker: int, clock: Any
) -> None:
    for _ in range(110):
        waiting(api, worker)
    other = waiting(api, worker, payload={"a": 2})
    one = actor()
    one.begin()
    add(one)
    clock.advance(hours=1)
    assert api.promote_jobs() == 1
    assert states(api, other) == ["available"]
    one.commit()
    api.promote_jobs()
    api.promote_jobs()
    assert api.value("select count(*) from pyworker.jobs where state = 'retryable'") == 0


@pytest.mark.parametrize("end", ["commit", "rollback", "kill"])
def test_two_promoters_leave_one_survivor(api: Any, actor: Any, worker: int, clock: Any, end: str) -> None:
    retries = [waiting(api, worker) for _ in range(3)]
    one = actor()
    one.begin()
    clock.advance(hours=1)
    assert one.promote_jobs() == 1
    assert api.promote_jobs() == 0
    new = actor()
    future = new.later.add_job("t", A, unique_policy=LOOSE)
    new.blocked(future)
    getattr(one, end)()
    [job] = future.result(20)
    assert job.deduplicated == (end == "commit")
    api.promote_jobs()
    live = api.rows("select id from pyworker.jobs where state = 'available'")
    assert [row.id for row in live] == [retries[0].id if end == "commit" else job.id]


# U4 to U9


def test_u4_rows_of_one_key_in_one_call_are_no_error(api: Any) -> None:
    jobs = api.add_jobs(
        [{"identifier": "t", "payload": {"a": n % 3}, "unique_policy": RIVER} for n in range(9)]
    )
    assert [job.id for job in jobs] == [jobs[n % 3].id for n in range(9)]
    assert [job.deduplicated for job in jobs] == [False] * 3 + [True] * 6


def test_u5_a_skip_hides_no_job_from_workers_and_blocks_no_other_skip(
    api: Any, actor: Any, worker: int
) -> None:
    job = add(api, RIVER)
    one = actor()
    one.begin()
    assert add(one, RIVER).deduplicated
    assert add(api, RIVER).deduplicated
    assert api.claim(worker).id == job.id
    one.commit()


def test_u6_a_duplicate_of_another_kind_changes_nothing(api: Any) -> None:
    policy = {"by_args": True, "exclude_kind": True}
    job = api.add_job("one", A, unique_policy=policy)
    assert api.add_job("two", A, unique_policy=policy, priority=5) == job._replace(deduplicated=True)
    assert api.get_job(job.id) == job


def test_u8_member_names_are_taken_literally(api: Any) -> None:
    payloads: list[Any] = [
        {"a.b": 1}, {"a.b": 2}, {"a": {"b": 1}}, {"a*": 1}, {"a?": 1}, {"#": 1}, {"a|b": 1}, {"$.a": 1},
        {"@this": 1}, {"a\\.b": 1},
    ]  # fmt: skip
    assert len({add(api, RIVER, payload).id for payload in payloads}) == len(payloads)
    assert len({add(api, {"by_args": ["a.b"]}, payload).unique_key for payload in payloads}) == 3
    assert (
        add(api, RIVER, {"a": {"y": 1, "z": [{"p": 1, "q": 2}]}}).id
        == add(api, RIVER, {"a": {"z": [{"q": 2, "p": 1.0}], "y": 1}}).id
    )


def test_u9_every_client_and_every_spelling_of_a_call_makes_the_same_key(api: Any) -> None:
    policy = """'{"by_args": true, "by_queue": true}'"""
    calls = [
        f"""add_job('t', ' {{"b":1.0, "a" : [2]}}', unique_policy := {policy})""",
        f"""add_job('t', '{{"a":[2],"b":1}}'::jsonb, 'default', unique_policy := {policy})""",
        f"""add_job('t', json_build_object('b', 1, 'a', array[2]), unique_policy := {policy})""",
        """add_job('t', '{"a":[2],"b":1}',
            unique_policy := pyworker.unique_opts('true', by_queue := true))""",
        f"""add_jobs(jsonb_build_array(jsonb_build_object(
                'identifier', 't', 'payload', '{{"a":[2],"b":1}}'::jsonb,
                'unique_policy', {policy}::jsonb)))""",
    ]
    assert len({api.rows(f"select unique_key from pyworker.{call}")[0].unique_key for call in calls}) == 1


# U10: back by hand


@pytest.mark.parametrize(
    ("policy", "state"),
    [
        (OJS, "completed"),
        (OJS, "cancelled"),
        (OJS, "discarded"),
        (LOOSE, "completed"),
        (LOOSE, "discarded"),
        (LOOSE, "retryable"),
    ],
)
def test_u10_a_retry_by_hand_onto_a_held_key_is_a_refusal_that_names_the_holder(
    api: Any, job_in: Any, policy: Any, state: str
) -> None:
    old = job_in(state, payload=A, unique_policy=policy)
    holder = add(api, policy)
    assert holder.id != old.id
    with api.refusal(
        "PW003", f"retry_job: the unique key of job {old.id} is held by job {holder.id} .available"
    ) as caught:
        api.retry_job(old.id)
    assert json.loads(caught.value.diag.message_detail) == {
        "existing_job_id": holder.id, "existing_job_state": "available", "unique_key": old.unique_key,
    }  # fmt: skip
    assert api.get_job(old.id) == old
    assert api.retry_jobs([old.id]) == []
    api.cancel_job(holder.id)
    assert api.retry_job(old.id).state == "available"


@pytest.mark.parametrize("policy", [LOOSE, OJS])
def test_of_several_ended_jobs_of_a_key_one_can_be_brought_back(api: Any, job_in: Any, policy: Any) -> None:
    old = [
        job_in(state, payload=A, unique_policy=policy) for state in ("completed", "discarded", "cancelled")
    ]
    assert [job.id for job in api.retry_jobs([job.id for job in old])] == [old[0].id]


@pytest.mark.parametrize(
    ("state", "policy", "change"),
    [
        ("discarded", OJS, {"attempts": 0}),
        ("discarded", LOOSE, {"attempts": 0}),
        ("discarded", OJS, {"max_attempts": 30, "run_at": "2100-01-01"}),
        ("retryable", LOOSE, {"attempts": 0}),
        ("retryable", LOOSE, {"run_at": "2000-01-01"}),
    ],
)
def test_rescheduling_brings_no_second_job_to_a_held_key(
    api: Any, job_in: Any, state: str, policy: Any, change: Any
) -> None:
    old = job_in(state, payload=A, unique_policy=policy)
    holder = add(api, policy)
    assert api.reschedule_jobs([old.id], **change) == []
    assert api.get_job(old.id) == old
    api.cancel_job(holder.id)
    assert [job.id for job in api.reschedule_jobs([old.id], **change)] == [old.id]
    with api.refusal("PW003"):
        add(api, {**policy, "on_conflict": "reject"})


def test_rescheduling_what_does_not_take_the_key_is_free(api: Any, job_in: Any) -> None:
    old = job_in("retryable", payload=A, unique_policy=LOOSE)
    add(api, LOOSE)
    [job] = api.reschedule_jobs([old.id], run_at="2100-01-01", priority=3)
    assert (job.state, job.priority) == ("retryable", 3)


@pytest.mark.parametrize("order", list(permutations(["add", "promote", "retry_job"])))
def test_the_first_to_come_gets_the_key(api: Any, worker: int, clock: Any, order: Any) -> None:
    old = [waiting(api, worker) for _ in range(2)]
    clock.advance(hours=1)
    for act in order:
        if act == "add":
            add(api)
        elif act == "promote":
            api.promote_jobs()
        elif api.get_job(old[1].id).state == "retryable":
            api.retry_jobs([old[1].id])
        live = api.rows(
            "select id from pyworker.jobs where state in ('available', 'running', 'scheduled', 'pending')"
        )
        assert len(live) == 1


def test_of_mixed_policies_of_one_key_one_job_survives_when_the_backoffs_end(
    api: Any, worker: int, clock: Any
) -> None:
    """The strict one waits for its retry and counts as a duplicate of its like; the loose one does
    not mind it."""
    strict = waiting(api, worker, policy=RIVER)
    loose = waiting(api, worker)
    assert add(api, RIVER).id in (strict.id, loose.id)
    clock.advance(hours=1)
    api.heartbeat(worker)
    (survivor,) = api.claim_jobs(worker, 10)
    assert sorted(states(api, strict, loose)) == ["discarded", "running"]
    gave_way(api, strict if survivor.id == loose.id else loose)


def test_a_strict_retry_gives_way_to_a_loose_job_that_lives(api: Any, worker: int, clock: Any) -> None:
    strict = waiting(api, worker, policy=RIVER)
    loose = add(api)
    clock.advance(hours=1)
    api.heartbeat(worker)
    assert [job.id for job in api.claim_jobs(worker, 10)] == [loose.id]
    gave_way(api, strict)


def test_a_retry_without_a_rival_comes_back_under_a_strict_policy(api: Any, worker: int, clock: Any) -> None:
    strict = waiting(api, worker, policy=RIVER)
    clock.advance(hours=1)
    api.heartbeat(worker)
    assert [job.id for job in api.claim_jobs(worker, 10)] == [strict.id]


def test_a_retry_that_holds_its_key_may_be_hurried_beside_a_legal_twin(api: Any, worker: int) -> None:
    """By the Open Job Spec its own backoff would not ask either; retry_job only shortens it."""
    job = add(api, OJS)
    api.fail(api.claim(worker, "t"))
    twin = add(api, {**OJS, "states": ["available"]})
    assert api.retry_job(job.id).state == "available"
    assert states(api, job, twin) == ["available", "available"]
