-- features/batches: many jobs, and a callback that runs when all of them have ended. A batch is
-- nothing but the callback's dependencies.

create or replace function add_batch(jobs jsonb, callback jsonb, "on" text default 'end') returns setof job
    language plpgsql security definer set search_path from current
as $$
begin
    if jsonb_typeof(jobs) is distinct from 'array' then
        raise exception 'add_batch: jobs must be a JSON array of objects, got %',
            coalesce(jsonb_typeof(jobs), 'NULL') using errcode = 'PW001';
    elsif jsonb_typeof(callback) is distinct from 'object' then
        raise exception 'add_batch: callback must be a JSON object, got %',
            coalesce(jsonb_typeof(callback), 'NULL') using errcode = 'PW001';
    elsif "on" is null or "on" <> all ('{success,end,failure}') then
        raise exception 'add_batch: "on" must be success, end or failure, got %',
            coalesce(quote_literal("on"), 'NULL') using errcode = 'PW001';
    elsif _depends(callback -> 'depends_on') then
        raise exception 'add_batch: callback must not have depends_on: it depends on all jobs of the batch'
            using errcode = 'PW001';
    end if;
    if jobs = '[]' then
        return query select * from add_jobs(jsonb_build_array(callback));
    else
        callback := callback || '{"depends_on": [0]}'; -- a mark
        return query select * from _add_jobs(_requests_of(jobs || jsonb_build_array(callback)), "on");
    end if;
end;
$$;
comment on function add_batch(jsonb, jsonb, text) is
    'Adds jobs, and a callback that runs when all of them have ended. Returns the jobs in their order, '
    'and last the callback. jobs, callback: as in add_jobs. "on": end (default: however they ended), '
    'success (all were completed) or failure (all were cancelled or discarded). The callback reads '
    'their results by dependency_results (job.inputs in Python). A batch without jobs calls back at once. '
    'extend_batch adds more. Errors: PW001 names the position, the member and its value.';

create or replace function extend_batch(callback_id bigint, jobs jsonb) returns setof job
    language plpgsql security definer set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_callback live_jobs;
    v_like edges;
    v_jobs job[];
begin
    if jsonb_typeof(jobs) is distinct from 'array' then
        raise exception 'extend_batch: jobs must be a JSON array of objects, got %',
            coalesce(jsonb_typeof(jobs), 'NULL') using errcode = 'PW001';
    end if;
    -- The promotion of the callback passes over a locked row: it waits for this commit, and no end does.
    select j.* into v_callback from live_jobs j where j.id = callback_id for share;
    if v_callback.parked is distinct from 'unmet' then
        if (get_job(callback_id)).id is null then
            perform _refuse_unknown_job('extend_batch', callback_id);
        end if;
        raise exception 'extend_batch: job % waits for no other job: it is %', callback_id,
            (get_job(callback_id)).state
            using errcode = 'PW005',
                  hint = 'Extend the last job that add_batch returned, before the other jobs have ended, or '
                         'from one of them.';
    end if;
    v_jobs := array(select j from add_jobs(jobs) j);
    if not exists (select from live_jobs j where j.id = callback_id and j.revision = v_callback.revision) then
        raise exception 'extend_batch: jobs must not replace job %, which is to wait for them', callback_id
            using errcode = 'PW001';
    end if;
    select e.* into v_like from edges e
    where e.child_id = callback_id and e.revision = v_callback.revision
    order by e.parent_id desc limit 1;
    perform _write_edges(
        array(
            select row(callback_id, v_callback.revision, j.id, s.value ->> 'ref', v_like.condition,
                       v_like.cancels, null, null)::edges
            from unnest(v_jobs) with ordinality j
            join jsonb_array_elements(jobs) with ordinality s(value, n) on s.n = j.ordinality),
        array(select j.id from unnest(v_jobs) j where not j.deduplicated));
    perform _refuse_circles(array[callback_id]);
    return query select j.* from unnest(v_jobs) j;
end;
$$;
comment on function extend_batch(bigint, jsonb) is
    'Adds jobs to a batch, whose callback then waits for them as well; returns them. A job of the batch '
    'may call it while it runs. The callback waits until this transaction has committed, even if the '
    'other jobs end before. Errors: PW004 if there is no such job; PW005 if the callback waits for no '
    'other job any more; PW001 as add_jobs, or if a job would depend on the callback or replace it.';
