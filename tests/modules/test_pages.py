"""What a dashboard asks: right on a few jobs, and of a million no more than a page is read. And
acts are written down."""

from __future__ import annotations

import json

import pytest

from tests.support.plans import touched
from tests.support.states import ALL


def listed(api, **filters):
    """All ids, page by page, as a client asks for them."""
    ids, after = [], None
    while True:
        given = ", ".join(f"{name} => %s" for name in [*filters, "after_id"])
        rows = api.rows(f"select id, state from pyworker.list_jobs({given})", [*filters.values(), after])
        ids += [row.id for row in rows if row.state]
        if len(rows) < filters.get("max_jobs", 50) and (not rows or rows[-1].state):
            return ids
        after = rows[-1].id


def fill(api, live=0, finished=0, state="scheduled"):
    """Many jobs, written as the functions would have left them."""
    api.rows(
        """insert into pyworker.finished_jobs (id, run, attempts, state, claimed_at, updated_at, priority,
                 max_attempts, revision, run_at,
               created_at, task_identifier, delivery, finished_at, expires_at, payload)
           select nextval('pyworker.job_ids'), 1, 1, 'completed', now(), now(), 0, 25, 0, now(), now(),
               'done', 'at_least_once', now(),
                  now() + interval '1 day', '{}' from generate_series(1, %s)""",
        [finished],
    )
    api.rows(
        """insert into pyworker.live_jobs (state, ready_at, due_at, updated_at, priority, max_attempts,
                 run_at, created_at, task_identifier,
               delivery, payload)
           select %(s)s, case when %(s)s = 'available' then now() end,
               case when %(s)s = 'scheduled' then now() + interval '1 day' end,
                  now(), 0, 25, now() + case when %(s)s = 'scheduled' then interval '1 day' else '0' end,
                      now(), 'wait',
                  'at_least_once', '{}'
           from generate_series(1, %(n)s)""",
        {"s": state, "n": live},
    )
    api.rows("vacuum analyze pyworker.finished_jobs")
    api.rows("vacuum analyze pyworker.live_jobs")


# -- lists -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ALL)
def test_a_state_lists_its_jobs_and_no_other(api, one_of_each, state):
    found = api.rows("select * from pyworker.list_jobs(states => array[%s])", [state])
    expected = api.rows(
        "select id from pyworker.jobs where state = %s union all select id from pyworker.history "
        "where state = %s",
        [state] * 2,
    )
    assert [row.state for row in found] == [state] * len(expected)
    assert one_of_each[state].id in [row.id for row in found]


def test_without_a_filter_live_and_finished_jobs_come_together_newest_first(api, one_of_each):
    ids = [row.id for row in api.rows("select id from pyworker.list_jobs()")]
    assert ids == sorted(ids, reverse=True)
    assert set(ids) == {
        row.id for row in api.rows("select id from pyworker.jobs union all select id from pyworker.history")
    }
    assert [row.id for row in api.rows("select id from pyworker.list_jobs(newest_first => false)")] == ids[
        ::-1
    ]
    for first in ("true", "false"):
        assert api.rows(
            f"select id from pyworker.list_jobs(after_id => {2**63 - 1}, newest_first => {first})"
        ) == ([] if first == "false" else [(job_id,) for job_id in ids])


@pytest.mark.parametrize("newest_first", [True, False])
@pytest.mark.parametrize(
    "filters",
    [{}, {"states": ["completed"]}, {"states": ["available"]}, {"tasks": ["b"]}, {"search": "KEY 1"}],
)
def test_page_by_page_every_job_comes_exactly_once_and_in_order(api, worker, filters, newest_first):
    for n in range(60):
        api.add_job("ab"[n % 2], job_key=f"key {n}")
        if n % 3 == 0:
            job = api.claim(worker)
            api.finish_job(job.id, job.run)
    whole = """select j.id from (select * from pyworker.jobs union all select * from pyworker.history) j
               where (%(states)s::text[] is null or j.state = any (%(states)s))
                 and (%(tasks)s::text[] is null or j.task_identifier = any (%(tasks)s))
                 and (%(search)s::text is null or j.key ilike '%%' || %(search)s || '%%') order by 1"""
    expected = [row.id for row in api.rows(whole, {"states": None, "tasks": None, "search": None, **filters})]
    assert len(expected) > 7
    found = listed(api, **filters, newest_first=newest_first, max_jobs=7)
    assert found == (expected[::-1] if newest_first else expected)


