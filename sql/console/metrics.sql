-- console/metrics: metrics(), the figures on which an operator sets alerts.

-- Figures with labels: jobs by state and queue, each way of waiting counted up to max_rows; the oldest
-- available job of each queue; workers by their health; dead rows by table.
create or replace function _labeled_metrics(max_rows integer)
    returns table (name text, kind text, help text, labels jsonb, value double precision)
    language plpgsql stable set search_path from current
as $$
declare
    v_now constant timestamptz := clock();
begin
    return query
    with seen as materialized (
        select j.* from _some_jobs(max_rows) j
    ), counted as materialized (
        select s.state, coalesce(s.queue_name, 'default') as queue, count(*) as n from seen s group by 1, 2
    ), largest as materialized (
        select c.queue from counted c group by c.queue order by sum(c.n) desc, c.queue limit 50)
    select 'pyworker_jobs', 'gauge',
           format('Jobs that have not ended, and discarded ones, by state and queue. Counting stops at %s '
                  'for each way of waiting; queues beyond the 50 largest count as "*".', max_rows),
           jsonb_build_object('state', u.state, 'queue', u.queue), sum(u.n)::double precision
    from (select c.state, case when c.queue in (select l.queue from largest l) then c.queue
                               else '*' end as queue, c.n from counted c
          union all -- a zero for each state, so that its series exists without jobs
          select k.state, 'default', 0
          from unnest(array['scheduled', 'pending', 'available', 'running', 'retryable',
                            'discarded']) k(state)) u
    group by u.state, u.queue
    union all
    select 'pyworker_claim_lag_seconds', 'gauge',
           'How late the running jobs were begun: the longest time from run_at to the claim among them.',
           null, coalesce(extract(epoch from max(s.late)), 0)::double precision
    from seen s where s.state = 'running'
    union all
    (select 'pyworker_queue_oldest_available_seconds', 'gauge',
            'For how long the oldest available job of a queue has been waiting, in the 50 queues where that '
            'is longest. Looks at up to 5,000 jobs, the first by id and the first in the order of claims.',
            jsonb_build_object('queue', o.queue_name),
            extract(epoch from v_now - o.since)::double precision
     from _oldest_by_queue(least(max_rows, 5000)) o order by o.since, o.queue_name limit 50)
    union all
    select 'pyworker_workers', 'gauge',
           'Worker processes that were not declared dead: ready ones claim jobs, live ones are starting or '
           'stopping, lost ones do not beat or are stuck.',
           jsonb_build_object('health', k.health), count(h.worker_id)::double precision
    from unnest(array['ready', 'live', 'lost']) k(health)
    left join worker_health() h
        on k.health = case when h.ready then 'ready' when h.live then 'live' else 'lost' end
    group by k.health
    union all
    select 'pyworker_dead_rows', 'gauge', 'Rows that vacuum has to remove, by the statistics of the server.',
           jsonb_build_object('table', k.name), pg_stat_get_dead_tuples(k.name::regclass)
    from unnest(array['live_jobs', 'promotion_requests', 'unique_keys']) k(name);
end;
$$;

create or replace function metrics(max_rows integer default 10000)
    returns table (name text, kind text, help text, labels jsonb, value double precision)
    language plpgsql stable security definer set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off -- these would not stop early
    set enable_sort = off set enable_incremental_sort = off set jit = off
as $$
declare
    v_now constant timestamptz := clock();
begin
    perform _refuse(case when (max_rows < 1) is not false then
        format('metrics: max_rows must be at least 1, got %s', coalesce(max_rows::text, 'NULL')) end);
    return query
    select l.name, l.kind, l.help, coalesce(l.labels, '{}'), l.value from _labeled_metrics(max_rows) l
    union all
    select l.* from _metrics_of_limits() l
    union all
    select m.name, m.kind, m.help, '{}', m.value from (values
        ('pyworker_oldest_available_seconds', 'gauge',
         'For how long the oldest job that may be claimed has been waiting. While no worker is alive also '
         'jobs that a worker would make available.',
         coalesce(extract(epoch from v_now - least( -- no worker has promoted the second ones
             (select o.ready_at from _oldest_available() o),
             (select min(w.since) from _waiting_for_workers(max_rows) w
              where not exists (select from workers v where _is_live(v, v_now))))), 0)::double precision),
        ('pyworker_expired_leases', 'gauge',
         'Worker processes whose lease has run out, with jobs that were not rescued yet.',
         (select count(*) from workers w where _is_registered(w) and not _is_live(w, v_now))),
        ('pyworker_sequences_halted', 'gauge',
         'Sequences that stand still at a job (1,000 halts are looked at).',
         (select count(distinct h.sequence_key) from (select s.* from sequence_halts s limit 1000) h
          where _blocks_sequence(h.sequence_key, h.job_id))),
        ('pyworker_queues_paused', 'gauge', 'Queues that are paused.',
         (select count(*) from queues q where q.paused)),
        ('pyworker_schedules_overdue', 'gauge', 'Schedules whose tick is more than 10 seconds late.',
         (select count(*) from schedule_entries t where t.next_at < v_now - interval '10 seconds')),
        ('pyworker_promotion_requests', 'gauge',
         format('Promotion requests that are due and that no worker has processed, up to %s.', max_rows),
         (select count(*) from (
             (select from promotion_requests w where w.at is null limit max_rows)
             union all (select from promotion_requests t where t.at <= v_now limit max_rows)
             limit max_rows) r)),
        ('pyworker_jobs_added_total', 'counter', 'Jobs that were ever added.',
         (select case when i.is_called then i.last_value else 0 end from job_ids i)),
        ('pyworker_jobs_ended_total', 'counter',
         'Jobs completed, cancelled or deleted, by the statistics of the server.',
         pg_stat_get_tuples_deleted('live_jobs'::regclass)),
        ('pyworker_attempts_failed_total', 'counter',
         'Attempts that failed, by the statistics of the server.',
         pg_stat_get_tuples_inserted('errors'::regclass)),
        ('pyworker_oldest_xmin_age', 'gauge',
         'Transactions begun since the oldest one that keeps vacuum from removing dead rows.',
         (select coalesce(max(x.age), 0) from (
              select greatest(age(a.backend_xmin), age(a.backend_xid)) as age from pg_stat_activity a
              where a.pid <> pg_backend_pid() and (a.datname = current_database() or a.datname is null)
                and coalesce(a.backend_type, '') <> 'autovacuum worker'
              union all
              select age(p.transaction) from pg_prepared_xacts p where p.database = current_database()
              union all
              select greatest(age(s.xmin), age(s.catalog_xmin)) from pg_replication_slots s
              where s.database = current_database() or s.database is null) x))) m(name, kind, help, value);
end;
$$;
comment on function metrics(integer) is
    'Figures about the queue for a monitoring system: one row per metric and set of labels, with names and '
    'kinds as in Prometheus. The cost does not depend on the number of jobs, as every count stops at '
    'max_rows. `pyworker metrics` prints them. Errors: PW001.';
