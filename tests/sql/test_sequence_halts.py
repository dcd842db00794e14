"""A sequence halts when a job of it is cancelled or discarded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.api import ids
from tests.support.sequences import S, add, drain, view


def lost(api: Any, clock: Any) -> None:
    clock.advance(minutes=5)
    assert api.maintain()["rescued"] == 1


# name: (is it claimed first?, the reason, what happens); all jobs have one attempt
ENDS: dict[str, tuple[bool, str, Callable[[Any, Any, Any], Any]]] = {
    "failed for good by its handler": (
        True,
        "discarded",
        lambda api, job, clock: api.fail(job, discard=True),
    ),
    "out of attempts": (True, "discarded", lambda api, job, clock: api.fail(job)),
    "permanently_fail_jobs": (
        False,
        "discarded",
        lambda api, job, clock: api.permanently_fail_jobs([job.id]),
    ),
    "reschedule_jobs without attempts": (
        False,
        "discarded",
        lambda api, job, clock: api.reschedule_jobs([job.id], attempts=1),
    ),
    "worker lost on the last attempt": (True, "discarded", lambda api, job, clock: lost(api, clock)),
    "unlocked on the last attempt": (
        True,
        "discarded",
        lambda api, job, clock: api.force_unlock_workers([api.get_job(job.id).locked_by]),
    ),
    "cancelled by its handler": (True, "cancelled", lambda api, job, clock: api.fail(job, cancel=True)),
    "cancelled by its handler in our own words": (
        True,
        "cancelled",
        lambda api, job, clock: api.fail(job, "replaced", cancel=True),
    ),
    "cancel_job": (False, "cancelled", lambda api, job, clock: api.cancel_job(job.id)),
    "cancel_job with force": (True, "cancelled", lambda api, job, clock: api.cancel_job(job.id, True)),
    "cancelled on request, failed": (
        True,
        "cancelled",
        lambda api, job, clock: (api.cancel_job(job.id), api.fail(job)),
    ),
    "cancelled on request, failed for good": (
        True,
        "cancelled",
        lambda api, job, clock: (api.cancel_job(job.id), api.fail(job, discard=True)),
    ),
    "cancelled on request, snoozed": (
        True,
        "cancelled",
        lambda api, job, clock: (api.cancel_job(job.id), api.snooze_job(job.id, job.run, "0")),
    ),
    "cancelled on request, released": (
        True,
        "cancelled",
        lambda api, job, clock: (api.cancel_job(job.id), api.release_jobs([job.id], [job.run])),
    ),
    "cancelled on request, worker lost": (
        True,
        "cancelled",
        lambda api, job, clock: (api.cancel_job(job.id), lost(api, clock)),
    ),
}


def end(api: Any, clock: Any, how: str) -> str:
    """Brings the head of the sequence, the only job that can be claimed, to this end; returns why
    it halts."""
    claimed, reason, happens = ENDS[how]
    if claimed:
        job = api.claim(api.register_worker())
    else:
        api.promote_jobs()
        job = api.rows("select * from pyworker.jobs where state = 'available'")[0]
    happens(api, job, clock)
    assert api.get_job(job.id).state in (reason, None)
    return reason


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "not kept"])
@pytest.mark.parametrize("flags", ["none", "the other one"])
@pytest.mark.parametrize("how", ENDS)
def test_a_job_that_is_cancelled_or_discarded_halts_its_sequence(
    api: Any, clock: Any, how: str, flags: str, kept: bool
) -> None:
    if not kept:
        api.configure(discarded_retention="0", cancelled_retention="0")
    other = {"discarded": "cancelled", "cancelled": "discarded"}[ENDS[how][1]]
    policy = {f"continue_on_{other}": True} if flags != "none" else {}
    head, *rest = add(api, 3, max_attempts=1, policy=policy)
    reason = end(api, clock, how)
    worker = api.register_worker()
    assert api.claim_jobs(worker, 10) == []
    assert view(api) == (None, 2, head.id, reason)
    assert [api.get_job(job.id).sequence_halted_by for job in rest] == [head.id, head.id]
    (new,) = add(api, 1)
    (bulk,) = api.add_jobs([{"identifier": "t", "sequence_policy": S}])
    assert [(job.state, job.sequence_halted_by) for job in (new, bulk)] == [("pending", head.id)] * 2
    assert api.claim_jobs(worker, 10) == []
    assert api.resume_sequence("s") is True
    assert drain(api, worker) == ids([*rest, new, bulk])
    assert view(api) is None


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "not kept"])
@pytest.mark.parametrize("how", ENDS)
def test_with_its_continue_flag_the_sequence_goes_on(api: Any, clock: Any, how: str, kept: bool) -> None:
    if not kept:
        api.configure(discarded_retention="0", cancelled_retention="0")
    head, *rest = add(api, 3, max_attempts=1, policy={f"continue_on_{ENDS[how][1]}": True})
    end(api, clock, how)
    api.promote_jobs()
    assert api.rows("select from pyworker.sequence_halts") == []
    assert [api.get_job(job.id).state for job in rest] == ["available", "pending"]
    assert head.id not in drain(api, api.register_worker())


def test_the_flags_that_count_are_those_of_the_job_that_ended(api: Any, worker: int) -> None:
    first = add(api, 1)[0]
    add(api, 1, policy={"continue_on_discarded": True})
    api.fail(api.claim(worker), discard=True)
    assert api.claim(worker) is None
    assert view(api)[2] == first.id


@pytest.mark.parametrize("how", ["cancel_job", "permanently_fail_jobs", "reschedule_jobs"])
@pytest.mark.parametrize("flag", [True, False])
def test_a_waiting_job_that_is_cancelled_or_discarded_halts_when_its_turn_comes(
    api: Any, worker: int, how: str, flag: bool
) -> None:
    policy = {"continue_on_cancelled": flag, "continue_on_discarded": flag}
    first, second, third, fourth = add(api, 4, policy=policy)
    api.claim(worker)
    {
        "cancel_job": lambda: api.cancel_job(third.id),
        "permanently_fail_jobs": lambda: api.permanently_fail_jobs([third.id]),
        "reschedule_jobs": lambda: api.reschedule_jobs([third.id], attempts=5, max_attempts=5),
    }[how]()
    halted_by = None if flag else third.id
    assert view(api) == (first.id, 2, None, None), "it is not halted yet"
    assert api.get_job(second.id).sequence_halted_by is None
    assert api.get_job(fourth.id).sequence_halted_by == halted_by
    api.finish(first.id)
    assert drain(api, worker) == [second.id, *([fourth.id] if flag else [])]
    if not flag:
        assert view(api) == (None, 1, third.id, "cancelled" if how == "cancel_job" else "discarded")


def test_deleting_a_waiting_job_just_removes_it(api: Any, worker: int) -> None:
    first, second, third, fourth = add(api, 4)
    api.delete_job(second.id)
    keyed = add(api, 1, job_key="k")[0]
    assert api.remove_job("k").id == keyed.id
    assert drain(api, worker) == ids([first, third, fourth])


SUPERSEDE: dict[str, Callable[[Any], Any]] = {
    "keyed add": lambda api: api.add_job("t", job_key="k", sequence_policy=S),
    "bulk keyed add": lambda api: api.add_jobs([{"identifier": "t", "job_key": "k", "sequence_policy": S}]),
    "remove_job": lambda api: api.remove_job("k"),
}

LAST_WORDS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "failed": lambda api, job, clock: api.fail(job),
    "failed for good": lambda api, job, clock: api.fail(job, discard=True),
    "cancelled": lambda api, job, clock: api.fail(job, cancel=True),
    "snoozed": lambda api, job, clock: api.snooze_job(job.id, job.run, "0"),
    "released": lambda api, job, clock: api.release_jobs([job.id], [job.run]),
    "unregistered": lambda api, job, clock: api.unregister_worker(int(api.get_job(job.id).locked_by)),
    "lost": lambda api, job, clock: lost(api, clock),
    "unlocked": lambda api, job, clock: api.force_unlock_workers([api.get_job(job.id).locked_by]),
    "cancelled on request": lambda api, job, clock: (api.cancel_job(job.id), api.fail(job)),
    "cancelled by force": lambda api, job, clock: api.cancel_job(job.id, True),
    "completed": lambda api, job, clock: api.finish_job(job.id, job.run),
}


@pytest.mark.parametrize("last_word", LAST_WORDS)
@pytest.mark.parametrize("how", SUPERSEDE)
def test_a_superseded_or_removed_run_never_halts(
    api: Any, worker: int, clock: Any, how: str, last_word: str
) -> None:
    add(api, 1, job_key="k")
    rest = add(api, 2)
    claimed = api.claim(worker)
    SUPERSEDE[how](api)
    assert api.claim(worker) is None, "its successor waits for the end of the run"
    LAST_WORDS[last_word](api, claimed, clock)
    new = [] if how == "remove_job" else api.rows("select * from pyworker.jobs where key = 'k'")
    assert drain(api, api.register_worker()) == ids(rest + new)


@pytest.mark.parametrize("running", [True, False])
def test_a_replaced_job_never_halts_and_its_successor_takes_its_turn_by_its_id(
    api: Any, worker: int, running: bool
) -> None:
    unique = {"unique_policy": {"keys": ["type"], "on_conflict": "replace"}}
    old = add(api, 1, "u", **unique)[0]
    (second,) = add(api, 1)
    assert not running or api.claim(worker).id == old.id
    new = add(api, 1, "u", **unique)[0]
    assert (api.get_job(old.id).state, api.get_job(old.id).reason) == ("cancelled", "replaced")
    assert drain(api, worker) == ids([second, new])


def test_many_duplicates_of_one_sequence_are_all_replaced(api: Any, worker: int) -> None:
    never = {"keys": ["type"], "states": []}
    old = add(api, 25, unique_policy=never)
    api.promote_jobs()
    new = add(api, 1, unique_policy={"keys": ["type"], "on_conflict": "replace"})[0]
    assert {api.get_job(job.id).state for job in old} == {"cancelled"}
    assert drain(api, worker) == [new.id]


# Pruning ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["prune", "maintain"])
@pytest.mark.parametrize("partition", [True, False], ids=["a day's partition", "row by row"])
@pytest.mark.parametrize("state", ["discarded", "cancelled"])
def test_pruning_never_takes_a_halting_job_while_jobs_wait(
    api: Any, worker: int, clock: Any, state: str, partition: bool, how: str
) -> None:
    if partition:
        api.maintain()
    else:
        clock.advance(days=400)  # a day that has no partition
        worker = api.register_worker()
    head, rest = add(api, 2)
    gone = add(api, 1, policy={"key": "nobody waits"})[0]
    for job in api.claim_jobs(worker, 2):
        api.fail(job, cancel=state == "cancelled", discard=True)
    for _ in range(3):
        clock.advance(days=10)
        getattr(api, how)()
        assert (api.get_job(head.id).state, api.get_job(gone.id).id) == (state, None)
        assert api.claim(api.register_worker()) is None
        assert view(api) == (None, 1, head.id, state)
        assert view(api, "nobody waits") is None
    api.retry_job(head.id)
    assert drain(api, api.register_worker()) == ids([head, rest])


@pytest.mark.parametrize("state", ["discarded", "cancelled"])
def test_once_no_job_waits_the_halting_job_is_pruned_and_the_sequence_is_new(
    api: Any, worker: int, clock: Any, state: str
) -> None:
    head, rest = add(api, 2)
    api.fail(api.claim(worker), cancel=state == "cancelled", discard=True)
    clock.advance(days=30)
    api.prune()
    assert api.get_job(head.id).state == state
    api.delete_job(rest.id)
    clock.advance(days=30)
    api.prune()
    assert api.get_job(head.id).id is None
    assert view(api) is None
    new = add(api, 1)
    assert drain(api, api.register_worker()) == ids(new)


@pytest.mark.parametrize("state", ["discarded", "cancelled"])
def test_a_halt_by_a_job_of_which_nothing_was_kept_stays_while_jobs_wait(
    api: Any, worker: int, clock: Any, state: str
) -> None:
    api.configure(discarded_retention="0", cancelled_retention="0")
    head, rest = add(api, 2)
    (lone,) = add(api, 1, policy={"key": "nobody waits"})
    for job in api.claim_jobs(worker, 2):
        api.fail(job, cancel=state == "cancelled", discard=True)
    clock.advance(days=10)
    api.prune()
    assert [view(api)[2], view(api, "nobody waits")[2]] == ids([head, lone])
    clock.advance(days=100)
    api.prune()
    assert (view(api), view(api, "nobody waits")) == ((None, 1, head.id, state), None)
    api.resume_sequence("s")
    assert drain(api, api.register_worker()) == [rest.id]


def test_a_halt_lasts_as_long_as_the_job_that_is_kept_for_it(api: Any, worker: int, clock: Any) -> None:
    api.configure(discarded_retention="100 days")
    (head,) = add(api, 1)
    api.fail(api.claim(worker), discard=True)
    clock.advance(days=60)
    api.prune()
    assert api.get_job(head.id).state == "discarded"
    assert add(api, 1)[0].sequence_halted_by == head.id
