"""The plans of the statements that a function runs, and the rows that they look at."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

# A session tidies its worker's claims with its first claim, and then four times a second. This puts the next
# time off for an hour, so that a call costs the same at any pace.
TIDIED = """
    select set_config('pyworker.claims_tidied', (t[:3] || (t[4] + 3600000000))::text, false)
    from (select nullif(current_setting('pyworker.claims_tidied', true), '')::bigint[]) s(t)
    where t is not null"""


@pytest.fixture
def watched(api: Any, actor: Any) -> Iterator[Callable[..., list[dict[str, Any]]]]:
    """watched(call) runs the call and gives the plan of every statement that it ran, with what
    each node really did."""
    a = actor()
    try:
        a.rows("load 'auto_explain'")
    except psycopg.Error:
        pytest.skip("this server has no auto_explain")
    for name, value in {
        "log_min_duration": "0", "log_nested_statements": "on", "log_analyze": "on", "log_timing": "off",
        "log_format": "json", "log_level": "notice", "log_parameter_max_length": "0",
    }.items():  # fmt: skip
        try:
            a.rows(f"set auto_explain.{name} = {value}")
        except psycopg.Error:
            assert name == "log_parameter_max_length"  # PostgreSQL 16 and later
    plans: list[dict[str, Any]] = []

    def note(diagnostic: Any) -> None:
        if "plan:" in diagnostic.message_primary:
            plans.append(json.loads(diagnostic.message_primary.split("plan:", 1)[1]))

    a.conn.add_notice_handler(note)

    def watched(call: Callable[[Any], Any]) -> list[dict[str, Any]]:
        plans.clear()
        watched.result = call(a)  # type: ignore[attr-defined]
        return list(plans)

    yield watched
    a.conn.remove_notice_handler(note)
    a.conn.close()  # auto_explain cannot be unloaded


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


def touched(plans: list[dict[str, Any]], table: str = "live_jobs") -> dict[str, float]:
    """Rows of a table that were looked at, by the way they were found."""
    rows: dict[str, float] = {}
    for plan in plans:
        for node in nodes(plan["Plan"]):
            if node.get("Relation Name") == table and "Scan" in node["Node Type"]:
                way = node.get("Index Name", node["Node Type"])
                seen = (
                    node["Actual Rows"]
                    + node.get("Rows Removed by Filter", 0)
                    + node.get("Rows Removed by Index Recheck", 0)
                )
                rows[way] = rows.get(way, 0) + seen * node["Actual Loops"]
    return rows
