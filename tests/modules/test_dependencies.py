"""depends_on: a job waits for the ends of other jobs."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.support.api import ids
from tests.support.dependencies import ENDS, child, running, state


def test_a_job_is_pending_until_the_jobs_that_it_depends_on_are_completed(api: Any, worker: int) -> None:
    first, second = running(api, worker), running(api, worker)
    job = child(api, [first, second])
    assert state(api, job) == "pending"
    assert api.claim_jobs(worker, 10) == []
    api.finish(second)
    assert state(api, job) == "pending"
    api.finish(first)
    assert ids(api.claim_jobs(worker, 10)) == [job]


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1]])
def test_the_order_in_which_parents_end_does_not_matter(api: Any, worker: int, order: list[int]) -> None:
    parents = [running(api, worker) for _ in range(3)]
    job = child(api, parents)
    for n in order[:2]:
        api.finish(parents[n])
        assert state(api, job) == "pending"
    api.finish(parents[order[2]])
    assert state(api, job) == "available"


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("condition", ["success", "failure", "end"])
def test_a_condition_says_which_end_counts(
    api: Any, worker: int, condition: str, end: str, when: str
) -> None:
    parent = running(api, worker)
    if when == "before":
        ENDS[end](api, parent)
    job = child(api, [{"id": parent, "on": condition}])
    if when == "after":
        assert state(api, job) == "pending"
        ENDS[end](api, parent)
    met = condition == "end" or condition == ("success" if end == "completed" else "failure")
    assert state(api, job) == ("available" if met else "pending")


def test_a_retry_of_the_parent_mends_a_dependency_that_could_not_hold(api: Any, worker: int) -> None:
    for end in ("cancelled", "discarded"):
        parent = running(api, worker)
        job = child(api, [parent])
        ENDS[end](api, parent)
        assert state(api, job) == "pending"
        api.retry_job(parent)
        assert ids(api.claim_jobs(worker, 1, ["parent"])) == [parent]
        api.finish(parent)
        assert state(api, job) == "available"


@pytest.mark.parametrize("end", ["cancelled", "discarded"])
def test_on_unmet_cancel_cancels_the_child_and_its_children(api: Any, worker: int, end: str) -> None:
    parent = running(api, worker)
    job = child(api, {"jobs": [parent], "on_unmet": "cancel"})
    below = child(api, {"jobs": [job], "on_unmet": "cancel"})
    on_end = child(api, {"jobs": [{"id": job, "on": "end"}], "on_unmet": "cancel"})
    ENDS[end](api, parent)
    for _ in range(3):
        api.promote_jobs()
    assert [(api.get_job(x).state, api.get_job(x).reason) for x in (job, below)] == [
        ("cancelled", "dependency")
    ] * 2
    assert state(api, on_end) == "available"


def test_on_unmet_cancel_acts_at_a_parent_that_had_ended_before(api: Any, worker: int) -> None:
    parent = running(api, worker)
    ENDS["discarded"](api, parent)
    job = child(api, {"jobs": [parent], "on_unmet": "cancel"})
    assert state(api, job) == "cancelled"


def test_a_deleted_or_removed_parent_counts_as_cancelled(api: Any, worker: int) -> None:
    kept, gone = api.add_job("parent", job_key="k").id, api.add_job("parent").id
    jobs = [child(api, [{"id": p, "on": "failure"}]) for p in (kept, gone)]
    held = child(api, [kept])
    api.remove_job("k")
    api.delete_job(gone)
    assert [state(api, job) for job in jobs] == ["available"] * 2
    assert state(api, held) == "pending"


def test_a_dependency_that_held_stays_held(api: Any, worker: int) -> None:
    first, second = running(api, worker), running(api, worker)
    job = child(api, [first, second])
    api.finish(first)
    api.delete_job(first)
    api.finish(second)
    assert state(api, job) == "available"


def test_a_parent_without_history_decides_its_children(api: Any, worker: int) -> None:
    api.define_task("parent", retention="0")
    first, second = running(api, worker), running(api, worker)
    job = child(api, [first])
    other = child(api, [second])
    api.finish(first)
    api.cancel_job(second, True)
    assert (state(api, job), state(api, other)) == ("available", "pending")


def test_refs_name_jobs_of_the_same_call(api: Any, worker: int) -> None:
    jobs = api.add_jobs([
        {"identifier": "c", "depends_on": ["b", {"ref": "a", "on": "end"}]},
        {"identifier": "b", "ref": "b", "depends_on": ["a"]},
        {"identifier": "a", "ref": "a"},
    ])  # fmt: skip
    assert [job.state for job in jobs] == ["pending", "pending", "available"]
    for job in reversed(jobs):
        assert ids(api.claim_jobs(worker, 10)) == [job.id]
        api.finish(job.id)


@pytest.mark.parametrize(
    ("depends_on", "sqlstate", "message"),
    [
        (7, "PW001", "it must be an array of ids, refs and objects, got number"),
        ([True], "PW001", "item 1: it must be an id, a ref or an object, got boolean"),
        ([1, 2.5], "PW001", "item 2: id must be a job's id, got 2.5"),
        (["a"], "PW001", "no job of the call has the ref 'a'"),
        ([""], "PW001", 'ref must be a string of 1 to 512 characters, got ""'),
        ([{"id": 1, "ref": "a"}], "PW001", "it must have either id or ref"),
        ([{}], "PW001", "it must have either id or ref"),
        ([{"id": "1"}], "PW001", 'id must be a job\'s id, got "1"'),
        ([{"id": 1, "on": "done"}], "PW001", 'on must be "success", "end" or "failure", got "done"'),
        ([{"id": 1, "if": 1}], "PW001", "unknown member if"),
        ({"jobs": 1}, "PW001", "jobs must be an array, got number"),
        ({"on_unmet": "hold"}, "PW001", "jobs must be an array, got none"),
        ({"jobs": [], "on_unmet": "run"}, "PW001", 'on_unmet must be "hold" or "cancel", got "run"'),
        ({"jobs": [], "x": 1}, "PW001", "unknown member x"),
        ([1000], "PW004", "there is no job 1000"),
        ([1] * 100001, "PW001", "it must name at most 100000 jobs, got 100001"),
    ],
)
def test_a_depends_on_that_means_nothing_is_refused(
    api: Any, depends_on: Any, sqlstate: str, message: str
) -> None:
    for call in (
        lambda: api.add_job("child", depends_on=Jsonb(depends_on)),
        lambda: api.add_jobs([{"identifier": "child", "depends_on": depends_on}]),
    ):
        with pytest.raises(psycopg.Error) as error:
            call()
        assert error.value.sqlstate == sqlstate
        assert message in str(error.value)
    assert api.value("select count(*) from pyworker.jobs") == 0


@pytest.mark.parametrize("nothing", [None, [], {"jobs": []}])
def test_an_empty_depends_on_means_none(api: Any, nothing: Any) -> None:
    assert api.add_job("t", depends_on=Jsonb(nothing)).state == "available"
    assert api.add_jobs([{"identifier": "t", "depends_on": nothing}])[0].state == "available"


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        (
            [{"identifier": "a", "ref": "a", "depends_on": ["a"]}],
            r"specs\[1\]: depends_on: the job would wait for itself: 'a' is its own ref",
        ),
        (
            [
                {"identifier": "free"},
                {"identifier": "a", "ref": "a", "depends_on": ["c"]},
                {"identifier": "b", "ref": "b", "depends_on": ["a"]},
                {"identifier": "c", "ref": "c", "depends_on": ["b"]},
            ],
            r"specs\[2\]: depends_on: jobs wait for each other in a circle",
        ),
        (
            [{"identifier": "a", "ref": "a"}, {"identifier": "a", "ref": "a"}],
            r"specs\[2\]: ref must be a string of 1 to 512 characters that no other job of the call has, "
            "got 'a'",
        ),
        ([{"identifier": "a", "ref": ""}], r"specs\[1\]: ref must be a string of 1 to 512 characters"),
        (
            [{"identifier": "a", "ref": "a"}, {"identifier": "b", "depends_on": ["a", "z"]}],
            r"specs\[2\]: depends_on: no job of the call has the ref 'z'",
        ),
    ],
)
def test_a_ref_that_is_used_twice_or_part_of_a_circle_is_refused(api: Any, specs: Any, message: str) -> None:
    with api.refusal("PW001", f"add_jobs: {message}"):
        api.add_jobs(specs)
    assert api.rows("select from pyworker.jobs") == []
    assert api.rows("select from pyworker.edges") == []


def test_a_replace_puts_new_dependencies_in_the_place_of_the_old_ones(api: Any, worker: int) -> None:
    first, second = running(api, worker), running(api, worker)
    job = child(api, [first], job_key="k")
    assert child(api, [second], job_key="k") == job
    api.finish(first)
    assert state(api, job) == "pending"
    api.finish(second)
    assert state(api, job) == "available"
    child(api, [running(api, worker)], job_key="k")
    assert state(api, job) == "pending"
    api.add_job("child", job_key="k")
    assert state(api, job) == "available"


def test_a_replace_that_would_close_a_circle_is_refused(api: Any) -> None:
    first = api.add_job("t", job_key="k").id
    second = child(api, [first])
    third = child(api, [second])
    with api.refusal("PW001", f"depends_on: job {first} would wait for itself"):
        child(api, [third], job_key="k")
    assert [state(api, job) for job in (first, second, third)] == ["available", "pending", "pending"]


@pytest.mark.parametrize(
    ("alike", "again"),
    [({"job_key": "k"}, {"job_key_mode": "unsafe_dedupe"}), ({"unique_policy": {"by_args": True}}, {})],
    ids=["of one key", "unique"],
)
def test_a_job_that_a_call_names_twice_cannot_wait_for_itself(api: Any, alike: Any, again: Any) -> None:
    """The second ref finds the job that the first spec has added."""
    first = {"identifier": "t", **alike, "ref": "a"}
    second = {**first, **again, "ref": "b"}
    between = {"identifier": "t", "ref": "c", "depends_on": [{"ref": "b"}]}
    for specs in (
        [{**first, "depends_on": [{"ref": "b"}]}, second],
        [{**first, "depends_on": [{"ref": "c"}]}, second, between],
    ):
        with api.refusal("PW001", "depends_on: job ", " would wait for itself"):
            api.add_jobs(specs)
    assert api.rows("select from pyworker.jobs") == []
    other, same, waiting = api.add_jobs([first, second, between])
    assert other.id == same.id != waiting.id


def test_dependencies_come_before_the_turn_in_a_sequence(api: Any, worker: int) -> None:
    policy = Jsonb({"key": "s"})
    parent = running(api, worker)
    waiting = child(api, [parent], sequence_policy=policy)
    later = api.add_job("t", sequence_policy=policy).id
    assert ids(api.claim_jobs(worker, 10)) == [later]  # passes the one that waits
    api.finish(parent)
    assert state(api, waiting) == "pending"
    api.finish(later)
    assert ids(api.claim_jobs(worker, 10)) == [waiting]


def test_dependencies_come_before_the_time_and_the_queue(api: Any, worker: int, clock: Any) -> None:
    parent = running(api, worker)
    due = child(api, [parent], run_at=api.at("1 hour"))
    queued = [child(api, [parent], queue_name="q") for _ in range(2)]
    clock.advance(minutes=30)
    api.finish(parent)
    assert state(api, due) == "scheduled"
    assert ids(api.claim_jobs(worker, 10)) == queued[:1]
    api.finish(queued[0])
    clock.advance(hours=1)
    assert sorted(ids(api.claim_jobs(worker, 10))) == sorted([due, queued[1]])


# What people read --------------------------------------------------------------------------------


def test_a_child_reads_the_results_of_its_parents(api: Any, worker: int) -> None:
    api.define_task("gone", retention="0")
    first, second = running(api, worker), api.add_job("gone").id
    assert ids(api.claim_jobs(worker, 1, ["gone"])) == [second]
    job = child(api, [first, {"id": second, "on": "end"}])
    api.finish_jobs([first], api.runs(first), [Jsonb({"n": 1})])
    rows = "select * from pyworker.dependency_results(%s)"
    assert api.rows(rows, [job]) == [(first, None, "completed", {"n": 1}), (second, None, None, None)]
    api.finish_jobs([second], api.runs(second), [Jsonb([2])])
    api.delete_job(first)
    assert api.rows(rows, [job]) == [(first, None, "completed", {"n": 1}), (second, None, "completed", [2])]


def test_the_view_dependencies_tells_how_the_parents_stand(api: Any, worker: int) -> None:
    a, b = api.add_jobs([{"identifier": "a", "ref": "x"}, {"identifier": "b", "depends_on": ["x"]}])
    view = "select depends_on, ref, condition, state from pyworker.dependencies where job_id = %s"
    assert api.rows(view, [b.id]) == [(a.id, "x", "success", "available")]
    api.cancel_job(a.id)
    assert api.rows(view, [b.id]) == [(a.id, "x", "success", "cancelled")]
    api.delete_job(a.id)
    assert api.rows(view, [b.id]) == [(a.id, "x", "success", "cancelled")]


def test_explain_job_names_the_parents_that_it_waits_for(api: Any, worker: int) -> None:
    waiting, cancelled = api.add_job("t").id, api.add_job("t").id
    job = child(api, [waiting, cancelled])
    api.cancel_job(cancelled)
    reasons = api.rows("select reason, detail, remedy from pyworker.explain_job(%s)", [job])
    assert [row.reason for row in reasons[:2]] == ["dependency unmet", "dependency"]
    assert reasons[0].detail == f"waits for the success of job {cancelled} (cancelled)"
    assert f"retry_job({cancelled})" in reasons[0].remedy
    assert reasons[1].detail == f"waits for the success of job {waiting} (available)"


def test_explain_job_of_a_large_fan_in_names_some_and_first_those_that_have_failed(
    api: Any, worker: int
) -> None:
    parents = ids(api.add_jobs([{"identifier": "t"}] * 200))
    job = child(api, parents)
    api.cancel_job(parents[-1], True)
    reasons = api.rows("select * from pyworker.explain_job(%s) order by position", [job])
    details = [row.detail for row in reasons if row.reason.startswith("dependency")]
    assert len(details) == 11
    assert details[0] == f"waits for the success of job {parents[-1]} (cancelled)"
    assert details[1] == f"waits for the success of job {parents[0]} (available)"
    assert details[10] == "waits for 190 other jobs"


def test_explain_job_says_that_all_parents_have_ended_before_the_promotion_has_seen_it(
    api: Any, worker: int
) -> None:
    parent = running(api, worker)
    job = child(api, [parent])
    api.finish(parent)
    assert [row.reason for row in api.rows("select * from pyworker.explain_job(%s)", [job])] == ["promotion"]


def test_a_job_cannot_depend_on_the_id_that_it_is_about_to_get(api: Any) -> None:
    """An id of no job is refused, also if it is the next one."""
    following = api.add_job("t").id + 1
    for add in (
        lambda: api.add_job("t", depends_on=Jsonb([following])),
        lambda: api.add_jobs([{"identifier": "t", "depends_on": [following + 1]}]),
    ):
        with pytest.raises(psycopg.errors.DatabaseError) as refused:
            add()
        assert refused.value.sqlstate == "PW004"
