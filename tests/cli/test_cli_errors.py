"""What goes wrong on the command line is one line that says what to do."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

import pyworker
from tests.support.cli import COMMANDS
from tests.support.cli import add as add

OF_A_DATABASE = [name for name in COMMANDS if name not in ("demo", "run", "migrate", "sql", "dev", "top")]


# -- what goes wrong -------------------------------------------------------------------------------


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
    "signal": ["1", "go"],
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
        done, "cannot reach the database: ", "No such file or directory",
        "Name one with --dsn, DATABASE_URL or PGHOST",
        code=UNKNOWN.get(command, 1),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("dsn", "words"),
    [
        ("not a dsn", 'missing "=" in the connection string'),
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
        (
            ["add", "t", "--meta", '{"a": "\\u0000"}'],
            ["add_job: meta must not contain NUL or half a surrogate pair"],
        ),
        (
            ["add", "\udce9"],
            [r"add_job: identifier must not contain NUL or half a surrogate pair, got '\udce9'"],
        ),
        (
            ["add", "t", "--depends-on", "99"],
            ["--depends-on: there is no job 99; give ids that `pyworker jobs` lists"],
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
        (["add", "t", "--run-at", "tomorrow", "--delay", "5"], "give --run-at or --delay, not both"),
        (
            ["add", "t", "NaN"],
            'PAYLOAD is not JSON, such as \'{"to": "ada@example.org"}\': NaN is none of its numbers',
        ),
        (["add", "t", "--meta", "{"], "--meta is not JSON"),
        (["add"], "Missing argument 'TASK'"),
        (["jobs", "--state", "lost"], "'lost' is not one of 'scheduled'"),
        (["jobs", "x"], "'x' is not an integer"),
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
        (["run", "--queue", "mail=x"], "--queue mail=x: write QUEUE or QUEUE=N, with N from 1 to 1000"),
        (["run", "--queue", "a", "--queue", "a"], "--queue a is given twice"),
        (["run", "--concurrency", "x"], "Invalid value for '--concurrency'"),
        (["run", "--crontab", "/none"], "Invalid value for '--crontab'"),
        (["run", "--stuck-after", "x"], "Invalid value for '--stuck-after'"),
        (["add", "t", "--depends-on", "1,99"], "give --depends-on and an id once for each job, got '1,99'"),
        (["add", "t", "--depends-on", "[99]"], "give --depends-on and an id once for each job, got '[99]'"),
        (["add", "t", "--depends-on", "x"], "Invalid value for '--depends-on'"),
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


def test_a_missing_privilege_names_the_role_to_ask_for(cli: Any, fresh: Any, fresh_dsn: str) -> None:
    role = f"nobody_{fresh.info.dbname}"
    fresh.execute(f'create role "{role}" login')
    try:
        theirs = make_conninfo(**{**conninfo_to_dict(fresh_dsn), "user": role})
        for command in OF_A_DATABASE:
            done = cli(command, *EXAMPLES.get(command, []), DATABASE_URL=theirs)
            code = UNKNOWN.get(command, 1)
            one_line(done, f"pyworker {command} needs the role pyworker_", "GRANT pyworker_", code=code)
        done = cli("migrate", "--schema", "mine", DATABASE_URL=theirs)
        one_line(done, "permission denied for database", "GRANT CREATE ON DATABASE")
        fresh.execute(f'grant create on database "{fresh.info.dbname}" to "{role}"')
        done = cli("migrate", "--schema", "mine", "--roles", DATABASE_URL=theirs)
        one_line(done, "permission denied to create role", "CREATEROLE")
        assert fresh.execute("select to_regnamespace('mine')").fetchone() == (None,)
        assert cli("migrate", "--schema", "mine", DATABASE_URL=theirs).returncode == 0
        fresh.execute(f'grant pyworker_reader to "{role}"')
        assert cli("jobs", DATABASE_URL=theirs).returncode == 0
        one_line(cli("retry", "1", DATABASE_URL=theirs), "needs the role pyworker_admin")
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


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_worker_whose_modules_cannot_be_loaded_tells_only_why(
    program: Any, db: Any, dsn: str, processes: str
) -> None:
    done = program("run", "nosuch.module", "--processes", processes, DATABASE_URL=dsn)
    lines = done.stderr.splitlines()
    assert (done.returncode, done.stdout, bool(lines)) == (1, "", True)
    for line in lines:  # each process that got so far has one
        assert re.search(
            r" ERROR +pyworker\.worker\[\d+\] there is no module 'nosuch.module' to load tasks", line
        )


def test_a_worker_tells_that_it_has_started_and_stopped(
    program: Any, db: Any, dsn: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text("from pyworker import task\n@task\ndef f(payload): pass\n")
    done = program("run", "mine", "--once", DATABASE_URL=dsn)
    assert done.returncode == 0
    assert [line.split("] ")[1].split(": ")[0] for line in done.stderr.splitlines()] == [
        f"pyworker {pyworker.__version__} started",
        "stopped",
    ]


OUTCOMES = """
import datetime
from pyworker import Cancel, Discard, Job, Snooze, task
@task
def fine(payload): pass
@task
def own(payload, job: Job):
    with job.transaction(): pass
