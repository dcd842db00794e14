"""The runners of examples/runners, as processes beside `pyworker run`, and the queue on which they work."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.support import ROOT

HERE, RUNNERS = Path(__file__).parent, ROOT / "examples" / "runners"
TABLES = """
create table seen (at bigserial primary key, job_id bigint, attempts integer, task text, told text);
create table booked (job_id bigint primary key)"""
GO = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")


# What a tool says without the network, and one that is too old.
UNAVAILABLE = (
    *("dial tcp", "i/o timeout", "GOPROXY=off", "requires go >="),
    *("ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ETIMEDOUT"),
)


def _fetch(*command: str, directory: Path) -> None:
    """Run a tool that fetches packages, and skip the test where it cannot. Go needs no C compiler then."""
    environment = {**os.environ, "CGO_ENABLED": "0"}
    try:
        done = subprocess.run(
            command, cwd=directory, env=environment, capture_output=True, timeout=240, text=True
        )
    except subprocess.TimeoutExpired as error:
        pytest.skip(f"{command[0]} cannot get packages here: {error}")
    if done.returncode and any(word in done.stderr for word in UNAVAILABLE):
        pytest.skip(f"{command[0]} cannot get packages here: {done.stderr}")
    assert done.returncode == 0, done.stderr


def node(directory: Path, handlers: str = "handlers") -> list[str]:
    """The command that starts the Node runner with handlers of tests."""
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("no node or no npm here")
    shutil.copytree(RUNNERS / "node", directory, ignore=shutil.ignore_patterns("node_modules"))
    shutil.copy(HERE / f"{handlers}.mjs", directory)
    npm = ["npm", "install", "--no-audit", "--no-fund", "--prefer-offline", "--loglevel=error"]
    _fetch(*npm, directory=directory)
    return ["node", str(directory / "run.mjs"), str(directory / f"{handlers}.mjs")]


def go(directory: Path, package: str = ".", handlers: str = "handlers") -> list[str]:
    """The same for the Go runner, or for the other program of its module."""
    if not GO:
        pytest.skip("no go here")
    shutil.copytree(RUNNERS / "go", directory)
    shutil.copy(HERE / f"{handlers}.go", directory / "main.go")
    # One at a time: what the first one downloads and compiles, the others find.
    with (Path(tempfile.gettempdir()) / f"pyworker-tests-go-{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _fetch(GO, "build", "-o", "runner", package, directory=directory)
    return [str(directory / "runner")]


COMMANDS = {"node": node, "go": go}


class Running:
    """A queue, and the workers of a test."""

    def __init__(self, example: Any, command: list[str], directory: Path) -> None:
        self.command, self.directory, self.dsn = command, directory, example.dsn
        self.environment = {**example.environment, "PYTHONPATH": f"{HERE}:{ROOT}"}
        self.conn = psycopg.connect(example.dsn, autocommit=True)
        self.conn.execute(TABLES)
        self.processes: list[subprocess.Popen[bytes]] = []

    def _start(self, command: list[str], **environment: str) -> subprocess.Popen[bytes]:
        with (self.directory / f"{len(self.processes)}.log").open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=self.directory,
                env={**self.environment, **environment},
                stderr=output,
                stdin=subprocess.DEVNULL,
            )
        self.processes.append(process)
        return process

    def start(self, **environment: str) -> subprocess.Popen[bytes]:
        """The runner that this test is about."""
        return self._start(self.command, **environment)

    def python(self) -> subprocess.Popen[bytes]:
        return self._start(
            [sys.executable, "-m", "pyworker", "run", "mixed", "--concurrency", "5", "--no-uvloop"]
        )

    def rows(self, sql: str, *parameters: Any) -> list[Any]:
        return self.conn.execute(sql, parameters).fetchall()  # type: ignore[arg-type]

    def value(self, sql: str, *parameters: Any) -> Any:
        return self.rows(sql, *parameters)[0][0]

    def add(self, task: str, payload: Any = None, **options: Any) -> int:
        named = "".join(f", {name} => %s" for name in options)
        call = f"select (pyworker.add_job(%s, %s{named})).id"
        return self.value(call, task, Jsonb({} if payload is None else payload), *options.values())

    def job(self, job_id: int, column: str) -> Any:
        return self.value(f"select {column} from pyworker.get_job(%s)", job_id)

    def until(self, sql: str, *parameters: Any, looks: int = 3000) -> None:
        for _ in range(looks):
            if self.value(sql, *parameters):
                return
            assert all(process.poll() in (None, -9, 70) for process in self.processes), self.report()
            self.conn.execute("select pg_sleep(0.01)")
        raise AssertionError(f"never came true: {sql} {parameters}\n{self.report()}")

    def until_state(self, state: str, *job_ids: int) -> None:
        self.until(
            "select bool_and((pyworker.get_job(i)).state = %s) from unnest(%s) i", state, list(job_ids)
        )

    def until_begun(self, job_id: int, times: int = 1) -> None:
        self.until("select count(*) >= %s from seen where job_id = %s", times, job_id)

    def until_logged(self, text: str) -> None:
        for _ in range(3000):
            if any(text in path.read_text() for path in self.directory.glob("*.log")):
                return
            self.conn.execute("select pg_sleep(0.01)")
        raise AssertionError(f"never logged: {text}\n{self.report()}")

    def cut_connections(self) -> None:
        """End all connections of the runner, and wait until both its loops have new ones. While an answer of
        `work` may be lost, a runner beats on the connection for `work`, too."""
        mine = "datname = current_database() and pid <> pg_backend_pid() and query ~ 'pyworker'"
        cut = self.rows(f"select pg_terminate_backend(pid), pid from pg_stat_activity where {mine}")
        calls = "select count(*) filter (where query ~ 'pyworker.?[.](work|beat)[(]') >= 2"
        new = f"{calls} from pg_stat_activity where {mine} and not pid = any(%s)"
        self.until(new, [pid for _, pid in cut])

    def report(self) -> str:
        jobs = self.rows(
            "select id, task_identifier, state, attempts, last_error from pyworker.jobs limit 20"
        )
        logs = [path.read_text()[-2000:] for path in sorted(self.directory.glob("*.log"))]
        return "\n".join([*map(str, jobs), *logs])

    def seen(self, job_id: int) -> list[Any]:
        return self.rows("select attempts, told from seen where job_id = %s order by at", job_id)

    def stop(self, process: subprocess.Popen[bytes]) -> int:
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(40)
        except subprocess.TimeoutExpired:
            raise AssertionError(self.report()) from None

    def close(self) -> None:
        self.conn.close()
        for process in self.processes:
            process.kill()
            process.wait()
