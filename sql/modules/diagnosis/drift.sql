-- diagnosis/drift: the checks of doctor() that compare the schema with what was installed.
--
-- Every installation and upgrade ends with _record_objects(), which stores a digest of each
-- definition in installed_objects. _check_schema compares them with the catalog. _check_indexes
-- finds invalid indexes, _check_grants finds missing and excess privileges.

-- The objects of this installation, from the catalog: the definition of each, the statement that
-- creates it (make), and the one that changes it back (change). Left out are partitions, which
-- maintain() creates, and storage parameters, which people tune. For functions and views both are
-- null: the installer creates them.
create or replace function _objects()
    returns table (object text, part_of text, definition text, make text, change text)
    language plpgsql stable set search_path from current set jit = off
    -- The text of a definition depends on these settings.
    set timezone = 'UTC' set datestyle = 'ISO' set intervalstyle = 'postgres' set quote_all_identifiers = off
    set standard_conforming_strings = on
as $$
begin
    return query
    with ours as materialized (
        select c.oid, c.relname::text as name, c.relkind,
               format('%I.%I', current_schema(), c.relname) as path,
               case c.relkind when 'v' then 'view ' when 'c' then 'type ' when 'S' then 'sequence '
                    else 'table ' end || c.relname as object,
               coalesce(' partition by ' || pg_get_partkeydef(c.oid), '') as partitioned,
               coalesce(' with (' || array_to_string(c.reloptions, ', ') || ')', '') as options
        from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where n.nspname = current_schema() and c.relkind in ('r', 'p', 'v', 'c', 'S') and not c.relispartition
          and not (c.relkind = 'S' and exists (
              select from pg_depend d
              where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype = 'i'))
    ), columns as materialized (
        select o.*, a.attnum, a.attname::text as column_name, a.attnotnull as filled,
               format_type(a.atttypid, a.atttypmod)
                   || case when a.attcollation <> t.typcollation then ' collate ' || a.attcollation::regcollation::text else '' end as kind,
               case when a.attidentity <> '' then ' generated always as identity'
                    else coalesce(' default '
                                  || replace(pg_get_expr(d.adbin, d.adrelid), 'nextval(''',
                                             _fix('nextval(''~.')), '') end as value
        from ours o join pg_attribute a on a.attrelid = o.oid and a.attnum > 0 and not a.attisdropped
        join pg_type t on t.oid = a.atttypid
        left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
        where o.relkind <> 'v' and o.relkind <> 'S'
    ), found as (
        select 1 as step, c.attnum as nr, c.object, null::text as part_of, c.partitioned as definition,
               case c.relkind when 'c' then format('create type %s as (%s)', c.path, a.list)
                    else format('create table %s (%s)%s%s', c.path, a.full_list, c.partitioned,
                                c.options) end as make, null as change
        from columns c
        cross join lateral (
            select string_agg(format('%I %s', b.column_name, b.kind), ', ' order by b.attnum) as list,
                   string_agg(format('%I %s%s%s', b.column_name, b.kind, b.value,
                                     case when b.filled then ' not null' else '' end),
                              ', ' order by b.attnum) as full_list
            from columns b where b.oid = c.oid) a
        where c.attnum = (select min(b.attnum) from columns b where b.oid = c.oid)
        union all
        select 0, 0, o.object, null, format('%s %s', s.seqmin, s.seqstart),
               format('create sequence %s minvalue %s start %s', o.path, s.seqmin, s.seqstart)
               -- A new sequence starts after the highest id: no id is used twice.
               || case when o.name = 'job_ids' then _fix(E';\nselect setval(%L, max(j.id)) from (select id from ~.live_jobs union all '
                                                         'select id from ~.finished_jobs) j having count(*) > 0', o.path) else '' end, null
        from ours o join pg_sequence s on s.seqrelid = o.oid
        union all
        select 2, c.attnum, format('column %s.%s', c.name, c.column_name), c.object, c.kind,
               format('alter %s %s add %s %I %s%s%s', case c.relkind when 'c' then 'type' else 'table' end,
                      c.path,
                      case c.relkind when 'c' then 'attribute' else 'column' end, c.column_name, c.kind,
                      c.value,
                      case when c.filled then ' not null' else '' end),
               format('alter %s %s alter %s %I type %s%s',
                      case c.relkind when 'c' then 'type' else 'table' end, c.path,
                      case c.relkind when 'c' then 'attribute' else 'column' end, c.column_name, c.kind,
                      case c.relkind when 'c' then ''
                           else format(' using %I::%s', c.column_name,
                                       split_part(c.kind, ' collate ', 1)) end)
        from columns c
        union all
        select 3, c.attnum, format('default of %s.%s', c.name, c.column_name),
               format('column %s.%s', c.name, c.column_name), format('%s %s', c.filled, c.value), null,
               format('alter table %1$s alter column %2$I %3$s not null%4$s', c.path, c.column_name,
                      case when c.filled then 'set' else 'drop' end,
                      case when c.value like ' generated%' then '' else format(', alter column %I %s', c.column_name,
                           case when c.value = '' then 'drop default' else 'set' || c.value end) end)
        from columns c where c.relkind <> 'c'
        union all
        select 4, 0, format('constraint %s', k.conname), o.object, pg_get_constraintdef(k.oid),
               format('alter table %s add constraint %I %s', o.path, k.conname, pg_get_constraintdef(k.oid)),
               format('alter table %1$s drop constraint %2$I, add constraint %2$I %3$s', o.path, k.conname,
                      pg_get_constraintdef(k.oid))
        -- NOT NULL constraints (contype 'n') belong to step 3.
        from ours o join pg_constraint k on k.conrelid = o.oid and k.contype <> 'n'
        union all
        select 5, 0, format('index %s', x.relname), o.object, pg_get_indexdef(i.indexrelid),
               case when o.relkind = 'p' then replace(pg_get_indexdef(i.indexrelid), ' ON ONLY ', ' ON ')
                    else regexp_replace(pg_get_indexdef(i.indexrelid), ' INDEX ', ' INDEX CONCURRENTLY ') end,
               format(E'drop index %I.%I;\n%s', current_schema(), x.relname,
                      replace(pg_get_indexdef(i.indexrelid), ' ON ONLY ', ' ON '))
        from ours o join pg_index i on i.indrelid = o.oid join pg_class x on x.oid = i.indexrelid
        where not exists (select from pg_constraint k where k.conindid = i.indexrelid)
        union all
        select 6, 0, o.object, null, pg_get_viewdef(o.oid), null, null from ours o where o.relkind = 'v'
        union all
        select 7, 0, format('function %s(%s)', p.proname, pg_get_function_identity_arguments(p.oid)), null,
               pg_get_functiondef(p.oid), null, null
        from pg_proc p join pg_namespace n on n.oid = p.pronamespace
        where n.nspname = current_schema() and p.prokind = 'f'
    )
    select f.object, f.part_of, f.definition, f.make, f.change from found f
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
    where i.object <> 'server' and not exists (select from _objects() o where o.object = i.object);
    insert into installed_objects as i (object, part_of, digest, make, change, position)
    select o.object, o.part_of, encode(sha256(convert_to(o.definition, 'UTF8')), 'hex'), o.make, o.change,
           o.ordinality
    from _objects() with ordinality o
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

