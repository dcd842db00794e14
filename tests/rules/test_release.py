"""What is published: the wheel and the source distribution, and the files that speak of versions."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.metadata import Metadata

from tests.support import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
PYTHONS = [
    version
    for name in PROJECT["classifiers"]
    for version in re.findall(r"^Programming Language :: Python :: (3\.\d+)$", name)
]
REPOSITORY = "https://git.example.org/team/pyworker"
LINK = re.compile(r"\]\(([^)\s]+)\)")


def built(directory: Path, source: Path = ROOT, **environment: str) -> tuple[Path, Path]:
    """The wheel and the source distribution of the tree."""
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(directory)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYWORKER_")}
    done = subprocess.run(
        command, cwd=source, env={**kept, **environment}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,), (sdist,) = directory.glob("*.whl"), directory.glob("*.tar.gz")
    return wheel, sdist


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """As for an index."""
    return built(tmp_path_factory.mktemp("published"), PYWORKER_REPOSITORY=REPOSITORY)


def metadata(wheel: Path) -> Metadata:
    """As an index reads it: an invalid field raises."""
    with zipfile.ZipFile(wheel) as files:
        (name,) = (name for name in files.namelist() if name.endswith(".dist-info/METADATA"))
        return Metadata.from_email(files.read(name), validate=True)


def test_the_metadata_is_valid_and_says_what_the_project_says(published: tuple[Path, Path]) -> None:
    found = metadata(published[0])
    assert (found.name, str(found.version)) == (PROJECT["name"], PROJECT["version"])
    assert (found.summary, found.license_expression) == (PROJECT["description"], "MIT")
    assert found.description_content_type == "text/markdown"
    assert set(found.classifiers or []) == set(PROJECT["classifiers"])
    assert set(found.provides_extra or []) == set(PROJECT["optional-dependencies"])
    assert {str(need.name) for need in found.requires_dist or [] if need.marker is None} == {
        re.split(r"[\[>=<]", need)[0] for need in PROJECT["dependencies"]
    }


def test_urls_and_the_links_of_the_description_lead_to_files_of_this_version(
    published: tuple[Path, Path],
) -> None:
    found = metadata(published[0])
    files = f"{REPOSITORY}/blob/v{PROJECT['version']}/"
    urls = found.project_urls or {}
    assert {"Repository", "Issues", "Documentation", "Changelog", "Security"} == set(urls)
    links = LINK.findall(found.description or "")
    assert len(links) > 20
    assert [link for link in links if not link.startswith("https://")] == []
    ours = [link.removeprefix(files) for link in [*links, *urls.values()] if link.startswith(files)]
    assert len(ours) > 20
    assert [name for name in ours if not (ROOT / name.partition("#")[0]).exists()] == []


def test_a_build_that_does_not_know_where_it_is_published_has_no_broken_link(tmp_path: Path) -> None:
    found = metadata(built(tmp_path)[0])
    assert not found.project_urls
    links = LINK.findall(found.description or "")
    assert [link for link in links if not link.startswith("https://")] == []
    assert "concepts, with pictures" in (found.description or "")


@pytest.mark.slow
def test_two_builds_are_equal_byte_for_byte(tmp_path: Path) -> None:
    hashes = [
        [
            hashlib.sha256(path.read_bytes()).hexdigest()
            for path in built(tmp_path / n, SOURCE_DATE_EPOCH=time)
        ]
        for n, time in (("1", "1700000000"), ("2", "1700000000"))
    ]
    assert hashes[0] == hashes[1]


def test_the_wheel_has_what_runs_and_the_source_what_tests_it(published: tuple[Path, Path]) -> None:
    wheel, sdist = published
    with zipfile.ZipFile(wheel) as files:
        inside = set(files.namelist())
    for name in ("pyworker/sql/install.sql", "pyworker/py.typed", "pyworker/ui/templates/job.html"):
        assert name in inside
    assert {name.partition("/")[0] for name in inside if ".dist-info" not in name} == {"pyworker"}
    assert not [name for name in inside if "__pycache__" in name or name.endswith(".pyc")]
    with tarfile.open(sdist) as files:
        names = {name.partition("/")[2] for name in files.getnames()}
    for name in (
        "tests/conftest.py", "docs/start.md", "deploy/kubernetes.yaml", "Makefile", "deploy/hatch_build.py",
        "CONTRIBUTING.md", "SECURITY.md", ".github/workflows/tests.yml", ".ci/run",
    ):  # fmt: skip
        assert name in names


class Stranger:
    """An empty home directory, an empty environment, and what the README says to type there."""

    def __init__(self, directory: Path, **environment: str) -> None:
        self.home, self.venv = directory / "home", directory / "venv"
        self.home.mkdir()
        kept = ("PATH", "PIP_", "SSL_", "HTTP", "http", "LANG")
        ours = {name: value for name, value in os.environ.items() if name.startswith(kept)}
        self.environment = ours | {"HOME": str(self.home)} | environment
        self.base = getattr(sys, "_base_executable", sys.executable)
        self.types(self.base, "-m", "venv", "--without-pip", str(self.venv))

    def types(self, *command: str) -> str:
        done = subprocess.run(
            command, cwd=self.home, env=self.environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def installs(self, package: Path, extras: str = "") -> None:
        """Downloads its dependencies, as the README's commands do."""
        pip = (self.base, "-m", "pip", "--python", str(self.venv), "install", "-q", "--no-cache-dir")
        self.types(*pip, f"{package}{extras}")

    def runs(self, program: str, *arguments: str) -> str:
        return self.types(str(self.venv / "bin" / program), *arguments)


