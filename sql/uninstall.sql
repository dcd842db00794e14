-- Removes pyworker and every job:   psql -v schema=pyworker -v really=yes -f sql/uninstall.sql
\set ON_ERROR_STOP on
\if :{?schema}
\else
  \set schema pyworker
\endif
\if :{?really}
\else
  \set really no
\endif
select :'really' = 'yes' as really \gset
\if :really
  select :'schema' || '_queries' as queries \gset
  drop schema if exists :"queries" cascade;
  drop schema :"schema" cascade;
\else
  \echo nothing dropped: add -v really=yes to remove schema :schema with all jobs in it
\endif
