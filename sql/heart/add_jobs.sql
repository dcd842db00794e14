-- heart/add_jobs: add_jobs adds many jobs at once, for specs given as job_spec[], jsonb or text.
--
-- Each spec has the effect of an add_job call: features/unique, heart/add and features/add_keyed decide
-- that. This file decides what concerns a whole call: the order of locks, the order of ids, and that one
-- invalid spec refuses the whole call.

create or replace function add_jobs(specs job_spec[], job_key_preserve_run_at boolean default false)
    returns setof job
    language plpgsql security definer set search_path from current
as $$
begin
    return query select * from _add_jobs(array(
        -- The members of a job_spec are the first ones of a request.
        select row(s.*, case when job_key_preserve_run_at then 'preserve_run_at' end,
                   null, null, null, null, null, null, null, null)::_job_request
        from unnest(specs) s));
end;
$$;
comment on function add_jobs(job_spec[], boolean) is
    'Adds many jobs in one statement (Graphile Worker''s signature). Returns the jobs in the order '
    'of specs. Specs with the same job_key have the effect of consecutive add_job calls. The call '
    'locks existing rows by id, and keys in sorted order, so that concurrent batches do not '
    'deadlock. An invalid spec refuses the whole call. Errors: PW001 names the position.';

create or replace function add_jobs(specs jsonb) returns setof job
    language plpgsql security definer set search_path from current
as $$
begin
    return query select * from _add_jobs(_requests_of(specs));
end;
$$;
comment on function add_jobs(jsonb) is
    'Adds many jobs from a JSON array of objects, whose members are named like the arguments of '
    'add_job. Everything else is as in add_jobs for job_spec[]. Errors: PW001 names the position, '
    'the member and its value.';

create or replace function add_jobs(specs text) returns setof job
    language plpgsql security definer set search_path from current
as $$
declare
    v_specs jsonb;
begin
    begin
        v_specs := _json_of(specs, 'add_jobs: specs')::jsonb;
    -- jsonb cannot hold all JSON: no NUL, no half of a surrogate pair, no number beyond numeric.
    exception when data_exception then
        raise exception 'add_jobs: specs must be JSON that jsonb can hold: % (add_job takes any payload)',
            sqlerrm using errcode = 'PW001';
    end;
    return query select * from add_jobs(v_specs);
end;
$$;
comment on function add_jobs(text) is
    'add_jobs for a JSON array given as text. PostgreSQL resolves a plain literal to this one.';

-- Adds the jobs of one call, in the order of specs, with the edges between them. `batch_on`: the last one
-- depends on all others (add_batch, which has marked it so that it is added as a job that waits).
create or replace function _add_jobs(requests _job_request[], batch_on text default null) returns setof job
    language plpgsql set search_path from current
    set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_last constant integer := cardinality(requests);
    v_named boolean; -- some name others
    v_keyed boolean; -- some have a job key or a unique key
    v_jobs job[];
    v_ids bigint[];
    v_revisions integer[];
    v_unchanged boolean[];
begin
    select coalesce(bool_or(r.ref is not null or _depends(r.depends_on)
                                                 and (batch_on is null or r.ordinality < v_last)), false),
           coalesce(bool_or(r.job_key is not null or coalesce(r.unique_policy, t.unique_policy) is not null),
                    false)
    into v_named, v_keyed
    from unnest(requests) with ordinality r left join tasks t on t.identifier = r.identifier;
    if not v_named and batch_on is null then
        return query select * from _add_all(requests, v_keyed);
    elsif v_named or v_keyed then
        -- Also what this call replaces tells its children.
        perform nextval('coordination_used') where not _coordination_is_used();
        select array_agg(j), array_agg(j.id), array_agg(j.revision), array_agg(j.deduplicated)
        into v_jobs, v_ids, v_revisions, v_unchanged from _add_all(requests, v_keyed) j;
        perform _add_edges(requests, v_ids, v_revisions, v_unchanged, 'add_jobs: specs[%s]', batch_on);
        return query select * from unnest(v_jobs);
    else
        v_ids := array(select nextval('job_ids') from generate_series(1, v_last));
        return query select * from _add_all(requests, false, v_ids);
        perform _add_batch_edges(v_ids[v_last], v_ids[:v_last - 1], batch_on);
    end if;
