"""Decisions and recoveries meet the end of a run of a sequence, and workers die."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.support.api import ids
from tests.support.sequences import ENDS, add, drain, halted_by, now
from tests.support.sequences import impatient as impatient
from tests.support.sequences import running as running
from tests.support.sessions import LEVELS


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("first", ["cancel", "finish"])
@pytest.mark.parametrize("end", ENDS)
def test_a_cancellation_and_the_end_of_the_run_follow_each_other(
    api: Any, actor: Any, worker: int, running: Any, first: str, end: str, force: bool
) -> None:
    (second,) = add(api)
    a, b = actor(), actor()
    a.begin()
    if first == "cancel":
        a.cancel_job(running.id, force)
        other = b.later.finish_jobs([running.id], [running.run])
    else:
        a.finish_job(running.id, running.run)
        other = b.later.cancel_job(running.id, force)
    b.blocked(other)
    assert api.claim(worker) is None
    getattr(a, end)()
    other.result(20)
    halts = (first == "cancel") == (end == "commit") and force
    if first == "finish" and end != "commit" and not force:
        assert api.claim(worker) is None
        assert api.finish_jobs([running.id], [running.run]) == [running.id]
    assert drain(api, worker) == ([] if halts else [second.id])
    assert halted_by(api) == (running.id if halts else None)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(
    "how", ["retry_job", "delete_job", "resume_sequence", "retry a later one", "keyed add", "complete"]
)
def test_a_recovery_that_is_not_committed_resumes_nothing_yet_and_no_session_waits_for_it(
    impatient: Any, actor: Any, worker: int, how: str, end: str
) -> None:
    api = impatient
    (head,) = add(api, job_key="k")
    second, third = add(api, 2)
    api.fail(api.claim(worker), discard=True)
    a = actor()
    a.begin()
    {
        "retry_job": lambda: a.retry_job(head.id),
        "delete_job": lambda: a.delete_job(head.id),
        "resume_sequence": lambda: a.resume_sequence("s"),
        "retry a later one": lambda: a.retry_job(third.id),
        "keyed add": lambda: add(a, job_key="k"),
        "complete": lambda: a.complete_jobs([head.id]),
    }[how]()
    (fourth,) = add(api)
    for _ in range(2):
        assert api.claim(worker) is None
        api.maintain()
    getattr(a, end)()
    if end != "commit":
        assert api.claim(worker) is None
        assert halted_by(api) == head.id
        assert api.resume_sequence("s")
        assert drain(api, worker) == ids([second, third, fourth])
        return
    order = [second, third, fourth]
    if how in ("retry_job", "keyed add"):
        order = [head, *order]
    elif how == "retry a later one":
        order = [third, second, fourth]
    assert drain(api, worker) == ids(order)


@pytest.mark.parametrize("how", ["retry_job", "resume_sequence", "retry a later one"])
@pytest.mark.parametrize("end", ENDS)
def test_a_recovery_meets_a_halt_that_is_not_committed(
    api: Any, actor: Any, worker: int, running: Any, how: str, end: str
) -> None:
    second, third = add(api, 2)
    w, a = actor(), actor()
    w.begin()
    w.fail(running, discard=True)
    if how == "retry_job":
        retry = a.later.retry_job(running.id)
        a.blocked(retry)
        getattr(w, end)()
        if end == "commit":
            retry.result(20)
            assert drain(api, worker) == ids([running, second, third])
            return
        with api.refusal("PW005"):
            retry.result(20)
    elif how == "resume_sequence":
        assert a.resume_sequence("s") is False
        getattr(w, end)()
    else:
        a.retry_job(third.id)
        getattr(w, end)()
    if end == "commit":
        assert api.claim(worker) is None
        assert halted_by(api) == running.id
        api.resume_sequence("s")
    else:
        api.finish_job(running.id, running.run)
    assert drain(api, worker) == ids([second, third])


def test_two_recoveries_at_once_bring_one_head(api: Any, actor: Any, worker: int) -> None:
    jobs = add(api, 4)
    api.fail(api.claim(worker), discard=True)
    a, b = actor(), actor()
    a.begin()
    a.retry_job(jobs[3].id)
    retry = b.later.retry_job(jobs[2].id)
    b.blocked(retry)
    assert api.claim(worker) is None
    a.commit()
    retry.result(20)
    assert drain(api, worker) == ids([jobs[3], jobs[1], jobs[2]])


def test_retries_of_the_halting_job_and_of_later_ones_do_not_deadlock(
    api: Any, actor: Any, worker: int
) -> None:
    jobs = add(api, 3)
    api.fail(api.claim(worker), discard=True)
    a, b = actor(), actor()
    a.begin()
    a.retry_job(jobs[0].id)
    later = b.later.retry_job(jobs[2].id)
    b.blocked(later)
    a.retry_job(jobs[2].id)
    a.commit()
    later.result(20)
    assert drain(api, worker) == ids(jobs)


def test_two_sessions_resume_a_sequence_once(api: Any, actor: Any, worker: int) -> None:
    jobs = add(api, 3)
    api.cancel_job(jobs[0].id)
    api.cancel_job(jobs[1].id)
    a, b = actor(), actor()
    a.begin()
    assert a.resume_sequence("s") is True
    again = b.later.resume_sequence("s")
    b.blocked(again)
    a.commit()
    assert again.result(20) == [(False,)]
    assert drain(api, worker) == [jobs[2].id]


@pytest.mark.parametrize("end", ENDS)
def test_a_completed_job_that_is_retried_meets_the_end_of_the_head(
    impatient: Any, actor: Any, worker: int, end: str
) -> None:
    api = impatient
    jobs = add(api, 3)
    api.finish(api.claim(worker).id)
    claimed = api.claim(worker)
    w, a = actor(), actor()
    now(a)
    w.begin()
    w.finish_job(claimed.id, claimed.run)
    a.begin()
    a.retry_job(jobs[0].id)
    getattr(w, end)()
    if end == "commit":
        assert api.claim(worker).id == jobs[2].id
    else:
        assert api.claim(worker) is None
    a.commit()
    assert api.claim(worker) is None
    api.finish(jobs[2 if end == "commit" else 1].id)
    assert drain(api, worker) == ids([jobs[0]] if end == "commit" else [jobs[0], jobs[2]])


# Workers that die ---------------------------------------------------------------------------------


@pytest.mark.parametrize("at", ["claim", "finish", "finish and claim", "fail", "snooze", "unregister"])
def test_a_worker_that_is_killed_at_its_work_leaves_the_sequence_as_it_was(
    impatient: Any, actor: Any, worker: int, at: str
) -> None:
    api = impatient
    jobs = add(api, 3)
    w = actor()
    mine = api.register_worker()
    job = None if at == "claim" else w.claim(mine)
    w.begin()
    if at == "claim":
        w.claim(mine)
    elif at == "fail":
        w.fail(job)
    elif at == "snooze":
        w.snooze_job(job.id, job.run, "1 hour")
    elif at == "unregister":
        w.unregister_worker(mine)
    else:
        w.finish_job(job.id, job.run)
        if at == "finish and claim":
            assert w.claim(mine).id == jobs[1].id
    assert api.claim(worker) is None
    w.kill()
    if at != "claim":
        assert api.claim(worker) is None, "the dead worker still has its lease"
        api.force_unlock_workers([str(mine)])
    assert drain(api, worker) == ids(jobs)


@pytest.mark.parametrize("last", [False, True], ids=["attempts left", "last attempt"])
def test_a_sweep_meets_the_end_of_the_run(api: Any, actor: Any, worker: int, clock: Any, last: bool) -> None:
    (head,) = add(api, max_attempts=1 if last else 25)
    (second,) = add(api)
    claimed = api.claim(worker)
    s, w = actor(), actor()
    clock.advance(minutes=5)
    other = api.register_worker()
    s.begin()
    assert s.maintain()["rescued"] == 1
    finish = w.later.finish_jobs([claimed.id], [claimed.run])
    w.blocked(finish)
    assert api.claim(other) is None
    s.commit()
    assert finish.result(20)[0][0] == []
    assert drain(api, other) == ([] if last else ids([head, second]))
    assert halted_by(api) == (head.id if last else None)


@pytest.mark.parametrize("end", ENDS)
def test_a_keyed_add_that_moves_jobs_between_two_sequences_meets_their_promoters(
    impatient: Any, actor: Any, worker: int, end: str
) -> None:
    api = impatient
    jobs = [add(api, job_key=f"{s}{n}", policy={"key": s})[0] for s in "ab" for n in range(2)]
    api.promote_jobs()
    m = actor()
    m.begin()
    for job_key, other in (("a0", "b"), ("b0", "a")):
        add(m, job_key=job_key, policy={"key": other})
    assert api.claim_jobs(worker, 10) == []
    getattr(m, end)()
    a0, a1, b0, b1 = ids(jobs)
    claimed = api.claim_jobs(worker, 10)
    assert sorted(ids(claimed)) == ([a0, a1] if end == "commit" else [a0, b0])
    api.finish(*ids(claimed))
    assert sorted(ids(api.claim_jobs(worker, 10))) == ([b0, b1] if end == "commit" else [a1, b1])


@pytest.mark.parametrize("level", LEVELS[1:])
def test_a_head_that_was_promoted_since_the_snapshot_is_left_alone(
    api: Any, actor: Any, worker: int, level: str
) -> None:
    (first,) = add(api)
    (second,) = add(api, job_key="k")
    a = actor()
    a.begin(level)
    a.rows("select from pyworker.jobs")
    api.finish(api.claim(worker).id)
    with pytest.raises(psycopg.errors.SerializationFailure):
        add(a, job_key="k")
    a.rollback()
    assert drain(api, worker) == [second.id]
    assert first.id < second.id
