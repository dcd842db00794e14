-- schedules/cron: cron expressions: parsing, the next times at which one falls due (next_runs), and
-- its description in words (describe_cron).
--
-- An expression has five fields, each a list of numbers, names, ranges and steps, as in Vixie cron.
-- There are four additions. Dates: L (the last day of the month) and LW (its last day from Monday
-- to Friday). Days of the week: 5L (the last Friday of the month) and 5#2 (its second Friday).
--
-- In a _cron, day of the week d that is the month's nth is stored as n * 10 + d, the month's last
-- one as 60 + d. The dates L and LW are 32 and 33.
--
-- Summer time follows the rules of Debian cron:
-- * An expression with a fixed time of day (neither minutes nor hours begin with *) runs once on
--   each of its days. A time in the gap runs at the end of the gap. A time that occurs twice runs
--   the first time.
-- * Any other expression follows the clocks. A time that they skip does not run. A time that they
--   show twice runs twice.

-- The number of a value of a field, which is a number or a name. Null if it is neither, or out of
-- range.
create or replace function _cron_value(word text, names text[], lowest integer, highest integer)
    returns integer
    language sql immutable
    return case when word !~ '^[0-9]{1,9}$' then array_position(names, upper(word)) - 1 + lowest
                when word::integer between lowest and highest then word::integer end;

-- The error message for an invalid part of a field, in Graphile Worker's words.
create or replace function _cron_refusal(part text, lowest integer, highest integer, place text) returns text
    language plpgsql immutable set search_path from current
as $$
declare
    v_range integer[] := regexp_match(part, '^([0-9]{1,9})-([0-9]{1,9})(?:/|$)')::integer[];
    v_outside text := (
        select w.word[1] from regexp_matches(split_part(part, '/', 1), '[0-9]+', 'g') w(word)
        where w.word[1]::numeric not between lowest and highest limit 1);
begin
    return case
        when part ~ '/0+$' then format('Invalid wildcard expression ''%s'' in %s: divisor ''0'' expected to be greater than zero', part, place)
        when part !~ '^[0-9]+(-[0-9]+)?(/[0-9]+)?$' or length(part) > 40 then
            format('Unsupported syntax ''%s'' in %s: this doesn''t appear to be a number, range or wildcard',
                   left(part, 40), place)
        when v_outside is null or v_range[2] < v_range[1] then
            format('Invalid range ''%s'' in %s: destination is not larger than source', part, place)
        else format('Too %s value ''%s'' in %s: expected values in the range %s-%s.',
                    case when v_outside::numeric > highest then 'large' else 'small' end,
                    v_outside, place, lowest, highest - (highest = 7)::integer) end;
end;
$$;

-- Parses an expression. The member `problem` of the result is the error message, or null. line: the
-- number of the line in a crontab, for that message.
create or replace function _cron_of(cron text, line integer default null) returns _cron
    language plpgsql immutable set search_path from current
as $$
declare
    v_text text := case lower(btrim(cron, E' \t'))
        when '@yearly' then '0 0 1 1 *' when '@annually' then '0 0 1 1 *' when '@monthly' then '0 0 1 * *'
        when '@weekly' then '0 0 * * 0'
        when '@daily' then '0 0 * * *' when '@midnight' then '0 0 * * *' when '@hourly' then '0 * * * *'
        else cron end;
    v_fields constant text[] := '{minutes,hours,dates,months,days of the week}'::text[];
    v_least constant integer[] := array[0, 0, 1, 1, 0];
    v_most constant integer[] := array[59, 23, 31, 12, 7];
    v_months constant text[] := '{JAN,FEB,MAR,APR,MAY,JUN,JUL,AUG,SEP,OCT,NOV,DEC}'::text[];
    v_days constant text[] := '{SUN,MON,TUE,WED,THU,FRI,SAT}'::text[];
    v_names text[];
    v_words text[] := regexp_split_to_array(btrim(v_text, E' \t'), '[ \t]+');
    v_at integer := 1;      -- position in v_text
    v_part text;
    v_match text[];
    v_from integer;
    v_to integer;
    v_values integer[];
    v_cron _cron;
