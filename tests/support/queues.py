"""Jobs of a named queue."""

from __future__ import annotations

import time
from typing import Any

from tests.support import DEADLINE

FORGET_FLOORS = (
    "select set_config('pyworker.floor_' || name, '', false) from unnest('{ready,due}'::text[]) name"
)


def add(api: Any, count: int, queue: str = "q", **named: Any) -> list[int]:
    return [job.id for job in api.add_jobs([{"identifier": "t", "queue_name": queue, **named}] * count)]


def claim(api: Any, worker: int, limit: int = 100) -> list[int]:
    return sorted(job.id for job in api.claim_jobs(worker, limit))


def states(api: Any, queue: str = "q") -> dict[str, int]:
    sql = "select state, count(*)::integer from pyworker.jobs where queue_name = %s group by 1"
    return dict(api.rows(sql, [queue]))


def finish_all(api: Any, worker: int) -> list[int]:
    """Claim and finish until nothing is left; the ids."""
    done = []
    running = api.rows("select id, run from pyworker.jobs where state = 'running'")
    while running or (running := api.claim_jobs(worker, 100)):
        done += api.finish_jobs([job.id for job in running], [job.run for job in running])
        running = []
    return sorted(done)


def claim_from_the_head(api: Any, worker: int, most: int) -> list[Any]:
    """As a session claims that remembers no walk. This one would walk from the head in two seconds."""
    api.rows(FORGET_FLOORS)
    return api.claim_jobs(worker, most)


SOON = "select from pyworker.promotion_requests where at is null or at < pyworker.clock() + interval '0.3 s'"


def answered(api: Any) -> None:
    """Answers requests until none is left: a job that another session had locked is looked at again within
    0.25 s."""
    until = time.monotonic() + DEADLINE
    while api.rows(SOON):
        api.promote_jobs()
        assert time.monotonic() < until, "a request cannot be answered"


def named(api: Any, *identifiers: str, queue: str = "q", **more: Any) -> list[int]:
    """Jobs of these tasks, added one by one."""
    return [api.add_job(identifier, queue_name=queue, **more).id for identifier in identifiers]


def busy(session: Any) -> None:
    """Opens a transaction that has written something: its claims let in nothing, and take what may run."""
    session.begin()
    session.value("select pg_current_xact_id()::text")
