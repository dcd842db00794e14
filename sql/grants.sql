-- grants: the privileges of four group roles, named after the schema (pyworker_producer,
-- pyworker_worker, pyworker_reader, pyworker_admin). Only the owner of the schema may use its
-- tables.
--
-- A role gets its privileges if it exists. `pyworker migrate --roles` or psql's `-v roles=yes`
-- creates the roles.

-- What each role may call and read. name/n: only the function of that name with n arguments.
create or replace function _granted() returns table (role text, functions text[], views text[])
    language plpgsql stable set search_path from current
as $$
declare
    v_producer constant text[] := '{
        add_job, add_jobs, add_batch, extend_batch, remove_job, once/1, unique_opts, conformance, _json_of,
        send_signal, await_job, clock, schema_version}'::text[];
    v_worker constant text[] := v_producer || '{
        once, define_task, register_worker, update_worker, hold_worker_lock, report_crash,
        sweep_workers, open_worker, read_reports, work, beat, close_worker, start_job, worker_ttl, heartbeat,
        unregister_worker, claim_jobs, seconds_until_due, finish_jobs, finish_job,
        was_finished, fail_jobs, snooze_job, snooze_jobs, release_jobs, force_unlock_workers, reconcile,
        save_step, get_steps, wait_for_signal, set_progress, log_job, log_jobs,
        promote_jobs, maintain, check_version, get_job, dependency_results, run_schedules, seconds_until_tick,
        parse_crontab, declare_schedules, next_runs, describe_cron, worker_health, list_tasks,
        list_workers}'::text[];
    v_admin constant text[] := v_worker || '{
        job_signals, cancel_job, retry_job, retry_jobs, delete_job,
        complete_jobs, permanently_fail_jobs, reschedule_jobs, prune, configure, resume_sequence, set_queue,
        pause_queue, resume_queue, add_schedule,
        remove_schedule, pause_schedule, resume_schedule, run_schedule, _add_schedule,
        _lend_query_schema, _query_function, perform_action, perform_on_listed,
        action_outcomes}'::text[];
    v_reader constant text[] := '{
        clock, schema_version, next_runs, describe_cron, worker_health, metrics, overview,
        count_jobs, throughput, activity, problems, list_jobs, count_listed_jobs, list_queues,
        list_sequences, list_tasks, list_workers, waiting_queues, action_sql, _limits_of, check_version,
        show_job, job_marks, job_errors, job_log, job_graph, job_actions, explain_job, doctor}'::text[];
    v_views constant text[] := '{
        jobs, history, queue_stats, sequences, dependencies, live_workers, schedules, audit}'::text[];
begin
    return query
    select current_schema() || k.suffix, k.functions, k.views from (values
        ('_producer', v_producer, array[]::text[]), ('_worker', v_worker, '{}'),
        ('_reader', v_reader, v_views), ('_admin', v_admin || v_reader, v_views)) k(suffix, functions, views);
end;
$$;

-- Gives each of the roles that exist these rights, and no others.
create or replace function _grant_rights() returns void
    language plpgsql set search_path from current
as $$
declare
    v_schema constant text := current_schema();
    v_view text;
    v_kind record;
    v_function regprocedure;
begin
    execute format('revoke all on schema %I from public', v_schema);
    execute format('revoke all on all tables in schema %I from public', v_schema);
    execute format('revoke all on all sequences in schema %I from public', v_schema);
    execute format('revoke all on all routines in schema %I from public', v_schema);
    for v_kind in
        select g.role, g.functions, g.views from _granted() g join pg_roles r on r.rolname = g.role
    loop
        execute format('revoke all on all routines in schema %I from %I', v_schema, v_kind.role);
        execute format('revoke all on all tables in schema %I from %I', v_schema, v_kind.role);
        execute format('revoke all on all sequences in schema %I from %I', v_schema, v_kind.role);
        execute format('grant usage on schema %I to %I', v_schema, v_kind.role);
        for v_function in
            select p.oid::regprocedure from pg_proc p join pg_namespace n on n.oid = p.pronamespace
            where n.nspname = v_schema
              and (p.proname = any (v_kind.functions)
                   or concat(p.proname, '/', p.pronargs) = any (v_kind.functions))
        loop
            execute format('grant execute on function %s to %I', v_function, v_kind.role);
        end loop;
        foreach v_view in array v_kind.views loop
            execute format('grant select on %I to %I', v_view, v_kind.role);
        end loop;
    end loop;
end;
$$;

do $$
begin
    perform _grant_rights();
end;
$$;
