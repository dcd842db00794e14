"""What a visitor of the documentation sees first, and what is left of it on a phone."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import ROOT

pytestmark = pytest.mark.slow

PICTURES = sorted((ROOT / "docs" / "pictures").glob("*.svg"))


def test_the_start_page_shows_add_handler_run_and_explain_on_one_screen(reader: Callable[..., Any]) -> None:
    page = reader("index.html")
    steps = page.locator(".start-step")
    assert [text.partition(".")[0] for text in steps.all_inner_texts()] == ["1", "2", "3", "4"]
    boxes = [steps.nth(at).bounding_box() for at in range(4)]
    assert max(box["y"] + box["height"] for box in boxes) <= 900
    for at, word in enumerate(("add_job", "@task", "pyworker run", "explain_job")):
        assert word in steps.nth(at).inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_words_of_a_picture_can_be_read_on_a_phone(reader: Callable[..., Any], scheme: str) -> None:
    """As large as the smallest text of the page, on the page's own colour."""
    sizes = []
    for name in ("concepts.html", "inside-gate.html"):
        sizes += reader(name, width=390, scheme=scheme).evaluate(
            """[...document.querySelectorAll('.picture svg')].map((svg) => {
                const scale = svg.getScreenCTM().a;
                const sizes = [...svg.querySelectorAll('text')].map((text) => text.getAttribute('font-size'));
                return Math.min(...sizes) * scale; })"""
        )
    assert len(sizes) == len(PICTURES) >= 4
    assert min(sizes) >= 9.5


def test_all_pictures_are_drawn_by_one_script_in_one_style() -> None:
    assert {path.stem for path in PICTURES} == {
        path.stem for path in (ROOT / "docs" / "pictures").glob("*.dot")
    }
    for path in PICTURES:
        drawn = path.read_text("utf-8")
        assert set(re.findall(r'font-family="([^"]+)"', drawn)) == {"sans-serif"}
        assert {float(size) for size in re.findall(r'font-size="([^"]+)"', drawn)} <= {12.0, 13.0, 14.0}
