-- explain/waits: what explain_job says of a job that waits for other jobs or for a signal.

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
