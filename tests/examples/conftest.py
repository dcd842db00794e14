"""Each example runs as a user would run it: its own directory, its own processes, an empty
database of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.support import ROOT
from tests.support.databases import database


class Example:
    """One directory of examples/, and the database that it works on."""

    def __init__(self, directory: Path, dsn: str) -> None:
        self.directory, self.dsn = directory, dsn
        names = {
            "host": "PGHOST",
            "port": "PGPORT",
            "dbname": "PGDATABASE",
            "user": "PGUSER",
            "password": "PGPASSWORD",
        }
        where = conninfo_to_dict(dsn)
        self.environment = {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("PG", "DATABASE_URL"))
            },
            **{names[key]: str(value) for key, value in where.items() if key in names and value is not None},
            "PYTHONPATH": f"{directory}:{ROOT}",
            "PYTHONWARNINGS": "error::DeprecationWarning:__main__",
        }

    def python(self, *arguments: str, code: int = 0, **environment: str) -> str:
        """What Python printed, run in the example's directory."""
        done = subprocess.run(
            [sys.executable, *arguments], cwd=self.directory, env={**self.environment, **environment},
            capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + (done.stderr if code else "")

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn) as conn:
            return conn.execute(statement).fetchall()  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def _django(pg_server: Any) -> Iterator[str]:
    """Django's example, migrated once."""
    with database(pg_server, "django_template") as dsn:
        Example(ROOT / "examples" / "django", dsn).python("manage.py", "migrate", "-v", "0")
        yield conninfo_to_dict(dsn)["dbname"]  # type: ignore[misc]


@pytest.fixture(scope="session")
def _migrated(pg_server: Any) -> Iterator[str]:
    """A database in which pyworker is installed, for copies of it."""
    with database(pg_server, "migrated") as dsn:
        Example(ROOT, dsn).python("-m", "pyworker", "migrate")
        yield conninfo_to_dict(dsn)["dbname"]  # type: ignore[misc]


@pytest.fixture
def migrated(pg_server: Any, _migrated: str) -> Iterator[Example]:
    """examples/ on a database of its own, in which pyworker is installed."""
    with database(pg_server, "copy", template=_migrated) as dsn:
        yield Example(ROOT / "examples", dsn)


@pytest.fixture
def project(pg_server: Any, _django: str) -> Iterator[Example]:
    """Django's example on a database of its own, migrated."""
    with database(pg_server, "django", template=_django) as dsn:
        yield Example(ROOT / "examples" / "django", dsn)


@pytest.fixture
def example(empty_dsn: str) -> Callable[[str], Example]:
    return lambda name: Example(ROOT / "examples" / name, empty_dsn)
