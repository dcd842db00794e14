"""What the README says is so. (Its snippets and those of docs/ are run by tests/docs.)"""

import re

import pytest

from pyworker import cli, errors
from tests.support import ROOT

README = (ROOT / "README.md").read_text("utf-8")


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
    assert code in (ROOT / "sql" / "heart" / "core.sql").read_text("utf-8")


def test_ci_runs_the_test_command_of_the_readme():
    (command,) = re.findall(r"(?m)^python3 -m venv .*pytest -n auto$", README)
    assert command in (ROOT / ".ci" / "run").read_text("utf-8")


def test_the_docs_name_the_versions_of_postgresql_that_the_installer_takes_and_ci_tests():
    """PostgreSQL 18 is the wheel's, the others are named in .ci/run."""
    (oldest, newest) = re.search(
        r"PostgreSQL (\d+) to (\d+)", (ROOT / "README.md").read_text("utf-8")
    ).groups()
    begin = (ROOT / "sql" / "setup" / "begin.sql").read_text("utf-8")
    assert f"< {oldest}0000 then" in begin
    assert f"needs PostgreSQL {oldest} or newer" in begin
    assert f"({oldest} to {newest}," in (ROOT / "docs" / "start.md").read_text("utf-8")
    ci = (ROOT / ".ci" / "run").read_text("utf-8")
    tested = re.findall(r"(?m)^older=(\d+)", ci) + re.findall(r"\b(\d+)\.\d+\.\d+-beta", ci)
    assert sorted(tested) == [str(n) for n in range(int(oldest), int(newest))]
