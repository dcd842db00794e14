"""PostgreSQL's programs, run as the account that may run a server."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pyworker._dev import postgres


def major(bindir: Path) -> int:
    done = subprocess.run([bindir / "postgres", "--version"], capture_output=True, text=True, check=True)
    return int(re.findall(r"\d+", done.stdout)[0])


def versions() -> dict[int, Path]:
    """Where the programs of each major version are that this machine has."""
    places = [*postgres.SYSTEM.glob("*/bin"), postgres.find_bindir()]
    return {major(place): place for place in places if (place / "postgres").exists()}


def need(bindir: Path, *names: str) -> None:
    missing = [name for name in names if not (bindir / name).exists()]
    if missing:
        pytest.skip(f"there is no {', '.join(missing)} in {bindir}")


def run(bindir: Path, program: str, *arguments: str, cwd: Path | None = None, **more: Any) -> str:
    """Run one to its end; its output. In `cwd` it runs as the server's account."""
    command = [str(bindir / program), *arguments]
    if cwd:
        command = postgres._command(postgres._account(), bindir / program, *arguments)
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, stdin=subprocess.DEVNULL, **more)
    assert done.returncode == 0, f"{program}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout
