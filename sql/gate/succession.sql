-- gate/succession: the end of a job hands its place to the next one of its lane, one for one, in the same
-- transaction. The number of jobs that hold a slot is the same before and after, for every snapshot: so
-- this needs no lock on the lane. What hands nothing on leaves a request, always: an add that commits
-- between this statement and its commit has had its request answered with "no room".

-- Hands on the places of jobs that have just left `running`: those of heads, and those in queues, each with
-- the slot that it had. Returns how many jobs became available to claims, or are to be looked for soon: those
-- that are due later or locked. Then workers are to be notified.
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
        return 1;
    end if;
    if sequences <> '{}' then
        v_next := _open_sequences(sequences, null);
        v_opened := v_next.opened + v_next.later + coalesce(cardinality(v_next.queues), 0);
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
    v_limited boolean := true; -- as every queue is that was never set
    v_hands boolean := true;
    v_waiting boolean; -- for this end, for a pass, or for a session that has them locked
begin
    if cardinality(queues) > 1 then
        return _hand_on_many(queues, slots);
    end if;
    v_waiting := (select true from live_jobs p where p.queue_name = queues[1] and p.parked = 'queue'
                  order by p.queue_name, p.priority, p.run_at, p.id limit 1);
    if (v_waiting or slots[1] is null) and _settings_are_used() then
        select q.limited, q.hands into v_limited, v_hands from _lanes_of(queues, slots) q;
    end if;
    if v_waiting and v_hands then
        update live_jobs j set ready_at = greatest(v_now, j.run_at), parked = null, slot = slots[1]
        where j.ctid = (
            select p.ctid from live_jobs p where p.queue_name = queues[1] and p.parked = 'queue'
            order by p.queue_name, p.priority, p.run_at, p.id limit 1 for update skip locked);
        if found then
            return 1;
        end if;
    end if;
    if v_limited then
        insert into promotion_requests (lane) values ('queue:' || queues[1]);
    end if;
    return case when v_waiting and v_limited then 1 else 0 end;
end;
$$;

-- The queues of ended jobs, and whether these hand their places on. PostgreSQL inlines it.
create or replace function _lanes_of(queues text[], slots xid8[])
    returns table (name text, jobs bigint, slot xid8, limited boolean, hands boolean)
    language sql stable
begin atomic
    select e.name, e.jobs, e.slot, q.slots is not null,
           q.slots > 0 and not q.paced and e.slot is not distinct from q.changed
           and (select true from set_aside a where a.queue_name = e.name limit 1) is null
    from (select u.name, u.slot, count(*) as jobs from unnest(_lanes_of.queues, _lanes_of.slots) u(name, slot)
          group by u.name, u.slot) e
    cross join lateral _queues_of(array[e.name]) q;
end;

-- The same for several jobs, in one statement.
create or replace function _hand_on_many(queues text[], slots xid8[]) returns integer
    language plpgsql set search_path from current
as $$
declare
    v_now timestamptz := clock();
    v_opened integer;
begin
    with lane as materialized (select l.* from _lanes_of(queues, slots) l where l.limited),
    handed as (
        update live_jobs j set ready_at = greatest(v_now, j.run_at), parked = null, slot = n.slot
        from (select p.tid, l.slot from lane l
              cross join lateral (
                  select j.ctid as tid from live_jobs j where j.queue_name = l.name and j.parked = 'queue'
                  order by j.queue_name, j.priority, j.run_at, j.id limit l.jobs for update skip locked) p
              where l.hands offset 0) n
        where j.ctid = n.tid returning j.queue_name),
    left_over as materialized (
        select l.name, (
            select count(*) from handed h where h.queue_name = l.name) as handed
        from lane l group by l.name
        having sum(l.jobs) > (select count(*) from handed h where h.queue_name = l.name)),
    asked as (insert into promotion_requests (lane) select 'queue:' || l.name from left_over l)
    select (select count(*) from handed) + count(*) into v_opened
    from left_over l
    where (
        select true from live_jobs j where j.queue_name = l.name and j.parked = 'queue'
        order by j.queue_name, j.priority, j.run_at, j.id offset l.handed limit 1);
    return v_opened;
end;
$$;
