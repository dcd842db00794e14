"""Two databases, and one worker that serves both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.databases import copy_of
from tests.support.proxy import Proxy
from tests.support.workers import Queue, Worker

NAME = "select current_database()"
PARENT = "select (info ->> 'pid')::int from pyworker.live_workers"


@pytest.fixture
def other(pg_template: Any, tmp_path: Path) -> Iterator[Queue]:
    """The second database. Workers are started for `queue`, where handlers tell of themselves."""
    with copy_of(pg_template, "other") as dsn:
        made = Queue(dsn, tmp_path)
        yield made
        made.close()


@pytest.fixture
def network(other: Queue) -> Iterator[Proxy]:
    """Between the worker and the second database."""
    proxy = Proxy(other.dsn)
    yield proxy
    proxy.close()


@pytest.fixture
def start(queue: Queue, other: Queue) -> Callable[..., Worker]:
    """Start one worker of both databases."""

    def begin(*options: str, second: str = other.dsn, **more: Any) -> Worker:
        return queue.start("--dsn", queue.dsn, "--dsn", second, *options, **more)

    return begin


def serves(*queues: Queue) -> None:
    """A job that is added now is run."""
    for one in queues:
        one.until_state("completed", one.add("silent"))


def all_of(worker: Worker) -> list[int]:
    """The supervisor, the parents and their children."""
    parents = worker.children()
    return [worker.pid, *parents, *(int(pid) for parent in parents for pid in Queue.ps("pid", parent))]
