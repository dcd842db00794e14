-- 87_doctor: the health of an installation, in checks; what must always hold (86_invariants) is the first of them.
--
-- One function per check, _check_…, returns a row per problem and none when all is well. Each looks at a bounded part of large tables.
-- A fix is SQL that runs as it stands, for the owner of the schema, statements separated by ';' and a line break; where no SQL would
-- help it is a sentence. They run one by one, as psql does it: VACUUM and CONCURRENTLY do not go into a transaction.

-- '~.' stands for the schema.
create or replace function _fix(template text, variadic arguments text[] default '{}') returns text
    language plpgsql stable set search_path from current
as $$
begin
    return format(replace(template, '~.', replace(quote_ident(current_schema()), '%', '%%') || '.'), variadic arguments);
end;
$$;

-- The first few, and how many.
create or replace function _few(items text[]) returns text
    language plpgsql immutable set search_path from current
as $$
begin
    return array_to_string(items[:5], ', ') || case when cardinality(items) > 5 then format(', … (%s in all)', cardinality(items)) else '' end;
end;
$$;

create or replace function _check_invariants() returns table (severity text, finding text, fix text)
    language plpgsql set search_path from current
as $$
declare
    v record;
    v_first text;
begin
    for v in
        select i.invariant as name, array_agg(i.subject order by i.subject) as subjects from _invariants(250000) i group by i.invariant order by 1
    loop
        severity := 'error';
        v_first := v.subjects[:1000]::text;
        finding := v.name || ': ' || case v.name
            when 'state' then 'the columns of jobs contradict each other: job '
            when 'history' then 'finished jobs that cannot have ended like this: job '
            when 'one place' then 'jobs that are live and finished at once: job '
            when 'I1' then 'jobs are held by workers that have been dead for more than 25 seconds: job '
            when 'claims' then 'running jobs are missing from the claims of their workers, whose end would not free '
                               'them: job '
            when 'I2' then 'more than one job holds the job_key '
            when 'I3' then 'more than one job is at the head of the sequence '
            when 'I5' then 'jobs that may run at most once have been started and wait to be run again: job '
            when 'ledger' then 'jobs whose unique key others may take as well: job '
            when 'I13' then 'more jobs than the limit allows are in flight in queue '
            when 'I8' then 'schedules do not know their next tick: '
            when 'stranded queue' then 'jobs wait and nothing will call them, in queue '
            when 'stranded sequence' then 'jobs wait and nothing will call them, in sequence '
            else 'sequences are halted by jobs that have not ended: job ' end || _few(v.subjects);
        fix := case v.name
            when 'history' then _fix(
                'update ~.finished_jobs set state = case when state = ''completed'' and run > 0 then state else ''cancelled'' end, '
                'finished_at = coalesce(finished_at, now()), expires_at = coalesce(expires_at, now()), ready_at = null, due_at = null, '
                'parked = null where id = any (%L)', v_first)
            when 'one place' then _fix('delete from ~.finished_jobs where id = any (%L)', v_first)
            when 'I1' then _fix('select * from ~.maintain()')
            when 'I2' then _fix('update ~.live_jobs j set job_key = null where j.job_key = any (%L) '
                'and j.id < (select max(k.id) from ~.live_jobs k where k.job_key = j.job_key)', v_first)
            when 'I3' then _fix('select ~._repair_jobs(array(select j.id from ~.live_jobs j where j.sequence_key = any (%L) and j.sequence_head))',
                                v_first)
            when 'ledger' then _fix('insert into ~.unique_keys (unique_key) select j.unique_key from ~.live_jobs j where j.unique_key is not null '
                'union select f.unique_key from ~.finished_jobs f where f.unique_key is not null on conflict do nothing')
            when 'I8' then _fix('select t.name from (select t.name from ~.schedule_entries t where t.name = any (%L)) t cross join lateral ~.pause_schedule(t.name) '
                'cross join lateral ~.resume_schedule(t.name)', v_first)
            when 'I13' then 'no other job of these queues starts before enough of them have ended; cancel_job() ends one sooner'
            when 'stranded queue' then
                _fix(E'insert into ~.promotion_requests (lane) select ''queue:'' || unnest(%L::text[]);\nselect ~.promote_jobs()', v_first)
            when 'stranded sequence' then
                _fix(E'insert into ~.promotion_requests (lane) select ''sequence:'' || unnest(%L::text[]);\nselect ~.promote_jobs()', v_first)
            when 'halt' then _fix('delete from ~.sequence_halts where job_id = any (%L)', v_first)
            else _fix('select ~._repair_jobs(%L)', v_first) end;
        return next;
    end loop;
