-- 34_edges: how a child learns that its parents have ended.
--
-- The session that ends a parent marks its edges as met, in a second statement, which sees the edges
-- that were committed until then. An add whose parents were there before it leaves a request, which
-- looks at each of them: so of the add and the end, the one that commits last tells the child.
--
-- A child may have many parents. Of its open edges the one with the highest parent id is its last. An
-- end leaves a request only for a child of which no later edge is open. The promotion of that request
-- looks at the last open edge:
--
--   there is none            nothing is left to wait for: the child is placed as a new job is
--   its parent is locked     the session that ends it may not have seen that it is the last: ask again
--   else                     the end of that parent will leave a request
--
-- So of a large fan-in, nearly every end costs one update and one look-up, and no end waits for another.
--
-- The lanes of these requests have a job_id and need no lock (31_lanes): the child's row is locked instead.
--   child        look at each parent
--   met          look at the last open edge
--   unmet        a parent has ended in another way: cancel the child if it says so
--   parent       the parent has ended in a session that could not tell
--   signal       a signal was sent, or the job has begun to wait for one (36_steps)
create or replace function _job_lanes() returns text[]
    language sql immutable
    return array['child', 'met', 'parent', 'signal', 'unmet'];

-- Tells the children of jobs that the caller has ended, in this state, in an earlier statement.
-- `reports`, `runs` and `results`: what their workers reported, if they have.
create or replace function _tell_children(
    parent_ids bigint[], state text, reports bigint[] default null, runs bigint[] default null,
    results jsonb[] default null)
    returns void
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
    set jit = off set plan_cache_mode = force_generic_plan
as $$
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        -- A snapshot that may be too old to show every edge: a later promotion tells.
        insert into promotion_requests (lane, job_id) select 'parent', p.id from unnest(parent_ids) p(id);
        perform _notify_workers();
        return;
    end if;
    with edge as materialized (
        select e.* from unnest(parent_ids) p(id)
        cross join lateral (
            select o.ctid as tid, o.child_id, o.parent_id, o.cancels,
                   _meets(o.condition, _tell_children.state) as meets
            from edges o where o.parent_id = p.id and o.met is null offset 0) e),
    free as materialized ( -- another session may be deleting them
        select l.ctid as tid from edges l where l.ctid = any (array(select e.tid from edge e))
        for update skip locked),
    met as (
        update edges o
        set met = _tell_children.state,
            result = coalesce(
                (select f.result from finished_jobs f where f.id = o.parent_id),
                (select r.result from unnest(reports, runs, results) r(id, run, result)
                 where r.id = o.parent_id order by r.run desc limit 1))
        from edge e join free f on f.tid = e.tid
        where o.ctid = e.tid and e.meets
        returning o.child_id, o.revision, o.parent_id)
    insert into promotion_requests (lane, job_id)
    select 'met', m.child_id
    from (select t.child_id, t.revision, max(t.parent_id) as last from met t group by 1, 2) m
    where not exists (
        select from edges o
        where o.child_id = m.child_id and o.revision = m.revision and o.met is null and o.parent_id > m.last)
    union
    select 'unmet', e.child_id from edge e where e.cancels and not e.meets
    union
    select 'parent', e.parent_id from edge e where e.tid <> all (array(select f.tid from free f));
    if found then
        perform _notify_workers();
    end if;
end;
$$;

-- The same, at no cost for a completed job in a database without dependencies; and tells callers that
-- wait for these ends. Of a job that no table has any more, this deletes the edges to its parents, and
-- notes that it counts as cancelled unless it was completed.
create or replace function _tell_of_end(
    parent_ids bigint[], state text, reports bigint[] default null, runs bigint[] default null,
    results jsonb[] default null)
    returns void
    language plpgsql set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_gone bigint[];
begin
    if parent_ids is null then
        return;
    end if;
    if _jobs_are_awaited() then
        perform _notify_waiters(parent_ids);
    end if;
    if _coordination_is_used() then
        perform _tell_children(parent_ids, state, reports, runs, results);
    end if;
    if state <> 'cancelled' and not _coordination_is_used() then
        return; -- it left no trace that the first add with depends_on could miss
    end if;
    v_gone := array(
        select p.id from unnest(parent_ids) p(id)
        where not exists (select from finished_jobs f where f.id = p.id)
          and not exists (select from live_jobs j where j.id = p.id));
    if v_gone <> '{}' then
        perform _forget_jobs(v_gone, case when state <> 'completed' then v_gone end);
    end if;
end;
$$;

