-- gate/sequences: which job of a sequence runs next.

-- Makes the next waiting job of each sequence its head: the job that retry_job has put first, else the one
-- with the lowest id. No other job overtakes it: if another session has it locked, this asks again later.
-- Call it only if the sequence certainly has no head: this transaction has just ended it, or holds the gate
-- and has found none. `since`: when the oldest request for them was left. `queues`: those in which the new
-- heads wait: leave requests for these. `handed`: the sequences that have a new head. `later`: how many
-- heads are due later, or locked by another session: workers that wait must know.
create or replace function _open_sequences(
    keys text[], since timestamptz, out opened integer, out queues text[], out handed text[],
    out later integer)
    language plpgsql set search_path from current
as $$
declare
    v_now timestamptz := clock();
    v_locked text[];
begin
    with first as materialized (
        select k.key, f.tid
        from unnest(keys) k(key)
        cross join lateral (
            select j.ctid as tid, j.parked, j.id from live_jobs j
            where j.sequence_key = k.key and j.parked <> 'queue'
            order by j.sequence_key, j.parked, j.id limit 1) f
        where f.parked = 'next' or f.parked = 'sequence' and (
            select true from sequence_halts h
            where h.sequence_key = k.key and h.job_id < f.id limit 1) is null),
    free as materialized (
        select j.ctid as tid, j.run_at, _must_wait(j.queue_name) as waits
        from live_jobs j where j.ctid = any (array(select f.tid from first f)) for update skip locked),
    moved as (
        update live_jobs j
        set sequence_head = true, state = f.state, parked = f.parked, due_at = f.due_at, updated_at = v_now,
            ready_at = case when f.ready_at is not null then v_now end
        from (select l.tid, p.* from free l, _place(l.run_at, v_now, null, l.waits) p) f
        where j.ctid = f.tid
        returning j.sequence_key, j.ready_at, j.due_at, j.parked, j.queue_name)
    select count(m.ready_at), array_agg(distinct m.queue_name) filter (where m.parked = 'queue'),
           array_agg(m.sequence_key),
           array(select f.key from first f except select n.sequence_key from moved n), count(m.due_at)
    into opened, queues, handed, v_locked, later from moved m;
    later := later + cardinality(v_locked);
    if v_locked <> '{}' then
        perform _ask_later(
            array_agg('sequence:' || l.key),
            array_agg(v_now + make_interval(secs => _growing(coalesce(since, clock_timestamp())))), since)
        from unnest(v_locked) l(key);
    end if;
end;
$$;

-- The same in a pass, for those of these sequences that have no head. A sequence with a head needs nothing:
-- the end of the head hands on.
create or replace function _open_idle_sequences(
    keys text[], since timestamptz, out opened integer, out queues text[])
    language plpgsql set search_path from current
as $$
declare
    v_idle constant text[] := array(
        select k.key from unnest(keys) k(key)
        where (select true from live_jobs h
               where h.sequence_key = k.key and h.sequence_head limit 1) is null);
begin
    opened := 0;
    if v_idle <> '{}' then
        select o.opened, o.queues into opened, queues from _open_sequences(v_idle, since) o;
    end if;
end;
$$;
