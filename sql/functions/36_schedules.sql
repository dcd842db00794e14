-- 36_schedules: what is to be done again and again. A schedule is a row that knows its next tick; whoever comes by when that is due fires it.
--
-- There is no leader: run_schedules locks the row, or passes it over, moves next_at on and adds the job, all in one transaction. So a tick is
-- one job, whoever fires it, and next_at only grows: a clock that is set back fires nothing twice. A tick that is more than a minute late was
-- missed; it is fired still as long as it is not older than the schedule's `backfill`.
--
-- The query of a schedule runs with the rights of its query_role, in a SECURITY DEFINER function that this role itself has created (in the
-- schema pyworker_queries, named after ours), so that PostgreSQL vouches for its owner. Nobody has to be trusted with a text that is
-- run for somebody else: add_schedule does SET ROLE (by default to the caller's own
-- role; one with the rights of our owner may lend them, as it could run the query anyway), which PostgreSQL
-- refuses to those who are not members, and inside of any SECURITY DEFINER function, this one too. So the query cannot get out of it. As the function is STABLE, it can only read; and whatever the functions that
-- it calls may do is rolled back, settings of the session included, which would outlast it otherwise.
-- Its owner could turn it into one that runs with the rights of who calls it: ours. For that he has to name it, so nobody has any right on the
-- schema but while add_schedule makes one, under a lock that whoever runs a query shares; and it is run only if it is what it was.

create or replace function _schedule_of(t schedule_entries) returns schedule
    language sql stable
    return row(
        t.name, t.cron, t.timezone, t.identifier, t.payload, t.backfill, t.queue_name, t.max_attempts, t.priority, t.job_key, t.job_key_mode,
        t.flags, t.unique_policy, t.sequence_policy, t.meta, t.delivery, t.query, t.query_role, t.query_limit, t.origin, t.paused, t.next_at,
        t.last_at, t.last_job_id, t.last_error, t.created_at, t.updated_at)::schedule;

-- Its row, locked, for people; they wait their turn.
create or replace function _schedule(name text, label text) returns schedule_entries
    language plpgsql set search_path from current
as $$
declare
    v_schedule schedule_entries;
begin
    select t.* into v_schedule from schedule_entries t where t.name = _schedule.name for update;
    if not found then
        raise exception '%: there is no schedule %', label, coalesce(quote_literal(name), 'NULL') using errcode = 'PW004';
    end if;
    return v_schedule;
end;
$$;

-- What is wrong with a schedule; null if nothing is.
create or replace function _schedule_refusal(s schedule) returns text
    language plpgsql stable set search_path from current
as $$
begin
    return coalesce(
        case when s.name is null or s.name = '' or length(s.name) > 200
             then format('name must be 1 to 200 characters long, got %s', coalesce(quote_literal(left(s.name, 210)), 'NULL')) end,
        'cron: ' || (_cron_of(s.cron)).problem, _timezone_refusal(s.timezone),
        case when s.backfill is null or s.backfill < interval '0' or s.backfill > interval '100 years'
             then format('backfill must be from 0 to 100 years, got %s', coalesce(s.backfill::text, 'NULL')) end,
        _job_refusal(s.identifier, s.payload::json, s.queue_name, null, s.max_attempts, s.job_key, s.priority, s.flags, s.job_key_mode,
                     s.unique_policy, s.sequence_policy, s.meta, s.delivery),
        'unique_policy: ' || _unique_policy_refusal(nullif(s.unique_policy, 'null')),
        case when s.job_key is not null and nullif(s.unique_policy, 'null') is not null
             then 'job_key and unique_policy exclude each other: give one of them' end);
end;
$$;

create or replace function _query_schema() returns text
    language plpgsql stable set search_path from current
as $$
begin
    return current_schema() || '_queries';
end;
$$;

-- The function that asks a schedule's query: in its schema, and what it consists of. It opens a cursor, so the query is one statement. Asked
-- for no row it gives one of nulls, to show the columns.
create or replace function _query_function(name text, query text, out path text, out body text)
    language plpgsql stable security definer set search_path from current
as $$
begin
    path := format('%I.%I', _query_schema(), 'schedule_' || md5(name));
    body := format($body$
declare
    v_rows refcursor;
    v_row record;
begin
    open v_rows no scroll for execute %L;
    fetch relative 0 from v_rows into v_row;
    if max_rows = 0 then
        return next to_jsonb(v_row);
    end if;
    for i in 1..max_rows loop
        fetch v_rows into v_row;
        exit when not found;
        return next to_jsonb(v_row);
    end loop;
    close v_rows;
end;
$body$, query);
end;
$$;

