-- limits/rates: queues with a rate, and queues that take turns; both are called paced. See
-- docs/inside/queues.md.
--
-- A rate counts starts: claims that have committed. A claim records its starts in the table `starts`,
-- in its own transaction, and holds the queue's lane until that ends. So claims of one queue come one
-- after the other, and each one sees all starts before it. A start counts at time t if it was after
-- t - rate_period: windows are half open.
--
-- What a queue has started while it had no rate counts, too, as far as set_queue finds it. That is in a table
-- of its own, earlier_starts, which claims only read: so set_queue and a claim may commit in any order.
--
-- While a rate is used up, one of the parked jobs has as due_at the time at which the rate has room. Like
-- any due job, it brings a worker then, and a promotion.

-- What these statements look up. PostgreSQL inlines _last_start, _earlier_starts and _rate_room.

create or replace function _last_start(queue_name text) returns table (at timestamptz, total bigint)
    language sql stable
begin atomic
    select s.at, s.total from starts s where s.queue_name = _last_start.queue_name
    order by s.queue_name desc, s.at desc, s.total desc limit 1;
end;

-- What set_queue has counted. Two calls that were open together may have counted the same.
create or replace function _earlier_starts(queue_name text, since timestamptz)
    returns table (at timestamptz, jobs bigint)
    language sql stable
begin atomic
    select e.at, max(e.jobs) from earlier_starts e
    where e.queue_name = _earlier_starts.queue_name and e.at > _earlier_starts.since
    group by e.queue_name, e.at;
end;

-- The time of the start, of those after `since`, that must leave the window before fewer than rate_limit are
-- in it.
create or replace function _last_to_leave(queue_name text, rate_limit integer, since timestamptz)
    returns timestamptz
    language sql stable
begin atomic
    select min(w.at) from (
        select s.at, sum(s.jobs) over (
                   order by s.at desc groups between unbounded preceding and 1 preceding) as later
        from (select r.at, r.total - coalesce(lag(r.total) over (order by r.at, r.total), 0) as jobs
              from starts r where r.queue_name = _last_to_leave.queue_name
              union all
              select e.at, e.jobs
              from _earlier_starts(_last_to_leave.queue_name, _last_to_leave.since) e) s
        where s.at > _last_to_leave.since) w
    where coalesce(w.later, 0) < _last_to_leave.rate_limit;
end;

-- How many jobs a rate lets start now, and if none, when it has room again: when enough starts have left
-- the window.
create or replace function _rate_room(
    queue_name text, rate_limit integer, rate_period interval, now timestamptz)
    returns table (room bigint, free_at timestamptz)
    language sql stable
begin atomic
    select _rate_room.rate_limit - u.used,
           case when u.used < _rate_room.rate_limit then null
                when u.earlier > 0 then _rate_room.rate_period + _last_to_leave(
                    _rate_room.queue_name, _rate_room.rate_limit, _rate_room.now - _rate_room.rate_period)
                else (
                    select s.at + _rate_room.rate_period from starts s
                    where s.queue_name = _rate_room.queue_name
                      and s.at > _rate_room.now - _rate_room.rate_period
                      and s.total > u.total - _rate_room.rate_limit
                    order by s.queue_name, s.at, s.total limit 1) end
    from (select l.total, e.jobs as earlier, e.jobs + coalesce(l.total, 0) - coalesce((
              select s.total from starts s
              where s.queue_name = _rate_room.queue_name and s.at <= _rate_room.now - _rate_room.rate_period
              order by s.queue_name desc, s.at desc, s.total desc limit 1), 0) as used
          from (select coalesce(sum(r.jobs), 0)::bigint as jobs from _earlier_starts(
                    _rate_room.queue_name, _rate_room.now - _rate_room.rate_period) r) e
          left join lateral _last_start(_rate_room.queue_name) l on true offset 0) u;
end;

-- Records what a claim starts in queues whose lanes it holds: the difference of `room`, null without a
-- rate, and `free`. Returns when that is: never before an earlier start of these queues. Null if nothing.
create or replace function _record_starts(
    queue_names text[], room bigint[], free bigint[], now timestamptz) returns timestamptz
    language plpgsql set search_path from current
