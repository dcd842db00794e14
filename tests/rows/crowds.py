"""What stands beside the jobs that a verb is about: each made by a few statements, %(n)s at a time."""

from __future__ import annotations

from typing import Any

# In blocks: one call of add_jobs builds one array.
SPECS = """
    select from generate_series(0, (%(n)s - 1) / 2000) b cross join lateral pyworker.add_jobs((
        select jsonb_agg(jsonb_build_object('identifier', %(crowd)s) || jsonb_build_object({})) from
        generate_series(b * 2000 + 1, least((b + 1) * 2000, %(n)s)) i where %(tag)s is not null))"""
CLAIMED = """
    create temp table if not exists held (id bigint, run bigint);
    truncate held;
    insert into held select id, run from pyworker.claim_jobs(
        pyworker.register_worker(), %(n)s, array[%(crowd)s]);"""
ENDED = "select from (select pyworker.finish_jobs(array_agg(id), array_agg(run)) from held) f"
FAILED = """select from (select pyworker.fail_jobs(jsonb_agg(jsonb_build_object(
    'id', id, 'run', run, 'error', 'e') || '{}')) from held) f"""
LATER = "'run_at', now() + interval '1 year'"


def specs(members: str) -> str:
    return SPECS.format(members)


def run(members: str, end: str) -> str:
    """Jobs that have run, and ended."""
    return f"{specs(members)}; {CLAIMED} {end}"


# tag: the size, so that the larger crowd has names of its own.
CROWDS: dict[str, str] = {
    "waiting": specs("'priority', i % 5"),
    "scheduled": specs(LATER),
    "scheduled that expire": specs(f"{LATER}, 'expires_at', now() + interval '2 years'"),
    "waiting that expire": specs("'expires_at', now() + interval '2 years'"),
    "of a paused queue": specs("'queue_name', 'paused'"),
    "of a serial queue": specs("'queue_name', 'serial'"),
    "of a limited queue": specs("'queue_name', 'limited'"),
    "of a queue without a limit": specs("'queue_name', 'free'"),
    "of many queues": specs("'queue_name', 'q' || i"),
    "of a family that takes turns": specs("'queue_name', 'fair:' || i"),
    "of one sequence": specs("""'sequence_policy', '{"key": "s"}'::jsonb"""),
    "of many sequences": specs("'sequence_policy', jsonb_build_object('key', 'of ' || i)"),
    "that wait for one job": specs(
        "'depends_on', jsonb_build_array((select min(j.id) from pyworker.jobs j"
        " where j.task_identifier = 'awaited'))"
    ),
    "with keys": specs(f"{LATER}, 'job_key', 'k' || %(tag)s || i"),
    "with unique keys": specs(
        f"{LATER}, 'unique_policy', jsonb_build_object('keys', jsonb_build_array('args')),"
        " 'payload', jsonb_build_array(%(tag)s, i)"
    ),
    "running": f"{specs('')}; {CLAIMED} select",
    "retryable": run("", FAILED.format('{"delay": "1 year"}')),
    "discarded": run("", FAILED.format('{"discard": true}')),
    "discarded, and halt a sequence": run(
        "'sequence_policy', jsonb_build_object('key', 'h' || %(tag)s || i)",
        FAILED.format('{"discard": true}'),
    ),
    "completed": run("", ENDED),
    "completed with unique keys": run(
        """'unique_policy', '{"keys": ["args"]}'::jsonb, 'payload', jsonb_build_array(%(tag)s, i, 0)""", ENDED
    ),
    "completed of a rate": run("'queue_name', 'rated'", ENDED),
    "cancelled": f"{specs('')}; {CLAIMED} select from held, pyworker.cancel_job(held.id, true)",
    "deleted": f"{specs(LATER)}; select from pyworker.jobs j, pyworker.delete_job(j.id)"
    " where j.task_identifier = %(crowd)s",
    "that wait for signals": f"""{specs("")}; {CLAIMED}
        select from (select pyworker.wait_for_signal(id, run, 'go') from held) w""",
    "queues that were set": "select from generate_series(1, %(n)s) i,"
    " pyworker.set_queue('set' || %(tag)s || i, 3)",
    "families": "select from generate_series(1, %(n)s) i, pyworker.set_queue('f' || %(tag)s || i || ':*', 3)",
    "families that are paused": "select from generate_series(1, %(n)s) i,"
    " pyworker.pause_queue('p' || %(tag)s || i || ':*')",
    "queues that are paused": "select from generate_series(1, %(n)s) i,"
    " pyworker.pause_queue('paused' || %(tag)s || i)",
    "ended workers": "select from (select pyworker.unregister_worker(pyworker.register_worker())"
    " from generate_series(1, %(n)s)) w; vacuum pyworker.workers",
    "tasks": "select from generate_series(1, %(n)s) i, pyworker.define_task('task' || %(tag)s || i, 3)",
    "schedules": "select from generate_series(1, %(n)s) i,"
    " pyworker.add_schedule('t' || %(tag)s || i, '0 0 1 1 *', 'crowd')",
    "once keys": "select from generate_series(1, %(n)s) i, pyworker.once('o' || %(tag)s || i)",
    "signals": "select from generate_series(1, %(n)s) i, pyworker.send_signal((select min(j.id)"
    " from pyworker.jobs j where j.task_identifier = 'parent'), 's' || i)",
    "audited actions": "select from generate_series(0, (%(n)s - 1) / 500) b cross join lateral"
    " pyworker.perform_action('pause_queue', array_fill('paused'::text, array[least(500, %(n)s - b * 500)]),"
    " 'a person') where %(tag)s is not null",
    "with logs": f"{specs('')}; {CLAIMED} select from held, pyworker.log_job(held.id, held.run, 'line')",
    "members of a batch": """select from pyworker.add_batch((
        select jsonb_agg(jsonb_build_object('identifier', %(crowd)s)) from generate_series(1, %(n)s)
            where %(tag)s is not null), '{"identifier": "callback"}')""",
}

