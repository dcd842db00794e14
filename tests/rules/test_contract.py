"""The names that outside callers write: functions with their arguments, types, views. To change
one of these breaks their programs."""

import pytest

ADD = (
    "identifier payload queue_name run_at max_attempts job_key priority flags job_key_mode unique_policy "
    "sequence_policy meta delivery depends_on expires_at max_wait"
)
DEFINE = (
    "identifier max_attempts priority queue_name unique_policy sequence_policy delivery timeout backoff "
    "retention payload_schema"
)
SCHEDULE = (
    "name cron identifier payload timezone backfill queue_name max_attempts priority job_key job_key_mode "
    "flags unique_policy "
    "sequence_policy meta delivery query query_role query_limit"
)
FUNCTIONS = {
    "add_batch": {"jobs callback on"},
    "add_job": {ADD},
    "add_jobs": {"specs job_key_preserve_run_at", "specs"},
    "add_schedule": {SCHEDULE},
    "cancel_job": {"job_id force"},
    "check_version": {"client_version"},
    "claim_jobs": {"worker_id max_jobs task_identifiers queue_names forbidden_flags"},
    "advance_clock": {"by"},  # in installations for tests
    "clock": {""},
    "complete_jobs": {"job_ids"},
    "configure": {
        "completed_retention cancelled_retention discarded_retention max_payload_bytes worker_ttl "
        "max_crashes once_retention notify_discarded"
    },
    "conformance": {""},
    "declare_schedules": {"origins schedules dry_run"},
    "count_jobs": {""},
    "define_task": {DEFINE},
    "dependency_results": {"job_id"},
    "describe_cron": {"cron"},
    "extend_batch": {"callback_id jobs"},
    "update_worker": {"worker_id info"},
    "explain_job": {"job_id"},
    "get_steps": {"job_id"},
    "set_progress": {"job_id run progress message"},
    "await_job": {"job_id seconds"},
    "job_graph": {"job_id"},
    "job_signals": {"job_id"},
    "save_step": {"job_id run name result"},
    "send_signal": {"job_id name payload"},
    "wait_for_signal": {"job_id run name timeout nth"},
    "delete_job": {"job_id"},
    "doctor": {""},
    "fail_jobs": {"failures"},
    "finish_job": {"job_id run"},
    "worker_health": {"worker"},
    "was_finished": {"job_id run transaction_id"},
    "finish_jobs": {"job_ids runs results"},
    "force_unlock_workers": {"worker_ids"},
    "get_job": {"id"},
    "show_job": {"job_id"},
    "job_marks": {"job_id"},
    "heartbeat": {"worker_id"},
    "hold_worker_lock": {"worker_id"},
    "job_errors": {"job_id"},
    "job_log": {"job_id"},
    "log_job": {"job_id run message level"},
    "log_jobs": {"lines"},
    "list_jobs": {
        "states tasks queues job_key search created_from created_before after_id newest_first max_jobs "
        "sort_by"
    },
    "count_listed_jobs": {"tasks queues job_key search created_from created_before"},
    "activity": {"kind minutes max_names"},
    "problems": {""},
    "waiting_queues": {"max_queues"},
    "job_actions": {"job_id"},
    "action_sql": {"action target options"},
    "action_outcomes": {"first_audit last_audit actor"},
    "perform_on_listed": {
        "action actor states tasks queues job_key search created_from created_before last_id after_id "
        "max_jobs lost"
    },
    "list_queues": {"after_name max_queues"},
    "list_tasks": {""},
    "list_sequences": {"halted after_key max_sequences"},
    "list_workers": {""},
    "maintain": {""},
    "metrics": {"max_rows"},
    "next_runs": {"cron timezone n after"},
    "once": {"key", "job_id run name"},
    "overview": {""},
    "parse_crontab": {"content"},
    "perform_action": {"action targets actor options"},
    "pause_queue": {"queue_name"},
    "pause_schedule": {"name"},
    "permanently_fail_jobs": {"job_ids error_message"},
    "promote_jobs": {""},
    "prune": {""},
    "reconcile": {"worker_id job_ids runs"},
    "read_reports": {"job_ids runs texts"},
    "register_worker": {"info"},
    "release_jobs": {"job_ids runs"},
    "remove_job": {"job_key"},
    "remove_schedule": {"name"},
    "reschedule_jobs": {"job_ids run_at priority attempts max_attempts"},
    "resume_queue": {"queue_name"},
    "resume_schedule": {"name"},
    "resume_sequence": {"sequence_key"},
    "retry_job": {"job_id"},
    "retry_jobs": {"job_ids lost"},
    "run_schedule": {"name"},
    "run_schedules": {""},
    "schema_version": {""},
    "seconds_until_due": {"task_identifiers queue_names forbidden_flags"},
    "seconds_until_tick": {""},
    "set_queue": {"queue_name concurrency rate_limit rate_period fair"},
    "snooze_job": {"job_id run delay"},
    "snooze_jobs": {"job_ids runs delays"},
    "start_job": {"job_id run delivery"},
    "sweep_workers": {""},
    "throughput": {"minutes step"},
    "unique_opts": {"by_args by_period by_queue by_state exclude_kind on_conflict"},
    "unregister_worker": {"worker_id"},
    "report_crash": {"worker_id job_ids runs error"},
    "worker_ttl": {""},
    "open_worker": {"info protocol"},
    "work": {
        "worker_id done_ids done_runs done_results reports max_jobs task_identifiers queue_names "
        "forbidden_flags"
    },
    "beat": {"worker_id job_ids runs lock condition lost_answer"},
    "close_worker": {"worker_id"},
}
# New columns of a type or view go last: these are the beginning.
COLUMNS = {
    "job": "id task_identifier queue_name payload meta priority run_at attempts max_attempts last_error "
    "created_at updated_at key revision "
    "flags locked_at locked_by state delivery unique_key sequence_key deduplicated sequence_halted_by",
    "job_spec": "identifier payload queue_name run_at max_attempts job_key priority flags",
    # Graphile Worker's, then ours
    "jobs": "id queue_name task_identifier priority run_at attempts max_attempts last_error created_at "
    "updated_at key locked_at locked_by "
    "revision flags state delivery unique_key sequence_key meta",
    "queue_stats": (
        "queue_name concurrency paused available running pending scheduled retryable discarded "
        "oldest_waiting rate_limit rate_period rate_used rate_left rate_free_at fair"
    ),
    "sequences": "sequence_key running waiting halted_by reason since",
    "schedule": "name cron timezone identifier payload backfill queue_name max_attempts priority job_key "
    "job_key_mode flags unique_policy "
    "sequence_policy meta delivery query query_role query_limit origin paused next_at last_at last_job_id "
    "last_error created_at updated_at",
    "schedules": "name cron timezone words identifier next_at last_at last_job_id paused last_error",
    "audit": "id at actor db_role action target ok outcome",
    "live_workers": "id info started_at beat_at expires_at",
}
COLUMNS["history"] = COLUMNS["jobs"]
ARGUMENTS = """
    select p.proname, coalesce(array_to_string(p.proargnames[:p.pronargs], ' '), '') from pg_proc p
    where p.pronamespace = 'pyworker'::regnamespace and p.proname not like '\\_%'
"""


