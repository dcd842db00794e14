-- heart/claim: claim_jobs; and what a turn (heart/turn) needs besides its claim.
--
-- A claim is one index scan over the ready jobs, in the total order priority, ready_at, id. It decides
-- nothing: what stands in that index may run. SKIP LOCKED makes sure that claims neither wait for each other
-- nor take the same job. The plan is pinned: a queue grows from empty to a million rows and shrinks again
-- faster than the statistics follow, and any other plan than this scan is slow at one of the two ends.

-- A claim is a turn without reports. It starts again if a row that another session has just updated and
-- locked made it wait (see work).
create or replace function claim_jobs(
    worker_id bigint, max_jobs integer default 1, task_identifiers text[] default null,
    queue_names text[] default null, forbidden_flags text[] default null)
    returns table (
        id bigint, run bigint, task_identifier text, payload json, attempts smallint, max_attempts smallint,
        priority smallint, run_at timestamptz, queue_name text, key text, flags jsonb, meta jsonb,
        delivery text, sequence_key text, created_at timestamptz, revision integer, crashes smallint)
    language plpgsql security definer set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
    set enable_sort = off set enable_incremental_sort = off set jit = off
    set plan_cache_mode = force_generic_plan
as $$
declare
    v_jobs bigint[];
begin
    if max_jobs is null or max_jobs < 1 then
        raise exception 'claim_jobs: max_jobs must be at least 1, got %', coalesce(max_jobs::text, 'NULL')
            using errcode = 'PW001';
    end if;
    v_jobs := array(
        select w.id from work(
            claim_jobs.worker_id, null, null, null, null, max_jobs, task_identifiers, queue_names,
            forbidden_flags) w
        where w.kind = 'job');
    perform _notify_workers() where _stop_polling(worker_id); -- the caller need not come again in 5 ms
    return query
    select j.id, j.run, j.task_identifier, j.payload, j.attempts, j.max_attempts, j.priority, j.run_at,
           j.queue_name, j.job_key, j.flags, j.meta, j.delivery, j.sequence_key, j.created_at, j.revision,
           coalesce(j.crashes, 0::smallint)
    from unnest(v_jobs) i(id) join live_jobs j on j.id between i.id and i.id;
end;
$$;
comment on function claim_jobs(bigint, integer, text[], text[], text[]) is
    'Claims up to max_jobs available jobs for a worker and returns them in the order in which '
    'they are to run: by priority, then by the time at which each became available, then by id. Each job '
    'comes with its run, the fencing token '
    'that every later report about it must carry; the run only grows, and is never given out '
    'twice for a job, not even after a crash of the server that lost a claim. task_identifiers, '
    'queue_names: claim only these; null means all, an empty array none; ''default'' stands for '
    'jobs without a queue. forbidden_flags: claim no jobs with any of these flags (Graphile '
    'Worker). A job with delivery at_most_once is only reserved: call start_job before its '
    'handler. A job with crashes above 0 may have ended its process before: run it alone. A claim '
    'that returns fewer than max_jobs jobs makes sure that new jobs NOTIFY the channel named like '
    'the schema for two seconds: LISTEN there, and claim again by then. In a transaction that has written '
    'something already it takes only what may run at once, and lets in nothing from sequences and limited '
    'queues. Commit at once: in a transaction that has let jobs in, the server ends a session that idles for '
    'five seconds. Errors: PW004 if '
    'the worker is unknown or was declared dead; PW001. With synchronous_commit off (set it only '
    'in a transaction that does nothing else), a claim does not wait for the disk, unless one of '
    'its jobs belongs to a sequence or a limited queue: a crash of the server may then lose the '
    'claim, and its jobs run again.';

