-- gate/rates: how many jobs of a queue may start in a time.
--
-- A rate counts starts. A claim writes one row for the jobs of a queue that it starts; its time is that of
-- the claim, or that at which the gate let the jobs in, if that is later. A pass lets in no more than the
-- rate has left: without the starts of the window, and without the jobs that are let in and not claimed yet.
-- So it is exact without a lock in the claim. Take any window, and the last pass before the last of its
-- starts: each job that started in the window had started then, or was ready and unclaimed, or was let in
-- there. A start counts at time t if it was after t - rate_period: windows are half open.
--
-- While a rate is used up, a timer brings a pass when the first start leaves the window. The pass asks for
-- it, or the claim, if all that may start was unclaimed at the time of the pass.

-- In a claim: writes down the starts of its jobs whose queues have a rate, and asks for a look at the time at
-- which the first of them leaves the window; of queues that take turns, at once.
create or replace function _note_starts(worker_id bigint, run bigint) returns void
    language plpgsql set search_path from current
as $$
begin
    with paced as materialized (
        select j.queue_name, max(j.claimed_at) as at, count(*) as jobs, max(j.pace) as pace,
               bool_or(j.turn is true) as turn
        from claims c cross join lateral unnest(c.job_ids) i(id)
        join live_jobs j on j.id between i.id and i.id
        where c.worker_id = _note_starts.worker_id and c.run = _note_starts.run
          and num_nonnulls(j.pace, j.turn) > 0
        group by j.queue_name),
    started as (
        insert into starts (queue_name, at, jobs)
        select p.queue_name, p.at, p.jobs from paced p where p.pace is not null)
    insert into promotion_requests (lane, at)
    select l.lane, l.at
    from (select 'queue:' || p.queue_name as lane, case when not p.turn then p.at + p.pace end as at
          from paced p) l
    where (select true from promotion_requests r
           where r.lane = l.lane and r.at is not null and r.at <= l.at limit 1) is null;
end;
$$;

-- In a pass: adds up the new starts of these queues. A start that is earlier than one that has been added up
-- counts from the time of that one.
create or replace function _add_up_starts(queue_names text[]) returns void
    language plpgsql set search_path from current
as $$
begin
    with new as materialized (
        select s.ctid as tid, s.queue_name, s.jobs, greatest(s.at, l.at) as at, coalesce(l.total, 0) as before
        from unnest(queue_names) n(name)
        cross join lateral (
            select r.ctid, r.queue_name, r.at, r.jobs from starts r
            where r.queue_name = n.name and r.total is null limit 10000) s
        left join lateral _last_start(s.queue_name) l on true)
    update starts s set at = a.at, total = a.total
    from (select n.tid, n.at, n.before + sum(n.jobs) over (
              partition by n.queue_name order by n.at, n.tid rows unbounded preceding) as total
          from new n) a
    where s.ctid = a.tid;
end;
$$;

-- The last start of a queue that has been added up.
create or replace function _last_start(queue_name text) returns table (at timestamptz, total bigint)
    language sql stable
begin atomic
    select s.at, s.total from starts s where s.queue_name = _last_start.queue_name and s.total is not null
    order by s.queue_name desc, s.at desc, s.total desc limit 1;
end;

-- How many jobs a rate lets start now, and if none, when it has room again: when enough starts have left the
-- window. Starts that have not been added up count as if they had been.
create or replace function _rate_room(
    queue_name text, rate_limit integer, rate_period interval, now timestamptz)
    returns table (room bigint, free_at timestamptz)
    language sql stable
begin atomic
    select _rate_room.rate_limit - u.used,
           case when u.used < _rate_room.rate_limit then null
                else coalesce((
                    select s.at from starts s
                    where s.queue_name = _rate_room.queue_name and s.total is not null
                      and s.at > _rate_room.now - _rate_room.rate_period
                      and s.total > u.total - (_rate_room.rate_limit - u.new)
                    order by s.queue_name, s.at, s.total limit 1), (
                    select min(n.at) from (
                        select greatest(r.at, u.at) as at, sum(r.jobs) over (order by r.at, r.ctid) as jobs
                        from starts r
                        where r.queue_name = _rate_room.queue_name and r.total is null
                          and r.at > _rate_room.now - _rate_room.rate_period) n
                    where n.jobs > u.new - _rate_room.rate_limit)) + _rate_room.rate_period end
    from (select l.at, l.total, w.jobs as new, w.jobs + coalesce(l.total, 0) - coalesce((
              select s.total from starts s
              where s.queue_name = _rate_room.queue_name and s.total is not null
                and s.at <= _rate_room.now - _rate_room.rate_period
              order by s.queue_name desc, s.at desc, s.total desc limit 1),
              (select s.total - s.jobs from starts s
               where s.queue_name = _rate_room.queue_name and s.total is not null
               order by s.queue_name, s.at, s.total limit 1), 0) as used
          from (select coalesce(sum(r.jobs), 0)::bigint as jobs from starts r
                where r.queue_name = _rate_room.queue_name and r.total is null
                  and r.at > _rate_room.now - _rate_room.rate_period) w
          left join lateral _last_start(_rate_room.queue_name) l on true offset 0) u;