def test_filters_go_by_task_queue_key_and_text(api, worker):
    plain = api.add_job("mail", job_key="k", meta={"tenant": "ACME"})
    queued = api.add_job("charge", queue_name="q")
    failed = api.add_job("fail")
    api.fail(api.claim(worker, "fail"), "line one\nValueError: no such card")
    ids = lambda **named: [row.id for row in api.list_jobs_rows(**named)]  # noqa: E731
    api.list_jobs_rows = lambda **named: api.rows(
        f"select * from pyworker.list_jobs({', '.join(f'{n} => %s' for n in named)})", list(named.values())
    )
    assert ids(tasks=["mail", "charge"]) == [queued.id, plain.id]
    assert ids(queues=["q"]) == [queued.id]
    assert ids(queues=["default"]) == [failed.id, plain.id]
    assert ids(job_key="k") == [plain.id]
    assert ids(search="acme") == [plain.id]
    assert ids(search="LINE one") == [failed.id]
    assert api.list_jobs_rows(search="card")[0].last_error == "ValueError: no such card"
    assert ids(search="%") == []


def test_a_payload_is_not_searched(api):
    api.add_job("mail", '{"password": "hunter2"}')
    assert api.rows("select id from pyworker.list_jobs(search => 'hunter2')") == []


def test_a_live_job_is_found_by_its_key_however_old_it_is(api):
    job = api.add_job("mail", job_key="k")
    fill(api, finished=30_000)
    assert api.rows("select id from pyworker.list_jobs(job_key => 'k')")[0].id == job.id
    assert listed(api, job_key="k") == [job.id]


def test_jobs_are_found_by_the_time_of_their_creation(api, clock):
    old = [api.add_job("t").id for _ in range(3)]
    fill(api, finished=3000)
    clock.advance(days=2)
    between, new = api.add_job("t"), None
    at = api.at()
    clock.advance(days=2)
    new = api.add_job("t")
    assert listed(api, created_from=at) == [new.id]
    assert listed(api, created_before=at, tasks=["t"]) == [between.id, *old[::-1]]
    assert listed(api, created_from=api.at("-3 days"), created_before=at) == [between.id]


def test_a_job_of_a_long_transaction_is_found_by_its_time(api, actor):
    a = actor()
    a.begin()
    a.rows("select pyworker.clock()")
    at = api.at()
    for _ in range(600):
        api.add_job("t")
    job = a.rows("select id, created_at from pyworker.add_job('long')")[0]
    a.commit()
    found = api.rows(
        "select id from pyworker.list_jobs(tasks => '{long}', created_before => %s + interval '1 day')", [at]
    )
    assert [row.id for row in found] == [job.id]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("list_jobs(states => '{done}')", "states must be names of states, got 'done'"),
        ("list_jobs(states => array[null])", "got NULL"),
        ("list_jobs(max_jobs => 0)", "max_jobs must be from 1 to 1000, got 0"),
        ("list_jobs(max_jobs => 1001)", "got 1001"),
        ("list_jobs(sort_by => 'color')", "sort_by must be id, run_time or attempts, got 'color'"),
        ("throughput(60, 61)", "step must be from 1 to minutes, .* got 61"),
        ("activity('color')", "kind must be task or queue, got 'color'"),
        ("activity('task', 0)", "minutes must be from 1 to 10080, got 0"),
        ("throughput(0)", "minutes must be from 1 to 10080, got 0"),
        ("throughput(-2147483648)", "minutes must be from 1 to 10080, got -2147483648"),
        ("perform_action('destroy', '{1}', 'me')", "action must be one of retry, .*, got 'destroy'"),
        ("perform_action('retry', '{}', 'me')", "targets must be 1 to 1000, got 0"),
        ("perform_action('retry', '{1,x}', 'me')", "targets of retry must be ids of jobs, got 'x'"),
        ("perform_action('pause_queue', array[null], 'me')", "must be names, got NULL"),
        ("perform_action('retry', '{1}', '')", "actor must be 1 to 200 characters long, got ''"),
        ("perform_action('retry', '{1}', null)", "actor must be 1 to 200 characters long, got NULL"),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused_by_name_and_value(api, call, words):
    with api.refusal("PW001", words):
        api.rows(f"select * from pyworker.{call}")


