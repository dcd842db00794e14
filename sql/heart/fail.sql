-- heart/fail: fail_jobs: running -> retryable, discarded or cancelled (heart/leave).

create or replace function fail_jobs(failures jsonb) returns bigint[]
    language plpgsql security definer set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
    set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_now constant timestamptz := clock();
    v_items _failure[];
    v_malformed text;
    v_moves _move[];
begin
    if failures is null or jsonb_typeof(failures) <> 'array' then
        raise exception 'fail_jobs: failures must be a JSON array of objects, got %',
            coalesce(jsonb_typeof(failures), 'NULL')
            using errcode = 'PW001';
    end if;
    select array_agg(f) filter (where f.problem is null),
           string_agg(format('item %s: %s', f.position, f.problem), '; ') filter (where f.problem is not null)
    into v_items, v_malformed from _failures_of(failures) f;
    if v_malformed is not null then
        raise warning 'fail_jobs: malformed items are left out: %', left(v_malformed, 1000)
            using hint = 'Their jobs keep running until their worker ends.';
    end if;
    -- Locks the jobs in the order of their ids. A job that is named twice fails once.
    v_moves := array(
        select row(j.id, case when i.cancel then 'cancelled' when w.why is not null then 'discarded'
                              else 'retryable' end,
                   case when i.delay is not null then v_now + i.delay
                        -- Without a policy, e to e^10 seconds (about 6 hours), as in Graphile Worker.
                        else greatest(v_now, j.run_at) + case when t.backoff is null
                            then exp(least(j.attempts, 10)) * interval '1 second'
                            else _retry_delay(t.backoff, j.attempts) end end,
                   null, case when i.cancel then i.error else w.why end, i.error, i.payload, null)::_move
        from (select distinct on (u.id, u.run) u.* from unnest(v_items) u
              order by u.id, u.run, u.position) i
        cross join lateral (
            select l.* from live_jobs l
            where l.id between i.id and i.id and l.run = i.run and l.state = 'running' for update) j
        left join tasks t on t.identifier = j.task_identifier
        cross join lateral (
            select case when i.discard then 'discarded by its handler'
                        when i.not_started is not true and _must_not_rerun(j)
                            then 'failed, and must not be run twice'
                        when j.attempts >= j.max_attempts then 'out of attempts' end as why) w);
    perform _leave(v_moves);
    return array(select m.id from unnest(v_moves) m);
end;
$$;
comment on function fail_jobs(jsonb) is
    'Reports failed attempts: [{"id", "run", "error", "payload"?, "discard"?, "cancel"?, '
    '"not_started"?, "delay"?}]. A job with attempts left becomes retryable at greatest(now, '
    'run_at) plus its backoff (Graphile Worker''s formula, or the task''s), or at now plus delay. '
    'Without attempts left, or with discard, it is discarded; with cancel it is cancelled. delay: '
    'seconds or an interval. payload replaces the payload for the retry; payload_text does so as JSON text, '
    'which may hold what jsonb cannot: U+0000 and half surrogate pairs. A job with delivery '
    'at_most_once that was started is discarded, unless not_started is true: its handler had not '
    'reached what must not be done twice. Ids and runs may be strings. Returns the ids that were '
    'accepted. A stale run is left out, and so is a malformed item, which a warning names. A '
    'payload beyond the limits is left out, and the error says so. Errors: PW001.';

-- The items of fail_jobs, each with its problem if it is malformed. Ids and runs may be strings,
-- since JavaScript sends large numbers as strings. No cast can fail, so one statement reads all
-- items: an exception block for each would cost more than the failure itself.
create or replace function _failures_of(failures jsonb) returns setof _failure
    language plpgsql stable set search_path from current set jit = off
