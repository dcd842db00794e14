-- gate/usage: what people and checks see of limits and rates (gate/queues, gate/rates), and of the gate
-- itself.

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

-- The session that has the gate, and since when it has been in its transaction: null if this role may not see
-- that.
create or replace function _gate_holder() returns table (pid integer, since timestamptz, words text)
    language plpgsql set search_path from current
as $$
begin
    return query
    select l.pid, a.xact_start,
           coalesce(format('session %s', l.pid), 'a prepared transaction (pg_prepared_xacts)')
           || coalesce(' of ' || nullif(concat_ws(', ', a.usename, nullif(a.application_name, '')), ''), '')
    from gate g cross join lateral unnest(_transactions_of(g.xmax)) x(xid)
    join pg_locks l on l.locktype = 'transactionid' and l.granted and l.transactionid = x.xid
    left join pg_stat_activity a on a.pid = l.pid
    where l.pid is distinct from pg_backend_pid() limit 1;
end;
$$;

-- A pass takes milliseconds, and the server ends a session that idles with the gate after five seconds.
create or replace function _check_gate()
    returns table (check_name text, severity text, finding text, fix text)
    language plpgsql set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_holder record;
    v_still integer; -- the session that has it a second later
begin
    select h.* into v_holder from _gate_holder() h;
    if found and v_holder.since is null then
        perform pg_sleep(1);
        select h.pid into v_still from _gate_holder() h;
    end if;
    if v_holder.since < statement_timestamp() - interval '1 second' or v_still = v_holder.pid then
        return query values ('gate', 'warning',
            format('%s has the gate%s: no session lets in the first jobs of idle queues and sequences, '
                   'or those that a rate or turns hold back', v_holder.words,
                   ', in a transaction since ' || v_holder.since),
            coalesce(format('select pg_terminate_backend(%s)', v_holder.pid),
                     'commit or roll back the prepared transaction: pg_prepared_xacts'));
    end if;
    return query
    select 'gate', 'error',
           'promotions fail, and are tried again every 5 seconds: '
               || _few(array_agg(format('%s%s (%s)', r.lane, ' ' || r.job_id, r.problem)
                                 order by r.at, r.lane)),
           'correct what the messages say: often a trigger, an index or a right that was changed by hand'
    from (select p.* from promotion_requests p where p.at is not null and p.problem is not null
          order by p.at limit 1000) r
    having count(*) > 0;
end;
$$;
