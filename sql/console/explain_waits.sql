-- console/explain_waits: children

-- Children that wait for a parent that has ended otherwise, and need not end with it (on_unmet): they wait
-- until a person acts. It looks at children of discarded jobs, and at others that wait, some of each.
create or replace function _check_dependencies() returns table (severity text, finding text, fix text)
    language plpgsql set search_path from current set enable_seqscan = off set jit = off
as $$
begin
    return query
    with child as materialized (
        select distinct c.id from (
            (select e.child_id as id
             from (select d.id from live_jobs d where d.expires_at is not null
                   order by d.expires_at desc limit 1000) p
             cross join lateral (
                select o.child_id from edges o where o.parent_id = p.id and o.met is null limit 100) e)
            union all
            (select l.id from live_jobs l where l.parked = 'unmet' limit 1000)) c),
    hung as materialized (
        select c.id as child_id, e.condition, e.parent_id, coalesce(p.state, 'deleted') as state,
               p.state in ('discarded', 'cancelled') and p.reason is distinct from 'lost' as runs_again
        from child c join live_jobs j on j.id = c.id and j.parked = 'unmet'
        cross join lateral (
            select f.* from (
                select o.* from _open_edges(j.id, j.revision, coalesce(_open_from(j.id, j.revision), 0)) o
                limit 100) f
            where f.ended and not f.cancels limit 1) e
        cross join lateral get_job(e.parent_id) p)
    select 'warning',
           'jobs wait for ever, as a job before them has ended otherwise: '
               || _few(array_agg(format('job %s for the %s of job %s (%s)', h.child_id, h.condition,
                                        h.parent_id, h.state) order by h.child_id))
               || '; retry that job, or cancel those that wait',
           _first_fixes(array_agg(distinct case when h.runs_again
                then _fix('select * from ~.retry_job(%s)', h.parent_id::text)
                else _fix('select * from ~.cancel_job(%s)', h.child_id::text) end))
    from hung h having count(*) > 0;
end;
$$;
