"""What the dashboard says of jobs that were lost: they may have been done."""

from __future__ import annotations

import re

import pytest


def ids(response):
    return [int(number) for number in re.findall(r'name="target" value="(\d+)"', response.text)]


def lost_mails(queue, count):
    """Jobs with delivery at_most_once that were lost."""
    (gone,) = queue.rows("select pyworker.register_worker()")[0]
    for _ in range(count):
        queue.add_job("mail", delivery="at_most_once")
        run = queue.run(gone, "mail")
        assert queue.start_job(run.id, run.run)[0]
    queue.unregister_worker(gone)


def test_no_page_offers_to_send_all_lost_mails_again(client, queue):
    lost_mails(queue, 3)
    for path in ("/", "/health"):
        page = client().get(path).text
        assert "retry_jobs" not in page
        assert "where reason = &#39;lost&#39;" in page
    assert ids(client().get("/jobs?state=discarded&search=lost")) == [3, 2, 1]


@pytest.mark.parametrize("which", ["target=1&target=2&target=3", "all=1&state=discarded"])
def test_a_retry_of_many_jobs_leaves_lost_ones_out_unless_a_box_is_checked(client, queue, which):
    lost_mails(queue, 3)
    browser = client()
    ask = f"/confirm?action=retry&back=/jobs&{which}"
    page = browser.get(ask)
    assert "may have been done. They are left out." in " ".join(page.text.split())
    fields = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page.text))
    if "target" in fields:
        fields["target"] = ["1", "2", "3"]
    for more, state in (({}, "discarded"), ({"lost": "true"}, "available")):
        told = browser.post("/act", data={**fields, **more}).text
        assert ("it was lost, and may have been done" in told) is (state == "discarded")
        assert [queue.get_job(job).state for job in (1, 2, 3)] == [state] * 3


def test_a_retry_of_one_lost_job_asks_whether_it_was_done(client, queue):
    lost_mails(queue, 2)
    browser = client()
    page = browser.get("/confirm?action=retry&back=/jobs&target=1")
    assert "It was lost: it may have been done." in page.text
    fields = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page.text))
    browser.post("/act", data=fields)
    assert [queue.get_job(job).state for job in (1, 2)] == ["available", "discarded"]


def test_a_confirmation_names_the_tasks_of_the_jobs(client, queue):
    queue.add_job("send_mail")
    queue.add_job("charge")
    page = " ".join(
        re.sub(r"<[^>]+>", " ", client().get("/confirm?action=cancel&target=1&target=2").text).split()
    )
    assert "1 send_mail, 2 charge" in page.replace(" ,", ",")


def test_an_ended_job_says_how_it_ended_not_why_it_is_not_running(client, queue):
    queue.add_job("t")
    queue.cancel_job(1)
    page = client().get("/jobs/1").text
    assert "How it ended" in page
    assert "Why it is not running" not in page


def test_the_overview_names_a_sequence_by_its_values(client, queue, worker):
    for _ in range(2):
        queue.add_job("sync", '{"customer_id": 42}', sequence_policy='{"by_args": ["customer_id"]}')
    queue.run(worker, "sync", "boom", discard=True)
    page = client().get("/").text
    assert "halted sequences: sync, customer_id 42 by job 1" in page
