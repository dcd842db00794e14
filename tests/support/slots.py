"""Jobs of a queue with a limit, by the names of their tasks."""

from __future__ import annotations

from typing import Any


def add(api: Any, *identifiers: str, queue: str = "q", **named: Any) -> list[int]:
    return [api.add_job(identifier, queue_name=queue, **named).id for identifier in identifiers or ("known",)]


def add_parked(api: Any, *identifiers: str, queue: str = "q", **named: Any) -> list[int]:
    """Adds jobs while their queue is paused, so that a promotion gives the first ones its free slots."""
    api.pause_queue(queue)
    jobs = add(api, *identifiers, queue=queue, **named)
    api.resume_queue(queue)
    for _ in range(2):  # the second time, it looks again at the changed queue
        api.promote_jobs()
    return jobs
