-- console/pages: the figures and lists of a dashboard: overview, count_jobs,
-- list_workers, list_queues, list_sequences.
--
-- Each function costs about the same at a million jobs: it uses an index, or reads a limited number
-- of rows and then returns exact = false. None returns a payload or a result.

-- How many rows the planner expects from a query.
create or replace function _estimated_rows(query text) returns bigint
    language plpgsql set search_path from current
as $$
declare
    v_plan json;
begin
    execute 'explain (format json) ' || query into v_plan;
    return (v_plan #>> '{0,Plan,Plan Rows}')::numeric;
end;
$$;

-- Up to max_rows live jobs of each of these kinds, which indexes know: jobs that are ready or run (running
-- ones come first), wait for a time, for their queue, for something else, or are discarded.
create or replace function _some_jobs(
    max_rows bigint, kinds text[] default '{ready,timed,queued,parked,discarded}')
    returns table (kind text, id bigint, state text, task_identifier text, queue_name text, late interval)
    language plpgsql stable set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off
    set enable_sort = off set enable_incremental_sort = off set jit = off
as $$
begin
    return query
    select k.kind, k.id, k.state, k.task_identifier, k.queue_name, k.claimed_at - k.run_at
    from ((select 'ready' as kind, l.* from live_jobs l
           where l.ready_at is not null and 'ready' = any (kinds)
           order by l.priority, l.ready_at, l.id limit max_rows)
          union all
          (select 'timed', l.* from live_jobs l
           where l.due_at is not null and l.parked is null and 'timed' = any (kinds)
           order by l.due_at, l.id limit max_rows)
          union all
          (select 'queued', l.* from live_jobs l where l.parked = 'queue' and 'queued' = any (kinds)
           order by l.queue_name, l.priority, l.run_at, l.id limit max_rows)
          union all
          (select 'parked', l.* from live_jobs l where l.parked <> 'queue' and 'parked' = any (kinds)
           order by l.sequence_key, l.parked, l.id limit max_rows)
          union all
          (select 'discarded', l.* from live_jobs l
           where l.expires_at is not null and 'discarded' = any (kinds)
           order by l.expires_at limit max_rows)) k;
end;
$$;

create or replace function count_jobs() returns table (state text, jobs bigint, exact boolean)
    language plpgsql security definer set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
#variable_conflict use_column
declare
    v_most constant bigint := 10000;
begin
    return query
    with looked as materialized (
        select j.kind, j.state from _some_jobs(v_most) j
        union all
        (select 'past', f.state from finished_jobs f limit v_most)),
    tallied as (
        select k.kind, k.state, count(*) as jobs, sum(count(*)) over (partition by k.kind) < v_most as whole
        from looked k group by k.kind, k.state)
    select s.state,
           -- running jobs come first in the order of claims
           case when t.whole or s.state = 'running' then t.jobs
                else greatest(t.jobs, _estimated_rows(format('select from %s j where j.state = %L', s.source,
                                                             s.state))) end,
           t.whole
    from (values
        (1, '{timed}'::text[], 'scheduled', 'live_jobs'), (2, '{parked}', 'pending', 'live_jobs'),
        (3, '{ready,queued}', 'available', 'live_jobs'), (4, '{ready}', 'running', 'live_jobs'),
        (5, '{timed}', 'retryable', 'live_jobs'), (6, '{past}', 'completed', 'finished_jobs'),
        (7, '{past}', 'cancelled', 'finished_jobs'), (8, '{discarded}', 'discarded', 'live_jobs'))
        s(place, kinds, state, source)
    cross join lateral (
        select coalesce(sum(k.jobs) filter (where k.state = s.state), 0)::bigint as jobs,
               coalesce(bool_and(k.whole), true) as whole
        from tallied k where k.kind = any (s.kinds)) t
    order by s.place;
end;
$$;
comment on function count_jobs() is
    'How many jobs there are in each state. It counts up to 10,000 jobs of a kind. Beyond that exact is '
    'false, and the number is what the planner expects (for running jobs: those among the first 10,000 in '
    'the order of claims).';

create or replace function list_workers() returns table (
    id bigint, info jsonb, started_at timestamptz, beat_at timestamptz, expires_at timestamptz,
    silent boolean, running bigint, jobs jsonb)
    language plpgsql stable security definer set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
#variable_conflict use_column
declare
    v_now constant timestamptz := clock();
begin
    return query
    with running as materialized (
        select r.* from (select j.id, j.task_identifier, j.state, j.worker_id, j.claimed_at,
                                j.cancel_requested_at
                         from live_jobs j where j.ready_at is not null order by j.priority, j.ready_at, j.id
                         limit 20000) r
        where r.state = 'running')
    select w.id, w.info, w.started_at, w.beat_at, w.expires_at, not _is_live(w, v_now),
           (select count(*) from running r where r.worker_id = w.id),
           (select jsonb_agg(jsonb_build_object('id', t.id, 'task_identifier', t.task_identifier,
                                                'since', t.claimed_at,
                                                'cancel_requested_at', t.cancel_requested_at)
                             order by t.claimed_at, t.id)
            from (select r.* from running r where r.worker_id = w.id order by r.claimed_at, r.id limit 20) t)
    from workers w where _is_registered(w)
    order by w.id;
end;
$$;
comment on function list_workers() is
    'The workers that were not declared dead. silent: its lease has ended. running: how many jobs it runs. '
    'jobs: the twenty that have run longest. The running jobs are looked up among the first 20,000 available '
    'and running jobs in the order of claims, in which running jobs come first.';

create or replace function list_queues(after_name text default null, max_queues integer default 50)
    returns table (queue_name text, concurrency integer, paused boolean, available bigint, running bigint,
                   exact boolean, oldest timestamptz, oldest_id bigint, rate_limit integer,
                   rate_period interval, rate_used bigint, rate_left bigint, rate_free_at timestamptz,
                   fair boolean)
    language plpgsql stable security definer set search_path from current
    set enable_seqscan = off set enable_sort = off set enable_incremental_sort = off set jit = off
    set plan_cache_mode = force_generic_plan -- to plan for each queue takes longer than to count it
as $$
#variable_conflict use_column
begin
    queue_name := coalesce(after_name, '');
    for i in 1..least(max_queues, 1000) loop
        -- The next name: each query skips to it in an index, without reading all jobs of the queue before.
        queue_name := least(
            (select q.queue_name from queues q where q.queue_name > list_queues.queue_name
             order by q.queue_name limit 1),
            (select j.queue_name from live_jobs j where j.queue_name > list_queues.queue_name
             and j.ready_at is not null and j.queue_name is not null order by j.queue_name limit 1),
            (select j.queue_name from live_jobs j where j.queue_name > list_queues.queue_name
             and j.parked = 'queue' order by j.queue_name limit 1));
        exit when list_queues.queue_name is null;
        select q.concurrency, q.paused, q.rate_limit, q.rate_period, q.rate_used, q.rate_left,
               q.rate_free_at, q.fair
        into concurrency, paused, rate_limit, rate_period, rate_used, rate_left, rate_free_at, fair
        from _limits_of(array[list_queues.queue_name]) q;
        select count(*) filter (where t.state = 'available'), count(*) filter (where t.state = 'running'),
               count(*) < 1000, min(t.run_at) filter (where t.state = 'available'),
               (array_agg(t.id order by t.run_at, t.id) filter (where t.state = 'available'))[1]
        into available, running, exact, oldest, oldest_id
        from ((select j.id, j.state, j.run_at from live_jobs j
               where j.queue_name = list_queues.queue_name and j.ready_at is not null
                 and j.queue_name is not null
               order by j.queue_name, j.priority, j.run_at, j.id limit 1000)
              union all
              (select j.id, j.state, j.run_at from live_jobs j
               where j.queue_name = list_queues.queue_name and j.parked = 'queue'
               order by j.queue_name, j.priority, j.run_at, j.id limit 1000)) t;
        return next;
    end loop;
end;
$$;
comment on function list_queues(text, integer) is
    'Queues by name: those that were set or paused, and those with available or running jobs. available and '
    'running are counted up to 1,000 jobs; beyond that exact is false. oldest: the run_at of the available '
    'job, among those that were counted, that has waited longest; oldest_id: its id. rate_used, rate_left, '
    'rate_free_at: see queue_stats. For the next page, set after_name to the last name of this one. The view '
    'queue_stats counts all jobs.';

create or replace function list_sequences(halted boolean default false, after_key text default null,
                                          max_sequences integer default 50)
    returns table (sequence_key text, running bigint, waiting bigint, halted_by bigint, reason text,
                   since timestamptz, exact boolean)
    language plpgsql stable security definer set search_path from current
    set enable_seqscan = off set jit = off
as $$
#variable_conflict use_column
declare
    v_name text := coalesce(after_key, '');
    v_left integer := least(max_sequences, 1000);
    v_head live_jobs;
    v_first bigint;
begin
    while v_left > 0 loop
        v_name := least(
            (select h.sequence_key from sequence_halts h where h.sequence_key > v_name
             order by h.sequence_key limit 1),
            (select j.sequence_key from live_jobs j where not halted and j.sequence_key > v_name
             and j.sequence_head order by j.sequence_key limit 1),
            (select j.sequence_key from live_jobs j where not halted and j.sequence_key > v_name
             and j.parked <> 'queue' and j.parked in ('sequence', 'next') order by j.sequence_key limit 1));
        exit when v_name is null;
        sequence_key := v_name;
        select j.* into v_head from live_jobs j where j.sequence_key = v_name and j.sequence_head;
        running := v_head.id;
        select count(*), min(w.id) into waiting, v_first
        from (select j.id from live_jobs j
              where j.sequence_key = v_name and j.parked <> 'queue' and j.parked in ('sequence', 'next')
              order by j.parked, j.id limit 1000) w;
        exact := waiting < 1000;
        -- The same rule as in the view sequences.
        select h.job_id, h.reason, h.at into halted_by, reason, since
        from sequence_halts h
        where h.sequence_key = v_name and v_head.id is null and (v_first is null or h.job_id < v_first)
          and not exists (select from live_jobs j where j.sequence_key = v_name and j.parked = 'next')
        order by h.job_id limit 1;
        continue when halted and halted_by is null;
        v_left := v_left - 1;
        return next;
    end loop;
end;
$$;
comment on function list_sequences(boolean, text, integer) is
    'Sequences by key that have jobs to run or are halted, with the columns of the view sequences. waiting '
    'is counted up to 1,000; beyond that exact is false. halted: only halted sequences. For the next page, '
    'set after_key to the last key of this one.';

-- The available job that has waited longest: the first one of a priority, of at most 100. The recursion skips
-- through the index of claims from priority to priority.
create or replace function _oldest_available()
    returns table (job_id bigint, task_identifier text, ready_at timestamptz)
    language plpgsql stable set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off
    set enable_sort = off set enable_incremental_sort = off set jit = off
as $$
begin
    return query
    with recursive p as (
        (select j.priority, 1 as n from live_jobs j where j.ready_at is not null order by j.priority limit 1)
        union all
        select (select j.priority from live_jobs j where j.ready_at is not null and j.priority > p.priority
                order by j.priority limit 1), p.n + 1
        from p where p.priority is not null and p.n < 100)
    select o.id, o.task_identifier, o.ready_at
    from p cross join lateral (
        select j.id, j.task_identifier, j.ready_at from live_jobs j
        where j.ready_at is not null and j.priority = p.priority and j.state = 'available'
        order by j.priority, j.ready_at, j.id limit 1) o
    order by o.ready_at, o.id limit 1;
end;
$$;

create or replace function overview() returns jsonb
    language plpgsql security definer set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_now timestamptz := clock();
begin
    return jsonb_build_object(
        'at', v_now,
        'states', (select jsonb_object_agg(c.state, jsonb_build_object('jobs', c.jobs, 'exact', c.exact))
                   from count_jobs() c),
        'oldest', (select jsonb_build_object('id', o.job_id, 'task_identifier', o.task_identifier,
                                             'since', o.ready_at,
                                             'seconds', extract(epoch from v_now - o.ready_at)::bigint)
                   from _oldest_available() o),
        'waiting', (select coalesce(jsonb_agg(to_jsonb(q) order by q.seconds desc, q.queue_name), '[]')
                    from (select o.queue_name, o.job_id,
                                 extract(epoch from v_now - o.since)::bigint as seconds
                          from _oldest_by_queue() o order by o.since limit 8) q),
        'workers', (select count(*) from workers w where _is_live(w, v_now)),
        'silent_workers', (select count(*) from workers w where _is_registered(w) and not _is_live(w, v_now)),
        'halted_sequences', (select count(*) from list_sequences(true, null, 1000)),
        'paused_queues', (select coalesce(jsonb_agg(q.queue_name order by q.queue_name), '[]')
                          from (select k.queue_name from queues k where k.paused order by k.queue_name
                                limit 100) q),
        'schedules', (select count(*) from schedule_entries t),
        'next_tick', (select jsonb_build_object('name', t.name, 'at', t.next_at) from schedule_entries t
                      where t.next_at is not null order by t.next_at limit 1),
        'failed_ticks', (select count(*) from schedule_entries t where t.last_error is not null));
end;
$$;
comment on function overview() is
    'The state of the installation as one JSON object: at, states (as count_jobs), oldest (the available job '
    'that has waited longest), waiting (the eight queues whose oldest available job, among some 10,000, '
    'waits longest), workers, silent_workers, halted_sequences (counted up to 1,000), paused_queues (100 '
    'names at most), schedules, next_tick, failed_ticks.';
