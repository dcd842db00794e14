-- console/actions: perform_action(), by which dashboards change jobs, queues, sequences and
-- schedules, and the view audit. Each action is recorded with its outcome in the transaction that
-- performs it. An action that would change nothing is refused, and says so.

-- The SQL of an action, to copy. Null for an action that is not known.
create or replace function action_sql(action text, target text, options jsonb default '{}') returns text
    language plpgsql stable security definer set search_path from current
as $$
begin
    if action in ('retry', 'cancel', 'force_cancel', 'delete') and (target ~ '^[0-9]{1,18}$') is not true then
        raise exception 'action_sql: target of % must be the id of a job, got %', action,
            quote_nullable(left(target, 140)) using errcode = 'PW001';
    end if;
    return format(case action
        when 'retry' then 'select * from %I.retry_job(%s)'
        when 'cancel' then 'select * from %I.cancel_job(%s)'
        when 'force_cancel' then 'select * from %I.cancel_job(%s, force => true)'
        when 'delete' then 'select * from %I.delete_job(%s)'
        when 'pause_queue' then 'select %I.pause_queue(%L)'
        when 'resume_queue' then 'select %I.resume_queue(%L)'
        when 'set_queue' then 'select %1$I.%3$s' -- a name in it may look like a format
        when 'resume_sequence' then 'select %I.resume_sequence(%L)'
        when 'run_schedule' then 'select * from %I.run_schedule(%L)'
        when 'pause_schedule' then 'select * from %I.pause_schedule(%L)'
        when 'resume_schedule' then 'select * from %I.resume_schedule(%L)' end,
        current_schema(), target, case action when 'set_queue' then (
            select _set_queue_call(target, l.concurrency, l.rate_limit, l.rate_period, l.fair)
            from _limits_with(target, options) l) end);
end;
$$;
comment on function action_sql(text, text, jsonb) is
    'The SQL that does what perform_action() does with this action, target and options, but for the record '
    'in the view audit. Null for an action that does not exist. Errors: PW001.';

create or replace function job_actions(job_id bigint) returns table (action text, statement text)
    language plpgsql stable security definer set search_path from current set enable_seqscan = off
    set jit = off
as $$
begin
    return query
    select a.action, action_sql(a.action, job_id::text)
    from get_job(job_id) j
    cross join lateral (values
        (1, 'retry', j.state not in ('available', 'running')),
        (2, 'cancel', j.finished_at is null and not exists (
            select from live_jobs l
            where l.id = job_actions.job_id and l.state = 'running' and l.cancel_requested_at is not null)),
        (3, 'force_cancel', j.state = 'running'),
        (4, 'delete', j.state <> 'running')) a(place, action, applies)
    where j.id is not null and a.applies order by a.place;
end;
$$;
comment on function job_actions(bigint) is
    'The actions of perform_action() that would change this job as it is now, and their SQL. No row if there '
    'is no such job.';

-- The limits of a queue with these options of set_queue: what they do not name stays as it is.
create or replace function _limits_with(
    queue_name text, options jsonb, out concurrency integer, out rate_limit integer,
    out rate_period interval, out fair boolean)
    language plpgsql stable set search_path from current
as $$
begin
    if jsonb_typeof(options) <> 'object' then
        raise exception 'perform_action: options must be a JSON object, got %', left(options::text, 140)
            using errcode = 'PW001';
    end if;
    select o.concurrency, o.rate_limit, case when o.rate_limit is not null then o.rate_period end,
           coalesce(o.fair, q.fair and right(q.queue_name, 1) = '*')
    into concurrency, rate_limit, rate_period, fair
    from _queues_of(array[_limits_with.queue_name]) q
    cross join lateral jsonb_to_record(jsonb_build_object(
        'concurrency', q.concurrency, 'rate_limit', q.rate_limit, 'rate_period', q.rate_period) || options)
        o(concurrency integer, rate_limit integer, rate_period interval, fair boolean);
exception
    when invalid_datetime_format or datetime_field_overflow or interval_field_overflow then
        raise exception 'perform_action: rate_period must be an interval such as ''1 minute'', got %',
            quote_literal(options ->> 'rate_period') using errcode = 'PW001';
    when invalid_text_representation or numeric_value_out_of_range then
        raise exception 'perform_action: concurrency and rate_limit must be whole numbers or null, '
            'fair true or false, got %', left(options::text, 140)
            using errcode = 'PW001';
