"""set_queue(…, fair => true): the queues of a family take turns among jobs of equal priority."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.support.queues import add, answered, claim


def served(api: Any, worker: int, most: int = 10, until: int = 10**9) -> list[str]:
    """The queues of the jobs that claims start, in their order, until nothing is left."""
    queues: list[str] = []
    while len(queues) < until and (jobs := api.claim_jobs(worker, most)):
        queues += [job.queue_name for job in jobs]
        api.finish_jobs([job.id for job in jobs], [job.run for job in jobs])
    return queues


@pytest.mark.parametrize("limit", [None, 1, 3])
@pytest.mark.parametrize("most", [1, 7, 100])
def test_one_job_of_each_other_queue_starts_before_the_second_one_of_a_large_queue(
    api: Any, worker: int, limit: int | None, most: int
) -> None:
    api.set_queue("t:*", limit, fair=True)
    add(api, 500, "t:large")
    for n in range(40):
        add(api, 1, f"t:{n}")
    first = served(api, worker, most, 100)
    last = max(place for place, queue in enumerate(first, 1) if queue != "t:large")
    assert last <= 42  # one round, and the turn that the large queue had before


@pytest.mark.slow
@pytest.mark.parametrize("most", [1, 100])
def test_beside_20000_jobs_of_one_tenant_each_of_200_others_starts_its_job_within_410_starts(
    api: Any, worker: int, most: int
) -> None:
    api.set_queue("t:*", None, fair=True)
    spec = "jsonb_build_object('identifier', 't', 'queue_name', 't:large')"
    api.rows(
        f"select count(*) from pyworker.add_jobs((select jsonb_agg({spec}) from generate_series(1, 20000)))"
    )
    served(api, worker, most, 50)
    for n in range(200):
        add(api, 1, f"t:{n}")
    first = served(api, worker, most, 410)[:410]
    assert len({queue for queue in first if queue != "t:large"}) == 200


@pytest.mark.parametrize("most", [1, 10, 100])
def test_a_job_that_comes_while_a_large_queue_is_alone_waits_for_a_hundred_of_its_jobs_at_most(
    api: Any, worker: int, most: int
) -> None:
    """So many are let in, so that each claim is filled."""
    api.set_queue("t:*", None, fair=True)
    add(api, 600, "t:large")
    served(api, worker, most, 200)
    add(api, 1, "t:new")
    assert "t:new" in served(api, worker, most, 102)[:101]


def test_among_twenty_queues_a_job_that_comes_waits_for_one_round(api: Any, worker: int) -> None:
    api.set_queue("t:*", None, fair=True)
    for n in range(20):
        add(api, 30, f"t:{n}")
    served(api, worker, 1, 200)
    add(api, 1, "t:new")
    assert "t:new" in served(api, worker, 1, 22)


def test_queues_share_equally_however_many_jobs_each_has(api: Any, worker: int) -> None:
    api.set_queue("t:*", None, fair=True)
    add(api, 1000, "t:a")
    add(api, 200, "t:b")
    add(api, 300, "t:c")
    first = Counter(served(api, worker, 9, 300))
    assert max(first.values()) - min(first.values()) <= 3


@pytest.mark.parametrize("most", [1, 2])
def test_a_better_job_of_a_queue_need_not_wait_for_a_worse_one_that_has_the_turn(
    api: Any, worker: int, most: int
) -> None:
    """Other jobs of the worse priority came before both."""
    api.set_queue("t:*", None, fair=True)
    others = add(api, 4, "default", priority=1)
    add(api, 1, "t:a", priority=1)
    api.promote_jobs()
    better = add(api, 3, "t:a")
    api.promote_jobs()
    started: list[int] = []
    while len(started) < 4:
        started += [job.id for job in api.claim_jobs(worker, most)]
    assert started == [*better, others[0]]


@pytest.mark.parametrize("rate", [(), (5, "1 hour")])
def test_each_claim_asks_for_the_next_turn_without_the_end_of_any_job(
    api: Any, worker: int, rate: tuple[Any, ...]
) -> None:
    api.set_queue("f:*", None, *rate, fair=True)
    answered(api)
    for n in range(25):
        add(api, 3, f"f:{n}")
    for _ in range(3):
        assert len(claim(api, worker)) == 25


def test_a_queue_that_is_alone_fills_each_claim(api: Any, worker: int) -> None:
    api.set_queue("t:*", None, fair=True)
    add(api, 250, "t:a")
    assert [len(api.claim_jobs(worker, 100)) for _ in range(3)] == [100, 100, 50]


def test_a_few_queues_fill_each_claim(api: Any, worker: int) -> None:
    api.set_queue("t:*", None, fair=True)
    for queue in "abc":
        add(api, 100, f"t:{queue}")
    sizes = [len(api.claim_jobs(worker, 70)) for _ in range(4)]
    assert sizes == [70, 70, 70, 70]


def test_priority_goes_before_turns(api: Any, worker: int) -> None:
    api.set_queue("t:*", None, fair=True)
    for n in range(5):
        add(api, 1, f"t:{n}")
    add(api, 20, "t:urgent", priority=-1)
    assert served(api, worker, 4, 20)[:20] == ["t:urgent"] * 20


def test_a_claim_goes_on_with_jobs_of_a_worse_priority(api: Any, worker: int) -> None:
    api.set_queue("t:*", None, fair=True)
    assert api.claim_jobs(worker, 5) == []  # from now on the worker listens, and claims do not look twice
    add(api, 1, "t:a", priority=-1)
    add(api, 1, "t:b", priority=1)
    assert [job.queue_name for job in api.claim_jobs(worker, 5)] == ["t:a", "t:b"]


def test_within_a_queue_the_order_stays_priority_run_at_id(api: Any, worker: int) -> None:
    api.set_queue("t:*", None, fair=True)
    low, high = add(api, 5, "t:a", priority=1), add(api, 5, "t:a")
    order = [job.id for _ in range(10) for job in api.claim_jobs(worker, 1)]
    assert order == high + low


def test_a_queue_with_limits_of_its_own_takes_no_turns(api: Any, worker: int) -> None:
    api.set_queue("t:*", None, fair=True)
    api.set_queue("t:own", None)
    add(api, 5, "t:own")
    add(api, 5, "t:a")
    assert served(api, worker, 1)[:5] == ["t:own"] * 5


def test_turns_end_with_the_setting(api: Any, worker: int) -> None:
    api.set_queue("t:*", None, fair=True)
    for queue in "ab":
        add(api, 20, f"t:{queue}")
    served(api, worker, 1, 4)
    api.set_queue("t:*", None)
    assert len(api.claim_jobs(worker, 100)) == 36
    for queue in "ab":
        add(api, 10, f"t:{queue}")
    assert served(api, worker, 1) == ["t:a"] * 10 + ["t:b"] * 10


def test_turns_and_a_rate_hold_both(api: Any, worker: int, clock: Any) -> None:
    api.set_queue("t:*", None, 2, "10 seconds", True)
    for queue in "abc":
        add(api, 5, f"t:{queue}")
    assert sorted(served(api, worker, 6, 6)) == ["t:a", "t:a", "t:b", "t:b", "t:c", "t:c"]
    assert served(api, worker, 4) == []
    clock.advance(seconds=10)
    assert Counter(served(api, worker, 1)) == {"t:a": 2, "t:b": 2, "t:c": 2}


def test_four_sessions_together_take_turns(api: Any, worker: int, actor: Any) -> None:
    api.set_queue("t:*", None, fair=True)
    add(api, 500, "t:large")
    for n in range(40):
        add(api, 1, f"t:{n}")
    sessions = [actor() for _ in range(4)]
    workers = [api.register_worker() for _ in sessions]
    order = [queue for _ in range(20) for s, w in zip(sessions, workers, strict=True)
             for queue in served(s, w, 3, 1)]  # fmt: skip
    assert max(place for place, queue in enumerate(order, 1) if queue != "t:large") <= 45


def test_a_queue_that_its_rate_or_limit_holds_back_leaves_its_turns_to_the_others(
    api: Any, worker: int
) -> None:
    api.set_queue("t:*", 1, 3, "1 hour", True)
    add(api, 20, "t:a")
    api.set_queue("u:*", None, fair=True)
    for queue in "bc":
        add(api, 20, f"u:{queue}")
    assert Counter(job.queue_name for job in api.claim_jobs(worker, 21)) == {"t:a": 1, "u:b": 10, "u:c": 10}
    assert Counter(job.queue_name for job in api.claim_jobs(worker, 20)) == {"u:b": 10, "u:c": 10}


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_claim_that_is_open_holds_up_no_other_job_that_has_its_turn(
    api: Any, worker: int, actor: Any, end: str
) -> None:
    api.set_queue("t:*", None, fair=True)
    for queue in "abc":
        add(api, 3, f"t:{queue}")
    api.promote_jobs()
    other = actor()
    other.begin()
    assert [job.queue_name for job in other.claim_jobs(worker, 1)] == ["t:a"]
    assert Counter(served(api, api.register_worker(), 10)) == {"t:a": 2, "t:b": 3, "t:c": 3}
    getattr(other, end)()
    assert served(api, worker, 10) == ["t:a"] * (end == "rollback")


def test_where_turns_end_a_queue_is_in_its_own_order_again(api: Any, worker: int) -> None:
    """The first job had its place in the turns already, which is later than the others' run_at."""
    api.set_queue("t:*", None, fair=True)
    jobs = add(api, 5, "t:1")
    api.promote_jobs()
    api.set_queue("t:*", None, fair=False)
    assert [api.claim_jobs(worker, 1)[0].id for _ in jobs] == jobs


