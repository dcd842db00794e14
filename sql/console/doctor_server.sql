-- console/doctor_server: what doctor() checks of the catalog, of history's partitions, and of the server.

-- A SECURITY DEFINER function runs as its owner. If it belongs to another role than the tables and the
-- functions that it uses, it fails, or does what only that role may. setup/owner.sql gives all to one role.
create or replace function _check_owners()
    returns table (check_name text, severity text, finding text, fix text)
    language plpgsql set search_path from current
as $$
declare
    v_schema constant oid := quote_ident(current_schema())::regnamespace;
    v_owner constant oid := (select c.relowner from pg_class c where c.oid = 'migrations'::regclass);
begin
    return query
    select 'owners', 'error',
           format('some of pyworker does not belong to %s, its owner: %s', pg_get_userbyid(v_owner),
                  _few(array_agg(format('%s %s (%s)', i.type, i.identity, pg_get_userbyid(o.owner))
                                 order by o.step, i.identity))),
           string_agg(format('alter %s %s owner to %I', replace(i.type, 'composite type', 'type'), i.identity,
                             pg_get_userbyid(v_owner)), E';\n' order by o.step, i.identity)
    from (select 1 as step, 'pg_namespace'::regclass as class, n.oid, n.nspowner as owner
          from pg_namespace n where n.nspname in (current_schema(), _query_schema())
          union all
          select 2, 'pg_class', c.oid, c.relowner from pg_class c
          where c.relnamespace = v_schema and c.relkind in ('r', 'p', 'v', 'c', 'S')
            and not (c.relkind = 'S' and exists ( -- of an identity column: it has the owner of its table
                select from pg_depend d
                where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype = 'i'))
          union all
          select 3, 'pg_proc', p.oid, p.proowner from pg_proc p where p.pronamespace = v_schema) o
    cross join lateral pg_identify_object(o.class, o.oid, 0) i
    where o.owner <> v_owner having count(*) > 0;
end;
$$;

-- Each function that roles may call runs as its owner, in a fixed search_path. Exceptions: a body that was
-- bound when it was created, and two functions that run with the rights of the caller. A role without any
-- right here was made for another database of the server, or is not granted yet.
create or replace function _check_catalog()
    returns table (check_name text, severity text, finding text, fix text)
    language plpgsql set search_path from current
as $$
declare
    v_schema constant oid := quote_ident(current_schema())::regnamespace;
    v_path constant text := 'search_path=' || current_setting('search_path');
