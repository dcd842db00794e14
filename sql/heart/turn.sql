-- heart/turn: one call a turn, for a runner in any language: open_worker, work and close_worker. See
-- docs/protocol.md. A turn settles the worker's reports, then promotes, then claims.

create or replace function open_worker(info jsonb default '{}', protocol integer default 1) returns jsonb
    language plpgsql security definer set search_path from current
as $$
declare
    v_ttl double precision := extract(epoch from worker_ttl());
begin
    if protocol is distinct from 1 then
        raise exception 'open_worker: this database speaks protocol 1, got %',
            coalesce(protocol::text, 'NULL') using errcode = 'PW006', detail = 'older',
                  hint = 'Upgrade pyworker in the database, or use a runner that speaks protocol 1.';
    elsif info is null or jsonb_typeof(info) <> 'object' then
        raise exception 'open_worker: info must be a JSON object, got %',
            coalesce(jsonb_typeof(info), 'NULL') using errcode = 'PW001';
    end if;
    return jsonb_build_object(
        'worker', register_worker(info), 'channel', current_schema(), 'ttl_s', v_ttl, 'beat_s', 1,
        'stop_after_s', v_ttl * 0.75);
end;
$$;
comment on function open_worker(jsonb, integer) is
    'Registers a worker. Returns {"worker": id for work and beat, "channel": LISTEN to it, "ttl_s": '
    'a worker without a beat counts as dead after these seconds, "beat_s": call beat this often, '
    '"stop_after_s": after these seconds without an answer to beat, stop all handlers}. info is '
    'for people; see update_worker for the members that other functions read. protocol: the '
    'version that the runner speaks. Errors: PW006 if this database does not speak it; PW001.';

create or replace function close_worker(worker_id bigint) returns void
    language plpgsql security definer set search_path from current
as $$
begin
    perform unregister_worker(worker_id);
end;
$$;
comment on function close_worker(bigint) is
    'Ends a worker in an orderly way: the jobs that it still holds are handed back, get their '
    'attempt back, and can be claimed at once. An unknown worker is no error.';

-- Three statements: the report, the look, the claim. The look finds what there is to do: without a job that
-- is ready there is no claim.
create or replace function work(
    worker_id bigint, done_ids bigint[], done_runs bigint[], done_results jsonb[], reports jsonb,
    max_jobs integer, task_identifiers text[] default null, queue_names text[] default null,
    forbidden_flags text[] default null)
    returns table (
        kind text, id bigint, run bigint, task_identifier text, payload json, attempts smallint,
        max_attempts smallint, queue_name text, key text, flags jsonb, meta jsonb, sequence_key text,
        delivery text, crashes smallint, timeout_s double precision, run_at_s double precision,
        created_at_s double precision, why text, again_in_s double precision)
    language plpgsql security definer set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
    set enable_sort = off set enable_incremental_sort = off set jit = off
    set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    v_may_open constant boolean := _may_open();
    v_due_from timestamptz := _floor_of_due();
    v_floor _floor := row(-32768, '-infinity', 0, null); -- the head of the index
    v_began constant timestamptz := clock_timestamp();
    v_read constant bigint := _entries_read('live_jobs_ready');
    v_run constant bigint := _new_run();
    v_settled record;
    v_look record;
    v_looks boolean := true;
    v_open _opened;
    v_ready integer := 0; -- let in, but not claimed here
    v_left integer := max_jobs; -- how many more jobs it wants
    v_n integer := 0;
    v_polls boolean;
    v_notified boolean;
