-- console/health: worker_health(), which reports the workers that are live and those that claim
-- jobs.

create or replace function worker_health(worker text default null)
    returns table (worker_id bigint, name text, live boolean, ready boolean, detail text)
    language plpgsql stable security definer set search_path from current
    set enable_seqscan = off set jit = off
as $$
declare
    v_now timestamptz := clock();
    v_held bigint[] := _held_worker_locks();
begin
    return query
    select s.id, s.name, s.ailment is null, s.ailment is null and s.hindrance is null,
           coalesce(s.ailment, s.hindrance, 'it claims jobs')
    from (
        select w.id, coalesce(w.info ->> 'name', w.id::text) as name,
               case when not _is_registered(w) then 'it has ended, or was declared dead'
                    when not _is_live(w, v_now) then format('its last heartbeat was at %s', w.beat_at)
                    when w.locked and not _has_lock(w, v_held)
                         then 'its control connection has ended'
                    when w.info ->> 'condition' = 'stuck'
                         then 'the loop of its process does not turn' end as ailment,
               case when w.info ->> 'condition' = 'starting' then 'it is starting'
                    when w.info ->> 'condition' = 'stopping' then 'it is stopping'
                    when w.info ->> 'condition' = 'refused'
                         then 'the database refuses its claims (see its log)'
                    when pg_is_in_recovery() then 'this database can only be read' end as hindrance
        from workers w
        where w.id = any (array(
            select r.id from workers r
            where _is_registered(r)
              and (worker_health.worker is null or r.info ->> 'name' = worker_health.worker)
            union
            select case when worker_health.worker ~ '^[1-9][0-9]{0,17}$' then worker_health.worker::bigint end
        ))) s
    order by s.id;
end;
$$;
comment on function worker_health(text) is
    'The health of workers, one row each. live: the worker sends heartbeats, its control connection exists, '
    'and the loop of its process turns. ready: it is live and claims jobs, so it is neither starting nor '
    'stopping, and the database accepts its claims. detail: why it is not live or not ready. worker: an id, '
    'or the name that the worker was started with (several processes may share a name); by default all '
    'workers that were not declared dead. No row: there is no such worker.';
