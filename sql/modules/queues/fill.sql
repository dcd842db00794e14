-- queues/fill: makes waiting jobs of limited queues candidates, or gives them slots (queues/slots). The
-- session holds the lanes of the queues.
--
-- Most queues have jobs of one kind: _fill_queues gives the first ones the free slots in one
-- statement; the other queues are left to _fill_by_kind. An end in a single serial queue uses the
-- smaller statement of _fill_serial_queue.

-- Fills the free slots of queues whose lanes this session holds; returns how many jobs became
-- candidates. `limits`: the slots that each queue may give ahead of a claim; 0 while it is paused, null
-- if none. No queue gives more than 100 ahead, so that a count finds no more than those and the running jobs.
-- If more are free, the next job becomes a candidate without a slot: the claim that starts it asks the
-- queue, and sees that it is time to fill it again. While there is one, half of the 100 will do.
create or replace function _fill_queues(queue_names text[], limits integer[]) returns integer
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off
    set enable_sort = off set enable_incremental_sort = off
    set jit = off set plan_cache_mode = force_generic_plan set lock_timeout = '200ms' -- see claim_jobs
as $$
declare
    v_ahead constant integer := 100;
    v_others text[]; -- queues left to _fill_by_kind
    v_ids bigint[];
    v_behind text[]; -- queues that could have more candidates, if their jobs were not locked
begin
    with queue as materialized (
        select q.name, q.slots - t.taken as free,
               case when not t.asks or 2 * t.ahead <= v_ahead then v_ahead - t.ahead else -1 end as ahead,
               q.slots > 0 and t.taken <= q.slots and t.alike and (f.id is null or f.alike) as alike
        from unnest(queue_names, limits) q(name, slots)
        left join lateral _first_parked(q.name) f on true
        -- `alike`: each job runs, or is of the kind of the first parked job and precedes it.
        cross join lateral (
            select count(*) as taken, count(*) filter (where j.state <> 'running') as ahead,
                   coalesce(bool_or(j.state <> 'running' and j.has_slot is null), false) as asks,
                   coalesce(bool_and(f.id is null or j.state = 'running'
                       or (j.task_identifier, coalesce(j.flags::text, '') collate "C") = (f.task, f.flags)
                          and (j.priority, j.run_at, j.id) < (f.priority, f.run_at, f.id)), true) as alike
            from (select i.* from live_jobs i
                  where q.slots > 0 and i.queue_name = q.name and i.ready_at is not null
                  order by i.queue_name, i.priority, i.run_at, i.id limit q.slots::bigint + 1) j) t),
    turn as materialized (
        select q.name, p.tid, p.place <= q.ahead as given
        from queue q
        cross join lateral (
            select f.tid, row_number() over () as place from (
                select w.ctid as tid from live_jobs w where w.queue_name = q.name and w.parked = 'queue'
                order by w.queue_name, w.task_identifier, coalesce(w.flags::text, '') collate "C",
                         w.priority, w.run_at, w.id
                limit least(q.free, q.ahead + 1) for update skip locked) f) p
        where q.alike and q.free > 0 and q.ahead >= 0),
    moved as (
        update live_jobs j
        set ready_at = j.run_at, parked = null, has_slot = nullif(t.given, false), due_at = null
        from turn t where j.ctid = t.tid
        returning j.id, j.queue_name)
    select (select array_agg(q.name) from queue q where q.alike is not true),
           (select array_agg(m.id) from moved m),
           (select array_agg(q.name) from queue q
            left join (select n.queue_name as name, count(*) as jobs from moved n group by 1) m using (name)
            where q.alike and q.free > coalesce(m.jobs, 0) and q.ahead >= coalesce(m.jobs, 0)
              and (select true from _parked_in(q.name, coalesce(m.jobs, 0) + 1) offset coalesce(m.jobs, 0)))
    into v_others, v_ids, v_behind;
    if v_ids is not null then
        perform _arrive_late(v_ids);
    end if;
    if v_behind is not null then
        perform _ask_for_locked(v_behind);
    end if;
    return coalesce(cardinality(v_ids), 0)
        + case when v_others is null then 0 else _fill_by_kind(v_others) end;
