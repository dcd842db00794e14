"""`pyworker dev`, as a real process: what is edited is what runs, and Ctrl-C ends everything."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from pyworker._dev import url as urls
from pyworker._distribution import pip_install
from pyworker.cli import main
from tests.support import ROOT
from tests.support.workers import ends_of

pytestmark = pytest.mark.slow

DEADLINE = 60.0
TASKS = """
from pyworker import task
@task
def say(payload):
    print("the code says", "WORD", flush=True)
"""


class Dev:
    """The process, and what it has printed so far."""

    def __init__(self, directory: Path, *arguments: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pyworker", "dev", "mytasks", *arguments], cwd=directory, text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **environment},
            # ignored in what a shell has sent to the background
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        self.lines: list[str] = []
        self._timer = threading.Timer(
            DEADLINE, self.process.kill
        )  # then its output ends, and so does the test
        self._timer.start()

    def until(self, words: str) -> str:
        """Read on until a line has these words; returns the line."""
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.append(line)
            if words in line:
                return line.rstrip("\n")
        raise AssertionError(f"never said {words!r}:\n{''.join(self.lines)}")

    def end(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        assert self.process.stdout
        self.lines.extend(self.process.stdout)
        return self.process.wait(DEADLINE)

    def close(self) -> None:
        self._timer.cancel()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout
        self.process.stdout.close()


def edit(directory: Path, text: str) -> None:
    new = directory / "mytasks.new"
    new.write_text(text)
    new.replace(directory / "mytasks.py")  # at once, as editors do


def write(directory: Path, word: str) -> None:
    edit(directory, TASKS.replace("WORD", word))


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[Any]:
    started: list[Dev] = []

    def start(*arguments: str, **environment: str) -> Dev:
        started.append(Dev(tmp_path, *arguments, **environment))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture
def place() -> Iterator[Path]:
    """For a database: where the server's account gets to, with a short name."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_what_is_edited_is_what_runs(dev: Any, db: Any, dsn: str, tmp_path: Path) -> None:
    write(tmp_path, "one")
    running = dev(DATABASE_URL=dsn)
    running.until("started")
    add = "select pyworker.add_job('say')"
    db.execute(add)
    assert running.until("the code says") == "  worker | the code says one"
    write(tmp_path, "two")
    assert running.until("changed") == "     dev | mytasks.py changed: the worker restarts"
    db.execute(add)
    assert running.until("the code says") == "  worker | the code says two"
    edit(tmp_path, "this is no Python\n")
    running.until("invalid syntax")
    running.until("the worker has ended (1), and restarts at the next change")
    db.execute(add)
    write(tmp_path, "three")
    assert running.until("the code says") == "  worker | the code says three"
    assert running.end() == 0
    assert running.lines[-1] == "     dev | stopped\n"
    assert db.execute("select count(*) from pyworker.live_workers").fetchone() == (0,)


def test_without_a_database_it_brings_one_whose_data_stay(dev: Any, tmp_path: Path, place: Path) -> None:
    write(tmp_path, "one")
    running = dev("--data", str(place))
    line = running.until("database | ").removeprefix("database | ")
    (url,) = shlex.split(line.removeprefix("export DATABASE_URL="))  # as a shell reads it
    running.until("applied 0001_init")
    running.until("started")
    with psycopg.connect(url, autocommit=True) as conn:
        assert conn.execute("show fsync").fetchone() == ("on",)
        conn.execute("select pyworker.add_job('say')")
        running.until("the code says one")
    assert running.end(signal.SIGTERM) == 0
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)
    again = dev("--data", str(place))
    assert again.until("database | ").removeprefix("database | ") == line
    again.until("started")
    with psycopg.connect(url) as conn:
        assert conn.execute("select state from pyworker.history").fetchall() == [("completed",)]
    assert again.end() == 0
    assert not any("applied" in line for line in again.lines)


def test_other_commands_know_its_database_by_the_name_dev(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(urls, "_home", lambda: place)
    for words in (["migrate"], ["add", "say"], ["jobs"]):
        done = CliRunner().invoke(main, [*words, "--dsn", "dev"])
        assert done.exit_code == 0, done.output
    assert re.search(r"1 +say +available", done.output)


def test_killed_it_leaves_no_process_behind(dev: Any, db: Any, dsn: str, tmp_path: Path) -> None:
    write(tmp_path, "one")
    running = dev(DATABASE_URL=dsn)
    running.until("started")
    pids = [pid for (pid,) in db.execute("select (info ->> 'pid')::int from pyworker.live_workers")]
    assert pids
    with ends_of(pids):
        running.process.kill()


@pytest.mark.skipif(
    "ui" not in main.commands or not importlib.util.find_spec("uvicorn"), reason="there is no dashboard"
)
def test_the_dashboard_is_there_too(dev: Any, db: Any, dsn: str, tmp_path: Path) -> None:
    write(tmp_path, "one")
    running = dev(DATABASE_URL=dsn)
    assert "127.0.0.1" in running.until("      ui | ")
    assert running.end() == 0


def test_what_is_missing_is_named(program: Any, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['watchfiles'] = None\n")
    done = program("dev", "mytasks", PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"pyworker: pyworker dev needs watchfiles: {pip_install('dev-server')}\n"
