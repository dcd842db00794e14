-- heart/reports: read_reports: reports as JSON texts become the arguments of work. What a runner in any
-- language would otherwise have to do for itself is here: make texts storable, and let a report that cannot
-- count end its run all the same.

create or replace function read_reports(
    job_ids bigint[], runs bigint[], texts text[],
    out done_ids bigint[], out done_runs bigint[], out done_results jsonb[], out reports jsonb)
    language plpgsql stable security definer set search_path from current set jit = off
as $$
declare
    v_values jsonb[];
begin
    if cardinality(job_ids) is distinct from cardinality(runs)
       or cardinality(job_ids) is distinct from cardinality(texts) then
        raise exception 'read_reports: job_ids, runs and texts must be of one length, got %, % and %',
            cardinality(job_ids), cardinality(runs), cardinality(texts) using errcode = 'PW001';
    end if;
    begin
        v_values := texts::jsonb[];
    exception when others then -- one of them cannot be stored as it is
        v_values := array(
            select _report_of(t.source) from unnest(texts) with ordinality t(source, n) order by t.n);
    end;
    v_values := array(
        select case when jsonb_typeof(i.value) = 'object' then i.value
                    else _failed_report('malformed: it must be a JSON object') end
               || jsonb_build_object('id', i.id, 'run', i.run)
        from unnest(job_ids, runs, v_values) with ordinality i(id, run, value, n) order by i.n);
    select array_agg(r.id order by r.position) filter (where r.verb = 'done'),
           array_agg(r.run order by r.position) filter (where r.verb = 'done'),
           array_agg(nullif(r.value -> 'result', 'null') order by r.position) filter (where r.verb = 'done'),
           coalesce(jsonb_agg(case
               when k.problem is null then r.value
               else r.value || _failed_report('malformed: ' || k.problem) end order by r.position)
               filter (where r.verb is distinct from 'done'), '[]')
    into done_ids, done_runs, done_results, reports
    from _reports_of(null, null, to_jsonb(v_values)) r
    cross join lateral (
        select case when r.verb = 'log' then null
                    when r.verb = 'snooze' and _was_started(r.id, r.run)
                        then 'the job was started and must not be run twice'
                    else r.problem end as problem offset 0) k;
end;
$$;
comment on function read_reports(bigint[], bigint[], text[]) is
    'Makes the first arguments of work from reports that are JSON texts, one for each run: {"do", …}, as in '
    'work''s reports, or {"do": "done", "result"?} for a completed job. U+0000 and half surrogate pairs '
    'become U+FFFD. A report that is no JSON, cannot be stored, or would be malformed for work, becomes a '
    'failure of its run, which says why. So work refuses only stale ones. Errors: PW001.';

-- The members of a failure. They replace those of the report that is at fault.
create or replace function _failed_report(why text) returns jsonb
    language sql immutable
    return jsonb_build_object(
        'do', 'fail', 'error', 'its report is ' || why, 'delay_s', null, 'payload', null);

-- True for a job with delivery at_most_once whose handler has begun under this run.
create or replace function _was_started(id bigint, run bigint) returns boolean
    language plpgsql stable set search_path from current set enable_seqscan = off set jit = off
as $$
begin
    return exists (select from live_jobs j
                   where j.id = _was_started.id and j.run = _was_started.run and _must_not_rerun(j));
end;
$$;

create or replace function _report_of(source text) returns jsonb
    language plpgsql immutable set search_path from current
as $$
begin
    return _storable(source)::jsonb;
exception when others then
    return _failed_report('refused: ' || sqlerrm);
end;
$$;

-- JSON text in which U+FFFD stands for what jsonb cannot hold: U+0000 and halves of surrogate pairs. JSON
-- has no raw U+0001, so it stands for an escaped backslash meanwhile.
create or replace function _storable(source text) returns text
    language sql immutable
    return replace(regexp_replace(
        replace(source, '\\', chr(1)),
        '\\u0000|\\ud[89ab]..(?!\\ud[c-f])|(?<!\\ud[89ab]..)\\ud[c-f]..', '\\ufffd', 'gi'), chr(1), '\\');
