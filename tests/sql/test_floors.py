"""What a session remembers of its walks along an index: a hint.

What comes to stand before the place that a session knows is found two seconds later at most.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.api import ids
from tests.support.turns import work

MANY = 3_000
READ = """
    select pg_stat_get_xact_tuples_returned(i) + 20 * pg_stat_get_xact_blocks_fetched(i)
    from cast('pyworker.{}' as regclass) i"""
# A session keeps a place for two seconds at most. The statement that calls prolongs that, so that the call
# finds the place, however long ago the session reached it.
KEPT = """
    with kept as materialized (
        select set_config(
                'pyworker.floor_{0}', substring(current_setting('pyworker.floor_{0}', true), '^.* ')
                || (extract(epoch from clock_timestamp() + %s::interval) * 1000000)::bigint, false) as floor,
            %s::bigint as worker)
    """


def add(api: Any, count: int, **more: Any) -> list[int]:
    return ids(api.add_jobs([{"identifier": "t", **more}] * count))


@pytest.fixture
def noted(api: Any, actor: Callable[[], Any], worker: int) -> Any:
    """A session that has claimed past MANY running jobs, so that it remembers its place, and 100
    jobs that are left."""
    a = actor()
    jobs = add(api, MANY + 200)
    assert len(api.claim_jobs(worker, MANY)) == MANY
    assert ids(a.claim_jobs(worker, 100)) == jobs[MANY : MANY + 100]
    a.left = jobs[MANY + 100 :]
    return a


def claim(a: Any, worker: int, limit: int, by: str = "1.9 seconds", **filters: Any) -> list[int]:
    """A claim of a session that still remembers its place."""
    named = "".join(f", {name} => %s" for name in filters)
    call = f"select c.id from kept cross join lateral pyworker.claim_jobs(kept.worker, %s{named}) c"
    return ids(a.rows(KEPT.format("ready") + call, [by, worker, limit, *filters.values()]))


def entries(a: Any, index: str, call: Callable[[], Any]) -> int:
    a.begin()
    before = a.value(READ.format(index))
    call()
    count = a.value(READ.format(index)) - before
    a.commit()
    return count


@pytest.fixture
def old(actor: Callable[[], Any]) -> Any:
    """A session with an old snapshot: vacuum removes nothing that has ended since."""
    a = actor()
    a.begin("repeatable read")
    a.rows("select 1 from pyworker.jobs")
    return a


def test_a_claim_does_not_walk_again_what_it_walked_before(noted: Any, worker: int) -> None:
    assert entries(noted, "live_jobs_ready", lambda: claim(noted, worker, 10)) < MANY / 2
    assert claim(noted, worker, 10) == noted.left[10:20]


def test_nor_does_a_claim_that_finds_less_than_it_asked_for(noted: Any, api: Any, worker: int) -> None:
    assert claim(noted, worker, 1000) == noted.left
    (job,) = add(api, 1)
    found: list[int] = []
    assert (
        entries(noted, "live_jobs_ready", lambda: found.extend(claim(noted, worker, 1000, "1.9 seconds")))
        < MANY
    )
    assert found == [job]


@pytest.mark.parametrize("verb", ["claim_jobs", "work"])
def test_nor_what_has_ended_under_an_old_snapshot(
    api: Any, old: Any, actor: Callable[[], Any], worker: int, verb: str
) -> None:
    a = actor()
    api.rows("update pyworker.workers set expires_at = 'infinity'")
    jobs = add(api, MANY + 3)
    api.finish(*ids(api.claim_jobs(worker, MANY)))
    held: list[Any] = []

    def turn() -> list[Any]:
        if verb == "claim_jobs":
            return a.claim_jobs(worker, 1)
        held[:] = work(a, worker, [(job.id, job.run) for job in held], room=1).jobs
        return held

    def walked(expected: list[int], again: bool = True) -> int:
        def call() -> None:
            if again:
                a.rows(KEPT.format("ready") + "select from kept", ["1.9 seconds", None])
            assert ids(turn()) == expected

        return entries(a, "live_jobs_ready", call)

    assert walked([jobs[MANY]], again=False) > MANY
    assert max(walked([job]) for job in jobs[MANY + 1 :]) < 200
    assert walked([]) < 500, "nor where it finds less than it wants, and looks whether a job is left"


EARLY: dict[str, dict[str, Any]] = {
    "a better priority": {"priority": -1},
    "an earlier time": {"run_at": "-1 hour"},
}


@pytest.mark.parametrize("how", EARLY)
def test_what_comes_to_stand_before_the_place_is_found_when_the_session_begins_at_the_head_again(
    noted: Any, api: Any, worker: int, how: str
) -> None:
    more = {key: api.at(value) if key == "run_at" else value for key, value in EARLY[how].items()}
    early = api.add_job("t", **more).id
    assert claim(noted, worker, 2, "-1 microsecond") == [early, noted.left[0]]


def test_it_is_found_at_once_by_another_session(noted: Any, api: Any, actor: Any, worker: int) -> None:
    early = api.add_job("t", priority=-1).id
    assert ids(actor().claim_jobs(worker, 1)) == [early]


@pytest.fixture
def hidden(noted: Any, api: Any, actor: Callable[[], Any], worker: int) -> int:
    """A job that was long in committing: the session has passed its place before that."""
    a = actor()
    a.begin()
    job = a.add_job("t")
    rest = noted.left + add(api, 5)
    assert claim(noted, worker, 105) == rest
    a.commit()
    return job.id


def test_a_job_that_was_long_in_committing_waits_no_longer_than_the_place_is_kept(
    noted: Any, hidden: int, worker: int
) -> None:
    assert claim(noted, worker, 1, "-1 microsecond") == [hidden]


@pytest.mark.parametrize("ahead", ["1 hour", "2.5 seconds"])
def test_a_place_that_is_kept_for_longer_than_two_seconds_is_dropped(
    noted: Any, hidden: int, worker: int, ahead: str
) -> None:
    """The clock was set back."""
    assert claim(noted, worker, 1, by=ahead) == [hidden]


@pytest.mark.parametrize(
    "filters", [{"task_identifiers": ["t"]}, {"queue_names": ["default"]}, {"forbidden_flags": ["f"]}]
)
def test_a_place_is_for_the_same_filters_only(
    noted: Any, hidden: int, worker: int, filters: dict[str, list[str]]
) -> None:
    assert claim(noted, worker, 1, **filters) == [hidden]


def test_a_session_may_use_any_date_style(noted: Any, worker: int) -> None:
    noted.rows("set datestyle = 'German'; set timezone = 'Asia/Kathmandu'")
    assert claim(noted, worker, 10) == noted.left[:10]
    noted.rows("set datestyle = 'SQL, MDY'; set timezone = 'America/St_Johns'")
    assert claim(noted, worker, 10) == noted.left[10:20]


def test_a_claim_that_is_rolled_back_is_had_again(noted: Any, worker: int) -> None:
    noted.begin()
    first = claim(noted, worker, 10)
    noted.rollback()
    assert claim(noted, worker, 10) == first


def test_a_place_that_was_written_by_hand_breaks_only_the_session_that_wrote_it(
    api: Any, actor: Any, worker: int
) -> None:
    a = actor()
    a.rows("select set_config('pyworker.floor_ready', 'nonsense', false)")
    job = api.add_job("t")
    assert ids(api.claim_jobs(worker, 1)) == [job.id]
    a.rows("reset all")
    assert a.claim_jobs(worker, 1) == []


def test_promotions_do_not_walk_again_the_due_jobs_that_have_ended_under_an_old_snapshot(
    api: Any, old: Any, actor: Callable[[], Any], worker: int, clock: Any
) -> None:
    api.rows("update pyworker.workers set expires_at = 'infinity'")
    add(api, 5 * MANY, run_at=str(api.at("1 minute")))
    clock.advance(minutes=2)
    while api.promote_jobs():
        pass
    a = actor()
    again = KEPT.format("due") + "select from kept cross join lateral pyworker.promote_jobs()"
    assert entries(a, "live_jobs_due", a.promote_jobs) > MANY
    assert (
        max(entries(a, "live_jobs_due", lambda: a.rows(again, ["1.9 seconds", None])) for _ in range(3)) < 200
    )
    old.commit()
    # What comes then is seen.
    job = api.add_job("t", run_at=api.at("1 second"))
    clock.advance(seconds=2)
    assert a.promote_jobs() == 1
    assert api.get_job(job.id).state == "available"


def test_due_jobs_that_were_locked_when_a_session_came_by_are_found_as_soon_as_they_are_free(
    api: Any, old: Any, actor: Callable[[], Any], clock: Any
) -> None:
    (first,) = add(api, 1, run_at=str(api.at("30 seconds")))
    add(api, 5 * MANY, run_at=str(api.at("1 minute")))
    clock.advance(minutes=2)
    other, a = actor(), actor()
    other.begin()
    other.rows("select from pyworker.live_jobs where id = %s for update", [first])
    while api.promote_jobs():
        pass
    assert a.promote_jobs() == 0
    other.rollback()
    again = KEPT.format("due") + "select p from kept cross join lateral pyworker.promote_jobs() p"
    assert a.value(again, ["1.9 seconds", None]) == 1


def test_nor_the_requests_that_were_answered_under_an_old_snapshot(
    api: Any, old: Any, actor: Callable[[], Any], worker: int
) -> None:
    api.rows("select count(pyworker.add_job('t', queue_name => 'q')) from generate_series(1, %s)", [5 * MANY])
    a = actor()
    looks = [entries(a, "promotion_requests_open", a.promote_jobs)]
    assert looks[0] > MANY
    # An old transaction of another database holds it back, too.
    while looks[-1] >= MANY and len(looks) < 30:
        api.rows("select pg_sleep(1.1)")  # the place moves once a second at most
        api.add_job("t", queue_name="q")
        api.promote_jobs()
        looks.append(entries(a, "promotion_requests_open", a.promote_jobs))
    assert looks[-1] < MANY, looks
    job = api.add_job("t", queue_name="another")
    assert a.promote_jobs() == 1
    assert api.get_job(job.id).state == "available"


@pytest.mark.parametrize("lane", [{"queue_name": "q"}, {"sequence_policy": {"key": "s"}}])
def test_an_add_that_was_open_while_passes_went_by_is_let_in_after_its_commit(
    api: Any, actor: Callable[[], Any], worker: int, lane: dict[str, Any]
) -> None:
    """Its request has an older transaction id than many that were answered before it."""
    late = actor()
    late.begin()
    late.rows("select pg_current_xact_id()")
    job = late.add_job("late", **lane)
    api.rows(
        "select count(pyworker.add_job('t', queue_name => 'r' || i)) from generate_series(1, %s) i", [MANY]
    )
    api.rows("select pg_sleep(1.05)")  # the place moves once a second at most
    api.promote_jobs()
    late.commit()
    assert ids(api.claim_jobs(worker, 1, ["late"])) == [job.id]