@pytest.mark.parametrize("before", [None, 300])
@pytest.mark.parametrize("most", [1, 20])
def test_turns_begin_for_jobs_that_were_let_in_before(
    api: Any, worker: int, before: int | None, most: int
) -> None:
    api.set_queue("t:*", before)
    add(api, 250, "t:large")
    api.promote_jobs()
    for n in range(5):
        add(api, 1, f"t:{n}")
    api.set_queue("t:*", None, fair=True)
    first = served(api, worker, most, 40)
    last = max(place for place, queue in enumerate(first, 1) if queue != "t:large")
    assert last <= 7
    assert len(first) + len(served(api, worker, 50)) == 255


@pytest.mark.slow
def test_turns_begin_for_thousands_of_jobs_that_were_let_in_before(api: Any, worker: int) -> None:
    """Each claim parks a thousand of them."""
    api.set_queue("t:*", None)
    add(api, 4500, "t:large")
    api.promote_jobs()
    api.set_queue("t:*", None, fair=True)
    add(api, 9, "t:a")
    assert "t:a" in served(api, worker, 1, 8)
    api.set_queue("t:*", 100, fair=True)
    add(api, 1, "t:b")
    assert Counter(served(api, worker, 1, 3)) == {"t:large": 1, "t:a": 1, "t:b": 1}
