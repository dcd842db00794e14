"""--sql and --dry-run, on every verb: what is printed does what the verb does, and what was tried
leaves nothing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import click
import psycopg
import pytest

from pyworker import tasks
from pyworker.cli import main

pytestmark = pytest.mark.slow

CRONTAB = '0 4 * * * report ?id=nightly {"a": "ü"}\n* * * * * often {it: \'is JSON5\'}\n'
DEPLOYED = """
from pyworker import task
@task(
    max_attempts=2, delivery="at_most_once", timeout=90, backoff=["it's 5 s"[-3:]],
    unique_policy={"by_args": True},
)
def charge(payload): ...
"""
# A command line for each verb that changes rows, in the zoo below.
CHANGES = [
    ["add", "t"],
    [
        "add",
        "it's",
        '{"a": "%s \\\\ ü\'"}',
        "--queue",
        "q",
        "--run-at",
        "2100-01-01",
        "--key",
        "k2",
        "--flag",
        "a b",
        "--flag",
        "c",
    ],
    [
        "add",
        "t",
        "[1]",
        "--meta",
        '{"m": 1}',
        "--max-attempts",
        "3",
        "--priority",
        "-7",
        "--sequence-policy",
        '{"key": "s"}',
    ],
    ["add", "t", "--unique-policy", '{"by_args": true}'],
    ["add", "t", "--depends-on", "4", "--depends-on", "1"],
    ["retry", "1"],
    ["retry", "2", "1"],
    ["signal", "1", "it's on"],
    ["signal", "4", "go", '{"by": "ann"}'],
    ["cancel", "4"],
    ["cancel", "3", "--force"],
    ["cancel", "3", "4"],
    ["delete", "1"],
    ["delete", "2", "1"],
    ["remove", "--key", "k"],
    ["queues", "set", "q", "7"],
    ["queues", "set", "q", "--no-limit"],
    ["queues", "set", "q", "3", "--rate", "10/1m"],
    ["queues", "set", "q*", "--rate", "5/s", "--fair"],
    ["queues", "pause", "it's", "--create"],
    ["queues", "resume", "paused"],
    ["sequences", "resume", "halted"],
    ["schedules", "run", "nightly"],
    ["schedules", "pause", "nightly"],
    ["schedules", "resume", "sleeping"],
    ["schedules", "remove", "nightly"],
    ["schedules", "load", "crontab"],
    ["tasks", "sync", "deployed"],
]
LOOKS = [
    ["jobs"],
    ["jobs", "1"],
    ["jobs", "--waiting-for", "4"],
    ["jobs", "--state", "active", "--task", "it's", "--queue", "default", "--key", "k"],
    ["explain", "1"],
    ["doctor"],
    ["queues"],
    ["sequences"],
    ["schedules"],
    ["tasks"],
    ["schedules", "next", "nightly"],
    ["schedules", "next", "0 4 * * *", "--timezone", "Europe/Berlin"],
]
# They run something else than a statement or two.
OTHERS = {"demo", "dev", "health", "metrics", "migrate", "replay", "run", "sql", "top", "ui"}

by_words = pytest.mark.parametrize("words", CHANGES, ids=" ".join)

ZOO = """
    select pyworker.add_job('later', job_key => 'k', run_at => '2100-01-01');
    select pyworker.add_job('cancelled_runs'), pyworker.cancel_job(2);
    select pyworker.add_job('runs', priority => -1);
    select * from pyworker.claim_jobs(pyworker.register_worker(), 1, array['runs']);
    select pyworker.add_job('waits');
    select pyworker.add_job('s', sequence_policy => '{"key": "halted"}'), pyworker.add_job('s',
        sequence_policy => '{"key": "halted"}');
    select pyworker.permanently_fail_jobs('{5}', 'boom');
    select pyworker.pause_queue('paused'), pyworker.set_queue('q', 2);
    select pyworker.add_schedule('nightly', '0 4 * * *', 'report'),
           pyworker.add_schedule('sleeping', '0 4 * * *', 'report');
    select pyworker.pause_schedule('sleeping')
