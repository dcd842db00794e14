-- console/explain: explain_job(), which tells why a job is not running and what changes that.

-- A call of one of our functions, as a statement to run.
create or replace function _as_statement(call text) returns text
    language plpgsql stable set search_path from current
as $$
begin
    return format('select * from %I.%s', current_schema(), call);
end;
$$;

-- The remedy of a job that waits for a promotion alone.
create or replace function _promotion_remedy() returns text
    language plpgsql stable set search_path from current
as $$
begin
    return _as_statement('promote_jobs()') || ' sees to it at once, any worker''s next claim soon';
end;
$$;

-- Why a finished or a discarded job does not run.
create or replace function _explain_ended(job job, out reason text, out detail text, out remedy text)
    language plpgsql stable set search_path from current
as $$
begin
    reason := job.state;
    detail := case when job.state = 'discarded' then
            format('%s at %s, after %s of %s attempts%s', job.reason, job.finished_at, job.attempts,
                   job.max_attempts, ': ' || _last_line(job.last_error))
        else format('%s at %s%s', job.state, job.finished_at, ': ' || nullif(job.reason, job.state)) end;
    remedy := _as_statement(format('retry_job(%s)', job.id)) || ' runs it again'
        || case when job.state = 'discarded' and job.reason = 'lost'
                then '; it may have been done: look first' else '' end;
end;
$$;

create or replace function _explain_running(
    job live_jobs, now timestamptz, out reason text, out detail text, out remedy text) returns setof record
    language plpgsql stable set search_path from current
as $$
declare
    v_worker workers;
begin
    if job.cancel_requested_at is not null then
        reason := 'cancel requested';
        detail := format('at %s; its worker has not ended it yet', job.cancel_requested_at);
        remedy := _as_statement(format('cancel_job(%s, force => true)', job.id)) || ' ends it at once';
        return next;
    end if;
    select w.* into v_worker from workers w where w.id = job.worker_id and _is_registered(w);
    reason := 'running';
    detail := format(
        'since %s on worker %s%s, attempt %s of %s', job.claimed_at, job.worker_id,
        case when v_worker.id is null then ', which is dead'
             when v_worker.expires_at < now then format(', which has been silent since %s', v_worker.beat_at)
             else '' end,
        job.attempts, job.max_attempts);
    remedy := case when v_worker.id is null or v_worker.expires_at < now
                   then _as_statement('maintain()') || ' hands it on at once, any other worker soon' end;
    return next;
end;
$$;

create or replace function _explain_sequence(job live_jobs, out reason text, out detail text, out remedy text)
    returns setof record
    language plpgsql stable set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_ahead text; -- null if there are none
    v_head live_jobs;
    v_halt sequence_halts;
begin
    select nullif(concat(count(*), case when count(*) = 10000 then ' or more' end), '0') into v_ahead from (
        select from live_jobs j
        where j.sequence_key = job.sequence_key and j.parked <> 'queue'
          and (j.parked, j.id) < (job.parked, job.id) limit 10000) a;
    select j.* into v_head from live_jobs j where j.sequence_key = job.sequence_key and j.sequence_head;
    select h.* into v_halt from sequence_halts h
    where h.sequence_key = job.sequence_key and h.job_id < job.id and job.parked = 'sequence'
    order by h.job_id limit 1;
    if v_halt.job_id is not null then
        return query values ('sequence halted',
            format('sequence %s is halted by job %s, %s at %s%s', job.sequence_key, v_halt.job_id,
                   v_halt.reason, v_halt.at,
                   '; jobs that wait before this one: ' || v_ahead),
            format('%s runs that job again; %s goes on without it; %s goes on with this job',
                   _as_statement(format('retry_job(%s)', v_halt.job_id)),
                   _as_statement(format('resume_sequence(%L)', job.sequence_key)),
                   _as_statement(format('retry_job(%s)', job.id))));
    end if;
    if v_head.id is not null then
        return query values ('sequence',
            format('waits for job %s (%s%s) in sequence %s; jobs that wait before this one: %s', v_head.id,
                   v_head.state, ' until ' || v_head.due_at, job.sequence_key, coalesce(v_ahead, '0')),
            _as_statement(format('explain_job(%s)', v_head.id)) || ' tells what that job waits for');
    elsif v_ahead is not null then
        return query values ('sequence',
            format('jobs that wait before this one in sequence %s: %s', job.sequence_key, v_ahead),
            'they run first, in the order of their ids');
    elsif v_halt.job_id is null then
        return query values ('promotion',
            format('its turn in sequence %s has come', job.sequence_key), _promotion_remedy());
    end if;
