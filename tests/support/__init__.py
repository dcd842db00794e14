"""What tests of more than one file use. Fixtures are in the conftests, and those of the SQL in
sql_fixtures.py."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
TASKS = Path(__file__).parent / "tasks"  # modules of tasks that workers load
PYTHONPATH = f"{TASKS}:{ROOT}"  # of a worker that loads them
DEADLINE = 30.0  # seconds that anything awaited may take; no test measures time
SECONDS = float(os.environ.get("PYWORKER_TORTURE_SECONDS", "30"))  # that a long test takes
