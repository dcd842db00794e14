"""Clients that only add: each job has a mark, and they keep what was acknowledged, and when."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import psycopg
from psycopg.types.json import Jsonb

from tests.failover.clients import SEED
from tests.support import DEADLINE

PLACE = "select (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint"  # in the log
MARKED = """
    select meta ->> 'mark', id, task_identifier, state, reason, attempts from (
        select meta, id, task_identifier, state, reason, attempts from pyworker.live_jobs union all
        select meta, id, task_identifier, state, reason, attempts from pyworker.finished_jobs) j
    where meta ->> 'mark' is not null"""
KINDS: list[dict[str, Any]] = [
    {"identifier": "plain"},
    {"identifier": "plain_async"},
    {"identifier": "effect"},
    {"identifier": "only_once"},
    {"identifier": "only_once", "run_at": timedelta(seconds=2)},
    {"identifier": "plain", "queue_name": "serial"},
    {"identifier": "plain", "payload": Jsonb({"customer": 1}),
     "sequence_policy": Jsonb({"by_args": ["customer"], "continue_on_discarded": True})},
]  # fmt: skip


class Added(NamedTuple):
    mark: str
    id: int
    task: str
    before: int  # its commit is after this place in the log
    after: int  # and at this place at the latest
    at: float


class Job(NamedTuple):
    id: int
    task: str
    state: str
    reason: str | None
    attempts: int


class Writer(threading.Thread):
    def __init__(self, dsn: str, number: int) -> None:
        super().__init__(daemon=True)
        self._dsn, self._number, self._rng = dsn, number, random.Random(f"{SEED} {number}")
        self._numbers = itertools.count()
        self.stopped = threading.Event()
        self.acknowledged: list[Added] = []

    def run(self) -> None:
        while not self.stopped.is_set():
            with suppress(psycopg.OperationalError, psycopg.errors.ReadOnlySqlTransaction):
                with psycopg.connect(self._dsn, autocommit=True, connect_timeout=2) as conn:
                    while not self.stopped.wait(0.01):
                        self._add(conn)
            self.stopped.wait(0.1)

    def _add(self, conn: psycopg.Connection[Any]) -> None:
        def value(sql: str, *parameters: Any) -> Any:
            return conn.execute(sql, parameters).fetchall()[0][0]  # type: ignore[arg-type]

        mark = f"{self._number}-{next(self._numbers)}"
        given = {**self._rng.choice(KINDS), "meta": Jsonb({"mark": mark}), "max_attempts": 1000}
        if "run_at" in given:
            given["run_at"] += datetime.now(UTC)
        names = ", ".join(f"{name} => %s" for name in given)
        before = value(PLACE)
        job_id = value(f"select id from pyworker.add_job({names})", *given.values())
        self.acknowledged.append(Added(mark, job_id, given["identifier"], before, value(PLACE), time.time()))


def until(what: str, condition: Callable[[], bool], deadline: float = DEADLINE) -> None:
    end = time.monotonic() + deadline
    while not condition():
        assert time.monotonic() < end, f"never came true: {what}"
        time.sleep(0.05)


@contextmanager
def writers(dsn: str, first: int = 0) -> Iterator[list[Writer]]:
    """Two of them; `first` is the number of one, which its marks begin with."""
    there = [Writer(dsn, n) for n in (first, first + 1)]
    for writer in there:
        writer.start()
    try:
        yield there
    finally:
        stop(there)


def stop(there: list[Writer]) -> list[Added]:
    for writer in there:
        writer.stopped.set()
    for writer in there:
        writer.join(DEADLINE)
        assert not writer.is_alive()
    return [added for writer in there for added in writer.acknowledged]


def go_on(there: list[Writer], more: int = 40) -> None:
    """Until each of them has so many more acknowledged."""
    before = [len(writer.acknowledged) for writer in there]
    until(
        "the writers go on",
        lambda: all(len(w.acknowledged) >= n + more for w, n in zip(there, before, strict=True)),
        4 * DEADLINE,
    )


def marked(conn: psycopg.Connection[Any]) -> dict[str, Job]:
    return {mark: Job(*rest) for mark, *rest in conn.execute(MARKED).fetchall()}
