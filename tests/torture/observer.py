"""What the database says: how each job was in the end. And what keeps a snapshot meanwhile."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import psycopg
from psycopg.rows import dict_row

from tests.support.producers import Signs
from tests.support.tasks.recorded_tasks import Recorder

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
