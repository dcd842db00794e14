"""Lists that are searched, sorted and counted, and actions on all jobs that a list shows."""

from __future__ import annotations

import psycopg
import pytest

from tests.support.api import Api


def ids(api, **named):
    given = ", ".join(f"{name} => %s" for name in named)
    return [row.id for row in api.rows(f"select * from pyworker.list_jobs({given})", list(named.values()))]


def act(api, action, **named):
    """Chunk by chunk, as the dashboard does."""
    told, after = [], None
    while True:
        given = {**named, "after_id": after}
        call = ", ".join(f"{name} => %s" for name in given)
        told.append(
            api.rows(
                f"select * from pyworker.perform_on_listed(%s, 'ada', {call})", [action, *given.values()]
            )[0]
        )
        after = told[-1].next_id
        if after is None:
            return told


# -- search, order and count -----------------------------------------------------------------------


def test_one_search_takes_an_id_a_key_and_part_of_a_task_a_queue_or_an_error(api, worker):
    first = api.add_job("send_email", job_key="invoice 7")
    second = api.add_job("charge", queue_name=f"customer {first.id}")
    api.fail(api.claim(worker, "charge"), "Traceback\nCardError: declined")
    assert ids(api, search=str(second.id)) == [second.id]
    assert ids(api, search=str(first.id)) == [first.id, second.id]
    assert ids(api, search="invoice 7") == [first.id]
    assert ids(api, search="nd_em") == [first.id]
    assert ids(api, search="DECLINED") == [second.id]


def test_a_searched_id_and_key_come_first_however_old_and_every_job_comes_once(api):
    wanted = api.add_job("old", job_key="k")
    others = [api.add_job("t", queue_name="k").id for _ in range(30)]
    found, after = [], None
    while True:
        page = ids(api, search="k", max_jobs=7, after_id=after)
        found += page
        if len(page) < 7:
            break
        after = page[-1]
    assert found == [wanted.id, *others[::-1]]


def test_a_list_is_sorted_by_attempts_and_by_run_time(api, worker, clock):
    jobs = {}
    for seconds in (5, 20, 1):
        job = api.add_job("t")
        claimed = api.claim(worker)
        clock.advance(seconds=seconds)
        api.heartbeat(worker)
        api.finish_job(job.id, claimed.run)
        jobs[seconds] = job.id
    failing = api.add_job("f")
    for _ in range(2):
        api.fail(api.claim(worker, "f"))
        api.retry_job(failing.id)
    assert ids(api, sort_by="run_time") == [jobs[20], jobs[5], jobs[1], failing.id]
    assert ids(api, sort_by="run_time", newest_first=False)[:3] == [jobs[1], jobs[5], jobs[20]]
    assert ids(api, sort_by="attempts")[0] == failing.id
    ran = api.rows("select ran from pyworker.list_jobs(sort_by => 'run_time', max_jobs => 1)")[0].ran
    assert 19.9 < ran < 20.5


def test_a_search_is_counted_by_state(api, worker):
    for _ in range(3):
        api.add_job("mail")
    api.fail(api.claim(worker), discard=True)
    api.add_job("other")
    rows = {row.state: row for row in api.rows("select * from pyworker.count_listed_jobs(search => 'mail')")}
    assert {state: row.jobs for state, row in rows.items() if row.jobs} == {"available": 2, "discarded": 1}
    assert all(row.exact for row in rows.values())
    assert len(rows) == 8


# -- actions on all that match ---------------------------------------------------------------------


def test_an_action_on_all_that_match_goes_chunk_by_chunk_and_is_written_down(api, worker):
    for _ in range(25):
        api.add_job("mail")
        api.fail(api.claim(worker), discard=True)
    other = api.add_job("other", run_at="2100-01-01")
    told = act(api, "retry", states=["discarded"], max_jobs=10)
    assert [row.done for row in told] == [10, 10, 5]
    assert told[0].outcomes == [{"ok": True, "outcome": "available", "jobs": 10, "example": "16"}]
    assert api.rows("select state, count(*) from pyworker.jobs group by 1 order by 1") == [
        ("available", 25),
        ("scheduled", 1),
    ]
    assert api.get_job(other.id).state == "scheduled"
    assert api.value("select count(*) from pyworker.audit where actor = 'ada' and action = 'retry'") == 25


def test_it_leaves_alone_what_was_added_later_and_what_has_left_its_state(api, actor):
    jobs = [api.add_job("t", run_at="2100-01-01").id for _ in range(3)]
    later = api.add_job("t", run_at="2100-01-01").id
    a, b = actor(), actor()
    a.begin()
    a.retry_job(jobs[0])
    waiting = b.session.start(
        "select * from pyworker.perform_on_listed('cancel', 'ada', states => '{scheduled}', last_id => %s)",
        [jobs[-1]],
    )
    b.blocked(waiting)
    a.commit()
    waiting.result()
    states = [api.get_job(job).state for job in (*jobs, later)]
    assert states == ["available", "cancelled", "cancelled", "scheduled"]


