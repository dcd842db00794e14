"""The public functions, each with what it does to the jobs of `world`. A name before the colon is the
function's; test_rows fails for one that is not here."""

from __future__ import annotations

from dataclasses import dataclass

P = "pyworker."
IDS = "array[%(running)s, %(second)s, %(queued)s, %(first)s]::bigint[]"
RUNS = "array[%(run_running)s, %(run_second)s, %(run_queued)s, %(run_first)s]::bigint[]"
MANY = "array[%(retryable)s, %(discarded)s, %(completed)s, %(scheduled)s, %(keyed)s]::bigint[]"
UNIQUE = 'unique_policy => \'{"keys": ["args"]}\''
LATER = "run_at => now() + interval '9 years'"
TWO_ENDS = """'[{{"id": %(running)s, "on": "{0}"}}, {{"id": %(completed)s, "on": "end"}}]'"""
# The same job once more: it changes the one that waits.
AGAIN = """[{"identifier": "child", "job_key": "child", "depends_on": [%(parent)s]},
            {"identifier": "keyed", "job_key": "keyed", "run_at": "2090-01-01",
             "depends_on": [%(parent)s]}]"""
FAIL = (
    "select pyworker.fail_jobs((select jsonb_agg(jsonb_build_object('id', h.id, 'run', h.run, 'error', 'e'{}"
    f")) from unnest({IDS}, {RUNS}) h(id, run)))"
)
TURN = "select from pyworker.work(%(worker)s, {}, {}, null, null, 10{})"


@dataclass(frozen=True)
class Verb:
    sql: str
    before: str = ""