begin
    if cron is null or cardinality(v_words) <> 5 then
        v_cron.problem := format('%L is not a schedule: it must have five fields (minutes, hours, dates, months, days of the week)'
                                 ', or be one of @yearly, @monthly, @weekly, @daily, @midnight, @hourly',
                                 cron);
        return v_cron;
    end if;
    for f in 1..5 loop
        v_at := v_at + length(substring(substr(v_text, v_at) from '^[ \t]*'));
        v_names := case f when 4 then v_months when 5 then v_days end;
        v_values := array[]::integer[];
        foreach v_part in array string_to_array(v_words[f], ',') loop
            if f = 3 and upper(v_part) in ('L', 'LW') then
                v_from := 32;
                v_values := v_values || case when upper(v_part) = 'L' then 32 else 33 end;
            elsif f = 5 and v_part ~* '^([0-9]|[a-z]{3})(L|#[1-5])$' then
                v_from := _cron_value(regexp_replace(v_part, '(L|#.)$', '', 'i'), v_names, 0, 7);
                v_values := v_values
                    || (v_from % 7 + 10 * case when right(v_part, 2) ~ '#' then right(v_part, 1)::integer
                                               else 6 end);
            else
                v_match := regexp_match(v_part, '^(?:([*])|([0-9a-z]+)(?:-([0-9a-z]+))?)(?:/([0-9]{1,9}))?$',
                                        'i');
                v_from := case when v_match[1] is null then _cron_value(v_match[2], v_names, v_least[f], v_most[f]) else v_least[f] end;
                v_to := case when v_match[3] is not null then _cron_value(v_match[3], v_names, v_least[f], v_most[f])
                             when v_match[1] is null and v_match[4] is null then v_from else v_most[f] end;
                if v_from <= v_to and (v_match[4]::integer > 0) is not false then
                    v_values := v_values || array(select case when f = 5 then n.value % 7 else n.value end
                                                  from generate_series(v_from, v_to, coalesce(v_match[4]::integer, 1)) n(value));
                else
                    v_from := null;
                end if;
            end if;
            if v_from is null then
                v_cron.problem := _cron_refusal(v_part, v_least[f], v_most[f], v_fields[f] || case
                    when line is null then format(' range, position %s of %L', v_at, cron)
                    else format(' range in line %s of crontab', line) end);
                return v_cron;
            end if;
            v_at := v_at + length(v_part) + 1;
        end loop;
        if f = 5 or strpos(v_words[f], ',') > 0 then
            v_values := array(select distinct v.value from unnest(v_values) v(value) order by 1);
        end if;
        case f
            when 1 then v_cron.minutes := v_values;
            when 2 then v_cron.hours := v_values;
            when 3 then v_cron.dates := v_values;
            when 4 then v_cron.months := v_values;
            when 5 then v_cron.weekdays := v_values;
        end case;
    end loop;
    v_cron.fixed := v_words[1] !~ '^[*]' and v_words[2] !~ '^[*]';
    v_cron.both_days := v_words[3] ~ '^[*]' or v_words[5] ~ '^[*]';
    if _cron_day(v_cron, '2000-01-01') is null then
        v_cron.problem := format('%L never comes: no month has such a day%s', cron,
                                 ' (line ' || line || ' of crontab)');
    end if;
    return v_cron;
end;
$$;

-- The first day that matches, from this day on. Null if there is none in 50 years. The rarest day,
-- a leap day on a given day of the week, comes within 40 years.
create or replace function _cron_day(c _cron, from_day date) returns date
    language plpgsql immutable set search_path from current
