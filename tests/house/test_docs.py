"""What the documents say is so: their commands exist, their snippets run."""

import re
from pathlib import Path

import pytest

from pyworker import _client, _middleware, cli, errors, tasks

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(language):
    return [
        pytest.param(block, id=f"{page.stem} {number}")
        for page in PAGES
        for number, block in enumerate(re.findall(rf"(?ms)^```{language}\n(.*?)^```$", page.read_text("utf-8")), 1)
    ]


@pytest.mark.parametrize("snippet", blocks("sql"))
def test_sql_snippets_run(db, snippet):
    db.execute("begin")
    db.execute(snippet)
    db.execute("rollback")


def test_python_snippets_run(db):
    """In order, in one namespace, as a reader would."""
    db.execute("create temp table invoices (id integer, charged boolean)")
    namespace = {"conn": db, "__name__": "myapp.tasks"}
    known = dict(tasks._registry)
    try:
        for parameter in blocks("python"):
            if parameter.id.startswith("testing "):
                continue  # files, run by tests/runner/test_testing.py
            exec(compile(parameter.values[0], parameter.id, "exec"), namespace)
    finally:
        tasks._registry.clear()
        tasks._registry.update(known)
        _middleware.registered.clear()
        _client.producers.clear()
    assert db.execute("select count(*) from pyworker.jobs where task_identifier = 'send_email'").fetchone() == (2,)


@pytest.mark.parametrize("command", sorted(cli.main.commands))
def test_every_command_is_in_the_readme(command):
    assert re.search(rf"`(pyworker )?{command}\b", README)


def test_every_option_of_run_is_in_the_readme_or_in_its_help(runner_help):
    for option in re.findall(r"--[a-z-]+", re.search(r"(?m)^\| `pyworker run.*$", README)[0]):
        assert option in runner_help


@pytest.fixture
def runner_help():
    from click.testing import CliRunner

    return CliRunner().invoke(cli.main, ["run", "--help"]).output


@pytest.mark.parametrize("code", sorted(errors.BY_SQLSTATE))
def test_every_error_code_is_in_the_readme_and_in_the_core(code):
    assert code in README
    assert code in (ROOT / "sql" / "functions" / "00_core.sql").read_text("utf-8")


def test_ci_runs_the_test_command_of_the_readme():
    (command,) = re.findall(r"(?m)^python3 -m venv .*pytest$", README)
    assert command in (ROOT / ".ci" / "run").read_text("utf-8")


def test_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
