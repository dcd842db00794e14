"""The dashboard in a real Chromium: what only a browser can say. Its `page` fails a test for any
complaint on the console."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .test_pages import XSS
from .test_pages import hostile as hostile

SHOTS = os.environ.get("PYWORKER_SCREENSHOTS")  # a directory: write the pictures of the documentation there


def test_a_job_is_found_cancelled_and_found_cancelled(page, site, queue):
    job = queue.add_job("send_email", run_at="2100-01-01")
    page.goto(site())
    page.get_by_role("link", name="Jobs", exact=True).click()
    page.get_by_label("Find jobs").fill("end_em")
    page.get_by_role("button", name="Find").click()
    page.get_by_role("link", name=str(job.id), exact=True).click()
    assert "not due" in page.locator(".why").inner_text()
    page.get_by_role("button", name="Cancel", exact=True).click()
    assert queue.get_job(job.id).state == "scheduled"
    page.get_by_role("button", name="Yes, cancel").click()
    assert "Cancel: 1 done" in page.get_by_role("status").inner_text()
    assert "cancelled" in page.get_by_role("heading", level=1).inner_text()


def test_many_are_chosen_at_once_and_retried(page, site, queue):
    for _ in range(5):
        queue.add_job("t", run_at="2100-01-01")
    page.goto(f"{site()}/jobs?state=scheduled")
    page.get_by_label("Select all on this page").check()
    assert page.locator("input[name=target]:checked").count() == 5
    page.get_by_role("button", name="Retry").click()
    assert "Retry 5 jobs?" in page.get_by_role("heading", level=1).inner_text()
    page.get_by_role("button", name="Yes, retry").click()
    assert "5 done" in page.get_by_role("status").inner_text()
    assert queue.rows("select distinct state from pyworker.jobs") == [("available",)]


def test_the_overview_counts_by_itself(page, site, queue):
    page.goto(site())
    count = page.locator(".strip .available .count")
    assert count.inner_text() == "0"
    queue.add_job("t")
    page.locator(".strip .available .count", has_text="1").wait_for()


def test_the_keyboard_does_all(page, site, queue):
    """The first stop is the link past the navigation; a harmful act has the focus on its No."""
    job = queue.add_job("t")
    page.goto(f"{site()}/jobs/{job.id}")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.innerText") == "Cancel"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.innerText") == "Delete"
    page.keyboard.press("Enter")
    page.wait_for_url("**/confirm?**")
    # The browser moves the focus only when it draws the page.
    page.wait_for_function("document.activeElement.innerText == 'No, go back'")
    page.keyboard.press("Enter")
    page.wait_for_url("**/jobs/*")
    assert queue.get_job(job.id).state == "available"


def test_every_field_to_fill_in_has_a_name(page, site, queue):
    queue.add_job("t")
    base = site()
    for path in ("/", "/jobs", "/queues", "/schedules", "/sequences", "/health", "/audit"):
        page.goto(base + path)
        unnamed = page.evaluate("""
            [...document.querySelectorAll('input:not([type=hidden]), select, button, a')]
                .filter((e) => !(e.innerText || e.labels?.length || e.getAttribute('aria-label') || e.title))
                .map((e) => e.outerHTML)""")
        assert unnamed == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_what_is_behind_it(page, site, queue, worker, scheme):
    """By the ratio that WCAG asks of text, 4.5, for every colour that the pages use."""
    page.emulate_media(color_scheme=scheme)
    page.goto(site())
    ratios = page.evaluate("""() => {
        const style = getComputedStyle(document.documentElement);
        const probe = document.body.appendChild(document.createElement('i'));
        const rgb = (name) => {
            probe.style.color = style.getPropertyValue(name);
            return getComputedStyle(probe).color.match(/\\d+/g).map(Number);
        };
        const linear = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
        const light = (c) => {
            const [r, g, b] = c.map(linear);
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const ratio = (a, b) => {
            const [x, y] = [light(rgb(a)), light(rgb(b))];
            return (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05);
        };
        const found = { 'on-main': ratio('--on-main', '--main') };
        for (const name of 'text dim link green cyan yellow red violet grey blue'.split(' '))
            for (const back of ['back', 'card'])
                found[`${name} on ${back}`] = ratio('--' + name, '--' + back);
        return found; }""")
    assert len(ratios) == 21
    assert {name: ratio for name, ratio in ratios.items() if ratio < 4.5} == {}


def test_on_a_phone_nothing_is_out_of_sight(page, site, queue, worker):
    page.set_viewport_size({"width": 360, "height": 740})
    job = queue.add_job(
        "a" * 128,
        queue_name="q" * 128,
        job_key="k" * 300,
        sequence_policy={"key": "s" * 100},
        meta={"m": "x" * 200},
    )
    queue.run(worker, "a" * 128, "E" * 400, discard=True)
    queue.add_schedule("n" * 100, "0 4 * * *", "t" * 128)
    base = site()
    for path in (
        "/",
        "/jobs",
        f"/jobs/{job.id}",
        "/queues",
        "/sequences",
        "/schedules",
        "/workers",
        "/audit",
        f"/confirm?action=delete&target={job.id}",
    ):
        page.goto(base + path)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
    page.goto(f"{base}/jobs")
    page.get_by_label("Select all on this page").check()
    assert page.get_by_label(f"Select job {job.id}").is_checked()


@pytest.mark.slow
def test_two_hundred_hostile_strings_run_nowhere(page, site, hostile):
    """The `page` fails for a dialog, an error on its console (which a refusal by the content
    policy would be) and any request elsewhere."""
    base = site(show_payloads=True)
    for path in (
        "/",
        "/jobs",
        "/jobs?after=151",
        "/jobs?after=101",
        "/jobs?after=51",
        "/queues",
        "/sequences",
        "/schedules",
        "/workers",
        "/audit",
    ):
        page.goto(base + path)
        assert (
            page.locator("main script, main iframe, main img, main object, main base, main style").count()
            == 0
        )
    for job_id in range(1, 201, 11):  # of each template and most cores; tests/ui/test_pages.py has them all
        page.goto(f"{base}/jobs/{job_id}")
        assert (
            page.locator("main script, main iframe, main img, main object, main base, main style").count()
            == 0
        )
        assert XSS[job_id - 1].strip() in page.locator("main").inner_text().replace("\u202f", " ")


@pytest.mark.skipif(not SHOTS, reason="PYWORKER_SCREENSHOTS names no directory")
@pytest.mark.parametrize(
    ("name", "scheme", "width"), [("light", "light", 1280), ("dark", "dark", 1280), ("phone", "light", 390)]
)
def test_pictures_for_the_documentation(browser, site, queue, worker, name, scheme, width):
    queue.rows("""
        insert into pyworker.finished_jobs (id, run, attempts, state, claimed_at, updated_at, priority,
            max_attempts, revision, run_at, created_at, task_identifier, queue_name, delivery, worker_id,
            finished_at, expires_at, reason, payload)
        select nextval('pyworker.job_ids'), 1, 1, case when g % 60 = 0 then 'cancelled' else 'completed' end,
               at - interval '0.3 s' * (1 + g % 9), at, 0,
               25, 0,
               at - interval '0.3 s' * (1 + g % 9) - interval '0.05 s' * (g % 40) * (1 + sin(g / 250.0)),
               at - interval '10 s',
               (array['send_email', 'charge', 'reindex', 'thumbnail'])[1 + g % 4],
               case when g % 4 = 1 then 'customer ' || g % 40 end, 'at_least_once', 1,
               at, at + interval '1 day', 'completed', '{}'
        from (select g, now() - interval '65 min' * (1 - (g + 300 * sin(g / 700.0)) / 6000) as at
              from generate_series(1, 6000) g) s
        where at < now() order by g""")  # fmt: skip
    tasks = ["charge", "cleanup", "reindex", "report", "send_email", "sync_account", "thumbnail"]
    info = {"host": "web-1", "pid": 4711, "version": "0.1.0", "modules": ["shop.tasks"], "concurrency": 12}
    info |= {"memory": 128 * 2**20, "task_identifiers": tasks}
    queue.update_worker(worker, info)
    for n in range(30):
        queue.add_job(
            "thumbnail", {"image": n}, queue_name=f"customer {n % 6}", run_at=None if n % 3 else "2100-01-01"
        )
    queue.set_queue("customer 2", 1, rate_limit=60, rate_period="1 minute")
    for n in range(6):
        queue.add_job("sync_account", {"customer": n % 2}, sequence_policy={"key": f"customer {n % 2}"})
    traceback = (
        'Traceback (most recent call last):\n  File "shop/tasks.py", line 12, in sync_account\n'
        "    client.sync(customer)\n"
    )
    queue.run(worker, "sync_account", traceback +
              "ConnectionError: 503 from the billing service", discard=True)  # fmt: skip
    for n in range(4):
        queue.add_job("charge", {"invoice": n}, job_key=f"invoice {n}")
        queue.run(worker, "charge",
            'Traceback (most recent call last):\n  File "shop/tasks.py", line 31, in charge\n'
                  "ValueError: card was declined", discard=n > 1)  # fmt: skip
    for _ in range(3):
        queue.run(worker, "thumbnail")
    queue.add_schedule("nightly report", "0 4 * * mon-fri", "report", timezone="Europe/Berlin")
    queue.add_schedule("cleanup", "*/15 * * * *", "cleanup")
    queue.pause_queue("customer 5")
    failed = queue.rows("select id from pyworker.jobs where state = 'discarded' order by id limit 1")[0].id
    context = browser.new_context(
        viewport={"width": width, "height": 844 if width < 500 else 860}, color_scheme=scheme
    )
    page, base = context.new_page(), site()
    for path in (
        "",
        "jobs?state=discarded",
        f"jobs/{failed}",
        "sequences",
        "schedules",
        "workers",
        "queues",
        f"confirm?action=retry&target={failed}",
    ):
        page.goto(f"{base}/{path}")
        word = "job" if path.startswith("jobs/") else path.partition("?")[0] or "overview"
        if page.evaluate("document.documentElement.scrollHeight") < 860 and width > 500:
            page.set_viewport_size({"width": width, "height": page.evaluate("document.body.scrollHeight")})
        page.screenshot(path=Path(SHOTS) / f"ui-{word}-{name}.png")
        page.set_viewport_size({"width": width, "height": 844 if width < 500 else 860})
    context.close()
