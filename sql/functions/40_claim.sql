-- 40_claim: claim_jobs moves jobs from available to running, for one worker.
--
-- A claim is one index scan over the ready jobs, in the total order priority, run_at, id. SKIP
-- LOCKED makes sure that claims neither wait for each other nor take the same job. The plan is
-- pinned: a queue grows from empty to a million rows and shrinks again faster than the statistics
-- follow, and any other plan than this scan is slow at one of the two ends.
--
-- If the scan has to pass many dead index entries, the session's next claims continue from the
-- place that it reached: see 02_walks. Which of the locked jobs of a limited queue may start: see
-- 32_slots.

create or replace function claim_jobs(
    worker_id bigint, max_jobs integer default 1, task_identifiers text[] default null,
    queue_names text[] default null, forbidden_flags text[] default null)
    returns table (
        id bigint, run bigint, task_identifier text, payload json, attempts smallint, max_attempts smallint,
        priority smallint, run_at timestamptz, queue_name text, key text, flags jsonb, meta jsonb,
        delivery text, sequence_key text, created_at timestamptz, revision integer, crashes smallint)
    language plpgsql security definer set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set enable_hashjoin = off
    set enable_mergejoin = off set jit = off set plan_cache_mode = force_generic_plan set datestyle = iso
    set lock_timeout = '200ms'
as $$
declare
    v_now timestamptz := clock();
    v_seen xid8 := pg_snapshot_xmin(pg_current_snapshot()); -- from before it reads the queues
    v_look _look := _look_for_jobs(worker_id, max_jobs);
    v_walk _claim_walk;
    v_found _found;
    v_wanted integer := max_jobs;
begin
    while v_look.ready loop
        begin
            if v_look.promotes then
                perform promote_jobs();
            end if;
            v_walk := _next_walk(
                v_walk, v_found, v_look.promotes, worker_id, task_identifiers, queue_names, forbidden_flags);
            v_found := _find_jobs(
                v_walk.spans, v_wanted, v_found.closed, task_identifiers, queue_names, forbidden_flags);
            if v_found.admitted is not null then
                return query
                    with noted as (
                        insert into claims values (claim_jobs.worker_id, v_found.run, v_found.ids, v_seen))
                    update live_jobs j
                    set state = 'running', has_slot = null, start_by = null, worker_id = claim_jobs.worker_id,
                        run = _next_run(j.run, v_found.run), claimed_at = v_now,
                        attempts = least(j.attempts + 1, 32767) -- else a job at 32767 fails all claims
                    from unnest(v_found.admitted) r(ctid) where j.ctid = r.ctid
                    returning j.id, j.run, j.task_identifier, j.payload, j.attempts, j.max_attempts,
                              j.priority, j.run_at, j.queue_name, j.job_key, j.flags, j.meta, j.delivery,
                              j.sequence_key, j.created_at, j.revision, coalesce(j.crashes, 0::smallint);
            end if;
        -- See _find_jobs, which may have waited for a lock.
        exception when lock_not_available or deadlock_detected then
            v_look.promotes := true;
            v_found.closed := null;
            continue;
        end;
        -- Not in the block above: an error here would undo the claim, but not its `return query`.
        v_wanted := v_wanted - coalesce(cardinality(v_found.admitted), 0);
        v_look := _after_round(v_look, v_found, worker_id, v_wanted, max_jobs);
    end loop;
    if (v_walk.kept).owner is not null
       or _entries_read('live_jobs_ready') - v_walk.read > 1000 + 2 * (max_jobs - v_wanted) then
        perform _keep_claim_walk(
            v_walk, v_found, v_wanted > 0, worker_id, task_identifiers, queue_names, forbidden_flags);
    end if;
