"""On a phone nothing is cut off at the right, however long names are."""

from __future__ import annotations

import pytest
from psycopg.types.json import Jsonb

pytestmark = pytest.mark.slow

PATHS = (
    "",
    "jobs",
    "queues",
    "sequences",
    "schedules",
    "workers",
    "health",
    "audit",
    "confirm?action=retry&target=1",
)


@pytest.mark.parametrize("width", [360, 390])
def test_no_page_is_wider_than_a_phone(page, site, queue, worker, width):
    long = "customer-with-a-name-that-nobody-expected " * 2
    queue.set_queue(long, 12, rate_limit=1000, rate_period="90 minutes")
    queue.set_queue("customer:*", 1, fair=True)
    for task in ("head", "tail"):
        queue.add_job(task, queue_name=long, sequence_policy={"key": long})
    queue.run(worker, "head", "Traceback\nValueError: " + "no" * 200, discard=True)
    queue.add_schedule(long, "0 4 * * mon-fri", "report", timezone="America/Argentina/ComodRivadavia")
    queue.rows("select pyworker.perform_action('pause_queue', array[%s], 'ada')", [long])
    page.set_viewport_size({"width": width, "height": 844})
    base, found = site(), {}
    for path in PATHS:
        page.goto(f"{base}/{path}")
        wide = page.evaluate(
            "[...document.querySelectorAll('html, .scroll, .card, .note')]"
            ".filter((e) => e.scrollWidth > e.clientWidth + 1 && !e.querySelector('.plot'))"
            ".map((e) => `${e.className || e.tagName} ${e.scrollWidth} > ${e.clientWidth}`)"
        )
        found[path] = wide
    assert {path: wide for path, wide in found.items() if wide} == {}


@pytest.mark.parametrize("width", [360, 390])
def test_the_keys_of_two_jobs_that_differ_at_their_ends_are_shown_whole(page, site, queue, width):
    for customer in (1017, 1018):
        payload = {"customer_id": f"a-long-name-before-{customer}"}
        queue.add_job("sync_account_of_customer", Jsonb(payload), queue_name=f"accounts of {customer}",
                      sequence_policy={"by_args": ["customer_id"]})  # fmt: skip
    page.set_viewport_size({"width": width, "height": 844})
    page.goto(f"{site()}/jobs")
    cut = page.evaluate(
        "[...document.querySelectorAll('table.jobs .tags')]"
        ".filter((e) => e.scrollWidth > e.clientWidth + 1 || e.scrollHeight > e.clientHeight + 1)"
        ".map((e) => e.textContent)"
    )
    assert cut == []
    assert all(f"before-{customer}" in page.inner_text("table.jobs") for customer in (1017, 1018))
