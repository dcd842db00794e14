"""Where the options of the command line come from, and how it writes to terminals and pipes."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
from typing import Any

import click
import pytest
from psycopg.conninfo import conninfo_to_dict

from pyworker.cli import main
from tests.support.cli import COMMANDS
from tests.support.cli import add as add
from tests.support.cli import call as call
from tests.support.cli import zoo as zoo


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_names_its_environment_variable_in_the_help(cli: Any, command: str) -> None:
    done = cli(command, "-h")
    assert (done.returncode, done.stderr) == (0, "")
    text = re.sub(r"\s+", " ", done.stdout)
    for option in main.commands[command].params:
        if isinstance(option, click.Option):
            name = max(option.opts, key=len)
            variable = {"--dsn": "DATABASE_URL", "--schema": "PYWORKER_SCHEMA"}.get(
                name, f"PYWORKER_{command}_{name[2:]}".upper().replace("-", "_")
            )
            assert f"[env var: {variable}" in text
    assert done.stdout == cli(command, "--help").stdout


def test_options_come_from_the_environment(cli: Any, db: Any, dsn: str) -> None:
    given = {
        "QUEUE": "q",
        "KEY": "k",
        "FLAG": "a b",
        "PRIORITY": "3",
        "JSON": "1",
        "META": '{"a": 1}',
        "MAX_ATTEMPTS": "2",
    }
    done = cli(
        "add", "t", DATABASE_URL=dsn, **{f"PYWORKER_ADD_{name}": value for name, value in given.items()}
    )
    job = json.loads(done.stdout)
    assert (job["queue_name"], job["key"], job["flags"], job["priority"], job["meta"],
        job["max_attempts"]) == (
        "q", "k", {"a": True, "b": True}, 3, {"a": 1}, 2
    )  # fmt: skip
    done = cli(
        "jobs", "--queue", "other", DATABASE_URL=dsn, PYWORKER_JOBS_QUEUE="q", PYWORKER_JOBS_JSON="yes"
    )
    assert json.loads(done.stdout) == []  # the command line wins
    assert "no such" in cli("jobs", DATABASE_URL=dsn, PYWORKER_SCHEMA="no such").stderr


def test_without_a_dsn_the_variables_of_libpq_say_where_the_database_is(
    program: Any, db: Any, dsn: str
) -> None:
    given = conninfo_to_dict(dsn)
    names = {
        "host": "PGHOST",
        "port": "PGPORT",
        "user": "PGUSER",
        "dbname": "PGDATABASE",
        "password": "PGPASSWORD",
    }
    variables = {names[key]: str(value) for key, value in given.items() if value is not None}
    assert program("add", "t", **variables).stdout == "job 1 available\n"
    variables["PGDATABASE"] = "nowhere"
    assert program("jobs", "--dsn", dsn, **variables).stdout.splitlines()[1].startswith(" 1  t ")


# -- manners ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_can_complete_commands_and_options(cli: Any, shell: str) -> None:
    script = "import sys; sys.argv[0] = 'pyworker'; from pyworker.cli import main; main(prog_name='pyworker')"
    for variables, expected in (
        ({"_PYWORKER_COMPLETE": f"{shell}_source"}, "_PYWORKER_COMPLETE"),
        (
            {
                "_PYWORKER_COMPLETE": f"{shell}_complete",
                "COMP_WORDS": "pyworker jo",
                "COMP_CWORD": "1" if shell != "fish" else "jo",
            },
            "jobs",
        ),
    ):
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            env={"PATH": "/usr/bin:/bin", **variables},
        )
        assert expected in done.stdout, done.stderr


def test_the_version_is_told(program: Any) -> None:
    import pyworker

    assert program("--version").stdout.endswith(f"version {pyworker.__version__}\n")


def test_the_help_lists_every_command(cli: Any) -> None:
    listed = re.findall(r"(?m)^  (\w+) {2,}\S", cli("-h").stdout.partition("Commands:")[2])
    assert sorted(listed) == COMMANDS


def test_a_pipe_gets_whole_lines_without_colours(call: Any, add: Any) -> None:
    key, task = "k" * 400, "t" * 128
    add(f"'{task}', job_key => '{key}', queue_name => '{'q' * 128}'")
    lines = call("jobs").splitlines()
    assert len(lines) == 2
    assert key in lines[1]
    assert task in lines[1]
    assert "\x1b" not in "".join(lines)


@pytest.mark.parametrize("columns", [60, 120])
def test_a_terminal_gets_colours_and_a_narrow_one_loses_only_the_last_column(
    db: Any, dsn: str, zoo: Any, columns: int
) -> None:
    outside, inside = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "pyworker", "jobs"], stdout=inside, stdin=inside, stderr=inside,
        env={"DATABASE_URL": dsn, "TERM": "xterm-256color", "COLUMNS": str(columns), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    os.close(inside)
    shown = b""
    while select.select([outside], [], [], 30)[0]:
        try:
            shown += os.read(outside, 65536)
        except OSError:  # its end
            break
    os.close(outside)
    assert process.wait() == 0
    assert b"\x1b[" in shown
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown.decode()).splitlines()
    assert [line.split()[0] for line in lines] == ["id", "4", "3", "2", "1"]
    assert re.match(
        r" 1 +fails +retryable +q +k +1/25 +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\+\d\d +ValueE", lines[4]
    )
    assert len(lines[4]) <= max(columns, 93)


def test_output_that_is_not_read_to_the_end_is_no_error(db: Any, dsn: str) -> None:
    db.execute(
        'select pyworker.add_jobs((select jsonb_agg(\'{"identifier": "t"}\'::jsonb) '
        "from generate_series(1, 1500)))"
    )
    command = f"{sys.executable} -m pyworker jobs --limit 1500 | head -1"
    done = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        env={"DATABASE_URL": dsn, "PATH": "/usr/bin:/bin"},
    )
    assert done.stdout.split()[0] == "id"
    assert done.stderr == ""


def test_a_narrow_encoding_is_no_error(program: Any, add: Any, dsn: str) -> None:
    add("'t', '{\"a\": \"ü\"}'")
    for arguments in (["jobs", "1"], ["jobs", "1", "--json"], ["jobs"]):
        done = program(*arguments, DATABASE_URL=dsn, PYTHONIOENCODING="ascii")
        assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(program("jobs", "1", "--json", DATABASE_URL=dsn, PYTHONIOENCODING="ascii").stdout)[
        "payload"
    ] == {"a": "ü"}
