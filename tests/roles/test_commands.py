"""Every command as a member of each of the four roles: it is done, or the role that is missing is named."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from pyworker._db.rights import COMMANDS
from pyworker.cli import main
from tests.roles.conftest import GROUPS, Logins, one_role, state
from tests.support.commands import command, process

TASKS = """
from pyworker import task

@task(max_attempts=3)
def t(payload):
    print("it runs")
"""
CRONTAB = "0 4 * * * t ?id=loaded"


def verbs() -> Iterator[str]:
    for name, one in main.commands.items():
        yield name
        if isinstance(one, click.Group):
            yield from (f"{name} {sub}" for sub in one.commands)


@dataclasses.dataclass
class Case:
    """A command line, and what the database answers with true if it was done."""

    verb: str
    line: str
    done: str = "select true"
    code: tuple[int, ...] = (0,)
    alone: bool = False  # in a process and a directory of its own, with TASKS
    said: str = ""


ADDED = "select count(*) = {} from pyworker.jobs where task_identifier = 'added'"
STATE = "select state = '{}' from pyworker.get_job(%(waiting)s)"
CASES = [
    Case("add", "add added", ADDED.format(1), said="available"),
    Case("add", "add added --json", ADDED.format(1)),
    Case("add", "add added --key a", ADDED.format(1), said="available"),
    Case("add", "add added --key k", ADDED.format(1), said="available"),
    Case("add", "add added --delay 3600", ADDED.format(1), said="scheduled"),
    Case("add", "add added --depends-on {waiting}", ADDED.format(1), said="pending"),
    Case("add", "add added --dry-run", ADDED.format(0), said="available"),
    Case("add", "add added --dry-run --json", ADDED.format(0)),
    Case("add", "add added --dry-run --key k", ADDED.format(0)),
    Case("remove", "remove --key k", "select id is null from pyworker.get_job(%(waiting)s)"),
    Case("remove", "remove --key k --json", "select id is null from pyworker.get_job(%(waiting)s)"),
    Case("remove", "remove --key k --dry-run", STATE.format("available")),
    Case(
        "signal", "signal {waiting} go 1",
        "select exists (select from pyworker.job_signals(%(waiting)s) where name = 'go')", said="'go'",
    ),
    Case(
        "signal", "signal {waiting} go --json",
        "select exists (select from pyworker.job_signals(%(waiting)s) where name = 'go')", said='"id"',
    ),
    Case(
        "signal", "signal {waiting} go --dry-run",
        "select not exists (select from pyworker.job_signals(%(waiting)s) where name = 'go')",
    ),
    Case("run", "run roles_tasks --once", STATE.format("completed"), alone=True),
    Case(
        "tasks sync", "tasks sync roles_tasks",
        "select max_attempts = 3 from pyworker.list_tasks() where identifier = 't'",
        alone=True, said="max_att",
    ),
    Case(
        "tasks sync", "tasks sync roles_tasks --dry-run", "select count(*) = 0 from pyworker.list_tasks()",
        alone=True, said="max_att",
    ),
    Case(
        "schedules load", "schedules load crontab",
        "select exists (select from pyworker.schedules where name = 'loaded')", alone=True, said="loaded",
    ),
    Case(
        "schedules load", "schedules load crontab --dry-run",
        "select not exists (select from pyworker.schedules where name = 'loaded')", alone=True, said="loaded",
    ),
    Case(
        "replay", "replay {waiting} --modules roles_tasks", STATE.format("available"), alone=True,
        said="it runs",
    ),
    Case("jobs", "jobs", said="available"),
    Case("jobs", "jobs --json --state discarded", said="discarded"),
    Case("jobs", "jobs --waiting-for {waiting}"),
    Case("jobs", "jobs {waiting}", said="available"),
    Case("jobs", "jobs {waiting} --json", said='"available"'),
    Case("explain", "explain {waiting}", said="waits for a worker"),
    Case("queues", "queues", said="p "),
    Case("sequences", "sequences", said="halt"),
    Case("schedules", "schedules", said="nightly"),
    Case("schedules next", "schedules next nightly", said="UTC"),
    Case("schedules next", "schedules next @daily", said="UTC"),
    Case("doctor", "doctor", code=(0, 1), said="owners"),
    Case("doctor", "doctor --json", code=(0, 1), said="owners"),
    Case("metrics", "metrics", said="pyworker_jobs"),
    Case("top", "top", code=(1,), said="needs a terminal"),
    Case("health", "health", said="ready"),
    Case("tasks", "tasks"),
    Case("retry", "retry {discarded}", "select state = 'available' from pyworker.get_job(%(discarded)s)"),
    Case("retry", "retry {discarded} --dry-run",
         "select state = 'discarded' from pyworker.get_job(%(discarded)s)"),
    Case("cancel", "cancel {waiting}", STATE.format("cancelled")),
    Case("cancel", "cancel {waiting} --force", STATE.format("cancelled")),
    Case("delete", "delete {waiting}", "select id is null from pyworker.get_job(%(waiting)s)"),
    Case("queues set", "queues set q 5",
         "select concurrency = 5 from pyworker.queue_stats where queue_name = 'q'"),
    Case("queues set", "queues set q 5 --rate 10/1m --dry-run",
         "select concurrency = 2 from pyworker.queue_stats where queue_name = 'q'"),
    Case("queues pause", "queues pause q", "select paused from pyworker.queue_stats where queue_name = 'q'"),
    Case("queues resume", "queues resume p",
         "select not paused from pyworker.queue_stats where queue_name = 'p'"),
    Case("sequences resume", "sequences resume {sequence}",
         "select count(*) = 0 from pyworker.sequences where halted_by is not null"),
    Case("schedules run", "schedules run nightly",
         "select count(*) = 3 from pyworker.jobs where task_identifier = 't'"),
    Case("schedules pause", "schedules pause nightly",
         "select paused from pyworker.schedules where name = 'nightly'"),
    Case("schedules resume", "schedules resume still",
         "select not paused from pyworker.schedules where name = 'still'"),
    Case("schedules remove", "schedules remove nightly",
         "select not exists (select from pyworker.schedules where name = 'nightly')"),
]  # fmt: skip
# Where these are tested: what an installation needs, in test_owners; the dashboard, in test_dashboard. The
# others use no database, or one of their own.
ELSEWHERE = {"migrate", "ui", "dev", "demo", "sql"}


def test_each_command_has_its_roles_and_is_tried() -> None:
    assert set(verbs()) == set(COMMANDS), "a new command needs an entry in pyworker._db.rights.COMMANDS"
    assert {case.verb for case in CASES} | ELSEWHERE == set(COMMANDS), "and a case here"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "roles_tasks.py").write_text(TASKS)
    (tmp_path / "crontab").write_text(CRONTAB)
    return tmp_path


def run(case: Case, dsn: str, ids: dict[str, Any], directory: Path) -> Any:
    arguments = [word.format(**ids) for word in case.line.split()]
    if case.alone:
        return process(directory, *arguments, DATABASE_URL=dsn)
    return command(*arguments, DATABASE_URL=dsn)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.line)
def test_a_command_does_what_it_says_or_names_the_role_that_is_missing(
    db: Any, people: Logins, zoo: dict[str, int], directory: Path, case: Case, group: str
) -> None:
    (sequence,) = db.execute("select sequence_key from pyworker.sequences").fetchone()
    before = state(db)
    ids = {**zoo, "sequence": sequence}
    done = run(case, people.dsn_of(people.of[group]), ids, directory)
    roles = COMMANDS[case.verb]
    if group in roles:
        assert done.returncode in case.code, done
        assert case.said in done.stdout + done.stderr, done
        assert "needs the role" not in done.stderr
        assert db.execute(case.done, zoo).fetchone() == (True,), done
        if "--dry-run" in case.line:
            assert state(db) == before
    else:
        assert done.returncode == (3 if case.verb in ("doctor", "health") else 1), done
        assert one_role(done.stderr.replace(people.of[group], "")) == roles[0], done
        assert f"pyworker {case.verb} needs the role" in done.stderr
        assert done.stdout == ""
        assert state(db) == before


def test_a_job_that_a_reader_looks_at_shows_no_payload(db: Any, people: Logins, zoo: dict[str, int]) -> None:
    for options in ([], ["--json"]):
        done = command("jobs", str(zoo["waiting"]), *options, DATABASE_URL=people.dsn_of(people.of["reader"]))
        assert done.returncode == 0
        assert "xyzzy" not in done.stdout
        assert "payload" not in done.stdout
        assert one_role(done.stderr) == "admin"
        done = command("jobs", str(zoo["waiting"]), *options, DATABASE_URL=people.dsn_of(people.of["admin"]))
        assert "xyzzy" in done.stdout


REFUSED = {
    "of which {user} is no member": "",
    "of which {user} is a member, but does not inherit": "noinherit in role pyworker_producer",
}


@pytest.mark.parametrize("words", REFUSED)
def test_a_refusal_says_why(db: Any, fresh_dsn: str, logins: Logins, words: str) -> None:
    user = logins("user", REFUSED[words])
    done = command("add", "t", DATABASE_URL=logins.dsn_of(user))
    assert done.returncode == 1
    assert words.format(user=user) in done.stderr
    assert one_role(done.stderr) == "producer"


def test_roles_of_another_database_have_no_rights_here_until_they_are_given(
    fresh: Any, fresh_dsn: str, logins: Logins
) -> None:
    """As where the roles were made in another database after this one was installed."""
    for group in GROUPS:
        fresh.execute(f"drop owned by pyworker_{group}")
    done = command("add", "t", DATABASE_URL=logins.dsn_of(logins("web", "in role pyworker_producer")))
    assert "pyworker_producer, which has no rights in this database yet" in done.stderr
    assert "pyworker migrate" in done.stderr
    done = command("doctor", "--json", DATABASE_URL=fresh_dsn)
    (grants,) = [row for row in json.loads(done.stdout) if row["check_name"] == "grants"]
    assert (done.returncode, grants["severity"]) == (0, "info")
    assert grants["finding"] == (
        "without any right in this database, though it exists on the server: role pyworker_admin,"
        " pyworker_producer, pyworker_reader, pyworker_worker"
    )
    assert len(grants["fix"]) < 100
    fresh.execute(grants["fix"])
    (grants,) = fresh.execute("select severity from pyworker.doctor() where check_name = 'grants'").fetchall()
    assert grants == ("ok",)


def test_what_a_command_asks_besides_its_work_never_undoes_the_work(
    db: Any, dsn: str, people: Logins, cli: Any
) -> None:
    """Not where the question takes too long either: here, since another session holds what it reads."""
    db.execute("select pyworker.open_worker('{}')")
    with db.transaction():
        db.execute("lock table pyworker.workers in access exclusive mode")
        done = cli("add", "added", DATABASE_URL=f"{dsn} options='-c lock_timeout=100'")
    assert (done.returncode, done.stdout) == (0, "job 1 available\n")
    assert db.execute(ADDED.format(1)).fetchone() == (True,)


def test_no_command_connects_past_the_table_of_roles() -> None:
    """A command that connects by itself would not name the role: only these do, which say it in their way."""
    own = [
        name
        for name, one in main.commands.items()
        if one.callback and "connect(" in inspect.getsource(inspect.unwrap(one.callback))
    ]
    assert own == ["migrate"]


@pytest.mark.parametrize("line", ["add t", "run tasks", "replay 1"])
def test_a_command_with_connections_of_its_own_says_why_it_is_refused_too(
    fresh: Any, fresh_dsn: str, logins: Logins, tmp_path: Path, line: str
) -> None:
    user = logins("user", "in role pyworker_worker")
    (tmp_path / "tasks.py").write_text(TASKS)
    for group in GROUPS:
        fresh.execute(f"drop owned by pyworker_{group}")
    done = process(tmp_path, *line.split(), DATABASE_URL=logins.dsn_of(user))
    assert done.returncode == 1
    assert ", which has no rights in this database yet" in done.stderr
    fresh.execute("select pyworker._grant_rights()")
    outsider = logins("outsider", "")
    done = process(tmp_path, *line.split(), DATABASE_URL=logins.dsn_of(outsider))
    assert f"of which {outsider} is no member" in done.stderr
    assert f" TO {outsider}" in done.stderr


@pytest.mark.parametrize("line", ["add t", "run tasks", "replay 1", "jobs"])
def test_a_refusal_names_the_roles_of_the_schema(
    fresh: Any, fresh_dsn: str, logins: Logins, tmp_path: Path, line: str
) -> None:
    (tmp_path / "tasks.py").write_text(TASKS)
    assert command("migrate", "--schema", "acme", DATABASE_URL=fresh_dsn).returncode == 0
    outsider = logins("outsider", "")
    done = process(tmp_path, *line.split(), "--schema", "acme", DATABASE_URL=logins.dsn_of(outsider))
    assert "needs the role acme_" in done.stderr
    assert "pyworker migrate --schema acme --roles" in done.stderr
    assert "pyworker_" not in done.stderr
