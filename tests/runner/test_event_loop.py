"""On which event loop async handlers run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import PYTHONPATH


def result(queue: Any, task: str, payload: Any = None) -> Any:
    job_id = queue.add(task, payload)
    queue.until_state("completed", job_id)
    return queue.job(job_id).result


@pytest.mark.parametrize(
    ("options", "environment", "loop"),
    [
        ((), {"PYWORKER_RUN_NO_UVLOOP": "0"}, "uvloop"),
        (("--no-uvloop",), {"PYWORKER_RUN_NO_UVLOOP": "0"}, "asyncio"),
        ((), {"PYWORKER_RUN_NO_UVLOOP": "1"}, "asyncio"),
    ],
)
def test_async_handlers_run_on_uvloop_where_it_is_installed_and_not_refused(
    queue: Any, options: tuple[str, ...], environment: dict[str, str], loop: str
) -> None:
    queue.start(*options, **environment)
    assert result(queue, "which_loop") == loop


def test_where_uvloop_cannot_be_imported_async_handlers_run_on_asyncios_own_loop(
    queue: Any, tmp_path: Path
) -> None:
    (tmp_path / "uvloop.py").write_text("raise ImportError('built for another Python')")
    queue.start(PYWORKER_RUN_NO_UVLOOP="0", PYTHONPATH=f"{tmp_path}:{PYTHONPATH}")
    assert result(queue, "which_loop") == "asyncio"


@pytest.mark.parametrize("no_uvloop", ["0", "1"])
def test_an_async_handler_can_run_programs(queue: Any, no_uvloop: str) -> None:
    queue.start(PYWORKER_RUN_NO_UVLOOP=no_uvloop)
    assert result(queue, "run_program", ["sh", "-c", "echo hello; exit 3"]) == ["hello\n", 3]
