"""The jobs that the verbs are about: some in each state, made once, before the crowd comes."""

from __future__ import annotations

from typing import Any

POLICY = '\'{"keys": ["args"], "states": ["available", "running", "completed"], "on_conflict": "ignore"}\''
SETTINGS = """
    select pyworker.set_queue('limited', 2), pyworker.set_queue('free', null),
        pyworker.set_queue('rated', null, 1000, '1 hour'),
        pyworker.set_queue('fair:*', 2, null, null, true), pyworker.pause_queue('paused'),
        pyworker.define_task('defined', 3), pyworker.declare_schedules('{code:rows}',
            '[{"name": "declared", "cron": "0 0 1 1 *", "identifier": "declared"}]');
    select from pyworker.add_schedule('yearly', '0 0 1 1 *', 'yearly');
    select from pyworker.once('said')
"""
# name: how the one job of this name is added. Those of the names in CLAIMED run.
ADDED = {
    "available": "'available'",
    "scheduled": "'scheduled', run_at => now() + interval '9 years'",
    "expiring": "'expiring', run_at => now() + interval '9 years', expires_at => now() + interval '10 years'",
    "keyed": "'keyed', job_key => 'keyed', run_at => now() + interval '9 years'",
    "unique": f"'unique', '[1]', unique_policy => {POLICY}, run_at => now() + interval '9 years'",
    "paused": "'paused', queue_name => 'paused'",
    "running": "'running'",
    "second": "'second', meta => '{}'",
    "once": "'once', delivery => 'at_most_once'",
    "queued": "'queued', queue_name => 'serial'",
    "behind": "'behind', queue_name => 'serial'",
    "first": """'first', sequence_policy => '{"key": "s"}'""",
    "next": """'next', sequence_policy => '{"key": "s"}'""",
    "halting": """'halting', sequence_policy => '{"key": "h"}'""",
    "halted": """'halted', sequence_policy => '{"key": "h"}'""",
    "waiting": "'waiting'",
    "retryable": "'retryable'",
    "discarded": "'discarded'",
    "completed": "'completed'",
    "completed_unique": f"'completed_unique', '[2]', unique_policy => {POLICY}",
    "cancelled": "'cancelled'",
    "parent": "'parent'",
    "awaited": "'awaited'",
    "discarded_unique": f"'discarded_unique', '[3]', unique_policy => {POLICY}",
    "discarded_keyed": "'discarded_keyed', job_key => 'discarded_keyed'",
    "completed_keyed": "'completed_keyed', job_key => 'completed_keyed'",
}
RUNNING = {
    "running", "second", "once", "queued", "first", "halting", "waiting", "retryable", "discarded",
    "completed", "completed_unique", "parent", "awaited",
    "discarded_unique", "discarded_keyed", "completed_keyed",
}  # fmt: skip
CHILDREN = {
    "child": """'child', depends_on => '[{"id": %(parent)s, "on": "end"}]', job_key => 'child'""",
    "dropped": "'dropped', depends_on => '[%(awaited)s]'",
    "met": """'met', depends_on => '[%(completed)s]', run_at => now() + interval '9 years'""",
}


def make(rows: Any) -> dict[str, Any]:
    """Makes them; gives the ids by name, and their runs as run_NAME. `rows` runs SQL."""
    rows(SETTINGS)
    (found,) = rows("select pyworker.register_worker() as worker, pyworker.register_worker() as other")
    named: dict[str, Any] = dict(found)

    def add(name: str, how: str) -> None:
        named[name] = rows(f"select id from pyworker.add_job({how})", named)[0]["id"]

    for name, how in ADDED.items():
        add(name, how)
        if name in RUNNING:
            sql = "select run from pyworker.claim_jobs(%(worker)s, 1, array[%(name)s])"
            named[f"run_{name}"] = rows(sql, {**named, "name": name})[0]["run"]
    ends = """
        select pyworker.wait_for_signal(%(waiting)s, %(run_waiting)s, 'go'),
            pyworker.save_step(%(running)s, %(run_running)s, 'step', '1'),
            pyworker.log_job(%(running)s, %(run_running)s, 'a line'),
            pyworker.set_progress(%(running)s, %(run_running)s, 0.5),
            pyworker.finish_jobs(array[%(completed)s, %(completed_unique)s, %(completed_keyed)s],
                array[%(run_completed)s, %(run_completed_unique)s, %(run_completed_keyed)s]),
            pyworker.fail_jobs(jsonb_build_array(
                jsonb_build_object('id', %(retryable)s, 'run', %(run_retryable)s, 'delay', '9 years'))),
            pyworker.fail_jobs((
                select jsonb_agg(jsonb_build_object('id', j.id, 'run', j.run, 'discard', true))
                from pyworker.jobs j where j.task_identifier ~ '^(discarded|halting)'));
    """
    rows(ends, named)
    rows("select from pyworker.cancel_job(%(cancelled)s)", named)
    for name, how in CHILDREN.items():
        add(name, how)
    rows("select from pyworker.cancel_job(%(dropped)s)", named)
    batch = rows("""select id from pyworker.add_batch('[{"identifier": "m"}]', '{"identifier": "c"}')""")
    named["member"], named["callback"] = (row["id"] for row in batch)
    for _ in range(3):
        rows("select pyworker.promote_jobs()")
    return named
