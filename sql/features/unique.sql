-- features/unique: finds duplicates, resolves the conflict with them, and keeps the rows of
-- unique_keys. Both kinds of policies (features/unique_policy) share this mechanism.
--
-- An existing job makes a new one a duplicate if it has the same unique key, is in one of the
-- states that the NEW policy names, and was created within the NEW policy's period.
--
-- A lookup cannot guarantee uniqueness at any isolation level, with or without row locks. So an add
-- that finds no duplicate writes its key's row in unique_keys, then looks again. A second add of
-- the same key blocks on that row until the first transaction ends, then sees its job; under
-- REPEATABLE READ and SERIALIZABLE it gets 40001 instead. An add that is ignored or rejected for a
-- duplicate writes and locks nothing.

-- The duplicate that counts: a job that has not ended before one that has, then the newest. A row
-- of nulls if there is none.
create or replace function _duplicate_of(uniqueness _uniqueness, now timestamptz) returns live_jobs
    language plpgsql stable set search_path from current set enable_seqscan = off set jit = off
    set plan_cache_mode = force_generic_plan
as $$
declare
    v_row live_jobs;
begin
    -- History has a partition for each day, so it is read only if the policy names a state of ended
    -- jobs and no live job is the answer. The function is stable, so both queries have one
    -- snapshot: they cannot miss a job that is moving to history.
    select j.* into v_row from live_jobs j
    where j.unique_key = uniqueness.key and j.state = any (uniqueness.states)
      and _in_period(j.created_at, uniqueness.period, _duplicate_of.now)
    order by j.state = 'discarded', j.created_at desc, j.id desc limit 1;
    if (v_row.id is null or v_row.state = 'discarded')
       and uniqueness.states && array['completed', 'cancelled'] then
        select d.* into v_row
        from (select j.* from live_jobs j where j.unique_key = uniqueness.key
              union all
              select f.* from finished_jobs f where f.unique_key = uniqueness.key) d
        where d.state = any (uniqueness.states)
          and _in_period(d.created_at, uniqueness.period, _duplicate_of.now)
        order by d.state in ('completed', 'cancelled', 'discarded'), d.created_at desc, d.id desc limit 1;
    end if;
    return v_row;
end;
$$;

-- Writes the rows of these keys, in the order of the keys. Every add of a key goes through its
-- unique constraint, and this transaction holds the rows' locks until it ends.
create or replace function _hold_unique_keys(keys bytea[]) returns void
    language plpgsql set search_path from current
as $$
begin
    insert into unique_keys as k (unique_key)
    select distinct h.key from unnest(keys) h(key) where h.key is not null order by h.key
    on conflict on constraint unique_keys_pkey do update set adds = k.adds % 2147483647 + 1;
end;
$$;

-- Adds a job, or does what its policy says if it has a duplicate. The caller has locked the key's
-- row, unless the job will be ignored or rejected.
create or replace function _resolve_conflict(
    duplicate live_jobs, request _job_request, task tasks, uniqueness _uniqueness, new_id bigint, label text)
    returns job
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
        -- Waits for sessions that have such a job locked. A job that ends meanwhile stays as it is.
        v_all := array(
            select j from live_jobs j
            where j.unique_key = uniqueness.key and j.state = any (uniqueness.states)
              and j.state <> 'discarded'
              and _in_period(j.created_at, uniqueness.period, v_now)
            order by j.id for update);
        foreach v_replaced in array v_all loop
            if uniqueness.on_conflict = 'replace_except_schedule' and v_replaced.state = 'scheduled' then
                request.run_at := v_replaced.run_at;
            end if;
            perform _finalize_jobs(array[v_replaced.id], null, 'cancelled', null, 'replaced');
            if v_replaced.state = 'running' then
                perform _notify('cancel');
            end if;
        end loop;
    end if;
    v_row := _insert_job(request, task, new_id, label, uniqueness.key,
        case when uniqueness.recheck then uniqueness.states end);
    return _job_of(v_row);
end;
$$;

-- Deletes the rows of keys that no job has any more. It skips a row that another session has
-- locked, since that session is about to use it. Under REPEATABLE READ and SERIALIZABLE, whose
-- snapshot may be too old to judge, it skips all; maintain() finds them later.
create or replace function _release_unique_keys(keys bytea[]) returns void
    language plpgsql set search_path from current set enable_seqscan = off set jit = off
    set lock_timeout = '200ms' -- see claim_jobs
as $$
declare
    v_free bytea[];
begin
    if coalesce(cardinality(keys), 0) = 0 or current_setting('transaction_isolation') <> 'read committed' then
        return;
    end if;
    begin
        v_free := array(
            select k.unique_key from unique_keys k
            where k.unique_key = any (keys) order by k.unique_key for update skip locked);
    exception when lock_not_available or deadlock_detected then
        return; -- it waited despite SKIP LOCKED
    end;
    -- A new statement, whose snapshot follows the locks: now no other session can add a job with
    -- such a key. The statement above may have missed one that was added before it had the locks.
    delete from unique_keys k
    where k.unique_key = any (v_free) -- limit: a look-up for each key, never a join
      and (select true from live_jobs j where j.unique_key = k.unique_key limit 1) is null
      and (select true from finished_jobs f where f.unique_key = k.unique_key limit 1) is null;
end;
$$;
