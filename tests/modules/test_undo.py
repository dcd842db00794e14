"""Actions that are taken back: each job is as it was, or left as it is, and the answer says why."""

from __future__ import annotations

import pytest
from psycopg.types.json import Jsonb

from tests.modules.test_bulk import act
from tests.support.waits import waiting


def undo(api):
    return api.rows("select * from pyworker.undo_actions(0, 1000000, 'ada')")[0]


def perform(api, action, *jobs):
    ids = [str(job.id) for job in jobs]
    return api.rows("select * from pyworker.perform_action(%s, %s, 'ada')", [action, ids])


def known(api, job):
    """All that history and the job's page tell of it, but for the time of its last change."""
    row = api.rows("select to_jsonb(j) - 'updated_at' as job from pyworker.get_job(%s) j", [job.id])[0].job
    return row, api.rows("select error from pyworker.job_errors(%s)", [job.id])


def test_a_cancel_is_undone_and_the_job_waits_for_its_old_time(api):
    jobs = [api.add_job("t", run_at="2100-01-01").id for _ in range(12)]
    other = api.add_job("t", run_at="2100-01-01").id
    told = act(api, "cancel", states=["scheduled"], last_id=jobs[-1])
    api.rows("select * from pyworker.perform_action('cancel', array[%s::text], 'bob')", [other])
    first, last, undone = told[0].first_audit, told[-1].last_audit + 1, 0
    while first is not None:
        row = api.rows("select * from pyworker.undo_actions(%s, %s, 'ada', 5)", [first, last])[0]
        undone, first = undone + row.done, row.next_audit
    assert undone == 12
    found = api.rows("select distinct state, extract(year from run_at)::int from pyworker.jobs")
    assert found == [("scheduled", 2100)]
    assert api.get_job(other).state == "cancelled"
    again = api.rows("select * from pyworker.undo_actions(%s, %s, 'ada')", [told[0].first_audit, last])[0]
    assert (again.done, again.refused) == (0, 12)


def test_a_job_whose_cancel_is_undone_still_expires_when_it_was_to(api, clock):
    job = api.add_job("t", expires_at=api.at("1 minute"))
    perform(api, "cancel", job)
    assert undo(api).done == 1
    clock.advance(seconds=61)
    api.rows("select pyworker.maintain()")
    ended = api.get_job(job.id)
    assert (ended.state, ended.reason) == ("cancelled", "expired")


def test_a_job_whose_cancel_is_undone_keeps_its_max_wait_and_waits_for_its_parents(api, clock):
    parent = api.add_job("parent")
    child = api.add_job("child", depends_on=Jsonb([parent.id]))
    put_off = "select id, run_at - created_at as wait from pyworker.add_job('t', job_key => 'k', "
    job = api.rows(put_off + "run_at => pyworker.clock() + '1 min', max_wait => '2 min')")[0]
    clock.advance(seconds=10)
    perform(api, "cancel", job, child)
    assert undo(api).done == 2
    assert api.get_job(child.id).state == "pending"
    again = api.rows(put_off + "run_at => pyworker.clock() + '1 hour')")[0]
    assert (again.id, again.wait.total_seconds()) == (job.id, 120)


def test_a_cancel_is_not_undone_once_the_job_would_have_expired(api, clock):
    job = api.add_job("t", expires_at=api.at("1 minute"))
    perform(api, "cancel", job)
    clock.advance(seconds=61)
    told = undo(api)
    assert (told.done, told.outcomes[0]["outcome"]) == (0, "its expires_at is over")
    assert api.get_job(job.id).state == "cancelled"


@pytest.mark.parametrize("state", ["discarded", "cancelled"])
@pytest.mark.parametrize("sequenced", [False, True])
def test_a_job_whose_retry_is_undone_is_as_it_had_ended(api, worker, clock, state, sequenced):
    policy = Jsonb({"key": "s"}) if sequenced else None
    job = api.add_job("t", max_attempts=1, queue_name="q", sequence_policy=policy)
    behind = api.add_job("behind", queue_name="q", sequence_policy=policy)
    claimed = api.claim(worker, "t")
    if state == "cancelled":
        api.cancel_job(job.id)
    api.fail(claimed, "boom")
    ended, halts = known(api, job), api.rows("select * from pyworker.sequence_halts")
    assert ended[0]["state"] == state
    clock.advance(seconds=10)
    perform(api, "retry", job)
    assert known(api, job) != ended
    row = undo(api)
    assert (row.done, row.outcomes[0]["outcome"]) == (1, state)
    assert known(api, job) == ended
    assert [h[:2] for h in api.rows("select * from pyworker.sequence_halts")] == [h[:2] for h in halts]
    assert api.get_job(behind.id).state == ("pending" if sequenced else "available")
    again = undo(api)
    assert (again.done, again.refused, again.outcomes[0]["outcome"]) == (0, 1, f"it is {state} now")
    perform(api, "retry", job)
    assert api.get_job(job.id).state == ("pending" if sequenced else "available")


