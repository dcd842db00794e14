-- 70_workers: who may claim. A worker is one row with a lease. When a worker ends or is declared
-- dead, its running jobs are requeued or discarded.
--
-- Statements that look up jobs by an array of ids get generic plans (force_generic_plan). A custom
-- plan knows the array's value, and PostgreSQL takes `id = any ('{}')` as proof of any condition.
-- If fresh statistics then say that no job is ready, it walks the whole index of ready jobs to find
-- none.

create or replace function register_worker(info jsonb default '{}') returns bigint
    language plpgsql security definer set search_path from current
as $$
declare
    v_now timestamptz := clock();
    v_id bigint;
begin
    if info is null or jsonb_typeof(info) <> 'object' then
        raise exception 'register_worker: info must be a JSON object, got %',
            coalesce(jsonb_typeof(info), 'NULL') using errcode = 'PW001';
    end if;
    insert into workers as w (info, started_at, beat_at, expires_at)
    select register_worker.info, v_now, v_now, v_now + s.worker_ttl from settings s
    returning w.id into v_id;
    return v_id;
end;
$$;
comment on function register_worker(jsonb) is
    'Registers a worker and returns its id, to claim with. The id is new at each start and never '
    'used again. info is for people (host, pid, version). The worker must call heartbeat more '
    'often than every 20 seconds (settings.worker_ttl). Errors: PW001.';

create or replace function worker_ttl() returns interval
    language plpgsql stable security definer set search_path from current
as $$
begin
    return (select s.worker_ttl from settings s);
end;
$$;
comment on function worker_ttl() is
    'How long a worker counts as live without a heartbeat. A worker whose heartbeats have failed '
    'for three quarters of this time must stop its handlers.';

create or replace function update_worker(worker_id bigint, info jsonb) returns void
    language plpgsql security definer set search_path from current
as $$
begin
    if info is null or jsonb_typeof(info) <> 'object' then
        raise exception 'update_worker: info must be a JSON object, got %',
            coalesce(jsonb_typeof(info), 'NULL') using errcode = 'PW001';
    end if;
    update workers w set info = w.info || update_worker.info
    where w.id = update_worker.worker_id and w.dead_at is null;
