-- heart/tasks: the defaults of a task. An add_job in plain SQL gets them as well.

-- Why a backoff policy is invalid; null if it is valid.
create or replace function _backoff_refusal(backoff jsonb) returns text
    language plpgsql immutable set search_path from current
as $$
declare
    v_key text;
    v_value jsonb;
begin
    if jsonb_typeof(backoff) = 'array' then
        if backoff = '[]' then
            return 'an array of delays must not be empty';
        end if;
        for v_value in select * from jsonb_array_elements(backoff) loop
            if _interval_of(v_value) is null then
                return format('%s is not a delay (seconds, or an interval such as "10 minutes")', v_value);
            end if;
        end loop;
        return null;
    end if;
    if jsonb_typeof(backoff) <> 'object' then
        return 'it must be an array of delays or an object';
    end if;
    for v_key, v_value in select * from jsonb_each(backoff) loop
        case v_key
            when 'strategy' then
                if v_value not in ('"exponential"', '"linear"', '"constant"') then
                    return format('strategy must be exponential, linear or constant, got %s', v_value);
                end if;
            when 'initial', 'max' then
                if _interval_of(v_value) is null then
                    return format('%s must be a delay (seconds, or an interval such as "10 minutes"), got %s',
                                  v_key, v_value);
                end if;
            when 'factor' then
                if jsonb_typeof(v_value) <> 'number' or v_value::numeric not between 1 and 100 then
                    return format('factor must be a number from 1 to 100, got %s', v_value);
                end if;
            when 'jitter' then
                if jsonb_typeof(v_value) <> 'number' or v_value::numeric not between 0 and 1 then
                    return format('jitter must be a number from 0 to 1, got %s', v_value);
                end if;
            else
                return format('unknown member "%s" (known: strategy, initial, factor, max, jitter)', v_key);
        end case;
    end loop;
    return null;
end;
$$;

create or replace function define_task(
    identifier text, max_attempts integer default null, priority integer default null,
    queue_name text default null, unique_policy jsonb default null, sequence_policy jsonb default null,
    delivery text default null, timeout interval default null, backoff jsonb default null,
    retention interval default null, payload_schema jsonb default null) returns void
    language plpgsql security definer set search_path from current
as $$
#variable_conflict use_variable
declare
    v_now constant timestamptz := clock();
    v_problem text := _job_refusal(
        identifier, queue_name => queue_name, max_attempts => max_attempts, priority => priority,
        unique_policy => unique_policy, sequence_policy => sequence_policy, delivery => delivery);
begin
    v_problem := coalesce(v_problem,
        case when timeout <= interval '0' or timeout > interval '100 years'
                  then format('timeout must be positive and at most 100 years, got %s', timeout)
             when retention < interval '0' or retention > interval '100 years'
                  then format('retention must be from 0 to 100 years, got %s', retention) end,
        'backoff: ' || _backoff_refusal(backoff),
        'unique_policy: ' || _unique_policy_refusal(nullif(unique_policy, 'null')));
    perform _refuse('define_task: ' || v_problem);
    unique_policy := nullif(unique_policy, 'null');
    sequence_policy := nullif(sequence_policy, 'null');
    -- Workers call this at each start, so an unchanged task is neither written nor locked.
    if exists (
        select from tasks t
        where t.identifier = define_task.identifier
          and (t.max_attempts, t.priority, t.queue_name, t.unique_policy, t.sequence_policy, t.delivery,
               t.timeout, t.backoff, t.retention, t.payload_schema)
              is not distinct from
              (max_attempts, priority, nullif(queue_name, 'default'), unique_policy, sequence_policy,
               delivery, timeout, backoff, retention, payload_schema)) then
        return;
    end if;
    insert into tasks as t values (
        identifier, max_attempts, priority, nullif(queue_name, 'default'), unique_policy, sequence_policy,
        delivery, timeout, backoff, retention, payload_schema, v_now)
    on conflict on constraint tasks_pkey do update
    set (max_attempts, priority, queue_name, unique_policy, sequence_policy, delivery, timeout, backoff,
         retention, payload_schema, updated_at)
      = (excluded.max_attempts, excluded.priority, excluded.queue_name, excluded.unique_policy,
         excluded.sequence_policy, excluded.delivery, excluded.timeout, excluded.backoff, excluded.retention,
         excluded.payload_schema, excluded.updated_at);
end;
$$;
comment on function define_task(text, integer, integer, text, jsonb, jsonb, text, interval,
    jsonb, interval, jsonb) is
    'Sets the defaults of a task. Each call replaces the whole definition; null means the '
    'system''s default. An argument of add_job replaces a default as a whole. timeout: how long a '
    'handler may run. backoff: the delays after failures, either an array such as ["10 s", "5 '
    'min"], whose last entry repeats, or an object {"strategy": "exponential" | "linear" | '
    '"constant", "initial", "factor", "max", "jitter"}; without one the delay is exp(attempts) '
    'seconds. retention: how long completed and cancelled jobs are kept; 0 deletes them at once '
    '(the setting discarded_retention applies to discarded jobs). Errors: PW001.';

create or replace function list_tasks() returns table (
    identifier text, max_attempts smallint, priority smallint, queue_name text, unique_policy jsonb,
    sequence_policy jsonb, delivery text, timeout interval, backoff jsonb, retention interval,
    payload_schema jsonb, updated_at timestamptz)
    language plpgsql stable security definer set search_path from current
as $$
begin
    return query
    select t.identifier, t.max_attempts, t.priority, t.queue_name, t.unique_policy, t.sequence_policy,
           t.delivery, t.timeout, t.backoff, t.retention, t.payload_schema, t.updated_at
    from tasks t order by t.identifier;
end;
$$;
comment on function list_tasks() is
    'The definitions of tasks (define_task), ordered by name. Null means the system''s default. A '
    'task without a definition is not listed.';
