"""What the client promises to type checkers: right uses pass, wrong ones are refused, a forgotten
await among them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support import ROOT

pytestmark = pytest.mark.slow

USES = Path(__file__).with_name("uses.py")
WRONG = {
    nr for nr, line in enumerate(USES.read_text("utf-8").splitlines(), 1) if re.search(r"# wrong$", line)
}


def mypy(directory: Path) -> set[int]:
    command = [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "--no-error-summary", USES.name]
    shutil.copy(USES, directory)
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = re.findall(r"(?m)^([^:\n]+):(\d+): error: ", done.stdout)
    assert {name for name, _ in found} <= {USES.name}, done.stdout
    return {int(line) for _, line in found}


def node() -> str | None:
    """playwright brings one, at a place that does not depend on what is in the PATH."""
    spec = find_spec("playwright")
    places = [Path(place) / "driver" / "node" for place in (spec and spec.submodule_search_locations) or []]
    return next((str(place) for place in places if place.exists()), None) or shutil.which("node")


def pyright(directory: Path) -> set[int]:
    spec, program = find_spec("pyright"), node()
    if spec is None or spec.origin is None or program is None:
        pytest.skip("pyright needs node, and there is none")
    shutil.copy(USES, directory)
    settings = {
        "typeCheckingMode": "strict",
        "include": [USES.name],
        "extraPaths": [str(ROOT)],
        "reportMissingTypeStubs": False,
    }
    (directory / "pyrightconfig.json").write_text(json.dumps(settings), "utf-8")
    script = Path(spec.origin).parent / "dist" / "index.js"
    command = [program, str(script), "--pythonpath", sys.executable, "--outputjson", "-p", str(directory)]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, env=os.environ)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = json.loads(done.stdout)["generalDiagnostics"]
    assert {Path(each["file"]).name for each in found} <= {USES.name}, done.stdout
    return {each["range"]["start"]["line"] + 1 for each in found if each["severity"] == "error"}


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_a_type_checker_refuses_each_wrong_use_and_no_right_one(checker: object, tmp_path: Path) -> None:
    assert len(WRONG) > 40
    refused = checker(tmp_path)  # type: ignore[operator]
    lines = USES.read_text("utf-8").splitlines()
    assert [f"{nr}: {lines[nr - 1]}" for nr in sorted(refused - WRONG)] == [], "refused, though right"
    assert [f"{nr}: {lines[nr - 1]}" for nr in sorted(WRONG - refused)] == [], "passed, though wrong"
