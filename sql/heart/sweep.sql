-- heart/sweep: how workers find that another worker has died, and what becomes of its jobs. A worker
-- has died when its lease has run out, or when its control connection has ended.

create or replace function _worker_lock_class() returns integer
    language sql stable
    return hashtext(current_schema() || '/worker');

-- The advisory lock that shows that a worker's control connection exists: its two key numbers, and
-- whether this session holds it.
create or replace function _worker_lock(worker_id bigint, out class integer, out id integer, out mine boolean)
    language plpgsql set search_path from current
as $$
begin
    class := _worker_lock_class();
    id := worker_id & 2147483647;
    mine := exists (
        select from pg_locks l
        where l.locktype = 'advisory' and l.pid = pg_backend_pid()
          and l.classid::bigint = class::bigint & 4294967295
          and l.objid::bigint = id and l.objsubid = 2);
end;
$$;

-- Releases the lock of a worker's control connection, if this session holds it.
create or replace function _release_worker_lock(worker_id bigint) returns void
    language plpgsql set search_path from current
as $$
begin
    perform pg_advisory_unlock(w.class, w.id) from _worker_lock(worker_id) w where w.mine;
end;
$$;

create or replace function hold_worker_lock(worker_id bigint) returns boolean
    language plpgsql security definer set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_known boolean; -- the worker's row says so already
    v_mine boolean;
    v_held boolean;
begin
    select w.locked and w.suspect_since is null into v_known from workers w
    where w.id = hold_worker_lock.worker_id and _is_registered(w);
    if not found then
        return false;
    end if;
    select w.mine, w.mine or pg_try_advisory_lock(w.class, w.id) into v_mine, v_held
    from _worker_lock(worker_id) w;
    if v_known and v_mine then
        return true;
    end if;
    -- If a lost connection still holds the lock, the end of that connection must not count:
    -- `locked` is false then, and the worker depends on its lease alone.
    update workers w set locked = v_held, suspect_since = null
    where w.id = hold_worker_lock.worker_id and _is_registered(w);
    if not found then -- declared dead just now
        perform _release_worker_lock(worker_id);
        v_held := false;
    end if;
    return v_held;
end;
$$;
comment on function hold_worker_lock(bigint) is
    'Takes a lock for this session; call it on the worker''s control connection. When that '
    'connection ends, other workers declare the worker dead two seconds later, unless the lock is '
    'held again by then. A worker that never calls it depends on its lease alone. Do not call it '
    'behind a transaction pooler, where a session''s lock outlives its client. Returns false if '
    'another session holds the lock (the worker depends on its lease then; try again later), and '
    'if the worker is unknown or was declared dead.';

-- Rescues the running jobs of dead workers: requeues or discards them, and returns how many. The
-- attempt counts, since the job itself may have killed its worker. Skips locked jobs.
create or replace function _rescue_jobs(worker_ids bigint[], error text) returns integer
    language plpgsql set search_path from current
    set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_ids bigint[];
    v_moves _move[];
begin
    if worker_ids = '{}' then
        return 0;
    end if;
    v_ids := _held_by(worker_ids);
    v_moves := array(
        select row(h.id, case when h.attempts >= h.max_attempts and not h.lost then 'discarded'
                              else 'scheduled' end,
                   h.run_at, null, 'worker lost on the last attempt', _rescue_jobs.error, null, null)::_move
        from (select j.id, j.attempts, j.max_attempts, j.run_at, _must_not_rerun(j) as lost from live_jobs j
              where j.id = any (v_ids) and j.worker_id = any (_rescue_jobs.worker_ids)
                and j.state = 'running'
              order by j.id + 0 for update skip locked) h);
    perform _leave(v_moves);
    perform _forget_claims(worker_ids);
    return cardinality(v_moves);
end;
$$;

-- The workers whose lock some session of this database holds, by the numbers that _worker_lock
-- gives them.
create or replace function _held_worker_locks() returns bigint[]
    language plpgsql stable set search_path from current
as $$
declare
    v_class constant bigint := _worker_lock_class()::bigint & 4294967295;
begin
    return array(
        select l.objid::bigint from pg_locks l
        where l.locktype = 'advisory' and l.classid::bigint = v_class and l.objsubid = 2 and l.granted
          and l.database = (select d.oid from pg_database d where d.datname = current_database()));
end;
$$;

-- True if the lock of this worker is one of these. PostgreSQL inlines this function.
create or replace function _has_lock(worker workers, held bigint[]) returns boolean
    language sql immutable
    return (worker).id & 2147483647 = any (held);

