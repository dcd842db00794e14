-- gate/pass: one session at a time answers the requests, and lets in what may run: docs/inside/gate.md.
--
-- A job that must wait stands apart from the index that claims walk: for its turn in a sequence, a slot of
-- its queue, its parents or a signal (`parked`). What is in that index may run: a claim decides nothing. Two
-- places let jobs in. The report of an end hands the place of the ended job to the next one of its lane
-- (gate/succession). All else is decided here.
--
-- Each statement that may let a job start leaves a request in its transaction: an add at the gate, an end
-- that handed nothing on, a changed setting, a retry. A turn that finds one takes the gate, a row lock, if
-- it is free, and goes on without it if not. A pass deletes the requests that it sees, and then looks at
-- their lanes, with new snapshots. So each committed change is seen by a pass that began after its commit.
-- If a pass is rolled back, its requests are there again.

-- Takes the gate until this transaction ends. The server ends a session that then idles.
create or replace function _take_gate() returns boolean
    language plpgsql set search_path from current
as $$
begin
    perform from gate g limit 1 for update skip locked;
    if not found then
        insert into gate (only_row) -- if the table is empty
        select true where (select true from gate g limit 1) is null on conflict do nothing;
        return false;
    elsif current_setting('idle_in_transaction_session_timeout')::interval not between '1 ms' and '5 s' then
        perform set_config('idle_in_transaction_session_timeout', '5s', true);
    end if;
    return true;
end;
$$;

-- One pass: answers up to 1,000 requests that are due; with only_lane those of one lane (and job). `wanted`:
-- how many jobs the caller would claim. `opened`: how many became available to claims. `again`: more requests
-- are due.
create or replace function _pass(
    wanted integer, only_lane text default null, only_job bigint default null,
    out opened integer, out again boolean)
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
    set enable_sort = off set enable_incremental_sort = off set jit = off
    set plan_cache_mode = force_generic_plan set lock_timeout = '200ms'
as $$
declare
    v_now constant timestamptz := clock();
    v_began constant timestamptz := clock_timestamp();
    v_read constant bigint := _entries_read('promotion_requests_open');
    v_gate record;
    v_xmin constant xid8 := pg_snapshot_xmin(pg_current_snapshot());
    v_own constant xid8 := pg_current_xact_id_if_assigned();
    v_taken record;
    v_placed record;
    v_filled record;
begin
    -- A floor above the transaction that wrote it is of another server, from which the table was restored.
    select case when age(g.xmin) <= age(g.floor::xid) then g.floor else '0' end as floor, g.floor_at
    into v_gate from gate g limit 1;
    with taken as (
        delete from promotion_requests r where r.ctid = any (array(
            select u.tid from (
                (select a.ctid as tid, a.later, a.xid, a.lane, a.job_id from promotion_requests a
                 where a.at is null and a.xid >= v_gate.floor order by a.xid, a.id limit 1000)
                union all
                (select t.ctid, t.later, t.xid, t.lane, t.job_id from promotion_requests t where t.at <= v_now
                 order by t.at limit 1000)) u
            where (not u.later or u.xid is distinct from v_own)
              and (only_lane is null or u.lane = only_lane and u.job_id is not distinct from only_job)))
        returning r.lane, r.job_id, r.since)
    select count(*) as requests, min(t.since) as since,
           array_agg(distinct substr(t.lane, 10)) filter (where starts_with(t.lane, 'sequence:'))
               as sequences,
           array_agg(distinct substr(t.lane, 7)) filter (where starts_with(t.lane, 'queue:')) as queues,
           array_agg(distinct substr(t.lane, 8)) filter (where starts_with(t.lane, 'family:')) as families,
           array_agg(t.lane) filter (where t.job_id is not null) as job_lanes,
           array_agg(t.job_id) filter (where t.job_id is not null) as job_ids,
           array_agg(t.since) filter (where t.job_id is not null) as sinces
    into v_taken from taken t;
    again := v_taken.requests >= 1000;
    opened := 0;
    if _entries_read('promotion_requests_open') - v_read > 1000 + 2 * v_taken.requests
       and not again and only_lane is null
       and v_gate.floor < v_xmin and (v_gate.floor_at < v_began - interval '1 second') is not false then
        update gate g set floor = v_xmin, floor_at = v_began;
    end if;
    if v_taken.job_ids is not null then
        v_placed := _answer_jobs(v_taken.job_lanes, v_taken.job_ids, v_taken.sinces);
        opened := v_placed.opened;
        v_taken.sequences := v_taken.sequences || v_placed.sequences;
        v_taken.queues := v_taken.queues || v_placed.queues;
    end if;
    if v_taken.sequences is not null then
        v_placed := _open_idle_sequences(v_taken.sequences, v_taken.since);
        opened := opened + v_placed.opened;
        v_taken.queues := v_taken.queues || v_placed.queues;
    end if;
    if v_taken.families is not null then
        v_taken.queues := v_taken.queues || _queues_of_families(v_taken.families);
    end if;
    if num_nonnulls(v_taken.queues, v_taken.families) > 0 then
        v_filled := _open_queues(v_taken.queues, v_taken.families, wanted);
        opened := opened + v_filled.opened;
        again := again or v_filled.again;
    end if;
end;
$$;

-- After a pass that failed: one lane after the other. A lane that fails is put off for 5 seconds: doctor
-- shows it.
create or replace function _pass_one_by_one(wanted integer, out opened integer, out again boolean)
    language plpgsql set search_path from current
as $$
declare
    v_now constant timestamptz := clock();
    v_lane record;
    v_pass record;
    v_problem text;
begin
    opened := 0;
    again := false;
    for v_lane in -- of the requests that _pass takes
        select distinct u.lane, u.job_id from (
            (select a.lane, a.job_id from promotion_requests a
             where a.at is null
               and a.xid >= (select case when age(g.xmin) <= age(g.floor::xid) then g.floor else '0' end
                             from gate g limit 1)
             order by a.xid, a.id limit 1000)
            union all
            (select t.lane, t.job_id from promotion_requests t where t.at <= v_now
             order by t.at limit 1000)) u
    loop
        begin
            v_pass := _pass(wanted, v_lane.lane, v_lane.job_id);
            opened := opened + v_pass.opened;
            again := again or v_pass.again;
        exception when others then
            get stacked diagnostics v_problem = message_text;
            raise warning 'the gate leaves % aside for 5 seconds: %', v_lane.lane, v_problem;
            delete from promotion_requests r
            where r.lane = v_lane.lane and r.job_id is not distinct from v_lane.job_id
              and (r.at is null or r.at <= v_now);
            insert into promotion_requests (lane, job_id, at, problem)
            values (v_lane.lane, v_lane.job_id, v_now + interval '5 seconds', v_problem);
        end;
    end loop;
end;
$$;

-- Asks for a look at a lane, at this time or, if that is null, at once. A timer is left out if there is an
-- earlier one of its lane.
create or replace function _ask_later(lanes text[], ats timestamptz[], since timestamptz default null)
    returns void
    language plpgsql set search_path from current
as $$
begin
    insert into promotion_requests (lane, at, since)
    select a.lane, a.at, coalesce(_ask_later.since, clock_timestamp()) from unnest(lanes, ats) a(lane, at)
    where not exists (
        select from promotion_requests t where t.lane = a.lane and t.at is not null and t.at <= a.at);
end;
$$;
