-- limits/locked: jobs that another session has locked, perhaps for long, hold up no others of their queue.
--
-- Claims and promotions pass over locked jobs (SKIP LOCKED). But a locked candidate still stands where
-- candidates are counted, and no claim that passes over it sees that its queue has others to offer. So a
-- claim that finds too few jobs, and each sweep, looks for such candidates, and fills their queues as if they
-- were not there. A locked job that has a slot keeps it.

-- Leaves a request for each of these queues, since some of their parked jobs are locked. `after` is 1, a
-- transaction that ended long ago: each promotion answers the request, but it calls for none. Until no
-- request is left, workers look each quarter of a second.
create or replace function _ask_for_locked(queue_names text[]) returns void
    language plpgsql set search_path from current
as $$
begin
    insert into promotion_requests (lane, after)
    select distinct 'queue:' || n.name, '1'::xid8 from unnest(queue_names) n(name);
end;
$$;

-- Which of the first waiting jobs of these queues other sessions have locked. A row may have been locked by
-- a transaction that has ended (xmax), so this tries to lock it. The exception block undoes that at once.
create or replace function _locked_in(queue_names text[]) returns tid[]
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off
    set enable_sort = off set enable_incremental_sort = off set jit = off
as $$
declare
    v_most constant integer := 300;
    v_touched tid[] := array(
        select w.tid from unnest(queue_names) q(name)
        cross join lateral (
            (select c.ctid as tid, c.xmax from live_jobs c
             where c.queue_name = q.name and c.ready_at is not null and c.state = 'available'
               and c.has_slot is null
             order by c.queue_name, c.priority, c.run_at, c.id limit v_most)
            union all
            (select p.ctid, p.xmax from live_jobs p where p.queue_name = q.name and p.parked = 'queue'
             order by p.queue_name, p.task_identifier, coalesce(p.flags::text, '') collate "C",
                      p.priority, p.run_at, p.id limit v_most)) w
        where w.xmax::text <> '0');
    v_free tid[];
begin
    if v_touched = '{}' then
        return v_touched;
    end if;
    begin
        v_free := array(
            select j.ctid from live_jobs j where j.ctid = any (v_touched) for update skip locked);
        raise sqlstate 'PW099';
    exception when sqlstate 'PW099' then
        return array(select t.tid from unnest(v_touched) t(tid) where t.tid <> all (v_free));
    end;
end;
$$;

-- What _make_candidates does where some of the jobs that it wanted are locked: passes over them.
create or replace function _make_candidates_behind(
    queue_names text[], asked integer, wanted integer, tasks text[]) returns integer
    language plpgsql set search_path from current
as $$
declare
    v_names constant text[] := array(select distinct n.name from unnest(queue_names) n(name));
    v_locked constant tid[] := _locked_in(v_names);
begin
    perform _ask_for_locked(v_names);
    return case when v_locked = '{}' then 0
                else _make_candidates(v_names, asked, wanted, tasks, v_locked) end;
end;
$$;

-- Looks at the first 1,000 jobs that a claim with these filters would find, except in `closed` queues, and at
-- the first 100 that wait for a rate and are overdue. Fills the queues whose jobs are locked there; returns
-- how many became candidates.
create or replace function _pass_over_locked(
    closed text[], task_identifiers text[], queue_names text[], forbidden_flags text[]) returns integer
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off
    set enable_sort = off set enable_incremental_sort = off set jit = off
as $$
declare
    v_now constant timestamptz := clock();
    v_names text[] := array(
        select distinct f.queue_name from (
            (select j.queue_name, j.xmax from live_jobs j
             where j.ready_at is not null and j.state = 'available'
               and (task_identifiers is null or j.task_identifier = any (task_identifiers))
               and (_pass_over_locked.queue_names is null
                    or j.queue_name = any (_pass_over_locked.queue_names))
               and (forbidden_flags is null or j.flags is null or not j.flags ?| forbidden_flags)
               and (closed is null or coalesce(j.queue_name, 'default') <> all (closed))
               and j.has_slot is null
             order by j.priority, j.ready_at, j.id limit 1000)
            union all
            (select d.queue_name, d.xmax from live_jobs d where d.due_at <= v_now and d.parked = 'queue'
             order by d.due_at, d.id limit 100)) f
        where f.xmax::text <> '0' and f.queue_name is not null limit 100);
    v_paced text[];
    v_ranked text[];
    v_slots integer[];
begin
    if v_names = '{}' then
        return 0;
    end if;
    select array_agg(q.queue_name) filter (where q.paced), array_agg(q.queue_name) filter (where not q.paced),
           array_agg(q.slots) filter (where not q.paced)
    into v_paced, v_ranked, v_slots
    from (select q.queue_name, q.paced, q.slots from _queues_of(v_names) q
          where (q.paced or q.slots > 100) and exists (select from _parked_in(q.queue_name, 1))
          offset 0) q
    where _try_lane('queue:' || q.queue_name);
    return case when v_paced is null then 0
                else _make_candidates(v_paced, null, 0, '{}', _locked_in(v_paced)) end
        + case when v_ranked is null then 0 else _fill_queues(v_ranked, v_slots) end;
end;
$$;

-- The same for a claim that finds fewer jobs than it wants. `asking`: the queues of those that it has found,
-- with which it goes on anyway (limits/rates).
create or replace function _look_behind_locked(
    inout claim _claim, asking text[], task_identifiers text[], queue_names text[], forbidden_flags text[])
    language plpgsql set search_path from current
as $$
declare
    v_read constant bigint := _entries_read('live_jobs_ready');
begin
    if coalesce(cardinality(claim.ids), 0) < claim.wanted then
        claim.must_promote := _pass_over_locked(
            claim.closed || array_remove(asking, null), task_identifiers, queue_names, forbidden_flags) > 0;
        claim.read := claim.read + _entries_read('live_jobs_ready') - v_read; -- no part of its walk
    end if;
end;
$$;