create or replace function _drop_query(name text) returns void
    language plpgsql set search_path from current
as $$
declare
    v_function regprocedure := to_regprocedure((_query_function(name, '')).path || '(integer)');
begin
    if v_function is not null then
        execute 'drop function ' || v_function;
    end if;
end;
$$;

create or replace function _lock_queries(share boolean) returns void
    language plpgsql set search_path from current
as $$
declare
    v_key constant bigint := hashtextextended(_query_schema(), 0);
begin
    if share then
        perform pg_advisory_xact_lock_shared(v_key);
    else
        perform pg_advisory_xact_lock(v_key);
    end if;
end;
$$;

-- Roles other than its owner that have any right on the schema of queries; 0 is everybody.
create or replace function _guests() returns setof oid
    language plpgsql stable set search_path from current
as $$
begin
    return query
    select distinct a.grantee from pg_namespace n, aclexplode(n.nspacl) a where n.nspname = _query_schema() and a.grantee <> n.nspowner;
end;
$$;

-- Makes room for the function of this name: a schema where this role may create it, and none that is there already. Whoever calls this
-- and not _add_schedule afterwards leaves a guest behind, for whose sake no query is run.
create or replace function _lend_query_schema(name text, query_role text) returns void
    language plpgsql security definer set search_path from current
as $$
declare
begin
    if not exists (select from pg_namespace n where n.nspname = _query_schema()) then
        execute format('create schema %I', _query_schema());
    end if;
    perform _lock_queries(false);
    perform _drop_query(name);
    execute format('grant usage, create on schema %I to %I', _query_schema(), query_role);
end;
$$;

-- Is the function of a query what add_schedule has made?
create or replace function _is_sound(name text, query text, query_role text) returns boolean
    language plpgsql stable set search_path from current
as $$
declare
    v_function record := _query_function(name, query);
begin
    return exists (
        select from pg_proc p
        where p.oid = to_regprocedure(v_function.path || '(integer)') and pg_get_userbyid(p.proowner) = query_role and p.prosecdef
          and p.provolatile = 's' and p.prosrc = v_function.body);
end;
$$;

-- What is wrong with the query of a schedule; null if nothing is, and then it is closed to everybody but us.
create or replace function _query_refusal(s schedule) returns text
    language plpgsql set search_path from current
as $$
declare
    v_guest oid;
begin
    if s.query is null then
        return case when s.query_role is not null then 'query_role is of no use without a query' end;
    elsif s.query_limit is null or s.query_limit not between 1 and 100000 then
        return format('query_limit must be from 1 to 100000, got %s', coalesce(s.query_limit::text, 'NULL'));
    elsif s.backfill <> interval '0' then
        return 'backfill is of no use to a query: it asks what is to be done now';
    end if;
    perform _lock_queries(false);
    if not _is_sound(s.name, s.query, s.query_role) then
        return 'query: its function is not the one that add_schedule makes';
    end if;
    for v_guest in select g.g from _guests() g(g) loop
        execute format('revoke all on schema %I from %s', _query_schema(),
                       case when v_guest = 0 then 'public' else quote_ident(pg_get_userbyid(v_guest)) end);
    end loop;
    return null;
end;
$$;

-- Writes a schedule. One that is as it was is neither written nor locked, and keeps its ticks; so does one whose times stay the same.
create or replace function _add_schedule(s schedule) returns schedule
    language plpgsql security definer set search_path from current
as $$
declare
    v_now timestamptz := clock();
    v_old schedule_entries;
    v_new schedule_entries;
    v_problem text;
