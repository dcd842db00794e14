-- features/cron_times: the next times at which a cron expression falls due: next_runs.
--
-- Summer time follows the rules of Debian cron:
-- * An expression with a fixed time of day (neither minutes nor hours begin with *) runs once on
--   each of its days. A time in the gap runs at the end of the gap. A time that occurs twice runs
--   the first time.
-- * Any other expression follows the clocks. A time that they skip does not run. A time that they
--   show twice runs twice.

-- The next matching local time after this one, without regard to a time zone.
create or replace function _cron_time(c _cron, after timestamp) returns timestamp
    language plpgsql immutable set search_path from current
as $$
declare
    v_day date := _cron_day(c, after::date);
    v_hour integer := -1;
    v_minute integer;
begin
    if v_day = after::date then
        v_hour := extract(hour from after);
        if v_hour = any (c.hours) then
            v_minute := (select min(m.m) from unnest(c.minutes) m(m) where m.m > extract(minute from after));
        end if;
    end if;
    if v_minute is null then
        v_hour := (select min(h.h) from unnest(c.hours) h(h) where h.h > v_hour);
        v_minute := c.minutes[1];
        if v_hour is null then
            v_hour := c.hours[1];
            v_day := _cron_day(c, v_day + 1);
        end if;
    end if;
    return v_day + make_interval(hours => v_hour, mins => v_minute);
end;
$$;

-- The instant at which clocks in this time zone show this time. The first one if they show it
-- twice; the end of the gap if they skip it.
create or replace function _instant_of(local_time timestamp, timezone text) returns timestamptz
    language plpgsql stable set search_path from current
as $$
declare
    v_at timestamptz := local_time at time zone timezone; -- of two the second; in a gap as if there were none
    v_earlier timestamptz;
begin
    if v_at at time zone timezone <> local_time then
        return (select min(g.at)
                from generate_series(v_at - (v_at at time zone timezone - local_time) + interval '1 minute',
                                     v_at, '1 minute') g(at)
                where g.at at time zone timezone > local_time);
    end if;
    v_earlier := v_at - (_offset_of(v_at - interval '1 day', timezone) - _offset_of(v_at, timezone));
    return case when v_earlier < v_at and v_earlier at time zone timezone = local_time then v_earlier
                else v_at end;
end;
$$;

create or replace function _offset_of(at timestamptz, timezone text) returns interval
    language sql stable
    return (at at time zone timezone) - (at at time zone 'UTC');

-- The first time after this one at which the expression falls due. Null if there is none in 50
-- years.
create or replace function _cron_next(c _cron, timezone text, after timestamptz) returns timestamptz
    language plpgsql stable set search_path from current
as $$
declare
    v_after timestamptz := after;
    v_offset interval := _offset_of(after, timezone);
    v_change timestamptz := after + interval '1 day';
    v_local timestamp := after at time zone timezone;
    v_at timestamptz;
begin
    if not c.fixed and _offset_of(v_change, timezone) <> v_offset then
        -- The clocks change within a day. Find the change by a binary search. Before it local time
        -- follows the old offset; after it, search again from the time that they show then.
        while v_change - v_after > interval '1 second' loop
            v_at := v_after + (v_change - v_after) / 2;
            if _offset_of(v_at, timezone) = v_offset then
                v_after := v_at;
            else
                v_change := v_at;
            end if;
        end loop;
        v_change := date_trunc('second', v_change);
        v_at := _cron_time(c, v_local) at time zone 'UTC' - v_offset;
        if v_at < v_change then
            return v_at;
        end if;
        v_after := v_change - interval '1 microsecond';
        v_local := v_change at time zone timezone - interval '1 minute';
    end if;
    loop
        v_local := _cron_time(c, v_local);
        v_at := _instant_of(v_local, timezone);
        if v_at <= v_after and not c.fixed then
            v_at := v_local at time zone timezone; -- the second time that clocks show it
        end if;
        exit when v_at is null or v_at > v_after and (c.fixed or v_at at time zone timezone = v_local);
    end loop;
    return v_at;
end;
$$;

-- The name of a time zone in the spelling of pg_timezone_names, or null. Abbreviations and formulas
-- such as 'UTC+5' (which is west of UTC) are refused. So are CET, EET, MET and WET: PostgreSQL
-- takes them for abbreviations, without summer time.
create or replace function _timezone_of(timezone text) returns text
    language plpgsql stable set search_path from current
as $$
begin
    return case when timezone in ('UTC', 'Etc/UTC') then timezone
                when upper(timezone) not in ('CET', 'EET', 'MET', 'WET')
                    then (select min(z.name) from pg_timezone_names z
                          where lower(z.name) = lower(_timezone_of.timezone)) end;
end;
$$;

create or replace function _timezone_refusal(timezone text) returns text
    language plpgsql stable set search_path from current
as $$
begin
    return case when _timezone_of(timezone) is null then
        format('timezone must be the name of a time zone, such as ''Europe/Berlin'' '
               '(see pg_timezone_names), got %s', coalesce(quote_literal(timezone), 'NULL')) end;
end;
$$;

create or replace function next_runs(cron text, timezone text default 'UTC', n integer default 5,
                                     after timestamptz default null)
    returns table (run_at timestamptz, local_time timestamp)
    language plpgsql stable security definer set search_path from current
as $$
declare
    v_cron _cron := _cron_of(next_runs.cron);
    v_timezone text := _timezone_of(next_runs.timezone);
    v_after timestamptz := coalesce(next_runs.after, clock());
    v_problem text := coalesce(
        'cron: ' || v_cron.problem, _timezone_refusal(next_runs.timezone),
        case when n is null or n not between 1 and 1000
                 then format('n must be from 1 to 1000, got %s', coalesce(n::text, 'NULL'))
             when v_after not between '1900-01-01' and '9900-01-01'
                 then format('after must be a time from 1900 to 9900, got %s', after) end);
begin
    if v_problem is not null then
        raise exception 'next_runs: %', v_problem using errcode = 'PW001';
    end if;
    run_at := v_after;
    for i in 1..n loop
        run_at := _cron_next(v_cron, v_timezone, run_at);
        exit when run_at is null;
        local_time := run_at at time zone v_timezone;
        return next;
    end loop;
end;
$$;
comment on function next_runs(text, text, integer, timestamptz) is
    'The next n times (1 to 1000) at which a cron expression falls due, after the time `after` '
    '(default: now), and the local time in that time zone. Use it to try an expression before you '
    'save it. Errors: PW001 names what is wrong, and its position.';
