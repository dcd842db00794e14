-- 01_notify: when an add notifies workers, and when a worker polls without a notification.
--
-- NOTIFY holds a cluster-wide lock through the commit's fsync, so an add notifies only while a
-- worker is waiting. Sequences serve as the registers for that (migrations/0001_init.sql). A claim
-- is full if it returns as many jobs as its worker asked for, else it is short.
--
-- * A short claim sets listening_until to 5 s from now: its worker is waiting, so adds notify.
-- * A short claim that found many jobs, or that learns of too many notifications for so many workers
--   (workers/fleet), sets polling_until as well. Until then adds do not notify, and each waiting worker
--   polls; the claim that begins such a period notifies the workers. The first short claim that finds
--   few jobs after polling_until ends the period.
-- * A full claim notifies the other workers, since its own worker may be busy for long. When the
--   session's next full claim knows that this notification was committed, it sets
--   not_listening_until, which invalidates every listening_until set before the notification. A
--   worker that was waiting then has been notified, and sets listening_until again with its next
--   short claim.
--
-- An add may read a register before a claim sets it, not notify, and commit afterwards. So a claim
-- that starts to listen while adds did not notify, or that ends a polling period, records in
-- silent_before which transactions there are. While one of them is open, workers poll every 20 to
-- 250 ms. A worker asks for these transactions first, and then looks once more whether a job is left
-- (_look_around): so a job that it does not see belongs to a transaction that it has seen open.

-- True if a worker is waiting for a notification. This uses the real clock, not clock(), because
-- workers wait in real time.
create or replace function _worker_is_listening() returns boolean
    language sql volatile
    return coalesce(
        pg_sequence_last_value('listening_until'::regclass) > greatest(
            date_part('epoch', clock_timestamp()) * 1000,
            pg_sequence_last_value('not_listening_until'::regclass)), false);

-- Notifies the workers, if one is waiting and they are not polling. In a turn with reports
-- (pyworker.turn), the notification waits: the turn sends it when it has claimed, if it has not taken
-- the jobs itself. False if there was nothing to do.
create or replace function _notify_workers() returns boolean
    language plpgsql set search_path from current
as $$
begin
    if current_setting('pyworker.turn', true) <> '' then
        return set_config('pyworker.turn', case current_setting('pyworker.turn')
                                           when 'locked' then 'locked' else 'notify' end, true) <> '';
    elsif _worker_is_listening() and not _worker_is_polling() then
        perform _send_notification();
        return true;
    end if;
    return false;
end;
$$;

-- The same after the end of a sequence's head whose next job another session has locked. The turn sends this
-- notification in any case, since its worker may have no room for long, or close.
create or replace function _notify_of_locked() returns boolean
    language plpgsql set search_path from current
as $$
begin
    if current_setting('pyworker.turn', true) <> '' then
        return set_config('pyworker.turn', 'locked', true) <> '';
    end if;
    return _notify_workers();
end;
$$;

-- `set pyworker.notify = off` is for callers that PREPARE TRANSACTION: it fails after a NOTIFY.
create or replace function _send_notification() returns void
    language plpgsql set search_path from current
as $$
begin
    if _notify('') then
        perform nextval('notifications');
    end if;
end;
$$;

-- The same for any payload, on the channel named like the schema, with `suffix` behind it. False if
-- notifications are switched off.
create or replace function _notify(payload text, suffix text default '') returns boolean
    language plpgsql set search_path from current
as $$
begin
    if current_setting('pyworker.notify', true) = 'off' then
        return false;
    end if;
    perform pg_notify(current_schema() || suffix, payload);
    return true;
end;
$$;

-- True while waiting workers poll.
create or replace function _worker_is_polling() returns boolean
    language sql volatile
    return coalesce(
        pg_sequence_last_value('polling_until'::regclass) > date_part('epoch', clock_timestamp()) * 1000,
        false);

-- The full number, with its epoch, of a transaction that is open or was open a moment ago.
create or replace function _full_xid(id xid) returns bigint
    language sql stable
    return (select x.near + ((id::text::bigint - x.near + 6442450944) & 4294967295) - 2147483648
            from (select pg_snapshot_xmax(pg_current_snapshot())::text::bigint as near) x);

-- The highest number of an open transaction; assigns one to this transaction if it has none.
create or replace function _newest_transaction() returns bigint
    language plpgsql set search_path from current
as $$
begin
    return greatest(
        pg_current_xact_id()::text::bigint,
        (select max(_full_xid(l.transactionid)) from pg_locks l
         where l.locktype = 'transactionid' and l.granted));
