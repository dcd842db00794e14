-- Installs pyworker, or upgrades it to this version, from psql:
--
--     psql -v ON_ERROR_STOP=1 [-v schema=pyworker] [-v roles=yes] [-v clock=movable] -f sql/install.sql
--
-- It takes the same steps as `pyworker migrate`, in the same order, in one transaction. You may
-- repeat it, interrupt it or run it several times at once. The files follow a job from add to history;
-- a module that the heart calls stands where a job comes to it.
\set ON_ERROR_STOP on
\set QUIET on
\if :{?schema}
\else
  \set schema pyworker
\endif
\if :{?roles}
\else
  \set roles no
\endif
\if :{?clock}
\else
  \set clock ''
\endif
\o /dev/null
begin isolation level read committed;
select set_config('pyworker.schema', :'schema', true), set_config('pyworker.newest', '1', true);
\ir setup/owner.sql
\ir setup/begin.sql

-- Migrations: each file runs once, in order.
select not exists (select from migrations where version = 1) as pending \gset
\if :pending
  \ir migrations/0001_init.sql
  insert into migrations (version, name, breaking) values (1, '0001_init', false);
\endif

-- Functions, views and grants: every file runs at each installation.
select :'clock' = 'movable' as movable, :'roles' = 'yes' as create_roles \gset
\if :movable
  update settings set movable_clock = true;
\endif
\ir heart/core.sql
\ir heart/notify.sql
\ir heart/floors.sql
\ir heart/tasks.sql
\ir features/canonical.sql
\ir features/unique_policy.sql
\ir features/unique.sql
\ir features/sequences.sql
\ir features/refs.sql
\ir features/depends_on.sql
\ir heart/specs.sql
\ir heart/add.sql
\ir features/add_keyed.sql
\ir heart/add_jobs.sql
\ir features/deadlines.sql
\ir gate/queues.sql
\ir gate/aside.sql
\ir gate/rates.sql
\ir gate/sequences.sql
\ir gate/succession.sql
\ir gate/pass.sql
\ir gate/settings.sql
\ir heart/due.sql
\ir features/edges.sql
\ir features/children.sql
\ir features/steps.sql
\ir heart/claim.sql
\ir heart/start.sql
\ir features/log.sql
\ir heart/finish.sql
\ir features/waiters.sql
\ir heart/leave.sql
\ir heart/fail.sql
\ir heart/workers.sql
\ir heart/sweep.sql
\ir heart/reports.sql
\ir heart/turn.sql
\ir heart/beat.sql
\ir features/jobs.sql
\ir features/retry.sql
\ir features/partitions.sql
\ir features/maintain.sql
\ir features/batches.sql
\ir features/dependencies.sql
\ir console/graph.sql
\ir features/cron_expressions.sql
\ir features/cron_times.sql
\ir features/cron_words.sql
\ir features/schedules.sql
\ir features/schedule_queries.sql
\ir features/schedule_ticks.sql
\ir features/crontab.sql
\ir gate/usage.sql
\ir console/circles.sql
\ir console/invariants.sql
\ir console/explain.sql
\ir console/locks.sql
\ir console/doctor_server.sql
\ir console/doctor_work.sql
\ir console/doctor.sql
\ir console/views.sql
\ir console/pages.sql
\ir console/list_jobs.sql
\ir console/actions.sql
\ir console/bulk.sql
\ir console/health.sql
\ir console/activity.sql
\ir console/metrics.sql
select movable_clock as movable from settings \gset
\if :movable
  \ir setup/movable_clock.sql
\endif
\if :create_roles
  \ir setup/roles.sql
\endif
\ir grants.sql
\ir setup/end.sql
commit;
\o
\echo pyworker is installed in schema :schema
