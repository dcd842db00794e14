-- 45_start: from the claim to the first effect. What a worker says before it does what must not be done twice.

-- A mark that a crash must not undo: whatever the session has set, its commit waits for the disk (and is never made weaker).
create or replace function _commit_durably() returns void
    language plpgsql set search_path from current
as $$
begin
    if current_setting('synchronous_commit') not in ('on', 'remote_apply') then
        perform set_config('synchronous_commit', 'on', true);
    end if;
end;
$$;

create or replace function start_job(job_id bigint, run bigint) returns boolean
    language plpgsql security definer set search_path from current set enable_seqscan = off set jit = off
as $$
begin
    perform _commit_durably();
    update live_jobs j set started_at = clock()
    where j.id = start_job.job_id and j.run = start_job.run and j.state = 'running' and j.started_at is null
      and j.superseded is null and j.cancel_requested_at is null
      and exists (select from workers w where w.id = j.worker_id and w.dead_at is null);
    return found;
end;
$$;
comment on function start_job(bigint, bigint) is
    'The mark that the handler of a job begins: call it, commit, and begin only if it returned true and the commit was acknowledged. From then '
    'on a job with delivery at_most_once is never run again by itself: if its worker is lost, or hands it back, it ends discarded with the '
    'reason ''lost''; if it fails, discarded, unless fail_jobs says not_started. False: the claim was lost, the job was called off, or it '
    'has been started before. A job with delivery at_least_once may be started as well; it changes nothing for it.';

create or replace function once(key text) returns boolean
    language plpgsql security definer set search_path from current set enable_seqscan = off set jit = off
as $$
#variable_conflict use_column
begin
    if once.key is null or once.key = '' or length(once.key) > 512 then
        raise exception 'once: key must be 1 to 512 characters long, got %', coalesce(quote_literal(left(once.key, 530)), 'NULL')
            using errcode = 'PW001';
    end if;
    perform _commit_durably();
    insert into once_keys (key, at) values (once.key, clock()) on conflict do nothing;
    return found;
end;
$$;
comment on function once(text) is
    'True exactly once for a key; false ever after (for once_retention, see configure; by default for good). It counts from the commit of '
    'the transaction that calls it: commit, then do what must not be done twice. A second caller waits for the first one''s transaction, and '
    'gets true if that rolled back. Under REPEATABLE READ and SERIALIZABLE it may raise 40001. Errors: PW001. (McKinley: at least once up to '
    'this call, at most once after it.)';

create or replace function cancelled_runs(job_ids bigint[], runs bigint[]) returns bigint[]
    language plpgsql stable security definer set search_path from current set enable_seqscan = off set jit = off
as $$
begin
    return array(
        select i.id from unnest(job_ids, runs) i(id, run)
        where not exists (
            select from live_jobs j
            where j.id = i.id and j.run = i.run and j.state = 'running' and j.cancel_requested_at is null));
end;
$$;
comment on function cancelled_runs(bigint[], bigint[]) is
    'Which of these runs have been called off: cancel_job asked for it, or the claim is lost. A worker asks when it is notified (''cancel''), and '
    'now and then, and tells the handlers.';

create or replace function task_timeouts(task_identifiers text[]) returns table (identifier text, timeout interval)
    language plpgsql stable security definer set search_path from current
as $$
begin
    return query select t.identifier, t.timeout from tasks t where t.identifier = any (task_identifiers) and t.timeout is not null;
end;
$$;
comment on function task_timeouts(text[]) is 'How long the handlers of these tasks may run, where define_task has said so.';