as $$
begin
    return query
    select case when p.problem is null then (i.value ->> 'id')::bigint end,
           case when p.problem is null then (i.value ->> 'run')::bigint end,
           coalesce(nullif(i.value ->> 'error', ''), 'failed without a message')
           || coalesce(E'\n(The payload given with this failure was left out: ' || g.refusal || '.)', ''),
           case when g.refusal is null then g.payload end, i.value -> 'discard' = 'true',
           i.value -> 'cancel' = 'true',
           i.value -> 'not_started' = 'true', d.delay, i.n::integer, p.problem
    from jsonb_array_elements(failures) with ordinality i(value, n)
    cross join lateral (
        select case when jsonb_typeof(i.value -> 'delay') <> 'null' then _interval_of(i.value -> 'delay') end
            as delay) d
    cross join lateral (
        select case when jsonb_typeof(i.value -> 'payload_text') = 'string'
            then _json_or_null(i.value ->> 'payload_text')
            else nullif(i.value -> 'payload', 'null')::json end as payload offset 0) w
    cross join lateral (
        select w.payload, case
            when octet_length(w.payload::text) > 200 then _json_refusal('payload', w.payload::text)
            when w.payload is null and i.value ->> 'payload_text' is not null
                then 'payload_text must be a string of JSON' end as refusal offset 0) g
    cross join lateral (
        select case
            when jsonb_typeof(i.value) <> 'object' then 'it must be an object, got ' || jsonb_typeof(i.value)
            when (i.value ->> 'id' ~ '^-?[0-9]{1,18}$') is not true
                then 'id must be an integer, got ' || coalesce(left((i.value -> 'id')::text, 40), 'none')
            when (i.value ->> 'run' ~ '^-?[0-9]{1,18}$') is not true
                then 'run must be an integer, got ' || coalesce(left((i.value -> 'run')::text, 40), 'none')
            when jsonb_typeof(i.value -> 'discard') not in ('boolean', 'null')
                then 'discard must be true or false'
            when jsonb_typeof(i.value -> 'cancel') not in ('boolean', 'null')
                then 'cancel must be true or false'
            when jsonb_typeof(i.value -> 'not_started') not in ('boolean', 'null')
                then 'not_started must be true or false'
            when jsonb_typeof(i.value -> 'delay') <> 'null' and d.delay is null
                then 'delay must be seconds or an interval from 0 to 1000 years, got '
                     || left((i.value -> 'delay')::text, 40)
        end as problem offset 0) p; -- offset 0: evaluated once per item, not once per use
end;
$$;

-- Null if it is no JSON.
create or replace function _json_or_null(source text) returns json
    language plpgsql immutable set search_path from current
as $$
begin
    return source::json;
exception when data_exception then
    return null;
end;
$$;

-- The delay that a policy gives after this number of attempts.
create or replace function _retry_delay(backoff jsonb, attempts integer) returns interval
    language plpgsql volatile set search_path from current
as $$
declare
    v_initial interval;
    v_factor double precision;
    v_delay interval;
    v_max interval;
begin
    if jsonb_typeof(backoff) = 'array' then
        return _interval_of(backoff -> (least(attempts, jsonb_array_length(backoff)) - 1));
    end if;
    v_initial := coalesce(_interval_of(backoff -> 'initial'), interval '1 second');
    v_factor := coalesce((backoff ->> 'factor')::double precision, 2);
    v_max := coalesce(_interval_of(backoff -> 'max'), interval '1 day');
    v_delay := case backoff ->> 'strategy'
        when 'constant' then v_initial
        -- Both compare before they multiply: 1000 years * 32767 and 100 ^ 32767 are out of range.
        when 'linear' then case when extract(epoch from v_initial) * attempts < extract(epoch from v_max)
                                then v_initial * attempts else v_max end
        else case when extract(epoch from v_initial) = 0 then v_initial
                  when ln(extract(epoch from v_initial)::double precision) + (attempts - 1) * ln(v_factor)
                       > ln(1e10) then v_max
                  else v_initial * power(v_factor, attempts - 1) end
    end;
    v_delay := least(v_delay, v_max);
    return v_delay * (1 + coalesce((backoff ->> 'jitter')::double precision, 0) * (2 * random() - 1));
end;
$$;

create or replace function job_errors(job_id bigint)
    returns table (run bigint, at timestamptz, worker text, error text)
    language plpgsql stable security definer set search_path from current
    set enable_seqscan = off set jit = off
as $$
begin
    return query select e.run, e.at, e.worker, e.error from errors e where e.job_id = job_errors.job_id
    order by e.run, e.at;
end;
$$;
comment on function job_errors(bigint) is
    'The errors of all attempts of a job, live or finished, oldest first.';
