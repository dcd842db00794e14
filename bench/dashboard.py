"""How long the dashboard's pages take with a million live and a million finished jobs.

.venv/bin/python bench/dashboard.py postgresql://…/empty_database    (installs pyworker there and fills it)
"""

from __future__ import annotations

import statistics
import sys
import time

import psycopg
from starlette.testclient import TestClient

from pyworker._db.migrations import migrate
from pyworker.ui import create_app

JOBS = 1_000_000
FINISHED = """
    insert into pyworker.finished_jobs (
        id, run, attempts, state, claimed_at, updated_at, priority, max_attempts, revision, run_at,
        created_at, task_identifier, queue_name, delivery, worker_id, finished_at, expires_at, reason,
        payload)
    select id, 1, 1, case when id % 100 = 0 then 'cancelled' else 'completed' end, at, at, 0, 25, 0, at,
           at - interval '10 s', 'task ' || id % 40, case when id % 10 = 0 then 'customer ' || id % 5000 end,
           'at_least_once', 1, at, at + interval '24 hours', 'completed', '{"a": 1}'
    from (
        select id, now() - interval '20 hours' * ({jobs} - id) / {jobs} as at
        from generate_series(1, {jobs}) id) jobs
    order by id"""
LIVE = """
    insert into pyworker.live_jobs (
        id, state, ready_at, due_at, parked, expires_at, updated_at, priority, max_attempts, run_at,
        created_at, task_identifier, queue_name, delivery, payload, attempts, last_error, reason,
        finished_at)
    select id, state, case when state = 'available' and not waits then run_at end,
           case when state in ('scheduled', 'retryable') then run_at end, case when waits then 'queue' end,
           case when state = 'discarded' then now() + interval '7 days' end, at, id % 3, 25, run_at,
           at, 'task ' || id % 40, case when waits then 'customer ' || id % 5000 end, 'at_least_once',
           '{"a": 1}', 0, case when state = 'discarded' then 'ValueError: declined' end,
           case when state = 'discarded' then 'failed' end, case when state = 'discarded' then at end
    from (
        select id, at, waits, state,
               case when state in ('scheduled', 'retryable') then at + interval '1 day' else at end as run_at
        from (
            select id, now() - interval '3 hours' * (2 * {jobs} - id) / {jobs} as at, id % 10 = 9 as waits,
                   case when id % 10000 = 17 then 'discarded' when id % 5000 = 3 then 'retryable'
                        when id % 10 < 3 then 'scheduled' else 'available' end as state
            from generate_series({jobs} + 1, 2 * {jobs}) id) states) jobs
    order by id"""
PATHS = [
    "/",
    "/?range=24h",
    "/?range=7d",
    "/jobs",
    "/jobs?after=1000000",
    "/jobs?state=discarded",
    "/jobs?state=available",
    "/jobs?state=running",
    "/jobs?state=completed",
    "/jobs?task=task+7",
    "/jobs?queue=customer+9",
    "/jobs?key=nothing",
    "/jobs?search=nothing",
    "/jobs?sort=run_time",
    "/jobs?before=2020-01-01T00:00",
    "/jobs/1500000",
    "/jobs/500000",
    "/queues",
    "/sequences",
    "/schedules",
    "/workers",
    "/health",
    "/audit",
]


def main(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        migrate(conn)
        if conn.execute("select from pyworker.live_jobs limit 1").fetchone() is None:
            for statement in (FINISHED, LIVE):
                conn.execute(statement.replace("{jobs}", str(JOBS)))  # type: ignore[arg-type]
            conn.execute("select setval('pyworker.job_ids', %s)", [2 * JOBS])
            conn.execute("vacuum analyze pyworker.live_jobs, pyworker.finished_jobs")
    with TestClient(create_app(dsn)) as client:
        for path in PATHS:
            client.get(path)
            times = []
            for _ in range(10):
                began = time.perf_counter()
                response = client.get(path)
                times.append((time.perf_counter() - began) * 1000)
                assert response.status_code == 200, response.text
            print(
                f"{path:32} median {statistics.median(times):6.0f} ms   slowest {max(times):6.0f} ms",
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1])
