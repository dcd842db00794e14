-- limits/settings: what people do to queues: limits, pauses, resuming. Each function changes rows and
-- leaves a request; promote_jobs acts on it, with the next claim.

-- Raises PW001 for a name that no queue has; `verb` names the function that was called with it.
create or replace function _check_queue(verb text, queue_name text, family boolean) returns void
    language plpgsql immutable set search_path from current
as $$
declare
    v_problem text := case
        when queue_name is null or queue_name = '' or length(queue_name) > 128
            then format('queue_name must be 1 to 128 characters long, got %s',
                coalesce(quote_literal(left(queue_name, 140)), 'NULL'))
        when queue_name = 'default'
            then 'queue_name ''default'' stands for jobs without a queue, which nothing limits or '
                'pauses; give them a queue_name'
        when right(queue_name, 1) = '*' and not family
            then format('queue_name must name one queue, not a family, got %L', queue_name) end;
begin
    if v_problem is not null then
        raise exception '%: %', verb, v_problem using errcode = 'PW001';
    end if;
end;
$$;

create or replace function set_queue(
    queue_name text, concurrency integer default null, rate_limit integer default null,
    rate_period interval default null, fair boolean default false) returns void
    language plpgsql security definer set search_path from current set enable_seqscan = off set jit = off
as $$
#variable_conflict use_column
declare
    v_now constant timestamptz := clock();
    -- In seconds: the length of a day or a month would depend on the time zone of each session.
    v_period interval;
    v_problem text;
begin
    perform _check_queue('set_queue', set_queue.queue_name, true);
    v_problem := _limits_refusal(
        set_queue.queue_name, set_queue.concurrency, set_queue.rate_limit, set_queue.rate_period,
        set_queue.fair);
    if v_problem is not null then
        raise exception 'set_queue: %', v_problem using errcode = 'PW001';
    end if;
    v_period := make_interval(secs => extract(epoch from rate_period)::double precision);
    if v_period is not null then
        perform _count_earlier_starts(set_queue.queue_name, v_period);
    end if;
    insert into queues as q (queue_name, concurrency, rate_limit, rate_period, fair, updated_at)
    values (set_queue.queue_name, set_queue.concurrency, set_queue.rate_limit, v_period, set_queue.fair,
            v_now)
    on conflict (queue_name) do update
    set concurrency = excluded.concurrency, inherits = false, updated_at = excluded.updated_at,
        changed = excluded.changed, rate_limit = excluded.rate_limit, rate_period = excluded.rate_period,
        fair = excluded.fair;
    perform _queue_changed(set_queue.queue_name);
end;
$$;
comment on function set_queue(text, integer, integer, interval, boolean) is
    'Sets the limits of a queue; each call replaces all of them. concurrency: how many of its jobs may '
    'run at once; null means no limit. A queue that was never set runs one job at a time. rate_limit and '
    'rate_period: in no window of rate_period, wherever it begins, start more than rate_limit jobs of the '
    'queue, over all workers. A name that ends in ''*'' sets each queue that begins with it: each of them '
    'has these limits for itself. fair, for such a name only: its queues take turns among jobs of equal '
    'priority. A queue that was set by its own name uses those limits; any other uses the longest such '
    'name that matches. If you lower a limit, the jobs beyond it that already run continue. Earlier '
    'starts count for a new rate. Errors: PW001.';

-- What is wrong with these arguments of set_queue; null if nothing is.
create or replace function _limits_refusal(
    queue_name text, concurrency integer, rate_limit integer, rate_period interval, fair boolean)
    returns text
    language plpgsql immutable set search_path from current
as $$
begin
    return case
        when concurrency < 1 then format(
            'concurrency must be at least 1, or null for no limit, got %s (to stop a queue: pause_queue)',
            concurrency)
        when rate_limit < 1 then format(
            'rate_limit must be at least 1, or null for no rate, got %s (to stop a queue: pause_queue)',
            rate_limit)
        when rate_period <= interval '0' or rate_period > interval '1000 years' then format(
            'rate_period must be longer than 0 and at most 1000 years, got %s', rate_period)
        when rate_limit is null and rate_period is not null then format(
            'rate_period %s needs a rate_limit, got NULL', rate_period)
        when rate_period is null and rate_limit is not null then format(
            'rate_limit %s needs a rate_period, got NULL', rate_limit)
        when fair is null then 'fair must be true or false, got NULL'
        when fair and right(queue_name, 1) <> '*' then format(
            'fair needs the name of a family, such as ''customer:*'': got %L', queue_name) end;
end;
$$;

create or replace function pause_queue(queue_name text) returns void
    language plpgsql security definer set search_path from current set enable_seqscan = off set jit = off
as $$
#variable_conflict use_column
declare
    v_now constant timestamptz := clock();
begin
    perform _check_queue('pause_queue', pause_queue.queue_name, true);
    insert into queues as q (queue_name, paused, inherits, updated_at)
    values (pause_queue.queue_name, true, true, v_now)
    on conflict (queue_name) do update set paused = true, updated_at = excluded.updated_at,
        changed = excluded.changed;
    perform _queue_changed(pause_queue.queue_name);
end;
$$;
comment on function pause_queue(text) is
    'Starts no more jobs of this queue, or of the queues of a family (''customer:*''), until resume_queue '
    'with the same name. Running jobs continue, and you can '
    'still add jobs. What a worker has claimed just before begins within a second, or is handed back. '
    'Errors: PW001 (also for ''default'': jobs without a queue cannot be paused).';

create or replace function resume_queue(queue_name text) returns void
    language plpgsql security definer set search_path from current set enable_seqscan = off set jit = off
as $$
#variable_conflict use_column
declare
    v_now constant timestamptz := clock();
    v_paused boolean;
begin
    perform _check_queue('resume_queue', resume_queue.queue_name, true);
    -- A row that only paused its queue is deleted: the queue has the limit of its family again, or
    -- is serial. Such a row that comes between these two statements is of a later pause.
    delete from queues q where q.queue_name = resume_queue.queue_name and q.inherits;
    v_paused := found;
    update queues q set paused = false, updated_at = v_now, changed = pg_current_xact_id()
    where q.queue_name = resume_queue.queue_name and q.paused and not q.inherits;
    if v_paused or found then
        perform _queue_changed(resume_queue.queue_name);
    end if;
end;
$$;
comment on function resume_queue(text) is
    'Lets the jobs of a queue or family that pause_queue has paused start again, up to its limit at once. '
    'A queue whose family is paused, too, stays paused. Errors: PW001.';

-- Leaves two requests for all queues of this name or family. A promotion handles the first after
-- this transaction has committed, and the second when all transactions have ended that may still
-- use the old settings: in a queue without a limit, an end promotes no next job.
create or replace function _queue_changed(queue_name text) returns void
    language plpgsql set search_path from current
as $$
declare
    v_lane constant text := case when right(queue_name, 1) = '*'
        then 'family:' || left(queue_name, -1) else 'queue:' || queue_name end;
begin
    insert into promotion_requests (lane, after, changed) values (v_lane, null, true), (v_lane, '0', true);
    perform _notify_workers();
end;
$$;
