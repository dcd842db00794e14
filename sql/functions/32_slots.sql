-- 32_slots: which jobs of a limited queue may run.
--
-- A running job takes a slot of its queue. A job that waits for a slot is available and parked
-- ('queue'): it is not in the index that claims walk (live_jobs_ready). Only candidates are in that
-- index:
--
-- * If all waiting jobs of a queue are of one kind (the same task, the same flags), the first ones
--   get the free slots at once (has_slot). A worker that takes one job of a kind takes all of that
--   kind, so the claim need not check the queue.
-- * In any other queue the first jobs of each kind are candidates, as many as there are free slots.
--   So each worker finds the first job that it takes. The claim takes the queue's lane, an advisory
--   lock of its transaction, and counts the running jobs. If the queue is full then, the claim
--   parks the other candidates.
--
-- A session that ends a job takes the lane as well, and makes the next jobs candidates. If jobs of
-- other kinds wait by then, it takes back the slots that no claim has used yet.
--
-- A lane is tried, never waited for. A claim that does not get it leaves the job where it is;
-- claims and ends that do not get it leave a request (promotion_requests). So a session that parks
-- a job has seen every running job, and a session that ends a job has seen every parked job.
--
-- A change of a queue's settings writes a request, too, in the same transaction (`changed`). While
-- such a request is left, claims do not trust slots that were given before: they take the lane and
-- count against the new settings.
--
-- A queue that has no limit and is not paused needs none of this: its jobs are never parked, and
-- the end of one promotes nothing.

-- The settings of these queues: from the queue's own row, else from the longest family
-- ('customer:*') that it belongs to. Without either, a queue is serial. A row that only pauses its
-- queue (`inherits`) leaves the limit to the family. `slots`: 0 while paused, null without a limit.
-- PostgreSQL inlines this function.
create or replace function _queues_of(queue_names text[])
    returns table (queue_name text, concurrency integer, paused boolean, slots integer, changed xid8)
    language sql stable
begin atomic
    select n.name,
           case when q.inherits is false then q.concurrency when f.found then f.concurrency else 1 end,
           coalesce(q.paused, false),
           case when q.paused then 0 when q.inherits is false then q.concurrency
                when f.found then f.concurrency else 1 end,
           greatest(q.changed, f.changed)
    from unnest(_queues_of.queue_names) n(name)
    left join queues q on q.queue_name = n.name
    left join lateral (
        select true as found, o.concurrency, o.changed from queues o
        where q.inherits is not false and right(o.queue_name, 1) = '*'
          and starts_with(n.name, left(o.queue_name, -1))
        order by length(o.queue_name) desc limit 1) f on true;
end;

-- How many slots of a queue are taken, counted up to a limit; slots that were given to the rows in
-- `aside` do not count. PostgreSQL inlines this function. Only one index has the order of its
-- `order by`: without it, statistics could make the planner choose another index.
create or replace function _taken_in(queue_name text, up_to integer, aside tid[]) returns table (taken bigint)
    language sql stable
begin atomic
    select count(*) from (
        select from live_jobs j
        where j.queue_name = _taken_in.queue_name and j.ready_at is not null
          and (j.state = 'running' or j.has_slot and j.ctid <> all (_taken_in.aside))
        order by j.queue_name, j.priority, j.run_at, j.id limit _taken_in.up_to) r;
end;

-- The kinds of jobs that are parked in a queue, with one index look-up per kind, not per job.
-- PostgreSQL inlines this function.
create or replace function _kinds_in(queue_name text) returns table (task_identifier text, flags text)
    language sql stable
begin atomic
    with recursive kind as (
        (select p.task_identifier, coalesce(p.flags::text, '') collate "C" as flags from live_jobs p
         where p.queue_name = _kinds_in.queue_name and p.parked = 'queue'
         order by p.queue_name, p.task_identifier, coalesce(p.flags::text, '') collate "C" limit 1)
        union all
        select n.* from kind k cross join lateral (
            select p.task_identifier, coalesce(p.flags::text, '') collate "C" from live_jobs p
            where p.queue_name = _kinds_in.queue_name and p.parked = 'queue'
              and (p.task_identifier, coalesce(p.flags::text, '') collate "C") > (k.task_identifier, k.flags)
            order by p.queue_name, p.task_identifier, coalesce(p.flags::text, '') collate "C" limit 1) n)
    select k.task_identifier, k.flags from kind k;
