-- heart/leave: _leave, the way of jobs from one live state to another; snooze_job, snooze_jobs and
-- release_jobs, which hand running jobs back. The way into history is _end_jobs (heart/finish).
-- Calls: heart/finish, gate/queues, features/edges and sequences. Changes: live_jobs, errors,
-- promotion_requests.

-- True if the job must not be run again by itself: its delivery is at_most_once, and it was
-- started.
create or replace function _must_not_rerun(job live_jobs) returns boolean
    language sql immutable
    return (job).delivery = 'at_most_once' and (job).started_at is not null;

-- The goal of a move, as it counts for this job. A job that was asked to stop or superseded while it ran ends
-- cancelled. A job that was started and must not be run twice is discarded, not handed back.
create or replace function _goal_of(job live_jobs, goal text) returns text
    language sql immutable
    return case when num_nonnulls((job).superseded, (job).cancel_requested_at) > 0 then 'cancelled'
                when goal = 'scheduled' and (job).state = 'running' and _must_not_rerun(job) then 'discarded'
                else goal end;

-- Moves jobs that the caller has locked, and does all that follows from it. With discarded_retention 0 a
-- discarded job is deleted.
create or replace function _leave(moves _move[]) returns void
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
    set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_now timestamptz := clock();
    v_retention interval := (select s.discarded_retention from settings s);
    v_left record;
begin
    for v_left in
        with fate as materialized (
            select j.id, j.run, j.worker_id, j.state as was, j.ready_at is not null as was_ready,
                   j.queue_name, j.slot, j.sequence_key, j.sequence_head, j.continue_on_discarded,
                   j.superseded, j.unique_key, m.run_at, m.attempts, m.payload, m.start_by, p.*, g.goal,
                   g.goal = 'deleted' or g.goal = 'discarded' and v_retention = interval '0' as gone,
                   case when g.goal = m.goal then m.reason
                        when g.goal = 'discarded' then 'lost' end as reason,
                   case when g.goal = 'discarded' and m.goal <> 'discarded'
                        then coalesce(m.error, 'handed back after it was started') else m.error end as error
            from unnest(moves) m
            cross join lateral (select l.* from live_jobs l where l.id between m.id and m.id offset 0) j
            cross join lateral (select _goal_of(j, m.goal) as goal offset 0) g
            cross join lateral (select _must_wait(j.queue_name) as waits offset 0) q
            left join lateral _place(
                m.run_at, v_now,
                case when g.goal = 'pending' then 'signal'
                     when j.state <> 'running' -- else it was the head of its sequence, and stays it
                     then _held(j.sequence_key, j.sequence_head, coalesce(_unmet(j), j.parked)) end,
                q.waits, g.goal) p on g.goal in ('scheduled', 'retryable', 'pending')),
        noted as (
            insert into errors (job_id, run, at, worker, error)
            select f.id, f.run, v_now, f.worker_id::text, f.error from fate f where f.error is not null),
        removed as (delete from live_jobs j using fate f where j.id between f.id and f.id and f.gone),
        moved as (
            update live_jobs j
            set state = coalesce(f.state, f.goal), parked = f.parked, ready_at = f.ready_at,
                due_at = f.due_at, updated_at = v_now, attempts = coalesce(f.attempts, j.attempts),
                run_at = case when f.goal in ('scheduled', 'retryable') then f.run_at else j.run_at end,
                payload = coalesce(f.payload, j.payload), last_error = coalesce(f.error, j.last_error),
                worker_id = null, claimed_at = null, slot = null, pace = null, turn = null,
                crashes = case when f.was <> 'discarded' or f.goal = 'discarded' then j.crashes end,
                sequence_head = case when f.goal <> 'discarded' then j.sequence_head end,
                start_by = case when f.goal <> 'discarded' then coalesce(f.start_by, j.start_by) end,
                started_at = case when f.goal = 'discarded' then j.started_at end,
                reason = case when f.goal = 'discarded' then f.reason end,
                finished_at = case when f.goal = 'discarded' then v_now end,
                expires_at = case when f.goal = 'discarded' then v_now + v_retention end
            from fate f where j.id between f.id and f.id and f.goal <> 'cancelled' and not f.gone),
        asked as (
            insert into promotion_requests (lane, job_id, later)
            select l.lane, l.job_id, l.job_id is not null from fate f
            cross join lateral (
                select _lane_of(f.parked, f.queue_name, f.sequence_key), null where f.was <> 'running'
                union all
                select w.lane, f.id
                from (values ('child', 'unmet'), ('unmet', 'unmet'), ('signal', 'signal')) w(lane, parked)
                where w.parked = f.parked) l(lane, job_id)
            where l.lane is not null)
        select f.goal, case when f.goal = 'cancelled' then coalesce(f.superseded, f.reason, 'cancelled') end
                   as reason,
               case when f.goal = 'cancelled' then coalesce(f.error, f.superseded) end as error,
               array_agg(f.id) as ids, array_agg(f.id) filter (where f.was = 'discarded') as discarded,
               array_agg(f.sequence_key) filter (where f.was = 'discarded') as sequences,
               array_agg(row(
                   f.id, f.was = 'running', f.queue_name, f.slot, f.was_ready,
                   case when f.sequence_head and f.goal in ('discarded', 'deleted') then f.sequence_key end,
                   case when f.goal = 'discarded' and f.was <> 'discarded' and not f.continue_on_discarded
                        then f.sequence_key end,
                   f.gone, f.gone, f.unique_key, null)::_loose_end)
                   filter (where f.goal in ('discarded', 'deleted') or f.queue_name is not null) as ends
        from fate f group by 1, 2, 3 order by 1, 2, 3
    loop
        if v_left.goal = 'cancelled' then
            perform _end_jobs(v_left.ids, null, 'cancelled', null, v_left.reason, v_left.error);
        elsif v_left.ends is not null then
            perform _tie_up(
                v_left.ends, case v_left.goal when 'deleted' then 'cancelled' else v_left.goal end,
                v_left.goal in ('discarded', 'deleted'));
        end if;
        if v_left.goal <> 'discarded' and v_left.discarded is not null then -- it does not halt any more
            perform _settle_edges(v_left.discarded, 'discarded') where v_left.goal <> 'deleted';
            perform _unhalt_sequence(s.key, s.id)
            from unnest(v_left.sequences, v_left.discarded) s(key, id) where s.key is not null;
        end if;
        perform _notify_workers();
    end loop;
