"""explain_job: every reason in a real situation, in order, each with a remedy that works when it
is run as it stands."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.explain import NAMES, calls, explain, reasons, run, the
from tests.support.explain import idle as idle


def test_not_due(api: Any, idle: int) -> None:
    job = api.add_job("t", run_at=api.at("1 hour"))
    (row,) = explain(api, job)
    assert (row.reason, row.detail) == ("not due", f"not before {api.value('select %s::text', [job.run_at])}")
    assert [job.id for job in run(api, row.remedy)] == [job.id]
    assert "not due" not in reasons(api, job)
    assert api.claim(idle).id == job.id


def test_waits_for_its_retry(api: Any, idle: int) -> None:
    job = api.add_job("t")
    api.fail(api.claim(idle), "Traceback (most recent call last):\n  File …\nValueError: 100% 'wrong'\n")
    (row,) = explain(api, job)
    assert row.reason == "waits for its retry"
    assert row.detail.endswith("; attempt 1 of 25 failed: ValueError: 100% 'wrong'")
    run(api, row.remedy)
    assert reasons(api, job) == ["waits for a worker"]
    assert api.claim(idle).id == job.id


def test_promotion_of_a_job_that_has_been_due(api: Any, idle: int, clock: Any) -> None:
    job = api.add_job("t", run_at=api.at("1 hour"))
    clock.advance(hours=2)
    api.heartbeat(idle)
    (row,) = explain(api, job)
    assert (row.reason, row.detail[:22]) == ("promotion", "it has been due since ")
    run(api, row.remedy)
    assert reasons(api, job) == ["waits for a worker"]


def test_promotion_of_a_retry_that_has_been_due(api: Any, idle: int, clock: Any) -> None:
    job = api.add_job("t")
    api.fail(api.claim(idle))
    clock.advance(hours=2)
    api.heartbeat(idle)
    run(api, the(api, job, "promotion").remedy)
    assert reasons(api, job) == ["waits for a worker"]


# Its sequence -------------------------------------------------------------------------------------


def sequence(api: Any, count: int, key: str = "s", **named: Any) -> list[Any]:
    return [api.add_job("t", sequence_policy={"key": key}, **named) for _ in range(count)]


def test_sequence(api: Any, idle: int) -> None:
    first, second, third = sequence(api, 3)
    api.claim(idle)
    (row,) = explain(api, third)
    assert row.reason == "sequence"
    assert (
        row.detail == f"waits for job {first.id} (running) in sequence s; jobs that wait before this one: 1"
    )
    (answer,) = run(api, row.remedy)  # it leads to the job that all wait for
    assert answer.reason == "running"
    api.finish(first.id)
    assert reasons(api, second) == ["waits for a worker"]
    assert the(api, third, "sequence").detail.startswith(f"waits for job {second.id} (available) ")


def test_a_sequence_waits_for_the_retry_of_its_head(api: Any, idle: int) -> None:
    first, second = sequence(api, 2)
    api.fail(api.claim(idle))
    row = the(api, second, "sequence")
    assert re.search(rf"waits for job {first.id} \(retryable until \d{{4}}-", row.detail)
    (answer,) = run(api, row.remedy)
    assert answer.reason == "waits for its retry"


def test_promotion_of_the_first_of_a_sequence(api: Any, idle: int) -> None:
    first, second = sequence(api, 2)
    (row,) = explain(api, first)
    assert (row.reason, row.detail) == ("promotion", "its turn in sequence s has come")
    assert the(api, second, "sequence").detail == "jobs that wait before this one in sequence s: 1"
    run(api, row.remedy)
    assert reasons(api, first) == ["waits for a worker"]


@pytest.fixture
def halted(api: Any, idle: int) -> list[Any]:
    """Four jobs of a sequence, halted by the first."""
    jobs = sequence(api, 4, 'it\'s 100% "s"\n;')
    api.fail(api.claim(idle), discard=True)
    return jobs


def test_sequence_halted(api: Any, halted: list[Any]) -> None:
    first, second, third, _ = halted
    (row,) = explain(api, second)
    assert row.reason == "sequence halted"
    assert row.detail.startswith(f'sequence it\'s 100% "s"\n; is halted by job {first.id}, discarded at ')
    assert reasons(api, third) == ["sequence halted", "sequence"]
    assert len(calls(row.remedy)) == 3


@pytest.mark.parametrize(
    "which", [0, 1, 2], ids=["run the halting job", "go on without it", "go on with this one"]
)
def test_each_remedy_of_a_halt_lets_the_sequence_go_on(
    api: Any, idle: int, halted: list[Any], which: int
) -> None:
    target = halted[2]
    run(api, the(api, target, "sequence halted").remedy, which)
    assert "sequence halted" not in reasons(api, target)
    order = []
    while claimed := api.claim(idle):
        order.append(claimed.id)
        api.finish_job(claimed.id, claimed.run)
    first, second, third, fourth = (job.id for job in halted)
    assert order == [[first, second, third, fourth], [second, third, fourth], [third, second, fourth]][which]


def test_a_sequence_halted_by_a_cancelled_job(api: Any, idle: int) -> None:
    first, second = sequence(api, 2)
    api.cancel_job(first.id)
    api.promote_jobs()
    row = the(api, second, "sequence halted")
    assert f"is halted by job {first.id}, cancelled at " in row.detail
    run(api, row.remedy, 1)
    assert reasons(api, second) == ["promotion"]


@pytest.mark.parametrize("name", NAMES)
def test_queue_paused(api: Any, idle: int, name: str) -> None:
    api.set_queue("c:*", 1)
    candidate = api.add_job("t", queue_name=name)
    api.pause_queue(name)
    parked = api.add_job("t", queue_name=name)
    for job in (candidate, parked):
        (row,) = explain(api, job)
        assert (row.reason, row.detail) == ("queue paused", f"queue {name} is paused")
    run(api, row.remedy)
    assert reasons(api, candidate) == ["promotion"]
    assert api.claim(idle).id == candidate.id
    assert reasons(api, parked) == ["queue full"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("limit", [1, 2, 6])
def test_queue_full(api: Any, idle: int, name: str, limit: int) -> None:
    api.set_queue(name, limit)
    for _ in range(limit + 1):
        job = api.add_job("t", queue_name=name)
    holders = [job.id for job in api.claim_jobs(idle, 10)]
    (row,) = explain(api, job)
    assert row.reason == "queue full"
    shown = ", ".join(map(str, holders[:5])) + (", …" if limit > 5 else "")
    assert row.detail == f"queue {name} runs {limit} at once; now taken by job {shown}"
    run(api, row.remedy)
    assert reasons(api, job) == ["promotion"]
    assert api.claim(idle).id == job.id


@pytest.mark.parametrize(("limits", "many"), [({"fair": True}, 3), ({}, 300)], ids=["turns", "many slots"])
def test_a_job_that_is_no_candidate_while_those_before_it_are(
    api: Any, idle: int, limits: dict[str, Any], many: int
) -> None:
    api.set_queue("c:*", 1000, **limits)
    jobs = api.add_jobs([{"identifier": "t", "queue_name": "c:1"}] * many)
    while api.promote_jobs():
        pass
    assert reasons(api, jobs[-1].id) == ["waits for a worker"]


def test_a_job_behind_another_one_that_no_worker_has_claimed_yet(api: Any, idle: int) -> None:
    first, second = api.add_job("t", queue_name="q"), api.add_job("t", queue_name="q")
    api.promote_jobs()
    assert reasons(api, first) == ["waits for a worker"]
    row = the(api, second, "waits for a worker")
    assert row.detail == "queue q has room; jobs that come before it: 1"
    assert api.claim(idle).id == first.id
    assert the(api, second, "queue full").detail == f"queue q runs 1 at once; now taken by job {first.id}"


def test_a_queue_that_is_full_now_is_no_reason_for_a_job_whose_turn_has_not_come(api: Any, idle: int) -> None:
    first, second = sequence(api, 2, queue_name="q")
    later = api.add_job("t", queue_name="q", run_at=api.at("1 day"))
    assert api.claim(idle).id == first.id
    assert reasons(api, second) == ["sequence"]
    assert reasons(api, later) == ["not due"]
    run(api, the(api, later, "not due").remedy)
    assert reasons(api, later) == ["queue full"]


@pytest.mark.parametrize("limit", [1, 3])
def test_promotion_where_the_queue_has_room(api: Any, idle: int, limit: int) -> None:
    api.set_queue("q", limit)
    api.pause_queue("q")
    first, second = api.add_job("t", queue_name="q"), api.add_job("t", queue_name="q")
    api.resume_queue("q")
    row = the(api, first, "promotion")
    assert row.detail == "queue q has room; jobs that come before it: 0"
    assert the(api, second, "promotion").detail == "queue q has room; jobs that come before it: 1"
    run(api, row.remedy)
    assert reasons(api, first) == ["waits for a worker"]


def test_a_job_of_a_queue_without_a_limit_waits_for_workers(api: Any, idle: int) -> None:
    api.set_queue("q", None)
    last = api.add_jobs([{"identifier": "t", "queue_name": "q"}] * 1500)[-1]
    (row,) = explain(api, last)
    assert (row.reason, row.detail[:36]) == ("waits for a worker", "available jobs that come first: 1499")


@pytest.mark.parametrize("other", ["task", "flag"])
def test_a_job_that_no_worker_takes_is_no_reason_for_those_behind_it(api: Any, idle: int, other: str) -> None:
    api.update_worker(idle, {"task_identifiers": ["t"], "forbidden_flags": ["gpu"]})
    first = api.add_job(
        **({"identifier": "unknown"} if other == "task" else {"identifier": "t", "flags": ["gpu"]}),
        queue_name="q",
    )
    second = api.add_job("t", queue_name="q")
    api.promote_jobs()
    assert reasons(api, first) == ["no worker takes it"]
    assert reasons(api, second) == ["waits for a worker"]


# Several at once ----------------------------------------------------------------------------------


def test_the_reasons_come_in_the_order_in_which_they_have_to_go_away(api: Any, clock: Any) -> None:
    job = api.add_job("t", queue_name="q", run_at=api.at("1 hour"))
    api.pause_queue("q")
    who = api.register_worker({"task_identifiers": ["u"]})
    expected = ["not due", "queue paused", "no worker takes it"]
    assert reasons(api, job) == expected
    clock.advance(hours=2)
    api.heartbeat(who)
    assert reasons(api, job) == ["promotion", *expected[1:]]
    run(api, the(api, job, "promotion").remedy)
    assert reasons(api, job) == expected[1:]
    run(api, the(api, job, "queue paused").remedy)
    assert reasons(api, job) == ["promotion", "no worker takes it"]
    run(api, the(api, job, "promotion").remedy)
    assert reasons(api, job) == ["no worker takes it"]
    other = api.register_worker({"task_identifiers": ["t"]})
    assert reasons(api, job) == ["waits for a worker"]
    api.claim(other)
    assert reasons(api, job) == ["running"]


def test_a_job_behind_a_halt_that_is_not_due_in_a_full_queue_without_a_worker(api: Any, clock: Any) -> None:
    who = api.register_worker()
    first, _ = sequence(api, 2, queue_name="q")
    last = api.add_job("t", queue_name="q", sequence_policy={"key": "s"}, run_at=api.at("10 min"))
    api.fail(api.claim(who), discard=True)
    holder = api.add_job("u", queue_name="q")
    assert api.claim(who).id == holder.id
    api.update_worker(who, {"task_identifiers": ["u"]})
    # That its queue is full now is no reason yet.
    assert reasons(api, last) == ["sequence halted", "sequence", "not due", "no worker takes it"]
    run(api, the(api, last, "sequence halted").remedy, 2)  # with this job first: at once
    assert reasons(api, last) == ["promotion", "queue full", "no worker takes it"]
    api.promote_jobs()
    assert reasons(api, last) == ["queue full", "no worker takes it"]
    run(api, the(api, last, "queue full").remedy)
    api.promote_jobs()
    assert reasons(api, last) == ["no worker takes it"]
    assert first.id < last.id


def test_a_job_that_runs_has_that_as_its_only_reason(api: Any, idle: int) -> None:
    job = api.add_job("t", queue_name="q", sequence_policy={"key": "s"})
    api.claim(idle)
    api.pause_queue("q")
    api.update_worker(idle, {"task_identifiers": []})
    assert reasons(api, job) == ["running"]


def test_a_job_that_can_start_has_one_reason(api: Any, idle: int, job_in: Any) -> None:
    for state in ("available", "due"):
        assert reasons(api, job_in(state, state)) == ["waits for a worker"]


def test_each_message_is_short(api: Any, idle: int, job_in: Any) -> None:
    made = [
        job_in(state, f"t-{state}")
        for state in ("scheduled", "pending", "queued", "available", "retryable", "discarded")
    ]
    for job in made:
        for row in explain(api, job):
            assert len(row.detail) < 140
            assert len(row.remedy or "") < 140


def test_a_job_whose_end_is_not_committed_is_still_what_it_was(api: Any, idle: int, actor: Any) -> None:
    first, second = api.add_job("t", queue_name="q"), api.add_job("t", queue_name="q")
    api.claim(idle)
    handler = actor()
    handler.begin()
    handler.finish(first.id)
    assert reasons(api, second) == ["queue full"]
    handler.commit()
    assert reasons(api, second) == ["waits for a worker"]


@pytest.mark.parametrize("waits", ["due", "sequence", "queue", "dead worker"])
def test_no_worker_is_promised_to_help_while_none_is_alive(api: Any, clock: Any, waits: str) -> None:
    who = api.register_worker()
    if waits == "sequence":
        job = sequence(api, 1)[0]
    else:
        job = api.add_job("t", queue_name="q" if waits == "queue" else None)
    if waits == "due":
        api.reschedule_jobs([job.id], run_at=api.at("1 minute"))
    elif waits == "dead worker":
        api.claim(who)
    assert ["worker does so" in (row.remedy or "") for row in explain(api, job)] == [
        waits in "sequence queue"
    ]
    clock.advance(minutes=5)
    remedies = [row.remedy for row in explain(api, job)]
    assert not any("worker does so" in remedy for remedy in remedies)
    assert remedies[0].startswith("select * from pyworker.")