-- Notes which of these deleted or pruned jobs were not completed, and deletes their edges to parents,
-- their steps, signals and progress. The notes are written in every database: while this transaction is
-- open, another one may add the first job with depends_on. A session that ends a parent may have some
-- edges locked: those stay, and do no harm.
create or replace function _forget_jobs(job_ids bigint[], failed bigint[]) returns void
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
begin
    insert into vanished_parents select i.id, clock() from unnest(failed) i(id) on conflict do nothing;
    if not _coordination_is_used() then
        return;
    end if;
    delete from edges e where e.ctid = any (array(
        select d.ctid from edges d where d.child_id = any (job_ids) for update skip locked));
    delete from steps s where s.job_id = any (job_ids);
    delete from signals s where s.job_id = any (job_ids);
    delete from progress p where p.job_id = any (job_ids);
end;
$$;

-- True if another job waits for this one, so that history must keep it.
create or replace function _is_awaited(job_id bigint) returns boolean
    language plpgsql stable set search_path from current set enable_seqscan = off set jit = off
as $$
begin
    return _coordination_is_used() and exists (
        select from edges e join live_jobs j on j.id = e.child_id and j.revision = e.revision
        where e.parent_id = _is_awaited.job_id and e.met is null and j.parked = 'unmet');
end;
$$;

-- Deletes the notes of jobs that vanished a day ago: no add that named them is open any more. And signals
-- that were sent while their job was being deleted.
create or replace function _prune_vanished(max_rows integer) returns void
    language plpgsql set search_path from current set enable_seqscan = off set jit = off
as $$
begin
    delete from vanished_parents v where v.id = any (array(
        select d.id from vanished_parents d
        where d.at < clock() - interval '1 day'
          and not exists (select from edges e where e.parent_id = d.id and e.met is null)
        order by d.at limit max_rows for update skip locked));
    delete from signals s where s.id = any (array(
        select o.id from (select l.id, l.job_id from signals l order by l.id limit max_rows) o
        where not exists (select from live_jobs j where j.id = o.job_id)
          and not exists (select from finished_jobs f where f.id = o.job_id)));
end;
$$;

-- Handles the oldest requests that name a job; returns how many jobs became available to claims.
create or replace function _promote_waiting(walked bigint) returns integer
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
    set enable_sort = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_children bigint[];
    v_met bigint[];
    v_parents bigint[];
    v_signalled bigint[];
    v_unmet bigint[];
begin
    with asked as (
        delete from promotion_requests w where w.ctid = any (array(
            select r.tid from unnest(_job_lanes()) l(lane)
            cross join lateral (
                select o.ctid as tid from promotion_requests o
                where o.lane = l.lane and o.id > walked
                order by o.lane, o.id limit 1000 for update skip locked) r))
        returning w.lane, w.job_id)
    select array_agg(distinct a.job_id) filter (where a.lane = 'child'),
           array_agg(distinct a.job_id) filter (where a.lane in ('child', 'met')),
           array_agg(distinct a.job_id) filter (where a.lane = 'parent'),
           array_agg(distinct a.job_id) filter (where a.lane = 'signal'),
           array_agg(distinct a.job_id) filter (where a.lane = 'unmet')
    into v_children, v_met, v_parents, v_signalled, v_unmet from asked a;
    perform _tell_of_ended(v_parents) where v_parents is not null;
    perform _look_at_parents(v_children) where v_children is not null;
    perform _cancel_unmet(v_unmet) where v_unmet is not null;
    return case when v_met is null then 0 else _place_children(v_met) end
         + case when v_signalled is null then 0 else _resume_waits(v_signalled) end;
end;
$$;

-- The state in which a job has ended; null if it has not. A job without a trace was completed, and its
-- task keeps no history: a job that is deleted, or cancelled without history, leaves a trace.
create or replace function _ended_as(job_id bigint) returns text
    language plpgsql stable set search_path from current set enable_seqscan = off set jit = off
as $$
begin
    return nullif(coalesce(
        (select case when j.state = 'discarded' then j.state else '' end
         from live_jobs j where j.id = job_id),
        (select f.state from finished_jobs f where f.id = job_id),
        (select 'cancelled' from vanished_parents v where v.id = job_id),
        'completed'), '');
end;
$$;

-- Tells the children of those of these jobs that have ended.
create or replace function _tell_of_ended(job_ids bigint[]) returns void
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
begin
    perform _tell_children(array_agg(e.id), e.state)
    from (select p.id, _ended_as(p.id) as state from unnest(job_ids) p(id) offset 0) e
    where e.state is not null group by e.state;
end;
$$;

-- Looks at each parent of these children, which may have ended before it could see the edge. A parent
-- that another session has locked may be ending: then this leaves another request.
create or replace function _look_at_parents(child_ids bigint[]) returns void
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
    set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_ended bigint[];
    v_touched bigint[];
    v_locked bigint[];