end;
$$;

create or replace function _explain_time(
    job live_jobs, now timestamptz, out reason text, out detail text, out remedy text) returns setof record
    language plpgsql stable set search_path from current
as $$
begin
    if job.run_at > now then
        return query values (
            case when job.state = 'retryable' then 'waits for its retry' else 'not due' end,
            format('not before %s%s', job.run_at, case when job.state = 'retryable' then
                format('; attempt %s of %s failed: %s', job.attempts, job.max_attempts,
                       _last_line(job.last_error)) else '' end),
            _as_statement(format('retry_job(%s)', job.id)) || ' lets it run now');
    elsif job.due_at is not null and job.parked is distinct from 'queue' then
        return query values ('promotion',
            format('it has been due since %s', job.due_at), _promotion_remedy());
    end if;
end;
$$;

-- `waits`: for its time or its sequence. A queue that is full now need not be full then.
create or replace function _explain_queue(
    job live_jobs, waits boolean, out reason text, out detail text, out remedy text) returns setof record
    language plpgsql stable set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_queue record;
    v_taken bigint[];
    v_ahead bigint;
    v_promote boolean;
begin
    select q.* into v_queue from _queues_of(array[job.queue_name]) q;
    v_taken := array(
        select t.id from live_jobs t
        where t.queue_name = job.queue_name and t.ready_at is not null and t.state = 'running'
        order by t.id + 0 limit coalesce(v_queue.concurrency, 0)); -- + 0: never by a walk along all ids
    if v_queue.paused then
        return query
        select 'queue paused', format('queue %s is paused', p.queue_name),
               _as_statement(format('resume_queue(%L)', p.queue_name)) || ' lets it go on'
        from queues p
        where p.paused and (p.queue_name = job.queue_name or right(p.queue_name, 1) = '*'
                                and starts_with(job.queue_name, left(p.queue_name, -1)))
        order by length(p.queue_name) desc, right(p.queue_name, 1) = '*';
        return;
    elsif waits then
        return;
    end if;
    return query select r.* from _explain_rate(job.queue_name) r;
    waits := found;
    return query select a.* from _explain_aside(job) a;
    waits := waits or found;
    if cardinality(v_taken) >= v_queue.concurrency then
        return query values ('queue full',
            format('queue %s runs %s at once; now taken by job %s%s', job.queue_name, v_queue.concurrency,
                   array_to_string(v_taken[:5], ', '), case when cardinality(v_taken) > 5 then ', …' end),
            _as_statement(_set_queue_call(job.queue_name, v_queue.concurrency::bigint + 1, 1))
                || ' lets one more run at once');
    elsif job.parked = 'queue' and not waits then
        select count(*) into v_ahead from (
            select from live_jobs p
            where p.queue_name = job.queue_name
              and (p.parked = 'queue' or p.ready_at is not null and p.state = 'available')
              and (p.priority, p.run_at, p.id) < (job.priority, job.run_at, job.id) limit 1000) a;
        v_promote := (
            select count(*) < v_queue.slots - cardinality(v_taken) and (not v_queue.paced or count(*) = 0)
            from (select from live_jobs c
                  where c.queue_name = job.queue_name and c.ready_at is not null and c.state = 'available'
                  order by c.queue_name, c.priority, c.run_at, c.id limit 100) c);
        return query select
            case when v_promote then 'promotion' else 'waits for a worker' end,
            format('queue %s has room; jobs that come before it: %s%s', job.queue_name, v_ahead,
                   case when v_ahead = 1000 then ' or more' else '' end),
            case when v_promote then _promotion_remedy()
                 else 'they start first; if none does, the workers are busy, '
                      'or cannot reach the database' end;
    end if;
