-- 60_fail: running -> retryable, discarded or cancelled (fail_jobs), -> scheduled (snooze_job), -> available (release_jobs).
--
-- Every path out of `running` but success ends in one of two functions, both called with the row locked: _put_back or _discard.

-- The wait after the given number of attempts. Without a policy Graphile Worker's: e^1, e^2 … e^10 seconds, then 6 hours each.
create or replace function _retry_delay(backoff jsonb, attempts integer) returns interval
    language plpgsql volatile set search_path from current
as $$
declare
    v_initial interval;
    v_factor double precision;
    v_delay interval;
    v_max interval;
begin
    if backoff is null then
        return exp(least(attempts, 10)) * interval '1 second';
    elsif jsonb_typeof(backoff) = 'array' then
        return _interval_of(backoff -> (least(attempts, jsonb_array_length(backoff)) - 1));
    end if;
    v_initial := coalesce(_interval_of(backoff -> 'initial'), interval '1 second');
    v_factor := coalesce((backoff ->> 'factor')::double precision, 2);
    v_max := coalesce(_interval_of(backoff -> 'max'), interval '1 day');
    v_delay := case backoff ->> 'strategy'
        when 'constant' then v_initial
        when 'linear' then v_initial * attempts
        -- Compared as logarithms first: 100 ^ 32767 is no number.
        else case when extract(epoch from v_initial) = 0 then v_initial
                  when ln(extract(epoch from v_initial)::double precision) + (attempts - 1) * ln(v_factor) > ln(1e10) then v_max
                  else v_initial * power(v_factor, attempts - 1) end
    end;
    v_delay := least(v_delay, v_max);
    return v_delay * (1 + coalesce((backoff ->> 'jitter')::double precision, 0) * (2 * random() - 1));
end;
$$;

create or replace function _note_error(job live_jobs, error text) returns void
    language plpgsql set search_path from current
as $$
begin
    insert into errors (job_id, run, at, worker, error) values (job.id, job.run, clock(), job.worker_id::text, error);
end;
$$;

-- Must this job not be run again by itself? It was begun, and promised to be begun at most once.
create or replace function _is_lost(job live_jobs) returns boolean
    language sql immutable
    return (job).delivery = 'at_most_once' and (job).started_at is not null;

-- Back among the waiting, unless somebody has called the job off meanwhile, or it is lost.
create or replace function _put_back(
    job live_jobs, run_at timestamptz, attempts integer, waiting text, error text default null, payload json default null)
    returns void
    language plpgsql set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_now timestamptz := clock();
    v_held boolean := _held(job.sequence_key, job.sequence_head);
    v_state text := _state_at(_put_back.run_at, v_now, job.queue_name, v_held, waiting);
begin
    if job.superseded is not null or job.cancel_requested_at is not null then
        perform _close_jobs(array[job.id], null, 'cancelled', null, coalesce(job.superseded, 'cancelled'),
                            coalesce(error, job.superseded));
        return;
    elsif _is_lost(job) then
        if error is null then -- handed back, and nobody will be told why unless it is said here
            error := 'handed back after it was started';
            perform _note_error(job, error);
        end if;
        perform _discard(job, error, 'lost');
        return;
    end if;
    update live_jobs j
    set state = v_state, ready_at = _ready_at(v_state, _put_back.run_at), due_at = _due_at(v_state, _put_back.run_at),
        parked = _parked(v_state, v_held), run_at = _put_back.run_at, updated_at = v_now, attempts = _put_back.attempts,
        worker_id = null, claimed_at = null, started_at = null, last_error = coalesce(error, j.last_error), payload = coalesce(_put_back.payload, j.payload)
    where j.id = job.id;
    perform _queue_slot_freed(job.queue_name);
    perform _wake_workers();
end;
$$;

-- Out of attempts, or given up: stays in live_jobs with its key, as a decision is due.
create or replace function _discard(job live_jobs, error text, discard_reason text, payload json default null) returns void
    language plpgsql set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_now timestamptz := clock();
    v_retention interval := (select s.discarded_retention from settings s);
begin
    if job.superseded is not null or job.cancel_requested_at is not null then
        perform _close_jobs(array[job.id], null, 'cancelled', null, coalesce(job.superseded, 'cancelled'), error);
        return;
    end if;
    perform _halt_sequence(job, 'discarded');
    if v_retention = interval '0' then
        perform _forget_job(job, false);
    else
        update live_jobs j
        set state = 'discarded', ready_at = null, due_at = null, parked = null, updated_at = v_now, worker_id = null, claimed_at = null, finished_at = v_now,
            expires_at = v_now + v_retention, last_error = coalesce(error, j.last_error), reason = discard_reason,
            payload = coalesce(_discard.payload, j.payload), sequence_head = null
        where j.id = job.id;
        perform _gone_from_turn(job);
    end if;
