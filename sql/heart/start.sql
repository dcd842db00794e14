-- heart/start: what a worker calls while a handler runs: start_job and once, for effects that must not
-- happen twice; set_progress.

-- Makes the commit of this transaction wait for the disk, so that a crash cannot undo it. Leaves a
-- setting that waits for more (remote_apply) as it is.
create or replace function _commit_durably() returns text
    language sql volatile
    return case when current_setting('synchronous_commit') not in ('on', 'remote_apply')
                then set_config('synchronous_commit', 'on', true) end;

create or replace function start_job(job_id bigint, run bigint, delivery text default null) returns boolean
    language plpgsql security definer set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_now constant timestamptz := clock();
begin
    if start_job.delivery not in ('at_least_once', 'at_most_once') then
        raise exception 'start_job: delivery must be at_least_once or at_most_once, got %',
            quote_literal(left(start_job.delivery, 140)) using errcode = 'PW001';
    end if;
    perform _commit_durably();
    update live_jobs j
    set started_at = v_now,
        delivery = case when start_job.delivery = 'at_most_once' then 'at_most_once' else j.delivery end
    where j.id = start_job.job_id and j.run = start_job.run and j.state = 'running' and j.started_at is null
      and j.superseded is null and j.cancel_requested_at is null
      and exists (select from workers w where w.id = j.worker_id and _is_registered(w));
    return found;
end;
$$;
comment on function start_job(bigint, bigint, text) is
    'Marks that the handler of a job begins. Call it and commit; begin only if it returned true '
    'and the commit was acknowledged. From then on a job with delivery at_most_once is never run '
    'again by itself: if its worker is lost or hands it back, the job ends discarded with the '
    'reason ''lost''; if it fails, it ends discarded, unless fail_jobs reports not_started. '
    'Returns false if the claim was lost, the job was cancelled, or it was started before. You '
    'may call it for a job with delivery at_least_once, too; that changes nothing for the job. '
    'delivery: what the worker''s code says of the task. With ''at_most_once'' the job has that delivery '
    'from now on. Errors: PW001.';

-- True once for each mark.
create or replace function _once(mark text) returns boolean
    language plpgsql set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_now constant timestamptz := clock();
begin
    perform _commit_durably();
    insert into once_keys (key, at) values (mark, v_now) on conflict do nothing;
    return found;
end;
$$;

create or replace function once(key text) returns boolean
    language plpgsql security definer set search_path from current set enable_seqscan = off set jit = off
as $$
begin
    if once.key is null or once.key = '' or length(once.key) > 512 then
        raise exception 'once: key must be 1 to 512 characters long, got %',
            coalesce(quote_literal(left(once.key, 530)), 'NULL')
            using errcode = 'PW001';
    elsif starts_with(once.key, 'pyworker/') then
        raise exception 'once: key must not begin with pyworker/, as the marks of jobs do, got %',
            quote_literal(once.key)
            using errcode = 'PW001', hint = 'For a step of a job, call once(job_id, run, name).';
    end if;
    return _once(once.key);
end;
$$;
comment on function once(text) is
    'True exactly once for each key, and false from then on (for once_retention, see configure; '
    'by default for ever). It counts from the commit of the transaction that calls it: commit, '
    'then do what must not be done twice. A second caller waits for the first one''s transaction, '
    'and gets true if that one rolled back. Under REPEATABLE READ and SERIALIZABLE it may raise '
    '40001. Errors: PW001. (McKinley: at least once up to this call, at most once after it.)';

create or replace function set_progress(
    job_id bigint, run bigint, progress double precision, message text default null)
    returns void
    language plpgsql security definer set search_path from current set enable_seqscan = off set jit = off
as $$
declare
    v_now constant timestamptz := clock();
begin
    if (set_progress.progress between 0 and 1) is not true then
        raise exception 'set_progress: progress must be from 0 to 1, got %',
            coalesce(set_progress.progress::text, 'NULL') using errcode = 'PW001';
    elsif length(message) > 1000 then
        raise exception 'set_progress: message must be at most 1000 characters long, got %', length(message)
            using errcode = 'PW001';
    end if;
    -- Without a lock: a run that ends at this moment leaves a row that belongs to its run all the same.
    if not exists (select from live_jobs j
                   where j.id = set_progress.job_id and j.run = set_progress.run and j.state = 'running') then
        raise exception 'set_progress: job % is not held by run % any more', coalesce(job_id::text, 'NULL'),
            coalesce(run::text, 'NULL')
            using errcode = 'PW002', hint = 'The claim was lost: stop.';
    end if;
    perform nextval('coordination_used') where not _coordination_is_used();
    insert into progress as p (job_id, run, progress, message, at)
    values (set_progress.job_id, set_progress.run, set_progress.progress, set_progress.message, v_now)
    on conflict on constraint progress_pkey do update
    set run = excluded.run, progress = excluded.progress, message = excluded.message, at = excluded.at
    where p.run <= excluded.run;
end;
$$;
comment on function set_progress(bigint, bigint, double precision, text) is
    'Tells how far a running job has come: progress from 0 to 1, and a message of at most 1000 characters '
    'for people. get_job returns them until the next run begins to tell, also in history. Errors: PW001; '
    'PW002 on a stale run.';