end;
$$;

-- Gives the first parked job of a serial queue the slot, if no job runs or has it, and all parked
-- jobs are of one kind; else returns false.
create or replace function _fill_serial_queue(queue_name text) returns boolean
    language plpgsql set search_path from current
as $$
declare
    v_id bigint;
    v_late boolean;
begin
    update live_jobs j set ready_at = j.run_at, parked = null, has_slot = true, due_at = null
    where j.ctid = any (array(
        select p.ctid from live_jobs p
        where p.ctid = (
            select f.tid from _first_parked(_fill_serial_queue.queue_name) f where f.alike)
          and ( -- not by `not exists`, which would drop the order, and with it the index
              select true from live_jobs i
              where i.queue_name = _fill_serial_queue.queue_name and i.ready_at is not null
              order by i.queue_name, i.priority, i.run_at, i.id limit 1) is null
        for update skip locked))
    returning j.id into v_id;
    if not found then
        return false;
    end if;
    v_late := _arrive_late(array[v_id]);
    return true;
end;
$$;

-- The same for queues with jobs of several kinds, for queues with a rate or turns, and for queues whose
-- settings have changed.
create or replace function _fill_by_kind(queue_names text[]) returns integer
    language plpgsql set search_path from current
as $$
declare
    v_left constant text[] := _take_slots_back(queue_names);
    v_filled integer := _make_candidates(queue_names, null, 0, '{}');
begin
    if v_filled < cardinality(queue_names) then
        v_filled := v_filled + _take_turns_of_locked(queue_names, null, 0, '{}');
    end if;
    if v_left is not null then
        perform _ask_for_locked(v_left, true);
    end if;
    return v_filled;
end;
$$;

-- Makes the first jobs of each kind candidates, as many as there are free slots, up to 1,000 per kind in one
-- call. `asked`: a kind with so many candidates gets no more; null means all that have a place. A queue that
-- takes turns has one of each kind; a claim that wants more takes what it wants in equal parts from the kinds
-- of these tasks. `passed`: jobs that do not count, since other sessions have them locked. Returns how many
-- became candidates.
create or replace function _make_candidates(
    queue_names text[], asked integer, wanted integer, tasks text[], passed tid[] default '{}')
    returns integer
    language plpgsql set search_path from current set enable_seqscan = off set enable_bitmapscan = off
    set enable_sort = off set enable_incremental_sort = off set jit = off set lock_timeout = '200ms'
as $$
declare
    v_now constant timestamptz := clock();
    v_ids bigint[];
    v_overtaken text[]; -- fair queues in which a job was added before one that is a candidate already
    v_wanted text[];
    v_ranked bigint; -- in queues that no claim looks at again
    v_paused text[];
    v_full text[]; -- queues whose rate is used up, and when it has room again
    v_free_ats timestamptz[];
