-- console/circles: jobs that wait for each other in a circle. Adds refuse that, but two sessions at once do
-- not see each other's edges.

-- The jobs that this one waits for and that wait for others themselves.
create or replace function _unmet_parents(child_id bigint, revision integer) returns setof bigint
    language sql stable
begin atomic
    select e.parent_id from edges e join live_jobs p on p.id = e.parent_id and p.parked = 'unmet'
    where e.child_id = _unmet_parents.child_id and e.revision = _unmet_parents.revision and e.met is null;
end;

-- 'circle': no job waits for itself, over other jobs. One edge of a circle leads to a later job. Few jobs are
-- left for a closer look: those that still wait when all others have ended.
create or replace function _violations_of_circles(max_rows bigint)
    returns table (invariant text, subject text, found jsonb)
    language plpgsql stable set search_path from current
as $$
declare
    v_children bigint[];
    v_parents bigint[];
    v_ids bigint[];
    v_open integer[];
begin
    select array_agg(j.id), array_agg(p.id) into v_children, v_parents
    from (select l.id, l.revision from live_jobs l where l.parked = 'unmet' limit max_rows) j
    cross join lateral _unmet_parents(j.id, j.revision) p(id);
    if v_children is null then
        return;
    end if;
    v_ids := array(select u.id from unnest(v_children || v_parents) u(id) group by 1 order by 1);
    select _open_parents(array_agg(c.n), array_agg(p.n)) into v_open
    from unnest(v_children, v_parents) e(child, parent)
    join unnest(v_ids) with ordinality c(id, n) on c.id = e.child
    join unnest(v_ids) with ordinality p(id, n) on p.id = e.parent;
    return query
    select 'circle', c.id::text, null::jsonb
    from (select distinct e.child as id from unnest(v_children, v_parents) e(child, parent)
          where e.parent >= e.child and e.child = any (array(
              select i.id from unnest(v_ids, v_open) i(id, open) where i.open > 0)) limit 1000) c
    where exists (
        with recursive above as (
            select p.id from live_jobs j cross join lateral _unmet_parents(j.id, j.revision) p(id)
            where j.id = c.id
            union
            select p.id from above a join live_jobs j on j.id = a.id
            cross join lateral _unmet_parents(j.id, j.revision) p(id))
        select from above a where a.id = c.id);
end;
$$;
