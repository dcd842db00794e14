-- features/maintain: prune removes all that has expired; maintain does every periodic duty in one call;
-- configure changes the settings. The single steps of pruning are in features/partitions.

-- Prunes what has expired, at most max_rows of each kind. `pruned`: how many jobs this call
-- deleted. `days`: the partitions that are ready to be dropped; `rests`: how many rows each of them
-- has left.
create or replace function _prune(max_rows integer, out pruned bigint, out days text[], out rests bigint[])
    language plpgsql set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_now timestamptz := clock();
    -- The partitions of days that are over, oldest first. All their rows have expired.
    v_ended constant text[] := array(
        select c.relname::text from pg_inherits i join pg_class c on c.oid = i.inhrelid
        where i.inhparent = 'finished_jobs'::regclass and c.relname ~ '^finished_jobs_[0-9]{8}$'
          and ((substr(c.relname, 15)::date + 1)::timestamp at time zone 'UTC') <= v_now
        order by 1 limit 20);
    v_pages bigint;
    v_span bigint;
    v_first bigint;
    v_day text;
    v_pruned bigint;
    v_rest bigint;
begin
    days := array[]::text[];
    rests := array[]::bigint[];
    pruned := _prune_finished(max_rows, v_ended) + _prune_jobs('live_jobs', array(
        select d.id from live_jobs d where d.expires_at <= v_now order by d.expires_at
        limit max_rows for update skip locked));
    delete from once_keys o where o.key = any (array(
        select d.key from once_keys d where d.at < v_now - (select s.once_retention from settings s)
        order by d.at limit max_rows for update skip locked));
    delete from audit_log a where a.id = any (array(
        select d.id from audit_log d where d.at < v_now - interval '90 days'
        order by d.at limit max_rows for update skip locked));
    perform _prune_vanished(max_rows);
    -- Halts older than 30 days whose job is gone and that block no job. No index has their time: reads 16
    -- pages from a random one on, or all pages if max_rows is above 1,000.
    v_pages := pg_relation_size('sequence_halts') / current_setting('block_size')::integer;
    v_span := case when max_rows > 1000 then v_pages + 1 else 16 end;
    v_first := floor(random() * greatest(v_pages - v_span + 1, 0));
    with unhalted as (
        delete from sequence_halts h
        where h.ctid >= format('(%s,0)', v_first)::tid and h.ctid < format('(%s,0)', v_first + v_span)::tid
          and h.at < v_now - interval '30 days' and not _blocks_sequence(h.sequence_key, h.job_id)
          and (get_job(h.job_id)).id is null
        returning h.sequence_key)
    insert into promotion_requests (lane) select 'sequence:' || u.sequence_key from unhalted u;
    perform _prune_starts(max_rows);
    foreach v_day in array v_ended loop
        begin
            select e.pruned, e.rest into v_pruned, v_rest from _empty_day(v_day, max_rows) e;
        exception when lock_not_available then
            -- Another session has one of the day's jobs locked: prune the others row by row.
            pruned := pruned + _prune_finished(max_rows, '{}');
            exit;
        end;
        pruned := pruned + v_pruned;
        exit when v_rest is null;
        days := days || v_day;
        rests := rests || v_rest;
    end loop;
end;
$$;

-- Ends a pruning: drops its days until one is locked, and returns how many jobs were pruned in all. If not
-- even the first day can be dropped, prunes row by row. From a drop on no job can be finished until the
-- transaction ends: call it last.
create or replace function _finish_pruning(
    max_rows integer, pruned bigint, days text[], rests bigint[], may_lock boolean) returns bigint
    language plpgsql set search_path from current
as $$
declare
    v_dropped integer := 0;
begin
    for i in 1..case when may_lock then cardinality(days) else 0 end loop
        begin
            execute format('drop table %I', days[i]);
        exception when lock_not_available then -- a session reads history, and every finish waits behind us
            exit;
        when others then -- an event trigger of the database, for instance: its jobs are pruned one by one
            raise warning '% was not dropped: %', days[i], sqlerrm;
            exit;
        end;
        v_dropped := i;
    end loop;
    return pruned + coalesce((select sum(r.n) from unnest(rests[:v_dropped]) r(n)), 0)
        + case when v_dropped = 0 and days <> '{}' then _prune_finished(max_rows, '{}') else 0 end;
