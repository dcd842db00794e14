"""The voice: words that name who acts, lines that fit a page, functions and files that can be read
at once."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support import ROOT
from tests.support.files import for_each

PROSE = [
    path
    for pattern in (
        "README.md",
        "docs/**/*.md",
        "sql/**/*.sql",
        "sql/*.md",
        "pyworker/**/*.py",
        "pyworker/**/*.html",
    )
    for path in sorted(ROOT.glob(pattern))
    if "__pycache__" not in path.parts
]
# Each hides who acts, or is a private word for one of the field's.
RIDDLES = r"\b(somebody|nobody|whoever|whatever|anew|in hand|at it|called off|calling off|lets go)\b"
ACCOUNT = re.compile(r"\"nobody\"|postgres or nobody")  # an account of the operating system


@for_each(PROSE)
def test_a_sentence_says_who_acts(path: Path) -> None:
    lines = ACCOUNT.sub("", path.read_text("utf-8")).splitlines()
    assert [
        (n, line.strip()) for n, line in enumerate(lines, 1) if re.search(RIDDLES, line, re.IGNORECASE)
    ] == []
