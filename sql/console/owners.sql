-- console/owners: the check of doctor() that everything belongs to one role.
--
-- A SECURITY DEFINER function runs as its owner. If it belongs to another role than the tables and the
-- functions that it uses, it fails, or does what only that role may. setup/owner.sql sees to it at each
-- installation and upgrade.

create or replace function _check_owners() returns table (severity text, finding text, fix text)
    language plpgsql set search_path from current
as $$
declare
    v_owner constant oid := (select c.relowner from pg_class c where c.oid = 'migrations'::regclass);
begin
    return query
    with stray as (
        select 1 as step, 'schema' as kind, format('%I', n.nspname) as path, n.nspname::text as name,
               n.nspowner as owner
        from pg_namespace n where n.nspname in (current_schema(), _query_schema())
        union all
        select 2, case c.relkind when 'v' then 'view' when 'c' then 'type' when 'S' then 'sequence'
                       else 'table' end,
               format('%I.%I', current_schema(), c.relname), c.relname::text, c.relowner
        from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where n.nspname = current_schema() and c.relkind in ('r', 'p', 'v', 'c', 'S')
          and not (c.relkind = 'S' and exists ( -- of an identity column: it has the owner of its table
              select from pg_depend d
              where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype = 'i'))
        union all
        select 3, 'function',
               format('%I.%I(%s)', current_schema(), p.proname, (
                   select string_agg(concat(case when t.typnamespace = n.oid
                                                 then quote_ident(current_schema()) || '.' end,
                                            format_type(t.oid, null)), ', ' order by a.nr)
                   from unnest(p.proargtypes::oid[]) with ordinality a(type, nr)
                   join pg_type t on t.oid = a.type)),
               p.proname::text, p.proowner
        from pg_proc p join pg_namespace n on n.oid = p.pronamespace where n.nspname = current_schema())
    select 'error',
           format('some of pyworker does not belong to %s, its owner: %s', pg_get_userbyid(v_owner),
                  _few(array_agg(format('%s %s (%s)', s.kind, s.name, pg_get_userbyid(s.owner))
                                 order by s.step, s.name))),
           string_agg(format('alter %s %s owner to %I', s.kind, s.path, pg_get_userbyid(v_owner)), E';\n'
                      order by s.step, s.path)
    from stray s where s.owner <> v_owner having count(*) > 0;
end;
$$;
