"""A job that finds its queue idle asks for its slot in the claim, without a promotion before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.api import ids
from tests.support.sessions import LEVELS
from tests.support.slots import add


def parked(api: Any) -> list[int]:
    rows = api.rows("select id from pyworker.live_jobs where parked = 'queue' order by id")
    return [row.id for row in rows]


def requests(api: Any) -> int:
    return api.value("select count(*) from pyworker.promotion_requests where not changed")


def forget_long_looks(api: Any) -> None:
    api.rows("select set_config('pyworker.crowded_until', '', false)")


@pytest.fixture(autouse=True)
def no_look_was_long(api: Any) -> Iterator[None]:
    """On a busy machine any look may be long."""
    forget_long_looks(api)
    yield
    forget_long_looks(api)


@pytest.mark.parametrize("how", ["add_job", "add_jobs", "key"])
def test_a_job_of_an_idle_queue_needs_no_promotion(api: Any, worker: int, how: str) -> None:
    if how == "add_jobs":
        api.add_jobs([{"identifier": "known", "queue_name": "q"}])
    else:
        add(api, job_key="k" if how == "key" else None)
    assert (parked(api), requests(api)) == ([], 0)
    assert ids(api.claim_jobs(worker, 10)) == [1]
    api.finish(1)
    assert requests(api) == 0


@pytest.mark.parametrize(
    ("limit", "once"), [(1, 1), (3, 3), (150, 100), (1000, 100)], ids=["serial", "3", "150", "1000"]
)
def test_jobs_wait_parked_behind_as_many_as_the_queue_has_slots_or_a_hundred(
    api: Any, worker: int, limit: int, once: int
) -> None:
    api.set_queue("q", limit)
    api.promote_jobs()
    jobs = []
    for _ in range(once + 2):
        forget_long_looks(api)
        jobs += add(api)
    assert parked(api) == jobs[once:]
    assert ids(api.claim_jobs(worker, 2000)) == jobs[: min(limit, once + 2)]


@pytest.mark.parametrize(("count", "waits"), [(2, False), (3, False), (4, True)])
def test_jobs_that_are_added_at_once_are_parked_if_they_have_no_room_together(
    api: Any, worker: int, count: int, waits: bool
) -> None:
    api.set_queue("q", 3)
    jobs = ids(api.add_jobs([{"identifier": "t", "queue_name": "q"}] * count))
    assert parked(api) == (jobs if waits else [])
    assert ids(api.claim_jobs(worker, 10)) == jobs[:3]


def test_no_job_overtakes_those_that_are_parked(api: Any, worker: int) -> None:
    api.set_queue("q", 2)
    jobs = add(api, *"aaaa")
    api.claim_jobs(worker, 10)
    api.finish(*jobs[:2])
    assert ids(api.claim_jobs(worker, 1)) == [jobs[2]]
    later = add(api, "a")  # one slot is free, and has been given to the job before
    assert ids(api.claim_jobs(worker, 1)) == [jobs[3]]
    api.finish(*jobs[2:])
    assert ids(api.claim_jobs(worker, 10)) == later


def test_behind_a_job_that_waits_for_its_rate_others_are_parked(api: Any, worker: int) -> None:
    api.set_queue("q", None, rate_limit=1, rate_period="1 hour")
    jobs = add(api, "a", "a")
    assert ids(api.claim_jobs(worker, 10)) == jobs[:1]
    assert parked(api) == jobs[1:]
    jobs += add(api, "a")
    assert parked(api) == jobs[1:]


def test_a_paused_queue_and_one_of_a_fair_family_let_no_job_be_a_candidate_at_once(api: Any) -> None:
    api.pause_queue("paused")
    api.set_queue("fair*", None, fair=True)
    assert parked(api) == []
    jobs = add(api, queue="paused") + add(api, queue="fair1")
    assert parked(api) == jobs


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("first_end", ["commit", "rollback", "kill"])
def test_two_producers_that_both_find_the_queue_idle_pass_no_limit_and_strand_no_job(
    api: Any, worker: int, actor: Callable[[], Any], level: str, first_end: str
) -> None:
    a, b = actor(), actor()
    a.begin(level)
    b.begin(level)
    jobs = add(a) + add(b)
    getattr(a, first_end)()
    b.commit()
    jobs = jobs if first_end == "commit" else jobs[1:]
    assert ids(api.claim_jobs(worker, 10)) == jobs[:1]
    assert api.claim_jobs(worker, 10) == []
    api.finish(jobs[0])
    assert ids(api.claim_jobs(worker, 10)) == jobs[1:]


def test_a_job_is_not_stranded_behind_a_slot_that_was_given_to_a_job_of_another_kind(
    api: Any, worker: int, actor: Callable[[], Any]
) -> None:
    """It found the queue idle. Before it committed, a job of a task that no worker takes got the slot."""
    late = actor()
    late.begin()
    (job,) = add(late, "b")
    first, taken = add(api, "a", "a")
    assert ids(api.claim_jobs(worker, 1)) == [first]
    api.finish(first)
    assert api.value("select has_slot from pyworker.live_jobs where id = %s", [taken])
    late.commit()
    for _ in range(2):
        started = ids(api.claim_jobs(worker, 10, task_identifiers=["b"]))
        if started:
            break
        assert api.seconds_until_due() <= 0.25
    assert started == [job]
    assert api.claim_jobs(worker, 10) == []
    api.finish(job)
    assert ids(api.claim_jobs(worker, 10)) == [taken]


def test_an_end_that_finds_no_job_parked_leaves_no_request(api: Any, worker: int) -> None:
    api.set_queue("q", 500)
    api.promote_jobs()
    api.promote_jobs()
    add(api, *"aaa")
    assert len(api.claim_jobs(worker, 10)) == 3
    api.finish(1, 2, 3)
    assert api.value("select count(*) from pyworker.promotion_requests") == 0


def test_a_job_that_an_end_did_not_see_because_it_was_parked_just_then_runs(
    api: Any, worker: int, actor: Callable[[], Any]
) -> None:
    (first,) = add(api)
    assert ids(api.claim_jobs(worker, 1)) == [first]
    producer = actor()
    producer.begin()
    (second,) = add(producer)
    api.finish(first)
    producer.commit()
    assert ids(api.claim_jobs(worker, 1)) == [second]


def test_after_a_long_look_a_session_parks_without_one_and_the_job_runs(api: Any, worker: int) -> None:
    api.rows("select set_config('pyworker.crowded_until', (extract(epoch from now()) + 60)::text, false)")
    jobs = add(api)
    api.set_queue("free", None)
    assert add(api, queue=None) + add(api, queue="free") == [2, 3]
    assert parked(api) == jobs
    assert ids(api.claim_jobs(worker, 10)) == [1, 2, 3]