end;
$$;

-- A job that has just left, or was moved: whoever waits for its place in its queue and in its sequence gets it. In its queue at once if it
-- ran; else by the next promotion, as this may be a producer's transaction, which may stay open for long and must not hold a lane.
create or replace function _gone_from_turn(job live_jobs) returns void
    language plpgsql set search_path from current
as $$
begin
    if job.sequence_head then
        perform _advance_sequences(array[job.sequence_key]);
    end if;
    if job.state = 'running' then
        perform _queue_slot_freed(job.queue_name);
    elsif job.state = 'available' and job.queue_name is not null then
        insert into wakeups values ('queue:' || job.queue_name);
        perform _wake_workers();
    end if;
end;
$$;

-- Without a trace; unless it halted its sequence just now, that goes on.
create or replace function _forget_job(job live_jobs, unhalt boolean default true) returns void
    language plpgsql set search_path from current set enable_seqscan = off set jit = off
as $$
begin
    delete from live_jobs j where j.id = job.id;
    delete from errors e where e.job_id = job.id;
    perform _release_unique_keys(array[job.unique_key]);
    if unhalt and job.sequence_key is not null then
        perform _unhalt_sequence(job.sequence_key, job.id);
    end if;
    perform _gone_from_turn(job);
end;
$$;

create or replace function fail_jobs(failures jsonb) returns bigint[]
    language plpgsql security definer set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_failure record;
    v_job live_jobs;
    v_backoff jsonb;
    v_accepted bigint[] := array[]::bigint[];
begin
    if failures is null or jsonb_typeof(failures) <> 'array' then
        raise exception 'fail_jobs: failures must be a JSON array of objects, got %', coalesce(jsonb_typeof(failures), 'NULL')
            using errcode = 'PW001';
    end if;
    -- A malformed item is left out of the result and harms no other. Sorted by id, as every batch is.
    for v_failure in
        select f.* from jsonb_array_elements(failures) i, _failure_of(i.value) f where f.id is not null and f.run is not null
        order by f.id
    loop
        select j.* into v_job from live_jobs j
        where j.id = v_failure.id and j.run = v_failure.run and j.state = 'running' for update;
        continue when not found;
        perform _note_error(v_job, v_failure.error);
        if v_failure.cancel then
            perform _close_jobs(array[v_job.id], null, 'cancelled', null, coalesce(v_job.superseded, v_failure.error), v_failure.error);
            v_accepted := v_accepted || v_job.id;
            continue;
        end if;
        if v_failure.not_started then
            v_job.started_at := null;
        end if;
        if v_failure.discard or _is_lost(v_job) or v_job.attempts >= v_job.max_attempts then
            perform _discard(
                v_job, v_failure.error,
                case when v_failure.discard then 'discarded by its handler' when _is_lost(v_job) then 'failed, and must not be run twice'
                     else 'out of attempts' end, v_failure.payload);
        else
            select t.backoff into v_backoff from tasks t where t.identifier = v_job.task_identifier;
            perform _put_back(
                v_job, case when v_failure.delay is not null then clock() + v_failure.delay
                            else greatest(clock(), v_job.run_at) + _retry_delay(v_backoff, v_job.attempts) end,
                v_job.attempts, 'retryable', v_failure.error, v_failure.payload);
        end if;
        v_accepted := v_accepted || v_job.id;
    end loop;
    return v_accepted;
end;
$$;
comment on function fail_jobs(jsonb) is
    'Reports failed attempts: [{"id", "run", "error", "payload"?, "discard"?, "cancel"?, "not_started"?, "delay"?}]. A job with attempts left becomes '
    'retryable at greatest(now, run_at) plus its backoff (Graphile Worker''s formula, or the task''s), or now plus delay; otherwise, or with '
    'discard, it is discarded; with cancel it is cancelled. payload replaces the payload for the retry (Graphile Worker: partial '
    'success of a batch). A job with delivery at_most_once that was started is discarded whatever attempts it has left, unless not_started '
    'says that its handler had not come to what must not be done twice. Returns the ids that were accepted; stale runs and malformed items are left out.';

