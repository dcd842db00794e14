"""What doctor() and explain_job() say of the gate: who has it, which lanes it puts off, what stands aside."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.doctor import of, repair, the

EXPLAIN = "select * from pyworker.explain_job(%s)"


def reasons(api: Any, job: int) -> list[str]:
    return [row.reason for row in api.rows(EXPLAIN, [job])]


def test_a_session_that_has_the_gate_for_more_than_a_second_is_named(api: Any, actor: Any) -> None:
    other = actor()
    other.begin()
    other.rows("select from pyworker.gate for update")
    api.rows("select pg_sleep(1.1)")
    pid = other.conn.info.backend_pid
    row = the(api, "gate", "warning", f"session {pid} of ")
    assert "in a transaction since " in row.finding
    assert row.fix == f"select pg_terminate_backend({pid})"
    problems = api.rows("select * from pyworker.problems()")
    assert [problem.fix for problem in problems if problem.check_name == "gate"] == [row.fix]
    api.add_job("t", queue_name="q")
    assert api.promote_jobs() == 0
    repair(api, row.fix)
    while of(api, "gate")[0].severity != "ok":
        pass  # the session is ending
    assert api.promote_jobs() == 1


@pytest.fixture
def poison(api: Any) -> Iterator[None]:
    """Somebody's trigger refuses to let in the jobs of one lane."""
    api.rows(
        "create function public.refuse() returns trigger language plpgsql as $$ begin"
        "  raise 'not these'; end $$;"
        "create trigger refuse before update on pyworker.live_jobs for each row"
        "  when (new.queue_name = 'poison' or new.sequence_key = 'poison') execute function public.refuse()"
    )
    yield
    api.rows("drop function if exists public.refuse() cascade")


LANES: dict[str, dict[str, Any]] = {
    "queue:poison": {"queue_name": "poison"},
    "sequence:poison": {"sequence_policy": {"key": "poison"}},
}


@pytest.mark.parametrize("lane", LANES)
def test_a_lane_whose_promotion_fails_is_put_off_and_named_and_the_others_go_on(
    api: Any, clock: Any, worker: int, poison: None, lane: str
) -> None:
    job = api.add_job("t", **LANES[lane]).id
    other = api.add_job("t", queue_name="q").id
    api.promote_jobs()
    assert [claimed.id for claimed in api.claim_jobs(worker, 9)] == [other]
    row = the(api, "gate", "error", f"{lane} (not these)")
    assert "trigger" in row.fix
    (found, *_) = api.rows(EXPLAIN, [job])
    assert (found.reason, "not these" in found.detail) == ("put off", True)
    api.rows("drop function public.refuse() cascade")
    clock.advance(seconds=6)
    api.heartbeat(worker)
    assert [claimed.id for claimed in api.claim_jobs(worker, 9)] == [job]
    assert of(api, "gate")[0].severity == "ok"
    assert reasons(api, job) == ["running"]


def test_a_kind_that_no_idle_worker_takes_stands_aside_and_says_so(api: Any, clock: Any, worker: int) -> None:
    rare, usual = (api.add_job(task, queue_name="q").id for task in ("rare", "usual"))
    api.promote_jobs()
    clock.advance(seconds=2)
    api.update_worker(worker, {"task_identifiers": ["usual"]})
    assert api.claim_jobs(worker, 9, ["usual"]) == []
    assert "stands aside" in reasons(api, rare)
    assert "until 2" in api.rows(EXPLAIN, [rare])[0].detail
    assert the(api, "tasks", "warning", "jobs wait for tasks that no live worker knows: rare (1)").fix
    assert [claimed.id for claimed in api.claim_jobs(worker, 9, ["usual"])] == [usual]
    clock.advance(seconds=6)
    assert "stands aside" not in reasons(api, rare)
