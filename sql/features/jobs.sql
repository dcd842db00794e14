-- features/jobs: what people do to jobs: get_job, cancel_job, delete_job, and Graphile Worker's
-- complete_jobs, permanently_fail_jobs and remove_job. To run jobs again or at another time:
-- features/retry.

create or replace function get_job(id bigint) returns job
    language plpgsql stable security definer set search_path from current
    set enable_seqscan = off set jit = off
as $$
declare
    v_job job;
begin
    select f.* into v_job from live_jobs j, _job_of(j) f where j.id = get_job.id;
    if not found then
        select g.* into v_job from finished_jobs f, _job_of(f) g where f.id = get_job.id;
    end if;
    if _coordination_is_used() then
        select p.progress, p.message into v_job.progress, v_job.progress_message
        from progress p where p.job_id = get_job.id and p.run = v_job.run;
    end if;
    return v_job;
end;
$$;
comment on function get_job(bigint) is
    'The job with this id, live or in history; a row of nulls if there is none. progress and '
    'progress_message: what its last run has told by set_progress, null before.';

create or replace function show_job(job_id bigint) returns job
    language plpgsql stable security definer set search_path from current
as $$
declare
    v_job job := get_job(job_id);
begin
    v_job.payload := null;
    v_job.result := null;
    return v_job;
end;
$$;
comment on function show_job(bigint) is
    'The job as get_job returns it, but for payload and result, which are null: they may be secret, and '
    'pyworker_reader may call this.';

-- Raises PW004: there is no job with this id.
create or replace function _refuse_unknown_job(caller text, job_id bigint) returns void
    language plpgsql set search_path from current
as $$
begin
    raise exception '%: there is no job %', caller, coalesce(job_id::text, 'NULL')
        using errcode = 'PW004',
              hint = 'List jobs by `pyworker jobs`, or by the views jobs and history. History keeps a job '
                     'for its retention; a job whose add is not committed is not there yet.';
end;
$$;

-- Locks a live job for a function that takes one id. Raises PW004 if there is no such job; returns
-- null if the job is in history.
create or replace function _lock_job(verb text, job_id bigint) returns live_jobs
    language plpgsql set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_row live_jobs;
begin
    -- Twice, since a job may come back from history between the two look-ups.
    for i in 1..2 loop
        select j.* into v_row from live_jobs j where j.id = job_id for update;
        if found then
            return v_row;
        end if;
        if exists (select from finished_jobs f where f.id = job_id) then
            return null;
        end if;
    end loop;
    perform _refuse_unknown_job(verb, job_id);
    return null;
end;
$$;

create or replace function cancel_job(job_id bigint, force boolean default false) returns job
    language plpgsql security definer set search_path from current set enable_seqscan = off set jit = off
    set plan_cache_mode = force_generic_plan
as $$
declare
    v_row live_jobs := _lock_job('cancel_job', job_id);
    v_now timestamptz := clock();
begin
    if v_row.id is null then
        return get_job(job_id);
    elsif v_row.state = 'discarded' then
        return _job_of(v_row);
    elsif v_row.state = 'running' and force is not true then
        update live_jobs j set cancel_requested_at = coalesce(j.cancel_requested_at, v_now)
        where j.id = v_row.id returning j.* into v_row;
        perform _notify('cancel');
        return _job_of(v_row);
    end if;
    perform _finalize_jobs(array[v_row.id], null, 'cancelled', null, 'cancelled');
    v_row.state := 'cancelled';
    v_row.reason := 'cancelled';
    v_row.finished_at := v_now;
    v_row.updated_at := v_now;
    return _job_of(v_row);
end;
$$;
comment on function cancel_job(bigint, boolean) is
    'Cancels a job. A waiting job is cancelled at once. A running job is asked to stop: it ends '
    'cancelled at its worker''s next report, unless that reports success. With force a running '
    'job is cancelled at once, and its worker''s report is rejected. A finished or discarded job '
    'is returned unchanged. Errors: PW004.';

create or replace function delete_job(job_id bigint) returns job
    language plpgsql security definer set search_path from current set enable_seqscan = off set jit = off
    set plan_cache_mode = force_generic_plan
as $$
declare
    v_row live_jobs := _lock_job('delete_job', job_id);
    v_past finished_jobs;
    v_job job;
