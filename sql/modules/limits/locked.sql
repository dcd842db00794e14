-- limits/locked: jobs that another session has locked, perhaps for long, hold up no others of their queue.
--
-- Claims and promotions pass over locked jobs (SKIP LOCKED). But a locked candidate still stands where
-- candidates are counted, and no claim that passes over it sees that its queue has others to offer. So each
-- sweep looks for such candidates, and fills their queues as if they were not there. A locked job that has a
-- slot keeps it.

-- Leaves a request for each of these queues, since some of their jobs are locked. `after` is 1, a transaction
-- that ended long ago: each promotion answers the request, but it calls for none. Until no request is left,
-- workers look each quarter of a second.
create or replace function _ask_for_locked(queue_names text[], changed boolean default false) returns void
    language plpgsql set search_path from current
as $$
begin
    insert into promotion_requests (lane, after, changed)
    select l.lane, '1'::xid8, _ask_for_locked.changed
    from (select distinct 'queue:' || n.name as lane from unnest(queue_names) n(name)) l
    where not exists ( -- this session holds the lanes, so no other one takes it away
        select from promotion_requests w
        where w.lane = l.lane and w.after = '1' and w.changed = _ask_for_locked.changed);
end;
$$;

-- Those of these rows that other sessions have locked. A row may have been locked by a transaction that has
-- ended (xmax), so this tries to lock it. The exception block undoes that at once.
create or replace function _locked_of_rows(rows tid[]) returns tid[]
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_free tid[];
begin
    if rows = '{}' then
        return rows;
    end if;
    begin
        v_free := array(select j.ctid from live_jobs j where j.ctid = any (rows) for update skip locked);
        raise sqlstate 'PW099';
    exception when sqlstate 'PW099' then
        return array(select r.tid from unnest(rows) r(tid) except select f.tid from unnest(v_free) f(tid));
    end;
end;
$$;

-- Which of the first waiting jobs of these queues other sessions have locked: of the candidates, and of the
-- parked jobs of each kind.
create or replace function _locked_in(queue_names text[]) returns tid[]
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off
    set enable_sort = off set enable_incremental_sort = off set jit = off
as $$
declare
    v_most constant integer := 1000;
begin
    return _locked_of_rows(array(
        select w.tid from unnest(queue_names) q(name)
        cross join lateral (
            (select c.ctid as tid, c.xmax from live_jobs c
             where c.queue_name = q.name and c.ready_at is not null and c.state = 'available'
             order by c.queue_name, c.priority, c.run_at, c.id limit v_most)
            union all
            select p.* from _kinds_in(q.name) k
            cross join lateral (
                select i.ctid, i.xmax from live_jobs i
                where i.queue_name = q.name and i.parked = 'queue' and i.task_identifier = k.task
                  and coalesce(i.flags::text, '') collate "C" = k.flags
                order by i.queue_name, i.task_identifier, coalesce(i.flags::text, '') collate "C",
                         i.priority, i.run_at, i.id limit v_most) p) w
        where w.xmax::text <> '0'));
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

-- The same for those of these queues that take turns and whose candidates are locked.
create or replace function _take_turns_of_locked(
    queue_names text[], asked integer, wanted integer, tasks text[]) returns integer
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off
    set enable_sort = off set enable_incremental_sort = off set jit = off
as $$
declare
    v_touched tid[];
    v_names text[];
    v_locked tid[];
begin
    select array_agg(c.tid), array_agg(distinct q.name) into v_touched, v_names
    from unnest(queue_names) q(name)
    cross join lateral (
        select j.ctid as tid, j.xmax from live_jobs j
        where j.queue_name = q.name and j.ready_at is not null and j.state = 'available'
        order by j.queue_name, j.priority, j.run_at, j.id limit 10) c
    where c.xmax::text <> '0';
    if v_touched is null then
        return 0;
    end if;
    v_names := array(select q.queue_name from _queues_of(v_names) q where q.fair);
    v_locked := case when v_names = '{}' then '{}' else _locked_of_rows(v_touched) end;
    v_names := array(
        select n.name from unnest(v_names) n(name)
        where n.name in (select j.queue_name from live_jobs j where j.ctid = any (v_locked)));
    return case when v_names = '{}' then 0
                else _make_candidates(v_names, asked, wanted, tasks, v_locked) end;
end;
$$;

-- Looks for locked jobs among the first 1,000 in the claim order, and among the first 1,000 jobs that wait
-- for a rate and are overdue. Fills up to 100 of their queues, chosen at random; returns how many jobs became
-- candidates.
create or replace function _pass_over_locked() returns integer
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off
    set enable_sort = off set enable_incremental_sort = off set jit = off
as $$
declare
    v_most constant integer := 1000;
    v_now constant timestamptz := clock();
    v_touched tid[] := array(
        select f.tid from (
            (select j.ctid as tid, j.xmax, j.queue_name from live_jobs j
             where j.ready_at is not null and j.state = 'available'
             order by j.priority, j.ready_at, j.id limit v_most)
            union all
            (select d.ctid, d.xmax, d.queue_name from live_jobs d
             where d.due_at <= v_now and d.parked = 'queue' order by d.due_at, d.id limit v_most)) f
        where f.xmax::text <> '0' and f.queue_name is not null);
    v_locked tid[];
    v_few text[];
    v_many text[];
begin
    v_locked := case when current_setting('transaction_isolation') = 'read committed'
                     then _locked_of_rows(v_touched) else '{}' end;
    if v_locked = '{}' then
        return 0;
    end if;
    select array_agg(q.queue_name) filter (where q.paced or q.slots <= 100),
           array_agg(q.queue_name) filter (where not q.paced and q.slots > 100)
    into v_few, v_many
    from (select r.queue_name, r.paced, r.slots from _queues_of(array(
              select n.queue_name
              from (select distinct j.queue_name from live_jobs j where j.ctid = any (v_locked)) n
              where exists (select from _parked_in(n.queue_name, 1)) order by random() limit 100)) r
          where r.slots is not null offset 0) q
    where _try_lane('queue:' || q.queue_name);
    return case when v_few is null then 0
                else _make_candidates(v_few, null, 0, '{}', _locked_in(v_few)) end
        + case when v_many is null then 0 else (
            select _fill_queues(array_agg(m.queue_name), array_agg(m.slots_ahead))
            from _queues_of(v_many) m) end;
end;
$$;
