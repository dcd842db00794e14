-- pages/list_jobs: list_jobs(), one page of jobs by state, task, queue, key, text or time of
-- creation.

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
#variable_conflict use_column
declare
    v_limit constant bigint := 20000; -- about how many rows one call reads
    v_states text[] := array_replace(list_jobs.states, 'active', 'running');
    v_unknown text := (select s.name from unnest(v_states) s(name)
                       where (s.name in ('scheduled', 'pending', 'available', 'running', 'retryable',
                                         'completed', 'cancelled', 'discarded')) is not true
                       limit 1);
    v_live boolean := v_states is null
        or v_states && '{scheduled,pending,available,running,retryable,discarded}';
    v_past boolean := v_states is null or v_states && '{completed,cancelled}';
    v_first bigint := 0;                                            -- the lowest id to read
    v_end bigint := (select s.last_value + 1 from job_ids s);       -- the id to stop before
    v_low bigint;
    v_high bigint;
    v_width bigint := 1000;
    v_rows bigint;
    v_seen bigint := 0;
    v_found bigint;
    v_left bigint := max_jobs;
    v_few bigint[];
begin
    if coalesce(max_jobs, 0) not between 1 and 1000 then
        raise exception 'list_jobs: max_jobs must be from 1 to 1000, got %', coalesce(max_jobs::text, 'NULL')
            using errcode = 'PW001';
    elsif v_unknown is not null or array_position(v_states, null) is not null then
        raise exception 'list_jobs: states must be names of states, got %',
            coalesce(quote_literal(v_unknown), 'NULL') using errcode = 'PW001';
    end if;
    -- A long transaction can give a job a higher id than its created_at suggests: read ten minutes
    -- more.
    if created_from is not null then
        v_first := _id_at(created_from);
    end if;
    if created_before is not null then
        v_end := least(v_end, _id_at(least(created_before, '294276-01-01') + interval '10 minutes') + 1000);
    end if;
    if after_id is not null and newest_first then
        v_end := least(v_end, after_id);
    elsif after_id is not null then
        v_first := greatest(v_first, least(after_id, 9223372036854775806) + 1);
    end if;

    -- First: all candidates from one index, by job_key or by live state, unless there are v_limit
    -- of them.
    if job_key is not null and v_live then
        v_few := array(select l.id from live_jobs l where l.job_key = list_jobs.job_key and after_id is null);
    elsif not v_past then
        v_few := array(
            select k.id from (
                (select r.id from (select l.id, l.state from live_jobs l
                                   where l.ready_at is not null and v_states && '{available,running}'
                                   -- running jobs come first
                                   order by l.priority, l.ready_at, l.id limit v_limit) r
                 where r.state = any (v_states))
                union all
                (select l.id from live_jobs l
                 where l.due_at is not null and v_states && '{scheduled,retryable}' limit v_limit)
                union all
                (select l.id from live_jobs l where l.expires_at is not null and 'discarded' = any (v_states)
                 limit v_limit)
                union all
                (select l.id from live_jobs l where l.parked = 'queue' and 'available' = any (v_states)
                 limit v_limit)
                union all
                (select l.id from live_jobs l where l.parked <> 'queue' and 'pending' = any (v_states)
                 limit v_limit)) k
            limit v_limit);
        if cardinality(v_few) = v_limit then
            v_few := null;
        end if;
    end if;
    v_live := v_live and v_few is null;

    -- Then: one range of ids after the other, each read completely. The width of a range follows
    -- how many rows the last one had.
    while v_left > 0 and v_first < v_end and (v_live or v_past or v_few is not null) loop
        if v_few is not null then
            v_low := v_first;
            v_high := v_end;
        else
            v_low := case when newest_first then greatest(v_first, v_end - v_width) else v_first end;
            v_high := case when newest_first then v_end else least(v_end, v_first + v_width) end;
            select count(*) into v_rows
            from ((select from live_jobs l where v_live and l.id >= v_low and l.id < v_high limit 5001)
                  union all
                  (select from finished_jobs f where v_past and f.id >= v_low and f.id < v_high
                   limit 5001)) w;
            if v_rows > 5000 and v_width > 1000 then
                v_width := greatest(v_width / 16, 1000); -- wide because the last range was nearly empty
                continue;
            end if;
            v_seen := v_seen + v_rows;
        end if;
        return query
        select u.id, u.task_identifier, u.state, u.queue_name, u.key, u.sequence_key, u.priority, u.run_at,
               u.attempts, u.max_attempts, u.created_at, u.locked_at, u.locked_by, u.finished_at, u.reason,
               left(_last_line(u.last_error), 300)
        from (select l.* from jobs l where v_live and l.id >= v_low and l.id < v_high
              union all
              select f.* from history f where v_past and v_few is null and f.id >= v_low and f.id < v_high
              union all
              select l.* from jobs l where l.id = any (v_few) and l.id >= v_low and l.id < v_high) u
        where (v_states is null or u.state = any (v_states))
          and (tasks is null or u.task_identifier = any (tasks))
          and (queues is null or coalesce(u.queue_name, 'default') = any (queues))
          and (list_jobs.job_key is null or u.key = list_jobs.job_key)
          and (created_from is null or u.created_at >= created_from)
          and (created_before is null or u.created_at < created_before)
          and (search is null or strpos(lower(concat_ws(' ', u.task_identifier, u.queue_name, u.key,
                                                        u.sequence_key, u.reason, u.last_error, u.meta)),
                                        lower(search)) > 0)
        order by case when newest_first then -u.id else u.id end
        limit v_left;
        get diagnostics v_found = row_count;
        v_left := v_left - v_found;
        if v_few is not null then
            v_few := null;
            continue;
        elsif newest_first then
            v_end := v_low;
        else
            v_first := v_high;
        end if;
        if v_rows < 250 and v_width < 1000000000000 then
            v_width := v_width * 16;
        end if;
        if v_seen >= v_limit and v_left > 0 and v_first < v_end then
            id := case when newest_first then v_end else v_first - 1 end;
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
