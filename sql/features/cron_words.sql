-- features/cron_words: a cron expression in words: describe_cron.

-- 'a, b, c' as 'a, b and c'.
create or replace function _with_and(list text) returns text
    language plpgsql immutable set search_path from current
as $$
begin
    return regexp_replace(list, ', ([^,]*)$', E' and \\1');
end;
$$;

-- A list of numbers in words, for instance '1 to 5, 7 and 9'. names[n + 1] is the name of n.
create or replace function _numbers_in_words(numbers integer[], names text[] default null) returns text
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
    return _with_and(array_to_string(v_spans, ', '));
end;
$$;

create or replace function describe_cron(cron text) returns text
    language plpgsql immutable security definer set search_path from current
as $$
declare
    c _cron := _cron_of(describe_cron.cron);
    v_months constant text[] := array[
        '', 'January', 'February', 'March', 'April', 'May', 'June', 'July', 'August', 'September', 'October',
        'November', 'December'];
    v_weekdays constant text[] := '{Sunday,Monday,Tuesday,Wednesday,Thursday,Friday,Saturday}'::text[];
    v_nth constant text[] := '{first,second,third,fourth,fifth,last}'::text[];
    v_all_minutes boolean := cardinality(c.minutes) = 60;
    v_all_hours boolean := cardinality(c.hours) = 24;
    v_step integer; -- every so many minutes
    v_days integer[];
    v_time text;
    v_date text; -- null if all dates match
    v_weekday text; -- the same
begin
    if c.problem is not null then
        raise exception 'describe_cron: cron: %', c.problem using errcode = 'PW001';
    end if;
    v_step := case when cardinality(c.minutes) > 1 and 60 % c.minutes[2] = 0
             and c.minutes = array(select generate_series(0, 59, nullif(c.minutes[2], 0)))
        then c.minutes[2] end;
    if cardinality(c.minutes) * cardinality(c.hours) <= 6 then
        v_time := 'at ' || _with_and((
            select string_agg(format('%s:%s', lpad(h.h::text, 2, '0'), lpad(m.m::text, 2, '0')),
                              ', ' order by h.h, m.m)
            from unnest(c.hours) h(h), unnest(c.minutes) m(m)));
    else
        v_time := case when v_all_minutes then 'every minute'
                       when v_step is not null then format('every %s minutes', v_step)
                       when c.minutes = '{0}' and v_all_hours then 'every hour'
                       else format('at minute %s', _numbers_in_words(c.minutes)) end
            || case when not v_all_hours then format(' of hour %s', _numbers_in_words(c.hours))
                    when v_all_minutes or v_step is not null or c.minutes = '{0}' then ''
                    else ' of every hour' end;
    end if;
    v_days := array(select d.d from unnest(c.dates) d(d) where d.d < 32);
    v_date := case when cardinality(v_days) < 31 then concat_ws(' and ',
        'on day ' || nullif(_numbers_in_words(v_days), ''),
        case when 32 = any (c.dates) then 'on the last day' end,
        case when 33 = any (c.dates) then 'on the last day from Monday to Friday' end) || ' of the month' end;
    v_days := array(select w.w from unnest(c.weekdays) w(w) where w.w < 7);
    v_weekday := case when cardinality(v_days) < 7 then concat_ws(' and ',
        'on ' || nullif(_numbers_in_words(v_days, v_weekdays), ''),
        (select string_agg(format('on the %s %s of the month', v_nth[w.w / 10], v_weekdays[w.w % 10 + 1]),
                           ' and ' order by w.w)
         from unnest(c.weekdays) w(w) where w.w > 9)) end;
    return concat(
        v_time,
        case when v_date is not null and v_weekday is not null
                 then format(' %s%s %s', v_date,
                             case when c.both_days then ', if it is also' else ', and' end, v_weekday)
             when c.both_days and (v_date is not null or v_weekday is not null)
                 then ' ' || coalesce(v_date, v_weekday)
             when v_time ~ '^at [0-9]' then ' every day' end,
        ' in ' || case when cardinality(c.months) < 12 then _numbers_in_words(c.months, v_months) end);
end;
$$;
comment on function describe_cron(text) is
    'Describes a cron expression in English, for instance ''at 09:00 on Monday to Friday''. '
    'Errors: PW001 names what is wrong, and its position.';
