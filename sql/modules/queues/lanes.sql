-- queues/lanes: what asks for a promotion, and who may answer: docs/inside/queues.md.
--
-- A promoter locks the lane, deletes the lane's requests that it can see, and only then reads the
-- lane's jobs, with a fresh snapshot. So a promotion that begins after the commit of a change sees
-- that change. A request with `after` 1 is for a queue whose jobs are locked (limits/locked).

-- Tries to lock a lane. False if another session has it, or if this transaction's snapshot may be
-- too old (at any isolation level but READ COMMITTED).
create or replace function _try_lane(lane text) returns boolean
    language plpgsql set search_path from current
as $$
begin
    return current_setting('transaction_isolation') = 'read committed'
       and pg_try_advisory_xact_lock(hashtextextended(current_schema() || '/' || lane, 0));
end;
$$;

-- Tries to lock these lanes, except those that need no lock; returns those that this session now holds,
-- each once.
create or replace function _try_lanes(lanes text[]) returns text[]
    language plpgsql set search_path from current
as $$
begin
    return array(
        select l.lane from (
            select distinct u.lane from unnest(lanes) u(lane) where u.lane <> all (_job_lanes()) offset 0) l
        where _try_lane(l.lane));
end;
$$;

-- Deletes the requests of lanes that this session holds, before it looks at the lanes. If a queue's
-- settings have changed, transactions that are still open may have used the old ones: this writes
-- another request, to look again when they have ended. Returns the lanes with changed settings, and since
-- when the oldest request of a sequence has waited.
create or replace function _take_requests(
    lanes text[], walked bigint, out changed text[], out asked timestamptz)
    language plpgsql set search_path from current
as $$
declare
    v_xmin xid8 := pg_snapshot_xmin(pg_current_snapshot());
    v_again text[];
begin
    -- SKIP LOCKED: a session that is moving a request (_keep_requests) may keep it locked for long.
    with taken as (
        delete from promotion_requests w where w.id = any (array(
            select a.id from promotion_requests a
            where a.lane = any (lanes) and a.id > walked and (a.after is null or a.after < v_xmin)
            for update skip locked))
        returning w.lane, w.after, w.changed, w.at)
    select array_agg(distinct t.lane) filter (where t.changed),
           array_agg(distinct t.lane) filter (where t.changed and t.after = '0'),
           min(t.at) filter (where starts_with(t.lane, 'sequence:'))
    into changed, v_again, asked from taken t;
    if v_again is not null then
        insert into promotion_requests (lane, after, changed)
        select a.lane, _newest_transaction()::text::xid8, true from unnest(v_again) a(lane);
    end if;
end;
$$;

-- Up to 100 lanes that have requests, in order, from the lane of a random request on; after the
-- last lane it continues with the first. Used when open transactions may hold the lanes of all the
-- oldest requests.
create or replace function _other_lanes(walked bigint) returns text[]
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off
    set enable_sort = off set enable_incremental_sort = off set jit = off
as $$
begin
    return array(
        with recursive lanes as (
            (select w.lane, w.lane as first, 1 as n from promotion_requests w
             where w.id >= (
                 select min(a.id) + floor(random() * (max(a.id) - min(a.id) + 1))::bigint
                 from promotion_requests a where a.id > walked)
             order by w.id limit 1)
            union all
            select r.lane, l.first, l.n + 1
            from lanes l
            cross join lateral (select coalesce(
                (select w.lane from promotion_requests w where w.lane > l.lane order by w.lane limit 1),
                (select w.lane from promotion_requests w order by w.lane limit 1)) as lane) r
            where l.n < 100 and r.lane <> l.first)
        select l.lane from lanes l);
end;
$$;

-- The id of the oldest request that is left; requests that wait for transactions to end do not
-- count.
create or replace function _oldest_request() returns bigint
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off
    set enable_sort = off set enable_incremental_sort = off set jit = off
as $$
begin
    if current_setting('pyworker.walk_requests', true) <> '' then
        return (
            select w.id from promotion_requests w
            where w.id > _walked_requests() and w.after is null order by w.id limit 1);
    end if;
    return (select w.id from promotion_requests w where w.after is null order by w.id limit 1);
end;
$$;

-- After a costly walk along the requests: moves those that are left (at most 100) to the end of the
-- index, so that the next walk can begin there.
create or replace function _keep_requests(began timestamptz) returns void
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off
    set enable_sort = off set enable_incremental_sort = off set jit = off
as $$
declare
    v_last bigint := pg_sequence_last_value('promotion_requests_id_seq'::regclass);
    v_read bigint := _entries_read('promotion_requests_pkey');
    v_left bigint[] := array(
        select w.id from promotion_requests w where w.id <= v_last order by w.id limit 101);
begin
    if cardinality(v_left) > 100 or _entries_read('promotion_requests_pkey') - v_read < 2000 then
        return;
    end if;
    with moved as (
        delete from promotion_requests w where w.ctid = any (array(
            select k.ctid from promotion_requests k where k.id = any (v_left) for update skip locked))
        returning w.lane, w.after, w.changed, w.at, w.job_id, w.not_by)
    insert into promotion_requests (lane, after, changed, at, job_id, not_by)
    select m.lane, m.after, m.changed, m.at, m.job_id, m.not_by from moved m;
    if not exists (select from promotion_requests w where w.id = any (v_left)) then
        perform _keep_walk('requests', row('promotion_requests'::regclass::oid::bigint, null, array[row(
            0, '-infinity', v_last, null, null, null)::_span], null, null), began);
    end if;
end;
$$;
