"""python -m pyworker.conformance: it passes for our runners, and names the promise that a wrong worker
breaks. (All promises, and a wrong worker for each of them, are played by `make torture`.)"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pyworker.conformance.__main__ import IN_ORDER
from tests.support import PYTHONPATH, ROOT, runners

pytestmark = pytest.mark.slow

PYTHON = [sys.executable, "-m", "pyworker", "run", "pyworker.conformance.tasks", "--no-uvloop"]
MINIMAL = [sys.executable, "minimal_worker.py", "conformance_handlers"]
PAGE = ROOT / "docs" / "conformance.md"
NODE = ["node", "run.mjs", "conformance.mjs"]
SLOW = {
    "fail", "timeout", "polled", "idle", "beat", "notified", "kill", "pause", "silence", "cut_connections",
    "lost_answer", "declared_dead", "start_job_unanswered", "expires", "late",
}  # fmt: skip
HANDLERS = """
import os
import time


def note(name, word):
    with open(os.environ["PYWORKER_CONFORMANCE_LOG"], "a") as log:
        log.write(f"{name} {word}\\n")


def conformance(payload):
    note(payload["name"], "begin")
    end = time.monotonic() + payload.get("ms", 0) / 1000
    while time.monotonic() < end:
        time.sleep(0.05)
        note(payload["name"], "tick")
    note(payload["name"], "end")
    if "do" in payload:
        raise ValueError(payload.get("error"))
    return payload.get("result")


HANDLERS = {"conformance": conformance, "conformance_timeout": conformance}
"""
WRONG = tomllib.loads((Path(__file__).parent / "wrong_workers.toml").read_text("utf-8"))


class Played:
    """One call of the script."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.code, self.output = done.returncode, done.stdout + done.stderr
        self.kept = re.findall(r"(?m)^kept   (\w+) ", self.output)
        self.broken = dict(re.findall(r"(?m)^BROKEN (\w+) \([\d.]+ s\): (.*)$", self.output))


