-- 02_walks: how far a session has walked an index, and when it walks from the head again.
--
-- The head of an index holds dead entries, of rows that have ended since the last vacuum; while an
-- old snapshot is open, vacuum cannot remove them. A session that had to pass many of them
-- remembers the place that it reached, in the setting pyworker.walk_NAME, and its next walks begin
-- there. After 20 times as long as the walk from the head took, at most 2 s, it walks from the head
-- again. That walk finds entries before the place that a long transaction has committed meanwhile.
--
-- Jobs may also become available before a remembered place: the next job of a queue or a sequence,
-- a retry, a released job. They are listed in late_arrivals while walks_until says that a session
-- remembers a place.
--
-- There are four such walks: 'claim' (claim_jobs), 'due' and 'requests' (promote_jobs), and 'expired', which
-- no claim depends on.

-- The walk that the session remembers for this owner; a row of nulls if none, or if it expired.
create or replace function _walk_of(name text, owner bigint) returns _walk
    language plpgsql stable set search_path from current
as $$
declare
    v_walk _walk := nullif(current_setting('pyworker.walk_' || name, true), '')::_walk;
begin
    if v_walk.owner = _walk_of.owner
       and v_walk.until between clock_timestamp() and clock_timestamp() + interval '2 seconds' then
        return v_walk;
    end if;
    return null;
end;
$$;

-- How many entries of this index the session has read, with a page counted as 20. The server resets
-- these counters now and then, so only the difference of two close calls means anything.
create or replace function _entries_read(index regclass) returns bigint
    language sql volatile
    return pg_stat_get_xact_tuples_returned(index) + 20 * pg_stat_get_xact_blocks_fetched(index);

-- Remembers a walk. `began`: when it began at the head; null if it began at a remembered place,
-- which then expires when it would have expired before.
create or replace function _keep_walk(name text, walk _walk, began timestamptz) returns void
    language plpgsql set search_path from current set datestyle = iso
as $$
declare
    v_ms bigint;
begin
    if began is not null then
        walk.until := clock_timestamp() + least(20 * (clock_timestamp() - began), interval '2 seconds');
        v_ms := extract(epoch from walk.until) * 1000;
        if (select w.last_value from walks_until w) < v_ms then
            perform setval('walks_until', v_ms + 2000);
        end if;
    end if;
    perform set_config('pyworker.walk_' || name, walk::text, false);
end;
$$;

-- True while a session may walk from a remembered place.
create or replace function _places_are_kept() returns boolean
    language sql volatile
    return coalesce(
        pg_sequence_last_value('walks_until'::regclass) > date_part('epoch', clock_timestamp()) * 1000,
        false);

-- Lists jobs that became available at places that a session may have passed. True if there may be one.
create or replace function _arrive_late(job_ids bigint[]) returns boolean
    language plpgsql set search_path from current
as $$
begin
    if not _places_are_kept() then
        return false;
    end if;
    insert into late_arrivals (job_id) select j.id from unnest(job_ids) j(id) where j.id is not null;
    return true;
end;
$$;

-- Where the session's next walk along times begins, 'due' or 'expired'.
create or replace function _walked_to(name text) returns timestamptz
    language plpgsql stable set search_path from current
as $$
begin
    return coalesce(((_walk_of(name, 'live_jobs'::regclass::oid::bigint)).places[1]).ready_at, '-infinity');
end;
$$;

-- Remembers that it has seen all times up to a second ago.
create or replace function _keep_time(name text, now timestamptz, began timestamptz) returns void
    language plpgsql set search_path from current
as $$
begin
    perform _keep_walk(name, row('live_jobs'::regclass::oid::bigint, null, array[row(
        0, now - interval '1 second', 0, null, null, null)::_span], null, null), began);
end;
$$;

-- The promotion request after which the session's next walk begins.
create or replace function _walked_requests() returns bigint
    language plpgsql stable set search_path from current
as $$
begin
    return coalesce(((_walk_of('requests', 'promotion_requests'::regclass::oid::bigint)).places[1]).id, 0);
end;
$$;

-- If all walks have expired, forgets them; else returns true.
create or replace function _forget_expired_walks() returns boolean
    language plpgsql set search_path from current
as $$
begin
    if _seconds_until_full_walk() is not null then
        return true;
    end if;
    perform set_config('pyworker.walk_' || n.name, '', false)
        from unnest(array['claim', 'due', 'requests']) n(name);
    return false;
end;
$$;

