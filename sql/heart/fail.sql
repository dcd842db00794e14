-- heart/fail: fail_jobs: running -> retryable, discarded or cancelled. It ends most jobs of a batch in
-- one statement (_fail_all).

create or replace function fail_jobs(failures jsonb) returns bigint[]
    language plpgsql security definer set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
    set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_now constant timestamptz := clock();
    v_items _failure[];
    v_malformed text;
    v_accepted bigint[];
    v_odd boolean;
    v_forget boolean := (select s.discarded_retention = interval '0' from settings s);
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
    -- Locks all jobs, in the order of their ids, before it changes any. A job that is named twice
    -- fails once.
    with item as materialized (
        select distinct on (i.id, i.run) i.id, i.run, i.error, i.discard, i.cancel
        from unnest(v_items) i order by i.id, i.run, i.position),
    held as materialized (
        select j.id, j.run, j.worker_id, i.error,
               i.cancel or j.superseded is not null or j.cancel_requested_at is not null as ends,
               i.discard or j.attempts >= j.max_attempts or j.started_at is not null as may_be_discarded
        from item i cross join lateral (
            select j.* from live_jobs j
            where j.id between i.id and i.id and j.run = i.run and j.state = 'running' for update) j),
    noted as (
        insert into errors (job_id, run, at, worker, error)
        select h.id, h.run, v_now, h.worker_id::text, h.error from held h)
    select array_agg(h.id), bool_or(h.ends or h.may_be_discarded and v_forget) into v_accepted, v_odd
    from held h;
    if v_odd then
        perform _fail_for_good(v_items);
    end if;
    if v_accepted is not null then
        perform _fail_all(v_items);
    end if;
    return coalesce(v_accepted, '{}');
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

-- The common ends of failed runs, in one statement: retryable or discarded. The caller has locked
-- the rows and recorded the errors.
create or replace function _fail_all(items _failure[]) returns void
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
    set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_now timestamptz := clock();
    v_retention interval := (select s.discarded_retention from settings s);
    v_queues text[];
    v_slots xid8[];
    v_sequences text[];
    v_discarded bigint[];
begin
    with item as materialized (
        select distinct on (i.id, i.run) i.* from unnest(items) i order by i.id, i.run, i.position),
    fate as materialized (
        select j.id, j.slot, i.error, i.payload, r.run_at, w.why, p.*
        from item i
        cross join lateral (
            select l.* from live_jobs l
            where l.id between i.id and i.id and l.run = i.run and l.state = 'running' offset 0) j
        left join tasks t on t.identifier = j.task_identifier
        cross join lateral (select _failed_for(j, i.discard, i.not_started) as why) w
        cross join lateral (
            select case when w.why is not null then j.run_at when i.delay is not null then v_now + i.delay
                        -- Without a policy, e to e^10 seconds (about 6 hours), as in Graphile Worker.
                        else greatest(v_now, j.run_at) + case when t.backoff is null
                            then exp(least(j.attempts, 10)) * interval '1 second'
                            else _retry_delay(t.backoff, j.attempts) end end as run_at) r
        cross join lateral (select _must_wait(j.queue_name) as waits offset 0) q
        left join lateral _place(r.run_at, v_now, null, q.waits, 'retryable') p on w.why is null),
    failed as (
        update live_jobs j
        set state = coalesce(f.state, 'discarded'), parked = f.parked, ready_at = f.ready_at,
            due_at = f.due_at, run_at = f.run_at, updated_at = v_now, worker_id = null, claimed_at = null,
            last_error = f.error,
            payload = coalesce(f.payload, j.payload),
            started_at = case when f.why is not null then j.started_at end,
            reason = coalesce(f.why, j.reason), finished_at = case when f.why is not null then v_now end,
            expires_at = case when f.why is not null then v_now + v_retention end,
            sequence_head = case when f.why is null then j.sequence_head end, slot = null, pace = null,
            turn = null
        from fate f where j.id between f.id and f.id
        returning j.id, j.queue_name, j.sequence_key, j.continue_on_discarded, f.why, f.slot),
    halted as (
        insert into sequence_halts
        select f.sequence_key, f.id, 'discarded', v_now from failed f
        where f.why is not null and f.sequence_key is not null and not f.continue_on_discarded
        order by f.sequence_key, f.id
        on conflict do nothing)
    select array_agg(f.queue_name) filter (where f.queue_name is not null),
           array_agg(f.slot) filter (where f.queue_name is not null),
           array_agg(distinct f.sequence_key) filter (where f.why is not null and f.sequence_key is not null),
           array_agg(f.id) filter (where f.why <> '')
    into v_queues, v_slots, v_sequences, v_discarded from failed f;
    perform _tell_of_end(v_discarded, 'discarded');
    perform _hand_on(v_sequences, v_queues, v_slots);
    perform _notify_workers();
end;
$$;

-- The uncommon ends of failed runs, one job at a time: cancelled, superseded, or discarded while
-- discarded_retention is 0.
create or replace function _fail_for_good(items _failure[]) returns void
    language plpgsql set search_path from current
as $$
declare
    v_forget boolean := (select s.discarded_retention = interval '0' from settings s);
    v_failure record;
    v_job live_jobs;
    v_why text;
begin
    for v_failure in
        select j.job, i.error, i.discard, i.cancel, i.not_started, i.payload
        from (select distinct on (u.id, u.run) u.* from unnest(items) u order by u.id, u.run, u.position) i
        cross join lateral (
            select l as job from live_jobs l
            where l.id between i.id and i.id and l.run = i.run and l.state = 'running' offset 0) j
        order by i.id
    loop
        v_job := v_failure.job;
        v_why := _failed_for(v_job, v_failure.discard, v_failure.not_started);
        if v_failure.cancel then
            perform _finalize_jobs(array[v_job.id], null, 'cancelled', null,
                coalesce(v_job.superseded, v_failure.error), v_failure.error);
        elsif v_job.superseded is not null or v_job.cancel_requested_at is not null then
            perform _finalize_jobs(array[v_job.id], null, 'cancelled', null,
                coalesce(v_job.superseded, 'cancelled'), v_failure.error);
        elsif v_forget and v_why is not null then
            perform _discard(v_job, v_failure.error, v_why, v_failure.payload);
        end if;
    end loop;
end;
$$;

-- The reason why a failed run discards its job; null if the job may be retried.
create or replace function _failed_for(job live_jobs, discard boolean, not_started boolean) returns text
    language sql immutable
    return case when discard then 'discarded by its handler'
                when not coalesce(not_started, false) and _must_not_rerun(job)
                    then 'failed, and must not be run twice'
                when (job).attempts >= (job).max_attempts then 'out of attempts' end;

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
