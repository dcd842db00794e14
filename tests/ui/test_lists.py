"""What a list tells of each of its rows, and how a person finds and sorts them."""

from __future__ import annotations

import re

import pytest

from tests.support.pages import read

from .test_pages import ids


def text_of(client, path):
    return re.sub(r"\s+", " ", read(client().get(path)).text)


def finish(queue, job, seconds):
    """Lets a running job have taken so long."""
    ago = "update pyworker.live_jobs set claimed_at = claimed_at - %s * interval '1 s' where id = %s"
    queue.rows(f"{ago} returning id", [seconds, job.id])
    queue.rows("select pyworker.finish_job(%s, %s)", [job.id, job.run])


@pytest.mark.parametrize(
    "words", ["ID", "send_newsletter", "newslet", "invoice 7", "customer 12", "DECLINED"]
)
def test_one_box_finds_an_id_a_task_or_part_of_one_a_key_a_queue_and_a_word_of_an_error(
    client, queue, worker, words
):
    queue.add_job("other")
    job = queue.add_job("send_newsletter", job_key="invoice 7", queue_name="customer 12")
    queue.run(worker, "send_newsletter", "ValueError: the card was declined")
    queue.add_job("other", queue_name="another")
    search = str(job.id) if words == "ID" else words
    assert ids(client().get("/jobs", params={"search": search})) == [job.id]


@pytest.mark.parametrize(
    ("heading", "down"), [("Created", [3, 2, 1]), ("Attempts", [2, 1, 3]), ("Run time", [3, 1, 2])]
)
def test_the_headings_sort_by_creation_attempts_and_run_time(client, queue, worker, heading, down):
    for task, failures, seconds in (("a", 1, 20), ("b", 2, 5), ("c", 0, 90)):
        job = queue.add_job(task)
        for _ in range(failures):
            queue.run(worker, task, "no")
            queue.retry_job(job.id)
        finish(queue, queue.run(worker, task), seconds)
    c = client()

    def follow(html):
        (link,) = re.findall(rf'<a href="([^"]+)">{heading}[^<]*</a>', html)
        return c.get("/jobs" + link.replace("&amp;", "&"))

    first = c.get("/jobs") if heading == "Created" else follow(c.get("/jobs").text)
    assert ids(first) == down
    assert ids(follow(first.text)) == down[::-1]


def test_the_oldest_first_leads_on_to_the_newest_without_a_gap(client, queue):
    queue.rows("select pyworker.add_job('t') from generate_series(1, 120)")
    c, found, link = client(), [], "?sort=id&order=up"
    while link:
        html = c.get("/jobs" + link).text
        found += ids(c.get("/jobs" + link))
        following = re.search(r'rel="next" href="([^"]+)"', html)
        link = following[1].replace("&amp;", "&") if following else ""
    assert found == list(range(1, 121))


def test_a_row_says_how_long_the_job_ran_and_on_which_worker(client, queue, worker):
    queue.add_job("report")
    finish(queue, queue.run(worker, "report"), 90)
    page, ago = text_of(client, "/jobs?state=completed"), r"(now|\d+ s ago)"
    assert re.search(rf"1/25 ?{ago} ?ended {ago} ?1 min 3\d s ?{worker} ", page), page


def test_a_row_is_one_line_however_much_it_has_to_tell(page, site, queue, worker):
    long = "a name that is longer than any column can be " * 2
    for n in range(3):
        queue.add_job(
            f"{long} {n}",
            queue_name=f"{long} {n}",
            job_key=f"{long} {n}",
            sequence_policy={"key": f"{long} {n}"},
        )
        queue.run(worker, f"{long} {n}", f"Traceback\nValueError: {long * 5}", discard=True)
    page.goto(f"{site()}/jobs")
    heights = page.locator("table.jobs tbody tr").evaluate_all("rows => rows.map((row) => row.offsetHeight)")
    assert len(heights) == 3
    assert max(heights) <= 36
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_a_worker_says_its_name_load_memory_version_and_queues(client, queue, worker):
    info = {
        "name": "mailer", "host": "web-1", "concurrency": 12, "memory": 128 * 2**20, "version": "0.1.0",
        "queue_names": ["mail", "news"], "task_identifiers": ["t"],
    }  # fmt: skip
    queue.update_worker(worker, info)
    for _ in range(6):
        queue.add_job("t")
        queue.run(worker, "t")
    page = text_of(client, "/workers")
    load = r"mailer worker \d+ on web-1 Load ?6 of 12 ?Memory ?128 MB ?Version ?0\.1\.0 ?Queues ?mail, news"
    assert re.search(load, page), page


def test_a_queue_says_how_long_its_oldest_job_waits_and_what_ended_in_the_last_hour(client, queue, worker):
    for task, error in (("good", None), ("good", None), ("bad", "no")):
        queue.add_job(task, queue_name="mail")
        job = queue.run(worker, task, error, **({"discard": True} if error else {}))
        if not error:
            finish(queue, job, 1)
    queue.add_job("t", queue_name="mail")
    queue.rows("update pyworker.live_jobs set run_at = run_at - interval '5 min' where queue_name = 'mail'"
               " and task_identifier = 't' returning id")  # fmt: skip
    page = " ".join(read(client(read_only=True).get("/queues")).text.split())
    assert re.search(r"mail ?concurrency 1 ?0 ?1 ?5 min (\d+ s )?ago ?2 ?1", page), page


def test_a_queue_says_its_limits_what_runs_and_waits_and_what_is_used_of_its_rate(client, queue, worker):
    queue.set_queue("api", 4, 2, "90 min")
    queue.set_queue("key:*", None, 10, "1 min", True)
    queue.rows("select pyworker.add_job('t', queue_name => 'api') from generate_series(1, 5)")
    queue.rows("select count(*) from pyworker.claim_jobs(%s, 3)", [worker])
    queue.rows("update pyworker.live_jobs set run_at = run_at - interval '5 min' where state = 'available'"
               " returning id")  # fmt: skip
    page = " ".join(read(client(read_only=True).get("/queues")).text.split())
    row = r"api ?concurrency 4, at most 2 in 1 h 30 min ?2 of 2 ?next in 1 h \d\d min ?2 ?3 ?5 min"
    assert re.search(row + r" (\d+ s )?ago", page), page
    assert "key:* no limit, at most 10 in 1 min, fair" in page


EMPTY = {
    "/jobs": "No jobs yet: SELECT pyworker.add_job('task') adds one.",
    "/jobs?search=nothing": "No job matches.",
    "/queues": "No queue has jobs or settings.",
    "/sequences": "No sequence has jobs to run.",
    "/sequences?halted=1": "No sequence is halted.",
    "/schedules": "No schedules: SELECT pyworker.add_schedule(name, cron, task) adds one.",
    "/workers": "No worker is alive. pyworker run MODULE starts one.",
    "/audit": "No actions yet.",
}


@pytest.mark.parametrize("path", EMPTY)
def test_an_empty_list_says_so_in_a_sentence(client, queue, path):
    assert EMPTY[path] in text_of(client, path)
