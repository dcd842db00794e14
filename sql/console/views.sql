-- console/views: the public views, for reading only.
--
-- Payloads and results are left out, as they may be secret. Append new columns at the end.

create or replace view jobs as
select j.id, j.queue_name, j.task_identifier, j.priority, j.run_at, j.attempts, j.max_attempts, j.last_error,
       j.created_at, j.updated_at, j.job_key as key,
       case when j.state = 'running' then j.claimed_at end as locked_at,
       case when j.state = 'running' then j.worker_id::text end as locked_by, j.revision, j.flags, j.state,
       j.delivery,
       encode(j.unique_key, 'hex') as unique_key, j.sequence_key, j.meta, j.run, j.reason, j.finished_at
from live_jobs j;
comment on view jobs is
    'Every job that has not ended, and discarded jobs. First Graphile Worker''s columns, then state, '
    'delivery, keys and meta. The payload is left out; get_job(id) returns it. Completed and cancelled jobs '
    'are in history.';

create or replace view history as
select f.id, f.queue_name, f.task_identifier, f.priority, f.run_at, f.attempts, f.max_attempts, f.last_error,
       f.created_at, f.updated_at, f.job_key as key, f.claimed_at as locked_at,
       f.worker_id::text as locked_by, f.revision, f.flags, f.state, f.delivery,
       encode(f.unique_key, 'hex') as unique_key, f.sequence_key, f.meta, f.run, f.reason, f.finished_at
from finished_jobs f;
comment on view history is
    'Completed and cancelled jobs, until their retention is over. The same columns as jobs; locked_at and '
    'locked_by are those of the last run.';

create or replace view queue_stats as
with counted as materialized (
    select u.queue_name,
           count(*) filter (where u.state = 'available') as available,
           count(*) filter (where u.state = 'running') as running,
           count(*) filter (where u.state = 'pending') as pending,
           count(*) filter (where u.state = 'scheduled') as scheduled,
           count(*) filter (where u.state = 'retryable') as retryable,
           count(*) filter (where u.state = 'discarded') as discarded,
           min(u.run_at) filter (where u.state in ('available', 'pending')) as oldest_waiting
    from (select coalesce(j.queue_name, 'default') as queue_name, j.state, j.run_at from live_jobs j
          union all
          select k.queue_name, null::text as state, null::timestamptz as run_at from queues k) u
    group by u.queue_name)
select c.queue_name, case when c.queue_name <> 'default' then s.concurrency end as concurrency, s.paused,
       c.available, c.running, c.pending, c.scheduled, c.retryable, c.discarded, c.oldest_waiting,
       s.rate_limit, s.rate_period, s.rate_used, s.rate_left, s.rate_free_at, s.fair
from counted c join _limits_of(array(select n.queue_name from counted n)) s on s.queue_name = c.queue_name;
comment on view queue_stats is
    'One row per queue that has live jobs or settings; ''default'' stands for jobs without a queue. '
    'concurrency null means no limit. rate_used and rate_left: how many jobs have started in the window of '
    'rate_period that ends now, and how many may start now; if none, rate_free_at says when. fair: its '
    'family takes turns. The view counts every live job: do not poll it. list_queues() costs less.';

create or replace view sequences as
select s.sequence_key, s.running, s.waiting, h.job_id as halted_by, h.reason, h.at as since
from (select u.sequence_key, max(u.id) filter (where u.sequence_head) as running,
             min(u.id) filter (where u.parked = 'next') as next,
             count(*) filter (where u.parked in ('sequence', 'next')) as waiting,
             min(u.id) filter (where u.parked = 'sequence') as first
      from (select j.sequence_key, j.id, j.sequence_head, j.parked from live_jobs j
            where j.sequence_key is not null and (j.sequence_head or j.parked in ('sequence', 'next'))
            union all
            select h.sequence_key, null::bigint as id, null::boolean as sequence_head, null::text as parked
            from sequence_halts h) u
      group by u.sequence_key) s
left join lateral (
    select h.* from sequence_halts h
    where h.sequence_key = s.sequence_key and s.running is null and s.next is null
      and (s.first is null or h.job_id < s.first)
    order by h.job_id limit 1) h on true;
comment on view sequences is
    'One row per sequence that has jobs to run or is halted. running: the id of the job past pending, if '
    'there is one (it runs, or is the next to run). waiting: how many jobs wait behind it; a job that still '
    'waits for others (depends_on) does not count. halted_by, reason (cancelled or discarded) and since: the '
    'job that halts the sequence; see resume_sequence. The view reads every live job of a sequence: do not '
    'poll it. list_sequences() costs less.';

-- Not _is_registered(w): the roles that read this view may not call it.
create or replace view live_workers as
select w.id, w.info, w.started_at, w.beat_at, w.expires_at from workers w where w.dead_at is null;
comment on view live_workers is
    'Registered workers: those that have not ended and were not declared dead. A worker whose expires_at is '
    'over is not live any more. info is what each reported about itself.';

create or replace view schedules as
select t.name, t.cron, t.timezone, describe_cron(t.cron) as words, t.identifier, t.next_at, t.last_at,
       t.last_job_id, t.paused, t.last_error, t.backfill, t.queue_name, t.max_attempts, t.priority,
       t.job_key, t.job_key_mode, t.query, t.query_role, t.query_limit, t.origin, t.created_at, t.updated_at
from schedule_entries t;
comment on view schedules is
    'One row per schedule. words: the cron expression in English; its times are local to timezone. next_at '
    'and last_at: the next and the last tick. last_job_id: the job that was added last (a query can add '
    'several jobs per tick). last_error: why the last tick failed. origin: ''sql'', ''crontab:NAME'' or '
    '''code:MODULE''.';