@pytest.fixture
def play(dsn: str, tmp_path: Path) -> Callable[..., Played]:
    """play(command, *options): what the script printed."""

    def run(command: list[str], *options: str, cwd: Path = tmp_path) -> Played:
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "PYWORKER"))}
        called = [sys.executable, "-m", "pyworker.conformance", "--dsn", dsn, *options, "--", *command]
        done = subprocess.run(
            called, cwd=cwd, env={**environment, "PYTHONPATH": PYTHONPATH}, capture_output=True, text=True,
            timeout=900, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        return Played(done)

    return run


@pytest.fixture
def minimal(tmp_path: Path) -> Path:
    """A copy of the minimal worker, with handlers."""
    shutil.copy(ROOT / "examples" / "minimal_worker.py", tmp_path)
    (tmp_path / "conformance_handlers.py").write_text(HANDLERS)
    return tmp_path


@pytest.fixture(scope="module")
def _installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("node") / "runner"
    runners.node(directory)
    return directory


@pytest.fixture
def node(_installed: Path, tmp_path: Path) -> Path:
    """A copy of the Node runner, with its package."""
    return Path(shutil.copytree(_installed, tmp_path / "runner", symlinks=True))


@pytest.fixture(scope="module")
def go(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that starts the Go runner."""
    return runners.go(tmp_path_factory.mktemp("go") / "runner", "./conformance")


def but(*names: str) -> list[str]:
    return [word for name in names for word in ("--skip", name)]


def test_the_python_runner_keeps_the_promises_that_take_no_waiting(play: Any) -> None:
    played = play(PYTHON, *but(*SLOW))
    assert (played.code, played.broken) == (0, {}), played.output
    assert played.kept == [promise.name for promise in IN_ORDER if promise.name not in SLOW]


def test_the_node_runner_keeps_the_promises_that_take_no_waiting(play: Any, node: Path) -> None:
    played = play(NODE, *but(*SLOW), cwd=node)
    assert (played.code, played.broken) == (0, {}), played.output


def test_the_go_runner_keeps_the_promises_that_take_no_waiting(play: Any, go: list[str]) -> None:
    played = play(go, *but(*SLOW))
    assert (played.code, played.broken) == (0, {}), played.output


def test_a_worker_that_leaves_something_out_is_told_which_promise_and_where_it_is_written(
    play: Any, minimal: Path
) -> None:
    played = play(MINIMAL, "--only", "complete", "--only", "discard")
    assert (played.code, played.kept, list(played.broken)) == (1, ["complete"], ["discard"]), played.output
    assert "they are {'retryable': 1}" in played.broken["discard"]
    assert "docs/protocol.md, What to report: `discard` when trying again is useless" in played.output


def broken_by(wrong: dict[str, Any], directory: Path, play: Any, command: list[str]) -> None:
    file = directory / wrong["file"]
    text = file.read_text("utf-8")
    for find, put in [(wrong["find"], wrong["put"]), *wrong.get("also", [])]:
        assert text.count(find) == 1, f"{find} is not once in {file.name}"
        text = text.replace(find, put)
    file.write_text(text, "utf-8")
    played = play(command, "--only", wrong["promise"], "--patience", "0.5", cwd=directory)
    assert (played.code, list(played.broken)) == (1, [wrong["promise"]]), played.output
    assert re.search(wrong["observed"], played.broken[wrong["promise"]]), played.output


@pytest.mark.parametrize("wrong", WRONG["minimal"], ids=lambda wrong: wrong["promise"])
def test_a_wrong_worker_is_found_out(play: Any, minimal: Path, wrong: dict[str, str]) -> None:
    broken_by(wrong, minimal, play, MINIMAL)


@pytest.mark.torture
@pytest.mark.parametrize("wrong", WRONG["node"], ids=lambda wrong: wrong["promise"])
def test_a_wrong_runner_is_found_out(play: Any, node: Path, wrong: dict[str, str]) -> None:
    broken_by(wrong, node, play, NODE)


def test_each_promise_has_a_wrong_worker_that_breaks_it() -> None:
    wrong = {wrong["promise"] for wrong in (*WRONG["minimal"], *WRONG["node"])}
    assert wrong == {promise.name for promise in IN_ORDER}


def test_a_command_that_ends_at_once_breaks_the_promise_and_its_output_is_shown(play: Any) -> None:
    played = play(
        [sys.executable, "-c", "print('no such module'); raise SystemExit(3)"], "--only", "complete"
    )
    assert (played.code, list(played.broken)) == (1, ["complete"])
    assert "the worker ended with exit code 3" in played.broken["complete"]
    assert "| no such module" in played.output


def test_its_schema_is_gone_when_it_ends_unless_you_keep_it(
    play: Any, minimal: Path, db: psycopg.Connection[Any]
) -> None:
    ours = "select nspname from pg_namespace where nspname like 'pyworker\\_conformance%'"
    play(MINIMAL, "--only", "complete")
    assert db.execute(ours).fetchall() == []
    kept = re.findall(r"kept: schema (\w+)", play(MINIMAL, "--only", "complete", "--keep").output)
    assert db.execute(ours).fetchall() == [(kept[0],)]
    jobs = db.execute(f"select distinct state from {kept[0]}.history").fetchall()  # type: ignore[arg-type]
    db.execute(f"drop schema {kept[0]} cascade")  # type: ignore[arg-type]
    assert jobs == [("completed",)]


def test_it_lists_its_promises_and_needs_a_command(play: Any) -> None:
    listed = play([], "--list")
    assert listed.code == 0
    assert [line.split(": ")[0] for line in listed.output.splitlines()] == [p.name for p in IN_ORDER]
    assert play([]).code == 2
    missing = play(["/no/such/program"])
    assert missing.code == 1
    assert missing.output.startswith("Error: the command cannot be started")


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("promise", IN_ORDER, ids=lambda promise: promise.name)
def test_a_promise_quotes_the_section_that_makes_it(promise: Any) -> None:
    sections = re.split(r"(?m)^## ", (ROOT / "docs" / "protocol.md").read_text("utf-8"))
    (section,) = [text for text in sections if text.startswith(f"{promise.section}\n")]
    assert words(promise.says) in words(section)


def test_the_page_shows_the_handlers_of_the_node_runner() -> None:
    (shown,) = re.findall(r"(?ms)^```js\n(.*?)^```$", PAGE.read_text("utf-8"))
    whole = (ROOT / "examples" / "runners" / "node" / "conformance.mjs").read_text("utf-8")
    assert shown in whole


def test_the_page_lists_each_promise() -> None:
    page = PAGE.read_text("utf-8")
    assert re.findall(r"(?m)^\| `(\w+)` \| (.*) \|$", page.split("## The promises")[1]) == [
        (promise.name, promise.text) for promise in IN_ORDER
    ]


@pytest.mark.torture
def test_the_python_runner_keeps_all_promises(play: Any) -> None:
    played = play(PYTHON)
    assert (played.code, len(played.kept)) == (0, len(IN_ORDER)), played.output


@pytest.mark.torture
def test_the_node_runner_keeps_all_promises(play: Any, node: Path) -> None:
    played = play(NODE, cwd=node)
    assert (played.code, len(played.kept)) == (0, len(IN_ORDER)), played.output


@pytest.mark.torture
def test_the_go_runner_keeps_all_promises(play: Any, go: list[str]) -> None:
    played = play(go)
    assert (played.code, len(played.kept)) == (0, len(IN_ORDER)), played.output


@pytest.mark.torture
def test_the_minimal_worker_breaks_the_promises_that_the_page_names(play: Any, minimal: Path) -> None:
    page = PAGE.read_text("utf-8").split("breaks these:")[1]
    named = set(re.findall(r"`(\w+)`", page.split("\n\n")[0]))
    assert set(play(MINIMAL).broken) == named
