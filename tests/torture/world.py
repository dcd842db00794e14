"""A queue in a hostile world: clients, workers, faults, and the judgement of the record."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import namedtuple_row

from tests.support import DEADLINE
from tests.support.checker import Event, figures, read, summary, violations
from tests.support.observer import observe
from tests.support.pooler import Pooler
from tests.support.producers import Producer, Signs
from tests.support.proxy import Proxy
from tests.support.servers import Postgres
from tests.support.tasks.recorded_tasks import Recorder
from tests.support.workers import Queue
from tests.torture.crew import Crew
from tests.torture.dangers import DANGERS
from tests.torture.faults import RARE, USUAL, Faults
from tests.torture.observer import STARTS, finals, pin
from tests.torture.workflows import Planner

SECONDS = float(os.environ.get("PYWORKER_TORTURE_SECONDS", "60"))
SEED = os.environ.get("PYWORKER_SEED", "3")
STANDSTILL = 30.0  # seconds without a single start that no fault here explains
CONNECTIONS = "150"
LIMITS = {"narrow": 2, "rated and narrow": 2, **{f"tenant:{n}": 2 for n in range(4)}}
UNLIMITED = 10**6
RATE, PERIOD = 25, 1.0
SETUP = f"""
    create table public.effects (job_id bigint, run bigint);
    create index on public.effects (job_id);
    create table public.booked (job_id bigint, step text, run bigint);
    create index on public.booked (job_id);
    select pyworker.set_queue('narrow', 2);
    select pyworker.set_queue('rated', null, {RATE}, '{PERIOD} s');
    select pyworker.set_queue('rated and narrow', 2, {RATE}, '{PERIOD} s');
    select pyworker.set_queue('tenant:*', 2, fair := true);
    select pyworker.configure(completed_retention => '30 days', cancelled_retention => '30 days',
        discarded_retention => '30 days');
    select pyworker.add_schedule('ticks', '* * * * *', 'ticked', backfill := '1 day', max_attempts := 1000)"""


class Adder(Producer):
    queues = ("narrow", "serial", "rated", "rated and narrow", *(f"tenant:{n}" for n in range(4)))
    dangers = DANGERS


@dataclass
class World:
    """What there is, and what goes wrong."""

    closing: ExitStack
    server: Postgres
    directory: Path
    history: Path
    usual: list[str] = field(default_factory=lambda: USUAL)
    rare: list[str] = field(default_factory=lambda: RARE)
    pause: float = 1.0  # at most, between two faults
    seed: str = SEED

    def __post_init__(self) -> None:
        print(f"PYWORKER_SEED={self.seed}")
        self.server.install()
        for sql in (*SETUP.split(";\n"), STARTS):
            self.server.execute(sql)
        record = Recorder("limits")
        for name, most in (LIMITS | {"rated": UNLIMITED}).items():
            record("limit", queue=name, limit=most)
        for name in ("rated", "rated and narrow"):
            record("rate", queue=name, limit=RATE, period=PERIOD)
        self.network = Proxy(self.server.url)
        self.closing.callback(self.network.close)
        self.queue = Queue(self.server.url, self.directory)
        self.closing.callback(self.queue.close)
        self.crew = Crew(self.queue, self.directory)
        self.closing.callback(self.crew.close)
        self.signs, self.watched = Signs(), threading.Event()
        self.closing.callback(self.signs.stop.set)
        self.closing.callback(self.watched.set)
        self.planner = Planner("planner", self.network.dsn, self.seed, self.signs)
        self.faults = self.make_faults()

    def make_faults(self) -> Faults:
        return Faults(self.server, self.network, self.crew, self.seed)

    @property
    def url(self) -> str:
        """The network's, for clients that take no other form."""
        where = conninfo_to_dict(self.network.dsn)
        at = f"{where['host']}:{where['port']}"
        return f"postgresql://{where['user']}@{at}/{where['dbname']}?sslmode=disable"

    def pooled(self) -> str:
        """The DSN by way of PgBouncer in transaction mode."""
        directory = self.directory / "pgbouncer"
        directory.mkdir()
        pooler = Pooler(self.queue, directory, size=20)
        self.closing.callback(pooler.end)
        pooler.until_it_answers()
        self.faults.pooler = pooler
        return pooler.dsn

    def run(self, seconds: float = SECONDS) -> None:
        """Clients work and faults strike for so long; then all ends well, and the record is judged."""
        clients = [
            Adder(f"producer-{n}", self.network.dsn if n else self.server.url, self.seed, self.signs)
            for n in range(4)
        ]
        clients += [self.planner]  # type: ignore[list-item]
        threads = [threading.Thread(target=client.work) for client in clients]
        threads += [threading.Thread(target=pin, args=(self.server.url, self.signs))]
        observer = threading.Thread(target=observe, args=(self.server.url, self.watched, self.signs.crowded))
        for thread in (*threads, observer):
            thread.start()
        until = time.monotonic() + seconds
        rng = random.Random(f"{self.seed} pauses")
        while time.monotonic() < until:
            time.sleep(rng.uniform(0.1, self.pause))
            self.faults.strike(self.usual, self.rare)
        self.faults.settle()
        self.signs.stop.set()
        self.network.cut()  # a client that waits for an answer of a silent one
        for thread in threads:
            thread.join()
        self.crew.revive()
        self.calm()
        self.watched.set()
        observer.join()
        codes = self.crew.end()
        self.judge(finals(self.server.url))
        assert set(codes.values()) == {0}, codes

    def calm(self) -> None:
        """All faults are over: each job ends, if it gets the signal that it waits for."""
        self.queue.conn.close()
        self.queue.conn = self.connect()
        self.planner._conn = self.queue.conn
        self.queue.until("select coalesce(pyworker.seconds_until_tick(), 0) > 0")  # those of the past came
        asked: set[int] = set()

        def left() -> int:
            rows = self.queue.rows("select id, task_identifier from pyworker.jobs where state <> 'discarded'")
            for row in rows:
                if row.task_identifier.startswith("trip") and row.id not in asked:
                    asked.add(row.id)
                    self.planner.send(row.id, "go")
            return len(rows)

        self.queue.rows("select pyworker.pause_schedule('ticks')")
        many = left()
        while many:
            self.queue.until_so(f"fewer than {many} jobs are left", lambda many=many: left() < many)  # type: ignore[misc]
            many = left()

    def connect(self) -> psycopg.Connection[Any]:
        """When the server has recovered."""
        until = time.monotonic() + DEADLINE
        while True:
            try:
                return psycopg.connect(self.server.url, autocommit=True, row_factory=namedtuple_row)
            except psycopg.OperationalError:
                if time.monotonic() > until:
                    raise
                self.watched.wait(0.1)

    def judge(self, broken: list[Any]) -> None:
        events = list(read(self.history))
        found = violations(events)
        counted = figures(events) | {"violations": len(found), "seed": self.seed}
        print(summary(events))
        print("torture:", json.dumps(counted))
        if kept := os.environ.get("PYWORKER_FIGURES"):
            with Path(kept).open("a") as file:
                file.write(json.dumps(counted) + "\n")
        assert found == [], found[:50]
        assert broken == [], broken
        assert standstill(events) < STANDSTILL


def standstill(events: list[Event]) -> float:
    """The longest time without a start, from the first one on."""
    starts = sorted(event["t"] for event in events if event["what"] == "begin")
    return max((later - sooner for sooner, later in pairwise(starts)), default=0.0)
