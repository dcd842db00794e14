-- 90_views: the read-only face. Payloads and results stay out: they may be secret. New columns go last.

create or replace view jobs as
select j.id, j.queue_name, j.task_identifier, j.priority, j.run_at, j.attempts, j.max_attempts, j.last_error, j.created_at, j.updated_at,
       j.job_key as key, case when j.state = 'running' then j.claimed_at end as locked_at,
       case when j.state = 'running' then j.worker_id::text end as locked_by, j.revision, j.flags, j.state, j.delivery,
       encode(j.unique_key, 'hex') as unique_key, j.sequence_key, j.meta, j.run, j.reason, j.finished_at
from live_jobs j;
comment on view jobs is
    'Every job that has not ended, and the discarded ones: Graphile Worker''s columns, then state, delivery, keys and meta. Not the payload: '
    'get_job(id) has it. Completed and cancelled jobs are in history.';

create or replace view history as
select f.id, f.queue_name, f.task_identifier, f.priority, f.run_at, f.attempts, f.max_attempts, f.last_error, f.created_at, f.updated_at,
       f.job_key as key, f.claimed_at as locked_at, f.worker_id::text as locked_by, f.revision, f.flags, f.state, f.delivery,
       encode(f.unique_key, 'hex') as unique_key, f.sequence_key, f.meta, f.run, f.reason, f.finished_at
from finished_jobs f;
comment on view history is
    'Completed and cancelled jobs, until their retention is over. The same columns as jobs; locked_at and locked_by tell of the last run.';

create or replace view queue_stats as
select q.queue_name, case when s.queue_name is null and q.queue_name <> 'default' then 1 else s.concurrency end as concurrency,
       coalesce(s.paused, false) as paused,
       count(*) filter (where q.state = 'available') as available, count(*) filter (where q.state = 'running') as running,
       count(*) filter (where q.state = 'pending') as pending, count(*) filter (where q.state = 'scheduled') as scheduled,
       count(*) filter (where q.state = 'retryable') as retryable, count(*) filter (where q.state = 'discarded') as discarded,
       min(q.run_at) filter (where q.state in ('available', 'pending')) as oldest_waiting
from (select coalesce(j.queue_name, 'default') as queue_name, j.state, j.run_at from live_jobs j) q
left join queues s on s.queue_name = q.queue_name
group by q.queue_name, s.queue_name, s.concurrency, s.paused;
comment on view queue_stats is
    'One row per queue that has jobs; ''default'' stands for jobs without a queue. concurrency null means no limit. It counts every '
    'live job: look at it, do not poll it.';

create or replace view live_workers as
select w.id, w.info, w.started_at, w.beat_at, w.expires_at from workers w where w.dead_at is null;
comment on view live_workers is 'Workers that hold a lease. info is what they said of themselves.';