as $$
declare
    v_at timestamptz;
    v_thin text[];
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
    select max(r.at), (select array_agg(s.name) from started s
                       where s.total / 1000 < (s.total + s.jobs) / 1000)
    into v_at, v_thin from recorded r;
    if v_thin is not null then -- each thousandth start
        perform _thin_starts(v_thin, now);
    end if;
    return v_at;
end;
$$;

-- For how long starts are kept: a rate may be set to a longer period later.
create or replace function _starts_kept(rate_period interval) returns interval
    language sql immutable
    return greatest(rate_period, interval '1 day');

-- Thins out the starts that have left the windows of these queues, whose lanes this session holds: divides
-- time into cells, and keeps the last row of each cell. What a deleted row counted, that row counts from
-- then on, as if it had started later. A cell is as wide as the largest power of two microseconds that is
-- no more than a sixteenth of the row's age. Each cell lies in one wider cell, so however often a start
-- moves, it moves by a sixteenth of its age at most. So a longer period may count too much, and never too
-- little. Of the rows that are too old the last one stays, as the total from which to count.
create or replace function _thin_starts(queue_names text[], now timestamptz) returns void
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off
    set enable_sort = off set enable_incremental_sort = off set jit = off
as $$
begin
    with old as materialized (
        select s.*, q.kept, lead(s.at) over (partition by q.queue_name order by s.at, s.total) as next_at,
               date_bin(s.width, s.at, 'epoch') as cell
        from (select o.queue_name, _thin_starts.now - o.rate_period as since,
                     _thin_starts.now - _starts_kept(o.rate_period) as kept
              from _queues_of(queue_names) o where o.rate_period is not null) q
        cross join lateral (
            select r.ctid as tid, r.queue_name, r.at, r.total,
                   interval '1 microsecond' * 2 ^ greatest(0, floor(
                       log(2, extract(epoch from _thin_starts.now - r.at) * 1000000 / 16)))::float8 as width
            from starts r
            where r.queue_name = q.queue_name and r.at > '-infinity' and r.at <= q.since
            order by r.queue_name, r.at, r.total limit 3000) s),
    celled as materialized (
        select o.*, lead(o.at) over (
            partition by o.queue_name, o.width, o.cell order by o.at, o.total) is not null as followed
        from old o),
    gone as (
        delete from starts d where d.ctid = any (array(
            select c.tid from celled c where c.next_at < c.kept or c.followed))),
    origin as (
        select o.queue_name, max(o.total) as total from old o where o.next_at < o.kept group by o.queue_name)
    update starts s set total = g.total from origin g
    where s.queue_name = g.queue_name and s.at = '-infinity';
end;
$$;

-- Deletes the starts of queues that have started nothing for a day, or for their period, and earlier starts
-- that are as old. Looks at a tenth of max_rows pages of each table, chosen at random, and at up to 200 such
-- queues there. These are chosen at random, too, since some of them may have a longer period.
create or replace function _prune_starts(max_rows integer) returns void
    language plpgsql set search_path from current
as $$
declare
    v_now constant timestamptz := clock();
    v_tenth constant float8 := max_rows * 10.0 * current_setting('block_size')::integer; -- in percent
    v_part constant real := least(100, v_tenth / greatest(pg_relation_size('starts'), 1));
    v_part_earlier constant real := least(100, v_tenth / greatest(pg_relation_size('earlier_starts'), 1));
    v_held text[];
begin
    v_held := array(
        select i.queue_name from (
            select d.queue_name from (
                select distinct s.queue_name from starts s tablesample system (v_part)
                where s.at < v_now - interval '1 day') d
            cross join lateral _last_start(d.queue_name) l
            where l.at < v_now - interval '1 day' order by random() limit 200) i
        where _try_lane('queue:' || i.queue_name));
    delete from starts d using _queues_of(v_held) q -- with a snapshot that is newer than the locks
    where d.queue_name = q.queue_name
      and not exists (
          select from starts s
          where s.queue_name = q.queue_name and s.at >= v_now - _starts_kept(q.rate_period));
    delete from earlier_starts d where d.ctid = any (array(
        select e.ctid from _queues_of(array(
            select o.queue_name from (
                select distinct r.queue_name from earlier_starts r tablesample system (v_part_earlier)
                where r.at < v_now - interval '1 day') o
            order by random() limit 200)) q
        join earlier_starts e
          on e.queue_name = q.queue_name and e.at < v_now - _starts_kept(q.rate_period)
        for update of e skip locked));