begin
    select t.* into v_old from schedule_entries t where t.name = s.name;
    s.job_key_mode := coalesce(s.job_key_mode, 'replace');
    s.payload := coalesce(s.payload, '{}');
    s.unique_policy := nullif(s.unique_policy, 'null');
    s.sequence_policy := nullif(s.sequence_policy, 'null');
    if (s.cron, s.timezone, s.identifier, s.payload, s.backfill, s.queue_name, s.max_attempts, s.priority, s.job_key, s.job_key_mode, s.flags,
        s.unique_policy, s.sequence_policy, s.meta, s.delivery, s.query, s.query_role, s.query_limit, s.origin)
       is not distinct from
       (v_old.cron, v_old.timezone, v_old.identifier, v_old.payload, v_old.backfill, v_old.queue_name, v_old.max_attempts, v_old.priority,
        v_old.job_key, v_old.job_key_mode, v_old.flags, v_old.unique_policy, v_old.sequence_policy, v_old.meta, v_old.delivery, v_old.query,
        v_old.query_role, v_old.query_limit, v_old.origin) then
        v_new := v_old;
    end if;
    v_problem := coalesce(case when v_new.name is null then _schedule_refusal(s) end, _query_refusal(s));
    if v_problem is not null then
        raise exception 'add_schedule: %', v_problem using errcode = 'PW001';
    elsif v_new.name is not null then
        return _schedule_of(v_new);
    end if;
    s.timezone := _timezone_of(s.timezone);
    insert into schedule_entries as t
    select s.name, s.cron, s.timezone, s.identifier, s.payload, s.backfill, s.queue_name, s.max_attempts, s.priority, s.job_key, s.job_key_mode,
           s.flags, s.unique_policy, s.sequence_policy, s.meta, s.delivery, s.query, s.query_role, s.query_limit, s.origin, false,
           _cron_next(_cron_of(s.cron), s.timezone, v_now), null, null, null, v_now, v_now
    on conflict on constraint schedule_entries_pkey do update
    set cron = excluded.cron, timezone = excluded.timezone, identifier = excluded.identifier, payload = excluded.payload,
        backfill = excluded.backfill, queue_name = excluded.queue_name, max_attempts = excluded.max_attempts, priority = excluded.priority,
        job_key = excluded.job_key, job_key_mode = excluded.job_key_mode, flags = excluded.flags, unique_policy = excluded.unique_policy,
        sequence_policy = excluded.sequence_policy, meta = excluded.meta, delivery = excluded.delivery, query = excluded.query,
        query_role = excluded.query_role, query_limit = excluded.query_limit, origin = excluded.origin, last_error = null, updated_at = v_now,
        retry_at = case when (t.cron, t.timezone) = (excluded.cron, excluded.timezone) then t.retry_at end,
        next_at = case when t.paused then null when (t.cron, t.timezone) = (excluded.cron, excluded.timezone) then t.next_at
                       else _cron_next(_cron_of(s.cron), s.timezone, greatest(v_now, t.last_at)) end
    returning t.* into v_new;
    if v_old.query is not null and s.query is null then
        perform _drop_query(s.name);
    end if;
    return _schedule_of(v_new);
end;
$$;

create or replace function add_schedule(
    name text, cron text, identifier text, payload jsonb default '{}', timezone text default 'UTC', backfill interval default '0',
    queue_name text default null, max_attempts integer default null, priority integer default null, job_key text default null,
    job_key_mode text default 'replace', flags text[] default null, unique_policy jsonb default null, sequence_policy jsonb default null,
    meta jsonb default null, delivery text default null, query text default null, query_role text default null,
    query_limit integer default 1000) returns schedule
    language plpgsql set search_path from current -- with the caller's rights: see the head of this file
as $$
declare
    v_role text := current_setting('role');
    v_query_role text := case when query is null then query_role else coalesce(query_role, current_user) end;
    v_owner name := (select pg_get_userbyid(n.nspowner) from pg_namespace n where n.nspname = current_schema());
    v_function record;
    v_known constant text[] := '{identifier,payload,queue_name,run_at,max_attempts,job_key,priority,flags,job_key_mode,unique_policy,
                                 sequence_policy,meta,delivery}'::text[];
    v_columns jsonb;
    v_problem text;