begin
    select array_agg(distinct e.parent_id) filter (where p.id is null or p.state = 'discarded'),
           array_agg(distinct e.parent_id) filter (where p.touched)
    into v_ended, v_touched
    from unnest(child_ids) c(id)
    join live_jobs j on j.id = c.id and j.parked = 'unmet'
    join edges e on e.child_id = j.id and e.revision = j.revision and e.met is null
    left join lateral (
        select i.id, i.state, i.xmax::text <> '0' as touched
        from live_jobs i where i.id = e.parent_id offset 0) p on true;
    v_locked := _locked_of(v_touched);
    if v_locked <> '{}' then
        insert into promotion_requests (lane, job_id)
        select distinct 'child', e.child_id from edges e
        where e.parent_id = any (v_locked) and e.met is null and e.child_id = any (child_ids);
    end if;
    if v_ended is not null then
        perform _tell_of_ended(v_ended);
    end if;
end;
$$;

-- Those of these live jobs that another session has locked. The exception block releases the locks at
-- once, since an end must not wait for a claiming transaction.
create or replace function _locked_of(job_ids bigint[]) returns bigint[]
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
            select j.id from live_jobs j where j.id = any (job_ids) order by j.id + 0 for share skip locked);
        raise sqlstate 'PW099';
    exception when sqlstate 'PW099' then
        null;
    end;
    return array(select i.id from unnest(job_ids) i(id) where i.id <> all (v_free));
end;
$$;

-- Cancels those of these children that are to be cancelled since a parent has ended in another way.
create or replace function _cancel_unmet(child_ids bigint[]) returns void
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_waiting bigint[] := array(
        select j.id from unnest(child_ids) c(id) join live_jobs j on j.id = c.id and j.parked = 'unmet'
        where exists (
            select from edges e
            where e.child_id = j.id and e.revision = j.revision and e.met is null and e.cancels
              and _meets(e.condition, _ended_as(e.parent_id)) is false
              and _ended_as(e.parent_id) is not null));
    v_held bigint[] := array(
        select j.id from live_jobs j where j.id = any (v_waiting) and j.parked = 'unmet'
        order by j.id + 0 for update skip locked);
begin
    insert into promotion_requests (lane, job_id)
    select 'unmet', w.id from unnest(v_waiting) w(id) where w.id <> all (v_held);
    if v_held <> '{}' then
        perform _finalize_jobs(v_held, null, 'cancelled', null, 'dependency', 'a job that it depends on');
    end if;
end;
$$;

-- Places those of these children whose dependencies all hold; returns how many became available.
create or replace function _place_children(child_ids bigint[]) returns integer
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
    set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_now timestamptz := clock();
    v_free bigint[];
    v_touched bigint[]; -- parents of last open edges, and their children
    v_waiting bigint[];
    v_locked bigint[];
    v_ready bigint[];
begin
    select array_agg(j.id) filter (where o.parent_id is null),
           array_agg(o.parent_id) filter (where o.touched), array_agg(j.id) filter (where o.touched)
    into v_free, v_touched, v_waiting
    from unnest(child_ids) c(id)
    join live_jobs j on j.id = c.id and j.parked = 'unmet'
    left join lateral (
        select e.parent_id, p.touched
        from (select l.parent_id from edges l
              where l.child_id = j.id and l.revision = j.revision and l.met is null
              order by l.child_id desc, l.revision desc, l.parent_id desc limit 1) e
        left join lateral (
            select i.xmax::text <> '0' as touched
            from live_jobs i where i.id = e.parent_id) p on true) o on true;
    v_locked := _locked_of(v_touched);
    with free as materialized (
        select j.ctid as tid, j.id, j.queue_name, j.run_at, j.sequence_key from live_jobs j
        where j.id = any (v_free) and j.parked = 'unmet' for update skip locked),
    placed as (
        update live_jobs j
        set state = f.state, parked = f.parked, ready_at = f.ready_at, due_at = f.due_at, updated_at = v_now
        from (select l.tid, p.* from free l
              cross join lateral _place(
                  l.run_at, v_now, _held(l.sequence_key), _is_limited(l.queue_name)) p) f
        where j.ctid = f.tid
        returning j.id, j.ready_at, _lane_of(j.parked, j.queue_name, j.sequence_key) as lane),
    asked as (
        insert into promotion_requests (lane, job_id)
        select distinct p.lane, null::bigint from placed p where p.lane is not null
        union all
        select 'met', u.id from unnest(v_free) u(id) where u.id not in (select f.id from free f)
        union all
        select distinct 'met', w.id from unnest(v_waiting, v_touched) w(id, parent_id)
        where w.parent_id = any (v_locked))
    select array_agg(p.id) filter (where p.ready_at is not null) into v_ready from placed p;
    perform _arrive_late(v_ready);
    return coalesce(cardinality(v_ready), 0);
end;
$$;

-- 'unmet' if an edge of this job is open.
create or replace function _unmet(job live_jobs) returns text
    language plpgsql stable set search_path from current set enable_seqscan = off set jit = off
as $$
begin
    return case when _coordination_is_used() and exists (
        select from edges e where e.child_id = job.id and e.revision = job.revision and e.met is null)
        then 'unmet' end;
end;
$$;