end;

-- Tries to lock a lane. False if another session has it, or if this transaction's snapshot may be
-- too old (at any isolation level but READ COMMITTED).
create or replace function _try_lane(lane text) returns boolean
    language plpgsql set search_path from current
as $$
begin
    return current_setting('transaction_isolation') = 'read committed'
       and pg_try_advisory_xact_lock(hashtextextended(current_schema() || '/' || lane, 0));
end;
$$;

-- The common case of _fill_queues in one small statement: a serial queue in which no job runs and no
-- job has the slot, whose parked jobs are all of one kind. False if it is not that case.
create or replace function _fill_serial_queue(queue_name text) returns boolean
    language plpgsql set search_path from current
as $$
declare
    v_id bigint;
begin
    update live_jobs j set ready_at = j.run_at, parked = null, has_slot = true
    where j.ctid = any (array(
        select p.ctid from live_jobs p
        where p.ctid = (
            select f.tid
            from (select p.ctid as tid, p.task_identifier as task, coalesce(p.flags::text, '') collate "C" as flags
                  from live_jobs p where p.queue_name = _fill_serial_queue.queue_name and p.parked = 'queue'
                  order by p.queue_name, p.task_identifier, coalesce(p.flags::text, '') collate "C",
                           p.priority, p.run_at, p.id
                  limit 1) f
            cross join (
                select p.task_identifier as task, coalesce(p.flags::text, '') collate "C" as flags
                from live_jobs p where p.queue_name = _fill_serial_queue.queue_name and p.parked = 'queue'
                order by p.queue_name desc, p.task_identifier desc,
                         coalesce(p.flags::text, '') collate "C" desc,
                         p.priority desc, p.run_at desc, p.id desc limit 1) l
            where f.task = l.task and f.flags = l.flags)
          and ( -- not by `not exists`, which would drop the order, and with it the index
              select true from live_jobs i
              where i.queue_name = _fill_serial_queue.queue_name and i.ready_at is not null
              order by i.queue_name, i.priority, i.run_at, i.id limit 1) is null
        for update skip locked))
    returning j.id into v_id;
    if not found then
        return false;
    end if;
    perform _arrive_late(array[v_id]);
    return true;
end;
$$;

-- Fills the free slots of queues whose lanes this session holds; returns how many jobs became
-- candidates. `limits`: the slots of each queue, 0 while it is paused, null without a limit.
create or replace function _fill_queues(queue_names text[], limits integer[]) returns integer
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
    set enable_incremental_sort = off
    set jit = off set plan_cache_mode = force_generic_plan set lock_timeout = '200ms' -- see claim_jobs
as $$
declare
    v_most constant integer := 1000; -- per queue in one call; a request is left for the others
    v_others text[]; -- queues left to _fill_by_kind
    v_ids bigint[];
    v_wanted text[];
