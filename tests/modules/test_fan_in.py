"""Of its open dependencies a child watches one. Whichever that is, it misses no end, and forgets none."""

from __future__ import annotations

import random
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from tests.support.api import ids
from tests.support.dependencies import child, running, state
from tests.support.plans import touched

MANY = 2600  # more than a child that watches the last of few parents can have
ORDERS = {
    "rising": lambda jobs: jobs,
    "falling": lambda jobs: jobs[::-1],
    "random": lambda jobs: random.Random(7).sample(jobs, len(jobs)),
    "the first at last": lambda jobs: [*jobs[1:], jobs[0]],
    "the last at first": lambda jobs: [jobs[-1], *jobs[:-1]],
    "the upper half first": lambda jobs: [*jobs[MANY // 2 :], *jobs[: MANY // 2]],
    "the middle at last": lambda jobs: [*jobs[:1300], *jobs[1301:], jobs[1300]],
}


@pytest.mark.parametrize("way", ["a batch", "refs"])
@pytest.mark.parametrize("order", ORDERS)
def test_the_callback_of_a_large_batch_runs_after_its_last_job_in_whichever_order_they_end(
    api: Any, worker: int, order: str, way: str
) -> None:
    if way == "a batch":
        call = 'select * from pyworker.add_batch(%s, \'{"identifier": "callback"}\')'
        jobs = api.rows(call, [Jsonb([{"identifier": "t"}] * MANY)])
    else:
        specs = [{"identifier": "t", "ref": f"{n}"} for n in range(MANY)]
        jobs = api.add_jobs([*specs, {"identifier": "callback", "depends_on": [f"{n}" for n in range(MANY)]}])
    run = {job.id: job.run for job in api.claim_jobs(worker, MANY)}
    ending = ORDERS[order](sorted(run))
    for start in range(0, MANY, 200):
        assert state(api, jobs[-1].id) == "pending"
        part = ending[start : start + 199]  # one of each part ends by itself
        assert len(api.finish_jobs(part, [run[job] for job in part])) == 199
        assert state(api, jobs[-1].id) == "pending"
        api.finish_jobs(ending[start + 199 : start + 200], [run[ending[start + 199]]])
    assert ids(api.claim_jobs(worker, 10)) == [jobs[-1].id]


def test_the_looks_of_a_child_of_many_parents_read_each_edge_about_once(
    api: Any, worker: int, watched: Any
) -> None:
    call = 'select * from pyworker.add_batch(%s, \'{"identifier": "callback"}\')'
    api.rows("truncate pyworker.edges; analyze pyworker.edges")
    api.rows(call, [Jsonb([{"identifier": "t"}] * MANY)])
    read = []
    for _ in range(0, MANY, 100):
        jobs = api.claim_jobs(worker, 100, ["t"])
        assert len(jobs) == 100
        plans = watched(lambda a, jobs=jobs: a.finish_jobs([j.id for j in jobs], [j.run for j in jobs]))
        plans += watched(lambda a: a.promote_jobs())
        read.append(sum(touched(plans, "edges").values()))
    assert sum(map(bool, read)) >= 3  # looks of the child
    assert sum(read) <= 2 * MANY, read


def test_a_child_that_waits_no_more_watches_nothing(api: Any, worker: int) -> None:
    parents = [running(api, worker) for _ in range(3)]
    jobs = [child(api, parents[:many], job_key=f"{many}") for many in range(1, 4)]
    jobs[2] = child(api, parents[1:], job_key="3")  # with other parents than before
    api.finish(parents[1])
    api.finish(parents[2], parents[0])
    assert [state(api, job) for job in jobs] == ["available"] * 3
    assert api.value("select count(*) from pyworker.watches") == 0


@pytest.mark.parametrize("way", ["retried", "deleted", "pruned"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_dependency_that_held_stays_held_while_the_child_waits_for_others(
    api: Any, worker: int, clock: Any, way: str, place: int
) -> None:
    parents = [running(api, worker) for _ in range(3)]
    job = child(api, parents)
    ended = parents.pop(place)
    api.finish(ended)
    if way == "retried":
        api.retry_job(ended)
    elif way == "deleted":
        api.delete_job(ended)
    else:
        clock.advance(days=30)
        api.prune()
        assert api.get_job(ended).id is None
    assert state(api, job) == "pending"
    api.finish(parents[1])
    assert state(api, job) == "pending"
    api.finish(parents[0])
    assert state(api, job) == "available"


@pytest.mark.parametrize("way", ["retried", "deleted", "pruned", "without history"])
def test_a_child_has_the_results_of_parents_that_are_gone(
    api: Any, worker: int, clock: Any, way: str
) -> None:
    if way == "without history":
        api.define_task("parent", retention="0")
    parent, other = running(api, worker), running(api, worker)
    job = child(api, [{"id": parent, "on": "end"}, other])
    api.finish_jobs([parent], api.runs(parent), [Jsonb({"n": 1})])
    if way == "retried":
        api.retry_job(parent)
    elif way == "deleted":
        api.delete_job(parent)
    else:
        clock.advance(days=30)
        api.prune()
        assert api.get_job(parent).id is None
    rows = "select id, state, result from pyworker.dependency_results(%s)"
    assert api.rows(rows, [job]) == [(parent, "completed", {"n": 1}), (other, None, None)]
    api.finish(other)
    assert api.claim(worker, "child").id == job
    assert api.rows(rows, [job]) == [(parent, "completed", {"n": 1}), (other, "completed", None)]


@pytest.mark.parametrize("meanwhile", [1, 2])
def test_a_child_that_was_cancelled_and_is_retried_waits_for_what_is_left(
    api: Any, worker: int, meanwhile: int
) -> None:
    parents = [running(api, worker) for _ in range(2)]
    job = child(api, parents)
    api.cancel_job(job)
    for parent in parents[:meanwhile]:
        api.finish(parent)
        assert state(api, job) == "cancelled"
    assert api.retry_job(job).state == ("pending" if meanwhile == 1 else "available")
    assert state(api, job) == ("pending" if meanwhile == 1 else "available")
    for parent in parents[meanwhile:]:
        api.finish(parent)
    assert state(api, job) == "available"


def test_a_child_that_is_retried_while_its_last_parent_ends_learns_of_it(
    api: Any, actor: Any, worker: int
) -> None:
    parent = running(api, worker)
    job = child(api, [parent])
    api.cancel_job(job)
    a = actor()
    a.begin()
    assert a.retry_job(job).state == "pending"
    api.finish(parent)
    assert state(api, job) == "cancelled"  # a promotion has not seen that it waits
    a.commit()
    assert state(api, job) == "available"


def test_an_extension_by_an_older_job_is_waited_for(api: Any, worker: int) -> None:
    """Although the child has passed over its place."""
    older = running(api, worker, unique_policy=Jsonb({"keys": ["type"], "on_conflict": "ignore"}))
    (member, callback) = api.rows(
        """select * from pyworker.add_batch('[{"identifier": "t"}]', '{"identifier": "callback"}')"""
    )
    again = [{"identifier": "parent", "unique_policy": {"keys": ["type"], "on_conflict": "ignore"}}]
    rows = api.rows("select * from pyworker.extend_batch(%s, %s)", [callback.id, Jsonb(again)])
    assert [(row.id, row.deduplicated) for row in rows] == [(older, True)]
    assert api.claim(worker, "t").id == member.id
    api.finish(member.id)
    assert state(api, callback.id) == "pending"
    api.finish(older)
    assert state(api, callback.id) == "available"


def test_many_extensions_are_waited_for(api: Any, worker: int) -> None:
    (*_, callback) = api.rows(
        """select * from pyworker.add_batch('[{"identifier": "t"}]', '{"identifier": "callback"}')"""
    )
    extend = """select * from pyworker.extend_batch(%s, '[{"identifier": "t"}, {"identifier": "t"}]')"""
    for _ in range(5):
        api.rows(extend, [callback.id])
    jobs = ids(api.claim_jobs(worker, 20))
    assert len(jobs) == 11
    random.Random(3).shuffle(jobs)
    for job in jobs:
        assert state(api, callback.id) == "pending"
        api.finish(job)
    assert state(api, callback.id) == "available"
