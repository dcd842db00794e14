-- 20_add: a job comes in, or is called back by its key: add_job (three spellings of the payload), remove_job.
--
-- An unkeyed job is one INSERT. A keyed one looks for its namesake first: _add_keyed.

-- The limits of a payload or a meta, for one that may break them.
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
    -- Not deeper than it has brackets: that settles most payloads without a regular expression.
    if octet_length(value) - octet_length(replace(replace(value, '[', ''), '{', '')) <= 100 then
        return null;
    end if;
    -- Nesting depth: drop strings, keep brackets, then peel off one level after the other.
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

-- What is wrong with the arguments; null if nothing is. One rule book for single and bulk adds; inlined, so it costs the
-- comparisons and nothing else.
create or replace function _job_refusal(
    identifier text, payload json, queue_name text, run_at timestamptz, max_attempts integer, job_key text, priority integer,
    flags text[], job_key_mode text, unique_policy jsonb, sequence_policy jsonb, meta jsonb, delivery text) returns text
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
            then format('job_key_mode must be replace, preserve_run_at or unsafe_dedupe, got %L', job_key_mode)
        -- What others can read, too: most languages know no other years.
        when run_at not between '0001-01-02 00:00+00' and '9999-12-30 00:00+00'
            then format('run_at must be a time of the years 1 to 9999, got %s', run_at)
        when array_ndims(flags) > 1
            then format('flags must be a plain list, got %s', flags)
        when array_position(flags, null) is not null
            then format('flags must not contain null, got %s', flags)
        when meta is not null and jsonb_typeof(meta) <> 'object'
            then format('meta must be a JSON object, got %s', jsonb_typeof(meta))
        when delivery not in ('at_least_once', 'at_most_once')
            then format('delivery must be at_least_once or at_most_once, got %L', delivery)
        when sequence_policy is not null and _sequence_policy_refusal(sequence_policy) <> ''
            then 'sequence_policy: ' || _sequence_policy_refusal(sequence_policy)
        -- Only a payload that may break a limit is looked at more closely.
        when octet_length(payload::text) > 1024
             or octet_length(payload::text) - octet_length(translate(payload::text, '[{', '')) > 100
            then _json_refusal('payload', payload::text)
        when octet_length(meta::text) > 200 then _json_refusal('meta', meta::text)
    end;

-- JSON that came as text. The message holds the parser's word on the mistake, never the payload: it may be secret.
create or replace function _json_of(value text, argument text) returns json
    language plpgsql immutable set search_path from current
as $$
declare
    v_detail text;
begin
    return value::json;
exception when invalid_text_representation or statement_too_complex then
    get stacked diagnostics v_detail = pg_exception_detail;
    raise exception '% must be JSON: %', argument, coalesce(nullif(v_detail, ''), sqlerrm) using errcode = 'PW001';
end;
$$;

create or replace function add_job(
    identifier text, payload json default '{}', queue_name text default null, run_at timestamptz default null,
    max_attempts integer default null, job_key text default null, priority integer default null, flags text[] default null,
    job_key_mode text default 'replace', unique_policy jsonb default null, sequence_policy jsonb default null,
    meta jsonb default null, delivery text default null) returns job
    language plpgsql security definer set search_path from current
as $$
declare
    v_problem text;
    v_now timestamptz := clock();
    v_job job;
