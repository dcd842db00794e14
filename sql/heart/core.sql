-- heart/core: the functions that all other files use.
--
-- Error codes (SQLSTATE), each with one exception class in Python:
--   PW001 invalid argument      PW002 claim lost                    PW003 duplicate
--   PW004 not found             PW005 not possible in this state    PW006 schema version
--
-- Every function takes locks in one order: worker, unique key, job key, sequence, queue, job by id,
-- and after a job the halt that names it. A batch sorts its rows before it locks them.
--
-- A name with a leading underscore is private: only the owner may call it, and it may change.

-- Functions set their search_path, except those whose body PostgreSQL binds when it creates them
-- ("return …"). No search_path can redirect such a body, and PostgreSQL can inline it.
create or replace function clock() returns timestamptz
    language sql volatile parallel safe
    return pg_catalog.clock_timestamp();
comment on function clock() is
    'The time that pyworker uses: the database''s clock, never the caller''s. In an installation '
    'with a movable clock (`pyworker migrate --movable-clock`) the setting pyworker.clock_offset, '
    'an interval, is added to it.';

create or replace function schema_version() returns integer
    language plpgsql stable security definer set search_path from current
as $$
begin
    return (select max(m.version) from migrations m);
end;
$$;
comment on function schema_version() is 'The newest migration of this installation.';

create or replace function check_version(client_version integer) returns void
    language plpgsql stable security definer set search_path from current
as $$
declare
    v_breaking integer := (
        select max(m.version) from migrations m where m.breaking and m.version > client_version);
begin
    if schema_version() < client_version then
        raise exception 'the database has schema version %, this pyworker needs %',
            schema_version(), client_version
            using errcode = 'PW006', detail = 'older', hint = 'Run: pyworker migrate';
    elsif v_breaking is not null then
        raise exception 'the database has the breaking schema version %, '
            'this pyworker knows versions up to %', v_breaking, client_version
            using errcode = 'PW006', detail = 'newer', hint = 'Upgrade pyworker: pip install -U pyworker-pg';
    end if;
end;
$$;
comment on function check_version(integer) is
    'Raises PW006 if a client made for client_version cannot work with this installation: because '
    'the installation is older, or because it has had a breaking migration since (Graphile '
    'Worker''s rule).';

-- The first job before this one at which its sequence is halted; null if there is none.
create or replace function _halted_by(sequence_key text, job_id bigint) returns bigint
    language plpgsql stable set search_path from current
as $$
begin
    return (select h.job_id from sequence_halts h
            where h.sequence_key = _halted_by.sequence_key and h.job_id < _halted_by.job_id
            order by h.sequence_key, h.job_id limit 1);
end;
$$;

-- A row as the public type `job`. One expression, so that PostgreSQL inlines it.
create or replace function _job_of(j live_jobs, deduplicated boolean default false) returns job
    language sql stable
    return row(
        j.id, j.task_identifier, j.queue_name, j.payload, j.meta, j.priority, j.run_at, j.attempts,
        j.max_attempts, j.last_error, j.created_at, j.updated_at, j.job_key, j.revision, j.flags,
        case when j.state = 'running' then j.claimed_at end,
        case when j.state = 'running' then j.worker_id::text end,
        j.state, j.delivery, encode(j.unique_key, 'hex'), j.sequence_key, deduplicated,
        case when j.parked = 'sequence' then _halted_by(j.sequence_key, j.id) end,
        j.run, j.reason, j.finished_at, case when j.state = 'completed' then j.result end, null, null)::job;

create or replace function _job_of(f finished_jobs) returns job
    language sql stable
    return _job_of(row(f.*)::live_jobs, false);

-- How a job must wait before it may be available, as `parked` says it: 'unmet' while it has unmet
-- dependencies; else for its sequence, 'sequence', or 'next' if retry_job has put it first. Null if it
-- need not wait: it is the head of its sequence, or in none.
create or replace function _held(
    sequence_key text, sequence_head boolean default false, parked text default null) returns text
    language sql immutable
    return case when parked = 'unmet' then 'unmet'
                when sequence_key is not null and sequence_head is not true
                then case parked when 'next' then 'next' else 'sequence' end end;

