-- features/unique_policy: what a unique_policy means: which jobs it treats as equal, in which states, and
-- for how long. There are two kinds of policies, told apart by their members:
--
--   Open Job Spec  keys, args_keys, meta_keys, states, on_conflict,
--                  period (slides from the existing job's created_at)
--   River          by_args, by_queue, by_state, exclude_kind, on_conflict,
--                  by_period (windows aligned in UTC)
--
-- Every add with a policy reads it. So the functions that read it run no queries: starting one
-- query costs more than all the rest.

-- Why a value is not a list of distinct strings (of `known`, if given); null if it is one.
create or replace function _names_refusal(member text, value jsonb, known text[] default null) returns text
    language plpgsql immutable set search_path from current
as $$
declare
    v_names text[] := array[]::text[];
    v_name text;
begin
    if jsonb_typeof(value) <> 'array' then
        return format('%s must be an array of strings, got %s', member, value);
    end if;
    for i in 0 .. jsonb_array_length(value) - 1 loop
        v_name := normalize(value ->> i);
        if jsonb_typeof(value -> i) <> 'string' then
            return format('%s must be an array of strings, got %s', member, value);
        elsif v_name = any (v_names) then
            return format('%s must not name anything twice, got %s', member, value);
        elsif v_name <> all (known) then
            return format('%s must name only %s, got "%s"', member, array_to_string(known, ', '), v_name);
        end if;
        v_names := v_names || v_name;
    end loop;
    return null;
end;
$$;

create or replace function _texts_of(value jsonb) returns text[]
    language plpgsql immutable strict set search_path from current
as $$
declare
    v_texts text[] := array[]::text[];
begin
    for i in 0 .. jsonb_array_length(value) - 1 loop
        v_texts := v_texts || (value ->> i);
    end loop;
    return v_texts;
end;
$$;

-- Why the states of a policy are invalid; null if they are valid. 'active' is the Open Job Spec's
-- name for running.
create or replace function _states_refusal(member text, value jsonb) returns text
    language plpgsql immutable set search_path from current
as $$
begin
    if value @> '["active", "running"]' then
        return format('%s must not name anything twice, got %s', member, value);
    end if;
    return _names_refusal(member, value, array[
        'scheduled', 'available', 'pending', 'active', 'running', 'completed', 'retryable',
        'cancelled', 'discarded']);
end;
$$;

-- Why a policy is invalid; null if it is valid. _uniqueness_of checks what depends on the job:
-- whether its payload has the args_keys.
create or replace function _unique_policy_refusal(policy jsonb) returns text
    language plpgsql stable set search_path from current
as $$
declare
    v_ojs constant text[] := array['keys', 'args_keys', 'meta_keys', 'period', 'states'];
    v_river constant text[] := array['by_args', 'by_period', 'by_queue', 'by_state', 'exclude_kind'];
    v_rest jsonb;
begin
    if jsonb_typeof(policy) <> 'object' then
        return format('it must be a JSON object, got %s', jsonb_typeof(policy));
    end if;
    v_rest := policy - v_ojs - v_river - 'on_conflict';
    return case
        when v_rest <> '{}' then
            format('unknown member %s (known: %s)', jsonb_path_query_first(v_rest, '$.keyvalue().key'),
                   array_to_string(v_ojs || v_river || array['on_conflict'], ', '))
        when policy ?| v_ojs and policy ?| v_river then
            format('members of the Open Job Spec (%s) and of River (%s) cannot be mixed',
                   array_to_string(v_ojs, ', '), array_to_string(v_river, ', '))
        when policy -> 'on_conflict'
             not in ('"reject"', '"replace"', '"replace_except_schedule"', '"ignore"') then
            format('on_conflict must be reject, replace, replace_except_schedule or ignore, got %s',
                policy -> 'on_conflict')
        when policy ?| v_river then _river_policy_refusal(policy)
        else coalesce(
            case when policy ? 'keys' then _names_refusal(
                'keys', policy -> 'keys', array['type', 'queue', 'args', 'meta']) end,
            case when policy -> 'args_keys' <> 'null'
                then _names_refusal('args_keys', policy -> 'args_keys') end,
            case when policy -> 'meta_keys' <> 'null'
                then _names_refusal('meta_keys', policy -> 'meta_keys') end,
            case when policy ? 'states' then _states_refusal('states', policy -> 'states') end,
            case when policy -> 'period' <> 'null'
                      and (jsonb_typeof(policy -> 'period') <> 'string'
                           or _iso_duration(policy ->> 'period') is null)
                 then format('period must be an ISO 8601 duration such as "PT1H", got %s',
                             policy -> 'period') end,
            case when policy -> 'keys' ? 'meta'
                      and coalesce(nullif(policy -> 'meta_keys', 'null'), '[]') = '[]'
                 then 'keys names meta, so meta_keys must name which members of meta' end)
    end;
end;
$$;

create or replace function _river_policy_refusal(policy jsonb) returns text
    language plpgsql stable set search_path from current
as $$
declare
    v_by_args jsonb := policy -> 'by_args';
    v_by_state jsonb := policy -> 'by_state';
    v_period interval;
    v_problem text;
begin
    if jsonb_typeof(v_by_args) <> 'boolean' then
        v_problem := case when v_by_args = '[]'
                          then 'by_args must name at least one member of the payload, got []'
                          else _names_refusal('by_args', v_by_args) end;
    end if;
    if v_problem is null and policy ? 'by_period' then
        v_period := _interval_of(policy -> 'by_period');
        if v_period is null or extract(epoch from v_period) < 1 or extract(year from v_period) <> 0
           or extract(month from v_period) <> 0 then
            v_problem := format('by_period must be at least 1 second and hold no months or years, got %s',
                                policy -> 'by_period');
        end if;
    end if;
    if v_problem is null and v_by_state is not null then
        v_problem := _states_refusal('by_state', v_by_state);
        if v_problem is null and not (v_by_state ?& array['available', 'pending', 'scheduled']
                                       and v_by_state ?| array['running', 'active']) then
            v_problem := 'by_state must contain all required states, missing: ' || concat_ws(', ',
                case when not v_by_state ? 'available' then 'available' end,
                case when not v_by_state ? 'pending' then 'pending' end,
                case when not v_by_state ?| array['running', 'active'] then 'running' end,
                case when not v_by_state ? 'scheduled' then 'scheduled' end);
        end if;
    end if;
    return coalesce(
        v_problem,
        case when jsonb_typeof(policy -> 'by_queue') <> 'boolean'
             then format('by_queue must be true or false, got %s', policy -> 'by_queue') end,
        case when jsonb_typeof(policy -> 'exclude_kind') <> 'boolean'
             then format('exclude_kind must be true or false, got %s', policy -> 'exclude_kind') end,
        case when coalesce(v_by_args, 'false') = 'false' and coalesce(policy -> 'by_queue', 'false') = 'false'
                  and not policy ?| array['by_period', 'by_state']
             then format('it names nothing that a job should be unique by: %s', policy) end);
end;
$$;

-- Reads an ISO 8601 duration, strictly, as PostgreSQL itself accepts much else. Null if the value
-- is none, or too long to be added to a time.
create or replace function _iso_duration(value text) returns interval
    language plpgsql stable set search_path from current set intervalstyle = 'iso_8601'
as $$
declare
    v_interval interval;
begin
    if value !~ ('^P(?=.)([0-9]+Y)?([0-9]+M)?([0-9]+W)?([0-9]+D)?'
                 '(T(?=[0-9])([0-9]+H)?([0-9]+M)?([0-9]+([.][0-9]+)?S)?)?$') then
        return null;
    end if;
    v_interval := value::interval;
    perform timestamptz '2100-01-01 00:00+00' + v_interval;
    return v_interval;
exception when data_exception then
    return null;
end;
$$;

create or replace function unique_opts(
    by_args jsonb default null, by_period interval default null, by_queue boolean default null,
    by_state text[] default null, exclude_kind boolean default null, on_conflict text default null)
    returns jsonb
    language plpgsql stable security definer set search_path from current
    set intervalstyle = 'postgres' -- by_period is stored as text, written in this style
as $$
declare
    v_policy jsonb := jsonb_strip_nulls(jsonb_build_object(
        'by_args', by_args, 'by_period', by_period, 'by_queue', by_queue, 'by_state', by_state,
        'exclude_kind', exclude_kind, 'on_conflict', on_conflict));
    -- The first check applies River's rules only if a member of River's is given.
    v_problem text := coalesce(_unique_policy_refusal(v_policy), _river_policy_refusal(v_policy));
begin
    if v_problem is not null then
        raise exception 'unique_opts: %', v_problem using errcode = 'PW001';
    end if;
    return v_policy;
end;
$$;
comment on function unique_opts(jsonb, interval, boolean, text[], boolean, text) is
    'Makes a unique_policy of River''s kind from named arguments: by_args => ''true'' or '
    '''["customer_id"]'', by_period => ''15 minutes'', by_queue => true, by_state => ''{…}'', '
    'exclude_kind => true, on_conflict => ''ignore'' (default), ''reject'', ''replace'' or '
    '''replace_except_schedule''. Errors: PW001.';

-- What a policy means for one job: its unique key, and which jobs count as its duplicates. Error
-- messages begin with `label`.
create or replace function _uniqueness_of(
    request _job_request, policy jsonb, queue_name text, now timestamptz, label text) returns _uniqueness
    language plpgsql stable set search_path from current
as $$
declare
    v_problem text := coalesce(
        _unique_policy_refusal(policy),
        case when request.job_key is not null then 'it cannot be combined with job_key' end);
    v_ojs boolean := not policy ?| array['by_args', 'by_period', 'by_queue', 'by_state', 'exclude_kind'];
    v_payload jsonb;
    v_names text[];
    v_task constant text := to_json(normalize(request.identifier));
    v_queue constant text := to_json(normalize(coalesce(queue_name, 'default')));
    v_object text; -- canonical JSON, whose hash is the key
begin
    if v_problem is not null then
        raise exception '%: unique_policy: %', label, v_problem using errcode = 'PW001';
    end if;
    begin
        -- The payload is cast only if the policy compares it: jsonb cannot hold all JSON.
        if policy -> 'keys' ? 'args' or jsonb_typeof(policy -> 'args_keys') = 'array'
           or policy -> 'by_args' <> 'false' then
            v_payload := coalesce(request.payload, '{}')::jsonb;
        end if;
        if jsonb_typeof(policy -> 'args_keys') = 'array' then
            v_names := _texts_of(policy -> 'args_keys');
            if not v_payload ?& v_names
               or jsonb_typeof(v_payload) <> 'object' and cardinality(v_names) > 0 then
                raise exception 'args_keys must name members that the payload has, got %',
                    policy -> 'args_keys' using errcode = 'PW001';
            end if;
            v_payload := _members(v_payload, v_names);
        elsif jsonb_typeof(policy -> 'by_args') = 'array' and jsonb_typeof(v_payload) = 'object' then
            v_payload := _members(v_payload, _texts_of(policy -> 'by_args'));
        end if;
        -- A River key has "kind" where an Open Job Spec key has "type": so no two of them are equal.
        v_object := '{' || case when v_ojs then concat_ws(',',
            case when policy -> 'keys' ? 'args' then '"args":' || _canonical(v_payload) end,
            case when policy -> 'keys' ? 'meta' then '"meta":' || _canonical(
                _members(coalesce(request.meta, '{}'), _texts_of(policy -> 'meta_keys'))) end,
            case when policy -> 'keys' ? 'queue' then '"queue":' || v_queue end,
            '"type":' || v_task)
        else concat_ws(',',
            case when policy -> 'by_args' <> 'false' then '"args":' || _canonical(v_payload) end,
            case when policy -> 'exclude_kind' is distinct from 'true' then '"kind":' || v_task end,
            case when policy ? 'by_period' then '"period":' || to_json(to_char(
                date_bin(_interval_of(policy -> 'by_period'), coalesce(request.run_at, now),
                         '0001-01-01 00:00+00') at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')) end,
            case when policy -> 'by_queue' = 'true' then '"queue":' || v_queue end) end || '}';
    exception
        when sqlstate 'PW001' then
            raise exception '%: unique_policy: %', label, sqlerrm using errcode = 'PW001';
        when data_exception or statement_too_complex then
            get stacked diagnostics v_problem = pg_exception_detail;
            raise exception '%: unique_policy: the job cannot be compared with others: %', label,
                coalesce(nullif(v_problem, ''), sqlerrm) using errcode = 'PW001';
    end;
    return (
        sha256(convert_to(v_object, 'UTF8')),
        coalesce(
            array_replace(_texts_of(coalesce(policy -> 'states', policy -> 'by_state')), 'active', 'running'),
            case when v_ojs then array['available', 'pending', 'retryable', 'running', 'scheduled']
                 else array['available', 'completed', 'pending', 'retryable', 'running', 'scheduled'] end),
        case when policy ->> 'period' is not null then _iso_duration(policy ->> 'period') end,
        coalesce(policy ->> 'on_conflict', case when v_ojs then 'reject' else 'ignore' end),
        -- Under a River policy a retryable job checks for duplicates again when it is due: its own
        -- policy may not name 'retryable', or a job may have come in under a policy that does not.
        not v_ojs)::_uniqueness;
end;
$$;

-- An object with only the named members of this one; skips names that it does not have.
create or replace function _members(object jsonb, names text[]) returns jsonb
    language plpgsql immutable set search_path from current
as $$
declare
    v_members jsonb := jsonb '{}';
    v_name text;
begin
    foreach v_name in array names loop
        if object ? v_name then
            v_members := v_members || jsonb_build_object(v_name, object -> v_name);
        end if;
    end loop;
    return v_members;
end;
$$;

-- True until the period has passed since the existing job was created. Computed in UTC, so that a
-- day has 24 hours in any session's time zone.
create or replace function _in_period(created_at timestamptz, period interval, moment timestamptz)
    returns boolean
    language sql immutable
    return period is null or ((created_at at time zone 'UTC') + period) at time zone 'UTC' > moment;

create or replace function conformance() returns jsonb
    language plpgsql stable security definer set search_path from current
as $$
begin
    return jsonb_build_object(
        'specversion', '1.0',
        'implementation', jsonb_build_object('name', 'pyworker', 'version', schema_version()::text,
            'language', 'sql'),
        'conformance_level', 0,
        'protocols', jsonb_build_array('sql'),
        'backend', 'postgresql',
        'capabilities', jsonb_build_object('unique_jobs', jsonb_build_object(
            'strength', 'strong',
            'mechanism',
            'a row per key under a unique constraint, written by every add that found no duplicate')));
end;
$$;
comment on function conformance() is
    'The Open Job Spec''s manifest. It claims only what the tests prove: strong uniqueness, and no '
    'conformance level above 0.';
