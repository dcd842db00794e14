"""What the runners of three languages ask of the database, and how fast they drain a queue.

    python bench/protocol.py [JOBS]      by default 4000

Each runner has 10 handlers and a private server with fsync on. A rate is the jobs that ended between
the first claim and the last end. The statements are those that pg_stat_statements counts for the
runner, from its start to the last end; of an idle one, in five seconds.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import psycopg

sys.path.insert(0, str(Path(__file__).parents[1]))

from pyworker._db import migrations
from pyworker._dev.postgres import Server, temporary_server

ROOT = Path(__file__).parents[1]
SETTINGS = {"fsync": "on", "synchronous_commit": "on", "shared_preload_libraries": "pg_stat_statements"}
PYTHON = """
import asyncio, pyworker
@pyworker.task
async def note(payload):
    if payload: await asyncio.sleep(payload / 1000)
"""
NODE = """
import { setTimeout as sleep } from 'node:timers/promises'
export default { note: async ms => { if (ms) await sleep(ms) } }
"""
GO = """package main

import (
	"context"
	"os"
	"strconv"
	"time"

	"example.org/pyworker/worker"
)

func main() {
	os.Exit(worker.Run(map[string]worker.Handler{"note": func(_ context.Context, j *worker.Job) (any, error) {
		ms, err := strconv.Atoi(string(j.Payload))
		time.Sleep(time.Duration(ms) * time.Millisecond)
		return nil, err
	}}))
}
"""
# The part of JOBS, the payload, more arguments of add_job.
CASES = {
    "no-op": (1.0, 0, ""),
    "10 ms": (0.5, 10, ""),
    "at most once": (0.25, 0, ", delivery => 'at_most_once'"),
    "one sequence": (0.1, 0, """, sequence_policy => '{"key": "s"}'"""),
    "one serial queue": (0.1, 0, ", queue_name => 'serial'"),
}


def python(directory: Path) -> list[str]:
    (directory / "protocol_tasks.py").write_text(PYTHON)
    return [sys.executable, "-m", "pyworker", "run", "protocol_tasks"]


def node(directory: Path) -> list[str]:
    made = shutil.copytree(ROOT / "examples" / "runners" / "node", directory / "node")
    (made / "handlers.mjs").write_text(NODE)
    subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--loglevel=error"], cwd=made, check=True)
    return ["node", str(made / "run.mjs"), str(made / "handlers.mjs")]


def go(directory: Path) -> list[str]:
    made = shutil.copytree(ROOT / "examples" / "runners" / "go", directory / "go")
    (made / "main.go").write_text(GO)
    subprocess.run(["go", "build", "-o", "runner", "."], cwd=made, check=True)
    return [str(made / "runner")]


def value(conn: psycopg.Connection[Any], statement: str) -> Any:
    row = conn.execute(statement).fetchone()  # type: ignore[arg-type]
    return row[0] if row else None  # pyright: ignore[reportUnknownVariableType]


def asked(conn: psycopg.Connection[Any]) -> int:
    runners = "where toplevel and userid <> 'looker'::regrole"
    return int(value(conn, f"select coalesce(sum(calls), 0) from pg_stat_statements {runners}"))


@contextmanager
def drained(server: Server, command: list[str], jobs: int, add: str) -> Iterator[psycopg.Connection[Any]]:
    """A fresh queue that the runner has drained, and on which it still runs."""
    with psycopg.connect(server.url(), autocommit=True) as conn:
        conn.execute("drop database if exists protocol with (force)")
        conn.execute("create database protocol")
        conn.execute("do 'begin create role looker superuser; exception when others then end'")
    dsn = server.url("protocol")
    with psycopg.connect(dsn, autocommit=True) as conn:
        migrations.migrate(conn)
        conn.execute("create extension pg_stat_statements")
        conn.execute("set role looker")  # so that what this script asks does not count
        conn.execute(f"select count({add}) from generate_series(1, {jobs})")  # type: ignore[arg-type]
        conn.execute("vacuum analyze")
        conn.execute("select pg_stat_statements_reset()")
        environment = {**os.environ, "DATABASE_URL": dsn, "PYWORKER_RUN_CONCURRENCY": "10"}
        process = subprocess.Popen(command, env=environment, stdout=DEVNULL, stderr=DEVNULL)
        try:
            while value(conn, "select count(*) from pyworker.finished_jobs") < jobs:
                time.sleep(0.05)
            yield conn
        finally:
            process.terminate()
            process.wait()


def main() -> None:
    in_all = int(sys.argv[1]) if sys.argv[1:] else 4000
    with tempfile.TemporaryDirectory() as directory, temporary_server(settings=SETTINGS) as server:
        os.environ["PYTHONPATH"] = f"{directory}:{ROOT}"
        here = Path(directory)
        commands = {"python": python(here), "node": node(here), "go": go(here)}
        for case, (part, payload, more) in CASES.items():
            for name, command in commands.items():
                jobs, add = int(in_all * part), f"pyworker.add_job('note', '{payload}'{more})"
                with drained(server, command, jobs, add) as conn:
                    per_job = asked(conn) / jobs
                    lasted = "extract(epoch from max(finished_at) - min(claimed_at))::float"
                    rate = jobs / value(conn, f"select {lasted} from pyworker.finished_jobs")
                print(f"{case:17} {name:7} {rate:6.0f} jobs/s {per_job:5.2f} statements per job", flush=True)
        for name, command in commands.items():
            with drained(server, command, 1, "pyworker.add_job('note', '0')") as conn:
                time.sleep(3)
                conn.execute("select pg_stat_statements_reset()")
                time.sleep(5)
                print(f"{'idle':17} {name:7} {asked(conn) / 5:20.1f} statements per second", flush=True)


if __name__ == "__main__":
    main()
