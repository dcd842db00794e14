"""The command line of pyworker, in this process and in one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

from pyworker.cli import main
from tests.support import DEADLINE


def command(*arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """command("jobs", "--json", DATABASE_URL=…) in this process. No other variable of pyworker's is set."""
    ours = [name for name in os.environ if name.startswith(("PG", "PYWORKER")) or name == "DATABASE_URL"]
    runner = CliRunner(env={**dict.fromkeys(ours), **environment})
    done = runner.invoke(main, arguments, input=stdin, prog_name="pyworker")
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)


def process(
    directory: Path, *arguments: str, stdin: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """The same as a process of its own, in this directory."""
    return subprocess.run(
        [sys.executable, "-m", "pyworker", *arguments], cwd=directory, input=stdin, capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], **environment}, timeout=DEADLINE,
    )  # fmt: skip
