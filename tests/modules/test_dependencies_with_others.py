"""depends_on beside what else a job may have: sequences, keys, unique policies, people's verbs."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg.types.json import Jsonb

from tests.support.dependencies import ENDS, child, running, state

S = Jsonb({"key": "s"})
SEQUENCES = "select sequence_key, running, waiting, halted_by from pyworker."


def sequences(api: Any) -> list[Any]:
    """The sequences as the view shows them; the command line and the dashboard show the same."""
    rows = [tuple(row) for row in api.rows(SEQUENCES + "sequences order by 1")]
    assert [tuple(row) for row in api.rows(SEQUENCES + "list_sequences()")] == rows
    return rows


def test_a_job_that_waits_for_others_is_in_no_sequence_yet(api: Any, worker: int) -> None:
    parent = running(api, worker)
    job = child(api, [parent], sequence_policy=S)
    assert sequences(api) == []
    head = api.add_job("t", sequence_policy=S).id
    api.promote_jobs()
    assert sequences(api) == [("s", head, 0, None)]
    api.finish(parent)
    assert state(api, job) == "pending"
    assert sequences(api) == [("s", head, 1, None)]


def test_a_halted_sequence_is_shown_and_resumed_beside_a_job_that_waits_for_others(
    api: Any, worker: int
) -> None:
    parent = running(api, worker)
    child(api, [parent], sequence_policy=S)
    first, second = (api.add_job("t", sequence_policy=S).id for _ in range(2))
    assert api.claim(worker).id == first
    ENDS["discarded"](api, first)
    assert sequences(api) == [("s", None, 1, first)]
    assert api.resume_sequence("s") is True
    assert api.claim(worker).id == second


def test_a_job_that_is_named_twice_must_meet_both_conditions(api: Any, worker: int) -> None:
    parents = [running(api, worker) for _ in range(2)]
    orders = [["end", "success"], ["success", "end"]]
    jobs = [
        child(api, [{"id": p, "on": on} for on in order])
        for p, order in zip(parents, orders, strict=True)
    ]  # fmt: skip
    for parent in parents:
        api.cancel_job(parent, True)
    assert [state(api, job) for job in jobs] == ["pending"] * 2
    for parent in parents:
        api.retry_job(parent)
    api.complete_jobs(parents)
    assert [state(api, job) for job in jobs] == ["available"] * 2


def test_a_job_reads_its_results_by_each_ref_of_a_duplicate(api: Any, worker: int) -> None:
    same = {"identifier": "t", "unique_policy": {"by_args": True}}
    first, second, job = api.add_jobs([
        {**same, "ref": "a"}, {**same, "ref": "b"}, {"identifier": "child", "depends_on": ["a", "b"]}
    ])  # fmt: skip
    assert second.id == first.id
    assert api.claim(worker).id == first.id
    api.finish_jobs([first.id], api.runs(first.id), [Jsonb(7)])
    results = api.rows("select ref, result from pyworker.dependency_results(%s)", [job.id])
    assert [tuple(row) for row in results] == [("a", 7), ("b", 7)]


@pytest.mark.parametrize("verb", ["retry_job", "reschedule_jobs"])
def test_on_unmet_cancel_acts_again_when_the_child_is_retried_before_its_parent(
    api: Any, worker: int, verb: str
) -> None:
    parent = running(api, worker)
    job = child(api, {"jobs": [parent], "on_unmet": "cancel"})
    if verb == "retry_job":
        ENDS["discarded"](api, parent)
        assert state(api, job) == "cancelled"
        assert api.retry_job(job).state == "pending"
    else:
        api.permanently_fail_jobs([job])
        ENDS["discarded"](api, parent)
        api.promote_jobs()
        assert [row.state for row in api.reschedule_jobs([job], attempts=0)] == ["pending"]
    assert state(api, job) == "cancelled"
    api.retry_job(parent)
    api.retry_job(job)
    assert state(api, job) == "pending"
    api.complete_jobs([parent])
    assert state(api, job) == "available"


def test_a_ref_of_no_job_is_refused_though_the_job_is_a_duplicate(api: Any) -> None:
    more = {"unique_policy": {"by_args": True}}
    first = api.add_job("child", **more).id
    with api.refusal("PW001", "no job of the call has the ref 'a'"):
        child(api, ["a"], **more)
    with api.refusal("PW001", "no job of the call has the ref 'a'"):
        api.add_jobs([{"identifier": "child", **more, "depends_on": ["a"]}])
    assert child(api, [first], **more) == first  # a duplicate waits for nothing
    assert api.get_job(first).state == "available"


@pytest.mark.parametrize("retention", ["1 day", "0"])
def test_a_job_that_a_later_job_of_the_call_replaces_counts_as_cancelled(
    api: Any, worker: int, retention: str
) -> None:
    api.define_task("t", retention=retention)
    same = {"identifier": "t", "unique_policy": {"by_args": True, "on_conflict": "replace"}}
    first, second, on_end, on_success = api.add_jobs([
        {**same, "ref": "a"},
        {**same, "ref": "b"},
        {"identifier": "child", "depends_on": [{"ref": "a", "on": "end"}]},
        {"identifier": "child", "depends_on": ["a"]},
    ])  # fmt: skip
    assert first.id != second.id
    assert [state(api, job.id) for job in (on_end, on_success)] == ["available", "pending"]
    results = api.rows("select state from pyworker.dependency_results(%s)", [on_success.id])
    assert [row.state for row in results] == ["cancelled"]
