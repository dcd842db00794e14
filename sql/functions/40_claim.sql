-- 40_claim: claim_jobs moves jobs from available to running, for one worker.
--
-- A claim is one index scan over the ready jobs, in the total order priority, run_at, id. SKIP
-- LOCKED makes sure that claims neither wait for each other nor take the same job. The plan is
-- pinned: a queue grows from empty to a million rows and shrinks again faster than the statistics
-- follow, and any other plan than this scan is slow at one of the two ends.
--
-- If the scan has to pass many dead index entries, the session's next claims continue from the
-- place that it reached: see 02_walks. Which of the locked jobs of a limited queue may start: see
-- queues/slots.

-- A claim is a turn (runners/turn) without reports.
create or replace function claim_jobs(
    worker_id bigint, max_jobs integer default 1, task_identifiers text[] default null,
    queue_names text[] default null, forbidden_flags text[] default null)
    returns table (
        id bigint, run bigint, task_identifier text, payload json, attempts smallint, max_attempts smallint,
        priority smallint, run_at timestamptz, queue_name text, key text, flags jsonb, meta jsonb,
        delivery text, sequence_key text, created_at timestamptz, revision integer, crashes smallint)
    language plpgsql security definer set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
    set jit = off set plan_cache_mode = force_generic_plan
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
    return query
    select j.id, j.run, j.task_identifier, j.payload, j.attempts, j.max_attempts, j.priority, j.run_at,
           j.queue_name, j.job_key, j.flags, j.meta, j.delivery, j.sequence_key, j.created_at, j.revision,
           coalesce(j.crashes, 0::smallint)
    from unnest(v_jobs) i(id) join live_jobs j on j.id between i.id and i.id;
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

-- One round: hands on what this transaction has freed, promotes, and finds the next jobs. All that is
-- in the subtransaction in which `work` then claims the jobs: PostgreSQL writes a MultiXact for a row
-- that is changed in two, which costs more than the change.
create or replace function _next_round(
    inout claim _claim, worker_id bigint, task_identifiers text[], queue_names text[],
    forbidden_flags text[])
    language plpgsql set search_path from current
    set enable_bitmapscan = off
    set enable_sort = off set enable_incremental_sort = off set lock_timeout = '200ms'
as $$
declare
    v_next integer := _hand_on(claim.freed);
begin
    if claim.promotes then
        v_next := promote_jobs();
    end if;
    if claim.began is null or claim.promotes then
        claim := _first_walk(claim, worker_id, task_identifiers, queue_names, forbidden_flags);
    else
        claim.places := _places_after(claim.places, claim.priorities, claim.ready_ats, claim.ids, null);
        claim.spans := _spans_left(claim.spans, claim.priorities, claim.ready_ats, claim.ids);
    end if;
    claim := _find_jobs(claim, worker_id, task_identifiers, queue_names, forbidden_flags);
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

-- Finds the next jobs in claim order that the worker takes, locks them, and asks their queues which
-- of them may start. If there is something to promote, and this round has not promoted, it finds none.
-- Errors: PW004.
--
-- PostgreSQL does wait, despite SKIP LOCKED, for a row that has been updated and whose new version
-- is locked at that moment: as long as the producer's transaction is open, or in a deadlock with it,
-- since claims do not lock in the order of ids. After 200 ms (lock_timeout) the claim starts again.
create or replace function _find_jobs(
    inout claim _claim, worker_id bigint, task_identifiers text[], queue_names text[],
    forbidden_flags text[])
    language plpgsql set search_path from current
as $$
declare
    -- At any other isolation level the snapshot may be too old.
    v_current constant boolean := current_setting('transaction_isolation') = 'read committed';
    v_now constant timestamptz := clock();
    v_walks constant boolean := _walks_are_kept();
    v_registered boolean;
    v_queues text[]; -- for each job: the queue that it asks for a slot, or null
begin
    select (select true from workers w where w.id = _find_jobs.worker_id and _is_registered(w)),
           l.due_at, l.must_promote, f.rows, f.priorities, f.ready_ats, f.ids, f.queues, f.in_turn,
           v_walks or l.asked or case when f.found < claim.wanted then coalesce((
               select true from live_jobs o where o.ready_at is not null and o.state = 'available'
               order by o.priority, o.ready_at, o.id offset f.found limit 1), false) end
    into v_registered, claim.due_at, claim.must_promote, claim.admitted, claim.priorities,
         claim.ready_ats, claim.ids, v_queues, claim.in_turn, claim.rest
    from _look_first(v_now, v_walks, claim.run is null and not claim.promotes) l
    cross join lateral (
        select array_agg(r.ctid) as rows, array_agg(r.priority) as priorities,
               array_agg(r.ready_at) as ready_ats, array_agg(r.id) as ids, array_agg(r.asks_queue) as queues,
               bool_or(r.sequence_key is not null or r.has_slot) as in_turn, count(*) as found
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
                where j.ready_at is not null and j.state = 'available' and not l.must_promote
                  and (j.priority, j.ready_at, j.id) > (s.priority, s.ready_at, s.id)
                  and (j.priority, j.ready_at, j.id) <= (s.to_priority, s.to_ready_at, s.to_id)
                  and (task_identifiers is null or j.task_identifier = any (task_identifiers))
                  and (queue_names is null or coalesce(j.queue_name, 'default') = any (queue_names))
                  and (forbidden_flags is null or j.flags is null or not j.flags ?| forbidden_flags)
                  and (claim.closed is null or coalesce(j.queue_name, 'default') <> all (claim.closed))
                  and (j.start_by is null or j.start_by > v_now)
                order by j.priority, j.ready_at, j.id
                limit claim.wanted for update skip locked) r
            limit claim.wanted) r) f;
    if v_registered is null then
        perform _refuse_worker(worker_id);
    end if;
    claim.run := _new_run();
    if array_remove(v_queues, null) <> '{}' then
        claim := _admit(claim, v_queues);
    end if;
