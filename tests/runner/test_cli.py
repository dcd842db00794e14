"""Promises of the command line: each command for people and for machines, and errors that take one line."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

import pyworker
from pyworker.cli import main

ROOT = str(Path(__file__).parents[2])
COMMANDS = sorted(main.commands)
OF_A_DATABASE = [name for name in COMMANDS if name not in ("demo", "run", "migrate", "sql", "dev", "top")]


@pytest.fixture
def call(db: Any, dsn: str, cli: Any) -> Any:
    """A command on the shared database that must succeed; returns what it printed, decoded if it is asked for JSON."""

    def run(*arguments: str, stdin: str = "") -> Any:
        done = cli(*arguments, stdin=stdin, DATABASE_URL=dsn)
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout) if "--json" in arguments else done.stdout

    return run


@pytest.fixture
def add(db: Any) -> Any:
    def run(arguments: str) -> int:
        return db.execute(f"select (pyworker.add_job({arguments})).id").fetchone()[0]

    return run


def fail(db: Any, job_id: int, error: str = "boom") -> None:
    worker = db.execute("select pyworker.register_worker()").fetchone()[0]
    db.execute("select * from pyworker.claim_jobs(%s, 100)", [worker])
    run = db.execute("select run from pyworker.jobs where id = %s", [job_id]).fetchone()[0]
    failure = json.dumps([{"id": job_id, "run": run, "error": error}])
    assert db.execute("select pyworker.fail_jobs(%s)", [failure]).fetchone() == ([job_id],)


# -- add --------------------------------------------------------------------------------------------------------------


def test_add_says_what_became_of_the_job(call: Any, db: Any) -> None:
    assert call("add", "t") == "job 1 available\n"
    assert call("add", "t", '{"a": 1}', "--queue", "q") == "job 2 available\n"
    assert re.fullmatch(
        r"job 3 scheduled, due 2100-01-0[12] \d\d:00:00\n", call("add", "t", "--run-at", "2100-01-02 00:00Z")
    )


def test_add_passes_everything_on(call: Any) -> None:
    job = call(
        "add", "t", '{"a": "ü"}', "--queue", "q", "--run-at", "2100-01-01Z", "--max-attempts", "3", "--key", "k", "--key-mode",
        "preserve_run_at", "--priority", "-5", "--flag", "a", "--flag", "b", "--meta", '{"m": 1}', "--json",
    )  # fmt: skip
    expected = {
        "id": 1, "task_identifier": "t", "payload": {"a": "ü"}, "queue_name": "q", "max_attempts": 3, "key": "k", "priority": -5,
        "flags": {"a": True, "b": True}, "meta": {"m": 1}, "state": "scheduled", "run": 0, "deduplicated": False,
    }  # fmt: skip
    assert {name: job[name] for name in expected} == expected
    assert job["run_at"].startswith(("2100-01-01T", "2099-12-31T"))


@pytest.mark.parametrize(
    "payload",
    [
        "null",
        "1.10",
        "1e400",
        '{"a": 1, "a": 2}',
        '"\\u0000\\ud800"',
        "7" * 5000,
        " [1 , 2]",
        '"[/b] ü"',
        "-",
    ],
)
def test_a_payload_is_stored_letter_by_letter(call: Any, db: Any, payload: str) -> None:
    arguments, stdin = (["-"], '{"from": "stdin"}\n') if payload == "-" else (["--", payload], "")
    call("add", "t", *arguments, stdin=stdin)
    assert db.execute("select payload::text from pyworker.get_job(1)").fetchone() == (stdin or payload,)
    call("jobs", "1")
    call("jobs", "1", "--json")


# -- jobs -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def zoo(db: Any, add: Any) -> dict[str, int]:
    """A job in each of several states."""
    failing = add("'fails', queue_name => 'q', job_key => 'k'")
    fail(db, failing, 'Traceback\n  File "x"\nValueError: [red]bad[/b]\n')
    cancelled = add("'cancelled_runs'")
    db.execute("select pyworker.cancel_job(%s)", [cancelled])
    running = add("'runs'")
    worker = db.execute("select pyworker.register_worker()").fetchone()[0]
    db.execute("select * from pyworker.claim_jobs(%s, 100)", [worker])
    available = add("'waits', job_key => '[/k]'")
    return {"retryable": failing, "cancelled": cancelled, "running": running, "available": available}


def test_jobs_lists_the_newest_first_finished_ones_included(call: Any, zoo: dict[str, int]) -> None:
    lines = call("jobs").splitlines()
    assert lines[0].split() == [
        "id",
        "task",
        "state",
        "queue",
        "key",
        "attempts",
        "run",
        "at",
        "last",
        "error",
    ]
    assert [line.split()[:3] for line in lines[1:]] == [
        ["4", "waits", "available"], ["3", "runs", "running"], ["2", "cancelled_runs", "cancelled"], ["1", "fails", "retryable"],
    ]  # fmt: skip
    assert "[/k]" in lines[1]
    assert lines[4].rstrip().endswith("ValueError: [red]bad[/b]")
    assert {len(line) for line in lines} == {len(lines[0])}  # in columns


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ([], [4, 3, 2, 1]),
        (["--state", "running"], [3]),
        (["--state", "active"], [3]),
        (["--state", "retryable", "--state", "cancelled"], [2, 1]),
        (["--task", "waits", "--task", "fails"], [4, 1]),
        (["--queue", "q"], [1]),
        (["--queue", "default"], [4, 3, 2]),
        (["--key", "k"], [1]),
        (["--key", "k", "--state", "running"], []),
        (["--limit", "2"], [4, 3]),
    ],
)
def test_jobs_can_be_filtered(call: Any, zoo: dict[str, int], filters: list[str], found: list[int]) -> None:
    assert [job["id"] for job in call("jobs", "--json", *filters)] == found
    if not found:
        assert call("jobs", *filters) == "no jobs match\n"


def test_one_job_is_shown_with_the_errors_of_its_attempts(call: Any, db: Any, zoo: dict[str, int]) -> None:
    shown = call("jobs", "1")
    for pattern in (
        r"(?m)^task_identifier +fails *$",
        r"(?m)^queue_name +q *$",
        r"(?m)^payload +\{\} *$",
        "attempt failed ",
    ):
        assert re.search(pattern, shown)
    assert shown.endswith('Traceback\n  File "x"\nValueError: [red]bad[/b]\n')
    job = call("jobs", "1", "--json")
    assert (job["state"], len(job["errors"]), job["errors"][0]["run"]) == ("retryable", 1, job["run"])
    assert job["last_error"] == job["errors"][0]["error"]


def test_an_empty_queue_says_how_to_begin(call: Any) -> None:
    assert call("jobs") == "no jobs yet: pyworker add TASK adds one\n"
    assert call("jobs", "--json") == []
    assert call("queues") == "no queue has jobs\n"
    assert call("queues", "--json") == []


# -- retry, cancel, remove, queues ------------------------------------------------------------------------------------


def test_retry_runs_jobs_now(call: Any, zoo: dict[str, int]) -> None:
    assert call("retry", "1", "2") == "job 1 available\njob 2 available\n"
    assert [job["state"] for job in call("retry", "2", "4", "--json")] == ["available", "available"]


def test_cancel_calls_waiting_jobs_off_and_asks_running_ones_to_stop(call: Any, zoo: dict[str, int]) -> None:
    assert (
        call("cancel", "4", "3", "2")
        == "job 4 cancelled\njob 3 is running and was asked to stop\njob 2 cancelled\n"
    )
    assert call("cancel", "3", "--force") == "job 3 cancelled\n"


def test_delete_takes_ids_and_remove_takes_keys(call: Any, db: Any, zoo: dict[str, int]) -> None:
    db.execute("select pyworker.add_job('x', job_key => 'later', run_at => '2100-01-01')")
    assert call("delete", "1", "2") == "job 1 deleted (was retryable)\njob 2 deleted (was cancelled)\n"
    assert call("remove", "--key", "[/k]", "--key", "later") == (
        "job 4 deleted (was available)\njob 5 deleted (was scheduled)\n"
    )
    assert [job["id"] for job in call("jobs", "--json")] == [3]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["retry", "1", "999"], "retry_job: there is no job 999"),
        (
            ["retry", "1", "3"],
            "retry_job: job 3 is running. cancel_job(id, force => true) first, or wait for its end.",
        ),
        (["cancel", "4", "999"], "cancel_job: there is no job 999"),
        (["delete", "1", "3"], "delete_job: job 3 is running."),
        (["remove", "--key", "[/k]", "--key", "nobody's"], 'no job holds the key "nobody\'s"'),
    ],
)
def test_of_several_jobs_all_or_none_are_changed(
    cli: Any, db: Any, dsn: str, zoo: dict[str, int], arguments: list[str], words: str
) -> None:
    before = db.execute(
        "select id, state from pyworker.jobs union all select id, state from pyworker.history"
    ).fetchall()
    done = cli(*arguments, DATABASE_URL=dsn)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"pyworker: {words}")
    assert (
        db.execute(
            "select id, state from pyworker.jobs union all select id, state from pyworker.history"
        ).fetchall()
        == before
    )


def test_queues_counts_jobs_per_state(call: Any, zoo: dict[str, int], add: Any) -> None:
    add("'a', queue_name => 'a [b]'")
    lines = [line.split() for line in call("queues").splitlines()]
    assert lines[0][:3] == ["queue", "name", "concurrency"]
    assert [line[:2] for line in lines[1:]] == [["a", "[b]"], ["default", "no"], ["q", "1"]]
    rows = {row["queue_name"]: row for row in call("queues", "--json")}
    assert rows["default"] | {"oldest_waiting": None} == {
        "queue_name": "default", "concurrency": None, "paused": False, "available": 1, "running": 1, "pending": 0, "scheduled": 0,
        "retryable": 0, "discarded": 0, "oldest_waiting": None,
    }  # fmt: skip
    assert (rows["q"]["retryable"], rows["a [b]"]["concurrency"]) == (1, 1)


# -- what goes wrong --------------------------------------------------------------------------------------------------


def one_line(done: subprocess.CompletedProcess[str], *words: str, code: int = 1) -> None:
    assert done.returncode == code, done
    assert done.stdout == ""
    assert re.fullmatch(r"pyworker: [^\n]+\n", done.stderr), done.stderr
    for word in words:
        assert word in done.stderr


EXAMPLES = {
    "add": ["t"],
    "cancel": ["1"],
    "retry": ["1"],
    "delete": ["1"],
    "remove": ["--key", "k"],
    "run": ["handlers"],
    "explain": ["1"],
    "replay": ["1"],
}
UNKNOWN = {"doctor": 3, "health": 3}  # what they were asked, they cannot say


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in ("demo", "sql", "dev")])
def test_without_a_database_a_command_says_how_to_name_one(
    cli: Any, program: Any, tmp_path: Any, command: str
) -> None:
    done = (program if command == "run" else cli)(
        command, *EXAMPLES.get(command, []), DATABASE_URL=f"host={tmp_path} dbname=x"
    )
    one_line(
        done, "cannot reach the database: ", "No such file or directory", "Name one with --dsn, DATABASE_URL or PGHOST",
        code=UNKNOWN.get(command, 1),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("dsn", "words"),
    [
        ("not a dsn", 'missing "=" after "not"'),
        ("postgresql+psycopg://localhost/x", 'missing "="'),
        ("postgres://localhost:99999/x", "invalid port number"),
        ("host=localhost database=x", 'invalid connection option "database"'),
    ],
)
def test_a_dsn_that_is_none_is_refused(cli: Any, dsn: str, words: str) -> None:
    one_line(cli("jobs", "--dsn", dsn), words, "--dsn, DATABASE_URL")


@pytest.mark.parametrize("command", OF_A_DATABASE)
def test_a_database_without_pyworker_says_to_migrate(
    cli: Any, fresh: Any, fresh_dsn: str, command: str
) -> None:
    done = cli(command, *EXAMPLES.get(command, []), "--schema", "no such", DATABASE_URL=fresh_dsn)
    code = UNKNOWN.get(command, 1)
    one_line(done, "no such", "Run: pyworker migrate (or name its schema with --schema)", code=code)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["jobs", "999"], ["there is no job 999"]),
        (["add", ""], ["add_job: identifier must be 1 to 128 characters long"]),
        (
            ["add", "t", "--run-at", "whenever"],
            ['invalid input syntax for type timestamp with time zone: "whenever"'],
        ),
        (["add", "t", "--priority", "99999"], ["add_job: priority must be from -32768 to 32767, got 99999"]),
        (["add", "t", "--meta", "[]"], ["add_job: meta must be a JSON object, got array"]),
        (["add", "t", "--meta", '{"a": "\\u0000"}'], ["unsupported Unicode escape sequence"]),
        (
            ["add", "\udce9"],
            [r"add_job: identifier must not contain NUL or half a surrogate pair, got '\udce9'"],
        ),
        (["add", "t", "[" * 500 + "]" * 500], ["payload must not be nested deeper than 100 levels"]),
    ],
    ids=lambda value: value[0] if value[0] != "add" else value[-2],
)
def test_a_refusal_is_one_line(cli: Any, db: Any, dsn: str, arguments: list[str], words: list[str]) -> None:
    one_line(cli(*arguments, DATABASE_URL=dsn), *words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["add", "t", "{'a': 1}"], "PAYLOAD is not JSON"),
        (["add", "t", "NaN"], "PAYLOAD is not JSON: NaN is none of its numbers"),
        (["add", "t", "--meta", "{"], "--meta is not JSON"),
        (["add"], "Missing argument 'TASK'"),
        (["jobs", "--state", "lost"], "'lost' is not one of 'scheduled'"),
        (["jobs", "x"], "'x' is not a valid integer"),
        (["jobs", "99999999999999999999"], "99999999999999999999 is not in the range"),
        (["retry", "0"], "0 is not in the range"),
        (["jobs", "--limit", "0"], "0 is not in the range x>=1"),
        (["delete"], "Missing argument 'JOB_IDS...'"),
        (["remove"], "Missing option '--key'"),
        (["remove", "5"], "a job is removed by its key; by its id: pyworker delete 5"),
        (["remove", "5", "6", "--key", "k"], "pyworker delete 5 6"),
        (["remove", "a key"], "name the key by its option: pyworker remove --key 'a key'"),
        (["add", "t", "--queue-name", "x"], "Did you mean '--queue'?"),
        (["run"], "Missing argument 'MODULES...'"),
        (["run", "m", "--concurrency", "0"], "0 is not in the range"),
        (["jobs", "--nothing"], "No such option"),
        (["jbos"], "No such command 'jbos'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_usage_exits_with_2_before_a_database_is_asked(
    cli: Any, arguments: list[str], words: str
) -> None:
    done = cli(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Usage: " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_worker_whose_modules_cannot_be_loaded_tells_only_why(
    program: Any, db: Any, dsn: str, processes: str
) -> None:
    done = program("run", "nosuch.module", "--processes", processes, DATABASE_URL=dsn, PYTHONPATH=ROOT)
    lines = done.stderr.splitlines()
    assert (done.returncode, done.stdout, bool(lines)) == (1, "", True)
    for line in lines:  # each process that got so far has one
        assert re.search(
            r" ERROR +pyworker\.worker\[\d+\] there is no module 'nosuch.module' to load tasks", line
        )


def test_a_worker_tells_that_it_has_started_and_stopped(
    program: Any, db: Any, dsn: str, tmp_path: Any
) -> None:
    (tmp_path / "mine.py").write_text("from pyworker import task\n@task\ndef f(payload): pass\n")
    done = program("run", "mine", "--once", DATABASE_URL=dsn, PYTHONPATH=ROOT)
    assert done.returncode == 0
    assert [line.split("] ")[1].split(": ")[0] for line in done.stderr.splitlines()] == [
        f"pyworker {pyworker.__version__} started",
        "stopped",
    ]


def test_a_missing_privilege_names_the_role_to_ask_for(cli: Any, fresh: Any, fresh_dsn: str) -> None:
    role = f"nobody_{fresh.info.dbname}"
    fresh.execute(f'create role "{role}" login')
    try:
        theirs = make_conninfo(**{**conninfo_to_dict(fresh_dsn), "user": role})
        for command in OF_A_DATABASE:
            done = cli(command, *EXAMPLES.get(command, []), DATABASE_URL=theirs)
            code = UNKNOWN.get(command, 1)
            one_line(done, "permission denied for schema pyworker", "GRANT <schema>_admin", code=code)
        done = cli("migrate", "--schema", "mine", DATABASE_URL=theirs)
        one_line(done, "permission denied for database", "GRANT CREATE ON DATABASE")
        fresh.execute(f'grant create on database "{fresh.info.dbname}" to "{role}"')
        done = cli("migrate", "--schema", "mine", "--roles", DATABASE_URL=theirs)
        one_line(done, "permission denied to create role", "CREATEROLE")
        assert fresh.execute("select to_regnamespace('mine')").fetchone() == (None,)
        assert cli("migrate", "--schema", "mine", DATABASE_URL=theirs).returncode == 0
        fresh.execute(f'grant pyworker_reader to "{role}"')
        assert cli("jobs", DATABASE_URL=theirs).returncode == 0
        one_line(cli("jobs", "1", DATABASE_URL=theirs), "permission denied for function get_job")
    finally:
        fresh.execute(f'drop owned by "{role}"; drop role "{role}"')


def test_a_lock_that_is_held_for_long_is_named(cli: Any, session: Any, db: Any, dsn: str) -> None:
    other = session()
    other.run("begin; lock table pyworker.live_jobs")
    done = cli(
        "jobs", DATABASE_URL=make_conninfo(**{**conninfo_to_dict(dsn), "options": "-c lock_timeout=100"})
    )
    one_line(
        done, "canceling statement due to lock timeout", "another session holds a lock on pyworker's tables"
    )
    other.run("rollback")


# -- where its options come from --------------------------------------------------------------------------------------


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
    assert (job["queue_name"], job["key"], job["flags"], job["priority"], job["meta"], job["max_attempts"]) == (
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


# -- manners ----------------------------------------------------------------------------------------------------------


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
    assert re.match(r" 1 +fails +retryable +q +k +1/25 +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d +ValueE", lines[4])
    assert len(lines[4]) <= max(columns, 90)


def test_output_that_nobody_reads_to_the_end_is_no_error(db: Any, dsn: str) -> None:
    db.execute(
        'select pyworker.add_jobs((select jsonb_agg(\'{"identifier": "t"}\'::jsonb) from generate_series(1, 1500)))'
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
