-- heart/workers: who may claim. A worker is one row with a lease: it registers, extends the lease with
-- heartbeats, and unregisters. heart/sweep finds the workers that died.
--
-- Statements that look up jobs by an array of ids get generic plans (force_generic_plan). A custom
-- plan knows the array's value, and PostgreSQL takes `id = any ('{}')` as proof of any condition.
-- If fresh statistics then say that no job is ready, it walks the whole index of ready jobs to find
-- none.

-- A registered worker may claim and report: it has not ended, and no sweep has declared it dead.
-- PostgreSQL inlines this function and the next one.
create or replace function _is_registered(worker workers) returns boolean
    language sql immutable
    return (worker).dead_at is null;

-- A live worker is registered, and its lease has not run out. The next sweep declares dead a
-- registered worker that is not live.
create or replace function _is_live(worker workers, now timestamptz) returns boolean
    language sql immutable
    return (worker).dead_at is null and (worker).expires_at >= now;

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
    perform _commit_durably(); -- a crash that lost it would give its id out again
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
    language plpgsql security definer set search_path from current set enable_seqscan = off set jit = off
as $$
begin
    if info is null or jsonb_typeof(info) <> 'object' then
        raise exception 'update_worker: info must be a JSON object, got %',
            coalesce(jsonb_typeof(info), 'NULL') using errcode = 'PW001';
    end if;
    update workers w set info = w.info || update_worker.info
    where w.id = update_worker.worker_id and _is_registered(w);
