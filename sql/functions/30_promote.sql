-- 30_promote: promote_jobs makes jobs available: scheduled and retryable jobs that are due, pending
-- jobs whose turn it is in their sequence, and parked jobs whose queue has a free slot. What asks
-- for the latter two is a request (queues/lanes).

create or replace function promote_jobs() returns integer
    language plpgsql security definer set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off
    set enable_sort = off set enable_incremental_sort = off
    set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_began timestamptz := clock_timestamp();
    v_now timestamptz := clock();
    v_due_from timestamptz := '-infinity'::timestamptz;
    v_from bigint := 0;
    v_promoted integer := 0;
    v_due boolean;
    v_requested boolean;
    v_round record;
begin
    if current_setting('pyworker.walk_due', true) <> '' then
        v_due_from := _walked_to('due');
    end if;
    if current_setting('pyworker.walk_requests', true) <> '' then
        v_from := _walked_requests();
    end if;
    select (select true from live_jobs j
            where j.due_at <= v_now and j.due_at > v_due_from order by j.due_at, j.id limit 1),
           (select true from promotion_requests w where w.id > v_from order by w.id limit 1)
    into v_due, v_requested; -- not `exists`: it would drop the order by, and with it the index
    -- Also if the look-up was slow: _promote_due then remembers how far it has walked (02_walks).
    perform _expire_jobs();
    if v_due or clock_timestamp() > v_began + interval '0.5 ms' then
        v_promoted := _promote_due(v_began);
    end if;
    if v_requested or v_due then -- a job that has just become due may wait for a slot
        for i in 1..10 loop -- the rest is left to the next call: each round locks up to some 200 lanes
            v_round := _promote_requested(v_from);
            v_promoted := v_promoted + v_round.promoted;
            exit when not v_round.again;
        end loop;
    end if;
    if v_from = 0 and clock_timestamp() > v_began + interval '0.5 ms' then
        perform _keep_requests(v_began);
    end if;
    if v_promoted > 0 then
        perform _notify_workers();
    end if;
    return v_promoted;
end;
$$;
comment on function promote_jobs() is
    'Makes jobs available that need not wait any longer: scheduled and retryable jobs that are '
    'due, pending jobs whose turn it is in their sequence, and jobs whose queue has a free slot. '
    'Returns how many became available to claims. claim_jobs and maintain call it themselves; '
    'calling it more often does no harm.';

-- Promotes up to 1,000 due jobs: scheduled and retryable ones, and those that have waited long enough for
-- a signal. Returns how many became available to claims.
create or replace function _promote_due(began timestamptz) returns integer
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off
    set enable_sort = off set enable_incremental_sort = off set jit = off
as $$
declare
    v_now timestamptz := clock();
    v_from timestamptz := _walked_to('due');
    v_read bigint := _entries_read('live_jobs_due');
    v_due tid[];
    v_limited text[];
    v_ready bigint[];
begin
    v_due := array(
        select d.ctid from live_jobs d where d.due_at <= v_now and d.due_at > v_from
        order by d.due_at, d.id limit 1000 for update skip locked);
    if v_from = '-infinity' and _entries_read('live_jobs_due') - v_read > 2000 + 2 * cardinality(v_due)
       -- Only if this call takes every due job: no more are due than one call takes, and no other
       -- session has one locked. Then the next walk may begin at the time of a second ago.
       and not exists (select from live_jobs d where d.due_at <= v_now and d.ctid <> all (v_due)) then
        perform _keep_time('due', v_now, began);
    end if;
    if v_due = '{}' then
        return 0;
    end if;
    v_limited := array(
        select q.queue_name from _queues_of(array(
            select distinct d.queue_name from live_jobs d
            where d.ctid = any (v_due) and d.queue_name is not null)) q
        where q.slots is not null);
    with due as (
        update live_jobs j
        set state = 'available', updated_at = v_now, due_at = null,
            parked = case when j.queue_name = l.name then 'queue' end, -- also if it waited for a rate
            ready_at = case when l.name is null then j.run_at end
        from unnest(v_due) d(tid)
        left join lateral (select i.queue_name from live_jobs i where i.ctid = d.tid) q on true
        left join unnest(v_limited) l(name) on l.name = q.queue_name
        where j.ctid = d.tid and (j.unique_recheck is null or j.state <> 'retryable')
        returning j.id, j.ready_at, j.queue_name),
    woken as (
        insert into promotion_requests (lane)
        select distinct 'queue:' || d.queue_name from due d where d.ready_at is null)
    select array_agg(d.id) filter (where d.ready_at is not null) into v_ready from due d;
    perform _arrive_late(v_ready);
    return coalesce(cardinality(v_ready), 0) + _promote_rechecked(v_due);
