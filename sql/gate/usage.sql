-- gate/usage: what people and checks see of limits and rates (gate/queues, gate/rates).

-- The limits of queues and how much of each rate is used now: for list_queues and the view queue_stats. A
-- view's functions run with the rights of the role that reads it, which may not read these tables.
create or replace function _limits_of(queue_names text[])
    returns table (
        queue_name text, concurrency integer, paused boolean, fair boolean, rate_limit integer,
        rate_period interval, rate_used bigint, rate_left bigint, rate_free_at timestamptz)
    language plpgsql stable security definer set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_now timestamptz := clock(); -- PostgreSQL inlines no function that is given a volatile one
begin
    return query
    select q.queue_name, q.concurrency, q.paused, q.fair, q.rate_limit, q.rate_period, q.rate_limit - r.room,
           case when r.room > 0 then r.room when r.room <= 0 then 0 end, r.free_at
    from _queues_of(queue_names) q
    left join lateral _rate_room(q.queue_name, q.rate_limit, q.rate_period, v_now) r
        on q.rate_limit is not null and right(q.queue_name, 1) <> '*'; -- a family's queues have one each
end;
$$;

-- A call that sets this queue alone, or its family if that takes turns, to this concurrency and to its rate
-- times `more`.
create or replace function _set_queue_call(queue_name text, concurrency bigint, more integer) returns text
    language plpgsql stable set search_path from current
as $$
begin
    return (
        select format('set_queue(%L, %s%s%s)', coalesce(f.queue_name, q.queue_name),
                      coalesce(_set_queue_call.concurrency::text, 'null'),
                      ', ' || q.rate_limit::bigint * more || ', ' || quote_literal(_words_of(q.rate_period)),
                      case when q.fair then ', fair => true' end)
        from _queues_of(array[_set_queue_call.queue_name]) q
        left join queues f on q.fair and right(f.queue_name, 1) = '*'
                              and starts_with(q.queue_name, left(f.queue_name, -1))
        order by length(f.queue_name) desc limit 1);
end;
$$;

-- Why a rate lets no job of this queue start now, and when it does.
create or replace function _explain_rate(queue_name text, out reason text, out detail text, out remedy text)
    returns setof record
    language plpgsql stable set search_path from current
as $$
begin
    return query
    select format('rate: none starts before %s', l.rate_free_at),
           format('queue %s starts at most %s in any %s, and has started %s; the next may start at %s',
                  l.queue_name, l.rate_limit, _words_of(l.rate_period), l.rate_used, l.rate_free_at),
           _as_statement(_set_queue_call(l.queue_name, l.concurrency, 2)) || ' doubles the rate'
    from _limits_of(array[_explain_rate.queue_name]) l where l.rate_left = 0;
end;
$$;

-- 'I15': no window holds more starts of a queue than its rate: of the jobs that run, whose claims tell
-- whether they could see the last change of the rate.
create or replace function _violations_of_rates(max_rows bigint)
    returns table (invariant text, subject text, found jsonb)
    language plpgsql stable set search_path from current
as $$
begin
    return query
    select distinct 'I15', w.queue_name, to_jsonb(w.rate_limit)
    from (select n.queue_name, q.rate_limit, q.rate_period, j.claimed_at - lag(j.claimed_at, q.rate_limit)
              over (partition by n.queue_name order by j.claimed_at) as apart
          from (select distinct l.queue_name from live_jobs l
                where l.queue_name is not null and l.ready_at is not null limit max_rows / 10) n
          cross join lateral _queues_of(array[n.queue_name]) q
          cross join lateral (
              select r.claimed_at from live_jobs r
              where r.queue_name = n.queue_name and r.ready_at is not null and r.state = 'running'
                and exists (select from claims c
                            where c.worker_id = r.worker_id and r.id = any (c.job_ids)
                              and c.seen > coalesce(q.changed, '0'::xid8))) j
          where q.rate_limit is not null) w
    where w.apart < w.rate_period;
end;
$$;

-- The limits of the first 50 queues that were set or have started jobs of a rate, and how much of each rate
-- is used.
create or replace function _metrics_of_limits()
    returns table (name text, kind text, help text, labels jsonb, value double precision)
    language plpgsql stable set search_path from current
as $$
begin
    return query
    with recursive started as ( -- two index look-ups for each queue
        (select least((select s.queue_name from starts s where s.total is not null
                       order by s.queue_name limit 1),
                      (select s.queue_name from starts s where s.total is null
                       order by s.queue_name limit 1)) as queue_name)
        union all
        select least((select s.queue_name from starts s where s.total is not null
                      and s.queue_name > t.queue_name order by s.queue_name limit 1),
                     (select s.queue_name from starts s where s.total is null
                      and s.queue_name > t.queue_name order by s.queue_name limit 1))
        from started t where t.queue_name is not null),
    queue as materialized (
        select l.* from _limits_of(array(
            (select k.queue_name from queues k order by k.queue_name limit 50)
            union (select t.queue_name from started t where t.queue_name is not null limit 50)
            limit 50)) l)
    select m.name, 'gauge', m.help, jsonb_build_object('queue', m.queue), m.value::double precision
    from (select 'pyworker_queue_concurrency' as name, q.queue_name as queue, q.concurrency::bigint as value,
                 'How many jobs of a queue may run at once.' as help
          from queue q
          union all
          select 'pyworker_queue_rate_limit', q.queue_name, q.rate_limit,
                 'How many jobs of a queue may start in its period.' from queue q
          union all
          select 'pyworker_queue_rate_used', q.queue_name, q.rate_used,
                 'How many jobs of a queue have started in the period that ends now.' from queue q) m
    where m.value is not null;
end;
$$;
