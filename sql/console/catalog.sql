-- console/catalog: the checks of doctor() that read the catalog: functions, indexes and grants.
--
-- Nothing else is compared with what was installed. Each installation loads all functions, views and
-- grants again. Restore missing tables, columns and indexes from a backup.
-- Owners: console/owners.

-- Each function that roles may call runs as its owner, in a fixed search_path. Exceptions: a body that was
-- bound when it was created, and two functions that run with the rights of the caller.
create or replace function _check_functions() returns table (severity text, finding text, fix text)
    language plpgsql set search_path from current
as $$
declare
    v_path constant text := 'search_path=' || current_setting('search_path');
begin
    return query
    select 'error',
           'functions that roles may call do not run as their owner in a fixed search_path: '
               || _few(array_agg(distinct p.proname::text)),
           'install this version again: pyworker migrate, or psql -f sql/install.sql'
    from pg_proc p join pg_namespace n on n.oid = p.pronamespace
    where n.nspname = current_schema() and p.prosqlbody is null
      and exists (select from _granted() g
                  where p.proname = any (g.functions)
                     or concat(p.proname, '/', p.pronargs) = any (g.functions))
      and (not coalesce(p.proconfig, '{}') @> array[v_path]
           or not p.prosecdef and p.proname not in ('_json_of', 'add_schedule'))
    having count(*) > 0;
end;
$$;

create or replace function _check_indexes() returns table (severity text, finding text, fix text)
    language plpgsql set search_path from current
as $$
begin
    return query
    select case when i.indisunique then 'error' else 'warning' end,
           format('index %s on %s is invalid%s', x.relname, i.indrelid::regclass,
                  case when i.indisunique then ': it enforces nothing' else '' end),
           -- _ccnew and _ccold are left over from REINDEX CONCURRENTLY: drop them.
           case when x.relname ~ '_cc(new|old)[0-9]*$' then _fix('drop index concurrently ~.%I', x.relname)
                else _fix('reindex index concurrently ~.%I', x.relname) end
    from pg_index i join pg_class x on x.oid = i.indexrelid join pg_namespace n on n.oid = x.relnamespace
    where n.nspname = current_schema() and not (i.indisvalid and i.indisready)
      and not exists (select from pg_stat_progress_create_index p where p.index_relid = i.indexrelid)
    order by x.relname limit 10;
end;
$$;

-- Roles belong to the server. One that has no right here was made for another database, or not yet granted.
create or replace function _check_grants() returns table (severity text, finding text, fix text)
    language plpgsql set search_path from current
as $$
begin
    return query
    with role as materialized (select g.* from _granted() g join pg_roles r on r.rolname = g.role),
    needed as (
        select g.role, 1 as step, 'usage on schema' as privilege, current_schema()::text as name,
               has_schema_privilege(g.role, current_schema(), 'usage') as given
        from role g
        union all
        select g.role, 2, 'execute on function', p.proname::text,
               has_function_privilege(g.role, p.oid, 'execute')
        from role g join pg_proc p on p.proname = any (g.functions)
            or concat(p.proname, '/', p.pronargs) = any (g.functions)
        join pg_namespace n on n.oid = p.pronamespace where n.nspname = current_schema()
        union all
        select g.role, 3, 'select on', v.name,
               has_table_privilege(g.role, format('%I.%I', current_schema(), v.name), 'select')
        from role g cross join unnest(g.views) v(name)
        where to_regclass(format('%I.%I', current_schema(), v.name)) is not null
    ), lacking as (
        select n.role, n.step, format('%s %s', n.privilege, _few(array_agg(distinct n.name))) as words
        from needed n where not n.given group by n.role, n.step, n.privilege
    ), strange as (select n.role from needed n group by n.role having not bool_or(n.given))
    select 'info', format('without any right in this database, though it exists on the server: role %s',
                          string_agg(s.role, ', ' order by s.role)),
           _fix('select ~._grant_rights()')
    from strange s having count(*) > 0
    union all
    select 'warning', format('role %s lacks %s', l.role, string_agg(l.words, '; ' order by l.step)),
           _fix('select ~._grant_rights()')
    from lacking l where l.role not in (select s.role from strange s) group by l.role;
    return query
    select 'warning',
           'everybody may call or read what is pyworker''s own: ' || _few(array_agg(o.name order by o.name)),
           _fix('select ~._grant_rights()')
    from (select p.oid::regprocedure::text as name from pg_proc p
          join pg_namespace n on n.oid = p.pronamespace
          where n.nspname = current_schema() and has_function_privilege('public', p.oid, 'execute')
          union all
          select c.oid::regclass::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
          where n.nspname = current_schema() and c.relkind in ('r', 'p', 'v')
            and has_table_privilege('public', c.oid, 'select, insert, update, delete')) o
    having count(*) > 0;
end;
$$;
