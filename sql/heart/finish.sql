-- heart/finish: running -> completed. It also has _finalize_jobs, the only function that moves jobs
-- from live_jobs to history.

-- Ends the given jobs as completed or cancelled; with `runs`, only jobs that still run under that
-- run (the fence). Returns the ids of the jobs that it ended.
create or replace function _finalize_jobs(
    job_ids bigint[], runs bigint[], final_state text, results jsonb[] default null,
    close_reason text default null, error text default null) returns bigint[]
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
    set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_ended record;
begin
    v_ended := _end_jobs(job_ids, runs, final_state, results, close_reason, error);
    if v_ended.opened > 0 then
        perform _notify_workers();
    end if;
    return v_ended.ids;
end;
$$;

-- The same, but leaves it to the caller to notify workers if it has `opened` jobs, and to pin the plans. It
-- moves the jobs in one statement. It locks rows in the order of their ids, and matches them by id and run,
-- never by position, since an add may have moved a row meanwhile.
create or replace function _end_jobs(
    job_ids bigint[], runs bigint[], final_state text, results jsonb[] default null,
    close_reason text default null, error text default null, out ids bigint[], out opened integer)
    language plpgsql set search_path from current
as $$
declare
    v_now timestamptz := clock();
    v_tells constant boolean := final_state = 'cancelled' or _coordination_is_used() or _jobs_are_awaited();
    -- A producer replaces the jobs. (A handler that cancels with this reason gives an error, too.)
    v_replaced boolean := coalesce(close_reason = 'replaced' and error is null, false);
    v_ends _loose_end[];
begin
    with item as materialized (
        select i.id, i.run, i.result from unnest(job_ids, runs, results) i(id, run, result) order by i.id),
    ended as (
        -- Not j.id = i.id: a session that planned this while the table was empty would walk the
        -- whole index, for a merge join that is switched off. A range can only be looked up.
        delete from live_jobs j using item i
        where j.id between i.id and i.id and (runs is null or (j.run = i.run and j.state = 'running'))
        returning j.*, i.result as new_result,
                  coalesce((select t.retention from tasks t where t.identifier = j.task_identifier),
                           (select case final_state when 'completed' then s.completed_retention
                                   else s.cancelled_retention end from settings s)) as retention),
    kept as (
        insert into finished_jobs (
            id, worker_id, run, attempts, state, claimed_at, updated_at, started_at, cancel_requested_at,
            superseded, priority, max_attempts, revision, run_at, created_at, task_identifier, queue_name,
            job_key, delivery, flags, meta, unique_key, unique_recheck, sequence_key,
            continue_on_cancelled, continue_on_discarded, last_error, reason, finished_at, expires_at,
            result, start_by, wait_until, waits_since, waits_run, payload)
        select e.id, e.worker_id, e.run, e.attempts, final_state, e.claimed_at, v_now, e.started_at,
               e.cancel_requested_at, e.superseded, e.priority, e.max_attempts, e.revision, e.run_at,
               e.created_at, e.task_identifier, e.queue_name, e.job_key, e.delivery, e.flags, e.meta,
               e.unique_key, e.unique_recheck, e.sequence_key, e.continue_on_cancelled,
               e.continue_on_discarded, coalesce(error, e.last_error), close_reason, v_now,
               v_now + e.retention, e.new_result, e.start_by, e.wait_until, e.waits_since, e.waits_run,
               e.payload from ended e where e.retention > interval '0')
    select array_agg(e.id),
           array_agg(row(
               e.id, e.state = 'running' and not v_replaced, e.queue_name, e.slot, e.ready_at is not null,
               case when e.sequence_head then e.sequence_key end,
               -- A job that gives way to another one (superseded or replaced) does not halt.
               case when final_state = 'cancelled' and not e.continue_on_cancelled and e.superseded is null
                         and not v_replaced then e.sequence_key end,
               e.retention = interval '0',
               -- Only these jobs can have rows in errors: an error is also the job's last_error, until
               -- an add with its key clears that and raises the revision.
               e.revision > 0 or coalesce(error, e.last_error) is not null,
               -- Not the key of a job that is being replaced: its successor has it.
               case when not v_replaced then e.unique_key end, e.new_result)::_loose_end) filter (
               where e.queue_name is not null or e.sequence_key is not null or e.state <> 'running' or v_tells
                  or e.retention = interval '0' and (
                      e.revision > 0 or coalesce(error, e.last_error) is not null
                      or e.unique_key is not null))
    into ids, v_ends from ended e;
    if v_ends is not null then
        opened := _tie_up(v_ends, final_state, v_tells);
    end if;
    ids := coalesce(ids, '{}');
end;
$$;

-- What only some ends leave to be done: hands places on, tells those who wait for these ends, forgets what
-- history does not keep. A producer that replaces or cancels a job hands nothing on, but asks for a look: its
-- transaction may stay open for long, and must not have the next job locked. Returns how many jobs became
-- available to claims.
create or replace function _tie_up(ends _loose_end[], final_state text, tells boolean) returns integer
    language plpgsql set search_path from current
