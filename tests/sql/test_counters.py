"""Counters that reach the end of their type: nothing stops there."""

from __future__ import annotations

from typing import Any


def test_a_unique_key_may_be_added_for_ever(api: Any) -> None:
    policy = {"keys": ["type"], "on_conflict": "replace"}
    api.add_job("t", unique_policy=policy)
    api.rows("update pyworker.unique_keys set adds = 2147483646")
    jobs = [api.add_job("t", unique_policy=policy).id for _ in range(3)]
    assert [api.get_job(job).state for job in jobs] == ["cancelled", "cancelled", "available"]


def test_a_key_may_be_replaced_for_ever(api: Any) -> None:
    job = api.add_job("t", job_key="k", queue_name="q").id
    api.rows("update pyworker.live_jobs set revision = 2147483646")
    for queue in ("q", None, None, "q"):
        assert api.add_job("t", job_key="k", queue_name=queue).id == job
    assert api.get_job(job).revision > 0


def test_a_job_may_end_processes_for_ever(api: Any, worker: int) -> None:
    api.configure(max_crashes=100_000)
    jobs = [api.add_job("t").id for _ in range(2)]
    api.rows("update pyworker.live_jobs set crashes = 32767")
    claimed = api.claim_jobs(worker, 2)
    api.report_crash(worker, [job.id for job in claimed], [job.run for job in claimed])
    assert [api.get_job(job).state for job in jobs] == ["available"] * 2
