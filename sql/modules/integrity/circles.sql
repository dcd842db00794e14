-- integrity/circles: jobs that wait for each other in a circle. Adds refuse that, but two sessions at once do
-- not see each other's edges.

-- The jobs that this one waits for and that wait for others themselves.
create or replace function _unmet_parents(child_id bigint, revision integer) returns setof bigint
    language sql stable
begin atomic
    select e.parent_id from edges e join live_jobs p on p.id = e.parent_id and p.parked = 'unmet'
    where e.child_id = _unmet_parents.child_id and e.revision = _unmet_parents.revision and e.met is null;
end;

-- 'circle': no job waits for itself, over other jobs. One edge of a circle leads to a later job.
create or replace function _violations_of_circles(max_rows bigint)
    returns table (invariant text, subject text, found jsonb)
    language plpgsql stable set search_path from current
as $$
begin
    return query
    select 'circle', c.id::text, null::jsonb
    from (select distinct j.id from (select l.* from live_jobs l where l.parked = 'unmet' limit max_rows) j
          cross join lateral _unmet_parents(j.id, j.revision) p(id) where p.id >= j.id limit 1000) c
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
