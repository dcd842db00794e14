-- 46_log: the log of a job: log_job and log_jobs write what its handler says, job_log shows it.
--
-- A line belongs to a run. The last run of a job may log, also what it had not written when it ended; an
-- older run may not. Nothing is locked: a line delays no report, and no report a line.

create or replace function log_job(job_id bigint, run bigint, message text, level text default 'info')
    returns void
    language plpgsql security definer set search_path from current
as $$
declare
    v_problem text := _log_refusal(message, level);
begin
    if v_problem is not null then
        raise exception 'log_job: %', v_problem using errcode = 'PW001';
    elsif _add_log_lines(array[job_id], array[run], array[message], array[level], array[clock()]) = 0 then
        raise exception 'log_job: job % is not held by run % any more', coalesce(job_id::text, 'NULL'),
            coalesce(run::text, 'NULL')
            using errcode = 'PW002', hint = 'The claim was lost: stop.';
    end if;
end;
$$;
comment on function log_job(bigint, bigint, text, text) is
    'Adds a line to the log of a job, for its last run. level: debug, info, warning or error. Of a message '
    'the first 2,000 characters are kept, and of a job the newest 200 lines, as long as the job (job_log). '
    'A line logged in a transaction is seen from its commit on. For many lines: log_jobs. Errors: PW001; '
    'PW002 on a stale run.';

-- Why the line cannot be kept; null if it can.
create or replace function _log_refusal(message text, level text) returns text
    language sql immutable
    return case when message is null then 'message must not be null'
                when (level = any ('{debug,info,warning,error}')) is not true
                    then format('level must be debug, info, warning or error, got %L', left(level, 40)) end;

create or replace function log_jobs(lines jsonb) returns bigint
    language plpgsql security definer set search_path from current
as $$
declare
    v_now timestamptz := clock();
    v_malformed text;
    v_kept bigint;
begin
    if lines is null or jsonb_typeof(lines) <> 'array' then
        raise exception 'log_jobs: lines must be a JSON array of objects, got %',
            coalesce(jsonb_typeof(lines), 'NULL') using errcode = 'PW001';
    end if;
    with line as materialized (
        select i.value, i.nr, coalesce(i.value ->> 'level', 'info') as level, i.value ->> 'message' as message
        from jsonb_array_elements(lines) with ordinality i(value, nr)),
    checked as materialized (
        select l.*, case
            when jsonb_typeof(l.value) <> 'object' then 'it must be an object'
            when (l.value ->> 'id' ~ '^[0-9]{1,18}$') is not true then 'id must be an integer'
            when (l.value ->> 'run' ~ '^[0-9]{1,18}$') is not true then 'run must be an integer'
            when jsonb_typeof(l.value -> 'ago_s') not in ('number', 'null')
                then 'ago_s must be a number of seconds'
            else _log_refusal(l.message, l.level) end as problem
        from line l)
    select string_agg(format('item %s: %s', c.nr, c.problem), '; ' order by c.nr)
               filter (where c.problem is not null),
           _add_log_lines(
               array_agg((c.value ->> 'id')::bigint order by c.nr) filter (where c.problem is null),
               array_agg((c.value ->> 'run')::bigint order by c.nr) filter (where c.problem is null),
               array_agg(c.message order by c.nr) filter (where c.problem is null),
               array_agg(c.level order by c.nr) filter (where c.problem is null),
               array_agg(v_now - make_interval(secs => least(greatest(
                   coalesce((c.value ->> 'ago_s')::numeric, 0), 0), 86400)::double precision) order by c.nr)
                   filter (where c.problem is null))
    into v_malformed, v_kept from checked c;
    if v_malformed is not null then
        raise warning 'log_jobs: malformed items are left out: %', left(v_malformed, 1000);
    end if;
    return v_kept;
end;
$$;
comment on function log_jobs(jsonb) is
    'log_job for many lines: [{"id", "run", "message", "level"?, "ago_s"?}], the older ones first. ago_s: '
    'how many seconds ago it was logged, up to a day. Ids and runs may be strings. Returns how many lines '
    'were kept: those of stale runs are left out, and so are malformed items, which a warning names. '
    'Errors: PW001.';

-- Adds the lines of runs that are the last of their jobs, and drops the oldest lines of jobs that have too
-- many. Returns how many it has added.
create or replace function _add_log_lines(
    ids bigint[], runs bigint[], messages text[], levels text[], times timestamptz[]) returns bigint
    language plpgsql set search_path from current
    set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_jobs bigint[];
    v_added bigint;
begin
    perform nextval('coordination_used') where not _coordination_is_used();
    with held as materialized (
        select d.id, d.run, h.attempts
        from (select distinct l.id, l.run from unnest(ids, runs) l(id, run)) d
        cross join lateral (
            select j.attempts from live_jobs j where j.id = d.id and j.run = d.run
            union all
            select f.attempts from finished_jobs f where f.id = d.id and f.run = d.run
            limit 1) h),
    added as (
        insert into log_lines (job_id, run, attempt, at, level, message)
        select h.id, h.run, h.attempts, l.at, l.level,
               case when length(l.message) > 2000 then left(l.message, 1999) || '…' else l.message end
        from unnest(ids, runs, messages, levels, times)
             with ordinality l(id, run, message, level, at, nr)
        join held h on h.id = l.id and h.run = l.run
        order by l.nr
        returning job_id)
    select array_agg(distinct a.job_id), count(*) into v_jobs, v_added from added a;
    delete from log_lines l where l.ctid = any (array(
        select o.ctid from unnest(v_jobs) i(id)
        cross join lateral (
            select n.id from log_lines n where n.job_id = i.id order by n.id desc offset 200 limit 1) last
        join log_lines o on o.job_id = i.id and o.id <= last.id
        for update of o skip locked)); -- another session may be dropping them
    return v_added;
end;
$$;

create or replace function job_log(job_id bigint)
    returns table (run bigint, attempt smallint, at timestamptz, level text, message text)
    language plpgsql stable security definer set search_path from current
    set enable_seqscan = off set jit = off
as $$
begin
    return query
    select l.run, l.attempt, l.at, l.level, l.message from log_lines l where l.job_id = job_log.job_id
    order by l.job_id, l.id;
end;
$$;
comment on function job_log(bigint) is
    'What the runs of a job have logged (log_job; job.log in Python), oldest first: the newest 200 lines, '
    'live or in history. attempt: that run''s attempt.';
