"""The gate: one session at a time decides which jobs may run; an end hands its place on without it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from tests.support.api import ids
from tests.support.claimers import work_off
from tests.support.notify import heard as heard
from tests.support.notify import wait
from tests.support.queues import add, busy, claim, named
from tests.support.rates import begun as begun
from tests.support.rates import worst
from tests.support.sessions import LEVELS

ENDS = ["commit", "rollback", "kill"]
RUNNING = "select count(*) from pyworker.jobs where state = 'running' and queue_name = %s"


# The end of a job hands its place on ------------------------------------------------------------------


@pytest.mark.parametrize("ended", [1, 2, 3])
def test_each_end_lets_in_one_job_with_itself_without_the_gate(
    api: Any, worker: int, actor: Callable[[], Any], ended: int
) -> None:
    api.set_queue("q", 3)
    jobs = add(api, 8)
    assert claim(api, worker) == jobs[:3]
    a = actor()
    busy(a)
    assert claim(a, worker) == []
    api.finish(*jobs[:ended])
    assert claim(a, worker) == jobs[3 : 3 + ended]
    a.commit()


@pytest.mark.parametrize("lane", [{"queue_name": "q"}, {"sequence_policy": {"key": "s"}}])
@pytest.mark.parametrize("level", LEVELS)
def test_an_add_that_commits_while_a_report_is_open_is_not_forgotten(
    api: Any, worker: int, actor: Callable[[], Any], lane: dict[str, Any], level: str
) -> None:
    """The report has seen nobody who waits; and those who look at the queue of the add find no room."""
    first = api.add_job("t", **lane)
    assert claim(api, worker) == [first.id]
    handler = actor()
    handler.begin(level)
    if level == LEVELS[0]:
        handler.finish(first.id)
    second = api.add_job("t", **lane)
    assert claim(api, worker) == []
    if level != LEVELS[0]:
        handler.finish(first.id)
    handler.commit()
    assert claim(api, worker) == [second.id]


@pytest.mark.parametrize("end", ENDS)
def test_an_end_whose_transaction_is_open_has_handed_on_nothing_yet(
    api: Any, worker: int, actor: Callable[[], Any], end: str
) -> None:
    jobs = add(api, 2)
    assert claim(api, worker) == jobs[:1]
    handler = actor()
    handler.begin()
    handler.finish(jobs[0])
    assert claim(api, worker) == []
    getattr(handler, end)()
    assert claim(api, worker) == (jobs[1:] if end == "commit" else [])


# Never more than the limits ---------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS[:2])
def test_at_no_time_run_more_than_the_limit_and_no_window_holds_more_starts_than_the_rate(
    api: Any, dsn: str, begun: Any, level: str
) -> None:
    limits = {"one": 1, "two": 2, "five": 5, "both": 2}
    for queue, limit in limits.items():
        api.set_queue(queue, limit, *((4, "0.3 seconds") if queue == "both" else ()))
        add(api, 25, queue)
    api.set_queue("paced", None, 5, "0.3 seconds")
    add(api, 25, "paced")
    api.set_queue("turn:*", 2, fair=True)
    add(api, 15, "turn:1")
    seen = dict.fromkeys(limits, 0)
    counted = (
        "select queue_name, count(*) from pyworker.jobs where state = 'running' "
        "and queue_name is not null group by 1"
    )

    def between(_: int) -> None:
        for queue, count in api.rows(counted):
            seen[queue] = max(seen.get(queue, 0), count)

    work_off(api, dsn, 3, [LEVELS[0], LEVELS[0], level], between)
    assert all(seen[queue] <= limit for queue, limit in limits.items()), seen
    assert seen.get("turn:1", 0) <= 2
    for queue, rate in (("paced", 5), ("both", 4)):
        assert worst(begun(queue), timedelta(seconds=0.3)) <= rate


@pytest.mark.parametrize("at_once", [1, 100, 101, 5000])
def test_of_very_many_slots_all_are_used_without_the_end_of_any_job(
    api: Any, worker: int, at_once: int
) -> None:
    api.set_queue("q", 250)
    add(api, 300)
    while api.claim_jobs(worker, at_once):
        pass
    assert api.value(RUNNING, ["q"]) == 250


def test_one_claim_takes_a_job_of_each_of_hundreds_of_new_queues(api: Any, worker: int) -> None:
    api.add_jobs([{"identifier": "t", "queue_name": f"q{n}"} for n in range(401)])
    assert len(api.claim_jobs(worker, 401)) == 401


# Who opens the gate -----------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
def test_a_claim_lets_in_nothing_in_a_transaction_that_has_written_or_may_not_see_all(
    api: Any, worker: int, actor: Callable[[], Any], level: str
) -> None:
    job, plain = add(api, 1)[0], api.add_job("t").id
    a = actor()
    a.begin(level)
    if level == LEVELS[0]:
        a.value("select pg_current_xact_id()::text")
    assert claim(a, worker) == [plain]
    a.commit()
    assert claim(api, worker) == [job]


@pytest.mark.parametrize("end", ENDS)
def test_while_a_session_holds_the_gate_all_goes_on_that_needs_no_decision(
    api: Any, worker: int, actor: Callable[[], Any], clock: Any, end: str
) -> None:
    jobs = add(api, 3)
    assert claim(api, worker) == jobs[:1]
    due = api.add_job("t", run_at=api.at("1 second")).id
    holder = actor()
    holder.begin()
    holder.promote_jobs()
    plain, other = api.add_job("t").id, add(api, 1, "other")
    clock.advance(seconds=1)
    assert claim(api, worker) == sorted([due, plain])
    for before, after in pairwise(jobs):
        api.finish(before)
        assert claim(api, worker) == [after]
    assert 0 < api.seconds_until_due() <= 0.25  # for the other queue's job
    getattr(holder, end)()
    assert claim(api, worker) == other


@pytest.mark.parametrize("end", ENDS)
def test_what_a_session_has_let_in_and_did_not_commit_is_let_in_by_another(
    api: Any, worker: int, actor: Callable[[], Any], end: str
) -> None:
    jobs = add(api, 2)
    holder = actor()
    holder.begin()
    assert holder.promote_jobs() == 1
    assert claim(api, worker) == []
    getattr(holder, end)()
    assert claim(api, worker) == jobs[:1]
    assert claim(api, worker) == []


def test_the_server_ends_a_session_that_holds_the_gate_and_idles(api: Any, actor: Callable[[], Any]) -> None:
    holder, timeout = actor(), "show idle_in_transaction_session_timeout"
    before = holder.value(timeout)
    holder.begin()
    add(api, 1)
    holder.promote_jobs()
    assert holder.value(timeout) == "5s"
    holder.commit()
    assert holder.value(timeout) == before


def test_a_queue_whose_jobs_cannot_be_changed_holds_up_no_other_and_is_looked_at_again(
    api: Any, worker: int, actor: Callable[[], Any], clock: Any
) -> None:
    bad, good = add(api, 1, "bad"), add(api, 1, "good")
    admin = actor()
    admin.rows(
        "create function public.refuse() returns trigger language plpgsql as $$ begin"
        "  raise exception 'not this one'; end $$;"
        "create trigger refuse before update on pyworker.live_jobs for each row"
        "  when (new.queue_name = 'bad' and new.state = 'available') execute function public.refuse()"
    )
    try:
        assert claim(api, worker) == good
    finally:
        admin.rows("drop trigger refuse on pyworker.live_jobs; drop function public.refuse()")
    clock.advance(seconds=5)
    assert claim(api, worker) == bad


def test_what_a_turn_has_let_in_and_does_not_take_notifies_the_worker_that_takes_it(
    api: Any, worker: int, heard: Any
) -> None:
    api.set_queue("q", 1000)
    wait(api, worker)
    named(api, "a", "b")
    heard()
    assert len(api.claim_jobs(worker, 1, ["a"])) == 1
    assert heard() == [""]


@pytest.mark.parametrize("end", ["finish_jobs", "fail_jobs", "release_jobs"])
def test_an_end_notifies_the_worker_that_takes_the_next_job(
    api: Any, worker: int, heard: Any, end: str
) -> None:
    named(api, "a", "b")
    (job,) = api.claim_jobs(worker, 1, ["a"])
    for _ in range(2):
        assert api.claim_jobs(worker, 5, ["b"]) == []  # it waits from now on
    heard()
    if end == "fail_jobs":
        api.fail(job)
    else:
        getattr(api, end)([job.id], [job.run])
    assert heard() == [""]


# Changed settings -------------------------------------------------------------------------------------

CHANGES: dict[str, tuple[str, str, int]] = {
    "lowered": ("set_queue('q', 4)", "set_queue('q', 2)", 2),
    "raised": ("set_queue('q', 1)", "set_queue('q', 3)", 3),
    "limited": ("set_queue('q', null)", "set_queue('q', 2)", 2),
    "unlimited": ("set_queue('q', 1)", "set_queue('q', null)", 6),
    "and back": ("set_queue('q', null); select pyworker.set_queue('q', 5)", "set_queue('q', 1)", 1),
    "by its family": ("set_queue('q*', 4)", "set_queue('q*', 2)", 2),
    "paused": ("set_queue('q', null)", "pause_queue('q')", 0),
    "with its family": ("set_queue('q', 4)", "pause_queue('*')", 0),
    "resumed": ("set_queue('q', 2); select pyworker.pause_queue('q')", "resume_queue('q')", 2),
    "with a rate": ("set_queue('q', null)", "set_queue('q', null, 2, '1 hour')", 2),
}


@pytest.mark.parametrize("add_of_before", ["commit", "rollback", "kill"])
@pytest.mark.parametrize("looked", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_holds_from_its_commit_though_a_transaction_is_open_that_has_not_seen_it(
    api: Any, worker: int, actor: Callable[[], Any], change: str, looked: bool, add_of_before: str
) -> None:
    """Which adds jobs, as the settings were before."""
    before, then, most = CHANGES[change]
    api.rows(f"select pyworker.{before}")
    add(api, 4)
    old = actor()
    busy(old)
    add(old, 2)
    if looked:
        api.promote_jobs()  # lets in what may run by the settings of before
    api.rows(f"select pyworker.{then}")
    waiting = 4 + 2 * (add_of_before == "commit")
    while claim(api, worker, 1):
        pass
    assert api.value(RUNNING, ["q"]) == min(most, 4)
    getattr(old, add_of_before)()
    while claim(api, worker, 1):
        pass
    assert api.value(RUNNING, ["q"]) == min(most, waiting)
    while jobs := api.rows("select id from pyworker.jobs where state = 'running'"):
        api.finish(jobs[0].id)
        claim(api, worker, 10)
        assert api.value(RUNNING, ["q"]) <= most or change == "with a rate"


def test_a_claim_with_an_older_snapshot_than_a_change_takes_none_of_the_queues_jobs(
    api: Any, worker: int, actor: Callable[[], Any]
) -> None:
    api.set_queue("q", 3)
    add(api, 3)
    assert api.promote_jobs() == 3
    a = actor()
    a.begin("repeatable read")
    api.pause_queue("q")
    assert claim(a, worker) == []
    a.commit()


@pytest.mark.parametrize("call", ["set_queue('q', 2)", "set_queue('other', 2)", "set_queue('*', 2)"])
def test_a_setting_waits_for_no_session_that_has_the_gate(
    api: Any, worker: int, actor: Callable[[], Any], call: str
) -> None:
    add(api, 5)
    holder = actor()
    holder.begin()
    assert len(claim(holder, worker, 1)) == 1
    api.rows("set lock_timeout = '2s'")
    for wanted in (call, "pause_queue('q')", "resume_queue('q')", "pause_queue('q')"):
        api.rows(f"select pyworker.{wanted}")
    holder.rollback()
    assert claim(api, worker) == []
    api.resume_queue("q")
    assert len(claim(api, worker)) == (1 if "other" in call else 2)


def test_a_setting_waits_for_no_session_that_has_the_gate_and_has_seen_one_before(
    api: Any, worker: int, actor: Callable[[], Any]
) -> None:
    api.set_queue("q", 3)
    add(api, 5)
    holder = actor()
    holder.begin()
    assert len(claim(holder, worker, 1)) == 1
    api.rows("set lock_timeout = '2s'")
    api.pause_queue("q")
    holder.commit()
    assert claim(api, worker) == []


# Better jobs, and kinds that nobody takes ---------------------------------------------------------------


@pytest.mark.parametrize("limit", [None, 2])
def test_a_strictly_better_job_changes_places_with_one_that_was_let_in_and_not_claimed(
    api: Any, worker: int, limit: int | None
) -> None:
    if limit:
        api.set_queue("q", limit)
    waits = add(api, 3)
    assert api.promote_jobs() == (limit or 1)
    better = add(api, 1, priority=-1)
    equal = add(api, 1)
    assert claim(api, worker) == sorted([*waits[: (limit or 1) - 1], *better])
    for expected in [*waits[(limit or 1) - 1 :], *equal]:
        api.finish(api.value("select min(id) from pyworker.jobs where state = 'running'"))
        assert claim(api, worker) == [expected]


@pytest.mark.parametrize("limit", [1, 3])
def test_a_kind_of_jobs_that_no_worker_takes_costs_its_queue_a_second_in_five(
    api: Any, worker: int, clock: Any, limit: int
) -> None:
    """However many of them come first. By the database's clock, which goes on while a call runs."""
    api.rows("update pyworker.workers set expires_at = 'infinity'")
    api.set_queue("q", limit)
    add(api, 3000, priority=-1)
    api.add_jobs([{"identifier": "known", "queue_name": "q"}] * 700)
    begun = last = api.at()
    idle: list[timedelta] = []
    while api.at() < begun + timedelta(seconds=20):
        clock.advance(seconds=0.05)
        for job in api.claim_jobs(worker, 1, ["known"]):
            api.finish_jobs([job.id], [job.run])
            idle.append(api.at() - last)
            last = api.at()
    assert len(idle) > 100
    assert sum((gap for gap in idle if gap >= timedelta(seconds=1)), timedelta(0)) < (last - begun) * 0.3


@pytest.mark.parametrize("flags", [["gpu"], ["gpu", "eu"]])
def test_so_do_flags_that_the_worker_does_not_take(
    api: Any, worker: int, clock: Any, flags: list[str]
) -> None:
    first = add(api, 5, flags=flags)
    behind = add(api, 2)

    def claimed() -> list[int]:
        return ids(api.claim_jobs(worker, 10, None, None, ["gpu"]))

    assert claimed() == []
    clock.advance(seconds=1.01)
    assert claimed() == []  # from now on they stand aside
    for job in behind:
        assert claimed() == [job]
        api.finish(job)
    assert claim(api, worker) == []
    clock.advance(seconds=5)
    assert claim(api, worker) == first[:1]
