-- features/children: the promotion of jobs that wait for others or for signals (features/edges).

-- In a pass: answers requests that name a job; `sinces`: since when they have been asked. `opened`: how many
-- jobs became available to claims; `sequences`, `queues`: where the others wait now.
create or replace function _answer_jobs(
    asked text[], job_ids bigint[], sinces timestamptz[], out opened integer, out sequences text[],
    out queues text[])
    language plpgsql set search_path from current
as $$
declare
    v_lanes text[];
    v_asked record;
    v_placed record;
begin
    select array_agg(distinct a.job_id) filter (where a.lane = 'child') as children,
           min(a.since) filter (where a.lane = 'child') as since,
           array_agg(distinct a.job_id) filter (where a.lane = 'parent') as parents,
           array_agg(distinct a.job_id) filter (where a.lane = 'signal') as signalled,
           array_agg(distinct a.job_id) filter (where a.lane = 'unmet') as unmet
    into v_asked from unnest(asked, job_ids, sinces) a(lane, job_id, since);
    opened := 0;
    perform _tell_children(array_agg(e.id), e.state)
    from (select p.id, _ended_as(p.id) as state from unnest(v_asked.parents) p(id) offset 0) e
    where e.state is not null group by e.state;
    perform _cancel_unmet(v_asked.unmet) where v_asked.unmet is not null;
    if v_asked.children is not null then
        v_placed := _place_children(v_asked.children, v_asked.since);
        opened := v_placed.opened;
        v_lanes := v_placed.lanes;
    end if;
    if v_asked.signalled is not null then
        v_placed := _resume_waits(v_asked.signalled);
        opened := opened + v_placed.opened;
        v_lanes := v_lanes || v_placed.lanes;
    end if;
    select array_agg(substr(l.lane, 10)) filter (where starts_with(l.lane, 'sequence:')),
           array_agg(substr(l.lane, 7)) filter (where starts_with(l.lane, 'queue:'))
    into sequences, queues from unnest(v_lanes) l(lane);
end;
$$;

-- Those of these live jobs that another session has locked, or that have ended since the caller saw them.
-- `discarded`: those that it saw discarded. The exception block releases the locks at once, since an end must
-- not wait for a claiming transaction.
create or replace function _locked_of(job_ids bigint[], discarded bigint[]) returns bigint[]
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off
    set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_free bigint[];
begin
    if job_ids is null then
        return array[]::bigint[];
    end if;
    begin
        v_free := array(
            select j.id from live_jobs j
            where j.id = any (job_ids) and (j.state <> 'discarded' or j.id = any (discarded))
            order by j.id + 0 for share skip locked);
        raise sqlstate 'PW099';
    exception when sqlstate 'PW099' then
        null;
    end;
    return array(select i.id from unnest(job_ids) i(id) where i.id <> all (v_free));
end;
$$;

-- Cancels those of these children that are to be cancelled since a parent has ended in another way. A parent
-- that another session has locked may be ending: then this leaves another request.
create or replace function _cancel_unmet(child_ids bigint[]) returns void
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off
    set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_now timestamptz := clock();
    v_unmet bigint[];
    v_touched bigint[]; -- parents, and their children
    v_waiting bigint[];
    v_discarded bigint[]; -- of these parents
    v_held bigint[];
    v_locked bigint[];
begin
    select array_agg(distinct j.id) filter (where o.ended), array_agg(o.parent_id) filter (where o.touched),
           array_agg(j.id) filter (where o.touched),
           array_agg(o.parent_id) filter (where o.touched and o.ended)
    into v_unmet, v_touched, v_waiting, v_discarded
    from unnest(child_ids) c(id) join live_jobs j on j.id = c.id and j.parked = 'unmet'
    cross join lateral _open_edges(j.id, j.revision, 0) o where o.cancels;
    v_held := array(
        select j.id from live_jobs j where j.id = any (v_unmet) and j.parked = 'unmet'
        order by j.id + 0 for update skip locked);
    v_locked := _locked_of(v_touched, v_discarded);
    insert into promotion_requests (lane, job_id, at, later)
    select 'unmet', w.id, v_now + interval '0.05 s', true from unnest(v_unmet) w(id)
    where w.id <> all (v_held)
    union
    select 'unmet', w.id, v_now + interval '0.05 s', true from unnest(v_waiting, v_touched) w(id, parent_id)
    where w.parent_id = any (v_locked) and w.id <> all (v_held);
    if v_held <> '{}' then
        perform _finalize_jobs(v_held, null, 'cancelled', null, 'dependency', 'a job that it depends on');
    end if;
end;
$$;

-- Places those of these children whose dependencies all hold, and sees to it that the others watch one that
-- does not. `since`: when this was asked for. `opened`: how many became available; `lanes`: where others
-- wait.
create or replace function _place_children(
    child_ids bigint[], since timestamptz, out opened integer, out lanes text[])
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
    set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_now timestamptz := clock();
    v_held bigint[];
    v_free bigint[];
    v_waiting bigint[];
    v_first bigint[]; -- their first open edges
