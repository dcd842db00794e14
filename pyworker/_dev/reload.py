"""`pyworker dev`: a database, a reloading worker and the dashboard, in one terminal."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from typing import NoReturn

import click

from .._db import migrations
from .._db.connect import connect
from .._distribution import pip_install
from ..errors import PyworkerError
from . import postgres
from .url import dev_server, resolved, url_of

STOP_TIMEOUT = 20.0  # seconds for a program to end


def say(name: str, line: str, colour: str = "blue") -> None:
    click.echo(click.style(f"{name:>8} | ", fg=colour) + line)
    sys.stdout.flush()


class Program:
    """A pyworker command in its own process. Each line of its output is shown with its name."""

    def __init__(self, name: str, colour: str, environment: dict[str, str], *arguments: str) -> None:
        self.name, self.colour = name, colour
        self._environment, self._arguments = environment, arguments
        self._process: subprocess.Popen[str] | None = None
        self._told = False

    def start(self) -> None:
        # A separate session, as Ctrl-C is for us alone. The launcher ends it when we end, for any
        # reason.
        command = postgres._command(None, Path(sys.executable), "-m", "pyworker", *self._arguments)
        self._process = subprocess.Popen(  # noqa: S603 - ourselves
            command, env={**os.environ, **self._environment}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
        )  # fmt: skip
        self._told = False
        self._show = threading.Thread(target=self._pass_on, args=[self._process], daemon=True)
        self._show.start()

    def _pass_on(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None  # noqa: S101
        for line in process.stdout:
            say(self.name, line.rstrip("\n"), self.colour)

    def look(self) -> None:
        """Report once if the command has ended by itself."""
        if self._process is not None and not self._told and self._process.poll() is not None:
            self._told = True
            self._show.join()
            say(
                "dev",
                f"the {self.name} has ended ({self._process.returncode}), and restarts at the next change",
            )

    def stop(self) -> None:
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._show.join(STOP_TIMEOUT)
        self._process = None


def run(modules: list[str], dsn: str, schema: str, watched: list[str], data: Path | None) -> None:
    if importlib.util.find_spec("watchfiles") is None:
        raise PyworkerError(f"pyworker dev needs watchfiles: {pip_install('dev-server')}")
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with _database(dsn, data) as url:
            say("database", f"export DATABASE_URL={shlex.quote(url)}")
            with connect(url) as conn:
                for migration in migrations.migrate(conn, schema):
                    say("dev", f"applied {migration.name}")
            _work(modules, url, schema, watched)
    except KeyboardInterrupt:
        say("dev", "stopped")


def _work(modules: list[str], url: str, schema: str, watched: list[str]) -> None:
    import watchfiles

    # Without bytecode files: after two edits in one second they would hold the first one.
    environment = {
        "DATABASE_URL": url,
        "PYWORKER_SCHEMA": schema,
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    environment = {"PYWORKER_RUN_SHUTDOWN_TIMEOUT": "5", "PYWORKER_RUN_LOG_FORMAT": "short", **environment}
    worker = Program("worker", "green", environment, "run", *modules)
    programs = [worker]
    if _dashboard():
        programs.append(Program("ui", "magenta", environment, "ui"))
    begun = False
    try:
        # It yields changes at least four times a second. After its first yield the watch is active.
        for changed in watchfiles.watch(
            *watched,
            watch_filter=watchfiles.PythonFilter(),
            yield_on_timeout=True,
            rust_timeout=250,
            debounce=250,
        ):
            if not begun:
                begun = True
                say("dev", f"watching {', '.join(watched)}; Ctrl-C ends it")
                for program in programs:
                    program.start()
            elif changed:
                worker.stop()  # before the message: once it appears, the old code no longer runs
                names = sorted({os.path.relpath(path) for _, path in changed})
                say(
                    "dev",
                    f"{', '.join(names[:3])}{' …' if len(names) > 3 else ''} changed: the worker restarts",
                )
                worker.start()
            for program in programs:
                program.look()
    finally:
        for program in programs:
            program.stop()


def _dashboard() -> bool:
    there = {"ui"} <= getattr(click.get_current_context().find_root().command, "commands", {}).keys()
    return there and all(importlib.util.find_spec(name) for name in ("starlette", "uvicorn", "jinja2"))


@contextlib.contextmanager
def _database(dsn: str, data: Path | None) -> Generator[str]:
    if dsn or (
        not data and any(os.environ.get(name) for name in ("PGHOST", "PGDATABASE", "PGSERVICE", "PGPORT"))
    ):
        with resolved(dsn) as url:
            yield url_of(url) if url else url  # settings may read DATABASE_URL
        return
    with dev_server(data) as server:
        yield server.url()


def _interrupt(_number: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt
