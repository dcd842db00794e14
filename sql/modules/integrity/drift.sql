-- integrity/drift: the checks of doctor() that compare the schema with what was installed.
--
-- Every installation and upgrade ends with _record_objects(), which stores a digest of each
-- definition in installed_objects. _check_schema compares them with the catalog. _check_indexes
-- finds invalid indexes, _check_grants finds missing and excess privileges. Owners: integrity/owners.

-- Our tables, views, types and sequences. Left out are partitions, which maintain() creates, and
-- the sequences of identity columns.
create or replace function _our_relations() returns table (
    oid oid, relkind "char", name text, path text, object text, partitioned text, options text)
    language plpgsql stable set search_path from current
as $$
begin
    return query
    select c.oid, c.relkind, c.relname::text, format('%I.%I', current_schema(), c.relname),
           case c.relkind when 'v' then 'view ' when 'c' then 'type ' when 'S' then 'sequence '
                else 'table ' end || c.relname,
           coalesce(' partition by ' || pg_get_partkeydef(c.oid), ''),
           coalesce(' with (' || array_to_string(c.reloptions, ', ') || ')', '')
    from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = current_schema() and c.relkind in ('r', 'p', 'v', 'c', 'S') and not c.relispartition
      and not (c.relkind = 'S' and exists (
          select from pg_depend d
          where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype = 'i'));
end;
$$;

-- The columns of our tables, and of our types (relkind 'c'). kind: the data type, with its
-- collation. value: how a new row gets its value, as SQL.
create or replace function _our_columns() returns table (
    oid oid, relkind "char", relation text, path text, object text, nr smallint, name text, kind text,
    value text, filled boolean)
    language plpgsql stable set search_path from current
as $$
begin
    return query
    select o.oid, o.relkind, o.name, o.path, o.object, a.attnum, a.attname::text,
           concat(format_type(a.atttypid, a.atttypmod),
                  case when a.attcollation <> t.typcollation
                       then ' collate ' || a.attcollation::regcollation::text end),
           case when a.attidentity <> '' then ' generated always as identity'
                else coalesce(' default ' || replace(pg_get_expr(d.adbin, d.adrelid), 'nextval(''',
                                                     _fix('nextval(''~.')), '') end,
           a.attnotnull
    from _our_relations() o
    join pg_attribute a on a.attrelid = o.oid and a.attnum > 0 and not a.attisdropped
    join pg_type t on t.oid = a.atttypid
    left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
    where o.relkind not in ('v', 'S');
end;
$$;

-- The functions _NAME_objects return our objects of one kind: the table that the object is part_of,
-- its definition, the statement that creates it (make), and the one that changes it back (change).
-- nr is the place of a column in its table.
create or replace function _sequence_objects()
    returns table (nr smallint, object text, part_of text, definition text, make text, change text)
    language plpgsql stable set search_path from current
as $$
begin
    return query
    select 0::smallint, o.object, null::text, format('%s %s', s.seqmin, s.seqstart),
           format('create sequence %s minvalue %s start %s', o.path, s.seqmin, s.seqstart)
               -- A new sequence starts after the highest id: no id is used twice.
               || case when o.name = 'job_ids' then _fix(
                    E';\nselect setval(%L, max(j.id)) from (select id from ~.live_jobs union all '
                    'select id from ~.finished_jobs) j having count(*) > 0', o.path) else '' end,
           null::text
    from _our_relations() o join pg_sequence s on s.seqrelid = o.oid;
end;
$$;

create or replace function _table_objects()
    returns table (nr smallint, object text, part_of text, definition text, make text, change text)
    language plpgsql stable set search_path from current
as $$
begin
    return query
    select 0::smallint, o.object, null::text, o.partitioned,
           case when o.relkind = 'c' then format('create type %s as (%s)', o.path, l.attributes)
                else format('create table %s (%s)%s%s', o.path, l.columns, o.partitioned, o.options) end,
           null::text
    from _our_relations() o
    join (select c.oid, string_agg(format('%I %s', c.name, c.kind), ', ' order by c.nr) as attributes,
                 string_agg(format('%I %s%s%s', c.name, c.kind, c.value,
                                   case when c.filled then ' not null' end), ', ' order by c.nr) as columns
          from _our_columns() c group by c.oid) l on l.oid = o.oid;
end;
$$;

create or replace function _column_objects()
    returns table (nr smallint, object text, part_of text, definition text, make text, change text)
    language plpgsql stable set search_path from current
