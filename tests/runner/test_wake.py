"""When a worker looks for jobs: as soon as there are some, and not for nothing."""

from __future__ import annotations

from typing import Any

import psycopg


def test_each_call_that_makes_a_job_available_wakes_an_idle_worker(queue: Any) -> None:
    """Thirty times, which by polling every two seconds would take longer than the deadline."""
    other = queue.value("select pyworker.register_worker()")
    held = queue.add("note")
    queue.rows("select * from pyworker.claim_jobs(%s)", other)
    worker = queue.start()
    queue.rows(
        """
        create function pg_temp.add() returns trigger language plpgsql as
            $$begin perform pyworker.add_job('note', to_json(new),
                job_key => 'by trigger'); return new; end$$;
        create temp table users (name text);
        create trigger add after insert on users for each row execute function pg_temp.add()"""
    )
    ways = [
        "select (pyworker.add_job('note')).id",
        "select (pyworker.add_job('note', queue_name => 'q')).id",
        """select max(id) from pyworker.add_jobs('[{"identifier": "note"}, {"identifier": "note"}]')""",
        "with u as (insert into users values ('ada') returning 1) select currval('pyworker.job_ids') from u",
        "select (pyworker.retry_job((pyworker.add_job('note', run_at => '2100-01-01')).id)).id",
        "select id from pyworker.reschedule_jobs(array[(pyworker.add_job('note', run_at => "
        "'2100-01-01')).id], now())",
    ]
    with queue.in_one_deadline():
        worker.until_ready()
        queue.value("select null from pyworker.force_unlock_workers(array[%s])", str(other))
        queue.until_state("completed", held)
        for number in range(30):
            worker.until_ready()
            queue.until_state("completed", queue.value(ways[number % len(ways)]))
    assert worker.stop() == 0


def start_with_gate(fresh_queue: Any) -> Any:
    """A worker whose turn stands at gate 1 when it has claimed fewer jobs than it had room for."""
    fresh_queue.rows(
        """
        create or replace function pyworker._again_in(
            asked boolean, next_at timestamptz, xmin xid8, behind float8) returns float8 language plpgsql as
            $$begin perform pg_advisory_xact_lock_shared(77, 1); return 1; end$$"""
    )
    return fresh_queue.start()


def test_a_job_that_is_added_while_a_claim_is_under_way_is_not_overlooked(fresh_queue: Any) -> None:
    """Its notification arrives together with the answer that there is nothing to do. Twenty times:
    see above."""
    worker = start_with_gate(fresh_queue)
    with fresh_queue.in_one_deadline():
        for _ in range(20):
            worker.until_ready()
            fresh_queue.close_gate(1)
            fresh_queue.rows("notify pyworker")  # a false alarm, so that it looks
            fresh_queue.until_waiting(1)  # it has found nothing, and not heard of that yet
            job_id = fresh_queue.add("note")
            fresh_queue.open_gate(1)
            fresh_queue.until_state("completed", job_id)
    assert worker.stop() == 0


def test_a_long_poll_interval_does_not_let_notifications_lapse(queue: Any) -> None:
    worker = queue.start("--poll-interval", "3600").until_ready()
    queue.value("select setval('pyworker.listening_until', 0)")  # as if the mark had run out
    queue.until_state("completed", queue.add("note"))
    assert worker.stop() == 0


def test_without_notifications_polling_finds_the_job(queue: Any) -> None:
    worker = queue.start("--poll-interval", "0.2").until_ready()
    queue.rows("set pyworker.notify = off")
    listener = psycopg.connect(queue.dsn, autocommit=True)
    listener.execute("listen pyworker")
    job_id = queue.add("note")
    queue.until_state("completed", job_id)
    assert list(listener.notifies(timeout=0)) == []
    listener.close()
    assert worker.stop() == 0


def test_jobs_start_when_they_fall_due_not_when_a_worker_polls(queue: Any) -> None:
    """Thirty times: see above."""
    worker = queue.start().until_ready()
    with queue.in_one_deadline():
        jobs = [
            queue.value("select (pyworker.add_job('note', run_at => now() + interval '0.2 s')).id"),
            queue.add("again", {"snooze": 0.05, "runs": 30}),
            queue.add("again", {"error": True, "runs": 30}, max_attempts=100),
        ]
        queue.until_state("completed", *jobs)
    assert [queue.job(job_id).attempts for job_id in jobs] == [1, 1, 30]
    assert worker.stop() == 0
