-- gate/queues: which jobs of a limited queue may run: how many slots it has, and who gets them.
--
-- A job has a slot from the time at which it is let in to its end. Slots are counted from these rows. Within
-- a queue the order is priority, run_at, id.

-- The settings of these queues: from the queue's own row, else from the longest family
-- ('customer:*') that it belongs to. Without either, a queue is serial. A row that only pauses its
-- queue or family (`inherits`) leaves the limits to the next. A queue is paused by each of them. `slots`:
-- 0 while paused, null without any limit. `paced`: it has a rate or takes turns. `changed`: the version of
-- these settings; `held`: transactions may be open that have not seen it (gate/settings).
create or replace function _queues_of(queue_names text[])
    returns table (
        queue_name text, concurrency integer, paused boolean, slots integer, changed xid8, held boolean,
        rate_limit integer, rate_period interval, fair boolean, paced boolean, family text)
    language sql stable
begin atomic
    select u.queue_name, u.concurrency, u.paused,
           case when u.paused then 0 when u.concurrency is not null then u.concurrency
                when u.rate_limit is not null or u.fair then 2147483647 end,
           u.changed, u.held, u.rate_limit, u.rate_period, u.fair, u.rate_limit is not null or u.fair,
           u.family
    from (select n.name as queue_name,
                 case when q.inherits is false then q.concurrency when f.family is not null then f.concurrency
                      else 1 end as concurrency,
                 coalesce(q.paused, false) or p.changed is not null as paused,
                 greatest(q.changed, f.changed, p.changed) as changed,
                 (select true from held_settings h order by h.changed, h.queue_name limit 1) is true
                 and exists (select from held_settings h
                             where h.changed = any (array[q.changed, f.changed, p.changed])) as held,
                 case when q.inherits is false then q.rate_limit else f.rate_limit end as rate_limit,
                 case when q.inherits is false then q.rate_period else f.rate_period end as rate_period,
                 case when q.inherits is false then q.fair else coalesce(f.fair, false) end as fair, f.family
          from (select q.name, case when ( -- null: there are no families
                           select true from queues a where right(a.queue_name, 1) = '*'
                           order by a.queue_name limit 1) then array(
                           select left(q.name, l.long) || '*'
                           from generate_series(0, least(length(q.name), 127)) l(long)) end as families
                from unnest(_queues_of.queue_names) q(name) offset 0) n
          left join lateral ( -- look-ups for each name, with any settings of the caller
              select i.* from queues i where i.queue_name = n.name offset 0) q on true
          left join lateral (
              select left(o.queue_name, -1) as family, o.concurrency, o.changed, o.rate_limit,
                     o.rate_period, o.fair
              from queues o
              where q.inherits is not false and o.queue_name = any (n.families) and not o.inherits
                and right(o.queue_name, 1) = '*'
              order by length(o.queue_name) desc limit 1) f on true
          left join lateral (
              select o.changed from queues o
              where o.paused and right(o.queue_name, 1) = '*' and o.queue_name = any (n.families)
              order by o.queue_name limit 1) p on true) u;
end;

-- True once a queue of this database was set or paused. Until then no pass looks for what that may leave.
create or replace function _settings_are_used() returns boolean
    language sql volatile
    return pg_sequence_last_value('settings_used'::regclass) is not null;

-- True once one had a rate or took turns. Until then no claim and no pass looks for starts.
create or replace function _rates_are_used() returns boolean
    language sql volatile
    return coalesce(pg_sequence_last_value('settings_used'::regclass) >= 1000000, false);

-- True if a job of this queue must wait at the gate. A transaction that reads the settings has an id by then:
-- by that id a pass knows when all that have not seen a change have ended. At another isolation level the
-- snapshot may be too old to show the limit.
create or replace function _is_limited(queue_name text) returns boolean
    language plpgsql set search_path from current set enable_seqscan = off
    set jit = off set plan_cache_mode = force_generic_plan
as $$
begin
    if pg_current_xact_id() is null or current_setting('transaction_isolation') <> 'read committed'
       or not _settings_are_used() then
        return true; -- a queue that was never set is serial
    end if;
    return (select q.slots is not null from _queues_of(array[_is_limited.queue_name]) q);
