"""A swarm of bare workers: one process and one connection each, by docs/protocol.md, with handlers that do
nothing but write down that they ran. So thousands of them are killed in minutes, between a million jobs."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from contextlib import suppress
from typing import Any

import psycopg

from tests.support.tasks.recorded_tasks import Recorder

TASKS = ["plain", "only_once", "in_turn", "queued", "booked"]
CUSTOMERS, QUEUES = 30, 10
WORK = """select kind, id, run, task_identifier, delivery, again_in_s
          from pyworker.work(%s, %s, %s, null, %s, %s)"""


def work(dsn: str, seed: str) -> None:
    """Until it is killed, or told to end."""
    signal.signal(signal.SIGTERM, lambda *_: told.append(True))
    told: list[bool] = []
    rng = random.Random(f"{seed} {os.getpid()} {time.time()}")
    record = Recorder(f"bare-{os.getpid()}-{time.time_ns()}")
    while not told:
        with suppress(psycopg.Error), psycopg.connect(dsn, autocommit=True, connect_timeout=5) as conn:
            conn.execute("set synchronous_commit = off; listen pyworker")
            Bare(conn, rng, record, told).live()


class Bare:
    def __init__(self, conn: Any, rng: random.Random, record: Any, told: list[bool]) -> None:
        self._conn, self._rng, self._record, self._told = conn, rng, record, told
        info = json.dumps({"name": "bare", "pid": os.getpid(), "task_identifiers": TASKS})
        self._worker = self._ask("select pyworker.open_worker(%s, 1)", info)["worker"]
        self._beaten = 0.0

    def _ask(self, sql: str, *values: Any) -> Any:
        return self._conn.execute(sql, values).fetchone()[0]

    def live(self) -> None:
        done: list[tuple[int, int]] = []
        reports: list[dict[str, Any]] = []
        while True:
            if time.monotonic() > self._beaten + 1:
                beat = "select kind from pyworker.beat(%s, '{}', '{}', true)"
                if self._ask(beat, self._worker) == "dead":
                    return
                self._beaten = time.monotonic()
            room = 0 if self._told else self._rng.choice([1, 5, 20, 50])
            ids, runs = [job for job, _ in done], [run for _, run in done]
            values = [self._worker, ids, runs, json.dumps(reports), room]
            rows = self._conn.execute(WORK, values).fetchall()
            if self._told:
                self._conn.execute("select pyworker.close_worker(%s)", [self._worker])
                return
            jobs = [row for row in rows if row[0] == "job"]
            done, reports = self._handle(jobs) if jobs else ([], [])
            if not jobs:
                for _ in self._conn.notifies(timeout=min(rows[-1][5], 0.5), stop_after=1):
                    pass

    def _handle(self, jobs: list[Any]) -> tuple[list[tuple[int, int]], list[dict[str, Any]]]:
        """One word of the record for all of them, in one write: a process that is killed before it has done
        nothing."""
        started = []
        for _, job, run, _, delivery, _ in jobs:
            if delivery != "at_most_once" or self._ask("select pyworker.start_job(%s, %s)", job, run):
                started.append((job, run))
        self._record("ran", jobs=started, pid=os.getpid())
        try:
            if self._rng.random() < 0.3:
                time.sleep(self._rng.uniform(0, 0.02))
            return self._outcomes(jobs, started)
        finally:  # also if the connection is lost
            self._record("over", jobs=started, pid=os.getpid())

    def _outcomes(self, jobs: list[Any], started: list[tuple[int, int]]) -> Any:
        done, reports = [], []
        for _, job, run, task, _, _ in jobs:
            if (job, run) not in started:
                reports.append({"id": job, "run": run, "do": "release"})
            elif task == "booked":
                self._book(job, run)
            elif self._rng.random() < 0.03 and task != "only_once":
                do = self._rng.choice(["fail", "snooze", "release"])
                reports.append({"id": job, "run": run, "do": do, "error": "as it happens", "delay_s": 0})
            else:
                done.append((job, run))
        return done, reports

    def _book(self, job: int, run: int) -> None:
        """A write, and the job's completion, in one transaction."""
        with suppress(psycopg.errors.DatabaseError), self._conn.transaction():
            self._conn.execute("insert into public.effects values (%s, %s)", [job, run])
            self._conn.execute("select pyworker.finish_job(%s, %s)", [job, run])


def specs(rng: random.Random, many: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for _ in range(many):
        task = rng.choices(TASKS, [70, 8, 10, 7, 5])[0]
        spec: dict[str, Any] = {"identifier": task, "max_attempts": 1000}
        if task == "only_once":
            spec["delivery"] = "at_most_once"
        elif task == "in_turn":
            spec |= {"payload": {"c": rng.randrange(CUSTOMERS)}, "sequence_policy": {"by_args": ["c"]}}
        elif task == "queued":
            spec["queue_name"] = f"q{rng.randrange(QUEUES)}"
        found.append(spec)
    return found


def add(dsn: str, seed: str, backlog: int) -> None:
    """Adds jobs by hundreds, until it is told to end."""
    told: list[bool] = []
    signal.signal(signal.SIGTERM, lambda *_: told.append(True))
    rng = random.Random(seed)
    record = Recorder(f"adder-{seed}")
    while not told:
        with suppress(psycopg.Error), psycopg.connect(dsn, autocommit=True, connect_timeout=5) as conn:
            while not told:
                waiting = conn.execute("select count(*) from pyworker.live_jobs where ready_at is not null")
                if waiting.fetchone()[0] > backlog:  # type: ignore[index]
                    time.sleep(0.02)
                    continue
                asked, began = specs(rng, rng.choice([1, 10, 100, 300])), time.time()
                try:
                    call = "select id from pyworker.add_jobs(%s::jsonb)"
                    ids = [job for (job,) in conn.execute(call, [json.dumps(asked)])]
                    record("added", began=began, ids=ids)
                except psycopg.Error:
                    record("added", began=began, ids=[], doubts=len(asked))
                    raise