begin
    -- Few, large statements, and little said of what was not given: PL/pgSQL prepares each one anew in each transaction.
    if num_nonnulls(
           add_job.queue_name, add_job.run_at, add_job.max_attempts, add_job.job_key, add_job.priority, add_job.flags,
           add_job.unique_policy, add_job.sequence_policy, add_job.meta, add_job.delivery) > 0
       or add_job.job_key_mode <> 'replace' or (length(add_job.identifier) between 1 and 128) is not true
       or octet_length(add_job.payload::text) > 200 -- what is nested deeper than 100 levels is longer
    then
        v_problem := _job_refusal(
            add_job.identifier, add_job.payload, add_job.queue_name, add_job.run_at, add_job.max_attempts, add_job.job_key,
            add_job.priority, add_job.flags, add_job.job_key_mode, add_job.unique_policy, add_job.sequence_policy, add_job.meta,
            add_job.delivery);
        if v_problem is not null then
            raise exception 'add_job: %', v_problem using errcode = 'PW001';
        elsif add_job.job_key is not null or add_job.unique_policy is not null or add_job.sequence_policy is not null
              or add_job.flags is not null then
            return _add_with_keys(row(
                add_job.identifier, add_job.payload, add_job.queue_name, add_job.run_at, add_job.max_attempts, add_job.job_key,
                add_job.priority, add_job.flags, add_job.job_key_mode, add_job.unique_policy, add_job.sequence_policy,
                add_job.meta, add_job.delivery)::_job_request);
        end if;
    end if;
    insert into live_jobs as j (
        state, ready_at, due_at, parked, updated_at, priority, max_attempts, run_at, created_at, task_identifier, queue_name,
        delivery, meta, payload)
    -- What _state_at, _ready_at, _due_at and _parked say, spelled out: one within the other they cost up to a tenth of the call.
    select case when r.run_at > v_now then 'scheduled' else 'available' end,
           case when r.run_at <= v_now and not q.limited then r.run_at end,
           case when r.run_at > v_now then r.run_at end,
           case when r.run_at <= v_now and q.limited then 'queue' end, v_now,
           coalesce(add_job.priority, t.priority, 0), coalesce(add_job.max_attempts, t.max_attempts, 25), r.run_at, v_now,
           add_job.identifier, q.queue_name, coalesce(add_job.delivery, t.delivery, 'at_least_once'), add_job.meta,
           coalesce(add_job.payload, '{}')
    from (select coalesce(add_job.run_at, v_now) as run_at) r
    left join tasks t on t.identifier = add_job.identifier
    cross join lateral (
        select n.queue_name, n.queue_name is not null and _is_limited(n.queue_name) as limited
        from (select nullif(coalesce(add_job.queue_name, t.queue_name), 'default') as queue_name) n offset 0) q
    where t.unique_policy is null and t.sequence_policy is null
    returning j.id, j.task_identifier, j.queue_name, j.payload, j.meta, j.priority, j.run_at, j.attempts, j.max_attempts, j.last_error,
              j.created_at, j.updated_at, j.job_key, j.revision, j.flags, j.claimed_at, null::text, j.state, j.delivery, null::text,
              j.sequence_key, _worker_is_listening(), null::bigint, j.run, j.reason, j.finished_at, j.result into v_job;
    if not found then
        -- The task's own policies; only now known of, so that other adds need not ask for them.
        return _add_with_keys(row(
            add_job.identifier, add_job.payload, add_job.queue_name, add_job.run_at, add_job.max_attempts, null, add_job.priority,
            add_job.flags, null, null, add_job.sequence_policy, add_job.meta, add_job.delivery)::_job_request);
    end if;
    if v_job.queue_name is not null and v_job.state = 'available' then
        -- To be made a candidate; without a limit it is one already.
        insert into promotion_requests (lane) values ('queue:' || v_job.queue_name);
    end if;
    if v_job.run_at < v_now then
        perform _arrive_late(array[v_job.id]);
    end if;
    if v_job.deduplicated then -- which here says for once that somebody waits
        v_job.deduplicated := false;
        perform _notify_workers();
    end if;
    return v_job;
