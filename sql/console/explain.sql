-- console/explain: explain_job(), which tells why a job is not running and what changes that.
--
-- Each function _explain_… returns the reasons that it finds, in the order in which they must be resolved.
-- A remedy begins with a statement to run, if one helps.

-- What the job waits for in its sequence. A job before it that halts the sequence comes first.
create or replace function _explain_sequence(job live_jobs, out reason text, out detail text, out remedy text)
    returns setof record
    language plpgsql stable set search_path from current
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
                   v_halt.reason, v_halt.at, '; jobs that wait before this one: ' || v_ahead),
            _fix('select * from ~.retry_job(%s) runs that job again; select * from ~.resume_sequence(%L) '
                 'goes on without it; select * from ~.retry_job(%s) goes on with this job',
                 v_halt.job_id::text, job.sequence_key, job.id::text));
    end if;
    if v_head.id is not null then
        return query values ('sequence',
            format('waits for job %s (%s%s) in sequence %s; jobs that wait before this one: %s', v_head.id,
                   v_head.state, ' until ' || v_head.due_at, job.sequence_key, coalesce(v_ahead, '0')),
            _fix('select * from ~.explain_job(%s) tells what that job waits for', v_head.id::text));
    elsif v_ahead is not null then
        return query values ('sequence',
            format('jobs that wait before this one in sequence %s: %s', job.sequence_key, v_ahead),
            'they run first, in the order of their ids');
    elsif v_halt.job_id is null then
        return query values ('promotion', format('its turn in sequence %s has come', job.sequence_key), null);
    end if;
end;
$$;

-- What the job waits for in its queue: a pause, its rate, a slot. With `paused_only` only a pause: a queue
-- that is full now need not be full when the job's time or turn comes.
create or replace function _explain_queue(
    job live_jobs, now timestamptz, paused_only boolean, out reason text, out detail text, out remedy text)
    returns setof record
    language plpgsql stable set search_path from current
as $$
declare
    v_queue record;
    v_call text; -- of set_queue; a queue that takes turns has the limits of its family
    v_taken bigint[];
    v_ahead bigint;
    v_found boolean;
begin
    select q.*, r.room, r.free_at into v_queue
    from _queues_of(array[job.queue_name]) q
    left join lateral _rate_room(q.queue_name, q.rate_limit, q.rate_period, now) r
        on q.rate_limit is not null;
    if v_queue.paused then
        return query
        select 'queue paused', format('queue %s is paused', p.queue_name),
               _fix('select * from ~.resume_queue(%L) lets it go on', p.queue_name)
        from queues p
        where p.paused and p.queue_name = any (job.queue_name || array(
            select left(job.queue_name, l.long) || '*'
            from generate_series(0, length(job.queue_name)) l(long)))
        order by length(p.queue_name) desc, right(p.queue_name, 1) = '*';
    end if;
    if v_queue.paused or paused_only then
        return;
    end if;
    v_call := case when v_queue.fair then v_queue.family || '*' else job.queue_name end;
    return query
    select format('rate: none starts before %s', v_queue.free_at),
           format('queue %s starts at most %s in any %s, and has started %s; the next may start at %s',
                  job.queue_name, v_queue.rate_limit, _words_of(v_queue.rate_period),
                  v_queue.rate_limit - v_queue.room, v_queue.free_at),
           _fix('select * from ~.%s doubles the rate', _set_queue_call(
               v_call, v_queue.concurrency, v_queue.rate_limit * 2::bigint, v_queue.rate_period,
               v_queue.fair))
    where v_queue.room <= 0
    union all
    select 'stands aside',
           format('no idle worker took a job of the task %s in queue %s for a second: others go first '
                  'until %s', job.task_identifier, job.queue_name, a.until),
           'start a worker that takes it, or wait until those that do have room'
    from set_aside a
    where a.queue_name = job.queue_name and a.task_identifier = job.task_identifier
      and a.flags is not distinct from job.flags and a.until > now and job.parked = 'queue';
    v_found := found;
    v_taken := array(
        select t.id from live_jobs t
        where t.queue_name = job.queue_name and t.ready_at is not null and t.state = 'running'
        order by t.id + 0 limit coalesce(v_queue.concurrency, 0)); -- + 0: never by a walk along all ids
    if cardinality(v_taken) >= v_queue.concurrency then
        return query values ('queue full',
            format('queue %s runs %s at once; now taken by job %s%s', job.queue_name, v_queue.concurrency,
                   array_to_string(v_taken[:5], ', '), case when cardinality(v_taken) > 5 then ', …' end),
            _fix('select * from ~.%s lets one more run at once', _set_queue_call(
                v_call, v_queue.concurrency + 1::bigint, v_queue.rate_limit, v_queue.rate_period,
                v_queue.fair)));
    elsif job.parked = 'queue' and not v_found then
        select count(*) into v_ahead from (
            select from live_jobs p
            where p.queue_name = job.queue_name
              and (p.parked = 'queue' or p.ready_at is not null and p.state = 'available')
              and (p.priority, p.run_at, p.id) < (job.priority, job.run_at, job.id) limit 1000) a;
        return query
        select case when v.promote then 'promotion' else 'waits for a worker' end,
               format('queue %s has room; jobs that come before it: %s%s', job.queue_name, v_ahead,
                      case when v_ahead = 1000 then ' or more' else '' end),
               'they start first; if none does, the workers are busy, or cannot reach the database'
        from (select count(*) < v_queue.slots - cardinality(v_taken)
                     and (not v_queue.paced or count(*) = 0) as promote
              from (select from live_jobs c
                    where c.queue_name = job.queue_name and c.ready_at is not null and c.state = 'available'
                    order by c.queue_name, c.priority, c.run_at, c.id limit 100) a) v;
    end if;