end;
$$;

-- Counts the starts that a queue, or each queue of a family, has had while it had no rate: those that the
-- running jobs show, and the 10,000 newest jobs in history. set_queue calls this before it sets a rate. What
-- starts in a 64th of the period is one row, with the time of the last: so a claim adds up few rows.
create or replace function _count_earlier_starts(queue_name text, rate_period interval) returns void
    language plpgsql set search_path from current set jit = off
as $$
declare
    v_family constant boolean := right(queue_name, 1) = '*';
    v_name constant text := case when v_family then left(queue_name, -1) else queue_name end;
    v_since constant timestamptz := clock() - _starts_kept(rate_period);
    v_part constant interval := greatest(rate_period / 64, interval '1 us');
begin
    with begun as materialized (
        select b.name, b.at
        from (select j.queue_name as name, j.claimed_at as at from live_jobs j
              where j.queue_name >= v_name and (v_family or j.queue_name <= v_name)
                and j.ready_at is not null and j.state = 'running'
              union all
              select f.queue_name, f.claimed_at
              from (select h.queue_name, h.claimed_at from finished_jobs h
                    order by h.id desc limit 10000) f) b
        where case when v_family then starts_with(b.name, v_name) else b.name = v_name end
          and b.at > v_since)
    insert into earlier_starts (queue_name, at, jobs)
    select b.name, max(b.at), count(*)
    from _queues_of(array(select distinct n.name from begun n)) q
    join begun b on b.name = q.queue_name
    left join lateral _last_start(b.name) l on true
    left join lateral (
        select max(e.at) as at from earlier_starts e where e.queue_name = b.name) c on true
    where q.rate_limit is null -- one that has a rate records its starts itself
      and b.at > coalesce(greatest(l.at, c.at), '-infinity')
    group by b.name, date_bin(v_part, b.at, 'epoch');
end;
$$;

-- Parks candidates of these lanes' queues, whose settings have changed, if the queues take turns and the jobs
-- have none: they were candidates before. Slots that were given before do not count any more, either.
create or replace function _begin_turns(lanes text[]) returns void
    language plpgsql set search_path from current
as $$
declare
    v_fair constant text[] := array(
        select q.queue_name from _queues_of(array(
            select substr(l.lane, length('queue:') + 1) from unnest(lanes) l(lane)
            where starts_with(l.lane, 'queue:'))) q
        where q.fair);
begin
    if v_fair <> '{}' then
        perform _ask_for_locked(_take_slots_back(v_fair), true);
        insert into promotion_requests (lane, changed)
        select 'queue:' || l.queue_name, true from unnest(_park_candidates(v_fair, true)) l(queue_name);
    end if;
end;
$$;

-- Gives the turns that these fair queues have to their candidates in the order of their jobs: a job with an
-- earlier run_at takes the turn of one that was there before. Returns the candidates.
create or replace function _deal_turns(queue_names text[]) returns bigint[]
    language sql volatile strict
    set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set jit = off
begin atomic
    with candidate as materialized (
        select c.*,
               row_number() over (partition by c.queue_name, c.priority order by c.run_at, c.id) as place,
               row_number() over (partition by c.queue_name, c.priority order by c.ready_at, c.id) as turn
        from (select distinct u.name from unnest(_deal_turns.queue_names) u(name)) q
        cross join lateral (
            select j.ctid as tid, j.id, j.queue_name, j.priority, j.run_at, j.ready_at from live_jobs j
            where j.queue_name = q.name and j.ready_at > j.run_at and j.state = 'available'
            order by j.queue_name, j.priority, j.run_at, j.id for update skip locked) c),
    dealt as (
        update live_jobs j set ready_at = t.ready_at + (c.place - 1) * interval '1 us'
        from candidate c
        join candidate t on t.queue_name = c.queue_name and t.priority = c.priority and t.turn = c.place
        where j.ctid = c.tid
        returning j.id)
    select array_agg(d.id) from dealt d;
