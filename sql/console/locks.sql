-- console/locks: jobs that another session has locked. Claims and promotions pass over them (SKIP LOCKED).

-- The transactions that this xmax of a row names: itself, or the members of a MultiXact.
create or replace function _transactions_of(xmax xid) returns xid[]
    language plpgsql stable set search_path from current
as $$
begin
    return array[xmax] || array(select m.xid from pg_get_multixact_members(xmax::text::xid) m);
exception when others then -- there is no such MultiXact
    return array[xmax];
end;
$$;

-- Those of these jobs that other sessions have locked, and by which, in words for people. `held`: that
-- session is idle in its transaction, or has been in it for more than a second.
create or replace function _locked_jobs(job_ids bigint[])
    returns table (job_id bigint, pid integer, since timestamptz, held boolean, words text)
    language plpgsql stable set search_path from current set enable_seqscan = off set jit = off
as $$
begin
    return query
    with lockers as materialized (
        select l.transactionid as xid, l.pid, a.xact_start, a.usename, a.application_name,
               a.state is distinct from 'active'
                   or a.xact_start < statement_timestamp() - interval '1 second' as held
        from pg_locks l left join pg_stat_activity a on a.pid = l.pid
        where l.locktype = 'transactionid' and l.granted and l.pid is distinct from pg_backend_pid()),
    touched as materialized (
        select j.id, j.xmax as row_xmax from live_jobs j
        where j.id = any (job_ids) and j.xmax <> '0' and exists (select from lockers))
    select distinct on (t.id) t.id, k.pid, k.xact_start, k.held,
           case when k.pid is null then 'a prepared transaction (pg_prepared_xacts)'
                else format('session %s%s has it locked%s', k.pid,
                            ' of ' || nullif(concat_ws(', ', k.usename, nullif(k.application_name, '')), ''),
                            ', in a transaction since ' || k.xact_start) end
    from touched t
    cross join lateral unnest(_transactions_of(t.row_xmax)) x(xid)
    join lockers k on k.xid = x.xid
    order by t.id, k.xact_start;
end;
$$;

create or replace function _check_locks()
    returns table (check_name text, severity text, finding text, fix text)
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_now timestamptz := clock();
begin
    return query
    select 'locks', case when min(l.since) > statement_timestamp() - interval '1 minute' then 'info'
                else 'warning' end,
           'sessions have jobs locked, which claims pass over: '
               || _few(array_agg(format('job %s (%s)', l.job_id, l.words) order by l.since, l.job_id)),
           coalesce(array_to_string((array_agg(distinct format('select pg_terminate_backend(%s)', l.pid))
                                     filter (where l.pid is not null))[:5], E';\n'),
                    'commit or roll back the prepared transactions: pg_prepared_xacts')
    from _locked_jobs(array(
        select j.id from ( -- each limit counts what is looked at, not what is found
            (select r.id, r.xmax from live_jobs r where r.ready_at is not null and r.state = 'available'
             order by r.priority, r.ready_at, r.id limit 10000)
            union all
            (select d.id, d.xmax from live_jobs d where d.due_at <= v_now order by d.due_at limit 10000)
            union all
            (select q.id, q.xmax from live_jobs q where q.parked = 'queue' limit 10000)) j
        where j.xmax <> '0'
        union all
        select unnest(_next_of_sequences(10000)))) l
    where l.held having count(*) > 0;
end;
$$;