begin
    with kind as materialized (
        select o.* from _openings_in(queue_names, asked, wanted, tasks, v_now) o),
    turn as materialized (
        select k.queue_name, f.tid, k.paced, case when k.fair then v_now + f.place * interval '1 us' end as at
        from kind k
        left join lateral _last_of_candidates(
            k.queue_name, k.task, k.flags, case when asked is not null then least(k.places, asked) end,
            k.priority, k.run_at, k.id, passed) l on true
        cross join lateral _first_of_kind(
            k.queue_name, k.task, k.flags, case when l.found is null then k.places else 0 end, passed) f
        where k.places > 0 and k.id is not null),
    free as materialized (
        select p.ctid as tid from live_jobs p
        where p.ctid = any (array(select t.tid from turn t)) for update skip locked),
    moved as (
        update live_jobs j
        set ready_at = greatest(j.run_at, t.at), parked = null, due_at = null
        from free f join turn t on t.tid = f.tid where j.ctid = f.tid
        returning j.id, case when t.at is not null and (
            select true from _candidate_after(j.queue_name, j.priority, j.run_at, j.id))
            then j.queue_name end as overtaken),
    full_rate as (select distinct k.queue_name, k.free_at from kind k where k.free_at is not null)
    select (select array_agg(m.id) from moved m),
           (select array_agg(m.overtaken) from moved m where m.overtaken is not null),
           array_agg(t.queue_name) filter (where t.tid is not null), count(*) filter (where not t.paced),
           (select array_agg(distinct k.queue_name) from kind k where k.paused),
           (select array_agg(r.queue_name) from full_rate r), (select array_agg(r.free_at) from full_rate r)
    into v_ids, v_overtaken, v_wanted, v_ranked, v_paused, v_full, v_free_ats
    from turn t;
    perform _arrive_late(v_ids || _deal_turns(v_overtaken));
    if v_paused is not null then
        insert into promotion_requests (lane, changed) -- claims ask for slots until all are parked
        select 'queue:' || l.queue_name, true from unnest(_park_candidates(v_paused)) l(queue_name);
    end if;
    perform _wait_for_rates(v_full, v_free_ats) where v_full is not null;
    if v_ranked >= 1000 then
        insert into promotion_requests (lane)
        select distinct 'queue:' || w.queue_name from unnest(v_wanted) w(queue_name);
    end if;
    return coalesce(cardinality(v_ids), 0) + case
        when cardinality(v_wanted) > coalesce(cardinality(v_ids), 0) and passed = '{}'
        then _make_candidates_behind(v_wanted, asked, wanted, tasks) else 0 end;
end;
$$;

-- Takes back the slots that no claim has used. Returns the queues in which some are left, because
-- another session has their jobs locked.
create or replace function _take_slots_back(queue_names text[]) returns text[]
    language plpgsql set search_path from current
as $$
declare
    v_most constant integer := 1000;
    v_left text[];
begin
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
    return v_left;
end;
$$;

-- Parks candidates of full and of paused queues whose lanes this session holds, up to 1,000 of each
-- queue; `turnless`: only those that have no turn. Returns the queues that may have more of them.
create or replace function _park_candidates(queue_names text[], turnless boolean default false) returns text[]
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off
    set enable_sort = off set enable_incremental_sort = off
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
                  and c.has_slot is null and (c.ready_at = c.run_at or not turnless)
                order by c.queue_name, c.priority, c.run_at, c.id limit v_most for update skip locked) p))
        returning j.queue_name)
    select array_agg(p.queue_name) into v_parked from (
        select k.queue_name from parked k group by k.queue_name having count(*) >= v_most) p;
    return coalesce(v_parked, '{}');
end;
$$;

-- Writes a request for each queue of a family that has parked jobs, candidates or running jobs. This takes
-- one index look-up per queue, not per job. Where turns have ended, candidates lose the places that they had.
create or replace function _fill_family(prefix text) returns void
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off
    set enable_sort = off set enable_incremental_sort = off set jit = off
as $$
declare
    v_names text[];
    v_moved bigint[];
begin
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
    select array_agg(n.queue_name) into v_names from name n where starts_with(n.queue_name, prefix);
    insert into promotion_requests (lane, changed)
    select 'queue:' || n.name, true from unnest(v_names) n(name);
    with candidate as (
        update live_jobs j set ready_at = j.run_at
        where j.ctid = any (array(
            select c.ctid from _queues_of(v_names) q cross join lateral (
                select i.ctid from live_jobs i
                where i.queue_name = q.queue_name and i.ready_at > i.run_at and i.state = 'available'
                order by i.queue_name, i.priority, i.run_at, i.id for update skip locked) c
            where not q.fair))
        returning j.id)
    select array_agg(c.id) into v_moved from candidate c;
    perform _arrive_late(v_moved);
end;
$$;

-- What these statements look up. PostgreSQL inlines the functions below.