end;
$$;

-- Records that each transaction that is open now may have added jobs without a notification.
create or replace function _mark_unnotified_adds() returns void
    language plpgsql set search_path from current
as $$
begin
    perform setval('silent_before',
                   greatest((select s.last_value from silent_before s), _newest_transaction() + 1)),
            setval('silent_at', (extract(epoch from clock_timestamp()) * 1000)::bigint);
end;
$$;

-- True while another session of this database has one of those transactions open. This session may
-- have a snapshot from before it ended: then true as well.
create or replace function _unnotified_adds_are_open() returns boolean
    language plpgsql set search_path from current
as $$
begin
    return current_setting('transaction_isolation') <> 'read committed' or exists (
        select from pg_locks l
        join pg_stat_activity a on a.pid = l.pid and a.datname = current_database()
        where l.locktype = 'transactionid' and l.granted and l.pid <> pg_backend_pid()
          and _full_xid(l.transactionid) < (select s.last_value from silent_before s));
end;
$$;

-- After a short claim of `claimed` jobs: its worker is waiting from now on. True if the worker must
-- claim once more, since adds did not notify until now.
create or replace function _start_listening(claimed integer) returns boolean
    language plpgsql set search_path from current
as $$
declare
    v_ms constant bigint := date_part('epoch', clock_timestamp()) * 1000;
    v_fleet constant integer := _fleet_size();
    v_ended constant bigint := coalesce(pg_sequence_last_value('not_listening_until'::regclass), 0);
    v_polling constant bigint := coalesce(pg_sequence_last_value('polling_until'::regclass), 0);
    -- Jobs a claim: from here on polling costs less than notifications.
    v_many constant integer := case when v_fleet > 1 and v_polling > v_ms then 1 else 4 end;
    v_until bigint;
    v_silent boolean; -- adds did not notify until now
begin
    v_silent := coalesce(pg_sequence_last_value('listening_until'::regclass), 0) <= greatest(v_ms, v_ended);
    v_until := setval('listening_until', greatest(v_ms + 5000, v_ended + 1));
    if claimed >= v_many or v_fleet > 1 and v_polling <= v_ms and _notified_often(v_fleet) then
        perform setval('polling_until', v_ms + _polling_ms(v_fleet));
        if v_polling <= v_ms then
            perform _send_notification(); -- each waiting worker polls from now on
        end if;
    elsif v_polling between 1 and v_ms then
        perform setval('polling_until', 0);
        v_silent := true;
    end if;
    if v_silent then
        perform _mark_unnotified_adds();
    end if;
    return v_silent;
end;
$$;

-- After a full claim: its worker claims again without a notification, but may be busy until then.
create or replace function _stop_listening() returns void
    language plpgsql set search_path from current
as $$
declare
    v_ms constant bigint := extract(epoch from clock_timestamp()) * 1000;
    -- When this session last notified, in which transaction, as this one may still roll back, and in which
    -- schema, as it may work in two.
    v_last constant text[] := string_to_array(current_setting('pyworker.notified_at', true), ' ');
    v_schema constant text := 'live_jobs'::regclass::oid;
    v_notified constant bigint := case
        when v_last[2] <> pg_current_xact_id()::text and v_last[3] = v_schema then v_last[1]::bigint end;
begin
    if _worker_is_polling() then
        if _fleet_size() > 1 then
            perform setval('polling_until', v_ms + _polling_ms(_fleet_size()));
        end if;
    elsif current_setting('pyworker.notify', true) = 'off' then
        return;
    elsif pg_sequence_last_value('listening_until'::regclass) < v_notified + 5000 then
        perform setval('not_listening_until', v_notified + 4999);
    elsif v_notified is null or v_notified < v_ms - 1000 then
        perform _send_notification();
        perform set_config(
            'pyworker.notified_at', concat_ws(' ', v_ms, pg_current_xact_id(), v_schema), false);
    end if;
end;
$$;

create or replace function seconds_until_due(
    task_identifiers text[] default null, queue_names text[] default null,
    forbidden_flags text[] default null)
    returns double precision
    language plpgsql security definer set search_path from current
as $$
begin
    return (_look_around(null, false, task_identifiers, queue_names, forbidden_flags)).due_in_s;