end;
$$;
comment on function add_job(text, json, text, timestamptz, integer, text, integer, text[], text, jsonb, jsonb, jsonb, text) is
    'Adds a job in the caller''s transaction and returns it; the job is seen by workers when that transaction commits. The first nine '
    'arguments are Graphile Worker''s. identifier: the task, 1 to 128 characters. payload: JSON, {} by default, at most 1 MiB and 100 '
    'levels deep. queue_name: jobs of a named queue run one after another; ''default'' means none. run_at: not before this time, of the years 1 to 9999. '
    'max_attempts: tries in all, 25 by default. job_key: a later add_job with the same key replaces this job; job_key_mode says how: '
    '''replace'' (default), ''preserve_run_at'', ''unsafe_dedupe''; two JSON array payloads are merged. priority: smaller runs first, '
    'default 0. flags: labels a worker may refuse (forbidden_flags). meta: a JSON object for the caller''s own use. What is not given '
    'comes from define_task. Errors: PW001 names the argument and its value. Under REPEATABLE READ and SERIALIZABLE a keyed add that '
    'meets a newer row raises 40001; it never returns null and never loses the job.';

create or replace function add_job(
    identifier text, payload jsonb, queue_name text default null, run_at timestamptz default null,
    max_attempts integer default null, job_key text default null, priority integer default null, flags text[] default null,
    job_key_mode text default 'replace', unique_policy jsonb default null, sequence_policy jsonb default null,
    meta jsonb default null, delivery text default null) returns job
    language sql volatile
    return add_job(identifier, payload::json, queue_name, run_at, max_attempts, job_key, priority, flags, job_key_mode,
                   unique_policy, sequence_policy, meta, delivery);
comment on function add_job(text, jsonb, text, timestamptz, integer, text, integer, text[], text, jsonb, jsonb, jsonb, text) is
    'add_job for a jsonb payload.';

create or replace function add_job(
    identifier text, payload text, queue_name text default null, run_at timestamptz default null,
    max_attempts integer default null, job_key text default null, priority integer default null, flags text[] default null,
    job_key_mode text default 'replace', unique_policy jsonb default null, sequence_policy jsonb default null,
    meta jsonb default null, delivery text default null) returns job
    language sql volatile
    return add_job(identifier, _json_of(payload, 'add_job: payload'), queue_name, run_at, max_attempts, job_key, priority, flags, job_key_mode,
                   unique_policy, sequence_policy, meta, delivery);
comment on function add_job(text, text, text, timestamptz, integer, text, integer, text[], text, jsonb, jsonb, jsonb, text) is
    'add_job for a payload given as text: what a plain literal in SQL resolves to. Errors: PW001 if it is not JSON.';

create or replace function _flags_of(flags text[]) returns jsonb
    language plpgsql immutable strict set search_path from current
as $$
begin
    return (select jsonb_object_agg(f.flag, true) from unnest(flags) f(flag));
end;
$$;

-- Two arrays become one, as text: exactly the elements that were added, none rewritten by a parser.
create or replace function _merged_payload(older json, newer json, label text) returns json
    language plpgsql stable set search_path from current
as $$
declare
    v_older constant text := older::text || ''; -- fetched once, where it was stored out of line
    v_merged json;
begin
    -- Patterns, as json_array_length() and left() go through all of a long array; without backslashes, which a session may read otherwise.
    if v_older !~ '^[[:space:]]*[[]' or v_older ~ '^[[:space:]]*[[][[:space:]]*[]]' then
        return newer;
    elsif newer::text ~ '^[[:space:]]*[[][[:space:]]*[]]' then
        return older;
    end if;
    v_merged := (regexp_replace(v_older, '[]][[:space:]]*$', ',') || regexp_replace(newer::text, '^[[:space:]]*[[]', ''))::json;
    if octet_length(v_merged::text) > 1024 and _json_refusal('payload', v_merged::text) is not null then
        raise exception '%: merged %', label, _json_refusal('payload', v_merged::text) using errcode = 'PW001';
    end if;
    return v_merged;
end;
$$;

-- A new row for a job with a job key, a unique key or flags; a row of nulls if its job key is held.
create or replace function _insert_job(
    request _job_request, task tasks, new_id bigint, label text, unique_key bytea default null, unique_recheck text[] default null)
    returns live_jobs
    language plpgsql set search_path from current
as $$
declare
    v_now timestamptz := clock();
    v_run_at timestamptz := coalesce(request.run_at, v_now);
    v_queue text := nullif(coalesce(request.queue_name, task.queue_name), 'default');
    v_sequence _sequencing;
    v_state text;
    v_parked text;
    v_row live_jobs;
begin
    if coalesce(request.sequence_policy, task.sequence_policy) is not null then
        v_sequence := _sequence_of(request, coalesce(nullif(request.sequence_policy, 'null'), task.sequence_policy), v_queue, label);
    end if;
    v_state := _state_at(v_run_at, v_now, v_sequence.key is not null);
    v_parked := _parked(v_state, v_queue);
    insert into live_jobs as j (
        id, state, ready_at, due_at, parked, updated_at, priority, max_attempts, run_at, created_at, task_identifier, queue_name,
        job_key, delivery, flags, meta, payload, unique_key, unique_recheck, sequence_key, continue_on_cancelled, continue_on_discarded)
    select coalesce(new_id, nextval('job_ids')), v_state, _ready_at(v_state, v_parked, v_run_at), _due_at(v_state, v_run_at), v_parked, v_now, coalesce(request.priority, task.priority, 0), coalesce(request.max_attempts, task.max_attempts, 25), v_run_at, v_now,
           request.identifier, v_queue, request.job_key, coalesce(request.delivery, task.delivery, 'at_least_once'),
           _flags_of(request.flags), request.meta, coalesce(request.payload, '{}'), _insert_job.unique_key, _insert_job.unique_recheck,
           v_sequence.key, v_sequence.continue_on_cancelled, v_sequence.continue_on_discarded
    on conflict (job_key) where job_key is not null do nothing
    returning j.* into v_row;
    if v_row.parked is not null then
        insert into promotion_requests (lane) values (_lane_of(v_row.parked, v_row.queue_name, v_row.sequence_key));
    end if;
    if v_row.ready_at < v_now then
        perform _arrive_late(array[v_row.id]);
    end if;
    if v_row.id is not null and _worker_is_listening() then -- asked here, as the call starts a query
        perform _notify_workers();
    end if;
    return v_row;
end;
$$;

-- A job with a key of one kind or another, its policies taken from its task where it brings none. Pins the plans of all that it calls.
create or replace function _add_with_keys(request _job_request) returns job
    language plpgsql set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_found record; -- its task, and whether its job key is taken, as it seems now
begin
    select t as task, exists (select from live_jobs j where j.job_key = request.job_key) as taken into v_found
    from (select) one left join tasks t on t.identifier = request.identifier;
    request.unique_policy := coalesce(nullif(request.unique_policy, 'null'), (v_found.task).unique_policy);
    if request.unique_policy is null and request.job_key is not null then
        return _add_keyed(request, v_found.task, 'add_job', case when v_found.taken then 'change' else 'insert' end);
    elsif request.unique_policy is null then
        return _job_of(_insert_job(request, v_found.task, null, 'add_job'));
    end if;
    return _add_unique(
        request, v_found.task,
        _uniqueness_of(request, request.unique_policy, coalesce(request.queue_name, (v_found.task).queue_name), clock(), 'add_job'), 'add_job');
end;
$$;

-- A keyed add. Graphile Worker's algorithm, without its race (two snapshots, between which a worker may claim the row): here
-- each step holds the lock that its decision rests on, and an add that meets neither a row to change nor a free key looks again.
-- `step` is a guess at what will do: to change the row in place, which most rows allow; to insert one; else to look first, under lock.
-- With `waits` false: null where it would have to wait for a row that it has not locked already.
create or replace function _add_keyed(
    request _job_request, task tasks, label text, step text, new_id bigint default null, waits boolean default true) returns job
    language plpgsql set search_path from current
as $$
declare
    v_now timestamptz := clock();
    v_run_at timestamptz := coalesce(request.run_at, v_now);
    v_mode text := coalesce(request.job_key_mode, 'replace');
    v_queue text := nullif(coalesce(request.queue_name, task.queue_name), 'default');
    v_state text;
    v_parked text;
    v_sequence _sequencing;
    v_head boolean; -- its place in its sequence is kept
    v_old live_jobs;
    v_row live_jobs;
begin
    request.payload := coalesce(request.payload, '{}');
    if step = 'change' and (v_mode <> 'replace' or v_queue is not null or coalesce(request.sequence_policy, task.sequence_policy) is not null) then
        step := 'look';
    end if;
    loop
        if step <> 'look' then
            null;
        elsif v_mode = 'unsafe_dedupe' then
            select j.* into v_old from live_jobs j where j.job_key = request.job_key;
            if found then
                return _job_of(v_old, true);
            end if;
        elsif waits then
            -- For a claim, an add or a completion that has this row in hand.
            select j.* into v_old from live_jobs j where j.job_key = request.job_key for update;
        else
            select j.* into v_old from live_jobs j where j.job_key = request.job_key for update skip locked;
            if not found and exists (select from live_jobs j where j.job_key = request.job_key) then
                return null;
            end if;
        end if;
        if v_old.state = 'running' then
            -- Its run may end, but must be its last; the key is free for a job of its own.
            update live_jobs j
            set job_key = null, attempts = j.max_attempts, superseded = 'superseded', updated_at = v_now
            where j.id = v_old.id;
        elsif step = 'change' or v_old.id is not null then
            -- preserve_run_at does not hold for a job that has failed before.
            if v_mode = 'preserve_run_at' and v_old.attempts = 0 and v_old.state <> 'discarded' then
                v_run_at := v_old.run_at;
            end if;
            if coalesce(request.sequence_policy, task.sequence_policy) is not null then
                v_sequence := _sequence_of(request, coalesce(nullif(request.sequence_policy, 'null'), task.sequence_policy), v_queue, label);
            end if;
            v_head := v_old.sequence_head and v_old.sequence_key is not distinct from v_sequence.key;
            v_state := _state_at(v_run_at, v_now, _held(v_sequence.key, v_head));
            v_parked := case when v_old.parked = 'next' and v_old.sequence_key = v_sequence.key then 'next' else _parked(v_state, v_queue) end;
            update live_jobs j
            set sequence_key = v_sequence.key, sequence_head = v_head, continue_on_cancelled = v_sequence.continue_on_cancelled,
                continue_on_discarded = v_sequence.continue_on_discarded,
                state = v_state, ready_at = _ready_at(v_state, v_parked, v_run_at), due_at = _due_at(v_state, v_run_at), parked = v_parked,
                has_slot = null, updated_at = v_now, task_identifier = request.identifier, queue_name = v_queue, run_at = v_run_at,
                payload = case when json_typeof(request.payload) = 'array' then _merged_payload(j.payload, request.payload, label)
                               else request.payload end,
                max_attempts = coalesce(request.max_attempts, task.max_attempts, 25), attempts = 0,
                priority = coalesce(request.priority, task.priority, 0), flags = _flags_of(request.flags), meta = request.meta,
                delivery = coalesce(request.delivery, task.delivery, 'at_least_once'), revision = j.revision + 1,
                last_error = null, reason = null, finished_at = null, expires_at = null, started_at = null, crashes = null
            where j.job_key = request.job_key
              and (j.id = v_old.id or step = 'change' and j.state <> 'running' and j.queue_name is null and j.sequence_key is null)
            returning j.* into v_row;
            exit when found;
        end if;
        if step <> 'change' then
            v_row := _insert_job(request, task, new_id, label);
            if v_row.id is not null then
                return _job_of(v_row);
            end if;
        end if;
        -- A row of a queue or a sequence, or one that runs; or somebody else's add of this key has just committed.
        step := 'look';
    end loop;
    if v_old.state = 'discarded' and v_old.sequence_key is not null then
        perform _unhalt_sequence(v_old.sequence_key, v_old.id);
    end if;
    if v_old.sequence_head or v_old.queue_name is not null then
        v_old.sequence_head := v_old.sequence_head and v_head is not true;
        perform _free_turn(v_old);
    end if;
    if v_row.parked is not null then
        insert into promotion_requests (lane) values (_lane_of(v_row.parked, v_row.queue_name, v_row.sequence_key));
    end if;
    if v_row.ready_at < v_now then
        perform _arrive_late(array[v_row.id]);
    end if;
    if _worker_is_listening() then
        perform _notify_workers();
    end if;
    return _job_of(v_row);
end;
$$;

create or replace function remove_job(job_key text) returns job
    language plpgsql security definer set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_row live_jobs;
begin
    loop
        select j.* into v_row from live_jobs j where j.job_key = remove_job.job_key for update;
        -- The row that we waited for may have passed its key on to a new job meanwhile: only a fresh look can tell.
        exit when found or not exists (select from live_jobs j where j.job_key = remove_job.job_key);
    end loop;
    if v_row.id is null then
        return null;
    elsif v_row.state = 'running' then
        update live_jobs j
        set job_key = null, attempts = j.max_attempts, superseded = 'removed', updated_at = clock()
        where j.id = v_row.id
        returning j.* into v_row;
    else
        perform _delete_live_job(v_row);
    end if;
    return _job_of(v_row);
end;
$$;
comment on function remove_job(text) is
    'Removes the job with this key (Graphile Worker). A job that is not running is deleted and returned. A running one loses its key '
    'and will not run again, whatever becomes of this run. Without such a job the result is a row of nulls.';