end;
$$;

-- What this installation consists of: what each thing is, what makes it if it is missing, what changes it back. Without partitions, which
-- maintain() makes, and without storage parameters, which people tune. Functions and views are made by the installer.
create or replace function _objects() returns table (object text, part_of text, definition text, make text, change text)
    language plpgsql stable set search_path from current set jit = off
    -- What the text of a definition depends on.
    set timezone = 'UTC' set datestyle = 'ISO' set intervalstyle = 'postgres' set quote_all_identifiers = off
    set standard_conforming_strings = on
as $$
begin
    return query
    with ours as materialized (
        select c.oid, c.relname::text as name, c.relkind, format('%I.%I', current_schema(), c.relname) as path,
               case c.relkind when 'v' then 'view ' when 'c' then 'type ' when 'S' then 'sequence ' else 'table ' end || c.relname as object,
               coalesce(' partition by ' || pg_get_partkeydef(c.oid), '') as partitioned,
               coalesce(' with (' || array_to_string(c.reloptions, ', ') || ')', '') as options
        from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where n.nspname = current_schema() and c.relkind in ('r', 'p', 'v', 'c', 'S') and not c.relispartition
          and not (c.relkind = 'S' and exists (
              select from pg_depend d where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype = 'i'))
    ), columns as materialized (
        select o.*, a.attnum, a.attname::text as column_name, a.attnotnull as filled,
               format_type(a.atttypid, a.atttypmod)
                   || case when a.attcollation <> t.typcollation then ' collate ' || a.attcollation::regcollation::text else '' end as kind,
               case when a.attidentity <> '' then ' generated always as identity'
                    else coalesce(' default ' || replace(pg_get_expr(d.adbin, d.adrelid), 'nextval(''', _fix('nextval(''~.')), '') end as value
        from ours o join pg_attribute a on a.attrelid = o.oid and a.attnum > 0 and not a.attisdropped join pg_type t on t.oid = a.atttypid
        left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
        where o.relkind <> 'v' and o.relkind <> 'S'
    ), found as (
        select 1 as step, c.attnum as nr, c.object, null::text as part_of, c.partitioned as definition,
               case c.relkind when 'c' then format('create type %s as (%s)', c.path, a.list)
                    else format('create table %s (%s)%s%s', c.path, a.full_list, c.partitioned, c.options) end as make, null as change
        from columns c
        cross join lateral (
            select string_agg(format('%I %s', b.column_name, b.kind), ', ' order by b.attnum) as list,
                   string_agg(format('%I %s%s%s', b.column_name, b.kind, b.value, case when b.filled then ' not null' else '' end),
                              ', ' order by b.attnum) as full_list
            from columns b where b.oid = c.oid) a
        where c.attnum = (select min(b.attnum) from columns b where b.oid = c.oid)
        union all
        select 0, 0, o.object, null, format('%s %s', s.seqmin, s.seqstart),
               format('create sequence %s minvalue %s start %s', o.path, s.seqmin, s.seqstart)
               -- Ids are never used again.
               || case when o.name = 'job_ids' then _fix(E';\nselect setval(%L, max(j.id)) from (select id from ~.live_jobs union all '
                                                         'select id from ~.finished_jobs) j having count(*) > 0', o.path) else '' end, null
        from ours o join pg_sequence s on s.seqrelid = o.oid
        union all
        select 2, c.attnum, format('column %s.%s', c.name, c.column_name), c.object, c.kind,
               format('alter %s %s add %s %I %s%s%s', case c.relkind when 'c' then 'type' else 'table' end, c.path,
                      case c.relkind when 'c' then 'attribute' else 'column' end, c.column_name, c.kind, c.value,
                      case when c.filled then ' not null' else '' end),
               format('alter %s %s alter %s %I type %s%s', case c.relkind when 'c' then 'type' else 'table' end, c.path,
                      case c.relkind when 'c' then 'attribute' else 'column' end, c.column_name, c.kind,
                      case c.relkind when 'c' then '' else format(' using %I::%s', c.column_name, split_part(c.kind, ' collate ', 1)) end)
        from columns c
        union all
        select 3, c.attnum, format('default of %s.%s', c.name, c.column_name), format('column %s.%s', c.name, c.column_name),
               format('%s %s', c.filled, c.value), null,
               format('alter table %1$s alter column %2$I %3$s not null%4$s', c.path, c.column_name, case when c.filled then 'set' else 'drop' end,
                      case when c.value like ' generated%' then '' else format(', alter column %I %s', c.column_name,
                           case when c.value = '' then 'drop default' else 'set' || c.value end) end)
        from columns c where c.relkind <> 'c'
        union all
        select 4, 0, format('constraint %s', k.conname), o.object, pg_get_constraintdef(k.oid),
               format('alter table %s add constraint %I %s', o.path, k.conname, pg_get_constraintdef(k.oid)),
               format('alter table %1$s drop constraint %2$I, add constraint %2$I %3$s', o.path, k.conname, pg_get_constraintdef(k.oid))
        from ours o join pg_constraint k on k.conrelid = o.oid and k.contype <> 'n' -- those are told by the columns
        union all
        select 5, 0, format('index %s', x.relname), o.object, pg_get_indexdef(i.indexrelid),
               case when o.relkind = 'p' then replace(pg_get_indexdef(i.indexrelid), ' ON ONLY ', ' ON ')
                    else regexp_replace(pg_get_indexdef(i.indexrelid), ' INDEX ', ' INDEX CONCURRENTLY ') end,
               format(E'drop index %I.%I;\n%s', current_schema(), x.relname, replace(pg_get_indexdef(i.indexrelid), ' ON ONLY ', ' ON '))
        from ours o join pg_index i on i.indrelid = o.oid join pg_class x on x.oid = i.indexrelid
        where not exists (select from pg_constraint k where k.conindid = i.indexrelid)
        union all
        select 6, 0, o.object, null, pg_get_viewdef(o.oid), null, null from ours o where o.relkind = 'v'
        union all
        select 7, 0, format('function %s(%s)', p.proname, pg_get_function_identity_arguments(p.oid)), null, pg_get_functiondef(p.oid), null, null
        from pg_proc p join pg_namespace n on n.oid = p.pronamespace where n.nspname = current_schema() and p.prokind = 'f'
    )
    select f.object, f.part_of, f.definition, f.make, f.change from found f order by f.step, f.part_of collate "C", f.nr, f.object collate "C";