begin
    if limits = '{1}' and _fill_serial_queue(queue_names[1]) then
        return 1;
    end if;
    with queue as materialized (
        select q.name,
               q.slots > 0 and t.taken <= q.slots and t.alike
               and (f.id is null or (f.task, f.flags) = (l.task, l.flags)) as alike,
               least(q.slots - t.taken, v_most) as free
        from unnest(queue_names, limits) q(name, slots)
        left join lateral ( -- the first parked job; below it, the kind of the last one
            select p.task_identifier as task, coalesce(p.flags::text, '') collate "C" as flags,
                   p.priority, p.run_at, p.id
            from live_jobs p where p.queue_name = q.name and p.parked = 'queue'
            order by p.queue_name, p.task_identifier, coalesce(p.flags::text, '') collate "C",
                     p.priority, p.run_at, p.id
            limit 1) f on true
        left join lateral (
            select p.task_identifier as task, coalesce(p.flags::text, '') collate "C" as flags
            from live_jobs p where p.queue_name = q.name and p.parked = 'queue'
            order by p.queue_name desc, p.task_identifier desc, coalesce(p.flags::text, '') collate "C" desc,
                     p.priority desc, p.run_at desc, p.id desc limit 1) l on true
        -- `alike`: each job runs, or has a slot, is of the kind of the first parked job and
        -- precedes it.
        cross join lateral (
            select count(*) as taken,
                   coalesce(bool_and(j.state = 'running' or j.has_slot is not null and (f.id is null or (
                       (j.task_identifier, coalesce(j.flags::text, '') collate "C") = (f.task, f.flags)
                       and (j.priority, j.run_at, j.id) < (f.priority, f.run_at, f.id)))), true) as alike
            from (select i.* from live_jobs i
                  where q.slots > 0 and i.queue_name = q.name and i.ready_at is not null
                  order by i.queue_name, i.priority, i.run_at, i.id limit q.slots::bigint + 1) j) t),
    turn as materialized (
        select q.name, f.tid from queue q
        cross join lateral (
            select p.ctid as tid from live_jobs p where p.queue_name = q.name and p.parked = 'queue'
            order by p.queue_name, p.task_identifier, coalesce(p.flags::text, '') collate "C",
                     p.priority, p.run_at, p.id
            limit q.free) f
        where q.alike and q.free > 0),
    moved as (
        update live_jobs j set ready_at = j.run_at, parked = null, has_slot = true
        where j.ctid = any (array(
            select p.ctid from live_jobs p
            where p.ctid = any (array(select t.tid from turn t)) for update skip locked))
        returning j.id)
    select (select array_agg(q.name) from queue q where q.alike is not true),
           (select array_agg(m.id) from moved m),
           (select array_agg(t.name) from turn t)
    into v_others, v_ids, v_wanted;
    if v_ids is not null then
        perform _arrive_late(v_ids);
    end if;
    if cardinality(v_wanted) > coalesce(cardinality(v_ids), 0) or cardinality(v_wanted) >= v_most then
        -- Some were locked, or there may be more.
        insert into promotion_requests (lane)
        select distinct 'queue:' || w.name from unnest(v_wanted) w(name);
    end if;
    return coalesce(cardinality(v_ids), 0)
        + case when v_others is null then 0 else _fill_by_kind(v_others) end;
end;
$$;

-- The same for queues with jobs of several kinds, and for queues whose settings have changed.
create or replace function _fill_by_kind(queue_names text[]) returns integer
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
    set enable_incremental_sort = off
    set jit = off set lock_timeout = '200ms' -- see claim_jobs
as $$
declare
    v_most constant integer := 1000; -- per kind in one call
    v_ids bigint[];
    v_ranked bigint;
    v_wanted text[];
    v_paused text[];
    v_left text[]; -- queues that need another request
begin
    -- Takes back the slots that no claim has used, but not from jobs that another session has
    -- locked.
    with given as materialized (
        select g.tid, g.id, q.queue_name from _queues_of(queue_names) q
        cross join lateral (
            select w.tid, w.id from (
                select c.ctid as tid, c.id, c.has_slot from live_jobs c
                where c.queue_name = q.queue_name and c.ready_at is not null and c.state = 'available'
                order by c.queue_name, c.priority, c.run_at, c.id limit case when q.paused then v_most end) w
            where w.has_slot) g
        where q.slots is not null),
    freed as (
        update live_jobs j set has_slot = null
        where j.ctid = any (array(
            select c.ctid from live_jobs c
            where c.ctid = any (array(select g.tid from given g)) for update skip locked))
        returning j.id)
    select array_agg(distinct g.queue_name) into v_left from given g
    where g.id not in (select f.id from freed f);
    with queue as materialized (
        select q.queue_name, q.paused, coalesce(least(q.slots - t.taken, v_most), v_most) as slots
        from _queues_of(_fill_by_kind.queue_names) q
        cross join lateral _taken_in(q.queue_name, coalesce(q.slots, 0), '{}') t),
    turn as materialized ( -- the first jobs of each kind; tid is null for those that already are candidates
        select q.queue_name, f.tid
        from queue q
        cross join lateral _kinds_in(q.queue_name) k
        cross join lateral (
            select u.tid from (
                (select p.ctid as tid, p.priority, p.run_at, p.id from live_jobs p
                 where p.queue_name = q.queue_name and p.parked = 'queue'
                   and p.task_identifier = k.task_identifier
                   and coalesce(p.flags::text, '') collate "C" = k.flags
                 order by p.queue_name, p.task_identifier, coalesce(p.flags::text, '') collate "C",
                          p.priority, p.run_at, p.id limit q.slots)
                union all
                (select null, c.priority, c.run_at, c.id from live_jobs c
                 where c.queue_name = q.queue_name and c.ready_at is not null and c.state = 'available'
                   and c.task_identifier = k.task_identifier
                   and coalesce(c.flags::text, '') collate "C" = k.flags
                 order by c.queue_name, c.priority, c.run_at, c.id limit q.slots)) u
            order by u.priority, u.run_at, u.id limit q.slots) f
        where q.slots > 0),
    moved as (
        update live_jobs j set ready_at = j.run_at, parked = null
        where j.ctid = any (array(
            select p.ctid from live_jobs p
            where p.ctid = any (array(select t.tid from turn t)) for update skip locked))
        returning j.id)
    select (select array_agg(m.id) from moved m), count(*),
           array_agg(t.queue_name) filter (where t.tid is not null),
           (select array_agg(q.queue_name) from queue q where q.paused)
    into v_ids, v_ranked, v_wanted, v_paused
    from turn t;
    if v_ids is not null then
        perform _arrive_late(v_ids);
    end if;
    if v_paused is not null then
        v_left := v_left || _park_candidates(v_paused);
    end if;
    if v_ranked >= v_most or cardinality(v_wanted) > coalesce(cardinality(v_ids), 0) then
        v_left := v_left || v_wanted;
    end if;
    if v_left <> '{}' then
        insert into promotion_requests (lane, changed)
        select distinct 'queue:' || l.queue_name, true from unnest(v_left) l(queue_name);
    end if;
    return coalesce(cardinality(v_ids), 0);