-- One item of fail_jobs, or a row of nulls if it is malformed.
create or replace function _failure_of(
    item jsonb, out id bigint, out run integer, out error text, out payload json, out discard boolean, out cancel boolean,
    out not_started boolean, out delay interval)
    language plpgsql immutable set search_path from current
as $$
declare
    -- A member that is null is one that is missing.
    v_delay jsonb := nullif(item -> 'delay', 'null');
    v_discard jsonb := coalesce(nullif(item -> 'discard', 'null'), 'false');
    v_cancel jsonb := coalesce(nullif(item -> 'cancel', 'null'), 'false');
    v_not_started jsonb := coalesce(nullif(item -> 'not_started', 'null'), 'false');
begin
    if jsonb_typeof(item) <> 'object' or jsonb_typeof(item -> 'id') <> 'number' or jsonb_typeof(item -> 'run') <> 'number'
       or jsonb_typeof(v_discard) <> 'boolean' or jsonb_typeof(v_cancel) <> 'boolean' or jsonb_typeof(v_not_started) <> 'boolean'
       or (v_delay is not null and _interval_of(v_delay) is null) then
        return;
    end if;
    error := coalesce(nullif(item ->> 'error', ''), 'failed without a message');
    payload := nullif(item -> 'payload', 'null');
    discard := v_discard::boolean;
    cancel := v_cancel::boolean;
    not_started := v_not_started::boolean;
    delay := _interval_of(v_delay);
    -- By way of text: a cast from jsonb would round 1.4 to somebody else's id.
    run := (item ->> 'run')::integer;
    id := (item ->> 'id')::bigint;
exception when data_exception then
    id := null;
end;
$$;

create or replace function snooze_job(job_id bigint, run integer, delay interval) returns void
    language plpgsql security definer set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_job live_jobs;
begin
    if delay is null or delay < interval '0' or delay > interval '1000 years' then
        raise exception 'snooze_job: delay must be from 0 to 1000 years, got %', coalesce(delay::text, 'NULL') using errcode = 'PW001';
    end if;
    select j.* into v_job from live_jobs j where j.id = job_id and j.run = snooze_job.run and j.state = 'running' for update;
    if not found then
        raise exception 'snooze_job: job % is not held by run % any more', coalesce(job_id::text, 'NULL'), coalesce(run::text, 'NULL')
            using errcode = 'PW002';
    elsif _is_lost(v_job) and v_job.superseded is null and v_job.cancel_requested_at is null then
        raise exception 'snooze_job: job % was started and must not be run twice', job_id
            using errcode = 'PW005', hint = 'Fail it with not_started, if it had done nothing yet.';
    end if;
    perform _put_back(v_job, clock() + delay, greatest(v_job.attempts - 1, 0), 'scheduled');
end;
$$;
comment on function snooze_job(bigint, integer, interval) is
    'Puts a running job off by delay and gives the attempt back (River: snooze). Errors: PW002 on a stale run; PW005 when it must not be run '
    'twice and was started; PW001.';

create or replace function release_jobs(job_ids bigint[], runs integer[]) returns bigint[]
    language plpgsql security definer set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_item record;
    v_job live_jobs;
    v_accepted bigint[] := array[]::bigint[];
begin
    if cardinality(job_ids) <> cardinality(runs) then
        raise exception 'release_jobs: job_ids and runs must be of one length, got % and %', cardinality(job_ids), cardinality(runs)
            using errcode = 'PW001';
    end if;
    for v_item in select i.id, i.run from unnest(job_ids, runs) i(id, run) order by i.id loop
        select j.* into v_job from live_jobs j where j.id = v_item.id and j.run = v_item.run and j.state = 'running' for update;
        continue when not found;
        perform _put_back(v_job, v_job.run_at, greatest(v_job.attempts - 1, 0), 'scheduled');
        v_accepted := v_accepted || v_job.id;
    end loop;
    return v_accepted;
end;
$$;
comment on function release_jobs(bigint[], integer[]) is
    'Hands claimed jobs back that were not begun; their attempt is given back and others may claim them at once. Returns the ids '
    'accepted; a stale run is left out. Errors: PW001.';

create or replace function job_errors(job_id bigint) returns table (run integer, at timestamptz, worker text, error text)
    language plpgsql stable security definer set search_path from current set enable_seqscan = off set jit = off
as $$
begin
    return query select e.run, e.at, e.worker, e.error from errors e where e.job_id = job_errors.job_id order by e.run, e.at;
end;
$$;
comment on function job_errors(bigint) is 'The errors of all attempts of a job, live or finished, oldest first.';