end;
$$;
comment on function claim_jobs(bigint, integer, text[], text[], text[]) is
    'Claims up to max_jobs available jobs for a worker and returns them in the order in which '
    'they are to run: by priority, run_at, id. Each job comes with its run, the fencing token '
    'that every later report about it must carry; the run only grows, and is never given out '
    'twice for a job, not even after a crash of the server that lost a claim. task_identifiers, '
    'queue_names: claim only these; null means all, an empty array none; ''default'' stands for '
    'jobs without a queue. forbidden_flags: claim no jobs with any of these flags (Graphile '
    'Worker). A job with delivery at_most_once is only reserved: call start_job before its '
    'handler. A job with crashes above 0 may have ended its process before: run it alone. A claim '
    'that returns fewer than max_jobs jobs makes sure that new jobs NOTIFY the channel named like '
    'the schema for at least 2.5 seconds: LISTEN there, and claim again by then. Errors: PW004 if '
    'the worker is unknown or was declared dead; PW001. With synchronous_commit off (set it only '
    'in a transaction that does nothing else), a claim does not wait for the disk, unless one of '
    'its jobs belongs to a sequence or a limited queue: a crash of the server may then lose the '
    'claim, and its jobs run again.';

-- What a claim begins with, in one statement: whether the worker may claim, whether there is
-- something to promote or to claim. If there is nothing, the worker listens from now on. A session
-- that remembers a walk does not look, as the look would begin at the head. Errors: PW001, PW004.
create or replace function _look_for_jobs(worker_id bigint, max_jobs integer, out look _look)
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
as $$
declare
    v_began timestamptz := clock_timestamp();
    v_walks constant boolean := _walks_are_kept();
    v_registered boolean;
    v_due timestamptz;
    v_request bigint;
begin
    if max_jobs is null or max_jobs < 1 then
        raise exception 'claim_jobs: max_jobs must be at least 1, got %', coalesce(max_jobs::text, 'NULL')
            using errcode = 'PW001';
    end if;
    select (select true from workers w where w.id = _look_for_jobs.worker_id and _is_registered(w)),
           (select j.due_at from live_jobs j where j.due_at is not null and not v_walks
            order by j.due_at, j.id limit 1),
           (select w.id from promotion_requests w where not v_walks order by w.id limit 1),
           (select true from live_jobs j where j.ready_at is not null and not v_walks
            order by j.priority, j.ready_at, j.id limit 1) -- or it runs
    into v_registered, v_due, v_request, look.ready;
    if v_registered is null then
        perform _refuse_worker(worker_id);
    end if;
    look.rounds := 0;
    look.promotes := v_walks or v_request is not null or coalesce(v_due <= clock(), false)
                     -- The look-up was slow: promote_jobs remembers how far it has walked (02_walks).
                     or clock_timestamp() > v_began + interval '0.5 ms';
    look.ready := look.promotes or coalesce(look.ready, false);
    if not look.ready then
        look := _look_again(look, 0);
    end if;
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

-- After a round that found fewer jobs than wanted, `claimed` in all: whether to look once more. One
-- promotion handles only some of the requests: so while the oldest one changes, up to 10 times. Then
-- the worker listens, and looks once more if adds did not notify until now.
create or replace function _look_again(inout look _look, claimed integer)
    language plpgsql set search_path from current
as $$
declare
    v_before constant bigint := coalesce(look.oldest_request, 0);
begin
    if look.promotes then
        look.rounds := look.rounds + 1;
        look.oldest_request := _oldest_request();
        look.ready := look.rounds <= 10 and look.oldest_request <> v_before;
    else
        look.ready := false;
    end if;
    if look.ready is not true then
        look.ready := _start_listening(claimed);
    end if;
    look.promotes := look.ready;
end;
$$;

-- Finds the next jobs in claim order that the worker takes, locks them, and asks their queues which
-- of them may start.
--
-- PostgreSQL does wait, despite SKIP LOCKED, for a row that has been updated and whose new version
-- is locked at that moment: as long as the producer's transaction is open, or in a deadlock with it,
-- since claims do not lock in the order of ids. After 200 ms (lock_timeout) the claim starts again.
create or replace function _find_jobs(
    spans _span[], wanted integer, closed text[],
    task_identifiers text[], queue_names text[], forbidden_flags text[], out found _found)
    language plpgsql set search_path from current