end;
$$;
comment on function update_worker(bigint, jsonb) is
    'Adds members to a worker''s info. Three members tell explain_job which jobs it claims: '
    'task_identifiers, queue_names (''default'' for jobs without a queue) and forbidden_flags, '
    'arrays as claim_jobs takes them; without them explain_job assumes that it claims any job. A '
    'fourth tells worker_health the state of the process: condition, ''starting'', ''stuck'', '
    '''stopping'' or null. A fifth tells doctor how the worker''s code declares tasks: '
    'definitions, an object {task: {option: value}} with define_task''s options, times in '
    'seconds. Errors: PW001.';

create or replace function heartbeat(worker_id bigint) returns boolean
    language plpgsql security definer set search_path from current
as $$
declare
    v_now timestamptz := clock();
begin
    update workers w set beat_at = v_now, expires_at = v_now + s.worker_ttl from settings s
    where w.id = heartbeat.worker_id and w.dead_at is null;
    return found;
end;
$$;
comment on function heartbeat(bigint) is
    'Extends a worker''s lease. Returns false if the worker was declared dead (or never existed), '
    'and its jobs were handed on: stop them and register again.';

create or replace function unregister_worker(worker_id bigint) returns void
    language plpgsql security definer set search_path from current
    set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_job live_jobs;
    v_ids bigint[];
begin
    update workers w set dead_at = clock() where w.id = unregister_worker.worker_id;
    v_ids := _held_by(array[unregister_worker.worker_id]);
    for v_job in
        select j.* from live_jobs j
        where j.id = any (v_ids) and j.worker_id = unregister_worker.worker_id
          and j.state = 'running'
        order by j.id + 0 for update -- + 0: never a walk along all ids
    loop
        perform _requeue(v_job, v_job.run_at, greatest(v_job.attempts - 1, 0), 'scheduled');
    end loop;
    perform _forget_claims(array[unregister_worker.worker_id]);
    -- The row stays for now: by it, a sweep finds the jobs of a claim that was still open.
    perform pg_advisory_unlock(w.class, w.id)
    from _worker_lock(unregister_worker.worker_id) w where w.mine;
end;
$$;
comment on function unregister_worker(bigint) is
    'Ends a worker in an orderly way: the jobs that it still holds are handed back, get their '
    'attempt back, and can be claimed at once.';

create or replace function reconcile(worker_id bigint, job_ids bigint[], runs bigint[]) returns bigint[]
    language plpgsql security definer set search_path from current
    set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_job live_jobs;
    v_held bigint[] := array[]::bigint[];
    v_ids bigint[];
begin
    if not exists (select from workers w where w.id = reconcile.worker_id and w.dead_at is null) then
        raise exception 'reconcile: worker % is unknown or was declared dead',
            coalesce(worker_id::text, 'NULL') using errcode = 'PW004';
    end if;
    v_ids := _held_by(array[reconcile.worker_id]);
    for v_job in
        select j.* from live_jobs j
        where j.id = any (v_ids) and j.worker_id = reconcile.worker_id and j.state = 'running'
        order by j.id + 0 for update
    loop
        if exists (select from unnest(job_ids, runs) k(id, run)
                   where k.id = v_job.id and k.run = v_job.run) then
            v_held := v_held || v_job.id;
        else
            perform _requeue(v_job, v_job.run_at, greatest(v_job.attempts - 1, 0), 'scheduled');
        end if;
    end loop;
    return v_held;
end;
$$;
comment on function reconcile(bigint, bigint[], bigint[]) is
    'Compares after a lost connection what the worker and the database know. The worker names the '
    'jobs that it is running; the ids of those that it still holds come back. A job that it holds '
    'without knowing (from a claim whose answer never arrived) is handed back and gets its '
    'attempt back. Errors: PW004 as claim_jobs.';

-- Rescues the running jobs of dead workers: requeues or discards them, and returns how many. The
-- attempt counts, since the job itself may have killed its worker. Skips locked jobs.
create or replace function _rescue_jobs(worker_ids bigint[], error text) returns integer
    language plpgsql set search_path from current
    set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_job live_jobs;
    v_count integer := 0;
    v_ids bigint[] := _held_by(worker_ids);
begin
    for v_job in
        select j.* from live_jobs j
        where j.id = any (v_ids) and j.worker_id = any (_rescue_jobs.worker_ids) and j.state = 'running'
        order by j.id + 0 for update skip locked
    loop
        perform _record_error(v_job, error);
        if v_job.attempts >= v_job.max_attempts and not _must_not_rerun(v_job) then
            perform _discard(v_job, error, 'worker lost on the last attempt');
        else
            perform _requeue(v_job, v_job.run_at, v_job.attempts, 'scheduled', error);
        end if;
        v_count := v_count + 1;
    end loop;
    perform _forget_claims(worker_ids);
    return v_count;
end;
$$;

create or replace function report_crash(
    worker_id bigint, job_ids bigint[] default '{}', runs bigint[] default '{}', error text default null)
    returns void
    language plpgsql security definer set search_path from current
    set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_error text := coalesce(error, 'its worker process died');
    v_limit integer := (select s.max_crashes from settings s);
    v_alone boolean := cardinality(job_ids) = 1;
    v_job live_jobs;
    v_ids bigint[];
begin
    update workers w set dead_at = clock() where w.id = report_crash.worker_id and w.dead_at is null;
    v_ids := _held_by(array[report_crash.worker_id]);
    for v_job in
        select j.* from live_jobs j
        where j.id = any (v_ids) and j.worker_id = report_crash.worker_id and j.state = 'running'
        order by j.id + 0 for update
    loop
        if not exists (select from unnest(job_ids, runs) k(id, run)
                       where k.id = v_job.id and k.run = v_job.run) then
            perform _requeue(v_job, v_job.run_at, greatest(v_job.attempts - 1, 0), 'scheduled');
            continue;
        end if;
        update live_jobs j set crashes = coalesce(j.crashes, 0) + 1 where j.id = v_job.id
        returning j.* into v_job;
        perform _record_error(v_job, v_error);
        if v_alone and v_job.crashes >= v_limit and not _must_not_rerun(v_job) then
            perform _discard(v_job, v_error, format('it ended %s worker processes', v_job.crashes));
        elsif v_alone and v_job.attempts >= v_job.max_attempts and not _must_not_rerun(v_job) then
            perform _discard(v_job, v_error, 'worker lost on the last attempt');
        else
            -- Any of several jobs may be to blame: each gets its attempt back, and will be run
            -- alone.
            perform _requeue(
                v_job, v_job.run_at, v_job.attempts - case when v_alone then 0 else 1 end,
                'scheduled', v_error);
        end if;
    end loop;
    perform _forget_claims(array[report_crash.worker_id]);
    perform pg_advisory_unlock(w.class, w.id) from _worker_lock(report_crash.worker_id) w where w.mine;
end;
$$;
comment on function report_crash(bigint, bigint[], bigint[], text) is
    'Reports that a worker''s process has ended by itself; its supervisor calls this. job_ids and '
    'runs: the jobs that the worker was running. A single job is to blame: its attempt counts. Of '
    'several jobs each gets its attempt back, and is marked (claim_jobs: crashes) to be run alone '
    'the next time. A single job is discarded if max_crashes processes (3, see configure) have '
    'ended in its runs. Jobs that were claimed and not begun are handed back and get their '
    'attempt back.';

create or replace function force_unlock_workers(worker_ids text[]) returns void
    language plpgsql security definer set search_path from current
    set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_ids bigint[] := array(select w.id::bigint from unnest(worker_ids) w(id) where w.id ~ '^[0-9]{1,18}$');
    v_held bigint[] := _held_by(v_ids);
begin
    -- Waits for locked rows here: a sweep skips them and comes again, but this call must not skip
    -- any.
    perform from live_jobs j
    where j.id = any (v_held) and j.worker_id = any (v_ids) and j.state = 'running'
    order by j.id + 0 for update;
    perform _rescue_jobs(v_ids, 'worker was unlocked by force');
end;
$$;
comment on function force_unlock_workers(text[]) is
    'Requeues all running jobs of these workers (Graphile Worker); the ids are those in '
    'locked_by. attempts and run_at stay; a job on its last attempt is discarded. Later reports '
    'of these runs are rejected.';

-- The advisory lock that shows that a worker's control connection exists: its two key numbers, and
-- whether this session holds it.
create or replace function _worker_lock(worker_id bigint, out class integer, out id integer, out mine boolean)
    language plpgsql set search_path from current
as $$
begin
    class := hashtext(current_schema() || '/worker');
    id := worker_id & 2147483647;
    mine := exists (
        select from pg_locks l
        where l.locktype = 'advisory' and l.pid = pg_backend_pid()
          and l.classid::bigint = class::bigint & 4294967295
          and l.objid::bigint = id and l.objsubid = 2);
end;
$$;

create or replace function hold_worker_lock(worker_id bigint) returns boolean
    language plpgsql security definer set search_path from current
as $$
declare
    v_held boolean;
begin
    if not exists (select from workers w where w.id = hold_worker_lock.worker_id and w.dead_at is null) then
        return false;
    end if;
    select w.mine or pg_try_advisory_lock(w.class, w.id) into v_held from _worker_lock(worker_id) w;
    -- If a lost connection still holds the lock, the end of that connection must not count:
    -- `locked` is false then, and the worker depends on its lease alone.
    update workers w set locked = v_held, suspect_since = null
    where w.id = hold_worker_lock.worker_id and w.dead_at is null;
    if not found then -- declared dead just now
        perform pg_advisory_unlock(w.class, w.id) from _worker_lock(worker_id) w where v_held;
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

create or replace function sweep_workers() returns integer
    language plpgsql security definer set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_now timestamptz := clock();
    -- Real time, to measure the gaps between sweeps.
    v_clock_ms bigint := (extract(epoch from clock_timestamp()) * 1000)::bigint;
    v_swept_ms bigint := (select s.last_value from swept_at s);
    v_gap boolean := v_swept_ms > 0 and abs(v_clock_ms - v_swept_ms) > 10000;
    v_pause boolean := v_swept_ms > 0 and abs(v_clock_ms - v_swept_ms) > 1500;
    v_class integer := (select w.class from _worker_lock(0) w);
    v_ttl interval := (select s.worker_ttl from settings s);
    v_held bigint[];
    v_spared bigint[] := array[]::bigint[];
begin
    v_held := array(
        select l.objid::bigint from pg_locks l
        where l.locktype = 'advisory' and l.classid::bigint = v_class::bigint & 4294967295
          and l.objsubid = 2 and l.granted
          and l.database = (select d.oid from pg_database d where d.datname = current_database()));
    if v_gap then
        -- The database was down, or all workers were: live workers get time to take their lock and
        -- to beat again before they are judged. They get it only once per heartbeat, so that dead
        -- workers are also found where sweeps are rare.
        v_spared := array(
            select a.id from workers a
            where a.dead_at is null and (a.locked and a.id & 2147483647 <> all (v_held)
                  or a.expires_at < v_now + v_ttl / 2 and a.expires_at <= a.beat_at + v_ttl));
        update workers w
        set expires_at = case when w.expires_at <= w.beat_at + v_ttl then
                greatest(w.expires_at, clock() + v_ttl) else w.expires_at end,
            locked = w.locked and w.id & 2147483647 = any (v_held), suspect_since = null
        where w.id in (
            select a.id from workers a
            where a.id = any (v_spared) and a.dead_at is null order by a.id for update skip locked);
    end if;
    -- A rollback of this sweep, or of another one that runs now, does not undo setval. So the gap
    -- ends only when a sweep finds no worker left to spare.
    if v_spared = '{}' and abs(v_clock_ms - v_swept_ms) > 200 then
        perform setval('swept_at', v_clock_ms);
    end if;
    -- If the clock was set back, shortens the leases that reach too far now. Reads clock() again,
    -- since this session may have stood still.
    update workers w set expires_at = clock() + v_ttl
    where w.id in (
        select c.id from workers c
        where c.dead_at is null and c.expires_at > clock() + v_ttl + interval '1 second'
        order by c.id for update skip locked);
    -- A lock counts as free only for the time in which sweeps saw it free. After a pause of the
    -- sweeps (the database was down), a worker has the full two seconds again to take its lock.
    update workers w
    set suspect_since = case when not w.locked or w.id & 2147483647 = any (v_held) then null
                             when v_pause then clock() else coalesce(w.suspect_since, clock()) end
    where w.id in (
        select s.id from workers s
        where s.dead_at is null and s.locked and (
            (s.suspect_since is null) = (s.id & 2147483647 <> all (v_held))
            or v_pause and s.suspect_since is not null and s.id & 2147483647 <> all (v_held))
        order by s.id for update skip locked);
    update workers w set dead_at = v_now
    where w.id in (
        select d.id from workers d
        where d.dead_at is null
          and (d.expires_at < v_now or d.suspect_since < v_now - interval '2 seconds')
        order by d.id for update skip locked);
    delete from workers w
    where w.id in (
        select o.id from workers o
        where o.dead_at < v_now - interval '1 day' order by o.id for update skip locked);
    -- Workers that died within the last minute, since one of their claims may still have been open.
    -- maintain() finds the jobs of claims that commit even later.
    return _rescue_jobs(
        array(select w.id from workers w where w.dead_at > v_now - interval '1 minute'), 'worker died');
end;
$$;
comment on function sweep_workers() is
    'Finds dead workers (the lease has run out, or the lock of the control connection has been '
    'free for two seconds) and requeues or discards their running jobs; returns how many jobs. '
    'Every worker calls it about once a second, and maintain() calls it. After ten seconds '
    'without a sweep it extends all leases once: workers could not renew them.';

-- Rescues the running jobs of workers that died longer ago, and of unknown workers.
create or replace function _rescue_orphans() returns integer
    language plpgsql set search_path from current set enable_seqscan = off set jit = off
as $$
begin
    return _rescue_jobs(
        array(select distinct c.worker_id from claims c
              where not exists (select from workers w where w.id = c.worker_id and w.dead_at is null)),
        'worker died');
end;
$$;
