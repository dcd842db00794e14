-- pages/list_jobs: list_jobs(), one page of jobs by state, task, queue, key, text or time of
-- creation.
--
-- A call first asks an index, if one finds the live jobs. Otherwise it reads one range of ids after
-- the other, each completely, until the page is full or it has read about 20,000 rows.

-- About the lowest id of the jobs that were created from this time on, by a binary search. It is
-- not exact: ids grow with time, but a job becomes visible only when its transaction commits.
create or replace function _id_at(at timestamptz) returns bigint
    language plpgsql stable set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_low bigint := 0;
    v_high bigint := (select s.last_value + 1 from job_ids s);
    v_middle bigint;
    v_span bigint;
    v_id bigint;
    v_created timestamptz;
begin
    while v_high - v_low > 500 loop
        v_middle := (v_low + v_high) / 2;
        v_span := 500;
        loop
            select j.id, j.created_at into v_id, v_created
            from (select l.id, l.created_at from live_jobs l
                  where l.id >= v_middle and l.id < least(v_middle + v_span, v_high)
                  union all
                  select f.id, f.created_at from finished_jobs f
                  where f.id >= v_middle and f.id < least(v_middle + v_span, v_high)) j
            limit 1;
            exit when found or v_middle + v_span >= v_high;
            v_span := v_span * 16;
        end loop;
        if v_id is null or v_created >= at then
            v_high := coalesce(v_id, v_middle);
        else
            v_low := v_id;
        end if;
    end loop;
    return v_low;
end;
$$;

-- The ids among which to look, from `first` on and before `until`. A long transaction can give a
-- job a higher id than its created_at suggests: look ten minutes further.
create or replace function _ids_to_read(
    created_from timestamptz, created_before timestamptz, after_id bigint, newest_first boolean,
    out first bigint, out until bigint)
    language plpgsql stable set search_path from current
as $$
begin
    first := 0;
    until := (select s.last_value + 1 from job_ids s);
    if created_from is not null then
        first := _id_at(created_from);
    end if;
    if created_before is not null then
        until := least(until, _id_at(least(created_before, '294276-01-01') + interval '10 minutes') + 1000);
    end if;
    if after_id is not null and newest_first then
        until := least(until, after_id);
    elsif after_id is not null then
        first := greatest(first, least(after_id, 9223372036854775806) + 1);
    end if;
end;
$$;

-- The ids of live jobs that an index finds: those with the job_key, which come on the first page,
-- or those in the states. Null if there is no such index, or if max_jobs or more would be read.
create or replace function _ids_by_index(
    states text[], job_key text, live boolean, past boolean, after_id bigint, max_jobs bigint)
    returns bigint[]
    language plpgsql stable set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_ids bigint[];
begin
    if job_key is not null and live then
        return array(select l.id from live_jobs l
                     where l.job_key = _ids_by_index.job_key and after_id is null);
    elsif past then
        return null;
    end if;
    v_ids := array(
        select k.id from (
            (select r.id from (select l.id, l.state from live_jobs l
                               where l.ready_at is not null and states && '{available,running}'
                               -- running jobs come first
                               order by l.priority, l.ready_at, l.id limit max_jobs) r
             where r.state = any (states))
            union all
            (select l.id from live_jobs l
             where l.due_at is not null and l.parked is null
               and states && '{scheduled,retryable}' limit max_jobs)
            union all
            (select l.id from live_jobs l where l.expires_at is not null and 'discarded' = any (states)
             limit max_jobs)
            union all
            (select l.id from live_jobs l where l.parked = 'queue' and 'available' = any (states)
             limit max_jobs)
            union all
            (select l.id from live_jobs l where l.parked <> 'queue' and 'pending' = any (states)
             limit max_jobs)) k
        limit max_jobs);
    return case when cardinality(v_ids) < max_jobs then v_ids end;
end;
$$;

-- The next range of ids to read, and how many rows it has (at most about 10,000). Its width follows
-- how many rows the one before it had.
create or replace function _next_range(
    first bigint, until bigint, newest_first boolean, live boolean, past boolean, inout width bigint,
    out low bigint, out high bigint, out jobs bigint)
    language plpgsql stable set search_path from current set enable_seqscan = off set jit = off
as $$
begin
    loop
        low := case when newest_first then greatest(first, until - width) else first end;
        high := case when newest_first then until else least(until, first + width) end;
        select count(*) into jobs
        from ((select from live_jobs l where live and l.id >= low and l.id < high limit 5001)
              union all
              (select from finished_jobs f where past and f.id >= low and f.id < high limit 5001)) w;
        exit when jobs <= 5000 or width <= 1000;
        width := greatest(width / 16, 1000); -- wide because the last range was nearly empty
    end loop;
    if jobs < 250 and width < 1000000000000 then
        width := width * 16;
    end if;
end;
$$;

-- The jobs that match, with ids from `low` on and before `high`: live ones, past ones, and those in
-- `ids`. The other arguments are those of list_jobs.
create or replace function _matching_jobs(
    low bigint, high bigint, live boolean, past boolean, ids bigint[], states text[], tasks text[],
    queues text[], job_key text, search text, created_from timestamptz, created_before timestamptz,
    newest_first boolean, max_jobs bigint)
    returns table (id bigint, task_identifier text, state text, queue_name text, key text, sequence_key text,
                   priority smallint, run_at timestamptz, attempts smallint, max_attempts smallint,
                   created_at timestamptz, locked_at timestamptz, locked_by text, finished_at timestamptz,
                   reason text, last_error text)
    language plpgsql stable set search_path from current set enable_seqscan = off set jit = off
