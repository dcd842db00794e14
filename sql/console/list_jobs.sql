-- console/list_jobs: list_jobs(), one page of jobs by state, task, queue, key, text or time of
-- creation; count_listed_jobs(), how many there are.
--
-- A call first asks an index, if one finds the live jobs. Otherwise it reads some jobs after the others
-- by id, until the page is full or it has read about 20,000 rows.

-- About the lowest id of the jobs that were created from this time on, by a binary search. It is
-- not exact: ids grow with time, but a job becomes visible only when its transaction commits.
create or replace function _id_at(at timestamptz) returns bigint
    language plpgsql stable strict set search_path from current
as $$
declare
    v_low bigint := 0;
    v_high bigint := (select s.last_value + 1 from job_ids s);
    v_middle bigint;
    v_id bigint;
    v_created timestamptz;
begin
    while v_high - v_low > 500 loop
        v_middle := (v_low + v_high) / 2;
        select j.id, j.created_at into v_id, v_created
        from ((select l.id, l.created_at from live_jobs l where l.id >= v_middle and l.id < v_high
               order by l.id limit 1)
              union all
              (select f.id, f.created_at from finished_jobs f where f.id >= v_middle and f.id < v_high
               order by f.id limit 1)) j
        order by j.id limit 1;
        if v_id is null or v_created >= at then
            v_high := v_middle;
        else
            v_low := v_id;
        end if;
    end loop;
    return v_low;
end;
$$;

-- The jobs that match, with ids from `low` on and before `high`: of `ids`, or live and past ones without the
-- sought ones. These match any search, and come first. The other arguments are those of list_jobs.
create or replace function _matching_jobs(
    low bigint, high bigint, live boolean, past boolean, ids bigint[], sought bigint[], states text[],
    tasks text[], queues text[], job_key text, search text, created_from timestamptz,
    created_before timestamptz, newest_first boolean, max_jobs bigint)
    returns table (id bigint, task_identifier text, state text, queue_name text, key text, sequence_key text,
                   priority smallint, run_at timestamptz, attempts smallint, max_attempts smallint,
                   created_at timestamptz, locked_at timestamptz, locked_by text, finished_at timestamptz,
                   reason text, last_error text, ran double precision)
    language plpgsql stable set search_path from current
as $$
declare
    v_now constant timestamptz := clock();
begin
    return query
    select u.id, u.task_identifier, u.state, u.queue_name, u.key, u.sequence_key, u.priority, u.run_at,
           u.attempts, u.max_attempts, u.created_at, u.locked_at, u.locked_by, u.finished_at, u.reason,
           left(_last_line(u.last_error), 300),
           extract(epoch from coalesce(u.finished_at, v_now) - u.locked_at)::double precision
    from (select l.* from jobs l where live and l.id >= low and l.id < high
          union all
          select f.* from history f where past and f.id >= low and f.id < high
          union all
          select l.* from jobs l where l.id = any (ids) and l.id >= low and l.id < high
          union all
          select f.* from history f where f.id = any (ids) and f.id >= low and f.id < high) u
    where (ids is not null or u.id <> all (sought))
      and (states is null or u.state = any (states))
      and (tasks is null or u.task_identifier = any (tasks))
      and (queues is null or coalesce(u.queue_name, 'default') = any (queues))
      and (job_key is null or u.key = job_key)
      and (created_from is null or u.created_at >= created_from)
      and (created_before is null or u.created_at < created_before)
      and (search is null or u.id = any (sought) or strpos(lower(concat_ws(
              ' ', u.task_identifier, u.queue_name, u.key, u.sequence_key, u.reason, u.last_error, u.meta)),
          lower(search)) > 0)
    order by u.id <> all (sought), case when newest_first then -u.id else u.id end
    limit max_jobs;
end;
$$;

create or replace function _check_list(states text[], max_jobs integer, sort_by text) returns void
    language plpgsql immutable set search_path from current
as $$
declare
    v_unknown text := (select quote_nullable(s.name) from unnest(states) s(name)
                       where (s.name in ('scheduled', 'pending', 'available', 'running', 'retryable',
                                         'completed', 'cancelled', 'discarded')) is not true
                       limit 1);
