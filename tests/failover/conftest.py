"""Fixtures of the tests that move the queue from one server to another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.failover.clients import history as history


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as closing:
        yield closing
