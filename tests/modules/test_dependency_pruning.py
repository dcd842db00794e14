"""History keeps a job while another one waits for it, and edges go with the job that had them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.dependencies import ENDS, child, running, state

EDGES = "select count(*) from pyworker.edges"


@pytest.mark.parametrize("end", ["cancelled", "discarded"])
def test_a_job_that_another_one_waits_for_is_kept(api: Any, worker: int, clock: Any, end: str) -> None:
    parent = running(api, worker)
    job = child(api, [parent])
    ENDS[end](api, parent)
    clock.advance(days=30)
    for _ in range(3):
        api.prune()
    assert api.get_job(parent).state == end
    api.retry_job(parent)
    assert api.claim(worker, "parent").id == parent
    api.finish(parent)
    assert state(api, job) == "available"


def test_a_job_that_was_pruned_while_an_add_that_names_it_was_open_counts_as_it_ended(
    api: Any, actor: Any, worker: int, clock: Any
) -> None:
    completed, cancelled = running(api, worker), running(api, worker)
    a = actor()
    a.begin()
    jobs = [child(a, [parent]) for parent in (completed, cancelled)]
    ENDS["completed"](api, completed)
    ENDS["cancelled"](api, cancelled)
    clock.advance(days=30)
    api.prune()
    assert api.get_job(cancelled).id is None
    a.commit()
    assert [state(api, job) for job in jobs] == ["available", "pending"]


@pytest.mark.parametrize("way", ["prune", "delete", "no history"])
def test_the_edges_of_a_job_go_with_it(api: Any, worker: int, clock: Any, way: str) -> None:
    if way == "no history":
        api.define_task("child", retention="0")
    parent = running(api, worker)
    job = child(api, [parent])
    api.finish(parent)
    if way == "delete":
        api.delete_job(job)
    else:
        assert api.claim(worker, "child").id == job
        api.finish(job)
        clock.advance(days=30)
        api.prune()
    assert api.value(EDGES) == 0


def test_what_vanished_is_forgotten_after_a_day(api: Any, worker: int, clock: Any) -> None:
    job = child(api, [{"id": running(api, worker), "on": "failure"}])
    gone = api.add_job("t").id
    api.delete_job(gone)
    count = "select count(*) from pyworker.vanished_parents"
    api.prune()
    assert api.value(count) == 1
    clock.advance(days=2)
    api.prune()
    assert api.value(count) == 0
    assert state(api, job) == "pending"