as $$
declare
    v_month date := from_day - (extract(day from from_day)::integer - 1);
    v_next date;
    v_weekday integer;
    v_last integer;
    v_last_weekday integer;
    v_date_fits boolean;
    v_weekday_fits boolean;
begin
    for i in 1..600 loop
        v_next := (v_month + interval '1 month')::date;
        if extract(month from v_month)::integer = any (c.months) then
            v_last := v_next - v_month;
            v_last_weekday := v_last - case extract(dow from v_next)::integer when 1 then 2 when 0 then 1
                                            else 0 end;
            for d in greatest(from_day - v_month, 0) + 1 .. v_last loop
                v_weekday := extract(dow from v_month + (d - 1));
                v_date_fits := d = any (c.dates) or d = v_last and 32 = any (c.dates)
                    or d = v_last_weekday and 33 = any (c.dates);
                v_weekday_fits := v_weekday = any (c.weekdays)
                    or v_weekday + 10 * ((d + 6) / 7) = any (c.weekdays)
                                  or d + 7 > v_last and v_weekday + 60 = any (c.weekdays);
                if v_date_fits and v_weekday_fits or not c.both_days and (v_date_fits or v_weekday_fits) then
                    return v_month + (d - 1);
                end if;
            end loop;
        end if;
        v_month := v_next;
    end loop;
    return null;
end;
$$;

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
    return case when v_earlier < v_at and v_earlier at time zone timezone = local_time then v_earlier else v_at end;
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

create or replace function _cron_runs(c _cron, timezone text, n integer, after timestamptz)
    returns setof timestamptz
    language plpgsql stable set search_path from current
as $$
declare
    v_at timestamptz := after;
begin
    for i in 1..n loop
        v_at := _cron_next(c, timezone, v_at);
        exit when v_at is null;
        return next v_at;
    end loop;
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
        format('timezone must be the name of a time zone, such as ''Europe/Berlin'' (see pg_timezone_names), got %s',
               coalesce(quote_literal(timezone), 'NULL')) end;
end;
$$;

create or replace function next_runs(cron text, timezone text default 'UTC', n integer default 5,
                                     after timestamptz default null)
    returns table (run_at timestamptz, local_time timestamp)
    language plpgsql stable security definer set search_path from current
as $$
declare
    v_cron _cron := _cron_of(next_runs.cron);
    v_after timestamptz := coalesce(next_runs.after, clock());
    v_problem text := coalesce(
        'cron: ' || v_cron.problem, _timezone_refusal(next_runs.timezone),
        case when n is null or n not between 1 and 1000 then format('n must be from 1 to 1000, got %s', coalesce(n::text, 'NULL'))
             when v_after not between '1900-01-01' and '9900-01-01' then format('after must be a time from 1900 to 9900, got %s', after) end);
begin
    if v_problem is not null then
        raise exception 'next_runs: %', v_problem using errcode = 'PW001';
    end if;
    return query
    select r.at, r.at at time zone next_runs.timezone
    from _cron_runs(v_cron, _timezone_of(next_runs.timezone), n, v_after) r(at);
end;
$$;
comment on function next_runs(text, text, integer, timestamptz) is
    'The next n times (1 to 1000) at which a cron expression falls due, after the time `after` '
    '(default: now), and the local time in that time zone. Use it to try an expression before you '
    'save it. Errors: PW001 names what is wrong, and its position.';

-- A list of numbers in words, for instance '1 to 5, 7 and 9'. names[n + 1] is the name of n.
create or replace function _span_words(numbers integer[], names text[] default null) returns text
    language plpgsql immutable set search_path from current
as $$
declare
    v_spans text[];
begin
    select array_agg(x.words order by x.first) into v_spans
    from (select min(s.n) as first, case when count(*) > 2
                 then concat(coalesce(names[min(s.n) + 1], min(s.n)::text), ' to ',
                             coalesce(names[max(s.n) + 1], max(s.n)::text))
                 else string_agg(coalesce(names[s.n + 1], s.n::text), ', ' order by s.n) end as words
          from (select u.n, u.n - row_number() over (order by u.n) as span from unnest(numbers) u(n)) s
          group by s.span) x;
    return regexp_replace(array_to_string(v_spans, ', '), ', ([^,]*)$', E' and \\1');
