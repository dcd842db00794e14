-- 0001: tables, types and sequences of the first release.
-- breaking: no
--
-- A job is one row of live_jobs until it ends. Then it moves to finished_jobs, unless it is
-- discarded.
--
-- Rules for live_jobs:
-- * A claim must stay a HOT update. No index and no index predicate names a column that a claim
--   changes (run, attempts, state, worker_id, claimed_at). What the indexes need to know of the state is
--   in ready_at, due_at and parked.
-- * An INSERT of one row must stay cheap. A CHECK constraint (30 us a statement) or generated
--   columns (18 us) cost more than the row itself (8 us). So the functions set these three columns
--   by _ready_at, _due_at and _parked, and a test checks them.
-- * No foreign keys: each insert would lock the parent's row.

-- The result of add_job and of other functions that return jobs. A type of its own, not the table's
-- row type, so that a new column does not break running callers.
create type job as (
    id bigint,
    task_identifier text,
    queue_name text,
    payload json,
    meta jsonb,
    priority smallint,
    run_at timestamptz,
    attempts smallint,
    max_attempts smallint,
    last_error text,
    created_at timestamptz,
    updated_at timestamptz,
    key text,
    revision integer,
    flags jsonb,
    locked_at timestamptz,
    locked_by text,
    state text,
    delivery text,
    unique_key text,
    sequence_key text,
    deduplicated boolean,
    sequence_halted_by bigint,
    run bigint,
    reason text,
    finished_at timestamptz,
    result jsonb,
    progress double precision,
    progress_message text
);

-- The specs of add_jobs, as in Graphile Worker: eight fields with the same names in the same order.
create type job_spec as (
    identifier text,
    payload json,
    queue_name text,
    run_at timestamptz,
    max_attempts smallint,
    job_key text,
    priority smallint,
    flags text[]
);

-- All arguments of add_job as one value, for the bulk path (private).
create type _job_request as (
    identifier text,
    payload json,
    queue_name text,
    run_at timestamptz,
    max_attempts integer,
    job_key text,
    priority integer,
    flags text[],
    job_key_mode text,
    unique_policy jsonb,
    sequence_policy jsonb,
    meta jsonb,
    delivery text,
    depends_on jsonb,
    expires_at timestamptz,
    max_wait interval,
    ref text                -- by it, depends_on of other specs of the same call names this job
);

-- What a unique_policy means for one job (private).
create type _uniqueness as (
    key bytea,
    states text[],
    period interval,
    on_conflict text,
    recheck boolean
);

-- One item of fail_jobs (private); problem: why it is malformed.
create type _failure as (
    id bigint,
    run bigint,
    error text,
    payload json,
    discard boolean,
    cancel boolean,
    not_started boolean,
    delay interval,
    position integer,
    problem text
);

-- One report of `work` (private); problem: why it does not count.
create type _report as (
    position integer,
    verb text,
    id bigint,
    run bigint,
    problem text,
    value jsonb
);

-- What a sequence_policy means for one job (private).
create type _sequencing as (
    key text,
    continue_on_cancelled boolean,
    continue_on_discarded boolean
);

-- The result of add_schedule and of other functions that return schedules.
create type schedule as (
    name text,
    cron text,
    timezone text,
    identifier text,
    payload jsonb,
    backfill interval,
    queue_name text,
    max_attempts integer,
    priority integer,
    job_key text,
    job_key_mode text,
    flags text[],
    unique_policy jsonb,
    sequence_policy jsonb,
    meta jsonb,
    delivery text,
    query text,
    query_role text,
    query_limit integer,
    origin text,
    paused boolean,
    next_at timestamptz,
    last_at timestamptz,
    last_job_id bigint,
    last_error text,
    created_at timestamptz,
    updated_at timestamptz
);

