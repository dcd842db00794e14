"""Jobs that wait for jobs."""

from __future__ import annotations

from typing import Any

from psycopg.types.json import Jsonb

from tests.support.api import ids

ENDS = {
    "completed": lambda api, job: api.finish(job),
    "cancelled": lambda api, job: api.cancel_job(job, True),
    "discarded": lambda api, job: api.fail_jobs(
        Jsonb([{"id": job, "run": api.get_job(job).run, "error": "e", "discard": True}])
    ),
}


def child(api: Any, depends_on: Any, **more: Any) -> int:
    return api.add_job("child", depends_on=Jsonb(depends_on), **more).id


def running(api: Any, worker: int, **more: Any) -> int:
    job = api.add_job("parent", **more).id
    assert ids(api.claim_jobs(worker, 1, ["parent"])) == [job]
    return job


def two_ends(api: Any, actor: Any, worker: int, level: str) -> tuple[list[int], int, list[Any]]:
    """Two parents, a child of both, and two sessions: each has finished a parent, and has not committed."""
    parents = [running(api, worker) for _ in range(2)]
    job = child(api, parents)
    assert state(api, job) == "pending"
    sessions = [actor(), actor()]
    for session, parent in zip(sessions, parents, strict=True):
        session.begin(level)
        session.finish(parent)
    return parents, job, sessions


def settle(api: Any) -> None:
    """Promotes, and again when a promotion that met another session's lock has asked for it, a few times."""
    for _ in range(4):
        api.promote_jobs()
        api.promote_jobs()  # what the first one has asked for
        soon = api.value(
            "select extract(epoch from min(at) - pyworker.clock())::float from pyworker.promotion_requests"
            " where at < pyworker.clock() + interval '1 second'"
        )
        if soon is None:
            return
        api.rows("select pg_sleep(%s)", [max(soon, 0)])
    api.promote_jobs()


def state(api: Any, job: int) -> str:
    settle(api)
    return api.get_job(job).state