begin
    perform _refuse('list_jobs: ' || case
        when coalesce(max_jobs, 0) not between 1 and 1000 then
            format('max_jobs must be from 1 to 1000, got %s', coalesce(max_jobs::text, 'NULL'))
        when array_ndims(states) > 1 then
            format('states must be a plain list, got %s', left(states::text, 140))
        when v_unknown is not null then format('states must be names of states, got %s', v_unknown)
        when coalesce(sort_by, '') not in ('id', 'run_time', 'attempts') then
            format('sort_by must be id, run_time or attempts, got %s', quote_nullable(sort_by)) end);
end;
$$;

-- The jobs of list_jobs by id: first those that a search finds at once (the job with this id, and the live
-- one with this key), then those that an index finds, then one part of the ids after the other. After reading
-- about max_read rows the last row has only an id.
create or replace function _read_jobs(
    states text[], tasks text[], queues text[], job_key text, search text, created_from timestamptz,
    created_before timestamptz, after_id bigint, newest_first boolean, max_jobs bigint, max_read bigint)
    returns table (id bigint, task_identifier text, state text, queue_name text, key text, sequence_key text,
                   priority smallint, run_at timestamptz, attempts smallint, max_attempts smallint,
                   created_at timestamptz, locked_at timestamptz, locked_by text, finished_at timestamptz,
                   reason text, last_error text, ran double precision)
    language plpgsql stable set search_path from current
as $$
declare
    v_live boolean := coalesce(states && '{scheduled,pending,available,running,retryable,discarded}', true);
    v_past boolean := coalesce(states && '{completed,cancelled}', true);
    v_known bigint[]; -- live ones that an index finds; null if it does not find them all
    v_id constant bigint := case when search ~ '^[0-9]{1,18}$' then search::bigint end;
    v_sought constant bigint[] := array(
        select l.id from live_jobs l where l.id = v_id
        union all select f.id from finished_jobs f where f.id = v_id
        union all select l.id from live_jobs l where l.job_key = search);
    -- A long transaction can give a job a higher id than its created_at suggests: look ten minutes further.
    v_low bigint := greatest(0, _id_at(created_from), case when not newest_first and after_id is not null
        then least(after_id, 9223372036854775806) + 1 end);
    v_high bigint := least(
        (select s.last_value + 1 from job_ids s), case when newest_first then after_id end,
        case when created_before is not null then
            _id_at(least(created_before, '294276-01-01') + interval '10 minutes') + 1000 end);
    v_part record;
    v_rows integer := 500; -- in the next part
    v_left bigint := max_jobs;
    v_found bigint;
begin
    if job_key is not null and v_live then -- they come on the first page
        v_known := array(select l.id from live_jobs l
                         where l.job_key = _read_jobs.job_key and after_id is null);
    elsif not v_past then
        v_known := array(
            select j.id from _some_jobs(max_read, array(
                select k.kind from (values
                    ('ready', '{available,running}'::text[]), ('queued', '{available}'),
                    ('timed', '{scheduled,retryable}'), ('parked', '{pending}'), ('discarded', '{discarded}'))
                    k(kind, states) where k.states && _read_jobs.states)) j
            where j.state = any (states) limit max_read);
        v_known := case when cardinality(v_known) < max_read then v_known end;
    end if;
    return query
    select j.* from _matching_jobs(
        v_low, v_high, false, false, case when after_id is null then v_sought || v_known else array(
            select k.id from unnest(v_known) k(id) where k.id <> all (v_sought)) end,
        v_sought, states, tasks, queues, job_key, search, created_from, created_before, newest_first,
        v_left) j;
    get diagnostics v_found = row_count;
    v_left := v_left - v_found;
    v_live := v_live and v_known is null;
    while v_left > 0 and (v_live or v_past) loop
        select count(*) as jobs, min(n.id) as low, max(n.id) + 1 as high into v_part
        from (select u.id from (
                  (select l.id from live_jobs l where v_live and newest_first
                   and l.id >= v_low and l.id < v_high order by l.id desc limit v_rows)
                  union all
                  (select f.id from finished_jobs f where v_past and newest_first
                   and f.id >= v_low and f.id < v_high order by f.id desc limit v_rows)
                  union all
                  (select l.id from live_jobs l where v_live and not newest_first
                   and l.id >= v_low and l.id < v_high order by l.id limit v_rows)
                  union all
                  (select f.id from finished_jobs f where v_past and not newest_first
                   and f.id >= v_low and f.id < v_high order by f.id limit v_rows)) u
              order by case when newest_first then -u.id else u.id end limit v_rows) n;
        return query
        select j.* from _matching_jobs(
            v_part.low, v_part.high, v_live, v_past, null, v_sought, states, tasks, queues, job_key, search,
            created_from, created_before, newest_first, v_left) j;
        get diagnostics v_found = row_count;
        v_left := v_left - v_found;
        exit when v_left <= 0 or v_part.jobs < v_rows;
        max_read := max_read - v_part.jobs;
        v_low := case when newest_first then v_low else v_part.high end;
        v_high := case when newest_first then v_part.low else v_high end;
        if max_read <= 0 then
            id := case when newest_first then v_high else v_low - 1 end;
            return next;
            return;
        end if;
        v_rows := least(v_rows * 2, 5000);
    end loop;
