-- features/cron_expressions: what a cron expression means: _cron_of parses one, _cron_day finds its days.
--
-- An expression has five fields, each a list of numbers, names, ranges and steps, as in Vixie cron.
-- There are four additions. Dates: L (the last day of the month) and LW (its last day from Monday
-- to Friday). Days of the week: 5L (the last Friday of the month) and 5#2 (its second Friday).
--
-- In a _cron, day of the week d that is the month's nth is stored as n * 10 + d, the month's last
-- one as 60 + d. The dates L and LW are 32 and 33.

-- Field 1 to 5 of an expression: its name in messages, its least and greatest values, and the names
-- of its values.
create or replace function _cron_field(
    field integer, out place text, out lowest integer, out highest integer, out names text[])
    language plpgsql immutable set search_path from current
as $$
begin
    place := (array['minutes', 'hours', 'dates', 'months', 'days of the week'])[field];
    lowest := (array[0, 0, 1, 1, 0])[field];
    highest := (array[59, 23, 31, 12, 7])[field];
    names := case field when 4 then '{JAN,FEB,MAR,APR,MAY,JUN,JUL,AUG,SEP,OCT,NOV,DEC}'::text[]
                        when 5 then '{SUN,MON,TUE,WED,THU,FRI,SAT}'::text[] end;
end;
$$;

-- The number of a value of a field, which is a number or a name. Null if it is neither, or out of
-- range.
create or replace function _cron_value(word text, names text[], lowest integer, highest integer)
    returns integer
    language sql immutable
    return case when word !~ '^[0-9]{1,9}$' then array_position(names, upper(word)) - 1 + lowest
                when word::integer between lowest and highest then word::integer end;

-- The values of a part of a field: a number, a name, a range, a step, or one of the additions
-- above. Null if the part is invalid.
create or replace function _cron_part(part text, field integer) returns integer[]
    language plpgsql immutable set search_path from current
as $$
declare
    v_field record := _cron_field(field);
    v_match text[];
    v_nth integer;
    v_from integer;
    v_to integer;
    v_step integer;
begin
    if field = 3 and upper(part) in ('L', 'LW') then
        return array[case when upper(part) = 'L' then 32 else 33 end];
    elsif field = 5 and part ~* '^([0-9]|[a-z]{3})(L|#[1-5])$' then
        v_from := _cron_value(regexp_replace(part, '(L|#.)$', '', 'i'), v_field.names, 0, 7) % 7;
        v_nth := case when right(part, 2) ~ '#' then right(part, 1)::integer else 6 end;
        return case when v_from is not null then array[v_nth * 10 + v_from] end;
    end if;
    v_match := regexp_match(part, '^(?:([*])|([0-9a-z]+)(?:-([0-9a-z]+))?)(?:/([0-9]{1,9}))?$', 'i');
    v_step := coalesce(v_match[4]::integer, 1);
    v_from := case when v_match[1] is not null then v_field.lowest
                   else _cron_value(v_match[2], v_field.names, v_field.lowest, v_field.highest) end;
    v_to := case when v_match[3] is not null
                     then _cron_value(v_match[3], v_field.names, v_field.lowest, v_field.highest)
                 when v_match[1] is null and v_match[4] is null then v_from
                 else v_field.highest end;
    if v_from <= v_to and v_step > 0 then
        return array(select case when field = 5 then n.value % 7 else n.value end
                     from generate_series(v_from, v_to, v_step) n(value));
    end if;
    return null;
end;
$$;

-- The error message for an invalid part of a field, in Graphile Worker's words. place: where the
-- part stands.
create or replace function _cron_refusal(part text, field integer, place text) returns text
    language plpgsql immutable set search_path from current
as $$
declare
    v_field record := _cron_field(field);
    v_where text := format('%s range%s', v_field.place, place);
    v_range integer[] := regexp_match(part, '^([0-9]{1,9})-([0-9]{1,9})(?:/|$)')::integer[];
    v_outside text := (
        select w.word[1] from regexp_matches(split_part(part, '/', 1), '[0-9]+', 'g') w(word)
        where w.word[1]::numeric not between v_field.lowest and v_field.highest limit 1);
begin
    return case
        when part ~ '/0+$' then
            format('Invalid wildcard expression ''%s'' in %s: divisor ''0'' expected to be greater than zero',
                   part, v_where)
        when part !~ '^[0-9]+(-[0-9]+)?(/[0-9]+)?$' or length(part) > 40 then
            format('Unsupported syntax ''%s'' in %s: this doesn''t appear to be a number, range or wildcard',
                   left(part, 40), v_where)
        when v_outside is null or v_range[2] < v_range[1] then
            format('Invalid range ''%s'' in %s: destination is not larger than source', part, v_where)
        else format('Too %s value ''%s'' in %s: expected values in the range %s-%s.',
                    case when v_outside::numeric > v_field.highest then 'large' else 'small' end,
                    v_outside, v_where, v_field.lowest, v_field.highest - (field = 5)::integer) end;
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
    v_words text[] := regexp_split_to_array(btrim(v_text, E' \t'), '[ \t]+');
    v_at integer := 1;      -- position in v_text
    v_part text;
    v_some integer[];
    v_values integer[];
    v_cron _cron;
begin
    if cron is null or cardinality(v_words) <> 5 then
        v_cron.problem := format(
            '%L is not a schedule: it must have five fields (minutes, hours, dates, months, '
            'days of the week), or be one of @yearly, @monthly, @weekly, @daily, @midnight, @hourly', cron);
        return v_cron;
    end if;
    for f in 1..5 loop
        v_at := v_at + length(substring(substr(v_text, v_at) from '^[ \t]*'));
        v_values := array[]::integer[];
        foreach v_part in array string_to_array(v_words[f], ',') loop
            v_some := _cron_part(v_part, f);
            if v_some is null then
                v_cron.problem := _cron_refusal(v_part, f, case
                    when line is null then format(', position %s of %L', v_at, cron)
                    else format(' in line %s of crontab', line) end);
                return v_cron;
            end if;
            v_values := v_values || v_some;
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
