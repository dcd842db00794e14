-- console/graph: the neighbours of a job among those that wait for each other, and its signals, for
-- the page of a job.

create or replace function job_graph(job_id bigint)
    returns table (side text, id bigint, task_identifier text, state text, ref text, condition text,
                   blocks boolean)
    language plpgsql stable security definer set search_path from current
    set enable_seqscan = off set jit = off
as $$
declare
    v_revision constant integer := (get_job(job_graph.job_id)).revision;
    v_from constant bigint := _open_from(job_graph.job_id, v_revision);
begin
    -- Each limit bounds what a large fan-in costs.
    return query
    with near as (
        (select 'before' as side, o.parent_id as id, o.ref, o.condition, true as blocks
         from _open_edges(job_graph.job_id, v_revision, v_from) o order by o.parent_id limit 1000)
        union all
        (select 'before', e.parent_id, e.ref, e.condition, false
         from edges e where e.child_id = job_graph.job_id and e.revision = v_revision and not exists (
             select from _open_edges(e.child_id, e.revision, greatest(e.parent_id, v_from)) o
             where o.parent_id = e.parent_id and o.condition = e.condition)
         order by e.parent_id limit 1000)
        union all
        (select 'after', e.child_id, e.ref, e.condition, exists (
             select from _open_edges(e.child_id, e.revision, e.parent_id) o
             where o.parent_id = e.parent_id and o.condition = e.condition)
         from edges e where e.parent_id = job_graph.job_id
         and e.revision = coalesce((select j.revision from live_jobs j where j.id = e.child_id),
                                   (select f.revision from finished_jobs f where f.id = e.child_id))
         order by e.child_id limit 1000))
    select n.side, n.id, k.task_identifier,
           coalesce(k.state, case n.side when 'before' then _ended_as(n.id) end), n.ref, n.condition, n.blocks
    from near n
    left join lateral (
        select l.task_identifier, l.state from live_jobs l where l.id = n.id
        union all
        select h.task_identifier, h.state from finished_jobs h where h.id = n.id
        limit 1) k on true
    order by n.side desc, not n.blocks, k.state is null or k.state not in ('cancelled', 'discarded'),
             n.id;
end;
$$;
comment on function job_graph(bigint) is
    'The jobs that this one depends on (side: before) and those that depend on it (after), at most 1,000 of '
    'each kind. First come those whose condition is not met yet (blocks), and of these the failed ones. '
    'task_identifier is null if a job is gone. See the view dependencies.';

create or replace function job_signals(job_id bigint)
    returns table (name text, payload jsonb, at timestamptz)
    language plpgsql stable security definer set search_path from current
    set enable_seqscan = off set jit = off
as $$
begin
    return query
    select s.name, s.payload, s.at from signals s where s.job_id = job_signals.job_id
    order by s.id limit 1000;
end;
$$;
comment on function job_signals(bigint) is
    'The signals that were sent to a job (send_signal), the first 1,000, oldest first. Those of one name '
    'answer one wait after the other.';

create or replace function job_marks(job_id bigint)
    returns table (kind text, name text, run bigint, at timestamptz)
    language plpgsql stable security definer set search_path from current
as $$
begin
    return query
    select 'step', s.name, s.run, s.at from get_steps(job_marks.job_id) s
    union all
    select 'signal', s.name, null, s.at from job_signals(job_marks.job_id) s;
end;
$$;
comment on function job_marks(bigint) is
    'The saved steps and answered waits of a job (kind: step), and the signals that were sent to it '
    '(signal), as get_steps and job_signals return them, but without results and payloads.';
