"""`manage.py pyworker …`, and call_command("pyworker", …), on a real project."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.support.orm import TABLE, environment, python

pytest.importorskip("django")
pytestmark = pytest.mark.slow


class Project:
    def __init__(self, queue: Any, directory: Path) -> None:
        self.queue, self.directory = queue, directory
        queue.rows(TABLE)
        self.environment = environment(queue.dsn)

    def manage(self, *arguments: str, code: int = 0, **more: str) -> str:
        """As `manage.py` does it."""
        given = {**self.environment, **more}
        return python(self.directory, given, "-m", "django", "pyworker", *arguments, code=code)

    def call(self, program: str) -> Any:
        """The value of `result` after this program, which calls call_command."""
        head = "import io, json, logging, os, django\ndjango.setup()\nfrom django.core.management import *\n"
        code = f"{head}{textwrap.dedent(program)}\nprint(json.dumps(result, default=str))"
        return json.loads(python(self.directory, self.environment, "-c", code).splitlines()[-1])


@pytest.fixture
def project(queue: Any, tmp_path: Path) -> Project:
    return Project(queue, tmp_path)


@pytest.mark.parametrize("modules", [[], ["orm.tasks"]], ids=["all applications", "a module"])
def test_run_loads_the_applications_and_the_modules(project: Project, modules: list[str]) -> None:
    job = project.queue.add("sync", "a")
    project.manage("run", *modules, "-c", "2", "--once")
    assert project.queue.job(job).state == "completed"


def test_options_of_djangos_own_may_stand_anywhere(project: Project) -> None:
    project.environment.pop("DJANGO_SETTINGS_MODULE")
    project.manage("jobs", "--settings", "orm_settings")
    project.manage("--settings=orm_settings", "jobs")


def test_tasks_sync_needs_no_modules(project: Project) -> None:
    assert "max_attempts 7" in project.manage("tasks", "sync")
    assert project.queue.value("select max_attempts from pyworker.tasks where identifier = 'where'") == 7


def test_a_schedule_that_the_code_no_longer_declares_is_removed(project: Project) -> None:
    project.manage("run", "--once", ORM_CRON="1")
    assert project.queue.value("select count(*) from pyworker.schedules") == 1
    project.manage("run", "--once")
    assert project.queue.rows("select from pyworker.schedules") == []


def test_database_names_another_alias(project: Project, fresh_queue: Any) -> None:
    given = {"ORM_OTHER": conninfo_to_dict(fresh_queue.dsn)["dbname"]}
    job = fresh_queue.add("where")
    project.manage("run", "--once", "--database", "other", **given)
    assert fresh_queue.job(job).state == "completed"
    assert "there is no DATABASES['nosuch']" in project.manage("jobs", "--database=nosuch", code=1)
    assert "usage" in project.manage("--help", "--database=nosuch").lower()


def test_a_dsn_comes_before_the_settings_and_these_before_database_url(
    project: Project, fresh_queue: Any
) -> None:
    job = fresh_queue.add("sync", "a")
    assert f'"id": {job},' in project.manage("jobs", "--json", "--dsn", fresh_queue.dsn)
    assert project.manage("jobs", "--json", DATABASE_URL=fresh_queue.dsn).strip() == "[]"


def test_handlers_see_the_variables_as_they_were(project: Project) -> None:
    """A DATABASE_URL that the settings read is none of libpq's own form."""
    job = project.queue.add("where")
    project.manage("run", "--once", DATABASE_URL="postgres://u:p@nowhere.invalid/x?ssl_require=1")
    assert project.queue.job(job).result[3] == "postgres://u:p@nowhere.invalid/x?ssl_require=1"


@pytest.mark.parametrize(
    "call",
    [
        'call_command("pyworker", "run", "--once", "--concurrency", "2")',
        'call_command("pyworker", "run", once=True, concurrency=2, queue=["default", "b"], no_uvloop=False)',
        'call_command("pyworker", ["run", "orm.tasks"], once=True, log_level="WARNING")',
        'call_command("pyworker", "run", modules=["orm.tasks"], once=True)',
    ],
)
def test_call_command_takes_options_as_words_and_by_name(project: Project, call: str) -> None:
    job = project.queue.add("sync", "a")
    program = f"""
        before = [*os.environ.items()], logging.getLogger().handlers[:]
        {call}
        result = before == ([*os.environ.items()], logging.getLogger().handlers[:])
    """
    assert project.call(program) is True
    assert project.queue.job(job).state == "completed"


def test_call_command_prints_where_it_is_told(project: Project) -> None:
    job = project.queue.add("nosuch", {"a": 1})
    program = """
        out = io.StringIO()
        call_command("pyworker", "jobs", json=True, stdout=out)
        result = out.getvalue()
    """
    assert [one["id"] for one in json.loads(project.call(program))] == [job]


def test_what_fails_is_a_command_error(project: Project) -> None:
    program = """
        result = []
        for arguments, options in (
            (("retry", "99"), {}), (("run",), {"force": True}), (("run", "--nosuch"), {}),
            (("jobs",), {"nosuch": 1}), (("run", "nosuch"), {"once": True}), (("nosuch",), {}),
        ):
            try:
                call_command("pyworker", *arguments, **options)
            except (CommandError, TypeError) as error:
                result.append([type(error).__name__, str(error).splitlines()[0][:90]])
            else:
                result.append("ok")
    """
    told = project.call(program)
    assert [one[0] for one in told] == ["CommandError"] * 3 + ["TypeError"] + ["CommandError"] * 2, told
    words = [
        "there is no job 99",
        "no option 'force'",
        "exit code 2",
        "Unknown option(s)",
        "exit code 1",
        "nosuch",
    ]
    for one, word in zip(told, words, strict=True):
        assert word in one[1], told


def test_a_worker_within_a_test_run_uses_the_test_runs_databases(project: Project, fresh_queue: Any) -> None:
    """Django renames its databases in the process of the test run only."""
    job = fresh_queue.add("where")
    name = conninfo_to_dict(fresh_queue.dsn)["dbname"]
    program = f"""
        from django.db import connections
        connections["default"].settings_dict["NAME"] = {name!r}
        call_command("pyworker", "run", "--once")
        result = None
    """
    project.call(program)
    assert fresh_queue.job(job).result[0] == name


@pytest.fixture
def app_role(fresh_queue: Any) -> Any:
    rights = (
        "grant pyworker_worker, pyworker_producer to {0}; grant all on all tables in schema public to {0};"
    )
    rights += "grant all on all sequences in schema public to {0}"
    fresh_queue.rows(f'create role "the app"; {TABLE}; ' + rights.format('"the app"'))
    yield
    fresh_queue.rows('drop owned by "the app"; drop role "the app"')


def test_a_worker_has_the_role_and_the_isolation_of_the_settings(
    project: Project, fresh_queue: Any, app_role: Any
) -> None:
    more = {"OPTIONS": {"assume_role": "the app", "isolation_level": 3}}
    project.environment |= environment(fresh_queue.dsn, **more)
    jobs = [fresh_queue.add("where"), fresh_queue.add("where_of_job"), fresh_queue.add("where_of_job")]
    project.manage("run", "-c", "1", "--once")
    assert fresh_queue.job(jobs[0]).result[1:3] == ["the app", "repeatable read"]
    assert fresh_queue.rows("select name from thing") == [("the app, repeatable read",)] * 2
