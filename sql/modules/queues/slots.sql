-- queues/slots: which jobs of a limited queue may run: what a claim and an end do there.
-- docs/inside/queues.md explains slots, kinds and candidates.
--
-- A lane (queues/lanes) is tried, never waited for. A claim that does not get it leaves the job where
-- it is; claims and ends that do not get it leave a request (promotion_requests). So a session that
-- parks a job has seen every running job, and a session that ends a job has seen every parked job.

-- Selects from the jobs that a claim has locked (`admitted`) those that may start, in the claim's order: all
-- jobs of queues without a limit, and of each limited queue as many as it has free slots. queue_names: for
-- each job the queue that it asks, or null. Sets `closed`: the queues from which this claim takes no more
-- jobs; `full_queues`: the full queues that have more candidates, which the claim has to park; `in_turn` if
-- some of the queues are limited; and what paced queues need (limits/rates).
create or replace function _admit(inout claim _claim, queue_names text[])
    language plpgsql set search_path from current
as $$
declare
    v_names text[] := queue_names;
    v_limited text[];
    v_held text[];
    v_now timestamptz; -- when it held the lanes
    v_queues text[]; -- those whose lanes are held, each with its free slots, and whether it is crowded
    v_free bigint[];
    v_crowded boolean[];
    v_waits boolean[]; -- if it is paced: whether jobs wait that may become candidates
    v_low boolean[]; -- if not: whether jobs wait, and no candidate is left that asks
    v_queue integer;
    v_room bigint[]; -- what was free in those with a rate
    v_hiding text[];
    v_rows tid[] := claim.admitted;
    v_admitted tid[]; -- of these
    v_asking tid[] := v_rows;
begin
    if cardinality(queue_names) > 1 then
        select array_agg(distinct a.name), array_agg(a.tid) into v_names, v_asking
        from unnest(v_rows, queue_names) a(tid, name) where a.name is not null;
    end if;
    select array_agg(q.name), array_agg(q.name) filter (where q.n <= 500 and _try_lane('queue:' || q.name))
    into v_limited, v_held -- at most 500: PostgreSQL has room for some 6,000 advisory locks
    from (select l.queue_name as name, row_number() over () as n from _queues_of(v_names) l
          where l.slots is not null -- or the snapshot may be too old to show it
             or current_setting('transaction_isolation') <> 'read committed') q;
    if v_limited is null then
        return;
    end if;
    claim.in_turn := true;
    v_now := clock();
    select array_agg(r.name), array_agg(r.free), array_agg(r.crowded), array_agg(r.waits), array_agg(r.low),
           array_agg(case when r.rated then r.free end), array_agg(r.name) filter (where r.hides)
    into v_queues, v_free, v_crowded, v_waits, v_low, v_room, v_hiding
    from _room_in(v_held, v_rows, v_asking, v_now) r(name, free, crowded, rated, waits, low, hides);
    if v_hiding is not null then
        claim := _cut_at_priority(claim, queue_names, v_hiding);
        v_rows := claim.admitted;
    end if;
    for i in 1..cardinality(v_rows) loop
        v_queue := array_position(v_queues, queue_names[i]);
        continue when v_queue is null and queue_names[i] = any (v_limited); -- another session has the lane
        if v_free[v_queue] <= 0 then
            v_crowded[v_queue] := true;
            continue;
        end if;
        v_admitted := v_admitted || v_rows[i];
        continue when v_queue is null;
        v_free[v_queue] := v_free[v_queue] - 1;
    end loop;
    claim.admitted := v_admitted;
    if array_remove(v_room, null) <> '{}' then
        claim.now := coalesce(_record_starts(v_queues, v_room, v_free, v_now), claim.now);
    end if;
    claim := _close_queues(claim, v_queues, v_free, v_crowded, v_waits, v_low, v_limited);
end;
$$;

