"""History is kept in partitions of a day, which are made ahead and dropped whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest

from tests.support.history import end, is_there


@pytest.fixture
def own(own: Any, fresh: psycopg.Connection[Any], invariants: Any) -> Any:
    """A database of its own, for what makes and drops partitions."""
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
        " where i.inhparent = 'pyworker.finished_jobs'::regclass and c.relname <> 'finished_jobs_default' "
        "order by 1"
    )]  # fmt: skip


def days_ahead(api: Any) -> list[str]:
    """From tomorrow on: where the installation is of yesterday, it has made today's, too."""
    return [name for name in days(api) if name > day(api, "0")]


def day(api: Any, offset: str) -> str:
    return api.value(
        "select to_char(pyworker.clock() at time zone 'UTC' + %s, '\"finished_jobs_\"YYYYMMDD')", [offset]
    )


def where(api: Any, job: Any) -> str:
    return api.value(
        "select tableoid::regclass::text from pyworker.finished_jobs where id = %s", [job.id]
    ).split(".")[1]


def test_history_is_kept_in_days_that_are_made_ahead_and_dropped_whole(own: Any, advance: Any) -> None:
    own.define_task("t", retention="5 days")
    own.maintain()
    assert days_ahead(own) == [day(own, f"{n} days") for n in (1, 2, 3, 5, 6, 7)]
    worker = own.register_worker()
    jobs = [end(own, state, worker) for state in ("completed", "cancelled")] + [
        end(own, "completed", worker, "u")
    ]
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


def test_a_day_that_was_not_made_ahead_is_kept_in_the_default_partition(own: Any, advance: Any) -> None:
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


def test_temporary_tables_of_the_caller_keep_no_partition_from_being_made(own: Any, advance: Any) -> None:
    advance(days=10)
    wanted = [day(own, f"{n} days") for n in (1, 2, 3)]
    for name in wanted:
        own.rows(f"create temp table {name} ()")
    own.value("select pyworker.maintain()::text")
    assert set(wanted) <= set(days(own))
    assert (
        own.rows("select finding from pyworker.doctor() where check_name = 'partitions' and severity <> 'ok'")
        == []
    )