begin
    if v_row.state = 'running' then
        raise exception 'delete_job: job % is running', job_id
            using errcode = 'PW005', hint = 'cancel_job(id, force => true) first, or wait for its end.';
    elsif v_row.id is not null then
        perform _leave(array[row(v_row.id, 'deleted', null, null, null, null, null, null)::_move]);
        return _job_of(v_row);
    end if;
    v_job := get_job(job_id);
    delete from finished_jobs f where f.id = delete_job.job_id returning f.* into v_past;
    if not found then
        return delete_job(job_id); -- it has just come back from history, or was deleted
    end if;
    perform _settle_edges(array[v_past.id], v_past.state, array[v_past.result]);
    perform _tie_up(
        array[row(v_past.id, false, null, null, false, null, null, true, true, v_past.unique_key, null)
              ::_loose_end], 'cancelled', true);
    if v_job.sequence_key is not null then
        perform _unhalt_sequence(v_job.sequence_key, job_id);
    end if;
    return v_job;
end;
$$;
comment on function delete_job(bigint) is
    'Deletes a job that is not running, live or in history, and returns it as it was. Errors: '
    'PW004; PW005 while it runs.';

-- Locks those of these jobs that live and do not run, in the order of their ids.
create or replace function _lock_waiting(job_ids bigint[]) returns setof live_jobs
    language plpgsql set search_path from current set enable_seqscan = off set jit = off
as $$
begin
    return query
    select j.* from (select distinct u.id from unnest(job_ids) u(id) order by 1) i
    cross join lateral (
        select l.* from live_jobs l where l.id = i.id and l.state <> 'running' for update) j;
end;
$$;

create or replace function complete_jobs(job_ids bigint[]) returns setof job
    language plpgsql security definer set search_path from current set enable_seqscan = off set jit = off
    set plan_cache_mode = force_generic_plan
as $$
declare
    v_rows live_jobs[] := array(select j from _lock_waiting(job_ids) j);
    v_row live_jobs;
begin
    perform _finalize_jobs(
        array(select r.id from unnest(v_rows) r), null, 'completed', null, 'completed by hand');
    foreach v_row in array v_rows loop
        perform _unhalt_sequence(v_row.sequence_key, v_row.id) where v_row.sequence_key is not null;
        v_row.state := 'completed';
        v_row.parked := null;
        v_row.result := null;
        v_row.reason := 'completed by hand';
        v_row.finished_at := clock();
        return next _job_of(v_row);
    end loop;
end;
$$;
comment on function complete_jobs(bigint[]) is
    'Marks jobs that are not running as completed, without running them (Graphile Worker). '
    'Running and unknown jobs are left out. If one of the jobs had halted its sequence, the '
    'sequence continues.';

create or replace function permanently_fail_jobs(job_ids bigint[], error_message text default null)
    returns setof job
    language plpgsql security definer set search_path from current set enable_seqscan = off set jit = off
    set plan_cache_mode = force_generic_plan
as $$
declare
    v_rows live_jobs[] := array(select j from _lock_waiting(job_ids) j);
    v_row live_jobs;
    v_error text := coalesce(error_message, 'Manually marked as failed');
begin
    perform _leave(array(
        select row(r.id, 'discarded', null, r.max_attempts, 'failed by hand', v_error, null, null)::_move
        from unnest(v_rows) r));
    foreach v_row in array v_rows loop
        v_row.attempts := v_row.max_attempts;
        v_row.state := 'discarded';
        v_row.parked := null;
        v_row.last_error := v_error;
        v_row.reason := 'failed by hand';
        v_row.finished_at := clock();
        return next _job_of(v_row);
    end loop;
end;
$$;
comment on function permanently_fail_jobs(bigint[], text) is
    'Discards jobs that are not running: attempts := max_attempts, last_error := error_message '
    '(Graphile Worker). A job keeps its key. Running and unknown jobs are left out.';

create or replace function remove_job(job_key text) returns job
    language plpgsql security definer set search_path from current set enable_seqscan = off set jit = off
    set plan_cache_mode = force_generic_plan
as $$
declare
    v_now constant timestamptz := clock();
    v_row live_jobs;
begin
    loop
        select j.* into v_row from live_jobs j where j.job_key = remove_job.job_key for update;
        -- The row that this statement waited for may have lost its key to a new job. Only a new
        -- query can tell.
        exit when found or not exists (select from live_jobs j where j.job_key = remove_job.job_key);
    end loop;
    if v_row.id is null then
        return null;
    elsif v_row.state = 'running' then
        update live_jobs j
        set job_key = null, attempts = j.max_attempts, superseded = 'removed', updated_at = v_now
        where j.id = v_row.id
        returning j.* into v_row;
    else
        perform _leave(array[row(v_row.id, 'deleted', null, null, null, null, null, null)::_move]);
    end if;
    return _job_of(v_row);
end;
$$;
comment on function remove_job(text) is
    'Removes the job with this key (Graphile Worker). A job that is not running is deleted and '
    'returned. A running job loses its key and will not run again, however its current run ends. '
    'The result is a row of nulls if no job has the key.';
