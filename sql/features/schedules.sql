-- features/schedules: add, pause, resume and remove schedules.
--
-- A schedule is a row of schedule_entries with its next tick (next_at). There is no leader: each
-- worker calls run_schedules (features/schedule_ticks), which locks the row of a due schedule or skips a
-- locked one, advances next_at and adds the job, in one transaction. So each tick adds its job
-- once.
--
-- next_at only grows: after the clock was set back, no tick is fired twice. A tick that is more
-- than a minute late was missed. It is still fired if it is not older than the schedule's
-- `backfill`.

-- A row as the public type `schedule`.
create or replace function _schedule_of(t schedule_entries) returns schedule
    language sql stable
    return row(
        t.name, t.cron, t.timezone, t.identifier, t.payload, t.backfill, t.queue_name, t.max_attempts,
        t.priority, t.job_key, t.job_key_mode, t.flags, t.unique_policy, t.sequence_policy, t.meta,
        t.delivery, t.query, t.query_role, t.query_limit, t.origin, t.paused, t.next_at, t.last_at,
        t.last_job_id, t.last_error, t.created_at, t.updated_at)::schedule;

-- The locked row of a schedule, for the functions that people call: they wait for the lock. label:
-- the name of that function, for the error.
create or replace function _locked_schedule(name text, label text) returns schedule_entries
    language plpgsql set search_path from current
as $$
declare
    v_schedule schedule_entries;
begin
    select t.* into v_schedule from schedule_entries t where t.name = _locked_schedule.name for update;
    if not found then
        raise exception '%: there is no schedule %', label, coalesce(quote_literal(name), 'NULL')
            using errcode = 'PW004';
    end if;
    return v_schedule;
end;
$$;

-- Writes a schedule. If nothing changed, the row is neither written nor locked. If cron and
-- timezone are unchanged, the schedule keeps its next tick.
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
    if (s.cron, s.timezone, s.identifier, s.payload, s.backfill, s.queue_name, s.max_attempts, s.priority,
        s.job_key, s.job_key_mode, s.flags, s.unique_policy, s.sequence_policy, s.meta, s.delivery, s.query,
        s.query_role, s.query_limit, s.origin)
       is not distinct from
       (v_old.cron, v_old.timezone, v_old.identifier, v_old.payload, v_old.backfill, v_old.queue_name,
        v_old.max_attempts, v_old.priority, v_old.job_key, v_old.job_key_mode, v_old.flags,
        v_old.unique_policy, v_old.sequence_policy, v_old.meta, v_old.delivery, v_old.query,
        v_old.query_role, v_old.query_limit, v_old.origin) then
        v_new := v_old;
    end if;
    if v_new.name is null then
        v_problem := coalesce(
            case when s.name is null or s.name = '' or length(s.name) > 200
                 then format('name must be 1 to 200 characters long, got %s',
                             coalesce(quote_literal(left(s.name, 210)), 'NULL')) end,
            'cron: ' || (_cron_of(s.cron)).problem, _timezone_refusal(s.timezone),
            case when s.backfill is null or s.backfill < interval '0' or s.backfill > interval '100 years'
                 then format('backfill must be from 0 to 100 years, got %s',
                             coalesce(s.backfill::text, 'NULL')) end,
            _job_refusal(s.identifier, s.payload::json, s.queue_name, null, s.max_attempts, s.job_key,
                         s.priority, s.flags, s.job_key_mode, s.unique_policy, s.sequence_policy, s.meta,
                         s.delivery),
            'unique_policy: ' || _unique_policy_refusal(s.unique_policy),
            case when s.job_key is not null and s.unique_policy is not null
                 then 'job_key and unique_policy exclude each other: give one of them' end);
    end if;
    v_problem := coalesce(v_problem, _query_refusal(s));
    if v_problem is not null then
        raise exception 'add_schedule: %', v_problem using errcode = 'PW001';
    elsif v_new.name is not null then
        return _schedule_of(v_new);
    end if;
    s.timezone := _timezone_of(s.timezone);
    insert into schedule_entries as t
    select s.name, s.cron, s.timezone, s.identifier, s.payload, s.backfill, s.queue_name, s.max_attempts,
           s.priority, s.job_key, s.job_key_mode, s.flags, s.unique_policy, s.sequence_policy, s.meta,
           s.delivery, s.query, s.query_role, s.query_limit, s.origin, false,
           _cron_next(_cron_of(s.cron), s.timezone, v_now), null, null, null, v_now, v_now
    on conflict on constraint schedule_entries_pkey do update
    set cron = excluded.cron, timezone = excluded.timezone, identifier = excluded.identifier,
        payload = excluded.payload, backfill = excluded.backfill, queue_name = excluded.queue_name,
        max_attempts = excluded.max_attempts, priority = excluded.priority, job_key = excluded.job_key,
        job_key_mode = excluded.job_key_mode, flags = excluded.flags, unique_policy = excluded.unique_policy,
        sequence_policy = excluded.sequence_policy, meta = excluded.meta, delivery = excluded.delivery,
        query = excluded.query, query_role = excluded.query_role, query_limit = excluded.query_limit,
        origin = excluded.origin, last_error = null, updated_at = v_now,
        retry_at = case when (t.cron, t.timezone) = (excluded.cron, excluded.timezone) then t.retry_at end,
        next_at = case when t.paused then null
                       when (t.cron, t.timezone) = (excluded.cron, excluded.timezone) then t.next_at
                       else _cron_next(_cron_of(s.cron), s.timezone, greatest(v_now, t.last_at)) end
    returning t.* into v_new;
    if v_old.query is not null and s.query is null then
        perform _drop_query(s.name);
    end if;
    return _schedule_of(v_new);
