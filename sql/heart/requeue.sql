-- heart/requeue: ways out of `running` for one job at a time: snooze_job -> scheduled; release_jobs ->
-- available. _requeue and _discard do it to a job whose row the caller has locked.

create or replace function snooze_job(job_id bigint, run bigint, delay interval) returns void
    language plpgsql security definer set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_job live_jobs;
    v_run_at timestamptz;
begin
    if delay is null or delay < interval '0' or delay > interval '1000 years' then
        raise exception 'snooze_job: delay must be from 0 to 1000 years, got %', coalesce(delay::text, 'NULL')
            using errcode = 'PW001';
    end if;
    select j.* into v_job from live_jobs j
    where j.id = job_id and j.run = snooze_job.run and j.state = 'running' for update;
    if not found then
        raise exception 'snooze_job: job % is not held by run % any more', coalesce(job_id::text, 'NULL'),
            coalesce(run::text, 'NULL')
            using errcode = 'PW002';
    elsif _must_not_rerun(v_job) and v_job.superseded is null and v_job.cancel_requested_at is null then
        raise exception 'snooze_job: job % was started and must not be run twice', job_id
            using errcode = 'PW005', hint = 'Fail it with not_started, if it had done nothing yet.';
    end if;
    v_run_at := clock() + delay;
    perform _requeue(v_job, v_run_at, greatest(v_job.attempts - 1, 0), 'scheduled');
end;
$$;
comment on function snooze_job(bigint, bigint, interval) is
    'Postpones a running job by delay and gives its attempt back (River: snooze). Errors: PW002 '
    'on a stale run; PW005 if the job must not be run twice and was started; PW001.';

create or replace function release_jobs(job_ids bigint[], runs bigint[]) returns bigint[]
    language plpgsql security definer set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_item record;
    v_job live_jobs;
    v_accepted bigint[] := array[]::bigint[];
begin
    if cardinality(job_ids) <> cardinality(runs) then
        raise exception 'release_jobs: job_ids and runs must be of one length, got % and %',
            cardinality(job_ids), cardinality(runs)
            using errcode = 'PW001';
    end if;
    for v_item in select i.id, i.run from unnest(job_ids, runs) i(id, run) order by i.id loop
        select j.* into v_job from live_jobs j
        where j.id = v_item.id and j.run = v_item.run and j.state = 'running' for update;
        continue when not found;
        perform _requeue(v_job, v_job.run_at, greatest(v_job.attempts - 1, 0), 'scheduled');
        v_accepted := v_accepted || v_job.id;
    end loop;
    return v_accepted;
end;
$$;
comment on function release_jobs(bigint[], bigint[]) is
    'Hands back claimed jobs that were not begun. Each gets its attempt back and can be claimed '
    'again at once. Returns the ids that were accepted; a stale run is left out. Errors: PW001.';

-- Returns a job to a waiting state; ends it instead if it was cancelled, superseded or lost.
create or replace function _requeue(
    job live_jobs, run_at timestamptz, attempts integer, waiting text, error text default null,
    payload json default null)
    returns void
    language plpgsql set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_now timestamptz := clock();
    v_waits boolean := _must_wait(job.queue_name);
begin
    if job.superseded is not null or job.cancel_requested_at is not null then
        perform _finalize_jobs(array[job.id], null, 'cancelled', null, coalesce(job.superseded, 'cancelled'),
                            coalesce(error, job.superseded));
        return;
    elsif _must_not_rerun(job) then
        if error is null then -- handed back without an error: record the reason here
            error := 'handed back after it was started';
            perform _record_error(job, error);
        end if;
        perform _discard(job, error, 'lost');
        return;
    end if;
    update live_jobs j
    set (state, parked, ready_at, due_at) = ( -- in a sequence it was the head, and stays it
            select p.* from _place(_requeue.run_at, v_now, null, v_waits, waiting) p),
        run_at = _requeue.run_at, updated_at = v_now, attempts = _requeue.attempts, worker_id = null,
        claimed_at = null, started_at = null, last_error = coalesce(error, j.last_error),
        payload = coalesce(_requeue.payload, j.payload), slot = null, pace = null, turn = null
    where j.id = job.id;
    perform _hand_on(null, array[job.queue_name], array[job.slot]) where job.queue_name is not null;
    perform _notify_workers();