@pytest.mark.parametrize("style", ["SQL, DMY", "Postgres, MDY", "ISO, YMD"])
def test_days_are_days_of_utc_however_the_caller_writes_dates(own: Any, advance: Any, style: str) -> None:
    """In Kolkata the first two write IST for the time zone, which PostgreSQL reads as Israel's."""
    advance(days=10)
    own.rows("set timezone = 'Asia/Kolkata'")
    own.rows("select set_config('datestyle', %s, false)", [style])
    own.value("select pyworker.maintain()::text")
    own.rows("reset datestyle; set timezone = 'UTC'")
    bounds = own.rows(
        "select relname, pg_get_expr(relpartbound, oid) as bounds from pg_class "
        "where relname ~ '^finished_jobs_[0-9]+$'"
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
    assert len(days_ahead(own)) == 3
    advance(days=729)
    own.maintain()
    assert is_there(own, job)
    advance(days=3)
    own.maintain()
    assert not is_there(own, job)


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


# What maintenance holds up ------------------------------------------------------------------------


STRONG = """
    select l.relation::regclass::text, l.mode from pg_locks l
    where l.pid = %s and l.granted and l.relation::regclass::text ~ '^pyworker.finished_jobs'
      and l.mode in ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')"""


@pytest.fixture
def maintaining(own: Any, fresh_dsn: str) -> Iterator[Any]:
    """Another session of that database, which does one thing at a time in a thread."""
    with ThreadPoolExecutor(1) as thread, psycopg.connect(fresh_dsn, autocommit=True) as conn:
        other = type(own)(conn)
        other.later = lambda sql: thread.submit(other.rows, sql)
        other.pid = conn.info.backend_pid
        yield other
        own.rows("select pg_cancel_backend(%s)", [other.pid])


@pytest.mark.parametrize("work", ["makes days", "drops a day"])
def test_a_job_is_finished_while_maintain_asks_a_slow_query(
    own: Any, advance: Callable[..., None], maintaining: Any, work: str
) -> None:
    own.add_schedule("slow", "* * * * *", "t", query="select pg_sleep(60)::text as job_key")
    end(own, "completed", own.register_worker())
    advance(days=3)
    if work == "drops a day":
        own.rows("select pyworker._make_partitions()")
    maintaining.rows(f"set pyworker.clock_offset = '{3 * 24 * 3600} s'")
    before = days(own)
    future = maintaining.later("select pyworker.maintain()")
    while not own.rows(
        "select from pg_stat_activity where pid = %s and wait_event = 'PgSleep'", [maintaining.pid]
    ):
        assert not future.done()
        own.rows("select pg_sleep(0.01)")
    assert own.rows(STRONG, [maintaining.pid]) == []
    assert end(own, "completed", own.register_worker(), "u") is not None
    own.rows("select pg_cancel_backend(%s)", [maintaining.pid])
    ((counts,),) = future.result(20)
    assert counts["scheduled"] == 0
    assert days(own) != before, "the rest of maintenance was done all the same"


def test_in_a_transaction_with_other_work_maintain_locks_no_history(
    own: Any, advance: Callable[..., None], fresh_dsn: str
) -> None:
    job = end(own, "completed", own.register_worker())
    advance(days=3)
    before = days(own)
    with own.conn.transaction():
        own.add_job("t")
        assert own.maintain()["pruned"] == 1
        assert own.rows(STRONG, [own.conn.info.backend_pid]) == []
        with psycopg.connect(fresh_dsn, autocommit=True) as other:
            end(type(own)(other), "completed", type(own)(other).register_worker(), "u")
    assert (days(own), is_there(own, job)) == (before, False)
    own.maintain()
    assert days(own) != before


def test_a_dropped_day_frees_the_unique_keys_of_its_jobs(own: Any, advance: Callable[..., None]) -> None:
    worker = own.register_worker()
    for n in range(5):
        own.add_job("t", {"n": n}, unique_policy={"by_args": True})
    for job in own.claim_jobs(worker, 5):
        own.fail(job, delay=0)
    done = own.claim_jobs(worker, 5)
    own.finish_jobs([job.id for job in done], [job.run for job in done])
    left = (
        "select (select count(*) from pyworker.unique_keys) as keys, (select count(*) "
        "from pyworker.errors) as errors"
    )
    assert own.rows(left) == [(5, 5)]
    advance(days=3)
    before = days(own)
    assert own.prune() == 5
    assert own.rows(left) == [(0, 0)]
    assert before[0] not in days(own)


def test_a_day_of_many_halting_jobs_with_unique_keys_loses_none_of_them(
    own: Any, advance: Callable[..., None]
) -> None:
    many = 1200  # more than one maintain looks at
    own.maintain()
    own.rows(
        "select count(*) from pyworker.add_jobs((select jsonb_agg(jsonb_build_object('identifier', 't',"
        " 'unique_policy', jsonb_build_object('by_args', true), 'payload', n,"
        " 'sequence_policy', jsonb_build_object('key', (n / 2)::text))) from generate_series(0, %s) n))",
        [2 * many - 1]
    )  # fmt: skip
    own.rows(
        "select count(pyworker.cancel_job(h.id)) from "
        "(select min(id) from pyworker.live_jobs group by sequence_key) h(id)"
    )
    advance(days=3)
    for _ in range(3):
        own.maintain()
    halted = "select halted_by from pyworker.sequences where halted_by is not null"
    assert own.value(f"select count(*) from pyworker.finished_jobs where id in ({halted})") == many


# Costs that do not grow ---------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["discarded", "cancelled"])
def test_a_halting_job_that_is_kept_is_not_looked_at_by_every_maintain(
    own: Any, advance: Callable[..., None], state: str
) -> None:
    many = 3000
    own.maintain()
    own.rows(
        "select count(*) from pyworker.add_jobs((select jsonb_agg(jsonb_build_object('identifier', 't',"
        " 'sequence_policy', jsonb_build_object('key', (n / 2)::text))) from generate_series(0, %s) n))",
        [2 * many - 1]
    )  # fmt: skip
    heads = "select array_agg(id) from (select min(id) from pyworker.live_jobs group by sequence_key) h(id)"
    if state == "discarded":
        own.rows(f"select count(*) from pyworker.permanently_fail_jobs(({heads}))")
    else:
        own.rows(f"select count(pyworker.cancel_job(h.id)) from unnest(({heads})) h(id)")
    advance(days=9)
    looks = (
        "select coalesce(sum(calls), 0) from pg_stat_xact_user_functions where funcname = '_blocks_sequence'"
    )
    own.rows("set track_functions = 'all'")

    def looked() -> int:
        with own.conn.transaction():
            before = own.value(looks)
            own.maintain()
            return int(own.value(looks) - before)

    seen = [looked() for _ in range(5)]
    assert sum(seen[:4]) >= many, "each is looked at"
    assert max(seen) <= 2500, "a call looks at a bounded number"
    assert seen[4] == 0, "none is looked at again on the same day"
    assert own.value("select count(*) from pyworker.sequences where halted_by is not null") == many


def test_an_id_is_found_at_once_in_history_that_vacuum_has_not_seen(own: Any) -> None:
    own.rows("alter table pyworker.finished_jobs_default set (autovacuum_enabled = off)")
    own.define_task("t", retention="3 years")  # beyond the days, so into the default partition
    own.add_jobs([{"identifier": "t"}] * 5000)
    done = own.claim_jobs(own.register_worker(), 5000)
    own.finish_jobs([job.id for job in done], [job.run for job in done])
    middle = done[2500].id
    read = (
        "select coalesce(sum(seq_tup_read + idx_tup_fetch), 0)::integer from pg_stat_xact_user_tables"
        " where relname ~ '^finished_jobs'"
    )
    for verb in ("get_job", "retry_job", "delete_job"):
        with own.conn.transaction():
            before = own.value(read)
            assert own.rows(f"select id from pyworker.{verb}(%s)", [middle]) == [(middle,)]
            assert own.value(read) - before <= 20, verb


def kept_beyond(own: Any, worker: int, many: int) -> None:
    """So many finished jobs in the default partition that expire in years; then one that expires in days."""
    own.define_task("t", retention="3 years")
    own.define_task("short", retention="400 days")
    own.rows("alter table pyworker.finished_jobs_default set (autovacuum_enabled = off)")
    for identifier, count in (("t", many), ("short", 1), ("t", many)):
        own.add_jobs([{"identifier": identifier}] * count)
        done = own.claim_jobs(worker, count)
        own.finish_jobs([job.id for job in done], [job.run for job in done])


def test_a_call_looks_at_a_bounded_part_of_todays_history(own: Any, advance: Callable[..., None]) -> None:
    kept_beyond(own, own.register_worker(), 15_000)
    read = (
        "select sum(seq_tup_read + idx_tup_fetch)::integer from pg_stat_xact_user_tables "
        "where relname = 'finished_jobs_default'"
    )
    advance(days=401)
    own.maintain()
    with own.conn.transaction():
        before = own.value(read)
        own.maintain()
        assert own.value(read) - before < 25_000


def test_what_expires_behind_much_that_does_not_is_found_by_one_call_or_another(
    own: Any, advance: Callable[..., None]
) -> None:
    kept_beyond(own, own.register_worker(), 11_000)
    advance(days=401)
    short = "select count(*) from pyworker.history where task_identifier = 'short'"
    assert own.value(short) == 1
    for _ in range(200):
        if own.maintain()["pruned"]:
            break
    assert own.value(short) == 0


def test_history_takes_a_large_payload_as_it_was_and_does_not_try_to_compress_it(
    own: Any, fresh: psycopg.Connection[Any], advance: Callable[..., None]
) -> None:
    """The server has tried when the job was added. Here it was told not to, so the sizes tell."""
    fresh.execute("alter table pyworker.live_jobs alter payload set storage external")
    sizes = {}
    for _ in range(2):
        worker = own.register_worker()
        own.add_job("t", '{"text": "' + "the same " * 10_000 + '"}')
        job = own.claim(worker, "t")
        own.finish_job(job.id, job.run)
        size = "select pg_column_size(payload) from pyworker.finished_jobs where id = %s"
        sizes[where(own, job)] = own.value(size, [job.id])
        advance(days=1)
        own.maintain()  # makes the next day
    assert len(sizes) == 2
    assert min(sizes.values()) > 90_000