end;
$$;

-- River's rule for retries that did not hold their unique key while they waited: one job per key
-- survives. The row of the key is locked, so that each job sees the outcome of the one before. A
-- key that another session has locked is left to the next call.
create or replace function _promote_rechecked(due tid[]) returns integer
    language plpgsql set search_path from current
as $$
declare
    v_job live_jobs;
    v_promoted integer := 0;
begin
    for v_job in
        select d.* from live_jobs d
        cross join lateral (
            select from unique_keys k where k.unique_key = d.unique_key for update skip locked) held
        where d.ctid = any (due) and d.state = 'retryable' and d.unique_recheck is not null
        order by d.due_at, d.id
    loop
        if not _discard_if_key_taken(v_job) then
            perform _requeue(v_job, v_job.run_at, v_job.attempts, 'retryable');
            v_promoted := v_promoted + (
                select count(*) from live_jobs j where j.id = v_job.id and j.ready_at is not null);
        end if;
    end loop;
    return v_promoted;
end;
$$;

-- Handles the oldest requests whose lanes are free. `promoted`: how many jobs became available to claims.
-- `again`: it has handled families, and left requests for their queues.
create or replace function _promote_requested(walked bigint, out promoted integer, out again boolean)
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off
    set enable_sort = off set enable_incremental_sort = off set jit = off
as $$
declare
    v_xmin xid8 := pg_snapshot_xmin(pg_current_snapshot());
    v_lanes text[];
    v_held text[];
    v_taken record;
    v_keys text[];
    v_last bigint;
begin
    promoted := case when _coordination_is_used() then _promote_waiting(walked) else 0 end;
    v_lanes := array( -- those that wait for locked jobs, or for transactions, hold up no others
        (select w.lane from promotion_requests w where w.id > walked and w.after is null
         order by w.id limit 100)
        union all
        (select w.lane from promotion_requests w where w.id > walked and w.after <= '1'
         order by w.after, w.id limit 20)
        union all
        (select w.lane from promotion_requests w where w.id > walked and w.after > '1' and w.after < v_xmin
         order by w.after, w.id limit 100));
    v_held := _try_lanes(v_lanes);
    if cardinality(v_lanes) >= 100 and cardinality(v_held) < 10 then
        v_held := _try_lanes(v_lanes || _other_lanes(walked));
    end if;
    v_taken := _take_requests(v_held, walked);
    if v_taken.changed is not null then
        perform _begin_turns(v_taken.changed);
    end if;
    v_keys := array(
        select substr(l.lane, length('sequence:') + 1) from unnest(v_held) l(lane)
        where starts_with(l.lane, 'sequence:'));
    if v_keys <> '{}' then
        v_last := pg_sequence_last_value('promotion_requests_id_seq'::regclass);
        promoted := promoted + _promote_idle_sequences(
            v_keys, coalesce(v_taken.asked, clock_timestamp()));
        -- The queues in which the new heads wait for a slot.
        v_lanes := _try_lanes(array(
            select w.lane from promotion_requests w
            where w.id > v_last and starts_with(w.lane, 'queue:') and w.lane <> all (v_held)));
        perform _take_requests(v_lanes, walked);
        v_held := v_held || v_lanes;
    end if;
    v_keys := array(
        select substr(l.lane, length('queue:') + 1) from unnest(v_held) l(lane)
        where starts_with(l.lane, 'queue:'));
    if v_keys <> '{}' then
        promoted := promoted + _fill_queues(
            array_agg(q.queue_name), array_agg(q.slots_ahead)) from _queues_of(v_keys) q;
    end if;
    perform _fill_family(substr(l.lane, length('family:') + 1))
    from unnest(v_held) l(lane) where starts_with(l.lane, 'family:');
    again := found;
end;
$$;

-- Handles the requests of sequences whose lanes this session holds. If a sequence has no head, its
-- first waiting job becomes the head; returns how many became available to claims.
--
-- A sequence with a head needs no promotion: the session that ends the head promotes the next job,
-- and sees what this session sees. But that session may have searched for the next job already and
-- still have the head's row locked. Then the request is written again, with the time that it had (`asked`):
-- by that time workers look for it ever less often, down to four times a second (_growing).
--
-- The head's row is not locked if its xmax is 0, or if this session can lock it. The exception
-- block releases that lock at once, since an end must not wait for a claiming transaction.
create or replace function _promote_idle_sequences(keys text[], asked timestamptz) returns integer
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
    set enable_sort = off set enable_incremental_sort = off
    set jit = off