def test_a_retry_that_ran_a_job_ahead_of_its_time_is_undone(api):
    job = api.add_job("t", run_at=api.at("1 day"), expires_at=api.at("2 days"))
    before = api.rows("select run_at, start_by, state from pyworker.live_jobs")
    perform(api, "retry", job)
    assert api.get_job(job.id).state == "available"
    assert undo(api).done == 1
    assert api.rows("select run_at, start_by, state from pyworker.live_jobs") == before


def test_a_retry_is_not_undone_once_a_run_has_started(api, worker):
    jobs = [api.add_job("t") for _ in range(2)]
    for _ in jobs:
        api.fail(api.claim(worker), "boom", discard=True)
    perform(api, "retry", *jobs)
    api.claim(worker)
    released = api.claim(worker)
    api.fail(released, "boom")
    told = undo(api)
    assert (told.done, told.refused) == (0, 2)
    assert {o["outcome"] for o in told.outcomes} == {"it is running now", "it has run since"}
    assert {api.get_job(j.id).state for j in jobs} == {"running", "retryable"}


@pytest.mark.parametrize("result", [None, {"total": 7}])
def test_a_completed_job_whose_retry_is_undone_has_its_result_and_its_last_run_again(
    api, worker, clock, result
):
    job = api.add_job("t", queue_name="q", sequence_policy={"key": "s"})
    behind = api.add_job("behind", sequence_policy={"key": "s"})
    child = api.add_job("child", depends_on=Jsonb([job.id]))
    claimed = api.claim(worker, "t")
    clock.advance(seconds=3)
    api.finish_jobs([job.id], [claimed.run], [Jsonb(result)] if result else None)
    last_run = "select locked_at, locked_by, finished_at from pyworker.history"
    ended = known(api, job), api.rows(last_run)
    clock.advance(seconds=10)
    perform(api, "retry", job)
    assert (api.get_job(job.id).state, api.get_job(job.id).result) == ("pending", None)
    late = api.add_job("late", depends_on=Jsonb([job.id]))
    told = undo(api)
    assert (told.done, told.outcomes[0]["outcome"]) == (1, "completed")
    assert (known(api, job), api.rows(last_run)) == ended
    assert api.get_job(job.id).result == result
    api.promote_jobs()
    assert {api.get_job(j.id).state for j in (behind, child, late)} == {"available"}
    inputs = api.rows("select result from pyworker.dependency_results(%s)", [late.id])
    assert inputs == [(result,)]


def test_a_completed_job_that_ran_again_keeps_its_new_end(api, worker):
    job = api.add_job("t", max_attempts=1)
    api.finish_jobs([job.id], [api.claim(worker).run], [Jsonb("old")])
    perform(api, "retry", job)
    api.fail(api.claim(worker), "boom")
    told = undo(api)
    assert (told.done, told.outcomes[0]["outcome"]) == (0, "it is discarded now")
    assert api.get_job(job.id).result is None
    api.retry_job(job.id)
    api.finish_jobs([job.id], [api.claim(worker).run], [Jsonb("new")])
    told = undo(api)
    assert (told.done, told.outcomes[0]["outcome"]) == (0, "it is completed now")
    assert api.get_job(job.id).result == "new"


def test_a_completed_job_that_was_cancelled_after_its_retry_has_no_result_to_give_back(api, worker):
    job = api.add_job("t")
    api.finish_jobs([job.id], [api.claim(worker).run], [Jsonb("old")])
    perform(api, "retry", job)
    api.cancel_job(job.id)
    api.retry_job(job.id)
    told = undo(api)
    assert (told.done, told.outcomes[0]["outcome"]) == (0, "it has ended since")
    (completed,) = api.complete_jobs([job.id])
    assert (completed.state, completed.result) == ("completed", None)


def test_a_completed_job_stays_retried_where_history_keeps_no_completed_job_any_more(api, worker):
    job = api.add_job("t")
    api.finish(api.claim(worker).id)
    perform(api, "retry", job)
    api.rows("select pyworker.configure(completed_retention => '0')")
    told = undo(api)
    assert (told.done, told.outcomes[0]["outcome"]) == (0, "jobs that end are not kept any more")
    assert api.get_job(job.id).state == "available"


@pytest.mark.parametrize("waits_for", ["its sequence", "a parent"])
@pytest.mark.parametrize("turn_has_come", [False, True])
def test_a_pending_job_whose_retry_is_undone_waits_for_its_turn_and_the_time_it_had(
    api, worker, waits_for, turn_has_come
):
    policy = {"sequence_policy": {"key": "s"}} if waits_for == "its sequence" else {}
    first = api.add_job("first", **policy)
    api.claim(worker)
    if waits_for == "a parent":
        policy = {"depends_on": Jsonb([first.id])}
    job = api.add_job("t", run_at=api.at("1 day"), expires_at=api.at("2 days"), **policy)
    before = api.rows("select run_at, start_by from pyworker.live_jobs where id = %s", [job.id])
    perform(api, "retry", job)
    assert api.get_job(job.id).run_at < before[0].run_at
    if turn_has_come:
        api.finish(first.id)
        api.promote_jobs()
        assert api.get_job(job.id).state == "available"
    assert undo(api).done == 1
    assert api.rows("select run_at, start_by from pyworker.live_jobs where id = %s", [job.id]) == before
    assert api.get_job(job.id).state == ("scheduled" if turn_has_come else "pending")


