-- 85_maintain: history's partitions, pruning, and the one call that does every periodic duty.

-- The days in which something may expire: for each retention in use that of today's jobs and the next few.
create or replace function _partition_days(ahead integer) returns setof timestamptz
    language plpgsql stable set search_path from current
as $$
begin
    return query
    select distinct (date_trunc('day', (clock() + r.retention) at time zone 'UTC') + n * interval '1 day') at time zone 'UTC'
    from (select s.completed_retention from settings s union select s.cancelled_retention from settings s
          union select t.retention from tasks t) r(retention), generate_series(0, ahead) n
    where r.retention > interval '0' and r.retention <= interval '1 year'
    order by 1;
end;
$$;

-- A partition for each of these days. A day that already has rows in the default partition is left to it (they are pruned one by one).
create or replace function _make_partitions() returns void
    language plpgsql set search_path from current
as $$
declare
    v_day timestamptz;
    v_name text;
begin
    for v_day in
        select d.day from _partition_days(2) d(day) order by 1
    loop
        v_name := 'finished_jobs_' || to_char(v_day at time zone 'UTC', 'YYYYMMDD');
        continue when to_regclass(v_name) is not null or exists (
            select from finished_jobs_default f
            where f.expires_at >= v_day and f.expires_at < v_day + interval '24 hours');
        begin
            -- Attaching, unlike `create table … partition of`, does not lock out those who finish jobs.
            -- Until whoever is finishing a job has ended: it may have chosen the default partition for its row already, which would
            -- no longer take it. New ones wait for us, a moment.
            lock table only finished_jobs in share row exclusive mode;
            execute format('create table %I (like finished_jobs including constraints including compression)', v_name);
            -- Written out in UTC: the caller's DateStyle may name its time zone by letters that mean another one.
            execute format('alter table finished_jobs attach partition %I for values from (%L) to (%L)', v_name,
                           to_char(v_day at time zone 'UTC', 'YYYY-MM-DD "00:00+00"'),
                           to_char(v_day at time zone 'UTC' + interval '1 day', 'YYYY-MM-DD "00:00+00"'));
        exception when lock_not_available or check_violation then
            null; -- busy, or the first such row has just come in: the next call tries again
        end;
    end loop;
end;
$$;

-- Row by row, at most max_rows of each kind; then whole days.
create or replace function _prune(max_rows integer) returns bigint
    language plpgsql set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_now timestamptz := clock();
    v_gone bigint[];
    v_keys bytea[];
    v_pruned bigint := 0;
    v_once_retention interval := (select s.once_retention from settings s);
    v_partition text;
    v_rows bigint;
begin
    with gone as (
        delete from live_jobs j where j.id = any (array(
            select d.id from live_jobs d
            where d.expires_at <= v_now and (d.sequence_key is null or not _holds_up(d.sequence_key, d.id))
            order by d.expires_at limit max_rows for update skip locked))
        returning j.id, j.unique_key, j.sequence_key),
    unhalted as (
        delete from sequence_halts h using gone g where h.sequence_key = g.sequence_key and h.job_id = g.id returning h.sequence_key),
    woken as (
        -- Somebody may have come to wait behind it since the look above.
        insert into wakeups select 'sequence:' || u.sequence_key from unhalted u)
    select array_agg(g.id), array_agg(g.unique_key) filter (where g.unique_key is not null) into v_gone, v_keys from gone g;
    perform _release_unique_keys(v_keys);
    v_pruned := v_pruned + coalesce(cardinality(v_gone), 0);
    delete from errors e where e.job_id = any (v_gone);

    for v_partition in
        select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid
        where i.inhparent = 'finished_jobs'::regclass and c.relname ~ '^finished_jobs_[0-9]{8}$'
          and ((substr(c.relname, 15)::date + 1)::timestamp at time zone 'UTC') <= v_now
        order by 1
    loop
        begin
            -- What a sequence halts at stays as long as somebody waits behind it.
            execute format('update finished_jobs f set expires_at = $1 from %I p, sequence_halts h '
                           'where h.job_id = p.id and _holds_up(h.sequence_key, h.job_id) and f.id = p.id and f.tableoid = %L::regclass',
                           v_partition, v_partition) using v_now + interval '1 day';
            execute format('with unhalted as (delete from sequence_halts h using %I f where h.job_id = f.id returning h.sequence_key) '
                           'insert into wakeups select %L || u.sequence_key from unhalted u', v_partition, 'sequence:');
            execute format('delete from errors e using %I f where e.job_id = f.id', v_partition);
            execute format('select count(*), array_agg(f.unique_key) filter (where f.unique_key is not null) from %I f', v_partition)
            into v_rows, v_keys;
            execute format('drop table %I', v_partition);
            v_pruned := v_pruned + v_rows;
            perform _release_unique_keys(v_keys);
        exception when lock_not_available then
            exit; -- somebody reads history, and everybody who finishes a job queues up behind us: the next call tries again
        end;
    end loop;

    with gone as (
        delete from finished_jobs f
        where (f.tableoid, f.ctid) in (
            select d.tableoid, d.ctid from finished_jobs d
            where d.expires_at <= v_now and (d.sequence_key is null or not _holds_up(d.sequence_key, d.id))
            limit max_rows for update skip locked)
        returning f.id, f.unique_key, f.sequence_key),
    unhalted as (
        delete from sequence_halts h using gone g where h.sequence_key = g.sequence_key and h.job_id = g.id returning h.sequence_key),
    woken as (
        -- Somebody may have come to wait behind it since the look above.
        insert into wakeups select 'sequence:' || u.sequence_key from unhalted u)
    select array_agg(g.id), array_agg(g.unique_key) filter (where g.unique_key is not null) into v_gone, v_keys from gone g;
    perform _release_unique_keys(v_keys);
    delete from errors e where e.job_id = any (v_gone);
    if v_once_retention is not null then
        delete from once_marks o where o.key = any (array(
            select d.key from once_marks d where d.at < v_now - v_once_retention order by d.at limit max_rows for update skip locked));
    end if;
    delete from audit_log a where a.id = any (array(
        select d.id from audit_log d where d.at < v_now - interval '90 days' order by d.at limit max_rows for update skip locked));
    -- Halts by jobs of which nothing was kept.
    with unhalted as (
        delete from sequence_halts h
        where h.at < v_now - interval '30 days' and not _holds_up(h.sequence_key, h.job_id) and (get_job(h.job_id)).id is null
        returning h.sequence_key)
    insert into wakeups select 'sequence:' || u.sequence_key from unhalted u;
    return v_pruned + coalesce(cardinality(v_gone), 0);