-- Places a job that may run from run_at on: its state, and the columns that indexes know it by.
-- `held`: see _held. `waits`: it must wait at the gate of its queue when it is due. `waiting`: its state
-- until run_at, 'scheduled' or (after a failure) 'retryable'. PostgreSQL inlines it; `offset 0` evaluates
-- `waits` once.
create or replace function _place(
    run_at timestamptz, now timestamptz, held text, waits boolean, waiting text default 'scheduled')
    returns table (state text, parked text, ready_at timestamptz, due_at timestamptz)
    language sql stable
begin atomic
    select p.state, p.parked,
           case when p.state = 'available' and p.parked is null then _place.run_at end,
           case when p.state = _place.waiting then _place.run_at end
    from (
        select case when _place.held is not null then 'pending'
                    when _place.run_at > _place.now then _place.waiting else 'available' end as state,
               case when _place.held is not null then _place.held
                    when _place.run_at <= _place.now and _place.waits then 'queue' end as parked
        offset 0) p;
end;

-- The lane that a request must name to promote a job that is parked like this; null if it
-- is not parked, or waits for other jobs or a signal.
create or replace function _lane_of(parked text, queue_name text, sequence_key text) returns text
    language sql immutable
    return case when parked = 'queue' then 'queue:' || queue_name
                when parked in ('sequence', 'next') then 'sequence:' || sequence_key end;

-- True once a job of this database has had dependencies, steps or signals. Until then no job pays for
-- them.
create or replace function _coordination_is_used() returns boolean
    language sql volatile
    return pg_sequence_last_value('coordination_used'::regclass) is not null;

-- True if depends_on names a job.
create or replace function _depends(depends_on jsonb) returns boolean
    language sql immutable
    return depends_on is not null and depends_on not in ('null', '[]')
       and (depends_on -> 'jobs' is null or depends_on -> 'jobs' not in ('null', '[]'));