"""
TABLES = """
    select relname from pg_class where relnamespace = 'pyworker'::regnamespace and relkind in ('r', 'p')
        and not relispartition
    order by 1"""
TIME = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:[\d.]+|(?<=\"run\": )[1-9]\d*"  # a run is the time of its claim
MARKS = (
    "listening_until",
    "polled_until",
    "fleet_size",
    "silent_before",
    "swept_at",
    "maintain_at",
    "due_told_at",
)  # sequences that no rollback takes back


def contents(db: Any) -> dict[str, Any]:
    """Every row of every table, but for its times and the numbers of transactions."""
    found: dict[str, Any] = {}
    for (table,) in db.execute(TABLES).fetchall():
        times = """(
            select array_agg(attname::text) from pg_attribute
            where attrelid = %s::regclass and atttypid in ('timestamptz'::regtype, 'xid8'::regtype))"""
        rows = db.execute(
            f"select to_jsonb(t) - coalesce({times}, '{{}}') from pyworker.{table} t", [f"pyworker.{table}"]
        )
        found[table] = sorted(re.sub(TIME, "", json.dumps(row, sort_keys=True)) for (row,) in rows)
    return found


@pytest.fixture
def zoo(db: Any, _shared: Any, dsn: str, cli: Any, tmp_path: Any, monkeypatch: Any) -> Any:
    """zoo() makes a few jobs, queues, sequences and schedules, always the same; it returns a way
    to call commands."""
    (tmp_path / "crontab").write_text(CRONTAB)
    (tmp_path / "deployed.py").write_text(DEPLOYED)
    monkeypatch.setattr(tasks, "_registry", {})
    monkeypatch.delitem(sys.modules, "deployed", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)

    def make() -> Any:
        _shared.empty()
        db.execute(ZOO)
        return lambda *words: cli(*words, DATABASE_URL=dsn)

    return make


@by_words
def test_what_is_printed_does_what_the_verb_does(zoo: Any, db: Any, dsn: str, words: list[str]) -> None:
    call = zoo()
    before = contents(db)
    printed = call(*words, "--sql")
    assert (printed.returncode, printed.stderr) == (0, "")
    assert contents(db) == before, "it was run"
    done = call(*words)
    assert (done.returncode, done.stderr) == (0, "")
    after = contents(db)
    assert after != before
    zoo()
    db.execute(printed.stdout)
    assert contents(db) == after


@by_words
def test_a_dry_run_says_what_would_change_and_leaves_nothing(
    zoo: Any, db: Any, dsn: str, words: list[str]
) -> None:
    call = zoo()
    db.execute(
        "select setval('pyworker.listening_until', extract(epoch "
        "from clock_timestamp())::bigint * 1000 + 60000)"
    )
    marks = [f"select last_value, is_called from pyworker.{name}" for name in MARKS]

    def everything() -> Any:
        rows = [
            db.execute(f"select to_jsonb(t)::text from pyworker.{table} t").fetchall()
            for (table,) in db.execute(TABLES).fetchall()
        ]
        return [sorted(table) for table in rows], [db.execute(mark).fetchone() for mark in marks]

    with psycopg.connect(dsn, autocommit=True) as listener:
        listener.execute("listen pyworker")
        before = everything()
        tried = call(*words, "--dry-run")
        assert everything() == before
        listener.execute("select 1")  # what was sent before it comes before its answer
        assert list(listener.notifies(timeout=0)) == []
    assert tried.returncode == 0
    if words[1] != "load":  # which has a list of its own
        assert tried.stderr.startswith("dry run, rolled back: ")
        assert "nothing" not in tried.stderr
    real = call(*words)
    numbers = str.maketrans("", "", "0123456789")  # ids are not given twice
    assert real.stdout.translate(numbers).replace("is ", "") == tried.stdout.translate(numbers).replace(
        "is ", ""
    ).replace("would be ", "").replace(", nothing was changed", "")


def test_a_dry_run_names_tables_and_numbers(zoo: Any) -> None:
    call = zoo()
    assert "live_jobs 1 inserted" in call("add", "t", "--dry-run").stderr
    tried = call("cancel", "4", "--dry-run", "--json")
    assert json.loads(tried.stdout)[0]["state"] == "cancelled"
    assert tried.stderr == "dry run, rolled back: finished_jobs 1 inserted; live_jobs 1 deleted\n"
    assert call("queues", "resume", "q", "--dry-run").stderr == "dry run, rolled back: nothing would change\n"


def test_a_dry_run_fails_as_the_verb_would(zoo: Any) -> None:
    done = zoo()("retry", "1", "999", "--dry-run")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("pyworker: retry_job: there is no job 999. List jobs by `pyworker jobs`")


@pytest.mark.parametrize("words", LOOKS, ids=" ".join)
def test_what_a_look_prints_can_be_run_and_changes_nothing(zoo: Any, db: Any, words: list[str]) -> None:
    call = zoo()
    printed = call(*words, "--sql")
    assert (printed.returncode, printed.stderr) == (0, "")
    before = contents(db)
    db.execute(printed.stdout)
    assert contents(db) == before


def test_to_print_no_database_is_needed(cli: Any, tmp_path: Any) -> None:
    nowhere = f"host={tmp_path} dbname=x"
    assert (
        cli("retry", "7", "--sql", DATABASE_URL=nowhere).stdout
        == "select j.* from pyworker.retry_job(7) j;\n"
    )
    assert (
        cli("queues", "--sql", "pause", "a'b", DATABASE_URL=nowhere).stdout
        == "select pyworker.pause_queue('a''b');\n"
    )
    assert cli("queues", "pause", "q", "--sql", "--schema", 'My "S"', DATABASE_URL=nowhere).stdout == (
        'select "My ""S""".pause_queue(\'q\');\n'
    )


