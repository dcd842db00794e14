-- features/deadlines: limits of a job's waiting: expires_at, and max_wait of a job that adds put off.
--
-- The column start_by has expires_at until the job's first claim, which clears it. A claim passes over a
-- job whose start_by is over; _expire_jobs cancels it, called by promotions and by one beat a second.

-- Why expires_at or max_wait is invalid; null if they are valid.
create or replace function _deadline_refusal(expires_at timestamptz, job_key text, max_wait interval)
    returns text
    language plpgsql stable set search_path from current
as $$
begin
    return case
        when expires_at <= clock() or expires_at > '9999-12-30 00:00+00'
            then format('expires_at must be a time ahead, up to the year 9999, got %s', expires_at)
        when max_wait is not null and job_key is null
            then format('max_wait needs a job_key, got %s without one', max_wait)
        when max_wait < interval '0' or max_wait > interval '1000 years'
            then format('max_wait must be from 0 to 1000 years, got %s', max_wait) end;
end;
$$;

-- True if a replace begins a new wait: the job has run since it began to wait, or is discarded.
create or replace function _waits_again(job live_jobs) returns boolean
    language sql immutable
    return (job).run > coalesce((job).waits_run, 0) or (job).state = 'discarded';

-- Cancels jobs whose time to begin is over. It remembers how far it has walked (heart/floors): a job that
-- commits with an earlier time, or that another session has locked, is cancelled up to two seconds later.
create or replace function _expire_jobs() returns void
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off
    set enable_sort = off set enable_incremental_sort = off set jit = off
as $$
declare
    v_owner constant text := 'live_jobs'::regclass::oid;
    v_now constant timestamptz := clock();
    v_began constant timestamptz := clock_timestamp();
    v_from timestamptz;
    v_read bigint;
    v_expired bigint[];
begin
    if not _coordination_is_used() then
        return;
    end if;
    v_from := coalesce((_floor_of('expired', v_owner)).at, '-infinity');
    v_read := _entries_read('live_jobs_start_by');
    v_expired := array(
        select j.id from live_jobs j where j.start_by <= v_now and j.start_by > v_from
        order by j.start_by limit 1000 for update skip locked);
    if v_from = '-infinity' and cardinality(v_expired) < 1000
       and _entries_read('live_jobs_start_by') - v_read > 2000 + 2 * cardinality(v_expired) then
        perform _keep_floor('expired', v_owner, 0::smallint, v_now - interval '1 second', 0,
                            (extract(epoch from clock_timestamp() - v_began) * 1000000)::bigint, null);
    end if;
    if v_expired <> '{}' then
        perform _finalize_jobs(
            v_expired, null, 'cancelled', null, 'expired', 'it had not begun by its expires_at');
    end if;
end;
$$;
