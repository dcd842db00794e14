"""What doctor, problems, explain_job and metrics say of jobs that wait for what does not come: a parent that
has ended otherwise, a worker, the end of another session's lock."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg.types.json import Jsonb

from tests.support.dependencies import settle
from tests.support.doctor import of, repair, the
from tests.support.waits import claims

EXPLAIN = "select reason, detail, remedy from pyworker.explain_job(%s)"


def both(api: Any, check: str) -> list[Any]:
    """What doctor() finds; problems() finds the same."""
    rows = [row for row in of(api, check) if row.severity != "ok"]
    problems = api.rows("select * from pyworker.problems()")
    assert [tuple(row) for row in problems if row.check_name == check] == [tuple(row) for row in rows]
    return rows


# A parent that has ended otherwise


@pytest.mark.parametrize("end", ["discarded", "cancelled", "deleted", "completed"])
def test_a_job_that_waits_for_ever_is_named_with_the_job_before_it(api: Any, worker: int, end: str) -> None:
    parent = api.add_job("first").id
    on = "failure" if end == "completed" else "success"
    child = api.add_job("then", depends_on=Jsonb([{"id": parent, "on": on}])).id
    assert both(api, "dependencies") == []
    match end:
        case "discarded":
            api.fail(api.claim(worker), discard=True)
        case "cancelled":
            api.cancel_job(parent)
        case "deleted":
            api.delete_job(parent)
        case "completed":
            api.finish_job(parent, api.claim(worker).run)
    (row,) = both(api, "dependencies")
    assert f"job {child} for the {on} of job {parent} ({end})" in row.finding
    assert "retry that job, or cancel those that wait" in row.finding
    assert (row.severity, row.fix) == (
        "warning",
        f"select * from pyworker.retry_job({parent})"
        if end in ("discarded", "cancelled")
        else f"select * from pyworker.cancel_job({child})",
    )
    repair(api, row.fix)
    assert both(api, "dependencies") == []


def test_a_child_of_a_lost_job_is_no_reason_to_run_that_job_again(api: Any, worker: int) -> None:
    parent = api.add_job("mail", delivery="at_most_once").id
    child = api.add_job("then", depends_on=Jsonb([parent])).id
    assert api.start_job(parent, api.claim(worker).run)
    api.unregister_worker(worker)
    (row,) = both(api, "dependencies")
    assert row.fix == f"select * from pyworker.cancel_job({child})"


def test_a_child_that_ends_with_its_parent_or_waits_for_others_too_is_told_apart(
    api: Any, worker: int
) -> None:
    parent, other = api.add_job("first").id, api.add_job("second", run_at=api.at("1 hour")).id
    api.add_job("ends", depends_on=Jsonb({"jobs": [parent], "on_unmet": "cancel"}))
    api.add_job("any", depends_on=Jsonb([{"id": parent, "on": "end"}, other]))
    waits = api.add_job("waits", depends_on=Jsonb([other, parent])).id
    api.cancel_job(parent)
    (row,) = both(api, "dependencies")
    assert f": job {waits} for the success of job {parent} (cancelled);" in row.finding


# No worker


def add_each(api: Any, clock: Any) -> None:
    """A job of each kind that a worker would start or promote."""
    api.add_job("t")
    api.add_job("t", run_at=api.at("1 second"))
    api.add_job("t", queue_name="q")
    api.add_job("t", sequence_policy=Jsonb({"key": "s"}))
    clock.advance(seconds=2)


def test_all_jobs_that_wait_for_a_worker_are_counted_and_the_severity_is_the_age_of_the_oldest(
    api: Any, clock: Any
) -> None:
    assert both(api, "workers") == []
    add_each(api, clock)
    the(api, "workers", "info", "no worker is alive; jobs that wait: 4, the first since")
    clock.advance(minutes=1)
    the(api, "workers", "warning", "no worker is alive; jobs that wait: 4, the first since")
    api.register_worker()
    assert both(api, "workers") == []


def test_jobs_that_wait_for_their_time_or_in_a_paused_queue_wait_for_no_worker(api: Any) -> None:
    api.add_job("t", run_at=api.at("1 hour"))
    api.pause_queue("q")
    api.add_job("t", queue_name="q")
    assert both(api, "workers") == []


@pytest.mark.parametrize("which", range(4))
def test_the_oldest_job_has_an_age_while_no_worker_lives(api: Any, clock: Any, which: int) -> None:
    oldest = "select value from pyworker.metrics() where name = 'pyworker_oldest_available_seconds'"
    assert api.value(oldest) == 0
    more: dict[str, Any] = [
        {}, {"run_at": api.at("1 second")}, {"queue_name": "q"}, {"sequence_policy": Jsonb({"key": "s"})},
    ][which]  # fmt: skip
    api.add_job("t", **more)
    clock.advance(seconds=237)
    assert 230 < api.value(oldest) < 300


# Locks


def locked(api: Any, actor: Any, job: int) -> Any:
    """A session that has this job locked."""
    other = actor()
    other.begin()
    other.rows("select from pyworker.live_jobs where id = %s for update", [job])
    return other


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "of a queue": {"queue_name": "q"},
    "of a sequence": {"sequence_policy": Jsonb({"key": "s"})},
    "due": {"run_at": "-1 second"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_that_another_session_has_locked_says_by_which_and_promises_nothing(
    api: Any, actor: Any, worker: int, kind: str
) -> None:
    more = KINDS[kind]
    job = api.add_job("t", **({"run_at": api.at("1 second")} if kind == "due" else more)).id
    if kind == "due":
        api.rows("select pyworker.reschedule_jobs(array[%s]::bigint[], run_at => %s)", [job, api.at("-1 s")])
    other = locked(api, actor, job)
    pid = other.conn.info.backend_pid
    assert claims(api, worker) == []
    rows = api.rows(EXPLAIN, [job])
    assert (rows[0].reason, f"session {pid} " in rows[0].detail) == ("locked", True)
    assert "in a transaction since " in rows[0].detail
    assert f"select pg_terminate_backend({pid}) ends it" in rows[0].remedy
    told = " ".join(row.remedy for row in rows)
    assert "promote_jobs" not in told
    assert "it is next" not in told
    (found,) = both(api, "locks")
    assert f"job {job} (session {pid} " in found.finding
    assert found.fix == f"select pg_terminate_backend({pid})"
    other.rollback()
    assert [row.reason for row in api.rows(EXPLAIN, [job])] != ["locked"]
    assert both(api, "locks") == []
    settle(api)
    assert claims(api, worker) == [job]


def test_a_job_behind_the_locked_one_of_its_queue_or_sequence_names_that_lock(
    api: Any, actor: Any, worker: int
) -> None:
    for more in ({"queue_name": "q"}, {"sequence_policy": Jsonb({"key": "s"})}):
        first, second, third = (api.add_job("t", **more).id for _ in range(3))
        api.finish_job(first, api.claim(worker).run)  # the second one has the slot, or the turn
        other = locked(api, actor, second)
        assert claims(api, worker) == []
        (row, *rest) = api.rows(EXPLAIN, [third])
        pid = other.conn.info.backend_pid
        assert (row.reason, f"job {second} goes first: session {pid} " in row.detail) == ("locked", True)
        assert "promote_jobs" not in " ".join(more.remedy for more in rest)
        other.rollback()
        assert "locked" not in [row.reason for row in api.rows(EXPLAIN, [third])]
        api.rows("select pyworker.complete_jobs(%s)", [[second, third]])


def test_a_lock_that_was_taken_in_a_savepoint_is_found(api: Any, actor: Any, worker: int) -> None:
    job = api.add_job("t").id
    other = actor()
    other.begin()
    other.rows("select from pyworker.live_jobs where id = %s for key share", [job])
    with other.conn.transaction():
        other.rows("update pyworker.live_jobs set meta = '{}' where id = %s", [job])
    assert api.rows(EXPLAIN, [job])[0].reason == "locked"
    other.rollback()


def test_a_job_that_is_locked_and_not_due_says_both(api: Any, actor: Any) -> None:
    job = api.add_job("t", run_at=api.at("1 hour")).id
    locked(api, actor, job)
    assert [row.reason for row in api.rows(EXPLAIN, [job])][:2] == ["locked", "not due"]


def test_own_locks_and_those_of_a_claim_are_no_locks(api: Any, worker: int) -> None:
    job = api.add_job("t").id
    with api.conn.transaction():
        api.rows("select from pyworker.live_jobs where id = %s for update", [job])
        assert "locked" not in [row.reason for row in api.rows(EXPLAIN, [job])]
    api.claim(worker)
    assert both(api, "locks") == []
