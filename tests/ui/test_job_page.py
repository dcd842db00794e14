"""The page of a job that waits for others: its graph, progress, steps and signals."""

from __future__ import annotations

from psycopg.types.json import Jsonb

from tests.support.pages import read


def test_a_job_page_draws_the_jobs_before_and_after_and_marks_what_blocks(client, queue, worker):
    first = queue.add_job("fetch")
    second = queue.add_job("fetch")
    child = queue.add_job("report", depends_on=Jsonb([{"id": first.id}, {"id": second.id, "on": "end"}]))
    last = queue.add_job("send", depends_on=Jsonb([child.id]))
    claimed = queue.run(worker, "fetch")
    queue.rows("select pyworker.finish_job(%s, %s)", [claimed.id, claimed.run])
    page = read(client().get(f"/jobs/{child.id}"))
    paths = [attributes["class"] for tag, attributes in page.elements if tag == "path"]
    assert sorted(paths) == ["blocks", "blocks", "met"]  # the second, the last, the first
    for words in (f"{first.id} fetch", "completed", "available", f"{last.id} send", "success", "end"):
        assert words in page.text
    links = [attributes["href"] for tag, attributes in page.elements if tag == "a"]
    assert {f"/jobs/{job.id}" for job in (first, second, last)} <= set(links)
    assert "Jobs before and after" not in read(client().get(f"/jobs/{queue.add_job('t').id}")).text


def test_a_large_fan_in_is_summarised(client, queue, worker):
    jobs = queue.rows("select id from pyworker.add_jobs(%s)", [Jsonb([{"identifier": "t"}] * 1100)])
    child = queue.add_job("all", depends_on=Jsonb([job.id for job in jobs]))
    text = " ".join(read(client().get(f"/jobs/{child.id}")).text.split())
    assert "at least 994 more" in text
    assert "994 available" in text


def test_a_job_page_shows_progress_steps_signals_and_the_log(client, queue, worker):
    queue.add_job("import")
    job = queue.run(worker, "import")
    queue.rows("select pyworker.save_step(%s, %s, 'fetch', '\"hunter2\"')", [job.id, job.run])
    queue.rows("select pyworker.send_signal(%s, 'approved', '\"hunter2\"')", [job.id])
    queue.rows("select pyworker.log_job(%s, %s, 'no <b>paper</b>', 'warning')", [job.id, job.run])
    queue.rows("select pyworker.set_progress(%s, %s, 0.4, 'page 4 of 10')", [job.id, job.run])
    text = " ".join(read(client().get(f"/jobs/{job.id}")).text.split())
    for words in (
        "40 %: page 4 of 10",
        "Steps and answered waits fetch",
        "Signals approved",
        "warning no <b>paper</b>",
    ):
        assert words in text
    assert "hunter2" not in text
    assert "hunter2" in client(show_payloads=True).get(f"/jobs/{job.id}").text
