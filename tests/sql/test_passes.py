"""What a pass of the gate lets in, and what it leaves to the next one: gate/pass, gate/settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.queues import add, answered, busy, claim


def test_promote_jobs_lets_in_all_that_may_run(api: Any) -> None:
    api.add_jobs([{"identifier": "t", "queue_name": f"q{n}"} for n in range(5000)])
    assert api.promote_jobs() == 5000


def test_an_add_that_commits_while_several_ends_are_open_is_not_forgotten(
    api: Any, worker: int, actor: Callable[[], Any]
) -> None:
    api.set_queue("q", 2)
    both = add(api, 2)
    assert claim(api, worker) == both
    handler = actor()
    handler.begin()
    handler.finish(*both)
    third = add(api, 1)
    assert claim(api, worker) == []
    handler.commit()
    assert claim(api, worker) == third


def test_a_transaction_with_an_old_snapshot_lets_in_nothing_by_what_it_sees(
    api: Any, worker: int, actor: Callable[[], Any], clock: Any
) -> None:
    """It sees neither the limit of one job nor that one runs."""
    api.set_queue("q", None, 1, "10 seconds")
    first, second, _ = add(api, 3)
    assert claim(api, worker) == [first]
    api.finish(first)
    a = actor()
    a.begin("repeatable read")
    assert a.value("select count(*) from pyworker.jobs where state = 'available'") == 2
    api.set_queue("q", 1, 2, "10 seconds")
    assert claim(api, worker) == [second]
    answered(api)
    clock.advance(seconds=11)
    a.promote_jobs()
    a.commit()
    assert claim(api, worker) == []


def test_a_change_holds_for_what_was_added_after_it_was_made_and_before_it_was_committed(
    api: Any, worker: int, actor: Callable[[], Any], clock: Any
) -> None:
    api.set_queue("q", None)
    setter, adder = actor(), actor()
    setter.begin()
    setter.pause_queue("q")
    busy(adder)
    jobs = add(adder, 2)
    setter.commit()
    for _ in range(3):
        assert claim(api, worker) == []
        clock.advance(seconds=1)
    adder.commit()
    assert claim(api, worker) == []
    api.resume_queue("q")
    assert claim(api, worker) == jobs


@pytest.mark.parametrize(
    ("change", "most"), [("pause_queue('q')", 0), ("pause_queue('q*')", 0), ("set_queue('q', 1)", 1)]
)
def test_a_change_after_one_that_all_have_seen_holds_from_its_commit(
    api: Any, worker: int, change: str, most: int
) -> None:
    api.set_queue("q", None)
    answered(api)
    jobs = add(api, 3)
    api.rows(f"select pyworker.{change}")
    assert claim(api, worker) == jobs[:most]


def test_several_ends_let_in_the_best_of_those_that_wait(
    api: Any, worker: int, actor: Callable[[], Any]
) -> None:
    api.set_queue("q", 2)
    both = add(api, 2)
    assert claim(api, worker) == both
    add(api, 2, priority=2)
    better = add(api, 2, priority=1)
    api.finish(*both)
    a = actor()
    busy(a)
    assert claim(a, worker) == better
    a.commit()


def test_a_job_that_falls_due_in_an_idle_queue_is_let_in(api: Any, worker: int, clock: Any) -> None:
    job = api.add_job("t", queue_name="q", run_at=api.at("1 hour"))
    assert claim(api, worker) == []
    clock.advance(hours=1)
    assert claim(api, worker) == [job.id]


def test_an_add_with_an_older_snapshot_than_a_limit_waits_for_a_slot(
    api: Any, worker: int, actor: Callable[[], Any]
) -> None:
    api.set_queue("q", None)
    answered(api)
    a = actor()
    a.begin("repeatable read")
    assert a.value("select count(*) from pyworker.jobs") == 0
    api.set_queue("q", 1)
    answered(api)
    first = add(api, 1)
    assert claim(api, worker) == first
    second = add(a, 1)
    a.commit()
    assert claim(api, worker) == []
    api.finish(*first)
    assert claim(api, worker) == second


def test_an_end_with_an_older_snapshot_than_a_pause_hands_nothing_on(
    api: Any, worker: int, actor: Callable[[], Any]
) -> None:
    first, second = add(api, 2)
    assert claim(api, worker) == [first]
    a = actor()
    a.begin("repeatable read")
    run = a.value("select run from pyworker.jobs where id = %s", [first])
    api.pause_queue("q")
    answered(api)
    assert a.finish_jobs([first], [run]) == [first]
    a.commit()
    assert claim(api, worker) == []
    api.resume_queue("q")
    assert claim(api, worker) == [second]