as $$
declare
    v_now constant timestamptz := clock();
    v_next record;
begin
    select array_agg(l.job_id) as ids, array_agg(l.head_of) filter (where l.hands_on) as sequences,
           array_agg(l.queue_name) filter (where l.hands_on and l.queue_name is not null) as queues,
           array_agg(l.slot) filter (where l.hands_on and l.queue_name is not null) as slots,
           array_agg(l.job_id) filter (where l.gone) as gone,
           array_agg(l.result) filter (where l.gone) as results,
           array_agg(l.job_id) filter (where l.gone and l.has_errors) as errors,
           array_agg(l.unique_key) filter (where l.gone and l.unique_key is not null) as keys,
           bool_or(not l.hands_on) as asks, bool_or(l.halts is not null) as halts
    into v_next from unnest(ends) l;
    if v_next.errors is not null then
        delete from errors e where e.job_id = any (v_next.errors);
    end if;
    if v_next.keys is not null then
        perform _release_unique_keys(v_next.keys);
    end if;
    if v_next.halts then
        insert into sequence_halts
        select l.halts, l.job_id, final_state, v_now from unnest(ends) l where l.halts is not null
        on conflict do nothing;
    end if;
    if v_next.asks then
        insert into promotion_requests (lane)
        select 'queue:' || l.queue_name from unnest(ends) l
        where not l.hands_on and l.was_ready and l.queue_name <> ''
        union
        select 'sequence:' || l.head_of from unnest(ends) l where not l.hands_on and l.head_of is not null;
        perform _notify_workers() where found;
    end if;
    if tells then
        perform _tell_of_end(v_next.ids, final_state, v_next.gone, v_next.results);
    end if;
    return case when v_next.sequences is null and v_next.queues is null then 0
                else _hand_on(array_remove(v_next.sequences, null), v_next.queues, v_next.slots) end;
end;
$$;

create or replace function finish_jobs(job_ids bigint[], runs bigint[], results jsonb[] default null)
    returns bigint[]
    language plpgsql security definer set search_path from current
as $$
begin
    if cardinality(job_ids) <> cardinality(runs) or cardinality(results) not in (0, cardinality(job_ids)) then
        raise exception 'finish_jobs: job_ids, runs and results must be of one length, got %, % and %',
            cardinality(job_ids), cardinality(runs), cardinality(results) using errcode = 'PW001';
    end if;
    return _finalize_jobs(job_ids, coalesce(runs, '{}'), 'completed', results);
end;
$$;
comment on function finish_jobs(bigint[], bigint[], jsonb[]) is
    'Completes jobs and returns the ids that were accepted. A stale run (the job was requeued, '
    'cancelled or finished meanwhile) is left out: the worker must drop its result. results: kept '
    'with the job in history (River: recorded output). Errors: PW001 if the arrays differ in '
    'length.';

create or replace function finish_job(job_id bigint, run bigint) returns void
    language plpgsql security definer set search_path from current
as $$
begin
    if _finalize_jobs(array[job_id], array[run], 'completed') = '{}' then
        raise exception 'finish_job: job % is not held by run % any more', coalesce(job_id::text, 'NULL'),
            coalesce(run::text, 'NULL')
            using errcode = 'PW002', hint = 'The claim was lost: roll back, and drop the result.';
    end if;
end;
$$;
comment on function finish_job(bigint, bigint) is
    'Completes one job inside the handler''s own transaction. Call it as the last statement '
    'before the commit: the job''s end and the handler''s writes commit or roll back together. '
    'Errors: PW002 on a stale run, so that the writes of a late worker roll back as well.';

-- The status of a transaction id is not enough: after a crash or a failover, the server gives out
-- the id of a lost transaction again. So the job must have ended, too, and history must not know that
-- another run ended it: a crash may have lost the claim with the transaction. Volatile: the tables are
-- read after the status, so that they show what a transaction has done that is committed just now.
create or replace function was_finished(job_id bigint, run bigint, transaction_id xid8) returns boolean
    language plpgsql volatile security definer set search_path from current
    set enable_seqscan = off set jit = off
as $$
declare
    v_status text;
begin
    v_status := pg_xact_status(transaction_id);
    if v_status = 'in progress' then
        return null;
    end if;
    return coalesce(v_status = 'committed', false)
       and not exists (select from live_jobs j where j.id = was_finished.job_id)
       and not exists (select from finished_jobs f
                       where f.id = was_finished.job_id and f.run <> was_finished.run);
exception when invalid_parameter_value then -- the id has not been assigned yet
    return false;
end;
$$;
comment on function was_finished(bigint, bigint, xid8) is
    'For a COMMIT that was not answered: true if the transaction that called finish_job for this '
    'run committed, false if it did not, or if the job was retried since. transaction_id is its '
    'pg_current_xact_id(). Null while the transaction is in progress, because the server has not '
    'noticed yet that its client is gone: ask again.';