end;
$$;

-- What the catalog is said to be in another major version may be written in other words.
create or replace function _major_version() returns text
    language plpgsql stable set search_path from current
as $$
begin
    return (current_setting('server_version_num')::integer / 10000)::text;
end;
$$;

-- The end of every installation and upgrade.
create or replace function _record_objects() returns void
    language plpgsql set search_path from current
as $$
begin
    delete from installed_objects i where i.object <> 'server' and not exists (select from _objects() o where o.object = i.object);
    insert into installed_objects as i (object, part_of, digest, make, change, position)
    select o.object, o.part_of, encode(sha256(convert_to(o.definition, 'UTF8')), 'hex'), o.make, o.change, o.ordinality
    from _objects() with ordinality o
    union all
    select 'server', null, _major_version(), null, null, 0
    order by 6
    on conflict (object) do update
    set part_of = excluded.part_of, digest = excluded.digest, make = excluded.make, change = excluded.change, position = excluded.position
    -- Installed again, nothing is written.
    where (i.part_of, i.digest, i.make, i.change, i.position)
          is distinct from (excluded.part_of, excluded.digest, excluded.make, excluded.change, excluded.position);
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
        return query values ('warning', 'it is not known what was installed here, so nothing can be compared', v_install);
        return;
    elsif not v_same then
        return query select 'info', format('recorded on PostgreSQL %s, this is %s: only names are compared', i.digest, _major_version()), v_install
                     from installed_objects i where i.object = 'server';
    end if;
    for v in
        with here as materialized (
            select o.object, o.part_of, encode(sha256(convert_to(o.definition, 'UTF8')), 'hex') as digest, o.change from _objects() o),
        there as materialized (select i.* from installed_objects i where i.object <> 'server'),
        lost as materialized (select t.object from there t where not exists (select from here h where h.object = t.object))
        select t.position, 'error' as severity, t.object || ' is missing' as finding,
               case when t.object like 'table %' then (
                    select string_agg(p.make, E';\n' order by p.position) from there p
                    where p.object = t.object or p.part_of = t.object and (p.object like 'index %' or p.object like 'constraint %'))
                    else t.make end as fix
        from there t join lost l on l.object = t.object
        where t.part_of is null or not exists (select from lost m where m.object = t.part_of)
        union all
        select t.position, 'error', t.object || ' is not what was installed', t.change
        from there t join here h on h.object = t.object where h.digest <> t.digest and v_same
        union all
        select 1000000, case when h.object like 'column %' then 'warning' else 'info' end, h.object || ' is not pyworker''s',
               case when h.object like 'column %'
                    then _fix('alter table ~.%I drop column %I', substr(h.part_of, 7), substr(h.object, length(h.part_of) + 3))
                    else _fix('drop index concurrently ~.%I', substr(h.object, 7)) end
        from here h
        where (h.object like 'column %' or h.object like 'index %') and h.part_of like 'table %'
          and not exists (select from there t where t.object = h.object) and exists (select from there t where t.object = h.part_of)
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
           format('index %s on %s is invalid%s', x.relname, i.indrelid::regclass, case when i.indisunique then ': it enforces nothing' else '' end),
           -- What a concurrent build left behind is in nobody's way once it is gone.
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
        select g.role, 1 as step, 'schema' as kind, quote_ident(current_schema()) as name, 'usage on schema' as privilege
        from role g where not has_schema_privilege(g.role, current_schema(), 'usage')
        union all
        select g.role, 2, 'function', format('%s(%s)', p.proname, (
                    select string_agg(case when t.typnamespace = n.oid then quote_ident(current_schema()) || '.' else '' end
                                      || format_type(t.oid, null), ', ' order by a.nr)
                    from unnest(p.proargtypes::oid[]) with ordinality a(type, nr) join pg_type t on t.oid = a.type)), 'execute on function'
        from role g join pg_proc p on p.proname = any (g.functions) join pg_namespace n on n.oid = p.pronamespace
        where n.nspname = current_schema() and not has_function_privilege(g.role, p.oid, 'execute')
        union all
        select g.role, 3, 'view', v.name, 'select on'
        from role g cross join unnest(g.views) v(name)
        where to_regclass(format('%I.%I', current_schema(), v.name)) is not null
          and not has_table_privilege(g.role, format('%I.%I', current_schema(), v.name), 'select')
    ), by_role as (
        select m.role, m.step, m.privilege,
               array_agg(case when m.step = 1 then m.name else format('%I.%s', current_schema(), m.name) end order by m.name) as names,
               array_agg(m.name order by m.name) as shown
        from missing m group by m.role, m.step, m.privilege)
    select 'warning', format('role %s lacks %s', b.role, string_agg(format('%s %s', b.privilege, _few(b.shown)), '; ' order by b.step)),
           string_agg(format('grant %s %s to %I', b.privilege, array_to_string(b.names, ', '), b.role), E';\n' order by b.step)
    from by_role b group by b.role order by b.role;
    return query
    select 'warning', 'everybody may call or read what is pyworker''s own: ' || _few(array_agg(o.name order by o.name)),
           format(E'revoke all on all routines in schema %1$I from public;\nrevoke all on all tables in schema %1$I from public', current_schema())
    from (select p.oid::regprocedure::text as name from pg_proc p join pg_namespace n on n.oid = p.pronamespace
          where n.nspname = current_schema() and has_function_privilege('public', p.oid, 'execute')
          union all
          select c.oid::regclass::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
          where n.nspname = current_schema() and c.relkind in ('r', 'p', 'v')
            and has_table_privilege('public', c.oid, 'select, insert, update, delete')) o
    having count(*) > 0;