end;
$$;

create or replace function prune() returns bigint
    language plpgsql security definer set search_path from current set lock_timeout = '200ms'
as $$
declare
    v_may_lock constant boolean := pg_current_xact_id_if_assigned() is null; -- see maintain
    v_max constant integer := 2147483647;
    v_pruned record;
begin
    select p.* into v_pruned from _prune(v_max) p;
    return _finish_pruning(v_max, v_pruned.pruned, v_pruned.days, v_pruned.rests, v_may_lock);
end;
$$;
comment on function prune() is
    'Removes every finished or discarded job whose retention is over, with its errors; returns '
    'how many. Whole days are removed by dropping their partition. maintain() does the same in '
    'small steps.';

-- Releases unique keys whose release was skipped, or whose add rolled back after a release: checks up to 200
-- keys, half of them from a random place on.
create or replace function _check_unique_keys() returns void
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off
    set enable_sort = off set enable_incremental_sort = off set jit = off
as $$
declare
    v_somewhere constant bytea := sha256(convert_to(random()::text, 'UTF8'));
begin
    perform _release_unique_keys(
        array(
            select k.unique_key from unique_keys k where k.unique_key > v_somewhere
            order by k.unique_key limit 100)
        || array(
            select k.unique_key from unique_keys k where k.unique_key <= v_somewhere
            order by k.unique_key limit 100));
end;
$$;

create or replace function maintain() returns jsonb
    language plpgsql security definer set search_path from current set lock_timeout = '200ms'
as $$
declare
    -- Locks on history are held until the transaction ends, so a transaction that has already
    -- written does not take them.
    v_may_lock constant boolean := pg_current_xact_id_if_assigned() is null;
    v_fired integer := 0;
    v_turn record;
    v_pruned record;
    v_result jsonb;
    v_xmax xid8;
begin
    -- When it is due again. A rollback does not undo that, so a call that fails is not repeated at once.
    perform setval('maintain_at', ((extract(epoch from clock_timestamp()) + 60) * 1000)::bigint);
    -- Only one call runs at a time; a second one returns null.
    if not pg_try_advisory_xact_lock(hashtextextended(current_schema() || '/maintain', 0)) then
        return null;
    end if;
    -- Schedules may take long, so they come first, while nothing is locked that others need. Twice,
    -- as queries are run only when nothing else is due. A query that has just run out of time is
    -- left to run_schedules(), which workers call with a time limit.
    for i in 1..2 loop
        select r.* into v_turn from _run_schedules('5 seconds') r;
        v_fired := v_fired + v_turn.fired;
        exit when v_turn.fired = 0 or v_turn.cut_off;
    end loop;
    v_result := jsonb_build_object('scheduled', v_fired);
    select p.* into v_pruned from _prune(1000) p;
    perform _check_unique_keys();
    -- Numbers of transactions that this server has not reached are of another one, from which this database
    -- was restored. Here no such transaction will end for long, so nothing waits for it. The register may be
    -- ahead of this snapshot, but not by far.
    v_xmax := pg_snapshot_xmax(pg_current_snapshot());
    update held_settings h set seen_by = '0' where h.seen_by >= v_xmax;
    perform setval('silent_before', v_xmax::text::bigint) from silent_before s
    where s.last_value > v_xmax::text::bigint + 100000;
    v_result := v_result || jsonb_build_object('rescued', sweep_workers() + _rescue_jobs(
        array(select distinct c.worker_id from claims c -- of workers that died longer ago, or are unknown
              where not exists (select from workers w where w.id = c.worker_id and _is_registered(w))),
        'worker died'));
    v_result := v_result || jsonb_build_object('promoted', promote_jobs());
    -- Last, to hold them briefly: the locks on history that every finish waits for.
    v_result := v_result || jsonb_build_object(
        'pruned', _finish_pruning(1000, v_pruned.pruned, v_pruned.days, v_pruned.rests, v_may_lock));
    if v_may_lock then
        perform _make_partitions();
    end if;
    perform setval('maintain_at', ((extract(epoch from clock_timestamp()) + case
        when (v_result -> 'pruned')::bigint >= 1000 then 0
        when exists (select from jsonb_each(v_result) r where r.value > '0') then 15
        else 60 end) * 1000)::bigint);
    return v_result;
