"""A run of the tests on a machine that stalls, or in another order.

    PYWORKER_PAUSE=0.1 pytest -n 20     # seconds before each statement that a test sends
    PYWORKER_ORDER=7 pytest -n auto     # tests in the random order of this seed

A test that fails then counts on the machine's speed, or on what another has left behind.
"""

from __future__ import annotations

import os
import random
import time
from typing import Any

import psycopg
import pytest

PAUSE = float(os.environ.get("PYWORKER_PAUSE", "0"))
ORDER = os.environ.get("PYWORKER_ORDER")
PAUSES = 150  # in a test: some send thousands of statements, and each is as likely to be late as the first

_left = 0


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
