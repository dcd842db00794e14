-- heart/due: makes jobs available whose time has come; promote_jobs. What waits for something else than
-- its time is let in by the gate (gate/pass).

-- When there is something to do: `asked`, a request to answer at once; `timer`, when the next one is to be
-- answered; `due_at`, when the next job is due; `first`, the place right before the first job that is ready,
-- from this floor on; `xmin`: transactions before it had ended. PostgreSQL inlines it.
create or replace function _look(due_from timestamptz, floor _floor)
    returns table (asked boolean, timer timestamptz, due_at timestamptz, first _floor, xmin xid8)
    language sql stable
begin atomic
    select (select true from promotion_requests r
            where r.at is null
              and r.xid >= (select case when age(g.xmin) <= age(g.floor::xid) then g.floor else '0' end
                            from gate g limit 1) -- see _pass
            order by r.xid, r.id limit 1),
           (select r.at from promotion_requests r where r.at is not null order by r.at limit 1),
           (select j.due_at from live_jobs j where j.due_at > _look.due_from order by j.due_at, j.id limit 1),
           (select row(j.priority, j.ready_at, j.id - 1, null)::_floor from live_jobs j
            where j.ready_at is not null and j.state = 'available'
              and (j.priority, j.ready_at, j.id)
                  > ((_look.floor).priority, (_look.floor).at, (_look.floor).id)
            order by j.priority, j.ready_at, j.id limit 1),
           pg_snapshot_xmin(pg_current_snapshot());
end;

-- True if this transaction may answer requests: it does nothing else, and sees what others have committed.
create or replace function _may_open() returns boolean
    language sql volatile
    return pg_current_xact_id_if_assigned() is null
           and current_setting('transaction_isolation') = 'read committed';

create or replace function promote_jobs() returns integer
    language plpgsql security definer set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
    set enable_sort = off set enable_incremental_sort = off set jit = off
    set plan_cache_mode = force_generic_plan
as $$
declare
    v_may_open constant boolean := _may_open();
    v_promoted integer := 0;
    v_open _opened;
begin
    for i in 1..1000 loop
        v_open := _open(v_may_open, true, 100);
        v_promoted := v_promoted + v_open.jobs;
        exit when not v_open.again;
    end loop;
    perform _notify_workers() where v_promoted > 0;
    return v_promoted;
end;
$$;
comment on function promote_jobs() is
    'Makes jobs available that need not wait any longer: scheduled and retryable jobs that are '
    'due, pending jobs whose turn it is in their sequence, and jobs whose queue has a free slot. '
    'Returns how many became available to claims. Each claim does the same, and maintain for jobs that are '
    'due; calling it more often does no harm. In a transaction that has written something already, or at '
    'another isolation level than READ COMMITTED, it only looks at the jobs that are due.';

-- Looks at what is due: makes jobs available, and answers requests if it may and no other session does.
-- `due`: jobs are due; `wanted`: how many jobs the caller would claim.
create or replace function _open(may_open boolean, due boolean, wanted integer) returns _opened
    language plpgsql set search_path from current
as $$
declare
    v_open _opened;
    v_pass record;
begin
    if _coordination_is_used() then
        perform _expire_jobs();
    end if;
    v_open.jobs := case when due then _promote_due() else 0 end;
    v_open.again := v_open.jobs >= 1000;
    v_open.held := may_open and _take_gate();
    if v_open.held then
        begin
            v_pass := _pass(wanted);
        exception when others then
            v_pass := _pass_one_by_one(wanted);
        end;
        v_open.jobs := v_open.jobs + v_pass.opened;
        v_open.again := v_open.again or v_pass.again;
    end if;
    return v_open;
end;
$$;

-- Promotes up to 1,000 due jobs: scheduled and retryable ones, and those that have waited long enough for
-- a signal. Those of limited queues go to the gate. Returns how many became available to claims.
create or replace function _promote_due() returns integer
    language plpgsql set search_path from current
as $$
declare
    v_began constant timestamptz := clock_timestamp();
    v_now timestamptz := clock();
    v_from constant timestamptz := _floor_of_due();
    v_read constant bigint := _entries_read('live_jobs_due');
    v_due tid[];
    v_limited text[];
    v_ready integer;
begin
    v_due := array(
        select d.ctid from live_jobs d where d.due_at <= v_now and d.due_at > v_from
        order by d.due_at, d.id limit 1000 for update skip locked);
    if v_from = '-infinity' and _entries_read('live_jobs_due') - v_read > 2000 + 2 * cardinality(v_due)
       -- Only if this call takes every due job: no more are due than one call takes, and no other
       -- session has one locked. Then the next walk may begin at the time of a second ago.
       and not exists (select from live_jobs d where d.due_at <= v_now and d.ctid <> all (v_due)) then
        perform _keep_floor(
            'due', 'live_jobs'::regclass::oid::text, 0::smallint, v_now - interval '1 second', 0,
            (extract(epoch from clock_timestamp() - v_began) * 1000000)::bigint, null);
    end if;
    if v_due = '{}' then
        return 0;
    end if;
    v_limited := array(
        select q.queue_name from _queues_of(array(
            select distinct d.queue_name from live_jobs d
            where d.ctid = any (v_due) and d.queue_name is not null)) q
        where q.slots is not null);
    with due as (
        update live_jobs j
        set state = 'available', updated_at = v_now, due_at = null,
            parked = case when l.name is not null then 'queue' end,
            ready_at = case when l.name is not null then null
                            when j.parked = 'signal' then v_now else j.run_at end
        from unnest(v_due) d(tid)
        left join lateral (select i.queue_name from live_jobs i where i.ctid = d.tid) q on true
        left join unnest(v_limited) l(name) on l.name = q.queue_name
        where j.ctid = d.tid and (j.unique_recheck is null or j.state <> 'retryable')
        returning j.ready_at, j.queue_name),
    asked as (
        insert into promotion_requests (lane)
        select distinct 'queue:' || d.queue_name from due d where d.ready_at is null)
    select count(*) filter (where d.ready_at is not null) into v_ready from due d;
    return v_ready + _promote_rechecked(v_due);
end;
$$;

-- River's rule for retries that did not hold their unique key while they waited: one job per key
-- survives, and the others are discarded. The row of the key is locked, so that each job sees the outcome of
-- the one before. A key that an add or another promotion has locked is left to the next call.
create or replace function _promote_rechecked(due tid[]) returns integer
    language plpgsql set search_path from current
as $$
declare
    v_job live_jobs;
    v_promoted integer := 0;
begin
    for v_job in
        select d.* from live_jobs d
        cross join lateral (
            select from unique_keys k where k.unique_key = d.unique_key for update skip locked) held
        where d.ctid = any (due) and d.state = 'retryable' and d.unique_recheck is not null
        order by d.due_at, d.id
    loop
        update live_jobs j
        set meta = coalesce(j.meta, '{}') || '{"unique_key_conflict": "scheduler_discarded"}'
        where j.id = v_job.id and (
            exists (select from live_jobs l
                    where l.unique_key = j.unique_key and l.id <> j.id and l.state = any (j.unique_recheck))
            or exists (select from finished_jobs f
                       where f.unique_key = j.unique_key and f.state = any (j.unique_recheck)));
        perform _leave(array[row(
            v_job.id, case when found then 'discarded' else 'retryable' end, v_job.run_at, null,
            'its unique key was taken while it waited for its retry', null, null, null)::_move]);
        v_promoted := v_promoted + (
            select count(*) from live_jobs j where j.id = v_job.id and j.ready_at is not null);
    end loop;
    return v_promoted;
end;
$$;