-- A bigint that JSON carries as a number or as a string, since JavaScript sends large numbers as
-- strings. Null if it is neither. It takes three times as long to read a number as text.
create or replace function _bigint_of(value jsonb) returns bigint
    language sql immutable
    return case jsonb_typeof(value)
        when 'number' then
            case when scale(value::numeric) = 0
                      and value between '-9223372036854775808' and '9223372036854775807'
                 then value::bigint end
        when 'string' then
            case when value #>> '{}' ~ '^-?[0-9]{1,19}$'
                      and (value #>> '{}')::numeric between -9223372036854775808 and 9223372036854775807
                 then (value #>> '{}')::bigint end end;

-- A duration given in JSON: a number of seconds, or PostgreSQL's interval text. Null if it is
-- neither, negative, or longer than 1000 years.
create or replace function _interval_of(value jsonb) returns interval
    language plpgsql immutable set search_path from current
as $$
declare
    v_interval interval;
begin
    v_interval := case jsonb_typeof(value)
        when 'number' then make_interval(secs => (value #>> '{}')::double precision)
        when 'string' then (value #>> '{}')::interval
    end;
    return case when v_interval between interval '0' and interval '1000 years' then v_interval end;
exception when data_exception then
    return null;
end;
$$;

-- A span of time as people write it, exactly, and as PostgreSQL reads it: 1 h 30 min.
create or replace function _words_of(span interval) returns text
    language plpgsql immutable set search_path from current
as $$
declare
    v_left numeric := abs(extract(epoch from span));
    v_words text[] := '{}'::text[];
    v_size integer;
    v_unit text;
begin
    for v_size, v_unit in values (86400, 'd'), (3600, 'h'), (60, 'min') loop
        if v_left >= v_size then
            v_words := v_words || concat(div(v_left, v_size), ' ', v_unit);
            v_left := mod(v_left, v_size);
        end if;
    end loop;
    if v_words = '{}' and v_left < 1 and v_left > 0 then
        v_words := array[trim_scale(v_left * 1000) || ' ms'];
    elsif v_words = '{}' or v_left > 0 then
        v_words := v_words || (trim_scale(v_left) || ' s');
    end if;
    return case when span < interval '0' then '-' else '' end || array_to_string(v_words, ' ');
end;
$$;

-- The running jobs of these workers, found by their rows in claims: the cost grows with the number
-- of these jobs, not with the number of waiting jobs.
create or replace function _held_by(worker_ids bigint[]) returns bigint[]
    language plpgsql stable set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
    set jit = off set plan_cache_mode = force_generic_plan
as $$
begin
    return array(
        select distinct r.id from claims c
        cross join lateral unnest(c.job_ids) i(id)
        -- offset 0 keeps the planner from reversing the join: it looks up each id.
        cross join lateral (
            select j.id from live_jobs j
            where j.id between i.id and i.id and j.worker_id = c.worker_id and j.state = 'running' offset 0) r
        where c.worker_id = any (worker_ids) order by r.id);
end;
$$;

-- True if this session has tidied the claims of this worker a moment ago. The setting has the table, as a
-- session may work in two schemas, the worker, the run of its claim at that time, and the run until which
-- that is recent.
create or replace function _claims_are_tidy(worker_id bigint, run bigint) returns boolean
    language sql stable
    return case when starts_with(current_setting('pyworker.claims_tidied', true),
                                 concat('{', 'claims'::regclass::oid, ',', worker_id, ','))
                then run between (current_setting('pyworker.claims_tidied')::bigint[])[3]
                             and (current_setting('pyworker.claims_tidied')::bigint[])[4]
                else false end;

-- Merges the worker's rows in claims from before `run` into one row with the jobs that it still
-- holds, but leaves rows that an open transaction has written or locked. It begins at the run of the
-- time before. The next time is after 50 times as long as this took, at least 0.25 s.
create or replace function _tidy_claims(worker_id bigint, run bigint) returns void
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
    set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_began constant timestamptz := clock_timestamp();
    v_tidied constant bigint[] := nullif(current_setting('pyworker.claims_tidied', true), '')::bigint[];
    v_table constant bigint := 'claims'::regclass::oid;
    v_since constant bigint := case when v_tidied[:2] = array[v_table, worker_id] then v_tidied[3] else 0 end;
    v_pause bigint;
begin
    -- Under REPEATABLE READ, a row that another session has merged since would raise 40001.
    if current_setting('transaction_isolation') = 'read committed' then
        with gone as (
            delete from claims c
            where c.ctid = any (array(
                select t.ctid from claims t
                where t.worker_id = _tidy_claims.worker_id and t.run >= v_since
                  and t.run < _tidy_claims.run
                for update skip locked))
            returning c.job_ids, c.seen),
        held as (
            select array_agg(distinct r.id) as job_ids, (array_agg(g.seen order by g.seen))[1] as seen
            from gone g cross join lateral unnest(g.job_ids) i(id)
            cross join lateral (
                select j.id from live_jobs j
                where j.id between i.id and i.id and j.worker_id = _tidy_claims.worker_id
                  and j.state = 'running'
                offset 0) r)
        insert into claims
        select _tidy_claims.worker_id, _tidy_claims.run, h.job_ids, h.seen
        from held h where h.job_ids is not null;
        v_pause := greatest(50 * extract(epoch from clock_timestamp() - v_began), 0.25) * 1000000;
        perform set_config(
            'pyworker.claims_tidied', array[v_table, worker_id, run, run + v_pause]::text, false);
    end if;
end;
$$;

-- Deletes the claims of workers that have ended. A claim stays while one of its jobs is still
-- running: another session has that job locked.
create or replace function _forget_claims(worker_ids bigint[]) returns void
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
    set jit = off set plan_cache_mode = force_generic_plan
as $$
begin
    delete from claims c
    where c.ctid = any (array(
        select t.ctid from claims t where t.worker_id = any (worker_ids) for update skip locked))
      and not exists (
        select from unnest(c.job_ids) i(id) cross join lateral (
            select from live_jobs j
            where j.id between i.id and i.id and j.worker_id = c.worker_id
              and j.state = 'running' offset 0) r);
end;
$$;

create or replace function _last_line(message text) returns text
    language plpgsql immutable set search_path from current
as $$
begin
    return (regexp_match(rtrim(message, E' \n\r\t'), '[^\n]*$'))[1];
end;
$$;
