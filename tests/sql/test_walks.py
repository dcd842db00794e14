"""What a session remembers of its walks along an index. For a moment that may change an order, no more."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from tests.support.api import ids
from tests.support.plans import touched
from tests.support.turns import work

MANY = 3_000
READ = "select pyworker._entries_read('pyworker.live_jobs_ready')"
LONG_WALK = """select pyworker._keep_walk('due', row(1, null, '{}', null, null)::pyworker._walk,
    clock_timestamp() - interval '1 hour')"""


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
    prolong(a)
    a.left = jobs[MANY + 100 :]
    yield a
    a.rows("select set_config('pyworker.walk_claim', '', false)")


# A session keeps a place for two seconds at most. The statement that claims prolongs that, so that the claim
# finds the place, however long ago the session reached it.
KEPT = """
    with kept as materialized (
        select set_config('pyworker.walk_{0}',
                row(w.owner, clock_timestamp() + %s::interval, w.places, w.late_ids, w.seen)::text, false),
            setval('pyworker.walks_until', (extract(epoch from clock_timestamp()) * 1000)::bigint + 3600000),
            %s::bigint as worker
        from (select (current_setting('pyworker.walk_{0}')::pyworker._walk).*) w)"""


def prolong(a: Any, by: str = "0.9 seconds") -> None:
    a.rows(KEPT.format("claim") + "select from kept", [by, None])


def claim(a: Any, worker: int, limit: int, by: str = "0.9 seconds", **filters: Any) -> list[int]:
    """A claim of a session that still remembers its place."""
    named = "".join(f", {name} => %s" for name in filters)
    call = f"select c.id from kept cross join lateral pyworker.claim_jobs(kept.worker, %s{named}) c"
    return ids(a.rows(KEPT.format("claim") + call, [by, worker, limit, *filters.values()]))


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


def test_a_claim_does_not_walk_again_what_it_walked_before(api: Any, worker: int, watched: Any) -> None:
    jobs = add(api, MANY + 200)
    api.claim_jobs(worker, MANY)
    first, *others = (
        sum(touched(watched(call)).values())
        for call in (lambda a: a.claim_jobs(worker, 10), *[lambda a: claim(a, worker, 10)] * 2)
    )
    assert first > MANY
    assert max(others) < 60
    assert watched.result == jobs[MANY + 20 : MANY + 30]


def test_nor_does_one_that_comes_back_short(noted: Any, api: Any, worker: int) -> None:
    assert claim(noted, worker, 1000) == noted.left
    (job,) = add(api, 1)
    noted.begin()
    before = noted.value(READ)
    assert claim(noted, worker, 1000) == [job]
    assert noted.value(READ) - before < 2500  # the running jobs of the last second, and not those before
    noted.rollback()


@pytest.mark.parametrize("verb", ["claim_jobs", "work"])
def test_nor_does_it_look_again_at_what_has_ended_under_an_old_snapshot(
    api: Any, actor: Callable[[], Any], worker: int, verb: str
) -> None:
    old, a = actor(), actor()
    old.begin("repeatable read")
    old.rows("select 1 from pyworker.jobs")
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
        a.begin()
        before = a.value(READ)
        if again:
            prolong(a)
        assert ids(turn()) == expected
        count = a.value(READ) - before
        a.commit()
        return count

    assert walked([jobs[MANY]], again=False) > MANY
    assert max(walked([job]) for job in jobs[MANY + 1 :]) < 200
    assert walked([]) < 500, "nor where it finds less than it wants, and looks whether a job is left"


def test_a_more_urgent_job_never_waits_for_a_walk_from_the_head(noted: Any, api: Any, worker: int) -> None:
    """Nor does one of a priority that stands between two that the session knows."""
    urgent = add(api, 1, priority=-3) + add(api, 1, priority=-1)
    assert claim(noted, worker, 3) == [*urgent, noted.left[0]]
    between = add(api, 1, priority=-2)
    assert claim(noted, worker, 2) == [*between, noted.left[1]]
    again = add(api, 1, priority=-3)
    later = add(api, 1, priority=1)
    assert claim(noted, worker, 2) == [*again, noted.left[2]]
    assert claim(noted, worker, 98) == [*noted.left[3:], *later]


def next_of(api: Any, worker: int, **lane: Any) -> Callable[[], int]:
    first, second = (api.add_job("t", run_at=api.at("-1 hour"), **lane) for _ in range(2))
    assert ids(api.claim_jobs(worker, 1)) == [first.id]
    return lambda: (api.finish(first.id), second.id)[1]


def of_a_worker(api: Any, worker: int, how: str) -> Callable[[], int]:
    api.add_job("t", run_at=api.at("-1 hour"))
    (job,) = api.claim_jobs(worker, 1)
    act = {
        "release": lambda: api.release_jobs([job.id], [job.run]),
        "fail": lambda: api.fail(job, delay=0),
        "snooze": lambda: api.snooze_job(job.id, job.run, "0"),
        "unlock": lambda: api.force_unlock_workers([str(worker)]),
    }[how]
    return lambda: (act(), job.id)[1]


def waiting(api: Any, worker: int, how: str) -> Callable[[], int]:
    job = api.add_job("t", job_key="k", run_at=api.at("1 hour"))
    act = {
        "retry": lambda: api.retry_job(job.id),
        "reschedule": lambda: api.reschedule_jobs([job.id], api.at("-1 hour")),
        "replace": lambda: api.add_job("t", job_key="k", run_at=api.at("-1 hour")),
    }[how]
    return lambda: (act(), job.id)[1]


LATE: dict[str, Callable[[Any, int], Callable[[], int]]] = {
    "next of a queue": lambda api, worker: next_of(api, worker, queue_name="q"),
    "next of a sequence": lambda api, worker: next_of(api, worker, sequence_policy={"key": "s"}),
    **{
        how: lambda api, worker, how=how: of_a_worker(api, worker, how)
        for how in ("release", "fail", "snooze", "unlock")
    },
    **{
        how: lambda api, worker, how=how: waiting(api, worker, how)
        for how in ("retry", "reschedule", "replace")
    },
    "added for an earlier time": lambda api, worker: lambda: api.add_job("t", run_at=api.at("-1 hour")).id,
    "added in bulk": lambda api, worker: lambda: add(api, 1, run_at=str(api.at("-1 hour")))[0],
}


@pytest.mark.parametrize("how", LATE)
def test_a_job_that_comes_to_stand_before_the_place_is_found_by_the_next_claim(
    api: Any, actor: Callable[[], Any], worker: int, how: str
) -> None:
    other = api.register_worker()
    arrive = LATE[how](api, worker)
    a = actor()
    jobs = add(api, MANY + 200)
    assert len(api.claim_jobs(other, MANY)) == MANY
    assert ids(a.claim_jobs(other, 100)) == jobs[MANY : MANY + 100]
    prolong(a)
    job = arrive()
    now = how in ("fail", "snooze", "retry")  # these run from now on: behind all others
    assert claim(a, other, 200 if now else 5)[-1 if now else 0] == job
    a.rows("select set_config('pyworker.walk_claim', '', false)")


def test_one_that_a_claim_had_no_room_for_is_found_by_the_claim_after_it(
    noted: Any, api: Any, worker: int
) -> None:
    early = [api.add_job("t", run_at=api.at("-1 hour")).id for _ in range(3)]
    for expected in (early[:2], [early[2], noted.left[0]], noted.left[1:3]):
        assert claim(noted, worker, 2) == expected


@pytest.fixture
def stale(api: Any) -> None:
    """Statistics of an hour in which all jobs were to run later."""
    add(api, 500, run_at="2100-01-01T00:00:00Z")
    api.rows("vacuum analyze pyworker.live_jobs")


def test_a_job_that_arrives_late_is_looked_up_and_does_not_move_the_place_back(
    stale: None, noted: Any, api: Any, worker: int
) -> None:
    late = api.add_job("t", run_at=api.at("-1 hour")).id
    assert claim(noted, worker, 1) == [late]
    noted.begin()
    before = noted.value(READ)
    assert claim(noted, worker, 1) == noted.left[:1]
    assert noted.value(READ) - before < MANY
    noted.commit()


@pytest.mark.parametrize("other", ["no other walk", "another walk is kept"])
def test_a_job_that_was_long_in_committing_waits_no_longer_than_the_place_is_kept(
    noted: Any, hidden: int, worker: int, other: str
) -> None:
    assert claim(noted, worker, 1) == []
    looks_in = "select s from kept cross join lateral pyworker.seconds_until_due() s"
    assert 0 < noted.value(KEPT.format("claim") + looks_in, ["0.9 seconds", None]) <= 0.9
    prolong(noted, "-1 microsecond")
    if other == "another walk is kept":  # else all are forgotten at once
        noted.rows(LONG_WALK)
    assert ids(noted.claim_jobs(worker, 1)) == [hidden]
    noted.rows("select set_config('pyworker.walk_due', '', false)")


@pytest.mark.parametrize("ahead", ["1 hour", "2.5 seconds"])
def test_a_place_from_a_clock_that_was_set_back_is_dropped(
    noted: Any, hidden: int, worker: int, ahead: str
) -> None:
    assert claim(noted, worker, 1, by=ahead) == [hidden]


@pytest.mark.parametrize("other", ["worker", "task_identifiers", "queue_names", "forbidden_flags"])
def test_a_place_is_for_the_same_worker_and_filters_only(
    noted: Any, hidden: int, api: Any, worker: int, other: str
) -> None:
    assert claim(noted, worker, 1) == []
    filters = {
        "task_identifiers": {"task_identifiers": ["t"]},
        "queue_names": {"queue_names": ["default"]},
        "forbidden_flags": {"forbidden_flags": ["f"]},
    }.get(other, {})
    by = api.register_worker() if other == "worker" else worker
    assert claim(noted, by, 1, **filters) == [hidden]


def test_a_place_is_kept_for_two_seconds_at_most_however_long_the_walk_was(
    api: Any, actor: Any, worker: int
) -> None:
    a = actor()
    a.rows(LONG_WALK)
    left = a.value(
        "select extract(epoch from (w.walk).until - clock_timestamp())::float"
        " from (select current_setting('pyworker.walk_due')::pyworker._walk as walk) w"
    )
    assert left <= 2
    a.rows("select set_config('pyworker.walk_due', '', false)")


def test_a_place_is_kept_for_twenty_times_as_long_as_the_walk_took(api: Any, actor: Any) -> None:
    a = actor()
    a.rows("""
        do $$
        declare
            v_began timestamptz := clock_timestamp() - interval '90 ms';
            v_before timestamptz := clock_timestamp();
        begin
            perform pyworker._keep_walk('due', row(1, null, '{}', null, null)::pyworker._walk, v_began);
            perform set_config('test.times', array[v_began, v_before, clock_timestamp()]::text, false);
        end $$""")
    began, before, after = a.value("select current_setting('test.times')::timestamptz[]")
    kept = a.value(
        "select (w.walk).until from (select current_setting('pyworker.walk_due')::pyworker._walk as walk) w"
    )
    assert before + min(20 * (before - began), timedelta(seconds=2)) <= kept <= after + 20 * (after - began)
    a.rows("select set_config('pyworker.walk_due', '', false)")


LEFT = """
    select from pyworker.promotion_requests where after is null union all
    select from pyworker.live_jobs where start_by < pyworker.clock() limit 1"""
INDEXES = {"due": "live_jobs_due", "expired": "live_jobs_start_by", "requests": "promotion_requests_pkey"}


@pytest.mark.parametrize("what", INDEXES)
def test_promotions_do_not_walk_again_what_has_ended_under_an_old_snapshot(
    api: Any, actor: Callable[[], Any], worker: int, clock: Any, what: str
) -> None:
    read = f"select pyworker._entries_read('pyworker.{INDEXES[what]}')"
    old = actor()
    old.begin("repeatable read")
    old.rows("select 1 from pyworker.jobs")
    api.rows("update pyworker.workers set expires_at = 'infinity'")
    if what != "requests":
        add(api, 5 * MANY, **{"run_at" if what == "due" else "expires_at": str(api.at("1 minute"))})
        clock.advance(minutes=2)
    else:
        api.set_queue("q", 2**31 - 1)
        api.rows(
            "insert into pyworker.promotion_requests (lane) select 'queue:q' from generate_series(1, %s)",
            [5 * MANY],
        )
    while api.promote_jobs() or api.rows(LEFT):
        pass
    while jobs := api.claim_jobs(worker, 1000):
        api.finish(*ids(jobs))
    a = actor()

    def walked(promote: Callable[[], Any]) -> int:
        a.begin()
        before = a.value(read)
        promote()
        count = a.value(read) - before
        a.commit()
        return count

    again = KEPT.format(what) + "select from kept cross join lateral pyworker.promote_jobs()"
    assert walked(a.promote_jobs) > MANY
    assert max(walked(lambda: a.rows(again, ["0.9 seconds", None])) for _ in range(3)) < 200
    old.commit()
    # What comes then is seen.
    expiring = api.add_job("t", expires_at=api.at("1 second"))
    job = api.add_job("t", queue_name="q", run_at=None if what == "requests" else api.at("1 second"))
    clock.advance(seconds=2)
    a.promote_jobs()
    assert api.get_job(expiring.id).state == "cancelled"
    assert ids(a.claim_jobs(worker, 1)) == [job.id]


def test_a_request_that_an_open_transaction_moves_to_the_end_keeps_no_claim_waiting(
    api: Any, actor: Callable[[], Any], worker: int
) -> None:
    old, ends, moves, claims = (actor() for _ in range(4))
    old.begin("repeatable read")
    old.rows("select 1 from pyworker.jobs")
    api.rows(
        "insert into pyworker.promotion_requests (lane) select 'queue:other' from generate_series(1, %s)",
        [5 * MANY],
    )
    while api.promote_jobs() or api.rows("select from pyworker.promotion_requests limit 1"):
        pass
    running = api.add_job("t", queue_name="q")
    assert ids(api.claim_jobs(worker, 1)) == [running.id]
    ends.begin()
    ends.finish(running.id)  # it holds the lane now
    job = api.add_job("t", queue_name="q")
    request = "select id from pyworker.promotion_requests where lane = 'queue:q'"
    (asked,) = api.rows(request)
    moves.begin()
    moves.promote_jobs()
    (moved,) = moves.rows(request)
    assert moved.id > asked.id
    ends.commit()
    assert ids(claims.later.claim_jobs(worker, 1).result(timeout=30)) == [job.id]
    moves.commit()
    old.commit()


def test_a_session_may_use_any_date_style(noted: Any, worker: int) -> None:
    noted.rows("set datestyle = 'German'; set timezone = 'Asia/Kathmandu'")
    claim = "select id from pyworker.claim_jobs(%s, 10)"
    assert ids(noted.rows(claim, [worker])) == noted.left[:10]
    noted.rows("set datestyle = 'SQL, MDY'; set timezone = 'America/St_Johns'")
    assert ids(noted.rows(claim, [worker])) == noted.left[10:20]


def test_a_claim_that_is_rolled_back_is_had_again(noted: Any, worker: int) -> None:
    noted.begin()
    first = claim(noted, worker, 10)
    noted.rollback()
    assert claim(noted, worker, 10) == first


def test_a_place_that_was_written_by_hand_breaks_only_the_session_that_wrote_it(
    actor: Any, worker: int
) -> None:
    a = actor()
    a.rows("select set_config('pyworker.walk_claim', 'nonsense', false)")
    with pytest.raises(psycopg.errors.InvalidTextRepresentation):
        a.claim_jobs(worker, 1)
    a.rows("reset all")
    assert a.claim_jobs(worker, 1) == []