-- Ends the admission: of these queues with their free slots, closes the full ones, and tells which of them
-- have more candidates, and in which paced queues jobs wait. Where none waits, there is nothing to go on
-- with: a job that is parked later comes with a request. `low`: queues that are to be filled again, by the
-- next round or the next claim. `limited`: these queues and those whose lanes other sessions have. The
-- requests for the others bring a worker back when those sessions have ended.
create or replace function _close_queues(
    inout claim _claim, queue_names text[], free bigint[], crowded boolean[], waits boolean[], low boolean[],
    limited text[])
    language plpgsql set search_path from current
as $$
declare
    v_others text[] := array[]::text[];
    v_asked text[];
begin
    if cardinality(queue_names) is distinct from cardinality(limited) then
        v_others := array(
            select l.name from unnest(limited) l(name) where l.name <> all (coalesce(queue_names, '{}')));
        v_asked := v_others;
    end if;
    claim.full_queues := '{}';
    for i in 1..coalesce(cardinality(queue_names), 0) loop
        -- A paced queue is looked at again if jobs wait to become candidates, or candidates must wait.
        if waits[i] or waits[i] is not null and (claim.cut or crowded[i] and free[i] <= 0) then
            claim.paced := claim.paced || queue_names[i];
        end if;
        if low[i] and free[i] > 0 then
            v_asked := v_asked || queue_names[i];
            claim.must_promote := true;
        end if;
        continue when (free[i] <= 0) is not true;
        claim.closed := claim.closed || queue_names[i];
        if crowded[i] then
            claim.full_queues := claim.full_queues || queue_names[i];
        end if;
    end loop;
    if v_asked <> '{}' then
        claim.closed := claim.closed || v_others;
        insert into promotion_requests (lane) select 'queue:' || a.name from unnest(v_asked) a(name);
    end if;
end;
$$;

-- Fills the free slots of these queues, of which running jobs have ended or, if `requeued`, may wait again;
-- returns how many jobs became candidates. An end frees nothing in a queue that has a rate alone.
create or replace function _refill_queues(queue_names text[], requeued boolean default false) returns integer
    language plpgsql set search_path from current
as $$
declare
    v_held text[];
    v_limits integer[];
    v_left text[];
    v_filled integer := 0;
    v_locked boolean;
    v_notified boolean;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        -- A snapshot that may be too old to show the limits: a later promotion decides.
        insert into promotion_requests (lane)
        select distinct 'queue:' || q.name from unnest(queue_names) q(name);
        v_notified := _notify_workers();
        return 0;
    elsif cardinality(queue_names) > 1 then
        queue_names := array(select distinct q.name from unnest(queue_names) q(name));
    end if;
    -- A batch of more than 200 queues is left to the next promotion: PostgreSQL has room for some 6,000
    -- advisory locks.
    select array_agg(q.queue_name) filter (where q.held), array_agg(q.slots_ahead) filter (where q.held),
           array_agg(q.queue_name) filter (where not q.held)
    into v_held, v_limits, v_left
    from (select q.queue_name, q.slots_ahead,
                 cardinality(queue_names) <= 200 and _try_lane('queue:' || q.queue_name) as held
          from _queues_of(queue_names) q
          where q.concurrency is not null or q.paced and requeued offset 0) q;
    if v_held is null then
        v_filled := 0;
    elsif v_limits = '{1}' and _fill_serial_queue(v_held[1]) then
        v_filled := 1;
    else
        -- Where no job is parked there is nothing to do. A queue with more than 100 slots is left to the
        -- next promotion, too, which counts its running jobs once for all ends until then.
        select array_agg(h.name) filter (where h.few), array_agg(h.slots) filter (where h.few),
               v_left || array_agg(h.name) filter (where not h.few)
        into v_held, v_limits, v_left
        from (select q.name, q.slots, coalesce(q.slots, 1) <= 100 as few
              from unnest(v_held, v_limits) q(name, slots) cross join lateral _parked_in(q.name, 1)) h;
        if v_held is not null then
            v_filled := _fill_queues(v_held, v_limits);
        end if;
    end if;
    if v_left is not null then
        insert into promotion_requests (lane) select 'queue:' || l.name from unnest(v_left) l(name);
    end if;
    if v_filled = 0 and v_held is not null then -- perhaps all that wait are locked: a worker looks soon
        v_locked := exists (select from unnest(v_held) h(name)
                            join promotion_requests w on w.lane = 'queue:' || h.name and w.after = '1');
    end if;
    if v_left is not null or v_filled > 0 or v_locked then
        v_notified := _notify_workers();
    end if;
    return v_filled;
