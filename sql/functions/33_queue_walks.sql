-- 33_queue_walks: what a session remembers of a limited queue, so that its next fills (33_fill) do not walk
-- again past the entries of jobs that have ended. See 02_walks: while an old snapshot is open, vacuum cannot
-- remove these entries, and each fill would read one for each job that has run.
--
-- A session that holds the queue's lane, and has had to walk far, remembers for a while, in one of the
-- settings pyworker.walk_queue_0 to _15:
-- * `ids`, the jobs that take slots, and `seen`, how far it has read late_arrivals. While places are kept,
--   each job that gets a slot is listed there, by the session that holds the lane. So the next session with
--   the lane finds each of them, and the count is exact.
-- * the place before which no job of the queue's kind is parked. Adds hold no lane: one with an older run_at,
--   or in a transaction that commits late, parks a job before that place. As long as the fills from the
--   place find enough, such a job waits for the next walk from the head, at most 2 s. A fill that finds too
--   few leaves a request: so one of the next promotions walks from the head.

-- The setting that has what the session remembers of a queue.
create or replace function _queue_walk(queue_name text) returns text
    language sql stable
    return 'pyworker.walk_queue_' || (hashtext(queue_name) & 15);

-- What the session remembers of a queue; null if nothing, or if it has expired, or if the queue's limit has
-- changed. `slots`: its limit.
create or replace function _remembered_of(queue_name text, slots integer) returns jsonb
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_walk constant jsonb := nullif(current_setting(_queue_walk(queue_name), true), '');
    v_now constant double precision := date_part('epoch', clock_timestamp());
begin
    if v_walk is not null
       and v_walk ->> 'queue' = queue_name and v_walk -> 'slots' = to_jsonb(slots)
       and (v_walk -> 'table')::bigint = 'live_jobs'::regclass::oid::bigint
       and (v_walk -> 'until')::double precision between v_now and v_now + 2
       and (v_walk ->> 'changed') is not distinct from (
           select q.changed::text from _queues_of(array[queue_name]) q)
       and not exists (select from promotion_requests w where w.changed) then
        return v_walk;
    end if;
    return null;
end;
$$;

-- Walks a queue, whose lane the session holds, from the head, and remembers it. Not if jobs of several kinds
-- are parked, or if more than 1,000 jobs take slots. `began`: when the session began to walk.
create or replace function _remember_queue(
    queue_name text, slots integer, began timestamptz default clock_timestamp()) returns void
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
as $$
declare
    v_place record;
    v_walk jsonb;
begin
    select f.task, f.flags, f.priority, f.run_at, f.id - 1 as id, f.alike into v_place
    from _first_parked(queue_name) f;
    if not found then -- none is parked: as far as the last job that takes a slot
        select j.task_identifier as task, coalesce(j.flags::text, '') as flags, j.priority, j.run_at, j.id,
               true as alike
        into v_place
        from live_jobs j where j.queue_name = _remember_queue.queue_name and j.ready_at is not null
        order by j.queue_name desc, j.priority desc, j.run_at desc, j.id desc limit 1;
    end if;
    if v_place.alike is not true or exists (select from promotion_requests w where w.changed) then
        return;
    end if;
    select jsonb_build_object(
               'queue', queue_name, 'slots', slots, 'table', 'live_jobs'::regclass::oid::bigint,
               'changed', (select q.changed::text from _queues_of(array[queue_name]) q),
               'seen', coalesce((select a.id from late_arrivals a order by a.id desc limit 1), 0),
               'ids', t.ids)
    into v_walk
    from (
        select coalesce(jsonb_agg(j.id), '[]') as ids
        from (select i.id from live_jobs i
              where i.queue_name = _remember_queue.queue_name and i.ready_at is not null
              order by i.queue_name, i.priority, i.run_at, i.id limit 1001) j) t
    where jsonb_array_length(t.ids) <= 1000;
    if v_walk is not null then
        v_walk := to_jsonb(v_place) || v_walk
            || jsonb_build_object('until', date_part('epoch', _keep_until(began)));
        perform set_config(_queue_walk(queue_name), v_walk::text, false);
        perform set_config('pyworker.walks_queues', 'on', false);
    end if;
end;
$$;

