-- features/crontab: declare_schedules() and parse_crontab(), for all schedules of a crontab or of
-- a program.
--
-- Each schedule stores its origin: 'sql', 'crontab:NAME' or 'code:MODULE'. A call declares all
-- schedules of its origins. Those that it no longer names are removed. A schedule of another origin
-- stays as it is, even under the same name: a schedule that was added by SQL is not overwritten.
-- Only code may take over a schedule from other code, because modules are renamed.

-- Adds one schedule of declare_schedules, an object with members named like the arguments of
-- add_schedule. action: what became of it. problem: why it is refused, or null.
create or replace function _declare_schedule(
    item jsonb, origins text[], out name text, out action text, out problem text)
    language plpgsql set search_path from current
as $$
declare
    v_allowed constant text[] :=
        '{name,cron,timezone,identifier,payload,backfill,queue_name,max_attempts,priority,job_key,
          job_key_mode,flags,unique_policy,sequence_policy,meta,delivery,origin}'::text[];
    v_wanted schedule;
    v_old schedule_entries;
begin
    problem := case
        when jsonb_typeof(item) <> 'object' then format('must be an object, got %s', jsonb_typeof(item))
        else (select format('has the unknown member "%s" (known: %s)', k.name,
                            array_to_string(v_allowed, ', '))
              from jsonb_object_keys(item) k(name) where k.name <> all (v_allowed) limit 1) end;
    if problem is not null then
        return;
    end if;
    v_wanted := jsonb_populate_record(null::schedule, jsonb_build_object(
        'timezone', 'UTC', 'backfill', '0', 'origin', origins[1], 'paused', false) || item);
    v_wanted.payload := item -> 'payload'; -- null is a payload, too
    name := v_wanted.name;
    select t.* into v_old from schedule_entries t where t.name = v_wanted.name;
    if v_wanted.origin <> all (origins) then
        problem := format('has the origin %L, which is not one of %s', v_wanted.origin, origins);
    elsif v_old.origin <> v_wanted.origin
          and not (v_old.origin like 'code:%' and v_wanted.origin like 'code:%') then
        action := 'left to ' || v_old.origin;
    else
        v_wanted := _add_schedule(v_wanted);
        action := case when v_old.name is null and v_wanted.created_at = v_wanted.updated_at then 'added'
                       when v_old.name is null then 'unchanged' -- another worker has just added it
                       when v_wanted.updated_at > v_old.updated_at then 'changed'
                       else 'unchanged' end;
    end if;
exception when data_exception or invalid_text_representation or sqlstate 'PW001' then
    problem := format('(%s) is not valid: %s', item ->> 'name', sqlerrm);
end;
$$;

create or replace function declare_schedules(origins text[], schedules jsonb, dry_run boolean default false)
    returns table (name text, action text)
    language plpgsql security definer set search_path from current
as $$
declare
    v_item record;
    v_done record;
    v_names text[] := array[]::text[];
    v_actions text[] := array[]::text[];
begin
    if origins is null or origins = '{}'
       or exists (select from unnest(origins) o(name)
                  where o.name is null or o.name !~ '^(crontab|code):.') then
        raise exception 'declare_schedules: origins must be names like ''crontab:NAME'' or ''code:MODULE'', '
            'got %', coalesce(origins::text, 'NULL') using errcode = 'PW001';
    elsif schedules is null or jsonb_typeof(schedules) <> 'array' then
        raise exception 'declare_schedules: schedules must be a JSON array, got %',
            coalesce(jsonb_typeof(schedules), 'NULL') using errcode = 'PW001';
    end if;
    begin
        for v_item in select e.value, e.ordinality as n
            from jsonb_array_elements(schedules) with ordinality e loop
            v_done := _declare_schedule(v_item.value, origins);
            if v_done.problem is null and v_done.name = any (v_names) then
                v_done.problem := format('is named %L like another one', v_done.name);
            end if;
            if v_done.problem is not null then
                raise exception 'declare_schedules: schedules[%] %', v_item.n, v_done.problem
                    using errcode = 'PW001';
            end if;
            v_names := v_names || v_done.name;
            v_actions := v_actions || v_done.action;
        end loop;
        for v_item in
            select t.name from schedule_entries t
            where t.origin = any (origins) and t.name <> all (v_names) order by t.name
        loop
            perform remove_schedule(v_item.name);
            v_names := v_names || v_item.name;
            v_actions := v_actions || 'removed'::text;
        end loop;
        if dry_run then
            raise sqlstate 'PW099';
        end if;
    exception when sqlstate 'PW099' then -- PW000 would catch all codes of class PW
        null;
    end;
    return query select n.name, n.action from unnest(v_names, v_actions) n(name, action);
end;
$$;
comment on function declare_schedules(text[], jsonb, boolean) is
    'Declares all schedules of these origins (''crontab:NAME'', ''code:MODULE''). schedules: an '
    'array of objects with members named like the arguments of add_schedule, and origin, by '
    'default the first of origins. Schedules of these origins that are not in the array are '
    'removed. A schedule with the same name but another origin stays as it is; only code may take '
    'over a schedule from other code. Returns the action for each name: added, changed, unchanged, '
    'removed, or ''left to'' and the other origin. dry_run: returns the actions and changes '
    'nothing. Errors: PW001.';

-- Decodes the URL encoding of an option; null if that gives no text (%00, half of a character).
create or replace function _url_decoded(value text) returns text
    language plpgsql immutable set search_path from current
as $$
begin
    return convert_from((
        select string_agg(case when m.found[1] is not null then decode(m.found[1], 'hex')
                               else convert_to(m.found[2], 'UTF8') end, '' order by m.n)
        from regexp_matches(replace(value, '+', ' '), '%([0-9a-fA-F]{2})|([^%]+|%)',
                            'g') with ordinality m(found, n)), 'UTF8');
