"""The distribution has a name of its own, and each `pip install` in the tree says it: `pyworker`
on PyPI is another project."""

import re
import shlex
import subprocess
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

import pyworker
from pyworker._distribution import DISTRIBUTION, pip_install
from tests.support import ROOT
from tests.support.files import for_each

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
MADE = {".git", ".venv", ".bench", "build", "site", "node_modules", "__pycache__", "dist"}
FILES = [
    path
    for top in ROOT.iterdir()
    if top.name not in MADE  # first: each process of a run would look at all that is installed
    for path in [top, *top.rglob("*")]
    if path.suffix in (".py", ".md", ".sql", ".toml", ".sh", ".yml", ".yaml", "")
    and path.is_file()
    and not MADE & set(path.relative_to(ROOT).parts[:-1])
    and path != Path(__file__)
]


def installed_by(text: str) -> set[str]:
    """What the `pip install` commands of a text install, also one that is wrapped at the end of a line."""
    found = set()
    word = r"(?:-{1,2}[\w-]+|'[^'\n]+'|\"[^\"\n]+\"|[\w.\[\],>=-]+)(?=[\s`'\");,:]|$)"
    for command in re.findall(rf"pip install(\s+{word}(?:[ ]{word})*)", text):
        words = re.findall(r"'[^']+'|\"[^\"]+\"|\S+", command)
        found |= {word.strip("'\"`;,").replace("\\", "") for word in words if not word.startswith("-")}
    return found


def test_the_project_has_the_name_that_the_package_knows() -> None:
    assert PROJECT["name"] == DISTRIBUTION
    assert pyworker.__version__ == version(DISTRIBUTION) == PROJECT["version"]
    assert pip_install("web").endswith(f" install '{DISTRIBUTION}[web]'")


def test_a_command_that_installs_an_extra_can_be_run_as_it_stands() -> None:
    """Also in an environment without pip, as the README makes it."""
    pip = shlex.split(pip_install("web"))[: -len(["install", "extra"])]
    assert subprocess.run([*pip, "--version"], capture_output=True, check=False).returncode == 0


def test_an_extra_refers_to_others_by_that_name() -> None:
    own = [
        need
        for needs in PROJECT["optional-dependencies"].values()
        for need in needs
        if need.startswith("pyworker")
    ]
    assert own
    for need in own:
        name, extras = re.fullmatch(r"([\w-]+)\[([\w,-]+)\]", need).groups()
        assert name == DISTRIBUTION
        assert set(extras.split(",")) <= PROJECT["optional-dependencies"].keys()


def test_files_are_read_at_all() -> None:
    assert {
        ROOT / "README.md",
        ROOT / "docs" / "start.md",
        ROOT / "sql" / "heart" / "core.sql",
    } <= set(FILES)
    assert installed_by("`pip install\n'pyworker-pg[a,b]'`, or") == {"pyworker-pg[a,b]"}
    assert installed_by("pip install -U pyworker';") == {"pyworker"}


@for_each(FILES)
def test_a_file_tells_to_install_what_is_ours_by_its_name(path: Path) -> None:
    text = path.read_text("utf-8", errors="replace")
    for wanted in installed_by(text):
        name, _, extras = wanted.partition("[")
        if "pyworker" in name:
            assert name == DISTRIBUTION, f"{wanted} is another project"
        if name in (DISTRIBUTION, ".") and extras and "{" not in extras:
            assert set(extras.rstrip("]").split(",")) <= PROJECT["optional-dependencies"].keys(), wanted
    # An extra is mentioned without the command, too.
    for mentioned in re.findall(r"(?<![\w.-])pyworker\[[\w,-]+\]", text):
        pytest.fail(f"{mentioned}: the distribution is called {DISTRIBUTION}")


@pytest.mark.parametrize("page", ["README.md", "docs/start.md"])
def test_until_it_is_published_a_newcomer_is_told_to_install_from_a_checkout(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    assert "not published yet" in text
    blocks = re.findall(r"(?ms)^```sh\n(.*?)^```$", text)
    assert [block for block in blocks if "pip install ." in block]
    assert [block for block in blocks if f"pip install {DISTRIBUTION}" in block] == []


def test_the_files_that_git_knows_are_among_those_that_are_read() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a checkout")
    files = [
        ROOT / name
        for name in listed.stdout.split()
        if (ROOT / name).is_file() and ROOT / name != Path(__file__)
    ]
    telling = [file for file in files if b"pip install" in file.read_bytes()]
    assert set(telling) <= set(FILES)