end;
$$;

-- The same for the queue of a job; false for a job without a queue. PostgreSQL inlines it.
create or replace function _must_wait(queue_name text) returns boolean
    language sql volatile
    return queue_name is not null and _is_limited(queue_name);

-- While settings are held: true if a claim may take this job of a queue, as the newest version has let it in.
create or replace function _was_let_in(queue_name text, slot xid8) returns boolean
    language plpgsql stable set search_path from current
as $$
begin
    return (
        select q.slots is null or not q.held or not q.paused and q.changed = _was_let_in.slot
        from _queues_of(array[_was_let_in.queue_name]) q);
end;
$$;

-- Lets in the best waiting jobs of these queues, as many as they have room for: in a pass. No queue lets in
-- more than 100 ahead of the claims, or as many as the caller wants. `again`: some could have more.
create or replace function _open_queues(
    queue_names text[], families text[], wanted integer, out opened integer, out again boolean)
    language plpgsql set search_path from current
as $$
declare
    v_now timestamptz := clock();
    v_most constant integer := greatest(100, wanted);
    v_names constant text[] := array(select distinct n.name from unnest(queue_names) n(name));
    v_done record;
begin
    if not _settings_are_used() then
        opened := _open_serial_queues(v_names);
        again := false;
        return;
    end if;
    perform _settle_queues(v_names, families)
    where (select true from held_settings h order by h.changed, h.queue_name limit 1);
    perform _add_up_starts(v_names) where _rates_are_used();
    delete from set_aside a where a.queue_name = any (v_names) and a.until <= v_now;
    with lane as materialized (
        select r.*, array(
            select j.ctid from live_jobs j
            where j.queue_name = r.name and j.parked = 'queue'
              and (select true from set_aside a
                   where a.queue_name = r.name and a.task_identifier = j.task_identifier
                     and a.flags is not distinct from j.flags limit 1) is null
            order by j.queue_name, j.priority, j.run_at, j.id
            limit case when r.slots is null then 1000 else least(greatest(r.free, 0), v_most) end
            for update skip locked) as tids
        from _room_in(v_names, v_most, v_now) r),
    moved as (
        update live_jobs j
        set ready_at = greatest(v_now + n.place * interval '1 us', j.run_at), parked = null,
            slot = case when l.slots is not null then l.changed end, pace = l.rate_period,
            turn = nullif(l.fair, false)
        from lane l cross join lateral unnest(l.tids) with ordinality n(tid, place) where j.ctid = n.tid),
    waiting as materialized ( -- those in which others wait
        -- With the jobs that are let in now, when has the rate room again? The claim's own timer may be
        -- missing: it leaves it out for an earlier one, which may have brought this pass.
        select l.name, l.slots, l.ahead, l.free, cardinality(l.tids) as jobs, r.free_at from lane l
        left join lateral _room_of_rate(
            l.name, (l.rate_limit - l.ahead - cardinality(l.tids))::integer, l.rate_period, v_now) r on true
        where (l.slots is null or l.slots > 0) and (
            select true from live_jobs j where j.queue_name = l.name and j.parked = 'queue'
            order by j.queue_name, j.priority, j.run_at, j.id offset cardinality(l.tids) limit 1))
    select (select coalesce(sum(cardinality(l.tids)), 0) from lane l) as opened,
           array_agg('queue:' || w.name) filter (
               where w.free > w.jobs and w.jobs >= v_most or w.slots is null and w.jobs >= 1000) as full,
           array_agg('queue:' || w.name) filter (where w.jobs < least(v_most, w.free)) as locked,
           array_agg('queue:' || w.name) filter (where w.free_at is not null) as rated,
           array_agg(w.free_at) filter (where w.free_at is not null) as free_ats,
           array_agg(w.name) filter (where w.free <= 0 and w.ahead > 0) as tight
    into v_done from waiting w;
    opened := v_done.opened;
    again := v_done.full is not null;
    if num_nonnulls(v_done.full, v_done.locked, v_done.rated, v_done.tight) > 0 then
        insert into promotion_requests (lane)
        select f.lane from unnest(v_done.full || _let_better_in(v_done.tight)) f(lane);
        perform _ask_later(l.lane, l.at) from (values
            (v_done.locked, array_fill(v_now + interval '0.25 s',
                                        array[coalesce(cardinality(v_done.locked), 0)])),
            (v_done.rated, v_done.free_ats)) l(lane, at) where l.lane is not null;
    end if;
