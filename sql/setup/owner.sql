-- First step of every installation and upgrade, by psql (install.sql) or by `pyworker migrate`: it goes
-- on as the owner of the installation, and not as the caller.
--
-- The caller has opened a READ COMMITTED transaction: after the wait below, it must see what the
-- installation before it did. The caller has set pyworker.schema to the name of the schema, which
-- may not exist yet, and pyworker.newest to the number of its newest migration.

-- One installation at a time. This wait has no time limit: processes that start at once wait here.
select pg_advisory_xact_lock(hashtextextended('pyworker.migrate', 0));

-- From here on, fail after 5 s rather than block the queue behind a long-running query. The
-- installation can be repeated.
set local lock_timeout = '5s';
set local client_min_messages = warning;

-- What one role creates in the schema of another would run with that role's rights, and without those of
-- the owner. The owner is the one of the table `migrations`; before the first installation, the one of
-- the schema. Where something has another owner, and the caller may change that, it gets this one.
do $$
declare
    v_schema constant text := current_setting('pyworker.schema');
    v_caller constant text := current_user;
    v_owner oid := (select coalesce(c.relowner, n.nspowner) from pg_namespace n
                    left join pg_class c on c.relnamespace = n.oid and c.relname = 'migrations'
                    where n.nspname = v_schema);
    v_name constant text := pg_get_userbyid(v_owner);
    v_kind text;
    v_what text;
begin
    perform set_config('pyworker.role', current_setting('role'), true); -- for roles.sql
    if v_owner is null then
        return;
    end if;
    for v_kind, v_what in
        select 'schema', quote_ident(n.nspname) from pg_namespace n
        where n.nspname in (v_schema, v_schema || '_queries') and n.nspowner <> v_owner
        union all
        select case c.relkind when 'v' then 'view' when 'S' then 'sequence' when 'c' then 'type'
                    else 'table' end,
               format('%I.%I', v_schema, c.relname)
        from pg_class c
        where c.relnamespace = to_regnamespace(quote_ident(v_schema)) and c.relowner <> v_owner
          and c.relkind in ('r', 'p', 'v', 'S', 'c')
          and not (c.relkind = 'S' and exists (
              select from pg_depend d where d.classid = 'pg_class'::regclass and d.objid = c.oid
                and d.refobjsubid > 0 and d.deptype in ('a', 'i')))
        union all
        select 'routine', format('%I.%I(%s)', v_schema, p.proname, pg_get_function_identity_arguments(p.oid))
        from pg_proc p
        where p.pronamespace = to_regnamespace(quote_ident(v_schema)) and p.proowner <> v_owner
    loop
        begin
            execute format('alter %s %s owner to %I', v_kind, v_what, v_name);
        exception when insufficient_privilege then
            raise exception '% % does not belong to %, the owner of pyworker in schema %, and % may not '
                'change that', v_kind, v_what, quote_ident(v_name), quote_ident(v_schema),
                quote_ident(v_caller)
                using errcode = '42501', hint = format(
                    'Nothing was changed. Run it as a superuser, or let one run: ALTER %s %s OWNER TO %I',
                    upper(v_kind), v_what, v_name);
        end;
    end loop;
    if v_caller <> v_name then
        begin
            perform set_config('role', v_name, true);
        exception when insufficient_privilege then
            raise exception 'pyworker in schema % belongs to %, and % may not act as that role',
                quote_ident(v_schema), quote_ident(v_name), quote_ident(v_caller)
                using errcode = '42501', hint = format(
                    'Nothing was changed. Run it as %I, as a superuser, or as a role with: GRANT %I TO %I%s',
                    v_name, v_name, v_caller,
                    case when current_setting('server_version_num')::integer >= 160000
                         then ' WITH SET TRUE' else '' end);
        end;
    end if;
end;
$$;
