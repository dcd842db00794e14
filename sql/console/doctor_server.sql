-- console/doctor_server: what doctor() checks of the server: old transactions, vacuum, notifications,
-- settings.

-- Vacuum cannot remove rows that died after the oldest transaction began. An owner without
-- pg_read_all_stats sees the xmin of other roles' sessions but not when their transactions began;
-- there the age in transactions decides.
create or replace function _check_xmin() returns table (severity text, finding text, fix text)
    language plpgsql set search_path from current
as $$
declare
    v_since timestamptz := clock() - interval '5 minutes';
begin
    return query
    select 'warning',
           format('session %s of %s (application %s) keeps vacuum from removing dead rows: '
                  'in a transaction since %s, state %s', a.pid,
                  coalesce(a.usename, 'unknown'), coalesce(nullif(a.application_name, ''), 'unknown'),
                  coalesce(a.xact_start::text, 'unknown'), coalesce(a.state, 'unknown')),
           case when a.backend_type = 'walsender'
                     then 'end the long query on the standby, or turn off hot_standby_feedback there'
                else format('select pg_terminate_backend(%s)', a.pid) end
    from pg_stat_activity a
    where (a.backend_xmin is not null or a.backend_xid is not null) and a.pid <> pg_backend_pid()
      and (a.datname = current_database() or a.datname is null)
      and coalesce(a.backend_type, '') <> 'autovacuum worker'
      and case when a.xact_start is not null then a.xact_start < v_since
               else greatest(age(a.backend_xmin), age(a.backend_xid)) > 10000 end
    order by a.xact_start limit 5;
    return query
    select 'warning',
           format('transaction %L, prepared at %s by %s, keeps vacuum from removing dead rows', p.gid,
                  p.prepared, p.owner),
           format('rollback prepared %L', p.gid)
    from pg_prepared_xacts p where p.database = current_database() and p.prepared < v_since
    order by p.prepared limit 5;
    return query
    select 'warning',
           format('replication slot %s (%s) is not in use and holds back vacuum and WAL', s.slot_name,
                  s.slot_type),
           format('select pg_drop_replication_slot(%L)', s.slot_name)
    from pg_replication_slots s
    where not s.active and (s.xmin is not null or s.catalog_xmin is not null)
      and (s.database = current_database() or s.database is null)
    order by s.slot_name limit 5;
end;
$$;

create or replace function _check_bloat() returns table (severity text, finding text, fix text)
    language plpgsql set search_path from current
as $$
begin
    return query
    select 'warning', format('%s has %s dead rows beside %s live ones; last vacuum: %s', s.relname,
                             s.n_dead_tup, s.n_live_tup,
                             coalesce(greatest(s.last_autovacuum, s.last_vacuum)::text, 'never'))
           || '. If a vacuum does not remove them, see xmin', _fix('vacuum ~.%I', s.relname)
    from pg_stat_all_tables s
    where s.schemaname = current_schema() and s.n_dead_tup > 20000 + s.n_live_tup / 5
    order by s.n_dead_tup desc limit 5;
end;
$$;

create or replace function _check_autovacuum() returns table (severity text, finding text, fix text)
    language plpgsql set search_path from current
as $$
begin
    return query
    select 'warning', format('%s is off: nothing removes dead rows by itself', g.name),
           format(E'alter system set %I = on;\nselect pg_reload_conf()', g.name)
    from unnest(array['autovacuum', 'track_counts']) g(name) where not current_setting(g.name)::boolean;
    return query
    select 'warning', format('autovacuum is off for %s', c.relname),
           _fix('alter table ~.%I reset (autovacuum_enabled)', c.relname)
    from pg_class c join pg_namespace n on n.oid = c.relnamespace, pg_options_to_table(c.reloptions) o
    where n.nspname = current_schema() and o.option_name = 'autovacuum_enabled'
      and not o.option_value::boolean order by c.relname limit 10;
end;
$$;

create or replace function _check_notifications() returns table (severity text, finding text, fix text)
    language plpgsql set search_path from current
as $$
declare
    v_usage double precision := pg_notification_queue_usage();
begin
    if v_usage > 0.5 then
        return query
        select 'warning',
               format('the server''s queue of notifications is %s %% full; at 100 %% no transaction that '
                      'notifies can commit. A session that listens has been in a transaction for too long, '
                      'probably %s',
                      round(v_usage::numeric * 100),
                      coalesce(format('%s of %s (since %s)', a.pid, a.usename, a.xact_start), 'unknown')),
               coalesce(format('select pg_terminate_backend(%s)', a.pid),
                        'find the session that LISTENs, in a transaction, and end it')
        from (values (1)) one(row)
        left join lateral (
            select s.* from pg_stat_activity s
            where s.backend_type = 'client backend' and s.pid <> pg_backend_pid() and s.xact_start is not null
            order by s.xact_start limit 1) a on true;
    end if;
end;
$$;

create or replace function _check_settings() returns table (severity text, finding text, fix text)
    language plpgsql set search_path from current
as $$
begin
    return query
    select 'info',
           format('max_locks_per_transaction is %s: a query on all of history takes a lock '
                  'per day and index, 64 is usual', s.setting),
           'alter system set max_locks_per_transaction = 64; -- then restart the server'
    from pg_settings s where s.name = 'max_locks_per_transaction' and s.setting::integer < 64;
    return query
    select 'ok', 'synchronous_commit is off; start_job and once raise it for their own commits, '
                 'so at most once holds', null
    where current_setting('synchronous_commit') = 'off';
end;
$$;