def test_the_retry_that_made_a_sequence_go_on_is_not_undone(api, worker):
    api.add_job("first", sequence_policy={"key": "s"})
    job = api.add_job("t", sequence_policy={"key": "s"})
    api.fail(api.claim(worker), discard=True)
    perform(api, "retry", job)
    told = undo(api)
    assert (told.done, told.refused) == (0, 1)
    assert told.outcomes[0]["outcome"] == "its sequence goes on with it"
    assert api.claim(worker).id == job.id


def test_the_retry_of_a_job_that_waited_for_a_signal_is_not_undone(api, worker):
    job = waiting(api, worker)
    perform(api, "retry", job)
    told = undo(api)
    assert (told.done, told.outcomes[0]["outcome"]) == (0, "it does not wait for its signal any more")
    assert api.get_job(job.id).state == "available"


def test_an_undo_says_of_each_action_that_it_cannot_take_back_why(api, worker, one_of_each):
    api.add_schedule("nightly", "0 4 * * *", "report")
    retried = [api.add_job("t", run_at="2100-01-01") for _ in range(3)]
    perform(api, "retry", *retried)
    ran = api.claim(worker, "t")
    api.fail(ran)
    (gone, back) = [job for job in retried if job.id != ran.id]
    api.delete_job(gone.id)
    perform(api, "delete", one_of_each["discarded"])
    perform(api, "cancel", one_of_each["running"], one_of_each["completed"])
    call = "select * from pyworker.perform_action(%s, array[%s], 'ada', %s)"
    api.rows(call, ["set_queue", "q", Jsonb({"concurrency": 7})])
    api.rows(call, ["run_schedule", "nightly", Jsonb({})])
    told = undo(api)
    assert (told.done, told.refused) == (1, 6)
    assert {o["outcome"]: (o["jobs"], o["example"]) for o in told.outcomes} == {
        "scheduled": (1, str(back.id)),
        "it has run since": (1, str(ran.id)),
        "the job is gone": (1, str(gone.id)),
        "a deleted job does not come back": (1, str(one_of_each["discarded"].id)),
        "a running job that was asked to stop cannot be told to go on": (1, str(one_of_each["running"].id)),
        "limits are not taken back: set them again": (1, "q"),
        "a schedule that was fired has added its jobs: cancel them": (1, "nightly"),
    }
    written = api.rows("select action, target, outcome from pyworker.audit where not ok order by id")
    assert ("undo", "q", "limits are not taken back: set them again") in written
    assert len(written) == 7  # and the cancel of a completed job


def test_an_undo_goes_on_after_a_chunk_of_which_nothing_can_be_taken_back(api):
    gone = [api.add_job("t", run_at="2100-01-01") for _ in range(3)]
    perform(api, "delete", *gone)
    kept = api.add_job("t", run_at="2100-01-01")
    perform(api, "cancel", kept)
    told = api.rows("select * from pyworker.undo_actions(0, 4, 'ada', 2)")[0]
    assert (told.done, told.refused) == (0, 2)
    told = api.rows("select * from pyworker.undo_actions(%s, 4, 'ada', 2)", [told.next_audit])[0]
    assert (told.done, told.refused) == (1, 1)
    assert api.get_job(kept.id).state == "scheduled"


def test_what_cannot_be_undone_is_not_offered_to_be(api, one_of_each):
    undoable = "select undoable from pyworker.action_outcomes(0, 1000000, 'ada')"
    perform(api, "delete", one_of_each["discarded"])
    perform(api, "cancel", one_of_each["running"])
    assert not api.value(undoable)
    perform(api, "retry", one_of_each["completed"])
    assert api.value(undoable)


@pytest.mark.parametrize(("action", "opposite"), [("pause", "resume"), ("resume", "pause")])
def test_a_pause_and_a_resume_are_undone(api, action, opposite):
    api.add_schedule("nightly", "0 4 * * *", "report")
    if action == "resume":
        api.pause_queue("nightly")
        api.pause_schedule("nightly")
    before = api.rows("select paused from pyworker.schedules")
    for kind in ("queue", "schedule"):
        api.rows("select * from pyworker.perform_action(%s, '{nightly}', 'ada')", [f"{action}_{kind}"])
    assert api.rows("select paused from pyworker.schedules") != before
    row = api.rows("select * from pyworker.undo_actions(0, 1000000, 'ada')")[0]
    assert (row.done, row.refused) == (2, 0)
    assert api.rows("select paused from pyworker.schedules") == before