end;
$$;

-- Discards a job that is out of attempts or was given up. It stays in live_jobs with its key, until
-- it is retried, deleted or pruned. A job that was cancelled or superseded ends cancelled instead.
create or replace function _discard(job live_jobs, error text, discard_reason text, payload json default null)
    returns void
    language plpgsql set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_now timestamptz := clock();
    v_retention interval := (select s.discarded_retention from settings s);
begin
    if job.superseded is not null or job.cancel_requested_at is not null then
        perform _finalize_jobs(array[job.id], null, 'cancelled', null,
            coalesce(job.superseded, 'cancelled'), error);
        return;
    end if;
    perform _halt_sequence(job, 'discarded');
    if v_retention = interval '0' then
        perform _delete_live_job(job, false);
    else
        update live_jobs j
        set state = 'discarded', ready_at = null, due_at = null, parked = null, slot = null,
            pace = null, turn = null, start_by = null,
            updated_at = v_now, worker_id = null, claimed_at = null, finished_at = v_now,
            expires_at = v_now + v_retention, last_error = coalesce(error, j.last_error),
            reason = discard_reason, payload = coalesce(_discard.payload, j.payload), sequence_head = null
        where j.id = job.id;
        perform _tell_of_end(array[job.id], 'discarded');
        perform _free_turn(job);
    end if;
end;
$$;

-- Passes on the place of a job that has ended or was moved: the next job of its sequence becomes
-- the head, and its slot goes to the next job of its queue. If the job was not running, the caller
-- may be a producer, whose transaction may stay open for long and must not have the next job locked: then
-- this leaves a request.
create or replace function _free_turn(job live_jobs) returns void
    language plpgsql set search_path from current
as $$
begin
    if job.state = 'running' then
        perform _hand_on(case when job.sequence_head then array[job.sequence_key] end,
                         case when job.queue_name is not null then array[job.queue_name] end,
                         array[job.slot]);
        perform _notify_workers();
    elsif job.ready_at is not null and job.queue_name is not null or job.sequence_head then
        insert into promotion_requests (lane)
        select l.lane
        from (values (case when job.ready_at is not null then 'queue:' || job.queue_name end),
                     (case when job.sequence_head then 'sequence:' || job.sequence_key end)) l(lane)
        where l.lane is not null;
        perform _notify_workers();
    end if;
end;
$$;

-- Deletes a live job and its errors, and releases its unique key. If it had halted its sequence,
-- the sequence continues; `unhalt` is false if the caller has just written that halt.
create or replace function _delete_live_job(job live_jobs, unhalt boolean default true) returns void
    language plpgsql set search_path from current set enable_seqscan = off set jit = off
as $$
begin
    delete from live_jobs j where j.id = job.id;
    delete from errors e where e.job_id = job.id;
    perform _release_unique_keys(array[job.unique_key]);
    perform _tell_of_end(
        array[job.id], case when unhalt then 'cancelled' else 'discarded' end, array[job.id]);
    if unhalt and job.sequence_key is not null then
        perform _unhalt_sequence(job.sequence_key, job.id);
    end if;
    perform _free_turn(job);
end;
$$;

-- True if the job must not be run again by itself: its delivery is at_most_once, and it was
-- started.
create or replace function _must_not_rerun(job live_jobs) returns boolean
    language sql immutable
    return (job).delivery = 'at_most_once' and (job).started_at is not null;

create or replace function _record_error(job live_jobs, error text) returns void
    language plpgsql set search_path from current
as $$
declare
    v_now constant timestamptz := clock();
begin
    insert into errors (job_id, run, at, worker, error)
    values (job.id, job.run, v_now, job.worker_id::text, error);
end;
$$;