-- After a gap, in which no worker could beat: gives the workers that look dead time to take their
-- lock and to beat again. They get it only once per heartbeat, so that dead workers are also found
-- where sweeps are rare. Returns true if there was such a worker.
create or replace function _spare_workers(now timestamptz, held bigint[]) returns boolean
    language plpgsql set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_ttl constant interval := worker_ttl();
    v_spared constant bigint[] := array(
        select w.id from workers w
        where _is_registered(w) and (
            w.locked and not _has_lock(w, held)
            or w.expires_at < now + v_ttl / 2 and w.expires_at <= w.beat_at + v_ttl));
    v_now constant timestamptz := clock(); -- the session may have stood still until now
begin
    update workers w
    set expires_at = case when w.expires_at <= w.beat_at + v_ttl
            then greatest(w.expires_at, v_now + v_ttl) else w.expires_at end,
        locked = w.locked and _has_lock(w, held), suspect_since = null
    where w.id in (
        select s.id from workers s
        where s.id = any (v_spared) and _is_registered(s) order by s.id for update skip locked);
    return v_spared <> '{}';
end;
$$;

create or replace function sweep_workers() returns integer
    language plpgsql security definer set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_now constant timestamptz := clock();
    v_clock_ms constant bigint := extract(epoch from clock_timestamp()) * 1000;
    -- In real time; null before the first sweep.
    v_gap_ms constant bigint := abs(v_clock_ms - nullif((select s.last_value from swept_at s), 0));
    v_held constant bigint[] := _held_worker_locks();
    v_ttl constant interval := worker_ttl();
    v_spared boolean := false;
    v_later timestamptz; -- the session may stand still at any time
    v_ids bigint[];
begin
    if v_gap_ms > 10000 then
        v_spared := _spare_workers(v_now, v_held);
    end if;
    -- A rollback of this sweep, or of another one that runs now, does not undo setval. So the gap
    -- ends only when a sweep finds no worker left to spare.
    if not v_spared and (v_gap_ms <= 200) is not true then
        perform setval('swept_at', v_clock_ms);
    end if;
    -- If the clock was set back, shortens the leases that reach too far now. It reads the clock once more
    -- when no worker can extend these leases any longer.
    v_later := clock();
    v_ids := array(
        select r.id from workers r
        where _is_registered(r) and r.expires_at > v_later + v_ttl + interval '1 second'
        order by r.id for update skip locked);
    if v_ids <> '{}' then
        v_later := clock();
        update workers w set expires_at = v_later + v_ttl
        where w.id = any (v_ids) and w.expires_at > v_later + v_ttl + interval '1 second';
    end if;
    -- Notes since when the lock of a worker is free, for as long as sweeps see it free. After a pause
    -- of the sweeps (the database was down), a worker has the full time again to take its lock.
    v_later := clock();
    update workers w
    set suspect_since = case when not w.locked or _has_lock(w, v_held) then null
                             when v_gap_ms > 1500 then v_later else coalesce(w.suspect_since, v_later) end
    where w.id in (
        select s.id from workers s
        where _is_registered(s) and s.locked
          and (_has_lock(s, v_held) = (s.suspect_since is not null)
               or v_gap_ms > 1500 and not _has_lock(s, v_held))
        order by s.id for update skip locked);
    update workers w set dead_at = v_now
    where w.id in (
        select d.id from workers d
        where _is_registered(d)
          and (not _is_live(d, v_now) or d.suspect_since < v_now - interval '2 seconds')
        order by d.id for update skip locked);
    delete from workers w
    where w.id in (
        select o.id from workers o
        where o.dead_at < v_now - interval '1 day' order by o.id for update skip locked);
    perform setval('fleet_size', f.size)
    from (select count(*) as size from workers w where _is_registered(w)) f where f.size <> _fleet_size();
    -- Workers that died within the last minute, since one of their claims may still have been open.
    -- maintain() finds the jobs of claims that commit even later.
    return _rescue_jobs(
        array(select w.id from workers w where w.dead_at > v_now - interval '1 minute'), 'worker died');
end;
$$;
comment on function sweep_workers() is
    'Finds dead workers (the lease has run out, or the lock of the control connection has been '
    'free for two seconds) and requeues or discards their running jobs; returns how many jobs. '
    'One beat a second calls it, of all workers'', and maintain() does. After ten seconds without a '
    'sweep it extends all leases once: workers could not renew them.';

create or replace function force_unlock_workers(worker_ids text[]) returns void
    language plpgsql security definer set search_path from current
as $$
declare
    v_ids bigint[] := array(select w.id::bigint from unnest(worker_ids) w(id) where w.id ~ '^[0-9]{1,18}$');
begin
    -- Waits for locked jobs here: a sweep skips them and comes again, but this call must not skip
    -- any.
    perform _lock_running_jobs(v_ids);
    perform _rescue_jobs(v_ids, 'worker was unlocked by force');
end;
$$;
comment on function force_unlock_workers(text[]) is
    'Requeues all running jobs of these workers (Graphile Worker); the ids are those in '
    'locked_by. attempts and run_at stay; a job on its last attempt is discarded. Later reports '
    'of these runs are rejected.';
