-- features/edges: how a child learns that its parents have ended.
--
-- An end of a parent writes nothing into its edges: that it has ended shows by its place, in history and
-- not in live_jobs. So a child need not hear of each end. It watches one of its open edges (`watches`). The
-- end of that parent, and no other, leaves a request, in a second statement, which sees the watches that
-- were committed until then. The promotion of the request looks at the child (_place_children):
--
--   no edge is open          nothing is left to wait for: the child is placed as a new job is
--   the watch's is open      nothing to do. But if its parent is locked, the session that ends it may not
--                            have seen the watch: ask again
--   else                     the child watches another open edge, and asks again, after the commit
--
-- So of a watch and an end, the one that commits last tells the child, no end waits for another, and of a
-- large fan-in nearly every end costs one look-up. `from_id` of a watch is how far the look has come: the
-- edges to parents with lower ids are met. An extension of a batch adds a watch of its own (batches).
--
-- What an end shows must outlast its job: _settle_edges writes it into the edges before a job comes back
-- from history or is deleted, and when a job ends cancelled or discarded, which is rare.
--
-- The lanes of these requests have a job_id and need no lock (queues/lanes): the child's row is locked. The
-- transaction that has written what a request is about does not answer it itself (`later`): an end that does
-- not see the writing yet would be missed.
--   child        look whether an edge is open
--   unmet        a parent may have ended in another way: cancel the child if it says so
--   parent       the parent has ended in a session that could not tell
--   signal       a signal was sent, or the job has begun to wait for one (features/steps)

-- The open edges of a child, from this parent's id on: the parent has not ended, or not as it must.
-- `touched`: an open transaction may have the parent's row locked.
create or replace function _open_edges(child_id bigint, revision integer, from_id bigint)
    returns table (
        parent_id bigint, condition text, ref text, cancels boolean, touched boolean, ended boolean)
    language sql stable
begin atomic
    select e.parent_id, e.condition, e.ref, e.cancels, p.touched, p.state is null or p.state = 'discarded'
    from edges e
    left join lateral (
        -- A row that several subtransactions have locked has a MultiXact there. In most databases the numbers
        -- of transactions are higher.
        select i.state, i.xmax <> '0' and (mxid_age(i.xmax) > 0 or age(i.xmax) <= age(
                   pg_snapshot_xmin(pg_current_snapshot())::xid)) as touched
        from live_jobs i where i.id = e.parent_id offset 0) p on true
    where e.child_id = _open_edges.child_id and e.revision = _open_edges.revision
      and e.parent_id >= _open_edges.from_id and e.met is null
      and case when p.state <> 'discarded' then true
               when p.state is null and e.condition = 'end' then false
               else not _meets(e.condition, coalesce(
                   p.state, (select f.state from finished_jobs f where f.id = e.parent_id),
                   (select 'cancelled' as state from vanished_parents v where v.id = e.parent_id),
                   'completed')) end;
end;

-- The first open edge of a child, from this parent's id on; null if there is none. It looks up many parents
-- at once, more each time, and then looks at the edges of those only that may leave one open. Stable, so it
-- sees all tables as of one moment.
create or replace function _first_open(child_id bigint, revision integer, from_id bigint) returns bigint
    language plpgsql stable set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
    set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_many integer := 250;
    v_parents bigint[];
    v_picky bigint[]; -- for whose edges it matters how they ended
    v_failures bigint[];
    v_open bigint;