end;
$$;

-- The call of set_queue with these limits.
create or replace function _set_queue_call(
    queue_name text, concurrency bigint, rate_limit bigint, rate_period interval, fair boolean) returns text
    language plpgsql stable set search_path from current
as $$
begin
    return format('set_queue(%L, %s%s%s)', queue_name, coalesce(concurrency::text, 'null'),
                  ', ' || rate_limit || ', ' || quote_literal(_words_of(rate_period)),
                  case when fair then ', fair => true' end);
end;
$$;

-- Performs one action; returns what came of it. Raises PW005 if it would change nothing.
create or replace function _perform_action(action text, target text, options jsonb) returns text
    language plpgsql set search_path from current
as $$
declare
    v_row live_jobs;
    v_paused boolean;
    v_idle text; -- why the action would change nothing
    v_limits record;
    v_job job;
begin
    if action in ('retry', 'cancel', 'force_cancel') then
        v_row := _lock_job(case action when 'retry' then 'retry_job' else 'cancel_job' end, target::bigint);
        v_idle := case
            when action <> 'retry' and (v_row.id is null or v_row.state = 'discarded') then
                format('it was already %s', (get_job(target::bigint)).state)
            when action = 'cancel' and v_row.state = 'running' and v_row.cancel_requested_at is not null then
                'it was already asked to stop'
            when action = 'retry' and _was_lost(v_row)
                 and not coalesce((options ->> 'lost')::boolean, false) then
                'it was lost, and may have been done: retry it by itself'
            when action = 'retry' and v_row.state = 'available' and v_row.start_by is null then
                'it was already available' end;
    elsif action in ('pause_queue', 'resume_queue') then
        v_paused := coalesce((select q.paused from queues q where q.queue_name = target for update), false);
    elsif action in ('pause_schedule', 'resume_schedule') then
        v_paused := (select t.paused from schedule_entries t where t.name = target for update);
    end if;
    v_idle := coalesce(v_idle, case when action like 'pause%' and v_paused then 'it was already paused'
                                    when action like 'resume%' and not v_paused then 'it was not paused' end);
    if v_idle is not null then
        raise exception '%', v_idle using errcode = 'PW005';
    end if;
    case action
        when 'retry' then v_job := retry_job(target::bigint);
        when 'cancel', 'force_cancel' then v_job := cancel_job(target::bigint, action = 'force_cancel');
        when 'delete' then v_job := delete_job(target::bigint);
        when 'pause_queue' then perform pause_queue(target);
        when 'resume_queue' then perform resume_queue(target);
        when 'set_queue' then
            v_limits := _limits_with(target, options);
            perform set_queue(
                target, v_limits.concurrency, v_limits.rate_limit, v_limits.rate_period, v_limits.fair);
            return concat(coalesce('concurrency ' || v_limits.concurrency, 'no limit'),
                          ', at most ' || v_limits.rate_limit || ' in ' || _words_of(v_limits.rate_period),
                          case when v_limits.fair then ', fair' end);
        when 'resume_sequence' then
            if not resume_sequence(target) then
                raise exception 'it was not halted' using errcode = 'PW005';
            end if;
        when 'run_schedule' then
            return (select coalesce('added job ' || string_agg(j.id::text, ', '), 'added no job')
                    from run_schedule(target) j);
        when 'pause_schedule' then perform pause_schedule(target);
        when 'resume_schedule' then perform resume_schedule(target);
    end case;
    return case when v_job.id is null then 'done' when action = 'delete' then 'was ' || v_job.state
                when action = 'cancel' and v_job.state = 'running' then 'running, and asked to stop'
                else v_job.state end;
end;
$$;

create or replace function _check_action(action text, targets text[], actor text, options jsonb)
    returns void
    language plpgsql immutable set search_path from current