end;
$$;

create or replace function _check_partitions() returns table (severity text, finding text, fix text)
    language plpgsql set search_path from current
as $$
declare
    v_missing text[];
    v_misplaced bigint;
begin
    if _partition('finished_jobs_default') is null then
        return query values ('error', 'finished_jobs has no default partition: a job whose day has none cannot be finished',
                             _fix('create table ~.finished_jobs_default partition of ~.finished_jobs default'));
        return;
    end if;
    -- Today's only: the ones after it may be made up to the last moment.
    v_missing := array(
        select to_char(d.day at time zone 'UTC', 'YYYY-MM-DD') from _partition_days(0) d(day)
        where _partition('finished_jobs_' || to_char(d.day at time zone 'UTC', 'YYYYMMDD')) is null
          and not exists (select from finished_jobs_default f where f.expires_at >= d.day and f.expires_at < d.day + interval '24 hours')
        order by 1);
    if v_missing <> '{}' then
        return query values ('warning', 'history has no partition for what expires on ' || _few(v_missing), _fix('select * from ~.maintain()'));
    end if;
    select count(*) into v_misplaced from (
        select from finished_jobs_default f join _partition_days(2) d(day) on f.expires_at >= d.day and f.expires_at < d.day + interval '24 hours'
        limit 100000) m;
    if v_misplaced > 0 then
        return query values ('info', format('finished jobs in the default partition: %s%s; they are pruned one by one', v_misplaced,
                                            case when v_misplaced = 100000 then ' or more' else '' end),
            _fix(E'begin;\ncreate temp table pyworker_moved on commit drop as select * from ~.finished_jobs_default;\n'
                 'delete from ~.finished_jobs_default;\nselect ~._make_partitions();\n'
                 'insert into ~.finished_jobs select * from pyworker_moved;\ncommit'));
    end if;
