"""What a call costs depends on the jobs that it is about: not on those that wait beside them, and it runs
no statement for each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.plans import nodes, touched

MANY = 5_000


def statements(plans: list[dict[str, Any]]) -> int:
    """How many there were, without the bodies of expressions that PostgreSQL keeps as functions."""
    return sum(bool(plan["Query Text"]) for plan in plans)


def add(api: Any, count: int, **more: Any) -> list[int]:
    return [job.id for job in api.add_jobs([{"identifier": "t", **more}] * count)]


# The end of a worker ------------------------------------------------------------------------------

ENDS: dict[str, Callable[[Any, int], Any]] = {
    "unregister_worker": lambda a, worker: a.unregister_worker(worker),
    "close_worker": lambda a, worker: a.close_worker(worker),
    "report_crash": lambda a, worker: a.report_crash(worker),
    "reconcile": lambda a, worker: a.reconcile(worker, [], []),
    "force_unlock_workers": lambda a, worker: a.force_unlock_workers([str(worker)]),
}


@pytest.mark.parametrize("statistics", ["of an empty table", "of a full table"])
@pytest.mark.parametrize("end", ENDS)
def test_what_a_worker_holds_is_handed_back_without_a_look_at_what_waits(
    api: Any, worker: int, watched: Any, end: str, statistics: str
) -> None:
    api.rows("truncate pyworker.live_jobs; analyze pyworker.live_jobs")
    add(api, MANY)
    if statistics == "of a full table":
        api.rows("analyze pyworker.live_jobs")
    assert len(api.claim_jobs(worker, 10)) == 10
    rows = touched(watched(lambda a: ENDS[end](a, worker)))
    assert api.value("select count(*) from pyworker.jobs where state = 'running'") == 0
    assert 10 <= sum(rows.values()) < 200, rows
    assert "Seq Scan" not in rows


# Many queues --------------------------------------------------------------------------------------


def test_a_claim_looks_at_few_jobs_of_many_queues_without_a_limit(
    api: Any, worker: int, watched: Any
) -> None:
    names = [f"e{n}" for n in range(100)]
    for name in names:
        api.set_queue(name, None)
    while api.rows("select from pyworker.promotion_requests"):
        api.promote_jobs()
    api.add_jobs([{"identifier": "t", "queue_name": name} for name in names * 50])
    api.rows("analyze pyworker.live_jobs")
    for _ in range(3):
        rows = touched(watched(lambda a: a.claim_jobs(worker, 1)))
        assert len(watched.result) == 1
        assert sum(rows.values()) < 50, rows


def test_a_burst_of_new_queues_is_promoted_set_by_set(api: Any, watched: Any) -> None:
    def promoted(queues: int) -> int:
        api.add_jobs([{"identifier": "t", "queue_name": f"q{queues}.{n // 2}"} for n in range(2 * queues)])
        plans = watched(lambda a: a.promote_jobs())
        assert watched.result == queues
        return statements(plans)

    promoted(1)
    assert promoted(90) <= promoted(2) + 5


# Many jobs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, {"discard": True}], ids=["retryable", "discarded"])
def test_a_batch_of_failures_takes_as_many_statements_as_one_failure(
    api: Any, worker: int, watched: Any, more: dict[str, Any]
) -> None:
    def failed(count: int) -> int:
        add(api, count)
        jobs = api.claim_jobs(worker, count)
        failures = [{"id": job.id, "run": job.run, "error": "e", **more} for job in jobs]
        plans = watched(lambda a: a.fail_jobs(failures))
        assert watched.result == [job.id for job in jobs]
        return statements(plans)

    failed(1)
    assert failed(90) <= failed(1)


def test_many_ids_are_found_at_once_in_history_that_vacuum_has_not_seen(own: Any) -> None:
    own.rows("alter table pyworker.finished_jobs_default set (autovacuum_enabled = off)")
    own.define_task("t", retention="3 years")  # beyond the days, so into the default partition
    add(own, MANY)
    done = own.claim_jobs(own.register_worker(), MANY)
    own.finish_jobs([job.id for job in done], [job.run for job in done])
    read = (
        "select coalesce(sum(seq_tup_read + idx_tup_fetch), 0)::integer from pg_stat_xact_user_tables"
        " where relname ~ '^finished_jobs'"
    )
    ids = [job.id for job in done[2500:2600]]
    for statement in (
        "select id from pyworker.retry_jobs(%s)",
        "select (pyworker.delete_job(i)).id from unnest(%s::bigint[]) i",
    ):
        with own.conn.transaction():
            before = own.value(read)
            assert own.rows(statement, [ids]) == [(job_id,) for job_id in ids]
            assert own.value(read) - before <= 2000, statement
        ids = [job_id + 100 for job_id in ids]


def test_refs_that_point_forwards_cost_in_proportion_to_the_jobs(api: Any, watched: Any) -> None:
    def handled(count: int) -> float:
        """Rows that the steps of all plans gave: those of arrays, too."""
        specs = [{"identifier": "t", "ref": f"r{n}", "depends_on": [f"r{n + 1}"]} for n in range(count - 1)]
        specs.append({"identifier": "t", "ref": f"r{count - 1}"})
        plans = watched(lambda a: a.add_jobs(specs))
        assert len(watched.result) == count
        return sum(
            node["Actual Rows"] * node["Actual Loops"] for plan in plans for node in nodes(plan["Plan"])
        )

    handled(10)
    assert handled(160) <= 5 * handled(40)
