-- Only in installations for tests: a clock that can be moved. advance_clock moves it for all
-- sessions, the setting pyworker.clock_offset (`set pyworker.clock_offset = '3 hours'`) for one.
-- Both add up.
create or replace function clock() returns timestamptz
    language sql volatile security definer set search_path from current
    return pg_catalog.clock_timestamp()
           + coalesce(
               nullif(pg_catalog.current_setting('pyworker.clock_offset', true), '')::interval, '0'::interval)
           + (select coalesce(s.clock_offset, interval '0') from settings s);

create or replace function advance_clock(by interval) returns timestamptz
    language plpgsql security definer set search_path from current
as $$
begin
    if (by between interval '-100 years' and interval '100 years') is not true then
        raise exception 'advance_clock: by must be an interval of at most 100 years, got %',
            coalesce(by::text, 'NULL')
            using errcode = 'PW001';
    end if;
    update settings s set clock_offset = coalesce(s.clock_offset, interval '0') + by;
    perform pg_notify(current_schema(), ''); -- jobs may be due now
    return clock();
end;
$$;
comment on function advance_clock(interval) is
    'Moves the queue''s time for all sessions, once committed. A negative interval moves it back. '
    'For tests: the function exists only in an installation with a movable clock. Schedules, '
    'delays, backoff, leases, periods and retention use this time. Returns the new time. Errors: '
    'PW001.';