end;
$$;

create or replace function add_schedule(
    name text, cron text, identifier text, payload jsonb default '{}', timezone text default 'UTC',
    backfill interval default '0', queue_name text default null, max_attempts integer default null,
    priority integer default null, job_key text default null, job_key_mode text default 'replace',
    flags text[] default null, unique_policy jsonb default null, sequence_policy jsonb default null,
    meta jsonb default null, delivery text default null, query text default null,
    query_role text default null, query_limit integer default 1000) returns schedule
    language plpgsql set search_path from current -- with the caller's privileges: schedule_queries
as $$
declare
    v_role text := current_setting('role');
    v_query_role text := case when query is null then query_role else coalesce(query_role, current_user) end;
    v_owner name := (select pg_get_userbyid(n.nspowner) from pg_namespace n
                     where n.nspname = current_schema());
    v_function record;
    v_known constant text[] := '{identifier,payload,queue_name,run_at,max_attempts,job_key,priority,flags,
        job_key_mode,unique_policy,sequence_policy,meta,delivery,depends_on,expires_at,max_wait}'::text[];
    v_columns jsonb;
    v_problem text;
begin
    if query is not null and name is not null then -- without a name, _add_schedule refuses it
        if not exists (select from pg_roles r where r.rolname = v_query_role) then
            raise exception 'add_schedule: query_role must name the role whose rights the query has, got %',
                quote_literal(v_query_role) using errcode = 'PW001';
        elsif pg_has_role(v_query_role, v_owner, 'member') and not pg_has_role(v_owner, 'member') then
            raise exception 'add_schedule: query_role must not have the rights of the owner of schema %, '
                'got %', current_schema(), quote_literal(v_query_role) using errcode = 'PW001',
                hint = 'Name a role that can read what the query reads, and no more.';
        end if;
        perform _lend_query_schema(name, v_query_role);
        v_function := _query_function(name, query);
        perform set_config('role', v_query_role, true);
        execute format('create function %s(max_rows integer) returns setof jsonb language plpgsql stable '
                       'security definer set search_path = pg_catalog, pg_temp as %L',
                       v_function.path, v_function.body);
        execute format('revoke all on function %s(integer) from public', v_function.path);
        execute format('grant execute on function %s(integer) to %I', v_function.path, v_owner);
        begin
            -- max_rows = 0 prepares the query without running it: finds its errors and its columns.
            execute format('select q.* from %s(0) q', v_function.path) into v_columns;
            select 'its columns must be named like arguments of add_job, got '
                   || string_agg(quote_literal(k.name), ', ') into v_problem
            from jsonb_object_keys(v_columns) k(name) where k.name <> all (v_known);
        exception when others then
            v_problem := sqlerrm
                || case when sqlstate in ('42P01', '42883') then ' (names must be qualified by their schema)'
                        else '' end;
        end;
        if v_problem is not null then
            raise exception 'add_schedule: query: %', v_problem using errcode = 'PW001';
        end if;
        perform set_config('role', v_role, true);
    end if;
    return _add_schedule(row(
        name, cron, timezone, identifier, payload, backfill, queue_name, max_attempts, priority, job_key,
        job_key_mode, flags, unique_policy, sequence_policy, meta, delivery, query, v_query_role,
        case when query is not null then query_limit end, 'sql', false,
        null, null, null, null, null, null)::schedule);
