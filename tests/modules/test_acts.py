"""The dashboard's acts: each does what the function of its name does, and is written down."""

from __future__ import annotations

import pytest


def test_an_act_is_done_and_written_down_with_who_when_what_and_outcome(api, one_of_each):
    ids = [str(one_of_each[state].id) for state in ("scheduled", "running", "discarded")]
    rows = api.rows("select * from pyworker.perform_action('retry', %s, 'ada')", [ids])
    assert [row.ok for row in rows] == [True, False, True]
    assert [row.outcome for row in rows if row.ok] == ["available", "available"]
    assert "is running" in rows[1].outcome
    audit = api.rows("select * from pyworker.audit order by id")
    assert [(a.actor, a.db_role, a.action, a.target, a.ok, a.outcome) for a in audit] == [
        ("ada", api.value("select session_user::text"), "retry", row.target, row.ok, row.outcome)
        for row in rows
    ]
    assert api.get_job(one_of_each["discarded"].id).state == "available"


def test_an_act_that_is_rolled_back_was_none(api, one_of_each):
    api.rows("begin")
    api.rows(
        "select * from pyworker.perform_action('cancel', %s, 'ada')", [[str(one_of_each["scheduled"].id)]]
    )
    api.rows("rollback")
    assert api.get_job(one_of_each["scheduled"].id).state == "scheduled"
    assert api.rows("select * from pyworker.audit") == []


def test_two_people_who_choose_the_same_jobs_in_opposite_orders_wait_for_each_other(api, actor):
    ids = [str(api.add_job("t", run_at="2100-01-01").id) for _ in range(3)]
    a, b, c = actor(), actor(), actor()
    a.begin()
    a.perform_action("cancel", ids, "ada")
    waiting = b.later.perform_action("cancel", ids[::-1], "bob")
    b.blocked(waiting)
    killed = c.later.perform_action("cancel", ids, "eve")
    c.blocked(killed)
    c.kill()
    assert killed.exception() is not None
    a.commit()
    waiting.result()
    acts = api.rows("select actor, target, ok, outcome from pyworker.audit order by id")
    assert acts == [("ada", job_id, True, "cancelled") for job_id in ids] + [
        ("bob", job_id, False, "it was already cancelled") for job_id in ids
    ]
    assert api.rows("select distinct state from pyworker.history") == [("cancelled",)]


def test_every_act_does_what_the_function_of_its_name_does(api, worker, job_in):
    def act(action, *targets):
        return [
            tuple(row)
            for row in api.rows(
                "select target, ok, outcome from pyworker.perform_action(%s, %s, 'ada')",
                [action, [str(t) for t in targets]],
            )
        ]

    scheduled, running, more = job_in("scheduled"), job_in("running", "r"), job_in("running", "s")
    assert act("cancel", scheduled.id) == [(str(scheduled.id), True, "cancelled")]
    assert act("cancel", running.id) == [(str(running.id), True, "running, and asked to stop")]
    assert act("force_cancel", more.id) == [(str(more.id), True, "cancelled")]
    assert act("delete", scheduled.id) == [(str(scheduled.id), True, "was cancelled")]
    assert act("delete", scheduled.id) == [
        (str(scheduled.id), False, f"delete_job: there is no job {scheduled.id}")
    ]
    assert act("pause_queue", "q", "default")[1][:2] == ("q", True)
    assert api.rows("select queue_name from pyworker.queue_stats where paused") == [("q",)]
    assert act("resume_queue", "q") == [("q", True, "done")]
    assert act("resume_sequence", "s") == [("s", False, "it was not halted")]
    api.add_schedule("nightly", "0 4 * * *", "report")
    assert act("run_schedule", "nightly")[0][2].startswith("added job ")
    assert act("pause_schedule", "nightly") == [("nightly", True, "done")]
    assert api.value("select paused from pyworker.schedules")
    assert act("resume_schedule", "nightly") == [("nightly", True, "done")]
    assert not act("run_schedule", "nobody")[0][1]
    assert api.value("select count(*) from pyworker.audit") == 13


@pytest.mark.parametrize("action", ["cancel", "force_cancel"])
@pytest.mark.parametrize("state", ["completed", "cancelled", "discarded"])
def test_an_act_that_changes_nothing_says_so(api, job_in, action, state):
    job = job_in(state)
    rows = api.rows("select ok, outcome from pyworker.perform_action(%s, %s, 'ada')", [action, [str(job.id)]])
    assert rows == [(False, f"it was already {state}")]
    assert api.get_job(job.id).state == state


def test_what_was_done_is_forgotten_after_ninety_days(api, clock):
    api.rows("select pyworker.perform_action('pause_queue', '{q}', 'ada')")
    clock.advance(days=89)
    api.maintain()
    assert api.value("select count(*) from pyworker.audit") == 1
    clock.advance(days=2)
    api.maintain()
    assert api.value("select count(*) from pyworker.audit") == 0


def test_no_role_of_ours_may_change_the_audit(db):
    db.execute("begin; set local role pyworker_admin")
    with pytest.raises(Exception, match="permission denied"):
        db.execute("delete from pyworker.audit_log")
    db.execute("rollback")
