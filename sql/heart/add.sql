-- heart/add: add_job, for a payload given as json, jsonb or text.
--
-- The way of a job into the queue: a plain job is one INSERT of add_job. A job with a job key, a
-- unique policy, a sequence or flags, or whose task has a policy, goes to
--
--   _add_with_keys       reads the task, and decides by the keys (features/add_keyed)
--     _add_keyed         a job key: changes the job that has it (_change_keyed), or adds one
--     _resolve_conflict  a unique key: adds a job, or does what its policy says (features/unique)
--     _insert_job        neither, or the key is free: one INSERT
--
-- add_jobs (heart/add_jobs) adds jobs with keys by the same functions, and all others by one INSERT.

-- Why a payload or a meta breaks its limits (size, depth); null if it does not. Slow.
create or replace function _json_refusal(argument text, value text) returns text
    language plpgsql stable set search_path from current
as $$
declare
    v_limit integer := (select s.max_payload_bytes from settings s);
    v_brackets text;
begin
    if octet_length(value) > v_limit then
        return format('%s must not be larger than %s bytes, got %s', argument, v_limit, octet_length(value));
    end if;
    -- JSON is at most as deep as it has brackets: most payloads need no regular expression.
    if octet_length(value) - octet_length(replace(replace(value, '[', ''), '{', '')) <= 100 then
        return null;
    end if;
    -- To measure the depth: drop strings, keep brackets, then remove one level after the other.
    v_brackets := translate(regexp_replace(
        regexp_replace(value, E'"(\\\\.|[^"\\\\])*"', '', 'g'), '[^][{}]+', '', 'g'), '{}', '[]');
    for i in 1..100 loop
        exit when v_brackets = '';
        v_brackets := replace(v_brackets, '[]', '');
    end loop;
    if v_brackets <> '' then
        return argument || ' must not be nested deeper than 100 levels';
    end if;
    return null;
end;
$$;

create or replace function _flags_of(flags text[]) returns jsonb
    language plpgsql immutable strict set search_path from current
as $$
begin
    return (select jsonb_object_agg(f.flag, true) from unnest(flags) f(flag));
end;
$$;

-- Raises an error for this problem with an argument; does nothing if it is null. Errors: PW001.
create or replace function _refuse(problem text) returns void
    language plpgsql immutable set search_path from current
as $$
begin
    if problem is not null then
        raise exception '%', problem using errcode = 'PW001';
    end if;
end;
$$;

-- Why the arguments of an add are invalid; null if they are valid. Single and bulk adds share these
-- rules. PostgreSQL inlines the expression, so it costs no more than its comparisons.
create or replace function _job_refusal(
    identifier text, payload json default null, queue_name text default null,
    run_at timestamptz default null, max_attempts integer default null, job_key text default null,
    priority integer default null, flags text[] default null, job_key_mode text default null,
    unique_policy jsonb default null, sequence_policy jsonb default null, meta jsonb default null,
    delivery text default null, depends_on jsonb default null) returns text
    language sql stable
    return case
        when identifier is null or identifier = '' or length(identifier) > 128
            then format('identifier must be 1 to 128 characters long, got %L', left(identifier, 140))
        when queue_name = '' or length(queue_name) > 128
            then format('queue_name must be 1 to 128 characters long, got %L', left(queue_name, 140))
        when job_key = '' or length(job_key) > 512
            then format('job_key must be 1 to 512 characters long, got %L', left(job_key, 530))
        when max_attempts < 1 or max_attempts > 32767
            then format('max_attempts must be from 1 to 32767, got %s', max_attempts)
        when priority < -32768 or priority > 32767
            then format('priority must be from -32768 to 32767, got %s', priority)
        when job_key_mode not in ('replace', 'preserve_run_at', 'unsafe_dedupe')
            then format('job_key_mode must be replace, preserve_run_at or unsafe_dedupe, got %L',
                        job_key_mode)
        -- Most programming languages cannot represent other years.
        when run_at not between '0001-01-02 00:00+00' and '9999-12-30 00:00+00'
            then format('run_at must be a time of the years 1 to 9999, got %s', run_at)
        when array_ndims(flags) > 1
            then format('flags must be a plain list, got %s', flags)
        when array_position(flags, null) is not null
            then format('flags must not contain null, got %s', flags)
        when flags is not null and octet_length(_flags_of(flags)::text) > 1500 -- an index has them
            then format('flags must not be longer than 1500 bytes as JSON, got %s',
                        octet_length(_flags_of(flags)::text))
        when meta is not null and jsonb_typeof(meta) <> 'object'
            then format('meta must be a JSON object, got %s', jsonb_typeof(meta))
        when delivery not in ('at_least_once', 'at_most_once')
            then format('delivery must be at_least_once or at_most_once, got %L', delivery)
        when sequence_policy is not null and _sequence_policy_refusal(sequence_policy) <> ''
            then 'sequence_policy: ' || _sequence_policy_refusal(sequence_policy)
        when depends_on is not null and _depends_on_refusal(depends_on) <> ''
            then 'depends_on: ' || _depends_on_refusal(depends_on)
        -- Only a value that may break a limit is checked in full.
        when octet_length(payload::text) > 1024
             or octet_length(payload::text) - octet_length(translate(payload::text, '[{', '')) > 100
            then _json_refusal('payload', payload::text)
        when octet_length(meta::text) > 200 then _json_refusal('meta', meta::text)
    end;