end;
$$;

-- Whether a live worker takes the job; if one does, and the job does not `wait` for something else, how many
-- available jobs come first.
create or replace function _explain_workers(
    job live_jobs, now timestamptz, waits boolean, out reason text, out detail text, out remedy text)
    returns setof record
    language plpgsql stable set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off
    set enable_sort = off set enable_incremental_sort = off set jit = off
as $$
declare
    v_queue constant text := coalesce(job.queue_name, 'default');
    v_live record;
    v_ahead bigint;
    v_priority integer;
begin
    select count(*) as alive, count(*) filter (where c.knows) as know,
           count(*) filter (where c.serves) as serve, count(*) filter (where c.allows) as allow,
           count(*) filter (where c.knows and c.serves and c.allows) as take
    into v_live
    from workers w
    cross join lateral (
        select _takes(w, job.task_identifier, null, null) as knows, _takes(w, null, v_queue, null) as serves,
               _takes(w, null, null, job.flags) as allows) c
    where _is_live(w, now);
    if v_live.take = 0 then
        return query
        select case when v_live.alive = 0 then 'no worker' else 'no worker takes it' end, r.detail, r.remedy
        from (values
            (v_live.alive, 'no worker is alive', 'start one: pyworker run MODULE'),
            (v_live.know,
             format('no live worker (of %s) knows the task %s', v_live.alive, job.task_identifier),
             'start a worker with its module, or check the --task options and the spelling'),
            (v_live.serve, format('no live worker (of %s) serves the queue %s', v_live.alive, v_queue),
             'start a worker without --queue, or with --queue for it'),
            (v_live.allow,
             format('every live worker (of %s) forbids one of the job''s flags: %s', v_live.alive,
                    (select string_agg(f.flag, ', ' order by f.flag)
                     from jsonb_object_keys(job.flags) f(flag))),
             'start a worker without that --forbid-flag'),
            (0, format('each live worker (of %s) lacks something: the task %s, the queue %s, '
                       'or it forbids a flag of the job', v_live.alive, job.task_identifier, v_queue),
             'start a worker with its module and without --task, --queue and --forbid-flag')
        ) r(able, detail, remedy) where r.able = 0 limit 1;
    elsif not waits and job.ready_at is not null and job.state = 'available' then
        select count(*), min(a.priority) into v_ahead, v_priority from (
            select j.priority from live_jobs j
            where j.ready_at is not null and j.state = 'available'
              and (j.priority, j.ready_at, j.id) < (job.priority, job.ready_at, job.id)
            order by j.priority, j.ready_at, j.id limit 10000) a;
        return query values ('waits for a worker',
            format('available jobs that come first: %s%s; live workers that take it: %s of %s', v_ahead,
                   case when v_ahead = 10000 then ' or more' end, v_live.take, v_live.alive),
            case when v_ahead = 0
                 then 'it is next; if it stays so, the workers are busy, or cannot reach the database'
                 when v_priority = -32768 then 'start more workers'
                 else _fix('select * from ~.reschedule_jobs(array[%s], priority => %s) puts it first; '
                           'or start more workers', job.id::text, (v_priority - 1)::text) end);
    end if;
end;
$$;

-- What the job waits for among the jobs that it depends on, or that its wait for a signal is open.
create or replace function _explain_pending(
    job live_jobs, now timestamptz, out reason text, out detail text, out remedy text) returns setof record
    language plpgsql stable set search_path from current
