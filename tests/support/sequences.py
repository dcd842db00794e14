"""Jobs of the sequence s."""

from __future__ import annotations

from typing import Any

S = {"key": "s"}


def add(api: Any, many: int = 1, identifier: str = "t", **named: Any) -> list[Any]:
    policy = {**S, **named.pop("policy", {})}
    return [api.add_job(identifier, sequence_policy=policy, **named) for _ in range(many)]


def drain(api: Any, worker: int) -> list[int]:
    """Run whatever can be claimed, never two at once; the ids in the order of their starts."""
    seen = []
    while claimed := api.claim_jobs(worker, 10):
        (job,) = claimed
        seen.append(job.id)
        assert api.finish_jobs([job.id], [job.run]) == [job.id]
    return seen