as $$
declare
    -- At any other isolation level the snapshot may be too old.
    v_current constant boolean := current_setting('transaction_isolation') = 'read committed';
    v_now constant timestamptz := clock();
    v_queues text[]; -- for each job: the queue that it asks for a slot, or null
    v_queued boolean;
begin
    select array_agg(r.ctid), array_agg(r.priority), array_agg(r.ready_at), array_agg(r.id),
           array_agg(r.asks_queue), bool_or(r.asks_queue is not null),
           bool_or(r.sequence_key is not null or r.has_slot)
    into found.admitted, found.priorities, found.ready_ats, found.ids, v_queues, v_queued, found.in_turn
    from (
        -- A job with a slot need not ask its queue, unless a change of a queue's settings is still
        -- to be handled.
        select r.*,
               case when r.has_slot is null or not v_current
                         or (select true from promotion_requests w where w.changed limit 1)
                    then r.queue_name end as asks_queue
        from unnest(spans) s
        cross join lateral (
            select j.ctid, j.priority, j.ready_at, j.id, j.queue_name, j.sequence_key, j.has_slot
            from live_jobs j
            where j.ready_at is not null and j.state = 'available'
              and (j.priority, j.ready_at, j.id) > (s.priority, s.ready_at, s.id)
              and (j.priority, j.ready_at, j.id) <= (s.to_priority, s.to_ready_at, s.to_id)
              and (task_identifiers is null or j.task_identifier = any (task_identifiers))
              and (queue_names is null or coalesce(j.queue_name, 'default') = any (queue_names))
              and (forbidden_flags is null or j.flags is null or not j.flags ?| forbidden_flags)
              and (closed is null or j.queue_name is null or j.queue_name <> all (closed))
              and (j.start_by is null or j.start_by > v_now)
            order by j.priority, j.ready_at, j.id
            limit wanted for update skip locked) r
        limit wanted) r;
    found.closed := closed;
    found.run := _new_run();
    if v_queued then
        select a.closed, a.admitted, a.full_queues, a.in_turn or found.in_turn
        into found.closed, found.admitted, found.full_queues, found.in_turn
        from _admit(found.admitted, v_queues, closed) a;
    end if;
end;
$$;

-- Settles what a round has claimed, and decides whether the claim looks for more, and where.
create or replace function _after_round(
    inout look _look, found _found, worker_id bigint, wanted integer, max_jobs integer)
    language plpgsql set search_path from current
as $$
declare
    v_claimed constant integer := coalesce(cardinality(found.admitted), 0);
begin
    if v_claimed > 0 and not _claims_are_tidy(worker_id, found.run) then
        perform _tidy_claims(worker_id, found.run);
    end if;
    if found.full_queues <> '{}' then
        begin
            perform _park_candidates(found.full_queues);
        exception when lock_not_available or deadlock_detected then
            insert into promotion_requests (lane)
            select 'queue:' || f.name from unnest(found.full_queues) f(name);
        end;
    end if;
    -- A crash of the server may lose a claim that was not flushed to disk while its jobs are
    -- running; the worker learns of it when it reconnects (reconcile). But two jobs of a
    -- sequence or of a serial queue must not run at once, so such a claim waits for the disk.
    if found.in_turn then
        perform _commit_durably();
    end if;
    if wanted = 0 then
        look.ready := false;
        if _worker_is_listening() and not _worker_is_polling() then
            perform _stop_listening();
        end if;
    elsif v_claimed < cardinality(found.ids) then
        look.promotes := false; -- some queues are full: the walk goes on after their jobs
    else
        look := _look_again(look, max_jobs - wanted);
    end if;
end;
$$;

