"""undo_actions of a retry against a worker that claims the job: it has its old end, or it runs."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.support.api import row_of
from tests.support.sessions import LEVELS, SNAPSHOT_LEVELS

ENDS = ["commit", "rollback", "kill"]
UNDO = (0, 1000000, "ada")
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "of a queue": {"queue_name": "q"},
    "of a sequence": {"sequence_policy": {"key": "s"}},
}


@pytest.fixture(params=["completed", "discarded", "cancelled", "scheduled"])
def was(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=KINDS)
def retried(request: pytest.FixtureRequest, api: Any, worker: int, was: str) -> Any:
    """A job that was in this state, and that ada has retried."""
    job = api.add_job("t", run_at=api.at("1 day") if was == "scheduled" else None, **KINDS[request.param])
    match was:
        case "completed":
            api.finish_jobs([job.id], [api.claim(worker).run], [Jsonb("paid")])
        case "discarded":
            api.fail(api.claim(worker), discard=True)
        case "cancelled":
            api.cancel_job(job.id)
    api.perform_action("retry", [str(job.id)], "ada")
    api.promote_jobs()
    assert api.get_job(job.id).state == "available"
    return job


def undone(api: Any, job: Any, was: str) -> bool:
    """Whether the job is as it was before the retry, and not half of it."""
    now = api.get_job(job.id)
    if now.state == was:
        assert now.result == ("paid" if was == "completed" else None)
        assert api.value("select count(*) from pyworker.jobs where id = %s", [job.id]) == (
            was in ("discarded", "scheduled")
        )
    return now.state == was


@pytest.mark.parametrize("end", ENDS)
def test_a_worker_does_not_claim_a_job_whose_retry_is_being_undone(
    api: Any, actor: Any, worker: int, retried: Any, was: str, end: str
) -> None:
    person = actor()
    person.begin()
    assert person.rows("select done from pyworker.undo_actions(%s, %s, %s)", UNDO) == [(1,)]
    assert api.claim(worker) is None
    getattr(person, end)()
    api.promote_jobs()
    claimed = api.claim(worker)
    assert undone(api, retried, was) == (end == "commit")
    assert (claimed and claimed.id) == (None if end == "commit" else retried.id)
    written = api.rows("select action, ok from pyworker.audit where action <> 'retry'")
    assert written == ([("undo_retry", True)] if end == "commit" else [])


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("level", LEVELS)
def test_an_undo_waits_for_a_claim_and_leaves_the_job_to_it_if_that_commits(
    api: Any, actor: Any, worker: int, retried: Any, was: str, end: str, level: str
) -> None:
    claimer, person = actor(), actor()
    claimer.begin()
    claimed = claimer.claim(worker)
    assert claimed.id == retried.id
    person.begin(level)
    undo = person.later.undo_actions(*UNDO)
    person.blocked(undo)
    getattr(claimer, end)()
    if end == "commit" and level in SNAPSHOT_LEVELS:
        with pytest.raises(psycopg.errors.SerializationFailure):
            undo.result()
        person.rollback()
        person.begin()
        undo = person.later.undo_actions(*UNDO)
    told = row_of(undo)
    person.commit()
    assert (told.done, told.refused) == ((0, 1) if end == "commit" else (1, 0))
    assert undone(api, retried, was) == (end != "commit")
    if end == "commit":
        assert told.outcomes[0]["outcome"] == "it is running now"
        assert api.finish(retried.id) == [retried.id]


@pytest.mark.parametrize("level", SNAPSHOT_LEVELS)
def test_an_undo_with_an_old_snapshot_does_not_end_a_job_that_has_run_since(
    api: Any, actor: Any, worker: int, retried: Any, was: str, level: str
) -> None:
    person = actor()
    person.begin(level)
    api.fail(api.claim(worker), delay="1 hour")
    with pytest.raises(psycopg.errors.SerializationFailure):
        person.undo_actions(*UNDO)
    person.rollback()
    assert api.get_job(retried.id).state == "retryable"
    told = api.rows("select * from pyworker.undo_actions(%s, %s, %s)", UNDO)[0]
    assert (told.done, told.outcomes[0]["outcome"]) == (0, "it has run since")


def test_two_undos_of_one_retry_at_once_give_the_job_its_end_once(
    api: Any, actor: Any, retried: Any, was: str
) -> None:
    one, two = actor(), actor()
    one.begin()
    one.undo_actions(*UNDO)
    second = two.later.undo_actions(*UNDO)
    two.blocked(second)
    one.commit()
    told = row_of(second)
    assert (told.done, told.refused) == ((1, 0) if was == "scheduled" else (0, 1))
    assert undone(api, retried, was)
