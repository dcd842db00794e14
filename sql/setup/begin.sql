-- First step of every installation and upgrade, by psql (install.sql) and by `pyworker migrate` alike.
-- The caller has opened a transaction (READ COMMITTED: what an installation before this one did must be seen after the wait
-- for it) and named the schema, which may not exist yet, in the setting pyworker.schema, its newest migration in pyworker.newest.
-- No later file names it: all of them create things in the search_path set here, and each function keeps that path.

-- One at a time, and no time limit on this wait: twenty starting at once queue up here.
select pg_advisory_xact_lock(hashtextextended('pyworker.migrate', 0));

-- From here on rather fail and be repeated than make the queue wait behind somebody's long read.
set local lock_timeout = '5s';
set local client_min_messages = warning;

-- What the files after this one are written in, whatever the role's or the database's settings are.
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
        raise exception 'pyworker needs a database with encoding UTF8, this one has %', current_setting('server_encoding')
            using errcode = 'PW006';
    end if;
    -- Asked first: `create schema if not exists` wants the right to create schemas even for one that is there.
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

-- Old code does not fit new tables.
do $$
declare
    v_version integer := (select max(m.version) from migrations m);
begin
    if v_version > current_setting('pyworker.newest')::integer then
        raise exception 'the database has schema version %, this pyworker has %', v_version, current_setting('pyworker.newest')
            using errcode = 'PW006', detail = 'newer', hint = 'Upgrade pyworker; a database is never downgraded.';
    end if;
end;
$$;
