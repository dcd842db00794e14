"""A job of many parents looks at them many at once: it finds the one that has not ended as it must."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.dependencies import ENDS, child, state

MANY = 900  # more than one look takes


def parents_of(api: Any, worker: int, many: int) -> list[int]:
    jobs = [job.id for job in api.add_jobs([{"identifier": "parent"}] * many)]
    assert len(api.claim_jobs(worker, many)) == many
    return jobs


def finish_all(api: Any, jobs: list[int]) -> None:
    assert len(api.finish_jobs(jobs, api.runs(*jobs))) == len(jobs)


@pytest.mark.parametrize("place", [0, 249, 700])
@pytest.mark.parametrize(
    ("on", "end", "mended"),
    [
        ("end", None, True),
        ("success", None, True),
        ("success", "discarded", True),
        ("success", "cancelled", True),
        ("success", "cancelled, without history", False),
        ("success", "deleted", False),
        ("failure", "completed", True),
    ],
)
def test_a_job_of_many_parents_waits_for_one_that_has_not_ended_as_it_must(
    api: Any, worker: int, place: int, on: str, end: str | None, mended: bool
) -> None:
    if end == "cancelled, without history":
        api.configure(cancelled_retention="0")
    parents = parents_of(api, worker, MANY)
    odd = parents[place]
    job = child(api, [{"id": odd, "on": on}, *(p for p in parents if p != odd)])
    if end == "deleted":
        api.cancel_job(odd, True)
        api.delete_job(odd)
    elif end:
        ENDS[end.split(",")[0]](api, odd)
    finish_all(api, [p for p in parents if p != odd])
    assert state(api, job) == "pending"
    [why] = [r for r in api.rows("select * from pyworker.explain_job(%s)", [job]) if "depend" in r.reason]
    assert str(odd) in why.detail
    if not mended:
        return
    if end:
        api.retry_job(odd)
        api.claim_jobs(worker, 1, ["parent"])
    ENDS["cancelled" if on == "failure" else "completed"](api, odd)
    assert state(api, job) == "available"


@pytest.mark.parametrize("place", [248, 249, 250])
def test_each_way_in_which_a_job_of_many_parents_names_one_of_them_must_hold(
    api: Any, worker: int, place: int
) -> None:
    """Also if the first look ends between the edges to this parent."""
    parents = parents_of(api, worker, 300)
    job = child(api, [*parents, *({"id": parents[place], "on": on} for on in ("end", "failure"))])
    finish_all(api, parents)
    assert state(api, job) == "pending"