-- The claim: finds the next jobs in claim order that the worker takes, and marks them as running.
--
-- While settings of queues are held (gate/settings), it takes of their jobs only those that the newest
-- version has let in. It writes a row in claims, by which a sweep finds the jobs of a dead worker.
-- `place`: it begins to walk behind it.
--
-- A crash of the server may lose a claim that was not flushed to disk while its jobs are running; the worker
-- learns of it when it reconnects (reconcile). But two jobs of a sequence or of a serial queue must not run
-- at once, so such a claim waits for the disk.
--
-- PostgreSQL does wait, despite SKIP LOCKED, for a row that has been updated and whose new version is locked
-- at that moment: as long as the producer's transaction is open. After 200 ms the turn fails with 55P03 and
-- nothing counts; its worker repeats it.
create or replace function _claim(
    worker_id bigint, this_run bigint, wanted integer, task_identifiers text[], queue_names text[],
    forbidden_flags text[], place _floor)
    returns table (
        kind text, id bigint, run bigint, task_identifier text, payload json, attempts smallint,
        max_attempts smallint, queue_name text, key text, flags jsonb, meta jsonb, sequence_key text,
        delivery text, crashes smallint, timeout_s double precision, run_at_s double precision,
        created_at_s double precision, why text, again_in_s double precision)
    language plpgsql set search_path from current set lock_timeout = '200ms'
as $$
#variable_conflict use_column
declare
    -- At any other isolation level the snapshot may be too old to show the settings of queues.
    v_current constant boolean := current_setting('transaction_isolation') = 'read committed';
    v_now constant timestamptz := clock();
    v_closed constant text[] := _closed_queues();
    v_n integer;
begin
    return query
    with found as materialized (
        select j.ctid as tid, j.id, j.ready_at, j.queue_name, j.sequence_key from live_jobs j
        where j.ready_at is not null and j.state = 'available'
          and (j.priority, j.ready_at, j.id) > (place.priority, place.at, place.id)
          and (task_identifiers is null or j.task_identifier = any (task_identifiers))
          and (queue_names is null or coalesce(j.queue_name, 'default') = any (queue_names))
          and (forbidden_flags is null or j.flags is null or not j.flags ?| forbidden_flags)
          and (v_closed is null or coalesce(j.queue_name, 'default') <> all (v_closed))
          and (j.start_by is null or j.start_by > v_now)
          and (j.queue_name is null or v_current and (
              (select true from held_settings h order by h.changed, h.queue_name limit 1) is null
              or _was_let_in(j.queue_name, j.slot)))
        order by j.priority, j.ready_at, j.id
        limit wanted for update skip locked),
    noted as (
        insert into claims (worker_id, run, job_ids)
        select _claim.worker_id, this_run, array_agg(f.id) from found f
        having count(*) > 0 and (count(coalesce(f.queue_name, f.sequence_key)) = 0
                                 or _commit_durably() is distinct from ''))
    update live_jobs j
    set state = 'running', start_by = null, claimed_start_by = j.start_by, worker_id = _claim.worker_id,
        run = _next_run(j.run, this_run), attempts = least(j.attempts + 1, 32767), -- else it fails all claims
        claimed_at = greatest(v_now, case when j.pace is not null then f.ready_at end)
    from found f where j.ctid = f.tid
    returning 'job', j.id, j.run, j.task_identifier, j.payload, j.attempts, j.max_attempts, j.queue_name,
        j.job_key, j.flags, j.meta, j.sequence_key, j.delivery, coalesce(j.crashes, 0::smallint),
        (select date_part('epoch', t.timeout) from tasks t where t.identifier = j.task_identifier),
        date_part('epoch', j.run_at), date_part('epoch', j.created_at), null::text, null::float8;
    get diagnostics v_n = row_count;
    if v_n > 0 and _rates_are_used() then
        perform _note_starts(worker_id, this_run);
    end if;
    if v_n > 0 and not _claims_are_tidy(worker_id, this_run) then
        perform _tidy_claims(worker_id, this_run);
    end if;
end;
$$;

-- Where this claim begins to walk: at the place that the session remembers for these filters, or at the head.
create or replace function _claim_floor(
    task_identifiers text[], queue_names text[], forbidden_flags text[]) returns _floor
    language plpgsql set search_path from current
as $$
declare
    v_floor constant _floor :=
        _floor_of('ready', _owner_of_claims(task_identifiers, queue_names, forbidden_flags));
begin
    return case when v_floor.until is null then row(-32768, '-infinity', 0, null)::_floor else v_floor end;
end;
$$;

-- Claims with these filters, in this schema.
create or replace function _owner_of_claims(
    task_identifiers text[], queue_names text[], forbidden_flags text[]) returns text
    language sql stable
    return hashtextextended(
        row('live_jobs'::regclass::oid, task_identifiers, queue_names, forbidden_flags)::text, 0)::text;

