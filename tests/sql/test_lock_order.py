"""Verbs on many jobs take their locks in one order, so that two of them wait for each other but
never in a circle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def meet(api: Any, actor: Any, held: str, first: Any, second: Any) -> tuple[Any, Any]:
    """What two calls give that a third session stops in the middle, and then releases at once."""
    gate, a, b = actor(), actor(), actor()
    gate.begin()
    gate.rows(held)
    one = first(a)
    a.blocked(one)
    two = second(b)
    b.blocked(two)
    gate.rollback()
    return one.result(20), two.result(20)


def halted_sequences(api: Any, worker: int) -> tuple[list[Any], list[Any]]:
    """Sequences a and b: the jobs that halted them, and two that wait in each, in turn."""
    heads = [api.add_job("t", sequence_policy={"key": key}) for key in "ab"]
    waiting = [api.add_job("t", sequence_policy={"key": key}) for key in "abba"]
    for job in api.claim_jobs(worker, 2):
        api.fail(job, discard=True)
    return heads, waiting


def test_two_bulk_retries_of_jobs_behind_the_same_halts_never_deadlock(
    api: Any, actor: Any, worker: int
) -> None:
    _, (a1, b1, b2, a2) = halted_sequences(api, worker)
    held = f"select from pyworker.live_jobs where id in ({a1.id}, {b1.id}) for update"
    one, two = meet(
        api, actor, held,
        lambda a: a.later.retry_jobs([a1.id, b2.id]), lambda b: b.later.retry_jobs([b1.id, a2.id]),
    )  # fmt: skip
    assert [job.id for job in one] == [a1.id, b2.id]
    assert [job.id for job in two] == [b1.id, a2.id]


def test_retries_from_a_dashboard_and_from_sql_never_deadlock(api: Any, actor: Any, worker: int) -> None:
    _, (a1, b1, b2, a2) = halted_sequences(api, worker)
    held = f"select from pyworker.live_jobs where id = {b1.id} for update"
    one, two = meet(
        api, actor, held,
        lambda a: a.later.perform_action("retry", [str(b1.id), str(a2.id)], "me"),
        lambda b: b.later.retry_jobs([a1.id, b2.id]),
    )  # fmt: skip
    assert [row.ok for row in one] == [True, True]
    assert [job.id for job in two] == [a1.id, b2.id]


def test_resuming_sequences_meets_a_bulk_retry_without_a_deadlock(api: Any, actor: Any, worker: int) -> None:
    heads = [api.add_job("t", sequence_policy={"key": key}) for key in "ba"]
    waiting = [api.add_job("t", sequence_policy={"key": key}) for key in "ba"]
    for job in api.claim_jobs(worker, 2):
        api.fail(job, discard=True)
    held = f"select from pyworker.sequence_halts where job_id = {heads[0].id} for update"
    one, two = meet(
        api, actor, held,
        lambda a: a.later.retry_jobs([job.id for job in waiting]),
        lambda b: b.later.perform_action("resume_sequence", ["a", "b"], "me"),
    )  # fmt: skip
    assert [job.id for job in one] == [job.id for job in waiting]
    assert len(two) == 2


def test_two_bulk_retries_of_finished_jobs_with_the_same_keys_never_deadlock(
    api: Any, actor: Any, worker: int
) -> None:
    ended = []
    for key in ("k", "m", "l", "l", "m", "k"):
        ended.append(api.add_job("t", job_key=key).id)
        api.finish(api.claim(worker).id)
    held = "select from pyworker.add_job('t', job_key => 'm')"  # and rolled back
    one, two = meet(
        api, actor, held, lambda a: a.later.retry_jobs(ended[:3]), lambda b: b.later.retry_jobs(ended[3:])
    )  # fmt: skip
    assert [job.key for job in one] == ["k", "m", "l"]
    assert two == []


# Each verb that takes many jobs, with their ids in any order.
VERBS: dict[str, Callable[[Any, list[int]], Any]] = {
    "retry_jobs": lambda a, ids: a.later.retry_jobs(ids),
    "reschedule_jobs": lambda a, ids: a.later.reschedule_jobs(ids, priority=1, attempts=0),
    "complete_jobs": lambda a, ids: a.later.complete_jobs(ids),
    "permanently_fail_jobs": lambda a, ids: a.later.permanently_fail_jobs(ids),
    **{
        f"{action}, from a dashboard": lambda a, ids, action=action: a.later.perform_action(
            action, [str(job_id) for job_id in ids], "me"
        )
        for action in ("retry", "cancel", "delete")
    },
}


@pytest.mark.parametrize("second", VERBS)
@pytest.mark.parametrize("first", VERBS)
def test_two_verbs_on_the_same_jobs_in_other_orders_never_deadlock(
    api: Any, actor: Any, worker: int, first: str, second: str
) -> None:
    heads, waiting = halted_sequences(api, worker)
    ids = [job.id for job in (*heads, *waiting)]
    held = f"select from pyworker.live_jobs where id = {heads[1].id} for update"
    one, two = meet(
        api, actor, held,
        lambda a: VERBS[first](a, ids), lambda b: VERBS[second](b, ids[::-1]),
    )  # fmt: skip
    assert one
    assert two is not None