-- What a cron expression means (private); see features/cron_expressions.sql.
create type _cron as (
    minutes integer[],
    hours integer[],
    dates integer[],
    months integer[],
    weekdays integer[],
    both_days boolean,      -- a day must match both dates and weekdays, not only one of them
    fixed boolean,          -- a fixed time of day
    problem text
);

-- What the end of a job leaves to be done, besides its move to history (private).
create type _loose_end as (
    job_id bigint,
    hands_on boolean,        -- it was running: its places go to the next jobs
    queue_name text,
    slot xid8,               -- that it had there
    was_ready boolean,       -- it was let in
    head_of text,            -- the sequence whose head it was
    halts text,              -- the sequence that it halts
    gone boolean,            -- history does not keep it
    has_errors boolean,
    unique_key bytea,
    result jsonb
);

-- Where a job goes from running or waiting (private): heart/leave. Null: as before.
create type _move as (
    id bigint,
    goal text,               -- scheduled, retryable, pending (for a signal), discarded, cancelled, deleted
    run_at timestamptz,      -- from when on it may run; of a pending one: until when it waits
    attempts integer,
    reason text,             -- why it is discarded or cancelled
    error text,              -- of its run
    payload json,
    start_by timestamptz
);

-- The place up to which a session has walked an index (private): heart/floors.
create type _floor as (
    priority smallint,
    at timestamptz,
    id bigint,
    until bigint             -- until when it counts, in microseconds; null: the head of the index
);

-- What was let in when a turn looked at what was due (private).
create type _opened as (
    jobs integer,            -- how many became available to claims
    held boolean,            -- it had the gate
    again boolean            -- there is more to do
);

-- What a beat finds to do (private).
create type _duties as (
    registered boolean,
    lease_is_short boolean,
    grace_s double precision,        -- until a sweep may declare a suspected worker dead, or null
    words text,                      -- for the runner: maintain, schedules
    tick_is_due boolean,
    next_tick_s double precision     -- until the next schedule is due, or null
);

create table settings (
    only_row boolean primary key default true constraint settings_only_row check (only_row),
    completed_retention interval not null default '24 hours',
    cancelled_retention interval not null default '24 hours',
    discarded_retention interval not null default '7 days',
    max_payload_bytes integer not null default 1048576,
    worker_ttl interval not null default '20 seconds',
    max_crashes integer not null default 3,
    once_retention interval,                        -- null: once_keys are kept for ever
    notify_discarded boolean not null default false,
    movable_clock boolean not null default false,
    clock_offset interval                           -- with a movable clock only
);
insert into settings default values;

-- Defaults of a task, set by define_task; null means the system's default.
create table tasks (
    identifier text collate "C" primary key,
    max_attempts smallint,
    priority smallint,
    queue_name text,
    unique_policy jsonb,
    sequence_policy jsonb,
    delivery text,
    timeout interval,
    backoff jsonb,
    retention interval,
    payload_schema jsonb,
    updated_at timestamptz not null default clock_timestamp()
);

-- Only queues that were configured or paused; adding a job never writes here. A name that ends in
-- '*' is a family: it stands for all queues whose names begin like it. A queue without a row has
-- the settings of its longest family, and is serial if it has none.
create table queues (
    queue_name text collate "C" primary key,
    concurrency integer default 1 constraint queues_concurrency check (concurrency >= 1),
    paused boolean not null default false,
    updated_at timestamptz,
    inherits boolean not null default false,    -- paused, never configured: its family's concurrency counts
    changed xid8 not null default pg_current_xact_id(), -- the version of these settings
    -- In no window of rate_period, a time in seconds, start more than rate_limit jobs: limits/rates.
    rate_limit integer constraint queues_rate_limit check (rate_limit >= 1),
    rate_period interval,
    fair boolean not null default false,        -- of a family: its queues take turns
    constraint queues_rate check ((rate_limit is null) = (rate_period is null))
);
-- Families: each queue looks for its own.
create index queues_families on queues (queue_name) where right(queue_name, 1) = '*';

