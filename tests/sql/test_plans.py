"""Hot calls touch what they return and little more, with any statistics; a claim is a HOT update."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.support.plans import TIDIED, nodes, touched
from tests.support.turns import work

MANY = 5_000


def fill(
    api: Any, count: int = MANY, run_at: str = "0", queue: str | None = None, key: str | None = None
) -> None:
    api.rows(
        "select count(*) from (select pyworker.add_jobs(jsonb_agg(jsonb_build_object("
        "  'identifier', 't', 'run_at', pyworker.clock() + %s::interval, 'queue_name', %s::text, "
        "'priority', i %% 3,"
        "  'job_key', %s::text || i))) from generate_series(1, %s) i) jobs",
        [run_at, queue, key, count],
    )


def pairs(held: list[Any]) -> tuple[list[int], list[int]]:
    return [job.id for job in held], [job.run for job in held]


def failures(held: list[Any]) -> list[dict[str, Any]]:
    return [{"id": job.id, "run": job.run} for job in held]


TURN = "select * from pyworker.work(1, null, null, null, null, 100)"
# How many rows a call may look at, with MANY beside that are none of its business. `held`: 100 jobs
# claimed before.
Calls = dict[str, tuple[Callable[[Any, list[Any]], Any], float]]
CALLS: dict[str, tuple[dict[str, Any], Calls]] = {
    "available": ({"key": "k"}, {
        # each job four times and once more to return it; now and then what the worker has claimed before
        "claim_jobs": (lambda a, held: a.claim_jobs(1, 100), 600),
        "work": (lambda a, held: a.rows(TURN), 500),
        "finish_job": (lambda a, held: a.finish_job(held[0].id, held[0].run), 2),
        "snooze_job": (lambda a, held: a.snooze_job(held[1].id, held[1].run, "1 hour"), 4),
        "finish_jobs": (lambda a, held: a.finish_jobs(*pairs(held[10:40])), 60),
        "fail_jobs": (lambda a, held: a.fail_jobs(failures(held[40:70])), 130),
        "release_jobs": (lambda a, held: a.release_jobs(*pairs(held[70:])), 130),
        "add_job": (lambda a, held: a.add_job("t"), 0),
        "add_job, keyed": (lambda a, held: a.add_job("t", job_key="k77"), 4),
        "add_jobs, keyed": (
            lambda a, held: a.add_jobs([{"identifier": "t", "job_key": f"k{i}"} for i in range(100, 130)]),
            250),
        "remove_job": (lambda a, held: a.remove_job("k78"), 4),
        "cancel_job": (lambda a, held: a.cancel_job(MANY), 4),
        "get_job": (lambda a, held: a.get_job(MANY - 1), 2),
        "metrics": (lambda a, held: a.metrics(100), 400),
    }),
    "parked": ({"queue": "q"}, {
        "claim_jobs": (lambda a, held: a.claim_jobs(1, 100), 10),
        "work": (lambda a, held: a.rows(TURN), 10),
        "finish_job": (lambda a, held: a.finish_job(held[0].id, held[0].run), 10),
        "add_job": (lambda a, held: a.add_job("t", queue_name="q"), 2),
        "promote_jobs": (lambda a, held: a.promote_jobs(), 10),
        "metrics": (lambda a, held: a.metrics(100), 400),
    }),
    "scheduled": ({"run_at": "1 day"}, {
        "claim_jobs": (lambda a, held: a.claim_jobs(1, 100), 5),
        "work": (lambda a, held: a.rows(TURN), 5),
        "promote_jobs": (lambda a, held: a.promote_jobs(), 5),
        "seconds_until_due": (lambda a, held: a.seconds_until_due(), 2),
        "reconcile": (lambda a, held: a.reconcile(1, [], []), 5),
        "force_unlock_workers": (lambda a, held: a.force_unlock_workers(["1"]), 5),
        "maintain": (lambda a, held: a.maintain(), 5),
        "metrics": (lambda a, held: a.metrics(100), 400),
    }),
}  # fmt: skip


@pytest.mark.parametrize("statistics", ["of an empty table", "of a full table", "of a table once full"])
@pytest.mark.parametrize("others", CALLS)
def test_a_hot_call_touches_little_more_than_it_returns(
    api: Any, worker: int, watched: Any, others: str, statistics: str
) -> None:
    load, calls = CALLS[others]
    api.rows("truncate pyworker.live_jobs")
    if statistics == "of a table once full":
        fill(api, **load)
    api.rows(
        "analyze pyworker.live_jobs; delete from pyworker.live_jobs; delete from pyworker.promotion_requests"
    )
    held: list[Any] = [type("Job", (), {"id": 0, "run": 0})] * 100
    for _ in range(6):  # a plan may be kept from here on
        for call, _ in calls.values():
            with contextlib.suppress(psycopg.ProgrammingError):
                watched(lambda a, call=call: call(a, held))
    # By delete: truncate and analyze make every session plan again.
    api.rows(
        "delete from pyworker.live_jobs; delete from pyworker.promotion_requests; "
        "select setval('pyworker.job_ids', 1, false)"
    )
    fill(api, **load)
    if statistics == "of a full table":
        api.rows("analyze pyworker.live_jobs")
    if others != "scheduled":
        held = api.claim_jobs(worker, 100)
    found = {}
    for name, (call, limit) in calls.items():
        rows = touched(watched(lambda a, call=call: call(a, held)))
        watched(lambda a: a.rows(TIDIED))
        if "Seq Scan" in rows or sum(rows.values()) > limit:
            found[name] = rows
    assert found == {}


@pytest.mark.parametrize("statistics", ["of an empty table", "of a full table"])
@pytest.mark.parametrize("limit", [1, 100, 2000])
def test_a_claim_walks_the_index_in_order_and_sorts_nothing(
    api: Any, worker: int, watched: Any, statistics: str, limit: int
) -> None:
    for _ in range(3):  # on a busy machine a look may seem slow, and then the claim promotes, too
        api.rows("truncate pyworker.live_jobs; analyze pyworker.live_jobs")
        watched(lambda a: a.claim_jobs(worker, limit))
        fill(api)
        if statistics == "of a full table":
            api.rows("analyze pyworker.live_jobs")
        expected = api.rows("select id from pyworker.jobs order by priority, run_at, id limit %s", [limit])
        plans = [p for p in watched(lambda a: a.claim_jobs(worker, limit)) if sum(touched([p]).values())]
        assert [(job.id,) for job in watched.result] == expected
        if len(plans) == 3:
            break
    assert len(plans) == 3, [plan["Query Text"] for plan in plans]
    walk, update, read = plans
    kinds = [(node["Node Type"], node.get("Index Name")) for node in nodes(walk["Plan"])]
    assert ("Index Scan", "live_jobs_ready") in kinds
    assert {kind for kind, _ in kinds} <= {
        "Aggregate",
        "Subquery Scan",
        "Nested Loop",
        "Function Scan",
        "Limit",
        "LockRows",
        "Index Scan",
        "Index Only Scan",  # of promotion_requests and of due jobs
        "Result",  # what a round looks at first
    }
    assert {node["Node Type"] for node in nodes(update["Plan"])} == {
        "ModifyTable",
        "Result",  # the row of claims
        "Nested Loop",
        "Function Scan",
        "Tid Scan",
        "Index Scan",  # of tasks
    }
    kinds = [node["Node Type"] for node in nodes(read["Plan"])]
    assert kinds == ["Nested Loop", "Function Scan", "Index Scan"]
    assert [sum(touched([plan]).values()) for plan in plans] == [limit, limit, limit]


@pytest.mark.parametrize("batch", [1, 20])
@pytest.mark.parametrize("verb", ["claim_jobs", "work"])
def test_a_claim_is_a_hot_update(api: Any, actor: Any, worker: int, verb: str, batch: int) -> None:
    api.rows("truncate pyworker.live_jobs")
    fill(api, 200)
    a = actor()

    def counts() -> Any:
        (row,) = a.rows(
            "select coalesce(sum(n_tup_upd), 0) as updates, coalesce(sum(n_tup_hot_upd), 0) as hot"
            " from pg_stat_xact_user_tables where relname = 'live_jobs'"
        )
        return row

    a.begin()
    before, jobs = counts(), list[Any]()
    for _ in range(60 // batch):
        done = [(job.id, job.run) for job in jobs]
        jobs = a.claim_jobs(worker, batch) if verb == "claim_jobs" else work(a, worker, done, room=batch).jobs
        assert len(jobs) == batch
    assert [now - then for now, then in zip(counts(), before, strict=True)] == [60, 60]


# Queues and sequences, at the size that the contract speaks of ------------------------------------

CROWD = """
    insert into pyworker.live_jobs (
        state, parked, updated_at, priority, max_attempts, run_at, created_at, task_identifier, queue_name,
            delivery, payload, sequence_key)
    select case k.parked when 'queue' then 'available' else 'pending' end, k.parked, now(), i % 3, 25, now(),
        now(), 't',
           k.name || case when k.name = 'n' then i::text else '' end,
           'at_least_once', '{}', k.key
    from (values ('n', 'queue', null, 50000), ('q', 'queue', null, 100000),
        (null, 'sequence', 's', 100000)) k(name, parked, key, many)
    cross join generate_series(1, k.many / %s) i
