"""explain_job as tests ask it: its reasons, and its remedies run as they stand."""

from __future__ import annotations

import re
from typing import Any

import pytest

CALL = re.compile(r"select \* from pyworker\.\w+\((?:[^()']|'(?:[^']|'')*'|\([^)]*\))*\)")


def explain(api: Any, job: Any) -> list[Any]:
    rows = api.rows("select * from pyworker.explain_job(%s)", [getattr(job, "id", job)])
    assert [row.position for row in rows] == list(range(1, len(rows) + 1))
    for row in rows:
        assert row.reason
        assert row.detail
    return rows


def reasons(api: Any, job: Any) -> list[str]:
    return [row.reason for row in explain(api, job)]


def the(api: Any, job: Any, reason: str) -> Any:
    """The one row with this reason."""
    (row,) = [row for row in explain(api, job) if row.reason == reason]
    return row


def calls(remedy: str) -> list[str]:
    """The statements in a remedy: it begins with the first, and what is around them is prose."""
    assert remedy.startswith("select * from pyworker.")
    return [match.group() for match in CALL.finditer(remedy)]


def run(api: Any, remedy: str, which: int = 0) -> Any:
    return api.rows(calls(remedy)[which].replace("%", "%%"), [])


@pytest.fixture
def idle(api: Any) -> int:
    """A worker that lives and would claim anything; so that nothing but the job itself is in its way."""
    return api.register_worker()


# Its queue ----------------------------------------------------------------------------------------


NAMES = ["q", "it's", "100%", "%s %I", "a\nb", 'q"', "q\\", "q); drop table jobs; --", "c:1"]
