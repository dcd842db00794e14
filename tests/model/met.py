"""Which combinations the examples have met: what jobs with dependencies have besides, and their parents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from tests.model.model import Model
from tests.model.state import Edge, Job

OF_JOBS: dict[str, Callable[[Job], object]] = {
    "a key": lambda job: job.key,
    "a unique policy": lambda job: job.unique,
    "a sequence": lambda job: job.sequence,
    "a queue": lambda job: job.queue,
    "at_most_once": lambda job: job.delivery == "at_most_once",
    "was replaced": lambda job: job.revision,
    "was tried before": lambda job: job.attempts > 1 or job.state == "retryable",
}
OF_CHILDREN: dict[str, Callable[[Job], object]] = {
    "expires": lambda job: job.start_by,
    "max_wait": lambda job: job.latest,
    "several parents": lambda job: len({edge.parent for edge in job.edges}) > 1,
    "a ref": lambda job: any(edge.ref for edge in job.edges),
    "on_unmet cancel": lambda job: any(edge.cancels for edge in job.edges),
    "on_unmet hold": lambda job: not any(edge.cancels for edge in job.edges),
}
OF_EDGES: dict[str, Callable[[Edge], object]] = {
    "that waits for jobs": lambda edge: edge.parent.held == "unmet",
    "that waits for a signal": lambda edge: edge.parent.held == "signal",
    "that expires": lambda edge: edge.parent.start_by,
    "that failed": lambda edge: not edge.met and edge.parent.ended_as(),
    "that has ended and was retried": lambda edge: edge.met and not edge.parent.ended_as(),
    "that is gone": lambda edge: edge.parent.gone,
    "that was completed without history, or pruned": lambda edge: edge.parent.gone == "completed",
}


def met(model: Model) -> Counter[str]:
    """Of the jobs that wait for others, or go on after that."""
    found: Counter[str] = Counter()
    for job in model.jobs:
        if not job.edges or (job.held != "unmet" and job.state != "running"):
            continue
        how = "waits" if job.held == "unmet" else "runs"
        found.update(f"{how}: {name}" for name, has in (OF_JOBS | OF_CHILDREN).items() if has(job))
        for edge in job.edges:
            found.update(f"{how}, parent: {name}" for name, has in OF_JOBS.items() if has(edge.parent))
            found.update(f"{how}, parent {name}" for name, has in OF_EDGES.items() if has(edge))
    return found
