-- Second step of every installation and upgrade, after owner.sql.
--
-- No later file names the schema: each creates its objects in the search_path that is set here, and
-- each function keeps that path.

-- The later files are written for these settings. The role or the database may have others.
set local standard_conforming_strings = on;
set local datestyle = 'ISO';
set local intervalstyle = 'postgres';

do $$
begin
    if current_setting('server_version_num')::integer < 150000 then
        raise exception 'pyworker needs PostgreSQL 15 or newer, this is %', current_setting('server_version')
            using errcode = 'PW006';
    end if;
    if current_setting('server_encoding') <> 'UTF8' then
        raise exception 'pyworker needs a database with encoding UTF8, this one has %',
            current_setting('server_encoding')
            using errcode = 'PW006';
    end if;
    if octet_length(current_setting('pyworker.schema')) > 53
       and to_regclass(format('%I.migrations', current_setting('pyworker.schema'))) is null then
        raise exception 'the name of the schema must not be longer than 53 bytes, got %',
            quote_literal(current_setting('pyworker.schema'))
            using errcode = 'PW001', hint = 'Names of channels and roles are made of it, of up to 63 bytes.';
    end if;
    -- `create schema if not exists` needs the right to create schemas even if the schema exists.
    if not exists (select from pg_namespace n where n.nspname = current_setting('pyworker.schema')) then
        execute format('create schema %I', current_setting('pyworker.schema'));
    end if;
    perform set_config('search_path', format('%I, pg_temp', current_setting('pyworker.schema')), true);
end;
$$;

create table if not exists migrations (
    version integer primary key,
    name text not null,
    breaking boolean not null,
    checksum text,
    applied_at timestamptz not null default clock_timestamp()
);

-- Refuses to load the functions of an older pyworker over the tables of a newer one.
do $$
declare
    v_version integer := (select max(m.version) from migrations m);
begin
    if v_version > current_setting('pyworker.newest')::integer then
        raise exception 'the database has schema version %, this pyworker has %', v_version,
            current_setting('pyworker.newest')
            using errcode = 'PW006', detail = 'newer',
            hint = 'Upgrade pyworker; a database is never downgraded.';
    end if;
end;
$$;

-- Before a migration: the locks on all views and tables, at once or none. A session that works may hold one
-- of them and wait for another, so this waits only for a moment for a lock while it holds others, and then
-- tries again.
do $$
declare
    v_timeout constant text := current_setting('lock_timeout');
    v_until constant timestamptz := clock_timestamp() + v_timeout::interval;
    v_tables constant text := (
        select string_agg(format('%I', c.relname), ', ' order by c.relkind <> 'v', c.oid) from pg_class c
        where c.relnamespace = quote_ident(current_schema())::regnamespace and c.relkind in ('v', 'r', 'p')
          and not c.relispartition and c.relname <> 'migrations');
begin
    while v_tables is not null
          and (select max(m.version) from migrations m) < current_setting('pyworker.newest')::integer loop
        begin
            perform set_config('lock_timeout', '200ms', true);
            execute format('lock table %s in access exclusive mode', v_tables);
            perform set_config('lock_timeout', v_timeout, true);
            exit;
        exception when lock_not_available then
            if clock_timestamp() > v_until then
                raise;
            end if;
            perform pg_sleep(0.02);
        end;
    end loop;
end;
$$;
