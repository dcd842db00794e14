"""docs/tutorial.md word for word: its files, its commands in three terminals, its SQL, as a role
that owns its database and may do nothing else."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pglast
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.support import DEADLINE, PYTHONPATH, ROOT

from .test_snippets import Block, blocks_of, check_answer, run_block

PAGE = ROOT / "docs" / "tutorial.md"
TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?\+\d\d")
CLOCK = re.compile(r"(?m)^\d\d:\d\d:\d\d (warning: |error: )?")


def plain(text: str) -> list[str]:
    """Lines without what differs each time: points in time, and how wide they make a column."""
    return [" ".join(TIME.sub("TIME", line).split()) for line in text.splitlines() if line.strip()]


class Newcomer:
    """Three terminals in one directory: two for what keeps running, one for the rest."""

    def __init__(self, directory: Path, dsn: str) -> None:
        self.directory, self.conn = directory, psycopg.connect(dsn, autocommit=True)
        bin = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = {**os.environ, "DATABASE_URL": dsn, "PATH": bin, "PYTHONPATH": PYTHONPATH}
        self.terminals: dict[str, tuple[subprocess.Popen[bytes], Path]] = {}

    def types(self, command: str) -> str:
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def opens(self, terminal: str, command: str) -> None:
        screen = self.directory / f"{terminal}.txt"
        with screen.open("wb") as out:
            words = ["sh", "-c", f"exec {command}"]
            process = subprocess.Popen(
                words, cwd=self.directory, env=self.environment, stdout=out, stderr=subprocess.STDOUT
            )
        self.terminals[terminal] = (process, screen)

    def sees(self, terminal: str, text: str) -> None:
        """All of these lines, sooner or later, in this order."""
        process, screen = self.terminals[terminal]
        wanted = [re.escape(line) for line in CLOCK.sub("", text).splitlines()]

        def seen() -> bool:
            shown = screen.read_text()
            assert process.poll() is None, shown
            return re.search("(?s)" + ".*".join(wanted), shown) is not None

        for _ in range(int(DEADLINE * 100)):
            if seen():
                return
            self.conn.execute("select pg_sleep(0.01)")
        pytest.fail(f"{text!r} is never seen in {terminal}:\n{screen.read_text()}")

    def is_answered(self, asked: Block, answer: Block) -> None:
        """By the last statement of a block: sooner or later, as the worker is at work."""
        last = pglast.split(asked.text)[-1]
        for left in range(int(DEADLINE * 100), -1, -1):
            try:
                return check_answer(answer, self.conn.execute(last.encode()), {})
            except AssertionError:
                if not left:
                    raise
                self.conn.execute("select pg_sleep(0.01)")

    def leaves(self) -> None:
        self.conn.close()
        for process, _ in self.terminals.values():
            process.terminate()
        for process, _ in self.terminals.values():
            process.wait(DEADLINE)


@pytest.fixture
def page_port() -> Iterator[None]:
    """The page names a port, and a machine has it once: another run of these tests waits."""
    with Path(tempfile.gettempdir(), "pyworker-tutorial.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture
def newcomer(pg_server: Any, pg_template: Any, page_port: None, tmp_path: Path) -> Iterator[Newcomer]:
    with psycopg.connect(pg_server.url(), autocommit=True) as conn:
        conn.execute("create role newcomer login")
        conn.execute("create database newcomers owner newcomer")
        one = Newcomer(tmp_path, make_conninfo(pg_server.url(), user="newcomer", dbname="newcomers"))
        try:
            yield one
        finally:
            one.leaves()
            conn.execute("drop database newcomers with (force)")
            conn.execute("drop role newcomer")


def follow(block: Block, newcomer: Newcomer) -> None:
    if block.marker.endswith(".py"):
        (newcomer.directory / block.marker).write_text(block.text, "utf-8")
    elif shown := re.fullmatch(r"(terminal \d) shows", block.marker):
        newcomer.sees(shown[1], block.text)
    elif re.fullmatch(r"terminal \d", block.marker):
        newcomer.opens(block.marker, block.text.strip())
    elif block.language == "sh":
        newcomer.types(block.text)
    else:
        assert block.language == "console", f"line {block.line}: nothing follows this block"
        for command, expected in re.findall(r"(?m)^\$ (.+)\n((?:(?!\$ ).*\n)*)", block.text):
            assert plain(newcomer.types(command)) == plain(expected), command


def test_the_tutorial_is_followed_word_for_word_by_a_role_without_rights(newcomer: Newcomer) -> None:
    blocks = [block for block in blocks_of(PAGE) if block.is_run]
    assert {block.marker for block in blocks} >= {"deliver.py", "terminal 2 shows", "terminal 3 shows"}
    asked = blocks[0]
    for block in blocks:
        if block.language == "sql":
            run_block(block, newcomer.conn, {})
            asked = block
        elif block.marker == "answer":
            newcomer.is_answered(asked, block)
        else:
            follow(block, newcomer)
