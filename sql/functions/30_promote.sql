-- 30_promote: scheduled and retryable jobs fall due; pending ones get their turn.
--
-- Whatever may let a pending job start (an add, an end, a changed limit) writes a wake-up in its own transaction.
-- A promoter takes the lane (an advisory lock of the transaction), deletes the lane's wake-ups that it can see, and only then,
-- with a fresh snapshot, counts what is taken and fills the rest. So each change is seen by a promotion that begins after its
-- commit; a promoter that finds the lane taken leaves the wake-up where it is. Nobody ever waits.

-- The lane's lock; false if somebody else is at it, or if this transaction's snapshot is too old to judge.
create or replace function _try_lane(lane text) returns boolean
    language plpgsql set search_path from current
as $$
begin
    return current_setting('transaction_isolation') = 'read committed'
       and pg_try_advisory_xact_lock(hashtextextended(current_schema() || '/' || lane, 0));
end;
$$;

-- What set_queue and pause_queue said of this name: of the name itself, else of the longest family ('customer:*') that it
-- belongs to, else a queue is serial. A name that was only paused goes by its family still.
create or replace function _queue_of(queue_name text) returns queues
    language plpgsql stable set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_own queues;
    v_queue queues;
begin
    select q.* into v_own from queues q where q.queue_name = _queue_of.queue_name;
    if v_own.inherits is false then
        return v_own;
    end if;
    select q.* into v_queue from queues q
    where right(q.queue_name, 1) = '*' and starts_with(_queue_of.queue_name, left(q.queue_name, -1))
    order by length(q.queue_name) desc limit 1;
    if not found then
        v_queue.concurrency := 1;
    end if;
    v_queue.queue_name := _queue_of.queue_name;
    v_queue.paused := coalesce(v_own.paused, false);
    v_queue.updated_at := greatest(v_queue.updated_at, v_own.updated_at);
    return v_queue;
end;
$$;

-- Fills the free slots of a queue whose lane we hold: best priority first, then run_at, then id. Where more were let go than may be (it
-- was paused meanwhile, or its limit lowered), those that nobody has claimed are called back, the last first.
create or replace function _fill_queue(queue_name text) returns integer
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set enable_incremental_sort = off set jit = off
    set lock_timeout = '200ms' -- see claim_jobs
as $$
declare
    -- Without a limit a queue still keeps its waiting jobs out of the claim index: so many of them may be there at once.
    v_window constant integer := 1000;
    v_queue queues := _queue_of(queue_name);
    v_endless boolean := v_queue.concurrency is null and not v_queue.paused;
    v_slots bigint := case when v_queue.paused then 0 else coalesce(v_queue.concurrency, v_window) end;
    v_moved integer := 0;
    v_again boolean;
begin
    -- In an order that only one index has, even where none is needed: else the statistics may speak for another one.
    v_slots := v_slots - (select count(*) from (
        select from live_jobs j
        where j.queue_name = _fill_queue.queue_name and j.ready_at is not null
          and (j.state = 'available' or not (v_endless or v_queue.paused))
        order by j.queue_name, j.priority, j.run_at, j.id limit v_slots + v_window) taken);
    if v_slots < 0 and not v_endless then
        update live_jobs j set state = 'pending', ready_at = null, parked = 'queue', updated_at = clock()
        where j.ctid = any (array(
            select p.ctid from live_jobs p
            where p.queue_name = _fill_queue.queue_name and p.ready_at is not null and p.state = 'available'
            order by p.queue_name desc, p.priority desc, p.run_at desc, p.id desc limit -v_slots for update skip locked));
        get diagnostics v_moved = row_count;
        -- There may be more; and one that somebody has in hand is there again if he rolls back.
        v_again := (v_moved < -v_slots or v_moved >= v_window) and ( -- `exists` would drop the order
            select true from live_jobs p where p.queue_name = _fill_queue.queue_name and p.ready_at is not null and p.state = 'available'
            order by p.queue_name, p.priority, p.run_at, p.id limit 1);
        v_moved := 0;
    else
        if v_slots > 0 then
            -- A parked row that an open transaction has in hand is passed over: nobody waits for it here.
            update live_jobs j set state = 'available', ready_at = j.run_at, parked = null, updated_at = clock()
            where j.ctid = any (array(
                select p.ctid from live_jobs p where p.queue_name = _fill_queue.queue_name and p.parked = 'queue'
                order by p.queue_name, p.priority, p.run_at, p.id limit least(v_slots, v_window) for update skip locked));
            get diagnostics v_moved = row_count;
        end if;
        -- Without a limit it is claims, not ends, that make room for more: the next one looks again.
        v_again := (v_endless or v_moved < v_slots) and (
            select true from live_jobs p where p.queue_name = _fill_queue.queue_name and p.parked = 'queue'
            order by p.queue_name, p.priority, p.run_at, p.id limit 1);
    end if;
    if v_again then
        insert into wakeups values ('queue:' || _fill_queue.queue_name);
    end if;
    return v_moved;
end;
$$;

