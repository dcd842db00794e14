"""Many sessions at once, each in a thread."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from tests.support import SECONDS

LONG = pytest.param(None, marks=pytest.mark.torture, id="long")


class Crowd:
    """Threads with a session each. rounds: how often each does its work, or None for as long as SECONDS."""

    def __init__(self, api: Any, dsn: str, rounds: int | None) -> None:
        self.api, self.dsn, self.rounds = api, dsn, rounds
        self.until = time.monotonic() + SECONDS
        self.adding = threading.Event()
        self.adding.set()

    def again(self) -> Iterator[int]:
        i = 0
        while i < self.rounds if self.rounds else time.monotonic() < self.until:
            yield i
            i += 1

    def run(
        self,
        adders: list[Callable[[Any, random.Random], Any]],
        workers: list[Callable[[Any, random.Random], Any]],
    ) -> list[Any]:
        def one(work: Callable[[Any, random.Random], Any], seed: int) -> Any:
            with psycopg.connect(self.dsn, autocommit=True) as conn:
                return work(type(self.api)(conn), random.Random(seed))

        with ThreadPoolExecutor(len(adders) + len(workers)) as threads:
            working = [threads.submit(one, work, 100 + i) for i, work in enumerate(workers)]
            adding = [threads.submit(one, work, i) for i, work in enumerate(adders)]
            try:
                added = [future.result() for future in adding]
            finally:
                self.adding.clear()
            for future in working:
                future.result()
        return added
