-- features/retry: runs jobs again, or at another time: retry_job, retry_jobs, reschedule_jobs.
--
-- A job that runs again needs its unique key and its job_key, which another job may hold by now,
-- and resumes a sequence that it had halted. Unique keys are locked first, then halts and jobs in
-- the order of the jobs' ids.

create or replace function _refuse_held_key(kind text, job_id bigint, holder live_jobs) returns void
    language plpgsql set search_path from current
as $$
begin
    raise exception 'retry_job: the % of job % is held by job % (%)', kind, job_id, holder.id, holder.state
        using errcode = 'PW003', detail = json_strip_nulls(json_build_object(
            'existing_job_id', holder.id, 'existing_job_state', holder.state,
            'unique_key', encode(holder.unique_key, 'hex')))::text;
end;
$$;

-- True if a live job holds its unique key, so that no other job can have it. A discarded job does
-- not, nor one that waits for a retry under a policy of River's that leaves `retryable` out.
create or replace function _holds_unique_key(job live_jobs) returns boolean
    language sql immutable
    return (job).unique_key is not null and (job).state <> 'discarded'
        and ((job).state = 'retryable' and 'retryable' <> all ((job).unique_recheck)) is not true;

-- The other live job that holds this unique key; a row of nulls if there is none. The caller has
-- locked the key's row.
create or replace function _unique_holder(job_id bigint, unique_key bytea) returns live_jobs
    language plpgsql set search_path from current
as $$
declare
    v_holder live_jobs;
begin
    select h.* into v_holder from live_jobs h
    where h.unique_key = _unique_holder.unique_key and h.id <> job_id and _holds_unique_key(h) limit 1;
    return v_holder;
end;
$$;

-- True for a job with delivery at_most_once whose run was lost after its start: it may have been done.
create or replace function _was_lost(job live_jobs) returns boolean
    language sql immutable
    return (job).state = 'discarded' and (job).reason = 'lost';

-- Takes a job back from history as it ended. Returns a row of nulls if it is not there any more.
create or replace function _take_back(job_id bigint) returns live_jobs
    language plpgsql set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_past finished_jobs;
    v_row live_jobs;
    v_holder live_jobs;
begin
    delete from finished_jobs f where f.id = _take_back.job_id returning f.* into v_past;
    perform _settle_edges(array[v_past.id], v_past.state, array[v_past.result]);
    while v_past.id is not null and v_row.id is null loop
        insert into live_jobs as j select v_past.*
        on conflict (job_key) where job_key is not null do nothing
        returning j.* into v_row;
        select h.* into v_holder from live_jobs h where h.job_key = v_past.job_key and h.id <> v_past.id;
        if found then
            perform _refuse_held_key('key', job_id, v_holder);
        end if;
    end loop;
    perform _unhalt_sequence(v_row.sequence_key, v_row.id) where v_row.sequence_key is not null;
    return v_row;
end;
$$;

create or replace function retry_job(job_id bigint) returns job
    language plpgsql security definer set search_path from current set enable_seqscan = off set jit = off
    set plan_cache_mode = force_generic_plan
as $$
declare
    v_now timestamptz := clock();
    -- Keys are locked before jobs. A job's unique key never changes: it can be read before.
    v_before job := get_job(job_id);
    v_unique_key bytea := decode(v_before.unique_key, 'hex');
    v_holder live_jobs;
    v_row live_jobs;