begin
    if current_setting('pyworker.floor_ready', true) <> '' then
        v_floor := _claim_floor(task_identifiers, queue_names, forbidden_flags);
    end if;
    if max_jobs is null or max_jobs < 0 or done_ids <> '{}' or done_runs <> '{}' or done_results <> '{}'
       or reports <> '[]' then
        v_settled := _settle(max_jobs, done_ids, done_runs, done_results, reports);
        v_ready := coalesce(v_settled.opened, 0);
        if v_settled.refused <> '{}' then
            return query select f.* from _refused_rows(v_settled.refused) f;
        end if;
    end if;
    loop
        select (select w.dead_at is null from workers w where w.id = work.worker_id) as registered, l.*
        into v_look from _look(v_due_from, v_floor) l;
        if v_look.registered is not true then
            perform _refuse_worker(worker_id);
        end if;
        exit when v_left = 0;
        if v_looks and (v_look.asked or least(v_look.timer, v_look.due_at) <= clock()) then
            v_open := _open(v_may_open, v_look.due_at <= clock(), v_left);
            v_ready := v_ready + v_open.jobs;
            v_looks := false;
            continue; -- what is left?
        end if;
        if (v_look.first).id is not null then
            return query select c.* from _claim(
                worker_id, v_run, v_left, task_identifiers, queue_names, forbidden_flags, v_look.first) c;
            get diagnostics v_n = row_count;
            v_left := v_left - v_n;
        end if;
        exit when v_left = 0;
        v_polls := (v_left < max_jobs or _a_worker_polls()) and _polls(
            worker_id, max_jobs - v_left, task_identifiers, queue_names, forbidden_flags, v_look.first);
        exit when v_polls or max_jobs - v_left >= 4 or not _start_listening();
        v_looks := true; -- once more: adds did not notify until now
    end loop;
    if v_n > 0 and v_floor.until is not null
       or _entries_read('live_jobs_ready') - v_read > 1000 + 2 * (max_jobs - v_left) then
        perform _keep_claim_floor(
            _owner_of_claims(task_identifiers, queue_names, forbidden_flags), worker_id, v_run,
            v_floor.until, v_began);
    end if;
    if v_left = 0 and _stop_polling(worker_id)
       or v_ready > max_jobs - v_left or v_ready > 0 and v_left = 0 then
        v_notified := _notify_workers();
    end if;
    kind := 'turn';
    id := null;
    again_in_s := case when max_jobs = 0 then 2.5
                       when v_left = 0 or v_open.again or v_open.held and v_look.asked then 0
                       when v_polls or max_jobs - v_left >= 4 then 0.005
                       else _again_in(
                           v_look.asked, least(v_look.timer, v_look.due_at), v_look.xmin,
                           case when (v_look.first).id is not null then _left_behind(
                               task_identifiers, queue_names, forbidden_flags, v_look.first) end) end;
    return next;
end;
$$;
comment on function work(
    bigint, bigint[], bigint[], jsonb[], jsonb, integer, text[], text[], text[]) is
    'One turn of a worker, in one transaction: settles its reports, promotes, claims up to max_jobs jobs (0: '
    'only reports). done_ids, done_runs, done_results: completed jobs and their results; null means none. '
    'reports: [{"id", "run", "do", "error"?, "delay_s"?, "payload"?, "begun"?}], where do is fail, cancel, '
    'discard, not_started (see fail_jobs, also for payload_text), snooze or release (begun: false if its '
    'handler was not called: it may still expire); ids and runs may be strings. Items with do = log are '
    'lines for log_jobs, and report no end. Rows of kind refused: a report that did not count, why is stale '
    'or malformed: and a reason; a job whose report was malformed still runs. Rows of kind job: claimed '
    'jobs, as claim_jobs returns them, with the timeout of the task. Last, one row of kind turn: call again '
    'within again_in_s seconds (0 to 5), notified or not. A report that was accepted before is stale when '
    'it is repeated, which does no harm. With synchronous_commit off, a turn without reports of ends does '
    'not wait for the disk, as claim_jobs. Errors: PW004 if the worker is unknown, closed or was declared '
    'dead, and nothing counts; PW001.';

-- The queues of which this transaction claims no jobs, by its setting: a process takes no more of them than
-- its runner was told.
create or replace function _closed_queues() returns text[]
    language sql stable
    return nullif(current_setting('pyworker.closed_queues', true), '')::text[];

-- The rows of work for reports that did not count.
create or replace function _refused_rows(refused _report[])
    returns table (
        kind text, id bigint, run bigint, task_identifier text, payload json, attempts smallint,
        max_attempts smallint, queue_name text, key text, flags jsonb, meta jsonb, sequence_key text,
        delivery text, crashes smallint, timeout_s double precision, run_at_s double precision,
        created_at_s double precision, why text, again_in_s double precision)
    language plpgsql stable set search_path from current
as $$
begin
    return query
    select 'refused', r.id, r.run, null::text, null::json, null::smallint, null::smallint, null::text,
           null::text, null::jsonb, null::jsonb, null::text, null::text, null::smallint, null::float8,
           null::float8, null::float8, r.problem, null::float8
    from unnest(_refused_rows.refused) r;
end;
$$;

-- Settles the reports of a turn. `refused`: those that did not count, each with its problem; `opened`: how
-- many jobs became available to claims. Errors: PW001.
create or replace function _settle(
    max_jobs integer, done_ids bigint[], done_runs bigint[], done_results jsonb[], reports jsonb,
    out refused _report[], out opened integer)
    language plpgsql set search_path from current
