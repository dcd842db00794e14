-- diagnosis/explain: explain_job(), which tells why a job is not running and what changes that.

-- A call of one of our functions, as a statement to run.
create or replace function _to_call(call text) returns text
    language plpgsql stable set search_path from current
as $$
begin
    return format('select * from %I.%s', current_schema(), call);
end;
$$;

create or replace function explain_job(job_id bigint)
    returns table ("position" integer, reason text, detail text, remedy text)
    language plpgsql security definer set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_now timestamptz := clock();
    v_job live_jobs;
    v_past job;
    v_queue record;
    v_candidates bigint;
    v_head live_jobs;
    v_halt sequence_halts;
    v_worker workers;
    v_ahead bigint;
    v_taken bigint[];
    v_waits boolean := false;
    v_promote constant text := _to_call('promote_jobs()')
        || ' sees to it at once, any worker''s next claim soon';
begin
    position := 0;
    select j.* into v_job from live_jobs j where j.id = explain_job.job_id;
    if not found then
        v_past := get_job(job_id);
        if v_past.id is null then
            raise exception 'explain_job: there is no job %', coalesce(job_id::text, 'NULL')
                using errcode = 'PW004',
                hint = 'Finished jobs are kept for their retention; or the transaction that adds it has not committed.';
        end if;
        return query values (1, v_past.state,
            format('%s at %s%s', v_past.state, v_past.finished_at,
                   ': ' || nullif(v_past.reason, v_past.state)),
            _to_call(format('retry_job(%s)', job_id)) || ' runs it again');
        return;
    elsif v_job.state = 'discarded' then
        return query values (1, 'discarded',
            format('%s at %s, after %s of %s attempts%s', v_job.reason, v_job.finished_at, v_job.attempts,
                   v_job.max_attempts,
                   ': ' || _last_line(v_job.last_error)),
                   _to_call(format('retry_job(%s)', job_id)) || ' runs it again');
        return;
    elsif v_job.state = 'running' then
        select w.* into v_worker from workers w where w.id = v_job.worker_id and w.dead_at is null;
        if v_job.cancel_requested_at is not null then
            position := position + 1;
            return query values (position, 'cancel requested',
                                 format('at %s; its worker has not ended it yet', v_job.cancel_requested_at),
                                 _to_call(format('cancel_job(%s, force => true)', job_id))
                                     || ' ends it at once');
        end if;
        position := position + 1;
        return query values (position, 'running',
            format('since %s on worker %s%s, attempt %s of %s', v_job.claimed_at, v_job.worker_id,
                   case when v_worker.id is null then ', which is dead'
                        when v_worker.expires_at < v_now then format(', which has been silent since %s', v_worker.beat_at) else '' end,
                   v_job.attempts, v_job.max_attempts),
            case when v_worker.id is null or v_worker.expires_at < v_now
                 then _to_call('maintain()') || ' hands it on at once, any other worker soon' end);
        return;
    end if;

    -- First: jobs before it in its sequence.
    if v_job.parked in ('sequence', 'next') then
        select count(*) into v_ahead from live_jobs j
        where j.sequence_key = v_job.sequence_key and j.parked <> 'queue'
          and (j.parked, j.id) < (v_job.parked, v_job.id);
        select j.* into v_head from live_jobs j where j.sequence_key = v_job.sequence_key and j.sequence_head;
        select h.* into v_halt from sequence_halts h
        where h.sequence_key = v_job.sequence_key and h.job_id < v_job.id and v_job.parked = 'sequence'
        order by h.job_id limit 1;
        position := position + 1;
        if v_halt.job_id is not null then
            return query values (position, 'sequence halted',
                format('sequence %s is halted by job %s, %s at %s%s', v_job.sequence_key, v_halt.job_id,
                       v_halt.reason, v_halt.at,
                       case when v_ahead > 0 then format('; jobs that wait before this one: %s', v_ahead)
                            else '' end),
                format('%s runs that job again; %s goes on without it; %s goes on with this job',
                       _to_call(format('retry_job(%s)', v_halt.job_id)),
                       _to_call(format('resume_sequence(%L)', v_job.sequence_key)),
                       _to_call(format('retry_job(%s)', job_id))));
            position := position + 1;
        end if;
        if v_head.id is not null then
            return query values (position, 'sequence',
                format('waits for job %s (%s%s) in sequence %s; jobs that wait before this one: %s',
                       v_head.id, v_head.state,
                       case when v_head.due_at is not null then format(' until %s', v_head.due_at)
                            else '' end, v_job.sequence_key, v_ahead),
                _to_call(format('explain_job(%s)', v_head.id)) || ' tells what that job waits for');
        elsif v_ahead > 0 then
            return query values (position, 'sequence',
                                 format('jobs that wait before this one in sequence %s: %s',
                                        v_job.sequence_key, v_ahead),
                                 'they run first, in the order of their ids');
        elsif v_halt.job_id is null then
            return query values (position, 'promotion',
                                 format('its turn in sequence %s has come', v_job.sequence_key), v_promote);
        else
            position := position - 1;
        end if;
    end if;
    -- Second: its run_at.
    v_waits := v_job.parked in ('sequence', 'next')
        and (v_head.id is not null or v_ahead > 0 or v_halt.job_id is not null)
               or v_job.run_at > v_now;
    if v_job.run_at > v_now then
        position := position + 1;
        return query values (position,
                             case when v_job.state = 'retryable' then 'waits for its retry'
                                  else 'not due' end,
            format('not before %s%s', v_job.run_at, case when v_job.state = 'retryable' then
                format('; attempt %s of %s failed: %s', v_job.attempts, v_job.max_attempts,
                       _last_line(v_job.last_error)) else '' end),
            _to_call(format('retry_job(%s)', job_id)) || ' lets it run now');
    elsif v_job.due_at is not null then
        position := position + 1;
        return query values (position, 'promotion', format('it has been due since %s', v_job.due_at),
                             v_promote);
    end if;
    -- Third: its queue.
    if v_job.queue_name is not null then
        select q.* into v_queue from _queues_of(array[v_job.queue_name]) q;
        v_taken := array(
            select t.id from live_jobs t
            where t.queue_name = v_job.queue_name and t.ready_at is not null and t.state = 'running'
            order by t.id + 0 limit coalesce(v_queue.concurrency, 0)); -- + 0: no walk along the primary key
        if v_queue.paused then
            position := position + 1;
            return query values (position, 'queue paused', format('queue %s is paused', v_job.queue_name),
                                 _to_call(format('resume_queue(%L)', v_job.queue_name)) || ' lets it go on');
        elsif v_waits then
            null; -- the queue may have room when this job's turn comes
        elsif cardinality(v_taken) >= v_queue.concurrency then
            position := position + 1;
            return query values (position, 'queue full',
                format('queue %s runs %s at once; now taken by job %s', v_job.queue_name, v_queue.concurrency,
                       array_to_string(v_taken[:5], ', ') || case when cardinality(v_taken) > 5 then ', …' else '' end),
                _to_call(format('set_queue(%L, %s)', v_job.queue_name, v_queue.concurrency::bigint + 1))
                    || ' lets one more run at once');
        elsif v_job.parked = 'queue' then
            select count(*), count(*) filter (where a.ready_at is not null) into v_ahead, v_candidates from (
                select p.ready_at from live_jobs p
                where p.queue_name = v_job.queue_name
                  and (p.parked = 'queue' or p.ready_at is not null and p.state = 'available')
                  and p.task_identifier = v_job.task_identifier and p.flags is not distinct from v_job.flags
                  and (p.priority, p.run_at, p.id) < (v_job.priority, v_job.run_at, v_job.id) limit 1000) a;
            position := position + 1;
            return query select position,
                case when v_candidates = 0 or v_candidates < v_queue.concurrency - cardinality(v_taken) then 'promotion' else 'waits for a worker' end,
                format('queue %s has room; jobs of its task that come before it: %s%s', v_job.queue_name,
                       v_ahead,
                       case when v_ahead = 1000 then ' or more' else '' end),
                case when v_candidates = 0 or v_candidates < v_queue.concurrency - cardinality(v_taken) then v_promote
                     else 'they start first; if none does, the workers are busy, or cannot reach the database' end;
        end if;
    end if;
    -- Last: a worker that takes it.
    return query select explain_job.position + row_number() over ()::integer, w.reason, w.detail, w.remedy
    from _explain_workers(v_job) w;
