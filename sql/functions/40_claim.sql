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
    v_claim _claim_state := _open_claim(worker_id, max_jobs, task_identifiers, queue_names, forbidden_flags);
begin
    while v_claim.continues loop
        begin
            v_claim := _find_jobs(v_claim);
            if v_claim.admitted is not null then
                return query
                    with noted as (
                        insert into claims
                        values (claim_jobs.worker_id, v_claim.run, v_claim.ids, v_claim.seen))
                    update live_jobs j
                    set state = 'running', has_slot = null, worker_id = claim_jobs.worker_id,
                        run = _next_run(j.run, v_claim.run),
                        claimed_at = v_now,
                        attempts = least(j.attempts + 1, 32767) -- else a job at 32767 fails all claims
                    from unnest(v_claim.admitted) r(ctid) where j.ctid = r.ctid
                    returning j.id, j.run, j.task_identifier, j.payload, j.attempts, j.max_attempts,
                              j.priority, j.run_at, j.queue_name, j.job_key, j.flags, j.meta, j.delivery,
                              j.sequence_key, j.created_at, j.revision, coalesce(j.crashes, 0::smallint);
            end if;
        -- PostgreSQL does wait, despite SKIP LOCKED, for a row that has been updated and whose new
        -- version is locked at that moment: as long as the producer's transaction is open, or in a
        -- deadlock with it, since claims do not lock in the order of ids. After 200 ms
        -- (lock_timeout) the claim starts again.
        exception when lock_not_available or deadlock_detected then
            v_claim.promotes := true;
            v_claim.closed := null;
            continue;
        end;
        -- Not in the block above: an error here would undo the claim, but not its `return query`.
        v_claim := _after_claim(v_claim);
    end loop;
    perform _close_claim(v_claim);
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

-- Finds the next jobs in claim order that the worker takes, locks them, and asks their queues which
-- of them may start.
create or replace function _find_jobs(inout claim _claim_state)
    language plpgsql set search_path from current
as $$
declare
    -- At any other isolation level the snapshot may be too old.
    v_current constant boolean := current_setting('transaction_isolation') = 'read committed';
    v_queues text[]; -- for each job: the queue that it asks for a slot, or null
    v_queued boolean;
begin
    if claim.promotes then
        perform promote_jobs();
        claim := _begin_walk(claim);
    end if;
    select array_agg(r.ctid), array_agg(r.priority), array_agg(r.ready_at), array_agg(r.id),
           array_agg(r.asks_queue), bool_or(r.asks_queue is not null),
           bool_or(r.sequence_key is not null or r.has_slot)
    into claim.admitted, claim.priorities, claim.ready_ats, claim.ids, v_queues, v_queued, claim.in_turn
    from (
        -- A job with a slot need not ask its queue, unless a change of a queue's settings is still
        -- to be handled.
        select r.*,
               case when r.has_slot is null or not v_current
                         or (select true from promotion_requests w where w.changed limit 1)
                    then r.queue_name end as asks_queue
        from unnest(claim.spans) s
        cross join lateral (
            select j.ctid, j.priority, j.ready_at, j.id, j.queue_name, j.sequence_key, j.has_slot
            from live_jobs j
            where j.ready_at is not null and j.state = 'available'
              and (j.priority, j.ready_at, j.id) > (s.priority, s.ready_at, s.id)
              and (j.priority, j.ready_at, j.id) <= (s.to_priority, s.to_ready_at, s.to_id)
              and (claim.task_identifiers is null or j.task_identifier = any (claim.task_identifiers))
              and (claim.queue_names is null
                  or coalesce(j.queue_name, 'default') = any (claim.queue_names))
              and (claim.forbidden_flags is null or j.flags is null
                  or not j.flags ?| claim.forbidden_flags)
              and (claim.closed is null or j.queue_name is null or j.queue_name <> all (claim.closed))
            order by j.priority, j.ready_at, j.id
            limit claim.wanted for update skip locked) r
        limit claim.wanted) r;
    claim.full_queues := null;
    if v_queued then
        select a.closed, a.admitted, a.full_queues, a.in_turn or claim.in_turn
        into claim.closed, claim.admitted, claim.full_queues, claim.in_turn
        from _admit(claim.admitted, v_queues, claim.closed) a;
    end if;
    claim.run := _new_run();
end;
$$;

-- What one call of claim_jobs begins with. Errors: PW001, PW004.
create or replace function _open_claim(
    worker_id bigint, max_jobs integer, task_identifiers text[], queue_names text[], forbidden_flags text[],
    out claim _claim_state)
    language plpgsql set search_path from current
as $$
begin
    if max_jobs is null or max_jobs < 1 then
        raise exception 'claim_jobs: max_jobs must be at least 1, got %', coalesce(max_jobs::text, 'NULL')
            using errcode = 'PW001';
    end if;
    if not exists (select from workers w where w.id = _open_claim.worker_id and _is_registered(w)) then
        raise exception 'claim_jobs: worker % is unknown or was declared dead',
            coalesce(worker_id::text, 'NULL')
            using errcode = 'PW004',
                  hint = 'Call register_worker again; jobs of the old registration are handed on.';
    end if;
    claim.worker_id := worker_id;
    claim.task_identifiers := task_identifiers;
    claim.queue_names := queue_names;
    claim.forbidden_flags := forbidden_flags;
    claim.wanted := max_jobs;
    claim.claimed := 0;
    claim.rounds := 0;
    claim.continues := true;
    claim.promotes := true;
    claim.seen := pg_snapshot_xmin(pg_current_snapshot()); -- from before it reads the queues
    if current_setting('pyworker.walk_claim', true) <> '' then
        claim.walk := _walk_of('claim', _claim_owner(claim));
    end if;
