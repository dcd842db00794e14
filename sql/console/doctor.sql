-- console/doctor: the checks of an installation's health, and doctor(), which runs them.
--
-- Each check is a function _check_NAME. It returns one row per problem, and no row if it finds
-- none. It reads a bounded part of large tables. Some checks are in other files:
-- console/invariants has invariants; console/catalog has functions, indexes and grants;
-- console/owners has owners; console/doctor_server has xmin, bloat, autovacuum, notifications and settings.
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

-- The first five statements that repair a finding of several parts.
create or replace function _first_fixes(fixes text[]) returns text
    language plpgsql immutable set search_path from current
as $$
begin
    return array_to_string(fixes[:5], E';\n');
end;
$$;

create or replace function _check_partitions() returns table (severity text, finding text, fix text)
    language plpgsql set search_path from current
as $$
declare
    v_missing text[];
    v_misplaced bigint;
begin
    if _partition('finished_jobs_default') is null then
        return query values ('error',
            'finished_jobs has no default partition: a job whose day has none cannot be finished',
            _fix('create table ~.finished_jobs_default partition of ~.finished_jobs default'));
        return;
    end if;
    -- Today's days only: maintain() may still create the later partitions in time.
    v_missing := array(
        select to_char(d.day at time zone 'UTC', 'YYYY-MM-DD') from _partition_days(0) d(day)
        where _partition('finished_jobs_' || to_char(d.day at time zone 'UTC', 'YYYYMMDD')) is null
          and not exists (select from finished_jobs_default f
                          where f.expires_at >= d.day and f.expires_at < d.day + interval '24 hours')
        order by 1);
    if v_missing <> '{}' then
        return query values ('warning', 'history has no partition for what expires on ' || _few(v_missing),
                             _fix('select * from ~.maintain()'));
    end if;
    select count(*) into v_misplaced from (
        select from finished_jobs_default f
        join _partition_days(2) d(day) on f.expires_at >= d.day and f.expires_at < d.day + interval '24 hours'
        limit 100000) m;
    if v_misplaced > 0 then
        return query values ('info',
            format('finished jobs in the default partition: %s%s; they are pruned one by one', v_misplaced,
                   case when v_misplaced = 100000 then ' or more' else '' end),
            _fix(E'begin;\ncreate temp table pyworker_moved on commit drop as '
                 'select * from ~.finished_jobs_default;\n'
                 'delete from ~.finished_jobs_default;\nselect ~._make_partitions();\n'
                 'insert into ~.finished_jobs select * from pyworker_moved;\ncommit'));
    end if;
end;
$$;

create or replace function _check_maintenance() returns table (severity text, finding text, fix text)
    language plpgsql set search_path from current
as $$
declare
    v_now timestamptz := clock();
    v_due timestamptz := (select min(j.due_at) from live_jobs j
                          where j.due_at < v_now - interval '5 minutes');
    v_expired timestamptz;
begin
    if v_due is not null then
        return query values ('warning',
                             format('due jobs are not promoted: the oldest has been due since %s', v_due),
                             _fix('select * from ~.maintain()'));
    end if;
    select min(e.expires_at) into v_expired from (
        (select j.expires_at from live_jobs j
         where j.expires_at < v_now - interval '1 hour' -- prune postpones the expiry of jobs that it keeps
         order by j.expires_at limit 1)
        union all
        (select ((substr(c.relname, 15)::date + 1)::timestamp at time zone 'UTC')
         from pg_inherits i join pg_class c on c.oid = i.inhrelid
         where i.inhparent = 'finished_jobs'::regclass
           and c.relname ~ '^finished_jobs_[0-9]{8}$')) e(expires_at)
    where e.expires_at < v_now - interval '1 hour';
    if v_expired is not null then
        return query values ('warning',
            format('expired jobs are not pruned: what expired at %s is still there', v_expired),
            _fix('select * from ~.prune()'));
    end if;
end;
$$;

-- One row per option that a live worker's code declares differently from the task's definition.
create or replace function _definitions_that_differ() returns table (
    identifier text, option text, declared jsonb, stored jsonb, workers text)
    language plpgsql stable set search_path from current
as $$
declare
    v_now constant timestamptz := clock();
begin
    return query
    select d.identifier, o.name, o.declared, o.stored, string_agg(d.worker, ', ' order by d.worker)
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
    group by 1, 2, 3, 4 order by 1, 2, 3;
end;
$$;