as $$
declare
    v_idle text[];
    v_touched text[];
    v_heads tid[];
    v_free text[];
begin
    select array_agg(k.key) filter (where h.tid is null), array_agg(k.key) filter (where h.touched),
           array_agg(h.tid) filter (where h.touched)
    into v_idle, v_touched, v_heads
    from unnest(keys) k(key)
    left join lateral (
        select j.ctid as tid, j.xmax::text <> '0' as touched from live_jobs j
        where j.sequence_key = k.key and j.sequence_head limit 1) h on true;
    if v_touched is not null then
        begin
            v_free := array( -- coalesce: else statistics could make it a walk along the index of all heads
                select j.sequence_key from live_jobs j
                where j.ctid = any (v_heads) and coalesce(j.sequence_head, false) for share skip locked);
            raise sqlstate 'PW099';
        exception when sqlstate 'PW099' then
            null;
        end;
        insert into promotion_requests (lane, at)
        select 'sequence:' || k.key, asked from unnest(v_touched) k(key) where k.key <> all (v_free);
        if v_free <> '{}' then
            perform _notify_workers(); -- a claim may have skipped such a head while it was locked here
        end if;
    end if;
    return case when v_idle is null then 0 else _promote_next(v_idle, asked) end;
end;
$$;

-- Makes the first waiting job of each sequence its head: the job that retry_job has put first, else
-- the one with the lowest id. No other job overtakes it: if another session has it locked, this
-- function leaves a request. Returns how many jobs became available to claims.
-- Call it only if the sequence certainly has no head: your transaction has just ended the head, whose row
-- it had locked, or it holds the sequence's lane, has found no head, and answers a request that was written
-- at that time (`asked`).
create or replace function _promote_next(keys text[], asked timestamptz) returns integer
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
    set enable_sort = off set enable_incremental_sort = off
    set jit = off set plan_cache_mode = force_generic_plan set lock_timeout = '200ms' -- see claim_jobs
as $$
declare
    v_now timestamptz := clock();
    v_ready bigint[];
    v_moved integer;
    v_locked boolean;
    v_told boolean;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        -- A snapshot that may be too old to show every job and halt: a later promotion decides.
        insert into promotion_requests (lane) select 'sequence:' || k.key from unnest(keys) k(key);
        perform _notify_workers();
        return 0;
    end if;
    with first as materialized (
        select k.key, f.tid
        from unnest(keys) k(key)
        cross join lateral (
            select j.ctid as tid, j.parked, j.id from live_jobs j
            where j.sequence_key = k.key and j.parked <> 'queue'
            order by j.sequence_key, j.parked, j.id limit 1) f
        where f.parked = 'next' or f.parked = 'sequence' and not exists (
            select from sequence_halts h where h.sequence_key = k.key and h.job_id < f.id)),
    free as materialized (
        select j.ctid as tid, j.queue_name, j.run_at
        from live_jobs j where j.ctid = any (array(select f.tid from first f)) for update skip locked),
    moved as (
        update live_jobs j
        set sequence_head = true, state = f.state, parked = f.parked, ready_at = f.ready_at,
            due_at = f.due_at, updated_at = v_now
        from (select l.tid, p.* from free l, _place(l.run_at, v_now, null, _must_wait(l.queue_name)) p) f
        where j.ctid = f.tid
        returning j.id, j.sequence_key, j.ready_at, j.parked, j.queue_name),
    woken as (
        insert into promotion_requests (lane, at)
        select l.lane, coalesce(asked, clock_timestamp())
        from (select 'sequence:' || f.key as lane from first f
              except select 'sequence:' || m.sequence_key from moved m) l
        union all
        select q.lane, clock_timestamp()
        from (select distinct 'queue:' || m.queue_name as lane from moved m where m.parked = 'queue') q)
    select array_agg(m.id) filter (where m.ready_at is not null), count(*),
           count(*) < (select count(*) from first)
    into v_ready, v_moved, v_locked from moved m;
    v_told := _arrive_late(v_ready);
    -- An end brings a worker to a locked job, which it then looks for again soon. A promotion does not:
    -- until the other session ends, workers would notify each other again and again.
    if asked is null and v_locked then
        v_told := _notify_of_locked();
    elsif v_moved > 0 then
        v_told := _notify_workers();
    end if;
    return coalesce(cardinality(v_ready), 0);
end;
$$;
