-- features/depends_on: what depends_on means, and how an add writes it down.
--
-- A job with dependencies is added `pending`, parked as 'unmet', with an edge for each job that it
-- waits for (its parents), a watch, and a request to look at parents that were there before
-- (features/edges). An add locks no parent: so it never waits for one, and never holds one up.

-- Why a depends_on is invalid; null if it is valid.
create or replace function _depends_on_refusal(depends_on jsonb) returns text
    language plpgsql immutable set search_path from current
as $$
declare
    v_jobs constant jsonb :=
        case when jsonb_typeof(depends_on) = 'object' then depends_on -> 'jobs' else depends_on end;
begin
    if jsonb_typeof(depends_on) = 'object' and depends_on - '{jobs,on_unmet}'::text[] <> '{}' then
        return format('unknown member %s (known: jobs, on_unmet)',
                      (select k from jsonb_object_keys(depends_on - '{jobs,on_unmet}'::text[]) k limit 1));
    elsif depends_on -> 'on_unmet' not in ('"hold"', '"cancel"') then
        return format('on_unmet must be "hold" or "cancel", got %s',
                      left((depends_on -> 'on_unmet')::text, 40));
    elsif jsonb_typeof(depends_on) = 'object' and jsonb_typeof(v_jobs) is distinct from 'array' then
        return format('jobs must be an array, got %s', coalesce(jsonb_typeof(v_jobs), 'none'));
    elsif jsonb_typeof(v_jobs) not in ('array', 'null') then
        return format('it must be an array of ids, refs and objects, got %s', jsonb_typeof(v_jobs));
    elsif jsonb_typeof(v_jobs) = 'null' then
        return null;
    elsif jsonb_array_length(v_jobs) > 100000 then
        return format('it must name at most 100000 jobs, got %s', jsonb_array_length(v_jobs));
    end if;
    return (
        select format('item %s: %s', i.n, p.problem)
        from jsonb_array_elements(v_jobs) with ordinality i(value, n)
        cross join lateral (select
            case when jsonb_typeof(i.value) = 'object' then i.value -> 'id' else i.value end as id,
            case when jsonb_typeof(i.value) = 'object' then i.value -> 'ref' else i.value end as ref) v
        cross join lateral (select case
            when jsonb_typeof(i.value) not in ('number', 'string', 'object')
                then format('it must be an id, a ref or an object, got %s', jsonb_typeof(i.value))
            when jsonb_typeof(i.value) = 'object' and i.value - '{id,ref,on}'::text[] <> '{}'
                then format('unknown member %s (known: id, ref, on)',
                            (select k from jsonb_object_keys(i.value - '{id,ref,on}'::text[]) k limit 1))
            when jsonb_typeof(i.value) = 'object' and (i.value ? 'id') = (i.value ? 'ref')
                then 'it must have either id or ref'
            when i.value -> 'on' not in ('"success"', '"end"', '"failure"')
                then format('on must be "success", "end" or "failure", got %s',
                            left((i.value -> 'on')::text, 40))
            when jsonb_typeof(i.value) = 'number' or i.value ? 'id' and jsonb_typeof(i.value) = 'object'
                then case when jsonb_typeof(v.id) <> 'number' or _bigint_of(v.id) is null
                          then format('id must be a job''s id, got %s', left(v.id::text, 40)) end
            when jsonb_typeof(v.ref) <> 'string' or length(v.ref #>> '{}') not between 1 and 512
                then format('ref must be a string of 1 to 512 characters, got %s', left(v.ref::text, 40))
        end as problem) p
        where p.problem is not null order by i.n limit 1);
end;
$$;

-- The jobs that a valid depends_on names. A number is an id, a string always a ref.
create or replace function _dependencies_of(depends_on jsonb)
    returns table (id bigint, ref text, condition text, cancels boolean)
    language sql immutable
begin atomic
    select case jsonb_typeof(i.value) when 'number' then i.value #>> '{}'
                when 'object' then i.value ->> 'id' end::bigint,
           case jsonb_typeof(i.value) when 'string' then i.value #>> '{}'
                when 'object' then i.value ->> 'ref' end,
           case when jsonb_typeof(i.value) = 'object' then coalesce(i.value ->> 'on', 'success')
                else 'success' end,
           jsonb_typeof(_dependencies_of.depends_on) = 'object'
           and coalesce(_dependencies_of.depends_on ->> 'on_unmet', 'hold') = 'cancel'
    from jsonb_array_elements(case jsonb_typeof(_dependencies_of.depends_on)
            when 'array' then _dependencies_of.depends_on
            when 'object' then _dependencies_of.depends_on -> 'jobs' end) i(value);
end;

-- True if a parent that has ended in this state meets the condition.
create or replace function _meets(condition text, state text) returns boolean
    language sql immutable
    return case when state = 'completed' then condition in ('success', 'end')
                when state in ('cancelled', 'discarded') then condition in ('failure', 'end')
                else false end;

-- How a parent stands: the state of a job, live or in history, and its result. No row if there is none.
create or replace function _parent_of(id bigint) returns table (state text, result jsonb)
    language sql stable
begin atomic
    select j.state, null::jsonb from live_jobs j where j.id = _parent_of.id
    union all
    select f.state, f.result from finished_jobs f where f.id = _parent_of.id
    limit 1;
end;

-- The edges of the jobs of one call: the nth job waits for the parent-th one, or for one with this id or ref.
create or replace function _wanted_edges(requests _job_request[], batch_on text)
    returns table (n bigint, parent bigint, id bigint, ref text, condition text, cancels boolean)
    language sql immutable
begin atomic
    select r.ordinality as n, null::bigint as parent, d.id, d.ref, d.condition, d.cancels
    from unnest(requests) with ordinality r cross join lateral _dependencies_of(r.depends_on) d
    where batch_on is null or r.ordinality < cardinality(requests)
    union all
    select cardinality(requests) as n, r.ordinality as parent, null::bigint as id, r.ref,
           batch_on as condition, false as cancels
    from unnest(requests) with ordinality r
    where batch_on is not null and r.ordinality < cardinality(requests);
end;

-- Adds the edges of the jobs of one call, given by position. A duplicate is `unchanged`, and others may
-- depend on it. `batch_on`: the last job depends on all others. `label` names the nth. Errors: PW001, PW004.
create or replace function _add_edges(
    requests _job_request[], ids bigint[], revisions integer[], unchanged boolean[], label text,
    batch_on text default null) returns void
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_nestloop = off set jit = off -- calls may be large
as $$
declare
    v_edges edges[];
    v_missing edges;
    v_own record;
begin
    perform nextval('coordination_used') where not _coordination_is_used();
    perform _refuse_refs(requests, label, batch_on is not null);
    -- A number that only this call has given out named no job. It may even be the child's own.
    select w.n, w.id into v_own from _wanted_edges(requests, batch_on) w
    join unnest(ids, revisions, unchanged) i(id, revision, unchanged) on i.id = w.id
    where i.revision = 0 and not i.unchanged and not _add_edges.unchanged[w.n] limit 1;
    if found then
        raise exception '%: depends_on: there is no job %', format(label, v_own.n), v_own.id
            using errcode = 'PW004', hint = 'That is an id which this call gives to a new job. Jobs of one '
                                            'call name each other by their refs.';
    end if;
    v_edges := array(
        with wanted as materialized ( -- narrow rows, before they are joined
            select distinct w.* from _wanted_edges(requests, batch_on) w where not unchanged[w.n]),
        named as materialized (
            select r.ref, r.ordinality as n from unnest(requests) with ordinality r where r.ref is not null)
        select row(ids[w.n], revisions[w.n], coalesce(w.id, ids[coalesce(w.parent, o.n)]), w.ref,
                   w.condition, w.cancels, null, null)::edges
        from wanted w left join named o on o.ref = w.ref and w.parent is null);
    v_missing := _write_edges(
        v_edges, array(select i.id from unnest(ids, unchanged) i(id, unchanged) where not i.unchanged));
    if v_missing.child_id is not null then
        perform _refuse_unknown_job(format(label, array_position(ids, v_missing.child_id)) || ': depends_on',
                                    v_missing.parent_id);
    end if;
    perform _refuse_circles(array( -- a job is new and part of no circle, unless the call names it twice
        select distinct u.child_id from unnest(v_edges) u
        where u.revision > 0 or u.child_id in (
            select i.id from unnest(ids, unchanged) i(id, unchanged) where i.unchanged)));
end;
$$;

-- Writes edges, what their children watch (features/edges), and requests for those children whose
-- parents may have ended already. `added`: the jobs that this call has added or changed. They end after
-- its commit, and then see what watches them; unless a later job of the call has replaced them: then they
-- count as cancelled, also without history. Returns an edge whose parent is no job, or null.
create or replace function _write_edges(new_edges edges[], added bigint[]) returns edges
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_nestloop = off set jit = off -- calls may be large
as $$
declare
    v_missing edges;
begin
    with parent as materialized (
        select e.parent_id, p.result, a.id is not null as is_added,
               case when p.state is null and a.id is not null then 'cancelled' else p.state end as state
        from (select distinct u.parent_id from unnest(new_edges) u) e
        left join (select distinct i.id from unnest(added) i(id)) a on a.id = e.parent_id
        left join lateral _parent_of(e.parent_id) p on true),
    edge as materialized (
        select u.child_id, u.revision, u.parent_id, u.ref, u.condition, u.cancels, p.result,
               case when _meets(u.condition, p.state) then p.state end as met,
               not p.is_added or p.state in ('completed', 'cancelled', 'discarded') as may_have_ended
        from unnest(new_edges) u join parent p on p.parent_id = u.parent_id
        where p.state is not null),
    written as (
        insert into edges
        select e.child_id, e.revision, e.parent_id, e.ref, e.condition, e.cancels, e.met,
               case when e.met is not null then e.result end
        from edge e order by e.child_id, e.parent_id -- on conflict: named twice
        on conflict do nothing returning child_id, revision, parent_id, condition, cancels, met),
    watched as (
        insert into watches (child_id, revision, from_id, parent_id)
        select e.child_id, e.revision, min(e.parent_id), _first_watch(min(e.parent_id), max(e.parent_id))
        from written e where e.met is null group by 1, 2
        union all -- a completed parent does not look for the edges that it breaks
        select e.child_id, e.revision, null, e.parent_id
        from written e where e.met is null and e.cancels and e.condition = 'failure'),
    asked as (
        insert into promotion_requests (lane, job_id, later)
        select l.lane, e.child_id, true
        from edge e cross join lateral (values ('child'), ('unmet')) l(lane)
        where e.may_have_ended and (l.lane = 'child' or e.cancels) group by 1, 2)
    select u.* into v_missing from parent p join unnest(new_edges) u on u.parent_id = p.parent_id
    where p.state is null order by u.child_id, p.parent_id limit 1;
    return v_missing;
end;
$$;

-- The same for the callback of a batch whose jobs are all new, with rising ids, and name no others.
create or replace function _add_batch_edges(child_id bigint, parent_ids bigint[], condition text) returns void
    language plpgsql set search_path from current set jit = off
as $$
begin
    perform nextval('coordination_used') where not _coordination_is_used();
    insert into edges (child_id, revision, parent_id, condition, cancels)
    select _add_batch_edges.child_id, 0, p, _add_batch_edges.condition, false from unnest(parent_ids) p;
    insert into watches (child_id, revision, from_id, parent_id)
    values (_add_batch_edges.child_id, 0, parent_ids[1],
            _first_watch(parent_ids[1], parent_ids[cardinality(parent_ids)]));
end;
$$;

-- Which parent a new child watches. Parents tend to end in the order of their ids. So of few it is the last.
-- Of many it is the first: then the child chooses another one soon (features/children).
create or replace function _first_watch(first_id bigint, last_id bigint) returns bigint
    language sql immutable
    return case when last_id - first_id > 1000 then first_id else last_id end;

-- True if a waiting job waits for itself, over other jobs. `offset 0`: it looks each of them up, with any
-- settings of its caller.
create or replace function _waits_for_itself(job_id bigint) returns boolean
    language sql stable set search_path from current set enable_seqscan = off set jit = off
    return exists (
        with recursive above as (
            select e.parent_id as id from live_jobs j
            join edges e on e.child_id = j.id and e.revision = j.revision and e.met is null
            where j.id = job_id
            union
            select e.parent_id from above a
            cross join lateral (
                select l.id, l.revision from live_jobs l where l.id = a.id offset 0) j
            cross join lateral (
                select o.parent_id from edges o
                where o.child_id = j.id and o.revision = j.revision and o.met is null offset 0) e)
        select from above a where a.id = job_id);

-- Refuses a change by which a job that was there before would wait for itself.
create or replace function _refuse_circles(changed bigint[]) returns void
    language plpgsql set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_id bigint;
begin
    foreach v_id in array changed loop
        if _waits_for_itself(v_id) then
            raise exception 'depends_on: job % would wait for itself', v_id
                using errcode = 'PW001',
                      hint = 'Leave out its own id, and jobs that wait for it: see the view dependencies.';
        end if;
    end loop;
end;
$$;
