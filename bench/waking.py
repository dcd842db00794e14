"""How soon an idle worker learns of a committed job, and what notifications and polling cost.

    python bench/waking.py [--rounds N] [scenario …]      by default all scenarios, 10 rounds

A real `pyworker run` on a private server with fsync on. A wait is the time from just before the
COMMIT that makes the job available until the worker has claimed it.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg

sys.path.insert(0, str(Path(__file__).parents[1]))

from pyworker._db import migrations
from pyworker._dev.postgres import Server, find_bindir, temporary_server

Connection = psycopg.Connection[Any]
TASKS = """
import time, pyworker
@pyworker.task
def noop(payload): pass
@pyworker.task
def slow(payload): time.sleep(payload)
@pyworker.task
def rare(payload): pass
"""


class Stage:
    """A fresh database, and the workers that run on it."""

    def __init__(self, server: Server, directory: Path, closing: ExitStack) -> None:
        with psycopg.connect(server.url(), autocommit=True) as conn:
            conn.execute("drop database if exists waking with (force)")
            conn.execute("create database waking")
        self.server, self.directory, self.closing = server, directory, closing
        self.dsn = psycopg.conninfo.make_conninfo(server.url(), dbname="waking")
        self.conn = self.connect(autocommit=True)
        migrations.migrate(self.conn)
        (directory / "waking_tasks.py").write_text(TASKS)

    def connect(self, **options: Any) -> Connection:
        conn = psycopg.connect(self.dsn, options="-c search_path=pyworker,public", **options)
        self.closing.callback(conn.close)
        return conn

    def worker(self, *options: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "pyworker", "run", "waking_tasks", "--dsn", self.dsn, *options],
            env={**os.environ, "PYTHONPATH": f"{self.directory}:{Path(__file__).parents[1]}"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.closing.callback(end, process)
        return process

    def idle(self, workers: int = 1) -> None:
        """Waits until so many workers run and every job has ended."""
        while self.value("select count(*) from worker_health() where ready") < workers:
            self.conn.execute("select pg_sleep(0.01)")
        while self.value("select count(*) from live_jobs where state in ('available', 'running')"):
            self.conn.execute("select pg_sleep(0.01)")

    def value(self, statement: str, *parameters: Any) -> Any:
        row = self.conn.execute(statement, parameters).fetchone()  # type: ignore[arg-type]
        return row[0] if row else None

    def claimed_at(self, job_id: int) -> float:
        """Waits until this job has ended: when it was claimed."""
        ended = "select extract(epoch from claimed_at)::float from finished_jobs where id = %s"
        while (at := self.value(ended, job_id)) is None:
            self.conn.execute("select pg_sleep(0.005)")
        return at


def end(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGTERM)
    process.wait()


def add(conn: Connection, task: str = "noop", **options: Any) -> int:
    named = "".join(f", {name} => %s" for name in options)
    statement = f"select id from add_job('{task}', '0'{named})"
    row = conn.execute(statement, [*options.values()]).fetchone()  # type: ignore[arg-type]
    assert row
    return row[0]


def alone(stage: Stage, rounds: int) -> Iterator[float]:
    """one add, while nothing else happens"""
    stage.worker()
    for _ in range(rounds):
        stage.idle()
        time.sleep(random.uniform(0.1, 1))
        at = time.time()
        yield stage.claimed_at(add(stage.conn)) - at


def open_adds(stage: Stage, rounds: int) -> Iterator[float]:
    """one add beside ten open transactions that have added jobs"""
    stage.worker()
    stage.idle()
    others = [stage.connect() for _ in range(10)]
    for _ in range(rounds):
        for other in others:
            other.rollback()
            add(other)
            time.sleep(random.uniform(0, 0.1))
        at = time.time()
        yield stage.claimed_at(add(stage.conn)) - at


def mixed(stage: Stage, rounds: int) -> Iterator[float]:
    """adds in bursts of two, beside six handlers that add a job and commit a second later"""
    stage.worker()
    stage.idle()
    over = threading.Event()

    def handler(conn: Connection) -> None:
        while not over.is_set():
            add(conn)
            over.wait(1)
            conn.commit()

    threads = [threading.Thread(target=handler, args=[stage.connect()]) for _ in range(6)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(rounds):
            jobs = []
            for _ in range(2):
                at = time.time()
                jobs.append((add(stage.conn), at))
                time.sleep(random.uniform(0.003, 0.009))
            for job_id, at in jobs:
                yield stage.claimed_at(job_id) - at
            time.sleep(random.uniform(0, 0.15))
    finally:
        over.set()
        for thread in threads:
            thread.join()


def long_add(stage: Stage, rounds: int) -> Iterator[float]:
    """an add that its transaction commits 0.2 to 3 s after the worker went idle"""
    stage.worker("--concurrency", "1")
    producer = stage.connect()
    for _ in range(rounds):
        stage.idle()
        busy = stage.value(
            "select id from add_job('slow', '6')"
        )  # longer than adds notify for a worker that waited
        time.sleep(5.5)
        job_id = add(producer)
        stage.claimed_at(busy)
        time.sleep(random.uniform(0.2, 3))
        at = time.time()
        producer.commit()
        yield stage.claimed_at(job_id) - at


def first_waiter(stage: Stage, rounds: int) -> Iterator[float]:
    """the next job of a sequence, when the transaction ends that had locked the job before it"""
    stage.worker()
    other = stage.connect()
    policy = '{"key": "s", "continue_on_cancelled": true}'
    for n in range(rounds):
        stage.idle()
        keys = [f"{n}.{place}" for place in range(3)]
        head = stage.value(
            "select id from add_job('slow', '0.5', sequence_policy => %s, job_key => %s)", policy, keys[0]
        )
        waiter, last = (add(stage.conn, sequence_policy=policy, job_key=key) for key in keys[1:])
        ends, undone = random.choice(
            [
                ("select delete_job(%s)", False),
                ("select cancel_job(%s)", False),
                ("select delete_job(%s)", True),
            ]
        )
        other.execute(ends, [waiter])
        stage.claimed_at(head)
        time.sleep(random.uniform(0.1, 2.5))
        at = time.time()
        other.rollback() if undone else other.commit()
        yield stage.claimed_at(waiter if undone else last) - at


WAITS: dict[str, Callable[[Stage, int], Iterator[float]]] = {
    "alone": alone,
    "open-adds": open_adds,
    "mixed": mixed,
    "long-add": long_add,
    "first-waiter": first_waiter,
}


def rate(stage: Stage, producers: int, adds: int, options: str) -> float:
    """Adds a second, by pgbench."""
    script = stage.directory / "add.sql"
    script.write_text("select pyworker.add_job('noop', '{}');\n")
    pgbench = shutil.which("pgbench") or shutil.which("pgbench", path=f"{find_bindir()}")
    if pgbench is None:
        sys.exit("producers: there is no pgbench on the PATH; PostgreSQL's client programs have it")
    ran = subprocess.run(
        [
            pgbench,
            "-n",
            "-M",
            "prepared",
            "-c",
            str(producers),
            "-j",
            "2",
            "-t",
            str(adds),
            "-f",
            script,
            stage.dsn,
        ],
        env={**os.environ, "PGOPTIONS": options},
        check=True,
        text=True,
        capture_output=True,
    )
    (line,) = [line for line in ran.stdout.splitlines() if line.startswith("tps")]
    return float(line.split()[2])


def producers(stage: Stage, rounds: int) -> None:
    """32 producers beside a worker, with and without notifications"""
    stage.worker()
    stage.idle()
    ratios = []
    for turn in range(rounds):
        rates: dict[str, float] = {}
        for notify in ("on", "off") if turn % 2 else ("off", "on"):
            rates[notify] = rate(stage, 32, 500, f"-c pyworker.notify={notify}")
            stage.idle()
        ratios.append(rates["on"] / rates["off"])
        print(f"  {rates['on']:.0f} adds/s with, {rates['off']:.0f} without: {ratios[-1]:.2f}", flush=True)
    print(f"  median ratio {statistics.median(ratios):.2f}")


def polling(stage: Stage, rounds: int) -> None:
    """what ten idle workers cost the server while an eleventh finds many jobs"""
    for _ in range(10):
        stage.worker("--concurrency", "1", "--task", "rare")
    stage.idle(10)
    pids = stage.conn.execute(
        "select pid from pg_stat_activity where application_name like 'pyworker%'"
    ).fetchall()

    def cpu() -> float:
        return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for (pid,) in pids) / 1e9

    stage.worker("--concurrency", "50")
    stage.idle(11)
    for burst in (0, 3, 30, 300):
        spent = []
        for _ in range(rounds):
            began, before = time.monotonic(), cpu()
            for _ in range(20):
                stage.conn.execute(
                    "select count(*) from generate_series(1, %s), add_job('noop', '0')", [burst]
                )
                time.sleep(0.1)
            spent.append((cpu() - before) / (time.monotonic() - began) * 1000 / 10)
        cost = f"{statistics.median(spent):5.1f} ms of CPU a second for each of the ten"
        print(f"  {burst:3} jobs each 0.1 s: {cost}", flush=True)


@contextmanager
def fresh(server: Server) -> Iterator[Stage]:
    with tempfile.TemporaryDirectory() as directory, ExitStack() as closing:
        yield Stage(server, Path(directory), closing)


def main() -> None:
    others = {"producers": producers, "polling": polling}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scenarios", nargs="*", metavar="scenario", help=", ".join([*WAITS, *others]))
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    if unknown := set(options.scenarios) - {*WAITS, *others}:
        parser.error(f"there is no scenario {min(unknown)}; there are {', '.join([*WAITS, *others])}")
    with temporary_server(settings={"max_connections": "200", "shared_buffers": "256MB"}) as server:
        print(f"PostgreSQL {server.version}, {options.rounds} rounds", flush=True)
        for name in options.scenarios or [*WAITS, *others]:
            with fresh(server) as stage:
                if name in others:
                    print(f"{name}: {others[name].__doc__}", flush=True)
                    others[name](stage, options.rounds)
                    continue
                waits = sorted(WAITS[name](stage, options.rounds))
                median, longest = statistics.median(waits) * 1000, waits[-1] * 1000
                found = f"median {median:6.0f} ms, longest {longest:6.0f} ms"
                print(f"{name:13} {found}   {WAITS[name].__doc__}", flush=True)


if __name__ == "__main__":
    main()