end;
$$;
comment on function add_schedule(
    text, text, text, jsonb, text, interval, text, integer, integer, text, text, text[], jsonb, jsonb, jsonb,
    text, text, text, integer) is
    'Adds a schedule, which adds a job at each of its ticks, and returns it. A schedule of the '
    'same name is replaced, and keeps its next tick if cron and timezone stay the same. cron: five '
    'fields, or @daily and the like (see describe_cron, next_runs). timezone: a name such as '
    '''Europe/Berlin''. backfill: a tick that was missed, because no worker ran, is still fired up '
    'to this long after its time; ticks before the schedule was added are not. A payload that is '
    'an object gets a member _cron, {"ts", "backfilled"}. The other arguments are those of '
    'add_job. query: a SELECT that runs at each tick and returns the jobs to add, one per row, up '
    'to query_limit. Its columns are named like arguments of add_job; for the others, the values '
    'given here apply. Names in it must be qualified. It runs with the privileges of query_role, '
    'by default the caller''s role; the caller must be a member of query_role. Errors: PW001 names '
    'the argument, its value, and the position in cron.';

create or replace function remove_schedule(name text) returns schedule
    language plpgsql security definer set search_path from current
as $$
declare
    v_schedule schedule_entries := _locked_schedule(remove_schedule.name, 'remove_schedule');
begin
    delete from schedule_entries t where t.name = v_schedule.name;
    perform _drop_query(v_schedule.name);
    return _schedule_of(v_schedule);
end;
$$;
comment on function remove_schedule(text) is
    'Deletes a schedule and returns it. The jobs that it added stay. Errors: PW004 if there is no '
    'such schedule.';

create or replace function pause_schedule(name text) returns schedule
    language plpgsql security definer set search_path from current
as $$
declare
    v_now constant timestamptz := clock();
    v_schedule schedule_entries := _locked_schedule(pause_schedule.name, 'pause_schedule');
begin
    update schedule_entries t set paused = true, next_at = null, retry_at = null, updated_at = v_now
    where t.name = v_schedule.name returning t.* into v_schedule;
    return _schedule_of(v_schedule);
end;
$$;
comment on function pause_schedule(text) is
    'Pauses a schedule: it adds no jobs until resume_schedule. It stays paused when add_schedule '
    'replaces it. Errors: PW004 if there is no such schedule.';

create or replace function resume_schedule(name text) returns schedule
    language plpgsql security definer set search_path from current
as $$
declare
    v_now timestamptz := clock();
    v_schedule schedule_entries := _locked_schedule(resume_schedule.name, 'resume_schedule');
begin
    update schedule_entries t
    set paused = false, updated_at = v_now, retry_at = null,
        next_at = _cron_next(_cron_of(t.cron), t.timezone, v_now),
        last_at = case when t.last_at <= v_now then t.last_at end
    where t.name = v_schedule.name and (t.paused or t.last_at > v_now);
    return _schedule_of(_locked_schedule(v_schedule.name, 'resume_schedule'));
end;
$$;
comment on function resume_schedule(text) is
    'Resumes a paused schedule with its next tick from now; ticks during the pause are skipped. A '
    'schedule whose last tick is in the future, because the clock was set back, also continues '
    'from now. Errors: PW004 if there is no such schedule.';
