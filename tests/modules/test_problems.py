"""What keeps jobs from running, as the overview shows it first."""

from __future__ import annotations

import re

import pytest


@pytest.fixture(autouse=True)
def nothing_has_happened(api):
    """The figures come from the last pages of these tables, which may have many from tests before."""
    api.rows("truncate pyworker.finished_jobs, pyworker.errors")


def found(api):
    return {row.check_name: row for row in api.rows("select * from pyworker.problems()")}


def test_nothing_is_found_while_all_is_well(api, worker):
    api.add_job("t")
    assert found(api) == {}


def test_a_task_that_no_live_worker_knows_is_named(api, worker):
    api.update_worker(worker, '{"task_identifiers": ["t"]}')
    api.add_job("misspelt")
    assert "misspelt (1)" in found(api)["tasks"].finding


def test_halted_sequences_and_paused_queues_come_with_the_sql_that_resumes_them(api, worker):
    for task in ("head", "tail"):
        api.add_job(task, sequence_policy={"key": "s"})
    api.fail(api.claim(worker, "head"), discard=True)
    api.add_job("t", queue_name="q")
    api.pause_queue("q")
    problems = found(api)
    for check in ("sequences", "queues"):
        api.rows(problems[check].fix)
    assert not {"sequences", "queues"} & set(found(api))


def test_what_was_discarded_in_the_last_hour_is_counted_by_task_and_its_fix_retries_it(api, worker, clock):
    for _ in range(3):
        api.add_job("mail")
        api.fail(api.claim(worker), "Traceback\nSMTPError: closed", discard=True)
    row = found(api)["discarded"]
    assert row.finding == "discarded in the last hour: 3 jobs: mail (3, SMTPError: closed)"
    api.rows(row.fix)
    assert api.rows("select distinct state from pyworker.jobs") == [("available",)]
    for _ in range(3):
        api.fail(api.claim(worker), "boom", discard=True)
    clock.advance(hours=2)
    api.heartbeat(worker)
    assert "discarded" not in found(api)


def test_a_queue_whose_oldest_job_waits_four_times_longer_than_usual_is_late(api, worker, clock):
    def run_late(seconds):
        api.add_job("t", queue_name="q")
        clock.advance(seconds=seconds)
        api.heartbeat(worker)
        job = api.claim(worker)
        api.finish_job(job.id, job.run)

    run_late(30)
    waits = api.add_job("t", queue_name="q")
    clock.advance(seconds=90)
    api.heartbeat(worker)
    assert "waiting" not in found(api)
    clock.advance(seconds=60)
    api.heartbeat(worker)
    row = found(api)["waiting"]
    expected = rf"queue q for 2 min 3\d s \(job {waits.id}; 95 % of its jobs waited at most 3\d\.\d s\)"
    assert re.search(expected, row.finding)
    api.pause_queue("q")
    assert "waiting" not in found(api)


def waiting(api):
    return {row.queue_name: row for row in api.rows("select * from pyworker.waiting_queues()")}


def test_queues_that_wait_are_listed_with_their_usual_wait_and_whether_they_are_late(api, worker, clock):
    assert waiting(api) == {}
    for queue in ("q", "paused"):
        api.add_job("t", queue_name=queue)
    clock.advance(seconds=30)
    api.heartbeat(worker)
    for job in [api.claim(worker), api.claim(worker)]:
        api.finish_job(job.id, job.run)
    api.pause_queue("paused")
    first = api.add_job("t", queue_name="paused")
    clock.advance(seconds=1)
    for queue in ("q", "q", None):
        api.add_job("t", queue_name=queue)
    clock.advance(seconds=50)
    rows = waiting(api)
    assert list(rows) == ["paused", "q", "default"]  # the longest first
    assert [round(row.seconds) for row in rows.values()] >= [51, 50, 50]
    assert rows["paused"].job_id == first.id
    assert [row.usual_p95 and row.usual_p95 // 5 for row in rows.values()] == [6, 6, None]
    assert not any(row.late for row in rows.values())
    clock.advance(seconds=20)
    assert [name for name, row in waiting(api).items() if row.late] == ["default"]  # there is no usual yet
    clock.advance(seconds=60)
    rows = waiting(api)
    assert [name for name, row in rows.items() if row.late] == ["q", "default"]
    assert rows["paused"].paused
    api.heartbeat(worker)
    finding = found(api)["waiting"].finding
    assert "queue default for" in finding
    assert "queue q for" in finding
    assert "paused" not in finding


def test_of_many_queues_that_wait_the_longest_waiting_are_listed(api, worker, clock):
    for n in range(12):
        api.add_job("t", queue_name=f"q{n}")
        clock.advance(seconds=1)
    assert list(waiting(api)) == [f"q{n}" for n in range(10)]
    names = "array(select queue_name from pyworker.waiting_queues"
    assert api.value(f"select {names}(2))") == ["q0", "q1"]
    assert len(api.value(f"select {names}(1000))")) == 12
    assert api.value(f"select {names}(-1))") == []


def test_a_role_that_may_only_look_sees_them(api, db):
    assert api.value("select has_function_privilege('pyworker_reader', 'pyworker.problems()', 'execute')")
    assert not api.value(
        "select has_function_privilege('pyworker_reader', 'pyworker.perform_action(text, text[], text,"
        " jsonb)', 'execute')"
    )


# -- what has happened lately ----------------------------------------------------------------------


def run_some(api, worker, clock):
    for task, queue, seconds in (("slow", "q", 20), ("slow", "q", 10), ("quick", None, 10)):
        api.add_job(task, queue_name=queue)
        job = api.claim(worker)
        clock.advance(seconds=seconds)
        api.heartbeat(worker)
        api.finish_job(job.id, job.run)
    api.add_job("slow", queue_name="q")
    api.fail(api.claim(worker))
    api.cancel_job(api.add_job("quick").id)


def test_activity_tells_of_each_task_and_each_queue_what_ended_and_how_long_it_ran(api, worker, clock):
    run_some(api, worker, clock)
    columns = "name, completed, cancelled, failed, round(ran_total::numeric, -1) as ran"
    tasks = api.rows(f"select {columns} from pyworker.activity('task') order by name")
    assert tasks == [("quick", 1, 1, 0, 10), ("slow", 2, 0, 1, 30)]
    queues = api.rows(f"select {columns} from pyworker.activity('queue') order by name")
    assert queues == [("default", 1, 1, 0, 10), ("q", 2, 0, 1, 30)]
    slowest = api.rows("select * from pyworker.activity('task') where name = 'slow'")[0]
    assert 9.9 < slowest.ran_p50 < 15
    assert 19.9 < slowest.ran_p95 < 25
    clock.advance(hours=2)
    assert api.rows("select * from pyworker.activity('task')") == []


def test_throughput_in_longer_steps_has_the_same_sums(api, worker, clock):
    run_some(api, worker, clock)
    clock.advance(minutes=20)
    for minutes, step in ((60, 1), (60, 15), (1440, 15), (10080, 120)):
        rows = api.rows(f"select * from pyworker.throughput({minutes}, {step})")
        assert len(rows) == minutes // step
        assert [sum(row[at] for row in rows) for at in (1, 2, 3)] == [3, 1, 1]