-- The versions of settings that some open transactions may not have seen (gate/settings). A table of its own,
-- which passes of the gate change, so that no setting waits for a pass.
create table held_settings (
    queue_name text collate "C" not null,
    changed xid8 not null default pg_current_xact_id(),
    seen_by xid8 not null default '0',          -- 0, or the transaction from which on all have seen it
    primary key (changed, queue_name)
);

-- The starts of queues with a rate (gate/rates). A claim writes one row for the jobs of a queue that it
-- starts. A pass of the gate adds them up: `total` is the number of all starts up to this row.
create table starts (
    queue_name text collate "C" not null,
    at timestamptz not null,
    jobs integer not null,
    total bigint                                -- null until a pass has added it up
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0);
create index starts_new on starts (queue_name) where total is null;
create index starts_at on starts (queue_name, at, total) where total is not null;

-- Kinds of jobs (task and flags) that stand aside in their queue for a moment, since no worker takes them.
create table set_aside (
    queue_name text collate "C" not null,
    task_identifier text collate "C" not null,
    flags jsonb,
    until timestamptz not null,
    unique nulls not distinct (queue_name, task_identifier, flags)
);

-- One row per start of a worker process. Ids are never reused, so a late report of a dead worker is
-- always recognised.
create table workers (
    id bigint generated always as identity primary key,
    info jsonb not null,
    started_at timestamptz not null,
    beat_at timestamptz not null,
    expires_at timestamptz not null,
    dead_at timestamptz,
    locked boolean not null default false,          -- its control connection holds a lock: hold_worker_lock
    suspect_since timestamptz                       -- when that lock was found free
) with (fillfactor = 50);
-- Rows of workers stay for a day after their end. What looks for the others, passes them.
create index workers_dead on workers (dead_at);

-- Which jobs each claim took. By these rows a worker's running jobs are found without a walk along
-- all waiting jobs: no index of live_jobs may contain worker_id. Each claim writes a row, and now
-- and then merges its worker's rows into one with the jobs that are still running.
create table claims (
    worker_id bigint not null,
    run bigint not null,
    job_ids bigint[] not null,
    -- The claim saw the changes of all transactions before this one.
    seen xid8 not null default pg_snapshot_xmin(pg_current_snapshot())
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0);
create index claims_worker on claims (worker_id, run);

create sequence job_ids;

create table live_jobs (
    id bigint primary key default nextval('job_ids'),
    -- what the indexes need of the state
    ready_at timestamptz,                           -- running, or available and not parked: since when
    due_at timestamptz,                             -- run_at while scheduled or retryable; the end of a
                                                    -- wait for a signal
    parked text collate "C",                        -- available: 'queue'; pending: 'sequence', 'next',
                                                    -- 'unmet' or 'signal'
    -- what the gate says of a job that it has let in: gate/queues
    slot xid8,                                      -- by which version of its queue's settings
    pace interval,                                  -- the period of its queue's rate: its claim notes a start
    turn boolean,                                   -- its queue takes turns: its claim asks for the next job
    -- what a claim changes
    worker_id bigint,                               -- not null exactly while running
    run bigint not null default 0,                  -- fencing token: only grows, never repeats
    attempts smallint not null default 0,           -- attempts used; a release gives one back
    -- scheduled, pending, available, running, retryable or discarded
    state text collate "C" not null,
    claimed_at timestamptz,
    updated_at timestamptz not null,
    -- while it runs
    started_at timestamptz,                         -- at_most_once: committed before the handler starts
    cancel_requested_at timestamptz,
    superseded text collate "C",                    -- 'superseded' or 'removed': the job must not run again
    crashes smallint,                               -- how many processes ended while they ran it
    -- what the caller asked for
    priority smallint not null,
    max_attempts smallint not null,
    revision integer not null default 0,
    run_at timestamptz not null,
    created_at timestamptz not null,
    task_identifier text collate "C" not null,
    queue_name text collate "C",
    job_key text collate "C",
    delivery text collate "C" not null,
    flags jsonb,
    meta jsonb,
    -- uniqueness and order
    unique_key bytea,
    unique_recheck text[],                          -- River policies: states to check when a retry is due
    sequence_key text collate "C",
    sequence_head boolean,                          -- true from its promotion to its end
    continue_on_cancelled boolean,
    continue_on_discarded boolean,
    -- how it ended
    last_error text,
    reason text,
    finished_at timestamptz,
    expires_at timestamptz,                         -- when it may be pruned; here only while discarded
    result jsonb,
    -- limits of the waiting: features/deadlines
    start_by timestamptz,                           -- add_job's expires_at, until its first claim
    claimed_start_by timestamptz,                   -- the same at its last claim: heart/workers
    wait_until timestamptz,                         -- by then a replace must not put it off (max_wait)
    waits_since timestamptz,                        -- since then it has waited; null: since created_at
    waits_run bigint,                               -- its run at that time
    payload json not null                           -- last: WAL logs only what changed before it
) with (
    -- A claim updates whole pages of rows at once, so half of each page stays free for the new
    -- versions.
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off
);