-- Has all queues of a family looked at: those where something waits, and those where something may have to be called back.
create or replace function _fill_family(prefix text) returns void
    language plpgsql set search_path from current set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
as $$
begin
    -- From name to name, not from job to job.
    insert into wakeups
    with recursive name as (
        select least(
            (select j.queue_name from live_jobs j where j.parked = 'queue' and j.queue_name >= prefix order by j.queue_name limit 1),
            (select j.queue_name from live_jobs j where j.ready_at is not null and j.queue_name >= prefix
             order by j.queue_name limit 1)) as queue_name
        union all
        select least(
            (select j.queue_name from live_jobs j where j.parked = 'queue' and j.queue_name > n.queue_name
             order by j.queue_name limit 1),
            (select j.queue_name from live_jobs j where j.ready_at is not null and j.queue_name > n.queue_name
             order by j.queue_name limit 1))
        from name n where starts_with(n.queue_name, prefix))
    select 'queue:' || n.queue_name from name n where starts_with(n.queue_name, prefix);
end;
$$;

-- Called by whatever ends or moves a job that held a slot of a named queue; null is no queue. Where there is no limit an end makes no room
-- (and takes no lane), but by the time of its commit there may be one.
create or replace function _queue_slot_freed(queue_name text) returns void
    language plpgsql set search_path from current
as $$
begin
    if queue_name is null then
        return;
    elsif (_queue_of(queue_name)).concurrency is null then
        insert into wakeups values ('queue:' || queue_name);
    elsif not _try_lane('queue:' || queue_name) then
        insert into wakeups values ('queue:' || queue_name);
        perform _wake_workers();
    elsif _fill_queue(queue_name) > 0 then
        perform _wake_workers();
    end if;
end;
$$;

-- Whose turn is it? Makes the first waiting job of each sequence its head. Only for who may say that there is none: a session that has
-- just ended the head (it had that row in hand), or one that holds the sequence's lane and has seen no head. The first one is the
-- lowest id, after the one that retry_job has put first. It is never overtaken: if somebody has it in hand, a wake-up says to come again.
create or replace function _advance_sequences(keys text[]) returns integer
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set enable_hashjoin = off set enable_mergejoin = off
    set jit = off set plan_cache_mode = force_generic_plan set lock_timeout = '200ms' -- see claim_jobs
as $$
declare
    v_now timestamptz := clock();
    v_available integer;
    v_moved integer;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        -- A snapshot that may be too old to judge.
        insert into wakeups select 'sequence:' || k.key from unnest(keys) k(key);
        perform _wake_workers();
        return 0;
    end if;
    with first as materialized (
        select k.key, f.tid
        from unnest(keys) k(key)
        cross join lateral (
            select j.ctid as tid, j.parked, j.id from live_jobs j where j.sequence_key = k.key and j.parked <> 'queue'
            order by j.sequence_key, j.parked, j.id limit 1) f
        where f.parked = 'next' or not exists (select from sequence_halts h where h.sequence_key = k.key and h.job_id < f.id)),
    free as materialized (
        select j.ctid as tid from live_jobs j where j.ctid = any (array(select f.tid from first f)) for update skip locked),
    moved as (
        update live_jobs j
        set sequence_head = true, state = _state_at(j.run_at, v_now, j.queue_name, false), updated_at = v_now,
            ready_at = _ready_at(_state_at(j.run_at, v_now, j.queue_name, false), j.run_at),
            due_at = _due_at(_state_at(j.run_at, v_now, j.queue_name, false), j.run_at),
            parked = _parked(_state_at(j.run_at, v_now, j.queue_name, false), false)
        from free f where j.ctid = f.tid
        returning j.sequence_key, j.state, j.queue_name),
    woken as (
        insert into wakeups (lane)
        (select 'sequence:' || f.key from first f except select 'sequence:' || m.sequence_key from moved m)
        union all
        select distinct 'queue:' || m.queue_name from moved m where m.state = 'pending')
    select count(*) filter (where m.state = 'available'), count(*) into v_available, v_moved from moved m;
    -- Not for what somebody has in hand: workers would call each other until he lets go.
    if v_moved > 0 then
        perform _wake_workers();
    end if;
    return v_available;
end;
$$;

-- Sequences with wake-ups. One without a head is idle: its first job gets its turn. One with a head needs nothing, as whoever ends
-- that job looks for the next, and sees what this session sees; unless he is at it already, and has looked before. Whether he is, the
-- head's row tells: nobody has it in hand if its xmax is 0, or if it can be locked. The lock is given back at once: whoever ends the
-- job must not wait for the end of a transaction that claims.
create or replace function _settle_sequences(keys text[]) returns integer
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set enable_hashjoin = off set enable_mergejoin = off
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
            v_free := array(
                select j.sequence_key from live_jobs j where j.ctid = any (v_heads) and j.sequence_head for share skip locked);
            raise sqlstate 'PW000';
        exception when sqlstate 'PW000' then
            null;
        end;
        insert into wakeups select 'sequence:' || k.key from unnest(v_touched) k(key) where k.key <> all (v_free);
        if v_free <> '{}' then
            perform _wake_workers(); -- a claim may have passed over such a head in that moment
        end if;
    end if;
    return case when v_idle is null then 0 else _advance_sequences(v_idle) end;