end;
$$;

-- The same for one queue; does nothing if queue_name is null.
create or replace function _refill_queue(queue_name text, requeued boolean default false) returns void
    language plpgsql set search_path from current
as $$
begin
    if queue_name is not null then
        perform _refill_queues(array[queue_name], requeued);
    end if;
end;
$$;

-- What these statements look up. PostgreSQL inlines the functions below. Where they look for the first rows
-- of a queue, they order by all columns of one index; functions that call them may not sort (enable_sort and
-- enable_incremental_sort are off), so that PostgreSQL takes this index with any statistics.

-- The settings of these queues: from the queue's own row, else from the longest family
-- ('customer:*') that it belongs to. Without either, a queue is serial. A row that only pauses its
-- queue or family (`inherits`) leaves the limits to the next. A queue is paused by each of them. `slots`:
-- 0 while paused, null without any limit.
-- `paced`: it has a rate or takes turns, so each of its jobs asks for its slot in the claim.
-- `slots_ahead`: those that may be given before.
create or replace function _queues_of(queue_names text[])
    returns table (
        queue_name text, concurrency integer, paused boolean, slots integer, changed xid8,
        rate_limit integer, rate_period interval, fair boolean, paced boolean, slots_ahead integer)
    language sql stable
begin atomic
    select s.queue_name, s.concurrency, s.paused, s.slots, s.changed, s.rate_limit, s.rate_period, s.fair,
           s.paced, case when not s.paced then s.slots end
    from (select u.*, u.rate_limit is not null or u.fair as paced,
                 case when u.paused then 0 when u.concurrency is not null then u.concurrency
                      when u.rate_limit is not null or u.fair then 2147483647 end as slots
          from (select n.name as queue_name,
                       case when q.inherits is false then q.concurrency when f.found then f.concurrency
                            else 1 end as concurrency,
                       coalesce(q.paused, false) or p.changed is not null as paused,
                       greatest(q.changed, f.changed, p.changed) as changed,
                       case when q.inherits is false then q.rate_limit else f.rate_limit end as rate_limit,
                       case when q.inherits is false then q.rate_period else f.rate_period end as rate_period,
                       case when q.inherits is false then q.fair else coalesce(f.fair, false) end as fair
                from unnest(_queues_of.queue_names) n(name)
                left join lateral ( -- a look-up for each name, with any settings of the caller
                    select i.* from queues i where i.queue_name = n.name offset 0) q on true
                left join lateral (
                    select true as found, o.concurrency, o.changed, o.rate_limit, o.rate_period, o.fair
                    from queues o
                    where q.inherits is not false and right(o.queue_name, 1) = '*' and not o.inherits
                      and starts_with(n.name, left(o.queue_name, -1))
                    order by length(o.queue_name) desc limit 1) f on true
                left join lateral ( -- nearly always none: it has an index of its own
                    select o.changed from queues o
                    where o.paused and right(o.queue_name, 1) = '*'
                      and starts_with(n.name, left(o.queue_name, -1))
                    order by o.queue_name limit 1) p on true) u) s;
end;

-- Of these queues, and how many jobs are to be placed in each: whether they must wait (parked) for slots, as
-- others are there already. If not, they become candidates at once: a claim decides. So that the looks stay
-- short, a queue with 100 jobs that run or are candidates, or with more than are to be placed, counts as
-- crowded. So does one that counts its running jobs if it gets more than 100 at once, and without `looks`
-- each limited one. One that has only a rate may have 20 times as many as are to be placed, if its rate lets
-- them all start: its claims count no jobs. A fair queue has its own order. At other isolation levels the
-- look could be too old, or make one of two producers fail.
create or replace function _crowded_of(queue_names text[], jobs integer[], looks boolean default true)
    returns table (queue_name text, crowded boolean)
    language sql stable
