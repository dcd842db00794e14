"""Nothing is so long or so wide that a reader loses the thread."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.files import for_each

SQL = [path for path in sorted((ROOT / "sql").rglob("*.sql")) if path.name != "schema.sql"]  # it is generated
PYTHON = [
    path
    for name in ("pyworker", "tests", "bench", "examples")
    for path in sorted((ROOT / name).rglob("*.py"))
]
# What people read. Pictures are drawn, locks are written by npm and go.
WRITTEN_BY_PROGRAMS = {".svg", ".png", ".gz", ".sum"}
TEXTS = [
    path
    for name in (
        *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"),
        *("sql", "pyworker", "docs", "examples"),
    )
    for path in sorted([ROOT / name, *(ROOT / name).rglob("*")])
    if path.is_file() and path.suffix not in WRITTEN_BY_PROGRAMS and path.name != "package-lock.json"
    if not {"__pycache__", "node_modules"} & set(path.parts)
]
# The README's two commands are pasted as one line each; a tutorial shows what a command prints.
ONE_LINE = (
    "python3 -m venv --without-pip .venv && python3 -m pip --python .venv install ",
    "1. waits for its retry: not before ",
    "1. sequence: waits for job 3 (retryable until ",
)
FUNCTION = re.compile(r"(?ms)^create (?:or replace )?function ([a-z_]+)\((?:(?!^create ).)*?^\$\$;")


@for_each(SQL)
def test_a_function_of_sql_has_at_most_90_lines(path: Path) -> None:
    found = {match[1]: match[0].count("\n") + 1 for match in FUNCTION.finditer(path.read_text("utf-8"))}
    assert {function: lines for function, lines in found.items() if lines > 90} == {}


def test_functions_of_sql_are_found() -> None:
    """The pattern above finds them, so that the test can fail."""
    text = "".join(path.read_text("utf-8") for path in SQL)
    assert len(FUNCTION.findall(text)) > 300
    assert {"claim_jobs", "add_job", "_finalize_jobs"} <= set(FUNCTION.findall(text))


@for_each(path for path in PYTHON if path.relative_to(ROOT).parts[0] == "pyworker")
def test_a_function_of_the_package_has_at_most_90_lines(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    assert {f.name: f.end_lineno - f.lineno + 1 for f in functions if f.end_lineno - f.lineno >= 90} == {}  # type: ignore[operator]


@for_each([*SQL, *PYTHON])
def test_a_file_has_at_most_400_lines(path: Path) -> None:
    lines = path.read_text("utf-8").splitlines()
    limit = (
        700 if path.parent.name == "migrations" else 400
    )  # a migration is history: it is not divided later
    assert len(lines) <= limit


@for_each(TEXTS)
def test_a_line_has_at_most_110_columns(path: Path) -> None:
    lines = path.read_text("utf-8").splitlines()
    assert [line for line in lines if len(line) > 110 and not line.startswith(ONE_LINE)] == []


def test_texts_of_all_kinds_are_found() -> None:
    """Style sheets, templates and pages are among them, so that the test can fail."""
    assert {".md", ".css", ".js", ".html", ".sql", ".py", ".dot"} <= {path.suffix for path in TEXTS}
    assert len(TEXTS) > 250


@pytest.mark.parametrize(
    ("room", "limit"), [("heart", 3_700), ("gate", 1_300), ("features", 5_000), ("console", 2_910)]
)
def test_a_room_of_sql_has_at_most_so_many_lines(room: str, limit: int) -> None:
    files = (ROOT / "sql" / room).glob("*.sql")
    assert 1_000 < sum(len(file.read_text("utf-8").splitlines()) for file in files) <= limit


@for_each(sorted((ROOT / "tests" / "mutants").glob("*.toml")))
def test_a_list_of_mutants_has_at_most_400_lines(path: Path) -> None:
    assert len(path.read_text("utf-8").splitlines()) <= 400