end;
$$;
comment on function seconds_until_due(text[], text[], text[]) is
    'Seconds after which a worker that got fewer jobs than it asked for should claim again, '
    'notified or not. The least of: the time until the next scheduled or retryable job is due (0 if '
    'one is overdue; 0.02 to 0.25 if it was locked); 0.005 while many jobs come in; 0.02 to 0.25 while a '
    'transaction is open that may have added jobs without a notification, or that has locked a '
    'queue, a sequence or a job whose turn it is; 0.25 if a job is available that the claim did not '
    'get, since another session had it locked; up to 2 while the session skips the beginning of an '
    'index that it has read. Null if none applies: then claim again within 2.5 seconds. '
    'task_identifiers, queue_names, forbidden_flags: as in the claim.';

-- What is left after a claim that got fewer jobs than its worker asked for. If it has found all that
-- there was, and no transaction that was open then has added jobs silently, there is no need to look.
create or replace function _what_is_left(
    claim _claim, worker_id bigint, asks_ready boolean, task_identifiers text[], queue_names text[],
    forbidden_flags text[], out what _left)
    language plpgsql set search_path from current
as $$
begin
    if claim.rest or claim.due_at is not null and claim.due_at <= clock()
       or pg_sequence_last_value('silent_before'::regclass) > claim.seen::text::bigint then
        what := _look_around(worker_id, asks_ready, task_identifiers, queue_names, forbidden_flags);
    else
        what.due_in_s := least(
            case when claim.due_at is not null
                 then greatest(date_part('epoch', claim.due_at - clock()), 0) end,
            case when _worker_is_polling() then _polls_in(worker_id) end);
    end if;
end;
$$;

-- `due_in_s`: see seconds_until_due. `ready`, only if `asks_ready`: true if a job may be ready that the
-- claim did not take: it belongs to other workers, or another session has it locked. This looks at the
-- first 100 only.
create or replace function _look_around(
    worker_id bigint, asks_ready boolean, task_identifiers text[], queue_names text[],
    forbidden_flags text[], out what _left)
    language plpgsql set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off
    set enable_sort = off set enable_incremental_sort = off
    set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_now constant timestamptz := clock();
    v_walks constant boolean := _walks_are_kept();
    v_polls_in constant double precision := case when _worker_is_polling() then _polls_in(worker_id) end;
    v_due_from constant timestamptz := case when v_walks then _walked_to('due') else '-infinity' end;
    v_requests_from constant bigint := case when v_walks then _walked_requests() else 0 end;
    -- Before the statement below takes its snapshot: see the head of this file.
    v_unnotified constant boolean :=
        case when pg_sequence_last_value('silent_before'::regclass)
                  > pg_snapshot_xmin(pg_current_snapshot())::text::bigint
             then _unnotified_adds_are_open() else false end;
begin
    select least(
            -- If it is overdue and was locked (xmax), the promotion passed over it: after as long again.
            (select case when j.due_at > v_now then greatest(extract(epoch from j.due_at - v_now), 0)
                         when j.xmax::text = '0' then 0 else _growing(j.due_at) end
             from live_jobs j where j.due_at > v_due_from order by j.due_at, j.id limit 1),
            v_polls_in,
            case when v_unnotified then
                _growing((select to_timestamp(s.last_value / 1000.0) from silent_at s)) end,
            -- A promotion left this request: another session has the queue, sequence or job locked.
            (select _growing(w.at) from promotion_requests w
             where w.id > v_requests_from and w.after is null order by w.id limit 1),
            (select 0.25 from promotion_requests w -- some jobs of its queue are locked
             where w.id > v_requests_from and w.after = '1' order by w.after, w.id limit 1),
            -- The claim did not get this job: it was locked, or was committed a moment ago.
            (select 0.25 from live_jobs j
             where j.ready_at is not null and j.state = 'available' and not v_walks
               and (task_identifiers is null or j.task_identifier = any (task_identifiers))
               and (queue_names is null or coalesce(j.queue_name, 'default') = any (queue_names))
               and (forbidden_flags is null or j.flags is null or not j.flags ?| forbidden_flags)
             order by j.priority, j.ready_at, j.id limit 1),
            case when v_walks then _seconds_until_full_walk() end),
        v_walks or (
            select bool_or(r.state = 'available') or count(*) = 100
            from (select j.state from live_jobs j where asks_ready and j.ready_at is not null
                  order by j.priority, j.ready_at, j.id limit 100) r)
    into what.due_in_s, what.ready;
end;
$$;

-- Seconds until the next poll for an open transaction: as long as it has been open since then,
-- between 0.02 and 0.25. So workers poll often for a short transaction, and seldom for a long one.
create or replace function _growing(since timestamptz) returns double precision
    language sql volatile
    return least(greatest(extract(epoch from clock_timestamp() - since), 0.02), 0.25);