end;
$$;

create or replace function _check_maintenance() returns table (severity text, finding text, fix text)
    language plpgsql set search_path from current
as $$
declare
    v_now timestamptz := clock();
    v_due timestamptz := (select min(j.due_at) from live_jobs j where j.due_at < v_now - interval '5 minutes');
    v_expired timestamptz;
begin
    if v_due is not null then
        return query values ('warning', format('nobody promotes jobs: the oldest has been due since %s', v_due), _fix('select * from ~.maintain()'));
    end if;
    select min(e.expires_at) into v_expired from (
        (select j.expires_at from live_jobs j
         where j.expires_at < v_now - interval '1 hour' -- pruning puts off what it keeps
         order by j.expires_at limit 1)
        union all
        (select ((substr(c.relname, 15)::date + 1)::timestamp at time zone 'UTC')
         from pg_inherits i join pg_class c on c.oid = i.inhrelid
         where i.inhparent = 'finished_jobs'::regclass and c.relname ~ '^finished_jobs_[0-9]{8}$')) e(expires_at)
    where e.expires_at < v_now - interval '1 hour';
    if v_expired is not null then
        return query values ('warning', format('nobody prunes: what expired at %s is still there', v_expired), _fix('select * from ~.prune()'));
    end if;
end;
$$;

create or replace function _check_workers() returns table (severity text, finding text, fix text)
    language plpgsql set search_path from current
as $$
declare
    v_now timestamptz := clock();
    v_waiting bigint;
    v_since timestamptz;
begin
    if exists (select from workers w where w.dead_at is null and w.expires_at >= v_now) then
        return;
    end if;
    select count(*), min(j.since) into v_waiting, v_since from (
        (select l.ready_at as since from live_jobs l where l.ready_at is not null and l.state = 'available' limit 10000)
        union all
        (select l.due_at from live_jobs l where l.due_at <= v_now order by l.due_at limit 10000)) j;
    if v_waiting > 0 then
        return query values (case when v_since < v_now - interval '1 minute' then 'warning' else 'info' end,
            format('no worker is alive; jobs that wait: %s%s, the first since %s', v_waiting,
                   case when v_waiting >= 10000 then ' or more' else '' end, v_since),
            'start one: pyworker run MODULE');
    end if;
end;
$$;

-- Workers that do not say what they take are taken to take anything.
create or replace function _check_tasks() returns table (severity text, finding text, fix text)
    language plpgsql set search_path from current
