-- 23_deadlines: limits of a job's waiting: expires_at, and max_wait of a job that adds put off.
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

-- How long a waiting job may be put off, after an add with its key: until when; since when it waits, and
-- its run at that time. The earliest `until` that any add gave counts. If the job has run since, or is
-- discarded, it waits from now on.
create or replace function _wait_of(job live_jobs, max_wait interval, now timestamptz) returns _wait
    language plpgsql immutable set search_path from current
as $$
begin
    if job.run > coalesce(job.waits_run, 0) or job.state = 'discarded' then
        return (now + max_wait, now, job.run)::_wait;
    end if;
    return (least(job.wait_until, coalesce(job.waits_since, job.created_at) + max_wait),
            coalesce(job.waits_since, job.created_at), job.run)::_wait;
end;
$$;

-- Cancels jobs whose time to begin is over.
create or replace function _expire_jobs() returns void
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
as $$
declare
    v_expired bigint[];
begin
    if not _coordination_is_used() then
        return;
    end if;
    v_expired := array(
        select j.id from live_jobs j where j.start_by <= clock()
        order by j.start_by limit 1000 for update skip locked);
    if v_expired <> '{}' then
        perform _finalize_jobs(
            v_expired, null, 'cancelled', null, 'expired', 'it had not begun by its expires_at');
    end if;
end;
$$;
