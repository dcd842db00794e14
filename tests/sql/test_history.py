"""History: kept as long as was asked for, then gone, with its errors; mostly by dropping whole days."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest


def end(api: Any, state: str, worker: int, task: str = "t") -> Any:
    """A job that failed once and ended in that state."""
    api.add_job(task)
    job = api.claim(worker, task)
    api.fail(job, delay=0)
    if state == "cancelled":
        api.cancel_job(job.id)
        return job
    job = api.claim(worker, task)
    if state == "completed":
        api.finish_job(job.id, job.run)
    else:
        api.fail(job, discard=True)
    return job


def is_there(api: Any, job: Any) -> bool:
    there = api.get_job(job.id).id is not None
    assert there == bool(api.job_errors(job.id)), "errors go with their job"
    return there


@pytest.mark.parametrize("by", ["prune", "maintain"])
@pytest.mark.parametrize(("state", "kept"), [("completed", 24), ("cancelled", 24), ("discarded", 7 * 24)])
def test_a_job_is_pruned_when_its_retention_is_over_and_not_before(
    api: Any, worker: int, clock: Any, state: str, kept: int, by: str
) -> None:
    job = end(api, state, worker)
    clock.advance(hours=kept, seconds=-60)
    getattr(api, by)()
    assert is_there(api, job)
    clock.advance(seconds=60)
    pruned = getattr(api, by)()
    assert (pruned if by == "prune" else pruned["pruned"]) == 1
    assert not is_there(api, job)


def test_each_task_may_have_a_retention_of_its_own(api: Any, worker: int, clock: Any) -> None:
    api.define_task("short", retention="1 hour")
    api.define_task("long", retention="3 days")
    api.define_task("none", retention="0")
    jobs = {
        (task, state): end(api, state, worker, task)
        for task in ("short", "long", "none")
        for state in ("completed", "cancelled")
    }
    discarded = end(api, "discarded", worker, "none")

    def left() -> set[str]:
        api.prune()
        return {task for (task, _), job in jobs.items() if is_there(api, job)}

    assert left() == {"short", "long"}
    clock.advance(hours=1)
    assert left() == {"long"}
    clock.advance(days=3)
    assert left() == set()
    assert is_there(api, discarded)


@pytest.mark.parametrize("state", ["completed", "cancelled", "discarded"])
def test_retention_zero_deletes_at_once_and_a_change_holds_from_then_on(
    api: Any, worker: int, clock: Any, state: str
) -> None:
    before = end(api, state, worker)
    api.configure(**{f"{state}_retention": "0"})
    assert not is_there(api, end(api, state, worker))
    assert is_there(api, before)
    api.configure(**{f"{state}_retention": "3 hours"})
    after = end(api, state, worker)
    clock.advance(hours=3)
    api.prune()
    assert (is_there(api, before), is_there(api, after)) == (True, False)


def test_a_discarded_job_frees_its_key_when_it_is_pruned(api: Any, job_in: Any, clock: Any) -> None:
    old = job_in("discarded", job_key="k")
    clock.advance(days=7)
    api.prune()
    assert api.add_job("t", job_key="k").id != old.id


def test_a_retried_job_is_not_pruned_and_keeps_its_errors(api: Any, worker: int, clock: Any) -> None:
    jobs = [end(api, state, worker) for state in ("completed", "cancelled", "discarded")]
    for job in jobs:
        api.retry_job(job.id)
    clock.advance(days=30)
    api.maintain()
    assert all(is_there(api, job) for job in jobs)


@pytest.fixture
def own(api: Any, fresh: psycopg.Connection[Any], invariants: Any) -> Any:
    """A database of its own, for what makes and drops partitions."""
    own = type(api)(fresh)
    yield own
    invariants(fresh)


@pytest.fixture
def advance(own: Any) -> Callable[..., None]:
    offset = timedelta(0)

    def advance(**kwargs: float) -> None:
        nonlocal offset
        offset += timedelta(**kwargs)
        own.rows("select set_config('pyworker.clock_offset', %s, false)", [f"{offset.total_seconds()} s"])

    return advance


def days(api: Any) -> list[str]:
    return [name for (name,) in api.rows(
        "select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid"
        " where i.inhparent = 'pyworker.finished_jobs'::regclass and c.relname <> 'finished_jobs_default' order by 1"
    )]  # fmt: skip


def day(api: Any, offset: str) -> str:
    return api.value("select to_char(pyworker.clock() at time zone 'UTC' + %s, '\"finished_jobs_\"YYYYMMDD')", [offset])


def where(api: Any, job: Any) -> str:
    return api.value("select tableoid::regclass::text from pyworker.finished_jobs where id = %s", [job.id]).split(".")[
        1
    ]


def test_history_is_kept_in_days_that_are_made_ahead_and_dropped_whole(own: Any, advance: Any) -> None:
    own.define_task("t", retention="5 days")
    own.maintain()
    assert days(own) == [day(own, f"{n} days") for n in (1, 2, 3, 5, 6, 7)]
    worker = own.register_worker()
    jobs = [end(own, state, worker) for state in ("completed", "cancelled")] + [end(own, "completed", worker, "u")]
    assert [where(own, job) for job in jobs] == [day(own, "5 days")] * 2 + [day(own, "1 day")]
    advance(days=6, seconds=-1)
    own.rows("select pyworker.maintain()")
    advance(seconds=1)
    assert own.prune() == 0, "maintain has dropped both days"
    assert not any(is_there(own, job) for job in jobs)
    assert days(own)[0] >= day(own, "0")
    assert days(own)[-1] == day(own, "7 days")


def test_whole_days_go_by_dropping_them_and_take_their_errors_along(own: Any, advance: Any) -> None:
    worker = own.register_worker()
    jobs = [end(own, "completed", worker) for _ in range(5)]
    table = where(own, jobs[0])
    advance(days=3)
    assert own.maintain()["pruned"] == 5
    assert own.value("select to_regclass(%s)", [f"pyworker.{table}"]) is None
    assert own.value("select count(*) from pyworker.errors") == 0


def test_a_day_that_nobody_made_ahead_is_kept_in_the_default_partition(own: Any, advance: Any) -> None:
    advance(days=40)
    worker = own.register_worker()
    job = end(own, "completed", worker)
    assert where(own, job) == "finished_jobs_default"
    own.heartbeat(worker)
    own.maintain()
    taken = day(own, "1 day")
    assert taken not in days(own), "that day is left where it is"
    assert day(own, "2 days") in days(own)
    second = end(own, "completed", worker)
    assert where(own, second) == "finished_jobs_default"
    advance(hours=24)
    assert own.maintain()["pruned"] == 2
    assert not is_there(own, job)


@pytest.mark.parametrize("style", ["SQL, DMY", "Postgres, MDY", "ISO, YMD"])
def test_days_are_days_of_utc_however_the_caller_writes_dates(own: Any, advance: Any, style: str) -> None:
    """In Kolkata the first two write IST for the time zone, which PostgreSQL reads as Israel's."""
    advance(days=10)
    own.rows("set timezone = 'Asia/Kolkata'")
    own.rows("select set_config('datestyle', %s, false)", [style])
    own.value("select pyworker.maintain()::text")
    own.rows("reset datestyle; set timezone = 'UTC'")
    bounds = own.rows(
        "select relname, pg_get_expr(relpartbound, oid) as bounds from pg_class where relname ~ '^finished_jobs_[0-9]+$'"
    )
    assert len(bounds) == 3
    for name, text in bounds:
        start = datetime.strptime(name[-8:], "%Y%m%d")
        assert text == f"FOR VALUES FROM ('{start}+00') TO ('{start + timedelta(days=1)}+00')"


