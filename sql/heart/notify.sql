-- heart/notify: when an add notifies workers, and when a worker looks without a notification.
--
-- NOTIFY holds a cluster-wide lock through the commit's fsync, so an add notifies only while a worker
-- waits. Four sequences are the registers for that (migrations/0001_init.sql). A claim is full if it
-- returns as many jobs as its worker asked for, else it is partial.
--
-- * listening_until: adds notify until then. A waiting worker claims again within 1 to 5 s (_idle_wait). A
--   partial claim writes the register whenever it would not outlive that wait, a second longer. A busy
--   worker does not write it, and adds fall silent by themselves. Nor does a partial claim that found four
--   jobs or more: its worker comes again in 5 ms.
-- * polled_until: a notification wakes all workers of a fleet, for one of them. So a worker of a fleet that
--   got jobs in a partial claim polls for a while, every 5 ms, and writes here until when, and who it is.
--   Until then adds do not notify. 0 if all adds notify: a time in the past is of a worker that has died, or
--   has no room for more.
-- * fleet_size: how many workers there are. Each sweep writes it.
-- * silent_before: an add may read the registers before a claim writes them, not notify, and commit
--   afterwards. So a claim that finds them out of date writes them, takes a transaction id, looks once more,
--   and writes that id here. While an older transaction is open, waiting workers look again after 5 to
--   250 ms. A transaction that has an id already, since it has reported or claimed, leaves this to the next
--   turn, in 5 ms: a younger one may have added silently.

-- True if a worker polls for all.
create or replace function _a_worker_polls() returns boolean
    language sql volatile
    return coalesce(
        (pg_sequence_last_value('polled_until'::regclass) >> 16)
        - date_part('epoch', clock_timestamp()) * 1000 between 0 and 1000, false);

-- True if a worker waits for a notification, and none polls. This uses the real clock, not clock(), because
-- workers wait in real time. What lies further ahead was written before the clock was set back.
create or replace function _worker_is_listening() returns boolean
    language sql volatile
    return coalesce(
        pg_sequence_last_value('listening_until'::regclass) - date_part('epoch', clock_timestamp()) * 1000
        between 0 and 7000, false) and not _a_worker_polls();

-- True if it is this worker that polls, or was the last to.
create or replace function _polled_last(worker_id bigint) returns boolean
    language sql volatile
    return coalesce(pg_sequence_last_value('polled_until'::regclass) & 65535 = worker_id & 65535, false);

-- How many workers are registered, at the time of the last sweep.
create or replace function _fleet_size() returns bigint
    language sql volatile
    return coalesce(pg_sequence_last_value('fleet_size'::regclass), 0);

-- Seconds until a worker looks again that has nothing to do and is not notified: the workers of a fleet look
-- ten times a second in all, but each of them once in 1 to 5 s.
create or replace function _idle_wait() returns double precision
    language sql volatile
    return least(greatest(_fleet_size() / 10.0, 1), 5);

-- True if this worker polled. From now on adds notify; the caller notifies the others, which look for those
-- that did not.
create or replace function _stop_polling(worker_id bigint) returns boolean
    language sql volatile
    return case when _a_worker_polls() and _polled_last(worker_id) then setval('polled_until', 1) = 1
                else false end;

-- After a partial claim that got so many jobs: true if its worker polls, and comes again in 5 ms. It polls
-- for a millisecond per worker, at most 100, after it got a job: that costs no more than to wake them all. Of
-- several workers that poll, all but the last that got a job stop when they get nothing. So does one that
-- leaves jobs for other workers, from this `place` on.
create or replace function _polls(
    worker_id bigint, got integer, task_identifiers text[], queue_names text[], forbidden_flags text[],
    place _floor) returns boolean
    language plpgsql set search_path from current
as $$
declare
    v_ms constant bigint := date_part('epoch', clock_timestamp()) * 1000;
begin
    if got > 0 and _fleet_size() < 5 or got = 0 and not _polled_last(worker_id) then
        return false;
    elsif place.id is not null then
        perform from (
            select (task_identifiers is null or l.task_identifier = any (task_identifiers))
                   and (queue_names is null or coalesce(l.queue_name, 'default') = any (queue_names))
                   and (forbidden_flags is null or l.flags is null or not l.flags ?| forbidden_flags) as taken
            from live_jobs l where l.ready_at is not null and l.state = 'available'
              and (l.priority, l.ready_at, l.id) > (place.priority, place.at, place.id)
            order by l.priority, l.ready_at, l.id limit 100) j
        where not j.taken;
        if found then
            perform _notify_workers() where _stop_polling(worker_id);
            return false;
        end if;
    end if;
    if got > 0 then
        perform setval('polled_until', (v_ms + least(_fleet_size(), 100) << 16) + (worker_id & 65535));
    end if;
    return true;
end;
$$;