end;
$$;

-- The same while no queue of this database was ever set: each is serial.
create or replace function _open_serial_queues(queue_names text[]) returns integer
    language plpgsql set search_path from current
as $$
declare
    v_now timestamptz := clock();
    v_done record;
begin
    with lane as materialized (
        select n.name, t.state, p.tid from unnest(queue_names) n(name)
        left join lateral (
            select j.state from live_jobs j where j.queue_name = n.name and j.ready_at is not null
            order by j.queue_name, j.priority, j.run_at, j.id limit 1) t on true
        left join lateral (
            select j.ctid as tid from live_jobs j
            where t.state is null and j.queue_name = n.name and j.parked = 'queue'
            order by j.queue_name, j.priority, j.run_at, j.id limit 1 for update skip locked) p on true),
    moved as (
        update live_jobs j set ready_at = greatest(v_now, j.run_at), parked = null
        from lane l where j.ctid = l.tid)
    select count(l.tid) as opened,
           array_agg('queue:' || l.name) filter (where num_nonnulls(l.tid, l.state) = 0) as locked,
           array_agg(l.name) filter (where l.state = 'available') as tight
    into v_done from lane l
    where l.tid is not null or l.state is distinct from 'running' and (
        select true from live_jobs j where j.queue_name = l.name and j.parked = 'queue'
        order by j.queue_name, j.priority, j.run_at, j.id limit 1);
    insert into promotion_requests (lane) select f.lane from unnest(_let_better_in(v_done.tight)) f(lane)
    where v_done.tight is not null;
    perform _ask_later(
        v_done.locked, array_fill(v_now + interval '0.25 s', array[cardinality(v_done.locked)]))
    where v_done.locked is not null;
    return v_done.opened;
end;
$$;

-- How many jobs of each queue of a family that takes turns may be ahead of the claims: one, or more if few
-- of its queues wait. Their places alternate, since all are let in at once.
create or replace function _turns_in(family text, most integer) returns bigint
    language plpgsql stable set search_path from current
as $$
begin
    return (
        with recursive waiting as (
            (select j.queue_name as name, 1 as n from live_jobs j
             where j.parked = 'queue' and j.queue_name >= _turns_in.family
             order by j.queue_name limit 1)
            union all
            select (select j.queue_name from live_jobs j where j.parked = 'queue' and j.queue_name > w.name
                    order by j.queue_name limit 1), w.n + 1
            from waiting w where starts_with(w.name, _turns_in.family) and w.n < 20)
        select case when count(*) >= 20 then 1 else greatest(1, most / greatest(count(*), 1)) end
        from waiting w where starts_with(w.name, _turns_in.family));
end;
$$;

-- The queues of these families that have jobs which wait or may run: one index look-up for each.
create or replace function _queues_of_families(prefixes text[]) returns text[]
    language plpgsql set search_path from current
as $$
begin
    return case when prefixes <> '{}' then array(
        select n.queue_name from unnest(prefixes) p(prefix)
        cross join lateral (
            with recursive name as (
                select least(
                    (select j.queue_name from live_jobs j
                     where j.parked = 'queue' and j.queue_name >= p.prefix order by j.queue_name limit 1),
                    (select j.queue_name from live_jobs j where j.ready_at is not null
                     and j.queue_name >= p.prefix order by j.queue_name limit 1)) as queue_name
                union all
                select least(
                    (select j.queue_name from live_jobs j
                     where j.parked = 'queue' and j.queue_name > n.queue_name
                     order by j.queue_name limit 1),
                    (select j.queue_name from live_jobs j
                     where j.ready_at is not null and j.queue_name > n.queue_name
                     order by j.queue_name limit 1))
                from name n where starts_with(n.queue_name, p.prefix))
            select n.queue_name from name n where starts_with(n.queue_name, p.prefix)) n) end;
end;
$$;