begin
    if query is not null and name is not null then -- without a name it is refused below
        if not exists (select from pg_roles r where r.rolname = v_query_role) then
            raise exception 'add_schedule: query_role must name the role whose rights the query has, got %',
                quote_literal(v_query_role) using errcode = 'PW001';
        elsif pg_has_role(v_query_role, v_owner, 'member') and not pg_has_role(v_owner, 'member') then
            raise exception 'add_schedule: query_role must not have the rights of the owner of schema %, got %',
                current_schema(), quote_literal(v_query_role)
                using errcode = 'PW001', hint = 'Name a role that can read what the query reads, and no more.';
        end if;
        perform _lend_query_schema(name, v_query_role);
        v_function := _query_function(name, query);
        perform set_config('role', v_query_role, true);
        execute format('create function %s(max_rows integer) returns setof jsonb language plpgsql stable security definer '
                       'set search_path = pg_catalog, pg_temp as %L', v_function.path, v_function.body);
        execute format('revoke all on function %s(integer) from public', v_function.path);
        execute format('grant execute on function %s(integer) to %I', v_function.path, v_owner);
        begin
            -- Prepared, not run: what would be wrong with it, and what columns has it?
            execute format('select q.* from %s(0) q', v_function.path) into v_columns;
            select 'its columns must be named like arguments of add_job, got ' || string_agg(quote_literal(k.name), ', ') into v_problem
            from jsonb_object_keys(v_columns) k(name) where k.name <> all (v_known);
        exception when others then
            v_problem := sqlerrm || case when sqlstate in ('42P01', '42883') then ' (names must be qualified by their schema)' else '' end;
        end;
        if v_problem is not null then
            raise exception 'add_schedule: query: %', v_problem using errcode = 'PW001';
        end if;
        perform set_config('role', v_role, true);
    end if;
    return _add_schedule(row(
        name, cron, timezone, identifier, payload, backfill, queue_name, max_attempts, priority, job_key, job_key_mode, flags, unique_policy,
        sequence_policy, meta, delivery, query, v_query_role,
        case when query is not null then query_limit end, 'sql', false,
        null, null, null, null, null, null)::schedule);
end;
$$;
comment on function add_schedule(
    text, text, text, jsonb, text, interval, text, integer, integer, text, text, text[], jsonb, jsonb, jsonb, text, text, text, integer) is
    'Has a job added again and again, and returns the schedule; one of the same name is replaced, and keeps its ticks as long as cron and timezone '
    'stay the same. cron: five fields, or @daily and the like (see describe_cron, next_runs). timezone: a name such as ''Europe/Berlin''. '
    'backfill: ticks that were missed, because nobody was there, are fired up to that long after their time; not those before the schedule '
    'was added. A payload that is an object gets a member _cron, {"ts", "backfilled"}. The other arguments are add_job''s. query: a SELECT '
    'that is asked at each tick what is to be done; each of its rows, up to query_limit, becomes a job: its columns are named like add_job''s '
    'arguments, what it leaves out is as given here. It is run with the rights of query_role, of which the '
    'caller must be a member, by default the caller''s; names in it must be qualified. Errors: PW001 names '
    'the argument, its value, and the position in cron.';

-- The jobs of one tick. With a query its rows, whose payloads stay as they are.
create or replace function _add_tick(s schedule_entries, tick timestamptz, backfilled boolean) returns setof job
    language plpgsql set search_path from current
as $$
declare
    v_spec jsonb := jsonb_strip_nulls(jsonb_build_object(
        'identifier', s.identifier, 'queue_name', s.queue_name, 'run_at', tick, 'max_attempts', s.max_attempts, 'job_key', s.job_key,
        'priority', s.priority, 'flags', s.flags, 'job_key_mode', s.job_key_mode, 'delivery', s.delivery))
        || jsonb_build_object('payload', s.payload, 'unique_policy', s.unique_policy, 'sequence_policy', s.sequence_policy, 'meta', s.meta);
    v_specs jsonb;
begin
    if s.query is null then
        v_specs := jsonb_build_array(case when jsonb_typeof(s.payload) <> 'object' then v_spec else jsonb_set(
            v_spec, '{payload,_cron}', jsonb_build_object(
                'ts', to_char(tick at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), 'backfilled', backfilled)) end);
    else
        perform _lock_queries(true);
        if not _is_sound(s.name, s.query, s.query_role) or exists (select from _guests()) then
            raise exception 'the function of the query of schedule % may have been changed', quote_literal(s.name)
                using errcode = 'PW005', hint = 'Add the schedule again, with its query.';
        end if;
        begin
            execute format($q$
                select jsonb_agg($1 || coalesce((select jsonb_object_agg(m.key, m.value) from jsonb_each(q.spec) m where m.value <> 'null'), '{}'))
                from %s($2) q(spec)$q$, (_query_function(s.name, s.query)).path) into v_specs using v_spec, s.query_limit;
            raise sqlstate 'PW099';
        exception when sqlstate 'PW099' then
            null; -- we have the answer
        end;
    end if;
    if v_specs is not null then
        return query select * from add_jobs(v_specs);
    end if;
end;
$$;