"""
LIMITS = """
    insert into pyworker.queues (queue_name, concurrency)
    select 'n' || i, 2 from generate_series(40001, 50000) i union all select 'z' || i || '*', 2
    from generate_series(1, 5) i
"""


def step(sql: str) -> Callable[[Any], Any]:
    return lambda a: a.rows("set search_path = pyworker; " + sql)


def filling(queue_names: str) -> Callable[[Any], Any]:
    return step(
        f"select _fill_queues(array_agg(q.queue_name), array_agg(q.slots)) from _queues_of('{queue_names}') q"
    )


# In this order; each is one state of the queue q, or of the sequence s, and how many rows of
# live_jobs it may touch.
STEPS: dict[str, tuple[Callable[[Any], Any], float]] = {
    "_fill_queues, a free slot": (filling("{q}"), 5),
    "_fill_queues, no free slot": (filling("{q}"), 5),
    "_fill_queues, one queue of many": (filling("{n4711}"), 5),
    "_fill_queues, one that was set": (filling("{n47110}"), 5),
    "_fill_queues, no such queue": (filling("{none}"), 0),
    "set_queue": (step("select set_queue('q', 4)"), 0),
    "_fill_queues, a raised limit": (filling("{q}"), 10),
    "lower": (step("select set_queue('q', 1)"), 0),
    "_fill_queues, a lowered limit": (filling("{q}"), 20),
    "lift": (step("select set_queue('q')"), 0),
    "_fill_queues, no limit": (filling("{q}"), 3100),
    "_fill_queues, no limit, full": (filling("{q}"), 1100),
    "pause_queue": (step("select pause_queue('q')"), 0),
    "_fill_queues, paused": (filling("{q}"), 3100),
    "_park_candidates, none": (step("select _park_candidates('{n4711}')"), 2100),
    "resume_queue": (step("select resume_queue('q')"), 0),
    "serial": (step("select set_queue('q', 1)"), 0),
    "_queue_changed": (step("select _queue_changed('q*'), _queue_changed('n*'), _queue_changed('q')"), 0),
    "_fill_family, one name": (step("select _fill_family('q')"), 6),
    "_fill_family, a thousand names": (step("select _fill_family('n49')"), 3500),
    "_fill_family, no name": (step("select _fill_family('none')"), 5),
    "_promote_idle_sequences, no head": (step("select _promote_idle_sequences('{s}', clock_timestamp())"), 6),
    "_promote_idle_sequences, a head": (step("select _promote_idle_sequences('{s}', clock_timestamp())"), 3),
    "an end": (
        step("select close from _finalize_jobs("
             "array(select id from live_jobs where sequence_head), null, 'completed') close"), 15,
    ),
    "_promote_next, no such": (step("select _promote_next('{none}', null)"), 0),
    "promote_jobs": (
        step("delete from promotion_requests;"
             "insert into promotion_requests values ('queue:q'), ('sequence:s');"
             "select promote_jobs()"), 12,
    ),
    "reset": (step("delete from queues where queue_name = 'q'; delete from promotion_requests"), 0),
}  # fmt: skip


@pytest.mark.parametrize("analyzed", ["while empty", "while all of them wait", "while some are ready"])
def test_a_queues_turn_looks_at_no_other_queue(api: Any, worker: int, watched: Any, analyzed: str) -> None:
    analyze = "analyze pyworker.live_jobs"
    ready = (
        "update pyworker.live_jobs set state = 'available', ready_at = run_at, parked = null "
        "where queue_name ~ %s"
    )

    def turn(number: int) -> dict[str, float]:
        """Within a claim, as its settings count, too."""
        sql = (
            f"insert into promotion_requests values ('queue:n{number}'); "
            f"select claim_jobs({worker}, 1, '{{}}')"
        )
        plans = watched(step(sql))
        return touched([plan for plan in plans if "has_slot = nullif" in plan["Query Text"]])

    api.rows(f"truncate pyworker.live_jobs; {analyze}")
    try:
        api.rows(  # in no order
            "select count(*) from (select pyworker.add_jobs(jsonb_agg(jsonb_build_object("
            "  'identifier', 't', 'queue_name', 'n' || i * 7919 % 5000))) "
            "from generate_series(1, 10000) i) jobs;"
            "delete from pyworker.promotion_requests"
        )
        if analyzed == "while some are ready":
            api.rows(ready, ["^n10"])
        if analyzed != "while empty":
            api.rows(analyze)
        turn(3000)  # plans are kept from here on
        api.rows(ready, ["^n1"])
        rows = [turn(number) for number in range(3001, 3010)]
        assert all(rows)
        assert [
            found for found in rows if sum(found.values()) > 5
        ] == []  # the first, the last, and the one that gets the slot
    finally:
        api.rows("truncate pyworker.live_jobs, pyworker.promotion_requests; analyze pyworker.live_jobs")


def test_queues_and_sequences_touch_few_rows_however_many_wait_and_with_any_statistics(
    api: Any, watched: Any
) -> None:
    found: dict[str, Any] = {}

    def steps(when: str) -> None:
        for name, (call, limit) in STEPS.items():
            plans = [
                plan for plan in watched(call) if "set search_path = pyworker;" not in plan["Query Text"]
            ]
            rows, limits = touched(plans), touched(plans, "queues")
            if (
                "Seq Scan" in {*rows, *limits}
                or sum(rows.values()) > limit + 10  # while the table is all but empty any index will do
                or (name.startswith("_fill_queues") and sum(limits.values()) > 10)
            ):
                found[f"{when}: {name}"] = {**rows, **limits}

    def again() -> None:
        """All as it was before the steps."""
        api.rows(
            "update pyworker.live_jobs set ready_at = null, sequence_head = null,"
            "  state = case when queue_name is null then 'pending' else 'available' end,"
            "  parked = case when queue_name is null then 'sequence' else 'queue' end"
            " where ready_at is not null or sequence_head"
        )

    api.rows("truncate pyworker.live_jobs, pyworker.queues; analyze pyworker.live_jobs, pyworker.queues")
    try:
        for _ in range(6):
            api.rows(CROWD.replace("% 3", "%% 3"), [25_000])  # a few, so that every statement is planned
            steps("few rows")
            api.rows("delete from pyworker.live_jobs")
        api.rows(CROWD.replace("% 3", "%% 3"), [1])
        api.rows(LIMITS)
        steps("statistics of an empty table")
        again()
        api.rows("analyze pyworker.live_jobs, pyworker.queues")
        for _ in range(6):
            steps("statistics of a full table")
            again()
        api.rows("delete from pyworker.live_jobs")
        api.rows(CROWD.replace("% 3", "%% 3"), [25_000])
        steps("statistics of a table once full")
    finally:
        api.rows(
            "truncate pyworker.live_jobs, pyworker.queues, pyworker.promotion_requests, "
            "pyworker.finished_jobs"
        )
        api.rows("analyze pyworker.live_jobs, pyworker.queues")
    assert found == {}