end;
$$;

create or replace function describe_cron(cron text) returns text
    language plpgsql immutable security definer set search_path from current
as $$
declare
    c _cron := _cron_of(describe_cron.cron);
    v_days constant text[] := '{Sunday,Monday,Tuesday,Wednesday,Thursday,Friday,Saturday}'::text[];
    v_nth constant text[] := '{first,second,third,fourth,fifth,last}'::text[];
    v_all_minutes boolean := cardinality(c.minutes) = 60;
    v_all_hours boolean := cardinality(c.hours) = 24;
    v_step integer := case when cardinality(c.minutes) > 1 and c.minutes = array(select generate_series(0, 59, nullif(c.minutes[2], 0)))
                                and 60 % c.minutes[2] = 0 then c.minutes[2] end;
    v_time text;
    v_date text;
    v_weekday text;
begin
    if c.problem is not null then
        raise exception 'describe_cron: cron: %', c.problem using errcode = 'PW001';
    end if;
    if cardinality(c.minutes) * cardinality(c.hours) <= 6 then
        v_time := 'at ' || regexp_replace((
            select string_agg(format('%s:%s', lpad(h.h::text, 2, '0'), lpad(m.m::text, 2, '0')),
                              ', ' order by h.h, m.m)
            from unnest(c.hours) h(h), unnest(c.minutes) m(m)), ', ([^,]*)$', E' and \\1');
    else
        v_time := case when v_all_minutes then 'every minute'
                       when v_step is not null then format('every %s minutes', v_step)
                       when c.minutes = '{0}' and v_all_hours then 'every hour'
                       else format('at minute %s', _span_words(c.minutes)) end
            || case when not v_all_hours then format(' of hour %s', _span_words(c.hours))
                    when v_all_minutes or v_step is not null or c.minutes = '{0}' then ''
                    else ' of every hour' end;
    end if;
    v_date := case when (select count(*) from unnest(c.dates) d(d) where d.d < 32) < 31 then concat_ws(' and ',
        'on day ' || nullif(_span_words(array(select d.d from unnest(c.dates) d(d) where d.d < 32)), ''),
        case when 32 = any (c.dates) then 'on the last day' end,
        case when 33 = any (c.dates) then 'on the last day from Monday to Friday' end) || ' of the month' end;
    v_weekday := case when (select count(*) from unnest(c.weekdays) w(w) where w.w < 7) < 7 then concat_ws(' and ',
        'on ' || nullif(_span_words(array(select w.w from unnest(c.weekdays) w(w) where w.w < 7), v_days),
                        ''),
        (select string_agg(format('on the %s %s of the month', v_nth[w.w / 10], v_days[w.w % 10 + 1]),
                           ' and ' order by w.w)
         from unnest(c.weekdays) w(w) where w.w > 9)) end;
    return v_time
        || case when v_date is not null and v_weekday is not null
                    then format(' %s%s %s', v_date,
                                case when c.both_days then ', if it is also' else ', and' end, v_weekday)
                when not c.both_days or v_date is null and v_weekday is null
                    then case when v_time ~ '^at [0-9]' then ' every day' else '' end
                else ' ' || coalesce(v_date, v_weekday) end
        || coalesce(' in ' || case when cardinality(c.months) < 12 then _span_words(c.months, array[
            '', 'January', 'February', 'March', 'April', 'May', 'June', 'July', 'August', 'September',
            'October', 'November', 'December']) end, '');
end;
$$;
comment on function describe_cron(text) is
    'Describes a cron expression in English, for instance ''at 09:00 on Monday to Friday''. '
    'Errors: PW001 names what is wrong, and its position.';
