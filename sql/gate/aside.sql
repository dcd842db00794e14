-- gate/aside: jobs that have a slot and do not run give it to others: to better ones, and to those that some
-- worker takes.

-- A job that comes to wait in a full queue, and has a better priority than one that was let in and is not
-- claimed yet, changes places with it. Returns the lanes in which that was so: there may be more.
create or replace function _let_better_in(queue_names text[]) returns text[]
    language plpgsql strict set search_path from current
as $$
declare
    v_now timestamptz := clock();
    v_lanes text[];
begin
    with pair as materialized (
        select n.name, b.tid as better, w.tid as worse, w.slot, w.pace, w.turn
        from unnest(queue_names) n(name)
        cross join lateral (
            select j.ctid as tid, j.priority from live_jobs j
            where j.queue_name = n.name and j.parked = 'queue'
            order by j.queue_name, j.priority, j.run_at, j.id limit 1) b
        cross join lateral (
            select j.ctid as tid, j.priority, j.slot, j.pace, j.turn from live_jobs j
            where j.queue_name = n.name and j.ready_at is not null and j.state = 'available'
            order by j.queue_name desc, j.priority desc, j.run_at desc, j.id desc limit 1) w
        where b.priority < w.priority),
    free as materialized (
        select j.ctid as tid from live_jobs j
        where j.ctid = any (array(select p.better from pair p union all select p.worse from pair p))
        for update skip locked),
    changed as materialized (
        select p.* from pair p
        where p.better in (select f.tid from free f) and p.worse in (select f.tid from free f)),
    moved as (
        update live_jobs j
        set ready_at = case when m.goes_in then greatest(v_now, j.run_at) end,
            parked = case when not m.goes_in then 'queue' end, slot = m.slot, pace = m.pace, turn = m.turn
        from (select c.better as tid, true as goes_in, c.slot, c.pace, c.turn from changed c
              union all select c.worse, false, null, null, null from changed c) m
        where j.ctid = m.tid -- PostgreSQL would walk the whole table for `in (c.better, c.worse)`
        returning j.queue_name)
    select array_agg(distinct 'queue:' || m.queue_name) into v_lanes from moved m;
    return v_lanes;
end;
$$;

-- A kind of jobs, a task with certain flags, that has had a slot for a second and that this idle worker does
-- not take, stands aside in its queue for five seconds; true if there was one. So however many such jobs
-- come first, they cost their queue a second in five.
create or replace function _set_kinds_aside(
    task_identifiers text[], queue_names text[], forbidden_flags text[]) returns boolean
    language plpgsql set search_path from current
as $$
declare
    v_now timestamptz := clock();
    v_until constant timestamptz := v_now + interval '5 seconds';
begin
    perform nextval('settings_used') where not _settings_are_used();
    -- Of the jobs that come first.
    with first as materialized (
        select j.ctid as tid, j.task_identifier, j.queue_name, j.flags, j.ready_at, j.slot
        from live_jobs j where j.ready_at is not null and j.state = 'available'
        order by j.priority, j.ready_at, j.id limit 100),
    kind as materialized (
        select distinct f.queue_name, f.task_identifier, f.flags from first f
        cross join lateral _queues_of(array[f.queue_name]) q
        where f.ready_at < v_now - interval '1 second' and q.slots is not null
          and not ((task_identifiers is null or f.task_identifier = any (task_identifiers))
                   and (queue_names is null or f.queue_name = any (queue_names))
                   and (forbidden_flags is null or f.flags is null or not f.flags ?| forbidden_flags))
          -- if others wait in its place
          and (select true from live_jobs w where w.queue_name = f.queue_name and w.parked = 'queue'
               order by w.queue_name, w.priority, w.run_at, w.id limit 1)),
    free as materialized (
        select j.ctid as tid from live_jobs j
        where j.ctid = any (array(
            select f.tid from first f join kind k on k.queue_name = f.queue_name
                and k.task_identifier = f.task_identifier and k.flags is not distinct from f.flags))
        for update skip locked),
    parked as (
        update live_jobs j set ready_at = null, parked = 'queue', slot = null, pace = null, turn = null
        from free f where j.ctid = f.tid returning j.queue_name),
    aside as (
        insert into set_aside (queue_name, task_identifier, flags, until)
        select k.queue_name, k.task_identifier, k.flags, v_until from kind k
        on conflict (queue_name, task_identifier, flags) do update set until = excluded.until)
    insert into promotion_requests (lane, at)
    select 'queue:' || p.queue_name, t.at
    from (select distinct k.queue_name from parked k) p cross join (values (null), (v_until)) t(at);
    return found;
end;
$$;
