"""axe-core finds no serious problem on any page: `npm install axe-core`, PYWORKER_AXE=…/axe.min.js."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

AXE = os.environ.get("PYWORKER_AXE")


@pytest.mark.skipif(not AXE, reason="PYWORKER_AXE names no axe.min.js (npm install axe-core)")
@pytest.mark.parametrize(
    ("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 390), ("dark", 390)]
)
def test_no_page_has_a_serious_problem(browser, site, queue, worker, scheme, width):
    for task in ("head", "tail"):
        queue.add_job(task, sequence_policy={"key": "s"})
    failed = queue.run(worker, "head", "Traceback\nValueError: no", discard=True)
    queue.add_job("t", queue_name="q", job_key="k", meta={"tenant": "acme"})
    queue.run(worker, "t")
    queue.add_job("misspelt", queue_name="paused")
    queue.update_worker(worker, '{"task_identifiers": ["t"], "concurrency": 12, "memory": 99000000}')
    queue.pause_queue("paused")
    queue.add_schedule("nightly", "0 4 * * *", "report")
    queue.rows("select pyworker.perform_action('pause_schedule', '{nightly}', 'ada')")
    (acted,) = queue.rows("select audit_id from pyworker.perform_action('retry', '{1}', 'local')")
    context = browser.new_context(
        viewport={"width": width, "height": 844}, color_scheme=scheme, bypass_csp=True
    )
    page, base = context.new_page(), site(show_payloads=True)
    problems = {}
    for path in (
        "/", "/jobs", "/jobs?state=completed", f"/jobs/{failed.id}", "/queues", "/sequences", "/schedules",
        "/workers", "/health", "/audit", f"/queues?done=1-{acted.audit_id}",
        f"/confirm?action=delete&target={failed.id}",
        "/confirm?action=retry&all=1&state=discarded", "/nothing",
    ):  # fmt: skip
        page.goto(base + path)
        page.add_script_tag(content=Path(AXE).read_text("utf-8"))
        for found in page.evaluate("axe.run().then((result) => result.violations)"):
            if found["impact"] in ("serious", "critical"):
                nodes = [node["html"][:160] for node in found["nodes"][:3]]
                problems[path, found["id"]] = [found["help"], *nodes]
    context.close()
    assert problems == {}