-- After a fill of these queues that began at a time, and had read so many entries before: remembers them if
-- it has walked far. Queues with more slots are filled seldom (_fill_after_ends), for many jobs at once.
create or replace function _remember_queues(
    queue_names text[], limits integer[], read bigint, began timestamptz) returns void
    language plpgsql set search_path from current
as $$
declare
    v_slots constant bigint := sum(l.slots) from unnest(limits) l(slots) where l.slots <= 100;
begin
    if _queue_entries_read() - read > 1000 * cardinality(queue_names) + 4 * v_slots then
        perform _remember_queue(q.name, q.slots, began)
        from unnest(queue_names, limits) q(name, slots) where q.slots between 1 and 100 limit 16;
    end if;
end;
$$;

-- How many entries of the indexes of queues the session has read: see _entries_read.
create or replace function _queue_entries_read() returns bigint
    language sql volatile
    return _entries_read('live_jobs_queue_parked') + _entries_read('live_jobs_queue_taken');

-- True if the session may remember a queue.
create or replace function _queues_are_remembered() returns boolean
    language sql volatile
    return coalesce(current_setting('pyworker.walks_queues', true), '') <> '';

-- Fills those of these queues that the session remembers, and returns the others. The session holds the
-- lanes.
create or replace function _fill_remembered(
    queue_names text[], limits integer[], out filled integer, out others text[], out other_limits integer[])
    language plpgsql set search_path from current
as $$
declare
    v_filled integer;
begin
    filled := 0;
    for i in 1..cardinality(queue_names) loop
        v_filled := _fill_from_place(queue_names[i], limits[i]);
        if v_filled is null then
            others := others || queue_names[i];
            other_limits := array_append(other_limits, limits[i]);
        else
            filled := filled + v_filled;
        end if;
    end loop;
end;
$$;

-- Fills the free slots of one queue that the session remembers; returns null if it remembers nothing that
-- would do: the queue must be filled as any other.
create or replace function _fill_from_place(queue_name text, slots integer) returns integer
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
    set enable_incremental_sort = off
    set jit = off set plan_cache_mode = force_generic_plan set lock_timeout = '200ms' -- see claim_jobs
as $$
declare
    v_walk jsonb := _remembered_of(queue_name, slots);
    v_place constant _span := row((v_walk -> 'priority')::integer, v_walk ->> 'run_at',
                                  (v_walk -> 'id')::bigint, null, null, null);
    v_taken record;
    v_next record;
    v_free integer;
    v_ids bigint[];
    v_last record;
begin
    if v_walk is null then
        return null;
    end if;
    select t.* into v_taken from _taken_of(queue_name, v_walk) t;
    v_free := greatest(slots - v_taken.count, 0);
    select array_agg(n.tid) as tids, array_agg(n.key) as keys,
           exists (select from _parked_of_other_kinds(queue_name, v_walk ->> 'task', v_walk ->> 'flags'))
               as mixed
    into v_next
    from _next_parked(queue_name, v_walk ->> 'task', v_walk ->> 'flags', v_place, greatest(v_free, 1)) n;
    if not v_taken.alike or v_next.mixed or v_taken.last_given > v_next.keys[1] then
        perform set_config(_queue_walk(queue_name), '', false);
        return null;
    end if;
    with moved as (
        update live_jobs j set ready_at = j.run_at, parked = null, has_slot = true, due_at = null
        where j.ctid = any (array(
            select p.ctid from live_jobs p
            where p.ctid = any (v_next.tids[:v_free]) and p.queue_name = _fill_from_place.queue_name
              and coalesce(p.parked, '') = 'queue' -- not so that the planner uses the index of parked jobs
            for update skip locked))
        returning j.id)
    select array_agg(m.id) into v_ids from moved m;
    perform _arrive_late(v_ids);
    if coalesce(cardinality(v_ids), 0) < v_free then
        insert into promotion_requests (lane, not_by) values ('queue:' || queue_name, pg_current_xact_id());
    end if;
    v_walk := v_walk || jsonb_build_object('seen', v_taken.seen, 'ids', v_taken.ids || v_ids);
    if cardinality(v_ids) = cardinality(v_next.tids[:v_free]) then -- none of them was locked
        select k.ready_at as run_at, k.id into v_last from unnest(v_next.keys[:v_free]) with ordinality k
        where k.priority = v_place.priority order by k.ordinality desc limit 1;
        v_walk := v_walk || case when found then to_jsonb(v_last) else '{}' end;
    end if;
    perform set_config(_queue_walk(queue_name), v_walk::text, false);
    return coalesce(cardinality(v_ids), 0);
