"""Who may do what; and that no caller's objects, search_path or settings change what our functions do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

PRODUCER = {
    "add_job",
    "add_jobs",
    "add_batch",
    "extend_batch",
    "remove_job",
    "unique_opts",
    "conformance",
    "_json_of",
    "clock",
    "schema_version",
    "once",
    "send_signal",
    "await_job",
}
WORKER = PRODUCER | {
    "define_task", "register_worker", "heartbeat", "unregister_worker", "claim_jobs", "seconds_until_due",
    "finish_jobs",
    "finish_job", "fail_jobs", "snooze_job", "release_jobs", "force_unlock_workers", "reconcile",
    "promote_jobs", "maintain",
    "check_version", "get_job", "dependency_results", "update_worker", "hold_worker_lock", "report_crash",
    "sweep_workers",
    "worker_ttl", "start_job",
    "run_schedules", "seconds_until_tick", "declare_schedules",
    "parse_crontab", "next_runs",
    "describe_cron", "was_finished", "worker_health", "list_tasks", "list_workers",
    "open_worker", "read_reports", "work", "beat", "close_worker", "snooze_jobs",
    "save_step", "get_steps", "wait_for_signal", "set_progress", "log_job", "log_jobs",
}  # fmt: skip
LOOKS = {
    "worker_health", "metrics", "overview", "count_jobs", "throughput", "list_jobs", "list_queues",
    "list_sequences",
    "list_tasks", "list_workers",
    "activity", "problems", "waiting_queues", "count_listed_jobs", "action_sql", "check_version",
    "show_job", "job_marks", "job_errors", "job_log", "job_graph", "job_actions", "explain_job", "doctor",
    "_limits_of",  # by the view queue_stats
}  # fmt: skip
ADMIN = WORKER | LOOKS | {
    "perform_action", "perform_on_listed", "action_outcomes", "cancel_job", "retry_job", "retry_jobs",
    "delete_job", "complete_jobs", "permanently_fail_jobs", "reschedule_jobs", "prune", "configure",
    "set_queue", "pause_queue", "resume_queue", "resume_sequence",
    "job_signals", "add_schedule", "remove_schedule", "pause_schedule", "resume_schedule", "run_schedule",
    # what add_schedule calls with the caller's rights; see the head of schedules/queries
    "_add_schedule", "_lend_query_schema", "_query_function",
}  # fmt: skip
READER = LOOKS | {"clock", "schema_version", "next_runs", "describe_cron"}
VIEWS = {"jobs", "history", "queue_stats", "sequences", "dependencies", "live_workers", "schedules", "audit"}

# The whole matrix: what is not named here the owner alone may do. "public" stands for a role with
# no grant at all.
MATRIX: dict[str, tuple[set[str], set[str]]] = {
    "pyworker_producer": (PRODUCER, set()),
    "pyworker_worker": (WORKER, set()),
    "pyworker_reader": (READER, VIEWS),
    "pyworker_admin": (ADMIN, VIEWS),
    "public": (set(), set()),
}


@pytest.mark.parametrize("role", MATRIX)
def test_each_role_may_do_what_the_matrix_says_and_nothing_else(api: Any, role: str) -> None:
    functions, views = MATRIX[role]
    api.maintain()  # partitions made later are no exception
    assert {f.proname for f in api.rows(
        "select p.proname from pg_proc p where pronamespace = 'pyworker'::regnamespace "
        "and has_function_privilege(%s, p.oid, 'execute')",
        [role],
    )} == functions  # fmt: skip
    assert {(t.relname, t.privilege) for t in api.rows(
        "select c.relname, privilege from pg_class c,"
        " unnest('{select,insert,update,delete,truncate,references,trigger}'::text[]) privilege"
        " where c.relnamespace = 'pyworker'::regnamespace and c.relkind in ('r', 'p', 'v', 'm', 'f')"
        " and has_table_privilege(%s, c.oid, privilege)",
        [role],
    )} == {(view, "select") for view in views}  # fmt: skip
    assert api.rows(
        "select c.relname, a.attname from pg_class c join pg_attribute a on a.attrelid = c.oid"
        " where c.relnamespace = 'pyworker'::regnamespace and c.relkind in ('r', 'p') and a.attnum > 0"
        " and has_any_column_privilege(%s, c.oid, 'select, insert, update, references')",
        [role],
    ) == []  # fmt: skip
    assert api.rows(
        "select c.relname from pg_class c where c.relnamespace = 'pyworker'::regnamespace"
        " and case when c.relkind = 'S' then has_sequence_privilege(%s, c.oid, 'usage, select, update') end",
        [role],
    ) == []  # fmt: skip
    assert api.value("select has_schema_privilege(%s, 'pyworker', 'usage')", [role]) == (role != "public")
    assert not api.value("select has_schema_privilege(%s, 'pyworker', 'create')", [role])


def test_every_function_of_the_schema_runs_with_a_search_path_of_its_own(api: Any) -> None:
    """Private SQL functions that are only ever called by those, and functions bound when created,
    need none."""
    open_ones = api.rows(
        "select p.proname from pg_proc p where p.pronamespace = 'pyworker'::regnamespace"
        " and (p.prosecdef or p.prolang <> (select oid from pg_language where lanname = 'sql'))"
        " and not exists (select from unnest(p.proconfig) c where c = 'search_path=pyworker, pg_temp')"
    )
    assert open_ones == []


SECRET = "xyzzy"


def test_no_reader_sees_a_payload_or_a_result(own: Any) -> None:
    worker = own.register_worker()
    for key in "abc":
        own.add_job("t", f'{{"password": "{SECRET}"}}', job_key=key)
    own.add_job("u", f'{{"password": "{SECRET}"}}', sequence_policy={"by_args": True})
    done, failed = own.claim_jobs(worker, 2)
    own.rows(
        "select pyworker.finish_jobs(array[%s], array[%s], array['\"xyzzy\"'::jsonb])", [done.id, done.run]
    )
    own.fail(failed, payload=[SECRET])
    own.add_schedule("s", "* * * * *", "t", {"password": SECRET})
    own.rows("select pyworker.add_job('t', depends_on => jsonb_build_array(%s::bigint))", [done.id])
    own.rows("select pyworker.perform_action('run_schedule', array['s'], 'somebody')")
    own.rows("set role pyworker_reader")
    for view in sorted(VIEWS):
        rows = own.rows(f"select to_jsonb(v)::text as row from pyworker.{view} v")
        assert rows
        assert not any(SECRET in row for (row,) in rows)
    for statement in (
        "select * from pyworker.live_jobs", "select payload from pyworker.finished_jobs",
        "select * from pyworker.errors",
        "select * from pyworker.get_job(1)", "select * from pyworker.claim_jobs(1)",
        "select * from pyworker.remove_job('c')",
        "select * from pyworker.add_job('t', job_key => 'c', job_key_mode => 'unsafe_dedupe')",
        "update pyworker.jobs set priority = 1",
        "select nextval('pyworker.job_ids')", "select * from pyworker.listening_until",
    ):  # fmt: skip
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            own.rows(statement)
    own.rows("reset role")


def test_a_producer_reads_no_payload_of_a_job_whose_key_it_does_not_know(own: Any) -> None:
    """Ids are easy to guess. It sees how a job ended, which it may wait for."""
    job = own.add_job("t", f'{{"password": "{SECRET}"}}')
    own.rows("set role pyworker_producer")
    assert SECRET not in str(own.await_job(job.id))
    for statement in (
        "get_job(1)",
        "job_errors(1)",
        "job_log(1)",
        "get_steps(1)",
        "job_signals(1)",
        "explain_job(1)",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            own.rows(f"select * from pyworker.{statement}")
    own.rows("reset role")


# Built-in functions and operators that our functions use, in versions that do something else.
FALSE_FRIENDS = """
    create function evil.length(text) returns integer language sql as 'select 999999';
    create function evil.octet_length(text) returns integer language sql as 'select 999999999';
    create function evil.nextval(regclass) returns bigint language sql as 'select 666';
    create function evil.clock_timestamp() returns timestamptz language sql as $$
    select '1999-01-01'::timestamptz $$;
    create function evil.jsonb_typeof(jsonb) returns text language sql as $$ select 'fooled' $$;
    create function evil.json_typeof(json) returns text language sql as $$ select 'fooled' $$;
    create function evil.current_schema() returns name language sql as $$ select 'evil'::name $$;
    create function evil.pg_notify(text, text) returns void language plpgsql as $$ begin raise exception
        'fooled'; end $$;
    create function evil.array_position(text[], text) returns integer language sql as 'select 1';
    create function evil.isfinite(timestamptz) returns boolean language sql as 'select false';
    create function evil.no(text, text) returns boolean language sql as 'select false';
    create function evil.no(bigint, bigint) returns boolean language sql as 'select false';
    create function evil.no(timestamptz, timestamptz) returns boolean language sql as 'select false';
    create operator evil.= (leftarg = text, rightarg = text, function = evil.no);
    create operator evil.= (leftarg = bigint, rightarg = bigint, function = evil.no);
    create operator evil.> (leftarg = timestamptz, rightarg = timestamptz, function = evil.no);
    create operator evil.<= (leftarg = timestamptz, rightarg = timestamptz, function = evil.no);
    create domain evil.int4 as text;
    create domain evil.timestamptz as text;
