"""The Node runner as a command: it says that it has started and stopped, and what was wrong, in lines."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.runners import Running, node

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return node(tmp_path_factory.mktemp("node") / "runner")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "run.mjs: name the file with the handlers: node run.mjs ./handlers.mjs"),
        (["./none.mjs"], "run.mjs: there is no file ./none.mjs"),
        (["./empty.mjs"], "run.mjs: ./empty.mjs has no handlers: export default { task: async () => {} }"),
    ],
    ids=["nothing", "no file", "no handlers"],
)
def test_a_wrong_call_is_refused_with_one_line(command: list[str], arguments: list[str], line: str) -> None:
    directory = Path(command[1]).parent
    (directory / "empty.mjs").write_text("export default {}\n")
    done = subprocess.run(
        [*command[:2], *arguments], cwd=directory, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"{line}\n")


def test_its_start_a_failure_and_its_end_are_lines_and_no_warning_is_among_them(
    command: list[str], migrated: Any, tmp_path: Path
) -> None:
    queue = Running(migrated, command, tmp_path)
    try:
        log = tmp_path / "log"
        environment = {**os.environ, "DATABASE_URL": queue.dsn}
        with log.open("wb") as output, subprocess.Popen(command, stderr=output, env=environment) as process:
            job = queue.add("flaky")
            queue.until_state("retryable", job)
            process.terminate()
            assert process.wait(30) == 0
        said = [re.sub(r"^\S+Z ", "", line) for line in log.read_text().splitlines()]
        assert re.fullmatch(r"started: worker \d+ for the tasks .*\bflaky\b.*", said[0])
        assert any(line.startswith(f"job {job} (flaky) failed: ") for line in said)
        assert said[-1] == "stopped"
        assert "Warning" not in log.read_text()
    finally:
        queue.close()
