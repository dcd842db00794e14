"""A Django project whose tasks use the ORM (tests/support/django), on a test's database."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from psycopg.conninfo import conninfo_to_dict

from tests.support import DEADLINE, ROOT, TASKS

PROJECT = Path(__file__).parent / "django"
NAMES = {
    "host": "PGHOST",
    "port": "PGPORT",
    "dbname": "PGDATABASE",
    "user": "PGUSER",
    "password": "PGPASSWORD",
}
TABLE = """
    create table if not exists public.thing (id bigserial primary key, name text);
    truncate public.thing restart identity"""


def environment(dsn: str, apps: list[str] | None = None, /, **more: Any) -> dict[str, str]:
    """The variables of the project; `more` are settings of its database."""
    where = conninfo_to_dict(dsn)
    return {
        **{NAMES[key]: str(value) for key, value in where.items() if key in NAMES and value is not None},
        "PYTHONPATH": f"{PROJECT}:{TASKS}:{ROOT}",
        "DJANGO_SETTINGS_MODULE": "orm_settings",
        "ORM_APPS": json.dumps(["pyworker.django"] if apps is None else apps),
        "ORM_MORE": json.dumps(more),
    }


def python(directory: Path, given: dict[str, str], *arguments: str, code: int | None = 0) -> str:
    """What Python prints in this directory with these variables; standard error where it fails on purpose."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=directory, env={"PATH": os.environ["PATH"], **given},
        capture_output=True, text=True, timeout=2 * DEADLINE, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert code is None or done.returncode == code, done.stdout + done.stderr
    return done.stderr if code else done.stdout
