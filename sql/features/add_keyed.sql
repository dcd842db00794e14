-- features/add_keyed: adds jobs with a job key, a unique key, a sequence or flags.

-- Adds one job with a job key, a unique key, a sequence or flags. It takes the policies that the
-- request does not name from the task. Its settings pin the plans of the functions that it calls.
create or replace function _add_with_keys(request _job_request) returns job
    language plpgsql set search_path from current
    set enable_seqscan = off set jit = off
as $$
declare
    v_problem text;
    v_found record; -- its task, and whether its job key seems to be taken (read without a lock)
    v_now timestamptz := clock();
    v_uniqueness _uniqueness;
    v_duplicate live_jobs;
    v_row live_jobs;
    v_job job;
begin
    if num_nonnulls(request.expires_at, request.max_wait) > 0 then
        v_problem := _deadline_refusal(request.expires_at, request.job_key, request.max_wait);
        if v_problem is not null then
            raise exception 'add_job: %', v_problem using errcode = 'PW001';
        end if;
        perform nextval('coordination_used') where not _coordination_is_used();
    end if;
    select t as task, exists (select from live_jobs j where j.job_key = request.job_key) as taken into v_found
    from (select) one left join tasks t on t.identifier = request.identifier;
    request.unique_policy := coalesce(nullif(request.unique_policy, 'null'), (v_found.task).unique_policy);
    if request.unique_policy is not null then
        v_uniqueness := _uniqueness_of(
            request, request.unique_policy, coalesce(request.queue_name, (v_found.task).queue_name), v_now,
            'add_job');
        insert into unique_keys (unique_key) values (v_uniqueness.key) on conflict do nothing;
        if not found then -- else the key is new and locked: no job has it
            v_duplicate := _duplicate_of(v_uniqueness, v_now);
            if v_duplicate.id is null
               or v_uniqueness.on_conflict in ('replace', 'replace_except_schedule') then
                perform _hold_unique_keys(array[v_uniqueness.key]);
                v_duplicate := _duplicate_of(v_uniqueness, v_now);
            end if;
        end if;
        v_job := _resolve_conflict(v_duplicate, request, v_found.task, v_uniqueness, null, 'add_job');
    else
        if not v_found.taken then
            v_row := _insert_job(request, v_found.task, null, 'add_job');
        elsif coalesce(request.job_key_mode, 'replace') = 'replace' and request.max_wait is null
              and coalesce(request.queue_name, (v_found.task).queue_name, 'default') = 'default'
              and coalesce(request.sequence_policy, (v_found.task).sequence_policy) is null then
            v_row := _change_keyed(request, v_found.task, null, 'add_job');
        end if;
        v_job := case when v_row.id is null then _add_keyed(request, v_found.task, 'add_job')
                      else _job_of(v_row) end;
    end if;
    if _depends(request.depends_on) then
        perform _add_edges(array[request], array[v_job.id], array[v_job.revision],
                           array[v_job.deduplicated], 'add_job');
    end if;
    return v_job;
end;
$$;

-- Adds one job with a job key: Graphile Worker's algorithm without its race (a worker may claim the
-- row between two snapshots). Each step holds the lock that its decision depends on. An add that
-- finds neither a row to change nor a free key looks again. With `waits` false the result is null
-- if the add would have to wait for the lock of a row.
create or replace function _add_keyed(
    request _job_request, task tasks, label text, new_id bigint default null, waits boolean default true)
    returns job
    language plpgsql set search_path from current
as $$
declare
    v_now constant timestamptz := clock();
    v_old live_jobs;
    v_row live_jobs;
