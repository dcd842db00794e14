"""A world for each test, and its record."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers import Postgres
from tests.support.sql_fixtures import *  # noqa: F403
from tests.support.worker_fixtures import *  # noqa: F403
from tests.torture.world import CONNECTIONS, World


@pytest.fixture
def history(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where all processes write down what they see."""
    kept = os.environ.get("PYWORKER_HISTORY")
    directory = (Path(kept) / request.node.name if kept else tmp_path / "history").absolute()
    directory.mkdir(parents=True, exist_ok=True)
    assert not list(directory.glob("*.jsonl")), f"{directory} has a record already"
    monkeypatch.setenv("PYWORKER_HISTORY", str(directory))
    return directory


@pytest.fixture
def make_world(history: Path, tmp_path: Path) -> Iterator[Callable[..., World]]:
    with ExitStack() as closing:

        def make(kind: type[World] = World, server: Any = Postgres, **more: Any) -> World:
            made = server(closing, max_connections=CONNECTIONS)
            return kind(closing, made, tmp_path, history, **more)

        yield make
