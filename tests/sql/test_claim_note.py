"""What a claim remembers for the next one: a saving, never a change of who gets what, but for a moment in its order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from .test_plans import touched, watched

__all__ = ["watched"]

MANY = 3_000


def ids(jobs: list[Any]) -> list[int]:
    return [job.id for job in jobs]


def add(api: Any, count: int, **more: Any) -> list[int]:
    return ids(api.add_jobs([{"identifier": "t", **more}] * count))


@pytest.fixture
def noted(api: Any, actor: Callable[[], Any], worker: int) -> Any:
    """A session that has claimed past MANY running jobs, so that it has made a note, and 100 jobs that are left; the note is kept fresh."""
    a = actor()
    jobs = add(api, MANY + 200)
    assert len(api.claim_jobs(worker, MANY)) == MANY
    a.rows("begin")  # a note is made of the time that a walk took; here it is to last
    assert ids(a.claim_jobs(worker, 100)) == jobs[MANY : MANY + 100]
    a.rows("commit")
    note = a.value("select current_setting('pyworker.claim_note', true)")
    assert note
    prolong(a)
    a.left = jobs[MANY + 100 :]
    yield a
    a.rows("select set_config('pyworker.claim_note', '', false)")


def prolong(a: Any, by: str = "0.9 seconds") -> None:
    a.rows(
        "select set_config('pyworker.claim_note', row(n.owner, clock_timestamp() + %s::interval, n.spans)::text, false)"
        " from (select (current_setting('pyworker.claim_note')::pyworker._claim_note).*) n",
        [by],
    )


def test_a_claim_does_not_walk_again_what_it_walked_before(api: Any, worker: int, watched: Any) -> None:
    jobs = add(api, MANY + 200)
    api.claim_jobs(worker, MANY)
    walks = [sum(touched(watched(lambda a: (prolong(a), a.claim_jobs(worker, 10))[1] if a.value(
        "select current_setting('pyworker.claim_note', true)") else a.claim_jobs(worker, 10))).values()) for _ in range(3)]  # fmt: skip
    assert walks[0] > MANY
    assert walks[1:] == [20, 20]  # found and changed
    assert ids(watched.result) == jobs[MANY + 20 : MANY + 30]


def test_a_more_urgent_job_never_waits_for_a_note(noted: Any, api: Any, worker: int) -> None:
    """Nor does one of a priority that stands between two that the note knows."""
    urgent = add(api, 1, priority=-3) + add(api, 1, priority=-1)
    assert ids(noted.claim_jobs(worker, 3)) == [*urgent, noted.left[0]]
    prolong(noted)
    between = add(api, 1, priority=-2)
    assert ids(noted.claim_jobs(worker, 2)) == [*between, noted.left[1]]
    prolong(noted)
    again = add(api, 1, priority=-3)
    later = add(api, 1, priority=1)
    assert ids(noted.claim_jobs(worker, 2)) == [*again, noted.left[2]]
    prolong(noted)
    assert ids(noted.claim_jobs(worker, 98)) == [*noted.left[3:], *later]


def test_what_turns_up_before_the_note_waits_no_longer_than_the_note_lasts(noted: Any, api: Any, worker: int) -> None:
    early = add(api, 1, run_at=str(api.at("-1 hour")))
    assert ids(noted.claim_jobs(worker, 1)) == noted.left[:1]
    prolong(noted, "-1 microsecond")
    assert ids(noted.claim_jobs(worker, 2)) == [*early, noted.left[1]]


@pytest.mark.parametrize("ahead", ["1 hour", "5.5 seconds"])
def test_a_note_from_a_clock_that_was_set_back_is_dropped(noted: Any, api: Any, worker: int, ahead: str) -> None:
    early = add(api, 1, run_at=str(api.at("-1 hour")))
    prolong(noted, ahead)
    assert ids(noted.claim_jobs(worker, 1)) == early


def test_a_note_lasts_five_seconds_at_most_however_long_the_walk_was(api: Any, actor: Any, worker: int) -> None:
    add(api, MANY + 200)
    api.claim_jobs(worker, MANY)
    a, b = actor(), actor()
    b.begin()
    b.rows("lock table pyworker.wakeups")
    claim = a.later.claim_jobs(worker, 100)
    b.rows("select pg_sleep(0.4)")  # 20 times as long would be eight seconds
    b.commit()
    assert len(claim.result(20)) == 100
    left = a.value(
        "select extract(epoch from (n.note).until - clock_timestamp())::float"
        " from (select current_setting('pyworker.claim_note')::pyworker._claim_note as note) n"
    )
    assert left <= 5
    a.rows("select set_config('pyworker.claim_note', '', false)")


def test_a_claim_that_would_come_back_short_looks_before_its_note(noted: Any, api: Any, worker: int) -> None:
    early = add(api, 1, run_at=str(api.at("-1 hour")))
    assert sorted(ids(noted.claim_jobs(worker, 1000))) == sorted([*early, *noted.left])
    assert noted.claim_jobs(worker, 1) == []


def test_a_note_is_for_the_same_worker_and_filters_only(noted: Any, api: Any, worker: int) -> None:
    early = add(api, 2, run_at=str(api.at("-1 hour")))
    assert ids(noted.claim_jobs(worker, 1, ["t"])) == early[:1]
    other = api.register_worker()
    prolong(noted)
    assert ids(noted.claim_jobs(other, 1)) == early[1:]


def test_a_session_may_use_any_date_style(noted: Any, worker: int) -> None:
    noted.rows("set datestyle = 'German'; set timezone = 'Asia/Kathmandu'")
    claim = "select id from pyworker.claim_jobs(%s, 10)"
    assert ids(noted.rows(claim, [worker])) == noted.left[:10]
    noted.rows("set datestyle = 'SQL, MDY'; set timezone = 'America/St_Johns'")
    assert ids(noted.rows(claim, [worker])) == noted.left[10:20]


def test_a_claim_that_is_rolled_back_is_had_again(noted: Any, worker: int) -> None:
    noted.begin()
    first = ids(noted.claim_jobs(worker, 10))
    noted.rollback()
    prolong(noted)
    assert ids(noted.claim_jobs(worker, 10)) == first


@pytest.fixture
def commits(actor: Callable[[], Any]) -> Iterator[Callable[..., str]]:
    """commits(session, call): what synchronous_commit says while the call's transaction commits."""
    admin = actor()
    admin.rows(
        "create table public.how (setting text); grant all on public.how to public;"
        "create function public.note_setting() returns trigger language plpgsql as $$ begin"
        "  insert into public.how values (current_setting('synchronous_commit')); return null; end $$;"
        "create constraint trigger how after update on pyworker.live_jobs deferrable initially deferred"
        "  for each row execute function public.note_setting()"
    )

    def commits(call: Callable[[], Any]) -> str:
        admin.rows("truncate public.how")
        call()
        return admin.value("select string_agg(distinct setting, ' ') from public.how")

    yield commits
    admin.rows("drop trigger how on pyworker.live_jobs; drop function public.note_setting; drop table public.how")


def test_a_claim_need_not_wait_for_the_disk_unless_its_jobs_take_turns(
    api: Any, actor: Any, worker: int, commits: Any
) -> None:
    a = actor()
    for wanted in ("off", "on", "local"):
        a.rows(f"set synchronous_commit = {wanted}")
        for named, setting in (
            ({}, wanted),
            ({"delivery": "at_most_once"}, wanted),
            ({"queue_name": "q"}, "on"),
            ({"sequence_policy": {"key": "s"}}, "on"),
        ):
            api.add_job("t", **named)
            api.promote_jobs()
            assert commits(lambda: [api.finish_job(job.id, job.run) for job in a.claim_jobs(worker, 5)]) == setting, (
                named
            )
        assert a.value("show synchronous_commit") == wanted


def test_a_note_that_somebody_wrote_by_hand_breaks_only_the_session_that_wrote_it(actor: Any, worker: int) -> None:
    a = actor()
    a.rows("select set_config('pyworker.claim_note', 'nonsense', false)")
    with pytest.raises(psycopg.errors.InvalidTextRepresentation):
        a.claim_jobs(worker, 1)
    a.rows("reset all")
    assert a.claim_jobs(worker, 1) == []
