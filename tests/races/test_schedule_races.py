"""Sixteen tickers, killed at random, under a clock that jumps: each due tick is one job, and none
is missed."""

from __future__ import annotations

import random
import threading
from collections import Counter
from contextlib import suppress
from typing import Any

import psycopg
import pytest

TICKERS = 16
CRONS = {
    "minutely": "* * * * *",
    "odd": "1-59/2 * * * *",
    "sevens": "*/7 * * * *",
    "unique": "*/3 * * * *",
    "serial": "*/2 * * * *",
}


class Storm:
    """The tickers, and what they share."""

    def __init__(self, dsn: str, seed: int) -> None:
        self.dsn = dsn
        self.offset = 0.0  # of each session's clock, in seconds
        self.calls = Counter[str]()
        self.over = threading.Event()
        self.moved = threading.Condition()
        self.pids: dict[int, int] = {}
        self.errors: list[BaseException] = []
        self.threads = [
            threading.Thread(target=self.tick, args=(n, random.Random(seed + n))) for n in range(TICKERS)
        ]

    def tick(self, n: int, r: random.Random) -> None:
        conn = None
        while not self.over.is_set():
            try:
                if conn is None or conn.closed:
                    conn = psycopg.connect(self.dsn, autocommit=True)
                    self.pids[n] = conn.info.backend_pid
                conn.execute(
                    "select set_config('pyworker.clock_offset', %s, false)", [f"{self.offset} seconds"]
                )
                level = r.choice(["read committed", "read committed", "repeatable read", "serializable"])
                conn.execute(f"begin isolation level {level}")  # type: ignore[arg-type]
                conn.execute("select pyworker.run_schedules()")
                end = r.choice(["commit", "commit", "commit", "rollback"])
                conn.execute(end)  # type: ignore[arg-type]
                self.count(end)
            except psycopg.errors.SerializationFailure:
                assert conn is not None
                with suppress(psycopg.OperationalError):  # killed since: the next round connects again
                    conn.execute("rollback")
                self.count("serialization failure")
            except psycopg.OperationalError:
                self.count("killed")
                conn = None
            except BaseException as error:
                self.errors.append(error)
                raise
        if conn is not None:
            conn.close()

    def count(self, what: str) -> None:
        with self.moved:
            self.calls[what] += 1
            self.moved.notify_all()

    def until_they_called(self, times: int) -> None:
        until = sum(self.calls.values()) + times
        with self.moved:
            assert self.moved.wait_for(lambda: sum(self.calls.values()) >= until or bool(self.errors), 60)

    def __enter__(self) -> Storm:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join()


def storm(api: Any, dsn: str, steps: int, seed: int) -> Counter[str]:
    start = api.at()
    for name, cron in CRONS.items():
        api.add_schedule(name, cron, name, backfill="1 day", queue_name="q" if name == "serial" else None)
    api.define_task("unique", unique_policy={"by_args": True})  # of each tick, as its time is among them
    r = random.Random(seed)
    furthest = 0.0
    with Storm(dsn, seed) as tickers, psycopg.connect(dsn, autocommit=True) as killer:
        for _ in range(steps):
            # A minute and more at a time; now and then far ahead, or back.
            tickers.offset += r.choice([20, 45, 60, 61, 90, 130, 900, -45, -300, 0])
            furthest = max(furthest, tickers.offset)
            tickers.until_they_called(TICKERS)
            with suppress(KeyError):
                killer.execute("select pg_terminate_backend(%s)", [tickers.pids[r.randrange(TICKERS)]])
        assert tickers.errors == []
    # The sessions that are left finish, at the latest time that any of them saw.
    api.rows("select set_config('pyworker.clock_offset', %s, false)", [f"{furthest} seconds"])
    while api.run_schedules():
        pass
    end = api.at()
    for name, cron in CRONS.items():
        fired = api.rows(
            "select j.payload -> '_cron' ->> 'ts' as ts, count(*) as n from pyworker.live_jobs j "
            "where j.task_identifier = %s group by 1",
            [name],
        )
        due = api.rows(
            "select to_char(r.at, 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"') as ts from ("
            "select m.at at time zone 'UTC' as at, extract(minute from m.at)::integer as minute"
            " from generate_series(date_trunc('minute', %s::timestamptz) + interval '1 minute', %s, '1 "
            "minute') m(at)) r"
            " where r.minute = any ((pyworker._cron_of(%s)).minutes)",
            [start, end, cron],
        )  # fmt: skip
        assert [row for row in fired if row.n != 1] == [], f"{name}: twice"
        assert {row.ts for row in fired} == {row.ts for row in due}, f"{name}: missed, or out of turn"
        assert len(due) > 3
    return tickers.calls


def test_each_tick_is_one_job_whichever_session_fires_it(api: Any, dsn: str) -> None:
    calls = storm(api, dsn, 25, 1)
    assert calls["commit"] > 100
    assert calls["rollback"] > 10
    assert calls["killed"] > 0


@pytest.mark.torture
@pytest.mark.parametrize("seed", [2, 3])
def test_torture_of_ticks(api: Any, dsn: str, seed: int) -> None:
    print(storm(api, dsn, 400, seed))
