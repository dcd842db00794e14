"""What tests of more than one file use.

Conftests import all of sql_fixtures.py or worker_fixtures.py. A test file that needs a fixture of
another file here imports it as itself: `from tests.support.sequences import halted as halted`.
"""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
TASKS = Path(__file__).parent / "tasks"  # modules of tasks that workers load
PYTHONPATH = f"{TASKS}:{ROOT}"  # of a worker that loads them
DEADLINE = 30.0  # seconds that anything awaited may take; no test measures time
SECONDS = float(os.environ.get("PYWORKER_TORTURE_SECONDS", "30"))  # that a long test takes