end;

-- Leaves to the next round of a claim all jobs of a worse priority than the first job of these queues: they
-- may have more jobs of that priority, which are no candidates yet.
create or replace function _cut_at_priority(inout claim _claim, queue_names text[], hiding text[])
    language plpgsql set search_path from current
as $$
declare
    v_found constant integer := cardinality(claim.ids);
    v_last integer;
    v_priority smallint;
begin
    for i in 1..v_found loop
        if v_priority is null and queue_names[i] = any (hiding) then
            v_priority := claim.priorities[i];
        end if;
        exit when claim.priorities[i] > v_priority;
        v_last := i;
    end loop;
    if v_last < v_found then
        claim.cut := true;
        claim.admitted := claim.admitted[:v_last];
        claim.ids := claim.ids[:v_last];
        claim.priorities := claim.priorities[:v_last];
        claim.ready_ats := claim.ready_ats[:v_last];
    end if;
end;
$$;

-- Goes on after a round of a claim: parks the other candidates of full queues, and makes the next jobs
-- of paced queues candidates. True if this claim may find some of them.
create or replace function _go_on(claim _claim, max_jobs integer) returns boolean
    language plpgsql set search_path from current
as $$
declare
    v_asked constant integer := least(max_jobs, 1000);
    v_tasks text[];
    v_made integer;
begin
    if claim.full_queues <> '{}' then
        perform _park_candidates(claim.full_queues);
        -- A queue may be full of slots that were given to jobs of another kind, which no worker may take.
        insert into promotion_requests (lane)
        select 'queue:' || f.name from unnest(claim.full_queues) f(name) where _has_given_slots(f.name);
    end if;
    if claim.paced is null then
        return false;
    end if;
    v_tasks := array(select distinct j.task_identifier from live_jobs j where j.id = any (claim.ids[:20]));
    v_made := _make_candidates(claim.paced, v_asked, claim.wanted, v_tasks);
    -- A claim that is full makes one for each queue that takes turns.
    if claim.admitted is not null and (claim.wanted > 0 or v_made < cardinality(claim.paced)) then
        v_made := v_made + _take_turns_of_locked(claim.paced, v_asked, claim.wanted, v_tasks);
    end if;
    if v_made > 0 and claim.wanted = 0 then
        perform _notify_workers();
    end if;
    return claim.wanted > 0 and (claim.cut or v_made > 0 and claim.admitted is not null);
end;
$$;

-- Lets queues whose rate is used up, and whose lanes this session holds, wait for the time at which it has
-- room: parks their candidates, and makes a parked job of each one due then, one that is not locked.
create or replace function _wait_for_rates(queue_names text[], free_ats timestamptz[]) returns void
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off
    set enable_sort = off set enable_incremental_sort = off set jit = off
as $$
declare
    v_more constant text[] := _park_candidates(queue_names);
    v_behind text[];
begin
    with waiting as materialized (
        select q.name, q.free_at, p.tid, p.due_at from unnest(queue_names, free_ats) q(name, free_at)
        cross join lateral (
            select w.ctid as tid, w.due_at from live_jobs w where w.queue_name = q.name and w.parked = 'queue'
            order by w.queue_name, w.task_identifier, coalesce(w.flags::text, '') collate "C",
                     w.priority, w.run_at, w.id limit 1 for update skip locked) p),
    timed as (
        update live_jobs j set due_at = w.free_at from waiting w
        where j.ctid = w.tid and j.due_at is distinct from w.free_at
        returning j.queue_name)
    select array_agg(q.name) into v_behind from unnest(queue_names) q(name)
    where q.name not in (select t.queue_name from timed t -- not all: one may have changed meanwhile
                         union all select w.name from waiting w where w.due_at = w.free_at)
      and exists (select from _parked_in(q.name, 1));
    insert into promotion_requests (lane) select 'queue:' || m.name from unnest(v_more) m(name);
    perform _ask_for_locked(v_behind);
end;
$$;