end;
$$;

-- Parks candidates of full and of paused queues whose lanes this session holds, up to 1,000 of each
-- queue. Returns the queues that may have more of them.
create or replace function _park_candidates(queue_names text[]) returns text[]
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
    set enable_incremental_sort = off
    set jit = off set lock_timeout = '200ms' -- see claim_jobs
as $$
declare
    v_most constant integer := 1000;
    v_parked text[];
begin
    with parked as (
        update live_jobs j set ready_at = null, parked = 'queue'
        where j.ctid = any (array(
            select p.ctid from unnest(queue_names) q(name)
            cross join lateral (
                select c.ctid from live_jobs c
                where c.queue_name = q.name and c.ready_at is not null and c.state = 'available'
                  and c.has_slot is null
                order by c.queue_name, c.priority, c.run_at, c.id limit v_most for update skip locked) p))
        returning j.queue_name)
    select array_agg(p.queue_name) into v_parked from (
        select k.queue_name from parked k group by k.queue_name having count(*) >= v_most) p;
    return coalesce(v_parked, '{}');
end;
$$;

-- Selects from the jobs that a claim has locked those that may start, in the claim's order: all
-- jobs of queues without a limit, and of each limited queue as many as it has free slots.
-- `closed`: the queues from which this claim takes no more jobs. `full_queues`: the full queues
-- that have more candidates, which the claim has to park. `in_turn`: true if some of the queues are
-- limited.
create or replace function _admit(
    rows tid[], queue_names text[], inout closed text[], out admitted tid[], out full_queues text[],
    out in_turn boolean)
    language plpgsql set search_path from current
as $$
declare
    v_limited text[];
    v_held text[];
    -- For each queue whose lane is held: its free slots (null if its limit was removed meanwhile),
    -- and whether it has more candidates.
    v_queues text[];
    v_free bigint[];
    v_crowded boolean[];
    v_queue integer;
    v_asking tid[]; -- the rows that ask their queue for a slot