-- The next walk along the ready jobs. After a promotion, and at first, it begins at the head or at
-- the places that the session remembers; else it goes on after the jobs that were found.
create or replace function _next_walk(
    inout walk _claim_walk, found _found, begins boolean, worker_id bigint,
    task_identifiers text[], queue_names text[], forbidden_flags text[])
    language plpgsql set search_path from current
as $$
declare
    v_late record;
begin
    if walk.began is not null and not begins then
        walk.places := _places_after(walk.places, found.priorities, found.ready_ats, found.ids, null);
        walk.spans := _spans_left(walk.spans, found.priorities, found.ready_ats, found.ids);
        return;
    end if;
    walk.began := clock_timestamp();
    walk.read := _entries_read('live_jobs_ready');
    if current_setting('pyworker.walk_claim', true) <> '' then
        walk.kept := _walk_of(
            'claim', _claim_owner(worker_id, task_identifiers, queue_names, forbidden_flags));
    end if;
    walk.places := (walk.kept).places;
    if walk.places is null then
        walk.spans := array[row(-32768, '-infinity', 0, 32767, 'infinity', 9223372036854775807)::_span];
    else
        v_late := _spans_with_late(walk.kept);
        walk.kept.late_ids := v_late.late_ids;
        walk.kept.seen := v_late.seen;
        walk.spans := v_late.spans;
    end if;
end;
$$;

-- Remembers the place that a long walk has reached. `short`: it found fewer jobs than wanted.
create or replace function _keep_claim_walk(
    walk _claim_walk, found _found, short boolean, worker_id bigint,
    task_identifiers text[], queue_names text[], forbidden_flags text[])
    returns void
    language plpgsql set search_path from current
as $$
declare
    v_kept _walk := walk.kept;
    v_from_head constant boolean := v_kept.owner is null;
begin
    if cardinality(v_kept.late_ids) > 1000 then
        perform set_config('pyworker.walk_claim', '', false); -- a walk from the head is simpler
        return;
    end if;
    v_kept.places := _places_after(
        walk.places, found.priorities, found.ready_ats, found.ids, case when short then walk.began end);
    if v_from_head then
        v_kept.owner := _claim_owner(worker_id, task_identifiers, queue_names, forbidden_flags);
        v_kept.late_ids := '{}';
        v_kept.seen := coalesce(
            (select a.id from late_arrivals a where a.at < walk.began order by a.id desc limit 1), 0);
    end if;
    perform _keep_walk('claim', v_kept, case when v_from_head then walk.began end);
end;
$$;

-- The owner of a remembered walk: this worker with these filters.
create or replace function _claim_owner(
    worker_id bigint, task_identifiers text[], queue_names text[], forbidden_flags text[]) returns bigint
    language plpgsql stable set search_path from current
as $$
begin
    return hashtextextended(
        row('live_jobs'::regclass::oid, worker_id, task_identifiers, queue_names, forbidden_flags)::text, 0);
end;
$$;

-- The parts of these spans that follow the last of the jobs that a walk found.
create or replace function _spans_left(
    spans _span[], priorities smallint[], ready_ats timestamptz[], ids bigint[]) returns _span[]
    language plpgsql immutable set search_path from current
as $$
declare
    v_last constant integer := cardinality(ids);
begin
    return array(
        select case when (s.priority, s.ready_at, s.id) < (priorities[v_last], ready_ats[v_last], ids[v_last])
                    then row(
                        priorities[v_last], ready_ats[v_last], ids[v_last],
                        s.to_priority, s.to_ready_at, s.to_id)::_span
                    else row(s.priority, s.ready_at, s.id, s.to_priority, s.to_ready_at, s.to_id)::_span end
        from unnest(spans) s
        where (s.to_priority, s.to_ready_at, s.to_id) > (priorities[v_last], ready_ats[v_last], ids[v_last])
        order by s.priority, s.ready_at, s.id);
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
