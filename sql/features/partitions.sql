-- features/partitions: the daily partitions of history: which days need one, how they are made, emptied and
-- dropped. Also how expired jobs and other expired rows are pruned. features/maintain calls these
-- functions in the right order.
--
-- A row is in the partition of the day (in UTC) on which it expires, or in the default partition
-- if there is none for that day.

-- The days that need a partition: for each retention in use, the day on which a job that ends today
-- expires, and the next `ahead` days.
create or replace function _partition_days(ahead integer) returns setof timestamptz
    language plpgsql stable set search_path from current
as $$
declare
    v_now constant timestamptz := clock();
begin
    return query
    select distinct (
        date_trunc('day', (v_now + r.retention) at time zone 'UTC') + n * interval '1 day')
        at time zone 'UTC'
    from (select s.completed_retention from settings s union select s.cancelled_retention from settings s
          union select t.retention from tasks t) r(retention), generate_series(0, ahead) n
    where r.retention > interval '0' and r.retention <= interval '1 year'
    order by 1;
end;
$$;

-- Looks a partition up in our own schema only, since a temporary table may have the same name.
create or replace function _partition(name text) returns regclass
    language plpgsql stable set search_path from current
as $$
begin
    return to_regclass(format('%I.%I', current_schema(), name));
end;
$$;

-- Makes a partition for each day of _partition_days. A day that already has rows in the default
-- partition gets none; its rows are pruned one by one.
-- This takes a lock that every finish waits for, and keeps it until the transaction ends: call it
-- last.
create or replace function _make_partitions() returns void
    language plpgsql set search_path from current
as $$
declare
    v_day timestamptz;
    v_name text;
begin
    for v_day in
        select d.day from _partition_days(2) d(day) order by 1
    loop
        v_name := 'finished_jobs_' || to_char(v_day at time zone 'UTC', 'YYYYMMDD');
        continue when _partition(v_name) is not null or exists (
            select from finished_jobs_default f
            where f.expires_at >= v_day and f.expires_at < v_day + interval '24 hours');
        begin
            -- ATTACH PARTITION, unlike CREATE TABLE PARTITION OF, does not block finishes. This
            -- lock waits for open finishes: one may have chosen the default partition for its row
            -- already, which would then refuse the row. New finishes wait for us, for a moment.
            lock table only finished_jobs in share row exclusive mode;
            execute format(
                'create table %I (like finished_jobs including constraints including compression '
                'including storage)', v_name);
            -- A publication of deletes needs it on each partition, and PostgreSQL does not inherit it.
            if (select c.relreplident from pg_class c where c.oid = 'finished_jobs'::regclass) = 'f' then
                execute format('alter table %I replica identity full', v_name);
            end if;
            -- Writes the bounds in UTC: the caller's DateStyle may print a time zone abbreviation
            -- that means another zone.
            execute format('alter table finished_jobs attach partition %I for values from (%L) to (%L)',
                           v_name,
                           to_char(v_day at time zone 'UTC', 'YYYY-MM-DD "00:00+00"'),
                           to_char(v_day at time zone 'UTC' + interval '1 day', 'YYYY-MM-DD "00:00+00"'));
        exception
            when check_violation then
                null; -- the default partition has just received a first row of this day
            when lock_not_available then
                return; -- a long transaction has finished a job; the next call tries again
            when others then -- an event trigger of the database, for instance
                raise warning 'no partition of history was made: %', sqlerrm;
                return;
        end;
    end loop;
end;
$$;

-- Deletes expired jobs of one table, live_jobs or a partition of history, with their errors and
-- halts, and releases their unique keys; returns how many. The caller has locked them. A job at
-- which a sequence halts is kept for another day while jobs wait behind it, and so is one that another
-- job waits for. So each such job is checked once a day, however many there are.
create or replace function _prune_jobs(name text, job_ids bigint[]) returns bigint
    language plpgsql set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_now constant timestamptz := clock();
    v_awaited bigint[];
    v_kept bigint[];
    v_gone bigint[];
    v_sequences text[];
    v_keys bytea[];
    v_failed bigint[];