-- Remembers the place that a turn has reached, after a walk that passed many dead entries. `until`: of the
-- floor at which it began, null if it began at the head. A walk that found nothing has seen all that was
-- ready a second before.
create or replace function _keep_claim_floor(
    owner text, worker_id bigint, run bigint, until bigint, began timestamptz) returns void
    language plpgsql set search_path from current
as $$
declare
    v_place record;
begin
    select j.priority, j.ready_at, j.id into v_place
    from claims c cross join lateral unnest(c.job_ids) i(id)
    join live_jobs j on j.id between i.id and i.id
    where c.worker_id = _keep_claim_floor.worker_id and c.run = _keep_claim_floor.run
    order by j.priority desc, j.ready_at desc, j.id desc limit 1;
    if not found then
        select 0::smallint as priority, began - interval '1 second' as ready_at, 0::bigint as id into v_place;
    end if;
    perform _keep_floor('ready', owner, v_place.priority, v_place.ready_at, v_place.id,
                        (extract(epoch from clock_timestamp() - began) * 1000000)::bigint, until);
end;
$$;

create or replace function _refuse_worker(worker_id bigint) returns void
    language plpgsql set search_path from current
as $$
begin
    raise exception 'worker % is unknown, was closed or was declared dead', coalesce(worker_id::text, 'NULL')
        using errcode = 'PW004', hint = 'Open a new worker; the jobs of this one are handed on.';
end;
$$;

-- After a partial claim: seconds until the worker claims again, notified or not. `next_at`: when the next job
-- or request is due; `behind`: seconds until jobs that it left behind are looked at again; `xmin`: of the
-- snapshot of its last look.
create or replace function _again_in(
    asked boolean, next_at timestamptz, xmin xid8, behind double precision) returns double precision
    language plpgsql set search_path from current
as $$
declare
    v_due_s double precision := date_part('epoch', next_at - clock());
begin
    if asked or v_due_s <= 0 then
        v_due_s := _backoff('gate'); -- another session has the gate, or the job locked
    end if;
    return least(v_due_s, behind, _idle_wait(), case
        when not _adds_are_heard() then 0.005
        when _silent_adds_were_open(xmin) then _backoff('silent') end);
end;
$$;

-- What a claim with these filters, which began at this place, has left behind, though it was ready. Seconds
-- until it looks again: 0.25 if another session has such a job locked; null if there is none. If it `acts`,
-- kinds that it does not take stand aside (gate/aside): then 0.
create or replace function _left_behind(
    task_identifiers text[], queue_names text[], forbidden_flags text[], place _floor,
    acts boolean default true)
    returns double precision
    language plpgsql set search_path from current
as $$
declare
    v_now timestamptz := clock();
    v_behind record;
begin
    select bool_or(j.taken) as mine,
           coalesce(bool_or(not j.taken and j.queue_name is not null
                            and j.ready_at < v_now - interval '1 second'), false) as others
    into v_behind
    from (select (task_identifiers is null or l.task_identifier = any (task_identifiers))
                 and (queue_names is null or coalesce(l.queue_name, 'default') = any (queue_names))
                 and (forbidden_flags is null or l.flags is null or not l.flags ?| forbidden_flags) as taken,
                 l.queue_name, l.ready_at
          from live_jobs l where l.ready_at is not null and l.state = 'available'
            and (l.priority, l.ready_at, l.id) > (place.priority, place.at, place.id)
          order by l.priority, l.ready_at, l.id limit 100) j;
    if acts and v_behind.others and _set_kinds_aside(task_identifiers, queue_names, forbidden_flags) then
        return 0;
    end if;
    return case when v_behind.mine then 0.25 end;
end;
$$;

-- A run is the time of its claim in microseconds, by the server's own clock. A counter would repeat
-- a number after a crash of the server that lost a claim. Runs stay below 2^53 until the year 2255,
-- so JavaScript reads them exactly.
create or replace function _new_run() returns bigint
    language sql volatile
    return (date_part('epoch', clock_timestamp()) * 1000000)::bigint;

-- The run of a job only grows. If the clock was set back, it grows by a random step: a fixed step
-- could repeat the run of a claim that a crash has lost.
create or replace function _next_run(last_run bigint, new_run bigint) returns bigint
    language sql volatile
    return case when last_run < new_run then new_run else last_run + 1 + (random() * 1000000000)::bigint end;
