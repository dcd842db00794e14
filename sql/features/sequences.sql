-- features/sequences: which sequence a job belongs to by its sequence_policy (River Pro), what halts
-- a sequence, and what resumes it. gate/sequences decides which job is next.
--
-- At most one job of each sequence is past `pending`: its head. A unique index guarantees that. The
-- others wait in the order of their ids.

-- Why a policy is invalid; null if it is valid. One expression, as every add with a policy runs it.
create or replace function _sequence_policy_refusal(policy jsonb) returns text
    language plpgsql stable set search_path from current
as $$
declare
    v_known constant text[] := array['key', 'by_args', 'by_queue', 'exclude_kind', 'continue_on_cancelled',
        'continue_on_discarded'];
begin
    return case
        when policy = 'null' then null -- as if it were not given
        when jsonb_typeof(policy) <> 'object'
            then format('it must be a JSON object, got %s', jsonb_typeof(policy))
        when policy - v_known <> '{}'
            then format('unknown member %s (known: %s)',
                        jsonb_path_query_first(policy - v_known, '$.keyvalue().key'),
                        array_to_string(v_known, ', '))
        when policy ? 'key' and policy ?| array['by_args', 'by_queue', 'exclude_kind']
            then 'key names the sequence by itself: '
                 'it cannot be combined with by_args, by_queue or exclude_kind'
        when policy ? 'key' and (jsonb_typeof(policy -> 'key') <> 'string'
                                 or length(policy ->> 'key') not between 1 and 512)
            then format('key must be a string of 1 to 512 characters, got %s',
                        left((policy -> 'key')::text, 530))
        when jsonb_typeof(policy -> 'by_queue') <> 'boolean'
            then format('by_queue must be true or false, got %s', policy -> 'by_queue')
        when jsonb_typeof(policy -> 'exclude_kind') <> 'boolean'
            then format('exclude_kind must be true or false, got %s', policy -> 'exclude_kind')
        when jsonb_typeof(policy -> 'continue_on_cancelled') <> 'boolean'
            then format('continue_on_cancelled must be true or false, got %s',
                        policy -> 'continue_on_cancelled')
        when jsonb_typeof(policy -> 'continue_on_discarded') <> 'boolean'
            then format('continue_on_discarded must be true or false, got %s',
                        policy -> 'continue_on_discarded')
        when policy -> 'by_args' = '[]' then 'by_args must name at least one member of the payload, got []'
        when jsonb_typeof(policy -> 'by_args') <> 'boolean'
            then _names_refusal('by_args', policy -> 'by_args') end;
end;
$$;

-- The sequence of one job. A computed key is the canonical JSON of what the policy names, so that
-- people can read it. It has a hash in place of the whole payload, which may be secret, and of
-- arguments that are too long for an index.
create or replace function _sequence_of(
    identifier text, payload json, policy jsonb, queue_name text, label text) returns _sequencing
    language plpgsql stable set search_path from current
as $$
declare
    v_sequence constant _sequencing := case when policy <> 'null' then (
        policy ->> 'key', coalesce((policy -> 'continue_on_cancelled')::boolean, false),
        coalesce((policy -> 'continue_on_discarded')::boolean, false))::_sequencing end;
    v_by_args constant jsonb := policy -> 'by_args';
    v_payload json;
    v_members jsonb;
    v_lacking text;
    v_args text;
    v_problem text;
begin
    if v_sequence.key is not null or v_sequence.continue_on_cancelled is null then
        return v_sequence;
    elsif v_by_args <> 'false' then
        begin
            v_payload := coalesce(payload, '{}');
            if jsonb_typeof(v_by_args) = 'array' then
                v_members := case json_typeof(v_payload) when 'object'
                    then _members(v_payload::jsonb, _texts_of(v_by_args)) else '{}' end;
                v_lacking := (v_by_args - array(select jsonb_object_keys(v_members))) ->> 0;
                if v_lacking is not null then
                    raise exception 'by_args names the member %, which the payload does not have',
                        to_json(v_lacking) using errcode = 'PW001';
                end if;
                v_args := _canonical(v_members);
            else
                v_args := _canonical(v_payload::jsonb);
            end if;
        exception
            when sqlstate 'PW001' then
                raise exception '%: sequence_policy: %', label, sqlerrm using errcode = 'PW001';
            when data_exception or statement_too_complex then
                get stacked diagnostics v_problem = pg_exception_detail;
                raise exception '%: sequence_policy: the payload cannot be compared with others: %', label,
                    coalesce(nullif(v_problem, ''), sqlerrm) using errcode = 'PW001';
        end;
        if v_by_args = 'true' or length(v_args) > 256 then
            v_args := '"sha256:' || encode(sha256(convert_to(v_args, 'UTF8')), 'hex') || '"';
        end if;
    end if;
    return ('{' || concat_ws(',',
        '"args":' || v_args,
        case when policy -> 'exclude_kind' is distinct from 'true'
            then '"kind":' || to_json(identifier) end,
        case when policy -> 'by_queue' = 'true'
            then '"queue":' || to_json(coalesce(_sequence_of.queue_name, 'default')) end) || '}',
        v_sequence.continue_on_cancelled, v_sequence.continue_on_discarded)::_sequencing;
end;
$$;

-- Removes the halt at a job that is retried or deleted, so that the jobs behind it may run.
create or replace function _unhalt_sequence(sequence_key text, job_id bigint) returns void
    language plpgsql set search_path from current set enable_seqscan = off set jit = off
as $$
begin
    delete from sequence_halts h
    where h.sequence_key = _unhalt_sequence.sequence_key and h.job_id = _unhalt_sequence.job_id;
    if found then
        insert into promotion_requests (lane) values ('sequence:' || sequence_key);
        perform _notify_workers();
    end if;
end;
$$;

-- True if the sequence is halted at this job and another job waits behind it.
create or replace function _blocks_sequence(sequence_key text, job_id bigint) returns boolean
    language plpgsql stable set search_path from current set enable_seqscan = off set jit = off
as $$
begin
    return exists (select from sequence_halts h
                   where h.sequence_key = _blocks_sequence.sequence_key
                     and h.job_id = _blocks_sequence.job_id)
       and exists (select from live_jobs j
                   where j.sequence_key = _blocks_sequence.sequence_key and j.parked <> 'queue'
                     and j.id > _blocks_sequence.job_id);
end;
$$;

create or replace function resume_sequence(sequence_key text) returns boolean
    language plpgsql security definer set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_first bigint := (
        select min(j.id) from live_jobs j
        where j.sequence_key = resume_sequence.sequence_key and j.parked <> 'queue'
          and j.parked in ('sequence', 'next'));
begin
    delete from sequence_halts h
    where (h.sequence_key, h.job_id) in (
        select o.sequence_key, o.job_id from sequence_halts o
        where o.sequence_key = resume_sequence.sequence_key
          and (v_first is null or o.job_id < v_first) order by o.job_id for update);
    if not found then
        return false;
    end if;
    insert into promotion_requests (lane) values ('sequence:' || sequence_key);
    perform _notify_workers();
    return true;
end;
$$;
comment on function resume_sequence(text) is
    'Lets a halted sequence continue with its next waiting job; the job that halted it stays as '
    'it ended. sequence_key: as the view sequences shows it. Returns false if the sequence was '
    'not halted. To run the job again that halted it, call retry_job.';
