-- features/log: the log of a job: turns, log_job and log_jobs write what its handler says, job_log shows it.
--
-- A line belongs to a run. The last run of a job may log, also what it had not written when it ended; an
-- older run may not. No job is locked: a line delays no report, and no report a line.

create or replace function log_job(job_id bigint, run bigint, message text, level text default 'info')
    returns void
    language plpgsql security definer set search_path from current
as $$
declare
    v_problem text := _log_refusal(message, level);
    v_jobs bigint[];
begin
    if v_problem is not null then
        raise exception 'log_job: %', v_problem using errcode = 'PW001';
    end if;
    v_jobs := _add_log_lines(array[job_id], array[run], array[message], array[level], array[clock()]);
    if v_jobs is null then
        raise exception 'log_job: job % is not held by run % any more', coalesce(job_id::text, 'NULL'),
            coalesce(run::text, 'NULL')
            using errcode = 'PW002', hint = 'The claim was lost: stop.';
    end if;
    perform _trim_logs(v_jobs);
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
    v_jobs bigint[];
begin
    if lines is null or jsonb_typeof(lines) <> 'array' then
        raise exception 'log_jobs: lines must be a JSON array of objects, got %',
            coalesce(jsonb_typeof(lines), 'NULL') using errcode = 'PW001';
    end if;
    v_jobs := _log_items('log_jobs', lines);
    perform _trim_logs(v_jobs);
    return coalesce(cardinality(v_jobs), 0);
end;
$$;
comment on function log_jobs(jsonb) is
    'log_job for many lines: [{"id", "run", "message", "level"?, "ago_s"?}], the older ones first. ago_s: '
    'how many seconds ago it was logged, up to a day. Ids and runs may be strings. Returns how many lines '
    'were kept: those of stale runs are left out, and so are malformed items, which a warning names. '
    'Errors: PW001.';

-- Adds these lines, except malformed ones, which a warning names. Returns the job of each that it added.
create or replace function _log_items(caller text, lines jsonb) returns bigint[]
    language plpgsql set search_path from current set jit = off
as $$
declare
    v_now timestamptz := clock();
    v_malformed text;
    v_jobs bigint[];
begin
    with checked as materialized (
        select r.*, i.nr, i.value, case
            when jsonb_typeof(i.value) <> 'object' then 'it must be an object'
            when r.id is null then 'id must be an integer'
            when r.run is null then 'run must be an integer'
            when jsonb_typeof(i.value -> 'ago_s') not in ('number', 'null')
                then 'ago_s must be a number of seconds'
            else _log_refusal(r.message, r.level) end as problem
        from jsonb_array_elements(lines) with ordinality i(value, nr)
        cross join lateral (
            select _bigint_of(i.value -> 'id') as id, _bigint_of(i.value -> 'run') as run,
                   i.value ->> 'message' as message, coalesce(i.value ->> 'level', 'info') as level
            offset 0) r)
    select string_agg(format('item %s: %s', c.nr, c.problem), '; ' order by c.nr)
               filter (where c.problem is not null),
           _add_log_lines(
               array_agg(c.id) filter (where c.problem is null),
               array_agg(c.run) filter (where c.problem is null),
               array_agg(c.message) filter (where c.problem is null),
               array_agg(c.level) filter (where c.problem is null),
               array_agg(v_now - make_interval(secs => least(greatest(
                   coalesce((c.value ->> 'ago_s')::numeric, 0), 0), 86400)::double precision))
                   filter (where c.problem is null))
    into v_malformed, v_jobs from checked c;
    if v_malformed is not null then
        raise warning '%: malformed items are left out: %', caller, left(v_malformed, 1000);
    end if;
    return v_jobs;
end;
$$;

-- Adds the lines among the reports of a turn; if that is refused, a warning says so, and the reports count.
-- Returns the other reports, and the job of each line that it added, for _trim_logs. Call it before the
-- reports are settled, which may give an attempt back.
create or replace function _log_of_turn(reports jsonb, out others jsonb, out jobs bigint[])
    language plpgsql set search_path from current set jit = off
as $$
declare
    v_lines jsonb;
begin
    select jsonb_agg(r.value order by r.n) filter (where r.is_line),
           coalesce(jsonb_agg(r.value order by r.n) filter (where not r.is_line), '[]')
    into v_lines, others
    from (select i.value, i.n, (i.value ->> 'do' = 'log') is true as is_line
          from jsonb_array_elements(reports) with ordinality i(value, n)) r;
    if v_lines is not null then
        begin
            jobs := _log_items('work', v_lines);
        exception
            when lock_not_available then
                raise;
            when others then
                raise warning 'work: the lines that jobs have logged cannot be written: %', sqlerrm;
        end;
    end if;
end;
$$;

-- Adds the lines of runs that are the last of their jobs. Returns the job of each line that it added.
create or replace function _add_log_lines(
    ids bigint[], runs bigint[], messages text[], levels text[], times timestamptz[]) returns bigint[]
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
    set plan_cache_mode = force_generic_plan
as $$
declare
    v_jobs bigint[];
begin
    perform nextval('coordination_used') where not _coordination_is_used();
    with added as (
        insert into log_lines (job_id, run, attempt, at, level, message)
        select l.id, l.run, h.attempts, l.at, l.level,
               case when length(l.message) > 2000 then left(l.message, 1999) || '…' else l.message end
        from unnest(ids, runs, messages, levels, times)
             with ordinality l(id, run, message, level, at, nr)
        cross join lateral (
            select j.attempts from live_jobs j where j.id between l.id and l.id and j.run = l.run
            union all
            select f.attempts from finished_jobs f where f.id between l.id and l.id and f.run = l.run
            limit 1) h
        order by l.nr
        returning job_id)
    select array_agg(a.job_id) into v_jobs from added a;
    return v_jobs;
end;
$$;

-- Drops the oldest lines of those of these jobs that have more than 200. A turn calls it when it has locked
-- its jobs: a session that deletes a job locks the job first, then its lines.
create or replace function _trim_logs(job_ids bigint[]) returns void
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
    set plan_cache_mode = force_generic_plan
as $$
begin
    delete from log_lines l where l.ctid = any (array(
        select o.ctid from (select distinct d.id from unnest(job_ids) d(id)) i
        cross join lateral (
            select n.id from log_lines n where n.job_id = i.id
            order by n.job_id, n.id desc offset 200 limit 1) last
        join log_lines o on o.job_id = i.id and o.id <= last.id
        for update of o skip locked)); -- another session may be dropping them
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
