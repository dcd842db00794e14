-- The statements that `pyworker sql TOPIC` prints. No installation loads this file. A test runs
-- each statement. `-- # NAME: TITLE` begins a topic.

-- # enqueue: add jobs in your own transaction
-- a job; workers see it when your transaction commits
select id, state from pyworker.add_job('send_email', '{"to": "ada@example.org"}');
-- a job that runs in an hour, in a named queue, with at most 5 attempts
select id, state, run_at
from pyworker.add_job('charge', '{"invoice": 7}', queue_name := 'customer 12',
    run_at := now() + interval '1 hour', max_attempts := 5);
-- a job with a key, which replaces a waiting job with the same key
select id, state, revision
from pyworker.add_job('reindex', '{"id": 42}', job_key := 'reindex 42',
    run_at := now() + interval '10 seconds');
-- one job for each row of a query, in one statement
select count(*)
from pyworker.add_jobs((
    select coalesce(
        jsonb_agg(jsonb_build_object('identifier', 'greet', 'payload', jsonb_build_object('n', n))), '[]')
    from generate_series(1, 3) n));

-- # trigger: add a job for each new row of a table, in the transaction that inserts it
create table orders (id bigint generated always as identity primary key, email text);
create function order_added() returns trigger language plpgsql as $$
begin
    perform pyworker.add_job('confirm_order', jsonb_build_object('id', new.id));
    return new;
end;
$$;
create trigger order_added after insert on orders for each row execute function order_added();

-- # unique: deduplicate identical jobs
-- at most one job per customer and day; another add returns the first job instead
select id, deduplicated
from pyworker.add_job('remind', '{"customer_id": 9}',
                      unique_policy := pyworker.unique_opts(by_args := '["customer_id"]',
                          by_period := '24 hours'));
-- as the default of a task, for every add
select pyworker.define_task('sync_stock', unique_policy := pyworker.unique_opts(by_args := 'true'));
-- jobs that hold a unique key now
select id, task_identifier, state, unique_key
from pyworker.jobs where unique_key is not null order by id limit 20;

-- # sequence: run the jobs of each key one after the other, in order
select id, state
from pyworker.add_job('sync_account', '{"customer_id": 42}',
    sequence_policy := '{"by_args": ["customer_id"]}');
-- halted sequences, and the jobs that halt them
select sequence_key, halted_by, reason, since, waiting
from pyworker.sequences where halted_by is not null order by since;
-- continue a sequence: retry the job that halts it
select id, state
from pyworker.retry_job(
    (select halted_by from pyworker.sequences where halted_by is not null order by since limit 1));
-- or continue without that job
select sequence_key, pyworker.resume_sequence(sequence_key)
from pyworker.sequences where halted_by is not null order by since;

-- # schedule: add jobs by the clock
select name, next_at
from pyworker.add_schedule('nightly report', '0 4 * * mon-fri', 'report', timezone := 'Europe/Berlin');
-- the next runs of an expression, before you save it
select local_time from pyworker.next_runs('30 2 * * *', 'Europe/Berlin', 5);
-- all schedules, with their expressions in words
select name, identifier, words, timezone, next_at, last_at, paused, last_error
from pyworker.schedules order by next_at;
-- run one now; pause, resume and remove it
select id, state from pyworker.run_schedule('nightly report');
select pyworker.pause_schedule('nightly report');
select pyworker.resume_schedule('nightly report');
select pyworker.remove_schedule('nightly report');

-- # retry: run failed jobs again
-- all discarded jobs of a task
select count(*) from pyworker.retry_jobs(array(
    select id from pyworker.jobs where state = 'discarded' and task_identifier = 'send_email' order by id));
-- jobs that wait for their backoff: run them now
select count(*)
from pyworker.retry_jobs(
    array(select id from pyworker.jobs where state = 'retryable' order by id limit 1000));
-- jobs with delivery at_most_once that were lost, done or not: retry_jobs leaves them out. Look at each:
-- delete_job(id) if it was done, retry_job(id) if it was not
select id, task_identifier, key, meta, locked_at, last_error
from pyworker.jobs where reason = 'lost' order by id;
-- the errors they failed with (the last line of each), most frequent first
select task_identifier, count(*), min(updated_at), max(updated_at),
       regexp_replace(rtrim(last_error), '^.*\n', '') as error
from pyworker.jobs where state in ('discarded', 'retryable') group by task_identifier, error
order by count(*) desc limit 20;

-- # cancel: cancel waiting and running jobs
-- one job; if it is running, its worker is asked to stop it
select c.id, c.state
from (select min(id) as id from pyworker.jobs where task_identifier = 'send_email' having count(*) > 0) j
cross join lateral pyworker.cancel_job(j.id) c;
-- all waiting jobs of a task
select c.id, c.state
from (
    select id from pyworker.jobs
    where task_identifier = 'greet' and state in ('available', 'pending', 'scheduled', 'retryable')
    order by id) j
cross join lateral pyworker.cancel_job(j.id) c;
-- the job with this key
select id, state from pyworker.remove_job('reindex 42');