-- The first parked job of a queue. `alike`: all parked jobs are of its kind, since the last one is.
create or replace function _first_parked(queue_name text)
    returns table (
        tid tid, task text, flags text, priority smallint, run_at timestamptz, id bigint, alike boolean)
    language sql stable
begin atomic
    select f.*, (f.task, f.flags) = (l.task, l.flags)
    from _parked_in(_first_parked.queue_name, 1) f
    cross join (
        select p.task_identifier as task, coalesce(p.flags::text, '') collate "C" as flags
        from live_jobs p where p.queue_name = _first_parked.queue_name and p.parked = 'queue'
        order by p.queue_name desc, p.task_identifier desc, coalesce(p.flags::text, '') collate "C" desc,
                 p.priority desc, p.run_at desc, p.id desc
        limit 1) l;
end;

-- The last of so many candidates of a kind that come before one of its jobs; no row if there are fewer, or
-- if `enough` is null. `passed`: but for these.
create or replace function _last_of_candidates(
    queue_name text, task text, flags text, enough bigint, priority smallint, run_at timestamptz, id bigint,
    passed tid[] default '{}')
    returns table (found bigint)
    language sql stable
begin atomic
    select c.id from live_jobs c
    where c.queue_name = _last_of_candidates.queue_name and c.ready_at is not null
      and c.state = 'available' and c.task_identifier = _last_of_candidates.task
      and coalesce(c.flags::text, '') collate "C" = _last_of_candidates.flags
      and (c.priority, c.run_at, c.id)
          < (_last_of_candidates.priority, _last_of_candidates.run_at, _last_of_candidates.id)
      and _last_of_candidates.enough is not null
      and c.ctid not in (select t.tid from unnest(_last_of_candidates.passed) t(tid))
    order by c.queue_name, c.priority, c.run_at, c.id
    offset _last_of_candidates.enough - 1 limit 1;
end;

-- The candidate of a queue that follows a job in the order of its priority.
create or replace function _candidate_after(queue_name text, priority smallint, run_at timestamptz, id bigint)
    returns table (id bigint)
    language sql stable
begin atomic
    select c.id from live_jobs c
    where c.queue_name = _candidate_after.queue_name and c.ready_at is not null and c.state = 'available'
      and c.priority = _candidate_after.priority
      and (c.run_at, c.id) > (_candidate_after.run_at, _candidate_after.id)
    order by c.queue_name, c.priority, c.run_at, c.id limit 1;
end;

-- The first jobs of one kind in a queue, parked or candidates; tid is null for those that already are
-- candidates. `passed`: but for these.
create or replace function _first_of_kind(
    queue_name text, task text, flags text, up_to bigint, passed tid[] default '{}')
    returns table (tid tid, place bigint)
    language sql stable
begin atomic
    select u.tid, row_number() over (order by u.priority, u.run_at, u.id) from (
        (select p.ctid as tid, p.priority, p.run_at, p.id from live_jobs p
         where p.queue_name = _first_of_kind.queue_name and p.parked = 'queue'
           and p.task_identifier = _first_of_kind.task
           and coalesce(p.flags::text, '') collate "C" = _first_of_kind.flags
           and p.ctid not in (select t.tid from unnest(_first_of_kind.passed) t(tid))
         order by p.queue_name, p.task_identifier, coalesce(p.flags::text, '') collate "C",
                  p.priority, p.run_at, p.id limit _first_of_kind.up_to)
        union all
        (select null::tid as tid, c.priority, c.run_at, c.id from live_jobs c
         where c.queue_name = _first_of_kind.queue_name and c.ready_at is not null and c.state = 'available'
           and c.task_identifier = _first_of_kind.task
           and coalesce(c.flags::text, '') collate "C" = _first_of_kind.flags
           and c.ctid not in (select t.tid from unnest(_first_of_kind.passed) t(tid))
         order by c.queue_name, c.priority, c.run_at, c.id limit _first_of_kind.up_to)) u
    order by u.priority, u.run_at, u.id limit _first_of_kind.up_to;
end;