as $$
declare
    v_named constant integer := 10;
    v_most constant integer := 1000; -- looked at, of a large fan-in
begin
    if job.parked = 'signal' then
        return query
        select case when e.ended then 'promotion' else 'signal' end,
               case when e.ended then format('its wait for the signal %L has ended', e.name)
                    else format('waits for the signal %L%s', e.name,
                                coalesce(' until ' || e.until, ', without end')) end,
               _fix('select * from ~.send_signal(%s, %L) sends it; select * from ~.cancel_job(%1$s) gives it '
                    'up', job.id::text, e.name)
        from (select s.name, s.until, coalesce(s.until <= now, false)
                     or (_kept_signal(job.id, job.revision, s.name)).id is not null as ended
              from steps s
              where s.job_id = job.id and s.revision = job.revision and s.run = job.run and s.at is null) e;
        return;
    end if;
    return query
    with open as materialized (
        select o.*, (get_job(o.parent_id)).state
        from _open_edges(job.id, job.revision, coalesce(_open_from(job.id, job.revision), 0)) o
        order by o.parent_id limit v_most)
    (select case when e.ended then 'dependency unmet' else 'dependency' end,
            format('waits for the %s of job %s%s (%s)', e.condition, e.parent_id, ', ' || e.ref,
                   coalesce(e.state, 'cancelled')),
            case when not e.ended
                 then _fix('select * from ~.explain_job(%s) tells what that job waits for', e.parent_id::text)
                 when e.state is null
                 then _fix('select * from ~.cancel_job(%s) gives this one up: that job was deleted',
                           job.id::text)
                 else _fix('select * from ~.retry_job(%s) runs that job again', e.parent_id::text) end
     from open e order by not e.ended, e.parent_id limit v_named)
    union all
    select case when count(*) = 0 then 'promotion' else 'dependency' end,
           case when count(*) = 0 then 'all jobs that it waited for have ended'
                else format('waits for %s%s other jobs', case when count(*) = v_most then 'at least ' end,
                            count(*) - v_named) end,
           _fix('select * from ~.dependencies where job_id = %s names them', job.id::text)
    from open having count(*) = 0 or count(*) > v_named;
end;
$$;

-- Why a live job does not run, or since when it runs.
create or replace function _explain_live(
    job live_jobs, now timestamptz, out reason text, out detail text, out remedy text) returns setof record
    language plpgsql stable set search_path from current
as $$
declare
    v_waits boolean := job.run_at > now or job.parked is not distinct from 'unmet';
begin
    if job.parked in ('unmet', 'signal') then
        return query select r.* from _explain_pending(job, now) r;
    end if;
    return query
    select 'cancel requested', format('at %s; its worker has not ended it yet', job.cancel_requested_at),
           _fix('select * from ~.cancel_job(%s, force => true) ends it at once', job.id::text)
    where job.state = 'running' and job.cancel_requested_at is not null
    union all
    select 'running',
           format('since %s on worker %s%s, attempt %s of %s', job.claimed_at, job.worker_id,
                  case when not w.registered then ', which is dead'
                       when not w.live then format(', which has been silent since %s', w.beat_at) end,
                  job.attempts, job.max_attempts),
           case when not w.live then _fix('select * from ~.maintain() rescues it') end
    from (select coalesce(bool_or(_is_registered(r)), false) as registered,
                 coalesce(bool_or(_is_live(r, now)), false) as live, max(r.beat_at) as beat_at
          from workers r where r.id = job.worker_id) w
    where job.state = 'running'
    union all
    select 'put off', format('letting it in has failed; tried again at %s: %s', r.at, r.problem),
           'correct what the message says'
    from (select p.at, p.problem from promotion_requests p
          where p.problem is not null and p.at is not null and (
              p.lane = any (array_remove(
                  array['queue:' || job.queue_name, 'sequence:' || job.sequence_key], null))
              or p.lane in ('child', 'unmet', 'signal') and p.job_id = job.id)
          order by p.at limit 3) r
    where job.state <> 'running';
    if job.state = 'running' or job.parked = 'signal' then
        return; -- a job that waits for a signal has begun, so it does not expire
    end if;
    if job.parked in ('sequence', 'next') then
        for reason, detail, remedy in select r.* from _explain_sequence(job) r loop
            v_waits := v_waits or reason <> 'promotion';
            return next;
        end loop;
    end if;
    return query
    select case when job.state = 'retryable' then 'waits for its retry' else 'not due' end,
           format('not before %s%s', job.run_at, case when job.state = 'retryable' then
               format('; attempt %s of %s failed: %s', job.attempts, job.max_attempts,
                      _last_line(job.last_error)) end),
           _fix('select * from ~.retry_job(%s) lets it run now', job.id::text)
    where job.run_at > now
    union all
    select 'promotion', format('it has been due since %s', job.due_at), null
    where job.run_at <= now and job.due_at is not null and job.parked is distinct from 'queue';
    if job.queue_name is not null then
        return query select r.* from _explain_queue(job, now, v_waits) r;
        v_waits := found; -- a candidate need not be parked yet
    end if;
    return query
    select r.* from _explain_workers(job, now, v_waits) r
    union all
    select 'expiry', format('it is cancelled unless it has begun by %s', job.start_by),
           _fix('select * from ~.retry_job(%s) clears that', job.id::text)
    where job.start_by is not null;