end;
$$;

-- Reports that no live worker would claim the job; a row of nulls if one would. How many are alive, and able.
create or replace function _explain_no_worker(
    job live_jobs, out reason text, out detail text, out remedy text, out alive bigint, out able bigint)
    language plpgsql stable set search_path from current
as $$
declare
    v_now constant timestamptz := clock();
    v_queue text := coalesce(job.queue_name, 'default');
    v_known bigint;
    v_served bigint;
    v_allowed bigint;
begin
    select count(*), count(*) filter (where c.knows), count(*) filter (where c.serves),
           count(*) filter (where c.allows), count(*) filter (where c.knows and c.serves and c.allows)
    into alive, v_known, v_served, v_allowed, able
    from workers w
    cross join lateral (
        select _takes(w, job.task_identifier, null, null) as knows, _takes(w, null, v_queue, null) as serves,
               _takes(w, null, null, job.flags) as allows) c
    where _is_live(w, v_now);
    if able > 0 then
        return;
    end if;
    reason := 'no worker takes it';
    if alive = 0 then
        reason := 'no worker';
        detail := 'no worker is alive';
        remedy := 'start one: pyworker run MODULE';
    elsif v_known = 0 then
        detail := format('no live worker (of %s) knows the task %s', alive, job.task_identifier);
        remedy := 'start a worker with the module that defines it, and without --task or with --task for it; '
                  'or correct the name';
    elsif v_served = 0 then
        detail := format('no live worker (of %s) serves the queue %s', alive, v_queue);
        remedy := 'start a worker without --queue, or with --queue for it';
    elsif v_allowed = 0 then
        detail := format('every live worker (of %s) forbids one of the job''s flags: %s', alive,
                         (select string_agg(f.flag, ', ' order by f.flag)
                          from jsonb_object_keys(job.flags) f(flag)));
        remedy := 'start a worker without that --forbid-flag';
    else
        detail := format('each live worker (of %s) lacks something: the task %s, the queue %s, '
                         'or it forbids a flag of the job', alive, job.task_identifier, v_queue);
        remedy := 'start a worker with its module and without --task, --queue and --forbid-flag';
    end if;
end;
$$;

-- Reports how many available jobs come before this one. workers: who may claim it, in words.
create or replace function _explain_place(
    job live_jobs, workers text, out reason text, out detail text, out remedy text)
    language plpgsql stable set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off
    set enable_sort = off set enable_incremental_sort = off set jit = off
as $$
declare
    v_ahead bigint;
    v_priority integer;
begin
    select count(*), min(a.priority) into v_ahead, v_priority from (
        select j.priority from live_jobs j
        where j.ready_at is not null and j.state = 'available'
          and (j.priority, j.ready_at, j.id) < (job.priority, job.ready_at, job.id)
        order by j.priority, j.ready_at, j.id limit 10000) a;
    reason := 'waits for a worker';
    detail := format('available jobs that come first: %s%s; live workers that take it: %s', v_ahead,
                     case when v_ahead = 10000 then ' or more' end, workers);
    remedy := case
        when v_ahead = 0 then 'it is next; if it stays so, the workers are busy, or cannot reach the database'
        when v_priority = -32768 then 'start more workers'
        else _as_statement(format('reschedule_jobs(array[%s], priority => %s)', job.id, v_priority - 1))
             || ' puts it first; or start more workers' end;
end;
$$;

-- No row if a worker would claim the job, and it `waits` for something else or is not available.
create or replace function _explain_workers(
    job live_jobs, waits boolean, out reason text, out detail text, out remedy text) returns setof record
    language plpgsql stable set search_path from current
as $$
declare
    v_lack record := _explain_no_worker(job);