end;
$$;

-- Adds the jobs: first those with a job key or a unique key, then all others at once. `ids`: those of new
-- jobs, if none is `keyed`.
create or replace function _add_all(requests _job_request[], keyed boolean, ids bigint[] default null)
    returns setof job
    language plpgsql set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_now timestamptz := clock();
    v_jobs job[]; -- those with a key, by position
    v_job job;
    v_position integer := 1;
begin
    perform _refuse_invalid(requests);
    perform nextval('coordination_used')
    where not _coordination_is_used()
      and exists (select from unnest(requests) r where num_nonnulls(r.expires_at, r.max_wait) > 0);
    if not keyed then
        return query select * from _insert_jobs(requests, null, ids, v_now);
        perform _notify_workers();
        return;
    end if;
    select a.jobs, a.ids into v_jobs, ids from _add_each_with_keys(requests, v_now) a;
    -- The others come in the order of specs. A join by position would be quadratic.
    for v_job in select * from _insert_jobs(requests, v_jobs, ids, v_now) loop
        while (v_jobs[v_position]).id is not null loop
            return next v_jobs[v_position];
            v_position := v_position + 1;
        end loop;
        return next v_job;
        v_position := v_position + 1;
    end loop;
    return query select k.* from unnest(v_jobs[v_position:]) k where k.id is not null;
    perform _notify_workers();
end;
$$;

-- Raises PW001 for the first spec that is invalid.
create or replace function _refuse_invalid(requests _job_request[]) returns void
    language plpgsql stable set search_path from current
as $$
declare
    v_bad record;
begin
    select r.ordinality, p.problem into v_bad
    from unnest(requests) with ordinality r
    cross join lateral (select coalesce(_job_refusal(
        r.identifier, r.payload, r.queue_name, r.run_at, r.max_attempts, r.job_key, r.priority, r.flags,
        r.job_key_mode, r.unique_policy, r.sequence_policy, r.meta, r.delivery, r.depends_on),
        case when num_nonnulls(r.expires_at, r.max_wait) > 0
             then _deadline_refusal(r.expires_at, r.job_key, r.max_wait) end) as problem) p
    where p.problem is not null
    order by r.ordinality limit 1;
    if found then
        raise exception 'add_jobs: specs[%]: %', v_bad.ordinality, v_bad.problem using errcode = 'PW001';
    end if;
end;
$$;

-- Adds those specs of a call that have a job key or a unique key. `jobs` has these jobs at their
-- positions; `ids` has the ids that it reserves for new rows of all specs, so that ids rise in the
-- order of specs.
create or replace function _add_each_with_keys(
    requests _job_request[], now timestamptz, out jobs job[], out ids bigint[])
    language plpgsql set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_uniques _uniqueness[];
    v_duplicates live_jobs[];
    v_deadlocks integer := 0;
begin
    loop
        begin
            select u.uniques, u.duplicates into v_uniques, v_duplicates from _uniques_of(requests, now) u;
            perform _lock_for_adds(requests, v_uniques, v_duplicates);
            ids := coalesce(ids, _reserve_ids(requests, v_uniques, v_duplicates, now));
            jobs := _add_in_order_of_keys(requests, ids, v_uniques, v_duplicates, now);
            if jobs is not null then
                return;
            end if;
            raise sqlstate 'PW099'; -- another session has a row locked: releases the locks, begins again
        exception
            when sqlstate 'PW099' then
                null;
            when deadlock_detected then
                -- Retries once: SKIP LOCKED may wait, and out of order (see claim_jobs).
                v_deadlocks := v_deadlocks + 1;
                if v_deadlocks > 1 then
                    raise;
                end if;
        end;
    end loop;
end;
$$;

-- What the policies of a call mean, by position; and of the specs that are ignored or rejected for
-- a duplicate, the duplicates from before the call: each counts even if it ends during the call.
create or replace function _uniques_of(
    requests _job_request[], now timestamptz, out uniques _uniqueness[], out duplicates live_jobs[])
    language plpgsql set search_path from current
