"""Text of others in every field, on every page of `pyworker ui`. test_pages has more strings."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

import pytest
from psycopg.types.json import Jsonb

from tests.support.databases import CLEAN
from tests.support.pages import Reader
from tests.support.site import SECURITY, Site

EVIL = [
    "<script>alert(1)</script>", "\"><img src=x onerror=alert(1)>", "' onmouseover='alert(1)",
    "javascript:alert(1)",
    "</title></svg><script>alert(1)</script>", "<svg onload=alert(1)>", "%2$s{{7*7}}", "\u202e<b>x",
]  # fmt: skip


@pytest.mark.slow
def test_no_page_has_an_element_or_attribute_that_came_from_data(attacked: Any, queue: Any) -> None:
    """Compared, page by page, with the same pages of harmless data: same elements, same attributes."""
    site = attacked("--show-payloads")
    harmless = shapes(site, queue, "harmless")
    for evil in EVIL:
        for (path, was), (_, now) in zip(harmless, shapes(site, queue, evil), strict=True):
            assert now <= was | {("details", "open"), ("a", "rel")}, (evil, path)


def shapes(site: Site, queue: Any, word: str) -> list[Any]:
    queue.rows(CLEAN)
    jobs, given = planted(queue, word), quote(word)
    paths = [
        "/", "/jobs", "/queues", "/sequences", "/schedules", "/workers", "/health", "/audit", "/?range=24h",
        *(f"/jobs/{job}" for job in jobs), f"/jobs?search={given}", f"/jobs?task={given}&queue=x",
        f"/jobs?state={given}", f"/confirm?action={given}&target=1", f"/?range={given}", f"/{given}",
        f"/confirm?action=cancel&target={jobs[0]}&target={jobs[-1]}", f"/jobs?after={given}",
        f"/confirm?action=pause_queue&target={given}", f"/confirm?action=cancel&all=1&key={given}",
        f"/confirm?action=set_queue&target={given}&concurrency=1&rate_period={given}",
        f"/?done=1-9&x={given}",
    ]  # fmt: skip
    found = []
    for path in paths:
        page = site.ask(path)
        assert SECURITY.items() <= page.headers.items(), path
        reader = Reader(page.text)
        elements = reader.elements
        assert word in reader.text or path in ("/", "/health") or not path.startswith("/jobs/"), path
        links = [names.get(name) for _, names in elements for name in ("href", "src", "action")]
        leading_out = r"(?i)\s*(javascript|data|vbscript|https?):|//"
        assert not [link for link in links if re.match(leading_out, link or "")], path
        found.append((path, {(tag, name) for tag, names in elements for name in [None, *names]}))
    return found


def planted(queue: Any, word: str) -> list[int]:
    """This word in every field that a job, a worker, a queue, a schedule or an action has."""
    facts = {name: word for name in ("name", "host", "pid", "version", "condition")}
    lists = {name: [word] for name in ("queue_names", "task_identifiers", "modules", "forbidden_flags")}
    worker = queue.register_worker(
        Jsonb(facts | lists | {"concurrency": 3, "definitions": {word: {"max_attempts": 3}}})
    )[0]
    queue.define_task(word, max_attempts=9)
    queue.add_schedule(word, "* * * * *", word, Jsonb({word: word}), queue_name=word)
    queue.rows("update pyworker.schedule_entries set last_error = %s", [word])
    running = queue.add_job(
        word, Jsonb({word: word}), queue_name="x", meta=Jsonb({word: [word]}), flags=[word], job_key=word
    )
    run = queue.rows("select * from pyworker.claim_jobs(%s, 1)", [worker])[0].run
    queue.log_job(running.id, run, word, "warning")
    queue.set_progress(running.id, run, 0.5, word)
    queue.save_step(running.id, run, word, Jsonb(word))
    queue.send_signal(running.id, word, Jsonb({word: word}))
    queue.add_jobs(Jsonb([
        {"identifier": word, "ref": word}, {"identifier": word, "depends_on": [word, running.id],
        "queue_name": word},
    ]))  # fmt: skip
    for _ in range(2):
        queue.add_job(word, sequence_policy=Jsonb({"key": word}), max_attempts=1, priority=-5)
    failed = queue.run(worker, word, f"Traceback\n{word}\n{word}", discard=True)
    queue.rows("select pyworker.perform_action('pause_queue', array[%s], %s)", [word, word])
    queue.rows("select pyworker.perform_action('retry', array[%s], %s)", [str(failed.id), word])
    return sorted(row.id for row in queue.rows("select id from pyworker.jobs"))