begin atomic
    select q.queue_name, q.slots is not null and (
        q.fair or least(q.slots, q.rate_limit) < n.jobs or q.concurrency is not null and n.jobs > 100
        or not _crowded_of.looks or current_setting('transaction_isolation') <> 'read committed'
        or ( -- not by `exists`, which would drop the order, and with it the index
            select true from live_jobs p where p.queue_name = q.queue_name and p.parked = 'queue'
            order by p.queue_name, p.task_identifier, coalesce(p.flags::text, '') collate "C",
                     p.priority, p.run_at, p.id limit 1) is not null
        or (select true from live_jobs r where r.queue_name = q.queue_name and r.ready_at is not null
            order by r.queue_name, r.priority, r.run_at, r.id
            offset least(q.slots - n.jobs, greatest(99, n.jobs, case when q.concurrency is null
                                                    then least(20 * n.jobs, q.rate_limit - n.jobs) end))
            limit 1) is not null)
    from unnest(_crowded_of.queue_names, _crowded_of.jobs) n(name, jobs)
    cross join lateral _queues_of(array[n.name]) q;
end;

-- How many slots of a queue are taken, up to a limit, without those that were given to the rows in `aside`.
create or replace function _taken_in(queue_name text, up_to integer, aside tid[]) returns table (taken bigint)
    language sql stable
begin atomic
    select count(*) from (
        select from live_jobs j
        where j.queue_name = _taken_in.queue_name and j.ready_at is not null
          and (j.state = 'running' or j.has_slot and j.ctid <> all (_taken_in.aside))
        order by j.queue_name, j.priority, j.run_at, j.id limit _taken_in.up_to) r;
end;

-- True if a job of a queue has a slot that no claim has used yet.
create or replace function _has_given_slots(queue_name text) returns boolean
    language plpgsql stable set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off
    set enable_sort = off set enable_incremental_sort = off set jit = off
as $$
begin
    return (
        select true from live_jobs j
        where j.queue_name = _has_given_slots.queue_name and j.ready_at is not null and j.has_slot
        order by j.queue_name, j.priority, j.run_at, j.id limit 1) is not null;
end;
$$;

-- What a claim that has locked `rows` finds in queues whose lanes it holds: the free slots (null if
-- the limit was removed meanwhile; slots that were given to the rows in `aside` are free), and whether there
-- are more candidates without a slot, if there may not be enough slots or other jobs wait. `paced_waits`:
-- whether a paced queue has parked jobs or, if it takes turns, more candidates; null if it is not paced.
-- `low`: whether another one has parked jobs and no such candidate. `hides`: whether a paced one may have
-- better jobs that are no candidates yet.
create or replace function _room_in(queue_names text[], rows tid[], aside tid[], now timestamptz)
    returns table (
        queue_name text, free bigint, crowded boolean, rated boolean, paced_waits boolean, low boolean,
        hides boolean)
    language sql stable
begin atomic
    select q.queue_name, f.free, c.crowded, q.rate_limit is not null,
           case when q.paced then c.crowded and q.fair or p.waits end,
           not q.paced and not c.crowded and p.waits, q.fair or q.rate_limit is not null and p.waits
    from _queues_of(_room_in.queue_names) q
    cross join lateral _taken_in(
        q.queue_name, case when q.concurrency is null then 0 else q.slots end, _room_in.aside) t
    left join lateral _rate_room(q.queue_name, q.rate_limit, q.rate_period, _room_in.now) r
        on q.rate_limit is not null
    cross join lateral (select least(q.slots - t.taken, r.room) as free offset 0) f
    cross join lateral (
        select (
            select true from live_jobs w where w.queue_name = q.queue_name and w.parked = 'queue'
            order by w.queue_name, w.task_identifier, coalesce(w.flags::text, '') collate "C",
                     w.priority, w.run_at, w.id limit 1) is not null as waits offset 0) p
    cross join lateral (
        select (q.fair or p.waits or f.free <= cardinality(_room_in.rows)) is true and (
            -- not by `exists`, which would drop the order, and with it the index
            select true from live_jobs j
            where j.queue_name = q.queue_name and j.ready_at is not null and j.state = 'available'
              and j.has_slot is null and j.ctid <> all (_room_in.rows)
            order by j.queue_name, j.priority, j.run_at, j.id limit 1) is not null as crowded offset 0) c;
