"""Which job of a queue runs is decided by the claim, among the jobs that its worker takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.api import ids
from tests.support.plans import touched
from tests.support.slots import add

# What a worker does not take, and how it claims.
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a task that sorts first": ({"identifier": "a task"}, {"task_identifiers": ["known"]}),
    "unknown task": ({"identifier": "unknown"}, {"task_identifiers": ["known"]}),
    "forbidden flag": ({"flags": ["gpu"]}, {"forbidden_flags": ["gpu"]}),
    "one flag of two": ({"flags": ["gpu", "eu"]}, {"forbidden_flags": ["gpu"]}),
}


@pytest.mark.parametrize("how", REFUSED)
@pytest.mark.parametrize("limit", [1, 3])
def test_a_job_that_a_worker_does_not_take_holds_up_no_job_behind_it(
    api: Any, worker: int, how: str, limit: int
) -> None:
    api.set_queue("q", limit)
    refused, filters = REFUSED[how]
    for _ in range(5):
        api.add_job(**{"identifier": "known", "queue_name": "q", **refused})
    behind = add(api, *["known"] * 4)
    for n in range(4):
        claimed = api.claim_jobs(worker, 10, **filters)
        assert ids(claimed) == behind[limit * n : limit * n + limit]
        api.finish(*ids(claimed))
    assert len(api.claim_jobs(worker, 10)) == limit  # one that takes all


def test_an_urgent_job_goes_before_one_that_could_have_started_long_ago(api: Any, worker: int) -> None:
    add(api, "slow", priority=10)
    api.promote_jobs()
    (urgent,) = add(api, "slow", priority=-10)
    (other,) = add(api, "other", priority=-20)
    for expected in (other, urgent, 1):
        (job,) = api.claim_jobs(worker, 10)
        assert job.id == expected
        api.finish(job.id)


def test_of_each_kind_the_first_job_in_order_is_the_candidate(api: Any, worker: int) -> None:
    api.pause_queue("q")
    (first,) = add(api, "a", priority=10)
    (urgent,) = add(api, "a", priority=-10)
    (other,) = add(api, "b", priority=20)
    api.resume_queue("q")
    for expected in (urgent, first, other):
        (job,) = api.claim_jobs(worker, 10)
        assert job.id == expected
        api.finish(job.id)


def test_an_earlier_job_of_another_task_goes_first_for_a_worker_that_takes_both(
    api: Any, worker: int
) -> None:
    order = add(api, "a", "b", "b", "a", "c", "a")
    seen = []
    while jobs := api.claim_jobs(worker, 10):
        seen += ids(jobs)
        api.finish(*ids(jobs))
    assert seen == order


def test_a_job_that_waits_for_a_slot_is_available_and_no_policy_need_know_of_queues(
    api: Any, worker: int
) -> None:
    """The Open Job Spec's own example names no `pending`."""
    policy = {
        "keys": ["type", "args"],
        "states": ["available", "active", "scheduled"],
        "on_conflict": "ignore",
    }
    add(api, "holder")
    assert api.claim(worker)
    first = api.add_job("t", {"n": 1}, queue_name="q", unique_policy=policy)
    assert first.state == "available"
    second = api.add_job("t", {"n": 1}, queue_name="q", unique_policy=policy)
    assert (second.id, second.deduplicated) == (first.id, True)


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_however_many_sessions_claim_at_once_no_more_start_than_there_are_slots(
    api: Any, actor: Callable[[], Any], limit: int
) -> None:
    api.set_queue("q", limit)
    jobs = add(api, *"abcdef")
    api.promote_jobs()
    sessions = [actor() for _ in range(3)]
    workers = [api.register_worker() for _ in sessions]
    started = []
    for session, worker in zip(sessions, workers, strict=True):
        session.begin()
        started += ids(session.claim_jobs(worker, 10))
    assert started == jobs[:limit]  # the first has the queue's lane until its commit
    for session in sessions:
        session.commit()
    assert [
        ids(session.claim_jobs(worker, 10)) for session, worker in zip(sessions, workers, strict=True)
    ] == [
        [],
        [],
        [],
    ]
    jobs += add(api, "g")
    assert api.claim_jobs(workers[0], 10) == []
    api.finish(*started)
    assert ids(api.claim_jobs(workers[0], limit)) == jobs[limit : 2 * limit]


@pytest.mark.parametrize("outcome", ["commit", "rollback", "kill"])
def test_a_claim_that_meets_a_queue_which_another_session_is_claiming_from_looks_again_soon(
    api: Any, actor: Callable[[], Any], worker: int, outcome: str
) -> None:
    api.set_queue("q", 2)
    first, second = add(api, "a", "b")
    api.promote_jobs()
    a = actor()
    a.begin()
    assert ids(a.claim_jobs(worker, 1)) == [first]
    assert api.claim_jobs(worker, 10) == []
    assert 0 <= api.seconds_until_due() <= 0.25
    assert api.value("select count(*) from pyworker.promotion_requests where not changed") == 1
    getattr(a, outcome)()
    expected = [second] if outcome == "commit" else [first, second]
    assert ids(api.claim_jobs(worker, 10)) == expected


