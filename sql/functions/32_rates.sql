-- 32_rates: queues with a rate, and queues that take turns; both are called paced. See
-- docs/inside/queues.md.
--
-- A rate counts starts: claims that have committed. A claim records its starts in the table `starts`,
-- in its own transaction, and holds the queue's lane until that ends. So claims of one queue come one
-- after the other, and each one sees all starts before it. A start counts at time t if it was after
-- t - rate_period: windows are half open.
--
-- While a rate is used up, one of the parked jobs has as due_at the time at which the rate has room. Like
-- any due job, it brings a worker then, and a promotion.

-- What these statements look up. PostgreSQL inlines these two functions.

create or replace function _last_start(queue_name text) returns table (at timestamptz, total bigint)
    language sql stable
begin atomic
    select s.at, s.total from starts s where s.queue_name = _last_start.queue_name
    order by s.queue_name desc, s.at desc, s.total desc limit 1;
end;

-- How many jobs a rate lets start now, and if none, when it has room again: when enough starts have left
-- the window.
create or replace function _rate_room(
    queue_name text, rate_limit integer, rate_period interval, now timestamptz)
    returns table (room bigint, free_at timestamptz)
    language sql stable
begin atomic
    select _rate_room.rate_limit - u.used,
           case when u.used >= _rate_room.rate_limit then (
               select s.at + _rate_room.rate_period from starts s
               where s.queue_name = _rate_room.queue_name and s.at > _rate_room.now - _rate_room.rate_period
                 and s.total > u.total - _rate_room.rate_limit
               order by s.queue_name, s.at, s.total limit 1) end
    from (select coalesce(l.total, 0) as total, coalesce(l.total - (
              select s.total from starts s
              where s.queue_name = _rate_room.queue_name and s.at <= _rate_room.now - _rate_room.rate_period
              order by s.queue_name desc, s.at desc, s.total desc limit 1), 0) as used
          from (select) o left join lateral _last_start(_rate_room.queue_name) l on true offset 0) u;
end;

-- Records what a claim starts in queues whose lanes it holds: the difference of `room`, null without a
-- rate, and `free`. Returns when that is: never before an earlier start of these queues. Null if nothing.
create or replace function _record_starts(
    queue_names text[], room bigint[], free bigint[], now timestamptz) returns timestamptz
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
as $$
declare
    v_at timestamptz;
begin
    with started as materialized (
        select q.name, q.room - q.free as jobs, l.at, coalesce(l.total, 0) as total
        from unnest(queue_names, room, free) q(name, room, free)
        left join lateral _last_start(q.name) l on true
        where q.free < q.room),
    origin as (
        insert into starts (queue_name, at, total)
        select s.name, '-infinity', 0 from started s where s.at is null),
    recorded as (
        insert into starts as r (queue_name, at, total)
        select s.name, (select greatest(now, max(l.at)) from started l), s.total + s.jobs from started s
        returning r.at)
    select max(r.at) into v_at from recorded r;
    return v_at;
end;
$$;

-- Goes on after a round of a claim: parks the other candidates of full queues, and makes the next jobs
-- of paced queues candidates. True if this claim may find some of them.
create or replace function _go_on(claim _claim, max_jobs integer) returns boolean
    language plpgsql set search_path from current
as $$
declare
    v_made integer;
begin
    if claim.full_queues <> '{}' then
        perform _park_candidates(claim.full_queues);
    end if;
    if claim.paced is null then
        return false;
    end if;
    -- One turn for each queue; if the claim wants more, what it wants in equal parts.
    v_made := _make_candidates(
        claim.paced, least(max_jobs, 1000),
        greatest(1, least(ceil(claim.wanted::numeric / cardinality(claim.paced)), 1000))::integer);
    if v_made > 0 and claim.wanted = 0 then
        perform _notify_workers();
    end if;
    return v_made > 0 and claim.wanted > 0 and claim.admitted is not null;
end;
$$;

-- Lets queues whose rate is used up, and whose lanes this session holds, wait for the time at which it has
-- room: parks their candidates, and makes a parked job of each one due then.
create or replace function _wait_for_rates(queue_names text[], free_ats timestamptz[]) returns void
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
as $$
declare
    v_left text[] := _park_candidates(queue_names);
begin
    with waiting as materialized (
        select q.name, q.free_at, p.tid from unnest(queue_names, free_ats) q(name, free_at)
        cross join lateral _parked_in(q.name, 1) p),
    held as materialized (
        select j.ctid as tid from live_jobs j
        where j.ctid = any (array(select w.tid from waiting w)) for update skip locked),
    timed as (
        update live_jobs j set due_at = w.free_at
        from waiting w join held h on h.tid = w.tid
        where j.ctid = w.tid and j.due_at is distinct from w.free_at)
    select v_left || array_agg(w.name) into v_left from waiting w
    where w.tid not in (select h.tid from held h);
    insert into promotion_requests (lane)
    select distinct 'queue:' || l.name from unnest(v_left) l(name);
end;
$$;
