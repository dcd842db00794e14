-- features/schedule_ticks: run_schedules(), which fires the ticks of due schedules, and run_schedule().

-- Adds the jobs of one tick and returns them. With a query, each of its rows is a job, and its
-- payload gets no member _cron.
create or replace function _add_tick(s schedule_entries, tick timestamptz, backfilled boolean)
    returns setof job
    language plpgsql set search_path from current
as $$
declare
    v_spec jsonb := jsonb_strip_nulls(jsonb_build_object(
        'identifier', s.identifier, 'queue_name', s.queue_name, 'run_at', tick,
        'max_attempts', s.max_attempts, 'job_key', s.job_key, 'priority', s.priority, 'flags', s.flags,
        'job_key_mode', s.job_key_mode, 'delivery', s.delivery))
        || jsonb_build_object('payload', s.payload, 'unique_policy', s.unique_policy,
                              'sequence_policy', s.sequence_policy, 'meta', s.meta);
    v_specs jsonb;
    v_requests _job_request[];
begin
    if s.query is null then
        v_specs := jsonb_build_array(case when jsonb_typeof(s.payload) <> 'object' then v_spec else jsonb_set(
            v_spec, '{payload,_cron}', jsonb_build_object(
                'ts', to_char(tick at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
                'backfilled', backfilled)) end);
    else
        perform _lock_queries(true);
        if not _query_is_intact(s.name, s.query, s.query_role)
           or exists (select from _query_schema_grantees()) then
            raise exception 'the function of the query of schedule % may have been changed',
                quote_literal(s.name)
                using errcode = 'PW005', hint = 'Add the schedule again, with its query.';
        end if;
        begin
            execute format($q$
                select jsonb_agg($1 || coalesce((select jsonb_object_agg(m.key, m.value)
                                                 from jsonb_each(q.spec) m where m.value <> 'null'), '{}'))
                from %s($2) q(spec)$q$, (_query_function(s.name, s.query)).path)
                into v_specs using v_spec, s.query_limit;
            raise sqlstate 'PW099';
        exception when sqlstate 'PW099' then
            null; -- v_specs keeps its value
        end;
    end if;
    if v_specs is not null then
        v_requests := _requests_of(v_specs);
        if s.payload = 'null' then -- a payload, too, where in specs it is none
            for i in 1 .. cardinality(v_requests) loop
                v_requests[i].payload := coalesce(v_requests[i].payload, 'null');
            end loop;
        end if;
        return query select * from _add_jobs(v_requests);
    end if;
end;
$$;

-- The ticks of a schedule to fire at a moment, at most 100, and the next one after them. A tick
-- that was interrupted is due however late it is. Any other is due for a minute, or for as long as
-- `backfill`.
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

-- Fires the due ticks of a schedule. It advances next_at first, so that nothing that the query
-- calls finds the schedule due again. fired: the number of ticks. cut_off: the statement was
-- cancelled or timed out, so the caller should end soon.
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
    v_interrupted boolean := false;
    v_now timestamptz;
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
                raise; -- the next call retries
            when query_canceled or others then
                -- PW003, a duplicate, is what the unique_policy asks for: no error.
                v_code := nullif(sqlstate, 'PW003');
                v_error := sqlerrm;
        end;
        -- Cancelled, timed out, out of memory or disk, shut down, blocked by a lock: the tick stays due.
        v_interrupted := left(v_code, 2) in ('40', '53', '57', '58', 'XX')
            or v_code in ('25006', '55006', '55P03', '72000');
        exit when v_interrupted;
        fired := fired + 1;
    end loop;
    if v_interrupted then
        -- Retry at once after the first interruption and in the first minute. After that, wait as
        -- long as the tick is late, 10 minutes at most, so that other schedules run.
        v_now := clock();
        v_late := case when v_schedule.retry_at is null then interval '0'
                       else least(greatest(v_now - v_tick - interval '1 minute', '0'), '10 minutes') end;
        update schedule_entries t set next_at = v_tick, retry_at = v_now + v_late
        where t.name = v_schedule.name;
        cut_off := v_code = '57014';
    end if;
    update schedule_entries t
    set last_at = coalesce(v_due.ticks[fired], t.last_at), last_job_id = coalesce(v_job_id, t.last_job_id),
        -- A lock (55P03) is not an error.
        last_error = case when v_code <> '55P03' then format('tick of %s: %s', v_tick, v_error) end
    where t.name = v_schedule.name and cardinality(v_due.ticks) > 0;
end;
$$;

-- Fires the due ticks of all schedules, once. cut_off: see _fire_schedule. patience: how long after
-- its retry_at an interrupted query runs again.
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
    -- Run queries only if no other schedule was due, so that its jobs do not wait for a query.
    foreach v_asking in array '{false,true}'::boolean[] loop
        exit when fired > 0;
        for v_due in
            select t.name, t.retry_at from schedule_entries t
            where t.next_at <= v_now and (t.query is not null) = v_asking
              and (t.retry_at is null or t.retry_at <= v_now - case when v_asking then patience else '0' end)
            order by t.retry_at nulls first, t.next_at, t.name limit 500
        loop
            -- An interrupted query runs only if no other query ran, so that none waits for it.
            exit when v_asking and fired > 0 and v_due.retry_at is not null;
            begin
                select f.* into v_one from _fire_schedule(v_due.name, v_now) f;
            exception when serialization_failure or deadlock_detected or lock_not_available then
                continue; -- another session fires or changes it
            end;
            fired := fired + v_one.fired;
            cut_off := v_one.cut_off;
            if cut_off then
                return; -- the statement has no time limit any more
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
    'Adds the jobs of all due schedules and returns how many ticks were fired. If that is not 0, '
    'there may be more: call it again. Each tick is fired once, however many sessions call this. A '
    'schedule that another session has locked is skipped. An error of one schedule is recorded '
    '(view schedules, last_error) and does not stop the others. A tick that is interrupted '
    '(cancelled, timed out, out of memory or disk, or blocked by a lock for 200 ms) stays due. '
    'Workers call it when beat says that a schedule is due.';

create or replace function seconds_until_tick() returns double precision
    language plpgsql security definer set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_now constant timestamptz := clock();
begin
    return (select extract(epoch from min(t.next_at) - v_now) from schedule_entries t
            where t.next_at > v_now);
end;
$$;
comment on function seconds_until_tick() is
    'Seconds until the next schedule falls due; null if there is none. Overdue schedules do not '
    'count, so call this first and run_schedules() after it.';

create or replace function run_schedule(name text) returns setof job
    language plpgsql security definer set search_path from current
as $$
declare
    v_schedule schedule_entries;
    v_now timestamptz;
begin
    select t.* into v_schedule from schedule_entries t where t.name = run_schedule.name;
    if not found then
        perform _locked_schedule(run_schedule.name, 'run_schedule');
    end if;
    v_now := clock();
    return query select * from _add_tick(v_schedule, v_now, false);
end;
$$;
comment on function run_schedule(text) is
    'Adds now the jobs that the schedule adds at each of its ticks, and returns them. Its ticks '
    'stay as they are. A paused schedule adds them too. Errors: PW004 if there is no such '
    'schedule, and those of add_job and of the query.';