begin
    if v_lack.able = 0 then
        return query select v_lack.reason, v_lack.detail, v_lack.remedy;
    elsif job.ready_at is not null and job.state = 'available' and not waits then
        return query select p.* from _explain_place(job, format('%s of %s', v_lack.able, v_lack.alive)) p;
    end if;
end;
$$;

create or replace function _explain_expiry(
    job live_jobs, out reason text, out detail text, out remedy text) returns setof record
    language plpgsql stable set search_path from current
as $$
begin
    if job.start_by is not null then
        return query values (
            'expiry', format('it is cancelled unless it has begun by %s', job.start_by),
            _as_statement(format('retry_job(%s)', job.id)) || ' clears that');
    end if;
end;
$$;

-- Why a live job does not run: all reasons, in the order in which they have to go away.
create or replace function _explain_live(job live_jobs, out reason text, out detail text, out remedy text)
    returns setof record
    language plpgsql stable set search_path from current
as $$
declare
    v_now timestamptz := clock();
    v_waits boolean := job.run_at > v_now;
begin
    if job.state = 'discarded' then
        return query select r.* from _explain_ended(_job_of(job)) r;
        return;
    elsif job.state = 'running' then
        return query select r.* from _explain_running(job, v_now) r;
        return;
    end if;
    if job.parked = 'unmet' then
        return query select r.* from _explain_dependencies(job) r;
        v_waits := true;
    end if;
    if job.parked = 'signal' then
        return query select r.* from _explain_wait(job, v_now) r;
        return; -- it has begun, so it does not expire
    end if;
    return query select p.* from _explain_put_off(job) p;
    if job.parked in ('sequence', 'next') then
        for reason, detail, remedy in select r.* from _explain_sequence(job) r loop
            v_waits := v_waits or reason <> 'promotion';
            return next;
        end loop;
    end if;
    return query select r.* from _explain_time(job, v_now) r;
    if job.queue_name is not null then
        return query select r.* from _explain_queue(job, v_waits) r;
        v_waits := found; -- a candidate need not be parked yet
    end if;
    return query select r.* from _explain_workers(job, v_waits) r;
    return query select r.* from _explain_expiry(job) r;
end;
$$;

create or replace function explain_job(job_id bigint)
    returns table ("position" integer, reason text, detail text, remedy text)
    language plpgsql security definer set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_job live_jobs;
    v_past job;
begin
    select j.* into v_job from live_jobs j where j.id = explain_job.job_id;
    if found then
        return query
        with found as materialized (select e.* from _explain_live(v_job) e),
        locked as materialized ( -- the end that is to free a full queue may be open: that says enough
            select l.* from _explain_lock(v_job) l
            where v_job.state not in ('running', 'discarded')
              and not exists (select from found e where e.reason = 'queue full'))
        select row_number() over ()::integer, r.* from (
            select l.* from locked l
            union all
            select e.* from found e
            where e.reason not in ('promotion', 'waits for a worker') or not exists (select from locked)) r;
        return;
    end if;
    v_past := get_job(job_id);
    if v_past.id is null then
        perform _refuse_unknown_job('explain_job', job_id);
    end if;
    return query select 1, r.* from _explain_ended(v_past) r;
end;
$$;
comment on function explain_job(bigint) is
    'Why a job is not running: one row per reason, in the order in which they must be resolved, '
    'each with its remedy. Reasons: locked (another session has it locked, or a job that goes first), '
    'dependency (another job has not ended; at most 50 are named), '
    'dependency unmet (it ended in another way), not due, waits for its retry, sequence, '
    'sequence halted, queue paused, queue full, rate: none starts before (a time), stands aside (no idle '
    'worker took a job of its kind, so others of its queue go first for a while), put off (a promotion of '
    'its lane has failed), promotion '
    '(no worker has claimed since the job could proceed), no worker, '
    'no worker takes it, waits for a worker; for other jobs: running, cancel requested, completed, '
    'cancelled, discarded. Errors: PW004 if there is no such job.';
