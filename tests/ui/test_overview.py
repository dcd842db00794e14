"""What the overview, the page of health and the lists tell a person on call."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.pages import read


def test_what_doctor_finds_is_on_the_page_of_health_and_on_the_overview(client, queue):
    mark = "update pg_index set indisvalid = %s where indexrelid = 'pyworker.live_jobs_job_key'::regclass"
    queue.rows(mark, [False])  # as a REINDEX CONCURRENTLY that has failed leaves it
    try:
        c = client()
        health = " ".join(read(c.get("/health")).text.split())
        assert "Error, indexes" in health
        assert "live_jobs_job_key" in health
        assert "live_jobs_job_key" in read(c.get("/")).text
    finally:
        queue.rows(mark, [True])


def test_a_list_offers_the_actions_that_its_jobs_allow(client, queue, worker):
    queue.add_job("t")
    queue.run(worker, "t", "boom", discard=True)
    queue.add_job("t")

    def offered(query):
        return re.findall(r'name="action" value="(\w+)"', client().get(f"/jobs{query}").text)

    assert offered("?state=discarded") == ["retry", "delete"]
    assert offered("?state=available") == ["cancel", "delete"]
    assert offered("") == ["retry", "cancel", "force_cancel", "delete"]


@pytest.mark.parametrize("range", ["15m", "1h", "24h", "7d"])
def test_the_plots_have_axes_and_show_the_chosen_range(client, queue, worker, range):
    job = queue.add_job("t")
    claimed = queue.run(worker, "t")
    queue.rows("select pyworker.finish_job(%s, %s)", [job.id, claimed.run])
    page = read(client().get(f"/?range={range}"))
    classes = [attributes.get("class") for _, attributes in page.elements]
    assert classes.count("of") >= 5  # labels of the two scales
    assert classes.count("grid") == classes.count("of")
    assert "1 completed and 0 attempts failed" in page.text


def test_queues_that_wait_are_shown_with_their_usual_wait_and_marked_as_late(client, queue, worker):
    for name, task in (("mails", "mail"), ("late", "slow")):
        queue.add_job(task, queue_name=name)
        claimed = queue.run(worker, task)
        queue.rows("select pyworker.finish_job(%s, %s)", [claimed.id, claimed.run])
    queue.add_job("slow", queue_name="late", run_at=datetime.now(UTC) - timedelta(minutes=5))
    queue.add_job("mail", queue_name="mails")
    queue.add_job("mail")
    queue.add_job("mail", queue_name="stopped")
    queue.pause_queue("stopped")
    page = read(client().get("/"))
    table = page.text[page.text.index("Queues that wait") : page.text.index("Busiest tasks")]
    text = " ".join(table.split())
    assert re.search(r"late late 5 min (\d+ s )?\S+ m?s \d+ mails \d", text), text
    assert re.search(r"default \S+ m?s unknown yet \d", text), text
    assert "stopped paused" in text
    links = [attributes.get("href", "") for _, attributes in page.elements]
    assert "/jobs?queue=default&state=available" in links


def test_an_unknown_range_is_explained(client, queue):
    assert "range must be one of 15m, 1h, 24h, 7d" in read(client().get("/?range=1y"), 400).text


def test_where_there_is_nothing_a_page_says_so_in_a_sentence(client, queue, worker):
    text = " ".join(read(client().get("/")).text.split())
    for sentence in (
        "Nothing needs attention.",
        "No job ended in the last hour.",
        "No job was completed in the last hour, so no time was measured.",
        "No job waits for a worker.",
        "No job is running.",
    ):
        assert sentence in text


def test_equal_failures_are_one_event_of_the_timeline(client, queue, worker):
    job = queue.add_job("t")
    for error in ["one", *["Traceback\nboom"] * 5]:
        queue.run(worker, "t", error)
        queue.retry_job(job.id)
    text = " ".join(read(client().get(f"/jobs/{job.id}")).text.split())
    assert "failed 5 times from" in text
    assert "5, the newest first" in text
    assert "select * from pyworker.cancel_job" in text
    assert "Retry" not in text  # it is available
