"""Links between the documents lead to files, and to headings that are there."""

import re
from pathlib import Path

import pytest

from tests.support import ROOT

DOCUMENTS = [
    path
    for pattern in (
        "*.md",
        "docs/*.md",
        "docs/site/*.md",
        "docs/inside/*.md",
        "sql/*.md",
        "bench/*.md",
        "examples/**/*.md",
    )
    for path in sorted(ROOT.glob(pattern))
]


def prose(path: Path) -> str:
    return re.sub(r"(?ms)^```.*?^```$", "", path.read_text("utf-8"))


def anchors(path: Path) -> set[str]:
    """GitHub's, which are MyST's."""
    headings = re.findall(r"(?m)^#+ +(.+?)\s*$", prose(path))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    base = ROOT / "docs" if page.parent.name == "site" else page.parent
    for target, anchor in re.findall(r"\]\((?![a-z]+:)([^)#\s]*)(?:#([^)\s]*))?\)", prose(page)):
        if target.startswith("reference-"):
            continue  # made with the site
        there = base / target if target else page
        assert there.exists(), f"{target} is not there"
        if anchor and there.suffix == ".md":
            assert anchor in anchors(there), f"{target} has no heading #{anchor}"
