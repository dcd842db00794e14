"""Kinds of jobs that stand aside in their queue, and those that do not: gate/aside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.api import ids
from tests.support.queues import add, busy, claim, named


def test_a_kind_that_was_let_in_just_now_keeps_its_slot_though_another_stands_aside(
    api: Any, worker: int, actor: Callable[[], Any], clock: Any
) -> None:
    named(api, "unknown", "t", queue="q")
    assert api.promote_jobs() == 1
    clock.advance(seconds=1.01)
    new, _ = named(api, "new", "t", queue="other")
    assert api.claim_jobs(worker, 10, ["t"]) == []  # from now on the unknown one stands aside
    a = actor()
    busy(a)
    assert ids(a.claim_jobs(worker, 10, ["new"])) == [new]
    a.commit()
    assert len(api.claim_jobs(worker, 10, ["t"])) == 1


def test_a_job_in_whose_queue_no_other_waits_keeps_its_slot(
    api: Any, worker: int, actor: Callable[[], Any], clock: Any
) -> None:
    (job,) = named(api, "unknown")
    assert api.promote_jobs() == 1
    clock.advance(seconds=1.01)
    assert api.claim_jobs(worker, 10, ["t"]) == []
    a = actor()
    busy(a)
    assert ids(a.claim_jobs(worker, 10, ["unknown"])) == [job]
    a.commit()


def test_a_better_job_changes_places_with_none_that_runs(api: Any, worker: int) -> None:
    api.set_queue("q", 2)
    (running,) = add(api, 1, priority=5)
    assert claim(api, worker) == [running]
    (ready,) = add(api, 1)
    assert api.promote_jobs() == 1
    (better,) = add(api, 1, priority=-1)
    assert claim(api, worker) == [better]
    api.finish(running)
    assert claim(api, worker) == [ready]
