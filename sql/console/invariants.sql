-- console/invariants: what must always hold: _invariants, which finds violations, the check of
-- doctor() that reports them and says what each means, and _repair_jobs.
--
-- Each function _violations_of_… returns one row per violation: the name of the invariant, whose it
-- is (a job's id, a key, a queue, a schedule), and what was found. max_rows: how many rows of each
-- table to read; null reads all.

create or replace function _violations_of_jobs(max_rows bigint)
    returns table (invariant text, subject text, found jsonb)
    language plpgsql stable set search_path from current
as $$
declare
    v_now constant timestamptz := clock();
begin
    return query
    select 'state', j.id::text, to_jsonb(j) - 'payload'
    from (select l.* from live_jobs l limit max_rows) j
    where j.state not in ('scheduled', 'pending', 'available', 'running', 'retryable', 'discarded')
       or (j.state = 'running' or j.state = 'available' and j.parked is null) <> (j.ready_at is not null)
       or (j.state in ('scheduled', 'retryable')) <> (j.due_at is not null and j.parked is null)
       or (j.state = 'pending') <> (coalesce(j.parked, 'queue') <> 'queue')
       or j.parked not in ('queue', 'sequence', 'next', 'unmet', 'signal')
       or (j.parked = 'queue' and (j.queue_name is null or j.state <> 'available'))
       -- A job of a sequence is its head unless it is pending or discarded.
       or (j.sequence_head is true) <> (j.sequence_key is not null and j.state <> 'discarded'
                                        and coalesce(j.parked, 'queue') in ('queue', 'signal'))
       or (j.state = 'running') <> (j.worker_id is not null)
       or num_nonnulls(j.slot, j.pace, j.turn) > 0 and (j.ready_at is null or j.queue_name is null)
       or (j.state = 'discarded') <> (j.expires_at is not null)
       or (j.state = 'discarded') <> (j.finished_at is not null)
       or (j.state = 'running') <> (j.claimed_at is not null)
       or j.start_by is not null and j.state in ('running', 'discarded')
       or j.ready_at < j.run_at
       or j.ready_at is null and j.parked is null and j.due_at <> j.run_at
       or (j.superseded is not null and (j.state <> 'running' or j.job_key is not null))
       or j.attempts < 0
    union all
    select 'history', f.id::text, to_jsonb(f) - 'payload'
    from (select h.* from finished_jobs h limit max_rows) f
    where f.state not in ('completed', 'cancelled') or f.finished_at is null or f.expires_at is null
       or f.ready_at is not null or f.due_at is not null or f.parked is not null
       or f.state = 'completed' and f.run = 0 and f.reason is distinct from 'completed by hand'
    union all
    select 'one place', j.id::text, null
    from (select l.id from live_jobs l limit max_rows) j
    join (select h.id from finished_jobs h limit max_rows) f on f.id = j.id
    union all
    select 'I5', j.id::text, to_jsonb(j.started_at)
    from (select l.* from live_jobs l limit max_rows) j
    where j.started_at is not null and j.state not in ('running', 'discarded')
    union all
    select 'I2', j.job_key, to_jsonb(count(*))
    from (select l.job_key from live_jobs l where l.job_key is not null limit max_rows) j
    group by j.job_key having count(*) > 1
    union all
    select 'unique key', j.id::text, null
    from ((select l.id, l.unique_key from live_jobs l where l.unique_key is not null limit max_rows)
          union all (select f.id, f.unique_key from finished_jobs f where f.unique_key is not null
                     limit max_rows)) j
    where not exists (select from unique_keys k where k.unique_key = j.unique_key)
    union all
    select 'I1', j.id::text, to_jsonb(j.worker_id)
    from (select l.* from live_jobs l where l.state = 'running' and l.ready_at is not null limit max_rows) j
    left join workers w on w.id = j.worker_id
    where coalesce(w.dead_at, w.expires_at, j.claimed_at) < v_now - interval '25 seconds'
    union all
    select 'claims', j.id::text, to_jsonb(j.worker_id)
    from (select l.id, l.worker_id from live_jobs l
          where l.state = 'running' and l.ready_at is not null and l.worker_id is not null limit max_rows) j
    where not exists (select from claims c where c.worker_id = j.worker_id and j.id = any (c.job_ids));
end;
$$;

-- Queues and sequences: no limit is exceeded, and what waits though it could run has a request. Of a queue
-- with a rate or turns, a job that was let in and is not claimed brings that request.
create or replace function _violations_of_lanes(max_rows bigint)
    returns table (invariant text, subject text, found jsonb)
    language plpgsql stable set search_path from current
as $$
begin
    return query
    -- The newest settings have let in no more than they allow. Of the jobs that run only those count whose
    -- claim could see these settings.
    select 'I13', n.queue_name, to_jsonb(t.most)
    from (select distinct l.queue_name from live_jobs l
          where l.queue_name is not null and l.ready_at is not null limit max_rows / 10) n
    cross join lateral _queues_of(array[n.queue_name]) q
    cross join lateral (
        select greatest(count(*) filter (where j.slot = q.changed), count(*) filter (
            where j.state = 'running' and exists (
                select from claims c
                where c.worker_id = j.worker_id and j.id = any (c.job_ids)
                  and c.seen > coalesce(q.changed, '0'::xid8)))) as most
        from live_jobs j where j.queue_name = n.queue_name and j.ready_at is not null) t
    where t.most > q.slots
    union all
    select 'stranded queue', j.queue_name, null::jsonb
    from (select distinct l.queue_name
          from (select p.queue_name from live_jobs p where p.parked = 'queue' limit max_rows) l) j
    cross join lateral _queues_of(array[j.queue_name]) q
    where not q.paused
      and not exists (select from promotion_requests w where w.lane = 'queue:' || j.queue_name)
      and not exists (select from promotion_requests w
                      where starts_with(w.lane, 'family:') and starts_with(j.queue_name, substr(w.lane, 8)))
      and (select count(*) from live_jobs r where r.queue_name = j.queue_name and r.ready_at is not null)
          < coalesce(q.slots, 2147483647)
      and not (q.paced and exists (
          select from live_jobs c
          where c.queue_name = j.queue_name and c.ready_at is not null and c.state = 'available'))
    union all
    select 'I3', j.sequence_key, to_jsonb(count(*))
    from (select l.sequence_key from live_jobs l where l.sequence_head limit max_rows) j
    group by j.sequence_key having count(*) > 1
    union all
    select distinct 'stranded sequence', p.sequence_key, null::jsonb
    from (select l.* from live_jobs l where l.parked in ('sequence', 'next') limit max_rows) p
    where not exists (select from live_jobs j where j.sequence_key = p.sequence_key and j.sequence_head)
      and not exists (select from promotion_requests w where w.lane = 'sequence:' || p.sequence_key)
      and (p.parked = 'next'
           or not exists (select from sequence_halts h
                          where h.sequence_key = p.sequence_key and h.job_id < p.id))
    union all
    select 'halt', h.job_id::text, to_jsonb(h.sequence_key)
    from sequence_halts h join live_jobs j on j.id = h.job_id
    where j.state <> 'discarded' or j.sequence_key <> h.sequence_key
    union all
    select 'halt', h.job_id::text, to_jsonb(h.sequence_key)
    from sequence_halts h join (select f.* from finished_jobs f limit max_rows) f on f.id = h.job_id
    where f.state <> 'cancelled' or f.sequence_key <> h.sequence_key;
end;
$$;

-- Jobs that wait for others, or for a signal, and schedules. Of a wait for a signal no signal of its name was
-- sent, unless a request to look at the job stands.
create or replace function _violations_of_waits(max_rows bigint)
    returns table (invariant text, subject text, found jsonb)
    language plpgsql stable set search_path from current
as $$
begin
    return query
    select 'I14', j.id::text, to_jsonb(o.parent_id)
    from (select distinct e.child_id, e.revision
          from (select l.child_id, l.revision from edges l where l.met is null limit max_rows) e) c
    join live_jobs j on j.id = c.child_id and j.revision = c.revision
    cross join lateral _open_edges(j.id, j.revision, 0) o
    where j.parked is distinct from 'unmet' and j.state <> 'discarded'
    union all
    -- It watches no edge, or one that is met, or one after another that is open, but passed over.
    select 'stranded child', j.id::text, to_jsonb(w.parent_id)
    from (select l.* from live_jobs l where l.parked = 'unmet' limit max_rows) j
    left join watches w on w.child_id = j.id and w.revision = j.revision and w.from_id is not null
    where not exists (
        select from _open_edges(j.id, j.revision, w.parent_id) o
        where o.parent_id = w.parent_id and not exists (
            select from _open_edges(j.id, j.revision, 0) p where p.parent_id < _open_from(j.id, j.revision)))
      and not exists (
        select from promotion_requests r
        where r.lane = 'child' and r.job_id = j.id or r.lane = 'parent' and r.job_id = w.parent_id)
    union all
    select 'stranded wait', j.id::text, to_jsonb(w)
    from (select l.* from live_jobs l where l.parked = 'signal' limit max_rows) j
    left join steps w on w.job_id = j.id and w.revision = j.revision and w.run = j.run and w.at is null
    where w.name is null or w.until is distinct from j.due_at
       or (_kept_signal(j.id, j.revision, w.name)).id is not null
          and not exists (
              select from promotion_requests r where r.lane = 'signal' and r.job_id = j.id)
    union all
    select 'I8', t.name, to_jsonb(t.next_at)
    from (select m.* from schedule_entries m limit max_rows) t
    where t.paused <> (t.next_at is null) or t.last_at >= t.next_at;
end;
$$;

-- All violations. doctor() reports them, and every test ends with tests/invariants.sql, which must
-- get none. A session that calls it again and again sets plan_cache_mode: a plan that was made while the
-- tables were empty is far too slow later.
create or replace function _invariants(max_rows bigint default null)
    returns table (invariant text, subject text, found jsonb)
    language plpgsql stable set search_path from current set jit = off
as $$
begin
    return query
    select v.* from _violations_of_jobs(max_rows) v
    union all select v.* from _violations_of_lanes(max_rows) v
    union all select v.* from _violations_of_rates(max_rows) v
    union all select v.* from _violations_of_waits(max_rows) v
    union all select v.* from _violations_of_circles(max_rows) v;
end;
$$;

-- Says what each violation means; in its fix %L stands for the list of those that violate the invariant.
create or replace function _check_invariants()
    returns table (check_name text, severity text, finding text, fix text)
    language plpgsql set search_path from current set plan_cache_mode = force_custom_plan
as $$
begin
    return query
    select 'invariants', 'error', concat(v.name, ': ', m.meaning, _few(v.subjects)),
           _fix(m.fix, v.subjects[:1000]::text)
    from (select i.invariant as name, array_agg(i.subject order by i.subject) as subjects
          from _invariants(250000) i group by i.invariant) v
    left join (values
        ('state', 'the columns of jobs contradict each other: job ', 'select ~._repair_jobs(%L)'),
        ('history', 'finished jobs that cannot have ended like this: job ',
         'update ~.finished_jobs set state = case when state = ''completed'' and run > 0 then state '
         'else ''cancelled'' end, finished_at = coalesce(finished_at, now()), '
         'expires_at = coalesce(expires_at, now()), ready_at = null, due_at = null, parked = null '
         'where id = any (%L)'),
        ('one place', 'jobs that are live and finished at once: job ',
         'delete from ~.finished_jobs where id = any (%L)'),
        ('I5', 'jobs that may run at most once have been started and wait to be run again: job ',
         'select ~._repair_jobs(%L)'),
        ('I2', 'more than one job holds the job_key ',
         'update ~.live_jobs j set job_key = null where j.job_key = any (%L) '
         'and j.id < (select max(k.id) from ~.live_jobs k where k.job_key = j.job_key)'),
        ('unique key', 'jobs whose unique key others may take as well: job ',
         'insert into ~.unique_keys (unique_key) '
         'select j.unique_key from ~.live_jobs j where j.unique_key is not null union '
         'select f.unique_key from ~.finished_jobs f where f.unique_key is not null on conflict do nothing'),
        ('I1', 'jobs are held by workers that have been dead for more than 25 seconds: job ',
         'select * from ~.maintain()'),
        ('claims', 'running jobs are missing from the claims of their workers, '
                   'whose end would not free them: job ',
         'select ~._repair_jobs(%L)'),
        ('I13', 'more jobs than the limit allows are in flight in queue ',
         'no other job of these queues starts before enough of them have ended; cancel_job() ends one'),
        ('stranded queue', 'jobs wait and nothing will call them, in queue ',
         E'insert into ~.promotion_requests (lane) select ''queue:'' || unnest(%L::text[]);\n'
         'select ~.promote_jobs()'),
        ('I3', 'more than one job is at the head of the sequence ',
         'select ~._repair_jobs(array(select j.id from ~.live_jobs j '
         'where j.sequence_key = any (%L) and j.sequence_head))'),
        ('stranded sequence', 'jobs wait and nothing will call them, in sequence ',
         E'insert into ~.promotion_requests (lane) select ''sequence:'' || unnest(%L::text[]);\n'
         'select ~.promote_jobs()'),
        ('halt', 'sequences are halted by jobs that have not ended: job ',
         'delete from ~.sequence_halts where job_id = any (%L)'),
        ('I14', 'jobs may run although jobs that they depend on have not ended as they must: job ',
         E'delete from ~.edges e using ~.live_jobs j, ~._open_edges(j.id, j.revision, 0) o where j.state = '
         '''running'' and j.id = any (%1$L) and e.child_id = j.id and e.parent_id = o.parent_id;\n'
         'insert into ~.watches select j.id, j.revision, min(o.parent_id), min(o.parent_id) '
         'from ~.live_jobs j, ~._open_edges(j.id, j.revision, 0) o where j.id = any (%1$L) group by 1, 2;\n'
         'select ~._repair_jobs(%1$L)'),
        ('stranded child', 'jobs that depend on others wait and nothing will call them: job ',
         E'with d as (delete from ~.watches where child_id = any (%L))\n'
         'insert into ~.promotion_requests (lane, job_id) select ''child'', unnest(%1$L::bigint[]);\n'
         'select ~.promote_jobs()'),
        ('circle', 'jobs wait for themselves, over other jobs: job ',
         'select ~.cancel_job((%L::bigint[])[1]) -- or add one again by its key, with other depends_on'),
        ('stranded wait', 'jobs whose signal was sent wait and nothing will call them: job ',
         E'insert into ~.promotion_requests (lane, job_id) select ''signal'', unnest(%L::bigint[]);\n'
         'select ~.promote_jobs()'),
        ('I8', 'schedules do not know their next tick: ',
         'select t.name from (select t.name from ~.schedule_entries t where t.name = any (%L)) t '
         'cross join lateral ~.pause_schedule(t.name) cross join lateral ~.resume_schedule(t.name)')
    ) m(invariant, meaning, fix) on m.invariant = v.name
    order by v.name;
end;
$$;

-- Sets the other columns of jobs to what their state and run_at require. A job that runs on a
-- registered worker keeps running.
create or replace function _repair_jobs(job_ids bigint[]) returns void
    language plpgsql set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_now timestamptz := clock();
    v_job live_jobs;
    v_parked text; -- how it waits for other jobs
    v_kept text; -- the state that it keeps
begin
    for v_job in
        select j.* from live_jobs j where j.id = any (job_ids)
        order by j.state = 'running', j.id desc for update
    loop
        v_parked := coalesce(_unmet(v_job), _held(v_job.sequence_key, v_job.sequence_head and not exists (
            select from live_jobs j
            where j.sequence_key = v_job.sequence_key and j.sequence_head and j.id <> v_job.id)));
        if v_job.state = 'running'
           and exists (select from workers w where w.id = v_job.worker_id and _is_registered(w)) then
            v_kept := 'running';
            v_parked := null;
        else
            v_kept := case when v_job.state = 'discarded' or _must_not_rerun(v_job) then 'discarded' end;
        end if;
        update live_jobs j
        set state = coalesce(v_kept, p.state), parked = p.parked, due_at = p.due_at,
            ready_at = case when v_kept = 'running' then coalesce(j.ready_at, j.run_at) else p.ready_at end,
            slot = null, pace = null, turn = null,
            sequence_head = case when j.sequence_key is not null and v_kept is distinct from 'discarded'
                                      and v_parked is null then true end,
            worker_id = case when v_kept = 'running' then j.worker_id end,
            claimed_at = case when v_kept = 'running' then coalesce(j.claimed_at, v_now) end,
            job_key = case when v_kept = 'running' and j.superseded is not null then null else j.job_key end,
            superseded = case when v_kept = 'running' then j.superseded end,
            attempts = greatest(j.attempts, 0), run = greatest(j.run, j.attempts),
            finished_at = case when v_kept = 'discarded' then coalesce(j.finished_at, v_now) end,
            start_by = case when v_kept is null then j.start_by end,
            expires_at = case when v_kept = 'discarded'
                              then coalesce(j.expires_at, v_now + s.discarded_retention) end,
            reason = case when v_kept = 'discarded'
                          then coalesce(j.reason, case when _must_not_rerun(j) then 'lost' end) end,
            updated_at = v_now
        from settings s
        left join _place(v_job.run_at, v_now, v_parked, _must_wait(v_job.queue_name),
                         case when v_job.state = 'retryable' then 'retryable' else 'scheduled' end) p
            on v_kept is null
        where j.id = v_job.id;
        insert into claims select v_job.worker_id, v_job.run, array[v_job.id] where v_kept = 'running';
        insert into promotion_requests (lane) select 'queue:' || v_job.queue_name
        where v_job.queue_name is not null;
        insert into promotion_requests (lane) select 'sequence:' || v_job.sequence_key
        where v_job.sequence_key is not null;
        insert into promotion_requests (lane, job_id) select 'child', v_job.id where v_parked = 'unmet';
    end loop;
    perform _notify_workers();
end;
$$;