as $$
begin
    return query
    select c.nr, format('column %s.%s', c.relation, c.name), c.object, c.kind,
           format('alter %s %s add %s %I %s%s%s', k.whole, c.path, k.part, c.name, c.kind, c.value,
                  case when c.filled then ' not null' end),
           format('alter %s %s alter %s %I type %s%s', k.whole, c.path, k.part, c.name, c.kind,
                  case when k.whole = 'table'
                       then format(' using %I::%s', c.name, split_part(c.kind, ' collate ', 1)) end)
    from _our_columns() c
    cross join lateral (select case c.relkind when 'c' then 'type' else 'table' end as whole,
                               case c.relkind when 'c' then 'attribute' else 'column' end as part) k;
end;
$$;

-- What a column of a table holds by default, and whether it may be null.
create or replace function _default_objects()
    returns table (nr smallint, object text, part_of text, definition text, make text, change text)
    language plpgsql stable set search_path from current
as $$
begin
    return query
    select c.nr, format('default of %s.%s', c.relation, c.name),
           format('column %s.%s', c.relation, c.name), format('%s %s', c.filled, c.value), null::text,
           format('alter table %1$s alter column %2$I %3$s not null%4$s', c.path, c.name,
                  case when c.filled then 'set' else 'drop' end,
                  case when c.value not like ' generated%' then format(', alter column %I %s', c.name,
                       case when c.value = '' then 'drop default' else 'set' || c.value end) end)
    from _our_columns() c where c.relkind <> 'c';
end;
$$;

-- NOT NULL constraints (contype 'n') are in _default_objects.
create or replace function _constraint_objects()
    returns table (nr smallint, object text, part_of text, definition text, make text, change text)
    language plpgsql stable set search_path from current
as $$
begin
    return query
    select 0::smallint, format('constraint %s', k.conname), o.object, pg_get_constraintdef(k.oid),
           format('alter table %s add constraint %I %s', o.path, k.conname, pg_get_constraintdef(k.oid)),
           format('alter table %1$s drop constraint %2$I, add constraint %2$I %3$s', o.path, k.conname,
                  pg_get_constraintdef(k.oid))
    from _our_relations() o join pg_constraint k on k.conrelid = o.oid and k.contype <> 'n';
end;
$$;

create or replace function _index_objects()
    returns table (nr smallint, object text, part_of text, definition text, make text, change text)
    language plpgsql stable set search_path from current
as $$
begin
    return query
    select 0::smallint, format('index %s', x.relname), o.object, d.definition,
           case when o.relkind = 'p' then d.on_all
                else regexp_replace(d.definition, ' INDEX ', ' INDEX CONCURRENTLY ') end,
           format(E'drop index %I.%I;\n%s', current_schema(), x.relname, d.on_all)
    from _our_relations() o join pg_index i on i.indrelid = o.oid join pg_class x on x.oid = i.indexrelid
    cross join lateral (
        select pg_get_indexdef(x.oid) as definition,
               replace(pg_get_indexdef(x.oid), ' ON ONLY ', ' ON ') as on_all) d
    where not exists (select from pg_constraint k where k.conindid = i.indexrelid);
end;
$$;

-- All objects of this installation. Storage parameters are no part of a definition, as people tune
-- them. Views and functions have neither make nor change: the installer creates them.
create or replace function _our_objects()
    returns table (object text, part_of text, definition text, make text, change text)
    language plpgsql stable set search_path from current set jit = off
    -- The text of a definition depends on these settings.
    set timezone = 'UTC' set datestyle = 'ISO' set intervalstyle = 'postgres' set quote_all_identifiers = off
    set standard_conforming_strings = on
as $$
begin
    return query
    select f.object, f.part_of, f.definition, f.make, f.change from (
        select 1 as step, s.* from _sequence_objects() s
        union all select 2, t.* from _table_objects() t
        union all select 3, c.* from _column_objects() c
        union all select 4, d.* from _default_objects() d
        union all select 5, k.* from _constraint_objects() k
        union all select 6, i.* from _index_objects() i
        union all
        select 7, 0, o.object, null, pg_get_viewdef(o.oid), null, null
        from _our_relations() o where o.relkind = 'v'
        union all
        select 8, 0, format('function %s(%s)', p.proname, pg_get_function_identity_arguments(p.oid)), null,
               pg_get_functiondef(p.oid), null, null
        from pg_proc p join pg_namespace n on n.oid = p.pronamespace
        where n.nspname = current_schema() and p.prokind = 'f') f
    order by f.step, f.part_of collate "C", f.nr, f.object collate "C";
