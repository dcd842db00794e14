"""pyworker: `pyworker run` with its defaults, add_job and add_jobs from psycopg."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from threading import Thread
from typing import Any

import psycopg
from repl import DSN, chunks, gaps, payload, serve

import pyworker
from pyworker._db.migrations import migrate

HERE = Path(__file__).parent
connections: list[psycopg.Connection[Any]] = []
workers: list[subprocess.Popen[bytes]] = []


def setup(*statements: str) -> None:
    with psycopg.connect(DSN, autocommit=True) as conn:
        migrate(conn, "pyworker")
        for statement in statements:
            conn.execute(statement.encode())


def connect(count: int, *settings: str) -> None:
    while len(connections) < count:
        connections.append(psycopg.connect(DSN, autocommit=True))
        for setting in settings:
            connections[-1].execute(setting.encode())


def in_threads(n: int, call: Any) -> None:
    numbers = iter(range(n))

    def loop(conn: psycopg.Connection[Any]) -> None:
        for i in numbers:
            call(conn, i)

    threads = [Thread(target=loop, args=[conn]) for conn in connections]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def add(n: int) -> None:
    in_threads(n, lambda conn, i: pyworker.add_job(conn, "noop", payload(i)))


def call(n: int, statement: str) -> None:
    """A statement per job, by psycopg alone."""
    in_threads(n, lambda conn, i: conn.execute(statement.encode(), [json.dumps(payload(i))]))


def add_keyed(n: int, keys: int, arrays: bool) -> None:
    in_threads(
        n,
        lambda conn, i: pyworker.add_job(
            conn, "noop", [i] if arrays else payload(i), job_key=f"k{i * 7919 % keys}"
        ),
    )


def add_unique(n: int, different: int) -> None:
    policy = {"by_args": True}
    in_threads(
        n, lambda conn, i: pyworker.add_job(conn, "noop", payload(i % different), unique_policy=policy)
    )


def bulk(n: int) -> None:
    for chunk in chunks(n):
        specs = json.dumps([{"identifier": "noop", "payload": payload(i)} for i in chunk])
        connections[0].execute("select count(*) from pyworker.add_jobs(%s::jsonb)", [specs])


def latency(n: int, gap_ms: float) -> None:
    for moment in gaps(n, gap_ms):
        pyworker.add_job(connections[0], "stamp", moment)


def flows(n: int, members: int) -> None:
    """Each: so many jobs, and one that waits for all of them."""
    for _ in range(n):
        jobs = [{"identifier": "member", "payload": payload(i)} for i in range(members)]
        pyworker.add_batch(connections[0], jobs, {"identifier": "callback"})


def loose(n: int, members: int) -> None:
    """As many jobs that wait for none."""
    for _ in range(n):
        jobs = [{"identifier": "member", "payload": payload(i)} for i in range(members)]
        pyworker.add_jobs(connections[0], [*jobs, {"identifier": "callback"}])


def work_flows() -> None:
    work(10)


def work(concurrency: int, *_quick: Any) -> None:
    path = os.pathsep.join([str(HERE), *sys.path])
    command = [sys.executable, "-m", "pyworker", "run", "ours_tasks", "--log-level", "error"]
    command += ["--concurrency", str(concurrency)]
    command += ["--no-uvloop"] * ("uvloop" not in sys.argv)
    workers.append(subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}))


VERBS = (
    setup, connect, add, call, add_keyed, add_unique, bulk, latency, flows, loose, work_flows, work
)  # fmt: skip
if __name__ == "__main__":
    serve({verb.__name__: verb for verb in VERBS})