def test_psql_takes_what_is_printed(zoo: Any, db: Any, dsn: str, pg_server: Any) -> None:
    call = zoo()
    psql = pg_server.bindir / "psql"
    if not psql.exists():
        pytest.skip("no psql came with this server")
    text = call("add", "it's", '{"a": "\\\\ %s ü"}', "--sql").stdout + call("retry", "1", "2", "--sql").stdout
    done = subprocess.run(
        [str(psql), "-X", "-v", "ON_ERROR_STOP=1", dsn],
        input=text,
        text=True,
        capture_output=True,
        env={"PGCLIENTENCODING": "UTF8"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    rows = db.execute(
        "select task_identifier, payload->>'a' from pyworker.get_job((select max(id) from pyworker.jobs))"
    )
    assert rows.fetchone() == ("it's", "\\ %s ü")
    assert db.execute("select state from pyworker.jobs where id = 2").fetchone() == ("available",)


def test_one_of_the_two_is_meant(cli: Any) -> None:
    done = cli("add", "t", "--sql", "--dry-run")
    assert done.returncode == 2
    assert "--sql runs nothing, --dry-run does: use one or the other" in done.stderr


def leaves(group: click.Group, path: tuple[str, ...] = ()) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name, command in group.commands.items():
        found[" ".join((*path, name))] = {option for param in command.params for option in param.opts}
        if isinstance(command, click.Group):
            found |= leaves(command, (*path, name))
    return found


def test_every_verb_has_them() -> None:
    def names(lines: list[list[str]], commands: dict[str, set[str]]) -> set[str]:
        return {
            max((name for name in commands if " ".join(line).startswith(name)), key=len) for line in lines
        }

    commands = {name: options for name, options in leaves(main).items() if name not in OTHERS}
    assert {name for name, options in commands.items() if "--dry-run" in options} == names(CHANGES, commands)
    assert {name for name, options in commands.items() if "--sql" in options} == names(
        CHANGES + LOOKS, commands
    )
    assert commands.keys() == names(CHANGES + LOOKS, commands), "the rest is among OTHERS"
