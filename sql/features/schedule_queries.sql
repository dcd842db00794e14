-- features/schedule_queries: schedules that ask the database what to add.
--
-- The query of a schedule runs with the privileges of its query_role, never with those of
-- pyworker's owner:
--
-- * add_schedule does SET ROLE to query_role and creates a SECURITY DEFINER function for the query,
--   in the schema pyworker_queries (named after pyworker's own schema). So the function belongs to
--   query_role.
-- * query_role is the caller's own role by default. PostgreSQL refuses SET ROLE to a role of which
--   the caller is not a member. A query_role with the privileges of pyworker's owner is refused
--   unless the caller has them too, who could then run the query anyway.
-- * PostgreSQL refuses SET ROLE inside a SECURITY DEFINER function, so the query cannot change its
--   role.
-- * The function is STABLE, so the query itself only reads. What functions do that it calls is
--   rolled back (_add_tick), with settings of the session, which would otherwise stay.
-- * The function's owner could alter it to SECURITY INVOKER, so that it runs with the privileges of
--   pyworker's owner. For that the owner must name it, which takes USAGE on its schema. Other roles
--   have privileges there only while add_schedule creates a function, under an advisory lock that
--   running a query shares.
-- * _add_tick runs the function only if it is what add_schedule created (_query_is_intact) and no
--   other role has a privilege on the schema (_query_schema_grantees).

create or replace function _query_schema() returns text
    language plpgsql stable set search_path from current
as $$
begin
    return current_schema() || '_queries';
end;
$$;

-- The path and the body of the function for a schedule's query. It opens a cursor, so the query
-- must be one statement. With max_rows = 0 it returns one row of nulls, which shows the columns.
create or replace function _query_function(name text, query text, out path text, out body text)
    language plpgsql stable security definer set search_path from current
as $$
begin
    path := format('%I.%I', _query_schema(), 'schedule_' || md5(name));
    body := format($body$
declare
    v_rows refcursor;
    v_row record;
begin
    open v_rows no scroll for execute %L;
    fetch relative 0 from v_rows into v_row;
    if max_rows = 0 then
        return next to_jsonb(v_row);
    end if;
    for i in 1..max_rows loop
        fetch v_rows into v_row;
        exit when not found;
        return next to_jsonb(v_row);
    end loop;
    close v_rows;
end;
$body$, query);
end;
$$;

-- Drops the function of a schedule's query, if there is one.
create or replace function _drop_query(name text) returns void
    language plpgsql set search_path from current
as $$
declare
    v_function regprocedure := to_regprocedure((_query_function(name, '')).path || '(integer)');
begin
    if v_function is not null then
        execute 'drop function ' || v_function;
    end if;
end;
$$;

-- Locks the functions of all queries until the transaction ends: share = true to run one, false to
-- change one.
create or replace function _lock_queries(share boolean) returns void
    language plpgsql set search_path from current
as $$
declare
    v_key constant bigint := hashtextextended(_query_schema(), 0);
begin
    if share then
        perform pg_advisory_xact_lock_shared(v_key);
    else
        perform pg_advisory_xact_lock(v_key);
    end if;
end;
$$;

-- Roles other than its owner that have a privilege on the schema of queries; 0 is PUBLIC.
create or replace function _query_schema_grantees() returns setof oid
    language plpgsql stable set search_path from current
as $$
begin
    return query
    select distinct a.grantee from pg_namespace n, aclexplode(n.nspacl) a
    where n.nspname = _query_schema() and a.grantee <> n.nspowner;
end;
$$;

-- Lets query_role create the function of a query: creates the schema if it is missing, drops the
-- function's previous version, and grants privileges on the schema. _add_schedule must follow,
-- which revokes them: until then no query runs.
create or replace function _lend_query_schema(name text, query_role text) returns void
    language plpgsql security definer set search_path from current
as $$
declare
begin
    if not exists (select from pg_namespace n where n.nspname = _query_schema()) then
        execute format('create schema %I', _query_schema());
    end if;
    perform _lock_queries(false);
    perform _drop_query(name);
    execute format('grant usage, create on schema %I to %I', _query_schema(), query_role);
end;
$$;

-- True if the function of a query is the one that add_schedule created.
create or replace function _query_is_intact(name text, query text, query_role text) returns boolean
    language plpgsql stable set search_path from current
as $$
declare
    v_function record := _query_function(name, query);
begin
    return exists (
        select from pg_proc p
        where p.oid = to_regprocedure(v_function.path || '(integer)')
          and pg_get_userbyid(p.proowner) = query_role and p.prosecdef
          and p.provolatile = 's' and p.prosrc = v_function.body);
end;
$$;

-- Why the query of a schedule is refused, or null. If it is accepted, all other roles lose their
-- privileges on the schema of queries.
create or replace function _query_refusal(s schedule) returns text
    language plpgsql set search_path from current
as $$
declare
    v_guest oid;
begin
    if s.query is null then
        return case when s.query_role is not null then 'query_role is of no use without a query' end;
    elsif s.query_limit is null or s.query_limit not between 1 and 100000 then
        return format('query_limit must be from 1 to 100000, got %s', coalesce(s.query_limit::text, 'NULL'));
    elsif s.backfill <> interval '0' then
        return 'backfill is of no use to a query: it asks what is to be done now';
    end if;
    perform _lock_queries(false);
    if not _query_is_intact(s.name, s.query, s.query_role) then
        return 'query: its function is not the one that add_schedule makes';
    end if;
    for v_guest in select g.g from _query_schema_grantees() g(g) loop
        execute format('revoke all on schema %I from %s', _query_schema(),
                       case when v_guest = 0 then 'public' else quote_ident(pg_get_userbyid(v_guest)) end);
    end loop;
    return null;
end;
$$;
