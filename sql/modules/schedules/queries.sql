-- schedules/queries: schedules that ask the database what to add.
--
-- The query of a schedule runs with the rights of its query_role, in a SECURITY DEFINER function that this role itself has created (in the
-- schema pyworker_queries, named after ours), so that PostgreSQL vouches for its owner. Nobody has to be trusted with a text that is
-- run for somebody else: add_schedule does SET ROLE (by default to the caller's own
-- role; one with the rights of our owner may lend them, as it could run the query anyway), which PostgreSQL
-- refuses to those who are not members, and inside of any SECURITY DEFINER function, this one too. So the query cannot get out of it. As the function is STABLE, it can only read; and whatever the functions that
-- it calls may do is rolled back, settings of the session included, which would outlast it otherwise.
-- Its owner could turn it into one that runs with the rights of who calls it: ours. For that he has to name it, so nobody has any right on the
-- schema but while add_schedule makes one, under a lock that whoever runs a query shares; and it is run only if it is what it was.

create or replace function _query_schema() returns text
    language plpgsql stable set search_path from current
as $$
begin
    return current_schema() || '_queries';
end;
$$;

-- The function that asks a schedule's query: in its schema, and what it consists of. It opens a cursor, so the query is one statement. Asked
-- for no row it gives one of nulls, to show the columns.
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

-- Roles other than its owner that have any right on the schema of queries; 0 is everybody.
create or replace function _guests() returns setof oid
    language plpgsql stable set search_path from current
as $$
begin
    return query
    select distinct a.grantee from pg_namespace n, aclexplode(n.nspacl) a where n.nspname = _query_schema() and a.grantee <> n.nspowner;
end;
$$;

-- Makes room for the function of this name: a schema where this role may create it, and none that is there already. Whoever calls this
-- and not _add_schedule afterwards leaves a guest behind, for whose sake no query is run.
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

-- Is the function of a query what add_schedule has made?
create or replace function _is_sound(name text, query text, query_role text) returns boolean
    language plpgsql stable set search_path from current
as $$
declare
    v_function record := _query_function(name, query);
begin
    return exists (
        select from pg_proc p
        where p.oid = to_regprocedure(v_function.path || '(integer)') and pg_get_userbyid(p.proowner) = query_role and p.prosecdef
          and p.provolatile = 's' and p.prosrc = v_function.body);
end;
$$;

-- What is wrong with the query of a schedule; null if nothing is, and then it is closed to everybody but us.
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
    if not _is_sound(s.name, s.query, s.query_role) then
        return 'query: its function is not the one that add_schedule makes';
    end if;
    for v_guest in select g.g from _guests() g(g) loop
        execute format('revoke all on schema %I from %s', _query_schema(),
                       case when v_guest = 0 then 'public' else quote_ident(pg_get_userbyid(v_guest)) end);
    end loop;
    return null;
end;
$$;