as $$
begin
    return query
    with alive as materialized (
        select _said(w, 'task_identifiers') as tasks, _said(w, 'queue_names') as queues
        from workers w where w.dead_at is null and w.expires_at >= clock()),
    waiting as materialized (
        select j.task_identifier, coalesce(j.queue_name, 'default') as queue_name, count(*) as jobs
        from (select l.task_identifier, l.queue_name from live_jobs l where l.ready_at is not null and l.state = 'available' limit 100000) j
        group by 1, 2),
    unknown as (
        select format('%s (%s)', w.task_identifier, sum(w.jobs)) as name, sum(w.jobs) as jobs from waiting w
        where not exists (select from alive a where coalesce(a.tasks ? w.task_identifier, true)) group by w.task_identifier),
    unserved as (
        select format('%s (%s)', w.queue_name, sum(w.jobs)) as name, sum(w.jobs) as jobs from waiting w
        where not exists (select from alive a where coalesce(a.queues ? w.queue_name, true)) group by w.queue_name)
    select f.severity, f.finding, f.fix from (
        select 'warning', 'jobs wait for tasks that no live worker knows: ' || _few(array_agg(u.name order by u.jobs desc, u.name)),
               'start a worker with the module that defines it, and without --task or with --task for it; or correct the name'
        from unknown u having count(*) > 0
        union all
        select 'warning', 'jobs wait in queues that no live worker serves: ' || _few(array_agg(u.name order by u.jobs desc, u.name)),
               'start a worker without --queue, or with --queue for it'
        from unserved u having count(*) > 0) f(severity, finding, fix)
    where exists (select from alive);
    -- Two programs that declare a task in two ways: the last one to start has written the definition.
    return query
    select 'warning', 'the code of live workers declares tasks otherwise than the database defines them: '
               || _few(array_agg(format('%s (%s: %s in worker %s, %s in the database)', d.identifier, d.option,
                                        coalesce(d.declared::text, 'none'), d.workers, coalesce(d.stored::text, 'none'))
                                 order by d.identifier, d.option)),
           'deploy the same code everywhere; then start the workers again, or run: pyworker tasks sync MODULE'
    from _definitions_that_differ() d having count(*) > 0;
end;
$$;

create or replace function _check_sequences() returns table (severity text, finding text, fix text)
    language plpgsql set search_path from current
as $$
begin
    return query
    with halted as materialized (
        select distinct on (h.sequence_key) h.sequence_key, h.job_id, h.reason
        from (select s.* from sequence_halts s limit 10000) h where _blocks_sequence(h.sequence_key, h.job_id) order by h.sequence_key, h.job_id)
    select 'info', 'halted sequences: ' || _few(array_agg(format('%s by job %s (%s)', h.sequence_key, h.job_id, h.reason) order by h.sequence_key)),
           array_to_string((array_agg(_fix('select ~.resume_sequence(%L)', h.sequence_key) order by h.sequence_key))[:5], E';\n')
    from halted h having count(*) > 0;
end;
$$;

create or replace function _check_queues() returns table (severity text, finding text, fix text)
    language plpgsql set search_path from current
as $$
begin
    return query
    with paused as materialized (
        select q.queue_name from queues q
        where q.paused and exists (select from live_jobs j where j.queue_name = q.queue_name and j.parked = 'queue') limit 1000)
    select 'info', 'jobs wait in paused queues: ' || _few(array_agg(p.queue_name order by p.queue_name)),
           array_to_string((array_agg(_fix('select ~.resume_queue(%L)', p.queue_name) order by p.queue_name))[:5], E';\n')
    from paused p having count(*) > 0;
end;
$$;

create or replace function _check_schedules() returns table (severity text, finding text, fix text)
    language plpgsql set search_path from current
as $$
declare
    v_now timestamptz := clock();
begin
    return query
    select f.severity, f.finding, f.fix from (
        select 1, 'warning', 'nobody fires schedules: ' || _few(array_agg(format('%s (due since %s)', t.name, t.next_at) order by t.next_at)),
               _fix('select ~.run_schedules()')
        from schedule_entries t
        where t.next_at < v_now - interval '5 minutes'
          and (t.retry_at is null or t.last_error is null or t.retry_at < v_now - interval '5 minutes')
        having count(*) > 0
        union all
        select 2, 'warning', format('schedule %s failed: %s', t.name, t.last_error), _fix('select * from ~.run_schedule(%L)', t.name)
        from schedule_entries t where t.last_error is not null
        union all
        select 3, 'warning', format('schedule %s stands still: the clock was set back, its last tick was at %s', t.name, t.last_at),
               _fix('select * from ~.resume_schedule(%L)', t.name)
        from schedule_entries t where t.last_at > v_now + interval '10 minutes'
        union all
        select 4, 'warning', 'no live worker knows the task of schedules: ' || _few(array_agg(format('%s (%s)', t.name, t.identifier) order by t.name)),
               'start a worker with the module that defines it, and without --task or with --task for it; or correct the schedule'
        from schedule_entries t
        where not t.paused and exists (select from workers w where w.dead_at is null and w.expires_at >= v_now)
          and not exists (select from workers w where w.dead_at is null and w.expires_at >= v_now
                          and coalesce(_said(w, 'task_identifiers') ? t.identifier, true))
        having count(*) > 0
        union all
        select 5, 'info', 'paused schedules: ' || _few(array_agg(t.name order by t.name)),
               array_to_string((array_agg(_fix('select * from ~.resume_schedule(%L)', t.name) order by t.name))[:5], E';\n')
        from schedule_entries t where t.paused having count(*) > 0) f(step, severity, finding, fix)
    order by f.step, f.finding limit 20;
