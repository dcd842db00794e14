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
FILL = """
insert into pyworker.finished_jobs (id, run, attempts, state, claimed_at, updated_at, priority, max_attempts, revision, run_at, created_at,
    task_identifier, queue_name, delivery, worker_id, finished_at, expires_at, reason, payload)
select g, 1, 1, case when g % 100 = 0 then 'cancelled' else 'completed' end, at, at, 0, 25, 0, at, at - interval '10 s', 'task ' || g % 40,
       case when g % 10 = 0 then 'customer ' || g % 5000 end, 'at_least_once', 1, at, at + interval '24 hours', 'completed', '{"a": 1}'
from (select g, now() - interval '20 hours' * (%(n)s - g) / %(n)s as at from generate_series(1, %(n)s) g) s order by g;
insert into pyworker.live_jobs (id, state, ready_at, due_at, parked, expires_at, updated_at, priority, max_attempts, run_at, created_at,
    task_identifier, queue_name, delivery, payload, attempts, last_error, reason, finished_at)
select g, state, case when state = 'available' then at end, case when state in ('scheduled', 'retryable') then at + interval '1 day' end,
       case when state = 'pending' then 'queue' end, case when state = 'discarded' then now() + interval '7 days' end, at, g % 3, 25, at, at,
       'task ' || g % 40, case when state = 'pending' then 'customer ' || g % 5000 end, 'at_least_once', '{"a": 1}', 0,
       case when state = 'discarded' then 'ValueError: declined' end, case when state = 'discarded' then 'failed' end,
       case when state = 'discarded' then at end
from (select g, now() - interval '3 hours' * (2 * %(n)s - g) / %(n)s as at,
             case when g % 10000 = 17 then 'discarded' when g % 5000 = 3 then 'retryable' when g % 10 < 3 then 'scheduled'
                  when g % 10 = 9 then 'pending' else 'available' end as state
      from generate_series(%(n)s + 1, 2 * %(n)s) g) s order by g;
select setval('pyworker.job_ids', 2 * %(n)s);
"""
PATHS = [
    "/", "/jobs", "/jobs?after=1000000", "/jobs?state=discarded", "/jobs?state=available", "/jobs?state=running", "/jobs?state=completed",
    "/jobs?task=task+7", "/jobs?queue=customer+9", "/jobs?key=nothing", "/jobs?search=nothing", "/jobs?before=2020-01-01T00:00", "/jobs/1500000",
    "/jobs/500000", "/queues", "/sequences", "/schedules", "/workers", "/audit",
]  # fmt: skip


def main(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        migrate(conn)
        if not conn.execute("select from pyworker.live_jobs limit 1").fetchone():
            for statement in FILL.split(";\n"):
                if statement.strip():
                    conn.execute(statement.replace("%(n)s", str(JOBS)).replace("%%", "%"))  # type: ignore[arg-type]
            conn.execute("vacuum analyze pyworker.live_jobs")
            conn.execute("vacuum analyze pyworker.finished_jobs")
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
