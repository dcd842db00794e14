"""What the database says: samples while it goes on, and how each job was in the end."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import psycopg
from psycopg.rows import dict_row

from tests.support.tasks.recorded_tasks import Recorder
from tests.torture.producers import Signs

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
FINAL = """
    select j.id, j.task_identifier as task, j.state, j.reason, j.run, j.delivery,
        case when j.task_identifier = 'ticked' then j.task_identifier end as schedule,
        case when j.task_identifier = 'ticked' then j.payload::jsonb #>> '{_cron,ts}' end as due,
        case when j.task_identifier ~ '^trip' then (
            select json_object_agg(s.name, s.result) from pyworker.get_steps(j.id) s) end as steps,
        case when j.task_identifier ~ '^trip' then array(
            select b.step from public.booked b where b.job_id = j.id) end as booked,
        array(select e.run from public.effects e where e.job_id = j.id order by 1) as effects
    from (select id, task_identifier, state, reason, run, delivery, payload::text from pyworker.live_jobs
          union all
          select id, task_identifier, state, reason, run, delivery, payload::text
          from pyworker.finished_jobs) j"""
# Each claim of a queue with a rate, as its transaction wrote it.
STARTS = """
    create table public.begun (queue text, at timestamptz, job_id bigint, run bigint);
    create function public.note_start() returns trigger language plpgsql as $$
    begin
        insert into public.begun values (new.queue_name, new.claimed_at, new.id, new.run);
        return null;
    end $$;
    create trigger note_start after update on pyworker.live_jobs for each row
        when (new.state = 'running' and new.run <> old.run and new.queue_name ~ '^rated')
        execute function public.note_start()"""


def observe(dsn: str, watched: Signs, told: Signs) -> None:
    record = Recorder("observer")
    while not watched.stop.wait(0.2):
        with suppress(psycopg.Error), psycopg.connect(dsn, row_factory=dict_row, connect_timeout=5) as conn:
            conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            jobs = conn.execute(SAMPLE).fetchone()["jobs"]  # type: ignore[index,call-overload]
            values = [
                [name, *(int(conn.execute(sql).fetchone().popitem()[1] or 0) for sql in both)]
                for name, both in VIEWS.items()
            ]  # type: ignore
            record("sample", jobs=jobs, views=values)
            waiting = sum(job["state"] != "discarded" for job in jobs)
            (told.crowded.set if waiting > BACKLOG else told.crowded.clear)()


def pin(dsn: str, signs: Signs) -> None:
    """One snapshot for as long as its connection lives, as of a long report: no vacuum gets past it."""
    while not signs.stop.wait(0.2):
        with suppress(psycopg.Error), psycopg.connect(dsn, connect_timeout=5) as conn:
            conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            while not signs.stop.is_set():
                conn.execute("select from pyworker.live_jobs limit 1")
                signs.stop.wait(0.5)


def finals(dsn: str) -> list[Any]:
    """Writes down how each job is; returns what the invariants find."""
    record = Recorder("final")
    with psycopg.connect(dsn, row_factory=dict_row, options="-c search_path=pyworker") as conn:
        for final in conn.execute(FINAL).fetchall():
            record("final", **final)
        for start in conn.execute("select queue, extract(epoch from at)::float8 as at from public.begun"):
            record("start", **start)
        return conn.execute("select * from _invariants()").fetchall()