-- A worker that does not report which tasks or queues it takes counts as taking all of them.
create or replace function _check_tasks() returns table (severity text, finding text, fix text)
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_now constant timestamptz := clock();
begin
    return query
    with live as materialized (select w as worker from workers w where _is_live(w, v_now)),
    waiting as materialized (
        select j.task_identifier, coalesce(j.queue_name, 'default') as queue_name, count(*) as jobs
        from ((select l.task_identifier, l.queue_name from live_jobs l
               where l.ready_at is not null and l.state = 'available' limit 100000)
              union all -- those that stand aside for others of their queue, too
              (select l.task_identifier, l.queue_name from live_jobs l
               where l.parked = 'queue' limit 10000)) j
        group by 1, 2),
    unknown as (
        select format('%s (%s)', w.task_identifier, sum(w.jobs)) as name, sum(w.jobs) as jobs from waiting w
        where not exists (select from live l where _takes(l.worker, w.task_identifier, null, null))
        group by w.task_identifier),
    unserved as (
        select format('%s (%s)', w.queue_name, sum(w.jobs)) as name, sum(w.jobs) as jobs from waiting w
        where not exists (select from live l where _takes(l.worker, null, w.queue_name, null))
        group by w.queue_name)
    select f.severity, f.finding, f.fix from (
        select 'warning',
               'jobs wait for tasks that no live worker knows: '
                   || _few(array_agg(u.name order by u.jobs desc, u.name)),
               'start a worker with the module that defines it, and without --task or with --task for it; '
               'or correct the name'
        from unknown u having count(*) > 0
        union all
        select 'warning',
               'jobs wait in queues that no live worker serves: '
                   || _few(array_agg(u.name order by u.jobs desc, u.name)),
               'start a worker without --queue, or with --queue for it'
        from unserved u having count(*) > 0) f(severity, finding, fix)
    where exists (select from live);
    -- Two programs can declare one task in two ways. The last one to start wrote the definition.
    return query
    select 'warning', 'the code of live workers declares tasks otherwise than the database defines them: '
               || _few(array_agg(format('%s (%s: %s in worker %s, %s in the database)', d.identifier,
                                        d.option,
                                        coalesce(d.declared::text, 'none'), d.workers,
                                        coalesce(d.stored::text, 'none'))
                                 order by d.identifier, d.option)),
           'deploy the same code everywhere; then start the workers again, or run: pyworker tasks sync MODULE'
    from _definitions_that_differ() d having count(*) > 0;
end;
$$;

create or replace function _check_sequences() returns table (severity text, finding text, fix text)
    language plpgsql set search_path from current
as $$
begin
    return query
    with halted as materialized (
        select distinct on (h.sequence_key) h.sequence_key, h.job_id, h.reason
        from (select s.* from sequence_halts s limit 10000) h
        where _blocks_sequence(h.sequence_key, h.job_id) order by h.sequence_key, h.job_id)
    select 'info',
           'halted sequences: '
               || _few(array_agg(
                   format('%s by job %s (%s)', _sequence_words(h.sequence_key), h.job_id, h.reason)
                   order by h.sequence_key)),
           _first_fixes(array_agg(_fix('select ~.resume_sequence(%L)', h.sequence_key)
                                  order by h.sequence_key))
    from halted h having count(*) > 0;
end;
$$;

create or replace function _check_queues() returns table (severity text, finding text, fix text)
    language plpgsql set search_path from current set enable_seqscan = off set jit = off
as $$
begin
    return query
    with paused as materialized (
        select q.queue_name from queues q
        where q.paused and exists (
            select from live_jobs j where j.queue_name = q.queue_name and j.parked = 'queue' union all
            select from live_jobs j where j.queue_name = q.queue_name and j.ready_at is not null
                and j.state = 'available' union all
            select from (
                select j.queue_name from live_jobs j
                where right(q.queue_name, 1) = '*' and j.parked = 'queue'
                  and j.queue_name >= left(q.queue_name, -1) order by j.queue_name limit 1) f
            where starts_with(f.queue_name, left(q.queue_name, -1)) union all
            select from (
                select j.queue_name from live_jobs j
                where right(q.queue_name, 1) = '*' and j.ready_at is not null and j.state = 'available'
                  and j.queue_name >= left(q.queue_name, -1) order by j.queue_name limit 1) f
            where starts_with(f.queue_name, left(q.queue_name, -1)))
        limit 1000)
    select 'info', 'jobs wait in paused queues: ' || _few(array_agg(p.queue_name order by p.queue_name)),
           _first_fixes(array_agg(_fix('select ~.resume_queue(%L)', p.queue_name) order by p.queue_name))
    from paused p having count(*) > 0;
end;
$$;

