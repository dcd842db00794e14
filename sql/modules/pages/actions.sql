-- pages/actions: perform_action(), by which dashboards change jobs, queues, sequences and
-- schedules, and the view audit. Each action is recorded with its outcome in the transaction that
-- performs it.

create or replace function _perform_action(action text, target text) returns text
    language plpgsql set search_path from current
as $$
declare
    v_job job;
    v_row live_jobs;
begin
    case action
        when 'retry' then v_job := retry_job(target::bigint);
        when 'cancel', 'force_cancel' then
            v_row := _lock_job('cancel_job', target::bigint);
            if v_row.id is null or v_row.state = 'discarded' then
                raise exception 'it was already %', (get_job(target::bigint)).state using errcode = 'PW005';
            end if;
            v_job := cancel_job(target::bigint, action = 'force_cancel');
        when 'delete' then v_job := delete_job(target::bigint);
        when 'pause_queue' then perform pause_queue(target);
        when 'resume_queue' then perform resume_queue(target);
        when 'resume_sequence' then
            if not resume_sequence(target) then
                raise exception 'it was not halted' using errcode = 'PW005';
            end if;
        when 'run_schedule' then
            return (select coalesce('added job ' || string_agg(j.id::text, ', '), 'added no job')
                    from run_schedule(target) j);
        when 'pause_schedule' then perform pause_schedule(target);
        when 'resume_schedule' then perform resume_schedule(target);
    end case;
    return case when v_job.id is null then 'done' when action = 'delete' then 'was ' || v_job.state
                when action = 'cancel' and v_job.state = 'running' then 'running, and asked to stop'
                else v_job.state end;
end;
$$;

create or replace function perform_action(action text, targets text[], actor text)
    returns table (target text, ok boolean, outcome text)
    language plpgsql security definer set search_path from current
as $$
#variable_conflict use_column
declare
    v_now timestamptz := clock();
    v_actions constant text[] := '{retry,cancel,force_cancel,delete,pause_queue,resume_queue,resume_sequence,
                                   run_schedule,pause_schedule,resume_schedule}'::text[];
    v_order bigint[];
    v_jobs boolean := action in ('retry', 'cancel', 'force_cancel', 'delete');
    v_bad text := (select t.target from unnest(targets) t(target)
                   where t.target is null or (v_jobs and t.target !~ '^[0-9]{1,18}$') limit 1);
begin
    if action is null or action <> all (v_actions) then
        raise exception 'perform_action: action must be one of %, got %', array_to_string(v_actions, ', '),
            coalesce(quote_literal(action), 'NULL')
            using errcode = 'PW001';
    elsif coalesce(cardinality(targets), 0) not between 1 and 1000 then
        raise exception 'perform_action: targets must be 1 to 1000, got %', coalesce(cardinality(targets), 0)
            using errcode = 'PW001';
    elsif v_bad is not null or array_position(targets, null) is not null then
        raise exception 'perform_action: targets of % must be %, got %', action,
            case when v_jobs then 'ids of jobs' else 'names' end,
            coalesce(quote_literal(left(v_bad, 140)), 'NULL') using errcode = 'PW001';
    elsif coalesce(length(actor), 0) not between 1 and 200 then
        raise exception 'perform_action: actor must be 1 to 200 characters long, got %',
            coalesce(quote_literal(left(actor, 220)), 'NULL') using errcode = 'PW001';
    end if;
    if action = 'retry' then
        v_order := _lock_for_retry(targets::bigint[]);
    elsif action = 'resume_sequence' then -- lock all halts by job id, as retry_jobs does
        perform from sequence_halts h where h.sequence_key = any (targets) order by h.job_id for update;
    end if;
    for target in
        select t.target from (select distinct u.target from unnest(targets) u(target)) t
        order by array_position(v_order, case when v_jobs then t.target::bigint end),
                 case when v_jobs then t.target::bigint end, t.target
    loop
        begin
            outcome := _perform_action(action, target);
            ok := true;
        exception when sqlstate 'PW001' or sqlstate 'PW003' or sqlstate 'PW004' or sqlstate 'PW005' then
            outcome := sqlerrm;
            ok := false;
        end;
        insert into audit_log (at, actor, db_role, action, target, ok, outcome)
        values (v_now, perform_action.actor, session_user, perform_action.action, perform_action.target,
                perform_action.ok, perform_action.outcome);
        return next;
    end loop;
end;
$$;
comment on function perform_action(text, text[], text) is
    'Performs an action on each of up to 1,000 targets and records it in the view audit, in the '
    'same transaction. Actions on jobs (targets are ids): retry, cancel, force_cancel, delete. '
    'Actions on names: pause_queue, resume_queue, resume_sequence, run_schedule, pause_schedule, '
    'resume_schedule. Returns one row per target; if one is refused, or changes nothing since the job '
    'has ended or the sequence was not halted, ok is false and outcome is the reason, and the others '
    'are still performed. actor: the person who acts, as the caller '
    'names them. Errors: PW001.';

create or replace view audit as
select a.id, a.at, a.actor, a.db_role, a.action, a.target, a.ok, a.outcome from audit_log a;
comment on view audit is
    'The actions that were performed by perform_action(), for instance in `pyworker ui`: when, by '
    'whom (actor as the caller named them, db_role of the session), the action, its target and its '
    'outcome. Kept for 90 days.';