-- Notifies on the channel named like the schema, with `suffix` behind it. False if notifications are
-- switched off: `set pyworker.notify = off` is for callers that PREPARE TRANSACTION, which fails after a
-- NOTIFY.
create or replace function _notify(payload text, suffix text default '') returns boolean
    language sql volatile
    return case when current_setting('pyworker.notify', true) = 'off' then false
                else pg_notify(current_schema() || suffix, payload) is not null end;

-- Notifies the workers, if one waits.
create or replace function _notify_workers() returns boolean
    language sql volatile
    return case when _worker_is_listening() then _notify('') else false end;

-- After a partial claim: its worker waits from now on. True if it must look once more, since adds did not
-- notify until now. A transaction that has an id may not do so: its worker
-- comes again in 5 ms (_again_in).
create or replace function _start_listening() returns boolean
    language plpgsql set search_path from current
as $$
declare
    v_ms constant bigint := date_part('epoch', clock_timestamp()) * 1000;
    v_left constant bigint := coalesce(pg_sequence_last_value('listening_until'::regclass), 0) - v_ms;
    v_wait constant bigint := _idle_wait() * 1000;
    v_silent constant boolean := not _adds_are_heard();
    v_own bigint;
begin
    if v_silent and pg_current_xact_id_if_assigned() is not null then
        return false;
    end if;
    if v_left not between v_wait + 100 and 7000 then
        perform setval('listening_until', v_ms + v_wait + 1000);
    end if;
    if not v_silent then
        return false;
    end if;
    perform setval('polled_until', 0);
    v_own := pg_current_xact_id()::text::bigint;
    if coalesce(pg_sequence_last_value('silent_before'::regclass), 0) < v_own then
        perform setval('silent_before', v_own);
    end if;
    return true;
end;
$$;

-- True if each add is heard of: it notifies workers that listen, or one polls.
create or replace function _adds_are_heard() returns boolean
    language sql volatile
    return coalesce(
        pg_sequence_last_value('listening_until'::regclass) - date_part('epoch', clock_timestamp()) * 1000
        between 0 and 7000, false)
        and (coalesce(pg_sequence_last_value('polled_until'::regclass), 0) = 0 or _a_worker_polls());

-- True if a look did not see a transaction that may have added jobs without a notification; `xmin`: of its
-- snapshot.
create or replace function _silent_adds_were_open(xmin xid8) returns boolean
    language sql volatile
    return coalesce(xmin::text::bigint < pg_sequence_last_value('silent_before'::regclass), false);

-- Seconds until this session looks again for what it could not have: 0.005, then as long as it has been
-- looking, at most 0.25. So it looks often for a short transaction, and seldom for a long one.
create or replace function _backoff(name text) returns double precision
    language plpgsql set search_path from current
as $$
declare
    v_setting constant text := 'pyworker.backoff_' || name;
    v_ms constant bigint := date_part('epoch', clock_timestamp()) * 1000;
    -- Since when it has been looking, and when it did so last.
    v_before constant bigint[] := string_to_array(current_setting(v_setting, true), ' ')::bigint[];
    v_since constant bigint := case when v_ms - v_before[2] between 0 and 1000 then v_before[1] else v_ms end;
begin
    perform set_config(v_setting, concat_ws(' ', v_since, v_ms), false);
    return least(greatest(v_ms - v_since, 5), 250) / 1000.0;
end;
$$;

-- Seconds until a request is looked at again that has been asked since then and could not be answered.
create or replace function _growing(since timestamptz) returns double precision
    language sql volatile
    return least(greatest(extract(epoch from clock_timestamp() - since), 0.02), 0.25);

create or replace function seconds_until_due(
    task_identifiers text[] default null, queue_names text[] default null,
    forbidden_flags text[] default null)
    returns double precision
    language plpgsql security definer set search_path from current
    set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
    set enable_sort = off set enable_incremental_sort = off set jit = off
    set plan_cache_mode = force_generic_plan
as $$
declare
    v_due_from timestamptz := _floor_of_due();
    v_floor _floor := _claim_floor(task_identifiers, queue_names, forbidden_flags);
    v_look record;
    v_again double precision;
begin
    select l.* into v_look from _look(v_due_from, v_floor) l;
    v_again := _again_in(v_look.asked, least(v_look.timer, v_look.due_at), v_look.xmin,
                         _left_behind(task_identifiers, queue_names, forbidden_flags, v_look.first, false));
    return case when v_again < 1 or least(v_look.timer, v_look.due_at) is not null then least(v_again, 1) end;
end;
$$;
comment on function seconds_until_due(text[], text[], text[]) is
    'Seconds after which a worker that got fewer jobs than it asked for should claim again, notified or '
    'not: at most 1. The least of: the time until the next scheduled or retryable job, or a rate, is due; '
    '0.005 to 0.25 while one is overdue, while a change waits to be looked at, and while a transaction is '
    'open that may have added jobs without a notification; 0.25 if a job is available that the claim did not '
    'get, since another session had it locked. Null if none applies: then claim again within 2 seconds. '
    'task_identifiers, queue_names, forbidden_flags: as in the claim.';