begin
    return query
    select 'functions', 'error',
           'functions that roles may call do not run as their owner in a fixed search_path: '
               || _few(array_agg(distinct p.proname::text)),
           'install this version again: pyworker migrate, or psql -f sql/install.sql'
    from pg_proc p
    where p.pronamespace = v_schema and p.prosqlbody is null
      and exists (select from _granted() g
                  where p.proname = any (g.functions)
                     or concat(p.proname, '/', p.pronargs) = any (g.functions))
      and (not coalesce(p.proconfig, '{}') @> array[v_path]
           or not p.prosecdef and p.proname not in ('_json_of', 'add_schedule'))
    having count(*) > 0;
    return query
    select 'indexes', case when i.indisunique then 'error' else 'warning' end,
           format('index %s on %s is invalid%s', x.relname, i.indrelid::regclass,
                  case when i.indisunique then ': it enforces nothing' else '' end),
           -- _ccnew and _ccold are left over from REINDEX CONCURRENTLY: drop them.
           case when x.relname ~ '_cc(new|old)[0-9]*$' then _fix('drop index concurrently ~.%I', x.relname)
                else _fix('reindex index concurrently ~.%I', x.relname) end
    from pg_index i join pg_class x on x.oid = i.indexrelid
    where x.relnamespace = v_schema and not (i.indisvalid and i.indisready)
      and not exists (select from pg_stat_progress_create_index p where p.index_relid = i.indexrelid)
    order by x.relname limit 10;
    return query
    with role as materialized (select g.* from _granted() g join pg_roles r on r.rolname = g.role),
    needed as (
        select g.role, 1 as step, 'usage on schema' as privilege, current_schema()::text as name,
               has_schema_privilege(g.role, current_schema(), 'usage') as given
        from role g
        union all
        select g.role, 2, 'execute on function', p.proname::text,
               has_function_privilege(g.role, p.oid, 'execute')
        from role g join pg_proc p on p.pronamespace = v_schema and (
            p.proname = any (g.functions) or concat(p.proname, '/', p.pronargs) = any (g.functions))
        union all
        select g.role, 3, 'select on', v.name,
               has_table_privilege(g.role, format('%I.%I', current_schema(), v.name), 'select')
        from role g cross join unnest(g.views) v(name)
        where to_regclass(format('%I.%I', current_schema(), v.name)) is not null
    ), lacking as (
        select n.role, n.step, format('%s %s', n.privilege, _few(array_agg(distinct n.name))) as words
        from needed n where not n.given group by n.role, n.step, n.privilege
    ), strange as (select n.role from needed n group by n.role having not bool_or(n.given))
    select 'grants', 'info',
           format('without any right in this database, though it exists on the server: role %s',
                  string_agg(s.role, ', ' order by s.role)),
           _fix('select ~._grant_rights()')
    from strange s having count(*) > 0
    union all
    select 'grants', 'warning', format('role %s lacks %s', l.role, string_agg(l.words, '; ' order by l.step)),
           _fix('select ~._grant_rights()')
    from lacking l where l.role not in (select s.role from strange s) group by l.role;
    return query
    select 'grants', 'warning',
           'everybody may call or read what is pyworker''s own: ' || _few(array_agg(o.name order by o.name)),
           _fix('select ~._grant_rights()')
    from (select p.oid::regprocedure::text as name from pg_proc p
          where p.pronamespace = v_schema and has_function_privilege('public', p.oid, 'execute')
          union all
          select c.oid::regclass::text from pg_class c
          where c.relnamespace = v_schema and c.relkind in ('r', 'p', 'v')
            and has_table_privilege('public', c.oid, 'select, insert, update, delete')) o
    having count(*) > 0;
end;
$$;

create or replace function _check_partitions()
    returns table (check_name text, severity text, finding text, fix text)
    language plpgsql set search_path from current
as $$
begin
    if _partition('finished_jobs_default') is null then
        return query values ('partitions', 'error',
            'finished_jobs has no default partition: a job whose day has none cannot be finished',
            _fix('create table ~.finished_jobs_default partition of ~.finished_jobs default'));
        return;
    end if;
    return query
    select 'partitions', 'warning',
           'history has no partition for what expires on '
               || _few(array_agg(to_char(d.day at time zone 'UTC', 'YYYY-MM-DD') order by d.day)),
           _fix('select * from ~.maintain()')
    from _partition_days(0) d(day) -- today's: maintain() may still create the later ones in time
    where _partition('finished_jobs_' || to_char(d.day at time zone 'UTC', 'YYYYMMDD')) is null
      and not exists (select from finished_jobs_default f
                      where f.expires_at >= d.day and f.expires_at < d.day + interval '24 hours')
    having count(*) > 0
    union all
    select 'partitions', 'info',
           format('finished jobs in the default partition: %s%s; they are pruned one by one', count(*),
                  case when count(*) = 100000 then ' or more' end),
           _fix(E'begin;\ncreate temp table pyworker_moved on commit drop as '
                'select * from ~.finished_jobs_default;\n'
                'delete from ~.finished_jobs_default;\nselect ~._make_partitions();\n'
                'insert into ~.finished_jobs select * from pyworker_moved;\ncommit')
    from (select from finished_jobs_default f join _partition_days(2) d(day)
              on f.expires_at >= d.day and f.expires_at < d.day + interval '24 hours' limit 100000) m
    having count(*) > 0;