begin
    if v_unique_key is not null then
        perform _hold_unique_keys(array[v_unique_key]);
    end if;
    if v_before.sequence_key is not null and v_before.state = 'pending' then
        -- Halts and jobs are locked in the order of the jobs' ids.
        perform from sequence_halts h
        where h.sequence_key = v_before.sequence_key and h.job_id < retry_job.job_id
        order by h.job_id for update;
    end if;
    v_row := _lock_job('retry_job', job_id);
    if v_row.state = 'available' then
        update live_jobs j set start_by = null, updated_at = v_now
        where j.id = v_row.id and j.start_by is not null;
        return _job_of(v_row);
    elsif v_row.state = 'running' then
        raise exception 'retry_job: job % is running', job_id
            using errcode = 'PW005', hint = 'cancel_job(id, force => true) first, or wait for its end.';
    elsif v_unique_key is not null and not _holds_unique_key(v_row) then
        v_holder := _unique_holder(job_id, v_unique_key);
        if v_holder.id is not null then
            perform _refuse_held_key('unique key', job_id, v_holder);
        end if;
    end if;
    if v_row.parked in ('sequence', 'next', 'unmet') then
        -- If an earlier job has halted its sequence, the sequence continues with this job (River); the jobs
        -- between them run after it.
        delete from sequence_halts h
        where h.sequence_key = v_row.sequence_key and h.job_id < v_row.id and v_row.parked <> 'unmet'
          and not exists (
              select from live_jobs j where j.sequence_key = v_row.sequence_key and j.sequence_head);
        update live_jobs j
        set run_at = least(j.run_at, v_now), start_by = null, updated_at = v_now,
            parked = case when found then 'next' else j.parked end
        where j.id = v_row.id
        returning j.* into v_row;
        if v_row.parked = 'unmet' then
            insert into promotion_requests (lane, job_id, later)
            values ('child', v_row.id, true), ('unmet', v_row.id, true);
        else
            insert into promotion_requests (lane) values ('sequence:' || v_row.sequence_key);
        end if;
        perform _notify_workers();
    else
        if v_row.id is null then
            v_row := _take_back(job_id);
            if v_row.id is null then
                return retry_job(job_id); -- another session has just taken it back
            end if;
        end if;
        if _was_lost(v_row) then
            raise notice 'retry_job: job % was lost: it may have been done', job_id;
        end if;
        update live_jobs j
        set cancel_requested_at = null, superseded = null, crashes = null, result = null, start_by = null,
            max_attempts = case when j.attempts >= j.max_attempts then least(j.attempts + 1, 32767)
                                else j.max_attempts end
        where j.id = v_row.id;
        perform _leave(array[row(v_row.id, 'scheduled', v_now, null, null, null, null, null)::_move]);
        select j.* into v_row from live_jobs j where j.id = retry_job.job_id;
        if v_row.parked = 'unmet' and _waits_for_itself(v_row.id) then
            raise exception 'retry_job: job % waits for a job that waits for it by now', v_row.id
                using errcode = 'PW005',
                      hint = 'Add it again without that dependency: the view dependencies shows both.';
        end if;
    end if;
    return _job_of(v_row);
end;
$$;
comment on function retry_job(bigint) is
    'Makes a job run now: a discarded or finished job again, a scheduled or retryable job ahead '
    'of its time. A job that waits for a signal runs, and asks for it again. last_error is kept; '
    'max_attempts is raised by one if the attempts are used up (River: JobRetry). In a sequence a '
    'retried job takes its turn by its id. If it had halted the sequence, the sequence resumes; if it '
    'waits behind a halt, the sequence continues with it and skips what halted it. A notice says if the '
    'job was lost (delivery at_most_once), as it may have been done. Errors: PW004; '
    'PW005 while it runs, or if a job that it waits for waits for it by now; PW003 if another job holds its '
    'job_key or unique key.';

-- Takes all locks of retry_job for many jobs, before the first of them is retried: unique keys in
-- their order, then jobs and the halts before them in the order of the jobs' ids.
-- Returns all ids but nulls, each once, in the order in which to retry: first, by job_key, the jobs
-- that bring a job_key back from history, since adds lock job keys in that order; then by id.
create or replace function _lock_for_retry(job_ids bigint[]) returns bigint[]
    language plpgsql set search_path from current
    set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_ids bigint[] := array(
        select distinct i.id from unnest(job_ids) i(id) where i.id is not null order by 1);
    v_lock record;
begin
    perform _hold_unique_keys(array(
        select j.unique_key from live_jobs j where j.id = any (v_ids)
        union all
        select f.unique_key from finished_jobs f where f.id = any (v_ids)));
    for v_lock in
        with sequenced as (
            select j.id, j.sequence_key from live_jobs j
            where j.id = any (v_ids) and j.sequence_key is not null
            union all
            select f.id, f.sequence_key from finished_jobs f
            where f.id = any (v_ids) and f.sequence_key is not null)
        select i.id, null as halted from unnest(v_ids) i(id)
        union
        select h.job_id, h.sequence_key
        from sequenced s join sequence_halts h on h.sequence_key = s.sequence_key and h.job_id <= s.id
        order by 1, 2 nulls first
    loop
        if v_lock.halted is not null then
            perform from sequence_halts h
            where h.sequence_key = v_lock.halted and h.job_id = v_lock.id for update;
            continue;
        end if;
        perform from live_jobs j where j.id = v_lock.id for update;
        if not found then
            perform from finished_jobs f where f.id = v_lock.id for update;
        end if;
    end loop;
    return array(
        select i.id from unnest(v_ids) i(id) left join finished_jobs f on f.id = i.id and f.id = any (v_ids)
        order by f.job_key, i.id); -- nulls last
end;
$$;

create or replace function retry_jobs(job_ids bigint[], lost boolean default false) returns setof job
    language plpgsql security definer set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_id bigint;
    v_jobs job[];
    v_left_out bigint := 0;
