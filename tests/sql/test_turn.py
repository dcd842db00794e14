"""work, one call a turn: reports, then promotion, then claim, all or nothing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.api import Api
from tests.support.turns import claimed, word, work


def test_a_job_comes_with_all_that_a_handler_needs(api: Any, worker: int) -> None:
    api.define_task("t", timeout="90 seconds")
    added = api.add_job(
        "t", {"a": 1}, queue_name="q", job_key="k", flags=["f"], meta={"m": 2}, priority=3, max_attempts=7,
        delivery="at_most_once", sequence_policy={"key": "s"},
    )  # fmt: skip
    (job,) = work(api, worker).jobs
    assert job.run == api.get_job(added.id).run
    assert (job.task_identifier, job.payload, job.attempts, job.max_attempts) == ("t", {"a": 1}, 1, 7)
    assert (job.queue_name, job.key, job.flags, job.meta) == ("q", "k", {"f": True}, {"m": 2})
    assert (job.sequence_key, job.delivery, job.crashes) == (added.sequence_key, "at_most_once", 0)
    assert job.timeout_s == 90
    assert (job.run_at_s, job.created_at_s) == (added.run_at.timestamp(), added.created_at.timestamp())


def test_a_task_without_a_timeout_has_none(api: Any, worker: int) -> None:
    assert claimed(api, worker, "t")[0].timeout_s is None


@pytest.mark.parametrize(
    "report", [{"do": "release"}, {"do": "fail", "delay_s": 0}, {"do": "snooze", "delay_s": 0}]
)
def test_the_same_turn_may_claim_what_it_gave_back(api: Any, worker: int, report: Any) -> None:
    (job,) = claimed(api, worker, "t")
    (again,) = work(api, worker, (), [{"id": job.id, "run": job.run, **report}]).jobs
    assert again.id == job.id
    assert again.run > job.run


@pytest.mark.parametrize("end", ["close", "crash", "never was"])
@pytest.mark.parametrize("room", [0, 5])
def test_of_a_worker_that_has_ended_nothing_counts(api: Any, worker: int, end: str, room: int) -> None:
    (job,) = claimed(api, worker, "t")
    if end == "close":
        api.close_worker(worker)
    elif end == "crash":
        api.report_crash(worker, [job.id], [job.run])
    (again,) = (
        claimed(api, api.register_worker(), "t")
        if end == "never was"
        else work(api, api.register_worker()).jobs
    )
    me = 4711 if end == "never was" else worker
    with api.refusal("PW004", f"worker {me} is unknown, was closed or was declared dead"):
        work(api, me, [(again.id, again.run)], None, room)
    assert api.get_job(again.id).state == "running"


def test_a_turn_that_is_rolled_back_leaves_nothing(api: Any, worker: int) -> None:
    a, b = claimed(api, worker, "a", "b")
    added = api.add_job("c")
    with api.conn.transaction(force_rollback=True):
        assert len(work(api, worker, [(a.id, a.run)], [word(b, "release")]).jobs) == 2
    assert [api.get_job(job.id).state for job in (a, b, added)] == ["running", "running", "available"]
    assert work(api, worker, [(a.id, a.run)], [word(b, "release")], 0).refused == []


def test_a_turn_takes_only_what_it_asks_for(api: Any, worker: int) -> None:
    for task, options in {"a": {}, "b": {"queue_name": "q"}, "c": {"flags": ["f"]}}.items():
        api.add_job(task, **options)
    assert [job.task_identifier for job in work(api, worker, tasks=["c"], flags=["f"]).jobs] == []
    assert [job.task_identifier for job in work(api, worker, queues=["q"]).jobs] == ["b"]
    assert [job.task_identifier for job in work(api, worker, flags=["f"]).jobs] == ["a"]
    assert [job.task_identifier for job in work(api, worker, room=1).jobs] == ["c"]


def test_after_a_full_turn_there_may_be_more(api: Any, worker: int) -> None:
    api.add_jobs([{"identifier": "t"}, {"identifier": "t"}])
    assert work(api, worker, room=1).again == 0
    assert work(api, worker, room=5).again > 0


def test_an_idle_worker_may_wait(api: Any, worker: int) -> None:
    assert max(work(api, worker).again for _ in range(2)) >= 0.5


CALL, MOVABLE_CLOCK = "the statement that calls work", 'SQL function "clock"'
LANES: dict[str, dict[str, Any] | None] = {
    "nothing to do": None,
    "plain jobs": {},
    "a serial queue": {"queue_name": "q"},
    "a sequence": {"sequence_policy": {"key": "s"}},
}


@pytest.mark.parametrize("lane", LANES)
def test_a_session_plans_the_statements_of_a_turn_once(own: Api, lane: str) -> None:
    """Planning one of them costs more than all else in a turn of one job. PL/pgSQL keeps a plan for all
    values if it seems as cheap as those for the first five, which statistics decide: here, of new tables."""
    options, planned = LANES[lane], list[str]()
    own.conn.add_notice_handler(lambda notice: planned.append(notice.context or CALL))
    worker, done, each = own.register_worker(), [], list[set[str]]()
    for number in range(24):
        if options is not None:
            own.add_job("t", **options)
        if number == 19:
            own.rows("set log_planner_stats = on; set client_min_messages = log")
        planned.clear()
        done = [(job.id, job.run) for job in work(own, worker, done).jobs]
        assert len(done) == (options is not None)
        each.append({context for context in planned if not context.startswith((CALL, MOVABLE_CLOCK))})
    own.rows("reset log_planner_stats")
    # What only one of them planned, it did for the first time: a slow look-up goes another way.
    assert set.intersection(*each[19:]) == set()
