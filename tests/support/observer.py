"""What the database says while it goes on."""

from __future__ import annotations

import threading
from contextlib import suppress

import psycopg
from psycopg.rows import dict_row

from tests.support.tasks.recorded_tasks import Recorder

BACKLOG = 300

SAMPLE = """
    select coalesce(json_agg(json_build_object(
        'id', j.id, 'state', j.state, 'run', j.run, 'key', j.job_key, 'unique', encode(j.unique_key, 'hex'),
            'sequence', j.sequence_key,
        'queue', j.queue_name, 'worker', (w.info ->> 'pid')::bigint,
            'since', extract(epoch from w.started_at))), '[]') as jobs
    from pyworker.live_jobs j left join pyworker.workers w on w.id = j.worker_id
    where j.state <> 'discarded' or j.job_key is not null -- the others only grow in number"""
VIEWS = {
    "jobs": ("select count(*) from pyworker.jobs", "select count(*) from pyworker.live_jobs"),
    "history": ("select count(*) from pyworker.history", "select count(*) from pyworker.finished_jobs"),
    "queue_stats": (
        "select sum(available + running + pending + scheduled + retryable + discarded) "
        "from pyworker.queue_stats",
        "select nullif(count(*), 0) from pyworker.live_jobs",
    ),
    "live_workers": (
        "select count(*) from pyworker.live_workers",
        "select count(*) from pyworker.workers where dead_at is null",
    ),
}


def observe(
    dsn: str, stop: threading.Event, crowded: threading.Event, looking: threading.Lock | None = None
) -> None:
    """Writes down samples, and tells by `crowded` whether many jobs wait. `looking` is held while it looks:
    who holds it keeps the observer away."""
    record, looking = Recorder("observer"), looking or threading.Lock()
    while not stop.wait(0.2):
        with (
            looking,
            suppress(psycopg.Error),
            psycopg.connect(dsn, row_factory=dict_row, connect_timeout=5) as conn,
        ):
            conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            jobs = conn.execute(SAMPLE).fetchone()["jobs"]  # type: ignore[index,call-overload]
            values = [
                [name, *(int(conn.execute(sql).fetchone().popitem()[1] or 0) for sql in both)]
                for name, both in VIEWS.items()
            ]  # type: ignore
            record("sample", jobs=jobs, views=values)
            waiting = sum(job["state"] != "discarded" for job in jobs)
            (crowded.set if waiting > BACKLOG else crowded.clear)()