end;
$$;

create or replace function explain_job(job_id bigint)
    returns table ("position" integer, reason text, detail text, remedy text)
    language plpgsql security definer set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_now constant timestamptz := clock();
    v_job live_jobs;
    v_past job;
begin
    select j.* into v_job from live_jobs j where j.id = explain_job.job_id;
    if not found or v_job.state = 'discarded' then
        v_past := get_job(job_id);
        if v_past.id is null then
            perform _refuse_unknown_job('explain_job', job_id);
        end if;
        return query values (1, v_past.state,
            case when v_past.state = 'discarded' then
                format('%s at %s, after %s of %s attempts%s', v_past.reason, v_past.finished_at,
                       v_past.attempts, v_past.max_attempts, ': ' || _last_line(v_past.last_error))
            else format('%s at %s%s', v_past.state, v_past.finished_at,
                        ': ' || nullif(v_past.reason, v_past.state)) end,
            _fix('select * from ~.retry_job(%s) runs it again', v_past.id::text)
                || case when v_past.state = 'discarded' and v_past.reason = 'lost'
                        then '; it may have been done: look first' else '' end);
        return;
    end if;
    return query
    with found as materialized (select e.* from _explain_live(v_job, v_now) e),
    -- The jobs that must start before it, or with it. A job whose end frees a full queue is no news.
    locked as materialized (
        select 'locked',
               case when l.job_id = v_job.id then l.words
                    else format('job %s goes first: %s', l.job_id, l.words) end,
               'claims pass over a locked job; it goes on when that transaction ends'
                   || coalesce(format(': select pg_terminate_backend(%s) ends it', l.pid), '')
        from _locked_jobs(array[v_job.id] || array(
            select c.id from live_jobs c
            where c.queue_name = v_job.queue_name and c.ready_at is not null and c.state = 'available'
              and v_job.parked = 'queue' order by c.priority, c.run_at, c.id limit 1000) || array(
            select s.id from live_jobs s
            where s.sequence_key = v_job.sequence_key and s.parked in ('next', 'sequence')
              and (s.parked, s.id) < (v_job.parked, v_job.id) order by s.parked, s.id limit 1) || array(
            select h.id from live_jobs h
            where h.sequence_key = v_job.sequence_key and h.sequence_head and h.state <> 'running')) l
        where v_job.state <> 'running' and not exists (select from found e where e.reason = 'queue full')
        order by l.job_id <> v_job.id, l.job_id limit 3)
    select row_number() over ()::integer, r.reason, r.detail,
           case when r.reason = 'promotion' then _fix('select * from ~.promote_jobs() lets it run')
                else r.remedy end
               || case when r.reason in ('promotion', 'running')
                            and exists (select from workers w where _is_live(w, v_now))
                       then '; any live worker does so, too, within a second' else '' end
    from (select l.* from locked l
          union all
          select e.* from found e
          where e.reason not in ('promotion', 'waits for a worker') or not exists (select from locked))
        r(reason, detail, remedy);
end;
$$;
comment on function explain_job(bigint) is
    'Why a job is not running: one row per reason, in the order in which they must be resolved, each with '
    'its remedy. Reasons: locked (a session has it locked, or a job that goes first), dependency (another '
    'job has not ended; at most 10 are named), dependency unmet (it ended in another way), signal, not due, '
    'waits for its retry, sequence, sequence halted, queue paused, queue full, rate: none starts before (a '
    'time), stands aside (no idle worker took such a job, so others of its queue go first for a while), put '
    'off (its promotion has failed), promotion (no worker has claimed since the job could proceed), no '
    'worker, no worker takes it, waits for a worker, expiry; for other jobs: running, cancel requested, '
    'completed, cancelled, discarded. Errors: PW004 if there is no such job.';
