"""Jobs that wait for each other in a circle: adds refuse it and name it; doctor() finds what they missed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.api import ids
from tests.support.dependencies import child, state
from tests.support.doctor import heals, of
from tests.support.sessions import LEVELS


@pytest.mark.parametrize(
    ("after", "position", "ref"),
    [
        ({"free": "", "a": "c", "b": "a", "c": "b"}, 2, "a"),
        ({"first": "second", "second": "a", "a": "b", "b": "a"}, 3, "a"),
        ({"a": "b", "b": "a", "late": "a"}, 1, "a"),
    ],
)
def test_a_circle_of_refs_is_named_by_a_ref_that_is_part_of_it(
    api: Any, after: dict[str, str], position: int, ref: str
) -> None:
    specs = [{"identifier": "t", "ref": ref, "depends_on": [p] if p else []} for ref, p in after.items()]
    message = f"jobs wait for each other in a circle, of which the ref '{ref}' is part"
    with api.refusal("PW001", rf"^add_jobs: specs\[{position}\]: depends_on: {message}$"):
        api.add_jobs(specs)
    assert api.rows("select from pyworker.jobs") == []


def test_a_circle_of_many_refs_is_refused_soon(api: Any) -> None:
    many = 20000
    specs = [{"identifier": "t", "ref": f"{n}", "depends_on": [f"{(n + 1) % many}"]} for n in range(many)]
    api.rows("set statement_timeout = '60s'")
    with api.refusal("PW001", "jobs wait for each other in a circle, of which the ref '"):
        api.add_jobs(specs)


@pytest.mark.parametrize("level", LEVELS)
def test_a_circle_that_two_sessions_close_at_once_fails_one_or_is_found(
    api: Any, actor: Any, worker: int, level: str
) -> None:
    first, second = (api.add_job("t", job_key=key).id for key in "ab")
    a, b = actor(), actor()
    a.begin(level)
    b.begin(level)
    child(a, [second], job_key="a")
    child(b, [first], job_key="b")
    a.commit()
    if level == "serializable":
        with api.refusal("40001"):
            b.commit()
        return
    b.commit()
    assert [state(api, job) for job in (first, second)] == ["pending", "pending"]
    heals(api, "invariants", "error", f"circle: jobs wait for themselves, over other jobs: job {first}")
    assert [api.get_job(job).state for job in (first, second)] == ["cancelled", "pending"]


@pytest.mark.parametrize("call", ["retry_job", "retry_jobs"])
def test_a_retry_that_would_close_a_circle_is_refused(api: Any, call: str) -> None:
    first = api.add_job("t", job_key="k").id
    second = child(api, [first])
    third = child(api, [second])
    api.cancel_job(third)
    child(api, [third], job_key="k")  # no circle: the third one has ended
    if call == "retry_job":
        with api.refusal("PW005", f"retry_job: job {third} waits for a job that waits for it by now"):
            api.retry_job(third)
    else:
        assert ids(api.retry_jobs([third])) == []
    assert [state(api, job) for job in (first, second, third)] == ["pending", "pending", "cancelled"]
    child(api, [], job_key="k")
    assert api.retry_job(third).state == "pending"


def test_jobs_that_wait_for_later_ones_are_no_circle(api: Any, worker: int) -> None:
    api.add_jobs([
        *({"identifier": "t", "ref": f"{n}", "depends_on": [f"{n + 1}", "6"]} for n in range(5)),
        {"identifier": "t", "ref": "5", "depends_on": ["6"]},
        {"identifier": "t", "ref": "6"},
    ])  # fmt: skip
    assert [row.severity for row in of(api, "invariants")] == ["ok"]
