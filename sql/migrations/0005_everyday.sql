-- 0005: what is done by way of a dashboard is written down, not taken back. A job may wait for one signal
-- again.
-- breaking: no

drop function if exists undo_actions(bigint, bigint, text, integer);
drop function if exists action_outcomes(bigint, bigint, text); -- one column less
drop function if exists _undo_problem(audit_log);
drop function if exists _restore(bigint);
drop function if exists _before_retry(bigint);
drop function if exists _skips_halts(jsonb, text);
drop function if exists _end_again(live_jobs, live_jobs, boolean);
drop function if exists _refuse_undo(live_jobs, live_jobs, boolean);
drop function if exists _undo_retry(bigint, bigint);
drop function if exists _undoing(text);
drop function if exists _refuse_idle_job(text, bigint);
alter table audit_log drop column before;

drop function if exists _hand_back(live_jobs);

-- The nth wait for a signal in a run is a wait of its own; a signal answers one of them.
alter table steps add column nth integer not null default 1, add column signal_id bigint;
alter table steps drop constraint steps_pkey,
    add constraint steps_pkey primary key (job_id, revision, name, nth);
update steps w
set signal_id = (select s.id from signals s
                 where s.job_id = w.job_id and s.name = w.name and s.payload = w.result order by s.id limit 1)
where w.is_wait and w.at is not null;
drop function if exists send_signal(bigint, text, jsonb); -- it returns text now
drop function if exists wait_for_signal(bigint, bigint, text, interval);

-- Rows of workers stay for a day after their end. What looks for the others, passes them.
create index workers_dead on workers (dead_at);

-- The requests that a promotion may answer now are found without those that wait for transactions to end:
-- there is one of them for each queue that was set, and they wait as long as the oldest transaction.
create index promotion_requests_open on promotion_requests (id) where after is null;
create index promotion_requests_after on promotion_requests (after, id) where after is not null;

-- Families that are paused: each queue looks for one.
create index queues_paused_family on queues (queue_name) where paused and right(queue_name, 1) = '*';
