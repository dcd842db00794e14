"""Where another session has locked what is next, a worker is notified, and looks again soon."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.notify import heard as heard
from tests.support.notify import look, wait
from tests.support.turns import turn_when, work


def found(api: Any, worker: int) -> list[Any]:
    """The jobs of the first turn that finds some, where each comes as soon as the one before has asked."""
    return turn_when(lambda turn: turn.jobs != [], api, worker, room=1).jobs


@pytest.mark.parametrize("outcome", ["commit", "rollback", "kill"])
def test_an_end_beside_a_session_that_has_locked_all_that_waits_in_the_queue_wakes_a_worker(
    api: Any, actor: Any, worker: int, heard: Any, outcome: str
) -> None:
    ids = [api.add_job("t", queue_name="q").id for _ in range(2)]
    api.claim(worker)
    wait(api, worker)
    a = actor()
    a.begin()
    a.cancel_job(ids[1])
    heard()
    api.finish(ids[0])
    assert heard() == [""]
    assert api.claim_jobs(worker) == []
    assert look(api) <= 0.25
    getattr(a, outcome)()
    if outcome != "commit":
        assert [job.id for job in found(api, worker)] == ids[1:]


@pytest.mark.parametrize("verb", ["delete_job", "cancel_job", "remove_job"])
@pytest.mark.parametrize("outcome", ["commit", "rollback", "kill"])
def test_a_worker_looks_again_soon_while_another_session_has_locked_the_next_job_of_a_sequence(
    api: Any, actor: Any, worker: int, verb: str, outcome: str
) -> None:
    policy = {"key": "s", "continue_on_cancelled": True}
    ids = [api.add_job("t", sequence_policy=policy, job_key=f"k{n}").id for n in range(3)]
    api.claim(worker)
    wait(api, worker)
    a = actor()
    a.begin()
    a.remove_job("k1") if verb == "remove_job" else getattr(a, verb)(ids[1])
    api.finish(ids[0])
    wait(api, worker)
    assert look(api) <= 0.25
    getattr(a, outcome)()
    assert [job.id for job in found(api, worker)] == [ids[2 if outcome == "commit" else 1]]


@pytest.mark.parametrize("outcome", ["commit", "rollback", "kill"])
@pytest.mark.parametrize("end", ["cancel_job(1, true)", "delete_job(1)", "permanently_fail_jobs('{1}')"])
def test_an_end_by_hand_beside_a_session_that_has_locked_the_next_job_of_the_sequence_wakes_a_worker(
    api: Any, actor: Any, worker: int, heard: Any, end: str, outcome: str
) -> None:
    policy = {"key": "s", "continue_on_cancelled": True, "continue_on_discarded": True}
    ids = [api.add_job("t", sequence_policy=policy).id for _ in range(3)]
    (head,) = api.claim_jobs(worker, 1)
    if "cancel" not in end:
        api.snooze_job(head.id, head.run, "1 hour")
    wait(api, worker)
    a = actor()
    a.begin()
    a.cancel_job(ids[1])
    heard()
    api.rows(f"select pyworker.{end}")
    assert "" in heard()
    assert api.claim_jobs(worker) == []
    assert look(api) <= 0.25
    getattr(a, outcome)()
    assert [job.id for job in found(api, worker)] == [ids[2 if outcome == "commit" else 1]]


QUEUE, SEQUENCE = {"queue_name": "q"}, {"sequence_policy": {"key": "s"}}


@pytest.mark.parametrize(
    ("head", "following"), [(SEQUENCE, [SEQUENCE]), (QUEUE | SEQUENCE, [SEQUENCE, QUEUE])]
)
def test_a_turn_that_ends_a_head_and_finds_the_next_job_locked_wakes_other_workers(
    api: Any, actor: Any, worker: int, heard: Any, head: dict[str, Any], following: list[dict[str, Any]]
) -> None:
    """Its own worker may have no room for long, or close. It may also have taken another job meanwhile."""
    api.add_job("t", **head)
    (job,) = work(api, worker, room=1).jobs
    ids = [api.add_job("t", **options).id for options in following]
    wait(api, api.register_worker())
    a = actor()
    a.begin()
    a.reschedule_jobs([ids[0]], priority=1)
    heard()
    turn = work(api, worker, done=[(job.id, job.run)], room=5)
    assert [job.id for job in turn.jobs] == ids[1:]
    assert heard() == [""]


@pytest.mark.parametrize("queue", [None, "q"])
def test_an_overdue_job_that_is_locked_brings_no_worker_at_once(
    api: Any, worker: int, actor: Any, clock: Any, queue: str | None
) -> None:
    api.set_queue("q", None)
    job = api.add_job("t", queue_name=queue, run_at=api.at("1 minute")).id
    other = actor()
    other.begin()
    other.rows("select from pyworker.live_jobs for update")
    clock.advance(minutes=2)
    assert api.claim_jobs(worker, 5) == []
    turn = "select again_in_s from pyworker.work(%s, null, null, null, null, 5)"
    assert 0 < api.value(turn, [worker]) <= 0.25
    assert 0 < api.seconds_until_due() <= 0.25
    other.commit()
    assert [claimed.id for claimed in api.claim_jobs(worker, 5)] == [job]
