-- heart/specs: reads the JSON objects of add_jobs and add_batch.

-- What these specs ask for. Errors: PW001 names the position and the member.
create or replace function _requests_of(specs jsonb) returns _job_request[]
    language plpgsql set search_path from current
as $$
declare
    v_known constant text[] := _members_of_a_spec();
    v_texts constant text[] := array['identifier', 'queue_name', 'job_key', 'job_key_mode', 'delivery',
        'ref'];
    v_requests _job_request[];
    v_bad record;
begin
    if specs is null or jsonb_typeof(specs) <> 'array' then
        raise exception 'add_jobs: specs must be a JSON array of objects, got %',
            coalesce(jsonb_typeof(specs), 'NULL')
            using errcode = 'PW001';
    end if;
    select s.ordinality, jsonb_typeof(s.value) as kind, m.key, m.value into v_bad
    from jsonb_array_elements(specs) with ordinality s
    left join lateral jsonb_each(case jsonb_typeof(s.value) when 'object' then s.value end) m
        on m.key <> all (v_known)
           or m.key = any (v_texts) and jsonb_typeof(m.value) not in ('string', 'null')
           or m.key = 'flags' and jsonb_path_exists(m.value, '$[*] ? (@.type() == "number"
                                                                   || @.type() == "boolean")')
    where jsonb_typeof(s.value) <> 'object' or m.key is not null
    limit 1;
    if v_bad.key = any (v_texts || 'flags'::text) then -- a cast would make texts of them
        raise exception 'add_jobs: specs[%].% must be %, got %', v_bad.ordinality, v_bad.key,
            case v_bad.key when 'flags' then 'a list of strings' else 'a string' end,
            left(v_bad.value::text, 40) using errcode = 'PW001';
    elsif v_bad.kind = 'object' then
        raise exception 'add_jobs: specs[%] has an unknown member "%" (known: %)', v_bad.ordinality,
            v_bad.key, array_to_string(v_known, ', ') using errcode = 'PW001';
    elsif v_bad.kind is not null then
        raise exception 'add_jobs: specs[%] must be an object, got %', v_bad.ordinality, v_bad.kind
            using errcode = 'PW001';
    end if;
    begin
        -- In the order of specs.
        v_requests := array(select r from jsonb_populate_recordset(null::_job_request, specs) r);
    exception when data_exception or invalid_text_representation or numeric_value_out_of_range then
        -- A member has the wrong type. Find it, to name it in the message.
        perform _refuse_ill_typed(s.ordinality, m.key, m.value)
        from jsonb_array_elements(specs) with ordinality s, jsonb_each(s.value) m;
        raise;
    end;
    return v_requests;
end;
$$;

-- What add_jobs takes, in the order of add_job's arguments. Immutable, so that PostgreSQL calls it
-- when it prepares add_jobs, not at each call.
create or replace function _members_of_a_spec() returns text[]
    language sql immutable
    return array(select json_object_keys(row_to_json(jsonb_populate_record(null::_job_request, '{}'))));

create or replace function _refuse_ill_typed(position_in_specs bigint, member text, value jsonb) returns void
    language plpgsql set search_path from current
as $$
begin
    perform jsonb_populate_record(null::_job_request, jsonb_build_object(member, value));
exception when data_exception or invalid_text_representation or numeric_value_out_of_range then
    raise exception 'add_jobs: specs[%].% is not valid: %', position_in_specs, member, sqlerrm
        using errcode = 'PW001';
end;
$$;
