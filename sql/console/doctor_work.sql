-- console/doctor_work: what doctor() and problems() check of jobs, workers and schedules.

-- The key of a sequence for people: the names and values in a key that is JSON.
create or replace function _sequence_words(sequence_key text) returns text
    language plpgsql stable set search_path from current
as $$
begin
    if left(sequence_key, 1) <> '{' then
        return sequence_key;
    end if;
    return (
        select string_agg(
                   case when jsonb_typeof(e.value) = 'object'
                        then (select string_agg(a.key || ' ' || (a.value #>> '{}'), ', ' order by a.key)
                              from jsonb_each(e.value) a)
                        when e.key = 'kind' then e.value #>> '{}'
                        else e.key || ' ' || (e.value #>> '{}') end, ', ' order by e.key desc)
        from jsonb_each(sequence_key::jsonb) e);
exception when invalid_text_representation then
    return sequence_key;
end;
$$;

-- The first waiting jobs of sequences that ask for a promotion and run none.
create or replace function _next_of_sequences(max_rows integer) returns bigint[]
    language plpgsql stable set search_path from current set enable_seqscan = off set jit = off
as $$
begin
    return array(
        select f.id
        from (select distinct substr(r.lane, length('sequence:') + 1) as key
              from (select p.lane from promotion_requests p limit max_rows) r
              where starts_with(r.lane, 'sequence:')) s
        cross join lateral (
            select l.id from live_jobs l
            where l.sequence_key = s.key and l.parked in ('next', 'sequence')
            order by l.parked, l.id limit 1) f
        where not exists (select from live_jobs h where h.sequence_key = s.key and h.sequence_head)
          and not exists (select from sequence_halts t where t.sequence_key = s.key and t.job_id < f.id));
end;
$$;

-- The jobs that a worker could start or promote, some of each kind, and since when they wait. Not those of a
-- paused queue, which wait whether a worker is alive or not.
create or replace function _waiting_for_workers(max_rows integer) returns table (since timestamptz)
    language plpgsql stable set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_now timestamptz := clock();
begin
    return query
    (select l.ready_at from live_jobs l where l.ready_at is not null and l.state = 'available'
     order by l.priority, l.ready_at, l.id limit max_rows)
    union all
    (select l.due_at from live_jobs l where l.due_at <= v_now order by l.due_at limit max_rows)
    union all
    (with parked as materialized (
        select l.queue_name, l.run_at from live_jobs l where l.parked = 'queue' limit max_rows),
     open as (
        select q.queue_name from _queues_of(array(select distinct p.queue_name from parked p)) q
        where not q.paused)
     select p.run_at from parked p join open o on o.queue_name = p.queue_name)
    union all
    (select l.run_at from live_jobs l
     where l.id = any (_next_of_sequences(max_rows)) and l.run_at <= v_now);
end;
$$;

-- Jobs that wait while no worker is alive (info; warning after a minute), or for a task or queue that no live
-- worker takes; a worker that does not report what it takes counts as taking all. And tasks that two programs
-- declare in two ways: the last one to start wrote the definition.
create or replace function _check_workers()
    returns table (check_name text, severity text, finding text, fix text)
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_now constant timestamptz := clock();
begin
    if not exists (select from workers w where _is_live(w, v_now)) then
        return query
        select 'workers',
               case when min(w.since) <= v_now - interval '1 minute' then 'warning' else 'info' end,
               format('no worker is alive; jobs that wait: %s%s, the first since %s', count(*),
                      case when count(*) >= 10000 then ' or more' end, min(w.since)),
               'start one: pyworker run MODULE'
        from _waiting_for_workers(10000) w having count(*) > 0;
        return;
    end if;
    return query
    with live as materialized (select w as worker from workers w where _is_live(w, v_now)),
    waiting as materialized (
        select j.task_identifier, coalesce(j.queue_name, 'default') as queue_name, count(*) as jobs
        from _some_jobs(50000, '{ready,queued}') j where j.state = 'available' group by 1, 2),
    untaken as (
        select 1 as kind, w.task_identifier as name, sum(w.jobs) as jobs from waiting w
        where not exists (select from live l where _takes(l.worker, w.task_identifier, null, null))
        group by w.task_identifier
        union all
        select 2, w.queue_name, sum(w.jobs) from waiting w
        where not exists (select from live l where _takes(l.worker, null, w.queue_name, null))
        group by w.queue_name)
    select 'tasks', 'warning',
           k.words || _few(array_agg(format('%s (%s)', u.name, u.jobs) order by u.jobs desc, u.name)), k.fix
    from untaken u join (values
        (1, 'jobs wait for tasks that no live worker knows: ',
         'start a worker with its module, or check the --task options and the spelling'),
        (2, 'jobs wait in queues that no live worker serves: ',
         'start a worker without --queue, or with --queue for it')) k(kind, words, fix) on k.kind = u.kind
    group by k.kind, k.words, k.fix order by k.kind;
    return query
    with differing as (
        select d.identifier, o.name as option, o.declared, o.stored,
               string_agg(d.worker, ', ' order by d.worker) as workers
        from (
            select coalesce(w.info ->> 'name', w.id::text) as worker, e.key as identifier, e.value as options
            from workers w
            cross join lateral jsonb_each(
                case when jsonb_typeof(w.info -> 'definitions') = 'object'
                     then w.info -> 'definitions' else '{}' end) e
            where _is_live(w, v_now) and jsonb_typeof(e.value) = 'object') d
        left join tasks t on t.identifier = d.identifier
        cross join lateral (values
            ('max_attempts', d.options -> 'max_attempts', to_jsonb(t.max_attempts)),
            ('priority', d.options -> 'priority', to_jsonb(t.priority)),
            ('queue_name', nullif(d.options -> 'queue_name', '"default"'), to_jsonb(t.queue_name)),
            ('unique_policy', d.options -> 'unique_policy', t.unique_policy),
            ('sequence_policy', d.options -> 'sequence_policy', t.sequence_policy),
            ('delivery', d.options -> 'delivery', to_jsonb(t.delivery)),
            ('timeout', d.options -> 'timeout', to_jsonb(extract(epoch from t.timeout))),
            ('backoff', d.options -> 'backoff', t.backoff),
            ('retention', d.options -> 'retention', to_jsonb(extract(epoch from t.retention)))
        ) o(name, declared, stored)
        where nullif(o.declared, 'null') is distinct from o.stored
        group by 1, 2, 3, 4)
    select 'tasks', 'warning',
           'the code of live workers declares tasks otherwise than the database defines them: '
               || _few(array_agg(format('%s (%s: %s in worker %s, %s in the database)', d.identifier,
                                        d.option, coalesce(d.declared::text, 'none'), d.workers,
                                        coalesce(d.stored::text, 'none'))
                                 order by d.identifier, d.option)),
           'deploy the same code everywhere; then start the workers again, or run: pyworker tasks sync MODULE'
    from differing d having count(*) > 0;
end;
$$;

-- What waits until a person acts: halted sequences, paused queues, lost jobs, and jobs that wait for a parent
-- which has ended otherwise, and need not end with it (on_unmet). Of these it looks at children of discarded
-- jobs, and at others that wait, some of each.
create or replace function _check_work()
    returns table (check_name text, severity text, finding text, fix text)
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
begin
    return query
    select 'sequences', 'info',
           'halted sequences: '
               || _few(array_agg(
                   format('%s by job %s (%s)', _sequence_words(h.sequence_key), h.job_id, h.reason)
                   order by h.sequence_key)),
           array_to_string((array_agg(_fix('select ~.resume_sequence(%L)', h.sequence_key)
                                      order by h.sequence_key))[:5], E';\n')
    from (select distinct on (s.sequence_key) s.sequence_key, s.job_id, s.reason
          from (select a.* from sequence_halts a limit 10000) s
          where _blocks_sequence(s.sequence_key, s.job_id) order by s.sequence_key, s.job_id) h
    having count(*) > 0;
    return query
    with child as materialized (
        select distinct c.id from (
            (select e.child_id as id
             from (select d.id from live_jobs d where d.expires_at is not null
                   order by d.expires_at desc limit 1000) p
             cross join lateral (
                select o.child_id from edges o where o.parent_id = p.id and o.met is null limit 100) e)
            union all
            (select l.id from live_jobs l where l.parked = 'unmet' limit 1000)) c),
    hung as materialized (
        select c.id as child_id, e.condition, e.parent_id, coalesce(p.state, 'deleted') as state,
               p.state in ('discarded', 'cancelled') and p.reason is distinct from 'lost' as runs_again
        from child c join live_jobs j on j.id = c.id and j.parked = 'unmet'
        cross join lateral (
            select f.* from (
                select o.* from _open_edges(j.id, j.revision, coalesce(_open_from(j.id, j.revision), 0)) o
                limit 100) f
            where f.ended and not f.cancels limit 1) e
        cross join lateral get_job(e.parent_id) p)
    select 'dependencies', 'warning',
           'jobs wait for ever, as a job before them has ended otherwise: '
               || _few(array_agg(format('job %s for the %s of job %s (%s)', h.child_id, h.condition,
                                        h.parent_id, h.state) order by h.child_id))
               || '; retry that job, or cancel those that wait',
           array_to_string((array_agg(distinct case when h.runs_again
                then _fix('select * from ~.retry_job(%s)', h.parent_id::text)
                else _fix('select * from ~.cancel_job(%s)', h.child_id::text) end))[:5], E';\n')
    from hung h having count(*) > 0;
    return query
    select 'queues', 'info',
           'jobs wait in paused queues: ' || _few(array_agg(p.queue_name order by p.queue_name)),
           array_to_string((array_agg(_fix('select ~.resume_queue(%L)', p.queue_name)
                                      order by p.queue_name))[:5], E';\n')
    from (select q.queue_name from queues q
          cross join lateral (values (
              right(q.queue_name, 1) = '*', regexp_replace(q.queue_name, '\*$', ''))) n(family, name)
          where q.paused and exists (
              select from (
                  (select j.queue_name from live_jobs j where j.queue_name >= n.name and j.parked = 'queue'
                   order by j.queue_name limit 1)
                  union all
                  (select j.queue_name from live_jobs j where j.queue_name >= n.name
                   and j.ready_at is not null and j.state = 'available' order by j.queue_name limit 1)) f
              where f.queue_name = q.queue_name or n.family and starts_with(f.queue_name, n.name))
          limit 1000) p
    having count(*) > 0;
    return query
    select 'lost', 'warning',
           'jobs with delivery at_most_once were lost, done or not: job '
               || _few(array_agg(l.id::text order by l.id))
               || '; look at each: delete_job if it was done, retry_job if it was not',
           _fix('select id, task_identifier, key, meta, locked_at, last_error from ~.jobs '
                'where reason = ''lost'' order by id')
    from (select j.id, j.reason from live_jobs j where j.expires_at is not null limit 100000) l
    where l.reason = 'lost' having count(*) > 0;
end;
$$;

-- What is late: due jobs, expired jobs, ticks of schedules.
create or replace function _check_times()
    returns table (check_name text, severity text, finding text, fix text)
    language plpgsql set search_path from current
as $$
declare
    v_now timestamptz := clock();
begin
    return query
    select 'maintenance', 'warning',
           format('due jobs are not promoted: the oldest has been due since %s', min(j.due_at)),
           _fix('select * from ~.maintain()')
    from (select l.due_at from live_jobs l where l.due_at < v_now - interval '5 minutes'
          order by l.due_at limit 1) j having count(*) > 0
    union all
    select 'maintenance', 'warning',
           format('expired jobs are not pruned: what expired at %s is still there', min(e.expires_at)),
           _fix('select * from ~.prune()')
    from ((select j.expires_at from live_jobs j
           where j.expires_at < v_now - interval '1 hour' -- prune postpones the expiry of jobs that it keeps
           order by j.expires_at limit 1)
          union all
          (select ((substr(c.relname, 15)::date + 1)::timestamp at time zone 'UTC')
           from pg_inherits i join pg_class c on c.oid = i.inhrelid
           where i.inhparent = 'finished_jobs'::regclass
             and c.relname ~ '^finished_jobs_[0-9]{8}$')) e(expires_at)
    where e.expires_at < v_now - interval '1 hour' having count(*) > 0;
    return query
    select 'schedules', f.severity, f.finding, f.fix from (
        select 1, 'warning',
               'schedules are not fired: '
                   || _few(array_agg(format('%s (due since %s)', t.name, t.next_at) order by t.next_at)),
               _fix('select ~.run_schedules()')
        from schedule_entries t
        where t.next_at < v_now - interval '5 minutes'
          and (t.retry_at is null or t.last_error is null or t.retry_at < v_now - interval '5 minutes')
        having count(*) > 0
        union all
        select 2, 'warning', format('schedule %s failed: %s', t.name, t.last_error),
               _fix('select * from ~.run_schedule(%L)', t.name)
        from schedule_entries t where t.last_error is not null
        union all
        select 3, 'warning',
               format('schedule %s stands still: the clock was set back, its last tick was at %s', t.name,
                      t.last_at),
               _fix('select * from ~.resume_schedule(%L)', t.name)
        from schedule_entries t where t.last_at > v_now + interval '10 minutes'
        union all
        select 4, 'warning',
               'no live worker knows the task of schedules: '
                   || _few(array_agg(format('%s (%s)', t.name, t.identifier) order by t.name)),
               'start a worker with its module, or check the --task options and the schedule'
        from schedule_entries t
        where not t.paused
          and exists (select from workers w where _is_live(w, v_now))
          and not exists (select from workers w
                          where _is_live(w, v_now) and _takes(w, t.identifier, null, null))
        having count(*) > 0
        union all
        select 5, 'info', 'paused schedules: ' || _few(array_agg(t.name order by t.name)),
               array_to_string((array_agg(_fix('select * from ~.resume_schedule(%L)', t.name)
                                          order by t.name))[:5], E';\n')
        from schedule_entries t where t.paused having count(*) > 0) f(step, severity, finding, fix)
    order by f.step, f.finding limit 20;
end;
$$;