end;
$$;

-- The move that hands a running job back, and gives its attempt back. If its handler was not called, its
-- expires_at still holds.
create or replace function _handed_back(job live_jobs, run_at timestamptz, begun boolean default true)
    returns _move
    language sql immutable
    return row((job).id, 'scheduled', _handed_back.run_at, greatest((job).attempts - 1, 0), null, null, null,
               case when not begun then (job).claimed_start_by end)::_move;

-- The running job, locked, if this run holds it. Errors: PW002.
create or replace function _hold_run(caller text, job_id bigint, run bigint) returns live_jobs
    language plpgsql set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_job live_jobs;
begin
    select j.* into v_job from live_jobs j
    where j.id = job_id and j.run = _hold_run.run and j.state = 'running' for update;
    if not found then
        raise exception '%: job % is not held by run % any more', caller, coalesce(job_id::text, 'NULL'),
            coalesce(run::text, 'NULL')
            using errcode = 'PW002', hint = 'The claim was lost: roll back, and drop the result.';
    end if;
    return v_job;
end;
$$;

create or replace function snooze_job(job_id bigint, run bigint, delay interval) returns void
    language plpgsql security definer set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_job live_jobs;
    v_run_at timestamptz;
begin
    if delay is null or delay < interval '0' or delay > interval '1000 years' then
        raise exception 'snooze_job: delay must be from 0 to 1000 years, got %', coalesce(delay::text, 'NULL')
            using errcode = 'PW001';
    end if;
    v_job := _hold_run('snooze_job', job_id, run);
    if _must_not_rerun(v_job) and v_job.superseded is null and v_job.cancel_requested_at is null then
        raise exception 'snooze_job: job % was started and must not be run twice', job_id
            using errcode = 'PW005', hint = 'Fail it with not_started, if it had done nothing yet.';
    end if;
    v_run_at := clock() + delay;
    perform _leave(array[_handed_back(v_job, v_run_at)]);