def test_an_action_that_changes_nothing_says_so(api, worker, one_of_each):
    api.add_schedule("nightly", "0 4 * * *", "report")
    cancelled = one_of_each["running"].id
    api.cancel_job(cancelled)

    def outcome(action, target, options="{}"):
        rows = api.rows(
            "select ok, outcome from pyworker.perform_action(%s, array[%s::text], 'ada', %s)",
            [action, str(target), options],
        )
        return tuple(rows[0])

    assert outcome("cancel", one_of_each["completed"].id) == (False, "it was already completed")
    assert outcome("force_cancel", one_of_each["discarded"].id) == (False, "it was already discarded")
    assert outcome("cancel", cancelled) == (False, "it was already asked to stop")
    assert outcome("retry", one_of_each["available"].id) == (False, "it was already available")
    assert outcome("resume_queue", "q") == (False, "it was not paused")
    assert outcome("pause_queue", "q") == (True, "done")
    assert outcome("pause_queue", "q") == (False, "it was already paused")
    assert outcome("resume_schedule", "nightly") == (False, "it was not paused")
    assert outcome("set_queue", "q", '{"concurrency": 7}') == (True, "concurrency 7")
    assert outcome("set_queue", "q", '{"concurrency": null}') == (True, "no limit")
    rate = '{"rate_limit": "10", "rate_period": "1 min"}'
    assert outcome("set_queue", "q", rate) == (True, "no limit, at most 10 in 1 min")
    assert outcome("set_queue", "q", '{"concurrency": 3}') == (True, "concurrency 3, at most 10 in 1 min")
    call = "select pyworker.set_queue('q', 4, 10, '1 min')"
    assert api.value("select pyworker.action_sql('set_queue', 'q', '{\"concurrency\": 4}')") == call
    assert outcome("set_queue", "q", '{"rate_limit": null}') == (True, "concurrency 3")
    assert outcome("set_queue", "c:*", '{"fair": true}') == (True, "concurrency 1, fair")
    assert outcome("set_queue", "q", '{"rate_limit": 1}') == (
        False, "set_queue: rate_limit 1 needs a rate_period, got NULL"
    )  # fmt: skip
    assert outcome("set_queue", "q", '{"rate_limit": 1, "rate_period": "soon"}') == (
        False, "perform_action: rate_period must be an interval such as '1 minute', got 'soon'"
    )  # fmt: skip
    with api.refusal("PW001", "options of set_queue must have concurrency", "got {}"):
        outcome("set_queue", "q")


def test_only_the_actions_that_would_change_a_job_are_offered_and_their_sql_does_them(api, one_of_each):
    offered = {
        state: [row.action for row in api.rows("select * from pyworker.job_actions(%s)", [job.id])]
        for state, job in one_of_each.items()
    }
    assert offered["available"] == ["cancel", "delete"]
    assert offered["running"] == ["cancel", "force_cancel"]
    assert offered["discarded"] == offered["completed"] == ["retry", "delete"]
    assert offered["scheduled"] == offered["pending"] == ["retry", "cancel", "delete"]
    for state, job in one_of_each.items():
        if state not in ("available", "running", "pending"):
            api.rows(api.rows("select * from pyworker.job_actions(%s)", [job.id])[0].statement)
            assert api.get_job(job.id).state == "available"
    assert api.rows("select * from pyworker.job_actions(999999)") == []


def test_reasons_are_told_without_the_name_of_a_function_whatever_backslashes_mean(api, worker, dsn):
    jobs = [api.add_job("t").id for _ in range(2)]
    api.claim_jobs(worker, 2)
    for setting in ("on", "off"):
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute(f"set standard_conforming_strings = {setting}")
            (told,) = act(Api(conn), "retry", tasks=["t"])
        assert [o["outcome"] for o in told.outcomes] == ["the job is running"]
    assert told.refused == len(jobs)


def test_what_came_of_actions_is_told_by_the_rows_of_the_audit(api, one_of_each):
    job, ended = one_of_each["scheduled"].id, one_of_each["completed"].id
    api.rows("select * from pyworker.perform_action('cancel', array[%s, %s]::text[], 'ada')", [job, ended])
    api.rows("select * from pyworker.perform_action('pause_queue', '{q}', 'bob')")
    row = api.rows("select * from pyworker.action_outcomes(0, 1000000, 'ada')")[0]
    assert (row.action, row.done, row.refused) == ("cancel", 1, 1)
    assert {
        "ok": False,
        "outcome": "it was already completed",
        "jobs": 1,
        "example": str(ended),
    } in row.outcomes


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("perform_on_listed('pause_queue', 'ada')", "action must be retry, .*, got 'pause_queue'"),
        ("perform_on_listed(null, 'ada')", "got NULL"),
        ("perform_action('restore', '{1}', 'ada')", "action must be one of retry,.*, got 'restore'"),
        ("perform_action('undo_retry', '{1}', 'ada')", "action must be one of retry,.*, got 'undo_retry'"),
        ("perform_on_listed('retry', '')", "actor must be 1 to 200 characters long, got ''"),
        ("perform_on_listed('retry', 'ada', states => '{done}')", "states must be names of states"),
        ("perform_on_listed('retry', 'ada', max_jobs => 1001)", "max_jobs must be from 1 to 1000, got 1001"),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused_by_name_and_value(api, call, words):
    with api.refusal("PW001", words):
        api.rows(f"select * from pyworker.{call}")