end;

-- The same, not inlined; no row without a rate.
create or replace function _room_of_rate(
    queue_name text, rate_limit integer, rate_period interval, now timestamptz)
    returns table (room bigint, free_at timestamptz)
    language plpgsql stable strict rows 1 set search_path from current
as $$
begin
    return query select r.* from _rate_room(queue_name, rate_limit, rate_period, now) r;
end;
$$;

-- How many more jobs these queues may let in now (`free`), and how many are let in and not claimed (`ahead`).
-- PostgreSQL inlines it.
create or replace function _room_in(queue_names text[], most integer, now timestamptz)
    returns table (
        name text, slots integer, changed xid8, rate_limit integer, rate_period interval, fair boolean,
        ahead bigint, free bigint)
    language sql stable
begin atomic
    with queue as materialized (
        select q.* from _queues_of(_room_in.queue_names) q),
    turn as materialized ( -- one look for each family
        select jsonb_object_agg(f.family, _turns_in(f.family, _room_in.most)) as jobs
        from (select distinct q.family from queue q where q.fair offset 0) f)
    select q.queue_name, q.slots, q.changed, q.rate_limit, q.rate_period, q.fair, t.ahead,
           least(q.slots - t.taken, r.room - t.ahead,
                 case when q.fair then ((select u.jobs from turn u) ->> q.family)::bigint - t.ahead end)
    from queue q
    left join lateral _room_of_rate(q.queue_name, q.rate_limit, q.rate_period, _room_in.now) r on true
    cross join lateral (
        select count(*) as taken, count(*) filter (where j.state <> 'running') as ahead
        from (select i.state from live_jobs i
              where q.slots > 0 and i.queue_name = q.queue_name and i.ready_at is not null
              order by i.queue_name, i.priority, i.run_at, i.id
              limit case when q.paced then 100000 else q.slots end) j) t
    offset 0;
end;

-- For how long starts are kept: a rate may be set to a longer period later.
create or replace function _starts_kept(rate_period interval) returns interval
    language sql immutable
    return greatest(rate_period, interval '1 day');

-- Deletes the starts that no window needs any more. Looks at a tenth of max_rows pages of the table, chosen
-- at random, and at up to 200 queues there. The gate is free of this: totals count from the oldest row that
-- is left.
create or replace function _prune_starts(max_rows integer) returns void
    language plpgsql set search_path from current
as $$
declare
    v_now constant timestamptz := clock();
    v_part constant real := least(100, max_rows * 10.0 * current_setting('block_size')::integer
                                       / greatest(pg_relation_size('starts'), 1)); -- in percent
    v_queues constant text[] := array(
        select o.queue_name from (
            select distinct r.queue_name from starts r tablesample system (v_part)
            where r.at < v_now - interval '1 day') o
        order by random() limit 200);
begin
    if v_queues = '{}' then
        return;
    end if;
    delete from starts d where d.ctid = any (array(
        select s.tid from _queues_of(v_queues) q
        cross join lateral (
            select o.ctid as tid from starts o
            where o.queue_name = q.queue_name and o.total is not null
              and o.at < v_now - _starts_kept(q.rate_period)
            order by o.queue_name, o.at, o.total limit 10000 for update skip locked) s));
    delete from starts d where d.ctid = any (array( -- those of queues at which no pass has looked since
        select s.tid from _queues_of(v_queues) q
        cross join lateral (
            select o.ctid as tid from starts o
            where o.queue_name = q.queue_name and o.total is null
              and o.at < v_now - _starts_kept(q.rate_period)
            order by o.queue_name limit 10000 for update skip locked) s));
end;
$$;