end;
$$;
comment on function maintain() is
    'Does every periodic duty in one call: adds the jobs of schedules, promotes jobs that are '
    'due, rescues the jobs of dead workers, makes and drops the daily partitions of history, '
    'prunes. Workers call it when beat says so; without workers, pg_cron can call it. Call it in a '
    'transaction of its own: in a transaction that has written before, it leaves partitions '
    'alone, as every finish would wait for the end of that transaction. Returns counts, or null '
    'while another call runs.';

create or replace function configure(
    completed_retention interval default null, cancelled_retention interval default null,
    discarded_retention interval default null, max_payload_bytes integer default null,
    worker_ttl interval default null, max_crashes integer default null,
    once_retention interval default null, notify_discarded boolean default null) returns void
    language plpgsql security definer set search_path from current
as $$
begin
    if least(completed_retention, cancelled_retention, discarded_retention) < interval '0' then
        raise exception 'configure: a retention must not be negative, got %',
            least(completed_retention, cancelled_retention, discarded_retention)
            using errcode = 'PW001';
    elsif greatest(completed_retention, cancelled_retention, discarded_retention, once_retention)
          > interval '100 years' then
        raise exception 'configure: a retention must not be longer than 100 years, got %',
            greatest(completed_retention, cancelled_retention, discarded_retention, once_retention)
                using errcode = 'PW001';
    elsif max_payload_bytes < 1024 then
        raise exception 'configure: max_payload_bytes must be at least 1024, got %', max_payload_bytes
            using errcode = 'PW001';
    elsif worker_ttl < interval '12 seconds' or worker_ttl > interval '1 day' then
        -- Workers extend their leases every 4 seconds; two beats may be lost.
        raise exception 'configure: worker_ttl must be at least 12 seconds and at most a day, got %',
            worker_ttl using errcode = 'PW001';
    elsif max_crashes < 1 then
        raise exception 'configure: max_crashes must be at least 1, got %', max_crashes
            using errcode = 'PW001';
    elsif once_retention < interval '1 hour' and once_retention <> interval '0' then
        raise exception 'configure: once_retention must be 0 (for good) or at least 1 hour, got %',
            once_retention using errcode = 'PW001';
    end if;
    update settings s
    set completed_retention = coalesce(configure.completed_retention, s.completed_retention),
        cancelled_retention = coalesce(configure.cancelled_retention, s.cancelled_retention),
        discarded_retention = coalesce(configure.discarded_retention, s.discarded_retention),
        max_payload_bytes = coalesce(configure.max_payload_bytes, s.max_payload_bytes),
        worker_ttl = coalesce(configure.worker_ttl, s.worker_ttl),
        max_crashes = coalesce(configure.max_crashes, s.max_crashes),
        once_retention = nullif(coalesce(configure.once_retention, s.once_retention), interval '0'),
        notify_discarded = coalesce(configure.notify_discarded, s.notify_discarded);
end;
$$;
comment on function configure(
    interval, interval, interval, integer, interval, integer, interval, boolean) is
    'Changes settings of the installation; null leaves a setting as it is. Retentions (0 deletes '
    'at once) of completed (24 hours), cancelled (24 hours) and discarded jobs (7 days), for jobs '
    'that end from now on; the largest payload (1 MiB); how long a worker without a heartbeat '
    'counts as live (20 seconds); after how many runs whose process ended a job is discarded (3); '
    'how long once() remembers a key (0, the default, for ever); whether each job that is discarded '
    'notifies the channel named like the schema with ''_discarded'' behind it, with its id (false). '
    'Errors: PW001.';