-- Was a tick interrupted (cancelled, out of time, memory or disk, shut down, locked out)? Then it is still to
-- be fired.
create or replace function _is_interruption(code text) returns boolean
    language plpgsql immutable set search_path from current
as $$
begin
    return left(code, 2) in ('40', '53', '57', '58', 'XX') or code in ('25006', '55006', '55P03', '72000');
end;
$$;

-- The ticks of a schedule that are to be fired at a moment, at most 100, and the one after them. A tick that
-- was interrupted is due however late it is; any other only for a minute, or for as long as `backfill` says.
create or replace function _ticks_due(
    s schedule_entries, moment timestamptz, out ticks timestamptz[], out next_at timestamptz)
    language plpgsql stable set search_path from current
as $$
declare
    v_cron constant _cron := _cron_of(s.cron);
    v_oldest constant timestamptz := moment - greatest(s.backfill, interval '1 minute');
begin
    ticks := array[]::timestamptz[];
    next_at := s.next_at;
    if s.retry_at is not null then
        ticks := ticks || next_at;
        next_at := _cron_next(v_cron, s.timezone, next_at);
    end if;
    if next_at < v_oldest then
        next_at := _cron_next(v_cron, s.timezone, v_oldest - interval '1 microsecond');
    end if;
    while next_at <= moment and cardinality(ticks) < 100 loop
        ticks := ticks || next_at;
        next_at := _cron_next(v_cron, s.timezone, next_at);
    end loop;
end;
$$;

-- Fires the ticks of a schedule that are due. Its row is moved on first, so that nothing that its query calls
-- finds it due again. `fired`: how many. `cut_off`: the statement was cancelled or ran out of time, so it
-- should end soon.
create or replace function _fire_schedule(
    name text, moment timestamptz, out fired integer, out cut_off boolean)
    language plpgsql set search_path from current
as $$
declare
    v_schedule schedule_entries;
    v_due record;
    v_tick timestamptz;
    v_job_id bigint;
    v_code text;
    v_error text;
    v_late interval;
begin
    fired := 0;
    cut_off := false;
    select t.* into v_schedule from schedule_entries t
    where t.name = _fire_schedule.name and t.next_at <= moment and coalesce(t.retry_at, moment) <= moment
    for update skip locked;
    if not found then
        return;
    end if;
    v_due := _ticks_due(v_schedule, moment);
    update schedule_entries t set next_at = v_due.next_at, retry_at = null where t.name = v_schedule.name;
    foreach v_tick in array v_due.ticks loop
        begin
            select max(j.id) into v_job_id
            from _add_tick(v_schedule, v_tick, v_tick < moment - interval '1 minute') j;
            v_code := null;
        exception
            when serialization_failure or deadlock_detected then
                raise; -- the next call tries again
            when query_canceled or others then
                -- A job like it is there: that is what its policy wants.
                v_code := nullif(sqlstate, 'PW003');
                v_error := sqlerrm;
        end;
        exit when _is_interruption(v_code);
        fired := fired + 1;
    end loop;
    if _is_interruption(v_code) then
        -- At once after the first interruption, and in the first minute; then at intervals that grow, as
        -- others want their turn.
        v_late := case when v_schedule.retry_at is null then interval '0'
                       else least(greatest(clock() - v_tick - interval '1 minute', '0'), '10 minutes') end;
        update schedule_entries t set next_at = v_tick, retry_at = clock() + v_late
        where t.name = v_schedule.name;
        cut_off := v_code = '57014';
    end if;
    update schedule_entries t
    set last_at = coalesce(v_due.ticks[fired], t.last_at), last_job_id = coalesce(v_job_id, t.last_job_id),
        -- A lock is no fault.
        last_error = case when v_code <> '55P03' then format('tick of %s: %s', v_tick, v_error) end
    where t.name = v_schedule.name and cardinality(v_due.ticks) > 0;
end;
$$;

-- One turn; `cut_off`: see _fire_schedule. An interrupted query is asked again `patience` after its time.
create or replace function _run_schedules(patience interval, out fired integer, out cut_off boolean)
    language plpgsql set search_path from current
as $$
declare
    v_now timestamptz := clock();
    v_asking boolean;
    v_due record;
    v_one record;