as $$
declare
    v_actions constant text[] := '{retry,cancel,force_cancel,delete,pause_queue,resume_queue,set_queue,
                                   resume_sequence,run_schedule,pause_schedule,resume_schedule}'::text[];
    v_jobs boolean := action in ('retry', 'cancel', 'force_cancel', 'delete');
    v_bad text := (select quote_nullable(left(t.target, 140)) from unnest(targets) t(target)
                   where t.target is null or (v_jobs and t.target !~ '^[0-9]{1,18}$') limit 1);
    v_problem text := case
        when action is null or action <> all (v_actions) then
            format('action must be one of %s, got %s', array_to_string(v_actions, ', '),
                   quote_nullable(action))
        when coalesce(cardinality(targets), 0) not between 1 and 1000 then
            format('targets must be 1 to 1000, got %s', coalesce(cardinality(targets), 0))
        when array_ndims(targets) > 1 then
            format('targets must be a plain list, got %s', left(targets::text, 140))
        when v_bad is not null then
            format('targets of %s must be %s, got %s', action,
                   case when v_jobs then 'ids of jobs' else 'names' end, v_bad)
        when coalesce(length(actor), 0) not between 1 and 200 then
            format('actor must be 1 to 200 characters long, got %s', quote_nullable(left(actor, 220)))
        when action = 'retry' and coalesce(options ->> 'lost', 'true') <> all ('{true,false}') then
            format('options of retry may have lost, true or false, got %s', left(options::text, 140))
        when action = 'set_queue' and (
                options ?| '{concurrency,rate_limit,fair}'
                and coalesce(options ->> 'concurrency', '1') ~ '^[0-9]{1,9}$'
                and coalesce(options ->> 'rate_limit', '1') ~ '^[0-9]{1,9}$'
                and coalesce(options ->> 'fair', 'true') = any ('{true,false}')) is not true then
            format('options of set_queue must have concurrency or rate_limit, a number or null, or fair, '
                   'true or false, got %s', coalesce(options::text, 'NULL')) end;
begin
    perform _refuse('perform_action: ' || v_problem);
end;
$$;

create or replace function perform_action(action text, targets text[], actor text, options jsonb default '{}')
    returns table (target text, ok boolean, outcome text, audit_id bigint)
    language plpgsql security definer set search_path from current
as $$
#variable_conflict use_column
declare
    v_now timestamptz := clock();
    v_order bigint[];
    v_jobs boolean := action in ('retry', 'cancel', 'force_cancel', 'delete');
begin
    perform _check_action(action, targets, actor, options);
    if action = 'retry' then -- of one job, or of many: among these the lost ones wait for a decision
        options := jsonb_build_object('lost', cardinality(targets) = 1) || coalesce(options, '{}');
        v_order := _lock_for_retry(targets::bigint[]);
    elsif action = 'resume_sequence' then -- lock all halts by job id, as retry_jobs does
        perform from sequence_halts h where h.sequence_key = any (targets) order by h.job_id for update;
    end if;
    for target in
        select t.target from (select distinct u.target from unnest(targets) u(target)) t
        order by array_position(v_order, case when v_jobs then t.target::bigint end),
                 case when v_jobs then t.target::bigint end, t.target
    loop
        begin
            outcome := _perform_action(action, target, options);
            ok := true;
        exception when sqlstate 'PW001' or sqlstate 'PW003' or sqlstate 'PW004' or sqlstate 'PW005' then
            outcome := sqlerrm;
            ok := false;
        end;
        insert into audit_log (at, actor, db_role, action, target, ok, outcome)
        values (v_now, perform_action.actor, session_user, perform_action.action, perform_action.target,
                perform_action.ok, perform_action.outcome)
        returning audit_log.id into audit_id;
        return next;
    end loop;
end;
$$;
comment on function perform_action(text, text[], text, jsonb) is
    'Performs an action on up to 1,000 targets, and records each in the view audit, in the same transaction. '
    'Actions on jobs (targets are ids): retry, cancel, force_cancel, delete. Actions on names: pause_queue, '
    'resume_queue, set_queue (options: concurrency, rate_limit, rate_period, fair; the others stay as they '
    'are), resume_sequence, run_schedule, pause_schedule, resume_schedule. Returns one row per target. If an '
    'action is refused, or would change nothing, ok is false and outcome says why; the others are performed. '
    'A retry of several targets refuses lost jobs (delivery at_most_once), which may have been done, unless '
    'options have lost: true. audit_id: the row in the view audit. actor: who acts. Errors: PW001.';

create or replace view audit as
select a.id, a.at, a.actor, a.db_role, a.action, a.target, a.ok, a.outcome from audit_log a;
comment on view audit is
    'The actions of perform_action(), for instance in `pyworker ui`: when, by whom (actor as the caller '
    'named them, db_role of the session), the action, its target and its outcome. Kept for 90 days.';