as $$
declare
    v_lines bigint[]; -- the job of each line
    v_mixed boolean := false;
    v_ended record;
    v_durable text;
begin
    if (max_jobs >= 0 and cardinality(done_ids) = 1 and cardinality(done_runs) = 1
        and coalesce(cardinality(done_results), 0) < 2 and array_ndims(done_runs) = 1
        and coalesce(reports = '[]', true) and done_runs[1] is not null) is not true then
        perform _refuse_turn(max_jobs, done_ids, done_runs, done_results, reports);
        if reports <> '[]' then
            select l.others, l.jobs into reports, v_lines from _log_of_turn(reports) l;
        end if;
        v_mixed := reports <> '[]' or array_position(done_runs, null) is not null
                   or cardinality(done_ids) > (select count(distinct d.id) from unnest(done_ids) d(id));
    end if;
    if done_ids <> '{}' or reports <> '[]' then
        v_durable := _commit_durably();
    end if;
    if v_mixed then
        refused := _settle_mixture(done_ids, done_runs, done_results, reports);
    elsif done_ids <> '{}' then -- the common turn: completed jobs only
        v_ended := _end_jobs(done_ids, done_runs, 'completed', done_results);
        opened := v_ended.opened;
        if cardinality(v_ended.ids) < cardinality(done_ids) then
            refused := array(
                select row(0, 'done', d.id, d.run, 'stale', null)::_report
                from unnest(done_ids, done_runs) d(id, run) where d.id <> all (v_ended.ids));
        end if;
    end if;
    if v_lines is not null then
        perform _trim_logs(v_lines); -- when its jobs are locked
    end if;
end;
$$;

-- Errors of a turn as a whole: PW001.
create or replace function _refuse_turn(
    max_jobs integer, done_ids bigint[], done_runs bigint[], done_results jsonb[], reports jsonb) returns void
    language plpgsql set search_path from current
as $$
declare
    v_done constant integer := coalesce(cardinality(done_ids), 0);
begin
    if max_jobs is null or max_jobs < 0 then
        raise exception 'work: max_jobs must not be negative, got %', coalesce(max_jobs::text, 'NULL')
            using errcode = 'PW001';
    elsif v_done <> coalesce(cardinality(done_runs), 0)
          or coalesce(cardinality(done_results), 0) not in (0, v_done) then
        raise exception 'work: done_ids, done_runs and done_results must be of one length, got %, % and %',
            v_done, coalesce(cardinality(done_runs), 0), coalesce(cardinality(done_results), 0)
            using errcode = 'PW001';
    elsif array_ndims(done_runs) > 1 then
        raise exception 'work: done_runs must be a plain list, got %', left(done_runs::text, 140)
            using errcode = 'PW001';
    elsif jsonb_typeof(reports) <> 'array' then
        raise exception 'work: reports must be a JSON array of objects, got %', jsonb_typeof(reports)
            using errcode = 'PW001';
    end if;
end;
$$;

-- The reports of one turn in their order, each with its problem if it is malformed.
create or replace function _reports_of(done_ids bigint[], done_runs bigint[], reports jsonb)
    returns setof _report
    language plpgsql stable set search_path from current set jit = off
as $$
begin
    return query
    select d.n::integer, 'done', d.id, d.run,
           case when d.id is null or d.run is null then 'done_ids and done_runs must not be null' end,
           null::jsonb
    from unnest(done_ids, done_runs) with ordinality d(id, run, n)
    union all
    select coalesce(cardinality(done_ids), 0) + r.n::integer, r.value ->> 'do', i.id, i.run,
           case
               when jsonb_typeof(r.value) <> 'object'
                   then 'it must be an object, got ' || jsonb_typeof(r.value)
               when i.id is null
                   then 'id must be a bigint, got ' || coalesce(left((r.value -> 'id')::text, 40), 'none')
               when i.run is null
                   then 'run must be a bigint, got ' || coalesce(left((r.value -> 'run')::text, 40), 'none')
               when (r.value ->> 'do' = any ('{fail,cancel,discard,snooze,release,not_started}')) is not true
                   then 'do must be fail, cancel, discard, snooze, release or not_started, got '
                        || coalesce(left((r.value -> 'do')::text, 40), 'none')
               when jsonb_typeof(r.value -> 'delay_s') not in ('number', 'null')
                    or r.value -> 'delay_s' <> 'null' and _interval_of(r.value -> 'delay_s') is null
                   then 'delay_s must be a number of seconds from 0 to 1000 years, got '
                        || left((r.value -> 'delay_s')::text, 40)
               when r.value ->> 'do' = 'snooze' and r.value ->> 'delay_s' is null then 'snooze needs delay_s'
               when jsonb_typeof(r.value -> 'begun') not in ('boolean', 'null') then 'begun must be a boolean'
           end,
           r.value
    from jsonb_array_elements(reports) with ordinality r(value, n)
    cross join lateral (
        select _bigint_of(r.value -> 'id') as id, _bigint_of(r.value -> 'run') as run offset 0) i;
