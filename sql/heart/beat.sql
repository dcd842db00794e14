-- heart/beat: what a worker's runner calls every one or two seconds: its heartbeat, and the duties that
-- any worker may do for all: the sweep of dead workers and the schedules that are due.

create or replace function beat(
    worker_id bigint, job_ids bigint[] default '{}', runs bigint[] default '{}', "lock" boolean default false,
    condition jsonb default null, lost_answer boolean default false)
    returns table (kind text, id bigint, run bigint, why text, next_in_s double precision)
    language plpgsql security definer set search_path from current
as $$
#variable_conflict use_column
declare
    v_duties _duties;
    v_unlocked text;
    v_grace_s double precision;
    v_next_s double precision := 1;
begin
    if coalesce(cardinality(job_ids), 0) <> coalesce(cardinality(runs), 0) then
        raise exception 'beat: job_ids and runs must be of one length, got % and %',
            coalesce(cardinality(job_ids), 0), coalesce(cardinality(runs), 0) using errcode = 'PW001';
    elsif jsonb_typeof(condition) not in ('string', 'null') then
        raise exception 'beat: condition must be a JSON string or null, got %', jsonb_typeof(condition)
            using errcode = 'PW001';
    end if;
    v_duties := _find_duties(worker_id);
    -- A runner that counts stop_after_s from its last answered beat stops well before the lease runs out.
    if v_duties.lease_is_short then
        v_duties.registered := heartbeat(worker_id);
    end if;
    if v_duties.registered is not true then
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
    if (job_ids <> '{}') is not true then
        v_next_s := greatest(_idle_wait(), 2);
    end if;
    v_grace_s := v_duties.grace_s;
    if _sweep_is_due(v_grace_s) then
        v_grace_s := _sweep(worker_id);
        v_next_s := case when v_next_s > 2 then 0.9 else v_next_s end; -- the next sweep is its own, too
    end if;
    if v_duties.tick_is_due then
        v_duties := _tick(v_duties);
    end if;
    kind := 'alive';
    why := nullif(concat_ws(' ', v_unlocked, v_duties.words), '');
    next_in_s := least(
        case when v_grace_s between 0 and 1 then v_grace_s when v_grace_s is not null then 1 end,
        v_duties.next_tick_s, v_next_s);
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

-- What a beat finds to do, in one statement: most beats find nothing.
create or replace function _find_duties(worker_id bigint) returns _duties
    language plpgsql set search_path from current
    set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_duties _duties;
    v_now constant timestamptz := clock();
begin
    select _is_registered(w), w.expires_at < v_now + s.worker_ttl * 0.875, -- an eighth of the lease is over
           (select 2.01 - extract(epoch from v_now - min(o.suspect_since)) from workers o
            where o.suspect_since is not null and _is_registered(o)),
           case when (pg_sequence_last_value('maintain_at'::regclass) -- rounded: 60001
                      - date_part('epoch', clock_timestamp()) * 1000 between 1 and 60001) is not true
                then 'maintain' end,
           t.next_at <= v_now, date_part('epoch', t.next_at - v_now)
    into v_duties
    from workers w cross join settings s
    left join lateral (
        select e.next_at from schedule_entries e where e.next_at is not null
        order by e.next_at limit 1) t on true
    where w.id = _find_duties.worker_id;
    return v_duties;
end;
$$;

-- Of many workers one sweeps each second. `grace_s`: until a sweep may declare a suspected worker dead;
-- null if none is suspected. While one is, a sweep comes each second, and one when its two seconds are over.
create or replace function _sweep_is_due(grace_s double precision) returns boolean
    language sql volatile
    return grace_s <= 0 or (
        abs(date_part('epoch', clock_timestamp()) * 1000
            - pg_sequence_last_value('swept_at'::regclass)) <= 900) is not true;

-- Finds dead workers, and cancels the jobs that have expired. Returns `grace_s` as it is then.
create or replace function _sweep(worker_id bigint) returns double precision
    language plpgsql set search_path from current set lock_timeout = '200ms'
as $$
begin
    begin
        perform sweep_workers();
        perform _expire_jobs();
    exception when query_canceled or others then
        raise warning 'the sweep of dead workers failed: %', sqlerrm; -- the beat counts all the same
    end;
    return (_find_duties(worker_id)).grace_s;
end;
$$;

-- Runs the schedules that are due, unless the setting pyworker.schedules says that the runner does so
-- apart: then one runner a second is told to, but none that is busy with it.
create or replace function _tick(inout duties _duties)
    language plpgsql set search_path from current
as $$
declare
    v_now constant timestamptz := clock();
    v_ms constant bigint := extract(epoch from clock_timestamp()) * 1000;
    v_mode constant text := current_setting('pyworker.schedules', true);
begin
    duties.next_tick_s := least(seconds_until_tick(), 1);
    perform from schedule_entries t
    where t.next_at <= v_now and coalesce(t.retry_at, '-infinity') <= v_now;
    if not found then -- what was interrupted waits until it is tried again
        return;
    elsif (v_mode = any ('{apart,busy}'::text[])) is not true then
        duties.next_tick_s := case when run_schedules() > 0 then 0 else duties.next_tick_s end;
    elsif v_mode = 'apart' and (
            abs(v_ms - pg_sequence_last_value('due_told_at'::regclass)) <= 1000) is not true then
        perform setval('due_told_at', v_ms);
        duties.words := concat_ws(' ', duties.words, 'schedules');
    end if;
end;
$$;