-- True if the session remembers a walk that has not expired.
create or replace function _walks_are_kept() returns boolean
    language sql volatile
    return case when concat(current_setting('pyworker.walk_claim', true),
                            current_setting('pyworker.walk_due', true),
                            current_setting('pyworker.walk_requests', true)) = '' then false
                else _forget_expired_walks() end;

-- Seconds until the session walks from the head again, so that an idle worker claims at that time.
-- Null if it remembers no place.
create or replace function _seconds_until_full_walk() returns double precision
    language plpgsql stable set search_path from current
as $$
declare
    v_until timestamptz;
begin
    select min((nullif(current_setting('pyworker.walk_' || n.name, true), '')::_walk).until) into v_until
    from unnest(array['claim', 'due', 'requests']) n(name)
    where (nullif(current_setting('pyworker.walk_' || n.name, true), '')::_walk).until > clock_timestamp();
    return greatest(extract(epoch from v_until - clock_timestamp()), 0);
end;
$$;

-- The parts of the claim order that remain after these places: in the priority of a place what
-- follows it, and all of every other priority.
create or replace function _spans_after(places _span[]) returns _span[]
    language plpgsql immutable set search_path from current
as $$
begin
    return array(
        select row(s.priority, s.ready_at, s.id, s.to_priority, 'infinity', 9223372036854775807)::_span
        from (select p.*, lead(p.priority, 1, 32768) over (order by p.priority) - 1 as before_next,
                     min(p.priority) over () as lowest from unnest(places) p) p
        cross join lateral (values
            (-32768, '-infinity'::timestamptz, 0::bigint,
             case when p.priority = p.lowest then p.priority - 1 end),
            (p.priority, p.ready_at, p.id, p.priority),
            (p.priority + 1, '-infinity', 0, p.before_next)) s(priority, ready_at, id, to_priority)
        where s.priority <= s.to_priority
        order by s.priority, s.ready_at);
end;
$$;

-- The same parts, and one for each job that arrived late, all in claim order. late_ids keeps those
-- jobs that are still available before a place.
create or replace function _spans_with_late(
    walk _walk, out late_ids bigint[], out seen bigint, out spans _span[])
    language plpgsql set search_path from current
as $$
begin
    spans := _spans_after(walk.places);
    select walk.late_ids || array_agg(a.job_id), coalesce(max(a.id), walk.seen) into late_ids, seen
    from late_arrivals a where a.id > walk.seen;
    if cardinality(late_ids) > 0 then
        with late as materialized ( -- looked up by id, never by a walk along an index of ready jobs
            select j.id, j.priority, j.ready_at, j.state from live_jobs j where j.id = any (late_ids))
        select array_agg(l.id),
               spans || array_agg(row(l.priority, l.ready_at, l.id - 1, l.priority, l.ready_at, l.id)::_span)
        into late_ids, spans
        from late l
        where l.ready_at is not null and l.state = 'available' and not exists (
            select from unnest(walk.places) p
            where p.priority = l.priority and (l.ready_at, l.id) > (p.ready_at, p.id))
          and exists (select from unnest(walk.places) p where p.priority = l.priority);
        spans := array(select s from unnest(spans) s order by s.priority, s.ready_at, s.id);
    end if;
end;
$$;

-- The places after a walk: the old places, advanced by the jobs that the walk found, given in claim
-- order. `short`: when a walk began that reached the end. Such a walk has seen all jobs that were
-- ready one second before it, in these priorities and in the default one.
create or replace function _places_after(
    places _span[], priorities smallint[], ready_ats timestamptz[], ids bigint[], short timestamptz)
    returns _span[]
    language plpgsql immutable set search_path from current
as $$
declare
    v_last constant integer := cardinality(ids);
    v_place constant _span := row(priorities[v_last], ready_ats[v_last], ids[v_last], null, null, null);
begin
    if short is null and priorities[1] = priorities[v_last] then -- the common case, made faster
        if places is null then
            return array[v_place];
        elsif cardinality(places) = 1 and (places[1]).priority = v_place.priority then
            -- A job that arrived late is before the place, and does not move it back.
            return array[greatest(places[1], v_place)];
        end if;
    end if;
    return array(
        select distinct on (p.priority) row(p.priority, p.ready_at, p.id, null, null, null)::_span
        from (select o.priority, o.ready_at, o.id from unnest(places) o
              union all
              select f.priority, f.ready_at, f.id
              from unnest(priorities, ready_ats, ids) f(priority, ready_at, id) where short is null
              union all
              select f.priority, short - interval '1 second', 0
              from (select p.priority from unnest(places) p union select unnest(priorities) union select 0) f
              where short is not null) p
        order by p.priority, p.ready_at desc, p.id desc);
end;
$$;