create or replace function _check_schedules() returns table (severity text, finding text, fix text)
    language plpgsql set search_path from current
as $$
declare
    v_now timestamptz := clock();
begin
    return query
    select f.severity, f.finding, f.fix from (
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
               'start a worker with the module that defines it, and without --task or with --task for it; '
               'or correct the schedule'
        from schedule_entries t
        where not t.paused
          and exists (select from workers w where _is_live(w, v_now))
          and not exists (select from workers w
                          where _is_live(w, v_now) and _takes(w, t.identifier, null, null))
        having count(*) > 0
        union all
        select 5, 'info', 'paused schedules: ' || _few(array_agg(t.name order by t.name)),
               _first_fixes(array_agg(_fix('select * from ~.resume_schedule(%L)', t.name) order by t.name))
        from schedule_entries t where t.paused having count(*) > 0) f(step, severity, finding, fix)
    order by f.step, f.finding limit 20;
end;
$$;

create or replace function _check_lost() returns table (severity text, finding text, fix text)
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
begin
    return query
    with lost as materialized (
        select l.id from (select j.id, j.reason from live_jobs j where j.expires_at is not null
                          limit 100000) l where l.reason = 'lost')
    select 'warning',
           'jobs with delivery at_most_once were lost, done or not: job '
               || _few(array_agg(l.id::text order by l.id))
           || '; look at each: delete_job if it was done, retry_job if it was not',
           _fix('select id, task_identifier, key, meta, locked_at, last_error from ~.jobs '
                'where reason = ''lost'' order by id')
    from lost l having count(*) > 0;
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
    v_well text;
    v_found boolean;
    v_mixed boolean := false; -- checks lack rights then, which is told once
begin
    if to_regclass('migrations') is null then -- its owner has no right on it, so nothing in it can be called
        return query select 'owners', 'error',
            format('%s owns these functions, but has no right on their schema', current_user),
            case v_owner when current_user then format('alter schema %s owner to %I', v_schema, v_owner)
                         else v_repair || v_install end;
        return;
    end if;
    for check_name, v_well in values
        ('owners', 'everything belongs to one role'), ('invariants', 'what must always hold does hold'),
        ('functions', 'functions run as their owner, in a fixed search_path'),
        ('indexes', 'all indexes are valid'),
        ('grants', 'each role has the rights that it needs, PUBLIC has none'),
        ('partitions', 'history has its partitions'),
        ('maintenance', 'due jobs are promoted, expired ones pruned'),
        ('workers', 'workers are alive, or nothing waits for one'),
        ('tasks', 'the live workers know the tasks and serve the queues of the jobs that wait'),
        ('sequences', 'no sequence is halted'),
        ('dependencies', 'no job waits for one that has ended otherwise'),
        ('locks', 'no session keeps jobs locked'), ('gate', 'no session keeps the gate, no promotion fails'),
        ('queues', 'nothing waits in a paused queue'),
        ('schedules', 'schedules are fired, and their tasks are known'), ('lost', 'no job was lost'),
        ('xmin', 'no old transaction keeps dead rows'), ('bloat', 'dead rows are few'),
        ('autovacuum', 'autovacuum is on'),
        ('notifications', 'the server''s queue of notifications is not filling up'),
        ('settings', 'the server''s settings suit')
    loop
        v_found := false;
        begin
            for severity, finding, fix in execute
                format('select c.severity, c.finding, c.fix from %I() c', '_check_' || check_name) loop
                v_found := true;
                return next;
            end loop;
        exception when others then
            v_found := true;
            continue when v_mixed and sqlstate = '42501';
            severity := 'error';
            finding := format('the check itself failed: %s', sqlerrm);
            fix := case check_name when 'owners' then v_repair
                                   else 'run it again; if it stays so, ' end || v_install;
            return next;
        end;
        v_mixed := v_mixed or v_found and check_name = 'owners';
        return query select check_name, 'ok', v_well, null where not v_found;
    end loop;
end;
$$;
comment on function doctor() is
    'Checks the health of the installation: the invariants, functions, indexes, grants, jobs that no '
    'worker takes, schedules, what holds back vacuum, and the server''s settings. Returns one row '
    'per finding, or one row ''ok'' for a check that finds nothing. If objects belong to several roles, '
    'a check that lacks a right for that has no row. severity: ok, info, warning or error. fix: SQL '
    'that repairs the finding, for the owner of the schema (statements are '
    'separated by '';'' and a line break; run them one by one), or a sentence. doctor() itself '
    'changes nothing, and reads at most 250,000 rows of a table.';
