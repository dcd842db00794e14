"""set_queue: queues with a limit, without one, and families of queues."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg.types.json import Jsonb

from tests.support.queues import add, answered, claim, claim_from_the_head, states


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
@pytest.mark.parametrize("before", [True, False], ids=["set before any job", "set while jobs wait"])
def test_a_queue_of_n_runs_n_at_once_and_a_next_one_for_each_that_ends(
    api: Any, worker: int, limit: int, before: bool
) -> None:
    if before:
        api.set_queue("q", limit)
    ids = add(api, 10)
    if not before:
        api.promote_jobs()
        api.set_queue("q", limit)
    assert claim(api, worker) == ids[:limit]
    for i in range(10):
        api.finish(ids[i])
        assert claim(api, worker) == ids[i + limit : i + limit + 1]


def test_a_unique_retry_that_falls_due_lets_no_other_job_of_its_queue_start(
    api: Any, worker: int, clock: Any
) -> None:
    policy = {"by_args": True, "by_state": ["available", "pending", "running", "scheduled"]}
    api.add_job("t", queue_name="q", unique_policy=Jsonb(policy))
    api.fail(api.claim(worker, "t"), delay=60)
    first = add(api, 2)[0]
    assert claim(api, worker) == [first]
    clock.advance(hours=1)
    api.promote_jobs()
    assert claim(api, worker) == []
    api.finish(first)
    assert len(claim(api, worker)) == 1


def test_a_queue_without_a_limit_is_only_a_name(api: Any, worker: int) -> None:
    api.set_queue("q", None)
    ids = add(api, 20)
    assert claim(api, worker) == ids


def test_set_queue_with_a_name_alone_lifts_the_limit(api: Any, worker: int) -> None:
    api.set_queue("q", 1)
    ids = add(api, 5)
    api.set_queue("q")
    assert claim(api, worker) == ids


def test_one_claim_takes_thousands_of_jobs_of_a_queue_without_a_limit(api: Any, worker: int) -> None:
    api.set_queue("q", None)
    ids = add(api, 2500)
    assert claim(api, worker, 2400) == ids[:2400]
    last = add(api, 1)
    assert claim(api, worker, 500) == ids[2400:] + last


def test_a_queue_that_loses_its_limit_starts_all_that_waits_in_it(api: Any, worker: int) -> None:
    ids = add(api, 2500)
    assert claim(api, worker) == ids[:1]
    api.set_queue("q", None)
    claimed: list[int] = []
    while more := claim(api, worker, 700):
        claimed += more
    assert sorted(claimed) == ids[1:]


def test_a_limit_as_large_as_an_integer_does_no_harm(api: Any, worker: int) -> None:
    api.set_queue("q", 2**31 - 1)
    ids = add(api, 1500)
    assert [*claim(api, worker, 1000), *claim(api, worker, 1000)] == ids


def test_a_raised_limit_lets_more_start(api: Any, worker: int) -> None:
    ids = add(api, 6)
    assert claim(api, worker) == ids[:1]
    api.set_queue("q", 3)
    assert claim(api, worker) == ids[1:3]
    api.set_queue("q", None)
    assert claim(api, worker) == ids[3:]


def test_jobs_beyond_a_lowered_limit_run_on_and_none_starts_before_they_have_ended(
    api: Any, worker: int
) -> None:
    api.set_queue("q", 4)
    ids = add(api, 7)
    assert claim(api, worker) == ids[:4]
    api.set_queue("q", 2)
    for job in ids[:2]:
        assert claim(api, worker) == []
        assert api.finish(job) == [job]
    assert claim(api, worker) == []
    api.finish(ids[2])
    assert claim(api, worker) == [ids[4]]
    api.finish(*ids[3:5])
    assert claim(api, worker) == ids[5:]


@pytest.mark.parametrize("before", [None, 5, 2000])
def test_back_to_one_the_jobs_that_no_worker_has_claimed_start_one_by_one(
    api: Any, worker: int, before: int | None
) -> None:
    api.set_queue("q", before)
    ids = add(api, 4)
    api.promote_jobs()
    api.set_queue("q", 1)
    for job in ids:
        assert claim(api, worker) == [job]
        api.finish(job)


def test_of_thousands_that_were_let_in_one_starts_where_the_limit_was_lowered(api: Any, worker: int) -> None:
    """Once all of them are parked. A job without a queue, behind them, does not wait for that."""
    api.set_queue("q", None)
    ids = add(api, 10100)
    other = api.add_job("t", priority=1)
    api.set_queue("q", 1)
    assert claim(api, worker) == [other.id]
    answered(api)  # from now on nothing needs to be held
    assert [job.id for job in claim_from_the_head(api, worker, 100)] == [ids[0]]
    for i in range(3):
        assert claim(api, worker) == []
        api.finish(ids[i])
        assert [job.id for job in claim_from_the_head(api, worker, 10)] == [ids[i + 1]]


def test_from_no_limit_to_a_limit_counts_what_runs(api: Any, worker: int) -> None:
    api.set_queue("q", None)
    ids = add(api, 5)
    assert claim(api, worker, 2) == ids[:2]
    api.set_queue("q", 3)
    assert claim(api, worker) == [ids[2]]
    api.finish(*ids[:2])
    assert claim(api, worker) == ids[3:]


def test_in_a_queue_of_n_the_order_is_priority_run_at_id(api: Any, worker: int) -> None:
    api.set_queue("q", 2)
    low, high = add(api, 3, priority=5), add(api, 3, priority=-5)
    (early,) = add(api, 1, priority=-5, run_at=str(api.at("-1 hour")))
    seen: list[int] = []
    while jobs := api.claim_jobs(worker, 100):
        seen += [job.id for job in jobs]
        api.finish(*seen[-len(jobs) :])
    assert seen == [early, *high, *low]


def test_a_failed_job_does_not_hold_its_queue_of_n(api: Any, worker: int, clock: Any) -> None:
    api.set_queue("q", 2)
    ids = add(api, 4)
    first, second = api.claim_jobs(worker, 10)
    api.fail(first)
    assert claim(api, worker) == [ids[2]]
    api.fail(second, discard=True)
    assert claim(api, worker) == [ids[3]]
    clock.advance(hours=1)
    api.heartbeat(worker)
    assert claim(api, worker) == []  # its time has come, its place is taken
    assert api.get_job(first.id).state == "available"
    api.finish(ids[2])
    assert claim(api, worker) == [first.id]


@pytest.mark.parametrize("verb", ["release", "unregister", "unlock", "snooze"])
def test_what_is_put_back_gives_its_place_in_a_queue_of_n_away(api: Any, worker: int, verb: str) -> None:
    api.set_queue("q", 2)
    add(api, 5)
    jobs = api.claim_jobs(worker, 10)
    if verb == "release":
        api.release_jobs([job.id for job in jobs], [job.run for job in jobs])
    elif verb == "unregister":
        api.unregister_worker(worker)
    elif verb == "unlock":
        api.force_unlock_workers([str(worker)])
    else:
        api.snooze_job(jobs[0].id, jobs[0].run, "1 hour")
        assert len(claim(api, worker)) == 1
        return
    assert claim(api, api.register_worker()) == [job.id for job in jobs]


def test_a_tasks_default_queue_has_its_limit_too(api: Any, worker: int) -> None:
    api.define_task("t", queue_name="q")
    api.set_queue("q", 2)
    ids = [api.add_job("t").id for _ in range(3)]
    assert claim(api, worker) == ids[:2]
    api.finish(ids[0])
    assert claim(api, worker) == ids[2:]


def test_jobs_of_sequences_share_the_slots_of_their_queue(api: Any, worker: int) -> None:
    api.set_queue("q", 2)
    specs = [
        {"identifier": "t", "queue_name": "q", "sequence_policy": {"key": key}}
        for key in ("a", "a", "b", "c", "c")
    ]
    a1, a2, b, c1, c2 = [job.id for job in api.add_jobs(specs)]
    assert claim(api, worker) == [a1, b]
    api.finish(b)
    assert claim(api, worker) == [c1]
    api.finish(a1, c1)
    assert claim(api, worker) == [a2, c2]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("default", "'default'"),
        ("", "got ''"),
        (None, "got NULL"),
        ("x" * 129, "128 characters long, got 'x{129}'"),
        ("y" * 5000, "got 'y{140}'$"),
    ],
)
@pytest.mark.parametrize("verb", ["set_queue", "pause_queue", "resume_queue"])
def test_a_name_that_no_queue_has_is_refused(api: Any, verb: str, name: str | None, words: str) -> None:
    with api.refusal("PW001", f"^{verb}: queue_name", words):
        getattr(api, verb)(name)
    assert api.rows("select from pyworker.queues") == []


@pytest.mark.parametrize("limit", [0, -1, -(2**31)])
def test_a_limit_below_one_is_refused(api: Any, limit: int) -> None:
    with api.refusal("PW001", "^set_queue: concurrency", f"got {limit} ", "pause_queue"):
        api.set_queue("q", limit)
    assert api.rows("select from pyworker.queues") == []


def test_the_longest_name_is_128_characters_long(api: Any, worker: int) -> None:
    name = "é" * 128
    api.set_queue(name, 2)
    api.pause_queue(name)
    ids = add(api, 3, name)
    assert claim(api, worker) == []
    api.resume_queue(name)
    assert claim(api, worker) == ids[:2]


@pytest.mark.parametrize(
    "name", ["it's", "100%", "%s", "a\nb", "q*q", "sequence:q", "family:q", '"', "\\", "Q"]
)
def test_odd_names_are_names(api: Any, worker: int, name: str) -> None:
    ids = add(api, 3, name)
    api.set_queue(name, 2)
    assert claim(api, worker) == ids[:2]
    api.pause_queue(name)
    api.finish(*ids[:2])
    assert claim(api, worker) == []
    api.resume_queue(name)
    assert claim(api, worker) == ids[2:]


# Families -----------------------------------------------------------------------------------------


def test_each_queue_of_a_family_has_the_familys_limit(api: Any, worker: int) -> None:
    api.set_queue("customer:*", 2)
    ids = {name: add(api, 4, name) for name in ("customer:1", "customer:2", "customer", "other")}
    expected = ids["customer:1"][:2] + ids["customer:2"][:2] + ids["customer"][:1] + ids["other"][:1]
    assert claim(api, worker) == sorted(expected)


def test_the_longest_family_counts_and_a_name_of_its_own_before_any_family(api: Any, worker: int) -> None:
    limits = {"*": 2, "a*": 3, "a:b*": 4, "a:b:*": 5, "a:b:c": 1, "a_*": 6}
    for name in sorted(limits, reverse=True):
        api.set_queue(name, limits[name])
    expected = {
        "z": 2,
        "a": 3,
        "ax": 3,
        "a:": 3,
        "a:b": 4,
        "a:bc": 4,
        "a:b:": 5,
        "a:b:d": 5,
        "a:b:c": 1,
        "a_": 6,
    }
    for name in expected:
        add(api, 8, name)
    api.claim_jobs(worker, 500)
    assert {name: states(api, name)["running"] for name in expected} == expected
    shown = dict(api.rows("select queue_name, concurrency from pyworker.queue_stats"))
    assert shown == {**limits, **expected}


def test_a_family_without_a_limit(api: Any, worker: int) -> None:
    api.set_queue("label:*", None)
    ids = add(api, 5, "label:a")
    assert claim(api, worker) == ids
    api.set_queue("label:b", 1)
    add(api, 5, "label:b")
    assert len(claim(api, worker)) == 1


def test_changing_a_family_lets_the_waiting_jobs_of_all_its_queues_go_on(api: Any, worker: int) -> None:
    names = ["a", "c:", "c:1", "c:2", "c:\x7f", "c:é", "c;", "d"]
    for name in names:
        add(api, 3, name)
    assert len(claim(api, worker)) == len(names)
    api.set_queue("c:*", 2)
    assert len(claim(api, worker)) == 5
    api.set_queue("*", None)
    api.claim_jobs(worker, 100)
    assert {name: states(api, name)["running"] for name in names} == {
        name: 2 if name.startswith("c:") else 3 for name in names
    }


def test_a_lowered_family_holds_for_jobs_that_were_let_in_too(api: Any, worker: int) -> None:
    api.set_queue("c:*", 3)
    for name in ("c:1", "c:2"):
        add(api, 3, name)
    api.promote_jobs()
    assert states(api, "c:1") == states(api, "c:2") == {"available": 3}
    api.set_queue("c:*", 1)
    assert len(claim(api, worker)) == 2
    assert states(api, "c:1") == states(api, "c:2") == {"running": 1, "available": 2}


def test_a_new_family_does_not_change_a_queue_that_was_set_by_its_name(api: Any, worker: int) -> None:
    api.set_queue("c:1", 1)
    add(api, 3, "c:1")
    api.set_queue("c:*", 3)
    assert len(claim(api, worker)) == 1


def test_a_family_of_five_hundred_queues_goes_on_as_a_whole(api: Any, worker: int) -> None:
    api.add_jobs([{"identifier": "t", "queue_name": f"c:{i % 500}"} for i in range(1000)])
    while api.claim_jobs(worker, 1000):
        pass
    api.set_queue("c:*", 2)
    for _ in range(10):
        api.claim_jobs(worker, 1000)
    assert api.rows("select from pyworker.jobs where state <> 'running'") == []