end;
$$;

-- xmin: vacuum cannot remove rows that died after the oldest transaction began. An owner without
-- pg_read_all_stats sees the xmin of other roles' sessions but not when their transactions began;
-- there the age in transactions decides.
create or replace function _check_server()
    returns table (check_name text, severity text, finding text, fix text)
    language plpgsql set search_path from current
as $$
declare
    v_since timestamptz := clock() - interval '5 minutes';
begin
    return query
    select 'xmin', 'warning',
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
    select 'xmin', 'warning',
           format('transaction %L, prepared at %s by %s, keeps vacuum from removing dead rows', p.gid,
                  p.prepared, p.owner),
           format('rollback prepared %L', p.gid)
    from pg_prepared_xacts p where p.database = current_database() and p.prepared < v_since
    order by p.prepared limit 5;
    return query
    select 'xmin', 'warning',
           format('replication slot %s (%s) is not in use and holds back vacuum and WAL', s.slot_name,
                  s.slot_type),
           format('select pg_drop_replication_slot(%L)', s.slot_name)
    from pg_replication_slots s
    where not s.active and (s.xmin is not null or s.catalog_xmin is not null)
      and (s.database = current_database() or s.database is null)
    order by s.slot_name limit 5;
    return query
    select 'bloat', 'warning',
           format('%s has %s dead rows beside %s live ones; last vacuum: %s. If a vacuum does not remove '
                  'them, see xmin', s.relname, s.n_dead_tup, s.n_live_tup,
                  coalesce(greatest(s.last_autovacuum, s.last_vacuum)::text, 'never')),
           _fix('vacuum ~.%I', s.relname)
    from pg_stat_all_tables s
    where s.schemaname = current_schema() and s.n_dead_tup > 20000 + s.n_live_tup / 5
    order by s.n_dead_tup desc limit 5;
    return query
    select 'autovacuum', 'warning', format('%s is off: nothing removes dead rows by itself', g.name),
           format(E'alter system set %I = on;\nselect pg_reload_conf()', g.name)
    from unnest(array['autovacuum', 'track_counts']) g(name) where not current_setting(g.name)::boolean;
    return query
    select 'autovacuum', 'warning', format('autovacuum is off for %s', c.relname),
           _fix('alter table ~.%I reset (autovacuum_enabled)', c.relname)
    from pg_class c, pg_options_to_table(c.reloptions) o
    where c.relnamespace = quote_ident(current_schema())::regnamespace
      and o.option_name = 'autovacuum_enabled' and not o.option_value::boolean order by c.relname limit 10;
    return query
    select 'notifications', 'warning',
           format('the server''s queue of notifications is %s %% full; at 100 %% no transaction that '
                  'notifies can commit. A session that listens has been in a transaction for too long, '
                  'probably %s', round(u.usage::numeric * 100),
                  coalesce(format('%s of %s (since %s)', a.pid, a.usename, a.xact_start), 'unknown')),
           coalesce(format('select pg_terminate_backend(%s)', a.pid),
                    'find the session that LISTENs, in a transaction, and end it')
    from pg_notification_queue_usage() u(usage)
    left join lateral (
        select s.* from pg_stat_activity s
        where s.backend_type = 'client backend' and s.pid <> pg_backend_pid() and s.xact_start is not null
        order by s.xact_start limit 1) a on true
    where u.usage > 0.5;
    return query
    select 'settings', 'info',
           format('max_locks_per_transaction is %s: a query on all of history takes a lock '
                  'per day and index, 64 is usual', s.setting),
           'alter system set max_locks_per_transaction = 64; -- then restart the server'
    from pg_settings s where s.name = 'max_locks_per_transaction' and s.setting::integer < 64;
    return query
    select 'settings', 'ok',
           'synchronous_commit is off; start_job and once raise it for their own commits, '
           'so at most once holds', null
    where current_setting('synchronous_commit') = 'off';
end;
$$;
