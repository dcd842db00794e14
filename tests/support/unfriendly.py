"""A run of the tests on a machine that stalls, or in another order.

    PYWORKER_PAUSE=0.1 pytest -n 20     # seconds before each statement that a test sends
    PYWORKER_STALL=0.6 pytest -n auto   # seconds for which processes, PostgreSQL's too, stand still at random
    PYWORKER_ORDER=7 pytest -n auto     # tests in the random order of this seed

A test that fails then counts on the machine's speed, or on what another has left behind.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

PAUSE = float(os.environ.get("PYWORKER_PAUSE", "0"))
STALL = float(os.environ.get("PYWORKER_STALL", "0"))
ORDER = os.environ.get("PYWORKER_ORDER")
PAUSES = 150  # in a test: some send thousands of statements, and each is as likely to be late as the first
STALLED = 10  # processes that stand still at a time

_left = 0


def pytest_configure(config: pytest.Config) -> None:
    if STALL and not hasattr(config, "workerinput"):  # the process that has all others below it
        threading.Thread(target=_stall_for_ever, daemon=True).start()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    global _left
    _left = PAUSES if PAUSE else 0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if ORDER:
        items.sort(key=lambda item: item.nodeid)  # the same in each process of a run
        random.Random(int(ORDER)).shuffle(items)


if PAUSE:
    execute = psycopg.Cursor.execute

    def late(*args: Any, **kwargs: Any) -> Any:
        global _left
        if _left > 0:
            _left -= 1
            time.sleep(PAUSE)
        return execute(*args, **kwargs)

    psycopg.Cursor.execute = late  # type: ignore[method-assign]


def _stall_for_ever() -> None:
    while True:
        below = _processes_below(os.getpid())
        for pid in random.sample(below, min(STALLED, len(below))):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                threading.Timer(random.uniform(0.3, 1) * STALL, _go_on, [pid]).start()
        time.sleep(STALL / 2)


def _go_on(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def _processes_below(pid: int) -> list[int]:
    found = []
    with suppress(OSError):  # it has ended
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in children.read_text().split():
                found += [int(child), *_processes_below(int(child))]
    return found