end;
$$;

-- What a round looks at first: when the next job is due, whether there are requests, and whether the
-- claim must promote; only its first round asks that. A session that remembers a walk always promotes,
-- without a look, which would begin at the head. PostgreSQL inlines this function.
create or replace function _look_first(now timestamptz, walks boolean, may_promote boolean)
    returns table (due_at timestamptz, asked boolean, must_promote boolean)
    language sql stable
begin atomic
    select l.due_at, l.asked, may_promote and (
               walks or l.asked or coalesce(l.due_at <= now, false)
               -- It was slow: promote_jobs remembers how far it has walked (02_walks).
               or l.ended > l.began + interval '0.5 ms')
    from (
        select clock_timestamp() as began,
               (select j.due_at from live_jobs j where j.due_at is not null and not walks
                order by j.due_at, j.id limit 1) as due_at,
               (select true from promotion_requests w where not walks order by w.id limit 1) is true as asked,
               clock_timestamp() as ended
        offset 0) l;
end;

-- Settles what a round has claimed, and decides whether the claim looks for more, and where. One
-- promotion handles only some of the requests: so while the oldest one changes, up to 10 times, it
-- promotes again. Then the worker listens, and looks once more if adds did not notify until now.
create or replace function _after_round(inout claim _claim, worker_id bigint, max_jobs integer)
    language plpgsql set search_path from current
as $$
declare
    v_claimed constant integer := coalesce(cardinality(claim.admitted), 0);
    v_before constant bigint := coalesce(claim.oldest_request, 0);
    v_durable text;
    v_more boolean; -- candidates for this claim
begin
    claim.freed := null;
    claim.wanted := claim.wanted - v_claimed;
    if v_claimed > 0 and not _claims_are_tidy(worker_id, claim.run) then
        perform _tidy_claims(worker_id, claim.run);
    end if;
    if claim.full_queues <> '{}' or claim.paced is not null then
        begin
            v_more := _go_on(claim, max_jobs);
        exception when lock_not_available or deadlock_detected then
            insert into promotion_requests (lane)
            select distinct 'queue:' || f.name from unnest(claim.full_queues || claim.paced) f(name);
        end;
        claim.full_queues := null;
        claim.paced := null;
        claim.cut := null;
        claim.rest := true; -- some jobs may wait for a time
    end if;
    -- A crash of the server may lose a claim that was not flushed to disk while its jobs are
    -- running; the worker learns of it when it reconnects (reconcile). But two jobs of a
    -- sequence or of a serial queue must not run at once, so such a claim waits for the disk.
    if claim.in_turn then
        v_durable := _commit_durably();
    end if;
    claim.ready := true;
    if claim.wanted = 0 then
        claim.ready := false;
        if _worker_is_listening() then
            perform _stop_listening();
        end if;
    elsif claim.must_promote or v_more then
        claim.promotes := true;
    elsif v_claimed < cardinality(claim.ids) then
        claim.promotes := false; -- some queues are full: the walk goes on after their jobs
    else
        if claim.promotes then
            claim.promotions := claim.promotions + 1;
            claim.oldest_request := _oldest_request();
        end if;
        claim.ready := claim.promotes and claim.promotions <= 10 and claim.oldest_request <> v_before;
        if claim.ready is not true then
            claim.ready := _start_listening(max_jobs - claim.wanted);
        end if;
        claim.promotes := claim.ready;
    end if;
end;
$$;

-- Where the first walk along the ready jobs begins, and the first one after a promotion: at the head,
-- or at the places that the session remembers.
create or replace function _first_walk(
    inout claim _claim, worker_id bigint, task_identifiers text[], queue_names text[],
    forbidden_flags text[])
    language plpgsql set search_path from current
as $$
declare
    v_late record;
begin
    claim.began := clock_timestamp();
    claim.read := _entries_read('live_jobs_ready');
    if current_setting('pyworker.walk_claim', true) <> '' then
        claim.kept := _walk_of(
            'claim', _claim_owner(worker_id, task_identifiers, queue_names, forbidden_flags));
    end if;
    claim.places := (claim.kept).places;
    if claim.places is null then
        claim.spans := array[row(-32768, '-infinity', 0, 32767, 'infinity', 9223372036854775807)::_span];
    else
        v_late := _spans_with_late(claim.kept);
        claim.kept.late_ids := v_late.late_ids;
        claim.kept.seen := v_late.seen;
        claim.spans := v_late.spans;
    end if;
end;
$$;

-- Remembers the place that a long walk has reached.
create or replace function _keep_claim_walk(
    claim _claim, worker_id bigint, task_identifiers text[], queue_names text[], forbidden_flags text[])
    returns void
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off
    set enable_sort = off set enable_incremental_sort = off set jit = off
as $$
declare
    v_kept _walk := claim.kept;
    v_from_head constant boolean := v_kept.owner is null;
begin
    if cardinality(v_kept.late_ids) > 1000 then
        perform set_config('pyworker.walk_claim', '', false); -- a walk from the head is simpler
        return;
    end if;
    v_kept.places := _places_after(
        claim.places, claim.priorities, claim.ready_ats, claim.ids,
        case when claim.wanted > 0 then claim.began end);
    if v_from_head then
        v_kept.owner := _claim_owner(worker_id, task_identifiers, queue_names, forbidden_flags);
        v_kept.late_ids := '{}';
        v_kept.seen := coalesce(
            (select a.id from late_arrivals a where a.at < claim.began order by a.id desc limit 1), 0);
    end if;
    perform _keep_walk('claim', v_kept, case when v_from_head then claim.began end);
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