begin
    loop
        if request.job_key_mode = 'unsafe_dedupe' then
            select j.* into v_old from live_jobs j where j.job_key = request.job_key;
            if found then
                return _job_of(v_old, true);
            end if;
        elsif waits then
            -- Waits for a claim, an add or a completion that has this row locked.
            select j.* into v_old from live_jobs j where j.job_key = request.job_key for update;
        else
            select j.* into v_old from live_jobs j where j.job_key = request.job_key for update skip locked;
            if not found and exists (select from live_jobs j where j.job_key = request.job_key) then
                return null;
            end if;
        end if;
        if v_old.state = 'running' then
            -- The run may end, but must be the job's last. The key becomes free for a new job.
            update live_jobs j
            set job_key = null, attempts = j.max_attempts, superseded = 'superseded', updated_at = v_now
            where j.id = v_old.id;
        elsif v_old.id is not null then
            if v_old.state = 'discarded' then
                perform _settle_edges(array[v_old.id], v_old.state);
            end if;
            v_row := _change_keyed(request, task, v_old, label);
            if v_old.state = 'discarded' and v_old.sequence_key is not null then
                perform _unhalt_sequence(v_old.sequence_key, v_old.id);
            end if;
            insert into promotion_requests (lane) -- for the places that it had
            select l.lane
            from (values (case when v_old.ready_at is not null then 'queue:' || v_old.queue_name end),
                         (case when v_old.sequence_head and v_row.sequence_head is not true
                               then 'sequence:' || v_old.sequence_key end)) l(lane)
            where l.lane is not null;
        end if;
        if v_row.id is null then
            v_row := _insert_job(request, task, new_id, label);
        end if;
        exit when v_row.id is not null; -- else another add of the key has committed
    end loop;
    return _job_of(v_row);
end;
$$;

-- Gives a job that is not running all values of a new request for its key. `job` is that job, which
-- the caller has locked. If `job` is null, the caller has not read it: then the job is changed only
-- if it is in no queue, in no sequence and without max_wait. Returns a row of nulls if no job was changed.
create or replace function _change_keyed(request _job_request, task tasks, job live_jobs, label text)
    returns live_jobs
    language plpgsql set search_path from current
as $$
declare
    v_now timestamptz := clock();
    v_run_at timestamptz := coalesce(request.run_at, v_now);
    v_queue text := nullif(coalesce(request.queue_name, task.queue_name), 'default');
    v_waits boolean := _must_wait(v_queue);
    v_sequence _sequencing;
    v_head boolean; -- it stays the head of its sequence
    v_parked text; -- and how it waits for it
    v_until timestamptz; -- max_wait
    v_row live_jobs;
begin
    -- preserve_run_at does not apply to a job that has failed before.
    if request.job_key_mode = 'preserve_run_at' and job.attempts = 0 and job.state <> 'discarded' then
        v_run_at := job.run_at;
    end if;
    -- The earliest time that any add with its max_wait gave counts.
    v_until := case when _waits_again(job) then v_now + request.max_wait
                    else least(job.wait_until,
                               coalesce(job.waits_since, job.created_at) + request.max_wait) end;
    v_run_at := least(v_run_at, v_until);
    if coalesce(request.sequence_policy, task.sequence_policy) is not null then
        v_sequence := _sequence_of(
            request.identifier, request.payload,
            coalesce(nullif(request.sequence_policy, 'null'), task.sequence_policy), v_queue, label);
    end if;
    if _depends(request.depends_on) then
        v_parked := 'unmet';
    elsif job.sequence_key = v_sequence.key and job.parked is distinct from 'unmet' then
        v_head := job.sequence_head;
        v_parked := job.parked;
    end if;
    update live_jobs j
    set (state, parked, ready_at, due_at) = (
            select p.* from _place(
                v_run_at, v_now, _held(v_sequence.key, v_head, v_parked), v_waits) p),
        sequence_key = v_sequence.key, sequence_head = v_head,
        continue_on_cancelled = v_sequence.continue_on_cancelled,
        continue_on_discarded = v_sequence.continue_on_discarded, slot = null, pace = null, turn = null,
        updated_at = v_now,
        task_identifier = request.identifier, queue_name = v_queue, run_at = v_run_at,
        payload = case when json_typeof(request.payload) = 'array'
                       then _merged_payload(j.payload, request.payload, label)
                       else coalesce(request.payload, '{}') end,
        max_attempts = coalesce(request.max_attempts, task.max_attempts, 25), attempts = 0,
        priority = coalesce(request.priority, task.priority, 0), flags = _flags_of(request.flags),
        meta = request.meta, delivery = coalesce(request.delivery, task.delivery, 'at_least_once'),
        revision = j.revision % 2147483647 + 1, last_error = null, reason = null, finished_at = null,
        expires_at = null, started_at = null, crashes = null, start_by = request.expires_at,
        wait_until = v_until, waits_run = nullif(j.run, 0),
        waits_since = case when _waits_again(j) then v_now else j.waits_since end
    where j.job_key = request.job_key
      and (j.id = job.id or job.id is null and j.state not in ('running', 'discarded')
                            and j.queue_name is null and j.sequence_key is null and j.wait_until is null)
    returning j.* into v_row;
    if v_row.id is not null and (v_row.parked is not null or _worker_is_listening()) then
        perform _announce(_lane_of(v_row.parked, v_queue, v_sequence.key));
    end if;
    return v_row;
