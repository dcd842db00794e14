-- features/refs: the refs by which jobs of one call name each other in depends_on.

-- Refuses refs of a call that are empty, too long, used twice, unknown, or wait for each other in a circle.
create or replace function _refuse_refs(requests _job_request[], label text, is_batch boolean) returns void
    language plpgsql immutable set search_path from current set enable_nestloop = off -- calls may be large
as $$
declare
    v_bad record;
    v_children bigint[]; -- positions: each child waits for its parent
    v_parents bigint[];
    v_open integer[];
    v_up bigint[]; -- of each child, one of its parents
    v_at bigint;
    v_n bigint; -- the first job of a circle
    v_ref text;
begin
    select r.ref, max(r.ordinality) as n into v_bad from unnest(requests) with ordinality r
    where r.ref is not null group by r.ref having count(*) > 1 or length(r.ref) not between 1 and 512
    order by 2 limit 1;
    if found then
        raise exception '%: ref must be a string of 1 to 512 characters that no other job of the call has, '
            'got %', format(label, v_bad.n), quote_literal(left(v_bad.ref, 530)) using errcode = 'PW001';
    end if;
    with wanted as materialized (
        select r.ordinality as child, d.ref
        from unnest(requests) with ordinality r cross join lateral _dependencies_of(r.depends_on) d
        where d.ref is not null),
    named as materialized (
        select r.ref, r.ordinality as parent from unnest(requests) with ordinality r where r.ref is not null)
    select array_agg(w.child), array_agg(n.parent), min(w.child) filter (where n.parent is null),
           (array_agg(w.ref order by w.child) filter (where n.parent is null))[1]
    into v_children, v_parents, v_bad.n, v_bad.ref
    from wanted w left join named n on n.ref = w.ref;
    if v_bad.n is not null then
        raise exception '%: depends_on: no job of the call has the ref %', format(label, v_bad.n),
            quote_literal(v_bad.ref)
            using errcode = 'PW001', hint = 'Refs name jobs of one add_jobs call. A job that was added '
                                            'before is named by its id, a number.';
    end if;
    if is_batch then
        v_children := v_children
            || array_fill(cardinality(requests)::bigint, array[cardinality(requests) - 1]);
        v_parents := v_parents || array(select n from generate_series(1, cardinality(requests) - 1) n);
    end if;
    -- Without a ref that points forwards there is no circle.
    if not exists (select from unnest(v_children, v_parents) e(child, parent) where e.parent >= e.child) then
        return;
    end if;
    v_open := _open_parents(v_children, v_parents);
    select array_agg(e.child), array_agg(e.parent) into v_children, v_parents
    from unnest(v_children, v_parents) e(child, parent) where v_open[e.child] > 0 and v_open[e.parent] > 0;
    if v_children is null then
        return;
    end if;
    v_up := array(
        select coalesce(e.parent, 0) from generate_series(1, (select max(c) from unnest(v_children) c)) n
        left join (select u.child, min(u.parent) as parent from unnest(v_children, v_parents) u(child, parent)
                   group by 1) e on e.child = n
        order by n);
    v_at := v_children[1];
    for i in 1..2 * cardinality(v_up) loop
        v_at := v_up[v_at];
        if i >= cardinality(v_up) then -- so many steps lead into a circle, and as many go round
            v_n := least(v_n, v_at);
        end if;
    end loop;
    v_ref := quote_literal(requests[v_n].ref);
    if exists (select from unnest(v_children, v_parents) e(child, parent)
               where e.child = v_n and e.parent = v_n) then
        raise exception '%: depends_on: the job would wait for itself: % is its own ref',
            format(label, v_n), v_ref using errcode = 'PW001', hint = 'Name the refs of other jobs.';
    end if;
    raise exception '%: depends_on: jobs wait for each other in a circle%', format(label, v_n),
        coalesce(', of which the ref ' || v_ref || ' is part', '')
        using errcode = 'PW001', hint = 'Take one of the dependencies of these jobs away.';
end;
$$;

-- Lets the jobs end that wait for none, then those that waited for them, and so on. Returns for each job how
-- many of its parents are left: more than 0 if it is part of a circle, or waits for one. Each child and each
-- parent is looked at once.
create or replace function _open_parents(children bigint[], parents bigint[]) returns integer[]
    language plpgsql immutable set search_path from current set enable_nestloop = off -- calls may be large
as $$
declare
    v_jobs constant integer := (
        select max(greatest(e.child, e.parent)) from unnest(children, parents) e(child, parent));
    v_open integer[] := array( -- how many parents of each job have not ended
        select count(e.child) from generate_series(1, v_jobs) n
        left join unnest(children) e(child) on e.child = n group by n order by n);
    v_last constant integer[] := array( -- where the children of each job end, in the next array
        select sum(count(e.parent)) over (order by n) from generate_series(1, v_jobs) n
        left join unnest(parents) e(parent) on e.parent = n group by n order by n);
    v_children constant integer[] := array(
        select e.child from unnest(children, parents) e(child, parent) order by e.parent);
    v_ended integer[] := array(select n from generate_series(1, v_jobs) n where v_open[n] = 0);
    v_many integer := cardinality(v_ended);
    v_next integer := 1;
    v_child integer;
begin
    while v_next <= v_many loop
        for i in coalesce(v_last[v_ended[v_next] - 1], 0) + 1 .. v_last[v_ended[v_next]] loop
            v_child := v_children[i];
            v_open[v_child] := v_open[v_child] - 1;
            if v_open[v_child] = 0 then
                v_many := v_many + 1;
                v_ended[v_many] := v_child;
            end if;
        end loop;
        v_next := v_next + 1;
    end loop;
    return v_open;
end;
$$;