exception when character_not_in_repertoire then
    return null;
end;
$$;

-- The options of a line, 'max=3&queue=mail' for instance, as members of a schedule.
create or replace function _crontab_options(options text, line integer) returns jsonb
    language plpgsql immutable set search_path from current
as $$
declare
    -- For each option: its name, the argument of add_schedule, the pattern of its value.
    v_known constant text[] := '{
        {id,name,"^[_a-zA-Z][-_a-zA-Z0-9]*$"}, {fill,backfill,"^([0-9]{1,9}[smhdw])+$"},
        {max,max_attempts,"^[0-9]{1,9}$"}, {queue,queue_name,"^[-a-zA-Z0-9_:]+$"}, {jobKey,job_key,"."},
        {jobKeyMode,job_key_mode,"^(replace|preserve_run_at)$"},
        {priority,priority,"^-?[0-9]{1,9}$"}}'::text[];
    v_text text;
    v_option text;
    v_raw text;
    v_value text;
    v_at integer;
    v_problem text;
    v_found jsonb := jsonb_build_object();
begin
    foreach v_text in array coalesce(string_to_array(options, '&'), '{}') loop
        v_option := _url_decoded(split_part(v_text, '=', 1));
        v_raw := substr(v_text, length(split_part(v_text, '=', 1)) + 2);
        v_value := case when v_raw = '' then '' else _url_decoded(v_raw) end;
        v_at := (select min(n.n) from generate_series(1, array_length(v_known, 1)) n(n)
                 where v_known[n.n][1] = v_option);
        v_problem := case
            when v_at is null then
                format('contains unsupported key ''%s''; supported keys are: %s.', v_option,
                       (select string_agg(quote_literal(v_known[n.n][1]), ', ' order by n.n)
                        from generate_series(1, array_length(v_known, 1)) n(n)))
            when v_value is null then format('contains an invalid value for ''%s'': ''%s''.', v_option, v_raw)
            when v_found ? v_known[v_at][2] then format('specifies ''%s'' more than once.', v_option)
            when v_value !~ v_known[v_at][3] then
                format('contains an invalid value for ''%s'': ''%s''.', v_option, v_value) end;
        if v_problem is not null then
            raise exception 'Options on line % of crontab %', line, v_problem using errcode = 'PW001';
        end if;
        if v_option = 'fill' then
            v_value := regexp_replace(v_value, '([smhdw])', E'\\1 ', 'g'); -- spaces make it an interval
        end if;
        v_found := v_found || jsonb_build_object(v_known[v_at][2], v_value);
    end loop;
    return v_found;
end;
$$;

create or replace function parse_crontab(content text)
    returns table (line integer, schedule jsonb, payload text)
    language plpgsql stable security definer set search_path from current
as $$
declare
    v_text text;
    v_match text[];
    v_words text[];
    v_cron _cron;
    v_name text;
    v_seen jsonb := jsonb_build_object();
begin
    for line, v_text in
        select l.n, btrim(l.text, E' \t\r')
        from regexp_split_to_table(content, E'\n') with ordinality l(text, n)
    loop
        continue when v_text = '' or starts_with(v_text, '#');
        v_match := regexp_match(v_text, E'^(@[a-zA-Z]+|(?:\\S+\\s+){4}\\S+)\\s+(.*)$');
        if v_match is null then
            raise exception 'Could not process line ''%'' of crontab: ''%''', line, v_text
                using errcode = 'PW001';
        end if;
        v_words := regexp_split_to_array(v_match[1], E'\\s+');
        v_cron := _cron_of(array_to_string(v_words, ' '), line);
        if v_cron.problem is not null then
            raise exception '%', v_cron.problem using errcode = 'PW001';
        end if;
        -- A day must match only one of dates and weekdays if both are restricted. In Graphile
        -- Worker a field is restricted if it leaves out a day, in cron if it does not begin with *.
        -- This translates it.
        if cardinality(v_words) = 5 then
            v_words[3] := case when v_cron.dates @> array(select generate_series(1, 31)) then '*'
                               else replace(v_words[3], '*', '1-31') end;
            v_words[5] := case when v_cron.weekdays @> '{0,1,2,3,4,5,6}' then '*'
                               else replace(v_words[5], '*', '0-6') end;
        end if;
        v_match := regexp_match(v_match[2],
                                E'^([_a-zA-Z][_a-zA-Z0-9:/_-]*)(?:\\s+\\?(\\S+))?(?:\\s+(\\{.*\\}))?$');
        if v_match is null then
            raise exception 'Invalid command specification in line % of crontab.', line
                using errcode = 'PW001';
        end if;
        schedule := jsonb_build_object('name', v_match[1], 'cron', array_to_string(v_words, ' '),
                                       'identifier', v_match[1]) || _crontab_options(v_match[2], line);
        v_name := schedule ->> 'name';
        if v_seen ? v_name then
            raise exception 'Lines % and % of crontab have the same identifier ''%''; %', v_seen ->> v_name,
                line, v_name, 'give one of them another by ''?id=''.' using errcode = 'PW001';
        end if;
        v_seen := v_seen || jsonb_build_object(v_name, line);
        payload := v_match[3];
        return next;
    end loop;
end;
$$;
comment on function parse_crontab(text) is
    'Parses a crontab in Graphile Worker''s format and returns schedules for declare_schedules, '
    'one row per line of the form min hour day month weekday task '
    '?id=&fill=&max=&queue=&jobKey=&jobKeyMode=&priority= {payload}. payload: JSON5, returned as '
    'text. Times are UTC. Also allowed: names, L, # and @daily. Errors: PW001 in Graphile '
    'Worker''s words, with the number of the line.';