-- # pause: pause, resume and limit queues
select pyworker.pause_queue('mail');
select pyworker.resume_queue('mail');
-- run at most 4 jobs of this queue at once (null: no limit)
select pyworker.set_queue('mail', 4);
-- run at most 1 job at once of each queue whose name begins with "tenant:"
select pyworker.set_queue('tenant:*', 1);
-- jobs per queue (counts every live job)
select queue_name, concurrency, paused, available, running, pending, oldest_waiting
from pyworker.queue_stats order by queue_name;

-- # job: one job, its errors, and why it is not running
select id, task_identifier, state, attempts, max_attempts, run_at, payload from pyworker.get_job(7);
select run, at, worker, error from pyworker.job_errors(7) order by at;
select position, reason, detail, remedy
from pyworker.explain_job((select min(id) from pyworker.jobs)) order by position;

-- # oldest: the jobs that have waited or run longest
-- waiting jobs, the oldest first
select id, task_identifier, queue_name, state, clock_timestamp() - run_at as waits
from pyworker.jobs where state in ('available', 'pending') order by run_at limit 10;
-- running jobs, the longest first, and where they run
select j.id, j.task_identifier, clock_timestamp() - j.locked_at as runs, w.info ->> 'host' as host,
       w.info ->> 'pid' as pid
from pyworker.jobs j left join pyworker.live_workers w on w.id::text = j.locked_by
where j.state = 'running' order by j.locked_at limit 10;

-- # lag: how far the workers are behind
-- for how many seconds the oldest available job has waited; null means that none waits
select max(extract(epoch from clock_timestamp() - run_at)) as seconds
from pyworker.jobs where state = 'available' and run_at <= clock_timestamp();
-- how many jobs of each task wait, and for how long
select task_identifier, count(*), clock_timestamp() - min(run_at) as oldest
from pyworker.jobs where state = 'available' group by task_identifier order by min(run_at);
-- jobs that ended in the last hour, with the median time that they waited and ran
select task_identifier, state, count(*),
       percentile_cont(0.5) within group (
           order by extract(epoch from locked_at - greatest(run_at, created_at))) as seconds_waited,
       percentile_cont(0.5) within group (order by extract(epoch from finished_at - locked_at)) as seconds_run
from pyworker.history where finished_at > clock_timestamp() - interval '1 hour'
group by task_identifier, state order by count(*) desc;

-- # workers: live workers and what they run
select w.id, w.info ->> 'host' as host, w.info ->> 'pid' as pid, w.started_at,
    clock_timestamp() - w.beat_at as silent_for, count(j.id) as runs
from pyworker.live_workers w
left join pyworker.jobs j on j.locked_by = w.id::text and j.state = 'running'
group by w.id, w.info, w.started_at, w.beat_at
order by w.id;
-- waiting jobs of tasks that no live worker knows
select task_identifier, count(*) from pyworker.jobs j
where state in ('available', 'pending') and not exists (
    select from pyworker.live_workers w where w.info -> 'task_identifiers' ? j.task_identifier)
group by task_identifier;

-- # sizes: sizes of tables and indexes, dead rows, and what holds back vacuum
select c.relname, pg_size_pretty(pg_total_relation_size(c.oid)) as total,
    pg_size_pretty(pg_indexes_size(c.oid)) as indexes,
       s.n_live_tup as live_rows, s.n_dead_tup as dead_rows, s.last_autovacuum
from pg_class c left join pg_stat_user_tables s on s.relid = c.oid
where c.relnamespace = 'pyworker'::regnamespace and c.relkind = 'r'
order by pg_total_relation_size(c.oid) desc limit 20;
-- the oldest transactions: vacuum cannot remove rows that died after they began
select pid, usename, application_name, state, clock_timestamp() - xact_start as since,
       left(query, 60) as query
from pg_stat_activity where backend_xmin is not null order by age(backend_xmin) desc limit 5;

-- # locks: which sessions wait for locks of which others
select a.pid, a.application_name, a.state, pg_blocking_pids(a.pid) as waits_for,
    clock_timestamp() - a.query_start as since, left(a.query, 60) as query
from pg_stat_activity a where cardinality(pg_blocking_pids(a.pid)) > 0 order by a.query_start;
-- locks on the queue's tables that are stronger than those of a read
select l.pid, c.relname, l.mode, l.granted, a.application_name, a.state
from pg_locks l join pg_class c on c.oid = l.relation join pg_stat_activity a on a.pid = l.pid
where l.locktype = 'relation' and c.relnamespace = 'pyworker'::regnamespace and l.mode <> 'AccessShareLock'
order by l.granted, l.pid limit 50;

-- # health: what is wrong, and how to repair it
select severity, check_name, finding, fix from pyworker.doctor() where severity <> 'ok';

-- # retention: how long jobs are kept
select pyworker.configure(completed_retention := '3 days', discarded_retention := '30 days');
select pyworker.define_task('audit', retention := '1 year');
select pyworker.prune();
