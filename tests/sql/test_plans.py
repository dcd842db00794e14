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
    assert found == {}, found


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
    _, claim, read = plans
    kinds = [(node["Node Type"], node.get("Index Name")) for node in nodes(claim["Plan"])]
    assert ("Index Scan", "live_jobs_ready") in kinds
    assert {kind for kind, _ in kinds} <= {
        "Aggregate", "CTE Scan", "Index Only Scan", "Index Scan", "Limit", "LockRows", "ModifyTable",
        "Nested Loop", "Result", "Subquery Scan", "Tid Scan",
    }  # fmt: skip
    kinds = [node["Node Type"] for node in nodes(read["Plan"])]
    assert kinds == ["Nested Loop", "Function Scan", "Index Scan"]
    # The look finds the first job, the claim finds and updates each one; then it reads what it returns.
    assert [sum(touched([plan]).values()) for plan in plans] == [1, 2 * limit, limit]


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


# Queues: what the others hold ------------------------------------------------------------------------


@pytest.mark.parametrize("analyzed", ["while empty", "while all of them wait", "while some are ready"])
def test_a_queues_turn_looks_at_no_other_queue(api: Any, worker: int, watched: Any, analyzed: str) -> None:
    analyze = "analyze pyworker.live_jobs"

    def turn(number: int, priority: int = 0) -> dict[str, float]:
        """An add to a queue of two jobs, and the promotion that it asks for."""
        api.add_job("t", queue_name=f"n{number}", priority=priority)
        rows = touched(watched(lambda a: a.promote_jobs()))
        assert watched.result == (priority == 0)
        return rows

    api.rows(f"truncate pyworker.live_jobs, pyworker.promotion_requests; {analyze}")
    try:
        api.rows(  # in no order
            "select count(*) from (select pyworker.add_jobs(jsonb_agg(jsonb_build_object("
            "  'identifier', 't', 'queue_name', 'n' || i * 7919 % 5000))) "
            "from generate_series(1, 10000) i) jobs"
        )
        if analyzed == "while some are ready":
            while api.promote_jobs():
                pass
            api.rows(
                "update pyworker.live_jobs set ready_at = null, slot = null, parked = 'queue' "
                "where queue_name ~ '^n3'"
            )
        api.rows("delete from pyworker.promotion_requests")
        if analyzed != "while empty":
            api.rows(analyze)
        for number in range(3000, 3006):
            turn(number)  # plans are kept from here on
            turn(number, priority=-1)
        rows = [turn(number) for number in range(3006, 3015)]
        better = [turn(number, priority=-1) for number in range(3006, 3015)]
        assert all(sum(found.values()) for found in rows + better)
        assert [found for found in rows if sum(found.values()) > 10 or "Seq Scan" in found] == []
        assert [found for found in better if sum(found.values()) > 20 or "Seq Scan" in found] == []
    finally:
        api.rows("truncate pyworker.live_jobs, pyworker.promotion_requests; analyze pyworker.live_jobs")