begin
    foreach v_id in array _lock_for_retry(job_ids) loop
        if lost is not true and exists (select from live_jobs j where j.id = v_id and _was_lost(j)) then
            v_left_out := v_left_out + 1;
            continue;
        end if;
        begin
            v_jobs := v_jobs || retry_job(v_id);
        exception when sqlstate 'PW003' or sqlstate 'PW004' or sqlstate 'PW005' then
            null;
        end;
    end loop;
    if v_left_out > 0 then
        raise notice 'retry_jobs: left out % that % lost: each may have been done',
            case v_left_out when 1 then '1 job' else v_left_out || ' jobs' end,
            case v_left_out when 1 then 'was' else 'were' end
            using hint = 'The view jobs lists them by their reason ''lost''. retry_job runs one again, '
                         'retry_jobs(…, lost => true) all of them.';
    end if;
    return query select j.* from unnest(v_jobs) j order by j.id;
end;
$$;
comment on function retry_jobs(bigint[], boolean) is
    'Calls retry_job for many jobs and returns, ordered by id, the jobs that it retried. An id that '
    'is not in the answer was left out, and its job is as it was: there is no such job, it is '
    'running, or another job holds its job_key or unique key. For the reason, call retry_job with '
    'that id: it raises the error. A job that was lost (delivery at_most_once) may have been done: it is '
    'left out unless lost is true, and a notice says how many were.';

create or replace function reschedule_jobs(
    job_ids bigint[], run_at timestamptz default null, priority integer default null,
    attempts integer default null, max_attempts integer default null) returns setof job
    language plpgsql security definer set search_path from current set enable_seqscan = off set jit = off
    set plan_cache_mode = force_generic_plan
as $$
declare
    v_now timestamptz := clock();
    v_job live_jobs;
    v_new live_jobs;
    v_goal text;
    v_problem text := _job_refusal(
        '-', run_at => run_at, max_attempts => max_attempts, priority => priority);
begin
    if v_problem is null and attempts not between 0 and 32767 then
        v_problem := format('attempts must be from 0 to 32767, got %s', attempts);
    end if;
    perform _refuse('reschedule_jobs: ' || v_problem);
    -- A job that does not hold its unique key may take it back. Keys are locked before jobs.
    perform _hold_unique_keys(array(
        select j.unique_key from live_jobs j
        where j.id = any (reschedule_jobs.job_ids) and not _holds_unique_key(j)));
    for v_job in select j.* from _lock_waiting(job_ids) j loop
        v_new := v_job;
        v_new.priority := coalesce(reschedule_jobs.priority, v_job.priority);
        v_new.attempts := coalesce(reschedule_jobs.attempts, v_job.attempts);
        v_new.max_attempts := coalesce(reschedule_jobs.max_attempts, v_job.max_attempts);
        v_new.run_at := coalesce(reschedule_jobs.run_at, v_job.run_at);
        v_goal := case when v_new.attempts >= v_new.max_attempts then 'discarded'
                       when v_new.attempts > 0 then 'retryable' else 'scheduled' end;
        if v_job.parked = 'signal' and v_goal <> 'discarded' then
            v_goal := null; -- it has begun: the wait decides when it goes on
            v_new.run_at := v_job.run_at;
        elsif v_job.state = 'discarded'
              and (v_goal = 'discarded' or num_nonnulls(run_at, attempts, max_attempts) = 0) then
            v_goal := null; -- a new priority alone does not run it again: it may be a lost job
        elsif not _holds_unique_key(v_job) and v_goal <> 'discarded' then
            select p.state into v_new.state from _place(
                v_new.run_at, v_now, _held(v_job.sequence_key, v_job.sequence_head, _unmet(v_job)), false,
                v_goal) p;
            continue when _holds_unique_key(v_new)
                          and (_unique_holder(v_job.id, v_job.unique_key)).id is not null;
        end if;
        update live_jobs j
        set run_at = v_new.run_at, priority = v_new.priority, attempts = v_new.attempts,
            max_attempts = v_new.max_attempts, updated_at = v_now
        where j.id = v_job.id returning j.* into v_job;
        if v_goal is not null then
            perform _leave(array[row(
                v_job.id, v_goal, v_new.run_at, null, 'out of attempts', null, null, null)::_move]);
            select j.* into v_new from live_jobs j where j.id = v_job.id;
            if found then
                v_job := v_new;
            else
                v_job.state := 'discarded';
            end if;
        end if;
        return next _job_of(v_job);
    end loop;
end;
$$;
comment on function reschedule_jobs(bigint[], timestamptz, integer, integer, integer) is
    'Changes jobs that are not running (Graphile Worker); a null argument leaves its column as it '
    'is. last_error is kept. A discarded job that has attempts left now waits for its run_at (not '
    'if only priority is given); a job that has no attempts left is discarded. Running and '
    'unknown jobs are left out, and so are jobs whose unique key another job has taken. Errors: '
    'PW001.';
