-- 40_claim: available -> running, for one worker.
--
-- One ordered index scan over what is ready, in the total order priority, run_at, id; SKIP LOCKED, so that claims neither wait for each
-- other nor meet. The plan is pinned: a queue goes from empty to a million rows and back faster than statistics follow, and any
-- other plan than this walk is slow at one of the two ends. The CTE is materialized, as a plain sub-select may be run again
-- for each row and overshoot the limit.
create or replace function claim_jobs(
    worker_id bigint, max_jobs integer default 1, task_identifiers text[] default null, queue_names text[] default null,
    forbidden_flags text[] default null)
    returns table (
        id bigint, run integer, task_identifier text, payload json, attempts smallint, max_attempts smallint, priority smallint,
        run_at timestamptz, queue_name text, key text, flags jsonb, meta jsonb, delivery text, sequence_key text,
        created_at timestamptz, revision integer, crashes smallint)
    language plpgsql security definer set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set enable_hashjoin = off set enable_mergejoin = off
    set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_now timestamptz := clock();
    v_wanted integer := max_jobs;
    v_got integer;
    v_armed_ms bigint;
begin
    if max_jobs is null or max_jobs < 1 then
        raise exception 'claim_jobs: max_jobs must be at least 1, got %', coalesce(max_jobs::text, 'NULL') using errcode = 'PW001';
    end if;
    if not exists (select from workers w where w.id = claim_jobs.worker_id and w.dead_at is null) then
        raise exception 'claim_jobs: worker % is unknown or was declared dead', coalesce(worker_id::text, 'NULL')
            using errcode = 'PW004', hint = 'Call register_worker again; jobs of the old registration are handed on.';
    end if;
    loop
        perform promote_jobs();
        return query
            with ready as materialized (
                select j.ctid from live_jobs j
                where j.ready_at is not null and j.state = 'available'
                  and (claim_jobs.task_identifiers is null or j.task_identifier = any (claim_jobs.task_identifiers))
                  and (claim_jobs.queue_names is null or coalesce(j.queue_name, 'default') = any (claim_jobs.queue_names))
                  and (claim_jobs.forbidden_flags is null or j.flags is null or not j.flags ?| claim_jobs.forbidden_flags)
                order by j.priority, j.ready_at, j.id
                limit v_wanted for update skip locked)
            update live_jobs j
            set state = 'running', worker_id = claim_jobs.worker_id, run = j.run + 1, claimed_at = v_now,
                attempts = least(j.attempts + 1, 32767) -- one worn out job must not break everybody's claims
            from ready where j.ctid = ready.ctid
            returning j.id, j.run, j.task_identifier, j.payload, j.attempts, j.max_attempts, j.priority, j.run_at, j.queue_name,
                      j.job_key, j.flags, j.meta, j.delivery, j.sequence_key, j.created_at, j.revision,
                      coalesce(j.crashes, 0::smallint);
        get diagnostics v_got = row_count;
        v_wanted := v_wanted - v_got;
        exit when v_wanted = 0;
        -- This worker will wait, so from now on adds have to notify. An add that looked just before this mark was set is
        -- found by looking once more.
        v_armed_ms := (extract(epoch from clock_timestamp()) * 1000)::bigint;
        exit when (select a.last_value from armed_until a) > v_armed_ms + 2500;
        perform setval('armed_until', v_armed_ms + 5000);
    end loop;
end;
$$;
comment on function claim_jobs(bigint, integer, text[], text[], text[]) is
    'Claims up to max_jobs available jobs for a worker and returns them in the order they are to run: by priority, run_at, id. Each comes '
    'with its run, the fencing token that every later word about it must carry. task_identifiers, queue_names: only these; null means '
    'all, an empty array none; ''default'' stands for jobs without a queue. forbidden_flags: not jobs with any of these flags '
    '(Graphile Worker). A job with delivery at_most_once is only reserved: call start_job before its handler. One with crashes above 0 '
    'may have ended its process before: run it alone. A claim that returns fewer than max_jobs has arranged for a NOTIFY on the channel named like the schema '
    'for at least 2.5 seconds: LISTEN there, and claim again by then. Errors: PW004 when the worker is unknown or was declared '
    'dead; PW001.';

create or replace function seconds_until_due() returns double precision
    language plpgsql security definer set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
as $$
begin
    return (select greatest(extract(epoch from j.due_at - clock()), 0)
            from live_jobs j where j.due_at is not null order by j.due_at, j.id limit 1);
end;
$$;
comment on function seconds_until_due() is
    'Seconds until the next scheduled or retryable job falls due (0 if one is overdue), null if there is none: a worker that found '
    'nothing need not sleep longer than that.';
