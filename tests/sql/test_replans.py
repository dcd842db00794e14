"""A session plans the statements of a function once. On a new database PostgreSQL believes for long that
a plan with the values in it is cheaper: each call would plan again, which costs more than the call. After one
plan without values that seemed dear, a session believes so for good: PostgreSQL does not look at its cost
again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.api import ids

SQL_FUNCTION = "SQL function "  # before 18, PostgreSQL plans those that it does not inline in each call
TURN = "select * from pyworker.work(%s, %s::bigint[], %s::bigint[], null, null, 10, array['t'])"


def turn(api: Any, worker: int, **more: Any) -> Callable[[], Any]:
    """A turn that reports the job of the turn before and claims one."""
    held: list[list[int] | None] = [None, None]

    def call() -> None:
        api.add_job("t", **more)
        jobs = [row for row in api.rows(TURN, [worker, *held]) if row.kind == "job"]
        held[:] = [[row.id for row in jobs], [row.run for row in jobs]]

    return call


def finish(api: Any, worker: int, **more: Any) -> Callable[[], Any]:
    """The end of a job with another one behind it."""
    api.add_jobs([{"identifier": "t", **more}] * 60)

    def call() -> None:
        (job,) = api.claim_jobs(worker, 1)
        api.finish_jobs([job.id], [job.run])

    return call


def beat(api: Any, worker: int) -> Callable[[], Any]:
    """A beat of a worker with a long lease, just after another worker's sweep: they are rare."""
    api.configure(worker_ttl="1 day")
    api.heartbeat(worker)
    return lambda: api.rows(
        "with swept as materialized ("
        "  select setval('pyworker.swept_at', (extract(epoch from clock_timestamp()) * 1000)::bigint),"
        "    %s::bigint as worker) "
        "select b.* from swept s cross join lateral pyworker.beat(s.worker) b",
        [worker],
    )


def claimed(api: Any, worker: int) -> Any:
    job = api.add_job("t")
    (claim,) = api.claim_jobs(worker, 1)
    assert claim.id == job.id
    return claim


def due(api: Any, clock: Any) -> None:
    api.add_job("later", run_at=api.at("1 second"))
    clock.advance(seconds=2)
    assert api.promote_jobs() == 1


VERBS: dict[str, Callable[[Any, int, Any], Callable[[], Any]]] = {
    "add_job": lambda api, worker, clock: lambda: api.add_job("t"),
    "add_job with a key": lambda api, worker, clock: lambda: api.add_job("t", job_key="k"),
    "add_job, unique": lambda api, worker, clock: lambda: api.add_job(
        "t", unique_policy={"keys": ["args"], "on_conflict": "ignore"}
    ),
    "add_jobs": lambda api, worker, clock: lambda: api.add_jobs([{"identifier": "t"}]),
    "promote_jobs": lambda api, worker, clock: lambda: due(api, clock),
    "a turn": lambda api, worker, clock: turn(api, worker),
    "a turn with a serial queue": lambda api, worker, clock: turn(api, worker, queue_name="q"),
    "a turn with a sequence": lambda api, worker, clock: turn(api, worker, sequence_policy={"key": "s"}),
    "a turn with nothing to do": lambda api, worker, clock: lambda: api.rows(TURN, [worker, None, None]),
    "seconds_until_due": lambda api, worker, clock: lambda: api.seconds_until_due(),
    "finish_jobs": lambda api, worker, clock: finish(api, worker),
    "finish_jobs of a serial queue": lambda api, worker, clock: finish(api, worker, queue_name="q"),
    "finish_jobs of a sequence": lambda api, worker, clock: finish(api, worker, sequence_policy={"key": "s"}),
    "beat": lambda api, worker, clock: beat(api, worker),
    "fail_jobs": lambda api, worker, clock: lambda: api.fail(claimed(api, worker), delay="1 day"),
    "delete_job": lambda api, worker, clock: lambda: api.delete_job(api.add_job("t").id),
    "cancel_job": lambda api, worker, clock: lambda: api.cancel_job(api.add_job("t").id),
    "retry_job": lambda api, worker, clock: lambda: api.retry_job(api.add_job("t").id),
    "complete_jobs": lambda api, worker, clock: lambda: api.complete_jobs(ids([api.add_job("t")])),
    "permanently_fail_jobs": lambda api, worker, clock: lambda: api.permanently_fail_jobs(
        ids([api.add_job("t")])
    ),
    "remove_job": lambda api, worker, clock: lambda: (api.add_job("t", job_key="k"), api.remove_job("k")),
    "reschedule_jobs": lambda api, worker, clock: lambda: api.reschedule_jobs(
        ids([api.add_job("t")]), priority=3
    ),
}  # fmt: skip


@pytest.fixture
def fresh(actor: Any) -> Any:
    """A session of its own: the tests before this one leave their plans, and their costs, in theirs."""
    return actor()


@pytest.fixture
def planned(fresh: Any) -> Iterator[list[str]]:
    """Where PostgreSQL plans for this session, as it happens; empty for what the test itself sends."""
    where: list[str] = []
    fresh.rows("set client_min_messages = log; set log_planner_stats = on")
    fresh.conn.add_notice_handler(lambda notice: where.append(notice.context or ""))
    fresh.rows("do 'begin perform from pg_class limit 1; end'")
    assert any(where), "the server says when it plans"
    yield where
    fresh.rows("reset client_min_messages; reset log_planner_stats")


def until_nothing_is_planned(call: Callable[[], Any], planned: list[str]) -> None:
    found: list[set[str]] = []
    # A statement's first five runs plan it, and on a busy machine a look-up may go another way for a while.
    while len(found) < 60 and (len(found) < 5 or any(found[-5:])):
        planned.clear()
        call()
        found.append({where for where in planned if where and not where.startswith(SQL_FUNCTION)})
    assert found[-5:] == [set()] * 5


@pytest.mark.parametrize("verb", VERBS)
def test_a_session_does_not_plan_a_functions_statements_again(
    fresh: Any, worker: int, clock: Any, planned: list[str], verb: str
) -> None:
    until_nothing_is_planned(VERBS[verb](fresh, worker, clock), planned)


@pytest.mark.parametrize("verb", VERBS)
def test_nor_when_look_ups_seemed_dear_at_its_sixth_call(
    fresh: Any, worker: int, clock: Any, planned: list[str], verb: str, api: Any, db: Any
) -> None:
    call = VERBS[verb](fresh, worker, clock)
    for _ in range(5):
        call()
    # An index with many pages for two rows: each look-up is believed to read half of them.
    others = ids(api.add_jobs([{"identifier": "other", "run_at": api.at("1 day").isoformat()}] * 5000))
    db.execute("delete from pyworker.live_jobs where id = any (%s)", [others[2:]])
    db.execute("analyze pyworker.live_jobs")
    call()
    db.execute("delete from pyworker.live_jobs where id = any (%s)", [others])
    db.execute("vacuum (analyze) pyworker.live_jobs")
    until_nothing_is_planned(call, planned)
