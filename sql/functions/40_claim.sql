-- 40_claim: available -> running, for one worker.
--
-- One ordered index scan over what is ready, in the total order priority, run_at, id; SKIP LOCKED, so that claims neither wait for each
-- other nor meet. The plan is pinned: a queue goes from empty to a million rows and back faster than statistics follow, and any
-- other plan than this walk is slow at one of the two ends.
--
-- At the head of that index stand the jobs that others run and those that ended since the last vacuum; under an old snapshot these
-- stay for ever. A claim that had to walk past many of them leaves a note in its session: how far it came, for each priority. For 20
-- times as long as that walk took, at most 5 s, the session's next claims resume there. The note is only a hint: what turns up before it
-- (an add that was long in committing) is found by the next walk from the head, and a claim that comes back short makes one at once.

-- The spans of the index that are left to walk, once it was walked up to these places, one for each priority met. Priorities that
-- were not met are left to walk as a whole.
create or replace function _spans_behind(walked _span[]) returns _span[]
    language plpgsql immutable set search_path from current
as $$
begin
    return array(
        select row(s.priority, s.ready_at, s.id, s.up_to)::_span
        from (select w.*, lead(w.priority, 1, 32768) over (order by w.priority) - 1 as before_next, min(w.priority) over () as lowest
              from unnest(walked) w) w
        cross join lateral (values
            (-32768, '-infinity'::timestamptz, 0::bigint, case when w.priority = w.lowest then w.priority - 1 end),
            (w.priority, w.ready_at, w.id, w.priority),
            (w.priority + 1, '-infinity', 0, w.before_next)) s(priority, ready_at, id, up_to)
        where s.priority <= s.up_to
        order by s.priority, s.ready_at);
end;
$$;

create or replace function claim_jobs(
    worker_id bigint, max_jobs integer default 1, task_identifiers text[] default null, queue_names text[] default null,
    forbidden_flags text[] default null)
    returns table (
        id bigint, run integer, task_identifier text, payload json, attempts smallint, max_attempts smallint, priority smallint,
        run_at timestamptz, queue_name text, key text, flags jsonb, meta jsonb, delivery text, sequence_key text,
        created_at timestamptz, revision integer, crashes smallint)
    language plpgsql security definer set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set enable_hashjoin = off set enable_mergejoin = off
    set jit = off set plan_cache_mode = force_generic_plan set datestyle = iso set lock_timeout = '200ms'
as $$
declare
    v_now timestamptz := clock();
    -- For this worker and these filters, no other.
    v_owner bigint := hashtextextended(
        row('live_jobs'::regclass::oid, worker_id, task_identifiers, queue_names, forbidden_flags)::text, 0);
    v_note _claim_note := nullif(current_setting('pyworker.claim_note', true), '')::_claim_note;
    v_from_head constant _span[] := array[row(-32768, '-infinity', 0, 32767)::_span];
    v_index constant regclass := 'live_jobs_ready';
    v_began timestamptz;
    v_walked bigint;
    v_rows tid[];
    v_priorities smallint[];
    v_ready_ats timestamptz[];
    v_ids bigint[];
    v_last _span[];
    v_in_lanes boolean;
    v_wanted integer := max_jobs;
    v_got integer;
    v_armed_ms bigint;
