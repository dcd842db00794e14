-- console/doctor_workers: what waits for a worker, while none is alive.

-- The key of a sequence for people: the names and values in a key that is JSON.
create or replace function _sequence_words(sequence_key text) returns text
    language plpgsql stable set search_path from current
as $$
begin
    if left(sequence_key, 1) <> '{' then
        return sequence_key;
    end if;
    return (
        select string_agg(
                   case when jsonb_typeof(e.value) = 'object'
                        then (select string_agg(a.key || ' ' || (a.value #>> '{}'), ', ' order by a.key)
                              from jsonb_each(e.value) a)
                        when e.key = 'kind' then e.value #>> '{}'
                        else e.key || ' ' || (e.value #>> '{}') end, ', ' order by e.key desc)
        from jsonb_each(sequence_key::jsonb) e);
exception when invalid_text_representation then
    return sequence_key;
end;
$$;

-- The first waiting jobs of sequences that ask for a promotion and run none.
create or replace function _next_of_sequences(max_rows integer) returns bigint[]
    language plpgsql stable set search_path from current set enable_seqscan = off set jit = off
as $$
begin
    return array(
        select f.id
        from (select distinct substr(r.lane, length('sequence:') + 1) as key
              from (select p.lane from promotion_requests p limit max_rows) r
              where starts_with(r.lane, 'sequence:')) s
        cross join lateral (
            select l.id from live_jobs l
            where l.sequence_key = s.key and l.parked in ('next', 'sequence')
            order by l.parked, l.id limit 1) f
        where not exists (select from live_jobs h where h.sequence_key = s.key and h.sequence_head)
          and not exists (select from sequence_halts t where t.sequence_key = s.key and t.job_id < f.id));
end;
$$;

-- The jobs that a worker could start or promote, some of each kind, and since when they wait. Not those of a
-- paused queue, which wait whether a worker is alive or not.
create or replace function _waiting_for_workers(max_rows integer) returns table (since timestamptz)
    language plpgsql stable set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_now timestamptz := clock();
begin
    return query
    (select l.ready_at from live_jobs l where l.ready_at is not null and l.state = 'available'
     order by l.priority, l.ready_at, l.id limit max_rows)
    union all
    (select l.due_at from live_jobs l where l.due_at <= v_now order by l.due_at limit max_rows)
    union all
    (with parked as materialized (
        select l.queue_name, l.run_at from live_jobs l where l.parked = 'queue' limit max_rows),
     open as (
        select q.queue_name from _queues_of(array(select distinct p.queue_name from parked p)) q
        where not q.paused)
     select p.run_at from parked p join open o on o.queue_name = p.queue_name)
    union all
    (select l.run_at from live_jobs l
     where l.id = any (_next_of_sequences(max_rows)) and l.run_at <= v_now);
end;
$$;

-- ok: no job waits. info: the first waits for less than a minute. warning: for a minute or longer.
create or replace function _check_workers() returns table (severity text, finding text, fix text)
    language plpgsql set search_path from current
as $$
declare
    v_now timestamptz := clock();
    v_waiting bigint;
    v_since timestamptz;
begin
    if exists (select from workers w where _is_live(w, v_now)) then
        return;
    end if;
    select count(*), min(w.since) into v_waiting, v_since from _waiting_for_workers(10000) w;
    if v_waiting > 0 then
        return query values (case when v_since <= v_now - interval '1 minute' then 'warning' else 'info' end,
            format('no worker is alive; jobs that wait: %s%s, the first since %s', v_waiting,
                   case when v_waiting >= 10000 then ' or more' else '' end, v_since),
            'start one: pyworker run MODULE');
    end if;
end;
$$;