end;
$$;

-- Merges two JSON arrays as text, so that a parser rewrites none of their elements. If the older
-- payload is not an array, or either is empty, the other one is the result.
create or replace function _merged_payload(older json, newer json, label text) returns json
    language plpgsql stable set search_path from current
as $$
declare
    v_older constant text := older::text || ''; -- `|| ''` fetches a value that is stored out of line once
    v_merged json;
begin
    -- Patterns, because json_array_length() and left() read all of a long array. Without
    -- backslashes, whose meaning depends on the session's settings.
    if v_older !~ '^[[:space:]]*[[]' or v_older ~ '^[[:space:]]*[[][[:space:]]*[]]' then
        return newer;
    elsif newer::text ~ '^[[:space:]]*[[][[:space:]]*[]]' then
        return older;
    end if;
    v_merged := (regexp_replace(v_older, '[]][[:space:]]*$', ',')
                 || regexp_replace(newer::text, '^[[:space:]]*[[]', ''))::json;
    if octet_length(v_merged::text) > 1024 and _json_refusal('payload', v_merged::text) is not null then
        raise exception '%: merged %', label, _json_refusal('payload', v_merged::text)
            using errcode = 'PW001';
    end if;
    return v_merged;
end;
$$;

-- Inserts a job with any key, a sequence or flags. Returns a row of nulls if its job key is taken.
create or replace function _insert_job(
    request _job_request, task tasks, new_id bigint, label text, unique_key bytea default null,
    unique_recheck text[] default null)
    returns live_jobs
    language plpgsql set search_path from current
as $$
declare
    v_now timestamptz := clock();
    v_run_at timestamptz := least(coalesce(request.run_at, v_now), v_now + request.max_wait);
    v_queue text := nullif(coalesce(request.queue_name, task.queue_name), 'default');
    v_waits boolean := _must_wait(v_queue);
    v_sequence _sequencing;
    v_row live_jobs;
begin
    if coalesce(request.sequence_policy, task.sequence_policy) is not null then
        v_sequence := _sequence_of(
            request.identifier, request.payload,
            coalesce(nullif(request.sequence_policy, 'null'), task.sequence_policy), v_queue, label);
    end if;
    insert into live_jobs as j (
        id, state, ready_at, due_at, parked, updated_at, priority, max_attempts, run_at, created_at,
        task_identifier, queue_name, job_key, delivery, flags, meta, payload, unique_key, unique_recheck,
        sequence_key, continue_on_cancelled, continue_on_discarded, start_by, wait_until)
    select coalesce(new_id, nextval('job_ids')), p.state, p.ready_at, p.due_at, p.parked, v_now,
           coalesce(request.priority, task.priority, 0),
           coalesce(request.max_attempts, task.max_attempts, 25), v_run_at, v_now, request.identifier,
           v_queue, request.job_key, coalesce(request.delivery, task.delivery, 'at_least_once'),
           _flags_of(request.flags), request.meta, coalesce(request.payload, '{}'), _insert_job.unique_key,
           _insert_job.unique_recheck, v_sequence.key, v_sequence.continue_on_cancelled,
           v_sequence.continue_on_discarded, request.expires_at, v_now + request.max_wait
    from _place(v_run_at, v_now,
                _held(v_sequence.key, false, case when _depends(request.depends_on) then 'unmet' end),
                v_waits) p
    on conflict (job_key) where job_key is not null do nothing
    returning j.* into v_row;
    if v_row.id is not null and (v_row.parked is not null or _worker_is_listening()) then
        perform _announce(_lane_of(v_row.parked, v_queue, v_sequence.key));
    end if;
    return v_row;
end;
$$;

-- Lets claims find a job that was just added or changed: asks for a look at its lane if it is parked,
-- notifies workers; true if it did. Callers ask first whether there is anything to do: most adds save the
-- call.
create or replace function _announce(lane text) returns boolean
    language plpgsql set search_path from current
as $$
begin
    if lane is not null then
        insert into promotion_requests (lane) values (lane);
    end if;
    return _notify_workers();
end;
$$;