-- Parses JSON that is given as text. The error message contains the parser's explanation, never the
-- payload, which may be secret.
create or replace function _json_of(value text, argument text) returns json
    language plpgsql immutable set search_path from current
as $$
declare
    v_detail text;
begin
    return value::json;
exception when invalid_text_representation or statement_too_complex then
    get stacked diagnostics v_detail = pg_exception_detail;
    raise exception '% must be JSON: %', argument, coalesce(nullif(v_detail, ''), sqlerrm)
        using errcode = 'PW001';
end;
$$;

-- Written out for speed. PL/pgSQL prepares each statement again in each transaction, so there are
-- few, large ones, and most arguments are validated only if one of them is given. _place is spelled
-- out: the call would cost some hundredths. Up to its end, two fields of the job hold something else:
-- `reason` has `parked`, and `deduplicated` whether a worker waits for a notification.
create or replace function add_job(
    identifier text, payload json default '{}', queue_name text default null, run_at timestamptz default null,
    max_attempts integer default null, job_key text default null, priority integer default null,
    flags text[] default null, job_key_mode text default 'replace', unique_policy jsonb default null,
    sequence_policy jsonb default null, meta jsonb default null, delivery text default null,
    depends_on jsonb default null, expires_at timestamptz default null, max_wait interval default null)
    returns job language plpgsql security definer set search_path from current
as $$
#variable_conflict use_variable
declare
    v_plain boolean := true;
    v_notified boolean;
    v_now timestamptz := clock();
    v_job job;
begin
    if num_nonnulls(queue_name, run_at, max_attempts, job_key, priority, flags, unique_policy,
                    sequence_policy, meta, delivery, depends_on, expires_at, max_wait) > 0
       or job_key_mode <> 'replace' or (length(identifier) between 1 and 128) is not true
       or octet_length(payload::text) > 200 then -- JSON that is deeper than 100 levels is longer
        perform _refuse('add_job: ' || _job_refusal(
            identifier, payload, queue_name, run_at, max_attempts, job_key, priority, flags, job_key_mode,
            unique_policy, sequence_policy, meta, delivery, depends_on));
        v_plain := num_nonnulls(job_key, unique_policy, sequence_policy, flags, depends_on, expires_at,
                                max_wait) = 0;
    end if;
    if v_plain then
        insert into live_jobs as j (
            state, ready_at, due_at, parked, updated_at, task_identifier, priority, max_attempts, run_at,
            created_at, queue_name, delivery, meta, payload)
        select case when r.run_at > v_now then 'scheduled' else 'available' end,
               case when r.run_at <= v_now and not q.waits then r.run_at end,
               case when r.run_at > v_now then r.run_at end,
               case when r.run_at <= v_now and q.waits then 'queue' end, v_now, identifier,
               coalesce(priority, t.priority, 0), coalesce(max_attempts, t.max_attempts, 25), r.run_at,
               v_now, q.name, coalesce(delivery, t.delivery, 'at_least_once'), meta, coalesce(payload, '{}')
        from (select coalesce(run_at, v_now) as run_at) r left join tasks t on t.identifier = identifier
        cross join lateral (
            select n.name, _must_wait(n.name) as waits
            from (select nullif(coalesce(queue_name, t.queue_name), 'default') as name) n offset 0) q
        where t.unique_policy is null and t.sequence_policy is null
        returning j.id, j.task_identifier, j.queue_name, j.payload, j.meta, j.priority, j.run_at, j.attempts,
                  j.max_attempts, j.last_error, j.created_at, j.updated_at, j.job_key, j.revision, j.flags,
                  j.claimed_at, null::text, j.state, j.delivery, null::text, j.sequence_key,
                  _worker_is_listening(), null::bigint, j.run, j.parked, j.finished_at, j.result,
                  null::float8, null::text into v_job;
    end if;
    if v_job.id is null then
        -- Not plain, or its task has a policy. The INSERT finds that out: other adds save a query.
        return _add_with_keys((
            identifier, payload, queue_name, run_at, max_attempts, job_key, priority, flags, job_key_mode,
            unique_policy, sequence_policy, meta, delivery, depends_on, expires_at, max_wait, null
        )::_job_request);
    end if;
    if v_job.reason is not null or v_job.deduplicated then
        v_notified := _announce(v_job.reason || ':' || v_job.queue_name);
        v_job.reason := null;
        v_job.deduplicated := false;
    end if;
    return v_job;
