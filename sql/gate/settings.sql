-- gate/settings: what people do to queues: limits, pauses, resuming; and how a change comes into force.
--
-- Each change gives its row a new version (`changed`) and holds it (held_settings): while it is held,
-- claims take of these queues only what this version has let in (_was_let_in). So a change holds from its
-- commit, and set_queue waits for nothing. The first pass that sees the change writes down its own
-- transaction (`seen_by`). Passes park what older versions have let in. When all transactions that are older
-- than that one have ended, the version is held no longer.

-- In a pass: parks up to 5,000 jobs of these queues that an older version has let in, and ends what need not
-- be held any more; `families`: those of which these are all queues. Asks again for the others. A job that it
-- finds locked keeps its place: a claim that is older than the change may have it.
create or replace function _settle_queues(queue_names text[], families text[]) returns void
    language plpgsql set search_path from current
as $$
declare
    v_now timestamptz := clock();
    v_xmin constant xid8 := pg_snapshot_xmin(pg_current_snapshot()); -- before it looks at the jobs
    v_more text[];
begin
    update held_settings h set seen_by = pg_current_xact_id() where h.seen_by = '0';
    with lane as materialized (
        select q.queue_name as name, q.changed, q.paused from _queues_of(queue_names) q
        where q.held and q.slots is not null),
    old as materialized (
        select l.name, p.tid from lane l
        cross join lateral (
            select j.ctid as tid from live_jobs j
            where j.queue_name = l.name and j.ready_at is not null and j.state = 'available'
              and (j.slot is distinct from l.changed or l.paused)
            order by j.queue_name, j.priority, j.run_at, j.id limit 5000 for update skip locked) p
        limit 5000),
    parked as (
        update live_jobs j set ready_at = null, parked = 'queue', slot = null, pace = null, turn = null
        from old o where j.ctid = o.tid)
    select array_agg(l.name) into v_more from lane l where (select count(*) from old) >= 5000;
    delete from held_settings h
    where h.seen_by > '0' and h.seen_by < v_xmin
      and (h.queue_name = any (queue_names) and h.queue_name <> all (coalesce(v_more, '{}'))
           or right(h.queue_name, 1) = '*' and left(h.queue_name, -1) = any (families)
              and not exists (select from unnest(v_more) m(name)
                              where starts_with(m.name, left(h.queue_name, -1))));
    insert into promotion_requests (lane) select 'queue:' || m.name from unnest(v_more) m(name);
    perform _ask_later(
        array_agg(case when h.family then 'family:' || left(h.queue_name, -1)
                       else 'queue:' || h.queue_name end),
        array_agg(v_now + interval '0.25 s'
                  + case when h.family then interval '1 ms' * least(cardinality(queue_names), 5000)
                         else interval '0' end))
    from (select distinct s.queue_name, right(s.queue_name, 1) = '*' as family from held_settings s
          limit 1000) h;
end;
$$;

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
    if rate_limit is not null or fair then
        perform setval('settings_used', 1000000);
    else
        perform nextval('settings_used') where not _settings_are_used();
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
    'name that matches. If you lower a limit, the jobs beyond it that already run continue. Starts '
    'from before the first rate of a queue do not count; those under an earlier rate do. Errors: PW001.';

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
    perform nextval('settings_used') where not _settings_are_used();
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

-- Holds what all queues of this name or family have let in, and asks for a look at them.
create or replace function _queue_changed(queue_name text) returns void
    language plpgsql set search_path from current
as $$
begin
    insert into held_settings (queue_name) values (queue_name) on conflict do nothing;
    insert into promotion_requests (lane)
    values (case when right(queue_name, 1) = '*' then 'family:' || left(queue_name, -1)
                 else 'queue:' || queue_name end);
    perform _notify_workers();
end;
$$;