as $$
begin
    return query
    select u.id, u.task_identifier, u.state, u.queue_name, u.key, u.sequence_key, u.priority, u.run_at,
           u.attempts, u.max_attempts, u.created_at, u.locked_at, u.locked_by, u.finished_at, u.reason,
           left(_last_line(u.last_error), 300)
    from (select l.* from jobs l where live and l.id >= low and l.id < high
          union all
          select f.* from history f where past and f.id >= low and f.id < high
          union all
          select l.* from jobs l where l.id = any (ids) and l.id >= low and l.id < high) u
    where (states is null or u.state = any (states))
      and (tasks is null or u.task_identifier = any (tasks))
      and (queues is null or coalesce(u.queue_name, 'default') = any (queues))
      and (job_key is null or u.key = job_key)
      and (created_from is null or u.created_at >= created_from)
      and (created_before is null or u.created_at < created_before)
      and (search is null or strpos(lower(concat_ws(' ', u.task_identifier, u.queue_name, u.key,
                                                    u.sequence_key, u.reason, u.last_error, u.meta)),
                                    lower(search)) > 0)
    order by case when newest_first then -u.id else u.id end
    limit max_jobs;
end;
$$;

create or replace function _check_list(states text[], max_jobs integer) returns void
    language plpgsql immutable set search_path from current
as $$
declare
    v_unknown text := (select s.name from unnest(states) s(name)
                       where (s.name in ('scheduled', 'pending', 'available', 'running', 'retryable',
                                         'completed', 'cancelled', 'discarded')) is not true
                       limit 1);
begin
    if coalesce(max_jobs, 0) not between 1 and 1000 then
        raise exception 'list_jobs: max_jobs must be from 1 to 1000, got %', coalesce(max_jobs::text, 'NULL')
            using errcode = 'PW001';
    elsif v_unknown is not null or array_position(states, null) is not null then
        raise exception 'list_jobs: states must be names of states, got %',
            coalesce(quote_literal(v_unknown), 'NULL') using errcode = 'PW001';
    end if;
end;
$$;

create or replace function list_jobs(
    states text[] default null, tasks text[] default null, queues text[] default null,
    job_key text default null, search text default null, created_from timestamptz default null,
    created_before timestamptz default null, after_id bigint default null, newest_first boolean default true,
    max_jobs integer default 50)
    returns table (id bigint, task_identifier text, state text, queue_name text, key text, sequence_key text,
                   priority smallint, run_at timestamptz, attempts smallint, max_attempts smallint,
                   created_at timestamptz, locked_at timestamptz, locked_by text, finished_at timestamptz,
                   reason text, last_error text)
    language plpgsql stable security definer set search_path from current
    set enable_seqscan = off set jit = off
as $$
declare
    v_limit constant bigint := 20000; -- about how many rows one call reads
    v_states text[] := array_replace(states, 'active', 'running');
    v_live boolean := coalesce(v_states && '{scheduled,pending,available,running,retryable,discarded}', true);
    v_past boolean := coalesce(v_states && '{completed,cancelled}', true);
    v_ids bigint[];
    v_rest record;  -- the ids that are not read yet
    v_range record;
    v_width bigint := 1000;
    v_seen bigint := 0;
    v_left bigint := max_jobs;
    v_found bigint;
begin
    perform _check_list(v_states, max_jobs);
    v_rest := _ids_to_read(created_from, created_before, after_id, newest_first);
    v_ids := _ids_by_index(v_states, job_key, v_live, v_past, after_id, v_limit);
    v_live := v_live and v_ids is null;
    if v_ids is not null then
        return query
        select j.* from _matching_jobs(
            v_rest.first, v_rest.until, false, false, v_ids, v_states, tasks, queues, job_key, search,
            created_from, created_before, newest_first, v_left) j;
        get diagnostics v_found = row_count;
        v_left := v_left - v_found;
    end if;
    while v_left > 0 and v_rest.first < v_rest.until and (v_live or v_past) loop
        v_range := _next_range(v_rest.first, v_rest.until, newest_first, v_live, v_past, v_width);
        return query
        select j.* from _matching_jobs(
            v_range.low, v_range.high, v_live, v_past, null, v_states, tasks, queues, job_key, search,
            created_from, created_before, newest_first, v_left) j;
        get diagnostics v_found = row_count;
        v_left := v_left - v_found;
        v_seen := v_seen + v_range.jobs;
        v_width := v_range.width;
        if newest_first then
            v_rest.until := v_range.low;
        else
            v_rest.first := v_range.high;
        end if;
        if v_seen >= v_limit and v_left > 0 and v_rest.first < v_rest.until then
            id := case when newest_first then v_rest.until else v_rest.first - 1 end;
            return next;
            return;
        end if;
    end loop;
end;
$$;
comment on function list_jobs(text[], text[], text[], text, text, timestamptz, timestamptz, bigint, boolean,
                              integer) is
    'Live and finished jobs by id, newest first or oldest first, one page at a time. For the next '
    'page, set after_id to the last id of this one. An argument that is null matches all jobs. '
    'queues: ''default'' means jobs without a queue. search: finds this text, in upper or lower '
    'case, in the task, queue, keys, reason, whole last_error and meta, not in payloads. A live '
    'job with the job_key comes first. A call reads about 20,000 rows at most. If these did not '
    'fill the page, the last row has only an id: continue with it as after_id. Live states, a '
    'job_key and times are found by an index. Errors: PW001.';