as $$
declare
    v_item record;
begin
    uniques := array_fill(null::_uniqueness, array[cardinality(requests)]);
    for v_item in
        select i.request, i.position, coalesce((i.request).queue_name, t.queue_name) as queue_name,
               coalesce(nullif((i.request).unique_policy, 'null'), t.unique_policy) as policy
        from (select unnest(requests) as request, generate_series(1, cardinality(requests)) as position) i
        left join tasks t on t.identifier = (i.request).identifier
        where coalesce(nullif((i.request).unique_policy, 'null'), t.unique_policy) is not null
    loop
        uniques[v_item.position] := _uniqueness_of(
            v_item.request, v_item.policy, v_item.queue_name, now,
            format('add_jobs: specs[%s]', v_item.position));
        if (uniques[v_item.position]).on_conflict in ('ignore', 'reject') then
            duplicates[v_item.position] := _duplicate_of(uniques[v_item.position], now);
        end if;
    end loop;
end;
$$;

-- Locks unique keys in their order and existing rows by id (as a completion does), before the call
-- adds its first job. New job keys follow in their order.
create or replace function _lock_for_adds(
    requests _job_request[], uniques _uniqueness[], duplicates live_jobs[]) returns void
    language plpgsql set search_path from current
as $$
begin
    perform _hold_unique_keys(array(
        select u.key from unnest(uniques) with ordinality u where (duplicates[u.ordinality]).id is null));
    perform from live_jobs j
    where j.id = any (array(
        select k.id from live_jobs k
        where k.job_key = any (array(
            select r.job_key from unnest(requests) r
            where r.job_key_mode is distinct from 'unsafe_dedupe'))
        union all
        select k.id from live_jobs k
        where k.unique_key = any (array(
            select u.key from unnest(uniques) u
            where u.on_conflict in ('replace', 'replace_except_schedule')))))
    order by j.id + 0 for update; -- + 0 keeps the planner from walking the index of all ids
end;
$$;

-- Takes the ids of new rows, in the order of specs. A spec that changes a row in place takes none,
-- nor does a duplicate, be it one of an existing job or of an earlier spec of the call.
create or replace function _reserve_ids(
    requests _job_request[], uniques _uniqueness[], duplicates live_jobs[], now timestamptz) returns bigint[]
    language plpgsql set search_path from current
as $$
begin
    return array(
        select case when (i.uniqueness).on_conflict in ('replace', 'replace_except_schedule')
                      or (i.nth = 1 or not (i.uniqueness).states @> array['available', 'pending', 'scheduled']
                          or (i.uniqueness).period = interval '0')
                         and not exists (select from live_jobs j where j.job_key = i.job_key
                                         and (j.state <> 'running' or i.job_key_mode = 'unsafe_dedupe'))
                         and (duplicates[i.ordinality]).id is null
                         and ((i.uniqueness).key is null or (_duplicate_of(i.uniqueness, now)).id is null)
               then nextval('job_ids') end
        from (select r.ordinality, r.job_key, r.job_key_mode, uniques[r.ordinality] as uniqueness,
                     case when r.job_key is null and (uniques[r.ordinality]).key is null then 1
                          else row_number() over (
                              partition by r.job_key, (uniques[r.ordinality]).key,
                                  (r.job_key_mode = 'unsafe_dedupe' and ( -- not `exists`: it may scan all
                                      select true from live_jobs j -- the job that runs
                                      where j.job_key = r.job_key and j.state = 'running' limit 1)) is true
                              order by r.ordinality) end as nth
              from unnest(requests) with ordinality r) i
        order by i.ordinality);
end;
$$;

-- Adds the jobs with a key: unique keys first, each kind in the order of its keys. Returns them at
-- their positions; null if another session has a row with a job key locked.
create or replace function _add_in_order_of_keys(
    requests _job_request[], ids bigint[], uniques _uniqueness[], duplicates live_jobs[], now timestamptz)
    returns job[]
    language plpgsql set search_path from current
as $$
declare
    v_item record;
    v_request _job_request;
    v_label text;
    v_job job;
    v_jobs job[] := array[]::job[];
