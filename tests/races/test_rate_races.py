"""However many sessions claim, roll back or are killed, no window holds more starts than the rate; and each
job ends."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from tests.support import DEADLINE
from tests.support.queues import add, states
from tests.support.rates import starts, worst

SQL = "select kind, id, run, again_in_s from pyworker.work(%s, %s::bigint[], %s::bigint[], null, null, %s)"


class Claimer(threading.Thread):
    """Works until nothing is left; rolls back one turn in ten, and its session is killed in one of fifty."""

    def __init__(self, dsn: str, left: Callable[[], bool], batch: int, seed: int) -> None:
        super().__init__(daemon=True)
        self.dsn, self.left, self.batch, self.random = dsn, left, batch, random.Random(seed)

    def run(self) -> None:
        while self.left():
            with suppress(psycopg.OperationalError), psycopg.connect(self.dsn) as conn:
                row = conn.execute("select pyworker.register_worker()").fetchone()
                conn.commit()
                self.work(conn, row and row[0])

    def work(self, conn: psycopg.Connection[Any], worker: Any) -> None:
        ids: list[int] = []
        runs: list[int] = []
        while self.left():
            *jobs, turn = conn.execute(SQL, [worker, ids, runs, self.batch]).fetchall()
            chance = self.random.random()
            if chance < 0.1:
                conn.rollback()
                continue
            if chance < 0.12:
                with psycopg.connect(self.dsn) as other:
                    other.execute("select pg_terminate_backend(%s, 10000)", [conn.info.backend_pid])
                    other.execute("select pyworker.force_unlock_workers(array[%s::text])", [worker])
            conn.commit()
            ids, runs = [job[1] for job in jobs], [job[2] for job in jobs]
            if not jobs:
                conn.execute("select pg_sleep(least(%s, 0.1))", [turn[3]])
                conn.rollback()


@pytest.mark.parametrize(
    ("limit", "rate", "period", "batch"), [(None, 20, 100, 7), (3, 10, 100, 2), (None, 5, 50, 1)]
)
def test_no_window_holds_more_starts_than_the_rate(
    api: Any, dsn: str, limit: int | None, rate: int, period: int, batch: int
) -> None:
    api.set_queue("q", limit, rate, f"{period} ms")
    add(api, 200)
    over = threading.Event()
    crowd = [Claimer(dsn, lambda: not over.is_set(), batch, seed) for seed in range(6)]
    for claimer in crowd:
        claimer.start()
    for _ in range(int(DEADLINE * 20)):
        if not states(api):
            break
        api.conn.execute("select pg_sleep(0.05)")
        api.sweep_workers()
    over.set()
    for claimer in crowd:
        claimer.join(DEADLINE)
    assert states(api) == {}
    assert worst(starts(api), timedelta(milliseconds=period)) <= rate


def test_a_rate_that_changes_again_and_again_holds_the_largest_one(api: Any, dsn: str) -> None:
    api.set_queue("q", None, 10, "100 ms")
    add(api, 300)
    over = threading.Event()
    crowd = [Claimer(dsn, lambda: not over.is_set(), 4, seed) for seed in range(4)]
    for claimer in crowd:
        claimer.start()
    for n in range(int(DEADLINE * 20)):
        if not states(api):
            break
        api.set_queue(*[("q", None), ("q", 5)][n % 2], [10, 4, 7][n % 3], "100 ms")
        api.conn.execute("select pg_sleep(0.05)")
        api.sweep_workers()
    over.set()
    for claimer in crowd:
        claimer.join(DEADLINE)
    assert states(api) == {}
    assert worst(starts(api), timedelta(milliseconds=100)) <= 10