"""


@pytest.fixture
def hostile(own: Any) -> Iterator[Callable[[str], Any]]:
    """hostile(role): a session of that role, in which everything of ours and much of PostgreSQL's
    has a false friend."""
    ours = own.rows(
        "select format('create function evil.%I(%s) returns text language plpgsql as $$ begin raise "
        "exception ''fooled''; end $$',"
        "  p.proname, regexp_replace("
        "    pg_get_function_identity_arguments(p.oid), '(VARIADIC|INOUT) ', '', 'g')) as create"
        " from pg_proc p where p.pronamespace = 'pyworker'::regnamespace"
        " and pg_get_function_identity_arguments(p.oid) !~ '(^|, )OUT '"
    )
    own.rows("create schema evil; grant usage, create on schema evil to public")
    for (create,) in ours:
        own.rows(create)
    own.rows(FALSE_FRIENDS)
    tables = own.rows(
        "select format('create temp table %I (id bigint)', c.relname) as temp, format('create table "
        "evil.%I (id bigint)', c.relname)"
        " as evil from pg_class c where c.relnamespace = 'pyworker'::regnamespace "
        "and c.relkind in ('r', 'p', 'v', 'S', 'c')"
    )

    def become(role: str) -> Any:
        own.rows(f"set role {role}")
        for temp, evil in tables:
            own.rows(temp)
            if role == "pyworker_producer":
                own.rows(evil)
        own.rows("set search_path = evil, pg_temp, pg_catalog, public")
        return own

    yield become
    own.rows("reset role; reset search_path")


def test_a_producers_own_objects_and_search_path_fool_no_add(hostile: Any, own: Any) -> None:
    api = hostile("pyworker_producer")
    for call in (
        "add_job('t')", "add_job('t', '{\"a\": 1}')", "add_job('t', '{}'::jsonb, queue_name => 'q')",
        "add_job('t', '[1]'::json)",
        "add_job('t', '[1]'::text, job_key => 'k')", "add_job('t', '[2]', job_key => 'k')",
        "add_jobs('[{\"identifier\": \"t\"}, {\"identifier\": \"t\", \"job_key\": \"k\", \"payload\": "
        "[3]}]')",
        "add_jobs(array[row('t',null,'q',null,null,null,null,null)::pyworker.job_spec])",
        "add_jobs('[{\"identifier\": \"t\", \"run_at\": \"2001-01-01\"}]'::jsonb)", "remove_job('none')",
    ):  # fmt: skip
        statement = f"select * from pyworker.{call}"
        for name in ("jsonb", "json", "text"):
            statement = statement.replace(f"::{name}", f"::pg_catalog.{name}")
        api.rows(statement)
    with pytest.raises(psycopg.Error, match="max_attempts"):
        api.rows("select pyworker.add_job('t', max_attempts => 0)")
    own.rows("reset role; reset search_path")
    jobs = own.rows("select id, state, queue_name, key from pyworker.jobs order by id")
    assert [(job.id, job.state) for job in jobs] == [
        (1, "available"), (2, "available"), (3, "available"), (4, "available"), (5, "available"),
        (6, "available"),
        (7, "available"), (8, "available"),
    ]  # fmt: skip
    assert own.get_job(5).payload == [1, 2, 3]
    assert own.value("select min(created_at) > now() - interval '1 hour' from pyworker.jobs")


def test_a_workers_own_objects_and_search_path_fool_no_claim(hostile: Any, own: Any) -> None:
    own.add_jobs(
        [{"identifier": "t", "max_attempts": 2, "queue_name": "q" if i > 6 else None} for i in range(9)]
    )
    api = hostile("pyworker_worker")
    worker = api.register_worker()
    jobs = api.claim_jobs(worker, 10, ["t"], ["default", "q"], ["flag"])
    assert [job.id for job in jobs] == list(range(1, 9))
    assert api.finish(1, 2) == [1, 2]
    api.finish(8)
    assert api.fail(jobs[2]) == [3]
    api.snooze_job(4, jobs[3].run, "1 hour")
    assert api.release_jobs([5], [jobs[4].run]) == [5]
    assert api.reconcile(worker, [6], [jobs[5].run]) == [6]
    assert api.heartbeat(worker) is True
    assert api.maintain()["rescued"] == 0
    api.define_task("t", priority=1)
    assert {job.id for job in api.claim_jobs(worker, 10)} == {5, 7, 9}
    api.unregister_worker(worker)
    own.rows("reset role; reset search_path")
    states = own.rows(
        "select id, state from pyworker.jobs union all select id, state from pyworker.history order by id"
    )
    assert [state for _, state in states] == [
        "completed", "completed", "retryable", "scheduled", "available", "available", "available",
        "completed", "available",
    ]  # fmt: skip


def test_an_admins_own_objects_and_search_path_fool_no_verb(hostile: Any, own: Any) -> None:
    own.add_jobs([{"identifier": "t"}] * 6)
    later = own.at("1 hour")
    api = hostile("pyworker_admin")
    assert api.cancel_job(1).state == "cancelled"
    assert api.retry_job(1).state == "available"
    assert api.delete_job(2).id == 2
    assert [job.state for job in api.complete_jobs([3])] == ["completed"]
    assert [job.state for job in api.permanently_fail_jobs([4])] == ["discarded"]
    assert [job.state for job in api.reschedule_jobs([5], later)] == ["scheduled"]
    assert len(api.job_errors(4)) == 1
    assert [job.id for job in api.retry_jobs([4])] == [4]
    api.configure(completed_retention="1 hour")
    assert api.prune() == 0
    assert len(api.rows("select * from pyworker.jobs")) == 4


SETTINGS = {
    "standard_conforming_strings": "off", "escape_string_warning": "off", "intervalstyle": "'iso_8601'",
    "timezone": "'Asia/Kolkata'", "transform_null_equals": "on", "array_nulls": "off",
    "bytea_output": "'escape'",
    "extra_float_digits": "-15", "quote_all_identifiers": "on", "plan_cache_mode": "force_custom_plan",
    "enable_indexscan": "off",
    "row_security": "off", "xmloption": "'document'",
}  # fmt: skip


@pytest.mark.parametrize("setting", SETTINGS)
def test_no_setting_of_the_caller_changes_what_a_call_does(
    api: Any, actor: Any, worker: int, setting: str
) -> None:
    a = actor()
    a.rows(f"set {setting} = {SETTINGS[setting]}")
    brackets = '["' + "[" * 2000 + '\\"]"]'
    assert a.payload(a.add_job("t", brackets, flags=["a\\b"]).id) == brackets
    with a.refusal("PW001", "100 levels"):
        a.add_job("t", "[" * 200 + "]" * 200)
    with a.refusal("PW001", "jsonb"):
        a.add_jobs('[{"identifier": "t", "payload": "\\u0000"}]')
    a.add_job("t", "[1]", job_key="k")
    assert a.payload(a.add_job("t", "\t[ 2 ]", job_key="k").id) == "[1, 2 ]"
    a.define_task(
        "slow", backoff={"initial": "1 day 2 hours", "max": "P3D"}, retention="36 hours", timeout="1 hour"
    )
    a.add_jobs([{"identifier": "slow", "queue_name": "q", "run_at": "2001-02-03 04:05:06+00"}] * 2)
    jobs = a.claim_jobs(worker, 10)
    assert [job.task_identifier for job in jobs] == ["t", "t", "slow"]
    a.fail(jobs[2])
    a.finish_jobs([jobs[0].id], [jobs[0].run])
    a.release_jobs([jobs[1].id], [jobs[1].run])
    slow = a.claim(worker, "slow")
    a.snooze_job(slow.id, slow.run, "1 hour 30 min")
    a.maintain()
    assert 26 * 3600 - 60 < (api.get_job(jobs[2].id).run_at - api.at()).total_seconds() <= 26 * 3600
    assert a.cancel_job(jobs[1].id).state == "cancelled"
    assert a.retry_job(jobs[0].id).state == "available"
    for call in (
        "describe_cron('*/5 4,6 * jan mon-fri')",
        "parse_crontab('*/5 4 * * * t ?id=a&fill=1d2h {a: 1}\n@daily u ?jobKey=k')",
        "next_runs('0 4 * * *', 'UTC', 2, '2026-01-01 00:00+00') r cross "
        "join lateral timezone('UTC', r.run_at)",
        "unique_opts(by_period => '90 minutes')",
    ):
        assert len({str(one.rows(f"select to_json(c) from pyworker.{call} c")) for one in (a, api)}) == 1
    assert a.rows("select finding from pyworker.doctor() where severity = 'error'") == []
