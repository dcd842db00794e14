"""clock() is volatile: in a query PostgreSQL calls it for each row, and no index condition can have it. Each
function reads it into a variable."""

from __future__ import annotations

import re

from tests.support import ROOT

QUERY = re.compile(r"\b(select|insert|update|delete|perform|execute|values)\b", re.I)
FUNCTION = re.compile(r"create or replace (?:function|view) (\w+)\b(.*?)(?=\ncreate or replace|\Z)", re.S)
NOISE = re.compile(r"--[^\n]*|^comment on .*?;$|'[^']*'", re.S | re.M)


def test_no_query_reads_the_clock() -> None:
    found = [
        f"{path.name}: {name}: {' '.join(statement.split())[:100]}"
        for path in sorted((ROOT / "sql").rglob("*.sql"))
        if path.parent.name not in ("sql", "setup", "migrations")
        for name, body in FUNCTION.findall(path.read_text("utf-8"))
        for statement in NOISE.sub("", body).split(";")
        if re.search(r"(?<!_)\bclock\(\)", statement) and QUERY.search(statement)
    ]
    assert found == []
