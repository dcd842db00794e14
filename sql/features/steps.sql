-- features/steps: steps that a job need not do again, and waits for signals.
--
-- A handler begins again after a crash, a failure or a snooze. What it has saved as a step it need not
-- do again: save_step stores the result for later runs, which read it by get_steps. Only the run that
-- holds the job may save, and no new run begins while a step is being saved: both lock the job's row.
--
-- wait_for_signal answers if the signal was sent. Else it ends the run: the job is `pending`, parked as
-- 'signal', and belongs to no worker. A later run asks again, and gets the answer.
--
-- A send does not lock the job, and a wait does not lock the signal. Each leaves a request (lane 'signal'
-- in features/edges), and a promotion after its commit looks at both. So the one that commits last
-- is seen.

-- Refuses names that are no names of steps or signals, and JSON that is too large or too deep.
create or replace function _refuse_named(caller text, name text, argument text, value jsonb) returns void
    language plpgsql stable set search_path from current
as $$
declare
    v_problem text := case
        when name is null or name = '' or length(name) > 512
            then format('name must be 1 to 512 characters long, got %L', left(name, 530))
        when value is not null then _json_refusal(argument, value::text) end;
begin
    if v_problem is not null then
        raise exception '%: %', caller, v_problem using errcode = 'PW001';
    end if;
end;
$$;

create or replace function save_step(job_id bigint, run bigint, name text, result jsonb default null)
    returns void
    language plpgsql security definer set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_now constant timestamptz := clock();
    v_job live_jobs;
begin
    perform _refuse_named('save_step', name, 'result', result);
    v_job := _hold_run('save_step', job_id, run);
    perform nextval('coordination_used') where not _coordination_is_used();
    perform _commit_durably();
    insert into steps (job_id, revision, name, run, at, is_wait, result)
    select v_job.id, v_job.revision, save_step.name, v_job.run, v_now, false, coalesce(result, 'null')
    where not exists (select from steps s where s.job_id = v_job.id and s.revision = v_job.revision
                                            and s.name = save_step.name);
    if not found then
        raise exception 'save_step: job % has a step named % already', job_id, quote_literal(name)
            using errcode = 'PW003', hint = 'Each step of a job needs a name of its own.';
    end if;
end;
$$;
comment on function save_step(bigint, bigint, text, jsonb) is
    'Saves the result of a step of a running job, so that later runs need not repeat it. Call it in the '
    'transaction of the step''s own writes: they are committed together or not at all. Its commit waits '
    'for the disk. name: 1 to 512 characters, once a job. result: at most max_payload_bytes (configure), '
    'no deeper than 100 levels. Steps are kept as long as the job; a keyed add that changes the job drops '
    'them. Errors: PW001; PW002 on a stale run; PW003 if the job has such a step (River Pro: resumable '
    'jobs; DBOS: steps).';

create or replace function get_steps(job_id bigint)
    returns table (name text, result jsonb, run bigint, at timestamptz)
    language plpgsql stable security definer set search_path from current
    set enable_seqscan = off set jit = off
as $$
begin
    return query
    select s.name, s.result, s.run, s.at from steps s
    where s.job_id = get_steps.job_id and s.at is not null and s.revision = coalesce(
        (select j.revision from live_jobs j where j.id = get_steps.job_id),
        (select f.revision from finished_jobs f where f.id = get_steps.job_id))
    order by s.at, s.name, s.nth;
end;
$$;
comment on function get_steps(bigint) is
    'The steps of a job that were saved and its waits that were answered, oldest first, live or in '
    'history. run: that saved it. Each wait for a signal is a row, also of one name.';

create or replace function wait_for_signal(
    job_id bigint, run bigint, name text, timeout interval default null, nth integer default 1) returns jsonb
    language plpgsql security definer set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_now timestamptz := clock();
    v_until timestamptz;
    v_job live_jobs;
    v_wait steps;
    v_signal signals;
    v_answer jsonb;
