-- console/explain_waits: what explain_job says of a job that waits for other jobs or for a signal.

create or replace function _explain_dependencies(
    job live_jobs, out reason text, out detail text, out remedy text) returns setof record
    language plpgsql stable set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_named constant integer := 10;
    v_most constant integer := 1000; -- looked at, of a large fan-in
    v_found integer; -- null: no edge is open
begin
    for reason, detail, remedy, v_found in
        select case when e.ended then 'dependency unmet' else 'dependency' end,
               format('waits for the %s of job %s%s (%s)', e.condition, e.parent_id, ', ' || e.ref,
                      coalesce(e.state, 'cancelled')),
               case when not e.ended
                    then _as_statement(format('explain_job(%s)', e.parent_id))
                         || ' tells what that job waits for'
                    when e.state is null then _as_statement(format('cancel_job(%s)', job.id))
                         || ' gives this one up: that job was deleted'
                    else _as_statement(format('retry_job(%s)', e.parent_id)) || ' runs that job again' end,
               count(*) over ()
        from (select o.*, (get_job(o.parent_id)).state
              from _open_edges(job.id, job.revision, coalesce(_open_from(job.id, job.revision), 0)) o
              order by o.parent_id limit v_most) e
        order by not e.ended, e.parent_id limit v_named
    loop
        return next;
    end loop;
    if v_found > v_named then
        return query select
            'dependency', format('waits for %s%s other jobs', case when v_found = v_most then 'at least ' end,
                                 v_found - v_named),
            format('select * from %I.dependencies where job_id = %s names them', current_schema(), job.id);
    elsif v_found is null then
        return query values ('promotion', 'all jobs that it waited for have ended', _promotion_remedy());
    end if;
end;
$$;

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

create or replace function _explain_wait(
    job live_jobs, now timestamptz, out reason text, out detail text, out remedy text) returns setof record
    language plpgsql stable set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_wait steps;
begin
    select s.* into v_wait from steps s
    where s.job_id = job.id and s.revision = job.revision and s.run = job.run and s.at is null;
    if v_wait.until <= now
       or (_kept_signal(job.id, job.revision, v_wait.name)).id is not null then
        return query values (
            'promotion', format('its wait for the signal %L has ended', v_wait.name), _promotion_remedy());
        return;
    end if;
    return query values (
        'signal', format('waits for the signal %L%s', v_wait.name,
               coalesce(' until ' || v_wait.until, ', without end')),
        _as_statement(format('send_signal(%s, %L)', job.id, v_wait.name)) || ' sends it; '
        || _as_statement(format('cancel_job(%s)', job.id)) || ' gives it up');
end;
$$;
