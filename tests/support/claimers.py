"""Sessions that claim at once, roll back and are killed, until all jobs have ended."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import IsolationLevel

from tests.support import DEADLINE
from tests.support.sessions import LEVELS

SQL = "select kind, id, run, again_in_s from pyworker.work(%s, %s::bigint[], %s::bigint[], null, null, %s)"


class Claimer(threading.Thread):
    """Works until nothing is left; rolls back one turn in ten, and its session is killed in one of fifty."""

    def __init__(
        self, dsn: str, over: threading.Event, turn: threading.Event, batch: int, seed: int,
        level: str = LEVELS[0],
    ) -> None:  # fmt: skip
        super().__init__(daemon=True)
        self.dsn, self.turn, self.batch, self.random = dsn, turn, batch, random.Random(seed)
        self.left = lambda: not over.is_set()
        self.level = IsolationLevel[level.upper().replace(" ", "_")]
        self.errors: set[str | None] = set()

    def run(self) -> None:
        while self.left():
            with suppress(psycopg.OperationalError), psycopg.connect(self.dsn) as conn:
                row = conn.execute("select pyworker.register_worker()").fetchone()
                conn.commit()
                conn.isolation_level = self.level
                self.work(conn, row and row[0])

    def work(self, conn: psycopg.Connection[Any], worker: Any) -> None:
        ids: list[int] = []
        runs: list[int] = []
        while self.left():
            try:
                *rows, turn = conn.execute(SQL, [worker, ids, runs, self.batch]).fetchall()
            except psycopg.errors.SerializationFailure as error:
                self.errors.add(error.sqlstate)
                conn.rollback()
                continue
            jobs = [row for row in rows if row[0] == "job"]
            chance = self.random.random()
            if chance < 0.1:
                conn.rollback()
                continue
            if chance < 0.12:
                with psycopg.connect(self.dsn) as other:
                    other.execute("select pg_terminate_backend(%s, 10000)", [conn.info.backend_pid])
                    other.execute("select pyworker.force_unlock_workers(array[%s::text])", [worker])
            conn.commit()
            self.turn.set()
            ids, runs = [job[1] for job in jobs], [job[2] for job in jobs]
            if not jobs:
                conn.execute("select pg_sleep(least(%s, 0.1))", [turn[3]])
                conn.rollback()


def work_off(
    api: Any, dsn: str, batch: int, levels: list[str], between: Callable[[int], Any] = lambda n: None
) -> None:
    """Has one claimer for each of these levels run all jobs. `between` is called after turns of theirs."""
    over, turn = threading.Event(), threading.Event()
    crowd = [Claimer(dsn, over, turn, batch, seed, level) for seed, level in enumerate(levels)]
    for claimer in crowd:
        claimer.start()
    left = "select true from pyworker.jobs limit 1"
    n, until = 0, time.monotonic() + DEADLINE
    while api.rows(left) and time.monotonic() < until:
        assert turn.wait(DEADLINE), "no claimer has had a turn"
        turn.clear()
        between(n)
        api.sweep_workers()
        n += 1
    over.set()
    for claimer in crowd:
        claimer.join(DEADLINE)
    assert api.rows(left) == []
