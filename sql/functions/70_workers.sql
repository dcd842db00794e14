-- 70_workers: who may claim. A worker is one row with a lease; its end hands its jobs on.

create or replace function register_worker(info jsonb default '{}') returns bigint
    language plpgsql security definer set search_path from current
as $$
declare
    v_now timestamptz := clock();
    v_id bigint;
begin
    if info is null or jsonb_typeof(info) <> 'object' then
        raise exception 'register_worker: info must be a JSON object, got %', coalesce(jsonb_typeof(info), 'NULL') using errcode = 'PW001';
    end if;
    insert into workers as w (info, started_at, beat_at, expires_at)
    select register_worker.info, v_now, v_now, v_now + s.worker_ttl from settings s
    returning w.id into v_id;
    return v_id;
end;
$$;
comment on function register_worker(jsonb) is
    'Begins a worker: returns an id, new at each start and never used again, to claim with. info is for people (host, pid, version). The '
    'worker must call heartbeat more often than every 20 seconds (settings.worker_ttl). Errors: PW001.';

create or replace function describe_worker(worker_id bigint, info jsonb) returns void
    language plpgsql security definer set search_path from current
as $$
begin
    if info is null or jsonb_typeof(info) <> 'object' then
        raise exception 'describe_worker: info must be a JSON object, got %', coalesce(jsonb_typeof(info), 'NULL') using errcode = 'PW001';
    end if;
    update workers w set info = w.info || describe_worker.info where w.id = describe_worker.worker_id and w.dead_at is null;
end;
$$;
comment on function describe_worker(bigint, jsonb) is
    'Adds to what a worker has said of itself. Three members tell explain_job which jobs it claims: task_identifiers, queue_names '
    '(''default'' for jobs without a queue), forbidden_flags, arrays as claim_jobs takes them; without them it is taken to claim any. '
    'Errors: PW001.';

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
    'Prolongs a worker''s lease. False: it was declared dead (or never lived) and its jobs were handed on; stop them and register again.';

create or replace function unregister_worker(worker_id bigint) returns void
    language plpgsql security definer set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_job live_jobs;
begin
    update workers w set dead_at = clock() where w.id = unregister_worker.worker_id;
    for v_job in
        select j.* from live_jobs j where j.worker_id = unregister_worker.worker_id and j.state = 'running' and j.ready_at is not null
        order by j.id + 0 for update -- + 0: never by a walk along all ids
    loop
        perform _put_back(v_job, v_job.run_at, greatest(v_job.attempts - 1, 0), 'scheduled');
    end loop;
    delete from workers w where w.id = unregister_worker.worker_id;
end;
$$;
comment on function unregister_worker(bigint) is
    'Ends a worker in good order: whatever it still holds is handed back with its attempt, and can be claimed at once.';

create or replace function reconcile(worker_id bigint, job_ids bigint[], runs integer[]) returns bigint[]
    language plpgsql security definer set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_job live_jobs;
    v_held bigint[] := array[]::bigint[];
begin
    if not exists (select from workers w where w.id = reconcile.worker_id and w.dead_at is null) then
        raise exception 'reconcile: worker % is unknown or was declared dead', coalesce(worker_id::text, 'NULL') using errcode = 'PW004';
    end if;
    for v_job in
        select j.* from live_jobs j where j.worker_id = reconcile.worker_id and j.state = 'running' and j.ready_at is not null
        order by j.id + 0 for update
    loop
        if exists (select from unnest(job_ids, runs) k(id, run) where k.id = v_job.id and k.run = v_job.run) then
            v_held := v_held || v_job.id;
        else
            perform _put_back(v_job, v_job.run_at, greatest(v_job.attempts - 1, 0), 'scheduled');
        end if;
    end loop;
    return v_held;
end;
$$;
comment on function reconcile(bigint, bigint[], integer[]) is
    'After a lost connection worker and database compare what they know: the worker names the jobs it has in hand, the ids it really '
    'still holds come back, and what it holds without knowing (a claim whose answer never arrived) is handed back with its attempt. '
    'Errors: PW004 as claim_jobs.';

-- Takes the jobs of a worker that is no more. Their attempt counts: it may well have been the job that killed it.
create or replace function _abandon_jobs(worker_ids bigint[], error text) returns integer
    language plpgsql set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_job live_jobs;
    v_count integer := 0;
begin
    for v_job in
        select j.* from live_jobs j
        where j.worker_id = any (_abandon_jobs.worker_ids) and j.state = 'running' and j.ready_at is not null
        order by j.id + 0 for update skip locked
    loop
        perform _note_error(v_job, error);
        if v_job.attempts >= v_job.max_attempts then
            perform _discard(v_job, error, 'worker lost on the last attempt');
        else
            perform _put_back(v_job, v_job.run_at, v_job.attempts, 'scheduled', error);
        end if;
        v_count := v_count + 1;
    end loop;
    return v_count;
end;
$$;

create or replace function force_unlock_workers(worker_ids text[]) returns void
    language plpgsql security definer set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_ids bigint[] := array(select w.id::bigint from unnest(worker_ids) w(id) where w.id ~ '^[0-9]{1,18}$');
begin
    -- A sweep passes over a row that somebody has in hand and comes again; this must not.
    perform from live_jobs j where j.worker_id = any (v_ids) and j.state = 'running' and j.ready_at is not null order by j.id + 0 for update;
    perform _abandon_jobs(v_ids, 'worker was unlocked by force');
end;
$$;
comment on function force_unlock_workers(text[]) is
    'Hands on all running jobs of these workers (Graphile Worker): the ids are those in locked_by. attempts and run_at stay; a job on its '
    'last attempt is discarded. Their late words are refused.';

-- Workers whose lease has run out are dead; so is every worker that a running job names and that is not there.
create or replace function _sweep_workers() returns integer
    language plpgsql set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_now timestamptz := clock();
begin
    update workers w set dead_at = v_now
    where w.id in (select d.id from workers d where d.dead_at is null and d.expires_at < v_now order by d.id for update skip locked);
    delete from workers w where w.dead_at < v_now - interval '1 day';
    return _abandon_jobs(
        array(select distinct j.worker_id from live_jobs j
              where j.state = 'running' and j.ready_at is not null
                and not exists (select from workers w where w.id = j.worker_id and w.dead_at is null)),
        'worker died');
end;
$$;