end;
$$;

create or replace function promote_jobs() returns integer
    language plpgsql security definer set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
as $$
declare
    v_now timestamptz := clock();
    v_lane text;
    v_lanes text[];
    v_keys text[];
    v_last bigint;
    v_promoted integer := 0;
    v_due tid[];
    v_job live_jobs;
begin
    if exists (select from live_jobs j where j.due_at <= v_now) then
        v_due := array(
            select d.ctid from live_jobs d where d.due_at <= v_now order by d.due_at, d.id limit 1000 for update skip locked);
        with due as (
            update live_jobs j
            set state = _state_at(j.run_at, v_now, j.queue_name, false), updated_at = v_now, due_at = null,
                ready_at = _ready_at(_state_at(j.run_at, v_now, j.queue_name, false), j.run_at),
                parked = _parked(_state_at(j.run_at, v_now, j.queue_name, false), false)
            where j.ctid = any (v_due) and (j.unique_recheck is null or j.state = 'scheduled')
            returning j.state, j.queue_name),
        woken as (
            insert into wakeups select distinct 'queue:' || d.queue_name from due d where d.state = 'pending')
        select count(*) filter (where d.state = 'available') into v_promoted from due d;
        -- River's rule for a retry that did not hold its unique key while it waited: of those that want it now one survives. One at a
        -- time, with the key's row held, so that each sees what became of the one before; a key in use is left for the next call.
        for v_job in
            select d.* from live_jobs d
            cross join lateral (select from unique_keys k where k.unique_key = d.unique_key for update skip locked) held
            where d.ctid = any (v_due) and d.state = 'retryable' and d.unique_recheck is not null
            order by d.due_at, d.id
        loop
            if not _gave_way(v_job) then
                perform _put_back(v_job, v_job.run_at, v_job.attempts, 'retryable');
                v_promoted := v_promoted + (select count(*) from live_jobs j where j.id = v_job.id and j.state = 'available');
            end if;
        end loop;
    end if;
    if exists (select from wakeups) then
        -- The oldest first, so that busy lanes keep none waiting for ever.
        v_lanes := array(select w.lane from wakeups w order by w.id limit 100);
        if cardinality(v_lanes) = 100 then
            -- They may all belong to a lane that an open transaction holds: as many other lanes from somewhere on, and round again.
            v_lanes := v_lanes || array(
                with recursive lanes as (
                    (select w.lane, w.lane as first, 1 as n from wakeups w
                     where w.id >= (select min(a.id) + floor(random() * (max(a.id) - min(a.id) + 1))::bigint from wakeups a)
                     order by w.id limit 1)
                    union all
                    select r.lane, l.first, l.n + 1
                    from lanes l
                    cross join lateral (select coalesce(
                        (select w.lane from wakeups w where w.lane > l.lane order by w.lane limit 1),
                        (select w.lane from wakeups w order by w.lane limit 1)) as lane) r
                    where l.n < 100 and r.lane <> l.first)
                select l.lane from lanes l);
        end if;
        v_lanes := array(
            select l.lane from (select u.lane from unnest(v_lanes) with ordinality u(lane, n) group by u.lane order by min(u.n) offset 0) l
            where _try_lane(l.lane));
        delete from wakeups w where w.lane = any (v_lanes);
        v_keys := array(select substr(l.lane, length('sequence:') + 1) from unnest(v_lanes) l(lane) where starts_with(l.lane, 'sequence:'));
        if v_keys <> '{}' then
            v_last := pg_sequence_last_value('wakeups_id_seq'::regclass);
            v_promoted := v_promoted + _settle_sequences(v_keys);
            -- The queues in which new heads now wait.
            v_keys := array(
                select q.lane from (select distinct w.lane from wakeups w where w.id > v_last and starts_with(w.lane, 'queue:') offset 0) q
                where q.lane <> all (v_lanes) and _try_lane(q.lane));
            delete from wakeups w where w.lane = any (v_keys);
            v_lanes := v_lanes || v_keys;
        end if;
        for v_lane in select l.lane from unnest(v_lanes) l(lane) where starts_with(l.lane, 'queue:') loop
            v_promoted := v_promoted + _fill_queue(substr(v_lane, length('queue:') + 1));
        end loop;
        for v_lane in select l.lane from unnest(v_lanes) l(lane) where starts_with(l.lane, 'family:') loop
            perform _fill_family(substr(v_lane, length('family:') + 1));
            v_promoted := v_promoted + promote_jobs();
        end loop;
    end if;
    if v_promoted > 0 then
        perform _wake_workers();
    end if;
    return v_promoted;
end;
$$;
comment on function promote_jobs() is
    'Moves jobs on that wait no longer: scheduled and retryable ones whose time has come, pending ones whose queue has a free slot. '
    'Returns how many became available. claim_jobs and maintain do this themselves; calling it more often does no harm.';
