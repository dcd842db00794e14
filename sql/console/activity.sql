-- console/activity: throughput() and activity(), what has happened lately, from the last pages of
-- history and of errors.

-- The jobs that ended and the attempts that failed since then, from the last pages of history and of errors,
-- whose rows are never updated: of at most 1,000 pages of a table, so each row stands for `weight` of them.
-- waited, ran: seconds, of completed jobs only. job_id: of failed attempts only, in place of task and queue.
create or replace function _outcomes_since(since timestamptz)
    returns table (outcome text, at timestamptz, waited double precision, ran double precision,
                   task_identifier text, queue_name text, job_id bigint, weight bigint)
    language plpgsql stable set search_path from current
as $$
declare
    v_source regclass;
    v_column name;
    v_pages bigint;
    v_first bigint;
    v_back bigint;
    v_at timestamptz;
begin
    for v_source, v_column in
        select i.inhrelid::regclass, 'finished_at' from pg_inherits i
        where i.inhparent = 'finished_jobs'::regclass
        union all
        select 'errors', 'at'
    loop
        v_pages := pg_relation_size(v_source) / current_setting('block_size')::bigint;
        v_back := 1;
        loop
            v_first := greatest(v_pages - v_back, 0);
            exit when v_first = 0;
            execute format('select max(s.%I) from %s s where s.ctid >= $1 and s.ctid < $2', v_column,
                           v_source)
            into v_at using format('(%s,0)', v_first)::tid, format('(%s,0)', v_first + 1)::tid;
            exit when v_at < since;
            v_back := v_back * 2;
        end loop;
        return query execute format(
            'select s.*, $1 from generate_series($2, $3, $1) b(page), '
            'lateral (select %s from %s s where s.ctid >= format(''(%%s,0)'', b.page)::tid '
            'and s.ctid < format(''(%%s,0)'', b.page + 1)::tid offset 0) s where s.at >= $4',
            case when v_source = 'errors'::regclass
                 then '''failed'', s.at, null::float, null::float, null::text, null::text, s.job_id'
                 else 's.state, s.finished_at as at, case s.state when ''completed'' then '
                      'greatest(extract(epoch from s.claimed_at - s.run_at), 0)::float end, '
                      'case s.state when ''completed'' then '
                      'greatest(extract(epoch from s.finished_at - s.claimed_at), 0)::float end, '
                      's.task_identifier, s.queue_name, null::bigint' end,
            v_source)
            using greatest((v_pages - v_first + 999) / 1000, 1), v_first, v_pages - 1, since;
    end loop;
end;
$$;

create or replace function throughput(minutes integer default 60, step integer default 1)
    returns table (minute timestamptz, completed bigint, cancelled bigint, failed bigint,
                   waited_p50 double precision, waited_p95 double precision, ran_p50 double precision,
                   ran_p95 double precision, exact boolean)
    language plpgsql stable security definer set search_path from current
    set enable_seqscan = off set jit = off
as $$
declare
    v_step interval := make_interval(mins => greatest(step, 1));
    v_until timestamptz := date_bin(v_step, clock(), '2000-01-01 00:00+00');
    v_since timestamptz := v_until - v_step * (least(greatest(minutes, 1), 10080) / greatest(step, 1) - 1);
begin
    perform _refuse('throughput: ' || case
        when coalesce(minutes, 0) not between 1 and 10080 then
            format('minutes must be from 1 to 10080, got %s', coalesce(minutes::text, 'NULL'))
        when coalesce(step, 0) not between 1 and minutes or minutes / step > 1440 then
            format('step must be from 1 to minutes, with at most 1440 steps, got %s',
                   coalesce(step::text, 'NULL')) end);
    return query
    select m.minute, coalesce(sum(o.weight) filter (where o.outcome = 'completed'), 0)::bigint,
           coalesce(sum(o.weight) filter (where o.outcome = 'cancelled'), 0)::bigint,
           coalesce(sum(o.weight) filter (where o.outcome = 'failed'), 0)::bigint,
           percentile_disc(0.5) within group (order by o.waited),
           percentile_disc(0.95) within group (order by o.waited),
           percentile_disc(0.5) within group (order by o.ran),
           percentile_disc(0.95) within group (order by o.ran),
           coalesce(bool_and(bool_and(o.weight = 1)) over (), true)
    from generate_series(v_since, v_until, v_step) m(minute)
    left join _outcomes_since(v_since) o
        on date_bin(v_step, o.at, '2000-01-01 00:00+00') = m.minute
    group by m.minute order by m.minute;
end;
$$;
comment on function throughput(integer, integer) is
    'For each step of the last minutes (1 to 10080), by default for each minute: how many jobs were '
    'completed and cancelled, and how many attempts failed. minute: when the step began. For the completed '
    'jobs also the median and the 95th percentile, in seconds, of the time from run_at to the claim (waited) '
    'and from the claim to the end (ran). The figures come from history: jobs whose retention is over are '
    'missing. It reads at most 1,000 pages of a table; exact is false if it took a sample. Errors: PW001.';

create or replace function activity(kind text default 'task', minutes integer default 60,
                                    max_names integer default 50)
    returns table (name text, completed bigint, cancelled bigint, failed bigint,
                   waited_p95 double precision, ran_p50 double precision, ran_p95 double precision,
                   ran_total double precision, exact boolean)
    language plpgsql stable security definer set search_path from current
    set enable_seqscan = off set jit = off
as $$
#variable_conflict use_column
declare
    v_since timestamptz := clock() - make_interval(mins => least(greatest(minutes, 1), 10080));
begin
    perform _refuse('activity: ' || case
        when coalesce(kind, '') not in ('task', 'queue') then
            format('kind must be task or queue, got %s', quote_nullable(kind))
        when coalesce(minutes, 0) not between 1 and 10080 then
            format('minutes must be from 1 to 10080, got %s', coalesce(minutes::text, 'NULL'))
        when max_names < 0 then format('max_names must not be negative, got %s', max_names) end);
    return query
    select n.name, coalesce(sum(n.weight) filter (where n.outcome = 'completed'), 0)::bigint,
           coalesce(sum(n.weight) filter (where n.outcome = 'cancelled'), 0)::bigint,
           coalesce(sum(n.weight) filter (where n.outcome = 'failed'), 0)::bigint,
           percentile_disc(0.95) within group (order by n.waited),
           percentile_disc(0.5) within group (order by n.ran),
           percentile_disc(0.95) within group (order by n.ran), sum(n.ran * n.weight),
           bool_and(bool_and(n.weight = 1)) over ()
    from (select o.outcome, o.waited, o.ran, o.weight,
                 case when kind = 'task' then coalesce(o.task_identifier, j.task_identifier)
                      else coalesce(o.queue_name, j.queue_name, 'default') end as name
          from _outcomes_since(v_since) o
          left join lateral (
              select l.task_identifier, l.queue_name from live_jobs l
              where l.id between o.job_id and o.job_id
              union all
              select f.task_identifier, f.queue_name from finished_jobs f
              where f.id between o.job_id and o.job_id limit 1) j on true) n
    where n.name is not null
    group by n.name order by sum(n.weight) desc, n.name limit max_names;
end;
$$;
comment on function activity(text, integer, integer) is
    'What happened in the last minutes (1 to 10080), by task or by queue (kind; ''default'' stands for jobs '
    'without a queue), the busiest first: jobs completed and cancelled, attempts that failed, and of the '
    'completed jobs, in seconds, how long they waited and ran. ran_total: how long all of them ran together. '
    'It reads history as throughput() does: at most 1,000 pages of a table; exact is false if it took a '
    'sample. Errors: PW001.';