begin
    fired := 0;
    cut_off := false;
    -- Queries only when nothing else was to be done, so that the jobs of no other schedule wait for their answers.
    foreach v_asking in array '{false,true}'::boolean[] loop
        exit when fired > 0;
        for v_due in
            select t.name, t.retry_at from schedule_entries t
            where t.next_at <= v_now and (t.query is not null) = v_asking
              and (t.retry_at is null or t.retry_at <= v_now - case when v_asking then patience else '0' end)
            order by t.retry_at nulls first, t.next_at, t.name limit 500
        loop
            -- Nor does another query wait for one that was interrupted.
            exit when v_asking and fired > 0 and v_due.retry_at is not null;
            begin
                select f.* into v_one from _fire_schedule(v_due.name, v_now) f;
            exception when serialization_failure or deadlock_detected or lock_not_available then
                continue; -- another session fires it, or changes it
            end;
            fired := fired + v_one.fired;
            cut_off := v_one.cut_off;
            if cut_off then
                return; -- there is no time limit any more
            end if;
        end loop;
    end loop;
end;
$$;

create or replace function run_schedules() returns integer
    language plpgsql security definer set search_path from current set lock_timeout = '200ms'
as $$
begin
    return (select r.fired from _run_schedules('0') r);
end;
$$;
comment on function run_schedules() is
    'Adds the jobs of all schedules that are due, each tick once, whoever calls this and how often; returns how many ticks were fired. When that '
    'is not 0 there may be more: call it again. A schedule that another session has locked is passed over. '
    'What goes wrong with one is kept with it (view schedules, last_error) and hinders no other; a tick that is '
    'interrupted (cancelled, out of time, memory or disk) stays due. Every worker calls it as '
    'often as seconds_until_tick() says.';

create or replace function seconds_until_tick() returns double precision
    language plpgsql security definer set search_path from current
as $$
begin
    return (select extract(epoch from min(t.next_at) - clock()) from schedule_entries t where t.next_at > clock());
end;
$$;
comment on function seconds_until_tick() is
    'Seconds until the next schedule falls due, null if there is none. Overdue ones do not count: ask this first, and call run_schedules() then.';

create or replace function remove_schedule(name text) returns schedule
    language plpgsql security definer set search_path from current
as $$
declare
    v_schedule schedule_entries := _schedule(remove_schedule.name, 'remove_schedule');
begin
    delete from schedule_entries t where t.name = v_schedule.name;
    perform _drop_query(v_schedule.name);
    return _schedule_of(v_schedule);
end;
$$;
comment on function remove_schedule(text) is
    'Ends a schedule and returns it; jobs that it has added stay. Errors: PW004.';

create or replace function pause_schedule(name text) returns schedule
    language plpgsql security definer set search_path from current
as $$
declare
    v_schedule schedule_entries := _schedule(pause_schedule.name, 'pause_schedule');
begin
    update schedule_entries t set paused = true, next_at = null, retry_at = null, updated_at = clock()
    where t.name = v_schedule.name returning t.* into v_schedule;
    return _schedule_of(v_schedule);
end;
$$;
comment on function pause_schedule(text) is
    'Lets a schedule add nothing until resume_schedule, also when it is added again. Errors: PW004.';

create or replace function resume_schedule(name text) returns schedule
    language plpgsql security definer set search_path from current
as $$
declare
    v_now timestamptz := clock();
    v_schedule schedule_entries := _schedule(resume_schedule.name, 'resume_schedule');
begin
    update schedule_entries t
    set paused = false, updated_at = v_now, retry_at = null,
        next_at = _cron_next(_cron_of(t.cron), t.timezone, v_now),
        last_at = case when t.last_at <= v_now then t.last_at end
    where t.name = v_schedule.name and (t.paused or t.last_at > v_now);
    return _schedule_of(_schedule(v_schedule.name, 'resume_schedule'));
end;
$$;
comment on function resume_schedule(text) is
    'Lets a paused schedule go on with its next tick; what fell into the pause is passed over. One whose last tick lies ahead, because the clock was '
    'set back, goes on from now as well. Errors: PW004.';

create or replace function run_schedule(name text) returns setof job
    language plpgsql security definer set search_path from current
as $$
declare
    v_schedule schedule_entries;
begin
    select t.* into v_schedule from schedule_entries t where t.name = run_schedule.name;
    if not found then
        perform _schedule(run_schedule.name, 'run_schedule');
    end if;
    return query select * from _add_tick(v_schedule, clock(), false);
end;
$$;
comment on function run_schedule(text) is
    'Does now what a schedule does at each of its ticks, which stay as they are, and returns the job (of a query: the jobs). A paused one, too. '
    'Errors: PW004, and what add_job and the query raise.';
