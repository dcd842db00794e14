-- 0005: what is done by way of a dashboard is written down, not taken back.
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
alter table audit_log drop column before;

-- What start_by was when the job was claimed: a job that is handed back before it has begun gets it again.
alter table live_jobs add column begin_by timestamptz;
alter table finished_jobs add column begin_by timestamptz;
drop function if exists _hand_back(live_jobs);