create or replace function _check_schema() returns table (severity text, finding text, fix text)
    language plpgsql set search_path from current
as $$
declare
    v record;
    v_install constant text := 'install this version again: pyworker migrate, or psql -f sql/install.sql';
    v_same boolean := (select i.digest = _major_version() from installed_objects i where i.object = 'server');
    v_count integer := 0;
begin
    if v_same is null then
        return query values ('warning',
                             'it is not known what was installed here, so nothing can be compared',
                             v_install);
        return;
    elsif not v_same then
        return query select 'info',
            format('recorded on PostgreSQL %s, this is %s: only names are compared', i.digest,
                   _major_version()), v_install
                     from installed_objects i where i.object = 'server';
    end if;
    for v in
        with here as materialized (
            select o.object, o.part_of, encode(sha256(convert_to(o.definition, 'UTF8')), 'hex') as digest,
                   o.change from _objects() o),
        there as materialized (select i.* from installed_objects i where i.object <> 'server'),
        lost as materialized (select t.object from there t
                              where not exists (select from here h where h.object = t.object))
        select t.position, 'error' as severity, t.object || ' is missing' as finding,
               case when t.object like 'table %' then (
                    select string_agg(p.make, E';\n' order by p.position) from there p
                    where p.object = t.object
                       or p.part_of = t.object and (p.object like 'index %' or p.object like 'constraint %'))
                    else t.make end as fix
        from there t join lost l on l.object = t.object
        where t.part_of is null or not exists (select from lost m where m.object = t.part_of)
        union all
        select t.position, 'error', t.object || ' is not what was installed', t.change
        from there t join here h on h.object = t.object where h.digest <> t.digest and v_same
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
          and exists (select from there t where t.object = h.part_of)
        order by 1, 3
    loop
        v_count := v_count + 1;
        continue when v_count > 10;
        severity := v.severity;
        finding := v.finding;
        fix := coalesce(v.fix, v_install);
        return next;
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

create or replace function _check_grants() returns table (severity text, finding text, fix text)
    language plpgsql set search_path from current
as $$
begin
    return query
    with role as materialized (select g.* from _granted() g join pg_roles r on r.rolname = g.role),
    missing as (
        select g.role, 1 as step, 'schema' as kind, quote_ident(current_schema()) as name,
               'usage on schema' as privilege
        from role g where not has_schema_privilege(g.role, current_schema(), 'usage')
        union all
        select g.role, 2, 'function', format('%s(%s)', p.proname, (
                    select string_agg(case when t.typnamespace = n.oid then quote_ident(current_schema()) || '.' else '' end
                                      || format_type(t.oid, null), ', ' order by a.nr)
                    from unnest(p.proargtypes::oid[]) with ordinality a(type, nr)
                    join pg_type t on t.oid = a.type)), 'execute on function'
        from role g join pg_proc p on p.proname = any (g.functions)
        join pg_namespace n on n.oid = p.pronamespace
        where n.nspname = current_schema() and not has_function_privilege(g.role, p.oid, 'execute')
        union all
        select g.role, 3, 'view', v.name, 'select on'
        from role g cross join unnest(g.views) v(name)
        where to_regclass(format('%I.%I', current_schema(), v.name)) is not null
          and not has_table_privilege(g.role, format('%I.%I', current_schema(), v.name), 'select')
    ), by_role as (
        select m.role, m.step, m.privilege,
               array_agg(case when m.step = 1 then m.name else format('%I.%s', current_schema(), m.name) end
                         order by m.name) as names,
               array_agg(m.name order by m.name) as shown
        from missing m group by m.role, m.step, m.privilege)
    select 'warning',
           format('role %s lacks %s', b.role,
                  string_agg(format('%s %s', b.privilege, _few(b.shown)), '; ' order by b.step)),
           string_agg(format('grant %s %s to %I', b.privilege, array_to_string(b.names, ', '), b.role),
                      E';\n' order by b.step)
    from by_role b group by b.role order by b.role;
    return query
    select 'warning',
           'everybody may call or read what is pyworker''s own: ' || _few(array_agg(o.name order by o.name)),
           format(E'revoke all on all routines in schema %1$I from public;\nrevoke all on all tables in schema %1$I from public', current_schema())
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
