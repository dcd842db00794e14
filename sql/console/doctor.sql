-- console/doctor: doctor(), which checks an installation's health; problems(), what keeps jobs from running.
--
-- Each function _check_… returns one row per problem, for one check or several. It reads a bounded part of
-- large tables. They are in console/doctor_work (jobs, workers, schedules), console/doctor_server (the server
-- and the catalog), console/locks, console/invariants and gate/usage (the gate).
--
-- A fix is SQL that the owner of the schema can run as it is. Its statements are separated by ';'
-- and a line break. Run them one by one, as psql does: VACUUM and CONCURRENTLY cannot run in a
-- transaction block. Where no SQL helps, the fix is a sentence.

-- Builds a fix with format(); '~.' in the template stands for the schema.
create or replace function _fix(template text, variadic arguments text[] default '{}') returns text
    language plpgsql stable set search_path from current
as $$
begin
    return format(replace(template, '~.', replace(quote_ident(current_schema()), '%', '%%') || '.'),
                  variadic arguments);
end;
$$;

-- A list of the first five items, and the number of all if there are more.
create or replace function _few(items text[]) returns text
    language plpgsql immutable set search_path from current
as $$
begin
    return array_to_string(items[:5], ', ')
        || case when cardinality(items) > 5 then format(', … (%s in all)', cardinality(items)) else '' end;
end;
$$;

create or replace function doctor() returns table (check_name text, severity text, finding text, fix text)
    language plpgsql security definer set search_path from current set lock_timeout = '1s' set jit = off
as $$
declare
    v_install constant text := 'install this version again: pyworker migrate, or psql -f sql/install.sql';
    v_schema constant text := regexp_replace(current_setting('search_path'), ', pg_temp$', '');
    v_owner constant name := (select pg_get_userbyid(c.relowner) from pg_class c
                              where c.relnamespace = to_regnamespace(v_schema) and c.relname = 'migrations');
    v_repair constant text := format('as a superuser, so that all belongs to %s, ', v_owner);
    v_function text;
    v_well text;
    v_found jsonb := jsonb '{}'; -- what each function has found
    v_rows jsonb;
    v_mixed boolean := false; -- checks lack rights then: one finding says so
begin
    if to_regclass('migrations') is null then -- its owner has no right on it, so nothing in it can be called
        return query select 'owners', 'error',
            format('%s owns these functions, but has no right on their schema', current_user),
            case v_owner when current_user then format('alter schema %s owner to %I', v_schema, v_owner)
                         else v_repair || v_install end;
        return;
    end if;
    for v_function, check_name, v_well in values
        ('owners', 'owners', 'everything belongs to one role'),
        ('invariants', 'invariants', 'what must always hold does hold'),
        ('catalog', 'functions', 'functions run as their owner, in a fixed search_path'),
        ('catalog', 'indexes', 'all indexes are valid'),
        ('catalog', 'grants', 'each role has the rights that it needs, PUBLIC has none'),
        ('partitions', 'partitions', 'history has its partitions'),
        ('times', 'maintenance', 'due jobs are promoted, expired ones pruned'),
        ('workers', 'workers', 'workers are alive, or nothing waits for one'),
        ('workers', 'tasks', 'the live workers know the tasks and serve the queues of the jobs that wait'),
        ('work', 'sequences', 'no sequence is halted'),
        ('work', 'dependencies', 'no job waits for one that has ended otherwise'),
        ('locks', 'locks', 'no session keeps jobs locked'),
        ('gate', 'gate', 'no session keeps the gate, no promotion fails'),
        ('work', 'queues', 'nothing waits in a paused queue'),
        ('times', 'schedules', 'schedules are fired, and their tasks are known'),
        ('work', 'lost', 'no job was lost'),
        ('server', 'xmin', 'no old transaction keeps dead rows'), ('server', 'bloat', 'dead rows are few'),
        ('server', 'autovacuum', 'autovacuum is on'),
        ('server', 'notifications', 'the server''s queue of notifications is not filling up'),
        ('server', 'settings', 'the server''s settings suit')
    loop
        if not v_found ? v_function then
            begin
                execute format('select coalesce(jsonb_agg(to_jsonb(c)), ''[]'') from %I() c',
                               '_check_' || v_function) into v_rows;
            exception when others then
                v_rows := case when not v_mixed or sqlstate <> '42501' then jsonb_build_array(
                    jsonb_build_object(
                        'severity', 'error', 'finding', format('the check itself failed: %s', sqlerrm),
                        'fix', case v_function when 'owners' then v_repair
                                               else 'run it again; if it stays so, ' end || v_install)) end;
            end;
            v_found := v_found || jsonb_build_object(v_function, v_rows);
        end if;
        continue when v_found ->> v_function is null;
        return query
        select doctor.check_name, r.severity, r.finding, r.fix
        from jsonb_to_recordset(v_found -> v_function) r(
            check_name text, severity text, finding text, fix text)
        where coalesce(r.check_name, doctor.check_name) = doctor.check_name;
        v_mixed := v_mixed or found and check_name = 'owners';
        return query select check_name, 'ok', v_well, null where not found;
    end loop;
