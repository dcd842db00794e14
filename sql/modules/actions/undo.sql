-- actions/undo: undo_actions(), which takes back what perform_action() did, as far as that can be taken back.

-- Why undo_actions cannot take an action back; null if it tries to. Rows of 0.1.0 have no `before` of a
-- completed job, and do not tell of halts.
create or replace function _undo_problem(done audit_log) returns text
    language sql immutable
    return case
        when (done).action in ('cancel', 'force_cancel') and (done).outcome <> 'cancelled' then
            'a running job that was asked to stop cannot be told to go on'
        when (done).action = 'retry' and (done).before is null then
            'it had completed, and was retried by an earlier version of pyworker'
        when (done).action = 'retry' and (done).before ->> 'parked' = 'signal' then
            'it does not wait for its signal any more'
        when (done).action = 'retry' and (
                (done).before ? 'skips_halts'
                or (done).before ->> 'state' = 'pending' and not (done).before ? 'has_result') then
            'its sequence goes on with it'
        when (done).action = 'delete' then 'a deleted job does not come back'
        when (done).action = 'set_queue' then 'limits are not taken back: set them again'
        when (done).action = 'resume_sequence' then 'a sequence that was resumed is not halted again'
        when (done).action = 'run_schedule' then 'a schedule that was fired has added its jobs: cancel them'
        when (done).action in ('restore', 'undo_retry') then 'an undo is not taken back'
    end;

-- Takes back that a waiting job was cancelled: it waits again, for the time it had, with its limits.
create or replace function _restore(target bigint) returns job
    language plpgsql set search_path from current
as $$
declare
    v_before job := get_job(target);
    v_start_by timestamptz := (select f.start_by from finished_jobs f where f.id = target);
    v_job job;
begin
    if v_before.state <> 'cancelled' then
        raise exception 'it is % now', v_before.state using errcode = 'PW005';
    elsif v_start_by <= clock() then
        raise exception 'its expires_at is over' using errcode = 'PW005';
    end if;
    v_job := retry_job(target);
    if v_before.run_at > clock() then
        v_job := reschedule_jobs(array[target], run_at => v_before.run_at);
    end if;
    update live_jobs j set start_by = v_start_by where j.id = target and v_start_by is not null;
    return v_job;
end;
$$;

-- What a retry takes from a job, for _undo_retry. The result of a completed job stays with the job.
create or replace function _before_retry(target bigint) returns jsonb
    language plpgsql stable set search_path from current set enable_seqscan = off set jit = off
as $$
begin
    return (
        select jsonb_build_object(
            'state', j.state, 'parked', j.parked, 'run', j.run, 'revision', j.revision, 'run_at', j.run_at,
            'start_by', j.start_by, 'max_attempts', j.max_attempts, 'crashes', j.crashes,
            'worker_id', j.worker_id, 'claimed_at', j.claimed_at, 'started_at', j.started_at,
            'cancel_requested_at', j.cancel_requested_at,
            'superseded', j.superseded, 'reason', j.reason, 'finished_at', j.finished_at,
            'expires_at', j.expires_at, 'has_result', j.result is not null, 'halted', exists (
                select from sequence_halts h
                where h.sequence_key = j.sequence_key and h.job_id = j.id))
        from (select l.* from live_jobs l where l.id = target
              union all
              select f.* from finished_jobs f where f.id = target) j);
end;
$$;

-- True for a pending job with which its sequence goes on: a retry has taken the halts before it away.
create or replace function _skips_halts(before jsonb, target text) returns boolean
    language plpgsql stable set search_path from current set enable_seqscan = off set jit = off
as $$
begin
    if before ->> 'state' = 'pending' then
        return exists (select from live_jobs j where j.id = target::bigint and j.parked = 'next');
    end if;
    return false;
end;
$$;

-- Ends a job that was retried as it had ended before. The caller has locked it.
create or replace function _end_again(job live_jobs, was live_jobs, halted boolean) returns void
    language plpgsql set search_path from current set enable_seqscan = off set jit = off
as $$
begin
    if was.state = 'discarded' then
        perform _discard(job, null, was.reason);
        update live_jobs j
        set run_at = was.run_at, max_attempts = was.max_attempts, crashes = was.crashes,
            started_at = was.started_at, finished_at = was.finished_at, expires_at = was.expires_at
        where j.id = job.id;
    else
        perform _finalize_jobs(array[job.id], null, was.state, array[job.result], was.reason);
        update finished_jobs f
        set run_at = was.run_at, max_attempts = was.max_attempts, crashes = was.crashes,
            worker_id = was.worker_id, claimed_at = was.claimed_at,
            started_at = was.started_at, finished_at = was.finished_at, expires_at = was.expires_at,
            start_by = was.start_by, cancel_requested_at = was.cancel_requested_at,
            superseded = was.superseded
        where f.id = job.id;
    end if;
    if not found then
        raise exception 'jobs that end are not kept any more' using errcode = 'PW005';
    elsif job.sequence_key is not null and not halted then -- an operator had resumed it before the retry
        perform _unhalt_sequence(job.sequence_key, job.id);
    end if;
end;
$$;

-- Raises PW005 if the retry of a job cannot be taken back. was: as it was before.
create or replace function _refuse_undo(job live_jobs, was live_jobs, has_result boolean) returns void
    language plpgsql stable set search_path from current set enable_seqscan = off set jit = off