LATE, DISCARDED = FAILED.format('{"delay": "1 hour"}'), FAILED.format('{"discard": true}')
CLAIM = f"{CLAIMED} select"
AGAIN = "select pyworker.retry_jobs(array(select id from held))"
DELETED = """
    select from pyworker.jobs j, pyworker.delete_job(j.id) where j.task_identifier = %(crowd)s"""
DUE = """select pyworker.advance_clock('2 hours');
    select pyworker.promote_jobs() from generate_series(0, %(n)s, 1000)"""
# The workers of a crowd; those of `world` were first.
CLOSED = """
    select pyworker.unregister_worker(w.id)
    from (select id from pyworker.workers order by id offset 2) w"""
# What has come and gone: nothing of it is left except what VACUUM cannot remove under an old snapshot.
GONE: dict[str, str] = {
    "gone: ended": run("", ENDED),
    "gone: with expires_at, ended in time": run("'expires_at', pyworker.clock() + interval '1 hour'", ENDED),
    "gone: expired": f"""{specs("'expires_at', pyworker.clock() + interval '1 hour'")};
        {DUE}""",
    "gone: promoted": f"""{specs("'run_at', pyworker.clock() + interval '1 hour'")};
        {DUE}; {CLAIM}; {ENDED}""",
    "gone: retried by itself": run("", LATE) + f"; {DUE}; {CLAIM}; {ENDED}",
    "gone: retried": f"""{run("", LATE)}; {AGAIN}; {CLAIM}; {ENDED}""",
    "gone: discarded, retried": f"""{run("", DISCARDED)}; {AGAIN}; {CLAIM}; {ENDED}""",
    "gone: deleted": f"{specs(LATER)}; {DELETED}",
    "gone: with keys": run("'job_key', 'k' || %(tag)s || i", ENDED),
    "gone: with unique keys": run(
        """'unique_policy', '{"keys": ["args"]}'::jsonb, 'payload', jsonb_build_array(%(tag)s, i, 0)""", ENDED
    ),
    "gone: replaced": specs(f"'job_key', 'keyed', {LATER}"),
    "gone: parked": f"""select pyworker.set_queue('parked', null), pyworker.pause_queue('parked');
        {specs("'queue_name', 'parked'")}; select pyworker.resume_queue('parked'); {CLAIM}; {ENDED}""",
    "gone: of a limited queue": f"{CROWDS['of a limited queue']}; {DELETED}",
    "gone: of many queues": run("'queue_name', 'q' || %(tag)s || i", ENDED),
    "gone: of one sequence": f"{CROWDS['of one sequence']}; {DELETED}",
    "gone: of many sequences": run(
        "'sequence_policy', jsonb_build_object('key', 'g' || %(tag)s || i)", ENDED
    ),
    "gone: released": f"{specs('')}; {CLAIM};"
    f" select pyworker.release_jobs(array_agg(id), array_agg(run)) from held; {CLAIM}; {ENDED}",
    "gone: that waited for one job": f"{CROWDS['that wait for one job']}; {DELETED}",
    "gone: leases": "select pyworker.heartbeat(w.id) from generate_series(1, %(n)s) cross join"
    " (select min(w.id) as id from pyworker.workers w) w",
}


def make(rows: Any, name: str, n: int) -> None:
    for statement in (CROWDS | GONE)[name].replace("% ", "%% ").split(";"):
        params = {"n": n, "tag": f"{n}.", "crowd": name}
        if "claim_jobs" in statement:
            settle(rows)
            rows("reset pyworker.floor_ready")  # else jobs that were handed back are found 2 s later
            while rows(f"{statement} returning id", params):  # one claim takes jobs of some 500 queues
                settle(rows)
        else:
            rows(statement, params)
    if name in GONE:
        rows(CLOSED)
        left = rows("select from pyworker.live_jobs j where j.task_identifier = %(crowd)s", {"crowd": name})
        assert len(left) <= (name == "gone: replaced"), f"{len(left)} jobs of the crowd {name} are left"


def settle(rows: Any) -> None:
    """Nothing waits for a promotion: for timers, the clock is put forward."""
    while rows("select from pyworker.promotion_requests limit 1"):
        rows("select pyworker.promote_jobs()")
        rows("""select pyworker.advance_clock(t.wait) from (
            select min(coalesce(r.at, pyworker.clock())) - pyworker.clock() as wait
            from pyworker.promotion_requests r) t where t.wait > '0'""")
