"""Each action in a real Chromium, from the button to what it does, with its result in sight."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow


def confirmed(page, button, yes):
    button.click()
    page.get_by_role("button", name=f"Yes, {yes}").click()
    result = page.get_by_role("status")
    result.wait_for()
    page.wait_for_load_state()  # its style sheet, too: before that, nothing is in its place
    box = result.bounding_box()
    assert 0 <= box["y"] < 860 - box["height"], "the result is in sight"
    return result.inner_text()


@pytest.mark.parametrize(
    ("state", "label", "outcome"),
    [
        ("scheduled", "Retry", "available"),
        ("discarded", "Retry", "available"),
        ("completed", "Retry", "available"),
        ("scheduled", "Cancel", "cancelled"),
        ("running", "Cancel", "running"),
        ("running", "Force cancel", "cancelled"),
        ("discarded", "Delete", None),
    ],
)
def test_an_action_on_a_job(page, site, queue, worker, state, label, outcome):
    job = queue.add_job("t", run_at="2100-01-01" if state == "scheduled" else None)
    if state != "scheduled":
        claimed = queue.run(worker, "t", "boom" if state == "discarded" else None, discard=True)
    if state == "completed":
        queue.rows("select pyworker.finish_job(%s, %s)", [job.id, claimed.run])
    page.goto(f"{site()}/jobs/{job.id}")
    told = confirmed(page, page.get_by_role("button", name=label, exact=True), label.lower())
    assert f"{label}: 1 done" in told
    found = queue.rows("select state from pyworker.get_job(%s)", [job.id])[0].state
    assert found == outcome
    if outcome is None:
        assert page.url.partition("?")[0].endswith("/jobs")


def test_all_that_match_are_counted_confirmed_and_cancelled(page, site, queue):
    queue.rows("select pyworker.add_job('mail', run_at => '2100-01-01') from generate_series(1, 620)")
    queue.rows("select pyworker.add_job('other', run_at => '2100-01-01') from generate_series(1, 3)")
    page.goto(f"{site()}/jobs?search=mail")
    page.locator(".tabs").get_by_text("scheduled").click()
    page.wait_for_url("**state=scheduled**")
    assert "620" in page.locator(".tabs [aria-current]").inner_text()
    page.get_by_label("all 620 that match").check()
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.wait_for_url("**/confirm?**")
    assert "Cancel all 620 jobs that match?" in page.get_by_role("heading", level=1).inner_text()
    queue.add_job("mail", run_at="2100-01-01")
    page.get_by_role("button", name="Yes, cancel").click()
    assert "Cancel: 620 done" in page.get_by_role("status").inner_text()
    count = "select state, count(*) from pyworker.{} group by 1"
    assert queue.rows(count.format("history")) == [("cancelled", 620)]
    assert queue.rows(count.format("jobs")) == [("scheduled", 4)]


def test_a_deletion_is_said_to_be_final_before_it_is_done(page, site, queue):
    job = queue.add_job("t")
    page.goto(f"{site()}/jobs/{job.id}")
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_text("This cannot be undone.").wait_for()


def test_the_bar_of_actions_and_the_result_stay_in_sight_on_a_long_list(page, site, queue):
    queue.rows("select pyworker.add_job('t', run_at => '2100-01-01') from generate_series(1, 50)")
    page.goto(f"{site()}/jobs")
    page.get_by_label("Select job 50").check()
    bar = page.locator(".bar").bounding_box()
    assert bar["y"] + bar["height"] <= 860
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    page.get_by_label("Select job 2", exact=True).check()
    assert "2 selected" in page.locator(".bar").inner_text()
    assert "2 done" in confirmed(page, page.get_by_role("button", name="Cancel", exact=True), "cancel")
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    assert page.get_by_role("status").bounding_box()["y"] >= 0


def test_an_action_that_did_nothing_says_so(page, site, queue):
    job = queue.add_job("t", run_at="2100-01-01")
    page.goto(f"{site()}/jobs/{job.id}")
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.wait_for_url("**/confirm?**")
    queue.cancel_job(job.id)
    page.get_by_role("button", name="Yes, cancel").click()
    told = page.get_by_role("status").inner_text()
    assert "Cancel: nothing done, 1 refused" in told
    assert "it was already cancelled" in told


@pytest.mark.parametrize("kind", ["queues", "schedules"])
def test_a_queue_and_a_schedule_are_paused_and_resumed(page, site, queue, kind):
    queue.set_queue("nightly", 1)
    queue.add_schedule("nightly", "0 4 * * *", "report")
    paused = {
        "queues": "select paused from pyworker.queue_stats where queue_name = 'nightly'",
        "schedules": "select paused from pyworker.schedules",
    }[kind]
    what = kind.removesuffix("s")
    page.goto(f"{site()}/{kind}")
    told = confirmed(page, page.get_by_role("button", name="Pause"), f"pause {what}")
    assert f"Pause {what}: 1 done" in told
    assert queue.rows(paused) == [(True,)]
    told = confirmed(page, page.get_by_role("button", name="Resume"), f"resume {what}")
    assert f"Resume {what}: 1 done" in told
    assert queue.rows(paused) == [(False,)]


def test_the_limits_of_a_queue_are_set_and_taken_away(page, site, queue):
    queue.set_queue("q", 2)
    limits = "select concurrency, rate_limit, rate_period::text from pyworker.queue_stats"
    page.goto(f"{site()}/queues")
    page.get_by_label("Concurrency of q").fill("12")
    page.get_by_label("Rate of q").fill("10")
    page.get_by_label("Period for q").fill("1 min")
    told = confirmed(page, page.get_by_role("button", name="Set"), "set limits")
    assert "concurrency 12, at most 10 in 1 min" in told
    assert queue.rows(limits) == [(12, 10, "00:01:00")]
    page.get_by_label("Concurrency of q").fill("")
    told = confirmed(page, page.get_by_role("button", name="Set"), "set limits")
    assert "no limit, at most 10 in 1 min" in told
    page.get_by_label("Rate of q").fill("")
    assert "no limit" in confirmed(page, page.get_by_role("button", name="Set"), "set limits")
    assert queue.rows(limits) == [(None, None, None)]
    acts = queue.rows("select action, target, ok, outcome from pyworker.audit order by id")
    assert [tuple(act) for act in acts] == [
        ("set_queue", "q", True, "concurrency 12, at most 10 in 1 min"),
        ("set_queue", "q", True, "no limit, at most 10 in 1 min"),
        ("set_queue", "q", True, "no limit"),
    ]


def test_a_change_of_limits_that_is_not_confirmed_changes_nothing(page, site, queue):
    queue.set_queue("q", 2)
    page.goto(f"{site()}/queues")
    page.get_by_label("Rate of q").fill("10")
    page.get_by_label("Period for q").fill("1 min")
    page.get_by_role("button", name="Set").click()
    page.get_by_role("button", name="Yes, set limits").wait_for()
    page.goto(f"{site()}/queues")
    assert queue.rows("select concurrency, rate_limit from pyworker.queue_stats") == [(2, None)]
    assert queue.rows("select from pyworker.audit") == []


def test_the_queues_of_a_family_are_set_to_take_turns(page, site, queue):
    queue.set_queue("customer:*", 2)
    page.goto(f"{site()}/queues")
    page.get_by_label("Turns of customer:*").select_option("true")
    told = confirmed(page, page.get_by_role("button", name="Set"), "set limits")
    assert "concurrency 2, fair" in told
    assert queue.rows("select concurrency, fair from pyworker.queue_stats") == [(2, True)]


def test_a_schedule_is_run_and_a_sequence_resumed(page, site, queue, worker):
    queue.add_schedule("nightly", "0 4 * * *", "report")
    for task in ("head", "tail"):
        queue.add_job(task, sequence_policy={"key": "s"})
    queue.run(worker, "head", "boom", discard=True)
    base = site()
    page.goto(f"{base}/schedules")
    assert "added job" in confirmed(page, page.get_by_role("button", name="Run now"), "run now")
    page.goto(f"{base}/sequences")
    told = confirmed(page, page.get_by_role("button", name="Resume without it"), "resume sequence")
    assert "Resume sequence: 1 done" in told
    assert queue.rows("select * from pyworker.list_sequences(true)") == []


def test_keys_search_walk_the_list_select_and_retry(page, site, queue):
    for _ in range(3):
        queue.add_job("t", run_at="2100-01-01")
    page.goto(f"{site()}/jobs")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.name") == "search"
    page.keyboard.type("t")
    page.keyboard.press("Enter")
    page.wait_for_url("**/jobs?search=t**")
    for key in "jjk":
        page.keyboard.press(key)
    assert page.evaluate("document.activeElement.innerText") == "3"
    page.keyboard.press("x")
    assert page.locator("input[name=target]:checked").count() == 1
    page.keyboard.press("r")
    page.wait_for_url("**/confirm?**")
    page.wait_for_function("document.activeElement.innerText == 'Yes, retry'")
    page.keyboard.press("Enter")
    page.get_by_role("status").wait_for()
    assert queue.get_job(3).state == "available"


def test_a_page_stays_fresh_and_keeps_what_was_opened_and_chosen(page, site, queue):
    job = queue.add_job("t", queue_name="q")
    queue.pause_queue("q")
    page.goto(site())
    page.locator("#problems summary").first.click()
    queue.add_job("t")
    page.locator(".strip .available .count", has_text="2").wait_for()
    assert page.locator("#problems details[open]").count() == 1
    page.goto(page.url + "jobs")
    page.get_by_label(f"Select job {job.id}").check()
    queue.cancel_job(job.id)
    page.locator(".tabs .cancelled .count", has_text="1").wait_for()
    assert page.get_by_label(f"Select job {job.id}").is_checked()


def test_without_scripts_the_pages_and_an_action_on_all_that_match_work(browser, site, queue):
    queue.rows("select pyworker.add_job('t', run_at => '2100-01-01') from generate_series(1, 60)")
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{site()}/jobs?state=scheduled")
    page.get_by_label("all 60 that match").check()
    page.get_by_role("button", name="Retry").click()
    page.get_by_role("button", name="Yes, retry").click()
    assert "Retry: 60 done" in page.get_by_role("status").inner_text()
    context.close()


def test_a_list_of_fifty_jobs_on_a_phone_is_at_most_4000_pixels_high(page, site, queue, worker):
    for n in range(50):
        queue.add_job("send_newsletter", queue_name=f"customer {n}", job_key=f"mail {n}")
        queue.run(worker, "send_newsletter", "Traceback\nSMTPServerDisconnected: closed", discard=True)
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{site()}/jobs?state=discarded")
    assert page.locator("input[name=target]").count() == 50
    assert page.evaluate("document.documentElement.scrollHeight") <= 4000
    links = page.locator("header nav a")
    assert links.count() == 8
    for box in (links.nth(link).bounding_box() for link in range(8)):
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390