end;
$$;

create or replace function _check_lost() returns table (severity text, finding text, fix text)
    language plpgsql set search_path from current
as $$
begin
    return query
    with lost as materialized (
        select l.id from (select j.id, j.reason from live_jobs j where j.expires_at is not null limit 100000) l where l.reason = 'lost')
    select 'warning', 'jobs with delivery at_most_once were lost, done or not: job ' || _few(array_agg(l.id::text order by l.id))
           || '; delete_job those that were done, retry_job runs one again',
           _fix('select * from ~.retry_jobs(%L)', (array_agg(l.id order by l.id))[:1000]::text)
    from lost l having count(*) > 0;
end;
$$;

-- The oldest transaction that anybody has: nothing that died after it began can be vacuumed. Of other roles' sessions an owner without
-- pg_read_all_stats sees the xmin, not the time.
create or replace function _check_xmin() returns table (severity text, finding text, fix text)
    language plpgsql set search_path from current
as $$
declare
    v_since timestamptz := clock() - interval '5 minutes';
begin
    return query
    select 'warning',
           format('session %s of %s (application %s) keeps vacuum from removing dead rows: in a transaction since %s, state %s', a.pid,
                  coalesce(a.usename, 'unknown'), coalesce(nullif(a.application_name, ''), 'unknown'),
                  coalesce(a.xact_start::text, 'unknown'), coalesce(a.state, 'unknown')),
           case when a.backend_type = 'walsender' then 'end the long query on the standby, or turn off hot_standby_feedback there'
                else format('select pg_terminate_backend(%s)', a.pid) end
    from pg_stat_activity a
    where (a.backend_xmin is not null or a.backend_xid is not null) and a.pid <> pg_backend_pid()
      and (a.datname = current_database() or a.datname is null) and coalesce(a.backend_type, '') <> 'autovacuum worker'
      and case when a.xact_start is not null then a.xact_start < v_since
               else greatest(age(a.backend_xmin), age(a.backend_xid)) > 10000 end
    order by a.xact_start limit 5;
    return query
    select 'warning', format('transaction %L, prepared at %s by %s, keeps vacuum from removing dead rows', p.gid, p.prepared, p.owner),
           format('rollback prepared %L', p.gid)
    from pg_prepared_xacts p where p.database = current_database() and p.prepared < v_since order by p.prepared limit 5;
    return query
    select 'warning', format('replication slot %s (%s) is not in use and holds back vacuum and WAL', s.slot_name, s.slot_type),
           format('select pg_drop_replication_slot(%L)', s.slot_name)
    from pg_replication_slots s
    where not s.active and (s.xmin is not null or s.catalog_xmin is not null) and (s.database = current_database() or s.database is null)
    order by s.slot_name limit 5;
end;
$$;

create or replace function _check_bloat() returns table (severity text, finding text, fix text)
    language plpgsql set search_path from current
as $$
begin
    return query
    select 'warning', format('%s has %s dead rows beside %s live ones; last vacuum: %s', s.relname, s.n_dead_tup, s.n_live_tup,
                             coalesce(greatest(s.last_autovacuum, s.last_vacuum)::text, 'never'))
           || '. If a vacuum does not remove them, see xmin', _fix('vacuum ~.%I', s.relname)
    from pg_stat_all_tables s
    where s.schemaname = current_schema() and s.n_dead_tup > 20000 + s.n_live_tup / 5 order by s.n_dead_tup desc limit 5;
end;
$$;

create or replace function _check_autovacuum() returns table (severity text, finding text, fix text)
    language plpgsql set search_path from current
