-- gate/succession: the end of a job hands its place to the next one of its lane, one for one, in the same
-- transaction. The number of jobs that hold a slot is the same before and after, for every snapshot: so
-- this needs no lock on the lane. What hands nothing on leaves a request, always: an add that commits
-- between this statement and its commit has had its request answered with "no room".

-- Hands on the places of jobs that have just left `running`: those of heads, and those in queues, each with
-- the slot that it had. Returns how many jobs became available to claims.
create or replace function _hand_on(sequences text[], queues text[], slots xid8[]) returns integer
    language plpgsql set search_path from current
as $$
declare
    v_next record;
    v_opened integer := 0;
    v_n integer;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        -- A snapshot that may be too old to show every job, halt and setting: a pass decides.
        insert into promotion_requests (lane)
        select 'sequence:' || s.key from unnest(sequences) s(key)
        union select 'queue:' || q.name from unnest(queues) q(name);
        return 0;
    end if;
    if sequences is not null then
        v_next := _open_sequences(sequences, null);
        v_opened := v_next.opened;
        insert into promotion_requests (lane)
        select 'sequence:' || s.key from unnest(sequences) s(key)
        where s.key <> all (coalesce(v_next.handed, '{}'))
        union all
        select 'queue:' || q.name from unnest(v_next.queues) q(name);
    end if;
    if queues is not null then
        v_n := _hand_on_slots(queues, slots);
        v_opened := v_opened + v_n;
    end if;
    return v_opened;
end;
$$;

-- In a queue, the best job that waits. A job that an older version of the settings has let in does not hand
-- its place on, nor does any in a queue that is paused, has a rate or takes turns: these leave requests.
create or replace function _hand_on_slots(queues text[], slots xid8[]) returns integer
    language plpgsql set search_path from current
as $$
declare
    v_now timestamptz := clock();
    v_asides constant boolean := _settings_are_used();
    v_opened integer;
begin
    with lane as materialized (
        select e.name, e.jobs, q.changed,
               not q.paced and not q.paused and e.slot is not distinct from q.changed and (
                   v_asides is not true
                   or (select true from set_aside a where a.queue_name = e.name limit 1) is null) as hands
        from (select u.name, u.slot, count(*) as jobs from unnest(queues, slots) u(name, slot)
              group by u.name, u.slot) e
        cross join lateral _queues_of(array[e.name]) q
        where q.slots is not null),
    handed as (
        update live_jobs j set ready_at = greatest(v_now, j.run_at), parked = null, slot = n.changed
        from (select p.tid, l.changed from lane l
              cross join lateral (
                  select j.ctid as tid from live_jobs j where j.queue_name = l.name and j.parked = 'queue'
                  order by j.queue_name, j.priority, j.run_at, j.id limit l.jobs for update skip locked) p
              where l.hands offset 0) n
        where j.ctid = n.tid returning j.queue_name),
    asked as (
        insert into promotion_requests (lane)
        select 'queue:' || l.name from lane l
        group by l.name
        having sum(l.jobs) > (select count(*) from handed h where h.queue_name = l.name))
    select count(*) into v_opened from handed;
    return v_opened;
end;
$$;
