"""An action on very many jobs takes several requests: none of them runs for minutes."""

from __future__ import annotations

import pytest

from pyworker.ui import _perform


@pytest.fixture
def jobs(queue, monkeypatch):
    """1,200 jobs, of which a request does one chunk."""
    monkeypatch.setattr(_perform, "ONE_REQUEST", 0.0)
    queue.rows("select pyworker.add_job('mail', run_at => '2100-01-01') from generate_series(1, 1200)")
    return queue


def cancel_all(page, site):
    page.goto(f"{site()}/jobs?state=scheduled")
    page.get_by_label("all 1,200 that match").check()
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_role("button", name="Yes, cancel").click()


def test_an_action_goes_on_request_by_request_to_its_end(page, site, jobs):
    posted = []
    page.on("request", lambda request: posted.append(request.url) if request.method == "POST" else None)
    cancel_all(page, site)
    page.get_by_role("status").get_by_text("Cancel: 1,200 done").wait_for()
    assert len(posted) == 3
    assert jobs.rows("select state, count(*) from pyworker.history group by 1") == [("cancelled", 1200)]


def test_without_scripts_a_person_continues_or_stops_and_sees_what_was_done(browser, site, jobs):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    told = page.get_by_role("status")
    heading = page.get_by_role("heading", level=1)
    cancel_all(page, site)
    assert heading.inner_text() == "Cancel: 500 done so far"
    page.get_by_role("button", name="Continue").click()
    assert heading.inner_text() == "Cancel: 1,000 done so far"
    page.get_by_role("link", name="Stop here").click()
    assert "Cancel: 1,000 done" in told.inner_text()
    assert jobs.rows("select count(*) from pyworker.jobs") == [(200,)]
    context.close()