end;
$$;

-- Settles reports of several kinds, or of one run twice. Locks all jobs in the order of their
-- ids before it changes any, so that two such turns never deadlock.
create or replace function _settle_mixture(
    done_ids bigint[], done_runs bigint[], done_results jsonb[], reports jsonb) returns _report[]
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
    set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_reports _report[] := array(select r from _reports_of(done_ids, done_runs, reports) r);
    v_counts _report[]; -- of each run the first report that is well-formed, if the run has not ended
    v_results constant jsonb[] := array(select r.result from unnest(done_results) r(result)); -- begins at 1
    v_snoozed bigint[];
begin
    v_counts := array(
        with said as materialized (
            select distinct on (r.id, r.run) r as report, r.id, r.run from unnest(v_reports) r
            where r.problem is null order by r.id, r.run, r.position)
        select s.report from said s
        cross join lateral (
            select j.id from live_jobs j
            where j.id between s.id and s.id and j.run = s.run and j.state = 'running' for update) j);
    perform finish_jobs(
            array_agg(c.id), array_agg(c.run), array_agg(v_results[c.position]))
        from unnest(v_counts) c where c.verb = 'done' having count(*) > 0;
    perform fail_jobs(jsonb_agg(jsonb_build_object(
            'id', c.id, 'run', c.run, 'payload', c.value -> 'payload',
            'payload_text', c.value -> 'payload_text',
            'error', coalesce(
                c.value ->> 'error', case when c.verb = 'cancel' then 'cancelled by its handler' end),
            'delay', c.value -> 'delay_s', c.verb, true)))
        from unnest(v_counts) c
        where c.verb = any ('{fail,cancel,discard,not_started}') having count(*) > 0;
    v_snoozed := snooze_jobs(array_agg(c.id), array_agg(c.run), array_agg(_interval_of(c.value -> 'delay_s')))
        from unnest(v_counts) c where c.verb = 'snooze' having count(*) > 0;
    perform _leave(array_agg(_handed_back(j, j.run_at, c.value -> 'begun' is distinct from 'false')))
        from unnest(v_counts) c, lateral (
            select l.* from live_jobs l where l.id between c.id and c.id and l.run = c.run offset 0) j
        where c.verb = 'release' having count(*) > 0;
    return array(
        select row(r.position, r.verb, r.id, r.run, case
            when r.problem is not null then 'malformed: ' || r.problem
            when c.position is null then 'stale'
            else 'malformed: the job was started and must not be run twice: report how it ended' end,
            null)::_report
        from unnest(v_reports) r
        left join unnest(v_counts) c on c.position = r.position
        where c.position is null or c.verb = 'snooze' and c.id <> all (v_snoozed)
        order by r.position);
end;
$$;

create or replace function once(job_id bigint, run bigint, name text) returns boolean
    language plpgsql security definer set search_path from current set enable_seqscan = off set jit = off
as $$
begin
    if once.name is null or once.name = '' or length(once.name) > 400 then
        raise exception 'once: name must be 1 to 400 characters long, got %',
            coalesce(quote_literal(left(once.name, 420)), 'NULL') using errcode = 'PW001';
    end if;
    perform from live_jobs j
    where j.id = once.job_id and j.run = once.run and j.state = 'running' for share;
    if not found then
        raise exception 'once: job % is not held by run % any more', coalesce(job_id::text, 'NULL'),
            coalesce(run::text, 'NULL')
            using errcode = 'PW002', hint = 'The claim was lost: roll back, and drop the result.';
    end if;
    return _once(format('pyworker/job/%s/%s', job_id, name));
end;
$$;
comment on function once(bigint, bigint, text) is
    'True exactly once for each job and name, over all runs of the job: for an effect of a handler '
    'that must not happen twice. It counts from the commit of the transaction that calls it, as '
    'once(text). Errors: PW002 on a stale run; PW001.';