def test_public_functions_and_their_arguments_are_those_of_the_contract(db):
    found = {}
    for name, arguments in db.execute(ARGUMENTS):
        found.setdefault(name, set()).add(arguments)
    assert found == FUNCTIONS


@pytest.mark.parametrize("name", COLUMNS)
def test_types_and_views_begin_with_the_columns_of_the_contract(db, name):
    found = db.execute(
        "select array_agg(attname::text order by attnum) from pg_attribute where attrelid = %s::regclass "
        "and attnum > 0",
        [f"pyworker.{name}"],
    ).fetchone()[0]
    assert " ".join(found[: len(COLUMNS[name].split())]) == COLUMNS[name]


def test_no_payload_or_result_is_in_a_view(db):
    assert not db.execute("""
        select c.relname, a.attname from pg_class c join pg_attribute a on a.attrelid = c.oid
        where c.relnamespace = 'pyworker'::regnamespace and c.relkind = 'v'
            and a.attname in ('payload', 'result')
    """).fetchall()  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "objects", "privilege"),
    [
        ("function", "pg_proc where pronamespace", "execute"),
        (
            "table",
            "pg_class where relkind in ('r', 'p', 'v') and relnamespace",
            "select, insert, update, delete",
        ),
        ("sequence", "pg_class where relkind = 'S' and relnamespace", "usage, select, update"),
        ("schema", "pg_namespace where oid", "usage, create"),
    ],
)
def test_public_may_do_nothing(db, kind, objects, privilege):
    ours = f"with ours as materialized (select * from {objects} = 'pyworker'::regnamespace)"
    allowed = f"{ours} select o.* from ours o where has_{kind}_privilege('public', o.oid, %s)"
    assert not db.execute(allowed, [privilege]).fetchall()