begin
    perform _refuse_named('wait_for_signal', name, null, null);
    if timeout not between interval '0' and interval '1000 years' then
        raise exception 'wait_for_signal: timeout must be from 0 to 1000 years, got %', timeout
            using errcode = 'PW001';
    elsif (nth >= 1) is not true then
        raise exception 'wait_for_signal: nth must be 1 or more, got %', coalesce(nth::text, 'NULL')
            using errcode = 'PW001';
    end if;
    v_job := _hold_run('wait_for_signal', job_id, run);
    if _must_not_rerun(v_job) then
        raise exception 'wait_for_signal: job % was started and must not be run twice', job_id
            using errcode = 'PW005', hint = 'Wait before start_job, or let another job wait: depends_on.';
    end if;
    perform nextval('coordination_used') where not _coordination_is_used();
    select s.* into v_wait from steps s
    where s.job_id = v_job.id and s.revision = v_job.revision and s.name = wait_for_signal.name
      and (s.nth = wait_for_signal.nth or not s.is_wait);
    if not v_wait.is_wait then
        raise exception 'wait_for_signal: % is a step of job %', quote_literal(name), job_id
            using errcode = 'PW003', hint = 'Steps and signals of a job need different names.';
    elsif v_wait.at is not null then
        return v_wait.result;
    end if;
    v_until := case when v_wait.name is null then v_now + timeout else v_wait.until end; -- of the first call
    v_signal := _kept_signal(v_job.id, v_job.revision, name);
    v_answer := coalesce(v_signal.payload, case when v_until <= v_now then 'null'::jsonb end);
    insert into steps as s (job_id, revision, name, nth, run, at, is_wait, until, result, signal_id)
    values (v_job.id, v_job.revision, wait_for_signal.name, wait_for_signal.nth, v_job.run,
            case when v_answer is not null then v_now end, true, v_until, v_answer, v_signal.id)
    on conflict on constraint steps_pkey
        do update set run = excluded.run, at = excluded.at, result = excluded.result,
                      signal_id = excluded.signal_id;
    if v_answer is null then
        perform _leave(array[row(
            v_job.id, 'pending', v_until, greatest(v_job.attempts - 1, 0), null, null, null, null)::_move]);
    end if;
    return v_answer;
end;
$$;
comment on function wait_for_signal(bigint, bigint, text, interval, integer) is
    'Returns the payload of a signal that was sent to this job (send_signal), JSON null if the timeout '
    'has passed. Otherwise it returns SQL NULL, and ends this run: the job is pending without a worker, a '
    'slot or an attempt, and every later word of this run is stale. When the signal arrives or the '
    'timeout ends, the job runs again from its beginning, and calls this again. Later runs get the same '
    'answer. timeout: from the first call on; null: no end. nth: 1 for the first wait for this name in the '
    'run, 2 for the second: each is a wait of its own, and each signal answers one. Errors: PW001; PW002 on '
    'a stale run; PW003 if '
    'the name is that of a step; PW005 if the job must not be run twice and was started (Temporal, DBOS, '
    'Absurd: signals and events).';

-- The first signal of a name that has answered no wait of the job yet.
create or replace function _kept_signal(job_id bigint, revision integer, name text) returns signals
    language plpgsql stable set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_signal signals;
begin
    select s.* into v_signal from signals s
    where s.job_id = _kept_signal.job_id and s.name = _kept_signal.name
      and not exists (select from steps w where w.job_id = s.job_id and w.revision = _kept_signal.revision
                                            and w.name = s.name and w.signal_id = s.id)
    order by s.job_id, s.name, s.id limit 1;
    return v_signal;
end;
$$;

create or replace function send_signal(job_id bigint, name text, payload jsonb default null) returns text
    language plpgsql security definer set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_now constant timestamptz := clock();
    v_job record;
    v_awaited text;
    v_became text := 'kept';