end;
$$;
comment on function snooze_job(bigint, bigint, interval) is
    'Postpones a running job by delay and gives its attempt back (River: snooze). Errors: PW002 '
    'on a stale run; PW005 if the job must not be run twice and was started; PW001.';

create or replace function snooze_jobs(job_ids bigint[], runs bigint[], delays interval[]) returns bigint[]
    language plpgsql security definer set search_path from current set enable_seqscan = off set jit = off
    set plan_cache_mode = force_generic_plan
as $$
declare
    v_now timestamptz := clock();
    v_bad interval;
    v_moves _move[];
begin
    if cardinality(job_ids) is distinct from cardinality(runs)
       or cardinality(job_ids) is distinct from cardinality(delays) then
        raise exception 'snooze_jobs: job_ids, runs and delays must be of one length, got %, % and %',
            cardinality(job_ids), cardinality(runs), cardinality(delays) using errcode = 'PW001';
    end if;
    select d.delay into v_bad from unnest(delays) d(delay)
    where (d.delay between interval '0' and interval '1000 years') is not true limit 1;
    if found then
        raise exception 'snooze_jobs: each delay must be from 0 to 1000 years, got %',
            coalesce(v_bad::text, 'NULL') using errcode = 'PW001';
    end if;
    v_moves := array(
        select _handed_back(h.job, v_now + i.delay)
        from (select distinct on (u.id, u.run) u.* from unnest(job_ids, runs, delays) u(id, run, delay)
              order by u.id, u.run) i
        cross join lateral (
            select j as job from live_jobs j
            where j.id = i.id and j.run = i.run and j.state = 'running' for update) h
        where not _must_not_rerun(h.job)
           or num_nonnulls((h.job).superseded, (h.job).cancel_requested_at) > 0);
    perform _leave(v_moves);
    return array(select m.id from unnest(v_moves) m);
end;
$$;
comment on function snooze_jobs(bigint[], bigint[], interval[]) is
    'Postpones running jobs, each by its delay, and gives their attempts back (River: snooze). '
    'Returns the ids that were accepted. A stale run is left out, and so is a job with delivery '
    'at_most_once that was started: it keeps running until its end is reported. Errors: PW001.';

create or replace function release_jobs(job_ids bigint[], runs bigint[]) returns bigint[]
    language plpgsql security definer set search_path from current set enable_seqscan = off set jit = off
    set plan_cache_mode = force_generic_plan
as $$
declare
    v_moves _move[];
begin
    if cardinality(job_ids) <> cardinality(runs) then
        raise exception 'release_jobs: job_ids and runs must be of one length, got % and %',
            cardinality(job_ids), cardinality(runs)
            using errcode = 'PW001';
    end if;
    v_moves := array(
        select _handed_back(h.job, (h.job).run_at)
        from (select distinct u.id, u.run from unnest(job_ids, runs) u(id, run) order by u.id, u.run) i
        cross join lateral (
            select j as job from live_jobs j
            where j.id = i.id and j.run = i.run and j.state = 'running' for update) h);
    perform _leave(v_moves);
    return array(select m.id from unnest(v_moves) m);
end;
$$;
comment on function release_jobs(bigint[], bigint[]) is
    'Hands back claimed jobs that were not begun. Each gets its attempt back and can be claimed '
    'again at once. Returns the ids that were accepted; a stale run is left out. Errors: PW001.';