end;
$$;

create or replace function prune() returns bigint
    language plpgsql security definer set search_path from current set lock_timeout = '200ms'
as $$
begin
    return _prune(2147483647);
end;
$$;
comment on function prune() is
    'Removes every finished or discarded job whose retention is over, with its errors; returns how many. Whole days go by dropping their '
    'partition. maintain() does the same in small bites.';

create or replace function maintain() returns jsonb
    language plpgsql security definer set search_path from current set lock_timeout = '200ms'
as $$
declare
    v_result jsonb;
    v_somewhere constant bytea := sha256(convert_to(random()::text, 'UTF8'));
begin
    -- One at a time; a second one has nothing to do.
    if not pg_try_advisory_xact_lock(hashtextextended(current_schema() || '/maintain', 0)) then
        return null;
    end if;
    perform _make_partitions();
    v_result := jsonb_build_object('pruned', _prune(1000));
    -- Keys whose release was passed over, or whose add rolled back after a release: a few of them, from anywhere.
    perform _release_unique_keys(
        array(select k.unique_key from unique_keys k where k.unique_key > v_somewhere order by k.unique_key limit 100)
        || array(select k.unique_key from unique_keys k where k.unique_key <= v_somewhere order by k.unique_key limit 100));
    -- Twice, as queries are asked only when nothing else is due.
    v_result := v_result || jsonb_build_object('scheduled', run_schedules() + run_schedules());
    -- Last: the lanes that these take are held to the end of the transaction, and whoever finishes a job meanwhile finds them taken.
    v_result := v_result || jsonb_build_object('rescued', sweep_workers() + _abandon_orphans());
    return v_result || jsonb_build_object('promoted', promote_jobs());
end;
$$;
comment on function maintain() is
    'Every periodic duty in one call: adds the jobs of schedules, promotes what is due, hands on the jobs of dead workers, makes and drops the daily partitions '
    'of history, prunes. Workers call it themselves; without workers, pg_cron may. Returns counts, or null while another call is at it.';

create or replace function configure(
    completed_retention interval default null, cancelled_retention interval default null, discarded_retention interval default null,
    max_payload_bytes integer default null, worker_ttl interval default null, max_crashes integer default null,
    once_retention interval default null) returns void
    language plpgsql security definer set search_path from current
as $$
begin
    if least(completed_retention, cancelled_retention, discarded_retention) < interval '0' then
        raise exception 'configure: a retention must not be negative, got %', least(completed_retention, cancelled_retention, discarded_retention)
            using errcode = 'PW001';
    elsif greatest(completed_retention, cancelled_retention, discarded_retention, once_retention) > interval '100 years' then
        raise exception 'configure: a retention must not be longer than 100 years, got %',
            greatest(completed_retention, cancelled_retention, discarded_retention, once_retention) using errcode = 'PW001';
    elsif max_payload_bytes < 1024 then
        raise exception 'configure: max_payload_bytes must be at least 1024, got %', max_payload_bytes using errcode = 'PW001';
    elsif worker_ttl < interval '12 seconds' or worker_ttl > interval '1 day' then
        -- Workers beat every 4 seconds: two beats may be lost.
        raise exception 'configure: worker_ttl must be at least 12 seconds and at most a day, got %', worker_ttl using errcode = 'PW001';
    elsif max_crashes < 1 then
        raise exception 'configure: max_crashes must be at least 1, got %', max_crashes using errcode = 'PW001';
    elsif once_retention < interval '1 hour' and once_retention <> interval '0' then
        raise exception 'configure: once_retention must be 0 (for good) or at least 1 hour, got %', once_retention using errcode = 'PW001';
    end if;
    update settings s
    set completed_retention = coalesce(configure.completed_retention, s.completed_retention),
        cancelled_retention = coalesce(configure.cancelled_retention, s.cancelled_retention),
        discarded_retention = coalesce(configure.discarded_retention, s.discarded_retention),
        max_payload_bytes = coalesce(configure.max_payload_bytes, s.max_payload_bytes),
        worker_ttl = coalesce(configure.worker_ttl, s.worker_ttl),
        max_crashes = coalesce(configure.max_crashes, s.max_crashes),
        once_retention = nullif(coalesce(configure.once_retention, s.once_retention), interval '0');
end;
$$;
comment on function configure(interval, interval, interval, integer, interval, integer, interval) is
    'Changes settings of the installation; null leaves one as it is. Retentions (0 deletes at once) of completed (24 hours), cancelled '
    '(24 hours) and discarded jobs (7 days), for jobs that end from now on; the largest payload (1 MiB); how long a silent worker is '
    'believed to live (20 seconds); in how many of its runs a job''s process may end (3); how long once() remembers (0, the default, for '
    'good). Errors: PW001.';