-- A large payload is compressed when it is added, and again when it moves to history. So use the
-- fast method, lz4, if the server has it.
do $$
begin
    alter table live_jobs alter payload set compression lz4;
exception when feature_not_supported then
    null;
end;
$$;

create index live_jobs_ready on live_jobs (priority, ready_at, id) where ready_at is not null;
create index live_jobs_due on live_jobs (due_at, id) where due_at is not null;
create unique index live_jobs_job_key on live_jobs (job_key) where job_key is not null;
create index live_jobs_queue_parked on live_jobs (queue_name, priority, run_at, id) where parked = 'queue';
create index live_jobs_queue_taken on live_jobs (queue_name, priority, run_at, id)
    where ready_at is not null and queue_name is not null;
create index live_jobs_sequence_parked on live_jobs (sequence_key, parked, id) where parked <> 'queue';
create unique index live_jobs_sequence_head on live_jobs (sequence_key) where sequence_head;
create index live_jobs_unique_key on live_jobs (unique_key) where unique_key is not null;
create index live_jobs_start_by on live_jobs (start_by) where start_by is not null;
create index live_jobs_expires on live_jobs (expires_at) where expires_at is not null;

-- The same columns as live_jobs, partitioned by the day on which a row may be pruned, not the day
-- on which the job ended. So dropping a day drops exactly what has expired, even if tasks differ in
-- retention. maintain() makes and drops the daily partitions.
create table finished_jobs (like live_jobs including compression) partition by range (expires_at);
-- History takes a payload as live_jobs holds it. The server compressed it when the job was added, if that
-- made it smaller; to try again with a large payload costs more than all the rest of the job's end.
alter table finished_jobs alter payload set storage external;
create table finished_jobs_default partition of finished_jobs default;
-- A B-tree costs about 0.7 us more per finished job than a block range index. But a block range
-- index finds nothing before autovacuum has summarized it: after 150,000 jobs had just ended, a
-- lookup by id took 10 ms and more.
create index finished_jobs_id on finished_jobs (id);
create index finished_jobs_unique_key on finished_jobs (unique_key) where unique_key is not null;

-- One row per unique key that a job has. The primary key makes uniqueness strong: features/unique.
create table unique_keys (
    unique_key bytea primary key,
    adds integer not null default 1
) with (fillfactor = 70);

-- The jobs, cancelled or discarded, after which a sequence must not continue. A table of its own,
-- so that a halt does not depend on what happens to the job later.
create table sequence_halts (
    sequence_key text collate "C" not null,
    job_id bigint not null,
    reason text collate "C" not null,           -- 'cancelled' or 'discarded'
    at timestamptz not null,
    primary key (sequence_key, job_id)
);

