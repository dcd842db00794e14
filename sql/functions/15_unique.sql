-- 15_unique: what makes a job unique. Two spellings of a policy, told apart by their members, one mechanism:
--   Open Job Spec  keys, args_keys, meta_keys, period (slides from the existing job's created_at), states, on_conflict
--   River          by_args, by_period (windows aligned in UTC), by_queue, by_state, exclude_kind, on_conflict
--
-- A job is a duplicate if another one has the same fingerprint, is in one of the states that the NEW policy names, and the NEW
-- policy's period has not passed since it was created. Looking is not enough, at no isolation level and under no mere lock: an add that
-- found no duplicate writes its key's row in unique_keys, then looks again. A second add of the same key waits there until the first
-- has ended (or gets 40001 under REPEATABLE READ and SERIALIZABLE) and then sees its job. A plain duplicate writes and locks nothing.

-- A list of distinct strings, or what is wrong with it.
create or replace function _names_refusal(member text, value jsonb, known text[] default null) returns text
    language plpgsql immutable set search_path from current
as $$
begin
    if jsonb_typeof(value) <> 'array' or exists (select from jsonb_array_elements(value) e where jsonb_typeof(e.value) <> 'string') then
        return format('%s must be an array of strings, got %s', member, value);
    elsif (select count(*) > count(distinct normalize(e.value)) from jsonb_array_elements_text(value) e) then
        return format('%s must not name anything twice, got %s', member, value);
    end if;
    return (select format('%s must name only %s, got "%s"', member, array_to_string(known, ', '), e.value)
            from jsonb_array_elements_text(value) e where e.value <> all (known) limit 1);
end;
$$;

-- 'active' is the Open Job Spec's word for running.
create or replace function _states_refusal(member text, value jsonb) returns text
    language plpgsql immutable set search_path from current
as $$
begin
    if value @> '["active", "running"]' then
        return format('%s must not name anything twice, got %s', member, value);
    end if;
    return _names_refusal(member, value, array[
        'scheduled', 'available', 'pending', 'active', 'running', 'completed', 'retryable', 'cancelled', 'discarded']);
end;
$$;

-- What is wrong with a policy; null if nothing is. What only a job can tell (does its payload have the args_keys?) comes later.
create or replace function _unique_policy_refusal(policy jsonb) returns text
    language plpgsql stable set search_path from current
as $$
declare
    v_ojs constant text[] := array['keys', 'args_keys', 'meta_keys', 'period', 'states'];
    v_river constant text[] := array['by_args', 'by_period', 'by_queue', 'by_state', 'exclude_kind'];
    v_required constant text[] := array['available', 'pending', 'running', 'scheduled'];
    v_problem text;
    v_key text;
    v_value jsonb;
    v_missing text;
begin
    if jsonb_typeof(policy) <> 'object' then
        return format('it must be a JSON object, got %s', jsonb_typeof(policy));
    elsif policy ?| v_ojs and policy ?| v_river then
        return format('members of the Open Job Spec (%s) and of River (%s) cannot be mixed',
                      array_to_string(v_ojs, ', '), array_to_string(v_river, ', '));
    end if;
    for v_key, v_value in select * from jsonb_each(policy) loop
        if v_key <> all (v_ojs || v_river || array['on_conflict']) then
            return format('unknown member "%s" (known: %s)', v_key, array_to_string(v_ojs || v_river || array['on_conflict'], ', '));
        elsif v_value = 'null' and v_key in ('args_keys', 'meta_keys', 'period') then
            continue;
        end if;
        v_problem := case v_key
            when 'on_conflict' then
                case when v_value not in ('"reject"', '"replace"', '"replace_except_schedule"', '"ignore"')
                     then format('on_conflict must be reject, replace, replace_except_schedule or ignore, got %s', v_value) end
            when 'keys' then _names_refusal(v_key, v_value, array['type', 'queue', 'args', 'meta'])
            when 'args_keys' then _names_refusal(v_key, v_value)
            when 'meta_keys' then _names_refusal(v_key, v_value)
            when 'states' then _states_refusal(v_key, v_value)
            when 'by_state' then _states_refusal(v_key, v_value)
            when 'period' then
                case when jsonb_typeof(v_value) <> 'string' or _iso_duration(v_value #>> '{}') is null
                     then format('period must be an ISO 8601 duration such as "PT1H", got %s', v_value) end
            when 'by_period' then
                case when _interval_of(v_value) is null or extract(epoch from _interval_of(v_value)) < 1
                          or extract(year from _interval_of(v_value)) <> 0 or extract(month from _interval_of(v_value)) <> 0
                     then format('by_period must be at least 1 second and hold no months or years, got %s', v_value) end
            when 'by_args' then
                case when jsonb_typeof(v_value) = 'boolean' then null
                     when v_value = '[]' then 'by_args must name at least one member of the payload, got []'
                     else _names_refusal(v_key, v_value) end
            else -- by_queue, exclude_kind
                case when jsonb_typeof(v_value) <> 'boolean' then format('%s must be true or false, got %s', v_key, v_value) end
        end;
        if v_problem is not null then
            return v_problem;
        end if;
    end loop;
    if policy -> 'keys' ? 'meta' and coalesce(nullif(policy -> 'meta_keys', 'null'), '[]') = '[]' then
        return 'keys names meta, so meta_keys must name which members of meta';
    elsif policy ? 'by_state' then
        select string_agg(r.state, ', ' order by r.state) into v_missing
        from unnest(v_required) r(state) where not (policy -> 'by_state' ? r.state or (r.state = 'running' and policy -> 'by_state' ? 'active'));
        if v_missing is not null then
            return format('by_state must contain all required states, missing: %s', v_missing);
        end if;
    end if;
    if policy ?| v_river and not policy ?| array['by_period', 'by_state'] and not (policy -> 'by_queue') is not distinct from 'true'
       and coalesce(policy -> 'by_args', 'false') = 'false' then
        return format('it names nothing that a job should be unique by: %s', policy);
    end if;
    return null;
end;
$$;

-- An ISO 8601 duration, strictly: PostgreSQL's own reading takes a good deal else. Null if it is none, or too long to count from today.
create or replace function _iso_duration(value text) returns interval
    language plpgsql stable set search_path from current set intervalstyle = 'iso_8601'
as $$
declare
    v_interval interval;
begin
    if value !~ '^P(?=.)([0-9]+Y)?([0-9]+M)?([0-9]+W)?([0-9]+D)?(T(?=[0-9])([0-9]+H)?([0-9]+M)?([0-9]+([.][0-9]+)?S)?)?$' then
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
    by_args jsonb default null, by_period interval default null, by_queue boolean default null, by_state text[] default null,
    exclude_kind boolean default null, on_conflict text default null) returns jsonb
    language plpgsql stable set search_path from current
as $$
declare
    v_policy jsonb := jsonb_strip_nulls(jsonb_build_object(
        'by_args', by_args, 'by_period', by_period, 'by_queue', by_queue, 'by_state', by_state, 'exclude_kind', exclude_kind,
        'on_conflict', on_conflict));
    v_problem text := _unique_policy_refusal(v_policy);
begin
    if v_problem is not null then
        raise exception 'unique_opts: %', v_problem using errcode = 'PW001';
    end if;
    return v_policy;
end;
$$;
comment on function unique_opts(jsonb, interval, boolean, text[], boolean, text) is
    'A unique_policy in River''s terms, by named arguments: by_args => ''true'' or ''["customer_id"]'', by_period => ''15 minutes'', '
    'by_queue => true, by_state => ''{…}'', exclude_kind => true, on_conflict => ''ignore'' (default), ''reject'', ''replace'', '
    '''replace_except_schedule''. Errors: PW001.';

-- What a policy means for one job: its key, and what counts as a duplicate of it. `label` begins the error messages.
create or replace function _uniqueness_of(request _job_request, policy jsonb, queue_name text, now timestamptz, label text)
    returns _uniqueness
    language plpgsql stable set search_path from current
as $$
declare
    v_problem text := _unique_policy_refusal(policy);
    v_ojs boolean := not policy ?| array['by_args', 'by_period', 'by_queue', 'by_state', 'exclude_kind'];
    v_queue text := coalesce(_uniqueness_of.queue_name, 'default');
    v_payload jsonb;
    v_dimensions jsonb;
    v_unique _uniqueness;
begin
    if v_problem is null and request.job_key is not null then
        v_problem := 'it cannot be combined with job_key';
    end if;
    if v_problem is not null then
        raise exception '%: unique_policy: %', label, v_problem using errcode = 'PW001';
    end if;
    begin
        v_payload := coalesce(request.payload, '{}')::jsonb;
    exception when untranslatable_character then
        raise exception '%: unique_policy: a payload with \u0000 cannot be compared', label using errcode = 'PW001';
    end;
    if v_ojs then
        if jsonb_typeof(policy -> 'args_keys') = 'array' then
            select k.name into v_problem from jsonb_array_elements_text(policy -> 'args_keys') k(name)
            where jsonb_typeof(v_payload) <> 'object' or not v_payload ? k.name limit 1;
            if found then
                raise exception '%: unique_policy: args_keys names "%", which the payload does not have', label, v_problem using errcode = 'PW001';
            end if;
            v_payload := _members(v_payload, policy -> 'args_keys');
        end if;
        v_dimensions := jsonb_build_object('type', request.identifier)
            || case when policy -> 'keys' ? 'queue' then jsonb_build_object('queue', v_queue) else '{}' end
            || case when policy -> 'keys' ? 'args' then jsonb_build_object('args', v_payload) else '{}' end
            || case when policy -> 'keys' ? 'meta'
                    then jsonb_build_object('meta', _members(coalesce(request.meta, '{}'), policy -> 'meta_keys')) else '{}' end;
        v_unique.states := coalesce(array(select * from jsonb_array_elements_text(policy -> 'states')), '{}');
        if not policy ? 'states' then
            v_unique.states := array['available', 'running', 'scheduled', 'retryable', 'pending'];
        end if;
        v_unique.period := _iso_duration(policy ->> 'period');
        v_unique.on_conflict := coalesce(policy ->> 'on_conflict', 'reject');
    else
        if jsonb_typeof(policy -> 'by_args') = 'array' and jsonb_typeof(v_payload) = 'object' then
            v_payload := _members(v_payload, policy -> 'by_args');
        end if;
        -- "kind", never "type": no River key is ever an Open Job Spec key.
        v_dimensions := case when policy -> 'exclude_kind' = 'true' then '{}' else jsonb_build_object('kind', request.identifier) end
            || case when coalesce(policy -> 'by_args', 'false') <> 'false' then jsonb_build_object('args', v_payload) else '{}' end
            || case when policy ? 'by_period' then jsonb_build_object('period', to_char(date_bin(
                   _interval_of(policy -> 'by_period'), coalesce(request.run_at, now), '0001-01-01 00:00+00') at time zone 'UTC',
                   'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')) else '{}' end
            || case when policy -> 'by_queue' = 'true' then jsonb_build_object('queue', v_queue) else '{}' end;
        v_unique.states := coalesce(array(select * from jsonb_array_elements_text(policy -> 'by_state')), '{}');
        if not policy ? 'by_state' then
            v_unique.states := array['available', 'completed', 'pending', 'retryable', 'running', 'scheduled'];
        end if;
        v_unique.on_conflict := coalesce(policy ->> 'on_conflict', 'ignore');
    end if;
    v_unique.states := array_replace(v_unique.states, 'active', 'running');
    -- River's job that waits for a retry without holding its key has to ask again when the wait is over.
    v_unique.recheck := not v_ojs and 'retryable' <> all (v_unique.states);
    begin
        v_unique.key := sha256(convert_to(_canonical(v_dimensions), 'UTF8'));
    exception when sqlstate 'PW001' then
        raise exception '%: unique_policy: the payload cannot be compared: %', label, sqlerrm using errcode = 'PW001';
    end;
    return v_unique;
end;
$$;

-- The named members of an object; one that is missing is left out.
create or replace function _members(object jsonb, names jsonb) returns jsonb
    language plpgsql immutable set search_path from current
as $$
begin
    return coalesce((select jsonb_object_agg(n.name, object -> n.name) from jsonb_array_elements_text(names) n(name) where object ? n.name), '{}');
end;
$$;

-- The newest duplicate, one that has not ended before one that has; a row of nulls if there is none. One statement, so that a job on
-- its way from live to finished is seen in one of the two places.
create or replace function _duplicate_of(uniqueness _uniqueness, now timestamptz) returns live_jobs
    language plpgsql stable set search_path from current
as $$
declare
    v_row live_jobs;
begin
    select d.* into v_row
    from (select j.* from live_jobs j where j.unique_key = uniqueness.key
          union all
          select f.* from finished_jobs f
          where f.unique_key = uniqueness.key and uniqueness.states && array['completed', 'cancelled']) d
    where d.state = any (uniqueness.states)
      and (uniqueness.period is null
           or ((d.created_at at time zone 'UTC') + uniqueness.period) at time zone 'UTC' > _duplicate_of.now)
    order by d.state in ('completed', 'cancelled', 'discarded'), d.created_at desc, d.id desc limit 1;
    return v_row;
end;
$$;

-- The key's row, written: the constraint that every add of this key goes through. Held to the end of the transaction.
create or replace function _hold_unique_key(key bytea) returns void
    language plpgsql set search_path from current
as $$
begin
    insert into unique_keys as k (unique_key) values (key) on conflict on constraint unique_keys_pkey do update set adds = k.adds + 1;
end;
$$;

create or replace function _add_unique(request _job_request, uniqueness _uniqueness, new_id bigint, label text) returns job
    language plpgsql set search_path from current
as $$
declare
    v_now timestamptz := clock();
    v_duplicate live_jobs := _duplicate_of(uniqueness, v_now);
    v_replaced live_jobs;
    v_row live_jobs;
begin
    if v_duplicate.id is null or uniqueness.on_conflict in ('replace', 'replace_except_schedule') then
        perform _hold_unique_key(uniqueness.key);
        v_duplicate := _duplicate_of(uniqueness, v_now);
    end if;
    if v_duplicate.id is null then
        null;
    elsif uniqueness.on_conflict = 'ignore' then
        return _job_of(v_duplicate, true);
    elsif uniqueness.on_conflict = 'reject' then
        raise exception '%: job % (%) has the same unique key', label, v_duplicate.id, v_duplicate.state
            using errcode = 'PW003', detail = json_build_object(
                'existing_job_id', v_duplicate.id, 'existing_job_state', v_duplicate.state,
                'unique_key', encode(uniqueness.key, 'hex'))::text;
    else
        -- Waits for whoever has such a job in hand; one that has ended meanwhile is left as it is.
        for v_replaced in
            select j.* from live_jobs j
            where j.unique_key = uniqueness.key and j.state = any (uniqueness.states) and j.state <> 'discarded'
              and (uniqueness.period is null or ((j.created_at at time zone 'UTC') + uniqueness.period) at time zone 'UTC' > v_now)
            order by j.id for update
        loop
            if uniqueness.on_conflict = 'replace_except_schedule' and v_replaced.state = 'scheduled' then
                request.run_at := v_replaced.run_at;
            end if;
            perform _close_jobs(array[v_replaced.id], null, 'cancelled', null, 'replaced');
            if v_replaced.state = 'running' then
                perform pg_notify(current_schema(), 'cancel');
            end if;
        end loop;
    end if;
    v_row := _insert_job(request, new_id, uniqueness.key, case when uniqueness.recheck then uniqueness.states end);
    return _job_of(v_row);
end;
$$;

-- A retryable job of such a River policy falls due: does another one hold the key? True if this one had to give way. The key's row makes
-- promoters and adds take turns; one that is being added just now is waited for at the next promotion, not here.
create or replace function _gave_way(job live_jobs) returns boolean
    language plpgsql set search_path from current
as $$
begin
    if not exists (
        select from live_jobs j where j.unique_key = job.unique_key and j.id <> job.id and j.state = any (job.unique_recheck)
        union all
        select from finished_jobs f where f.unique_key = job.unique_key and f.state = any (job.unique_recheck)) then
        return false;
    end if;
    update live_jobs j set meta = coalesce(j.meta, '{}') || '{"unique_key_conflict": "scheduler_discarded"}' where j.id = job.id;
    perform _discard(job, null, 'its unique key was taken while it waited for its retry');
    return true;
end;
$$;

-- Keys whose last job is gone need no row any more. Whoever holds one is about to need it: passed over.
create or replace function _release_unique_keys(keys bytea[]) returns void
    language plpgsql set search_path from current
as $$
declare
    v_free bytea[];
begin
    if cardinality(keys) is null or cardinality(keys) = 0 then
        return;
    end if;
    v_free := array(
        select k.unique_key from unique_keys k where k.unique_key = any (keys) order by k.unique_key for update skip locked);
    -- Looked at again, now that nobody can add one: the statement above saw what was before it had the rows.
    delete from unique_keys k
    where k.unique_key = any (v_free)
      and not exists (select from live_jobs j where j.unique_key = k.unique_key)
      and not exists (select from finished_jobs f where f.unique_key = k.unique_key);
end;
$$;

create or replace function conformance() returns jsonb
    language plpgsql stable security definer set search_path from current
as $$
begin
    return jsonb_build_object(
        'specversion', '1.0',
        'implementation', jsonb_build_object('name', 'pyworker', 'version', schema_version()::text, 'language', 'sql'),
        'conformance_level', 0,
        'protocols', jsonb_build_array('sql'),
        'backend', 'postgresql',
        'capabilities', jsonb_build_object('unique_jobs', jsonb_build_object(
            'strength', 'strong',
            'mechanism', 'a row per key under a unique constraint, written by every add that found no duplicate')));
end;
$$;
comment on function conformance() is
    'The Open Job Spec''s manifest. It claims what the tests prove: strong uniqueness, and no conformance level beyond that.';
