-- features/waiters: how a caller waits for the end of a job (wait_for_job in Python).
--
-- It LISTENs on the channel named like the schema with '_ended' behind it, says so by await_job, looks at
-- the job, and looks again when it is notified with the job's id, or after a second. While a caller waits,
-- an end looks its job up in `waiters`; at other times it reads a register, which costs nearly nothing.

create or replace function await_job(job_id bigint, seconds double precision default 10) returns job
    language plpgsql security definer set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_now constant timestamptz := clock_timestamp();
    v_own constant bigint := pg_current_xact_id_if_assigned()::text::bigint;
    v_until timestamptz;
    v_job job;
begin
    if (seconds between 0 and 3600) is not true then
        raise exception 'await_job: seconds must be from 0 to 3600, got %', coalesce(seconds::text, 'NULL')
            using errcode = 'PW001';
    end if;
    v_job := get_job(job_id);
    if v_job.id is null then
        perform _refuse_unknown_job('await_job', job_id);
    elsif v_job.state in ('completed', 'cancelled', 'discarded') then
        null;
    -- A row that we see and that is not committed is our own. Transaction ids count modulo 2^32.
    elsif exists (select from live_jobs j,
                      lateral (select (j.xmin::text::bigint - v_own) & 4294967295) x(later)
                  where j.id = await_job.job_id and x.later < 2147483648
                    and pg_xact_status((v_own + x.later)::text::xid8) = 'in progress') then
        raise exception 'await_job: job % was added or changed in this transaction: commit before you wait '
            'for it', job_id using errcode = 'PW005';
    elsif seconds > 0 then
        v_until := v_now + make_interval(secs => seconds);
        delete from waiters w where w.ctid = any (array(
            select o.ctid from waiters o where o.until < v_now limit 100 for update skip locked));
        insert into waiters values (await_job.job_id, v_until);
        perform setval('waited_until', greatest(
            pg_sequence_last_value('waited_until'::regclass), (extract(epoch from v_until) * 1000)::bigint));
    end if;
    v_job.payload := null; -- who may add jobs may wait for any, and is not to read all payloads
    return v_job;
end;
$$;
comment on function await_job(bigint, double precision) is
    'Returns the job, without its payload, and if it has not ended, has its end NOTIFY the channel named '
    'like the schema with '
    '''_ended'' behind it, with the job''s id, for so many seconds (0 to 3600; 0: it only looks). LISTEN '
    'there before, and commit: then look again when notified, and after a second or so in any case. '
    'Errors: PW001; PW004; PW005 (this transaction has added or changed the job, so it cannot run yet).';

-- True while a caller waits for the end of a job.
create or replace function _jobs_are_awaited() returns boolean
    language sql volatile
    return coalesce(pg_sequence_last_value('waited_until'::regclass)
                    > extract(epoch from clock_timestamp()) * 1000, false);
