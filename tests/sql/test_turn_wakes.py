"""A turn, other sessions and the disk: whom it wakes, what it waits for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.notify import wait
from tests.support.turns import claimed, later, turn_of, turn_when, word, work


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_turn_works_at_any_isolation_level(api: Any, worker: int, level: str) -> None:
    a, b, c = claimed(api, worker, *"abc")
    api.add_job("d", queue_name="q")
    with api.conn.transaction():
        api.rows(f"set transaction isolation level {level}")
        turn = work(api, worker, [(a.id, a.run)], [word(b, "fail"), word(c, "release")])
    assert turn.refused == []
    taken = {job.task_identifier for job in [*turn.jobs, *work(api, worker).jobs]}
    assert taken == {"c", "d"}


def test_a_worker_comes_again_when_a_job_falls_due(api: Any, worker: int) -> None:
    work(api, worker)
    api.add_job("t", run_at=api.at("1 second"))
    assert work(api, worker).again <= 1  # else it is more


def test_a_worker_comes_again_soon_while_a_transaction_may_have_added_silently(
    api: Any, actor: Any, worker: int
) -> None:
    producer = actor()
    producer.begin()
    producer.add_job("t")  # no worker waits yet, so its commit notifies none
    assert work(api, worker).again <= 0.25
    producer.commit()
    assert len(work(api, worker).jobs) == 1


def test_of_two_turns_with_the_same_jobs_in_other_orders_none_deadlocks(
    api: Any, actor: Any, worker: int
) -> None:
    a, b, c, d = claimed(api, worker, *"abcd")
    gate, one, two = actor(), actor(), actor()
    gate.begin()
    gate.rows(f"select from pyworker.live_jobs where id = {b.id} for update")
    first = later(
        one, worker, [(d.id, d.run)], [word(c, "release"), word(b, "fail"), word(a, "snooze", delay_s=9)], 0
    )
    one.blocked(first)
    second = later(
        two, worker, [(a.id, a.run)], [word(d, "fail"), word(b, "cancel"), word(c, "snooze", delay_s=9)], 0
    )
    two.blocked(second)
    gate.rollback()
    assert turn_of(first.result(20)).refused == []
    assert {why for *_, why in turn_of(second.result(20)).refused} == {"stale"}
    assert [api.get_job(job.id).state for job in (a, b, c, d)] == [
        "scheduled",
        "retryable",
        "available",
        "completed",
    ]


@pytest.mark.parametrize("fate", ["commit", "rollback", "kill"])
@pytest.mark.parametrize("by", ["turn", "handler"])
def test_a_report_waits_for_an_open_transaction_that_completes_the_same_run(
    api: Any, actor: Any, worker: int, by: str, fate: str
) -> None:
    (job,) = claimed(api, worker, "t")
    other = actor()
    other.begin()
    if by == "turn":
        work(other, worker, [(job.id, job.run)], None, 0)
    else:
        other.finish_job(job.id, job.run)
    mine = actor()
    waiting = later(mine, worker, (), [word(job, "discard"), {"id": 0, "run": 0, "do": "release"}], 0)
    mine.blocked(waiting)
    getattr(other, fate)()
    refused = turn_of(waiting.result(20)).refused
    assert refused == ([(job.id, job.run, "stale")] if fate == "commit" else []) + [(0, 0, "stale")]
    assert api.get_job(job.id).state == ("completed" if fate == "commit" else "discarded")


@pytest.fixture
def ear(actor: Any) -> Any:
    """Call it for the number of notifications since the last call."""
    listener = actor()
    listener.rows("listen pyworker")

    def heard() -> int:
        listener.rows("select pg_notify('pyworker', 'end')")
        count = 0
        for notification in listener.conn.notifies(timeout=10):
            if notification.payload == "end":
                return count
            count += 1
        raise AssertionError("the listener did not receive its own notification")

    return heard


def test_a_turn_does_not_wake_its_own_worker_for_the_job_that_it_takes(
    api: Any, worker: int, ear: Any
) -> None:
    for key in ("queue_name", "sequence_policy"):
        for _ in range(3):
            api.add_job("t", **{key: "q" if key == "queue_name" else {"key": "s"}})
    jobs = work(api, worker).jobs
    wait(api, api.register_worker())  # another one, which needs not come
    ear()
    while jobs:
        jobs = work(api, worker, [(job.id, job.run) for job in jobs]).jobs
        assert ear() == 0


@pytest.mark.parametrize("room", [0, 1, 10])
def test_a_turn_wakes_others_for_the_jobs_that_it_leaves(api: Any, worker: int, ear: Any, room: int) -> None:
    for task in ("mine", "theirs"):
        api.add_job(task, queue_name="q")
    other = api.register_worker()
    (job,) = work(api, worker, tasks=["mine"]).jobs
    work(api, other, tasks=["theirs"])  # it waits
    if room == 1:
        api.add_job("mine")
    ear()
    work(api, worker, [(job.id, job.run)], None, room, tasks=["mine"])
    assert ear() >= 1
    assert len(work(api, other, tasks=["theirs"]).jobs) == 1


def silently(actor: Any, *jobs: dict[str, Any]) -> None:
    """Adds that no worker is notified of, as before the first one waits."""
    a = actor()
    a.rows("set pyworker.notify = off")
    for job in jobs:
        a.add_job(**job)


def test_a_turn_wakes_others_for_what_it_lets_in_and_does_not_take(
    api: Any, actor: Any, worker: int, ear: Any
) -> None:
    api.set_queue("q", 2)
    other = api.register_worker()
    turn_when(lambda turn: turn.again > 0.25, api, other, tasks=["theirs"])  # it waits
    silently(actor, *({"identifier": task, "queue_name": "q"} for task in ("mine", "theirs")))
    ear()
    assert [job.task_identifier for job in work(api, worker, tasks=["mine"]).jobs] == ["mine"]
    assert ear() == 1
    assert [job.task_identifier for job in work(api, other, tasks=["theirs"]).jobs] == ["theirs"]


@pytest.mark.parametrize("room", [1, 2])
def test_a_turn_wakes_others_for_due_jobs_that_it_does_not_take(
    api: Any, actor: Any, worker: int, clock: Any, ear: Any, room: int
) -> None:
    api.rows("update pyworker.workers set expires_at = 'infinity'")
    other = api.register_worker()
    turn_when(lambda turn: turn.again > 0.25, api, other)  # it waits
    silently(actor, *[{"identifier": "t", "run_at": api.at("1 hour")}] * 3)
    clock.advance(hours=2)
    ear()
    turn = work(api, worker, room=room)
    assert len(turn.jobs) == room
    assert ear() == 1
    assert len(work(api, other).jobs) == 3 - room


def test_a_session_that_notifies_nobody_may_prepare_its_turn(api: Any, worker: int, ear: Any) -> None:
    first = claimed(api, worker, "t")[0]
    for _ in range(2):
        api.add_job("t", queue_name="q")
    (second,) = work(api, worker).jobs
    work(api, api.register_worker())
    ear()
    api.rows("set pyworker.notify = off")
    work(api, worker, [(first.id, first.run), (second.id, second.run)], None, 0)
    assert ear() == 0
    api.rows("reset pyworker.notify")


def test_after_a_turn_adds_of_the_same_transaction_notify_as_ever(api: Any, worker: int, ear: Any) -> None:
    (job,) = claimed(api, worker, "t")
    work(api, worker)  # it waits
    ear()
    with api.conn.transaction():
        work(api, worker, [(job.id, job.run)], None, 0)
        api.add_job("t")
    assert ear() == 1


@pytest.mark.parametrize("reports", ["none", "done", "fail"])
def test_only_a_turn_with_reports_waits_for_the_disk(api: Any, worker: int, reports: str) -> None:
    (job,) = claimed(api, worker, "t")
    api.add_job("t")
    with api.conn.transaction():
        api.rows("set local synchronous_commit = off")
        work(
            api, worker, [(job.id, job.run)] if reports == "done" else (),
            [word(job, "fail")] if reports == "fail" else None,
        )  # fmt: skip
        assert api.value("show synchronous_commit") == ("off" if reports == "none" else "on")


def test_a_thousand_reports_are_one_call(api: Any, worker: int) -> None:
    api.add_jobs([{"identifier": "t"}] * 1000)
    jobs = work(api, worker, room=1000).jobs
    reports = [word(job, "fail", error=json.dumps({"n": n})) for n, job in enumerate(jobs[:500])]
    turn = work(api, worker, [(job.id, job.run) for job in jobs[500:]], reports, 0)
    assert turn.refused == []
    states = api.rows("select state, count(*) as n from pyworker.live_jobs group by 1")
    assert [(row.state, row.n) for row in states] == [("retryable", 500)]