begin
    loop
        select array_agg(e.parent_id), array_agg(e.parent_id) filter (where e.condition <> 'end'),
               array_agg(e.parent_id) filter (where e.condition = 'failure')
        into v_parents, v_picky, v_failures
        from (select o.parent_id, o.condition from edges o
              where o.child_id = _first_open.child_id and o.revision = _first_open.revision
                and o.parent_id >= from_id and o.met is null
              order by o.child_id, o.revision, o.parent_id limit v_many) e;
        select p.id into v_open
        from (select j.id from live_jobs j where j.id = any (v_parents)
              union all
              select f.id from finished_jobs f where f.id = any (v_picky) and f.state <> 'completed'
              union all
              select v.id from vanished_parents v where v.id = any (v_picky)
              union all
              select u.id from unnest(v_failures) u(id)
              order by 1) p
        where exists (select from _open_edges(_first_open.child_id, _first_open.revision, p.id) o
                      where o.parent_id = p.id offset 0) limit 1;
        exit when v_open is not null or v_parents is null or cardinality(v_parents) < v_many;
        from_id := v_parents[v_many]; -- again: a parent may have several edges
        v_many := 2 * v_many;
    end loop;
    return v_open;
end;
$$;

-- From which parent's id on an open edge may be found. Null if the child waits for none.
create or replace function _open_from(child_id bigint, revision integer) returns bigint
    language sql stable
    return (select min(w.from_id) from watches w
            where w.child_id = _open_from.child_id and w.revision = _open_from.revision);

-- Tells the children of jobs that have ended in this state in an earlier statement.
create or replace function _tell_children(parent_ids bigint[], state text) returns void
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
    set enable_sort = off set enable_incremental_sort = off set jit = off
    set plan_cache_mode = force_generic_plan
as $$
declare
    v_told boolean;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        -- A snapshot that may be too old to show every watch: a later promotion tells.
        insert into promotion_requests (lane, job_id) select 'parent', p.id from unnest(parent_ids) p(id);
        perform _notify_workers();
        return;
    end if;
    insert into promotion_requests (lane, job_id)
    select distinct case when w.from_id is null then 'unmet' else 'child' end, w.child_id
    from unnest(parent_ids) p(id)
    cross join lateral (
        select o.from_id, o.child_id from watches o where o.parent_id = p.id offset 0) w;
    v_told := found;
    if state <> 'completed' then
        perform _settle_edges(parent_ids, state);
        insert into promotion_requests (lane, job_id)
        select distinct 'unmet', e.child_id
        from unnest(parent_ids) p(id)
        cross join lateral (
            select o.child_id, o.condition from edges o
            where o.parent_id between p.id and p.id and o.met is null and o.cancels
            order by o.parent_id offset 0) e
        where not _meets(e.condition, _tell_children.state);
        v_told := v_told or found;
    end if;
    if v_told then
        perform _notify_workers();
    end if;
end;
$$;

-- The same, at no cost for a job that history keeps in a database without dependencies; and tells callers
-- that wait for these ends, and, if the settings say so, those who listen for discarded jobs. `gone`: those
-- of the jobs that no table has any more. They count as cancelled, unless they were completed; this keeps
-- their results for their children, and deletes what they leave here.
create or replace function _tell_of_end(
    parent_ids bigint[], state text, gone bigint[] default null, results jsonb[] default null) returns void
    language plpgsql set search_path from current
as $$
begin
    if parent_ids is null then
        return;
    end if;
    if _jobs_are_awaited() then
        perform _notify(w.job_id::text, '_ended')
        from (select distinct i.job_id from waiters i where i.job_id = any (parent_ids)) w;
    end if;
    if state = 'discarded' and (select s.notify_discarded from settings s) then
        perform _notify(i.id::text, '_discarded') from unnest(parent_ids) i(id);
    end if;
    if _coordination_is_used() then
        perform _tell_children(parent_ids, state);
        perform _settle_edges(gone, state, results) where gone is not null and state = 'completed';
    end if;
    if gone is not null then
        perform _forget_jobs(gone, case when state <> 'completed' then gone end);
    end if;
end;
$$;

-- Writes into the edges of jobs that have ended in this state that they are met, and what the jobs returned.
-- A session that deletes a child has its edges locked: those stay as they are.
create or replace function _settle_edges(parent_ids bigint[], state text, results jsonb[] default null)
    returns void
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off
    set enable_sort = off set enable_incremental_sort = off
    set jit = off set plan_cache_mode = force_generic_plan
