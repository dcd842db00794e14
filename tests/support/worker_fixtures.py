"""Fixtures for tests of workers and commands. A conftest imports these for its directory."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.commands import command, process
from tests.support.pooler import free_port
from tests.support.proxy import Proxy
from tests.support.workers import Queue, one_worker

__all__ = ["cli", "fresh_queue", "health", "network", "port", "program", "queue", "served"]

# Workers are to begin as in a terminal, also where the tests run under nohup.
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture
def queue(db: psycopg.Connection[Any], dsn: str, tmp_path: Path) -> Iterator[Queue]:
    """The shared database, clean, for workers of this test's own."""
    made = Queue(dsn, tmp_path)
    yield made
    made.close()


@pytest.fixture
def network(queue: Any) -> Iterator[Proxy]:
    """Between the test's database and those who use `network.dsn`. Workers do, by --dsn; what
    their handlers tell goes another way."""
    with_faults = Proxy(queue.dsn)
    yield with_faults
    with_faults.close()


@pytest.fixture
def fresh_queue(fresh_dsn: str, tmp_path: Path) -> Iterator[Queue]:
    """A database of this test's own, for one that changes the installation."""
    made = Queue(fresh_dsn, tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def served(request: Any, pg_template: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Queue]:
    """A database with one worker that is always there, for tests that only add jobs and look at
    what becomes of them.

    A parameter is the worker's environment."""
    directory = tmp_path_factory.mktemp("served")
    with one_worker(
        pg_template, "served", directory, "--concurrency", "5", **(getattr(request, "param", None) or {})
    ) as queue:
        yield queue


@pytest.fixture
def cli() -> Callable[..., subprocess.CompletedProcess[str]]:
    """pyworker as a command, in this process."""
    return command


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The same as a process of its own."""
    return partial(process, tmp_path)


@pytest.fixture
def port() -> str:
    return str(free_port())


@pytest.fixture
def health(queue: Any, cli: Any) -> Any:
    """health(…) is (exit code, what it printed)."""

    def ask(*options: str, dsn: str = queue.dsn) -> tuple[int, str]:
        done = cli("health", *options, DATABASE_URL=dsn)
        return done.returncode, done.stdout + done.stderr

    return ask