end;
$$;

create or replace function list_jobs(
    states text[] default null, tasks text[] default null, queues text[] default null,
    job_key text default null, search text default null, created_from timestamptz default null,
    created_before timestamptz default null, after_id bigint default null, newest_first boolean default true,
    max_jobs integer default 50, sort_by text default 'id')
    returns table (id bigint, task_identifier text, state text, queue_name text, key text, sequence_key text,
                   priority smallint, run_at timestamptz, attempts smallint, max_attempts smallint,
                   created_at timestamptz, locked_at timestamptz, locked_by text, finished_at timestamptz,
                   reason text, last_error text, ran double precision)
    language plpgsql stable security definer set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
    set enable_incremental_sort = off set jit = off
as $$
declare
    v_states text[] := array_replace(states, 'active', 'running');
begin
    perform _check_list(v_states, max_jobs, sort_by);
    return query
    select j.id, j.task_identifier, j.state, j.queue_name, j.key, j.sequence_key, j.priority, j.run_at,
           j.attempts, j.max_attempts, j.created_at, j.locked_at, j.locked_by, j.finished_at, j.reason,
           j.last_error, j.ran
    from (select s.*, row_number() over (
              order by s.state is null, case when newest_first then s.value end desc nulls last,
                       case when not newest_first then s.value end nulls last,
                       case when sort_by <> 'id' then -s.id end, s.place) as rank
          from (select r.*, row_number() over () as place,
                       case sort_by when 'attempts' then r.attempts when 'run_time' then r.ran end as value
                from _read_jobs(v_states, tasks, queues, job_key, search, created_from, created_before,
                                after_id, newest_first or sort_by <> 'id',
                                case when sort_by = 'id' then max_jobs else 20000 end, 20000) r) s) j
    where j.rank <= max_jobs or j.state is null order by j.rank;
end;
$$;
comment on function list_jobs(text[], text[], text[], text, text, timestamptz, timestamptz, bigint, boolean,
                              integer, text) is
    'Live and finished jobs by id, newest first or oldest first, one page at a time. For the next page, set '
    'after_id to the last id of this one. An argument that is null matches all jobs. queues: ''default'' '
    'means jobs without a queue. search: finds this text, in upper or lower case, in the task, queue, keys, '
    'reason, whole last_error and meta, not in payloads; first comes the job whose id it is, and the live '
    'job whose key it is. A live job with the job_key comes first. A call reads about 20,000 rows at most. '
    'If these did not fill the page, the last row has only an id: continue with it as after_id. Live states, '
    'a job_key and times are found by an index. sort_by: run_time (ran, the seconds of the last run) or '
    'attempts, the most first (newest_first => false: the least first); it sorts the newest jobs that one '
    'call reads. Errors: PW001.';

create or replace function count_listed_jobs(
    tasks text[] default null, queues text[] default null, job_key text default null,
    search text default null, created_from timestamptz default null, created_before timestamptz default null)
    returns table (state text, jobs bigint, exact boolean)
    language plpgsql stable security definer set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
    set enable_incremental_sort = off set jit = off
as $$
begin
    return query
    with found as materialized (
        select j.state from _read_jobs(null, tasks, queues, job_key, search, created_from, created_before,
                                       null, true, 1000000, 20000) j)
    select s.state, count(f.state), not exists (select from found g where g.state is null)
    from unnest('{scheduled,pending,available,running,retryable,completed,cancelled,discarded}'::text[])
        with ordinality s(state, place)
    left join found f on f.state = s.state
    group by s.state, s.place order by s.place;
end;
$$;
comment on function count_listed_jobs(text[], text[], text, text, timestamptz, timestamptz) is
    'How many jobs list_jobs() finds with these arguments, in each state, among the newest 20,000; if there '
    'are more jobs, exact is false.';