end;
$$;
comment on function doctor() is
    'Checks the health of the installation: the invariants, functions, indexes, grants, jobs that no worker '
    'takes, schedules, what holds back vacuum, and the server''s settings. Returns one row per finding, or '
    'one row ''ok'' for a check that finds nothing. If objects belong to several roles, a check that lacks a '
    'right for that has no row. severity: ok, info, warning or error. fix: SQL for the owner of the schema '
    'that repairs the finding (statements are separated by '';'' and a line break; run them one by one), or '
    'a sentence. doctor() itself changes nothing, and reads at most 250,000 rows of a table.';

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

create or replace function waiting_queues(max_queues integer default 10)
    returns table (queue_name text, job_id bigint, seconds double precision, usual_p95 double precision,
                   paused boolean, late boolean)
    language plpgsql stable security definer set search_path from current set jit = off
as $$
declare
    v_now timestamptz := clock();
begin
    return query
    with oldest as materialized (
        select o.queue_name, o.job_id, extract(epoch from v_now - o.since)::double precision as seconds
        from _oldest_by_queue() o where o.since < v_now
        order by o.since, o.queue_name limit least(greatest(max_queues, 0), 1000)),
    usual as (select a.name, a.waited_p95 from activity('queue', 60, 1000) a
              where exists (select from oldest))
    select o.queue_name, o.job_id, o.seconds, u.waited_p95, coalesce(q.paused, false),
           o.seconds > 60 and o.seconds > 4 * coalesce(u.waited_p95, 0) and not coalesce(q.paused, false)
    from oldest o left join usual u on u.name = o.queue_name
    join _queues_of(array(select o.queue_name from oldest o)) q on q.queue_name = o.queue_name
    order by o.seconds desc, o.queue_name;
end;
$$;
comment on function waiting_queues(integer) is
    'The queues with available jobs, among some 10,000 of these; the queue whose oldest one (job_id) waits '
    'longest comes first. ''default'' stands for jobs without a queue. seconds: how long it has waited. '
    'usual_p95: 95 % of the jobs of the queue that were completed in the last hour waited at most so many '
    'seconds; null if none was, or if the queue is not one of the 1,000 busiest. late: the queue is not '
    'paused, and its oldest job has waited for over a minute and four times as long as that.';

create or replace function problems() returns table (check_name text, severity text, finding text, fix text)
    language plpgsql security definer set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set lock_timeout = '1s' set jit = off
as $$
declare
    v_now timestamptz := clock();
begin
    return query
    select c.* from _check_workers() c
    union all select c.* from _check_work() c
    union all select c.* from _check_locks() c
    union all select c.* from _check_gate() c
    union all select c.* from _check_times() c;
    return query
    select 'waiting', 'warning',
           format('jobs wait longer than usual: %s', _few(array_agg(
               format('queue %s for %s (job %s%s)', l.queue_name,
                      _words_of(make_interval(secs => trunc(l.seconds))), l.job_id,
                      '; 95 % of its jobs waited at most ' || round(l.usual_p95::numeric, 1) || ' s')
               order by l.seconds desc, l.queue_name))),
           _fix('select * from ~.explain_job(%s)',
                ((array_agg(l.job_id order by l.seconds desc))[1])::text)
    from waiting_queues(1000) l
    where l.late and exists (select from _oldest_by_queue() o where o.since < v_now - interval '1 minute')
    having count(*) > 0;
    return query
    with lately as materialized (
        select d.* from (select l.id, l.task_identifier, l.finished_at, l.last_error, l.reason
                         from live_jobs l where l.expires_at is not null
                         order by l.expires_at desc limit 1000) d
        where d.finished_at >= v_now - interval '1 hour'
          and d.reason is distinct from 'lost'), -- the check "lost" names those
    kinds as (select l.task_identifier, count(*) as jobs,
                     (array_agg(left(_last_line(l.last_error), 80) order by l.id desc))[1] as error
              from lately l group by l.task_identifier)
    select 'discarded', 'warning',
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
comment on function problems() is
    'What keeps jobs from running, as rows of doctor(): no worker, tasks and queues that no live worker '
    'serves, halted sequences, jobs that wait for one that has ended otherwise, jobs that sessions keep '
    'locked, paused queues, schedules with problems, lost jobs. Also waiting: queues whose oldest job waits '
    'for over a minute and four times as long as usual; and discarded: jobs of the last hour, without lost '
    'ones. It reads some 100,000 rows at most; doctor() checks more.';
