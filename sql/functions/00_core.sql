-- 00_core: what every other file uses.
--
-- Error codes (SQLSTATE), each with one exception class in Python:
--   PW001 invalid argument      PW002 claim lost                    PW003 duplicate
--   PW004 not found             PW005 not possible in this state    PW006 schema version
--
-- Lock order, kept by every function: worker, unique key, job key, sequence, queue, job by id. Batches sort first.
-- A name with a leading underscore is private: callable by the owner only, changed without notice.

-- Every function but a few names its search_path; those few have a body that was bound when it was created ("return …"),
-- which no search_path can redirect, and which PostgreSQL can inline.
create or replace function clock() returns timestamptz
    language sql volatile parallel safe
    return pg_catalog.clock_timestamp();
comment on function clock() is
    'The time that pyworker goes by: the database''s clock, never the caller''s. In an installation with a movable clock '
    '(`pyworker migrate --movable-clock`) the setting pyworker.clock_offset, an interval, is added to it.';

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
    v_breaking integer := (select max(m.version) from migrations m where m.breaking and m.version > client_version);
begin
    if schema_version() < client_version then
        raise exception 'the database has schema version %, this pyworker needs %', schema_version(), client_version
            using errcode = 'PW006', detail = 'older', hint = 'Run: pyworker migrate';
    elsif v_breaking is not null then
        raise exception 'the database has the breaking schema version %, this pyworker knows versions up to %', v_breaking, client_version
            using errcode = 'PW006', detail = 'newer', hint = 'Upgrade pyworker: pip install -U pyworker';
    end if;
end;
$$;
comment on function check_version(integer) is
    'Raises PW006 unless a client made for client_version may work with this installation: it must not be older, nor have had a '
    'breaking migration since (Graphile Worker''s rule).';

-- The job at which a sequence halts before it comes to this one.
create or replace function _halted_by(sequence_key text, job_id bigint) returns bigint
    language plpgsql stable set search_path from current
as $$
begin
    return (select h.job_id from sequence_halts h
            where h.sequence_key = _halted_by.sequence_key and h.job_id < _halted_by.job_id order by h.sequence_key, h.job_id limit 1);
end;
$$;

-- The public face of a row. Inlined wherever it is used.
create or replace function _job_of(j live_jobs, deduplicated boolean default false) returns job
    language sql stable
    return row(
        j.id, j.task_identifier, j.queue_name, j.payload, j.meta, j.priority, j.run_at, j.attempts, j.max_attempts,
        j.last_error, j.created_at, j.updated_at, j.job_key, j.revision, j.flags,
        case when j.state = 'running' then j.claimed_at end,
        case when j.state = 'running' then j.worker_id::text end,
        j.state, j.delivery, encode(j.unique_key, 'hex'), j.sequence_key, deduplicated,
        case when j.parked = 'sequence' then _halted_by(j.sequence_key, j.id) end,
        j.run, j.reason, j.finished_at, j.result)::job;

create or replace function _job_of(f finished_jobs) returns job
    language sql stable
    return _job_of(row(f.*)::live_jobs, false);

-- The state of a job that may run from run_at on. One that is not at the head of its sequence is `held`, whatever its time; then
-- what still waits for its time is `waiting` ('scheduled', or 'retryable' after a failure); what belongs to a named queue waits for
-- its turn; the rest is for anybody to claim.
create or replace function _state_at(
    run_at timestamptz, moment timestamptz, queue_name text, held boolean, waiting text default 'scheduled') returns text
    language sql immutable
    return case when held then 'pending' when run_at > moment then waiting when queue_name is not null then 'pending' else 'available' end;

create or replace function _held(sequence_key text, sequence_head boolean) returns boolean
    language sql immutable
    return sequence_key is not null and sequence_head is not true;

-- What the indexes are told of a state.
create or replace function _ready_at(state text, run_at timestamptz) returns timestamptz
    language sql immutable
    return case when state in ('available', 'running') then run_at end;

create or replace function _due_at(state text, run_at timestamptz) returns timestamptz
    language sql immutable
    return case when state in ('scheduled', 'retryable') then run_at end;

create or replace function _parked(state text, held boolean) returns text
    language sql immutable
    return case when state <> 'pending' then null when held then 'sequence' else 'queue' end;

-- What promote_jobs is to look at when this job is parked.
create or replace function _lane_of(parked text, queue_name text, sequence_key text) returns text
    language sql immutable
    return case when parked = 'queue' then 'queue:' || queue_name else 'sequence:' || sequence_key end;

-- Does a worker wait for a notification (see claim_jobs)? By the real clock, not clock(): it is about workers that really sleep.
create or replace function _somebody_waits() returns boolean
    language sql volatile
    return coalesce(pg_sequence_last_value('armed_until'::regclass) > date_part('epoch', clock_timestamp()) * 1000, false);

-- NOTIFY only then, and not in each of many commits at once: it takes a cluster-wide lock through the fsync. `set pyworker.notify = off` is for
-- callers that PREPARE TRANSACTION, which no notifying transaction can; workers then find the job when they poll.
create or replace function _wake_workers() returns void
    language plpgsql set search_path from current
as $$
declare
    v_class constant integer := ('notified_at'::regclass::oid::bigint - 2147483648)::integer;
    v_ms constant bigint := extract(epoch from clock_timestamp()) * 1000;
begin
    if not _somebody_waits() or current_setting('pyworker.notify', true) = 'off' then
        return;
    end if;
    -- Four transactions at a time are enough, as long as they are quick: who wakes finds the jobs of the others, and where some kept
    -- silent looks again soon after, for those that were later in committing (seconds_until_due). It must not have looked for that mark
    -- too early: so one of the four must be at it still when the mark is there.
    for look in 1..2 loop
        exit when pg_try_advisory_xact_lock(v_class, 1) or pg_try_advisory_xact_lock(v_class, 2)
            or pg_try_advisory_xact_lock(v_class, 3) or pg_try_advisory_xact_lock(v_class, 4)
            or coalesce(pg_sequence_last_value('notified_at'::regclass), 0) <= v_ms - 10;
        if look = 2 then
            return;
        end if;
        perform setval('silenced_at', v_ms);
    end loop;
    perform setval('notified_at', v_ms);
    perform pg_notify(current_schema(), '');
end;
$$;

-- A duration given in JSON: seconds, or PostgreSQL's interval text. Null if it is neither, negative or longer than 1000 years.
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
