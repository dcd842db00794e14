-- features/dependencies: what people and handlers read of dependencies.

create or replace view dependencies as
select e.child_id as job_id, e.parent_id as depends_on, e.ref, e.condition,
       coalesce(p.state, case when v.id is not null then 'cancelled' end, e.met, 'completed') as state
from edges e
left join live_jobs j on j.id = e.child_id
left join finished_jobs f on f.id = e.child_id
left join lateral (
    select l.state from live_jobs l where l.id = e.parent_id
    union all
    select h.state from finished_jobs h where h.id = e.parent_id
    limit 1) p on true
left join vanished_parents v on v.id = e.parent_id
where e.revision = coalesce(j.revision, f.revision);
comment on view dependencies is
    'One row per job and job that it depends on. ref: what the call that added the job named the other '
    'one. condition: success, end or failure. state: of the job that it depends on, now; a deleted one '
    'counts as cancelled.';

create or replace function dependency_results(job_id bigint)
    returns table (id bigint, ref text, state text, result jsonb)
    language plpgsql stable security definer set search_path from current
    set enable_seqscan = off set jit = off
as $$
begin
    return query
    select e.parent_id, e.ref, coalesce(e.met, p.state),
           case when e.met is null then p.result else e.result end
    from edges e
    left join lateral (
        select nullif(coalesce(
                   case when j.state = 'discarded' then j.state when j.id is not null then '' end, f.state,
                   case when v.id is not null then 'cancelled' end, 'completed'), '') as state,
               case when _meets(e.condition, f.state) then f.result end as result
        from (select) one
        left join live_jobs j on j.id = e.parent_id
        left join finished_jobs f on f.id = e.parent_id
        left join vanished_parents v on v.id = e.parent_id) p on e.met is null
    where e.child_id = dependency_results.job_id and e.revision = coalesce(
        (select j.revision from live_jobs j where j.id = dependency_results.job_id),
        (select f.revision from finished_jobs f where f.id = dependency_results.job_id))
    order by e.parent_id, e.ref, e.condition;
end;
$$;
comment on function dependency_results(bigint) is
    'How the jobs that this one depends on have ended, and what they returned (finish_jobs: results), by '
    'id. ref is null for a job that was named by its id. state is null while it has not ended. The '
    'results are kept for this job until it is pruned, also when the other jobs are pruned earlier.';