begin
    if max_jobs is null or max_jobs < 1 then
        raise exception 'claim_jobs: max_jobs must be at least 1, got %', coalesce(max_jobs::text, 'NULL') using errcode = 'PW001';
    end if;
    if not exists (select from workers w where w.id = claim_jobs.worker_id and w.dead_at is null) then
        raise exception 'claim_jobs: worker % is unknown or was declared dead', coalesce(worker_id::text, 'NULL')
            using errcode = 'PW004', hint = 'Call register_worker again; jobs of the old registration are handed on.';
    end if;
    v_began := clock_timestamp();
    if v_note.owner is distinct from v_owner or v_note.until < v_began or v_note.until > v_began + interval '5 seconds' then
        v_note := null;
    end if;
    loop
        begin
            perform promote_jobs();
            v_walked := pg_stat_get_xact_tuples_returned(v_index) + 20 * pg_stat_get_xact_blocks_fetched(v_index);
            select array_agg(r.ctid), array_agg(r.priority), array_agg(r.ready_at), array_agg(r.id), bool_or(r.in_lane)
            into v_rows, v_priorities, v_ready_ats, v_ids, v_in_lanes
            from (
                select r.* from unnest(coalesce(v_note.spans, v_from_head)) s
                cross join lateral (
                    select j.ctid, j.priority, j.ready_at, j.id, j.queue_name is not null or j.sequence_key is not null as in_lane
                    from live_jobs j
                    where j.ready_at is not null and j.state = 'available'
                      and (j.priority, j.ready_at, j.id) > (s.priority, s.ready_at, s.id) and j.priority <= s.up_to
                      and (claim_jobs.task_identifiers is null or j.task_identifier = any (claim_jobs.task_identifiers))
                      and (claim_jobs.queue_names is null or coalesce(j.queue_name, 'default') = any (claim_jobs.queue_names))
                      and (claim_jobs.forbidden_flags is null or j.flags is null or not j.flags ?| claim_jobs.forbidden_flags)
                    order by j.priority, j.ready_at, j.id
                    limit v_wanted for update skip locked) r
                limit v_wanted) r;
            v_got := 0;
            if v_rows is not null then
                return query
                    update live_jobs j
                    set state = 'running', worker_id = claim_jobs.worker_id, run = j.run + 1, claimed_at = v_now,
                        attempts = least(j.attempts + 1, 32767) -- one worn out job must not break everybody's claims
                    from unnest(v_rows) r(ctid) where j.ctid = r.ctid
                    returning j.id, j.run, j.task_identifier, j.payload, j.attempts, j.max_attempts, j.priority, j.run_at, j.queue_name,
                              j.job_key, j.flags, j.meta, j.delivery, j.sequence_key, j.created_at, j.revision,
                              coalesce(j.crashes, 0::smallint);
                get diagnostics v_got = row_count;
            end if;
        -- SKIP LOCKED waits after all (PostgreSQL) for a row that was changed, and whose new version was locked, at the moment of the look:
        -- for as long as a producer's transaction is open, or in a circle with it, as claims do not lock in the order of ids.
        exception when lock_not_available or deadlock_detected then
            continue;
        end;
        -- A crash of the server may forget a claim whose commit did not wait for the disk, while the jobs are at work: their worker
        -- learns of it when it reconnects (reconcile). But two of a sequence or of a serial queue must not be at work at once.
        if v_in_lanes then
            perform _commit_durably();
        end if;
        v_wanted := v_wanted - v_got;
        if v_wanted = 0 then
            v_walked := pg_stat_get_xact_tuples_returned(v_index) + 20 * pg_stat_get_xact_blocks_fetched(v_index) - v_walked;
            if v_note.spans is null and v_walked > 500 + 2 * max_jobs then
                v_note := row(v_owner, clock_timestamp() + least(20 * (clock_timestamp() - v_began), '5 seconds'), '{}');
            end if;
            if v_note.spans is not null then
                v_got := cardinality(v_ids);
                if v_priorities[1] = v_priorities[v_got] then -- they come in order: the last is the last of its priority
                    v_last := array[row(v_priorities[v_got], v_ready_ats[v_got], v_ids[v_got], 0)::_span];
                else
                    v_last := array(select row(r.priority, r.ready_at, r.id, 0)::_span
                                    from unnest(v_priorities, v_ready_ats, v_ids) r(priority, ready_at, id));
                end if;
                v_note.spans := _spans_behind(array(
                    select distinct on (w.priority) w from unnest(v_note.spans || v_last) w
                    where w.ready_at > '-infinity' order by w.priority, w.ready_at desc, w.id desc));
                perform set_config('pyworker.claim_note', v_note::text, false);
            end if;
            exit;
        end if;
        if v_note.spans is not null then -- perhaps there are some before
            v_note := null;
            continue;
        end if;
        -- This worker will wait, so from now on adds have to notify. An add that looked just before this mark was set is
        -- found by looking once more.
        v_armed_ms := (extract(epoch from clock_timestamp()) * 1000)::bigint;
        exit when (select a.last_value from armed_until a) > v_armed_ms + 2500;
        perform setval('armed_until', v_armed_ms + 5000);
    end loop;
end;
$$;
comment on function claim_jobs(bigint, integer, text[], text[], text[]) is
    'Claims up to max_jobs available jobs for a worker and returns them in the order they are to run: by priority, run_at, id. Each comes '
    'with its run, the fencing token that every later word about it must carry. task_identifiers, queue_names: only these; null means '
    'all, an empty array none; ''default'' stands for jobs without a queue. forbidden_flags: not jobs with any of these flags '
    '(Graphile Worker). A job with delivery at_most_once is only reserved: call start_job before its handler. One with crashes above 0 '
    'may have ended its process before: run it alone. A claim that returns fewer than max_jobs has arranged for a NOTIFY on the channel named like the schema '
    'for at least 2.5 seconds: LISTEN there, and claim again by then. Errors: PW004 when the worker is unknown or was declared '
    'dead; PW001. With synchronous_commit off (for a transaction that does nothing else) a claim does not wait for the disk, unless its '
    'jobs take turns: a crash of the server may then forget it, and its jobs run again.';

create or replace function seconds_until_due() returns double precision
    language plpgsql security definer set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
as $$
declare
    v_now double precision := extract(epoch from clock_timestamp());
    v_silenced double precision := v_now - pg_sequence_last_value('silenced_at'::regclass) / 1000.0;
    v_notified double precision := v_now - pg_sequence_last_value('notified_at'::regclass) / 1000.0;
begin
    return least(
        (select greatest(extract(epoch from j.due_at - clock()), 0)
         from live_jobs j where j.due_at is not null order by j.due_at, j.id limit 1),
        -- Twice as long each time: after the last add that kept silent (_wake_workers), and after the last notification where a wake-up
        -- was left, as somebody had that lane in hand.
        case when v_silenced < 2 then greatest(v_silenced, 0.02) end,
        case when v_notified < 2 and exists (select from wakeups) then greatest(v_notified, 0.02) end);
end;
$$;
comment on function seconds_until_due() is
    'Seconds after which a worker that found nothing should claim again, notified or not: when the next scheduled or retryable job falls '
    'due (0 if one is overdue), and some moments after many were added at once, as not each of these is notified of, or after an end in a queue that '
    'somebody else had in hand. Null if there is no such reason.';