end;
$$;
comment on function explain_job(bigint) is
    'Why a job is not running: one row per reason, in the order in which they must be resolved, '
    'each with its remedy. Reasons: not due, waits for its retry, sequence, sequence halted, queue '
    'paused, queue full, promotion (no worker has claimed since the job could proceed), no worker, '
    'no worker takes it, waits for a worker; for other jobs: running, cancel requested, completed, '
    'cancelled, discarded. Errors: PW004 if there is no such job.';

-- An array that a worker reported about itself. The info is also for people: other types are
-- ignored.
create or replace function _said(worker workers, member text) returns jsonb
    language sql immutable
    return case when jsonb_typeof((worker).info -> member) = 'array' then (worker).info -> member end;

-- Reports that no live worker would claim the job, or for an available job how many jobs come
-- before it. No row if the job is not available and a worker would claim it.
create or replace function _explain_workers(job live_jobs, out reason text, out detail text, out remedy text)
    returns setof record
    language plpgsql stable set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_now timestamptz := clock();
    v_queue text := coalesce(job.queue_name, 'default');
    v_alive bigint;
    v_known bigint;
    v_served bigint;
    v_allowed bigint;
    v_able bigint;
    v_ahead bigint;
    v_priority integer;
begin
    select count(*), count(*) filter (where c.knows), count(*) filter (where c.serves),
           count(*) filter (where c.allows), count(*) filter (where c.knows and c.serves and c.allows)
    into v_alive, v_known, v_served, v_allowed, v_able
    from workers w
    cross join lateral (
        select coalesce(_said(w, 'task_identifiers') ? job.task_identifier, true) as knows,
               coalesce(_said(w, 'queue_names') ? v_queue, true) as serves,
               not coalesce(job.flags ?| _texts_of(_said(w, 'forbidden_flags')), false) as allows) c
    where w.dead_at is null and w.expires_at >= v_now;
    if v_able = 0 then
        reason := 'no worker takes it';
        if v_alive = 0 then
            reason := 'no worker';
            detail := 'no worker is alive';
            remedy := 'start one: pyworker run MODULE';
        elsif v_known = 0 then
            detail := format('no live worker (of %s) knows the task %s', v_alive, job.task_identifier);
            remedy := 'start a worker with the module that defines it, and without --task or with --task for it; or correct the name';
        elsif v_served = 0 then
            detail := format('no live worker (of %s) serves the queue %s', v_alive, v_queue);
            remedy := 'start a worker without --queue, or with --queue for it';
        elsif v_allowed = 0 then
            detail := format('every live worker (of %s) forbids one of the job''s flags: %s', v_alive,
                             (select string_agg(f.flag, ', ' order by f.flag)
                              from jsonb_object_keys(job.flags) f(flag)));
            remedy := 'start a worker without that --forbid-flag';
        else
            detail := format('each live worker (of %s) lacks something: the task %s, the queue %s, or it forbids a flag of the job',
                             v_alive, job.task_identifier, v_queue);
            remedy := 'start a worker with its module and without --task, --queue and --forbid-flag';
        end if;
        return next;
    elsif job.ready_at is not null and job.state = 'available' then
        select count(*), min(a.priority) into v_ahead, v_priority from (
            select j.priority from live_jobs j
            where j.ready_at is not null and j.state = 'available'
              and (j.priority, j.ready_at, j.id) < (job.priority, job.ready_at, job.id)
            order by j.priority, j.ready_at, j.id limit 10000) a;
        reason := 'waits for a worker';
        detail := format('available jobs that come first: %s%s; live workers that take it: %s of %s', v_ahead,
                         case when v_ahead = 10000 then ' or more' else '' end, v_able, v_alive);
        remedy := case when v_ahead = 0 then 'it is next; if it stays so, the workers are busy, or cannot reach the database'
                       when v_priority = -32768 then 'start more workers'
                       else _to_call(format('reschedule_jobs(array[%s], priority => %s)', job.id,
                                            v_priority - 1))
                            || ' puts it first; or start more workers' end;
        return next;
    end if;
end;
$$;