def test_a_claim_passes_a_full_queue_and_takes_what_comes_behind(api: Any, worker: int) -> None:
    add(api, *["a"] * 5)
    other = api.add_job("a")
    api.set_queue("r", 2)
    rest = add(api, *["b"] * 3, queue="r")
    assert ids(api.claim_jobs(worker, 10)) == [1, other.id, *rest[:2]]


def test_a_claim_that_asks_for_one_job_gets_the_first_of_many_full_queues(api: Any, worker: int) -> None:
    for n in range(30):
        add(api, "a", "b", queue=f"q{n}")
    assert len(api.claim_jobs(worker, 100)) == 30
    last = api.add_job("a")
    assert ids(api.claim_jobs(worker, 1)) == [last.id]
    assert api.claim_jobs(worker, 1) == []


def test_a_claim_that_asks_for_one_job_passes_many_queues_that_another_session_has_locked(
    api: Any, actor: Callable[[], Any], worker: int
) -> None:
    names = [f"q{n}" for n in range(30)]
    for name in names:
        add(api, "a", "b", queue=name)
    api.promote_jobs()
    a = actor()
    a.begin()
    a.rows("select pyworker._try_lane('queue:' || n) from unnest(%s::text[]) n", [names])
    behind = api.add_job("a")
    assert ids(api.claim_jobs(worker, 1)) == [behind.id]


def test_no_claim_starts_a_job_of_a_paused_queue_that_has_more_candidates_than_are_parked_at_once(
    api: Any, worker: int
) -> None:
    api.set_queue("q", None)
    api.add_jobs([{"identifier": "a", "queue_name": "q"}] * 2500)
    api.pause_queue("q")
    assert api.claim_jobs(worker, 3000) == []


def test_no_claim_that_begins_after_a_pause_was_committed_starts_a_job_whichever_session_promotes(
    api: Any, actor: Callable[[], Any], worker: int
) -> None:
    """A promotion that began before it goes by what was said then; the claim looks at the queue itself."""
    api.set_queue("q", None)
    add(api, "a", "a")
    a = actor()
    a.begin("repeatable read")
    a.rows("select 1")  # its snapshot knows of no pause
    api.pause_queue("q")
    a.add_job("a", queue_name="q")  # as a queue without a limit has it: a candidate at once
    a.commit()
    assert api.claim_jobs(worker, 10) == []
    api.resume_queue("q")
    assert ids(api.claim_jobs(worker, 10)) == [1, 2, 3]


def test_a_limit_that_is_set_while_a_job_ends_that_knew_of_none_strands_no_job(
    api: Any, actor: Callable[[], Any], worker: int
) -> None:
    api.set_queue("q", None)
    (running,) = add(api)
    assert api.claim(worker)
    a = actor()
    a.begin()
    a.finish(running)  # a queue without a limit: nothing waits for an end
    api.set_queue("q", 1)
    (behind,) = add(api)
    assert api.claim_jobs(worker, 1) == []
    a.commit()
    assert ids(api.claim_jobs(worker, 1)) == [behind]


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
def test_an_end_that_began_beside_a_change_of_the_limit_strands_no_job(
    api: Any, actor: Callable[[], Any], worker: int, isolation: str
) -> None:
    """Its transaction is younger than the change, or has an older snapshot."""
    api.set_queue("q", None)
    running, behind = add(api, "a", "a")
    assert ids(api.claim_jobs(worker, 1)) == [running]
    s, a = actor(), actor()
    s.begin()
    s.set_queue("q", 1)
    a.begin(isolation)
    a.rows("select 1")
    if isolation == "read committed":
        a.finish(running)
    s.commit()
    for _ in range(3):
        add(api, "a")
        assert api.claim_jobs(worker, 1) == []
    if isolation != "read committed":
        a.finish(running)
    a.commit()
    assert ids(api.claim_jobs(worker, 1)) == [behind]


def test_an_end_in_a_queue_without_a_limit_writes_no_request(api: Any, worker: int) -> None:
    api.set_queue("q", None)
    api.promote_jobs()
    add(api, *["a"] * 3)
    assert api.finish(*ids(api.claim_jobs(worker, 5))) == [1, 2, 3]
    assert api.rows("select from pyworker.promotion_requests where after is null") == []


