"""Every fenced block of the README and of docs/ is run, or its commands are looked up; what cannot
be is counted here.

A comment on the line above a block says what is special about it:

    <!-- not run: why -->      it is only shown (the number of these per page is below)
    <!-- error: PW001 -->      its last statement is refused with this SQLSTATE
    <!-- answer -->            what the last statement above it returns, as psql shows it
    <!-- shop.py -->           a file of a project, which another test runs
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pglast
import psycopg
import psycopg.sql
import pytest
from psycopg.conninfo import make_conninfo

from pyworker import cli
from pyworker._db.migrations import migrate
from tests.support import ROOT

START = ROOT / "docs" / "site" / "index.md"
EXAMPLES = ROOT / "docs" / "site" / "examples.md"  # build.py puts them into the references
PAGES = [ROOT / "README.md", START, EXAMPLES, *sorted((ROOT / "docs").glob("*.md"))]
SHELLS = ("sh", "bash", "console")
SHOWN = ("", "text", "dockerfile", "promql", "diff", "yaml", "js")  # nothing that this test could run

# Blocks that are not run, each with its reason in the page.
NOT_RUN = {
    "conformance": 1, "django": 7, "failover": 3, "integrations": 3, "monitoring": 1, "operations": 1,
    "tutorial": 1,
}  # fmt: skip
# Tables that a page takes for granted.
TABLES = {
    "README": "create table invoices (id bigint, charged boolean default false)",
}
# Tasks of which jobs must have been completed by the worker when a page is through.
RUN = {
    "index": {"send_email"},
    "README": {"charge", "send_email"},
    "start": {"greet"},
    "batches": {"index", "convert"},
    "workflows": {"reserve", "charge", "settle"},  # the order waits for its approval
}


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    text: str
    marker: str

    @property
    def is_run(self) -> bool:
        return not self.marker.startswith("not run:")


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text("utf-8")
    return [
        Block(page.stem, text.count("\n", 0, found.start(3)) + 1, found[3], found[4], found[2] or "")
        for found in re.finditer(r"(?ms)^(<!-- ([^\n]*?) -->\n)?```([\w-]*)[^\n]*\n(.*?)^```$", text)
    ]


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def pages_with(language: str) -> list[str]:
    return sorted({block.page for block in BLOCKS if block.language == language})


def of(page: str, language: str) -> list[Block]:
    return [block for block in BLOCKS if (block.page, block.language) == (page, language) and block.is_run]


# -- SQL, statement by statement, in the page's order, each page on a database of its own ----------


@pytest.fixture
def no_role_stays(pg_server: Any, pg_template: Any) -> Iterator[None]:
    """Roles belong to the server, not to the database of a test."""
    with psycopg.connect(pg_server.url(), autocommit=True) as conn:
        before = conn.execute("select array_agg(rolname) from pg_roles").fetchone()
        yield
        for (name,) in conn.execute(
            "select rolname from pg_roles where rolname <> all (%s)", before
        ).fetchall():
            conn.execute(psycopg.sql.SQL("drop role {}").format(psycopg.sql.Identifier(name)))


@pytest.fixture
def owner(
    no_role_stays: None, fresh: psycopg.Connection[Any], fresh_dsn: str
) -> Iterator[psycopg.Connection[Any]]:
    """A connection to a database of this test alone, as its owner, who is no superuser and has
    installed pyworker there."""
    name = f"owner of {fresh.info.dbname}"
    fresh.execute("drop schema pyworker cascade")
    fresh.execute(
        f'create role "{name}" login createrole; alter database "{fresh.info.dbname}" owner to "{name}"'
    )
    theirs = make_conninfo(fresh_dsn, user=name)
    with psycopg.connect(theirs, autocommit=True) as conn:
        migrate(conn, movable_clock=True)
        yield conn
    fresh.execute(f'alter database "{fresh.info.dbname}" owner to current_user')
    for (role,) in fresh.execute(
        "select rolname from pg_roles where rolname !~ '^pg_' and not rolsuper"
    ).fetchall():
        fresh.execute(psycopg.sql.SQL("drop owned by {} cascade").format(psycopg.sql.Identifier(role)))


@pytest.mark.parametrize("page", sorted(set(pages_with("sql")) - set(pages_with("python"))))
def test_the_sql_of_a_page_runs_from_top_to_bottom(page: str, owner: psycopg.Connection[Any]) -> None:
    run_sql(page, owner)


def run_sql(page: str, conn: psycopg.Connection[Any]) -> None:
    cursor = conn.execute(TABLES.get(page, "select"))  # type: ignore[arg-type]
    runs: dict[str, str] = {}
    for block in [block for block in BLOCKS if block.page == page and block.is_run]:
        if block.language == "sql":
            cursor = run_block(block, conn, runs)
        elif block.marker == "answer":
            check_answer(block, cursor, runs)


def run_block(block: Block, conn: psycopg.Connection[Any], runs: dict[str, str]) -> psycopg.Cursor[Any]:
    expected = re.fullmatch(r"error: (\w{5})", block.marker)
    *statements, last = pglast.split(block.text)
    said = [(statement, None) for statement in statements] + [(last, expected and expected[1])]
    cursor = conn.cursor()
    for statement, code in said:
        refused = None
        try:
            cursor.execute(RUN_SHOWN.sub(lambda run: runs[run[0]], statement).encode())
        except psycopg.Error as error:
            refused = error
        assert (refused and refused.sqlstate) == code, (
            f"{block.page}.md, line {block.line}: {statement}\n{refused}"
        )
    return cursor


# A page cannot know the runs of its jobs, since they are times. Each one in an answer stands for
# the real one.
RUN_SHOWN = re.compile(r"\b1764\d{12}\b")
DECIMAL = re.compile(r"\d+(\.\d+)?")
TIMES = {"again_in_s", "next_in_s"}


def check_answer(block: Block, cursor: psycopg.Cursor[Any], runs: dict[str, str]) -> None:
    """Compare an answer as psql shows it with the rows; the values of TIMES differ each time."""
    lines = [line for line in block.text.splitlines() if not set(line) <= set("-+ ")]
    head, *shown = ([cell.strip() for cell in line.split("|")] for line in lines)
    result = cursor.pgresult
    assert result
    got = [
        [(result.get_value(row, at) or b"").decode() for at in range(result.nfields)]
        for row in range(result.ntuples)
    ]
    assert head == [column.name for column in cursor.description or ()]
    assert len(shown) == len(got), f"{block.page}.md, line {block.line}: {got}"
    for said, real in zip(shown, got, strict=True):
        for at, cell in enumerate(said):
            if RUN_SHOWN.fullmatch(cell):
                assert runs.setdefault(cell, real[at]) == real[at]
            elif head[at] in TIMES:
                assert bool(DECIMAL.fullmatch(cell)) == bool(DECIMAL.match(real[at]))
            else:
                assert cell == real[at], f"{block.page}.md, line {block.line}"


# -- Python: a page is a module, imported once by hand (its own adds are committed), then by a real

MODULE = """
import os
import sys
import psycopg
from pyworker import *
sys.modules["tasks"] = sys.modules[__name__]  # the file that the page says it is
page = conn = psycopg.connect(os.environ["DATABASE_URL"])
{blocks}
page.{end}()
page.close()
"""


@pytest.mark.parametrize("page", sorted(set(pages_with("python")) - {"tutorial"}))  # see test_tutorial.py
def test_a_page_runs_its_sql_then_its_python_then_its_tasks_by_a_worker(
    page: str, owner: psycopg.Connection[Any], fresh_dsn: str, tmp_path: Path
) -> None:
    run_sql(page, owner)
    blocks = [block for block in of(page, "python") if not block.marker.endswith(".py")]
    if not blocks:
        return  # files of a project, which another test runs
    module = tmp_path / ("page_" + page.replace("-", "_") + ".py")
    environment = {
        **os.environ,
        "DATABASE_URL": make_conninfo(fresh_dsn, user=owner.info.user),
        "PYTHONPATH": str(ROOT),
    }

    def python(*arguments: str, end: str) -> None:
        module.write_text(MODULE.format(blocks="\n".join(block.text for block in blocks), end=end), "utf-8")
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, f"{page}.md:\n{done.stdout}{done.stderr}"

    python(module.name, end="commit")
    if any("@task" in block.text for block in blocks):
        python("-m", "pyworker", "run", module.stem, "--once", end="rollback")
    rows = owner.execute("select task_identifier from pyworker.history where state = 'completed'").fetchall()
    assert RUN.get(page, set()) <= {name for (name,) in rows}
    if page == "workflows":
        approved_in_the_end(owner, python)
    failed = "select id, task_identifier, last_error from pyworker.jobs where last_error is not null"
    assert owner.execute(failed).fetchall() == []


def approved_in_the_end(conn: psycopg.Connection[Any], python: Any) -> None:
    """The order at the head of the page: a person approves it, and it is done."""
    waiting = conn.execute(
        "select j.id, r.reason from pyworker.jobs j cross join lateral pyworker.explain_job(j.id) r "
        "where j.task_identifier = 'approve' and r.position = 1"
    ).fetchall()
    ((job_id, reason),) = waiting
    assert reason == "signal"
    python("-m", "pyworker", "signal", str(job_id), "approved", '{"by": "ann"}', end="rollback")
    python("-m", "pyworker", "run", "page_workflows", "--once", end="rollback")
    done = conn.execute("select state from pyworker.history where task_identifier = 'done'").fetchall()
    assert done == [("completed",)]


# -- commands --------------------------------------------------------------------------------------

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
TARGETS = set(re.findall(r"(?m)^([a-z]+):", (ROOT / "Makefile").read_text("utf-8")))


def check(words: list[str], where: str) -> None:
    """One command: what of it is ours must be there."""
    for extras in re.findall(r"(?:pyworker|\.)\[([\w,]+)\]", " ".join(words)):
        assert set(extras.split(",")) <= EXTRAS.keys(), f"{where}: there is no extra {extras}"
    while words and (re.fullmatch(r"\w+=.*", words[0]) or words[0] in ("$", "exec", "time")):
        words = words[1:]
    of_django: set[str] = set()
    if words[:2] == ["python", "manage.py"]:
        words, of_django = words[2:], {"--database"}
    if words[:1] == ["make"] and words[1:2]:
        assert words[1] in TARGETS, f"{where}: make has no target {words[1]}"
    if words[:1] == ["python"] and words[1:] and words[1].startswith(("bench/", "docs/")):
        assert (ROOT / words[1]).exists(), f"{where}: there is no {words[1]}"
    if not words or Path(words[0]).name != "pyworker":
        return
    command: click.Command = cli.main
    for word in words[1:]:
        if word.startswith("-") and word != "-":
            names = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
            known = names | of_django | {"--help", "-h", "--version"}
            assert word.split("=")[0] in known, f"{where}: `{' '.join(words)}`: there is no option {word}"
        elif isinstance(command, click.Group) and word in command.commands:
            command = command.commands[word]
        else:
            assert command is not cli.main, f"{where}: `{' '.join(words)}`: there is no command {word}"


def commands(text: str) -> list[list[str]]:
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.commenters = "#"
        current: list[str] = []
        for word in lexer:
            if set(word) <= set("();<>|&"):
                found.append(current)
                current = []
            else:
                current.append(word)
        found.append(current)
    return [words for words in found if words]


@pytest.mark.parametrize(
    "block", [b for b in BLOCKS if b.language in SHELLS], ids=lambda b: f"{b.page} {b.line}"
)
def test_the_commands_of_a_block_exist(block: Block) -> None:
    prompts = [line[2:] for line in block.text.splitlines() if line.startswith("$ ")]
    text = (
        "\n".join(prompts) if prompts else block.text
    )  # where there are prompts, the rest is what they print
    for words in commands(text):
        check(words, f"{block.page}.md, line {block.line}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_that_a_page_mentions_exist(page: Path) -> None:
    text = re.sub(r"(?ms)^```.*?^```$", "", page.read_text("utf-8"))
    for code in re.findall(r"`(pyworker [a-z][^`]*)`", text):
        check(re.sub(r"[…\[\]]+", " ", code).split(), page.name)


# -- what is left ----------------------------------------------------------------------------------


def test_no_block_is_in_a_language_that_nothing_runs() -> None:
    known = {"sql", "python", *SHELLS, *SHOWN}
    assert [(b.page, b.line, b.language) for b in BLOCKS if b.language not in known and b.is_run] == []


def test_what_is_not_run_is_counted() -> None:
    counted: dict[str, int] = {}
    for block in BLOCKS:
        if not block.is_run:
            assert len(block.marker) > len("not run: why"), (
                f"{block.page}.md, line {block.line}: give a reason"
            )
            counted[block.page] = counted.get(block.page, 0) + 1
    assert counted == NOT_RUN