@pytest.mark.torture
@pytest.mark.parametrize("kind", ["wheel", "source"])
def test_it_installs_in_an_empty_environment_and_runs_a_job(
    published: tuple[Path, Path], tmp_path: Path, fresh_dsn: str, kind: str
) -> None:
    one = Stranger(tmp_path, DATABASE_URL=fresh_dsn, PYWORKER_SCHEMA="installed")
    one.installs(published[0] if kind == "wheel" else published[1])
    (one.home / "mytasks.py").write_text(
        "from pyworker import Job, task\n@task\ndef greet(payload, job: Job):\n    job.log('hello')\n"
        "    print('hello', payload['name'])\n"
    )
    one.runs("pyworker", "migrate")
    one.runs("pyworker", "add", "greet", '{"name": "Ada"}')
    assert "hello Ada" in one.runs("pyworker", "run", "mytasks", "--once")
    assert "completed" in one.runs("pyworker", "jobs", "1")
    assert one.runs("pyworker", "--version").split()[-1] == PROJECT["version"]


@pytest.mark.torture
def test_each_extra_for_users_installs_and_the_demo_runs(
    published: tuple[Path, Path], tmp_path: Path
) -> None:
    """The demo's server has an account of its own, which reaches no directory of pytest."""
    extras = set(PROJECT["optional-dependencies"]) - {"test", "docs", "bench", "dev"}
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        Path(place).chmod(0o755)
        one = Stranger(tmp_path, TMPDIR=place)
        one.installs(published[0], f"[{','.join(sorted(extras))}]")
        assert "0 of them twice" in one.runs("pyworker", "demo")
        assert "send_welcome" in one.runs("pyworker", "jobs", "--dsn", "demo")
    for module in ("ui", "otel", "sentry", "django", "testing"):
        one.runs("python", "-c", f"import pyworker.{module}")
    for command in ("ui", "top", "dev", "metrics"):
        one.runs("pyworker", command, "--help")


WORKFLOW: dict[str, Any] = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text("utf-8"))
STEPS = [(name, step) for name, job in WORKFLOW["jobs"].items() for step in job["steps"]]


def test_the_workflow_tests_each_version_that_is_supported() -> None:
    jobs = WORKFLOW["jobs"]
    assert jobs["python"]["strategy"]["matrix"]["python"] == PYTHONS
    oldest, newest = re.search(r"PostgreSQL (\d+) to (\d+)", (ROOT / "README.md").read_text("utf-8")).groups()  # type: ignore[union-attr]
    expected = [str(version) for version in range(int(oldest), int(newest) + 1)]
    assert jobs["postgresql"]["strategy"]["matrix"]["postgresql"] == expected
    policy = (ROOT / "docs" / "support.md").read_text("utf-8")
    assert f"| Python | {PYTHONS[0]} to {PYTHONS[-1]} |" in policy
    assert f"| PostgreSQL | {oldest} to {newest}, " in policy


@pytest.mark.parametrize(("job", "step"), STEPS, ids=[f"{name} {n}" for n, (name, _) in enumerate(STEPS)])
def test_each_step_of_the_workflow_runs_what_there_is(job: str, step: dict[str, Any]) -> None:
    assert WORKFLOW["permissions"] == {"contents": "read"}
    if "uses" in step:
        assert re.fullmatch(r"actions/[a-z-]+@v\d+", step["uses"])
        return
    targets = re.findall(r"(?m)^([a-z]+):.*##", (ROOT / "Makefile").read_text("utf-8"))
    assert [name for name in re.findall(r"\bmake ([a-z]+)", step["run"]) if name not in targets] == []
    assert [path for path in re.findall(r"\btests/\S+", step["run"]) if not (ROOT / path).exists()] == []
    assert subprocess.run(["bash", "-n", "-c", step["run"]], capture_output=True).returncode == 0


def test_the_changelog_knows_the_version_that_is_built() -> None:
    released = re.findall(r"(?m)^## (\d+\.\d+\.\d+) ", (ROOT / "CHANGELOG.md").read_text("utf-8"))
    version = PROJECT["version"]
    if ".dev" in version:
        assert version.partition(".dev")[0] not in released
    else:
        assert released[0] == version