def test_a_queue_of_thousands_of_slots_is_counted_by_no_end(api: Any, worker: int, watched: Any) -> None:
    api.set_queue("q", 5000)
    api.add_jobs([{"identifier": "t", "queue_name": "q"}] * 2500)
    running = [job for _ in range(3) for job in api.claim_jobs(worker, 1000)]
    assert len(running) == 2500
    add(api)
    plans = watched(lambda a: a.finish_jobs([running[0].id], [running[0].run]))
    assert sum(touched(plans).values()) < 100


def test_set_by_set_a_burst_of_new_queues_is_promoted(api: Any, worker: int) -> None:
    api.add_jobs([{"identifier": "t", "queue_name": f"q{n // 2}"} for n in range(1000)])
    assert api.promote_jobs() == 100
    assert len(api.claim_jobs(worker, 500)) >= 200
    while api.claim_jobs(worker, 500):
        pass
    assert api.value("select count(*) from pyworker.jobs where state = 'running'") == 500


def test_a_claim_that_takes_candidates_back_and_an_end_at_the_same_time_strand_no_job(
    api: Any, actor: Callable[[], Any], worker: int
) -> None:
    api.set_queue("q", 2)
    running, waiting = add(api, "a", "b")
    assert ids(api.claim_jobs(worker, 1)) == [running]
    api.rows(
        "update pyworker.queues set concurrency = 1; delete from pyworker.promotion_requests"
    )  # as if it had been so all the time
    c, e = actor(), actor()
    c.begin()
    assert c.claim_jobs(worker, 1) == []
    e.begin()
    e.finish(running)
    e.commit()
    c.commit()
    assert ids(api.claim_jobs(worker, 1)) == [waiting]


CANDIDATES = (
    "select array_agg(id order by id) from pyworker.live_jobs where state = 'available' "
    "and ready_at is not null"
)


def test_of_each_kind_of_job_no_more_are_candidates_than_there_are_slots(api: Any, worker: int) -> None:
    api.set_queue("q", 2)
    for _ in range(4):
        add(api, "unknown", "other")
        api.promote_jobs()
    assert api.value(CANDIDATES) == [1, 2, 3, 4]
    add(api, "unknown", priority=-1)
    api.promote_jobs()
    assert api.value(CANDIDATES) == [1, 2, 3, 4, 9]  # an urgent one beside them


def test_the_claim_that_takes_the_last_slot_takes_the_other_candidates_back(api: Any, worker: int) -> None:
    """So no claim meets them before the next end."""
    add(api, "a", "b", "c")
    (job,) = api.claim_jobs(worker, 1)
    assert api.value(CANDIDATES) is None
    api.finish(job.id)
    assert api.value(CANDIDATES) == [2, 3]


def test_a_claim_need_not_come_again_for_a_job_whose_queue_was_asked_for_after_hundreds_of_others(
    api: Any, worker: int
) -> None:
    api.add_jobs([{"identifier": "t", "queue_name": f"q{n}"} for n in range(450)])
    (last,) = add(api, "last")
    assert ids(api.claim_jobs(worker, 1, ["last"])) == [last]
    assert len(api.claim_jobs(worker, 1000)) == 450


def test_a_claim_that_cannot_park_the_other_candidates_returns_its_job_once(
    api: Any, worker: int, actor: Callable[[], Any]
) -> None:
    jobs = add(api, "a", "b")
    api.promote_jobs()
    admin = actor()
    admin.rows(
        "create function public.refuse() returns trigger language plpgsql as $$ begin"
        "  raise exception 'locked' using errcode = 'lock_not_available'; end $$;"
        "create trigger refuse before update on pyworker.live_jobs for each row"
        "  when (old.ready_at is not null and new.parked = 'queue') execute function public.refuse()"
    )
    try:
        assert ids(api.claim_jobs(worker, 10)) == jobs[:1]
    finally:
        admin.rows("drop trigger refuse on pyworker.live_jobs; drop function public.refuse()")
    assert api.claim_jobs(worker, 10) == []
    api.finish(jobs[0])
    assert ids(api.claim_jobs(worker, 10)) == jobs[1:]


@pytest.mark.parametrize("bulk", [False, True])
def test_in_a_queue_without_a_limit_no_add_claim_or_end_asks_for_a_promotion(
    api: Any, worker: int, bulk: bool
) -> None:
    written = "select last_value from pyworker.promotion_requests_id_seq"
    api.set_queue("q", None)
    while api.rows("select from pyworker.promotion_requests"):
        api.promote_jobs()
    before = api.value(written)
    if bulk:
        api.add_jobs([{"identifier": "known", "queue_name": "q"}] * 3)
    else:
        add(api, *["known"] * 3)
    add(api, "known", job_key="k")
    jobs = api.claim_jobs(worker, 10)
    assert len(jobs) == 4
    api.finish(*ids(jobs))
    assert api.value(written) == before
