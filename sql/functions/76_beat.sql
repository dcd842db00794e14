-- 76_beat: what a worker's runner calls every one or two seconds: its heartbeat, and the duties that
-- any worker may do for all: the sweep of dead workers and the schedules that are due.

create or replace function beat(
    worker_id bigint, job_ids bigint[] default '{}', runs bigint[] default '{}', "lock" boolean default false,
    condition jsonb default null, lost_answer boolean default false)
    returns table (kind text, id bigint, run bigint, why text, next_in_s double precision)
    language plpgsql security definer set search_path from current
as $$
#variable_conflict use_column
declare
    v_unlocked text;
    v_look_in double precision;
    v_duties record;
begin
    if coalesce(cardinality(job_ids), 0) <> coalesce(cardinality(runs), 0) then
        raise exception 'beat: job_ids and runs must be of one length, got % and %',
            coalesce(cardinality(job_ids), 0), coalesce(cardinality(runs), 0) using errcode = 'PW001';
    elsif jsonb_typeof(condition) not in ('string', 'null') then
        raise exception 'beat: condition must be a JSON string or null, got %', jsonb_typeof(condition)
            using errcode = 'PW001';
    elsif not _keep_lease(worker_id) then
        kind := 'dead';
        return next;
        return;
    end if;
    if condition is not null then
        perform update_worker(worker_id, jsonb_build_object('condition', condition));
    end if;
    if "lock" then
        v_unlocked := case when not hold_worker_lock(worker_id) then 'unlocked' end;
    end if;
    if lost_answer then
        perform reconcile(worker_id, job_ids, runs);
    end if;
    v_look_in := _sweep_if_due();
    v_duties := _duties();
    kind := 'alive';
    why := nullif(concat_ws(' ', v_unlocked, v_duties.words), '');
    next_in_s := least(v_look_in, v_duties.next_in_s, case when cardinality(job_ids) > 0 then 1 else 2 end);
    return next;
    if cardinality(job_ids) > 0 then
        return query select * from _runs_to_stop(job_ids, runs);
    end if;
end;
$$;
comment on function beat(bigint, bigint[], bigint[], boolean, jsonb, boolean) is
    'A worker''s heartbeat, and what any worker does for all: the sweep of dead workers, schedules. '
    'job_ids, runs: the jobs that the worker has claimed and not reported. "lock": also hold the '
    'worker''s lock on this connection (see hold_worker_lock). condition: a string for people and for '
    'worker_health (''starting'', ''stuck'', ''stopping''), or JSON null. lost_answer: an answer of '
    'work did not arrive; jobs that the worker holds and does not name are handed back (see '
    'reconcile). Returns one row, alive or dead; dead: stop all handlers and open the worker again. '
    'In the row alive, why is null or holds words: maintain (call maintain()), unlocked (another '
    'session holds the lock), schedules (call run_schedules(); said only if the setting '
    'pyworker.schedules is apart, else beat runs them itself; busy: neither). '
    'Then a row stop for each run that must stop: why is cancel (cancel_job was called) or lost '
    '(the claim is gone; its report will be stale). Call again within next_in_s. Errors: PW001.';

-- Those of these runs that must stop, as beat returns them.
create or replace function _runs_to_stop(job_ids bigint[], runs bigint[])
    returns table (kind text, id bigint, run bigint, why text, next_in_s double precision)
    language plpgsql set search_path from current
    set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
begin
    return query
    select 'stop', i.id, i.run, case when j.found then 'cancel' else 'lost' end, null::double precision
    from unnest(job_ids, runs) i(id, run)
    left join lateral (
        select true as found, j.cancel_requested_at is not null as asked from live_jobs j
        where j.id between i.id and i.id and j.run = i.run and j.state = 'running' offset 0) j on true
    where j.found is null or j.asked;
end;
$$;

-- True if the worker is registered. Extends the lease once an eighth of it is over: so a runner that
-- counts stop_after_s from its last answered beat still stops well before the lease runs out.
create or replace function _keep_lease(worker_id bigint) returns boolean
    language plpgsql set search_path from current
as $$
begin
    return coalesce(
        (select case when w.expires_at >= clock() + s.worker_ttl * 0.875 then true else heartbeat(w.id) end
         from workers w, settings s where w.id = _keep_lease.worker_id and _is_registered(w)), false);
end;
$$;

-- Of many workers one sweeps each second. Returns seconds after which to beat again: while a worker
-- is suspected, a sweep comes each second, and one when its two seconds are over.
create or replace function _sweep_if_due() returns double precision
    language plpgsql set search_path from current set lock_timeout = '200ms'
as $$
declare
    v_ms constant double precision := extract(epoch from clock_timestamp()) * 1000;
    v_left double precision := _seconds_of_grace();
begin
    if v_left <= 0 or (abs(v_ms - pg_sequence_last_value('swept_at'::regclass)) <= 900) is not true then
        begin
            perform sweep_workers();
        exception when query_canceled or others then
            raise warning 'the sweep of dead workers failed: %', sqlerrm; -- the beat counts all the same
        end;
        v_left := _seconds_of_grace();
    end if;
    return case when v_left between 0 and 1 then v_left when v_left is not null then 1 end;
end;
$$;

-- Seconds until a sweep may declare a suspected worker dead; null if none is suspected.
create or replace function _seconds_of_grace() returns double precision
    language plpgsql set search_path from current set enable_seqscan = off set jit = off
as $$
begin
    return (select 2.01 - extract(epoch from clock() - min(w.suspect_since)) from workers w
            where w.suspect_since is not null and _is_registered(w));
end;
$$;

-- What is due that any worker may do. Runs due schedules, unless the setting pyworker.schedules says
-- that the runner does so apart: then one runner a second is told to, but none that is busy with it.
create or replace function _duties(out words text, out next_in_s double precision)
    language plpgsql set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_now constant timestamptz := clock();
    v_ms constant bigint := extract(epoch from clock_timestamp()) * 1000;
    v_mode constant text := current_setting('pyworker.schedules', true);
    v_due boolean;
begin
    select (select extract(epoch from min(t.next_at) - v_now) from schedule_entries t
            where t.next_at > v_now),
           exists (select from schedule_entries t
                   where t.next_at <= v_now and coalesce(t.retry_at, v_now) <= v_now),
           case when (pg_sequence_last_value('maintain_at'::regclass) - v_ms between 1 and 60000) is not true
                then 'maintain' end
    into next_in_s, v_due, words;
    if not v_due then
        return;
    end if;
    next_in_s := least(next_in_s, 1);
    if (v_mode = any ('{apart,busy}'::text[])) is not true then
        next_in_s := case when run_schedules() > 0 then 0 else next_in_s end;
    elsif v_mode = 'apart' and (
            abs(v_ms - pg_sequence_last_value('due_told_at'::regclass)) <= 1000) is not true then
        perform setval('due_told_at', v_ms);
        words := concat_ws(' ', words, 'schedules');
    end if;
end;
$$;
