-- heart/notify: when an add notifies workers, and when a worker looks without a notification.
--
-- NOTIFY holds a cluster-wide lock through the commit's fsync, so an add notifies only while a worker
-- waits. Two sequences are the registers for that (migrations/0001_init.sql). A claim is full if it returns
-- as many jobs as its worker asked for, else it is partial.
--
-- * listening_until: adds notify until then. A partial claim writes it, 2 s ahead, whenever less than 1.1 s
--   is left; a waiting worker claims once a second. So it outlives the wait. A busy worker does not write
--   it, and adds fall silent by themselves. Nor does a partial claim that found four jobs or more: its worker
--   comes again in 5 ms.
-- * silent_before: an add may read listening_until before a claim writes it, not notify, and commit
--   afterwards. So a claim that finds it out of date writes it, takes a transaction id, looks once more, and
--   writes that id here. While an older transaction is open, waiting workers look again after 5 to 250 ms.
--   A transaction that has an id already, since it has reported or claimed, leaves this to the next turn, in
--   5 ms: a younger one may have added silently.

-- True if a worker waits for a notification. This uses the real clock, not clock(), because workers wait
-- in real time. What lies further ahead was written before the clock was set back.
create or replace function _worker_is_listening() returns boolean
    language sql volatile
    return coalesce(
        pg_sequence_last_value('listening_until'::regclass) - date_part('epoch', clock_timestamp()) * 1000
        between 0 and 5000, false);

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
-- notify until now. If adds do not notify after this, the worker comes again in 5 ms (_again_in).
create or replace function _start_listening() returns boolean
    language plpgsql set search_path from current
as $$
declare
    v_ms constant bigint := date_part('epoch', clock_timestamp()) * 1000;
    v_left constant bigint := coalesce(pg_sequence_last_value('listening_until'::regclass), 0) - v_ms;
    v_own bigint;
begin
    if v_left between 1100 and 5000 then
        return false;
    end if;
    if v_left not between 0 and 5000 and pg_current_xact_id_if_assigned() is not null then
        return false;
    end if;
    perform setval('listening_until', v_ms + 2000);
    if v_left between 0 and 5000 then
        return false;
    end if;
    v_own := pg_current_xact_id()::text::bigint;
    if coalesce(pg_sequence_last_value('silent_before'::regclass), 0) < v_own then
        perform setval('silent_before', v_own);
    end if;
    return true;
end;
$$;

-- True while a transaction is open that may have added jobs without a notification. This session may have
-- a snapshot from before it ended: then true as well.
create or replace function _silent_adds_are_open() returns boolean
    language sql volatile
    return coalesce(pg_snapshot_xmin(pg_current_snapshot())::text::bigint
                    < pg_sequence_last_value('silent_before'::regclass), false);

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
    v_again := _again_in(v_look.asked, least(v_look.timer, v_look.due_at),
                         _left_behind(task_identifiers, queue_names, forbidden_flags, v_look.first, false));
    return case when v_again < 1 or least(v_look.timer, v_look.due_at) is not null then v_again end;
end;
$$;
comment on function seconds_until_due(text[], text[], text[]) is
    'Seconds after which a worker that got fewer jobs than it asked for should claim again, notified or '
    'not: at most 1. The least of: the time until the next scheduled or retryable job, or a rate, is due; '
    '0.005 to 0.25 while one is overdue, while a change waits to be looked at, and while a transaction is '
    'open that may have added jobs without a notification; 0.25 if a job is available that the claim did not '
    'get, since another session had it locked. Null if none applies: then claim again within 2 seconds. '
    'task_identifiers, queue_names, forbidden_flags: as in the claim.';
