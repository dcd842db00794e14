-- 99_grants: nobody but the owner may touch a table. What others may do depends on four group roles, named after the schema
-- (pyworker_producer …). They are used if they exist: `pyworker migrate --roles` or psql's `-v roles=yes` creates them.
do $$
declare
    v_schema text := current_schema();
    v_producer constant text[] := '{add_job,add_jobs,remove_job,once,unique_opts,conformance,_json_of,clock,schema_version}';
    v_worker constant text[] := v_producer ||
        '{define_task,register_worker,describe_worker,hold_worker_lock,worker_died,sweep_workers,start_job,called_off,task_timeouts,worker_ttl,heartbeat,unregister_worker,claim_jobs,seconds_until_due,finish_jobs,finish_job,fail_jobs,snooze_job,release_jobs,
          force_unlock_workers,reconcile,promote_jobs,maintain,check_version,get_job}';
    v_admin constant text[] := v_worker ||
        '{job_errors,cancel_job,retry_job,retry_jobs,delete_job,complete_jobs,permanently_fail_jobs,reschedule_jobs,prune,configure,
          resume_sequence,set_queue,pause_queue,resume_queue,explain_job}';
    v_reader constant text[] := '{clock,schema_version}';
    v_views constant text := format('%1$I.jobs, %1$I.history, %1$I.queue_stats, %1$I.sequences, %1$I.live_workers', v_schema);
    v_kind record;
    v_function regprocedure;
begin
    execute format('revoke all on schema %I from public', v_schema);
    execute format('revoke all on all tables in schema %I from public', v_schema);
    execute format('revoke all on all sequences in schema %I from public', v_schema);
    execute format('revoke all on all routines in schema %I from public', v_schema);
    for v_kind in
        select k.role, k.functions, k.sees from (values
            (v_schema || '_producer', v_producer, false), (v_schema || '_worker', v_worker, false),
            (v_schema || '_reader', v_reader, true), (v_schema || '_admin', v_admin, true)) k(role, functions, sees)
        join pg_roles r on r.rolname = k.role
    loop
        execute format('grant usage on schema %I to %I', v_schema, v_kind.role);
        for v_function in
            select p.oid::regprocedure from pg_proc p join pg_namespace n on n.oid = p.pronamespace
            where n.nspname = v_schema and p.proname = any (v_kind.functions)
        loop
            execute format('grant execute on function %s to %I', v_function, v_kind.role);
        end loop;
        if v_kind.sees then
            execute format('grant select on %s to %I', v_views, v_kind.role);
        end if;
    end loop;
end;
$$;
