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
\ir functions/00_core.sql
\ir functions/01_notify.sql
\ir functions/02_floors.sql
\ir functions/10_tasks.sql
\ir modules/keys/canonical.sql
\ir modules/keys/unique_policy.sql
\ir modules/keys/unique.sql
\ir modules/sequences/sequences.sql
\ir modules/refs/refs.sql
\ir modules/dependencies/depends_on.sql
\ir functions/19_specs.sql
\ir functions/20_add.sql
\ir modules/keys/add_keyed.sql
\ir functions/22_add_jobs.sql
\ir modules/coordination/deadlines.sql
\ir gate/queues.sql
\ir gate/aside.sql
\ir gate/rates.sql
\ir gate/sequences.sql
\ir gate/succession.sql
\ir gate/pass.sql
\ir gate/settings.sql
\ir functions/30_due.sql
\ir modules/dependencies/edges.sql
\ir modules/dependencies/children.sql
\ir modules/coordination/steps.sql
\ir functions/40_claim.sql
\ir functions/45_start.sql
\ir modules/runners/log.sql
\ir functions/50_finish.sql
\ir modules/coordination/waiters.sql
\ir functions/55_requeue.sql
\ir functions/60_fail.sql
\ir modules/workers/workers.sql
\ir modules/workers/sweep.sql
\ir modules/runners/reports.sql
\ir modules/runners/turn.sql
\ir modules/runners/beat.sql
\ir modules/admin/jobs.sql
\ir modules/admin/retry.sql
\ir modules/history/partitions.sql
\ir modules/history/maintain.sql
\ir modules/coordination/batches.sql
\ir modules/coordination/views.sql
\ir modules/coordination/graph.sql
\ir modules/cron/expressions.sql
\ir modules/cron/times.sql
\ir modules/cron/words.sql
\ir modules/schedules/schedules.sql
\ir modules/schedules/queries.sql
\ir modules/schedules/ticks.sql
\ir modules/schedules/crontab.sql
\ir gate/usage.sql
\ir modules/integrity/circles.sql
\ir modules/integrity/invariants.sql
\ir modules/integrity/catalog.sql
\ir modules/integrity/owners.sql
\ir modules/explain/waits.sql
\ir modules/explain/explain.sql
\ir modules/explain/locks.sql
\ir modules/diagnosis/server.sql
\ir modules/diagnosis/workers.sql
\ir modules/diagnosis/doctor.sql
\ir modules/pages/views.sql
\ir modules/pages/pages.sql
\ir modules/pages/list_jobs.sql
\ir modules/pages/problems.sql
\ir modules/actions/actions.sql
\ir modules/actions/bulk.sql
\ir modules/monitoring/health.sql
\ir modules/monitoring/activity.sql
\ir modules/monitoring/metrics.sql
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
