"""What a person on call sees first, in a real Chromium: above the fold, in one row, in its place."""

from __future__ import annotations

import re

import pytest

pytestmark = pytest.mark.slow

FOLD = 860  # pixels that the page of a laptop shows


def top_of(page, selector):
    return page.locator(selector).first.bounding_box()["y"]


def test_what_is_wrong_comes_first_then_one_row_of_states_then_the_plots(page, site, queue, worker):
    queue.add_job("head", sequence_policy={"key": "s"})
    queue.run(worker, "head", "boom", discard=True)
    queue.add_job("tail", sequence_policy={"key": "s"})
    page.goto(site())
    tiles = page.locator(".strip a").evaluate_all(
        "tiles => tiles.map((tile) => tile.getBoundingClientRect().top)"
    )
    assert len(tiles) == 8
    assert len(set(tiles)) == 1
    assert top_of(page, "#problems .note") < tiles[0] < top_of(page, ".plot, #bars")


def test_what_matters_of_a_job_that_failed_25_times_is_above_the_fold(page, site, queue, worker):
    job = queue.add_job("t")
    for _ in range(25):
        queue.run(
            worker, "t", "Traceback (most recent call last):\n" + "  File\n" * 40 + "ValueError: no card"
        )
        queue.retry_job(job.id)
    page.goto(f"{site()}/jobs/{job.id}")
    for seen in (
        page.get_by_role("heading", level=1),
        page.get_by_role("button", name="Cancel", exact=True),
        page.get_by_role("heading", name="Why it is not running"),
        page.locator("p.bad", has_text="ValueError: no card"),
    ):
        box = seen.bounding_box()
        assert box["y"] + box["height"] <= FOLD
    assert page.locator("#life li").count() <= 4


def rows_of_history(queue):
    """Ten jobs a minute that waited 50 ms, two of them 300 ms; in one minute 1,000 that waited a minute."""
    queue.rows("""
        insert into pyworker.finished_jobs (id, run, attempts, state, claimed_at, updated_at, priority,
            max_attempts, revision, run_at, created_at, task_identifier, delivery, worker_id, finished_at,
            expires_at, reason, payload)
        select nextval('pyworker.job_ids'), 1, 1, 'completed', at, at, 0, 25, 0,
            at - case when m = 20 then interval '1 min' when n <= 2 then interval '300 ms'
                 else interval '50 ms' end,
            at - interval '2 min', 't', 'at_least_once', 1, at, at + interval '1 day', 'completed', '{}'
        from (select m, n, date_trunc('minute', now()) - m * interval '1 min' + interval '30 s' as at
              from generate_series(1, 50) m, generate_series(1, 1000) n where n <= 10 or m = 20) s
        order by at returning 1""")


def test_a_peak_flattens_neither_the_other_columns_nor_the_two_percentiles(page, site, queue, worker):
    rows_of_history(queue)
    page.goto(site())
    heights = page.locator(".plot rect.completed").evaluate_all(
        "all => all.map((r) => r.height.baseVal.value)"
    )
    assert len(heights) == 50
    assert sorted(heights)[25] >= 40
    assert "1,000" in (page.locator(".plot .peak").text_content() or "")
    lines = {
        kind: [float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", path)]
        for kind in ("p50", "p95")
        for path in [page.locator(f".plot path.waited.{kind}").get_attribute("d") or ""]
    }
    p50, p95 = (sorted(lines[kind])[len(lines[kind]) // 2] for kind in ("p50", "p95"))
    assert p50 - p95 >= 15, "they are apart, although a minute of the peak waited 60 s"


def test_the_menu_stays_in_its_place_from_page_to_page(page, site, queue):
    base, places = site(), []
    for path in ("/", "/queues", "/audit"):
        page.goto(base + path)
        links = page.locator("header nav a")
        places.append(links.evaluate_all("all => all.map((one) => one.getBoundingClientRect().left)"))
    assert places[0] == places[1] == places[2]


def test_a_refresh_replaces_nothing_that_has_not_changed(page, site, queue):
    queue.add_job("t")
    page.goto(f"{site()}/jobs")
    page.evaluate(
        "document.querySelector('#j1').mark = document.querySelector('.tabs .running').mark = 'kept'"
    )
    queue.add_job("t")
    page.locator("#j2").wait_for()
    assert page.evaluate("document.querySelector('#j1').mark") == "kept"
    assert page.evaluate("document.querySelector('.tabs .running').mark") == "kept"


def test_enter_opens_the_job_that_j_has_reached(page, site, queue):
    queue.add_job("t")
    page.goto(f"{site()}/jobs")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/jobs/1")


def test_a_paused_queue_and_a_paused_schedule_are_resumed_by_their_buttons(page, site, queue):
    queue.set_queue("q", 1)
    queue.pause_queue("q")
    queue.add_schedule("nightly", "0 4 * * *", "report")
    queue.pause_schedule("nightly")
    base = site()
    for path, paused in (
        ("queues", "select paused from pyworker.queue_stats"),
        ("schedules", "select paused from pyworker.schedules"),
    ):
        page.goto(f"{base}/{path}")
        page.get_by_role("button", name="Resume").click()
        page.get_by_role("button", name="Yes, resume").click()
        page.get_by_role("status").get_by_text("1 done").wait_for()
        assert queue.rows(paused) == [(False,)]


@pytest.mark.parametrize("width", [280, 320])
def test_a_screen_narrower_than_a_phone_cuts_nothing_off(page, site, queue, worker, width):
    queue.set_queue("mail", 12, rate_limit=1000, rate_period="90 minutes")
    queue.add_job("send_newsletter", queue_name="mail", job_key="k", sequence_policy={"key": "s"})
    queue.run(worker, "send_newsletter", "Traceback\nValueError: no", discard=True)
    for _ in range(2):
        queue.add_job("sync_account", queue_name="mail")
    job = queue.run(worker, "sync_account")
    queue.rows("select pyworker.finish_job(%s, %s)", [job.id, job.run])
    queue.add_schedule("nightly", "0 4 * * mon-fri", "report", timezone="Europe/Berlin")
    page.set_viewport_size({"width": width, "height": 600})
    base, found = site(), {}
    for path in (
        "",
        "jobs",
        f"jobs/{job.id}",
        "queues",
        "sequences",
        "schedules",
        "workers",
        "health",
        "audit",
    ):
        page.goto(f"{base}/{path}")
        found[path] = page.evaluate(
            "[...document.querySelectorAll('html, .scroll, .card, .note')]"
            ".filter((e) => e.scrollWidth > e.clientWidth + 1 && !e.querySelector('.plot'))"
            ".map((e) => `${e.className || e.tagName} ${e.id} ${e.scrollWidth} > ${e.clientWidth}`)"
        )
    assert {path: wide for path, wide in found.items() if wide} == {}
