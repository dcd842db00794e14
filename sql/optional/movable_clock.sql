-- Only in installations for tests: a clock that the setting pyworker.clock_offset moves, in whatever session sets it
-- (`set pyworker.clock_offset = '3 hours'`, or `alter database … set …` for all).
create or replace function clock() returns timestamptz
    language sql volatile parallel safe
    return pg_catalog.clock_timestamp()
           + coalesce(nullif(pg_catalog.current_setting('pyworker.clock_offset', true), '')::interval, '0'::interval);