# A session passes the jobs of other tasks once, and remembers its place.
CLAIM_ONE = "select from pyworker.claim_jobs(%(worker)s, 10, array['available'])"
ONE_TASK = Verb(TURN.format("null", "null", ", array['available']"), CLAIM_ONE)
PROGRAMS: dict[str, str | Verb] = {
    # adds
    "add_job": "select pyworker.add_job('t')",
    "add_job: later": f"select pyworker.add_job('t', {LATER})",
    "add_job: of a new queue": "select pyworker.add_job('t', queue_name => 'new')",
    "add_job: of a serial queue": "select pyworker.add_job('t', queue_name => 'serial')",
    "add_job: of a limited queue": "select pyworker.add_job('t', queue_name => 'limited')",
    "add_job: of a paused queue": "select pyworker.add_job('t', queue_name => 'paused')",
    "add_job: of a rated queue": "select pyworker.add_job('t', queue_name => 'rated')",
    "add_job: of a family": "select pyworker.add_job('t', queue_name => 'fair:7')",
    "add_job: of a sequence": """select pyworker.add_job('t', sequence_policy => '{"key": "s"}')""",
    "add_job: of a new sequence": """select pyworker.add_job('t', sequence_policy => '{"key": "new"}')""",
    "add_job: with a new key": "select pyworker.add_job('t', job_key => 'new')",
    "add_job: with a held key": "select pyworker.add_job('keyed', job_key => 'keyed')",
    "add_job: with a held key, of a queue": "select pyworker.add_job('keyed', job_key => 'keyed', "
    "queue_name => 'serial')",
    "add_job: with the key of a child": "select pyworker.add_job('child', job_key => 'child', "
    "depends_on => '[%(parent)s]')",
    "add_job: a keyed job depends": "select pyworker.add_job('keyed', job_key => 'keyed', "
    "depends_on => '[%(parent)s]', run_at => now() + interval '9 years')",
    "add_job: unique": f"select pyworker.add_job('t', '[8]', {UNIQUE})",
    "add_job: a duplicate": "select pyworker.add_job('unique', '[1]', unique_policy => "
    '\'{"keys": ["args"], "on_conflict": "ignore"}\')',
    "add_job: depends": "select pyworker.add_job('t', depends_on => '[%(running)s, %(completed)s]')",
    "add_job: expires": "select pyworker.add_job('t', expires_at => now() + interval '1 day')",
    "add_jobs": """select from pyworker.add_jobs('[{"identifier": "t"}, {"identifier": "t",
        "queue_name": "serial"}, {"identifier": "t", "job_key": "new"}, {"identifier": "t",
        "job_key": "keyed"}, {"identifier": "t", "sequence_policy": {"key": "s"}}]'::jsonb)""",
    "add_jobs: that change jobs that depend": f"select from pyworker.add_jobs('{AGAIN}'::jsonb)",
    "add_jobs: that depend": """select from pyworker.add_jobs('[{"identifier": "t", "ref": "a",
        "depends_on": ["b"]}, {"identifier": "t", "ref": "b", "depends_on": [%(running)s]}]'::jsonb)""",
    "add_batch": """select from pyworker.add_batch('[{"identifier": "m"}, {"identifier": "m"}]',
        '{"identifier": "c"}')""",
    "extend_batch": """select from pyworker.extend_batch(%(callback)s, '[{"identifier": "m"}]')""",
    "remove_job": "select pyworker.remove_job('keyed')",
    "once": "select pyworker.once('new'), pyworker.once('said')",
    "once: of a run": "select pyworker.once(%(running)s, %(run_running)s, 'mail')",
    "unique_opts": "select pyworker.unique_opts(by_args => 'true')",
    "conformance": "select pyworker.conformance()",
    "send_signal": "select pyworker.send_signal(%(waiting)s, 'go', '1')",
    "await_job": "select pyworker.await_job(%(running)s, 0)",
    # workers
    "clock": "select pyworker.clock()",
    "schema_version": "select pyworker.schema_version()",
    "check_version": "select pyworker.check_version(1)",
    "define_task": "select pyworker.define_task('defined', 4)",
    "register_worker": "select pyworker.register_worker()",
    "update_worker": """select pyworker.update_worker(%(worker)s, '{"name": "w"}')""",
    "hold_worker_lock": "select pyworker.hold_worker_lock(%(worker)s)",
    "report_crash": f"select pyworker.report_crash(%(worker)s, {IDS}, {RUNS})",
    "sweep_workers": "select pyworker.sweep_workers()",
    "sweep_workers: one died": Verb(
        "select pyworker.sweep_workers()",
        "update pyworker.workers set expires_at = pyworker.clock() - interval '1 s' where id = %(worker)s",
    ),
    "open_worker": "select pyworker.open_worker()",
    "read_reports": "select pyworker.read_reports('{1}', '{1}', array[null])",
    "work": TURN.format("null", "null", ""),
    "work: that reports": TURN.format(IDS, RUNS, ""),
    "work: of one task": ONE_TASK,
    "beat": Verb(
        f"select from pyworker.beat(%(worker)s, {IDS}, {RUNS})",
        "select setval('pyworker.swept_at', (extract(epoch from clock_timestamp()) * 1000)::bigint)",
    ),
    "beat: that sweeps": Verb(
        f"select from pyworker.beat(%(worker)s, {IDS}, {RUNS})", "select setval('pyworker.swept_at', 1)"
    ),
    "close_worker": "select pyworker.close_worker(%(worker)s)",
    "start_job": "select pyworker.start_job(%(once)s, %(run_once)s)",
    "worker_ttl": "select pyworker.worker_ttl()",
    "heartbeat": "select pyworker.heartbeat(%(worker)s)",
    "unregister_worker": "select pyworker.unregister_worker(%(worker)s)",
    "claim_jobs": "select from pyworker.claim_jobs(%(worker)s, 10)",
    "claim_jobs: of one task": Verb(CLAIM_ONE, CLAIM_ONE),
    "claim_jobs: of one queue": Verb(
        *["select from pyworker.claim_jobs(%(worker)s, 10, null, '{serial}')"] * 2
    ),
    "seconds_until_due": Verb(  # a worker asks after its claim
        "select pyworker.seconds_until_due()", "select from pyworker.claim_jobs(%(worker)s, 10)"
    ),
    "finish_jobs": f"select pyworker.finish_jobs({IDS}, {RUNS})",
    "finish_jobs: a child waits": "select pyworker.finish_jobs(array[%(parent)s], array[%(run_parent)s])",
    "finish_job": "select pyworker.finish_job(%(running)s, %(run_running)s)",
    "finish_job: of a queue": "select pyworker.finish_job(%(queued)s, %(run_queued)s)",
    "finish_job: of a sequence": "select pyworker.finish_job(%(first)s, %(run_first)s)",
    "was_finished": "select pyworker.was_finished(%(completed)s, %(run_completed)s, pg_current_xact_id())",
    "fail_jobs": FAIL.format(""),
    "fail_jobs: for good": FAIL.format(", 'discard', true"),
    "snooze_job": "select pyworker.snooze_job(%(running)s, %(run_running)s, '1 hour')",
    "snooze_jobs": f"select pyworker.snooze_jobs({IDS}, {RUNS}, array_fill('1 hour'::interval, array[4]))",
    "release_jobs": f"select pyworker.release_jobs({IDS}, {RUNS})",
    "force_unlock_workers": "select pyworker.force_unlock_workers(array[%(worker)s::text])",
    "reconcile": f"select pyworker.reconcile(%(worker)s, {IDS}, {RUNS})",
    "save_step": "select pyworker.save_step(%(running)s, %(run_running)s, 'a', '1')",
    "get_steps": "select pyworker.get_steps(%(running)s)",
    "wait_for_signal": "select pyworker.wait_for_signal(%(running)s, %(run_running)s, 'go')",
    "set_progress": "select pyworker.set_progress(%(running)s, %(run_running)s, 0.7)",
    "log_job": "select pyworker.log_job(%(running)s, %(run_running)s, 'line')",
    "log_jobs": "select pyworker.log_jobs(jsonb_build_array(jsonb_build_object('id', %(running)s,"
    " 'run', %(run_running)s, 'message', 'line')))",
    "promote_jobs": "select pyworker.promote_jobs()",
    "promote_jobs: one is due": Verb(
        "select pyworker.promote_jobs()",
        "select pyworker.add_job('due', run_at => now() + interval '1 ms'), pg_sleep(0.002)",
    ),
    "maintain": "select pyworker.maintain()",
    "get_job": "select pyworker.get_job(%(running)s), pyworker.get_job(%(completed)s)",
    "show_job": "select pyworker.show_job(%(running)s)",
    "job_marks": "select pyworker.job_marks(%(running)s)",
    "dependency_results": "select pyworker.dependency_results(%(child)s)",
    "run_schedules": "select pyworker.run_schedules()",
    "seconds_until_tick": "select pyworker.seconds_until_tick()",
    "parse_crontab": "select pyworker.parse_crontab('* * * * * t')",
    "declare_schedules": """select pyworker.declare_schedules('{code:rows}', '[{"name": "declared",
        "cron": "0 1 1 1 *", "identifier": "declared"}]')""",
    "next_runs": "select pyworker.next_runs('* * * * *')",
    "describe_cron": "select pyworker.describe_cron('* * * * *')",
    "worker_health": "select pyworker.worker_health()",
}
PEOPLE: dict[str, str | Verb] = {
    "job_errors": "select pyworker.job_errors(%(retryable)s)",
    "job_log": "select pyworker.job_log(%(running)s)",
    "job_graph": "select pyworker.job_graph(%(child)s)",
    "job_signals": "select pyworker.job_signals(%(waiting)s)",
    "cancel_job": "select pyworker.cancel_job(%(scheduled)s)",
    "cancel_job: a parent, by force": "select pyworker.cancel_job(%(parent)s, true)",
    "cancel_job: of a sequence": "select pyworker.cancel_job(%(next)s)",
    "retry_job": "select pyworker.retry_job(%(discarded)s)",
    "retry_job: retryable": "select pyworker.retry_job(%(retryable)s)",
    "retry_job: scheduled": "select pyworker.retry_job(%(scheduled)s)",
    "retry_job: available": "select pyworker.retry_job(%(available)s)",
    "retry_job: completed": "select pyworker.retry_job(%(completed)s)",
    "retry_job: with a unique key": "select pyworker.retry_job(%(completed_unique)s)",
    "retry_job: that halts": "select pyworker.retry_job(%(halting)s)",
    "retry_job: behind a halt": "select pyworker.retry_job(%(halted)s)",
    "retry_job: a child": "select pyworker.retry_job(%(child)s)",
    "retry_job: discarded, with a unique key": "select pyworker.retry_job(%(discarded_unique)s)",
    "retry_job: discarded, with a key": "select pyworker.retry_job(%(discarded_keyed)s)",
    "retry_job: completed, with a key": "select pyworker.retry_job(%(completed_keyed)s)",
    "retry_job: a cancelled child": "select pyworker.retry_job(%(dropped)s)",
    "retry_jobs": f"select pyworker.retry_jobs({MANY})",
    "delete_job": "select pyworker.delete_job(%(scheduled)s)",
    "delete_job: completed": "select pyworker.delete_job(%(completed)s)",
    "delete_job: discarded": "select pyworker.delete_job(%(discarded)s)",
    "complete_jobs": f"select pyworker.complete_jobs({MANY})",
    "permanently_fail_jobs": f"select pyworker.permanently_fail_jobs({MANY})",
    "reschedule_jobs": f"select pyworker.reschedule_jobs({MANY}, priority => 3)",
    "reschedule_jobs: again": f"select pyworker.reschedule_jobs({MANY}, run_at => '2090-01-01')",
    "prune": "select pyworker.prune()",
    "configure": "select pyworker.configure(max_crashes => 4)",
    "resume_sequence": "select pyworker.resume_sequence('h')",
    "set_queue": "select pyworker.set_queue('limited', 5)",
    "set_queue: and a claim": "select pyworker.set_queue('limited', 5); select pyworker.promote_jobs()",
    "set_queue: a rate": "select pyworker.set_queue('limited', 5, 100, '1 hour')",
    "set_queue: a family": "select pyworker.set_queue('new:*', 5); select pyworker.promote_jobs()",
    "pause_queue": "select pyworker.pause_queue('limited'); select pyworker.promote_jobs()",
    "resume_queue": "select pyworker.resume_queue('paused'); select pyworker.promote_jobs()",
    "explain_job": "select pyworker.explain_job(%(running)s)",
    "explain_job: available": "select pyworker.explain_job(%(available)s)",
    "explain_job: scheduled": "select pyworker.explain_job(%(scheduled)s)",
    "explain_job: of a queue": "select pyworker.explain_job(%(behind)s)",
    "explain_job: of a paused queue": "select pyworker.explain_job(%(paused)s)",
    "explain_job: of a sequence": "select pyworker.explain_job(%(next)s)",
    "explain_job: halted": "select pyworker.explain_job(%(halted)s)",
    "explain_job: a child": "select pyworker.explain_job(%(child)s)",
    "explain_job: waits for a signal": "select pyworker.explain_job(%(waiting)s)",
    "explain_job: completed": "select pyworker.explain_job(%(completed)s)",
    "explain_job: the last one": "select pyworker.explain_job(%(last)s)",
    "doctor": "select pyworker.doctor()",
    "metrics": "select pyworker.metrics()",
    "add_schedule": "select pyworker.add_schedule('new', '* * * * *', 't')",
    "remove_schedule": "select pyworker.remove_schedule('yearly')",
    "pause_schedule": "select pyworker.pause_schedule('yearly')",
    "resume_schedule": "select pyworker.resume_schedule('yearly')",
    "run_schedule": "select pyworker.run_schedule('yearly')",
    "perform_action": "select pyworker.perform_action('cancel', array[%(scheduled)s::text], 'me')",
    "perform_action: retry": "select pyworker.perform_action('retry', array[%(discarded)s::text], 'me')",
    "perform_on_listed": "select pyworker.perform_on_listed('cancel', 'me', tasks => '{scheduled}')",
    "job_actions": "select pyworker.job_actions(%(running)s)",
    "action_outcomes": "select pyworker.action_outcomes(1, 1, 'me')",
    "action_sql": "select pyworker.action_sql('retry', '1')",
    # dashboards
    "overview": "select pyworker.overview()",
    "count_jobs": "select pyworker.count_jobs()",
    "throughput": "select pyworker.throughput()",
    "activity": "select pyworker.activity()",
    "problems": "select pyworker.problems()",
    "list_jobs": "select pyworker.list_jobs()",
    "list_jobs: of a state": "select pyworker.list_jobs(states => '{running}')",
    "list_jobs: of a task": "select pyworker.list_jobs(tasks => '{running}')",
    "list_jobs: with a key": "select pyworker.list_jobs(job_key => 'keyed')",
    "count_listed_jobs": "select pyworker.count_listed_jobs(tasks => '{running}')",
    "list_queues": "select pyworker.list_queues(max_queues => 5)",
    "list_sequences": "select pyworker.list_sequences(max_sequences => 5)",
    "list_tasks": "select pyworker.list_tasks()",
    "list_workers": "select pyworker.list_workers()",
    "waiting_queues": "select pyworker.waiting_queues()",
    "advance_clock": "select pyworker.advance_clock('1 s')",
}
VERBS = PROGRAMS | PEOPLE
