"""doctor() as tests ask it: its findings, and their fixes run as they stand."""

from __future__ import annotations

from typing import Any

CHECKS = [
    "owners", "invariants", "functions", "indexes", "grants", "partitions", "maintenance", "workers", "tasks",
    "sequences", "dependencies", "locks", "gate", "queues", "schedules",
    "lost", "xmin",
    "bloat", "autovacuum", "notifications", "settings",
]  # fmt: skip

HEALTHY = [(name, "ok", None) for name in CHECKS]


def doctor(api: Any) -> list[Any]:
    rows = api.rows("select * from pyworker.doctor()")
    assert list(dict.fromkeys(row.check_name for row in rows)) == CHECKS
    assert all(row.finding for row in rows)
    assert all((row.fix is None) == (row.severity == "ok") for row in rows)
    return rows


def of(api: Any, check: str) -> list[Any]:
    return [row for row in doctor(api) if row.check_name == check]


def short(rows: list[Any]) -> list[Any]:
    return [(row.check_name, row.severity, row.fix) for row in rows]


def the(api: Any, check: str, severity: str, words: str) -> Any:
    """The one finding of this check."""
    (row,) = of(api, check)
    assert (row.severity, words in row.finding) == (severity, True), row
    return row


def repair(api: Any, fix: str) -> None:
    for statement in fix.split(";\n"):
        api.conn.execute(statement)


def heals(api: Any, check: str, severity: str, words: str) -> None:
    repair(api, the(api, check, severity, words).fix)
    assert [row.severity for row in of(api, check)] == ["ok"], of(api, check)
