"""The states from which schedules begin, each made by pyworker's own functions.

In all of them job 1 has the key k, and is of the sequence s and the queue q; 2 has a unique key and is
delivered at most once; 3 waits in the sequence, 4 in the queue; 5 has the key later, 6 the key m.

waiting  nothing runs; 5 is due
running  1 and 2 run on worker 1, 6 and 7 on worker 2; 8 and 9 wait behind 7 in the sequence z, which goes on
         when a job is cancelled, and is in no queue
dead     1 and 2 run on worker 1, which is dead, 6 on worker 2
ended    they have ended: 1 is discarded, and halts its sequence, where 3 and 10 wait; 7 was discarded in the
         sequence z, where 8 and 9 wait
graph    1 and 2 run on worker 1, 6 on worker 2; 7 depends on the ends of 2 and 6, 8 (key c) on the success
         of 1, 9 on 7, and 10 waits for the signal go
fresh    nothing is promoted yet. q has two slots, and r is a serial queue with jobs of two kinds: 6 and 7
slots    1 and 2 run on worker 1, 4 and 6 on worker 2, since q has two slots; nothing waits, but q and s are
         asked for; each row bears the mark of a transaction that was rolled back
rated    nothing runs; r has a rate of one start, which 7 may use, and has not since an hour; 8 waits, of
         another kind
"""

from __future__ import annotations

WAITING, RUNNING, DEAD, ENDED, GRAPH, FRESH, SLOTS, RATED = STARTS = (
    "waiting", "running", "dead", "ended", "graph", "fresh", "slots", "rated",
)  # fmt: skip
# Where no job can be claimed: a worker that listens is idle.
IDLE = (RUNNING, DEAD, GRAPH, SLOTS)
# Where queues were set.
SET = (FRESH, SLOTS, RATED)
# Where each row bears a mark.
MARKED = (SLOTS,)

JOBS = """
    select pyworker.register_worker() from generate_series(1, 3);
    select from pyworker.add_job('t', '[0]', queue_name => 'q', job_key => 'k',
        sequence_policy => '{"key": "s"}');
    select from pyworker.add_job('t', '{"n": 1}', delivery => 'at_most_once',
        unique_policy => '{"keys": ["args"]}');
    select from pyworker.add_job('t', sequence_policy => '{"key": "s"}');
    select from pyworker.add_job('t', queue_name => 'q');
    select from pyworker.add_job('t', '[5]', job_key => 'later',
        run_at => pyworker.clock() + interval '2 days');
    select from pyworker.add_job('t', '[6]', job_key => 'm');
    select from pyworker.add_schedule('tick', '0 0 1 1 *', 't', backfill => '2 years',
        meta => '{"by": "tick"}');
    update pyworker.schedule_entries set next_at = date_trunc('year', pyworker.clock());
"""
# Let in, in the order in which they were added.
PROMOTED = """
    select pyworker.promote_jobs();
    update pyworker.live_jobs set ready_at = run_at where ready_at is not null and state = 'available';
"""
DUE = """
    update pyworker.live_jobs set run_at = run_at - interval '2 days 1 hour',
        due_at = run_at - interval '2 days 1 hour'
    where id = 5;
"""
FIRST_RUNS = """
    update pyworker.live_jobs set run = 1 where state = 'running';
    update pyworker.claims set run = 1;
"""
CLAIMED = f"""
    select from pyworker.claim_jobs(1, 2);
    select from pyworker.claim_jobs(2, 1);
    {FIRST_RUNS}
"""
ENDS = """
    select pyworker.fail_jobs('[{"id": 1, "run": 1, "error": "e", "discard": true}]'),
        pyworker.finish_job(2, 1), pyworker.finish_job(6, 1);
"""
LINE = f"""
    select pyworker.add_job('t', sequence_policy => '{{"key": "z", "continue_on_cancelled": true}}')
    from generate_series(7, 9);
    select pyworker.promote_jobs();
    select from pyworker.claim_jobs(2, 1, '{{t}}', '{{default}}');
    {FIRST_RUNS}
"""
HALTS = f"""
    {LINE}
    select from pyworker.add_job('t', sequence_policy => '{{"key": "s"}}');
    select pyworker.fail_jobs('[{{"id": 7, "run": 1, "error": "e", "discard": true}}]');
"""
CHILDREN = f"""
    select from pyworker.add_job('t', depends_on => '[{{"id": 2, "on": "end"}}, {{"id": 6, "on": "end"}}]');
    select from pyworker.add_job('t', job_key => 'c', depends_on => '{{"jobs": [1], "on_unmet": "cancel"}}');
    select from pyworker.add_job('t', depends_on => '[7]');
    select from pyworker.add_job('t', priority => -1);
    select pyworker.promote_jobs();
    select from pyworker.claim_jobs(2, 1);
    {FIRST_RUNS}
    select pyworker.wait_for_signal(10, 1, 'go');
    select pyworker.promote_jobs();
"""
# Not by set_queue: the change of a queue makes each promotion look again, which hides what is forgotten.
SETTINGS = "select setval('pyworker.settings_used', 1000000);"
TWO_SLOTS = SETTINGS + "insert into pyworker.queues (queue_name, concurrency) values ('q', 2);"
# As if they had been added while their queues were full, and each end since had left a request.
PARKED = """
    select from pyworker.add_job('u', queue_name => 'r');
    update pyworker.live_jobs set queue_name = coalesce(queue_name, 'r'), ready_at = null,
        parked = 'queue'
    where id in (4, 6, 7);
    insert into pyworker.promotion_requests (lane) values ('queue:q'), ('queue:r');
"""
ASKED = """
    insert into pyworker.promotion_requests (lane) values ('sequence:s'), ('queue:q');
"""
RATE = f"""
    {SETTINGS}
    insert into pyworker.queues (queue_name, concurrency, rate_limit, rate_period)
    values ('r', null, 1, '1 hour');
"""
KINDS = """
    select from pyworker.add_job('t', queue_name => 'r', run_at => pyworker.clock() - interval '1 hour');
    select from pyworker.add_job('u', queue_name => 'r', run_at => pyworker.clock() - interval '1 hour');
"""
MAKE = {
    WAITING: JOBS + PROMOTED + DUE,
    RUNNING: JOBS + PROMOTED + CLAIMED + LINE,
    DEAD: JOBS + PROMOTED + CLAIMED,
    ENDED: JOBS + PROMOTED + CLAIMED + ENDS + HALTS + DUE,
    GRAPH: JOBS + PROMOTED + CLAIMED + CHILDREN,
    FRESH: TWO_SLOTS + JOBS + PARKED,
    SLOTS: TWO_SLOTS
    + JOBS
    + PROMOTED
    + "select from pyworker.complete_jobs('{3}');"
    + PROMOTED
    + "select from pyworker.claim_jobs(1, 2); select from pyworker.claim_jobs(2, 2);"
    + FIRST_RUNS
    + ASKED,
    RATED: RATE + JOBS + KINDS + PROMOTED + PROMOTED,
}