# -- the whole -------------------------------------------------------------------------------------


def test_counts_are_exact_while_they_are_small(api, one_of_each):
    count = "select state, count(*) from pyworker.{} group by 1"
    expected = dict(api.rows(f"{count.format('jobs')} union all {count.format('history')}"))
    found = api.rows("select * from pyworker.count_jobs()")
    assert {row.state: row.jobs for row in found if row.jobs} == expected
    assert all(row.exact for row in found)
    assert {row.state for row in found} == set(ALL)


def test_counts_of_many_are_near_and_say_so(api):
    fill(api, live=15_000, finished=12_000)
    found = {row.state: row for row in api.rows("select * from pyworker.count_jobs()")}
    assert 14_000 <= found["scheduled"].jobs <= 16_000
    assert 11_000 <= found["completed"].jobs <= 13_000
    assert not found["scheduled"].exact
    assert not found["completed"].exact
    assert found["available"] == ("available", 0, True)


def test_throughput_counts_each_minute_and_measures_waiting_and_running(api, worker, clock):
    api.rows("truncate pyworker.finished_jobs, pyworker.errors")  # else it may take a sample of many pages
    for attempt in range(3):
        job = api.add_job("t")
        clock.advance(seconds=10)
        claimed = api.claim(worker)
        clock.advance(seconds=2)
        api.heartbeat(worker)
        if attempt == 2:
            api.fail(claimed)
        else:
            api.finish_job(job.id, claimed.run)
    api.cancel_job(api.add_job("t").id)
    clock.advance(minutes=2)
    rows = api.rows("select * from pyworker.throughput(10)")
    assert len(rows) == 10
    assert [sum(row[at] for row in rows) for at in (1, 2, 3)] == [2, 1, 1]
    busy = [row for row in rows if row.completed]
    assert all(9.9 < row.waited_p50 < 10.5 and 1.9 < row.ran_p95 < 2.5 and row.exact for row in busy)
    assert rows[-1].completed == 0
    assert rows[-1].waited_p50 is None


def test_throughput_of_many_is_a_sample_and_says_so(api):
    fill(api, finished=60_000)
    rows = api.rows("select * from pyworker.throughput(60)")
    total = sum(row.completed for row in rows)
    assert 57_000 <= total <= 63_000
    pages = api.value(
        "select sum(pg_relation_size(inhrelid)) / 8192 from pg_inherits "
        "where inhparent = 'pyworker.finished_jobs'::regclass"
    )
    assert rows[0].exact == (pages <= 1000)


def test_the_overview_names_what_needs_a_look(api, worker, clock):
    api.pause_queue("q")
    first = api.add_job("head", sequence_policy={"key": "s"})
    api.add_job("tail", sequence_policy={"key": "s"})
    api.fail(api.claim(worker, "head"), discard=True)
    api.add_job("urgent", priority=-5)
    clock.advance(minutes=5)
    api.rows("select pyworker.heartbeat(%s)", [worker])
    late = api.add_job("urgent", priority=-5)
    oldest = api.rows("select id from pyworker.jobs where state = 'available' order by run_at limit 1")[0].id
    found = api.value("select pyworker.overview()")
    assert found["paused_queues"] == ["q"]
    assert found["halted_sequences"] == 1
    assert found["oldest"]["id"] == oldest
    assert found["oldest"]["seconds"] >= 300
    assert oldest not in (first.id, late.id)
    assert (found["workers"], found["silent_workers"]) == (1, 0)
    assert found["states"]["discarded"] == {"jobs": 1, "exact": True}