@task
def failing(payload): raise ValueError
@task(max_attempts=1)
def hopeless(payload): raise ValueError
@task
def unwanted(payload): raise Discard("no")
@task
def stopped(payload): raise Cancel("no")
@task
def later(payload): raise Snooze(datetime.timedelta(days=1))
"""


@pytest.mark.parametrize("processes", ["1", "3"])
def test_a_worker_ends_with_the_numbers_of_what_became_of_its_jobs(
    program: Any, db: Any, dsn: str, tmp_path: Path, processes: str
) -> None:
    (tmp_path / "mine.py").write_text(OUTCOMES)
    many = {"fine": 5, "own": 2, "failing": 3, "hopeless": 1, "unwanted": 1, "stopped": 1, "later": 1}
    for task, number in many.items():
        add = "select pyworker.add_job(%s, max_attempts => %s) from generate_series(1, %s)"
        db.execute(add, [task, 1 if task == "hopeless" else 9, number])
    done = program("run", "mine", "--once", "--processes", processes, DATABASE_URL=dsn)
    told = "stopped: 7 completed, 3 failed, 2 discarded, 1 cancelled, 1 snoozed"
    assert done.stderr.splitlines()[-1].endswith(told)


def test_a_worker_begins_with_its_database_tasks_queues_and_flags(
    program: Any, fresh: Any, fresh_dsn: str, tmp_path: Path
) -> None:
    names = [f"task_{n:02}" for n in range(11)]
    handlers = [f"@task\ndef {name}(payload): pass\n" for name in names]
    (tmp_path / "mine.py").write_text("from pyworker import task\n" + "".join(handlers))
    (tmp_path / "few.py").write_text("from pyworker import task\n" + "".join(handlers[:9]))
    for module, options, told in (
        ("mine", [], f"tasks {', '.join(names[:8])}, 3 more"),
        ("few", [], f"tasks {', '.join(names[:9])}"),
        ("few", ["--task", "task_03", "--queue", "mail=2"], "queues mail=2, tasks task_03"),
    ):
        done = program("run", module, "--once", "--processes", "2", *options, DATABASE_URL=fresh_dsn)
        (first,) = (line for line in done.stderr.splitlines() if " started: " in line)
        about = first.split(" started: ")[1]
        assert about == f"2 processes of 10 handlers, database {fresh.info.dbname}, {told}"


@pytest.mark.parametrize("option", ["--run-at", "--delay", "--expires-at", "--max-wait"])
def test_what_is_no_time_is_refused_with_its_option(
    cli: Any, fresh: Any, fresh_dsn: str, option: str
) -> None:
    keyed = ("--key", "k") if option == "--max-wait" else ()
    done = cli("add", "t", option, "soon", *keyed, DATABASE_URL=fresh_dsn)
    one_line(done, f"{option}: invalid input syntax for type", '"soon"')
    assert fresh.execute("select id from pyworker.jobs").fetchall() == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["add", "t", "--depends-on", "x"], "'--depends-on': 'x' is not an integer."),
        (["add", "t", "--priority", "1.5"], "'--priority': '1.5' is not an integer."),
        (["run", "m", "--stuck-after", "1m"], "'--stuck-after': '1m' is not a number."),
        (["run", "m", "-c", "0"], "'--concurrency' / '-c': 0 is not in the range 1<=x<=1000."),
        (["queues", "set", "q", "--rate", "x"], "'--rate': 'x' is no rate: write it like 10/1m"),
        (["queues", "set", "q", "ten"], "'CONCURRENCY': 'ten' is not an integer."),
        (["jobs", "x"], "'JOB_ID': 'x' is not an integer."),
        (["retry", "1", "0"], "'JOB_IDS...': 0 is not in the range"),
        (["replay"], "Missing argument 'JOB_ID'."),
        (["jobs", "--state", "done"], "'--state': 'done' is not one of 'scheduled'"),
    ],
)  # fmt: skip
def test_a_bad_value_is_refused_by_the_name_of_its_option_or_argument_alone(
    cli: Any, arguments: list[str], words: str
) -> None:
    done = cli(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert "PYWORKER_" not in done.stderr


def test_a_bad_value_of_a_variable_is_refused_by_the_name_of_its_option_and_the_variable(cli: Any) -> None:
    done = cli("add", "t", PYWORKER_ADD_PRIORITY="high")
    assert done.returncode == 2
    assert "'--priority' (from the variable PYWORKER_ADD_PRIORITY): 'high' is not an integer." in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["worker"], "No such command 'worker'. Here that is: pyworker run"),
        (["workers"], "No such command 'workers'. Here that is: pyworker top, ui or health"),
        (["help"], "No such command 'help'. Here that is: pyworker --help"),
        (["jbos"], "Did you mean 'jobs'?"),
        (["queues", "list"], "No such command 'list'. To list them: pyworker queues"),
        (["tasks", "ls"], "To list them: pyworker tasks"),
        (["schedules", "add"], "To add one: SELECT pyworker.add_schedule(name, cron, task)"),
        (["queues", "resmue", "q"], "No such command 'resmue'. Did you mean 'resume'?"),
        (["run", "m", "--workers", "5"], "No such option '--workers'. Did you mean '--processes'?"),
        (["add", "t", "--in", "5m"], "No such option '--in'. Did you mean '--delay'?"),
        (["jobs", "--in", "5m"], "No such option '--in'."),
    ],
)  # fmt: skip
def test_a_word_of_another_queue_or_a_misspelled_one_leads_to_ours(
    cli: Any, arguments: list[str], words: str
) -> None:
    done = cli(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "--delay" not in done.stderr or "--delay" in words


@pytest.mark.parametrize("name", ["tasks_of_ours.py", "./tasks_of_ours.py", "tasks_of_ours:greet"])
def test_a_file_or_a_function_in_place_of_a_module_is_refused_with_the_name_of_the_module(
    program: Any, tmp_path: Path, dsn: str, name: str
) -> None:
    (tmp_path / "tasks_of_ours.py").write_text(
        "from pyworker import task\n\n@task\ndef greet(payload): ...\n"
    )
    done = program("run", name, "--once", DATABASE_URL=dsn, PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.endswith(": write tasks_of_ours\n")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("verb", ["retry", "cancel", "delete"])
def test_if_one_of_several_jobs_is_refused_none_is_changed_and_the_message_says_that(
    cli: Any, db: Any, dsn: str, verb: str
) -> None:
    (job,) = db.execute("select (pyworker.add_job('t', run_at => '2100-01-01')).id").fetchone()
    done = cli(verb, str(job), "999999", DATABASE_URL=dsn)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith(" No job was changed.\n")
    assert db.execute("select state from pyworker.get_job(%s)", [job]).fetchone() == ("scheduled",)
    assert "No job was changed" not in cli(verb, "999999", DATABASE_URL=dsn).stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["jobs", "--dsn", "dbname=a", "--dsn", "dbname=b"],
        ["--dsn", "dbname=a", "--dsn", "dbname=b", "doctor"],
        ["queues", "pause", "q", "--dsn", "dbname=a", "--dsn", "dbname=b"],
        ["run", "handlers", "--dsn", "dbname=a", "--dsn", "dbname=b"],
        ["run", "handlers", "--schema", "a", "--schema", "b"],
    ],
    ids=" ".join,
)
def test_a_command_serves_one_schema_of_one_database(cli, arguments):
    done = cli(*arguments)
    what = "schema" if "--schema" in arguments else "database"
    assert done.returncode == 2
    assert f"is given 2 times: name one {what}, and start a worker for each" in done.stderr