end;
$$;
comment on function add_job(text, json, text, timestamptz, integer, text, integer, text[], text,
    jsonb, jsonb, jsonb, text, jsonb, timestamptz, interval) is
    'Adds a job in the caller''s transaction and returns it. Workers see the job when that '
    'transaction commits. The first nine arguments are Graphile Worker''s. identifier: the task, 1 '
    'to 128 characters. payload: JSON, {} by default, at most 1 MiB and 100 levels deep. '
    'queue_name: the jobs of a named queue run one after another, unless the queue is configured '
    'otherwise; ''default'' means that the job is in no queue. run_at: the job does not run before '
    'this time, of the years 1 to 9999. max_attempts: how many attempts in all, 25 by default. '
    'job_key: a later add_job with the same key replaces this job. job_key_mode: how it does so, '
    '''replace'' (default), ''preserve_run_at'' or ''unsafe_dedupe''; payloads that are both JSON '
    'arrays are merged. priority: a smaller number runs first, 0 by default. flags: labels that a '
    'worker may refuse (forbidden_flags). meta: a JSON object for the caller''s own use. depends_on: '
    'the jobs that must end before, ids or {"id", "on"}. expires_at: a job that has not begun by then is '
    'cancelled, with the reason ''expired''. max_wait, with job_key: however often the job is replaced, '
    'its run_at stays within max_wait of the time at which it was first added. Arguments '
    'that are not given come from define_task. Errors: PW001 names the argument and its value. '
    'Under REPEATABLE READ and SERIALIZABLE a keyed add that meets a newer row raises 40001; it '
    'never returns null and never loses the job.';

-- By name, so that no argument can take the place of another.
create or replace function add_job(
    identifier text, payload jsonb, queue_name text default null, run_at timestamptz default null,
    max_attempts integer default null, job_key text default null, priority integer default null,
    flags text[] default null, job_key_mode text default 'replace', unique_policy jsonb default null,
    sequence_policy jsonb default null, meta jsonb default null, delivery text default null,
    depends_on jsonb default null, expires_at timestamptz default null, max_wait interval default null)
    returns job
    language sql volatile
    return add_job(
        identifier => identifier, payload => payload::json, queue_name => queue_name, run_at => run_at,
        max_attempts => max_attempts, job_key => job_key, priority => priority, flags => flags,
        job_key_mode => job_key_mode, unique_policy => unique_policy, sequence_policy => sequence_policy,
        meta => meta, delivery => delivery, depends_on => depends_on, expires_at => expires_at,
        max_wait => max_wait);
comment on function add_job(text, jsonb, text, timestamptz, integer, text, integer, text[], text,
    jsonb, jsonb, jsonb, text, jsonb, timestamptz, interval) is
    'add_job for a jsonb payload.';

create or replace function add_job(
    identifier text, payload text, queue_name text default null, run_at timestamptz default null,
    max_attempts integer default null, job_key text default null, priority integer default null,
    flags text[] default null, job_key_mode text default 'replace', unique_policy jsonb default null,
    sequence_policy jsonb default null, meta jsonb default null, delivery text default null,
    depends_on jsonb default null, expires_at timestamptz default null, max_wait interval default null)
    returns job
    language sql volatile
    return add_job(
        identifier => identifier, payload => _json_of(payload, 'add_job: payload'),
        queue_name => queue_name, run_at => run_at, max_attempts => max_attempts, job_key => job_key,
        priority => priority, flags => flags, job_key_mode => job_key_mode, unique_policy => unique_policy,
        sequence_policy => sequence_policy, meta => meta, delivery => delivery, depends_on => depends_on,
        expires_at => expires_at, max_wait => max_wait);
comment on function add_job(text, text, text, timestamptz, integer, text, integer, text[], text,
    jsonb, jsonb, jsonb, text, jsonb, timestamptz, interval) is
    'add_job for a payload given as text. PostgreSQL resolves a plain literal to this one. Errors: '
    'PW001 if it is not JSON.';
