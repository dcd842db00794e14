-- 16_unique: what makes a job unique. Two spellings of a policy, told apart by their members, one mechanism:
--   Open Job Spec  keys, args_keys, meta_keys, period (slides from the existing job's created_at), states, on_conflict
--   River          by_args, by_period (windows aligned in UTC), by_queue, by_state, exclude_kind, on_conflict
--
-- A job is a duplicate if another one has the same fingerprint, is in one of the states that the NEW policy names, and the NEW
-- policy's period has not passed since it was created. Looking is not enough, at no isolation level and under no mere lock: an add that
-- found no duplicate writes its key's row in unique_keys, then looks again. A second add of the same key waits there until the first
-- has ended (or gets 40001 under REPEATABLE READ and SERIALIZABLE) and then sees its job. A plain duplicate writes and locks nothing.

-- Policies are read at every add, so what reads them runs no queries: starting one costs more than all the rest.

-- The newest duplicate, one that has not ended before one that has; a row of nulls if there is none.
create or replace function _duplicate_of(uniqueness _uniqueness, now timestamptz) returns live_jobs
    language plpgsql stable set search_path from current set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_row live_jobs;
begin
    -- History has a partition for each day: it is opened only for those who ask for jobs that have ended, and where no other is the
    -- answer. Both looks have one snapshot, as the function is stable: a job on its way from live to finished is in one of the two places.
    select j.* into v_row from live_jobs j
    where j.unique_key = uniqueness.key and j.state = any (uniqueness.states)
      and _in_period(j.created_at, uniqueness.period, _duplicate_of.now)
    order by j.state = 'discarded', j.created_at desc, j.id desc limit 1;
    if (v_row.id is null or v_row.state = 'discarded') and uniqueness.states && array['completed', 'cancelled'] then
        select d.* into v_row
        from (select j.* from live_jobs j where j.unique_key = uniqueness.key
              union all
              select f.* from finished_jobs f where f.unique_key = uniqueness.key) d
        where d.state = any (uniqueness.states) and _in_period(d.created_at, uniqueness.period, _duplicate_of.now)
        order by d.state in ('completed', 'cancelled', 'discarded'), d.created_at desc, d.id desc limit 1;
    end if;
    return v_row;
end;
$$;

-- The key's row, written: the constraint that every add of this key goes through. Held to the end of the transaction.
create or replace function _hold_unique_key(key bytea) returns void
    language plpgsql set search_path from current
as $$
begin
    insert into unique_keys as k (unique_key) values (key) on conflict on constraint unique_keys_pkey do update set adds = k.adds + 1;
end;
$$;

create or replace function _add_unique(request _job_request, task tasks, uniqueness _uniqueness, label text) returns job
    language plpgsql set search_path from current
as $$
declare
    v_now timestamptz := clock();
    v_duplicate live_jobs;
begin
    insert into unique_keys (unique_key) values (uniqueness.key) on conflict do nothing;
    if not found then -- else the key is new, and held: no job has it
        v_duplicate := _duplicate_of(uniqueness, v_now);
        if v_duplicate.id is null or uniqueness.on_conflict in ('replace', 'replace_except_schedule') then
            perform _hold_unique_key(uniqueness.key);
            v_duplicate := _duplicate_of(uniqueness, v_now);
        end if;
    end if;
    return _resolve_conflict(v_duplicate, request, task, uniqueness, null, label);
end;
$$;

-- What an add comes to against its duplicate, if there is one. Unless it is ignored or rejected for it, the key is held.
create or replace function _resolve_conflict(
    duplicate live_jobs, request _job_request, task tasks, uniqueness _uniqueness, new_id bigint, label text) returns job
    language plpgsql set search_path from current
as $$
declare
    v_now timestamptz := clock();
    v_replaced live_jobs;
    v_all live_jobs[];
    v_row live_jobs;
begin
    if duplicate.id is null then
        null;
    elsif uniqueness.on_conflict = 'ignore' then
        return _job_of(duplicate, true);
    elsif uniqueness.on_conflict = 'reject' then
        raise exception '%: job % (%) has the same unique key', label, duplicate.id, duplicate.state
            using errcode = 'PW003', detail = json_build_object(
                'existing_job_id', duplicate.id, 'existing_job_state', duplicate.state,
                'unique_key', encode(uniqueness.key, 'hex'))::text;
    else
        -- Waits for whoever has such a job in hand; one that has ended meanwhile is left as it is.
        v_all := array(
            select j from live_jobs j
            where j.unique_key = uniqueness.key and j.state = any (uniqueness.states) and j.state <> 'discarded'
              and _in_period(j.created_at, uniqueness.period, v_now)
            order by j.id for update);
        foreach v_replaced in array v_all loop
            if uniqueness.on_conflict = 'replace_except_schedule' and v_replaced.state = 'scheduled' then
                request.run_at := v_replaced.run_at;
            end if;
            perform _finalize_jobs(array[v_replaced.id], null, 'cancelled', null, 'replaced');
            if v_replaced.state = 'running' then
                perform pg_notify(current_schema(), 'cancel');
            end if;
        end loop;
    end if;
    v_row := _insert_job(request, task, new_id, label, uniqueness.key, case when uniqueness.recheck then uniqueness.states end);
    return _job_of(v_row);
end;
$$;

-- A retryable job of such a River policy falls due: does another one hold the key? True if this one had to give way. The key's row makes
-- promoters and adds take turns; one that is being added just now is waited for at the next promotion, not here.
create or replace function _discard_if_key_taken(job live_jobs) returns boolean
    language plpgsql set search_path from current set enable_seqscan = off set jit = off
as $$
begin
    if not exists (
        select from live_jobs j where j.unique_key = job.unique_key and j.id <> job.id and j.state = any (job.unique_recheck)
        union all
        select from finished_jobs f where f.unique_key = job.unique_key and f.state = any (job.unique_recheck)) then
        return false;
    end if;
    update live_jobs j set meta = coalesce(j.meta, '{}') || '{"unique_key_conflict": "scheduler_discarded"}' where j.id = job.id;
    perform _discard(job, null, 'its unique key was taken while it waited for its retry');
    return true;
end;
$$;

-- Keys whose last job is gone need no row any more. Whoever holds one is about to need it: passed over. So are all of them in a
-- transaction whose snapshot is too old to judge: maintain() finds them later.
create or replace function _release_unique_keys(keys bytea[]) returns void
    language plpgsql set search_path from current set enable_seqscan = off set jit = off set lock_timeout = '200ms' -- see claim_jobs
as $$
declare
    v_free bytea[];
begin
    if coalesce(cardinality(keys), 0) = 0 or current_setting('transaction_isolation') <> 'read committed' then
        return;
    end if;
    v_free := array(
        select k.unique_key from unique_keys k where k.unique_key = any (keys) order by k.unique_key for update skip locked);
    -- Looked at again, now that nobody can add one: the statement above saw what was before it had the rows.
    delete from unique_keys k
    where k.unique_key = any (v_free)
      and not exists (select from live_jobs j where j.unique_key = k.unique_key)
      and not exists (select from finished_jobs f where f.unique_key = k.unique_key);
end;
$$;