begin
    perform _refuse_named('send_signal', name, 'payload', payload);
    select j.state, j.revision into v_job from (
        select l.state, l.revision from live_jobs l where l.id = job_id
        union all
        select f.state, f.revision from finished_jobs f where f.id = job_id) j;
    if v_job.state is null then
        perform _refuse_unknown_job('send_signal', job_id);
    elsif v_job.state in ('completed', 'cancelled') then
        raise exception 'send_signal: job % is %', job_id, v_job.state
            using errcode = 'PW005', hint = 'Only a job that has not ended gets signals: retry_job first.';
    end if;
    perform nextval('coordination_used') where not _coordination_is_used();
    v_awaited := (
        select s.name from live_jobs j join steps s on s.job_id = j.id and s.revision = j.revision
        where j.id = send_signal.job_id and j.parked = 'signal' and s.run = j.run and s.at is null
          and (_kept_signal(s.job_id, s.revision, s.name)).id is null);
    -- Another session that is still open may have sent such a signal: then its own may come first.
    -- 500 keys: a transaction may send more signals than PostgreSQL has room for locks.
    if v_awaited = name and pg_try_advisory_xact_lock(hashtextextended(
            current_schema() || '/signal ' || abs(hashtextextended(job_id || ' ' || name, 0) % 500), 0)) then
        v_became := 'answered';
    end if;
    if (_kept_signal(job_id, v_job.revision, name)).id is not null then
        v_became := 'ignored';
    else
        insert into signals (job_id, name, payload, at)
        values (send_signal.job_id, send_signal.name, coalesce(send_signal.payload, 'null'), v_now);
        insert into promotion_requests (lane, job_id, later) values ('signal', send_signal.job_id, true);
        perform _notify_workers();
    end if;
    if v_awaited <> name then
        raise notice 'send_signal: job % waits for the signal %, and keeps % for a later wait', job_id,
            quote_literal(v_awaited), quote_literal(name)
            using hint = format('If you meant that one: send_signal(%s, %L).', job_id, v_awaited);
    end if;
    return v_became;
end;
$$;
comment on function send_signal(bigint, text, jsonb) is
    'Sends a signal to a job that waits for it, or will (wait_for_signal). Returns what became of it: '
    '''answered'', the wait of the job gets it; ''kept'' for a wait to come; ''ignored'', since one of that '
    'name is kept that has answered no wait yet. The signal belongs to the job: it is kept until the job is '
    'deleted. A signal that comes after a timeout answers the next wait for its name. If another session has '
    'sent one and is still open, this one is ''kept'': it answers the wait if that session rolls back, else '
    'the next one. A notice says if the job waits for a signal of another name '
    'now. It waits for no other session. name: 1 to 512 characters. '
    'Errors: PW001; PW004 if there is no such job; PW005 if the job is completed or cancelled.';

-- Places those of these jobs whose signal was sent. `opened`: how many became available to claims; `lanes`:
-- where others wait.
create or replace function _resume_waits(job_ids bigint[], out opened integer, out lanes text[])
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
    set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_now timestamptz := clock();
    v_answered bigint[];
begin
    v_answered := array(
        select j.id from unnest(job_ids) i(id)
        join live_jobs j on j.id = i.id and j.parked = 'signal'
        join steps w on w.job_id = j.id and w.revision = j.revision and w.run = j.run and w.at is null
        where (_kept_signal(w.job_id, w.revision, w.name)).id is not null);
    with free as materialized ( -- another session may be cancelling it, or only have it locked
        select j.ctid as tid, j.id, j.run_at, _must_wait(j.queue_name) as waits from live_jobs j
        where j.id = any (v_answered) and j.parked = 'signal' for update skip locked),
    placed as (
        update live_jobs j
        set state = f.state, parked = f.parked, due_at = f.due_at, updated_at = v_now,
            ready_at = case when f.ready_at is not null then v_now end
        from (select l.tid, p.* from free l
              cross join lateral _place(l.run_at, v_now, null, l.waits) p) f
        where j.ctid = f.tid
        returning j.ready_at, _lane_of(j.parked, j.queue_name, j.sequence_key) as lane),
    asked as (
        insert into promotion_requests (lane, job_id, at, later)
        select 'signal', a.id, v_now + interval '0.05 s', true from unnest(v_answered) a(id)
        where a.id not in (select f.id from free f))
    select count(p.ready_at), array_agg(distinct p.lane) filter (where p.lane is not null) into opened, lanes
    from placed p;
end;
$$;
