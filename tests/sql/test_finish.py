"""finish_jobs and finish_job: running -> completed, by the worker that holds the run and by no other."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg.types.json import Jsonb


def test_a_finished_job_moves_to_history_with_everything_about_it(api: Any, worker: int) -> None:
    api.add_job(
        "t", "[1e2]", job_key="k", queue_name="q", priority=3, max_attempts=4, flags=["f"], meta={"m": 1}
    )
    claimed = api.claim(worker)
    running = api.get_job(claimed.id)
    before = api.at()
    assert api.finish_jobs([claimed.id], [claimed.run], [Jsonb({"sum": 3})]) == [claimed.id]
    job = api.get_job(claimed.id)
    assert (job.state, job.result, job.reason, job.last_error) == ("completed", {"sum": 3}, None, None)
    assert before <= job.finished_at == job.updated_at <= api.at()
    changed = {"state", "result", "finished_at", "updated_at", "locked_at", "locked_by"}
    for name, value in running._asdict().items():
        assert name in changed or getattr(job, name) == value, name
    assert api.payload(job.id) == "[1e2]"
    assert api.value("select count(*) from pyworker.jobs") == 0
    (past,) = api.rows("select * from pyworker.history")
    assert (past.id, past.state, past.locked_by, past.locked_at) == (
        job.id,
        "completed",
        str(worker),
        running.locked_at,
    )


def test_a_batch_is_judged_job_by_job(api: Any, worker: int) -> None:
    jobs = [api.add_job("t") for _ in range(7)]
    run = api.claim_jobs(worker, 6)[0].run  # one for the whole claim
    released, snoozed, finished, cancelled, wrong_run, good, waiting = (job.id for job in jobs)
    api.release_jobs([released], [run])
    api.snooze_job(snoozed, run, "1 hour")
    api.finish_job(finished, run)
    api.cancel_job(cancelled, True)
    batch = [released, snoozed, finished, cancelled, wrong_run, waiting, good, 4711, None, good]
    runs = [run, run, run, run, run + 1, 0, run, run, run, run]
    assert api.finish_jobs(batch, runs) == [good]
    states = {job.id: api.get_job(job.id).state for job in jobs}
    assert list(states.values()) == [
        "available",
        "scheduled",
        "completed",
        "cancelled",
        "running",
        "completed",
        "available",
    ]


@pytest.mark.parametrize("size", [1, 2, 500])
def test_all_of_a_batch_in_any_order_is_accepted(api: Any, worker: int, size: int) -> None:
    api.add_jobs([{"identifier": "t"}] * size)
    jobs = api.claim_jobs(worker, size)[::-1]
    results = [Jsonb(job.id) for job in jobs]
    accepted = api.finish_jobs([job.id for job in jobs], [job.run for job in jobs], results)
    assert sorted(accepted) == sorted(job.id for job in jobs)
    assert api.value("select bool_and((pyworker.get_job(id)).result = to_jsonb(id)) from pyworker.history")


@pytest.mark.parametrize(
    ("ids", "runs", "results"),
    [("{}", "{}", None), (None, None, None), ("{}", "{}", "{}"), ("{1}", None, None)],
)
def test_an_empty_batch_finishes_nothing(api: Any, job_in: Any, ids: Any, runs: Any, results: Any) -> None:
    job = job_in("running")
    assert api.finish_jobs(ids, runs, results) == []
    assert api.get_job(job.id) == job


@pytest.mark.parametrize(
    "arrays",
    [("{1}", "{1,2}", None), ("{1,2}", "{1}", None), ("{1}", "{1}", '{"1","2"}'), ("{}", "{1}", None)],
)
def test_arrays_of_different_lengths_are_refused(api: Any, job_in: Any, arrays: tuple[Any, ...]) -> None:
    job = job_in("running")
    with api.refusal("PW001", "finish_jobs", "length"):
        api.finish_jobs(*arrays)
    assert api.get_job(job.id) == job


def test_results_may_be_missing_or_null(api: Any, worker: int) -> None:
    api.add_jobs([{"identifier": "t"}] * 3)
    a, b, c = api.claim_jobs(worker, 3)
    api.finish_jobs([a.id, b.id], [a.run, b.run], [None, Jsonb(None)])
    api.finish_jobs([c.id], [c.run], "{}")
    assert [api.value("select (pyworker.get_job(%s)).result::text", [job.id]) for job in (a, b, c)] == [
        None,
        "null",
        None,
    ]


def test_finish_job_is_one_with_the_handlers_own_writes(api: Any, actor: Any, worker: int) -> None:
    api.add_job("t")
    job = api.claim(worker)
    handler = actor()
    handler.begin()
    handler.define_task("the handler's own write", priority=1)
    handler.finish_job(job.id, job.run)
    assert api.get_job(job.id).state == "running"
    handler.rollback()
    assert api.get_job(job.id).state == "running"
    handler.begin()
    handler.finish_job(job.id, job.run)
    handler.commit()
    assert api.get_job(job.id).state == "completed"


@pytest.mark.parametrize(
    "lost", ["released", "finished", "swept", "cancelled", "re-claimed", "never", "null"]
)
def test_finish_job_raises_when_the_claim_was_lost(api: Any, job_in: Any, clock: Any, lost: str) -> None:
    job = job_in("running")
    job_id, run = job.id, job.run
    if lost in ("released", "re-claimed"):
        api.release_jobs([job.id], [job.run])
        if lost == "re-claimed":
            api.claim(int(job.locked_by))
    elif lost == "finished":
        api.finish_job(job.id, job.run)
    elif lost == "swept":
        clock.advance(minutes=5)
        api.maintain()
    elif lost == "cancelled":
        api.cancel_job(job.id, True)
    elif lost == "never":
        job_id = 4711
    elif lost == "null":
        run = None
    state = api.get_job(job.id).state
    with api.refusal("PW002", "finish_job", str(job_id), "NULL" if run is None else str(run)):
        api.finish_job(job_id, run)
    assert api.get_job(job.id).state == state


@pytest.mark.parametrize(
    "end", ["success", "by hand", "cancel", "handler cancels", "keyed, success", "keyed, by hand"]
)
def test_with_retention_zero_nothing_is_left_not_even_errors(
    api: Any, job_in: Any, clock: Any, end: str
) -> None:
    api.define_task("t", retention="0", backoff="[0]")
    job = job_in("running", job_key="k")
    if end == "handler cancels":
        api.fail(job, cancel=True)
    else:
        api.fail(job)
        if "keyed" in end:
            api.add_job("t", job_key="k")
        if "by hand" in end:
            api.complete_jobs([job.id])
        elif end == "cancel":
            api.cancel_job(job.id)
        else:
            again = api.claim(int(job.locked_by))
            api.finish_job(again.id, again.run)
    assert api.get_job(job.id).id is None
    assert api.job_errors(job.id) == []


def test_an_earlier_error_stays_visible_on_a_completed_job(
    api: Any, job_in: Any, worker: int, clock: Any
) -> None:
    job = job_in("due")
    again = api.claim(worker)
    api.finish_job(again.id, again.run)
    done = api.get_job(job.id)
    assert (done.state, done.last_error, done.attempts) == ("completed", "boom", 2)


# What became of a COMMIT that was not answered


def test_was_finished_tells_a_commit_from_a_rollback_and_waits_for_neither(
    api: Any, worker: int, session: Any
) -> None:
    done, undone, open_ = (api.add_job("t").id for _ in range(3))
    run = api.claim_jobs(worker, 3)[0].run
    with api.conn.transaction():
        api.finish_job(done, run)
        committed = api.value("select pg_current_xact_id()::text")
    with api.conn.transaction(force_rollback=True):
        api.finish_job(undone, run)
        rolled_back = api.value("select pg_current_xact_id()::text")
    other = session()
    other.begin()
    other.run("select pyworker.finish_job(%s, %s)", [open_, run])
    in_progress = other.value("select pg_current_xact_id()::text")
    ask = f"select pyworker.was_finished(%s, {run}, %s::xid8)"
    assert api.value(ask, [done, committed]) is True
    assert api.value(ask, [undone, rolled_back]) is False
    assert api.value(ask, [open_, in_progress]) is None
    other.run("commit")
    assert api.value(ask, [open_, in_progress]) is True


def test_a_number_that_a_crash_has_given_to_another_transaction_finishes_nothing(
    api: Any, worker: int
) -> None:
    """The server forgets a transaction that it had not logged when it crashed, and its number is
    given out again."""
    job_id = api.add_job("t").id
    run = api.claim(worker).run
    with api.conn.transaction():
        api.add_job("somebody else's")
        stranger = api.value("select pg_current_xact_id()::text")
    ask = f"select pyworker.was_finished(%s, {run}, %s::xid8)"
    assert api.value(ask, [job_id, stranger]) is False
    assert api.value(ask, [job_id, str(int(stranger) + 10**6)]) is False  # not given out again yet
    # The crash has lost the claim, too: the job waits, runs again, and is completed by another run.
    lost = f"select pyworker.was_finished(%s, {run - 1}, %s::xid8)"
    assert api.value(lost, [job_id, stranger]) is False
    api.release_jobs([job_id], [run])
    assert api.value(ask, [job_id, stranger]) is False
    api.claim(worker)
    api.finish(job_id)
    assert api.value(lost, [job_id, stranger]) is False
