-- workers/fleet: many workers share their looks at the queue, so that the looks cost the same however many
-- workers there are.
--
-- A notification wakes each worker that listens. One of them gets the job; the others looked for nothing.
-- So where there are more workers, they poll from a lower rate of adds on (01_notify): once notifications
-- come more often than every 5 ms for each further worker. While they poll, each has its turn: of the
-- workers that take the same jobs, one looks every 5 ms.

-- How many workers the last sweep saw.
create or replace function _fleet_size() returns integer
    language sql volatile
    return coalesce(pg_sequence_last_value('fleet_size'::regclass), 1)::integer;

-- The sweep of each second counts them.
create or replace function _count_fleet() returns void
    language plpgsql set search_path from current set enable_seqscan = off set jit = off
as $$
begin
    perform setval('fleet_size', c.workers)
    from (select count(*) as workers from workers w where _is_registered(w)) c
    where c.workers is distinct from pg_sequence_last_value('fleet_size'::regclass);
end;
$$;

-- Milliseconds that a fleet polls on after a claim that found jobs.
create or replace function _polling_ms(fleet integer) returns integer
    language sql immutable
    return least(greatest(10 * fleet, 100), 2000);

-- True if notifications have come too often for a fleet since this session asked before.
create or replace function _notified_often(fleet integer) returns boolean
    language plpgsql set search_path from current
as $$
declare
    v_ms constant bigint := date_part('epoch', clock_timestamp()) * 1000;
    v_count constant bigint := coalesce(pg_sequence_last_value('notifications'::regclass), 0);
    -- What the count was then, and when that was.
    v_before constant bigint[] := string_to_array(
        current_setting('pyworker.notifications', true), ' ')::bigint[];
    v_come constant bigint := v_count - v_before[1];
    v_in_ms constant bigint := v_ms - v_before[2];
    v_most_ms constant bigint := 5 * (fleet - 1);
begin
    if (v_come < 2 and v_in_ms between 0 and 2 * v_most_ms) is not true then
        perform set_config('pyworker.notifications', concat_ws(' ', v_count, v_ms), false);
    end if;
    return coalesce(v_come >= 2 and v_in_ms < v_come * v_most_ms, false);
end;
$$;

-- While workers poll: seconds until this worker looks again; null for a caller that does not say who it is.
create or replace function _polls_in(worker_id bigint) returns double precision
    language plpgsql set search_path from current
as $$
declare
    v_us constant bigint := date_part('epoch', clock_timestamp()) * 1000000;
    v_turns _turns;
    v_cycle bigint; -- in it, each worker has one turn; microseconds
    v_wait bigint;
begin
    if worker_id is null or _fleet_size() = 1 then
        return 0.005;
    end if;
    v_turns := nullif(current_setting('pyworker.turns', true), '')::_turns;
    if (v_turns.worker_id = _polls_in.worker_id
            and v_turns.until_us between v_us and v_us + 10000000) is not true then
        v_turns := _turns_of(worker_id, v_us);
        perform set_config('pyworker.turns', v_turns::text, false);
    end if;
    v_cycle := least(5000 * v_turns.workers, 2500000);
    v_wait := v_cycle - (v_us - v_cycle * v_turns.place / v_turns.workers) % v_cycle;
    if v_wait < v_cycle / 4 then
        v_wait := v_wait + v_cycle; -- it has come early
    end if;
    return v_wait / 1000000.0;
end;
$$;

-- The turn of a worker among those that take the same jobs. It stays true for a while.
create or replace function _turns_of(worker_id bigint, now_us bigint) returns _turns
    language plpgsql set search_path from current set enable_seqscan = off set jit = off
as $$
begin
    return (
        select row(_turns_of.worker_id, now_us + least(greatest(10000 * count(*), 1000000), 10000000),
                   count(*), count(*) filter (where o.id < w.id))::_turns
        from workers w
        join workers o on _is_registered(o)
            and (o.info -> 'task_identifiers', o.info -> 'queue_names', o.info -> 'forbidden_flags')
                is not distinct from
                (w.info -> 'task_identifiers', w.info -> 'queue_names', w.info -> 'forbidden_flags')
        where w.id = _turns_of.worker_id);
end;
$$;