begin
    select array_agg(q.name),
           coalesce(array_agg(q.name) filter (where q.n <= 500 and _try_lane('queue:' || q.name)), '{}')
    into v_limited, v_held -- at most 500: PostgreSQL has room for some 6,000 advisory locks
    from (select l.name, row_number() over () as n
          from (select distinct q.queue_name as name from _queues_of(queue_names) q
                where q.queue_name is not null and q.slots is not null) l) q;
    in_turn := v_limited is not null;
    if not in_turn then
        admitted := rows;
        return;
    end if;
    v_asking := array(
        select r.tid from unnest(rows, queue_names) r(tid, queue_name) where r.queue_name is not null);
    select array_agg(q.queue_name), array_agg(q.slots - t.taken),
           array_agg(c.others > 0)
    into v_queues, v_free, v_crowded
    from _queues_of(v_held) q
    cross join lateral _taken_in(q.queue_name, q.slots, v_asking) t
    cross join lateral (
        select count(*) as others from (
            select from live_jobs j
            where j.queue_name = q.queue_name and j.ready_at is not null and j.state = 'available'
              and j.ctid <> all (rows)
            order by j.queue_name, j.priority, j.run_at, j.id limit 1) o) c;
    for i in 1..cardinality(rows) loop
        v_queue := array_position(v_queues, queue_names[i]);
        continue when v_queue is null and queue_names[i] = any (v_limited); -- another session has the lane
        if v_free[v_queue] <= 0 then
            v_crowded[v_queue] := true;
            continue;
        end if;
        admitted := admitted || rows[i];
        if v_queue is not null then
            v_free[v_queue] := v_free[v_queue] - 1;
        end if;
    end loop;
    full_queues := '{}';
    for i in 1..coalesce(cardinality(v_queues), 0) loop
        continue when (v_free[i] <= 0) is not true;
        closed := closed || v_queues[i];
        if v_crowded[i] then
            full_queues := full_queues || v_queues[i];
        end if;
    end loop;
    if cardinality(v_held) < cardinality(v_limited) then
        -- The requests bring a worker back to these queues when the other sessions have ended.
        v_limited := array(select l.name from unnest(v_limited) l(name) where l.name <> all (v_held));
        closed := closed || v_limited;
        insert into promotion_requests (lane) select 'queue:' || l.name from unnest(v_limited) l(name);
    end if;
end;
$$;

-- Fills the free slots of these queues, of which running jobs have ended or were requeued.
create or replace function _refill_queues(queue_names text[]) returns void
    language plpgsql set search_path from current
as $$
declare
    v_limited text[];
    v_held text[];
    v_limits integer[];
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        -- A snapshot that may be too old to show the limits: a later promotion decides.
        insert into promotion_requests (lane)
        select distinct 'queue:' || q.name from unnest(queue_names) q(name);
        perform _notify_workers();
        return;
    end if;
    -- A queue with more than 100 slots is left to the next promotion, which counts its running jobs
    -- once for all ends until then. So is a batch of more than 200 queues: PostgreSQL has room for
    -- some 6,000 advisory locks.
    select array_agg(q.queue_name), coalesce(array_agg(q.queue_name) filter (where q.held), '{}'),
           array_agg(q.slots) filter (where q.held)
    into v_limited, v_held, v_limits
    from (select q.queue_name, q.slots,
                 q.concurrency <= 100 and cardinality(queue_names) <= 200
                 and _try_lane('queue:' || q.queue_name) as held
          from _queues_of(queue_names) q where q.concurrency is not null offset 0) q;
    if v_limited is null then
        return;
    end if;
    if cardinality(v_held) < cardinality(v_limited) then
        insert into promotion_requests (lane)
        select 'queue:' || l.name from unnest(v_limited) l(name) where l.name <> all (v_held);
        perform _notify_workers();
    end if;
    if v_held <> '{}' and _fill_queues(v_held, v_limits) > 0 then
        perform _notify_workers();
    end if;
end;
$$;

-- The same for one queue; does nothing if queue_name is null.
create or replace function _refill_queue(queue_name text) returns void
    language plpgsql set search_path from current
as $$
begin
    if queue_name is not null then
        perform _refill_queues(array[queue_name]);
    end if;
end;
$$;

-- Writes a request for each queue of a family that has parked jobs, candidates or running jobs.
-- This takes one index look-up per queue, not per job.
create or replace function _fill_family(prefix text) returns void
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
as $$
begin
    insert into promotion_requests (lane, changed)
    with recursive name as (
        select least(
            (select j.queue_name from live_jobs j
             where j.parked = 'queue' and j.queue_name >= prefix order by j.queue_name limit 1),
            (select j.queue_name from live_jobs j where j.ready_at is not null and j.queue_name >= prefix
             order by j.queue_name limit 1)) as queue_name
        union all
        select least(
            (select j.queue_name from live_jobs j where j.parked = 'queue' and j.queue_name > n.queue_name
             order by j.queue_name limit 1),
            (select j.queue_name from live_jobs j where j.ready_at is not null and j.queue_name > n.queue_name
             order by j.queue_name limit 1))
        from name n where starts_with(n.queue_name, prefix))
    select 'queue:' || n.queue_name, true from name n where starts_with(n.queue_name, prefix);
end;
$$;