end;
$$;

-- Begins a walk along the ready jobs: at the head, or at the places that the session remembers.
create or replace function _begin_walk(inout claim _claim_state)
    language plpgsql set search_path from current
as $$
declare
    v_late record;
begin
    claim.promotes := false;
    claim.began := clock_timestamp();
    claim.read := _entries_read('live_jobs_ready');
    claim.places := (claim.walk).places;
    if claim.places is null then
        claim.spans := array[row(-32768, '-infinity', 0, 32767, 'infinity', 9223372036854775807)::_span];
    else
        v_late := _spans_with_late(claim.walk);
        claim.walk.late_ids := v_late.late_ids;
        claim.walk.seen := v_late.seen;
        claim.spans := v_late.spans;
    end if;
end;
$$;

-- Settles what a round has claimed, and decides whether the claim continues, and where.
create or replace function _after_claim(inout claim _claim_state)
    language plpgsql set search_path from current
as $$
declare
    v_got constant integer := coalesce(cardinality(claim.admitted), 0);
    v_before constant bigint := coalesce(claim.oldest_request, 0);
begin
    if v_got > 0 then
        perform _tidy_claims_at_times(claim.worker_id, claim.run);
    end if;
    if claim.full_queues <> '{}' then
        begin
            perform _park_candidates(claim.full_queues);
        exception when lock_not_available or deadlock_detected then
            insert into promotion_requests (lane)
            select 'queue:' || f.name from unnest(claim.full_queues) f(name);
        end;
    end if;
    -- A crash of the server may lose a claim that was not flushed to disk while its jobs are
    -- running; the worker learns of it when it reconnects (reconcile). But two jobs of a
    -- sequence or of a serial queue must not run at once, so such a claim waits for the disk.
    if claim.in_turn then
        perform _commit_durably();
    end if;
    claim.claimed := claim.claimed + v_got;
    claim.wanted := claim.wanted - v_got;
    if claim.wanted = 0 then
        claim.continues := false;
    elsif v_got < cardinality(claim.ids) then
        -- Some jobs were refused because their queue is full: continue after them.
        claim.places := _places_after(claim.places, claim.priorities, claim.ready_ats, claim.ids, null);
        claim.spans := _spans_left(claim.spans, claim.priorities, claim.ready_ats, claim.ids);
    else
        -- One promotion handles only some of the requests: promote again while the oldest one
        -- changes, up to 10 times, before this worker waits.
        claim.promotes := true;
        claim.rounds := claim.rounds + 1;
        claim.oldest_request := _oldest_request();
        if claim.rounds > 10 or (claim.oldest_request <> v_before) is not true then
            claim.continues := _start_listening(claim.claimed);
        end if;
    end if;
end;
$$;

-- Ends the call: lets a worker that got all that it wanted stop listening, and remembers the place
-- that a long walk has reached.
create or replace function _close_claim(claim _claim_state) returns void
    language plpgsql set search_path from current
as $$
declare
    v_walk _walk := claim.walk;
    v_from_head constant boolean := v_walk.owner is null;
begin
    if claim.wanted = 0 and _worker_is_listening() and not _worker_is_polling() then
        perform _stop_listening();
    end if;
    if v_from_head and _entries_read('live_jobs_ready') - claim.read <= 1000 + 2 * claim.claimed then
        return;
    elsif cardinality(v_walk.late_ids) > 1000 then
        perform set_config('pyworker.walk_claim', '', false); -- a walk from the head is simpler
        return;
    end if;
    v_walk.places := _places_after(
        claim.places, claim.priorities, claim.ready_ats, claim.ids,
        case when claim.wanted > 0 then claim.began end);
    if v_from_head then
        v_walk.owner := _claim_owner(claim);
        v_walk.late_ids := '{}';
        v_walk.seen := coalesce(
            (select a.id from late_arrivals a where a.at < claim.began order by a.id desc limit 1), 0);
    end if;
    perform _keep_walk('claim', v_walk, case when v_from_head then claim.began end);
end;
$$;

-- The owner of a remembered walk: this worker with these filters.
create or replace function _claim_owner(claim _claim_state) returns bigint
    language plpgsql stable set search_path from current
as $$
begin
    return hashtextextended(
        row('live_jobs'::regclass::oid, claim.worker_id, claim.task_identifiers, claim.queue_names,
            claim.forbidden_flags)::text, 0);
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

-- Tidies the claims of this worker, unless this session did so a moment ago.
create or replace function _tidy_claims_at_times(worker_id bigint, run bigint) returns void
    language plpgsql set search_path from current
as $$
declare
    -- The worker, the run of its last claim at that time, and the run until which that is recent.
    v_tidied constant bigint[] := nullif(current_setting('pyworker.claims_tidied', true), '')::bigint[];
begin
    if v_tidied[1] = worker_id and run between v_tidied[2] and v_tidied[3] then
        return;
    end if;
    perform _tidy_claims(worker_id, case when v_tidied[1] = worker_id then v_tidied[2] end, run);
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
