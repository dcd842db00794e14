"""add_batch, extend_batch: many jobs, and a callback when all of them have ended."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg.types.json import Jsonb

from tests.support import DEADLINE
from tests.support.api import ids
from tests.support.dependencies import ENDS, settle, state
from tests.support.sessions import LEVELS

EXTEND = "select * from pyworker.extend_batch(%s, %s)"


def batch(api: Any, members: list[Any], *on: str, callback: Any = None) -> list[Any]:
    sql = "select * from pyworker.add_batch(%s, %s" + ", %s" * len(on) + ")"
    return api.rows(sql, [Jsonb(members), Jsonb(callback or {"identifier": "callback"}), *on])


def test_a_batch_calls_back_when_all_its_jobs_have_ended(api: Any, worker: int) -> None:
    first, second, callback = batch(api, [{"identifier": "t"}, {"identifier": "t", "ref": "x"}])
    assert (callback.task_identifier, callback.state) == ("callback", "pending")
    assert len(api.claim_jobs(worker, 10)) == 2
    api.finish(first.id)
    ENDS["discarded"](api, second.id)
    assert ids(api.claim_jobs(worker, 10)) == [callback.id]
    results = api.rows("select id, ref, state from pyworker.dependency_results(%s)", [callback.id])
    assert results == [(first.id, None, "completed"), (second.id, "x", "discarded")]


def test_a_batch_without_jobs_calls_back_at_once(api: Any, worker: int) -> None:
    (callback,) = batch(api, [])
    assert ids(api.claim_jobs(worker, 10)) == [callback.id]


def test_a_batch_may_ask_for_success(api: Any, worker: int) -> None:
    first, second, callback = batch(api, [{"identifier": "t"}] * 2, "success")
    assert len(api.claim_jobs(worker, 10)) == 2
    api.finish(first.id)
    ENDS["discarded"](api, second.id)
    assert state(api, callback.id) == "pending"


def test_a_running_job_extends_its_batch(api: Any, actor: Any, worker: int) -> None:
    member, callback = batch(api, [{"identifier": "t"}])
    assert ids(api.claim_jobs(worker, 10)) == [member.id]
    a = actor()
    a.begin()
    (more,) = a.rows(EXTEND, [callback.id, Jsonb([{"identifier": "t"}])])
    api.finish(member.id)
    assert state(api, callback.id) == "pending"
    a.commit()
    assert state(api, callback.id) == "pending"
    assert ids(api.claim_jobs(worker, 10)) == [more.id]
    api.finish(more.id)
    assert ids(api.claim_jobs(worker, 10)) == [callback.id]


@pytest.mark.parametrize("outcome", ["rollback", "kill"])
def test_an_extension_that_is_rolled_back_holds_the_callback_no_longer(
    api: Any, actor: Any, worker: int, outcome: str
) -> None:
    member, callback = batch(api, [{"identifier": "t"}])
    assert ids(api.claim_jobs(worker, 10)) == [member.id]
    a = actor()
    a.begin()
    a.rows(EXTEND, [callback.id, Jsonb([{"identifier": "t"}])])
    api.finish(member.id)
    assert api.claim_jobs(worker, 10) == []
    getattr(a, outcome)()
    settle(api)
    assert ids(api.claim_jobs(worker, 10)) == [callback.id]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["{}", '{"identifier": "c"}', "end"], "jobs must be a JSON array of objects, got object"),
        ([None, '{"identifier": "c"}', "end"], "jobs must be a JSON array of objects, got NULL"),
        (["[]", "[]", "end"], "callback must be a JSON object, got array"),
        (["[]", None, "end"], "callback must be a JSON object, got NULL"),
        (["[]", '{"identifier": "c"}', "always"], "\"on\" must be success, end or failure, got 'always'"),
        (["[]", '{"identifier": "c"}', None], '"on" must be success, end or failure, got NULL'),
        (
            ["[]", '{"identifier": "c", "depends_on": [1]}', "end"],
            "callback must not have depends_on: it depends on all jobs of the batch",
        ),
        (["[7]", '{"identifier": "c"}', "end"], "add_jobs: specs.1. must be an object, got number"),
        (
            ['[{"identifier": "t", "depends_on": ["c"]}]', '{"identifier": "c", "ref": "c"}', "end"],
            "depends_on: jobs wait for each other in a circle",
        ),
    ],
)
def test_a_batch_that_means_nothing_is_refused(api: Any, args: list[Any], message: str) -> None:
    with api.refusal("PW001", message):
        api.rows("select * from pyworker.add_batch(%s, %s, %s)", args)
    assert api.value("select count(*) from pyworker.jobs") == 0


def called_back(api: Any, worker: int, how: str) -> Any:
    """The callback of a batch without jobs."""
    (callback,) = batch(api, [], callback={"identifier": "callback", "max_attempts": 1})
    if how != "available":
        api.claim_jobs(worker, 1)
    match how:
        case "completed":
            api.finish(callback.id)
        case "cancelled" | "discarded":
            ENDS[how](api, callback.id)
    assert api.get_job(callback.id).state == how
    return callback


@pytest.mark.parametrize("how", ["available", "running", "completed", "cancelled", "discarded"])
def test_a_batch_that_has_called_back_cannot_be_extended(api: Any, worker: int, how: str) -> None:
    callback = called_back(api, worker, how)
    message = f"extend_batch: job {callback.id} waits for no other job: it is {how}"
    with api.refusal("PW005", message) as caught:
        api.rows(EXTEND, [callback.id, Jsonb([{"identifier": "t"}])])
    assert caught.value.diag.message_hint == (
        "Extend the last job that add_batch returned, before the other jobs have ended, or from one of them."
    )
    assert api.rows("select from pyworker.jobs where task_identifier = 't'") == []


@pytest.mark.parametrize("unknown", [1000, None])
def test_a_callback_that_is_no_job_cannot_be_extended(api: Any, unknown: int | None) -> None:
    with api.refusal("PW004", f"extend_batch: there is no job {unknown or 'NULL'}"):
        api.rows(EXTEND, [unknown, Jsonb([{"identifier": "t"}])])
    assert api.rows("select from pyworker.jobs") == []


@pytest.mark.parametrize(
    ("jobs", "sqlstate", "message"),
    [
        ('{"identifier": "t"}', "PW001", "extend_batch: jobs must be a JSON array of objects, got object"),
        (None, "PW001", "extend_batch: jobs must be a JSON array of objects, got NULL"),
        ('[{"identifier": "t"}, 7]', "PW001", "add_jobs: specs.2. must be an object, got number"),
        ('[{"identifier": "t"}, {"identifier": "t", "depends_on": [99]}]', "PW004", "there is no job 99"),
        ('[{"identifier": "t", "depends_on": [%]}]', "PW001", "depends_on: job % would wait for itself"),
    ],
)
def test_an_extension_that_means_nothing_adds_nothing(
    api: Any, worker: int, jobs: str | None, sqlstate: str, message: str
) -> None:
    member, callback = batch(api, [{"identifier": "member"}])
    with api.refusal(sqlstate, message.replace("%", str(callback.id))):
        api.rows(EXTEND, [callback.id, jobs and jobs.replace("%", str(callback.id))])
    assert ids(api.rows("select id from pyworker.jobs order by id")) == [member.id, callback.id]
    assert ids(api.claim_jobs(worker, 10)) == [member.id]
    api.finish(member.id)
    assert ids(api.claim_jobs(worker, 10)) == [callback.id]


@pytest.mark.parametrize("on", ["success", "end", "failure"])
@pytest.mark.parametrize("ends", [["completed", "discarded"], ["discarded", "cancelled"], ["completed"] * 2])
def test_an_extension_keeps_what_the_batch_waits_for(api: Any, worker: int, on: str, ends: list[str]) -> None:
    """The first job is of the batch, the second of its extension."""
    member, callback = batch(api, [{"identifier": "t"}], on)
    (more,) = api.rows(EXTEND, [callback.id, Jsonb([{"identifier": "t"}])])
    assert len(api.claim_jobs(worker, 10)) == 2
    met = []
    for job, end in zip((member, more), ends, strict=True):
        assert state(api, callback.id) == "pending"
        ENDS[end](api, job.id)
        met.append(on in ("end", "success" if end == "completed" else "failure"))
    assert state(api, callback.id) == ("available" if all(met) else "pending")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("outcome", ["commit", "rollback", "kill"])
@pytest.mark.parametrize("last", ["extension", "end"])
def test_an_extension_and_the_last_end_that_are_open_at_once_meet(
    api: Any, actor: Any, worker: int, last: str, outcome: str, level: str
) -> None:
    """`outcome`: of the extension. Neither waits for the other."""
    member, callback = batch(api, [{"identifier": "t"}])
    assert ids(api.claim_jobs(worker, 10)) == [member.id]
    a, b = actor(), actor()
    a.begin(level)
    b.begin(level)
    (more,) = a.rows(EXTEND, [callback.id, Jsonb([{"identifier": "t"}])])
    b.finish(member.id)
    if last == "extension":
        b.commit()
        assert state(api, callback.id) == "pending"
        getattr(a, outcome)()
    else:
        getattr(a, outcome)()
        assert state(api, callback.id) == "pending"
        b.commit()
    settle(api)
    if outcome == "commit":
        assert ids(api.claim_jobs(worker, 10)) == [more.id]
        api.finish(more.id)
    assert ids(api.claim_jobs(worker, 10)) == [callback.id]


@pytest.mark.parametrize("outcome", ["commit", "rollback", "kill"])
def test_two_sessions_that_extend_a_batch_by_the_same_job_miss_no_end(
    api: Any, actor: Any, worker: int, outcome: str
) -> None:
    """`outcome`: of the first. The second one waits for it, as it decides who writes the edge."""
    same = Jsonb([{"identifier": "t", "unique_policy": {"by_args": True}}])
    (job,) = api.rows("select id from pyworker.add_jobs(%s)", [same])
    member, callback = batch(api, [{"identifier": "member"}])
    a, b = actor(), actor()
    a.begin()
    a.rows(EXTEND, [callback.id, same])
    second = b.session.start(EXTEND, [callback.id, same])
    b.blocked(second)
    getattr(a, outcome)()
    assert [row[0] for row in second.result(DEADLINE)] == [job.id]
    assert sorted(ids(api.claim_jobs(worker, 10))) == [job.id, member.id]
    for end in (member.id, job.id):
        assert state(api, callback.id) == "pending"
        api.finish(end)
    assert ids(api.claim_jobs(worker, 10)) == [callback.id]
    assert len(api.rows("select from pyworker.dependency_results(%s)", [callback.id])) == 2


def test_an_extension_by_a_job_that_was_there_has_its_result(api: Any, worker: int) -> None:
    same = {"identifier": "t", "unique_policy": {"by_args": True}}
    (done,) = api.add_jobs([same])
    assert ids(api.claim_jobs(worker, 1)) == [done.id]
    api.finish_jobs([done.id], api.runs(done.id), [Jsonb(7)])
    member, callback = batch(api, [{"identifier": "member"}])
    (again,) = api.rows(EXTEND, [callback.id, Jsonb([same])])
    assert (again.id, again.deduplicated) == (done.id, True)
    results = api.rows("select id, state, result from pyworker.dependency_results(%s)", [callback.id])
    assert results == [(done.id, "completed", 7), (member.id, None, None)]


def test_a_member_that_an_extension_adds_again_has_ended_all_the_same(api: Any, worker: int) -> None:
    """It was discarded, and its key starts it again."""
    keyed = {"identifier": "t", "job_key": "k"}
    first, second, callback = batch(api, [keyed, {"identifier": "t"}])
    assert ids(api.claim_jobs(worker, 1)) == [first.id]
    ENDS["discarded"](api, first.id)
    api.promote_jobs()
    (again,) = api.rows(EXTEND, [callback.id, Jsonb([keyed])])
    assert (again.id, again.state) == (first.id, "available")
    api.promote_jobs()
    assert api.rows("select * from pyworker._invariants()") == []
    assert sorted(ids(api.claim_jobs(worker, 10))) == [first.id, second.id]
    api.finish(second.id)
    assert ids(api.claim_jobs(worker, 10)) == [callback.id]


def test_a_job_of_an_extension_that_a_later_one_replaces_has_ended(api: Any, worker: int) -> None:
    same = {"identifier": "t", "unique_policy": {"by_args": True, "on_conflict": "replace"}}
    member, callback = batch(api, [{"identifier": "t"}])
    replaced, successor = api.rows(EXTEND, [callback.id, Jsonb([same, same])])
    for job in (member, successor):
        assert ids(api.claim_jobs(worker, 1)) == [job.id]
        api.finish(job.id)
    assert ids(api.claim_jobs(worker, 10)) == [callback.id]
    results = api.rows("select id, state from pyworker.dependency_results(%s)", [callback.id])
    assert (replaced.id, "cancelled") in results


@pytest.mark.parametrize("way", [{"job_key": "k"}, {"unique_policy": {"keys": [], "on_conflict": "replace"}}])
def test_no_job_of_an_extension_may_replace_the_callback(api: Any, worker: int, way: Any) -> None:
    _, callback = batch(api, [{"identifier": "t"}], callback={"identifier": "callback", **way})
    with api.refusal("PW001", f"extend_batch: jobs must not replace job {callback.id}"):
        api.rows(EXTEND, [callback.id, Jsonb([{"identifier": "callback", **way}])])
    assert api.get_job(callback.id).state == "pending"
    assert len(api.rows("select from pyworker.jobs")) == 2
