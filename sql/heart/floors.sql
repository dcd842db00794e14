-- heart/floors: how far a session has walked an index.
--
-- The head of an index holds dead entries, of rows that have ended since the last vacuum; while an old
-- snapshot is open, vacuum cannot remove them. A session that had to pass many remembers the place that it
-- reached, its floor, and its next walks begin there. After 20 times as long as the walk from the head took,
-- at most 2 s, it walks from the head again. So a floor is a hint: what comes to stand before it is found 2 s
-- later at most.
--
-- Of a claim the setting pyworker.floor_ready has the place; of due jobs pyworker.floor_due. Requests have a
-- floor that all sessions share (gate/pass).

-- How many entries of this index the session has read, with a page counted as 20. The server resets
-- these counters now and then, so only the difference of two close calls means anything.
create or replace function _entries_read(index regclass) returns bigint
    language sql volatile
    return pg_stat_get_xact_tuples_returned(index) + 20 * pg_stat_get_xact_blocks_fetched(index);

-- The floor that the session remembers for this owner; null if none, or if it is out of date. `until`: when
-- it is, in microseconds.
create or replace function _floor_of(name text, owner text) returns _floor
    language plpgsql set search_path from current
as $$
declare
    v_floor constant text[] := string_to_array(current_setting('pyworker.floor_' || name, true), ' ');
    v_us constant bigint := date_part('epoch', clock_timestamp()) * 1000000;
begin
    if v_floor[1] = owner and v_floor[5]::bigint - v_us between 0 and 2000000 then
        return row(v_floor[2]::smallint, 'epoch'::timestamptz + v_floor[3]::bigint * interval '1 us',
                   v_floor[4]::bigint, v_floor[5]::bigint)::_floor;
    end if;
    return null;
end;
$$;

-- Remembers a floor. `took`: microseconds of the walk from the head; null if it began at a floor, which then
-- stays valid as long as before.
create or replace function _keep_floor(
    name text, owner text, priority smallint, at timestamptz, id bigint, took bigint, until bigint)
    returns void
    language plpgsql set search_path from current
as $$
begin
    perform set_config('pyworker.floor_' || name, concat_ws(
        ' ', owner, priority, (extract(epoch from at) * 1000000)::bigint, id,
        coalesce(until, (date_part('epoch', clock_timestamp()) * 1000000)::bigint
                        + least(20 * took, 2000000))), false);
end;
$$;

-- Before this time no job is due, as far as the session knows.
create or replace function _floor_of_due() returns timestamptz
    language sql volatile
    return case when current_setting('pyworker.floor_due', true) <> ''
                then coalesce((_floor_of('due', 'live_jobs'::regclass::oid::text)).at, '-infinity')
                else '-infinity' end;
