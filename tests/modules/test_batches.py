"""add_batch, extend_batch: many jobs, and a callback when all of them have ended."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.support.api import ids
from tests.support.dependencies import ENDS, state


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
    (more,) = a.rows(
        "select * from pyworker.extend_batch(%s, %s)", [callback.id, Jsonb([{"identifier": "t"}])]
    )
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
    a.rows("select * from pyworker.extend_batch(%s, %s)", [callback.id, Jsonb([{"identifier": "t"}])])
    api.finish(member.id)
    assert api.claim_jobs(worker, 10) == []
    getattr(a, outcome)()
    assert ids(api.claim_jobs(worker, 10)) == [callback.id]


@pytest.mark.parametrize(
    ("args", "sqlstate"),
    [
        (["{}", '{"identifier": "c"}', "end"], "PW001"),
        (["[]", "[]", "end"], "PW001"),
        (["[]", '{"identifier": "c"}', "always"], "PW001"),
        (["[]", '{"identifier": "c", "depends_on": [1]}', "end"], "PW001"),
        (["[7]", '{"identifier": "c"}', "end"], "PW001"),
        (['[{"identifier": "t", "depends_on": ["c"]}]', '{"identifier": "c", "ref": "c"}', "end"], "PW001"),
    ],
)
def test_a_batch_that_means_nothing_is_refused(api: Any, args: list[str], sqlstate: str) -> None:
    with pytest.raises(psycopg.Error) as error:
        api.rows("select * from pyworker.add_batch(%s, %s, %s)", args)
    assert error.value.sqlstate == sqlstate
    assert api.value("select count(*) from pyworker.jobs") == 0


def test_a_batch_that_has_called_back_cannot_be_extended(api: Any, worker: int) -> None:
    extend = 'select * from pyworker.extend_batch(%s, \'[{"identifier": "t"}]\')'
    (callback,) = batch(api, [])
    for job, sqlstate in ((callback.id, "PW005"), (1000, "PW004"), (None, "PW004")):
        with pytest.raises(psycopg.Error) as error:
            api.rows(extend, [job])
        assert error.value.sqlstate == sqlstate
    _, callback = batch(api, [{"identifier": "t"}])
    with pytest.raises(psycopg.Error) as error:
        api.rows(
            "select * from pyworker.extend_batch(%s, %s)",
            [callback.id, Jsonb([{"identifier": "t", "depends_on": [callback.id]}])],
        )
    assert error.value.sqlstate == "PW001"


EXTEND = "select * from pyworker.extend_batch(%s, %s)"


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
