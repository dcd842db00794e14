"""A database with jobs in every state, made by the functions of the installed version, in plain SQL."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.types.json import Jsonb

# What waits for people or for the year 2099, and so is left when workers have done everything else.
LEFT = {"later", "held", "halted", "approval", "yearly"}

ADDS = """
    select pyworker.define_task('defined', max_attempts => 3, priority => 5);
    select pyworker.set_queue('mail', 2);
    select pyworker.set_queue('customer:*', 2, 50, '1 second', true);
    select pyworker.set_queue('api', null, 1, '1 second');
    select pyworker.add_job('plain', json_build_object('n', n)) from generate_series(1, 5) n;
    select pyworker.add_job('defined', flags => '{red}', meta => '{"by": "upgrade"}', priority => -3);
    select pyworker.add_job('due', run_at => now() + interval '1 second');
    select pyworker.add_job('later', run_at => '2099-01-01');
    select pyworker.add_job('serial', queue_name => 'serial') from generate_series(1, 3);
    select pyworker.add_job('mail', queue_name => 'mail') from generate_series(1, 5);
    select pyworker.add_job('turn', queue_name => 'customer:' || n % 3) from generate_series(1, 9) n;
    select pyworker.add_job('api', queue_name => 'api') from generate_series(1, 3);
    select pyworker.add_job('held', queue_name => 'held') from generate_series(1, 2);
    select pyworker.pause_queue('held');
    select pyworker.add_job('ordered', sequence_policy => '{"key": "s"}') from generate_series(1, 3);
    select pyworker.add_job('keyed', '[1]', job_key => 'k');
    select pyworker.add_job('keyed', '[2]', job_key => 'k', max_wait => '1 hour');
    select pyworker.add_job('unique', '{"a": 1}', unique_policy => '{"keys": ["args"]}');
    select pyworker.add_job('expiring', expires_at => now() + interval '1 second', run_at => '2099-01-01');
    select pyworker.add_batch('[{"identifier": "member"}, {"identifier": "member"}]',
                              '{"identifier": "callback"}');
    select pyworker.add_jobs('[{"identifier": "parent", "ref": "p"},
        {"identifier": "child", "depends_on": ["p"]},
        {"identifier": "refused", "depends_on": {"jobs": [{"ref": "p", "on": "failure"}],
                                                 "on_unmet": "cancel"}}]');
    select pyworker.add_schedule('hourly', '0 * * * *', 'tick', backfill => '1 day');
    select pyworker.add_schedule('yearly', '0 0 1 1 *', 'yearly');
    select pyworker.pause_schedule('yearly');
"""


class Worker:
    """A worker of two calls, as any language has it."""

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        self.conn = conn
        self.id = self.value("select pyworker.open_worker() ->> 'worker'")

    def value(self, statement: str, *parameters: Any) -> Any:
        row = self.conn.execute(statement, parameters).fetchone()  # type: ignore[arg-type]
        return row and row[0]

    def work(self, done: list[tuple[int, int]], most: int, task: str | None = None) -> list[Any]:
        return self.conn.execute(
            "select id, run, task_identifier, delivery from pyworker.work("
            "  %s, %s::bigint[], %s::bigint[], null, null, %s, %s) where kind = 'job'",
            [self.id, [d[0] for d in done], [d[1] for d in done], most, [task] if task else None],
        ).fetchall()

    def claim(self, identifier: str, **named: Any) -> tuple[int, int]:
        names = "".join(f", {name} => %({name})s" for name in named)
        self.conn.execute(
            f"select from pyworker.add_job(%(identifier)s{names})",  # type: ignore[arg-type]
            {"identifier": identifier, **named},
        )
        ((job_id, run, *_),) = self.work([], 1, identifier)
        return job_id, run


def fill(conn: psycopg.Connection[Any]) -> None:
    """Ends with jobs that run: their worker is gone when the database is used again."""
    worker = Worker(conn)
    completed, run = worker.claim("completed")
    conn.execute("select pyworker.log_job(%s, %s, 'a line')", [completed, run])
    conn.execute("select pyworker.set_progress(%s, %s, 0.5)", [completed, run])
    conn.execute("select pyworker.finish_jobs(%s, %s, %s)", [[completed], [run], ['{"sum": 3}']])
    for identifier in ("failed", "discarded", "halting"):
        named = {"sequence_policy": '{"key": "h"}'} if identifier == "halting" else {}
        job_id, run = worker.claim(identifier, **named)
        error = {"error": "Traceback\nValueError: of old", "discard": identifier != "failed"}
        report = {"id": job_id, "run": run, **error}
        conn.execute("select pyworker.fail_jobs(%s)", [Jsonb([report])])
    conn.execute("select pyworker.add_job('halted', sequence_policy => '{\"key\": \"h\"}')")
    cancelled = worker.value("select id from pyworker.add_job('cancelled')")
    conn.execute("select pyworker.cancel_job(%s)", [cancelled])
    job_id, run = worker.claim("approval")
    conn.execute("select pyworker.save_step(%s, %s, 'charged', '7')", [job_id, run])
    assert worker.value("select pyworker.wait_for_signal(%s, %s, 'yes')", job_id, run) is None
    job_id, run = worker.claim("begun", delivery="at_most_once")
    assert worker.value("select pyworker.start_job(%s, %s)", job_id, run)
    worker.claim("reserved", delivery="at_most_once")
    worker.claim("running")
    conn.execute(ADDS)  # type: ignore[arg-type]
    for task in ("mail", "api", "turn", "serial", "ordered"):
        worker.work([], 1, task)