-- One row per failed attempt, pruned with its job.
create table errors (
    job_id bigint not null,
    run bigint not null,
    at timestamptz not null,
    worker text,
    error text not null
);
create index errors_job on errors (job_id, run);

-- What jobs wait for: the ends of other jobs (features/edges). An edge counts for one revision of
-- the child. A replace raises the revision, so it need not touch the older edges.
create table edges (
    child_id bigint not null,
    revision integer not null,
    parent_id bigint not null,
    ref text,                                   -- what the call that added the child named the parent
    condition text collate "C" not null,        -- 'success', 'end' or 'failure'
    cancels boolean not null,                   -- cancel the child if the parent ends in another way
    met text collate "C",                       -- the parent's state that met it: features/edges
    result jsonb,                               -- the parent's result then, for the child
    -- A job may name another one twice: with two conditions, or by two refs of which one is a duplicate.
    unique nulls not distinct (child_id, revision, parent_id, condition, ref)
);
create index edges_parent on edges (parent_id, child_id);

-- Which of its edges a waiting job watches: the only ones that the end of a parent looks for.
create table watches (
    child_id bigint not null,
    revision integer not null,
    from_id bigint,                             -- lower parents' edges are met: features/edges
    parent_id bigint not null
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
create index watches_parent on watches (parent_id);
create index watches_child on watches (child_id);

-- Parents that count as cancelled, but are in no other table: deleted, or cancelled with retention 0.
create table vanished_parents (
    id bigint primary key,
    at timestamptz not null
);
create index vanished_parents_at on vanished_parents (at);

-- What a job has done and must not do again, and the signals that it waits for or has got
-- (features/steps). Like an edge, a step counts for one revision of the job.
create table steps (
    job_id bigint not null,
    revision integer not null,
    name text collate "C" not null,
    nth integer not null default 1,             -- of a wait: which of the run's waits for this name it is
    run bigint not null,                        -- that saved it, or that waits
    at timestamptz,                             -- null: the job waits for a signal of this name
    is_wait boolean not null,
    until timestamptz,                          -- of a wait: it ends then, without a signal
    signal_id bigint,                           -- of a wait: the signal that answered it
    result jsonb,
    primary key (job_id, revision, name, nth)
);

-- Signals that were sent. Each answers one wait for its name, the oldest first.
create table signals (
    id bigint generated always as identity primary key,
    job_id bigint not null,
    name text collate "C" not null,
    payload jsonb not null,
    at timestamptz not null
);
create index signals_job on signals (job_id, name, id);

-- How far a run has come, as its handler tells (heart/start.sql). A table of its own: an update of
-- a job would copy its payload each time.
create table progress (
    job_id bigint primary key,
    run bigint not null,
    progress double precision not null,
    message text,
    at timestamptz not null
) with (fillfactor = 50);

-- What the runs of jobs have logged, the newest lines of each job (features/log).
create table log_lines (
    id bigint generated always as identity,
    job_id bigint not null,
    run bigint not null,
    attempt smallint not null,
    at timestamptz not null,
    level text collate "C" not null,            -- 'debug', 'info', 'warning' or 'error'
    message text not null,
    primary key (job_id, id)
);

-- Who waits for the end of which job: wait_for_job (features/waiters). Only a hint.
create unlogged table waiters (
    job_id bigint not null,
    until timestamptz not null
);
create index waiters_job on waiters (job_id);

-- Requests to look at a queue, a family, a sequence or a job again, after a change that may let a parked
-- job start. The transaction of the change writes the request, and the next pass of the gate deletes it.
-- So none is lost, and an add never waits for the end of another job.
create table promotion_requests (
    -- 'queue:NAME', 'family:PREFIX', 'sequence:KEY'; with a job_id those of features/edges.
    lane text collate "C" not null,
    id bigint generated always as identity,
    job_id bigint,
    at timestamptz,                             -- not before this time; null: at once
    since timestamptz not null default clock_timestamp(), -- since when it has been asked
    xid xid8 not null default pg_current_xact_id(),
    later boolean not null default false,       -- the transaction that has left it must commit first
    problem text                                -- why the last look failed
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0);
create index promotion_requests_open on promotion_requests (xid, id) where at is null;
create index promotion_requests_timers on promotion_requests (at) where at is not null;
create index promotion_requests_lane on promotion_requests (lane, at) where at is not null;

-- The gate: the session that has this row locked answers requests, and no other does (gate/pass).
create table gate (
    only_row boolean primary key default true constraint gate_only_row check (only_row),
    floor xid8 not null default '0',            -- requests of older transactions have been answered
    floor_at timestamptz
) with (fillfactor = 10);
insert into gate default values;

-- The keys of once(): what must not be done twice.
create table once_keys (
    key text collate "C" primary key,
    at timestamptz not null
);
create index once_keys_at on once_keys (at); -- for pruning

-- The schedules; see features/schedules. The columns of type schedule, in its order, and retry_at.
create table schedule_entries (
    name text collate "C" primary key,
    cron text not null,
    timezone text not null,
    identifier text not null,
    payload jsonb not null,
    backfill interval not null,
    queue_name text,
    max_attempts integer,
    priority integer,
    job_key text,
    job_key_mode text not null,
    flags text[],
    unique_policy jsonb,
    sequence_policy jsonb,
    meta jsonb,
    delivery text,
    query text,
    query_role text,
    query_limit integer,
    origin text not null,                       -- 'sql', 'crontab:NAME', 'code:MODULE'
    paused boolean not null,
    next_at timestamptz,                        -- its next tick; only grows. Null while it is paused
    last_at timestamptz,                        -- the last tick that was fired
    last_job_id bigint,
    last_error text,                            -- of that tick
    created_at timestamptz not null,
    updated_at timestamptz not null,
    retry_at timestamptz                        -- the tick at next_at was interrupted: when to try it again
) with (fillfactor = 50);
create index schedule_entries_next on schedule_entries (next_at) where next_at is not null;

-- Actions that people took through perform_action().
create table audit_log (
    id bigint generated always as identity primary key,
    at timestamptz not null,
    actor text not null,                        -- as named by the dashboard
    db_role text not null,                      -- the role of the dashboard's session
    action text not null,
    target text not null,
    ok boolean not null,
    outcome text not null
);
create index audit_log_at on audit_log (at); -- for pruning

-- A register: when a worker last swept dead workers, in ms since 1970. After a long gap no worker
-- is declared dead, since workers could not renew their leases either.
create sequence swept_at minvalue 0 start 0;

-- Registers: when maintain() is due again, and when a beat last told a worker that a schedule is
-- due, in ms since 1970.
create sequence maintain_at minvalue 0 start 0;
create sequence due_told_at minvalue 0 start 0;

-- Registers, not counters; see heart/notify.sql. Reading a sequence takes no snapshot, so a
-- session sees the current value even inside an old REPEATABLE READ transaction, and setting one
-- leaves no dead rows. Times are in ms since 1970.
create sequence listening_until minvalue 0 start 0;     -- until then a worker is waiting for a notification
create sequence polled_until minvalue 0 start 0;        -- until then one polls for all: ms * 65536 + who
create sequence fleet_size minvalue 0 start 0;          -- how many workers were registered at the last sweep
create sequence silent_before minvalue 0 start 0;       -- older transactions may have added jobs silently
create sequence coordination_used minvalue 0 start 0;   -- set once a dependency, step, signal … was stored
create sequence settings_used minvalue 0 start 0;       -- set once a queue was set or paused: 1,000,000
                                                        -- once one had a rate or took turns
create sequence waited_until minvalue 0 start 0;        -- until then a caller waits for the end of a job