begin
    for v_item in
        select i.*, (select t from tasks t where t.identifier = (i.request).identifier) as task,
               bool_or((duplicates[i.position]).id is null) over (partition by (i.uniqueness).key) as held
        from (select unnest(requests) as request, unnest(ids) as id, unnest(uniques) as uniqueness,
                     generate_series(1, cardinality(requests)) as position) i
        where (i.uniqueness).key is not null or (i.request).job_key is not null
        order by (i.uniqueness).key, (i.request).job_key collate "C", i.position
    loop
        v_request := v_item.request;
        -- Specs without run_at get one common time, so that they run in their order, with or
        -- without a key.
        v_request.run_at := coalesce(v_request.run_at, now);
        v_label := format('add_jobs: specs[%s]', v_item.position);
        if v_request.job_key is null then
            v_job := _resolve_conflict(
                case when v_item.held then _duplicate_of(v_item.uniqueness, now)
                     else duplicates[v_item.position] end,
                v_request, v_item.task, v_item.uniqueness, v_item.id, v_label);
        else
            v_job := _add_keyed(v_request, v_item.task, v_label, v_item.id, false);
            if v_job.id is null then
                return null;
            end if;
        end if;
        v_jobs[v_item.position] := v_job;
    end loop;
    return v_jobs;
end;
$$;

-- Adds all specs that are not in `jobs`, in one statement and in their order.
create or replace function _insert_jobs(requests _job_request[], jobs job[], ids bigint[], now timestamptz)
    returns setof job
    language plpgsql set search_path from current set plan_cache_mode = force_generic_plan
    set enable_nestloop = off -- of thousands of jobs with their queues
as $$
begin
    return query
    with request as materialized (
        select r.*, coalesce(ids[r.ordinality], nextval('job_ids')) as id, t.priority as task_priority,
               t.max_attempts as task_max_attempts, t.delivery as task_delivery, q.queue_name as queue,
               case when coalesce(r.sequence_policy, t.sequence_policy) is not null then _sequence_of(
                   r.identifier, r.payload, coalesce(nullif(r.sequence_policy, 'null'), t.sequence_policy),
                   q.queue_name, format('add_jobs: specs[%s]', r.ordinality)) end as sequence
        from unnest(requests) with ordinality r
        left join tasks t on t.identifier = r.identifier
        cross join lateral (select nullif(coalesce(r.queue_name, t.queue_name), 'default') as queue_name) q
        where (jobs[r.ordinality]).id is null order by r.ordinality),
    limited as materialized (
        select q.queue as name from (select distinct r.queue from request r where r.queue is not null) q
        where _must_wait(q.queue)),
    added as (
        insert into live_jobs as j (
            id, state, ready_at, due_at, parked, updated_at, priority, max_attempts, run_at, created_at,
            task_identifier, queue_name, delivery, flags, meta, payload, sequence_key,
            continue_on_cancelled, continue_on_discarded, start_by)
        select r.id, p.state, p.ready_at, p.due_at, p.parked, now, coalesce(r.priority, r.task_priority, 0),
               coalesce(r.max_attempts, r.task_max_attempts, 25), q.run_at, now, r.identifier, r.queue,
               coalesce(r.delivery, r.task_delivery, 'at_least_once'),
               case when r.flags is not null then _flags_of(r.flags) end, r.meta, coalesce(r.payload, '{}'),
               (r.sequence).key, (r.sequence).continue_on_cancelled, (r.sequence).continue_on_discarded,
               r.expires_at
        from request r
        left join limited l on l.name = r.queue
        cross join lateral (select coalesce(r.run_at, now) as run_at) q
        cross join lateral _place(
            q.run_at, now, _held((r.sequence).key, false, case when _depends(r.depends_on) then 'unmet' end),
            l.name is not null) p
        returning j.id, j.parked, j.queue_name, j.sequence_key, _job_of(j) as job),
    asked as (
        insert into promotion_requests (lane)
        select distinct _lane_of(a.parked, a.queue_name, a.sequence_key) from added a
        where a.parked <> 'unmet')
    select (a.job).* from added a order by a.id;
end;
$$;
