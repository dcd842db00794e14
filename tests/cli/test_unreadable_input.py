"""Input that cannot be read ends a command with one line that names it, never with a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_cli_errors import one_line


def wrong_usage(done: subprocess.CompletedProcess[str], words: str) -> None:
    assert done.returncode == 2, done
    assert done.stderr.splitlines()[-1].startswith("Error: ")
    assert words in done.stderr


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    ("arguments", "name"),
    [(["add", "t", "-"], "PAYLOAD"), (["signal", "1", "approved", "-"], "PAYLOAD")],
    ids=["add", "signal"],
)
def test_a_payload_on_stdin_that_is_nested_too_deeply_is_refused(
    cli: Any, arguments: list[str], name: str
) -> None:
    wrong_usage(cli(*arguments, stdin=DEEP), f"{name} is nested too deeply: 100 levels are the limit")


def test_an_option_that_is_nested_too_deeply_is_refused_by_its_name(cli: Any) -> None:
    wrong_usage(cli("add", "t", "--meta", DEEP), "--meta is nested too deeply")


@pytest.mark.parametrize(
    "arguments",
    [["schedules", "load"], ["run", "--once", "tests.support.tasks.handlers", "--crontab"]],
    ids=" ".join,
)
def test_a_crontab_that_is_not_utf_8_is_refused_by_its_name(
    cli: Any, db: Any, dsn: str, tmp_path: Path, arguments: list[str]
) -> None:
    crontab = tmp_path / "crontab"
    crontab.write_bytes(b'* * * * * t {"a":"\xff"}\n')
    one_line(cli(*arguments, str(crontab), DATABASE_URL=dsn), f"{crontab}: byte 19 is not UTF-8")


def test_a_file_of_passwords_that_is_not_utf_8_is_refused_by_its_name(
    cli: Any, db: Any, dsn: str, tmp_path: Path
) -> None:
    passwords = tmp_path / "passwords"
    passwords.write_bytes(b"ada:\xff\n")
    done = cli("ui", "--port", "0", "--auth-file", str(passwords), DATABASE_URL=dsn)
    one_line(done, f"{passwords}: byte 5 is not UTF-8")


def test_a_worker_in_a_directory_that_was_removed_says_so(tmp_path: Path, dsn: str) -> None:
    program = (
        "import os, sys; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone');"
        "from pyworker.cli import main; main(['run', '--once', 'pyworker.conformance.tasks'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60,
        env={"DATABASE_URL": dsn},
    )  # fmt: skip
    one_line(done, "the current directory cannot be read: No such file or directory")


def test_a_module_without_a_name_is_refused(cli: Any, db: Any, dsn: str) -> None:
    one_line(cli("tasks", "sync", "", DATABASE_URL=dsn), "the name of a module must not be empty")


@pytest.mark.parametrize("command", ["jobs", "migrate"])
def test_a_schema_without_a_name_is_refused(cli: Any, command: str) -> None:
    wrong_usage(cli(command, "--schema", ""), "'--schema': the name of a schema must not be empty")


def test_top_without_a_terminal_names_what_programs_use(cli: Any, db: Any, dsn: str) -> None:
    one_line(cli("top", DATABASE_URL=dsn), "pyworker top needs a terminal", "pyworker queues --json")
