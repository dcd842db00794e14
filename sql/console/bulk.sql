-- console/bulk: perform_on_listed(), an action on all jobs that list_jobs() finds, a chunk at a time, and
-- action_outcomes(), what came of actions.

-- What came of actions, as callers show it: equal outcomes are counted.
create or replace function _told(rows jsonb, out done bigint, out refused bigint, out outcomes jsonb)
    language plpgsql stable set search_path from current
as $$
begin
    select count(*) filter (where r.ok), count(*) filter (where not r.ok) into done, refused
    from jsonb_to_recordset(rows) r(target text, ok boolean, outcome text);
    outcomes := (
        select coalesce(jsonb_agg(to_jsonb(g) order by g.ok desc, g.jobs desc), '[]')
        from (select r.ok, regexp_replace(replace(replace(r.outcome,
                         'there is no job ' || r.target, 'the job is gone'),
                         'job ' || r.target, 'the job'), '^[a-z_]+: ', '') as outcome,
                     count(*) as jobs, min(r.target) as example
              from jsonb_to_recordset(rows) r(target text, ok boolean, outcome text)
              group by 1, 2 order by count(*) desc limit 20) g);
end;
$$;

create or replace function perform_on_listed(
    action text, actor text, states text[] default null, tasks text[] default null,
    queues text[] default null, job_key text default null, search text default null,
    created_from timestamptz default null, created_before timestamptz default null,
    last_id bigint default null, after_id bigint default null, max_jobs integer default 500,
    lost boolean default false, out done bigint, out refused bigint, out outcomes jsonb, out next_id bigint,
    out first_audit bigint, out last_audit bigint)
    language plpgsql security definer set search_path from current set enable_seqscan = off
    set enable_bitmapscan = off set enable_sort = off set enable_incremental_sort = off set jit = off
    set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    v_states text[] := array_replace(states, 'active', 'running');
    v_page bigint[];
    v_ids bigint[];
    v_whole boolean; -- the page is all that was found
    v_rows jsonb := jsonb '[]';
begin
    perform _refuse(case when action in ('retry', 'cancel', 'force_cancel', 'delete') is not true then
        format('perform_on_listed: action must be retry, cancel, force_cancel or delete, got %s',
               quote_nullable(action)) end);
    perform _check_list(v_states, max_jobs, 'id');
    perform _check_action(action, '{1}', actor, '{}');
    select array_agg(j.id), coalesce(array_agg(j.id) filter (
               where j.state is not null and (last_id is null or j.id <= last_id)), '{}'),
           count(*) < max_jobs and bool_and(j.state is not null)
    into v_page, v_ids, v_whole
    from _read_jobs(v_states, tasks, queues, job_key, search, created_from, created_before, after_id, true,
                    max_jobs, 20000) j;
    next_id := case when not v_whole then v_page[cardinality(v_page)] end;
    if action = 'retry' then -- lock the jobs as the action will
        perform _lock_for_retry(v_ids);
    else
        perform from live_jobs j where j.id = any (v_ids) order by j.id + 0 for update;
    end if;
    v_ids := array( -- without those that have left the states before
        select l.id from live_jobs l
        where l.id = any (v_ids) and (v_states is null or l.state = any (v_states))
        union all
        select f.id from finished_jobs f
        where f.id = any (v_ids) and (v_states is null or f.state = any (v_states))
        order by 1);
    if v_ids <> '{}' then
        select jsonb_agg(to_jsonb(r)), min(r.audit_id), max(r.audit_id)
        into v_rows, first_audit, last_audit
        from perform_action(action, v_ids::text[], actor,
                            jsonb_build_object('lost', coalesce(lost, false))) r;
    end if;
    select t.* into done, refused, outcomes from _told(v_rows) t;
end;
$$;
comment on function perform_on_listed(text, text, text[], text[], text[], text, text, timestamptz,
                                      timestamptz, bigint, bigint, integer, boolean) is
    'Performs an action (retry, cancel, force_cancel, delete) on the jobs that list_jobs() finds with these '
    'arguments, newest first, up to max_jobs (1 to 1,000) in one transaction, and records each in the view '
    'audit. last_id: no job with a higher id, so that jobs added later are left alone. A job that has left '
    'the states meanwhile is left alone, too. A retry refuses jobs that were lost (delivery at_most_once), '
    'which may have been done, unless lost is true. done, refused: how many; outcomes: what came of them, '
    '[{ok, outcome, jobs, example}]. next_id: call again with it as after_id, until it is null. first_audit, '
    'last_audit: the rows in the view audit, for action_outcomes(). Errors: PW001.';

create or replace function action_outcomes(
    first_audit bigint, last_audit bigint, actor text,
    out action text, out done bigint, out refused bigint, out outcomes jsonb)
    language plpgsql stable security definer set search_path from current
as $$
declare
    v_rows jsonb;
begin
    select jsonb_agg(jsonb_build_object('target', a.target, 'ok', a.ok, 'outcome', a.outcome)), min(a.action)
    into v_rows, action
    from (select r.* from audit_log r
          where r.id between first_audit and last_audit and r.actor = action_outcomes.actor
          order by r.id limit 100000) a;
    select t.* into done, refused, outcomes from _told(coalesce(v_rows, '[]')) t;
end;
$$;
comment on function action_outcomes(bigint, bigint, text) is
    'What came of the actions of this actor from first_audit to last_audit in the view audit. action: null '
    'if there are none. done, refused, outcomes: as in perform_on_listed(). It reads at most 100,000 rows.';