as $$
begin
    if job.id is null or job.state in ('running', 'discarded') then
        raise exception 'it is % now', coalesce(job.state, (get_job(was.id)).state) using errcode = 'PW005';
    elsif job.run <> was.run or job.revision <> was.revision then
        raise exception 'it has % since', case when job.run <> was.run then 'run' else 'changed' end
            using errcode = 'PW005';
    elsif was.state not in ('completed', 'cancelled', 'discarded') and was.start_by <= clock() then
        raise exception 'its expires_at is over' using errcode = 'PW005';
    elsif was.state = 'completed' and has_result and job.result is null then
        raise exception 'it has ended since' using errcode = 'PW005'; -- and lost its result
    end if;
end;
$$;

-- Takes back a retry, by its row in the audit, if the job has not changed since: an ended job ends as it
-- had ended, a waiting job waits for the time it had.
create or replace function _undo_retry(target bigint, audit_id bigint) returns job
    language plpgsql set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_retry audit_log;
    v_was live_jobs;
    v_row live_jobs := _lock_job('undo_actions', target);
begin
    select a.* into v_retry from audit_log a
    where a.id = audit_id and a.target = _undo_retry.target::text and a.action = 'retry' and a.ok;
    if v_retry.before is null or _undo_problem(v_retry) is not null then
        raise exception '%', coalesce(_undo_problem(v_retry), 'it was not retried') using errcode = 'PW005';
    end if;
    v_was := jsonb_populate_record(null::live_jobs, v_retry.before || jsonb_build_object('id', target));
    perform _refuse_undo(v_row, v_was, (v_retry.before ->> 'has_result')::boolean);
    if v_was.state in ('completed', 'cancelled', 'discarded') then
        perform _end_again(v_row, v_was, (v_retry.before ->> 'halted')::boolean);
    else
        perform reschedule_jobs(array[target], run_at => v_was.run_at);
        update live_jobs j set start_by = v_was.start_by, crashes = v_was.crashes where j.id = target;
    end if;
    return get_job(target);
end;
$$;

-- The action of perform_action() that takes this one back. 'undo' if there is none.
create or replace function _undoing(action text) returns text
    language sql immutable
    return case action when 'cancel' then 'restore' when 'force_cancel' then 'restore'
        when 'retry' then 'undo_retry' when 'pause_queue' then 'resume_queue'
        when 'resume_queue' then 'pause_queue' when 'pause_schedule' then 'resume_schedule'
        when 'resume_schedule' then 'pause_schedule' else 'undo' end;

create or replace function undo_actions(
    first_audit bigint, last_audit bigint, actor text, max_actions integer default 500,
    out done bigint, out refused bigint, out outcomes jsonb, out next_audit bigint)
    language plpgsql security definer set search_path from current
as $$
#variable_conflict use_column
declare
    v_done audit_log[];
    v_batch record;
    v_rows jsonb := jsonb '[]';
begin
    if coalesce(max_actions, 0) not between 1 and 1000 then
        raise exception 'undo_actions: max_actions must be from 1 to 1000, got %',
            coalesce(max_actions::text, 'NULL') using errcode = 'PW001';
    end if;
    perform _check_action('retry', '{1}', actor, '{}');
    v_done := array(
        select a from audit_log a
        where a.id between first_audit and last_audit and a.actor = undo_actions.actor and a.ok
          and a.action not in ('restore', 'undo_retry')
        order by a.id limit max_actions);
    for v_batch in
        select _undoing(d.action) as action, array_agg(distinct d.target) as targets,
               jsonb_object_agg(d.target, d.id order by d.id) as audits
        from unnest(v_done) d where _undo_problem(d) is null
        group by 1 order by 1
    loop
        select v_rows || jsonb_agg(to_jsonb(r)) into v_rows
        from perform_action(
            v_batch.action, v_batch.targets, actor,
            case v_batch.action when 'undo_retry' then v_batch.audits else '{}' end) r;
    end loop;
    with refused as (
        insert into audit_log (at, actor, db_role, action, target, ok, outcome)
        select clock(), undo_actions.actor, session_user, _undoing(d.action), d.target, false,
               _undo_problem(d)
        from unnest(v_done) d where _undo_problem(d) is not null order by d.id
        returning audit_log.target, audit_log.ok, audit_log.outcome)
    select v_rows || coalesce(jsonb_agg(to_jsonb(r)), '[]') into v_rows from refused r;
    next_audit := case when cardinality(v_done) = max_actions then v_done[max_actions].id + 1 end;
    select t.* into done, refused, outcomes from _told(v_rows) t;
end;
$$;
comment on function undo_actions(bigint, bigint, text, integer) is
    'Takes back the actions of this actor from first_audit to last_audit in the view audit, up to '
    'max_actions at once, as far as they can be taken back: a job that was cancelled while it waited '
    'waits again; a job that was retried ends as it had ended, with its result, or waits for the time it '
    'had, until a run of it has started; what was paused is resumed, and what was resumed is paused. '
    'What cannot be taken back is refused and left as it is: a job that has run or changed since, or is '
    'gone; a job that was deleted or asked to stop, or with which its sequence goes on; limits. Each is '
    'recorded in the view audit. done, refused: how many; outcomes: what came of them, with the reasons, as '
    'in perform_on_listed(). next_audit: call again with it as first_audit, until it is null. Errors: '
    'PW001.';
