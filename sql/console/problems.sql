-- console/problems: problems(), what keeps jobs from running, for a page that is read often: the checks
-- of work that doctor() runs, and two that look at the last hour. waiting_queues().

-- The queues whose oldest available job waits longest, among the 5,000 live jobs with the lowest ids
-- and the first 5,000 in the order of claims. since: the run_at of that job.
create or replace function _oldest_by_queue(max_rows integer default 5000)
    returns table (queue_name text, job_id bigint, since timestamptz)
    language plpgsql stable set search_path from current set enable_seqscan = off
    set enable_bitmapscan = off set jit = off
as $$
begin
    return query
    select distinct on (1) coalesce(j.queue_name, 'default'), j.id, j.run_at
    from ((select l.id, l.queue_name, l.state, l.run_at from live_jobs l order by l.id limit max_rows)
          union all
          (select l.id, l.queue_name, l.state, l.run_at from live_jobs l where l.ready_at is not null
           order by l.priority, l.ready_at, l.id limit max_rows)) j
    where j.state = 'available'
    order by 1, j.run_at, j.id;
end;
$$;

-- The queues whose oldest available job has waited longer than this, the longest first, and whether they
-- are late: the rule of waiting_queues() and of the check "waiting".
create or replace function _waiting_queues(longer interval, max_queues integer)
    returns table (queue_name text, job_id bigint, seconds double precision, usual_p95 double precision,
                   paused boolean, late boolean)
    language plpgsql stable set search_path from current set jit = off
as $$
declare
    v_now timestamptz := clock();
begin
    return query
    with oldest as materialized (
        select o.queue_name, o.job_id, extract(epoch from v_now - o.since)::double precision as seconds
        from _oldest_by_queue() o where o.since < v_now - longer
        order by o.since, o.queue_name limit max_queues),
    usual as (select a.name, a.waited_p95 from activity('queue', 60, 1000) a
              where exists (select from oldest))
    select o.queue_name, o.job_id, o.seconds, u.waited_p95, coalesce(q.paused, false),
           o.seconds > 60 and o.seconds > 4 * coalesce(u.waited_p95, 0) and not coalesce(q.paused, false)
    from oldest o left join usual u on u.name = o.queue_name
    join _queues_of(array(select o.queue_name from oldest o)) q on q.queue_name = o.queue_name
    order by o.seconds desc, o.queue_name;
end;
$$;

create or replace function waiting_queues(max_queues integer default 10)
    returns table (queue_name text, job_id bigint, seconds double precision, usual_p95 double precision,
                   paused boolean, late boolean)
    language plpgsql stable security definer set search_path from current set jit = off
as $$
begin
    return query
    select w.* from _waiting_queues(interval '0', least(greatest(max_queues, 0), 1000)) w;
end;
$$;
comment on function waiting_queues(integer) is
    'The queues with available jobs, among some 10,000 of these; the queue whose oldest one (job_id) '
    'waits longest comes first. ''default'' stands for jobs without a queue. seconds: how long it has '
    'waited. usual_p95: 95 % of the jobs of the queue that were completed in the last hour waited at '
    'most so many seconds; null if none was, or if the queue is not one of the 1,000 busiest. late: the '
    'queue is not paused, and its oldest job has waited for over a minute and four times as long as that.';

create or replace function _late_queues() returns table (severity text, finding text, fix text)
    language plpgsql stable set search_path from current set jit = off
as $$
begin
    return query
    select 'warning',
           format('jobs wait longer than usual: %s', _few(array_agg(
               format('queue %s for %s (job %s%s)', l.queue_name,
                      _words_of(make_interval(secs => trunc(l.seconds))), l.job_id,
                      '; 95 % of its jobs waited at most ' || round(l.usual_p95::numeric, 1) || ' s')
               order by l.seconds desc, l.queue_name))),
           _fix('select * from ~.explain_job(%s)',
                ((array_agg(l.job_id order by l.seconds desc))[1])::text)
    from _waiting_queues(interval '1 minute', null) l where l.late
    having count(*) > 0;
end;
$$;

create or replace function _discarded_lately() returns table (severity text, finding text, fix text)
    language plpgsql stable set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_since timestamptz := clock() - interval '1 hour';
begin
    return query
    with lately as materialized (
        select d.* from (select l.id, l.task_identifier, l.finished_at, l.last_error, l.reason
                         from live_jobs l where l.expires_at is not null
                         order by l.expires_at desc limit 1000) d
        where d.finished_at >= v_since and d.reason is distinct from 'lost'), -- _check_lost names those
    kinds as (select l.task_identifier, count(*) as jobs,
                     (array_agg(left(_last_line(l.last_error), 80) order by l.id desc))[1] as error
              from lately l group by l.task_identifier)
    select 'warning',
           format('discarded in the last hour: %s%s job%s: ', sum(k.jobs),
                  case when sum(k.jobs) >= 1000 then ' or more' else '' end,
                  case when sum(k.jobs) = 1 then '' else 's' end)
               || _few(array_agg(format('%s (%s%s)', k.task_identifier, k.jobs, coalesce(', ' || k.error, ''))
                                 order by k.jobs desc, k.task_identifier)),
           _fix('select * from ~.retry_jobs(%L)',
                (select (array_agg(l.id order by l.id))[:1000]::text from lately l))
    from kinds k having count(*) > 0;
end;
$$;

create or replace function problems() returns table (check_name text, severity text, finding text, fix text)
    language plpgsql security definer set search_path from current set lock_timeout = '1s' set jit = off
as $$
declare
    v_check text;
begin
    for check_name, v_check in values
        ('workers', '_check_workers'), ('tasks', '_check_tasks'), ('sequences', '_check_sequences'),
        ('dependencies', '_check_dependencies'), ('locks', '_check_locks'), ('gate', '_check_gate'),
        ('waiting', '_late_queues'), ('discarded', '_discarded_lately'), ('queues', '_check_queues'),
        ('schedules', '_check_schedules'), ('lost', '_check_lost'), ('maintenance', '_check_maintenance')
    loop
        return query
        execute format('select %L, c.severity, c.finding, c.fix from %I() c', check_name, v_check);
    end loop;
end;
$$;
comment on function problems() is
    'What keeps jobs from running, as rows of doctor(): no worker, tasks and queues that no live worker '
    'serves, halted sequences, jobs that wait for one that has ended otherwise, jobs that sessions keep '
    'locked, paused queues and schedules with problems, lost jobs. Also waiting: '
    'queues whose oldest job waits for over a minute and four times as long as usual; and discarded: '
    'what was discarded in the last hour, without lost jobs. It reads some 100,000 rows at most; doctor() '
    'checks more.';
