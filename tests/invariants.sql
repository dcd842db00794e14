-- What must hold whatever happened. Each row returned is a violation; every test ends with this file.
-- I2: at most one job per job_key, I3: at most one job of a sequence past pending (both by unique indexes too),
-- I13: a queue never has more than its concurrency in flight; and the columns that the indexes go by tell the truth.
select 'state' as invariant, j.id::text as subject, to_jsonb(j) - 'payload' as found
from live_jobs j
where j.state not in ('scheduled', 'pending', 'available', 'running', 'retryable', 'discarded')
   or (j.state in ('available', 'running')) <> (j.ready_at is not null)
   or (j.state in ('scheduled', 'retryable')) <> (j.due_at is not null)
   or (j.state = 'pending') <> (j.parked is not null)
   or j.parked not in ('queue', 'sequence', 'next') or (j.parked = 'queue' and j.queue_name is null)
   -- Past `pending`, and while it waits for its queue, a job of a sequence is its head; before that, and once it has ended, not.
   or (j.sequence_head is true) <> (j.sequence_key is not null and j.state <> 'discarded' and coalesce(j.parked, 'queue') = 'queue')
   or (j.state = 'running') <> (j.worker_id is not null)
   or (j.state = 'discarded') <> (j.expires_at is not null)
   or (j.state = 'discarded') <> (j.finished_at is not null)
   or (j.state = 'running') <> (j.claimed_at is not null)
   or coalesce(j.ready_at, j.due_at, j.run_at) <> j.run_at
   or (j.started_at is not null and j.state not in ('running', 'discarded'))
   or (j.superseded is not null and (j.state <> 'running' or j.job_key is not null))
   or j.attempts < 0 or j.run < j.attempts and j.reason is null and j.last_error is distinct from 'Manually marked as failed'
      and j.attempts <> j.max_attempts
union all
select 'history', f.id::text, to_jsonb(f) - 'payload'
from finished_jobs f
where f.state not in ('completed', 'cancelled') or f.finished_at is null or f.expires_at is null
   or f.ready_at is not null or f.due_at is not null or f.parked is not null
union all
select 'one place', j.id::text, null from live_jobs j join finished_jobs f on f.id = j.id
union all
select 'I2', j.job_key, to_jsonb(count(*)) from live_jobs j where j.job_key is not null group by j.job_key having count(*) > 1
union all
select 'I3', j.sequence_key, to_jsonb(count(*)) from live_jobs j where j.sequence_head group by j.sequence_key having count(*) > 1
union all
-- Uniqueness is as strong as its ledger: a job with a unique key has its key's row there.
select 'ledger', j.id::text, null
from (select l.id, l.unique_key from live_jobs l union all select f.id, f.unique_key from finished_jobs f) j
where j.unique_key is not null and not exists (select from unique_keys k where k.unique_key = j.unique_key)
union all
-- What ran already when a limit was lowered runs on; what a promoter let go at that moment has a wake-up that will call it back.
select 'I13', j.queue_name, to_jsonb(count(*))
from live_jobs j cross join lateral _queue_of(j.queue_name) q
where j.queue_name is not null and j.ready_at is not null and (q.concurrency is not null or q.paused)
  and not (j.state = 'running' and coalesce(j.claimed_at < q.updated_at, false))
  and not (j.state = 'available' and exists (select from wakeups w where w.lane = 'queue:' || j.queue_name))
group by j.queue_name, q.concurrency, q.paused having count(*) > case when q.paused then 0 else q.concurrency end
union all
-- Nobody is stranded: a parked job of a queue with a free slot has a wake-up waiting for it, and so has a sequence without a head.
select 'stranded', p.queue_name, to_jsonb(count(*))
from live_jobs p cross join lateral _queue_of(p.queue_name) q
where p.parked = 'queue' and not q.paused
  and not exists (select from wakeups w where w.lane = 'queue:' || p.queue_name)
  and (select count(*) from live_jobs j where j.queue_name = p.queue_name and j.ready_at is not null) < coalesce(q.concurrency, 1)
group by p.queue_name
union all
select 'stranded', p.sequence_key, to_jsonb(p.id)
from live_jobs p
where p.parked in ('sequence', 'next')
  and not exists (select from live_jobs j where j.sequence_key = p.sequence_key and j.sequence_head)
  and not exists (select from wakeups w where w.lane = 'sequence:' || p.sequence_key)
  and (p.parked = 'next' or not exists (select from sequence_halts h where h.sequence_key = p.sequence_key and h.job_id < p.id))
union all
-- A halt is by a job that has ended, or is gone.
select 'halt', h.sequence_key, to_jsonb(h.job_id)
from sequence_halts h join live_jobs j on j.id = h.job_id where j.state <> 'discarded' or j.sequence_key <> h.sequence_key
union all
select 'halt', h.sequence_key, to_jsonb(h.job_id)
from sequence_halts h join finished_jobs f on f.id = h.job_id where f.state <> 'cancelled' or f.sequence_key <> h.sequence_key;
