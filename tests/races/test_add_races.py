"""An add meets a claim, another add, or the end of a run, stepped one statement at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.support.api import row_of
from tests.support.sessions import LEVELS
from tests.support.sweeps import patient as patient


@pytest.mark.parametrize("by", ["add_job", "add_jobs"])
@pytest.mark.parametrize("mode", ["replace", "preserve_run_at"])
def test_an_add_that_meets_a_claim_under_way_gives_a_row_and_loses_nothing(
    api: Any, actor: Any, worker: int, mode: str, by: str
) -> None:
    """Graphile Worker returns null here, and the request is lost."""
    old = api.add_job("t", "[1]", job_key="k")
    w, a = actor(), actor()
    w.begin()
    assert w.claim(worker).id == old.id
    spec = {"identifier": "t", "payload": "[2]", "job_key": "k", "job_key_mode": mode}
    add = a.later.add_job(**spec) if by == "add_job" else a.later.add_jobs([{**spec, "payload": [2]}])
    a.blocked(add)
    w.commit()
    new = row_of(add)
    assert (new.id > old.id, new.payload, new.key, new.state) == (True, [2], "k", "available")
    assert (api.get_job(old.id).key, api.get_job(old.id).state) == (None, "running")
    assert api.finish(old.id) == [old.id]
    assert api.claim(worker).payload == [2]


def test_an_add_that_meets_a_claim_rolled_back_changes_the_job_in_place(
    api: Any, actor: Any, worker: int
) -> None:
    old = api.add_job("t", "[1]", job_key="k")
    w, a = actor(), actor()
    w.begin()
    w.claim(worker)
    add = a.later.add_job("t", "[2]", job_key="k")
    a.blocked(add)
    w.rollback()
    assert (row_of(add).id, row_of(add).payload) == (old.id, [1, 2])


@pytest.mark.parametrize("level", LEVELS[1:])
def test_in_an_old_snapshot_such_an_add_fails_as_a_serialization_failure_and_works_when_repeated(
    api: Any, actor: Any, worker: int, level: str
) -> None:
    old = api.add_job("t", "[1]", job_key="k")
    w, a = actor(), actor()
    w.begin()
    w.claim(worker)
    a.begin(level)
    add = a.later.add_job("t", "[2]", job_key="k")
    a.blocked(add)
    w.commit()
    with pytest.raises(psycopg.errors.SerializationFailure):
        add.result(20)
    a.rollback()
    a.begin(level)
    assert a.add_job("t", "[2]", job_key="k").id > old.id
    a.commit()


CHANGES: dict[str, Callable[[Any, int], Any]] = {
    "claimed": lambda api, worker: api.claim(worker),
    "claimed and finished": lambda api, worker: api.finish(api.claim(worker).id),
    "claimed and superseded": lambda api, worker: (api.claim(worker), api.add_job("t", "[5]", job_key="k")),
    "replaced": lambda api, worker: api.add_job("t", "[5]", job_key="k"),
    "removed": lambda api, worker: api.remove_job("k"),
    "removed and added": lambda api, worker: (api.remove_job("k"), api.add_job("t", "[5]", job_key="k")),
}


@pytest.mark.parametrize("mode", ["replace", "preserve_run_at", "unsafe_dedupe"])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("before", [True, False], ids=["key held", "key free"])
def test_an_add_behind_its_snapshot_gives_a_row_or_40001_never_null(
    api: Any, actor: Any, worker: int, level: str, mode: str, before: bool
) -> None:
    for change in CHANGES if before else ["replaced"]:
        if before:
            api.add_job("t", "[1]", job_key="k")
        a = actor()
        a.begin(level)
        CHANGES[change](api, worker)
        try:
            assert a.add_job("t", "[2]", job_key="k", job_key_mode=mode).id, change
            assert a.add_jobs([{"identifier": "t", "job_key": "k", "job_key_mode": mode}])[0].id, change
            a.commit()
        except psycopg.errors.SerializationFailure:
            assert level != "read committed", change
            a.rollback()
        api.rows("delete from pyworker.live_jobs; delete from pyworker.finished_jobs")


# Adds that meet -----------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["commit", "rollback", "kill"])
@pytest.mark.parametrize("mode", ["replace", "unsafe_dedupe"])
@pytest.mark.parametrize("existing", [None, "waiting", "running"])
def test_two_adds_of_one_key_follow_each_other(
    api: Any, actor: Any, worker: int, existing: str | None, mode: str, end: str
) -> None:
    old = api.add_job("t", "[0]", job_key="k") if existing else None
    if existing == "running":
        api.claim(worker)
    a, b = actor(), actor()
    a.begin()
    first = a.add_job("t", "[1]", job_key="k")
    add = b.later.add_job("t", "[2]", job_key="k", job_key_mode=mode)
    if existing and mode == "unsafe_dedupe":
        assert row_of(add).id == old.id  # it need not wait: there is a job with this key in either case
        a.rollback()
        return
    b.blocked(add)
    getattr(a, end)()
    second = row_of(add)
    if end == "commit":
        assert second.id == first.id
        assert second.payload == (first.payload if mode == "unsafe_dedupe" else [*first.payload, 2])
    else:
        assert second.payload == ([0, 2] if existing == "waiting" else [2])
        assert second.id == (old.id if existing == "waiting" else second.id)
    assert api.value("select count(*) from pyworker.jobs where key = 'k'") == 1


@pytest.mark.parametrize(
    "existing", ["", "ab", "abcd"], ids=["new keys", "some keys exist", "all keys exist"]
)
@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_two_batches_with_opposite_orders_of_keys_do_not_deadlock(
    api: Any, actor: Any, worker: int, existing: str, running: bool, end: str
) -> None:
    for key in existing[::-1]:
        api.add_job("t", "[0]", job_key=key)
    if running:
        api.claim_jobs(worker, 10)
    a, b, c = actor(), actor(), actor()
    for each in (a, b):
        each.rows(
            "set deadlock_timeout = '10min'"
        )  # a bulk add that was in a deadlock begins again, and no session would notice
    c.begin()
    c.add_job("t", "[9]", job_key="c")  # so that both batches really begin before either ends

    def batch(who: int, keys: str) -> list[dict[str, Any]]:
        return [{"identifier": "t", "job_key": key, "payload": [who]} for key in keys]

    first = a.later.add_jobs(batch(1, "abcd"))
    a.blocked(first)
    second = b.later.add_jobs(batch(2, "dcba"))
    b.blocked(second)
    getattr(c, end)()
    assert len(first.result(20)) == len(second.result(20)) == 4
    jobs = api.rows(
        "select key, (pyworker.get_job(id)).payload from pyworker.jobs where key is not null order by key"
    )
    own = [] if running else [0]
    for key, payload in jobs:
        assert sorted(payload) == sorted(
            [1, 2] + own * (key in existing) + [9] * (key == "c" and end == "commit")
        )
    assert len(jobs) == 4


def test_a_job_that_comes_in_between_two_batches_does_not_make_them_deadlock(api: Any, actor: Any) -> None:
    gate, a, b = actor(), actor(), actor()
    for each in (a, b):
        each.rows("set deadlock_timeout = '10min'")
    gate.begin()
    gate.add_job("t", "[0]", job_key="aa")
    second = b.later.add_jobs(
        [{"identifier": "t", "job_key": key, "payload": [2]} for key in ("a", "aa", "b")]
    )
    b.blocked(second)  # it has added a, has seen no b, and waits at aa
    api.add_job("t", "[0]", job_key="b")
    first = a.later.add_jobs([{"identifier": "t", "job_key": key, "payload": [1]} for key in ("a", "b")])
    a.blocked(first)  # it has locked b, and waits for a
    gate.commit()
    assert len(first.result(20)) == 2
    assert len(second.result(20)) == 3
    jobs = api.rows("select key, (pyworker.get_job(id)).payload from pyworker.jobs order by key")
    assert [(key, sorted(payload)) for key, payload in jobs] == [
        ("a", [1, 2]),
        ("aa", [0, 2]),
        ("b", [0, 1, 2]),
    ]


def test_adds_never_wait_for_a_claim_or_a_completion_of_other_jobs(api: Any, actor: Any, worker: int) -> None:
    done, taken = api.add_job("t", queue_name="q", job_key="a"), api.add_job("t", job_key="b")
    assert [job.id for job in api.claim_jobs(worker, 1, None, ["q"])] == [done.id]
    w, v = actor(), actor()
    w.begin()
    assert w.claim(worker).id == taken.id
    v.begin()
    v.finish(done.id)
    api.add_job("t")
    api.add_job("t", queue_name="q")
    api.add_job("t", job_key="c", queue_name="q")
    api.add_jobs([{"identifier": "t", "queue_name": "q"}, {"identifier": "t", "job_key": "d"}])
    api.define_task("t", priority=1)
    w.commit()
    v.commit()
    assert len(api.claim_jobs(worker, 10)) == 3


# A keyed add or a removal meets the end of a run --------------------------------------------------


ENDS: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "finish_jobs": (lambda call, job: call.finish_jobs([job.id], [job.run]), "completed"),
    "finish_job": (lambda call, job: call.finish_job(job.id, job.run), "completed"),
    "fail_jobs": (
        lambda call, job: call.fail_jobs([{"id": job.id, "run": job.run, "error": "boom"}]),
        "cancelled",
    ),
    "discard": (
        lambda call, job: call.fail_jobs([{"id": job.id, "run": job.run, "discard": True}]),
        "cancelled",
    ),
    "snooze_job": (lambda call, job: call.snooze_job(job.id, job.run, "1 s"), "cancelled"),
    "release_jobs": (lambda call, job: call.release_jobs([job.id], [job.run]), "cancelled"),
    "unregister_worker": (lambda call, job: call.unregister_worker(1), "cancelled"),
}

OTHERWISE = {"finish_jobs": "completed", "finish_job": "completed", "fail_jobs": "retryable",
    "discard": "discarded",
             "snooze_job": "scheduled", "release_jobs": "available",
             "unregister_worker": "available"}  # fmt: skip


@pytest.mark.parametrize("outcome", ["commit", "rollback", "kill"])
@pytest.mark.parametrize("other", ["add_job", "add_jobs", "remove_job"])
@pytest.mark.parametrize("end", ENDS)
def test_the_end_of_a_run_waits_for_an_open_change_of_its_key_and_is_then_accepted(
    api: Any, actor: Any, claimed: Any, patient: None, end: str, other: str, outcome: str
) -> None:
    a, w = actor(), actor()
    a.begin()
    if other == "add_job":
        a.add_job("t", "[2]", job_key="k")
    elif other == "add_jobs":
        a.add_jobs([{"identifier": "t", "payload": [2], "job_key": "k"}])
    else:
        a.remove_job("k")
    word, superseded = ENDS[end]
    ending = word(w.later, claimed)
    w.blocked(ending)
    getattr(a, outcome)()
    (accepted,) = row_of(ending)
    assert accepted in ([claimed.id], "", None)
    job = api.get_job(claimed.id)
    if outcome == "commit":
        assert (job.state, job.key) == (superseded, None)
        assert [row.key for row in api.rows("select key from pyworker.jobs")] == (
            ["k"] if other != "remove_job" else []
        )
    else:
        assert (job.state, job.key) == (OTHERWISE[end], "k")


@pytest.mark.parametrize("outcome", ["commit", "rollback", "kill"])
@pytest.mark.parametrize("end", ["finish_jobs", "fail_jobs", "discard", "release_jobs"])
def test_an_add_waits_for_an_open_end_of_its_namesakes_run(
    api: Any, actor: Any, claimed: Any, end: str, outcome: str
) -> None:
    w, a = actor(), actor()
    w.begin()
    ENDS[end][0](w, claimed)
    add = a.later.add_job("t", "[2]", job_key="k")
    a.blocked(add)
    getattr(w, outcome)()
    job = row_of(add)
    old = api.get_job(claimed.id)
    assert (job.key, job.state) == ("k", "available")
    if outcome != "commit":
        assert (job.payload, old.state, old.key) == ([2], "running", None)
    elif end == "finish_jobs":
        assert (job.payload, old.state) == ([2], "completed")
    else:
        assert (job.id, job.payload, job.attempts) == (old.id, [1, 2], 0)


def test_remove_job_finds_the_job_that_an_open_add_made_beside_a_running_one(
    api: Any, actor: Any, claimed: Any
) -> None:
    """Graphile Worker returns null here, and the new job survives."""
    a, r = actor(), actor()
    a.begin()
    new = a.add_job("t", "[2]", job_key="k")
    removal = r.later.remove_job("k")
    r.blocked(removal)
    a.commit()
    assert row_of(removal).id == new.id
    assert api.get_job(new.id).id is None
    assert api.get_job(claimed.id).state == "running"


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_remove_job_waits_for_an_open_claim(api: Any, actor: Any, worker: int, outcome: str) -> None:
    job = api.add_job("t", job_key="k")
    w, r = actor(), actor()
    w.begin()
    w.claim(worker)
    removal = r.later.remove_job("k")
    r.blocked(removal)
    getattr(w, outcome)()
    assert row_of(removal).id == job.id
    assert api.get_job(job.id).state == ("running" if outcome == "commit" else None)
    assert api.remove_job("k").id is None


@pytest.mark.parametrize("first", ["add", "remove"])
def test_an_add_and_a_removal_of_one_key_follow_each_other(api: Any, actor: Any, first: str) -> None:
    old = api.add_job("t", "[1]", job_key="k")
    a, b = actor(), actor()
    a.begin()
    if first == "add":
        a.add_job("t", "[2]", job_key="k")
        removal = b.later.remove_job("k")
        b.blocked(removal)
        a.commit()
        assert row_of(removal).payload == [1, 2]
        assert api.rows("select from pyworker.jobs") == []
    else:
        a.remove_job("k")
        add = b.later.add_job("t", "[2]", job_key="k")
        b.blocked(add)
        a.commit()
        assert (row_of(add).id > old.id, row_of(add).payload) == (True, [2])


@pytest.mark.parametrize("first", ["add_jobs", "finish_jobs"])
def test_a_batch_of_adds_and_a_batch_of_completions_do_not_deadlock(
    api: Any, actor: Any, worker: int, first: str
) -> None:
    for key in "cab":
        api.add_job("t", "[1]", job_key=key)
    jobs = api.claim_jobs(worker, 3)
    batch = [{"identifier": "t", "payload": [2], "job_key": key} for key in "abc"]
    gate, a, w = actor(), actor(), actor()
    gate.begin()
    gate.add_job(
        "t", job_key="a"
    )  # the job in the middle: a session that locks in another order has the others already
    calls = {
        "add_jobs": (a, lambda: a.later.add_jobs(batch)),
        "finish_jobs": (
            w,
            lambda: w.later.finish_jobs([job.id for job in jobs[::-1]], [job.run for job in jobs]),
        ),
    }
    futures = {}
    for name in sorted(calls, key=first.__ne__):
        who, call = calls[name]
        futures[name] = call()
        who.blocked(futures[name])
    gate.commit()
    assert len(futures["add_jobs"].result(20)) == 3
    assert sorted(row_of(futures["finish_jobs"])[0]) == sorted(job.id for job in jobs)
    assert len(api.claim_jobs(worker, 10)) == 3
