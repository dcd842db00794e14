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
    v_index constant regclass := 'live_jobs_ready';
    v_began timestamptz;
    v_read bigint;
    v_walk _walk;
    v_start _span[] := array[row(-32768, '-infinity', 0, 32767, 'infinity', 9223372036854775807)::_span];
    v_spans _span[];
    v_found record;
    v_places _span[];
    v_closed text[]; -- queues from which this claim takes no more jobs
    v_full text[];
    v_admitted tid[];
    v_in_turn boolean;
    v_promote boolean := true;
    v_rounds integer := 0;
    v_oldest bigint; -- the oldest request that is left
    v_before bigint;
    v_wanted integer := max_jobs;
    v_got integer;
    v_run bigint;
    -- At any other isolation level the snapshot may be too old.
    v_current constant boolean := current_setting('transaction_isolation') = 'read committed';
    v_seen constant xid8 := pg_snapshot_xmin(pg_current_snapshot()); -- from before it reads the queues
    v_tidied bigint[] := nullif(current_setting('pyworker.claims_tidied', true), '')::bigint[];
begin
    if max_jobs is null or max_jobs < 1 then
        raise exception 'claim_jobs: max_jobs must be at least 1, got %', coalesce(max_jobs::text, 'NULL')
            using errcode = 'PW001';
    end if;
    if not exists (select from workers w where w.id = claim_jobs.worker_id and w.dead_at is null) then
        raise exception 'claim_jobs: worker % is unknown or was declared dead',
            coalesce(worker_id::text, 'NULL')
            using errcode = 'PW004',
                  hint = 'Call register_worker again; jobs of the old registration are handed on.';
    end if;
    if current_setting('pyworker.walk_claim', true) <> '' then
        v_walk := _walk_of('claim', _claim_owner(worker_id, task_identifiers, queue_names, forbidden_flags));
    end if;
    loop
        begin
            if v_promote then
                perform promote_jobs();
                v_promote := false;
                v_began := clock_timestamp();
                v_read := _entries_read(v_index);
                v_places := v_walk.places;
                if v_places is not null then
                    select w.* into v_found from _spans_with_late(v_walk) w;
                    v_walk.late_ids := v_found.late_ids;
                    v_walk.seen := v_found.seen;
                    v_start := v_found.spans;
                end if;
                v_spans := v_start;
            end if;
            select array_agg(r.ctid) as rows, array_agg(r.priority) as priorities,
                   array_agg(r.ready_at) as ready_ats, array_agg(r.id) as ids,
                   array_agg(r.asks_queue) as queues, bool_or(r.asks_queue is not null) as queued,
                   bool_or(r.sequence_key is not null or r.has_slot) as in_turn
            into v_found
            from (
                -- A job with a slot need not ask its queue, unless a change of a queue's settings
                -- is still to be handled.
                select r.*,
                       case when r.has_slot is null or not v_current
                                 or (select true from promotion_requests w where w.changed limit 1)
                            then r.queue_name end as asks_queue
                from unnest(v_spans) s
                cross join lateral (
                    select j.ctid, j.priority, j.ready_at, j.id, j.queue_name, j.sequence_key, j.has_slot
                    from live_jobs j
                    where j.ready_at is not null and j.state = 'available'
                      and (j.priority, j.ready_at, j.id) > (s.priority, s.ready_at, s.id)
                      and (j.priority, j.ready_at, j.id) <= (s.to_priority, s.to_ready_at, s.to_id)
                      and (claim_jobs.task_identifiers is null
                          or j.task_identifier = any (claim_jobs.task_identifiers))
                      and (claim_jobs.queue_names is null
                          or coalesce(j.queue_name, 'default') = any (claim_jobs.queue_names))
                      and (claim_jobs.forbidden_flags is null or j.flags is null
                          or not j.flags ?| claim_jobs.forbidden_flags)
                      and (v_closed is null or j.queue_name is null or j.queue_name <> all (v_closed))
                    order by j.priority, j.ready_at, j.id
                    limit v_wanted for update skip locked) r
                limit v_wanted) r;
            v_got := 0;
            v_in_turn := v_found.in_turn;
            v_admitted := v_found.rows;
            v_full := null;
            if v_found.queued then
                select a.closed, a.admitted, a.full_queues, a.in_turn or v_found.in_turn
                into v_closed, v_admitted, v_full, v_in_turn
                from _admit(v_found.rows, v_found.queues, v_closed) a;
            end if;
            if v_admitted is not null then
                v_run := _new_run();
                return query
                    with noted as (
                        insert into claims values (claim_jobs.worker_id, v_run, v_found.ids, v_seen))
                    update live_jobs j
                    set state = 'running', has_slot = null, worker_id = claim_jobs.worker_id,
                        run = _next_run(j.run, v_run),
                        claimed_at = v_now,
                        attempts = least(j.attempts + 1, 32767) -- else a job at 32767 fails all claims
                    from unnest(v_admitted) r(ctid) where j.ctid = r.ctid
                    returning j.id, j.run, j.task_identifier, j.payload, j.attempts, j.max_attempts,
                              j.priority, j.run_at, j.queue_name, j.job_key, j.flags, j.meta, j.delivery,
                              j.sequence_key, j.created_at, j.revision, coalesce(j.crashes, 0::smallint);
                get diagnostics v_got = row_count;
            end if;
        -- PostgreSQL does wait, despite SKIP LOCKED, for a row that has been updated and whose new
        -- version is locked at that moment: as long as the producer's transaction is open, or in a
        -- deadlock with it, since claims do not lock in the order of ids. After 200 ms
        -- (lock_timeout) the claim starts again.
        exception when lock_not_available or deadlock_detected then
            v_promote := true;
            v_closed := null;
            continue;
        end;
        -- Not in the block above: an error here would undo the claim, but not its `return query`.
        if v_got > 0 and (v_tidied[1] = claim_jobs.worker_id
            and v_run between v_tidied[2] and v_tidied[3]) is not true then
            perform _tidy_claims(
                claim_jobs.worker_id, case when v_tidied[1] = claim_jobs.worker_id then v_tidied[2] end,
                v_run);
        end if;
        if v_full <> '{}' then
            begin
                perform _park_candidates(v_full);
            exception when lock_not_available or deadlock_detected then
                insert into promotion_requests (lane) select 'queue:' || f.name from unnest(v_full) f(name);
            end;
        end if;
        -- A crash of the server may lose a claim that was not flushed to disk while its jobs are
        -- running; the worker learns of it when it reconnects (reconcile). But two jobs of a
        -- sequence or of a serial queue must not run at once, so such a claim waits for the disk.
        if v_in_turn then
            perform _commit_durably();
        end if;
        v_wanted := v_wanted - v_got;
        if v_wanted > 0 and v_got < cardinality(v_found.rows) then
            -- Some jobs were refused because their queue is full: continue after them.
            v_places := _places_after(v_places, v_found.priorities, v_found.ready_ats, v_found.ids, null);
            v_spans := _spans_left(v_spans, v_found.priorities, v_found.ready_ats, v_found.ids);
            continue;
        end if;
        exit when v_wanted = 0;
        -- One promotion handles only some of the requests: promote again while the oldest one
        -- changes, up to 10 times, before this worker waits.
        v_promote := true;
        v_rounds := v_rounds + 1;
        v_before := v_oldest;
        v_oldest := _oldest_request();
        continue when v_rounds <= 10 and v_oldest <> coalesce(v_before, 0);
        exit when not _start_listening(max_jobs - v_wanted);
    end loop;
    if v_wanted = 0 and _worker_is_listening() and not _worker_is_polling() then
        perform _stop_listening();
    end if;
    if v_walk.owner is not null or _entries_read(v_index) - v_read > 1000 + 2 * (max_jobs - v_wanted) then
        perform _keep_claim(
            _claim_owner(worker_id, task_identifiers, queue_names, forbidden_flags), v_walk, v_began,
            _places_after(
                v_places, v_found.priorities, v_found.ready_ats, v_found.ids,
                case when v_wanted > 0 then v_began end));
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

-- The owner of a remembered walk: this worker with these filters.
create or replace function _claim_owner(
    worker_id bigint, task_identifiers text[], queue_names text[], forbidden_flags text[])
    returns bigint
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

-- Remembers the place that the claim has reached. A walk from the head has seen every job that
-- arrived late before the walk began.
create or replace function _keep_claim(owner bigint, walk _walk, began timestamptz, places _span[])
    returns void
    language plpgsql set search_path from current
as $$
begin
    if cardinality(walk.late_ids) > 1000 then
        perform set_config('pyworker.walk_claim', '', false); -- a walk from the head is simpler
    elsif walk.owner is null then
        perform _keep_walk('claim', row(
            owner, null, places, '{}',
            coalesce((select a.id from late_arrivals a where a.at < began order by a.id desc limit 1), 0)
            )::_walk, began);
    else
        walk.places := places;
        perform _keep_walk('claim', walk, null);
    end if;
end;
$$;