begin
    if _coordination_is_used() then
        v_awaited := array(select i.id from unnest(job_ids) i(id) where _waits_for(i.id, null));
        perform _settle_edges(array_agg(i.id), p.state, array_agg(p.result))
        from unnest(v_awaited) i(id) cross join lateral _parent_of(i.id) p group by p.state;
        v_awaited := array(select i.id from unnest(v_awaited) i(id) where _waits_for(i.id, 'unmet'));
    end if;
    execute format($q$
        select array_agg(d.id) from %I d
        where d.id = any ($1)
          and (d.sequence_key is not null and _blocks_sequence(d.sequence_key, d.id)
               or d.id = any ($2))$q$, name)
    into v_kept using job_ids, v_awaited;
    if v_kept is not null then
        -- By the parent of a partition: the job moves to another one.
        execute format('update %I j set expires_at = $1 where j.id = any ($2) and j.tableoid = $3',
                       case name when 'live_jobs' then name else 'finished_jobs' end)
        using v_now + interval '1 day', v_kept, _partition(name);
    end if;
    execute format($q$
        with gone as (
            delete from %I d where d.id = any ($1) and d.id <> all (coalesce($2, '{}'))
            returning d.id, d.sequence_key, d.unique_key, d.state)
        select array_agg(g.id), array_agg(g.sequence_key),
               array_agg(g.unique_key) filter (where g.unique_key is not null),
               array_agg(g.id) filter (where g.state <> 'completed') from gone g$q$, name)
    into v_gone, v_sequences, v_keys, v_failed using job_ids, v_kept;
    if v_gone is not null then
        perform _forget_jobs(v_gone, v_failed);
    end if;
    with unhalted as (
        delete from sequence_halts h using unnest(v_gone, v_sequences) g(id, sequence_key)
        where h.sequence_key = g.sequence_key and h.job_id = g.id
        returning h.sequence_key)
    -- A job may have been added behind the halt since the check above.
    insert into promotion_requests (lane) select 'sequence:' || u.sequence_key from unhalted u;
    delete from errors e where e.job_id = any (v_gone);
    perform _release_unique_keys(v_keys);
    return coalesce(cardinality(v_gone), 0);
end;
$$;

-- Prunes finished jobs whose retention is over, row by row, but not in the partitions `but_days`.
-- Today's partition may be large and hold few expired rows: a call reads 10 * max_rows rows from
-- its lowest id on, and as many from a random id on, and prunes max_rows of each.
create or replace function _prune_finished(max_rows integer, but_days text[]) returns bigint
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off
    set enable_sort = off set enable_incremental_sort = off set jit = off
as $$
declare
    v_now constant timestamptz := clock();
    v_many constant bigint := max_rows::bigint * 10;
    v_tomorrow constant text := 'finished_jobs_'
        || to_char(v_now at time zone 'UTC' + interval '1 day', 'YYYYMMDD');
    v_name text;
    v_low bigint;
    v_high bigint;
    v_expired bigint[];
    v_pruned bigint := 0;
begin
    for v_name in
        select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid
        where i.inhparent = 'finished_jobs'::regclass and c.relname <> all (but_days)
          and (c.relname !~ '^finished_jobs_[0-9]{8}$' or c.relname < v_tomorrow)
        order by 1
    loop
        execute format('select min(f.id), max(f.id) from %I f', v_name) into v_low, v_high;
        for i in 1..case when v_high - v_low >= v_many then 2 when v_low is not null then 1 else 0 end loop
            execute format($q$
                select array(
                    select d.id from %1$I d
                    where d.expires_at <= $1 and d.id = any (array(
                        select l.id
                        from (select x.id, x.expires_at from %1$I x where x.id >= $2
                              order by x.id limit $4) l
                        where l.expires_at <= $1 limit $3))
                    for update skip locked)$q$, v_name)
            into v_expired using v_now, v_low, max_rows, v_many;
            v_pruned := v_pruned + _prune_jobs(v_name, v_expired);
            v_low := v_low + floor(random() * (v_high - v_low))::bigint;
        end loop;
    end loop;
    return v_pruned;
end;
$$;

-- Prepares the partition of a day that is over for its drop, without a lock that a finish waits
-- for: prunes the jobs at which sequences halt, and those with a unique key. Such a key is free only
-- when the row of its job is gone, and there may be millions: too many to release under the lock of
-- the drop. `pruned`: how many jobs this call deleted. `rest`: how many may go with the table, or
-- null if more is to do than one call may (max_rows halts, 20 * max_rows keys).
create or replace function _empty_day(day text, max_rows integer, out pruned bigint, out rest bigint)
    language plpgsql set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_max_keys constant bigint := max_rows::bigint * 20;
    v_halting bigint[];
    v_keyed bigint[];
    v_awaited bigint[];
begin
    execute format($q$
        select array(select p.id from sequence_halts h
                     join %1$I p on p.id = h.job_id and p.sequence_key = h.sequence_key
                     limit $1 for update of p),
               array(select k.id from %1$I k where k.unique_key is not null
                     limit $2 for update skip locked),
               array(select p.id from %1$I p where exists (
                         select from edges e join live_jobs j on j.id = e.child_id and j.revision = e.revision
                         where e.parent_id = p.id and e.met is null)
                     limit $1 for update of p)$q$, day)
    into v_halting, v_keyed, v_awaited using max_rows, v_max_keys;
    pruned := _prune_jobs(day, v_halting || v_keyed || v_awaited);
    if greatest(cardinality(v_halting), cardinality(v_awaited)) < max_rows
       and cardinality(v_keyed) < v_max_keys then
        execute format('delete from errors e using %I f where e.job_id = f.id', day);
        execute format($q$ -- in parts: the ids of a whole day need not fit into memory
            select _forget_jobs(array_agg(f.id), array_agg(f.id) filter (where f.state <> 'completed'))
            from (select d.id, d.state, row_number() over () / 10000 as part from %I d
                  where d.state <> 'completed' or _coordination_is_used()) f
            group by f.part$q$, day);
        execute format('select count(*) from %I', day) into rest;
    end if;
end;
$$;