end;
$$;

-- What these statements look up. PostgreSQL inlines the functions below.

-- The jobs that take slots of a queue: those that the session remembers, and those that were listed since.
-- `alike`: each of them runs, or has a slot and is of the kind that is remembered. `last_given`: the place of
-- the last one that has a slot and does not run yet.
create or replace function _taken_of(queue_name text, walk jsonb)
    returns table (ids bigint[], count integer, alike boolean, last_given _span, seen bigint)
    language sql stable
begin atomic
    with late as materialized (
        select a.id, a.job_id from late_arrivals a where a.id > (_taken_of.walk -> 'seen')::bigint),
    known as materialized (
        select r.id::bigint as id from jsonb_array_elements_text(_taken_of.walk -> 'ids') r(id)
        union select l.job_id from late l)
    select coalesce(array_agg(j.id), '{}'), count(*)::integer,
           coalesce(bool_and(j.state = 'running' or j.has_slot is not null
               and j.task_identifier = _taken_of.walk ->> 'task'
               and coalesce(j.flags::text, '') = _taken_of.walk ->> 'flags'), true),
           (array_agg(row(j.priority, j.run_at, j.id, null, null, null)::_span
                      order by j.priority desc, j.run_at desc, j.id desc) filter (where j.has_slot))[1],
           coalesce((select max(l.id) from late l), (_taken_of.walk -> 'seen')::bigint)
    from known k cross join lateral (
        select o.* from live_jobs o where o.id between k.id and k.id offset 0) j
    where j.queue_name = _taken_of.queue_name and j.ready_at is not null;
end;

-- The next jobs of one kind that are parked in a queue after a place, and their places.
create or replace function _next_parked(queue_name text, task text, flags text, place _span, up_to integer)
    returns table (tid tid, key _span)
    language sql stable
begin atomic
    select n.ctid, row(n.priority, n.run_at, n.id, null, null, null)::_span
    from unnest(_spans_after(array[_next_parked.place])) s
    cross join lateral (
        select p.ctid, p.priority, p.run_at, p.id from live_jobs p
        where p.queue_name = _next_parked.queue_name and p.parked = 'queue'
          and p.task_identifier = _next_parked.task
          and coalesce(p.flags::text, '') collate "C" = _next_parked.flags
          and (p.priority, p.run_at, p.id) > (s.priority, s.ready_at, s.id)
          and (p.priority, p.run_at, p.id) <= (s.to_priority, s.to_ready_at, s.to_id)
        order by p.queue_name, p.task_identifier, coalesce(p.flags::text, '') collate "C",
                 p.priority, p.run_at, p.id
        limit _next_parked.up_to) n
    limit _next_parked.up_to;
end;

-- A row if jobs of another kind are parked in a queue.
create or replace function _parked_of_other_kinds(queue_name text, task text, flags text)
    returns table (id bigint)
    language sql stable
begin atomic
    (select o.id from live_jobs o
     where o.queue_name = _parked_of_other_kinds.queue_name and o.parked = 'queue'
       and (o.task_identifier, coalesce(o.flags::text, '') collate "C")
           < (_parked_of_other_kinds.task, _parked_of_other_kinds.flags)
     order by o.queue_name, o.task_identifier, coalesce(o.flags::text, '') collate "C",
              o.priority, o.run_at, o.id limit 1)
    union all
    (select o.id from live_jobs o
     where o.queue_name = _parked_of_other_kinds.queue_name and o.parked = 'queue'
       and (o.task_identifier, coalesce(o.flags::text, '') collate "C")
           > (_parked_of_other_kinds.task, _parked_of_other_kinds.flags)
     order by o.queue_name, o.task_identifier, coalesce(o.flags::text, '') collate "C",
              o.priority, o.run_at, o.id limit 1);
end;
