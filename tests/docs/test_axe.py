"""axe-core finds no serious problem on the site: `npm install axe-core`, PYWORKER_AXE=…/axe.min.js."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

AXE = os.environ.get("PYWORKER_AXE")
PAGES = ("index", "concepts", "tutorial", "coming-from", "playground", "reference-sql", "reference-python")


@pytest.mark.skipif(not AXE, reason="PYWORKER_AXE names no axe.min.js (npm install axe-core)")
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_no_page_has_a_serious_problem(
    reader: Callable[..., Any], site: Path, scheme: str, width: int
) -> None:
    problems = {}
    for path in PAGES:
        page = reader(f"{path}.html", width=width, scheme=scheme)
        if path == "playground" and next(site.rglob("pglite.wasm"), None):
            page.get_by_role("button", name="Start PostgreSQL").click()
            page.locator("#pg[data-ready]").wait_for()
        page.add_script_tag(content=Path(AXE or "").read_text("utf-8"))
        for found in page.evaluate("axe.run().then((result) => result.violations)"):
            if found["impact"] in ("serious", "critical"):
                nodes = [
                    f"{node['html'][:120]} {node['failureSummary'][:160]}" for node in found["nodes"][:2]
                ]
                problems[path, found["id"]] = nodes
        page.context.close()
    assert problems == {}
