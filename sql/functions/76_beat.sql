-- 76_beat: what a worker's runner calls once a second: its heartbeat, and the duties that any worker
-- may do for all: the sweep of dead workers and the schedules that are due.

create or replace function beat(
    worker_id bigint, job_ids bigint[] default '{}', runs bigint[] default '{}', "lock" boolean default false,
    condition jsonb default null, lost_answer boolean default false)
    returns table (kind text, id bigint, run bigint, why text, next_in_s double precision)
    language plpgsql security definer set search_path from current
    set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    v_tick double precision;
begin
    if coalesce(cardinality(job_ids), 0) <> coalesce(cardinality(runs), 0) then
        raise exception 'beat: job_ids and runs must be of one length, got % and %',
            coalesce(cardinality(job_ids), 0), coalesce(cardinality(runs), 0) using errcode = 'PW001';
    elsif jsonb_typeof(condition) not in ('string', 'null') then
        raise exception 'beat: condition must be a JSON string or null, got %', jsonb_typeof(condition)
            using errcode = 'PW001';
    end if;
    if not heartbeat(worker_id) then
        kind := 'dead';
        return next;
        return;
    end if;
    if condition is not null then
        perform update_worker(worker_id, jsonb_build_object('condition', condition));
    end if;
    if "lock" then
        perform hold_worker_lock(worker_id);
    end if;
    if lost_answer then
        perform reconcile(worker_id, job_ids, runs);
    end if;
    perform _sweep_if_due();
    kind := 'alive';
    v_tick := seconds_until_tick();
    next_in_s := case when run_schedules() > 0 then 0 else least(v_tick, 1) end;
    return next;
    return query
    select 'stop', i.id, i.run, case when j.found then 'cancel' else 'lost' end, null::double precision
    from unnest(job_ids, runs) i(id, run)
    left join lateral (
        select true as found, j.cancel_requested_at is not null as asked from live_jobs j
        where j.id between i.id and i.id and j.run = i.run and j.state = 'running' offset 0) j on true
    where j.found is null or j.asked;
end;
$$;
comment on function beat(bigint, bigint[], bigint[], boolean, jsonb, boolean) is
    'A worker''s heartbeat, and all that is due once a second: the sweep of dead workers, schedules. '
    'job_ids, runs: the jobs that the worker has claimed and not reported. "lock": also hold the '
    'worker''s lock on this connection (see hold_worker_lock). condition: a string for people and for '
    'worker_health (''starting'', ''stuck'', ''stopping''), or JSON null. lost_answer: an answer of '
    'work did not arrive; jobs that the worker holds and does not name are handed back (see '
    'reconcile). Returns one row, alive or dead; dead: stop all handlers and open the worker again. '
    'Then a row stop for each run that must stop: why is cancel (cancel_job was called) or lost '
    '(the claim is gone; its report will be stale). Call again within next_in_s. Errors: PW001.';

-- Of many workers one sweeps each second.
create or replace function _sweep_if_due() returns void
    language plpgsql set search_path from current
as $$
begin
    if abs(extract(epoch from clock_timestamp()) * 1000 - (select s.last_value from swept_at s)) > 900 then
        perform sweep_workers();
    end if;
end;
$$;
