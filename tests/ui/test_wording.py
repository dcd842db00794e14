"""The words on the pages: those of a person, not those of a table."""

from __future__ import annotations

import re

import pytest

from tests.support.pages import read


def words(client, path):
    return re.sub(r"\s+", " ", read(client().get(path)).text)


def test_a_worker_without_a_name_is_named_once(client, queue, worker):
    queue.update_worker(worker, {"host": "web-1", "pid": 4711})
    assert f"Workers Worker {worker} on web-1, pid 4711" in words(client, "/workers")


def test_a_schedule_says_where_it_was_declared(client, queue):
    queue.add_schedule("by hand", "0 4 * * *", "report")
    item = '[{"name": "%s", "cron": "0 * * * *", "identifier": "t"}]'
    for origin, name in (("code:shop.tasks", "of code"), ("crontab:prod", "of a file")):
        queue.rows("select pyworker.declare_schedules(array[%s], %s)", [origin, item % name])
    page = words(client, "/schedules")
    for line in (
        "added by SQL",
        "from the code of shop.tasks",
        "from the crontab prod",
    ):
        assert line in page


@pytest.mark.parametrize(
    ("zone", "clock"), [("UTC", "04:00+00"), ("Asia/Kolkata", "04:00+0530"), ("America/Caracas", "04:00-04")]
)
def test_a_tick_has_the_distance_of_its_clock_from_utc(client, queue, zone, clock):
    queue.add_schedule("nightly", "0 4 * * *", "report", timezone=zone)
    assert len(re.findall(rf"[A-Z][a-z]{{2}} {re.escape(clock)}(?!\d)", words(client, "/schedules"))) == 3


def test_a_sequence_has_the_name_that_people_gave_it(client, queue):
    queue.add_job("sync", {"customer": 42}, sequence_policy={"by_args": ["customer"]})
    page = words(client, "/sequences")
    assert "42" in page
    assert "{" not in page


def test_limits_are_read_as_a_sentence(client, queue):
    queue.set_queue("mail", 3, rate_limit=5, rate_period="90 min")
    limits = "concurrency=3&rate_limit=5&rate_period=1+min"
    page = words(client, f"/confirm?action=set_queue&target=mail&{limits}")
    assert "Set limits of mail: concurrency 3, at most 5 in 1 min?" in page
    read_only = re.sub(r"\s+", " ", read(client(read_only=True).get("/queues")).text)
    assert "concurrency 3, at most 5 in 1 h 30 min" in read_only


def test_the_page_of_a_running_job_tells_of_this_run_and_that_of_an_ended_one_of_the_last(
    client, queue, worker
):
    job = queue.add_job("t", job_key="k")
    queue.add_job("t", job_key="k")
    run = queue.run(worker, "t")
    page = words(client, f"/jobs/{job.id}")
    assert re.search(r"This run has taken [\d.]+ m?s so far\.", page)
    assert re.search(r"Replaced ?once", page)
    queue.rows("select pyworker.finish_job(%s, %s)", [job.id, run.run])
    assert re.search(r"The last run took [\d.]+ m?s\.", words(client, f"/jobs/{job.id}"))


def test_the_audit_shows_the_reason_of_a_refusal_without_the_name_of_a_function(client, queue):
    queue.rows("select pyworker.perform_action('delete', '{77}', 'ada')")
    page = words(client, "/audit")
    assert "there is no job 77" in page
    assert "delete_job:" not in page