def test_queues_are_listed_by_name_with_what_is_theirs(api, worker):
    for name in ("b", "a", "c"):
        for _ in range(3):
            api.add_job("t", queue_name=name)
    api.set_queue("z*", 5)
    api.pause_queue("c")
    api.claim(worker)
    rows = api.rows("select * from pyworker.list_queues()")
    stats = api.rows(
        "select queue_name, concurrency, paused, available, running, true as exact, "
        "(select min(j.run_at) from pyworker.jobs j where j.queue_name = s.queue_name "
        "and j.state = 'available') as oldest, (select j.id from pyworker.jobs j "
        "where j.queue_name = s.queue_name and j.state = 'available' order by j.run_at, j.id limit 1), "
        "rate_limit, rate_period, rate_used, rate_left, rate_free_at, fair "
        "from pyworker.queue_stats s order by 1"
    )
    assert rows == stats
    assert [row.queue_name for row in rows] == ["a", "b", "c", "z*"]
    assert [row.queue_name for row in api.rows("select * from pyworker.list_queues('a', 2)")] == ["b", "c"]


def test_sequences_are_listed_as_their_view_has_them(api, worker):
    for key in ("one", "two", "three"):
        for _ in range(3):
            api.add_job(f"t {key}", sequence_policy={"key": key})
    api.fail(api.claim(worker, "t one"), discard=True)
    api.claim(worker, "t two")
    columns = "sequence_key, running, waiting, halted_by, reason, since"
    rows = api.rows(f"select {columns} from pyworker.list_sequences()")
    assert rows == api.rows(f"select {columns} from pyworker.sequences order by 1")
    assert [row.sequence_key for row in rows if row.halted_by] == [
        row.sequence_key for row in api.rows("select * from pyworker.list_sequences(true)")
    ]
    assert len(api.rows("select * from pyworker.list_sequences(false, %s)", [rows[0].sequence_key])) == 2


def test_workers_are_listed_with_what_they_run(api, worker, clock):
    other = api.register_worker({"host": "h"})
    job = api.add_job("t")
    api.claim(worker)
    found = {row.id: row for row in api.rows("select * from pyworker.list_workers()")}
    assert found[worker].jobs[0]["id"] == job.id
    assert found[worker].running == 1
    assert found[other].jobs is None
    assert found[other].info == {"host": "h"}
    clock.advance(minutes=1)
    assert all(row.silent for row in api.rows("select * from pyworker.list_workers()"))


# -- what it costs ---------------------------------------------------------------------------------


MANY = 25_000

MOST = {
    "list_jobs()": 2_500,
    "list_jobs(newest_first => false)": 2_500,
    "list_jobs(after_id => 20000)": 2_500,
    "list_jobs(states => '{discarded}')": 10,
    "list_jobs(states => '{completed}')": 45_000,
    "list_jobs(tasks => '{nobody}')": 45_000,
    "list_jobs(search => 'nothing')": 45_000,
    "list_sequences()": 10,
    "list_queues()": 10,
    "overview()": 30_000,
    "waiting_queues()": 65_000,
    "count_jobs()": 30_000,
}


def test_a_page_reads_no_more_of_a_long_table(watched, api):
    """Twice the jobs, and the same bounds: what is read does not grow with the table."""
    for _ in range(2):
        fill(api, live=MANY, finished=MANY, state="available")
        read = {}
        for call in MOST:
            plans = watched(lambda a, call=call: a.rows(f"select * from pyworker.{call}"))
            plans = [plan for plan in plans if "Actual Rows" in plan["Plan"]]
            read[call] = sum(sum(touched(plans, table).values()) for table in ("live_jobs", "finished_jobs"))
        assert {call: rows for call, rows in read.items() if rows > MOST[call]} == {}


def test_no_page_shows_a_payload(api, worker):
    api.add_job("t", json.dumps({"password": "hunter2"}), queue_name="q", sequence_policy={"key": "s"})
    api.claim(worker)
    for call in (
        "list_jobs()",
        "list_queues()",
        "list_sequences()",
        "list_workers()",
        "overview()",
        "waiting_queues()",
        "throughput()",
        "count_jobs()",
    ):
        assert "hunter2" not in str(api.rows(f"select * from pyworker.{call}"))