as $$
begin
    return query
    select 'warning', format('%s is off: nothing removes dead rows by itself', g.name),
           format(E'alter system set %I = on;\nselect pg_reload_conf()', g.name)
    from unnest(array['autovacuum', 'track_counts']) g(name) where not current_setting(g.name)::boolean;
    return query
    select 'warning', format('autovacuum is off for %s', c.relname), _fix('alter table ~.%I reset (autovacuum_enabled)', c.relname)
    from pg_class c join pg_namespace n on n.oid = c.relnamespace, pg_options_to_table(c.reloptions) o
    where n.nspname = current_schema() and o.option_name = 'autovacuum_enabled' and not o.option_value::boolean order by c.relname limit 10;
end;
$$;

create or replace function _check_notifications() returns table (severity text, finding text, fix text)
    language plpgsql set search_path from current
as $$
declare
    v_usage double precision := pg_notification_queue_usage();
begin
    if v_usage > 0.5 then
        return query
        select 'warning',
               format('the server''s queue of notifications is %s %% full; at 100 %% no transaction that notifies can commit. A session '
                      'that listens has been in a transaction for too long, probably %s', round(v_usage::numeric * 100),
                      coalesce(format('%s of %s (since %s)', a.pid, a.usename, a.xact_start), 'unknown')),
               coalesce(format('select pg_terminate_backend(%s)', a.pid), 'find the session that LISTENs, in a transaction, and end it')
        from (values (1)) one(row)
        left join lateral (
            select s.* from pg_stat_activity s
            where s.backend_type = 'client backend' and s.pid <> pg_backend_pid() and s.xact_start is not null
            order by s.xact_start limit 1) a on true;
    end if;
end;
$$;

create or replace function _check_settings() returns table (severity text, finding text, fix text)
    language plpgsql set search_path from current
as $$
begin
    return query
    select 'info', format('max_locks_per_transaction is %s: a query on all of history takes a lock per day and index, 64 is usual', s.setting),
           'alter system set max_locks_per_transaction = 64; -- then restart the server'
    from pg_settings s where s.name = 'max_locks_per_transaction' and s.setting::integer < 64;
    return query
    select 'ok', 'synchronous_commit is off; start_job and once raise it for their own commits, so at most once holds', null
    where current_setting('synchronous_commit') = 'off';
end;
$$;

create or replace function doctor() returns table (check_name text, severity text, finding text, fix text)
    language plpgsql security definer set search_path from current set lock_timeout = '1s' set jit = off
as $$
declare
    v_well text;
    v_found boolean;
begin
    for check_name, v_well in values
        ('invariants', 'what must always hold does hold'),
        ('schema', 'tables, indexes, views and functions are those that were installed'),
        ('indexes', 'all indexes are valid'),
        ('grants', 'each role has what it needs, everybody has nothing'),
        ('partitions', 'history has its partitions'),
        ('maintenance', 'due jobs are promoted, expired ones pruned'),
        ('workers', 'workers are alive, or nothing waits for one'),
        ('tasks', 'the live workers know the tasks and serve the queues of the jobs that wait'),
        ('sequences', 'no sequence is halted'),
        ('queues', 'nothing waits in a paused queue'),
        ('schedules', 'schedules are fired, and their tasks are known'),
        ('lost', 'no job was lost'),
        ('xmin', 'no old transaction keeps dead rows'),
        ('bloat', 'dead rows are few'),
        ('autovacuum', 'autovacuum is on'),
        ('notifications', 'the server''s queue of notifications is not filling up'),
        ('settings', 'the server''s settings suit')
    loop
        v_found := false;
        begin
            for severity, finding, fix in
                execute format('select c.severity, c.finding, c.fix from %I() c', '_check_' || check_name)
            loop
                v_found := true;
                return next;
            end loop;
        exception when others then
            v_found := true;
            severity := 'error';
            finding := format('the check itself failed: %s', sqlerrm);
            fix := 'run it again; if it stays so, install this version again: pyworker migrate, or psql -f sql/install.sql';
            return next;
        end;
        if not v_found then
            severity := 'ok';
            finding := v_well;
            fix := null;
            return next;
        end if;
    end loop;
end;
$$;
comment on function doctor() is
    'The health of the installation: the invariants, the schema, what keeps vacuum back, what waits for nobody. One row per finding, or one row ''ok'' '
    'per check; severity: ok, info, warning, error. fix: SQL that repairs it, for the schema''s owner (statements end in '';'' and a line '
    'break; run them one by one), or a sentence. Changes nothing itself; looks at no more than 250,000 rows of a table.';
