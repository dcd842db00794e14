"""pause_queue of a family: no job of its queues starts, with any limits, until the family is resumed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.api import ids


def claims(api: Any, worker: int) -> list[int]:
    api.promote_jobs()
    return ids(api.claim_jobs(worker, 10))


LIMITS: dict[str, Any] = {
    "serial": None,
    "family": ("customer:*", 2),
    "own": ("customer:1", 2),
    "no limit": ("customer:*", None),
}


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("added", ["before", "after"])
def test_a_family_is_paused_and_resumed(api: Any, worker: int, limits: str, added: str) -> None:
    if LIMITS[limits]:
        api.set_queue(*LIMITS[limits])
    job = api.add_job("t", queue_name="customer:1").id if added == "before" else 0
    api.pause_queue("customer:*")
    job = job or api.add_job("t", queue_name="customer:1").id
    other = api.add_job("t", queue_name="other").id
    assert claims(api, worker) == [other]
    (row, *_) = api.rows("select * from pyworker.explain_job(%s)", [job])
    assert (row.reason, row.detail) == ("queue paused", "queue customer:* is paused")
    assert "resume_queue('customer:*')" in row.remedy
    found = "select finding, fix from pyworker.doctor() where check_name = 'queues'"
    assert api.rows(found) == [
        ("jobs wait in paused queues: customer:*", "select pyworker.resume_queue('customer:*')")
    ]
    api.resume_queue("customer:*")
    assert claims(api, worker) == [job]


def test_doctor_names_a_paused_family_whose_jobs_were_ready_before_and_no_worker_has_looked(
    api: Any,
) -> None:
    """Beside queues before and after it by name, whose jobs are ready, and that are not paused."""
    found = "select severity, finding from pyworker.doctor() where check_name = 'queues'"
    for name in ("a", "customer:1", "z"):
        api.set_queue(name, 2)
        api.add_job("t", queue_name=name)
    api.pause_queue("b*")
    assert api.rows(found) == [("ok", "nothing waits in a paused queue")]
    api.pause_queue("customer:*")
    assert api.rows(found) == [("info", "jobs wait in paused queues: customer:*")]


def test_a_queue_that_is_paused_by_itself_stays_paused_when_its_family_is_resumed(
    api: Any, worker: int
) -> None:
    job = api.add_job("t", queue_name="customer:1").id
    api.pause_queue("customer:1")
    api.pause_queue("customer:*")
    api.resume_queue("customer:*")
    assert claims(api, worker) == []
    api.pause_queue("customer:*")
    api.resume_queue("customer:1")
    assert claims(api, worker) == []
    api.resume_queue("customer:*")
    assert claims(api, worker) == [job]


def test_a_pause_of_a_family_leaves_the_limits_of_a_wider_one(api: Any, worker: int) -> None:
    api.set_queue("customer:*", 2)
    jobs = [api.add_job("t", queue_name="customer:vip:1").id for _ in range(3)]
    api.pause_queue("customer:vip:*")
    assert claims(api, worker) == []
    api.resume_queue("customer:vip:*")
    assert claims(api, worker) == jobs[:2]
