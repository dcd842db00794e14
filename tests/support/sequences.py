"""Jobs of the sequence s."""

from __future__ import annotations

from typing import Any

import pytest

S = {"key": "s"}


def add(api: Any, many: int = 1, identifier: str = "t", **named: Any) -> list[Any]:
    policy = {**S, **named.pop("policy", {})}
    return [api.add_job(identifier, sequence_policy=policy, **named) for _ in range(many)]


def drain(api: Any, worker: int) -> list[int]:
    """Run what can be claimed, never two at once; the ids in the order of their starts."""
    seen = []
    while claimed := api.claim_jobs(worker, 10):
        (job,) = claimed
        seen.append(job.id)
        assert api.finish_jobs([job.id], [job.run]) == [job.id]
    return seen


ENDS = ["commit", "rollback", "kill"]


def halted_by(api: Any) -> Any:
    rows = api.rows("select halted_by from pyworker.sequences where sequence_key = 's'")
    return rows[0][0] if rows else None


def now(api: Any) -> None:
    """From here on this session fails rather than waits."""
    api.conn.execute("set lock_timeout = '1ms'")


@pytest.fixture
def running(api: Any, worker: int) -> Any:
    """The first job of the sequence, which runs."""
    add(api)
    return api.claim(worker)


@pytest.fixture
def impatient(api: Any) -> Any:
    now(api)
    return api


def view(api: Any, key: str = "s") -> Any:
    """running, waiting, halted_by, reason; None if the sequence is not listed."""
    rows = api.rows("select * from pyworker.sequences where sequence_key = %s", [key])
    assert not rows or (rows[0].since is None) == (rows[0].halted_by is None)
    return tuple(rows[0][1:5]) if rows else None


def explain(api: Any, job_id: int) -> list[Any]:
    return api.rows("select * from pyworker.explain_job(%s)", [job_id])


# Which sequence a job belongs to ------------------------------------------------------------------


# Recovery -----------------------------------------------------------------------------------------


@pytest.fixture(params=["discarded", "cancelled"])
def halted(api: Any, worker: int, request: Any) -> list[Any]:
    """Four jobs of the sequence s, the second of which halted it."""
    jobs = add(api, 4)
    api.finish(api.claim(worker).id)
    api.fail(api.claim(worker), cancel=request.param == "cancelled", discard=True)
    assert view(api) == (None, 2, jobs[1].id, request.param)
    return jobs