end;
$$;

-- The server's major version. Another one may print the same definition in another way, so digests
-- are compared within one version only.
create or replace function _major_version() returns text
    language plpgsql stable set search_path from current
as $$
begin
    return (current_setting('server_version_num')::integer / 10000)::text;
end;
$$;

-- Records the objects as they are now; a part of the last step of every installation and upgrade.
create or replace function _record_objects() returns void
    language plpgsql set search_path from current
as $$
begin
    delete from installed_objects i
    where i.object <> 'server' and not exists (select from _our_objects() o where o.object = i.object);
    insert into installed_objects as i (object, part_of, digest, make, change, position)
    select o.object, o.part_of, encode(sha256(convert_to(o.definition, 'UTF8')), 'hex'), o.make, o.change,
           o.ordinality
    from _our_objects() with ordinality o
    union all
    select 'server', null, _major_version(), null, null, 0
    order by 6
    on conflict (object) do update
    set part_of = excluded.part_of, digest = excluded.digest, make = excluded.make, change = excluded.change,
        position = excluded.position
    -- Installing the same version again writes nothing.
    where (i.part_of, i.digest, i.make, i.change, i.position)
          is distinct from (excluded.part_of, excluded.digest, excluded.make, excluded.change,
                            excluded.position);
end;
$$;

-- What differs between the catalog and installed_objects. by_digest: compare definitions, too.
create or replace function _schema_differences(by_digest boolean)
    returns table ("position" integer, severity text, finding text, fix text)
    language plpgsql stable set search_path from current
as $$
begin
    return query
    with here as materialized (
        select o.object, o.part_of, encode(sha256(convert_to(o.definition, 'UTF8')), 'hex') as digest,
               o.change from _our_objects() o),
    there as materialized (select i.* from installed_objects i where i.object <> 'server'),
    lost as materialized (select t.object from there t
                          where not exists (select from here h where h.object = t.object))
    select t.position, 'error', t.object || ' is missing',
           case when t.object like 'table %' then (
                select string_agg(p.make, E';\n' order by p.position) from there p
                where p.object = t.object
                   or p.part_of = t.object and (p.object like 'index %' or p.object like 'constraint %'))
                else t.make end
    from there t join lost l on l.object = t.object
    where t.part_of is null or not exists (select from lost m where m.object = t.part_of)
    union all
    select t.position, 'error', t.object || ' is not what was installed', t.change
    from there t join here h on h.object = t.object where h.digest <> t.digest and by_digest
    union all
    select 1000000, case when h.object like 'column %' then 'warning' else 'info' end,
           h.object || ' is not pyworker''s',
           case when h.object like 'column %'
                then _fix('alter table ~.%I drop column %I', substr(h.part_of, 7),
                          substr(h.object, length(h.part_of) + 3))
                else _fix('drop index concurrently ~.%I', substr(h.object, 7)) end
    from here h
    where (h.object like 'column %' or h.object like 'index %') and h.part_of like 'table %'
      and not exists (select from there t where t.object = h.object)
      and exists (select from there t where t.object = h.part_of);
end;
$$;

create or replace function _check_schema() returns table (severity text, finding text, fix text)
    language plpgsql set search_path from current
as $$
declare
    v_install constant text := 'install this version again: pyworker migrate, or psql -f sql/install.sql';
    v_version text := (select i.digest from installed_objects i where i.object = 'server');
    v_count integer := 0;
begin
    if v_version is null then
        return query values ('warning',
            'it is not known what was installed here, so nothing can be compared', v_install);
        return;
    elsif v_version <> _major_version() then
        return query values ('info',
            format('recorded on PostgreSQL %s, this is %s: only names are compared', v_version,
                   _major_version()), v_install);
    end if;
    for severity, finding, fix in
        select d.severity, d.finding, coalesce(d.fix, v_install)
        from _schema_differences(v_version = _major_version()) d
        order by d.position, d.finding
    loop
        v_count := v_count + 1;
        if v_count <= 10 then
            return next;
        end if;
    end loop;
    if v_count > 10 then
        return query values ('error', format('and %s more', v_count - 10), 'repair those above first');
    end if;
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