begin
    -- An extension of a batch has its callback locked.
    v_held := array(
        select j.id from live_jobs j where j.id = any (child_ids) and j.parked = 'unmet'
        order by j.id + 0 for update skip locked);
    if cardinality(v_held) < cardinality(child_ids) then
        insert into promotion_requests (lane, job_id, at, since, later)
        select 'child', j.id, v_now + make_interval(secs => _growing(since)), since, true from live_jobs j
        where j.id = any (child_ids) and j.parked = 'unmet' and j.id <> all (v_held);
    end if;
    with child as materialized (
        select j.id, case when w.to_id - w.from_id >= 50 then _first_open(j.id, j.revision, w.from_id)
                     else (select o.parent_id from _open_edges(j.id, j.revision, coalesce(w.from_id, 0)) o
                           order by o.parent_id limit 1) end as parent_id
        from unnest(v_held) h(id) join live_jobs j on j.id between h.id and h.id
        cross join lateral (
            select min(x.from_id) as from_id, max(x.parent_id) as to_id from watches x
            where x.child_id = j.id and x.revision = j.revision and x.from_id is not null) w),
    dropped as (
        delete from watches x where x.ctid = any (array(
            select w.ctid from child c join watches w on w.child_id = c.id where c.parent_id is null)))
    select array_agg(c.id) filter (where c.parent_id is null),
           array_agg(c.id) filter (where c.parent_id is not null),
           array_agg(c.parent_id) filter (where c.parent_id is not null)
    into v_free, v_waiting, v_first from child c;
    if v_waiting is not null then
        perform _watch_edges(v_waiting, v_first, since);
    end if;
    with placed as (
        update live_jobs j
        set state = f.state, parked = f.parked, due_at = f.due_at, updated_at = v_now,
            ready_at = case when f.ready_at is not null then v_now end
        from (select l.id, p.*
              from (select i.id, i.run_at, i.sequence_key, _must_wait(i.queue_name) as waits
                    from live_jobs i where i.id = any (v_free) offset 0) l
              cross join lateral _place(l.run_at, v_now, _held(l.sequence_key), l.waits) p) f
        where j.id between f.id and f.id
        returning j.ready_at, _lane_of(j.parked, j.queue_name, j.sequence_key) as lane)
    select count(p.ready_at), array_agg(distinct p.lane) filter (where p.lane is not null) into opened, lanes
    from placed p;
end;
$$;

-- Sees to it that these children, whose first open edges are given, watch an open edge.
-- A child whose watch is no open edge any more watches another one:
--   the first open edge, if it has a lower id than the watch: it is late
--   else the first one after the middle of those that are left, as parents tend to end in the order of their
--   ids: so a child of many parents moves its watch a few times, and looks at each edge once
--   else, of few that are left, the last one
create or replace function _watch_edges(child_ids bigint[], first_ids bigint[], since timestamptz)
    returns void
    language plpgsql set search_path from current set jit = off set plan_cache_mode = force_generic_plan
    set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
    set enable_sort = off set enable_incremental_sort = off
as $$
declare
    v_now timestamptz := clock();
    v_touched bigint[]; -- parents, and the children that watch them
    v_waiting bigint[];
    v_discarded bigint[]; -- of these parents
    v_locked bigint[];
begin
    with child as materialized (
        select j.id, j.revision, c.first_id, w.*, k.parent_id as kept_id, k.touched, k.ended
        from unnest(child_ids, first_ids) c(id, first_id)
        join live_jobs j on j.id between c.id and c.id
        cross join lateral (
            select min(x.from_id) as from_id, max(x.parent_id) as parent_id, count(*) as many from watches x
            where x.child_id = j.id and x.revision = j.revision and x.from_id is not null) w
        left join lateral (
            select o.parent_id, o.touched, o.ended from watches x
            cross join lateral (select e.* from _open_edges(j.id, j.revision, x.parent_id) e
                                where e.parent_id = x.parent_id offset 0) o -- 0: else it may read all edges
            where x.child_id = j.id and x.revision = j.revision and x.from_id is not null limit 1) k on true),
    next as materialized (
        select c.*, case when c.kept_id is not null then c.kept_id
                         when c.first_id < c.parent_id then c.first_id
                         -- The first one may have ended since: the request below finds out.
                         else coalesce(_next_watch(c.id, c.revision, c.first_id), c.first_id) end as next_id
        from child c where c.kept_id is null or c.touched or c.many > 1 or c.first_id > c.from_id),
    dropped as (
        delete from watches x where x.ctid = any (array(
            select o.ctid from next n
            join watches o on o.child_id = n.id and o.revision = n.revision and o.from_id is not null))),
    moved as (
        insert into watches (child_id, revision, from_id, parent_id)
        select n.id, n.revision, n.first_id, n.next_id from next n),
    asked as (
        insert into promotion_requests (lane, job_id, later)
        select 'child', n.id, true from next n where n.kept_id is null)
    select array_agg(n.kept_id) filter (where n.touched), array_agg(n.id) filter (where n.touched),
           array_agg(n.kept_id) filter (where n.touched and n.ended)
    into v_touched, v_waiting, v_discarded from next n;
    v_locked := _locked_of(v_touched, v_discarded);
    insert into promotion_requests (lane, job_id, at, since, later)
    select distinct 'child', w.id, v_now + make_interval(secs => _growing(_watch_edges.since)),
           _watch_edges.since, true
    from unnest(v_waiting, v_touched) w(id, parent_id) where w.parent_id = any (v_locked);
end;
$$;

-- The open edge that a child watches next, if this one is its first.
create or replace function _next_watch(child_id bigint, revision integer, first_id bigint) returns bigint
    language plpgsql stable set search_path from current set enable_seqscan = off set jit = off
    set enable_bitmapscan = off set enable_sort = off set enable_incremental_sort = off
    set plan_cache_mode = force_generic_plan
as $$
declare
    v_last bigint;
begin
    select e.parent_id into v_last from edges e
    where e.child_id = _next_watch.child_id and e.revision = _next_watch.revision
    order by e.child_id desc, e.revision desc, e.parent_id desc limit 1;
    if v_last - first_id > 1000 then
        return coalesce(_first_open(child_id, revision, first_id + (v_last - first_id) / 2), first_id);
    end if;
    return (select o.parent_id from _open_edges(child_id, revision, first_id) o
            order by o.parent_id desc limit 1);
end;
$$;