end;

-- The first parked jobs of a queue: kind by kind, and each kind in the order in which its jobs run.
create or replace function _parked_in(queue_name text, up_to bigint)
    returns table (tid tid, task text, flags text, priority smallint, run_at timestamptz, id bigint)
    language sql stable
begin atomic
    select p.ctid, p.task_identifier, coalesce(p.flags::text, '') collate "C", p.priority, p.run_at, p.id
    from live_jobs p where p.queue_name = _parked_in.queue_name and p.parked = 'queue'
    order by p.queue_name, p.task_identifier, coalesce(p.flags::text, '') collate "C",
             p.priority, p.run_at, p.id
    limit _parked_in.up_to;
end;

-- The kinds of jobs that are parked in a queue, each with its first job: one index look-up per kind.
create or replace function _kinds_in(queue_name text)
    returns table (task text, flags text, priority smallint, run_at timestamptz, id bigint)
    language sql stable
begin atomic
    with recursive kind as (
        (select p.task collate "C" as task, p.flags collate "C" as flags, -- as the index has them
                p.priority, p.run_at, p.id
         from _parked_in(_kinds_in.queue_name, 1) p)
        union all
        select n.* from kind k cross join lateral (
            select p.task_identifier, coalesce(p.flags::text, '') collate "C", p.priority, p.run_at, p.id
            from live_jobs p
            where p.queue_name = _kinds_in.queue_name and p.parked = 'queue'
              and (p.task_identifier, coalesce(p.flags::text, '') collate "C") > (k.task, k.flags)
            order by p.queue_name, p.task_identifier, coalesce(p.flags::text, '') collate "C",
                     p.priority, p.run_at, p.id limit 1) n)
    select k.task, k.flags, k.priority, k.run_at, k.id from kind k;
end;

-- The kinds of jobs that are parked in queues whose lanes this session holds, and how many jobs of each may
-- be candidates (`places`): see _make_candidates. In a queue with a rate these are 300, or as many as a claim
-- asks for: its claims look for more. A queue without parked jobs, or without a place, has one row without a
-- kind. `free_at`: if the rate is used up, when it has room again.
create or replace function _openings_in(
    queue_names text[], asked integer, wanted integer, tasks text[], now timestamptz)
    returns table (
        queue_name text, paused boolean, paced boolean, fair boolean, free_at timestamptz,
        task text, flags text, priority smallint, run_at timestamptz, id bigint, places bigint)
    language sql stable
begin atomic
    select q.queue_name, q.paused, q.paced, q.fair, case when not q.paused then r.free_at end,
           k.task, k.flags, k.priority, k.run_at, k.id, case
               when not q.fair then o.places
               when w.runs then least(o.places, greatest(1, ceil(
                   _openings_in.wanted::float8 / count(*) filter (where w.runs) over ())::bigint))
               else least(o.places, 1) end
    from _queues_of(_openings_in.queue_names) q
    cross join lateral _taken_in(
        q.queue_name, case when q.concurrency is null then 0 else q.slots end, '{}') t
    left join lateral _rate_room(q.queue_name, q.rate_limit, q.rate_period, _openings_in.now) r
        on q.rate_limit is not null
    cross join lateral (
        select least(q.slots - t.taken, r.room, case when q.paced then greatest(300, _openings_in.asked)
                                                     else 1000 end) as places offset 0) o
    left join lateral _kinds_in(q.queue_name) k on o.places > 0
    cross join lateral (
        select k.id is not null and k.task = any (_openings_in.tasks) as runs) w;
end;