def test_a_retention_beyond_a_year_needs_no_days_of_its_own(own: Any, advance: Any) -> None:
    own.define_task("t", retention="2 years")
    own.maintain()
    job = end(own, "completed", own.register_worker())
    assert where(own, job) == "finished_jobs_default"
    assert len(days(own)) == 3
    advance(days=729)
    own.maintain()
    assert is_there(own, job)
    advance(days=3)
    own.maintain()
    assert not is_there(own, job)


def test_maintenance_is_done_by_one_at_a_time(api: Any, actor: Any) -> None:
    a = actor()
    a.begin()
    assert a.maintain() == {"promoted": 0, "rescued": 0, "pruned": 0, "scheduled": 0}
    assert api.maintain() is None
    a.rollback()
    assert api.maintain() is not None


@pytest.mark.parametrize("by", ["maintain", "prune"])
@pytest.mark.parametrize("state", ["completed", "discarded"])
def test_a_row_that_somebody_has_in_hand_does_not_stop_maintenance(
    api: Any, actor: Any, worker: int, clock: Any, state: str, by: str
) -> None:
    held, free = end(api, state, worker), end(api, state, worker)
    a = actor()
    clock.advance(days=8)
    api.heartbeat(worker)
    a.begin()
    a.delete_job(held.id)
    getattr(api, by)()
    assert not is_there(api, free)
    a.rollback()
    assert is_there(api, held)
    getattr(api, by)()
    assert not is_there(api, held)


def test_a_reader_of_history_delays_the_dropping_of_days_not_maintenance(
    own: Any, advance: Any, fresh_dsn: str
) -> None:
    worker = own.register_worker()
    job = end(own, "completed", worker)
    advance(days=3)
    with psycopg.connect(fresh_dsn) as reader:
        reader.execute("select count(*) from pyworker.history")
        own.add_job("t", run_at=own.at("-1 s"))
        assert own.maintain() is not None
    own.maintain()
    assert not is_there(own, job)


def test_maintenance_takes_small_bites(api: Any, worker: int, clock: Any) -> None:
    api.configure(discarded_retention="1 hour")
    api.add_jobs([{"identifier": "t"}] * 1500)
    api.rows("select pyworker.permanently_fail_jobs(array(select id from pyworker.jobs))")
    clock.advance(hours=1)
    assert [api.maintain()["pruned"] for _ in range(3)] == [1000, 500, 0]


def test_a_job_that_is_being_finished_while_its_days_partition_is_made_is_finished(
    api: Any, actor: Any, worker: int, clock: Any
) -> None:
    clock.advance(days=4000)  # to where no partition is
    api.heartbeat(worker)
    job = api.add_job("t", job_key="k")
    claimed = api.claim(worker)
    adder, finisher = actor(), actor()
    adder.begin()
    adder.add_job("t", job_key="k")
    future = finisher.later.finish_jobs([job.id], [claimed.run])
    finisher.blocked(future)
    api.maintain()
    adder.commit()
    future.result(20)
    assert api.get_job(job.id).state == "completed"