end;
$$;
comment on function update_worker(bigint, jsonb) is
    'Adds members to a worker''s info. Three members tell explain_job which jobs it claims: '
    'task_identifiers, queue_names (''default'' for jobs without a queue) and forbidden_flags, '
    'arrays as claim_jobs takes them; without them explain_job assumes that it claims any job. A '
    'fourth tells worker_health the state of the process: condition, ''starting'', ''stuck'', '
    '''stopping'' or null. A fifth tells doctor how the worker''s code declares tasks: '
    'definitions, an object {task: {option: value}} with define_task''s options, times in '
    'seconds. Dashboards show concurrency (how many jobs it runs at once), memory (bytes), name, host, '
    'pid and version. Errors: PW001.';

create or replace function heartbeat(worker_id bigint) returns boolean
    language plpgsql security definer set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_now timestamptz := clock();
begin
    update workers w set beat_at = v_now, expires_at = v_now + s.worker_ttl from settings s
    where w.id = heartbeat.worker_id and _is_registered(w);
    return found;
end;
$$;
comment on function heartbeat(bigint) is
    'Extends a worker''s lease. Returns false if the worker was declared dead (or never existed), '
    'and its jobs were handed on: stop them and register again.';

-- An array that a worker reported about itself. The info is also for people: other types are
-- ignored.
create or replace function _reported_list(worker workers, member text) returns jsonb
    language sql immutable
    return case when jsonb_typeof((worker).info -> member) = 'array' then (worker).info -> member end;

-- True if the worker claims jobs of this task and queue ('default' for none) with these flags. What
-- is null is not compared. PostgreSQL inlines this function. claim_jobs spells the rule out for
-- arrays of text, which it compares without parsing JSON for each job that it passes.
create or replace function _takes(worker workers, task text, queue text, flags jsonb) returns boolean
    language sql immutable
    return coalesce(_reported_list(worker, 'task_identifiers') ? task, true)
       and coalesce(_reported_list(worker, 'queue_names') ? queue, true)
       and not coalesce(flags ?| _texts_of(_reported_list(worker, 'forbidden_flags')), false);

-- Locks the running jobs of these workers in the order of their ids, and returns them. It waits for those
-- that another session has locked.
create or replace function _lock_running_jobs(worker_ids bigint[]) returns setof live_jobs
    language plpgsql set search_path from current
    set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_ids constant bigint[] := _held_by(worker_ids);
begin
    return query
    select j.* from live_jobs j
    where j.id = any (v_ids) and j.worker_id = any (worker_ids) and j.state = 'running'
    order by j.id + 0 for update; -- + 0: never a walk along all ids
end;
$$;

-- The same, but it waits for a moment only, and returns the jobs that it has locked: a report that is under
-- way ends soon, but a person's transaction may stay open for long. Sweeps find the others, once their
-- workers have ended.
create or replace function _lock_free_jobs(worker_ids bigint[]) returns setof live_jobs
    language plpgsql set search_path from current set lock_timeout = '200ms'
    set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_ids constant bigint[] := _held_by(worker_ids);
begin
    begin
        perform from _lock_running_jobs(worker_ids);
    exception when lock_not_available then
        null;
    end;
    return query
    select j.* from live_jobs j
    where j.id = any (v_ids) and j.worker_id = any (worker_ids) and j.state = 'running'
    order by j.id + 0 for update skip locked;
end;
$$;

create or replace function unregister_worker(worker_id bigint) returns void
    language plpgsql security definer set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_now constant timestamptz := clock();
begin
    -- Not a delete: by this row, a sweep finds the jobs of a claim that was still open. The sweep
    -- deletes it a day later.
    update workers w set dead_at = v_now where w.id = unregister_worker.worker_id;
    perform _notify_workers() where _stop_polling(worker_id);
    perform _leave(array(
        select _handed_back(j, j.run_at) from _lock_free_jobs(array[unregister_worker.worker_id]) j));
    perform _forget_claims(array[unregister_worker.worker_id]);
    perform _release_worker_lock(unregister_worker.worker_id);
end;
$$;
comment on function unregister_worker(bigint) is
    'Ends a worker in an orderly way: the jobs that it still holds are handed back, get their '
    'attempt back, and can be claimed at once. A job that another session has locked for long is handed '
    'on by a sweep when it is free.';

create or replace function reconcile(worker_id bigint, job_ids bigint[], runs bigint[]) returns bigint[]
    language plpgsql security definer set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_moves _move[];
    v_held bigint[];
begin
    if not exists (select from workers w where w.id = reconcile.worker_id and _is_registered(w)) then
        raise exception 'reconcile: worker % is unknown or was declared dead',
            coalesce(worker_id::text, 'NULL') using errcode = 'PW004';
    end if;
    select array_agg(j.id) filter (where k.id is not null),
           array_agg(_handed_back(j, j.run_at, false)) filter (where k.id is null)
    into v_held, v_moves
    from _lock_free_jobs(array[reconcile.worker_id]) j
    left join (select distinct u.id, u.run from unnest(job_ids, runs) u(id, run)) k
        on k.id = j.id and k.run = j.run;
    perform _leave(v_moves) where v_moves is not null;
    return array(
        select h.id from unnest(v_held) h(id)
        union
        select j.id from unnest(job_ids, runs) k(id, run) -- another session may have it locked
        cross join lateral ( -- offset: one look-up for each job, with any statistics
            select l.id from live_jobs l
            where l.id = k.id and l.run = k.run and l.state = 'running' and l.worker_id = reconcile.worker_id
            offset 0) j
        order by 1);
end;
$$;
comment on function reconcile(bigint, bigint[], bigint[]) is
    'Compares after a lost connection what the worker and the database know. The worker names the '
    'jobs that it is running; the ids of those that it still holds come back. A job that it holds '
    'without knowing (from a claim whose answer never arrived) is handed back and gets its '
    'attempt back. Errors: PW004 as claim_jobs.';

create or replace function report_crash(
    worker_id bigint, job_ids bigint[] default '{}', runs bigint[] default '{}', error text default null)
    returns void
    language plpgsql security definer set search_path from current
    set enable_seqscan = off set jit = off
as $$
declare
    v_now constant timestamptz := clock();
    v_limit integer := (select s.max_crashes from settings s);
    v_alone boolean := cardinality(job_ids) = 1;
    v_job live_jobs;
    v_moves _move[] := array[]::_move[];
begin
    update workers w set dead_at = v_now where w.id = report_crash.worker_id and _is_registered(w);
    for v_job in select j.* from _lock_free_jobs(array[report_crash.worker_id]) j loop
        if not exists (select from unnest(job_ids, runs) k(id, run)
                       where k.id = v_job.id and k.run = v_job.run) then
            v_moves := v_moves || _handed_back(v_job, v_job.run_at, false);
            continue;
        end if;
        update live_jobs j set crashes = least(coalesce(j.crashes, 0) + 1, 32767) where j.id = v_job.id
        returning j.* into v_job;
        -- Any of several jobs may be to blame: each gets its attempt back, and will be run alone.
        v_moves := v_moves || row(
            v_job.id,
            case when v_alone and (v_job.crashes >= v_limit or v_job.attempts >= v_job.max_attempts)
                      and not _must_not_rerun(v_job) then 'discarded' else 'scheduled' end,
            v_job.run_at, v_job.attempts - case when v_alone then 0 else 1 end,
            case when v_job.crashes >= v_limit then format('it ended %s worker processes', v_job.crashes)
                 else 'worker lost on the last attempt' end,
            coalesce(error, 'its worker process died'), null, null)::_move;
    end loop;
    perform _leave(v_moves);
    perform _forget_claims(array[report_crash.worker_id]);
    perform _release_worker_lock(report_crash.worker_id);
end;
$$;
comment on function report_crash(bigint, bigint[], bigint[], text) is
    'Reports that a worker''s process has ended by itself; its supervisor calls this. job_ids and '
    'runs: the jobs that the worker was running. A single job is to blame: its attempt counts. Of '
    'several jobs each gets its attempt back, and is marked (claim_jobs: crashes) to be run alone '
    'the next time. A single job is discarded if max_crashes processes (3, see configure) have '
    'ended in its runs. Jobs that were claimed and not begun are handed back and get their '
    'attempt back.';