as $$
begin
    if not _coordination_is_used() then
        return;
    end if;
    with edge as materialized ( -- between, order by: by the index of parents, with any statistics
        select o.tid, p.result from unnest(parent_ids, results) p(id, result)
        cross join lateral (
            select e.ctid as tid, e.condition from edges e
            where e.parent_id between p.id and p.id and e.met is null order by e.parent_id offset 0) o
        where _meets(o.condition, _settle_edges.state)),
    free as materialized (
        select l.ctid as tid from edges l where l.ctid = any (array(select e.tid from edge e))
        for update skip locked)
    update edges o set met = _settle_edges.state, result = e.result
    from edge e join free f on f.tid = e.tid where o.ctid = e.tid;
end;
$$;

-- Notes which of these deleted or pruned jobs were not completed, and deletes what depends on them. The notes
-- are written in every database: while this transaction is open, another one may add the first job with
-- depends_on. A session that settles edges may have some locked: those stay, and do no harm.
create or replace function _forget_jobs(job_ids bigint[], failed bigint[]) returns void
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_now constant timestamptz := clock();
begin
    insert into vanished_parents select i.id, v_now from unnest(failed) i(id) on conflict do nothing;
    if not _coordination_is_used() then
        return;
    end if;
    delete from edges e where e.ctid = any (array(
        select d.ctid from edges d where d.child_id = any (job_ids) for update skip locked));
    delete from watches w where w.child_id = any (job_ids);
    delete from steps s where s.job_id = any (job_ids);
    delete from signals s where s.job_id = any (job_ids);
    delete from progress p where p.job_id = any (job_ids);
    delete from log_lines l where l.job_id = any (job_ids);
end;
$$;

-- True if a live job has an unmet edge to this one; `parked`: only if it is parked like that. One look-up for
-- each edge, with any statistics.
create or replace function _waits_for(parent_id bigint, parked text) returns boolean
    language plpgsql stable set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
    set enable_sort = off set enable_incremental_sort = off
    set jit = off set plan_cache_mode = force_generic_plan
as $$
begin
    return exists (
        select from (
            select e.child_id, e.revision from edges e
            where e.parent_id between _waits_for.parent_id and _waits_for.parent_id and e.met is null
            order by e.parent_id offset 0) e
        cross join lateral (
            select l.parked from live_jobs l where l.id = e.child_id and l.revision = e.revision offset 0) j
        where _waits_for.parked is null or j.parked = _waits_for.parked);
end;
$$;

-- Deletes the notes of jobs that vanished a day ago: no add that named them is open any more. And, of the
-- oldest signals and of others, those that were sent while their job was being deleted.
create or replace function _prune_vanished(max_rows integer) returns void
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off
    set enable_sort = off set enable_incremental_sort = off
    set jit = off
as $$
declare
    v_day_ago constant timestamptz := clock() - interval '1 day';
    v_somewhere constant bigint := random() * pg_sequence_last_value(pg_get_serial_sequence('signals', 'id'));
begin
    delete from vanished_parents v where v.id = any (array(
        select d.id from vanished_parents d
        where d.at < v_day_ago
          and ( -- not by `exists`, which would drop the order, and with it the index
              select true from edges e where e.parent_id between d.id and d.id and e.met is null
              order by e.parent_id limit 1) is null
        order by d.at limit max_rows for update skip locked));
    delete from signals s where s.id = any (array(
        select o.id from (
            (select l.id, l.job_id from signals l order by l.id limit 500)
            union all
            (select l.id, l.job_id from signals l where l.id > v_somewhere order by l.id limit 500)) o
        where not exists (select from live_jobs j where j.id = o.job_id)
          and not exists (select from finished_jobs f where f.id = o.job_id)));
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

-- 'unmet' if an edge of this job is open. Then it has a watch.
create or replace function _unmet(job live_jobs) returns text
    language plpgsql stable set search_path from current set enable_seqscan = off set jit = off
as $$
begin
    return case when _coordination_is_used() and exists (
        select from _open_edges(job.id, job.revision, _open_from(job.id, job.revision))) then 'unmet' end;
end;
$$;
