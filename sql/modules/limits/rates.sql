-- limits/rates: what people and checks see of rates (functions/32_rates.sql).

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
